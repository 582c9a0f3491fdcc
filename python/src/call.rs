//! Calls in flight as Python objects: any thread can wait for them, await them or poll them. No thread holds a call's lock while it
//! waits for the GIL.

use std::{
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyTimeoutError, prelude::*, sync::PyOnceLock, types::PyType};
use sealane::{Error, Waiter};

use crate::{
    bell::{Bell, Wakeups},
    errors::{OrRaise, exception, invalid},
    fork::Generation,
    wait::{SIGNALS_EVERY, UnderWay, Valueless, on_main_thread},
};

struct Call<C: UnderWay> {
    state: Mutex<CallState<C>>,
    wakeups: Arc<Wakeups>,
    waiter: Waiter,
    made: Generation,
}

enum CallState<C: UnderWay> {
    /// In progress; true if somebody wants to be woken.
    UnderWay(C, bool),
    Ended(C::Value),
    Failed(Error),
    /// The value was handed out.
    Told,
    Cancelled,
}

impl<C: UnderWay> CallState<C> {
    fn end(&mut self, outcome: Result<C::Value, Error>) {
        *self = match outcome {
            Ok(value) => CallState::Ended(value),
            Err(error) => CallState::Failed(error),
        };
    }
}

impl<C: UnderWay> Call<C> {
    fn new(waiter: Waiter, call: C) -> Self {
        let (wakeups, made) = (Arc::default(), Generation::now());
        Self { state: Mutex::new(CallState::UnderWay(call, false)), wakeups, waiter, made }
    }

    fn lock(&self) -> MutexGuard<'_, CallState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the call has ended. Without the GIL.
    fn look(&self) -> bool {
        let mut state = self.lock();
        let outcome = match &mut *state {
            CallState::UnderWay(call, false) => call.look(),
            // A mere look could replace the waker of whoever waits.
            CallState::UnderWay(call, true) => self.polled(call),
            _ => return true,
        };
        let ended = outcome.is_some();
        outcome.into_iter().for_each(|outcome| state.end(outcome));
        ended
    }

    /// Whether the call has ended; if not, `wakeups` is notified when it does. Without the GIL.
    fn poll(&self) -> bool {
        if let CallState::UnderWay(_, listened) = &mut *self.lock() {
            *listened = true;
        }
        self.look()
    }

    fn polled(&self, call: &mut C) -> Option<Result<C::Value, Error>> {
        match call.poll(&mut Context::from_waker(&Waker::from(self.wakeups.clone()))) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
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
        // Python runs signal handlers only on the main thread.
        let slice = if on_main_thread() { SIGNALS_EVERY } else { Duration::MAX };
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if py.detach(|| self.wait_within(left.unwrap_or(slice).min(slice))) {
                // A control-C may also end the peer: then the interrupt matters, not the call's error.
                return if py.detach(|| self.has_failed()) { py.check_signals() } else { Ok(()) };
            }
            py.check_signals()?;
            if left.is_some_and(|left| left.is_zero()) {
                return Err(PyTimeoutError::new_err("the call has not completed yet, and continues"));
            }
        }
    }

    fn has_failed(&self) -> bool {
        matches!(&*self.lock(), CallState::Failed(_))
    }

    /// Whether the call ends in time. Without the GIL.
    fn wait_within(&self, time: Duration) -> bool {
        let poll = |context: &mut Context<'_>| {
            self.wakeups.wake_too(context.waker());
            if self.poll() { Poll::Ready(()) } else { Poll::Pending }
        };
        let ended = self.waiter.block_on(poll_fn(poll), time);
        self.wakeups.forget();
        ended.is_some()
    }

    /// Has the bell rung with this ticket when the call ends; true if it has ended.
    fn notify(&self, py: Python<'_>, bell: &Bell, ticket: u64) -> PyResult<bool> {
        self.made.check("this call's task").or_raise(py)?;
        Ok(py.detach(|| {
            self.wakeups.ring_too(bell, ticket);
            self.poll()
        }))
    }

    /// Whether an ended call succeeded.
    ///
    /// # Errors
    /// Those of the call, CancelledError.
    fn verdict(&self, py: Python<'_>) -> PyResult<()> {
        let error = py.detach(|| match &*self.lock() {
            CallState::Ended(_) | CallState::Told => Ok(None),
            CallState::Failed(error) => Ok(Some(error.clone())),
            CallState::Cancelled => Err(()),
            CallState::UnderWay(..) => Ok(Some(Error::invalid("the call has not ended yet"))),
        });
        match error {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(exception(py, &error)),
            Err(()) => Err(cancelled(py)),
        }
    }

    /// The value of a call that has succeeded, once.
    fn take(&self, py: Python<'_>) -> Option<C::Value> {
        py.detach(|| {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, CallState::Told) {
                CallState::Ended(value) => Some(value),
                other => {
                    *state = other;
                    None
                }
            }
        })
    }

    /// Cancels the call if it is in progress.
    fn cancel(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let mut state = self.lock();
            let given_up =
                matches!(*state, CallState::UnderWay(..)).then(|| std::mem::replace(&mut *state, CallState::Cancelled));
            drop(state);
            if given_up.is_some() {
                // Threads that wait for it are notified.
                self.wakeups.clone().wake();
            }
            given_up.is_some()
        })
    }
}

impl<C: UnderWay> Drop for Call<C> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if matches!(state, CallState::UnderWay(..)) && !self.made.is_over() {
            // Dropping a call may block until its memory is free.
            let given_up = std::mem::replace(state, CallState::Cancelled);
            Python::attach(|py| py.detach(|| drop(given_up)));
        }
    }
}

/// The exception that `concurrent.futures` raises for cancelled calls.
fn cancelled(py: Python<'_>) -> PyErr {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    match CLASS.import(py, "concurrent.futures", "CancelledError") {
        Ok(class) => PyErr::from_type(class.clone(), ("the call was cancelled",)),
        Err(broken) => broken,
    }
}

/// `sealane._asyncio.outcome(call)`, as an iterator for `await`.
fn awaited<'py>(call: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    static OUTCOME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let coroutine = OUTCOME.import(call.py(), "sealane._asyncio", "outcome")?.call1((call,))?;
    coroutine.call_method0("__await__")
}

/// A send, push or publication in progress, as ``Task.send_async``, ``Task.push_async`` and ``Task.publish_async`` give
/// it: ``await`` it, or call ``result``.
///
/// If it is dropped, it continues.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Sending(Call<Box<dyn UnderWay<Value = ()>>>);

impl Sending {
    pub(crate) fn new(waiter: Waiter, call: impl UnderWay + 'static) -> Self {
        Self(Call::new(waiter, Box::new(Valueless(call))))
    }
}

#[pymethods]
impl Sending {
    /// Blocks until the consumer has the tensor, the queue has taken it, or all peers can see what was published. ``timeout``
    /// is in seconds; after it, ``TimeoutError`` is raised and the call continues.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.0.wait(py, crate::wait::timeout(timeout).or_raise(py)?)?;
        self.0.verdict(py)
    }

    /// True if the call has ended, well or not.
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

/// Makes the Python object from a call's value.
type HandOut = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A call, and the function that makes its Python object.
struct Incoming<C, F> {
    call: C,
    make: Option<F>,
}

impl<C, F> Incoming<C, F>
where
    C: UnderWay<Value: 'static>,
    F: FnOnce(Python<'_>, C::Value) -> PyResult<Py<PyAny>> + Send + Unpin + 'static,
{
    fn hand_out(&mut self, outcome: Result<C::Value, Error>) -> Result<HandOut, Error> {
        let make = self.make.take().expect("a call ends once");
        outcome.map(|value| Box::new(move |py: Python<'_>| make(py, value)) as HandOut)
    }
}

impl<C, F> UnderWay for Incoming<C, F>
where
    C: UnderWay<Value: 'static>,
    F: FnOnce(Python<'_>, C::Value) -> PyResult<Py<PyAny>> + Send + Unpin + 'static,
{
    type Value = HandOut;

    fn look(&mut self) -> Option<Result<HandOut, Error>> {
        let outcome = self.call.look()?;
        Some(self.hand_out(outcome))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<HandOut, Error>> {
        let outcome = std::task::ready!(self.call.poll(context));
        Poll::Ready(self.hand_out(outcome))
    }
}

/// A recv or pull in progress, as ``Task.recv_async``, ``Task.pull_async`` and ``Plan.pull_async`` give it: ``await`` it,
/// or call ``result``.
///
/// If it is dropped or its ``await`` is cancelled, it is given up: a tensor that was sent stays with its producer, unless it has
/// come already.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Receiving {
    call: Call<Box<dyn UnderWay<Value = HandOut>>>,
    /// The object that was handed out.
    value: PyOnceLock<Py<PyAny>>,
    /// True if it could not be handed out.
    lost: AtomicBool,
}

impl Receiving {
    /// A call whose value `make` turns into a Python object, once.
    pub(crate) fn new<C, F>(waiter: Waiter, call: C, make: F) -> Self
    where
        C: UnderWay<Value: 'static> + 'static,
        F: FnOnce(Python<'_>, C::Value) -> PyResult<Py<PyAny>> + Send + Unpin + 'static,
    {
        let incoming = Incoming { call, make: Some(make) };
        Self { call: Call::new(waiter, Box::new(incoming)), value: PyOnceLock::new(), lost: AtomicBool::new(false) }
    }

    /// Starts calls that do nothing before they are polled.
    pub(crate) fn begin(&self, py: Python<'_>) {
        py.detach(|| self.call.look());
    }
}

#[pymethods]
impl Receiving {
    /// Blocks until the tensor is there, and returns it; for a plan, a dict. ``timeout`` is in seconds; after it,
    /// ``TimeoutError`` is raised and the call continues.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = crate::wait::timeout(timeout).or_raise(py)?;
        if self.value.get(py).is_none() {
            self.call.wait(py, timeout)?;
            self.call.verdict(py)?;
        }
        loop {
            if let Some(value) = self.value.get(py) {
                return Ok(value.clone_ref(py));
            }
            if self.lost.load(Ordering::Acquire) {
                return Err(invalid(py, "the result could not be converted when it was first requested"));
            }
            match self.call.take(py).map(|hand_out| hand_out(py)) {
                Some(Ok(value)) => drop(self.value.set(py, value)),
                Some(Err(error)) => {
                    self.lost.store(true, Ordering::Release);
                    return Err(error);
                }
                // Another thread is about to hand it out.
                None => py.detach(std::thread::yield_now),
            }
        }
    }

    /// True if the call has ended, well or not.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.call.made.check("this call's task").or_raise(py)?;
        Ok(py.detach(|| self.call.look()))
    }

    /// Gives the call up; false if it has ended already.
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
