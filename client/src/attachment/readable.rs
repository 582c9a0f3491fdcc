//! A descriptor that a tokio runtime watches for something new to read.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    task::{Context, Poll},
};

use tokio::io::{Interest, unix::AsyncFd};

pub(super) struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Duplicates the descriptor, and registers it with the current runtime.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// Outside of a runtime, or in one without I/O.
    pub(super) fn of(fd: &impl AsFd) -> io::Result<Readable> {
        let fd = fd.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` has one descriptor, which is open until it is dropped: by the `AsyncFd`, which takes it out of the runtime
        // first.
        let registered = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        registered.map(Readable).map_err(Into::into)
    }

    /// True if something has come since this was last true; if not, the task is woken when something does. The kernel reports it only once:
    /// whoever hears of it reads everything there is.
    pub(super) fn has_news(&self, context: &mut Context<'_>) -> bool {
        match self.0.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                ready.clear_ready();
                true
            }
            // The runtime is ending.
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }
}
