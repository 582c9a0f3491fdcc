//! Notifies Python that calls have ended: waiting threads, and event loops through a descriptor that they watch. Called on the
//! thread of the client or engine that ends a call, which never waits for the GIL.

use std::{
    mem,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Mutex, PoisonError},
    task::{Wake, Waker},
    thread::{self, ThreadId},
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::prelude::*;

/// The waker of a call: knows who waits for its end.
#[derive(Default)]
pub(crate) struct Wakeups {
    state: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners {
    threads: Vec<(ThreadId, Waker)>,
    bells: Vec<(Arc<Tickets>, u64)>,
}

impl Wakeups {
    /// Also wakes this thread, once.
    pub(crate) fn wake_too(&self, waker: &Waker) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        state.threads.retain(|(other, _)| *other != thread);
        state.threads.push((thread, waker.clone()));
    }

    /// Forgets this thread, which no longer waits.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = thread::current().id();
        state.threads.retain(|(other, _)| *other != thread);
    }

    /// Also rings the bell, once.
    pub(crate) fn ring_too(&self, bell: &Bell, ticket: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bells.push((bell.0.clone(), ticket));
    }
}

impl Wake for Wakeups {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (threads, bells) = (mem::take(&mut state.threads), mem::take(&mut state.bells));
        drop(state);
        threads.into_iter().for_each(|(_, waker)| waker.wake());
        for (bell, ticket) in bells {
            bell.ring(ticket);
        }
    }
}

/// Tickets of calls that have ended, and the descriptor that signals them.
struct Tickets {
    ready: Mutex<Vec<u64>>,
    rung: EventFd,
}

impl Tickets {
    fn ring(&self, ticket: u64) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push(ticket);
        if ready.len() == 1 {
            // It can only fail if it was rung 2^64 times without being read.
            let _ = self.rung.write(1);
        }
    }
}

/// A descriptor that an event loop watches, and the tickets of the calls that have ended since it last looked.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Bell(Arc<Tickets>);

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Self> {
        let rung = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK).map_err(std::io::Error::from)?;
        Ok(Self(Arc::new(Tickets { ready: Mutex::default(), rung })))
    }

    /// The descriptor, which becomes readable when a call ends.
    fn fileno(&self) -> i32 {
        self.0.rung.as_fd().as_raw_fd()
    }

    /// The tickets since the last call.
    fn tickets(&self) -> Vec<u64> {
        let mut ready = self.0.ready.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock, so that the next ring finds the descriptor cleared.
        let _ = self.0.rung.read();
        mem::take(&mut ready)
    }
}
