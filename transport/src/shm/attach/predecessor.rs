//! The side of the daemon that hands over: steps on the thread that watches its sockets. A successor that does not read is
//! waited for at most [`SUCCESSOR_PATIENCE`].

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
    time::Instant,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};

use super::{Answer, Estate, daemon::memory_with, encode};
use crate::shm::{descriptors, error::ShmError, limits::SUCCESSOR_PATIENCE};

/// What a daemon hands over.
#[derive(Debug)]
pub struct Bequest<'a> {
    /// The sockets that listen at transport addresses.
    pub listeners: Vec<(String, BorrowedFd<'a>)>,
    /// The socket that serves metrics.
    pub metrics: Option<BorrowedFd<'a>>,
    pub client_socket: BorrowedFd<'a>,
    /// The locked file beside `client_socket`.
    pub lock: BorrowedFd<'a>,
}

/// Shows a successor this daemon's state, and shares the locks of its CPUs, in the estate's order.
///
/// # Errors
/// [`ShmError::System`] if the successor is gone or does not read, or there is no memory or descriptor.
pub fn show_estate(socket: &OwnedFd, estate: &Estate, locks: &[OwnedFd]) -> Result<(), ShmError> {
    debug_assert_eq!(estate.cpus.len(), locks.len());
    let deadline = Instant::now() + SUCCESSOR_PATIENCE;
    let text = encode(estate);
    let memory = memory_with(&text)?;
    send(socket, &Answer::Estate { bytes: text.len() as u64 }, &[memory.as_raw_fd()], deadline)?;
    estate
        .cpus
        .iter()
        .zip(locks)
        .try_for_each(|(&cpu, lock)| send(socket, &Answer::Cpu { cpu }, &[lock.as_raw_fd()], deadline))
}

/// Sends the sockets to the successor. It has accepted them once it says so.
///
/// # Errors
/// [`ShmError::System`] if the successor is gone or does not read, or descriptors cannot be sent.
pub fn bequeath(socket: &OwnedFd, bequest: &Bequest<'_>) -> Result<(), ShmError> {
    let deadline = Instant::now() + SUCCESSOR_PATIENCE;
    for (address, listener) in &bequest.listeners {
        send(socket, &Answer::Listener { address: address.clone() }, &[listener.as_raw_fd()], deadline)?;
    }
    if let Some(metrics) = bequest.metrics {
        send(socket, &Answer::Metrics, &[metrics.as_raw_fd()], deadline)?;
    }
    send(socket, &Answer::ClientSocket, &[bequest.client_socket.as_raw_fd(), bequest.lock.as_raw_fd()], deadline)
}

/// Tells the successor that everything handed over is now its own.
///
/// # Errors
/// [`ShmError::System`] if the successor is gone.
pub fn let_go(socket: &OwnedFd) -> Result<(), ShmError> {
    send(socket, &Answer::Yours, &[], Instant::now() + SUCCESSOR_PATIENCE)
}

/// Sends a message as soon as there is room for it.
fn send(socket: &OwnedFd, answer: &Answer, descriptors: &[RawFd], deadline: Instant) -> Result<(), ShmError> {
    let failed = || ShmError::system("handing over to another daemon");
    let message = encode(answer);
    loop {
        match descriptors::send(socket, &message, descriptors) {
            Ok(()) => return Ok(()),
            Err(Errno::EAGAIN) => {}
            Err(Errno::EINTR) => continue,
            Err(errno) => return Err(failed()(errno)),
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failed()(Errno::ETIMEDOUT));
        }
        let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
        match ppoll(&mut polled, Some(TimeSpec::from_duration(left)), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(failed()(errno)),
        }
    }
}
