//! The bytes of one connection: plain or through TLS. Non-blocking; belongs to one shard.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};

use sealane_runtime::{VolatileSlice, VolatileSliceMut};
use socket2::Socket;

use super::tls::TlsStream;
use crate::authentication::Certificate;
use crate::error::LinkError;

pub(crate) enum Stream {
    Plain(Socket),
    Tls(Box<TlsStream>),
}

impl Stream {
    /// Reads what is there into the targets in turn; `None` if there is nothing.
    #[inline]
    pub(super) fn read(&mut self, targets: &mut [VolatileSliceMut<'_>]) -> Result<Option<usize>, LinkError> {
        match self {
            Stream::Plain(socket) => got(VolatileSliceMut::receive(socket.as_fd(), targets)),
            Stream::Tls(stream) => stream.read(targets),
        }
    }

    /// Writes from the front of `slices`; `None` if the connection accepts nothing now. What was offered and not accepted must
    /// come first in the next call: TLS has already sealed it.
    #[inline]
    pub(super) fn write(
        &mut self,
        slices: &[VolatileSlice<'_>],
        more_follows: bool,
    ) -> Result<Option<usize>, LinkError> {
        match self {
            Stream::Plain(socket) => send(socket, slices, more_follows),
            Stream::Tls(stream) => stream.write(slices, more_follows),
        }
    }

    /// Sends what the kernel holds back after a write that announced more.
    pub(super) fn push_out(&self) -> Result<(), LinkError> {
        // Setting the option again makes Linux send what it holds back.
        self.socket().set_tcp_nodelay(true).map_err(|error| LinkError::io("set TCP_NODELAY", &error))
    }

    pub(super) fn socket(&self) -> &Socket {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(stream) => stream.socket(),
        }
    }

    /// The plain socket, once nothing more will come through it. Dropping it ends the connection.
    pub(super) fn into_socket(self) -> Result<Socket, LinkError> {
        match self {
            Stream::Plain(socket) => Ok(socket),
            Stream::Tls(stream) => stream.into_socket(),
        }
    }

    /// The peer's certificate, if TLS has checked one.
    pub(super) fn certificate(&self) -> Option<Certificate> {
        match self {
            Stream::Plain(_) => None,
            Stream::Tls(stream) => stream.certificate(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket().as_fd()
    }
}

/// Writes to a socket; `None` if it accepts nothing now.
#[inline]
pub(super) fn send(
    socket: &Socket,
    slices: &[VolatileSlice<'_>],
    more_follows: bool,
) -> Result<Option<usize>, LinkError> {
    // A write that is followed by others needs no segment of its own.
    let flags = libc::MSG_NOSIGNAL | if more_follows { libc::MSG_MORE } else { 0 };
    loop {
        return match VolatileSlice::send(socket.as_fd(), slices, flags) {
            Ok(written) => Ok(Some(written)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => Err(LinkError::io("write", &error)),
        };
    }
}

/// The result of a read: `None` if there was nothing, an error if the peer has closed.
#[inline]
pub(super) fn got(result: std::io::Result<usize>) -> Result<Option<usize>, LinkError> {
    match result {
        Ok(0) => Err(LinkError::Closed),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(LinkError::io("read", &error)),
    }
}
