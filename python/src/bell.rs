//! Notifies Python that calls have ended: waiting threads, and event loops through a descriptor that they watch. Called by the
//! thread of the client or the engine that ends a call, which never waits for the GIL.

use std::{
    mem,
    os::fd::{AsFd, AsRawFd},
    sync::{Arc, Condvar, Mutex, PoisonError},
    task::Wake,
    time::Duration,
};

use nix::sys::eventfd::{EfdFlags, EventFd};
use pyo3::prelude::*;

/// Who wants to know that a call has ended: its waker.
#[derive(Default)]
pub(crate) struct Wakeups {
    state: Mutex<Listeners>,
    woken: Condvar,
}

#[derive(Default)]
struct Listeners {
    count: u64,
    bells: Vec<(Arc<Tickets>, u64)>,
}

impl Wakeups {
    /// Wakeups so far, for [`wait`](Self::wait).
    pub(crate) fn seen(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).count
    }

    /// Waits until there are more than `seen`.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.woken.wait_timeout_while(state, timeout, |state| state.count == seen));
    }

    /// Rings the bell as well, once.
    pub(crate) fn ring_too(&self, bell: &Bell, ticket: u64) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.bells.push((bell.0.clone(), ticket));
    }
}

impl Wake for Wakeups {
    fn wake(self: Arc<Self>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.count += 1;
        let bells = mem::take(&mut state.bells);
        drop(state);
        self.woken.notify_all();
        for (bell, ticket) in bells {
            bell.ring(ticket);
        }
    }
}

/// Tickets of calls that have ended, and the descriptor that says so.
struct Tickets {
    ready: Mutex<Vec<u64>>,
    rung: EventFd,
}

impl Tickets {
    fn ring(&self, ticket: u64) {
        let mut ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.push(ticket);
        if ready.len() == 1 {
            // It can only fail when it was rung 2^64 times without an answer.
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
        // Under the lock, so that the next ring finds the descriptor at rest.
        let _ = self.0.rung.read();
        mem::take(&mut ready)
    }
}
