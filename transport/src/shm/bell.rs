//! The bells: how one side wakes the other, only after the other has announced that it sleeps. Any thread; only
//! [`ClientEar::wait`] blocks.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        socket::{AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, shutdown, socketpair},
        time::TimeSpec,
    },
};

use super::{error::ShmError, limits::RINGS_PER_WAKING};

/// The byte of a ring.
const RING: u8 = 1;

/// The first byte of the message that another process is attached in the client's place; its process id follows in 4 bytes.
const REPLACED: u8 = 2;

/// Rung by a client to wake a shard: one eventfd per segment.
///
/// The shard watches it edge-triggered and never reads it, so that nothing the client does to it can block the shard.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A doorbell that has not been rung.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn create() -> Result<Self, ShmError> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(ShmError::system("making a doorbell"))?;
        Ok(Self(event.into()))
    }

    /// A second descriptor of the same doorbell, for the client.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn duplicate(&self) -> Result<OwnedFd, ShmError> {
        let operation = "duplicating a doorbell";
        self.0.try_clone().map_err(|source| ShmError::System { operation, source })
    }

    pub fn ring(&self) {
        // This fails only if the counter is at its limit, and then the bell has been rung already.
        let _ = nix::unistd::write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl From<OwnedFd> for Doorbell {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Rung by the daemon to wake a client: a byte on the socket over which the client attached, from any shard.
///
/// Not an eventfd: the client holds the same open file, and could make it blocking and full, which would block a shard that
/// rings it. A send on a socket can be non-blocking, whatever the client does to its end.
#[derive(Debug, Clone)]
pub struct ClientBell(Arc<OwnedFd>);

impl ClientBell {
    /// The bell of the client at the other end of this socket.
    pub fn new(socket: Arc<OwnedFd>) -> Self {
        Self(socket)
    }

    /// As long as it can be upgraded, somebody here holds the client's socket.
    pub fn witness(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.0)
    }

    /// Makes the watcher of the socket here see it closed. The client sees it closed once the last handle here is dropped, when
    /// nothing here uses its memory any more, and then takes back all of its memory.
    pub fn take_leave(&self) {
        // A socket that is already closed needs no leave.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Read);
    }

    /// A bell by which clients wake one of them without the daemon, and its ear. All of them share the bell; whatever one
    /// client does to it, ringing never blocks.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub fn between_clients() -> Result<(ClientBell, ClientEar), ShmError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (bell, ear) = socketpair(AddressFamily::Unix, SockType::Datagram, None, flags)
            .map_err(ShmError::system("making a bell"))?;
        Ok((ClientBell(Arc::new(bell)), ClientEar::among_clients(ear)))
    }

    /// Tells the client that the process `pid` is attached in its place.
    ///
    /// A client that is stopped and has never read its rings may miss this; it then only sees the socket close.
    pub fn announce_successor(&self, pid: i32) {
        let message = [&[REPLACED][..], &pid.to_le_bytes()].concat();
        // A client whose socket is full or closed cannot be told.
        let _ = send(self.0.as_raw_fd(), &message, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }

    pub fn ring(&self) {
        // If the socket is full, the bell has been rung already; if it is closed, its watcher notices.
        let _ = send(self.0.as_raw_fd(), &[RING], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }
}

/// How a client's wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The daemon rang, or a signal came: look at the rings.
    Rung,
    /// The daemon is gone, or has attached another process in this one's place. The rings may still hold what it wrote before.
    HungUp,
    TimedOut,
}

/// The client's end of its bell. Only one thread at a time should wait: the one that wakes consumes all rings.
#[derive(Debug)]
pub struct ClientEar {
    socket: OwnedFd,
    /// Rings are datagrams, and an empty one does not mean the end.
    is_of_datagrams: bool,
    /// The process that is attached in this one's place.
    successor: OnceLock<i32>,
}

impl ClientEar {
    /// Listens on the socket over which the client attached.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, is_of_datagrams: false, successor: OnceLock::new() }
    }

    /// Listens to other clients on a socket from [`ClientBell::between_clients`]. Any of them may send anything.
    pub fn among_clients(socket: OwnedFd) -> Self {
        Self { socket, is_of_datagrams: true, successor: OnceLock::new() }
    }

    /// Waits until the daemon rings or hangs up, at most for `timeout`. Call it after the client has announced its sleep on
    /// every segment and found the rings empty.
    ///
    /// # Errors
    /// [`ShmError::System`] if waiting on the socket fails.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Woken, ShmError> {
        // A duration too long for the kernel's clock counts as none.
        let timeout = timeout.filter(|timeout| timeout.as_secs() < u64::from(u32::MAX)).map(TimeSpec::from_duration);
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, timeout, None) {
            Ok(0) => Ok(Woken::TimedOut),
            Ok(_) => Ok(self.take_rings()),
            // So that a program that waits for a tensor can handle a signal.
            Err(Errno::EINTR) => Ok(Woken::Rung),
            Err(errno) => Err(ShmError::system("waiting for the daemon")(errno)),
        }
    }

    /// Waits until the daemon hangs up, at most for `timeout`; true if it has. Leaves its rings to [`wait`](Self::wait); any
    /// number of threads may do this at once.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        // No events are requested: a hang-up is always reported.
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        matches!(ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None), Ok(1..))
    }

    /// Ends the conversation, even if another process holds the socket open.
    pub fn hang_up(&self) {
        // A socket that is already closed is hung up.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    /// The process that is attached in this one's place, if the daemon has said so before it hung up.
    pub fn successor(&self) -> Option<i32> {
        // Another thread may have noticed the end without reading what came before.
        if self.successor.get().is_none() {
            self.take_rings();
        }
        self.successor.get().copied()
    }

    /// Takes the rings that have come, without waiting, up to a limit; `HungUp` if the daemon has hung up behind them.
    pub fn take_rings(&self) -> Woken {
        for _ in 0..RINGS_PER_WAKING {
            let mut message = [0; 8];
            match recv(self.socket.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(0) if !self.is_of_datagrams => return Woken::HungUp,
                // Only the daemon may say this.
                Ok(5) if !self.is_of_datagrams && message[0] == REPLACED => {
                    let [_, pid @ .., _, _, _] = message;
                    self.successor.get_or_init(|| i32::from_le_bytes(pid));
                    return Woken::HungUp;
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(_) => return Woken::HungUp,
            }
        }
        Woken::Rung
    }
}

impl AsFd for ClientBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsFd for ClientEar {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests;
