//! Waiting for a socket, with a limit that is an error: no test sleeps.

use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Longer than anything takes on one machine, in milliseconds.
const FAR_TOO_LONG_MS: u16 = 20_000;

/// Waits until one of the descriptors is ready for the events given with it.
///
/// # Panics
/// If none becomes ready.
pub fn ready(sockets: &[(BorrowedFd<'_>, PollFlags)]) {
    let mut sockets: Vec<_> = sockets.iter().map(|(descriptor, flags)| PollFd::new(*descriptor, *flags)).collect();
    let count = poll(&mut sockets, PollTimeout::from(FAR_TOO_LONG_MS)).expect("poll");
    assert!(count > 0, "no socket became ready");
}
