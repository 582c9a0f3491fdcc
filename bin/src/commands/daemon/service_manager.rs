//! What the service manager is told, if there is one (`NOTIFY_SOCKET`): ready, reloading, stopping, and a status line. Nothing
//! depends on whether it listens.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

/// How long a service manager may take to read earlier messages when it has to be told something: it reads at once, unless it
/// hangs, and then the daemon goes on.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn ready(status: &str) {
    tell(Ok(&[NotifyState::Ready, NotifyState::Status(status)]));
}

/// Tells that the daemon rereads its endpoint map; [`ready`] follows.
pub(super) fn reloading() {
    // A service manager compares the time with that of its own reload request.
    let now = NotifyState::monotonic_usec_now();
    tell(now.map(|now| [NotifyState::Reloading, now]).as_ref().map(<[_; 2]>::as_slice));
}

pub(super) fn stopping(status: &str) {
    tell(Ok(&[NotifyState::Stopping, NotifyState::Status(status)]));
}

/// Tells that another process is the daemon from now on.
pub(super) fn is_now(pid: i32) {
    tell(Ok(&[NotifyState::MainPid(pid.unsigned_abs())]));
}

pub(super) fn status(status: &str) {
    match send(&[NotifyState::Status(status)], None) {
        // The next status will report the state then.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
        Err(error) => tracing::debug!(%error, "the service manager cannot be notified"),
        Ok(()) => {}
    }
}

/// Sends a message that is sent once and that the service manager waits for.
fn tell(states: Result<&[NotifyState<'_>], &io::Error>) {
    let told = match states {
        Ok(states) => send(states, Some(PATIENCE)).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Err(error) = told {
        tracing::warn!(error, "the service manager cannot be notified; is NOTIFY_SOCKET right?");
    }
}

/// Sends one message; without `patience` only if there is room for it now.
///
/// Done here because the library waits for room without limit, and every client would wait with it.
fn send(states: &[NotifyState<'_>], patience: Option<Duration>) -> io::Result<()> {
    match std::env::var_os("NOTIFY_SOCKET") {
        Some(path) => send_to(&path, states, patience),
        None => Ok(()),
    }
}

fn send_to(path: &OsStr, states: &[NotifyState<'_>], patience: Option<Duration>) -> io::Result<()> {
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(path)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    match patience {
        Some(patience) => socket.set_write_timeout(Some(patience))?,
        None => socket.set_nonblocking(true)?,
    }
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    socket.send(message.as_bytes()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [NotifyState<'_>; 2] = [NotifyState::Ready, NotifyState::Status("serves")];

    #[test]
    fn a_message_has_a_line_for_each_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manager");
        let name = format!("sealane-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let managers = [UnixDatagram::bind(&path).unwrap(), UnixDatagram::bind_addr(&address).unwrap()];
        for (manager, place) in managers.iter().zip([path.as_os_str(), format!("@{name}").as_ref()]) {
            send_to(place, &STATES, Some(PATIENCE)).unwrap();
            let mut buffer = [0; 100];
            let len = manager.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], b"READY=1\nSTATUS=serves\n");
        }
        assert!(send_to(directory.path().join("nobody").as_ref(), &STATES, None).is_err());
    }

    #[test]
    fn a_service_manager_that_does_not_read_is_not_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("manager");
        let _manager = UnixDatagram::bind(&path).unwrap();
        let full = loop {
            if let Err(error) = send_to(path.as_ref(), &STATES, None) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(send_to(path.as_ref(), &STATES, Some(Duration::from_millis(1))).is_err());
    }
}
