//! `sealane.Acceptor`: the receiving end of a queue in Python. Usable from any thread, several at a time; bounded by the queue's
//! options.

use std::{
    sync::{PoisonError, RwLock},
    time::{Duration, Instant},
};

use pyo3::{prelude::*, sync::PyOnceLock, types::PyList};
use sealane::{Accepted, Error, Waiter};

use crate::{
    errors::{OrRaise, invalid, late},
    fork::Generation,
    rows::{PushedRows, WaitingRows, accepted_rows},
    task::Task,
    tensor::handed_out,
    wait::{SIGNALS_EVERY, timeout},
};

/// Accepts what peers push into a queue of this process's task. Returned by ``Task.acceptor``.
///
/// For any thread; each tensor is handed out once. Iterate over it until it is closed, or call ``accept``. Use it as a
/// context manager, or call ``close``; when it is dropped it is closed, too.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Acceptor {
    /// Held, since dropping it would close it before its acceptors.
    task: Py<Task>,
    queue: Box<str>,
    /// `None` once it is closed. A waiting thread holds the read lock, for at most [`SIGNALS_EVERY`].
    open: RwLock<Option<sealane::Acceptor>>,
    waiter: Waiter,
    made: Generation,
    /// For acceptors of table rows.
    rows: Option<WaitingRows>,
}

/// One thing that is handed out.
enum Each {
    Tensor(Accepted),
    Rows(PushedRows),
}

enum Taken {
    Some(Vec<Each>),
    Nothing,
    Closed,
}

impl Acceptor {
    pub(crate) fn new(task: &Bound<'_, Task>, queue: &str, acceptor: sealane::Acceptor) -> Self {
        let (waiter, made) = (task.get().waiter(), Generation::now());
        let open = RwLock::new(Some(acceptor));
        Self { task: task.clone().unbind(), queue: queue.into(), open, waiter, made, rows: None }
    }

    /// Turns it into an acceptor of table rows.
    pub(crate) fn of_rows(mut self) -> Self {
        self.rows = Some(WaitingRows::default());
        self
    }

    /// The Python object for what was pushed.
    ///
    /// # Errors
    /// As for [`accepted`] and [`accepted_rows`].
    fn made<'py>(py: Python<'py>, each: Each) -> PyResult<Bound<'py, PyAny>> {
        match each {
            Each::Tensor(tensor) => accepted(py, tensor),
            Each::Rows(rows) => accepted_rows(py, rows),
        }
    }

    fn only<'py>(py: Python<'py>, mut taken: Vec<Each>) -> PyResult<Bound<'py, PyAny>> {
        Self::made(py, taken.pop().expect("one was taken"))
    }

    /// Waits for tensors, or rows of tables, and takes at most `most`.
    ///
    /// # Errors
    /// Those of the queue, and what a signal handler raises: then nothing was taken.
    fn take(&self, py: Python<'_>, most: usize, timeout: Option<Duration>, unless_gone: &[String]) -> PyResult<Taken> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        // A time that the clock cannot hold means no limit.
        let until = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let soon = left.unwrap_or(SIGNALS_EVERY);
            let taken = py.detach(|| self.take_soon(most, soon, unless_gone)).or_raise(py)?;
            if !matches!(taken, Taken::Nothing) || left.is_some_and(|left| left.is_zero()) {
                return Ok(taken);
            }
            py.check_signals()?;
        }
    }

    /// Waits, but hardly longer than signals and a thread that closes the queue may wait. Without the GIL.
    fn take_soon(&self, most: usize, left: Duration, unless_gone: &[String]) -> Result<Taken, Error> {
        // The rest of a push to many tables was already taken from the queue, so it is handed out even after the end.
        let waiting = self.ready(Vec::new(), most)?;
        if !waiting.is_empty() {
            return Ok(Taken::Some(waiting));
        }
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let Some(acceptor) = &*open else { return Ok(Taken::Closed) };
        let mut taken = Vec::new();
        if most > 0 && acceptor.try_accept(most, &mut taken)? == 0 {
            let accepting = acceptor.accept_many(most).fail_if_gone(unless_gone);
            let accepted = self.waiter.block_on(accepting, left.min(SIGNALS_EVERY));
            taken = accepted.transpose()?.unwrap_or_default();
        }
        match taken.is_empty() && most > 0 {
            true => Ok(Taken::Nothing),
            false => self.ready(taken, most).map(Taken::Some),
        }
    }

    /// What is handed out of what was taken now and before: at most `most`, and something if anything was taken now.
    ///
    /// # Errors
    /// As [`WaitingRows::take`].
    fn ready(&self, taken: Vec<Accepted>, most: usize) -> Result<Vec<Each>, Error> {
        match &self.rows {
            Some(rows) => Ok(rows.take(taken, most)?.into_iter().map(Each::Rows).collect()),
            None => Ok(taken.into_iter().map(Each::Tensor).collect()),
        }
    }

    /// The result of accepting one or more.
    ///
    /// # Errors
    /// As for [`take`](Self::take), DeadlineExceeded, InvalidArgument if it was closed.
    fn wait(
        &self,
        py: Python<'_>,
        most: usize,
        timeout: Option<f64>,
        unless_gone: Option<Vec<String>>,
    ) -> PyResult<Vec<Each>> {
        let timeout = self::timeout(timeout).or_raise(py)?;
        match self.take(py, most, timeout, &unless_gone.unwrap_or_default())? {
            Taken::Some(taken) => Ok(taken),
            Taken::Nothing => Err(late(py, format!("nothing was pushed into the queue '{}' in time", self.queue))),
            Taken::Closed => Err(invalid(py, "the acceptor was closed")),
        }
    }

    /// Closes it once nobody waits, which takes no longer than [`SIGNALS_EVERY`]. Without the GIL.
    fn shut(&self) -> Option<sealane::Acceptor> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

#[pymethods]
impl Acceptor {
    /// The queue's name.
    #[getter]
    fn queue(&self) -> &str {
        &self.queue
    }

    /// The next tensor, as an ``Accepted``: the name of the task that pushed it, and the array. Waits for it.
    ///
    /// ``timeout`` is in seconds; when it is over, ``DeadlineExceeded`` is raised. Unless given there is no limit.
    ///
    /// With ``fail_if_gone``, names of tasks, ``Left`` is raised when one of them has left and nothing is there to accept, also if it
    /// had left before; one that was never there is waited for.
    #[pyo3(signature = (timeout=None, *, fail_if_gone=None))]
    fn accept<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        fail_if_gone: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::only(py, self.wait(py, 1, timeout, fail_if_gone)?)
    }

    /// The next tensors, ``most`` at most, as a list: all that are available, or the first to arrive. Much cheaper than one by one.
    ///
    /// ``timeout`` and ``fail_if_gone`` are as in ``accept``.
    #[pyo3(signature = (most, timeout=None, *, fail_if_gone=None))]
    fn accept_many<'py>(
        &self,
        py: Python<'py>,
        most: usize,
        timeout: Option<f64>,
        fail_if_gone: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let taken = self.wait(py, most, timeout, fail_if_gone)?;
        let taken = taken.into_iter().map(|each| Self::made(py, each)).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, taken)
    }

    /// Closes the queue; pushes wait for the next acceptor, which first gets what was taken and not accepted, but
    /// for tables that came by one push with one that was. Threads that wait for a tensor are told; an iteration ends. May be called twice.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        py.detach(|| drop(self.shut()));
        Ok(())
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.take(py, 1, None, &[])? {
            Taken::Some(taken) => Self::only(py, taken).map(Some),
            Taken::Nothing | Taken::Closed => Ok(None),
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        format!("<sealane.Acceptor of {}>", self.queue)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if self.made.is_over() {
            // A child must not talk to the shards of its parent.
            std::mem::forget(self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        } else {
            Python::attach(|py| py.detach(|| drop(self.shut())));
        }
    }
}

/// A ``sealane.Accepted``.
///
/// # Errors
/// As [`handed_out`].
fn accepted(py: Python<'_>, Accepted { from, tensor }: Accepted) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CLASS.import(py, "sealane._accepted", "Accepted")?.call1((&*from, handed_out(py, tensor)?))
}
