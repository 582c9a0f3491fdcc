//! `sealane stat`: what the daemon of this host, or its groups, are doing, once or live.

mod groups;
mod rows;
mod watch;

use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use sealane_transport::shm::attach::{self, AttachError};

use self::groups::Groups;
use crate::commands::daemon::socket_override;
use crate::figures::{Figures, SCHEMA};
use crate::flags::SettingsFlags;
use crate::settings::ClientsSocket;
use crate::{Context, Failure};

/// How long the daemon may take to answer. Its control thread never blocks for long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Time between the two snapshots that rates are computed from.
const RATE_INTERVAL: Duration = Duration::from_millis(500);

/// Show the state of this host's daemon
///
/// Shows shards, peers with the path to each and its reason, clients, rates and call latencies. Rates cover the last half
/// second. With --groups it shows the groups of this host's processes instead, which need no daemon: PyTorch's, among others.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane stat\n  sealane stat --watch\n  sealane stat --groups")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// Where the daemon's clients attach
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Show the calls of groups (PyTorch's, and those of sealane.Group) whose processes are this user's, and their slowest rank
    #[arg(long, conflicts_with = "socket")]
    groups: bool,

    /// Refresh every second until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,

    /// Print the figures once, as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `sealane stat`.
///
/// # Errors
///
/// No daemon serves at the socket, it does not answer, or there is no terminal for `--watch`.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    if args.groups {
        return show_groups(args, context);
    }
    let settings = context.settings(&args.settings, socket_override(args.socket.as_ref())?)?;
    let socket = &settings.daemon.clients_socket();
    if args.json {
        let figures = look(socket)?;
        let text = serde_json::to_string(&figures);
        let text = text.map_err(|error| Failure::work(format!("the figures cannot be encoded as JSON ({error})")))?;
        return context.print(&(text + "\n"));
    }
    if args.watch {
        return watch::run(
            || look(socket),
            |now, before, is_first| rows::text(now, before, (!is_first).then_some(before)),
        );
    }
    let before = look(socket)?;
    std::thread::sleep(RATE_INTERVAL);
    let now = look(socket)?;
    context.print(&rows::text(&now, &before, None))
}

/// # Errors
/// The processes cannot be listed, or there is no terminal for `--watch`.
fn show_groups(args: &Args, context: &Context) -> Result<(), Failure> {
    if args.watch {
        return watch::run(Groups::look, |now, before, _| now.to_text(before));
    }
    let before = Groups::look()?;
    if args.json {
        return context.print(&before.to_json());
    }
    if !before.is_empty() {
        std::thread::sleep(RATE_INTERVAL);
    }
    context.print(&Groups::look()?.to_text(&before))
}

/// Reads the figures of the daemon whose clients attach at `socket`.
///
/// # Errors
/// There is no daemon, or it does not answer, or not in a schema that this program reads.
pub(crate) fn look(socket: &ClientsSocket) -> Result<Figures, Failure> {
    let shown = attach::show(&socket.path, Instant::now() + PATIENCE).map_err(|error| unseen(socket, &error))?;
    let figures: Figures = serde_json::from_slice(&shown).map_err(|error| {
        Failure::work(format!(
            "the daemon at {socket} returned figures that this program does not understand ({error}); use the same \
             release for both"
        ))
    })?;
    if figures.schema != SCHEMA {
        return Err(Failure::work(format!(
            "the daemon at {socket} returned figures in format {:?}, but this program reads {SCHEMA:?}; use the same \
             release for both",
            figures.schema
        )));
    }
    Ok(figures)
}

fn unseen(socket: &ClientsSocket, error: &AttachError) -> Failure {
    match error {
        AttachError::Connect { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            Failure::work(sealane::foreign_socket(socket))
        }
        AttachError::Connect { source, .. } => Failure::work(format!(
            "no daemon can be reached at {socket} ({source}); start one with `sealane daemon`, or name its socket \
             with --socket{}",
            match Groups::look() {
                Ok(groups) if !groups.is_empty() => "; groups need none: `sealane stat --groups` shows them",
                _ => "",
            }
        )),
        AttachError::Refused(error) => Failure::work(error.clone()),
        error => Failure::work(format!("the daemon at {socket} returned no figures: {error}; its log may say why")),
    }
}
