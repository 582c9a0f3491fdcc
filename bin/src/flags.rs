//! Flags shared by many commands.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::Failure;
use crate::settings::{Override, Role};

/// Longest `--timeout-s`: a day.
pub(crate) const TIMEOUT_S_MAX: u64 = 86_400;

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people
    Text,
    /// One JSON object per line, for programs
    Json,
}

/// The flags of every command that say what is logged.
#[derive(Args, Clone, Debug)]
pub struct LogFlags {
    /// Log filter, such as info or sealane_fusion=debug; overrides RUST_LOG
    #[arg(long = "log", value_name = "FILTER", global = true)]
    pub filter: Option<String>,

    /// Format of log lines on standard error
    #[arg(long = "log-format", value_name = "FORM", global = true, default_value = "text")]
    pub format: LogFormat,
}

/// The flags of every command that reads settings.
#[derive(Args, Clone, Debug, Default)]
pub struct SettingsFlags {
    /// Endpoint map, instead of `.endpoint_map` in the configured directory
    #[arg(long, value_name = "FILE")]
    pub endpoint_map: Option<PathBuf>,

    /// Which role's environment variables to read: ps, worker or chief
    #[arg(long, value_name = "ROLE")]
    pub role: Option<Role>,

    /// Settings file, instead of `sealane.toml` in the working directory
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Override a setting, as in `runtime.shards=4`; repeatable
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,
}

impl SettingsFlags {
    pub(crate) fn overrides(&self) -> Result<Vec<Override>, Failure> {
        let mut overrides = Vec::new();
        for pair in &self.set {
            let (name, text) = pair.split_once('=').ok_or_else(|| {
                Failure::input(format!(
                    "--set {pair:?} has no `=`; write a setting and its value, as in runtime.shards=4"
                ))
            })?;
            overrides.push(Override::new("--set", name.trim(), text.trim()));
        }
        overrides.extend(path_override("--endpoint-map", "transport.endpoint_map", self.endpoint_map.as_ref())?);
        Ok(overrides)
    }
}

/// The override by a flag with a path; a flag is a setting's strongest source.
pub(crate) fn path_override(
    flag: &'static str,
    setting: &str,
    path: Option<&PathBuf>,
) -> Result<Option<Override>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let text = path
        .to_str()
        .ok_or_else(|| Failure::input(format!("{flag} {} is not UTF-8; name the file in UTF-8", path.display())))?;
    Ok(Some(Override::new(flag, setting, text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_needs_an_equals_sign() {
        let flags = SettingsFlags { set: vec!["runtime.shards".into()], ..SettingsFlags::default() };
        let failure = flags.overrides().unwrap_err().to_string();
        assert!(failure.starts_with("--set \"runtime.shards\" has no `=`; "), "{failure}");
    }
}
