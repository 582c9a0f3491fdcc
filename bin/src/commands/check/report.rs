//! What `sealane check` found, as text for people and as JSON (`sealane-check/1`) for scripts.

use std::fmt;

use serde::Serialize;

use super::cpus::Cpus;
use super::host::{MemoryLock, Tcp};
use super::io_uring::IoUring;
use super::paths::Path;
use super::rdma::Device;
use super::security::Security;
use super::verbs::Verbs;
use crate::Failure;
use crate::settings::{Entry, Source, Value};

/// The version of the JSON.
const SCHEMA: &str = "sealane-check/1";

/// Tasks of one transport address that the text names; the JSON names all.
const TASKS_SHOWN_MAX: usize = 3;

/// Everything that was found.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) role: String,
    pub(super) role_source: String,
    /// The shards that a daemon would run.
    pub(super) shards: usize,
    pub(super) cpus: Cpus,
    pub(super) memory_lock: MemoryLock,
    pub(super) io_uring: IoUring,
    pub(super) rdma: Vec<Device>,
    pub(super) verbs: Verbs,
    pub(super) tcp: Tcp,
    pub(super) security: Security,
    pub(super) settings: Vec<SettingReport>,
    pub(super) endpoint_map: MapReport,
    pub(super) paths: Vec<Path>,
}

/// One setting.
#[derive(Debug, Serialize)]
pub(super) struct SettingReport {
    name: &'static str,
    /// `null` where the default depends on the host or the endpoint map.
    value: serde_json::Value,
    /// The value as people read it.
    shown: String,
    source: SourceReport,
}

/// Where a setting came from.
#[derive(Debug, Serialize)]
struct SourceReport {
    /// `default`, `file`, `variable` or `flag`.
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<usize>,
}

/// The endpoint map.
#[derive(Debug, Serialize)]
pub(super) struct MapReport {
    pub(super) file: String,
    pub(super) source: String,
    /// `null` where there is no usable map.
    pub(super) tasks: Option<usize>,
    pub(super) error: Option<String>,
}

impl SettingReport {
    pub(super) fn of(entry: &Entry) -> SettingReport {
        let (kind, name, line) = match &entry.source {
            Source::Default => ("default", None, None),
            Source::File { path, line } => ("file", Some(path.display().to_string()), Some(*line)),
            Source::Variable(name) => ("variable", Some((*name).to_owned()), None),
            Source::Flag(name) => ("flag", Some((*name).to_owned()), None),
        };
        SettingReport {
            name: entry.setting.name,
            value: match &entry.value {
                Value::Unset => serde_json::Value::Null,
                Value::Number(number) => (*number).into(),
                Value::Bool(bool) => (*bool).into(),
                Value::Text(text) => text.as_str().into(),
            },
            shown: entry.shown(),
            source: SourceReport { kind, name, line },
        }
    }
}

impl fmt::Display for SourceReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.name, self.line) {
            (Some(name), Some(line)) => write!(out, "{name}:{line}"),
            (Some(name), None) => write!(out, "{} {name}", self.kind),
            (None, _) => out.write_str(self.kind),
        }
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

    fn write_host(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "host")?;
        writeln!(out, "  CPUs         {}", self.cpus)?;
        writeln!(out, "  shards       {}", self.shards)?;
        writeln!(out, "  memory lock  {}", self.memory_lock)?;
        writeln!(out, "  io_uring     {}", self.io_uring)?;
        writeln!(out, "  TCP          {}", self.tcp)?;
        writeln!(out, "  who may talk {}", self.security)?;
        writeln!(out, "  verbs        {}", self.verbs)?;
        if self.rdma.is_empty() {
            return writeln!(out, "  RDMA         no devices");
        }
        for device in &self.rdma {
            for port in &device.ports {
                let (name, number) = (&device.name, port.number);
                let (state, layer) = (&port.state, &port.link_layer);
                writeln!(out, "  RDMA         {name} port {number}: {state}, {layer}")?;
                for gid in &port.gids {
                    let (index, kind, device) = (gid.index, &gid.kind, &gid.network_device);
                    writeln!(out, "               GID {index}: {} {kind} {device}", gid.gid)?;
                }
            }
        }
        Ok(())
    }

    fn write_settings(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "\nsettings (role {}, from {})", self.role, self.role_source)?;
        let width = |text: fn(&SettingReport) -> &str| {
            let widths = self.settings.iter().map(|setting| text(setting).chars().count());
            widths.max().unwrap_or(0)
        };
        let name_width = width(|setting| setting.name);
        for setting in &self.settings {
            let SettingReport { name, shown, source, .. } = setting;
            writeln!(out, "  {name:name_width$}  {shown}  ({source})")?;
        }
        Ok(())
    }

    fn write_paths(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MapReport { file, source, tasks, error } = &self.endpoint_map;
        write!(out, "\nendpoint map {file} (from {source}): ")?;
        match (tasks, error) {
            (_, Some(error)) => writeln!(out, "{error}")?,
            (Some(tasks), None) => writeln!(out, "{tasks} tasks")?,
            (None, None) => writeln!(out, "no such file; name one with --endpoint-map")?,
        }
        for path in &self.paths {
            let shown = path.tasks.len().min(TASKS_SHOWN_MAX);
            let more = path.tasks.len() - shown;
            let tasks = path.tasks[..shown].join(", ");
            write!(out, "  {}  {}: {}  ({tasks}", path.transport_address, path.link, path.reason)?;
            match more {
                0 => writeln!(out, ")")?,
                more => writeln!(out, " and {more} more)")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_host(out)?;
        self.write_settings(out)?;
        self.write_paths(out)
    }
}
