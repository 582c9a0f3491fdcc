//! The arguments of the program. Adding a command takes a file in `commands/`, its module in `commands.rs`, and three edits
//! here: the import, the variant of `Command`, and the arm in `Cli::run`.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Parser, Subcommand};
use strsim::osa_distance;

use crate::commands::{bench, check, daemon, demo, drain, forward, keys, map, recv, send, stat};
use crate::flags::{LogFlags, LogFormat};
use crate::{Context, Failure, Program};

/// Moves the tensors of parameter-server training between tasks.
#[derive(Debug, Parser)]
#[command(name = "sealane", version, after_help = "Example:\n  sealane check")]
pub struct Cli {
    #[command(flatten)]
    log: LogFlags,

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

/// The default log filter: only what an operator must see, such as failed pinning.
const LOG_DEFAULT: &str = "warn";
/// Like [`LOG_DEFAULT`], for the daemon: its log also records its peers' links and its clients.
const LOG_DEFAULT_DAEMON: &str = "info";

impl Program for Cli {
    fn log(&self) -> (&LogFlags, &str) {
        let default = match self.command {
            Command::Daemon(_) => LOG_DEFAULT_DAEMON,
            _ => LOG_DEFAULT,
        };
        (&self.log, default)
    }

    fn run(&self, context: &Context) -> Result<(), Failure> {
        match &self.command {
            Command::Bench(args) => bench::run(args, &self.log),
            Command::Check(args) => check::run(args, context),
            Command::Daemon(args) => daemon::run(args, context, self.log.format == LogFormat::Json),
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

pub(crate) enum Parsed<P> {
    Command(Box<P>),
    /// A text to print: help or version.
    Answer(String),
}

/// Reads the arguments; the first is the program's name.
pub(crate) fn parse<P: Parser>(arguments: impl IntoIterator<Item = OsString>) -> Result<Parsed<P>, Failure> {
    let mut error = match P::try_parse_from(arguments) {
        Ok(cli) => return Ok(Parsed::Command(Box::new(cli))),
        Err(error) => error,
    };
    suggest_what_is_shown(&mut error, &P::command());
    let text = error.render().to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Ok(Parsed::Answer(text)),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            Err(Failure::input(format!("no command given; write one of those below\n\n{text}")))
        }
        _ => Err(Failure::input(one_sentence(&text))),
    }
}

/// Removes hidden commands from the suggestions for a mistyped command, and keeps the nearest one left.
fn suggest_what_is_shown(error: &mut clap::Error, cli: &clap::Command) {
    let Some(ContextValue::Strings(suggested)) = error.remove(ContextKind::SuggestedSubcommand) else { return };
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let groups: Vec<&clap::Command> = std::iter::once(cli).chain(cli.get_subcommands()).collect();
    let is_hidden =
        |name: &str| groups.iter().filter_map(|group| group.find_subcommand(name)).any(clap::Command::is_hide_set);
    let shown = suggested.iter().filter(|name| !is_hidden(name));
    if let Some(nearest) = shown.min_by_key(|name| osa_distance(wrong, name)).cloned() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![nearest]));
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
    use clap::CommandFactory;

    use super::*;

    fn read(line: &str) -> Result<Parsed<Cli>, Failure> {
        parse(line.split(' ').map(OsString::from))
    }

    fn check_help(command: &mut clap::Command) {
        let name = command.get_name().to_owned();
        let help = command.render_long_help().to_string();
        let (_, example) = help.rsplit_once("Example:").unwrap_or_else(|| panic!("{name}: {help}"));
        let mut lines = example.lines().filter(|line| !line.is_empty());
        assert!(lines.all(|line| line.starts_with("  sealane ")), "{name}: {help}");
        // The parser itself adds the command `help`.
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
