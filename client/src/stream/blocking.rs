//! Streams for threads that wait: `std::io`.

use std::{
    future::poll_fn,
    io,
    task::{Context, Poll},
    time::Duration,
};

use sealane_transport::{Code, Error};

use super::{Hub, Stream};

/// Waits in this thread until it is ready, or for so long.
///
/// # Errors
/// What it brings, and DeadlineExceeded.
pub(super) fn block_on<T>(
    hub: &Hub,
    timeout: Option<Duration>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, Error>>,
) -> Result<T, Error> {
    let outcome = hub.waiter().block_on(poll_fn(poll), timeout.unwrap_or(Duration::MAX));
    outcome.unwrap_or_else(|| {
        let waited = timeout.unwrap_or(Duration::MAX);
        Err(Error::TimedOut {
            reason: format!("the other end of the stream kept this one waiting for {waited:?}").into(),
        })
    })
}

/// The nearest of the system's kinds, with the error within.
pub(super) fn io_error(error: Error) -> io::Error {
    let kind = match error.code() {
        Code::InvalidArgument => io::ErrorKind::InvalidInput,
        Code::DeadlineExceeded => io::ErrorKind::TimedOut,
        Code::NotFound => io::ErrorKind::NotFound,
        Code::PermissionDenied => io::ErrorKind::PermissionDenied,
        Code::Unavailable => io::ErrorKind::ConnectionReset,
        Code::ResourceExhausted | Code::Aborted | Code::Unimplemented => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl io::Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.hub.check_fork().map_err(io_error)?;
        if self.hub.waiter().may_spin()
            && let Ok(count @ 1..) = self.rings.read_soon(into)
        {
            return Ok(count);
        }
        block_on(&self.hub, self.timeout, |context| self.poll_read(into, context)).map_err(io_error)
    }
}

impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        block_on(&self.hub, self.timeout, |context| self.poll_write(bytes, context)).map_err(io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        block_on(&self.hub, self.timeout, |context| self.poll_flush(context)).map_err(io_error)
    }
}

impl io::Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        (&*self).read(into)
    }
}

impl io::Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        (&*self).flush()
    }
}
