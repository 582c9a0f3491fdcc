//! What `sealane check` found, as text for people and as JSON (`sealane-check/1`) for scripts.

use std::fmt;

use serde::Serialize;
use serde_json::json;

use super::cpus::Cpus;
use super::gpus::Gpus;
use super::host::{MemoryLock, Tcp};
use super::io_uring::IoUring;
use super::memory::Memory;
use super::network::Sockets;
use super::paths::Path;
use super::probe::Probe;
use super::rdma::Device;
use super::security::Security;
use super::topology::{Card, Topology};
use super::verbs::Verbs;
use super::verdict::{Finding, Verdict, shown, wrapped};
use crate::Failure;
use crate::settings::{Entry, Source, Value};
use crate::wording::first_of;

/// The version of the JSON.
const SCHEMA: &str = "sealane-check/1";

/// Columns before what is said of a path: longer addresses stand on a line of their own.
const PATH_MARGIN_MAX: usize = 26;

/// Remarks of the lint that the text has; the JSON has all.
const REMARKS_SHOWN_MAX: usize = 10;
/// Columns before a remark: room for a line and a column.
const REMARK_MARGIN: usize = 12;

/// Tasks of one transport address that the text names; the JSON names all.
const TASKS_SHOWN_MAX: usize = 3;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) role: String,
    pub(super) role_source: String,
    /// The shards that a daemon would run.
    pub(super) shards: usize,
    /// What was made of all below, in the order of the text.
    pub(super) findings: Vec<Finding>,
    pub(super) cpus: Cpus,
    pub(super) topology: Topology,
    pub(super) cards: Vec<Card>,
    pub(super) memory: Memory,
    pub(super) sockets: Sockets,
    pub(super) memory_lock: MemoryLock,
    pub(super) io_uring: IoUring,
    pub(super) rdma: Vec<Device>,
    pub(super) verbs: Verbs,
    pub(super) gpus: Gpus,
    pub(super) tcp: Tcp,
    pub(super) security: Security,
    pub(super) settings: Vec<SettingReport>,
    pub(super) endpoint_map: MapReport,
    pub(super) paths: Vec<Path>,
    /// `null` without `--probe`.
    pub(super) probes: Option<Vec<Probe>>,
}

/// One setting.
#[derive(Debug, Serialize)]
pub(super) struct SettingReport {
    name: &'static str,
    /// `null` where the default depends on the host or the endpoint map.
    value: Value,
    /// The value as people read it.
    shown: String,
    /// Its `kind` (`default`, `file`, `variable` or `flag`), and its `name` and `line` where it has them.
    source: serde_json::Value,
    /// The source as people read it.
    #[serde(skip)]
    source_shown: String,
}

/// The endpoint map.
#[derive(Debug, Serialize)]
pub(super) struct MapReport {
    pub(super) file: String,
    pub(super) source: String,
    /// `null` where there is no usable map.
    pub(super) tasks: Option<usize>,
    pub(super) error: Option<String>,
    /// What `sealane map lint` says of it.
    pub(super) lint: Vec<Remark>,
}

/// A line of the endpoint map that is wrong, or says nothing.
#[derive(Debug, Serialize)]
pub(super) struct Remark {
    pub(super) line: usize,
    pub(super) column: usize,
    /// False: the map works all the same.
    pub(super) is_error: bool,
    pub(super) says: String,
}

impl SettingReport {
    pub(super) fn of(entry: &Entry) -> SettingReport {
        let (source, source_shown) = match &entry.source {
            Source::Default => (json!({"kind": "default"}), "default".to_owned()),
            Source::File { path, line } => {
                let path = path.display().to_string();
                (json!({"kind": "file", "name": path, "line": line}), format!("{path}:{line}"))
            }
            Source::Variable(name) => (json!({"kind": "variable", "name": name}), format!("variable {name}")),
            Source::Flag(name) => (json!({"kind": "flag", "name": name}), format!("flag {name}")),
        };
        let Entry { setting, value, .. } = entry;
        SettingReport { name: setting.name, value: value.clone(), shown: entry.shown(), source, source_shown }
    }
}

impl Report {
    /// The report as one JSON object and a line end.
    pub(super) fn json(&self) -> Result<String, Failure> {
        #[derive(Serialize)]
        struct Tagged<'a> {
            schema: &'static str,
            #[serde(flatten)]
            report: &'a Report,
        }
        let tagged = Tagged { schema: SCHEMA, report: self };
        let json = serde_json::to_string_pretty(&tagged).map_err(|error| {
            Failure::work(format!("the report cannot be written as JSON ({error}); leave out --json"))
        })?;
        Ok(json + "\n")
    }

    /// What does not work, or could be better, of everything that was looked at: by name.
    pub(super) fn names(&self, verdict: Verdict) -> Vec<String> {
        let findings = self.findings.iter().map(|finding| (finding.name.to_owned(), finding.verdict));
        let probes =
            self.probes.iter().flatten().map(|probe| (probe.transport_address.clone(), probe.finding().verdict));
        findings.chain(probes).filter(|(_, has)| *has == verdict).map(|(name, _)| name).collect()
    }

    fn write_host(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\nhost")?;
        self.findings.iter().try_for_each(|finding| out.write_str(&shown(finding.name, finding)))?;
        for device in &self.rdma {
            for port in &device.ports {
                let number = port.number;
                for gid in &port.gids {
                    let (index, kind, network) = (gid.index, &gid.kind, &gid.network_device);
                    let text = format!("{} port {number} GID {index}: {} {kind} {network}", device.name, gid.gid);
                    out.write_str(&wrapped("", 10, text.trim_end()))?;
                }
            }
        }
        Ok(())
    }

    fn write_settings(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "settings (role {}, from {})", self.role, self.role_source)?;
        let width = |text: fn(&SettingReport) -> &str| {
            let widths = self.settings.iter().map(|setting| text(setting).chars().count());
            widths.max().unwrap_or(0)
        };
        let name_width = width(|setting| setting.name);
        for setting in &self.settings {
            let SettingReport { name, shown, source_shown: source, .. } = setting;
            let head = format!("  {name:name_width$}  ");
            // The source stands by itself, where it is looked for.
            match head.chars().count() + shown.chars().count() + source.chars().count() + 4 {
                0..=80 => writeln!(out, "{head}{shown}  ({source})")?,
                _ => out.write_str(&wrapped(&head, head.len(), &format!("{shown} ({source})")))?,
            }
        }
        Ok(())
    }

    /// What the lint says of the map, line by line.
    fn write_lint(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MapReport { file, lint, .. } = &self.endpoint_map;
        if lint.is_empty() {
            return Ok(());
        }
        writeln!(out, "\nlint of {file}")?;
        for Remark { line, column, is_error, says } in lint.iter().take(REMARKS_SHOWN_MAX) {
            let word = if *is_error { "error" } else { "warning" };
            out.write_str(&wrapped(&format!("  {line}:{column}  "), REMARK_MARGIN, &format!("{says} ({word})")))?;
        }
        match lint.len().saturating_sub(REMARKS_SHOWN_MAX) {
            0 => Ok(()),
            more => writeln!(out, "  and {more} more; `sealane map lint {file}` shows all"),
        }
    }

    fn write_paths(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.paths.is_empty() {
            return Ok(());
        }
        writeln!(out, "\npaths")?;
        let widest = self.paths.iter().map(|path| path.transport_address.chars().count()).max().unwrap_or(0);
        let margin = (widest + 4).min(PATH_MARGIN_MAX);
        for path in &self.paths {
            let tasks = first_of(&path.tasks, TASKS_SHOWN_MAX);
            let text = format!("{}: {} ({tasks})", path.link, path.reason);
            let head = format!("  {}  ", path.transport_address);
            match head.chars().count() > margin {
                true => write!(out, "{}\n{}", head.trim_end(), wrapped("", margin, &text))?,
                false => out.write_str(&wrapped(&head, margin, &text))?,
            }
        }
        Ok(())
    }

    fn write_probes(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(probes) = &self.probes else { return Ok(()) };
        writeln!(out, "\npeers")?;
        probes.iter().try_for_each(|probe| out.write_str(&shown(&probe.transport_address, &probe.finding())))
    }

    fn write_sum(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fails, better) = (self.names(Verdict::WillNotWork).len(), self.names(Verdict::CouldBeBetter).len());
        match (fails, better) {
            (0, 0) => writeln!(out, "\nNo problems found.")?,
            (0, better) => writeln!(out, "\n{better} could be better; everything works.")?,
            (fails, better) => writeln!(out, "\n{fails} will not work, {better} could be better.")?,
        }
        if self.findings.iter().any(|finding| finding.remedy().contains("sysctl -w")) {
            writeln!(out, "sysctl settings are lost on reboot; also write them to /etc/sysctl.d/.")?;
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What matters most is said last, where a terminal still shows it.
        self.write_settings(out)?;
        self.write_host(out)?;
        self.write_lint(out)?;
        self.write_paths(out)?;
        self.write_probes(out)?;
        self.write_sum(out)
    }
}
