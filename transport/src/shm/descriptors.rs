//! Messages with descriptors on a Unix socket; any thread, never blocks. Unexpected descriptors are closed.
#![allow(unsafe_code)]

use std::{
    io::IoSlice,
    mem,
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use nix::{
    errno::Errno,
    sys::socket::{ControlMessage, MsgFlags, SockFlag, accept4, sendmsg},
};

/// Most descriptors in one message: a direct lane and the bells of its two ends; the kernel's rounding leaves room for a
/// fourth.
pub(super) const DESCRIPTORS_MAX: usize = 4;

/// A message that was received.
#[derive(Debug)]
pub(super) struct Message {
    /// Bytes put into the buffer; 0 at the end of the conversation.
    pub(super) len: usize,
    /// The message was longer than the buffer, or had more descriptors than [`DESCRIPTORS_MAX`]; what did not fit is lost.
    pub(super) cut: bool,
    pub(super) descriptors: Vec<OwnedFd>,
}

/// Sends one message, whole or not at all.
pub(super) fn send(socket: &OwnedFd, bytes: &[u8], descriptors: &[RawFd]) -> Result<(), Errno> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[] } else { &rights[..] };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(drop)
}

/// Room for one control message with the descriptors, aligned as required by the kernel's header.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

// SAFETY: it only computes.
const CONTROL_BYTES: usize = unsafe { libc::CMSG_SPACE((DESCRIPTORS_MAX * size_of::<RawFd>()) as u32) } as usize;

const _: () = assert!(align_of::<Control>() >= align_of::<libc::cmsghdr>());

/// Receives one message, if there is one. Returns EMFILE if the process has no room for its descriptors.
///
/// Written by hand: the library gives up on a message with too many descriptors and leaks those that came.
pub(super) fn receive(socket: &OwnedFd, buffer: &mut [u8]) -> Result<Message, Errno> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; CONTROL_BYTES]);
    // SAFETY: all zero is a legal header: no name, no parts, no control.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = (&raw mut control).cast();
    header.msg_controllen = CONTROL_BYTES;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the header names one buffer and one control area, which both live until the call returns.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let len = Errno::result(len)? as usize;
    // SAFETY: the kernel has just filled the header and the control area in.
    let descriptors = unsafe { take_descriptors(&header) };
    // The kernel discards descriptors for which the process has no room, as if they were too many.
    let has_lost = header.msg_flags & libc::MSG_CTRUNC != 0;
    if has_lost && socket.try_clone().is_err_and(|error| error.raw_os_error() == Some(libc::EMFILE)) {
        return Err(Errno::EMFILE);
    }
    let cut = has_lost || header.msg_flags & libc::MSG_TRUNC != 0;
    Ok(Message { len, cut, descriptors })
}

/// # Safety
/// The header was filled in by `recvmsg`, its control area still lives, and this is called once for it.
unsafe fn take_descriptors(header: &libc::msghdr) -> Vec<OwnedFd> {
    let mut taken = Vec::new();
    // SAFETY: the header is as the kernel left it.
    let mut message = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !message.is_null() {
        // SAFETY: the kernel wrote a whole header here.
        let kind = unsafe { ptr::read(message) };
        if kind.cmsg_level == libc::SOL_SOCKET && kind.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: it only computes where the data of this message begins.
            let (data, begin) = unsafe { (libc::CMSG_DATA(message).cast::<RawFd>(), libc::CMSG_LEN(0) as usize) };
            for index in 0..(kind.cmsg_len - begin) / size_of::<RawFd>() {
                // SAFETY: the kernel put that many descriptors there, open and ours alone.
                taken.push(unsafe { OwnedFd::from_raw_fd(ptr::read_unaligned(data.add(index))) });
            }
        }
        // SAFETY: the header and this message are as the kernel left them.
        message = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    taken
}

/// The next connection of a listening socket; close-on-exec and non-blocking.
pub(super) fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    let fd = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK)?;
    // SAFETY: the kernel has just opened it, for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests;
