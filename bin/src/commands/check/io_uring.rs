//! Asks the kernel whether it lets this process make an io_uring. An unsafe island: one system
//! call that no safe library offers.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

use serde::Serialize;

/// Entries of the ring that is tried: the fewest, because it is closed at once.
const ENTRIES: libc::c_uint = 1;

/// `struct io_uring_params` is 120 bytes, all integers; the kernel fills it in.
type Parameters = [u64; 15];

/// Where the administrator forbids io_uring.
const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Whether this process can use io_uring.
#[derive(Debug, Serialize)]
pub(super) struct IoUring {
    pub(super) available: bool,
    /// What makes it so, and what to do about it.
    pub(super) reason: String,
}

impl IoUring {
    /// Makes a ring and closes it.
    pub(super) fn look() -> IoUring {
        let switch = std::fs::read_to_string(SWITCH).unwrap_or_default();
        IoUring::of(&set_up(), switch.trim())
    }

    fn of(outcome: &io::Result<OwnedFd>, switch: &str) -> IoUring {
        let reason = match outcome {
            Ok(_) => "a ring could be made".to_owned(),
            Err(error) => match error.raw_os_error() {
                Some(libc::ENOSYS) => "the kernel has no io_uring; run Linux 5.8 or later".to_owned(),
                Some(libc::EPERM) if matches!(switch, "1" | "2") => {
                    format!("{SWITCH} is {switch}; an administrator can set it to 0")
                }
                Some(libc::EPERM) => {
                    "a seccomp profile forbids io_uring; run the container with one that allows it".to_owned()
                }
                Some(libc::ENOMEM) => "there is not enough lockable memory; raise the limit (ulimit -l)".to_owned(),
                _ => format!("io_uring_setup failed: {error}"),
            },
        };
        IoUring { available: outcome.is_ok(), reason }
    }
}

fn set_up() -> io::Result<OwnedFd> {
    let mut parameters: Parameters = [0; 15];
    // SAFETY: `io_uring_setup` reads and writes one `struct io_uring_params` through its second
    // argument; `parameters` has its size, is aligned for its integers, is zeroed as the call
    // demands of unused fields, and outlives the call.
    let descriptor = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, std::ptr::from_mut(&mut parameters)) };
    match libc::c_int::try_from(descriptor) {
        Ok(descriptor) if descriptor >= 0 => {
            // SAFETY: the call succeeded, so `descriptor` is open and nothing else owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_the_kernel_has_a_reason() {
        let reason = |errno, switch| IoUring::of(&Err(io::Error::from_raw_os_error(errno)), switch);
        for (errno, switch, says) in [
            (libc::ENOSYS, "", "no io_uring"),
            (libc::EPERM, "2", "io_uring_disabled is 2"),
            (libc::EPERM, "0", "seccomp"),
            (libc::ENOMEM, "0", "ulimit -l"),
            (libc::EMFILE, "0", "io_uring_setup failed"),
        ] {
            let answer = reason(errno, switch);
            assert!(!answer.available);
            assert!(answer.reason.contains(says), "{}", answer.reason);
        }
    }

    #[test]
    fn looking_always_gives_a_reason() {
        assert!(!IoUring::look().reason.is_empty());
    }
}
