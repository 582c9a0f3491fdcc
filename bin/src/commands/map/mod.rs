//! `sealane map`: reads an endpoint map file and tells whether it is valid and what is in it; makes one from a framework's or
//! scheduler's description of a job.

mod generate;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use sealane_transport::endpoint_map::{self, EndpointMap, Severity, TaskName};

pub(crate) use generate::CLUSTERS;

use crate::progress::write_line;
use crate::{Context, Failure, counted, nearest};

/// How many names to suggest for a task that is not in the map.
const SUGGESTIONS_MAX: usize = 3;

/// Work with `.endpoint_map` files
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane map lint jobs/.endpoint_map")]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Generate(Box<generate::Args>),
    /// List every problem in an endpoint map
    #[command(after_help = "Example:\n  sealane map lint jobs/.endpoint_map")]
    Lint {
        /// The endpoint map
        file: PathBuf,
    },
    /// Print a task's transport address
    #[command(after_help = "Example:\n  sealane map resolve jobs/.endpoint_map ps0.train:2222")]
    Resolve {
        /// The endpoint map
        file: PathBuf,
        /// The task, by its gRPC address
        task: String,
    },
}

/// Runs `sealane map`.
///
/// # Errors
///
/// The file is not an endpoint map, or does not name the task; or no map can be made.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    match &args.command {
        Command::Generate(args) => generate::run(args, context),
        Command::Lint { file } => lint(file, context),
        Command::Resolve { file, task } => resolve(file, task, context),
    }
}

fn lint(file: &Path, context: &Context) -> Result<(), Failure> {
    let text = EndpointMap::read_text(file)?;
    let found = endpoint_map::lint(&text);
    for diagnostic in &found {
        let word = if diagnostic.severity() == Severity::Error { "error" } else { "warning" };
        write_line(&format!("{}:{diagnostic} ({word})", file.display()));
    }
    let errors = found.iter().filter(|diagnostic| diagnostic.severity() == Severity::Error).count();
    let warnings = found.len() - errors;
    if errors > 0 {
        return Err(Failure::input(format!(
            "{} has {} and {}; correct the lines shown above",
            file.display(),
            counted(errors, "error"),
            counted(warnings, "warning"),
        )));
    }
    let map = EndpointMap::parse(&text, &file.display().to_string())?;
    context.print(&format!("ok: {}\n", size_of(&map)))
}

/// The size of a map: `3 tasks at 2 transport addresses`.
pub(crate) fn size_of(map: &EndpointMap) -> String {
    format!("{} at {}", counted(map.len(), "task"), counted(map.addresses().len(), "transport address"))
}

fn resolve(file: &Path, task: &str, context: &Context) -> Result<(), Failure> {
    let map = EndpointMap::load(file)?;
    match map.resolve(task) {
        Some(address) => context.print(&format!("{address}\n")),
        None => Err(Failure::input(unknown_task(&map, file, task))),
    }
}

/// The message that `task` is not in the map that was read from `file`, and which names are similar.
pub fn unknown_task(map: &EndpointMap, file: &Path, task: &str) -> String {
    let known = map.iter().map(|(task, _)| TaskName::as_str(task));
    let near = nearest(task, known, SUGGESTIONS_MAX);
    let file = file.display();
    if near.is_empty() {
        format!("task {task} is not in {file}; add a line for it, or name one of its tasks")
    } else {
        format!("task {task} is not in {file}; did you mean {}?", near.join(" or "))
    }
}
