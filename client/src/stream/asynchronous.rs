//! Streams for executors: the traits of `futures_io`, and tokio's.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Stream, blocking::io_error};

impl futures_io::AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        Stream::poll_read(&self, into, context).map_err(io_error)
    }
}

impl futures_io::AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Stream::poll_write(&self, bytes, context).map_err(io_error)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_flush(&self, context).map_err(io_error)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_finish(&self, context).map_err(io_error)
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = std::task::ready!(Stream::poll_read(&self, into.initialize_unfilled(), context));
        Poll::Ready(read.map(|count| into.advance(count)).map_err(io_error))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Stream::poll_write(&self, bytes, context).map_err(io_error)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_flush(&self, context).map_err(io_error)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Stream::poll_finish(&self, context).map_err(io_error)
    }
}
