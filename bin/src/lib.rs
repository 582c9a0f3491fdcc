//! The command line of Sealane: arguments and settings in, one command run, an exit code out. Runs
//! on the main thread; the only crate of the workspace that reads the environment.
#![deny(unsafe_code)]

mod arena_size;
pub mod cli;
mod command_line;
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
mod output_file;
mod progress;
pub mod settings;
mod trace;
mod wording;
pub mod workload;

pub use context::Context;
pub use failure::Failure;
use wording::{counted, nearest};

use std::ffi::OsString;
use std::process::ExitCode;

use settings::Environment;

/// Runs the program: 0 done, 1 the work failed, 2 the arguments or files were wrong.
pub fn run(arguments: impl IntoIterator<Item = OsString>, environment: Environment) -> ExitCode {
    let outcome = Context::new(environment).and_then(|context| {
        let cli = match cli::parse(arguments)? {
            cli::Parsed::Command(cli) => cli,
            cli::Parsed::Answer(text) => return context.print(&text),
        };
        cli.start_log(&context)?;
        cli.run(&context)
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
