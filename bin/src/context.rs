//! What every command is given besides its arguments: the environment, the working directory, and
//! standard output.

use std::io::{ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

use crate::Failure;
use crate::flags::{LogFlags, LogFormat, SettingsFlags};
use crate::log::LogWriter;
use crate::settings::{Environment, Override, Settings, Sources};

/// The variable that sets what is logged, in the syntax of `tracing_subscriber::filter::Targets`.
const LOG_VARIABLE: &str = "RUST_LOG";

/// What the process gives to a command.
#[derive(Debug)]
pub struct Context {
    environment: Environment,
    working_directory: PathBuf,
}

impl Context {
    /// Takes the given environment and the process's working directory.
    ///
    /// # Errors
    ///
    /// The working directory does not exist any more.
    pub fn new(environment: Environment) -> Result<Context, Failure> {
        let working_directory = std::env::current_dir().map_err(|error| {
            Failure::input(format!("the working directory cannot be found ({error}); change to one that exists"))
        })?;
        Ok(Context { environment, working_directory })
    }

    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// True if the environment asks for a log.
    pub(crate) fn log_is_wanted(&self) -> bool {
        self.environment.get(LOG_VARIABLE).is_ok_and(|filter| filter.is_some())
    }

    pub fn working_directory(&self) -> &Path {
        &self.working_directory
    }

    /// The settings from `flags`, the environment and `sealane.toml`, and from a command's own flags.
    ///
    /// # Errors
    ///
    /// A value cannot be read or contradicts another one.
    pub fn settings(
        &self,
        flags: &SettingsFlags,
        overrides: impl IntoIterator<Item = Override>,
    ) -> Result<Settings, Failure> {
        let mut all = flags.overrides()?;
        all.extend(overrides);
        let settings = Settings::load(&Sources {
            environment: &self.environment,
            working_directory: &self.working_directory,
            config: flags.config.as_deref(),
            role: flags.role,
            overrides: &all,
        })?;
        Ok(settings)
    }

    /// Writes `text` to standard output as it is. It is no failure if the reader has gone away (`| head`).
    ///
    /// # Errors
    ///
    /// Standard output cannot be written.
    pub fn print(&self, text: &str) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::work(format!(
                "standard output cannot be written ({error}); redirect it to a place with free space"
            ))),
            _ => Ok(()),
        }
    }

    /// Sends log lines to standard error, filtered by `--log`, else by `RUST_LOG`; in colour only on a terminal.
    pub(crate) fn start_log(&self, flags: &LogFlags, default: &str) -> Result<(), Failure> {
        let (source, filter) = match (flags.filter.as_deref(), self.environment.get(LOG_VARIABLE)?) {
            (Some(filter), _) => ("--log ", filter),
            (None, Some(filter)) => ("RUST_LOG=", filter),
            (None, None) => ("", default),
        };
        let targets = log_filter(filter).map_err(|error| {
            Failure::input(format!(
                "{source}{filter:?} cannot be read ({error}); \
                 write a level such as info, or target=level pairs between commas"
            ))
        })?;
        // A second start in one process (a test) keeps the first.
        let log = tracing_subscriber::fmt::layer().with_writer(|| LogWriter);
        let log = match flags.format {
            LogFormat::Text => log.with_target(false).with_ansi(std::io::stderr().is_terminal()).boxed(),
            LogFormat::Json => log.json().flatten_event(true).boxed(),
        };
        let _ = tracing_subscriber::registry().with(log).with(targets).try_init();
        Ok(())
    }
}

/// Reads a filter of comma-separated levels and `target=level` pairs. `Targets` alone would read the end of `info,` as the level
/// error.
fn log_filter(text: &str) -> Result<Targets, <Targets as FromStr>::Err> {
    let items: Vec<&str> = text.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
    items.join(",").parse()
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn log_filter_ignores_spaces_and_empty_items() {
        let expected = Targets::new().with_default(Level::INFO).with_target("sealane_fusion", Level::DEBUG);
        assert_eq!(log_filter("info, sealane_fusion=debug,").unwrap(), expected);
        assert_eq!(log_filter("").unwrap(), Targets::new().with_default(Level::ERROR));
        assert!(log_filter("sealane=loud").is_err());
    }
}
