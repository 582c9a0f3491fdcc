//! Streams for threads that wait: `std::io`.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    os::fd::AsFd,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        eventfd::{EfdFlags, EventFd},
        time::TimeSpec,
    },
};
use sealane_runtime::Polling;
use sealane_transport::{Code, Error};

use super::{
    Hub, Stream,
    direct::{Direct, Waits},
    socket::Connected,
};
use crate::{Attach, in_process::Spinning};

/// Polls in this thread until ready, waiting at most for that time.
///
/// # Errors
/// Those of the poll, and DeadlineExceeded.
pub(super) fn block_on<T>(
    hub: &Hub,
    timeout: Option<Duration>,
    poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, Error>>,
) -> Result<T, Error> {
    let outcome = hub.waiter().block_on(poll_fn(poll), timeout.unwrap_or(Duration::MAX));
    outcome.unwrap_or_else(|| Err(late(timeout)))
}

fn late(timeout: Option<Duration>) -> Error {
    let waited = timeout.unwrap_or(Duration::MAX);
    Error::TimedOut { reason: format!("the other end of the stream kept this one waiting for {waited:?}").into() }
}

/// The system's nearest error kind, with the error inside.
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

impl Stream {
    /// Reads by spinning, for as long as a waiting thread spins.
    fn read_soon(&self, into: &mut [u8]) -> Option<usize> {
        if self.direct.reads_ring() {
            let is_awake = self.hub.waiter().may_spin();
            return is_awake.then(|| self.direct.read_soon(into).unwrap_or(0)).filter(|count| *count > 0);
        }
        let (begun, spinning) = (Instant::now(), &self.spinning);
        let time = match spinning.polling() {
            Polling::Park => return None,
            Polling::SpinThenPark { idle_spin } => idle_spin,
            Polling::Spin => Attach::IDLE_SPIN,
        };
        let count = self.direct.read_socket_soon(into, || begun.elapsed() >= time)?;
        spinning.has_spun(count > 0, begun.elapsed());
        (count > 0).then_some(count)
    }

    /// Waits in this thread until `poll` is ready: for the socket that `socket_of` gives, if there is one, and for whatever else may happen
    /// to the stream.
    fn block_on<T>(
        &self,
        interest: PollFlags,
        socket_of: impl Fn(&Direct) -> Option<Arc<Connected>>,
        mut poll: impl FnMut(&mut Context<'_>, Waits) -> Poll<Result<T, Error>>,
    ) -> io::Result<T> {
        let Some(mut socket) = socket_of(&self.direct) else {
            return block_on(&self.hub, self.timeout, |context| poll(context, Waits::Waker)).map_err(io_error);
        };
        let bell = Bell::of_thread()?;
        let (waker, begun) = (Waker::from(bell.clone()), Instant::now());
        loop {
            if let Poll::Ready(outcome) = poll(&mut Context::from_waker(&waker), Waits::Itself) {
                return outcome.map_err(io_error);
            }
            // Even an endless spin asks the kernel, which knows of more room than the first that becomes free.
            loop {
                let left = self.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
                if left.is_some_and(|left| left.is_zero()) {
                    return Err(io_error(late(self.timeout)));
                }
                let sleeps = !matches!(self.spinning, Spinning::Always(Polling::Spin));
                let left = if sleeps { left } else { Some(Duration::ZERO) };
                let mut polled =
                    [PollFd::new(socket.as_fd(), interest), PollFd::new(bell.0.as_fd(), PollFlags::POLLIN)];
                match ppoll(&mut polled, left.map(TimeSpec::from_duration), None) {
                    Ok(0) => {}
                    Ok(_) => break bell.clear(),
                    Err(Errno::EINTR) => {}
                    Err(error) => return Err(error.into()),
                }
            }
            match socket_of(&self.direct) {
                Some(another) => socket = another,
                None => {
                    let left = self.timeout.map(|timeout| timeout.saturating_sub(begun.elapsed()));
                    return block_on(&self.hub, left, |context| poll(context, Waits::Waker)).map_err(io_error);
                }
            }
        }
    }
}

/// Wakes a thread that also waits for a socket.
struct Bell(EventFd);

impl Bell {
    /// This thread's bell; a thread waits for one thing at a time. A forked child has its own.
    fn of_thread() -> io::Result<Arc<Bell>> {
        thread_local! {
            static BELL: RefCell<Option<(u32, Arc<Bell>)>> = const { RefCell::new(None) };
        }
        BELL.with_borrow_mut(|known| {
            let process = std::process::id();
            if let Some((of, bell)) = known
                && *of == process
            {
                bell.clear();
                return Ok(bell.clone());
            }
            let made = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
            Ok(known.insert((process, Arc::new(Bell(made)))).1.clone())
        })
    }

    fn clear(&self) {
        // It may not have been rung.
        let _ = self.0.read();
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let _ = self.0.write(1);
    }
}

impl io::Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.hub.check_fork().map_err(io_error)?;
        if let Some(count) = self.read_soon(into) {
            return Ok(count);
        }
        let poll = |context: &mut Context<'_>, waits| self.poll_read_as(into, context, waits);
        self.block_on(PollFlags::POLLIN, Direct::to_read, poll)
    }
}

impl io::Write for &Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hub.check_fork().map_err(io_error)?;
        // Usually there is room.
        if let Ok(count @ 1..) = self.direct.write(bytes) {
            return Ok(count);
        }
        let poll = |context: &mut Context<'_>, waits| self.poll_write_as(bytes, context, waits);
        self.block_on(PollFlags::POLLOUT, Direct::to_write, poll)
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
