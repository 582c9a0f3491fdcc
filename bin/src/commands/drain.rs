//! `sealane drain`: asks the daemon of this host to finish and exit, and waits until it has.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use sealane_transport::shm::attach::{self, AttachError};

use crate::commands::daemon::socket::lock_path;
use crate::commands::daemon::socket_override;
use crate::flags::{SettingsFlags, TIMEOUT_S_MAX};
use crate::{Context, Failure};

/// Drain and stop this host's daemon
///
/// The daemon takes no new requests, finishes those in flight within daemon.drain_timeout_ms, and exits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane drain --socket /run/sealane/sealane.sock")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// Where the daemon's clients attach
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Seconds to wait until the daemon has exited
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_S_MAX))]
    timeout_s: u64,
}

/// Runs `sealane drain`.
///
/// # Errors
///
/// No daemon serves at the socket, it refuses, or it does not end in time.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let settings = context.settings(&args.settings, socket_override(args.socket.as_ref())?)?;
    // Not at the other default socket: root in a session must not stop the host's daemon by mistake.
    let socket = &settings.daemon.socket.value;
    let deadline = Instant::now() + Duration::from_secs(args.timeout_s);
    // Opened before the daemon is asked, since it removes the file when it exits.
    let lock = open_lock(socket)?;
    attach::drain(socket, deadline).map_err(|error| refused(socket, error))?;
    wait_for_end(lock, deadline).map_err(|problem| {
        let socket = socket.display();
        Failure::work(format!(
            "the daemon at {socket} was asked to drain, but {problem}; send it SIGTERM to stop it immediately"
        ))
    })
}

/// The file that the daemon keeps locked as long as it serves.
fn open_lock(socket: &Path) -> Result<File, Failure> {
    let path = lock_path(socket);
    OpenOptions::new().read(true).open(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => no_daemon(socket, "no daemon serves there"),
        _ => Failure::work(format!("{} cannot be read ({error}); run as the daemon's user or as root", path.display())),
    })
}

fn refused(socket: &Path, error: AttachError) -> Failure {
    match error {
        AttachError::Connect { source, .. } if source.kind() == ErrorKind::PermissionDenied => {
            Failure::work(format!("the daemon at {} is another user's; run as that user or as root", socket.display()))
        }
        AttachError::Connect { source, .. } => no_daemon(socket, &source.to_string()),
        AttachError::HungUp => no_daemon(socket, "the daemon is already stopping"),
        AttachError::Refused(error) => Failure::work(error),
        error => Failure::work(format!("{}: {error}; send the daemon SIGTERM to stop it", socket.display())),
    }
}

fn no_daemon(socket: &Path, problem: &str) -> Failure {
    Failure::work(format!(
        "no daemon can be reached at {} ({problem}); if one runs, name its socket with --socket",
        socket.display()
    ))
}

/// Waits until the daemon has released its lock: then it has ended, and another may start.
fn wait_for_end(lock: File, deadline: Instant) -> Result<(), String> {
    let (tell, told) = channel();
    // A lock cannot be waited for with a time limit; the thread ends with the process at the latest.
    std::thread::spawn(move || {
        let mut locked = lock.lock_shared();
        while locked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Interrupted) {
            locked = lock.lock_shared();
        }
        // Nobody listens if the time is over.
        let _ = tell.send(locked);
    });
    match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(locked) => locked.map_err(|error| format!("its exit cannot be waited for ({error})")),
        Err(RecvTimeoutError::Timeout) => Err("it has not exited in time".into()),
        Err(RecvTimeoutError::Disconnected) => Err("its exit cannot be waited for".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_transport::Error;

    #[test]
    fn the_end_is_waited_for_until_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let daemon = File::create(&path).unwrap();
        daemon.lock().unwrap();
        let open = || File::open(&path).unwrap();
        assert_eq!(wait_for_end(open(), Instant::now()), Err("it has not exited in time".into()));
        drop(daemon);
        wait_for_end(open(), Instant::now() + Duration::from_secs(600)).unwrap();
    }

    #[test]
    fn what_keeps_a_drain_from_beginning_is_said_with_what_to_do() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let none = open_lock(&socket).unwrap_err().to_string();
        assert!(none.starts_with("no daemon can be reached at "), "{none}");
        let ends = refused(&socket, AttachError::HungUp).to_string();
        assert!(ends.contains("(the daemon is already stopping)"), "{ends}");
        let error = Error::PermissionDenied { reason: "not you".into() };
        assert_eq!(refused(&socket, AttachError::Refused(error)).to_string(), "permission denied: not you");
        assert!(refused(&socket, AttachError::TimedOut).to_string().ends_with("; send the daemon SIGTERM to stop it"));
    }
}
