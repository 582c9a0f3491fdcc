//! Probes the kernel for io_uring before the executor uses it, which would panic on failure, and explains a failure.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// The administrator's switch to forbid io_uring.
const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// `struct io_uring_params` of the kernel's interface: 120 bytes, all of which may be zero.
#[repr(C, align(8))]
struct Parameters([u8; 120]);

/// Makes the smallest ring and closes it again.
///
/// # Errors
/// Why a ring cannot be made, and what to do about it.
pub(super) fn io_uring() -> Result<(), String> {
    set_up().map(drop).map_err(|error| reason(&error, std::fs::read_to_string(SWITCH).unwrap_or_default().trim()))
}

fn set_up() -> io::Result<OwnedFd> {
    let mut parameters = Parameters([0; 120]);
    // SAFETY: the kernel reads and writes one `io_uring_params`, which lives and is exclusively ours for the call.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut parameters) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the answer is a new descriptor that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(answer as i32) })
}

fn reason(error: &io::Error, switch: &str) -> String {
    match error.raw_os_error() {
        Some(libc::ENOSYS) => "the kernel has no io_uring; run Linux 5.8 or later".into(),
        Some(libc::EPERM) if matches!(switch, "1" | "2") => {
            format!("{SWITCH} is {switch}; an administrator can set it to 0")
        }
        Some(libc::EPERM | libc::EACCES) => {
            "a seccomp profile forbids it; run the container with one that allows io_uring_setup, io_uring_enter and \
             io_uring_register"
                .into()
        }
        Some(libc::ENOMEM) => "there is not enough lockable memory; raise the limit (ulimit -l)".into(),
        _ => format!("io_uring_setup failed: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_of_the_kernel_has_a_reason() {
        for (errno, switch, says) in [
            (libc::ENOSYS, "", "no io_uring"),
            (libc::EPERM, "2", "io_uring_disabled is 2"),
            (libc::EPERM, "0", "seccomp"),
            (libc::EACCES, "", "seccomp"),
            (libc::ENOMEM, "0", "ulimit -l"),
            (libc::EMFILE, "0", "io_uring_setup failed"),
        ] {
            let reason = reason(&io::Error::from_raw_os_error(errno), switch);
            assert!(reason.contains(says), "{reason}");
        }
    }
}
