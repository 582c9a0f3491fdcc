//! How a shard sleeps on io_uring: it waits for its epoll set through the executor. One wait at a time.
//!
//! The executor has no public "wait until this descriptor is readable", but its Unix sockets do just that before they read: making
//! one queues a one-shot poll in io_uring, and the read that follows waits for it. So the epoll set's descriptor is wrapped as such
//! a socket. The read itself then fails, because an epoll set is no socket, and that failure signals that something is ready.
//!
//! The poll is left pending when the shard wakes for another reason, and serves the next sleep: cancelling it each time would cost
//! two more requests to the kernel. If it has completed meanwhile, the next sleep ends at once, one time.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, FromRawFd, IntoRawFd},
    pin::Pin,
    task::{Context, Poll},
};

use futures_io::AsyncRead;
use glommio::net::UnixStream;

/// A wait for a descriptor to become readable, which can be abandoned and resumed.
#[derive(Default)]
pub(crate) struct ReadinessWait {
    pending: Option<UnixStream>,
}

impl ReadinessWait {
    /// Ready when `fd` is readable, or was since this was last ready; must be given the same `fd` each time.
    ///
    /// # Errors
    /// Where no descriptor is left for the wait.
    pub(in crate::executor) fn poll(&mut self, fd: impl AsFd, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let stream = match &mut self.pending {
            Some(stream) => stream,
            none => none.insert(disguise(fd)?),
        };
        match Pin::new(stream).poll_read(context, &mut [0]) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(_not_a_socket) => {
                // It polls only once; the next wait needs a new one.
                self.pending = None;
                Poll::Ready(Ok(()))
            }
        }
    }
}

fn disguise(fd: impl AsFd) -> io::Result<UnixStream> {
    let owned = fd.as_fd().try_clone_to_owned()?;
    // SAFETY: the descriptor was just duplicated and is owned by the stream alone. The stream never transfers data:
    // its reads fail with ENOTSOCK, which is what they are for.
    Ok(unsafe { UnixStream::from_raw_fd(owned.into_raw_fd()) })
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io::Write, os::fd::AsFd};

    use glommio::{LocalExecutorBuilder, Placement};
    use nix::sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        eventfd::EventFd,
    };

    use super::ReadinessWait;

    /// The executor guarantees this without documenting it: guards against changes in its sockets.
    #[test]
    fn an_epoll_set_that_becomes_readable_ends_the_wait() {
        if let Err(refused) = super::super::try_io_uring() {
            // Not by `eprintln`, whose output the test harness captures.
            let name = "an_epoll_set_that_becomes_readable_ends_the_wait";
            writeln!(std::io::stderr(), "SKIPPED {name}: needs io_uring ({refused})").unwrap();
            return;
        }
        let executor =
            LocalExecutorBuilder::new(Placement::Unbound).ring_depth(32).io_memory(64 * 1024).make().unwrap();
        executor.run(async {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
            let event = EventFd::new().unwrap();
            let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
            epoll.add(&event, EpollEvent::new(edge, 9)).unwrap();
            let mut wait = ReadinessWait::default();

            for _ in 0..100 {
                // Pending while nothing happens, however often it is polled.
                for _ in 0..2 {
                    let pending =
                        poll_fn(|context| std::task::Poll::Ready(wait.poll(epoll.0.as_fd(), context).is_pending()));
                    assert!(pending.await);
                    glommio::executor().yield_now().await;
                }
                // On another thread, because the executor itself is asleep by then.
                let remote = event.as_fd().try_clone_to_owned().unwrap();
                let thread = std::thread::spawn(move || {
                    nix::unistd::write(remote, &1_u64.to_ne_bytes()).unwrap();
                });
                poll_fn(|context| wait.poll(epoll.0.as_fd(), context)).await.unwrap();
                thread.join().unwrap();
                let mut events = [EpollEvent::empty(); 2];
                assert_eq!(epoll.wait(&mut events, EpollTimeout::ZERO), Ok(1));
            }
        });
    }
}
