//! The results of `sealane check`, as text for people and as JSON (`sealane-check/1`) for scripts.

use sealane_transport::endpoint_map::{Diagnostic, Severity};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::measured::{self, MeasuredPeer};
use super::probe::Probe;
use super::rdma::Device;
use super::verdict::{COLUMNS, Finding, Verdict, shown, wrapped};
use crate::settings::{Entry, Settings, Source};
use crate::wording::first_of;

/// Width of the column for a path's addresses: longer ones are put on a line of their own.
const PATH_MARGIN_MAX: usize = 26;
/// Most lint remarks shown in the text; the JSON has all.
const REMARKS_SHOWN_MAX: usize = 10;
/// Width of the column before a remark: room for a line and a column number.
const REMARK_MARGIN: usize = 12;
/// Most tasks of one transport address named in the text; the JSON names all.
const TASKS_SHOWN_MAX: usize = 3;

#[derive(Serialize)]
pub(super) struct Report<'a> {
    pub(super) schema: &'static str,
    pub(super) role: String,
    pub(super) role_source: String,
    /// The number of shards that a daemon would run.
    pub(super) shards: usize,
    /// All findings, in the order of the text.
    pub(super) findings: Vec<Finding>,
    pub(super) rdma: Vec<Device>,
    /// More data for scripts, by topic.
    #[serde(flatten)]
    pub(super) facts: Map<String, Value>,
    pub(super) paths: Vec<Path>,
    /// `null` without `--probe`.
    pub(super) probes: Option<Vec<Probe>>,
    /// `null` without `--measure`, or if the daemon did not measure.
    pub(super) measured: Option<Vec<MeasuredPeer>>,
    #[serde(skip)]
    pub(super) settings: &'a Settings,
    /// What `sealane map lint` reports of the endpoint map.
    #[serde(skip)]
    pub(super) lint: Vec<Diagnostic>,
}

/// How the tasks at one transport address are reached.
#[derive(Debug, Serialize)]
pub(super) struct Path {
    pub(super) transport_address: String,
    pub(super) tasks: Vec<String>,
    /// `loopback`, `verbs`, `tcp`, or `none` if the required link is not available.
    pub(super) link: &'static str,
    pub(super) reason: String,
}

/// A setting for scripts; its value is `null` if the default depends on the host or the endpoint map.
pub(super) fn setting_json(entry: &Entry) -> Value {
    let source = match &entry.source {
        Source::Default => json!({ "kind": "default" }),
        Source::File { path, line } => json!({ "kind": "file", "name": path.display().to_string(), "line": line }),
        Source::Variable(name) => json!({ "kind": "variable", "name": name }),
        Source::Flag(name) => json!({ "kind": "flag", "name": name }),
    };
    json!({ "name": entry.setting.name, "value": entry.value, "shown": entry.shown(), "source": source })
}

impl Report<'_> {
    /// The report as one JSON object, with a newline.
    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("texts and numbers are JSON") + "\n"
    }

    pub(super) fn names(&self, verdict: Verdict) -> Vec<String> {
        let findings = self.findings.iter().map(|finding| (finding.name, finding));
        let probes = self.probes.iter().flatten().map(|probe| (probe.transport_address.as_str(), &probe.finding));
        let measured = self.measured.iter().flatten().map(MeasuredPeer::finding);
        findings
            .chain(probes)
            .chain(measured)
            .filter(|(_, of)| of.verdict == verdict)
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// The report for people, with all settings or only those that differ from their defaults. What matters most comes last, where
    /// a terminal still shows it.
    pub(super) fn text(&self, all_settings: bool) -> String {
        let mut text = self.settings_text(all_settings) + "\nhost\n";
        text.extend(self.findings.iter().map(|finding| shown(finding.name, finding)));
        for device in &self.rdma {
            for (number, gid) in device.ports.iter().flat_map(|port| port.gids.iter().map(|gid| (port.number, gid))) {
                let gid = format!("GID {}: {} {} {}", gid.index, gid.gid, gid.kind, gid.network_device);
                text += &wrapped("", 10, format!("{} port {number} {gid}", device.name).trim_end());
            }
        }
        text += &self.lint_text();
        let widest = self.paths.iter().map(|path| path.transport_address.chars().count()).max();
        let margin = (widest.unwrap_or(0) + 4).min(PATH_MARGIN_MAX);
        text += if self.paths.is_empty() { "" } else { "\npaths\n" };
        for Path { transport_address, tasks, link, reason } in &self.paths {
            let says = format!("{link}: {reason} ({})", first_of(tasks, TASKS_SHOWN_MAX));
            text += &wrapped(&format!("  {transport_address}  "), margin, &says);
        }
        text += if self.probes.is_some() { "\npeers\n" } else { "" };
        text.extend(self.probes.iter().flatten().map(|probe| shown(&probe.transport_address, &probe.finding)));
        text +=
            &self.measured.as_deref().map_or_else(String::new, |peers| format!("\nlinks\n{}", measured::text(peers)));
        text += &match (self.names(Verdict::WillNotWork).len(), self.names(Verdict::CouldBeBetter).len()) {
            (0, 0) => "\nNo problems found.\n".to_owned(),
            (0, better) => format!("\n{better} could be better; everything works.\n"),
            (fails, better) => format!("\n{fails} will not work, {better} could be better.\n"),
        };
        if self.findings.iter().any(|finding| finding.remedy().contains("sysctl -w")) {
            text += "sysctl settings are lost on reboot; also write them to /etc/sysctl.d/.\n";
        }
        text
    }

    fn settings_text(&self, all: bool) -> String {
        let entries = self.settings.entries();
        let shown: Vec<&Entry> = entries.iter().filter(|entry| all || entry.source != Source::Default).collect();
        let name_width = shown.iter().map(|entry| entry.setting.name.len()).max().unwrap_or(0);
        let mut text = format!("settings (role {}, from {})\n", self.role, self.role_source);
        for entry in &shown {
            let head = format!("  {:name_width$}  ", entry.setting.name);
            let value = entry.shown();
            let source = match &entry.source {
                Source::Variable(name) => format!("variable {name}"),
                Source::Flag(name) => format!("flag {name}"),
                other => other.to_string(),
            };
            // The source is kept in one piece, so that it can be searched for.
            text += &match format!("{head}{value}  ({source})") {
                line if line.chars().count() <= COLUMNS => line + "\n",
                _ => wrapped(&head, head.len(), &format!("{value} ({source})")),
            };
        }
        match shown.len() {
            number if number == entries.len() => text,
            0 => text + "  all have their defaults; --settings shows them\n",
            _ => text + "  all others have their defaults; --settings shows them\n",
        }
    }

    /// The lint's remarks on the map, line by line.
    fn lint_text(&self) -> String {
        let file = self.settings.transport.endpoint_map.value.display();
        let mut text = if self.lint.is_empty() { String::new() } else { format!("\nlint of {file}\n") };
        for diagnostic in self.lint.iter().take(REMARKS_SHOWN_MAX) {
            let word = if diagnostic.severity() == Severity::Error { "error" } else { "warning" };
            let place = format!("  {}:{}  ", diagnostic.line, diagnostic.column);
            text += &wrapped(&place, REMARK_MARGIN, &format!("{} ({word})", diagnostic.problem));
        }
        match self.lint.len().saturating_sub(REMARKS_SHOWN_MAX) {
            0 => text,
            more => text + &format!("  and {more} more; `sealane map lint {file}` shows all\n"),
        }
    }
}
