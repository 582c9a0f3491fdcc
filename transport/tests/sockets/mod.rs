//! Waiting for a socket, with a bound that is an error: no test sleeps.

use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Nothing on one machine takes this long, in milliseconds.
const FAR_TOO_LONG_MS: u16 = 20_000;

/// Returns once one of the descriptors is ready for what is named with it.
///
/// # Panics
/// If none becomes ready.
pub fn ready(sockets: &[(BorrowedFd<'_>, PollFlags)]) {
    let mut sockets: Vec<_> = sockets.iter().map(|(descriptor, flags)| PollFd::new(*descriptor, *flags)).collect();
    let count = poll(&mut sockets, PollTimeout::from(FAR_TOO_LONG_MS)).expect("poll");
    assert!(count > 0, "no socket became ready");
}
