//! Asks the kernel for io_uring before the executor does, which would not survive a refusal; once a start.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{FromRawFd, OwnedFd},
};

/// `struct io_uring_params` of the kernel's interface: 120 bytes, all of which may be zero.
#[repr(C, align(8))]
struct Parameters([u8; 120]);

/// Makes the smallest ring and closes it again.
///
/// # Errors
/// What the kernel answers where a ring cannot be made: `EPERM` or `EACCES` where it is forbidden, `ENOSYS` where
/// there is no io_uring.
pub(crate) fn io_uring() -> io::Result<()> {
    let mut parameters = Parameters([0; 120]);
    // SAFETY: the kernel reads and writes one `io_uring_params`, which lives and is exclusively ours for the call.
    let answer = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, &raw mut parameters) };
    if answer < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the answer is a new descriptor that nobody else knows.
    drop(unsafe { OwnedFd::from_raw_fd(answer as i32) });
    Ok(())
}
