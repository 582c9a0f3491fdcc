//! Calls under way as Python objects: to be waited for, awaited or looked at, by any thread. The lock of a call is never
//! held by a thread that waits for the interpreter's.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyTimeoutError, prelude::*, sync::PyOnceLock, types::PyType};
use sealane::Error;

use crate::{
    bell::{Bell, Wakeups},
    errors::{OrRaise, exception, invalid},
    fork::Generation,
    input::{Destination, received},
    wait::{SIGNALS_EVERY, UnderWay},
};

/// A call, and how it ended.
struct Call<C: UnderWay> {
    stage: Mutex<Stage<C>>,
    wakeups: Arc<Wakeups>,
    made: Generation,
}

enum Stage<C: UnderWay> {
    UnderWay(C),
    Ended(C::Value),
    Failed(Error),
    /// The value was handed out.
    Told,
    Cancelled,
}

impl<C: UnderWay> Stage<C> {
    fn end(&mut self, outcome: Result<C::Value, Error>) {
        *self = match outcome {
            Ok(value) => Stage::Ended(value),
            Err(error) => Stage::Failed(error),
        };
    }
}

impl<C: UnderWay> Call<C> {
    fn new(call: C) -> Self {
        Self { stage: Mutex::new(Stage::UnderWay(call)), wakeups: Arc::default(), made: Generation::now() }
    }

    fn lock(&self) -> MutexGuard<'_, Stage<C>> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the call has ended. Without the interpreter's lock.
    fn look(&self) -> bool {
        let mut stage = self.lock();
        if let Stage::UnderWay(call) = &mut *stage {
            match call.look() {
                Some(outcome) => stage.end(outcome),
                None => return false,
            }
        }
        true
    }

    /// Whether the call has ended; if not, `wakeups` hears when it does. Without the interpreter's lock.
    fn poll(&self) -> bool {
        let waker = Waker::from(self.wakeups.clone());
        let mut stage = self.lock();
        if let Stage::UnderWay(call) = &mut *stage {
            match call.poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(outcome) => stage.end(outcome),
                Poll::Pending => return false,
            }
        }
        true
    }

    /// Waits until the call has ended.
    ///
    /// # Errors
    /// TimeoutError if it has not within `timeout`, InvalidArgument in a forked child, what signal handlers raise.
    fn wait(&self, py: Python<'_>, timeout: Option<Duration>) -> PyResult<()> {
        self.made.check("this call's task").or_raise(py)?;
        if py.detach(|| self.look()) {
            return Ok(());
        }
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let ended = py.detach(|| {
                let seen = self.wakeups.seen();
                self.poll() || {
                    self.wakeups.wait(seen, left.unwrap_or(SIGNALS_EVERY).min(SIGNALS_EVERY));
                    self.look()
                }
            });
            if ended {
                return Ok(());
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err("the call has not ended yet, and goes on"));
            }
        }
    }

    /// Has the bell rung with this ticket when the call ends; true if it has ended.
    fn notify(&self, py: Python<'_>, bell: &Bell, ticket: u64) -> PyResult<bool> {
        self.made.check("this call's task").or_raise(py)?;
        Ok(py.detach(|| {
            self.wakeups.ring_too(bell, ticket);
            self.poll()
        }))
    }

    /// Whether a call that has ended did so well.
    ///
    /// # Errors
    /// The call's, CancelledError.
    fn verdict(&self, py: Python<'_>) -> PyResult<()> {
        let error = py.detach(|| match &*self.lock() {
            Stage::Ended(_) | Stage::Told => Ok(None),
            Stage::Failed(error) => Ok(Some(error.clone())),
            Stage::Cancelled => Err(()),
            Stage::UnderWay(_) => Ok(Some(Error::invalid("the call has not ended yet"))),
        });
        match error {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(exception(py, &error)),
            Err(()) => Err(cancelled(py)),
        }
    }

    /// The value of a call that has ended well, once.
    fn take(&self, py: Python<'_>) -> Option<C::Value> {
        py.detach(|| {
            let mut stage = self.lock();
            match std::mem::replace(&mut *stage, Stage::Told) {
                Stage::Ended(value) => Some(value),
                other => {
                    *stage = other;
                    None
                }
            }
        })
    }

    /// Gives the call up if it is under way.
    fn cancel(&self, py: Python<'_>) -> bool {
        let given_up = py.detach(|| {
            let mut stage = self.lock();
            matches!(*stage, Stage::UnderWay(_)).then(|| std::mem::replace(&mut *stage, Stage::Cancelled))
        });
        if given_up.is_some() {
            // Whoever waits for it hears of it.
            self.wakeups.clone().wake();
        }
        given_up.is_some()
    }
}

/// What `concurrent.futures` raises for calls that were cancelled.
fn cancelled(py: Python<'_>) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "concurrent.futures", "CancelledError") {
        Ok(class) => PyErr::from_type(class.clone(), ("the recv was cancelled",)),
        Err(broken) => broken,
    }
}

/// `sealane._asyncio.outcome(call)`, as an iterator for `await`.
fn awaited<'py>(call: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static OUTCOME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let coroutine = OUTCOME.import(call.py(), "sealane._asyncio", "outcome")?.call1((call,))?;
    coroutine.call_method0("__await__")
}

/// A send under way, as ``Task.send_async`` gives it: ``await`` it, or call ``result``.
///
/// If it is dropped, the send goes on.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Sending(Call<sealane::Sending>);

impl Sending {
    pub(crate) fn new(call: sealane::Sending) -> Self {
        Self(Call::new(call))
    }
}

#[pymethods]
impl Sending {
    /// Blocks until the consumer has the tensor. ``timeout`` is in seconds; when it is over, ``TimeoutError`` is raised
    /// and the send goes on.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.0.wait(py, crate::wait::timeout(timeout).or_raise(py)?)?;
        self.0.verdict(py)
    }

    /// True if the send has ended, well or not.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.0.made.check("this call's task").or_raise(py)?;
        Ok(py.detach(|| self.0.look()))
    }

    fn _notify(&self, py: Python<'_>, bell: &Bell, ticket: u64) -> PyResult<bool> {
        self.0.notify(py, bell, ticket)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        awaited(slf.as_any())
    }
}

/// A recv under way, as ``Task.recv_async`` gives it: ``await`` it, or call ``result``.
///
/// If it is dropped or its ``await`` is cancelled, the recv is given up: the tensor stays with its producer. With the
/// engine in this process it goes on until its deadline, and takes the tensor all the same.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Receiving {
    call: Call<sealane::Receiving>,
    destination: Option<Destination>,
    /// What was handed out.
    value: PyOnceLock<Py<PyAny>>,
}

impl Receiving {
    pub(crate) fn new(call: sealane::Receiving, destination: Option<Destination>) -> Self {
        Self { call: Call::new(call), destination, value: PyOnceLock::new() }
    }
}

#[pymethods]
impl Receiving {
    /// Blocks until the tensor is there, and gives it. ``timeout`` is in seconds; when it is over, ``TimeoutError`` is
    /// raised and the recv goes on.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = crate::wait::timeout(timeout).or_raise(py)?;
        if self.value.get(py).is_none() {
            self.call.wait(py, timeout)?;
        }
        let value = self.value.get_or_try_init(py, || {
            self.call.verdict(py)?;
            let lost = || invalid(py, "the tensor could not be handed out when it was first asked for");
            let tensor = self.call.take(py).ok_or_else(lost)?;
            received(py, tensor, self.destination.as_ref()).map(Bound::unbind)
        })?;
        Ok(value.clone_ref(py))
    }

    /// True if the recv has ended, well or not.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.call.made.check("this call's task").or_raise(py)?;
        Ok(py.detach(|| self.call.look()))
    }

    /// Gives the recv up; false if it has ended already.
    fn cancel(&self, py: Python<'_>) -> bool {
        self.call.cancel(py)
    }

    fn _notify(&self, py: Python<'_>, bell: &Bell, ticket: u64) -> PyResult<bool> {
        self.call.notify(py, bell, ticket)
    }

    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        awaited(slf.as_any())
    }
}
