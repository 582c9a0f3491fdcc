//! The command line of Sealane: arguments and settings in, one command run, an exit code out. Runs
//! on the main thread; the only crate of the workspace that reads the environment.
#![deny(unsafe_code)]

mod arena_size;
pub mod cli;
pub mod command_line;
pub mod commands;
mod context;
pub mod engine_settings;
mod failure;
mod figures;
pub mod files;
pub mod flags;
mod host;
mod links;
mod local_host;
mod locked_memory;
mod log;
pub mod machine;
mod measurement;
pub mod output_file;
pub mod programs;
pub mod progress;
pub mod settings;
pub mod table;
mod trace;
mod wording;
pub mod workload;

pub use context::Context;
pub use failure::Failure;
use wording::{counted, nearest};

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser;
use flags::{LogFlags, LogFormat};
use settings::Environment;

/// Between its fork and its exec, a child has every open file of this process, so a file that a test has closed or unlocked stays
/// open there for a moment. A test that starts processes holds this for writing meanwhile, one that asserts what is closed for
/// reading.
#[cfg(test)]
static OPEN_FILES: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// A program of Sealane: its arguments, and what it does with them.
pub trait Program: Parser {
    /// What it logs: its flags, and the filter to use if they and the environment name none.
    fn log(&self) -> (&LogFlags, &str);

    /// Runs its command.
    ///
    /// # Errors
    /// Those of the command.
    fn run(&self, context: &Context) -> Result<(), Failure>;
}

/// Runs a program: 0 done, 1 the work failed, 2 the arguments or files were wrong.
pub fn run<P: Program>(arguments: impl IntoIterator<Item = OsString>, environment: Environment) -> ExitCode {
    let mut log_is_json = false;
    let outcome = Context::new(environment).and_then(|context| {
        let program = match cli::parse::<P>(arguments)? {
            cli::Parsed::Command(program) => program,
            cli::Parsed::Answer(text) => return context.print(&text),
        };
        let (log, default) = program.log();
        context.start_log(log, default)?;
        log_is_json = log.format == LogFormat::Json;
        program.run(&context)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) if log_is_json => {
            tracing::error!("{failure}");
            failure.code()
        }
        Err(failure) => failure.report(),
    }
}
