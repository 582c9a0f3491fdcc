//! Streams for threads that wait: `std::io`.

use std::{
    io,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use sealane_transport::{Code, Error};

use super::Stream;

/// Wakes a thread that is parked.
struct Parked(Thread);

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits in this thread until it is ready.
pub(super) fn block_on<T>(mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> T {
    let waker = Waker::from(Arc::new(Parked(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(result) = poll(&mut context) {
            return result;
        }
        std::thread::park();
    }
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
        block_on(|context| self.poll_read(into, context)).map_err(io_error)
    }
}

impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        block_on(|context| self.poll_write(bytes, context)).map_err(io_error)
    }

    fn flush(&mut self) -> io::Result<()> {
        block_on(|context| self.poll_flush(context)).map_err(io_error)
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
