//! Bounds TCP's retransmission timeout: after an outage, nothing is transmitted until it expires. Two system calls.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The option's number in linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: c_int = 44;

/// The longest wait: the smallest that the kernel accepts. Without it each wait is twice the previous one, up to two
/// minutes, so that after a cable was cut for 7 s the connection stayed dead for 6 s more.
const WAIT_MAX_MS: c_int = 1000;

/// The kernel's own bound. The kernel also uses it to decide when to give up what a closed socket has not sent yet.
const KERNELS_MAX_MS: c_int = 120_000;

/// Bounds the retransmission timeouts of a socket, also while it connects. Does nothing on a kernel without the option.
///
/// # Errors
/// It is not a TCP socket, or the kernel refuses the bound.
pub(super) fn bound(socket: &impl AsFd) -> io::Result<()> {
    set(socket, WAIT_MAX_MS)
}

/// Removes the bound before a socket is closed that may not have sent everything.
///
/// # Errors
/// As [`bound`].
pub(super) fn release(socket: &impl AsFd) -> io::Result<()> {
    set(socket, KERNELS_MAX_MS)
}

fn set(socket: &impl AsFd, value: c_int) -> io::Result<()> {
    let (descriptor, size) = (socket.as_fd().as_raw_fd(), size_of::<c_int>() as libc::socklen_t);
    // SAFETY: the descriptor is borrowed for the call, and the value is an int that outlives it, of the size that is told.
    let set =
        unsafe { libc::setsockopt(descriptor, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, (&raw const value).cast(), size) };
    match io::Error::last_os_error() {
        _ if set == 0 => Ok(()),
        error if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
        error => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The bound of a socket, where the kernel has one.
    fn bound_of(socket: &impl AsFd) -> Option<c_int> {
        let (mut value, mut size) = (0, size_of::<c_int>() as libc::socklen_t);
        let descriptor = socket.as_fd().as_raw_fd();
        // SAFETY: the descriptor is borrowed for the call, and both results are written to places of their size.
        let got = unsafe {
            let value: *mut c_int = &raw mut value;
            libc::getsockopt(descriptor, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, value.cast(), &raw mut size)
        };
        (got == 0).then_some(value)
    }

    #[test]
    fn a_kernel_that_can_bounds_the_waits() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let without = bound_of(&socket);
        assert_ne!(without, Some(WAIT_MAX_MS));
        bound(&socket).unwrap();
        assert_eq!(bound_of(&socket), without.map(|_| WAIT_MAX_MS));
        release(&socket).unwrap();
        assert_eq!(bound_of(&socket), without);
    }

    #[test]
    fn what_is_no_socket_is_refused() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(bound(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
