//! The arguments of the program. Adding a command takes a file in `commands/`, its module in `commands.rs`, and three edits
//! here: the import, the variant of `Command`, and the arm in `Cli::run`.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

use crate::commands::{bench, check, daemon, demo, drain, forward, keys, map, recv, send, stat};
use crate::flags::LogFormat;
use crate::{Context, Failure};

/// Moves the tensors of parameter-server training between tasks.
#[derive(Debug, Parser)]
#[command(name = "sealane", version, after_help = "Example:\n  sealane check")]
pub struct Cli {
    /// Log filter, such as info or sealane_fusion=debug; overrides RUST_LOG
    #[arg(long, value_name = "FILTER", global = true)]
    log: Option<String>,

    /// Format of log lines on standard error
    #[arg(long, value_name = "FORM", global = true, default_value = "text")]
    log_format: LogFormat,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Bench(bench::Args),
    Check(check::Args),
    Daemon(daemon::Args),
    Demo(demo::Args),
    DemoTask(demo::TaskArgs),
    Drain(drain::Args),
    Forward(forward::Args),
    Keys(keys::Args),
    Map(map::Args),
    Recv(recv::Args),
    Send(send::Args),
    Stat(stat::Args),
}

/// The default log filter: only what an operator must see, such as pinning that did not happen.
const LOG_DEFAULT: &str = "warn";
/// Like [`LOG_DEFAULT`], for the daemon: its log also records its peers' links and its clients.
const LOG_DEFAULT_DAEMON: &str = "info";

impl Cli {
    /// Starts the log that the flags ask for.
    pub(crate) fn start_log(&self, context: &Context) -> Result<(), Failure> {
        let default = match self.command {
            Command::Daemon(_) => LOG_DEFAULT_DAEMON,
            _ => LOG_DEFAULT,
        };
        context.start_log(self.log.as_deref(), default, self.log_format)
    }

    pub(crate) fn run(&self, context: &Context) -> Result<(), Failure> {
        match &self.command {
            Command::Bench(args) => bench::run(args, context),
            Command::Check(args) => check::run(args, context),
            Command::Daemon(args) => daemon::run(args, context),
            Command::Demo(args) => demo::run(args, context),
            Command::DemoTask(args) => demo::run_task(args, context),
            Command::Drain(args) => drain::run(args, context),
            Command::Forward(args) => forward::run(args, context),
            Command::Keys(args) => keys::run(args, context),
            Command::Map(args) => map::run(args, context),
            Command::Recv(args) => recv::run(args, context),
            Command::Send(args) => send::run(args, context),
            Command::Stat(args) => stat::run(args, context),
        }
    }
}

/// The result of parsing the arguments.
pub(crate) enum Parsed {
    /// A command to run.
    Command(Box<Cli>),
    /// A text to print: help or version.
    Answer(String),
}

/// Reads the arguments; the first is the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed, Failure> {
    let error = match Cli::try_parse_from(arguments) {
        Ok(cli) => return Ok(Parsed::Command(Box::new(cli))),
        Err(error) => error,
    };
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Answer(text)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::input(format!("no command given; write one of those below\n\n{text}")))
        }
        _ => Err(Failure::input(one_sentence(&text))),
    }
}

/// Reduces an argument error to its message and tips, on one line.
fn one_sentence(rendered: &str) -> String {
    let mut parts: Vec<String> = rendered
        .split("\n\n")
        .map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|paragraph| {
            !(paragraph.is_empty() || paragraph.starts_with("Usage:") || paragraph.starts_with("For more information"))
        })
        .map(|paragraph| paragraph.trim_start_matches("error: ").to_owned())
        .collect();
    parts.push("see --help".to_owned());
    parts.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn read(line: &str) -> Result<Parsed, Failure> {
        parse(line.split(' ').map(OsString::from))
    }

    fn check_help(command: &mut clap::Command) {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        let (_, example) = help.rsplit_once("Example:").unwrap_or_else(|| panic!("{name}: {help}"));
        let mut lines = example.lines().filter(|line| !line.is_empty());
        assert!(lines.all(|line| line.starts_with("  sealane ")), "{name}: {help}");
        // The command `help` is made by the parser.
        let commands = command.get_subcommands_mut();
        for command in commands.filter(|command| command.get_name() != "help") {
            check_help(command);
        }
    }

    #[test]
    fn the_help_of_every_command_ends_with_an_example() {
        let mut command = Cli::command();
        command.clone().debug_assert();
        check_help(&mut command);
    }

    #[test]
    fn help_and_version_are_answers() {
        for line in ["sealane --help", "sealane --version", "sealane map --help"] {
            assert!(matches!(read(line), Ok(Parsed::Answer(_))), "{line}");
        }
    }

    #[test]
    fn a_wrong_argument_is_one_sentence() {
        let Err(failure) = read("sealane chekc") else {
            panic!("accepted");
        };
        assert_eq!(
            failure.to_string(),
            "unrecognized subcommand 'chekc'; tip: a similar subcommand exists: 'check'; see --help"
        );
        let Err(failure) = read("sealane") else {
            panic!("accepted");
        };
        assert!(failure.to_string().starts_with("no command given; "));
    }
}
