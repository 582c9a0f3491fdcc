//! The bells: how one side wakes the other, only after that one has announced that it sleeps. Any thread; only
//! [`ClientEar::wait`] blocks.

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{Arc, Weak},
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

/// Rung by a client to wake a shard: an eventfd for each segment.
///
/// The shard watches it edge-triggered and never reads it, so that nothing the client does to it can block the shard.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A doorbell that has not been rung.
    ///
    /// # Errors
    /// Where no descriptor is left.
    pub fn create() -> Result<Self, ShmError> {
        let event = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(ShmError::system("making a doorbell"))?;
        Ok(Self(event.into()))
    }

    /// A second descriptor of the same doorbell, for the client.
    ///
    /// # Errors
    /// Where no descriptor is left.
    pub fn duplicate(&self) -> Result<OwnedFd, ShmError> {
        let operation = "duplicating a doorbell";
        self.0.try_clone().map_err(|source| ShmError::System { operation, source })
    }

    /// Wakes the shard.
    pub fn ring(&self) {
        // It fails only at a counter that is at its limit, which has rung before.
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

/// Rung by the daemon to wake a client: a byte on the socket over which it attached, from any shard.
///
/// No eventfd: the client holds the same open file, and could make it blocking and full, which would block a shard that rings
/// it. A socket's send can be made non-blocking, whatever the client does to its end.
#[derive(Debug, Clone)]
pub struct ClientBell(Arc<OwnedFd>);

impl ClientBell {
    /// The bell of the client at the other end of this socket.
    pub fn new(socket: Arc<OwnedFd>) -> Self {
        Self(socket)
    }

    /// Tells, as long as it can be upgraded, that somebody here has the client's socket.
    pub fn witness(&self) -> Weak<OwnedFd> {
        Arc::downgrade(&self.0)
    }

    /// Lets the watcher of the socket here find it closed. The client finds it closed with the last handle of the socket: when nothing
    /// here uses its memory any more. It takes all of its memory back then.
    pub fn take_leave(&self) {
        // One that is closed already needs no leave.
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Read);
    }

    /// A bell by which clients wake one of them, past the daemon, and the ear for it. The bell is for all of them, and whatever one does to
    /// it, none that rings waits.
    ///
    /// # Errors
    /// Where no descriptor is left.
    pub fn between_clients() -> Result<(ClientBell, ClientEar), ShmError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let (bell, ear) = socketpair(AddressFamily::Unix, SockType::Datagram, None, flags)
            .map_err(ShmError::system("making a bell"))?;
        Ok((ClientBell(Arc::new(bell)), ClientEar::among_clients(ear)))
    }

    /// Wakes the client.
    pub fn ring(&self) {
        // A full socket has rung before, and a closed one is noticed by its watcher.
        let _ = send(self.0.as_raw_fd(), &[1], MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
    }
}

/// How a client's wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Woken {
    /// The daemon rang, or a signal came: look at the rings.
    Rung,
    /// The daemon is gone. The rings may still hold what it wrote before.
    HungUp,
    /// Nothing happened for so long.
    TimedOut,
}

/// The client's end of its bell. Only one thread at a time should wait: the one that wakes consumes all rings.
#[derive(Debug)]
pub struct ClientEar {
    socket: OwnedFd,
    /// Each message is one of its own, and one without a byte is not the end.
    is_of_datagrams: bool,
}

impl ClientEar {
    /// Hears on the socket over which the client attached.
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, is_of_datagrams: false }
    }

    /// Hears other clients, where [`ClientBell::between_clients`] has made the socket. Any of them may send what it likes.
    pub fn among_clients(socket: OwnedFd) -> Self {
        Self { socket, is_of_datagrams: true }
    }

    /// Waits until the daemon rings or hangs up, at most for `timeout`. To be called after the client has announced its
    /// sleep on every segment and found their rings empty.
    ///
    /// # Errors
    /// [`ShmError::System`] where the socket cannot be waited for.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Woken, ShmError> {
        // A duration that the kernel's clock cannot hold is as good as none.
        let timeout = timeout.filter(|timeout| timeout.as_secs() < u64::from(u32::MAX)).map(TimeSpec::from_duration);
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, timeout, None) {
            Ok(0) => Ok(Woken::TimedOut),
            Ok(_) => Ok(self.take_rings()),
            // So that a program that waits for a tensor can act on a signal.
            Err(Errno::EINTR) => Ok(Woken::Rung),
            Err(errno) => Err(ShmError::system("waiting for the daemon")(errno)),
        }
    }

    /// Waits until the daemon hangs up, at most for `timeout`; true if it has. Leaves its rings to [`wait`](Self::wait): any number of threads may
    /// do this.
    pub fn wait_for_end(&self, timeout: Duration) -> bool {
        // Nothing is asked for: the end is always told.
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        matches!(ppoll(&mut polled, Some(TimeSpec::from_duration(timeout)), None), Ok(1..))
    }

    /// Ends the conversation, also where another process holds the socket open.
    pub fn hang_up(&self) {
        // One that is closed already is hung up.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Both);
    }

    /// Takes the rings that have come, without waiting, as many as are taken at once; `HungUp` behind them if the daemon has hung up.
    pub fn take_rings(&self) -> Woken {
        for _ in 0..RINGS_PER_WAKING {
            match recv(self.socket.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT) {
                Ok(0) if !self.is_of_datagrams => return Woken::HungUp,
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
