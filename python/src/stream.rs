//! Streams of bytes, as calls that can be waited for or awaited; `sealane.streams` makes files and asyncio streams of them.

use std::{
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use pyo3::{prelude::*, pybacked::PyBackedBytes, types::PyBytes};
use sealane::{Error, StreamOptions, Waiter};

use crate::{
    call::{Receiving, Sending},
    errors::{OrRaise, invalid},
    fork::Generation,
    task::Task,
    wait::{UnderWay, blocking},
};

/// Most bytes of one read.
const READ_BYTES_MAX: usize = 64 << 10;

/// A call that consists only of its poll function.
struct Polled<F>(F);

impl<V: Send, F> UnderWay for Polled<F>
where
    F: FnMut(&mut Context<'_>) -> Poll<Result<V, Error>> + Send + Unpin,
{
    type Value = V;

    fn look(&mut self) -> Option<Result<V, Error>> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<V, Error>> {
        (self.0)(context)
    }
}

/// A value whose drop takes a lock that other threads may hold for a while: it is dropped without the GIL. But not in a child,
/// which must not talk to the shards of its parent.
struct Apart<T: Send> {
    inner: Option<T>,
    made: Generation,
}

impl<T: Send> Apart<T> {
    fn new(inner: T) -> Self {
        Self { inner: Some(inner), made: Generation::now() }
    }

    fn get(&self) -> &T {
        self.inner.as_ref().expect("it is taken when it is dropped")
    }

    fn get_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("it is taken when it is dropped")
    }
}

impl<T: Send> Drop for Apart<T> {
    fn drop(&mut self) {
        let inner = self.inner.take();
        if self.made.is_over() {
            std::mem::forget(inner);
        } else {
            Python::attach(|py| py.detach(|| drop(inner)));
        }
    }
}

/// A value that is given up when it is closed or dropped.
struct Open<T: Send> {
    inner: Mutex<Option<Arc<Apart<T>>>>,
    waiter: Waiter,
    made: Generation,
}

impl<T: Send + Sync> Open<T> {
    fn new(inner: T, waiter: Waiter) -> Self {
        Self { inner: Mutex::new(Some(Arc::new(Apart::new(inner)))), waiter, made: Generation::now() }
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<Apart<T>>> {
        self.made.check("the task of this stream").or_raise(py)?;
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        inner.ok_or_else(|| invalid(py, "it was closed"))
    }

    fn close(&self) {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(inner);
    }
}

/// One end of a stream, whose calls are waited for or awaited. Made by ``sealane.streams``.
#[pyclass(frozen, module = "sealane._sealane")]
pub(crate) struct Stream {
    peer: Box<str>,
    open: Open<sealane::Stream>,
}

impl Stream {
    fn new(waiter: Waiter, stream: sealane::Stream) -> Self {
        Self { peer: stream.peer().into(), open: Open::new(stream, waiter) }
    }

    fn sending(
        &self,
        py: Python<'_>,
        poll: impl FnMut(&sealane::Stream, &mut Context<'_>) -> Poll<Result<(), Error>> + Send + Unpin + 'static,
    ) -> PyResult<Sending> {
        let (stream, mut poll) = (self.open.get(py)?, poll);
        Ok(Sending::new(self.open.waiter.clone(), Polled(move |context: &mut Context<'_>| poll(stream.get(), context))))
    }
}

#[pymethods]
impl Stream {
    /// The task at the other end.
    #[getter]
    fn peer(&self) -> &str {
        &self.peer
    }

    /// Bytes that came, ``most`` at most; none when the other end has finished. One that is given up has read nothing.
    fn read(&self, py: Python<'_>, most: usize) -> PyResult<Receiving> {
        let stream = self.open.get(py)?;
        let mut into = vec![0; most.min(READ_BYTES_MAX)];
        let poll = move |context: &mut Context<'_>| {
            let count = std::task::ready!(stream.get().poll_read(&mut into, context))?;
            into.truncate(count);
            Poll::Ready(Ok(std::mem::take(&mut into)))
        };
        let bytes = |py: Python<'_>, came: Vec<u8>| Ok(PyBytes::new(py, &came).into_any().unbind());
        Ok(Receiving::new(self.open.waiter.clone(), Polled(poll), bytes))
    }

    /// Ends when all of ``data`` has been taken over. Goes on as long as it is waited for.
    fn write(&self, py: Python<'_>, data: PyBackedBytes) -> PyResult<Sending> {
        let mut at = 0;
        self.sending(py, move |stream, context| {
            while at < data.len() {
                at += std::task::ready!(stream.poll_write(&data[at..], context))?;
            }
            Poll::Ready(Ok(()))
        })
    }

    /// Ends when what was written has been pushed.
    fn flush(&self, py: Python<'_>) -> PyResult<Sending> {
        self.sending(py, sealane::Stream::poll_flush)
    }

    /// Says that nothing more is written; ends when the other process has all of it.
    fn finish(&self, py: Python<'_>) -> PyResult<Sending> {
        self.sending(py, sealane::Stream::poll_finish)
    }

    /// Ends it at both ends at once.
    fn reset(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let stream = self.open.get(py)?;
        py.detach(|| stream.get().reset(reason));
        Ok(())
    }

    /// Lets go of it; the other end is told so, unless both have finished. May be called twice.
    fn close(&self) {
        self.open.close();
    }
}

/// Accepts streams that are dialed by its name. Made by ``sealane.streams``.
#[pyclass(frozen, module = "sealane._sealane")]
pub(crate) struct StreamListener(Open<sealane::StreamListener>);

#[pymethods]
impl StreamListener {
    /// The next stream.
    fn accept(&self, py: Python<'_>) -> PyResult<Receiving> {
        let (listener, waiter) = (self.0.get(py)?, self.0.waiter.clone());
        let poll = move |context: &mut Context<'_>| listener.get().poll_accept(context);
        Ok(Receiving::new(self.0.waiter.clone(), Polled(poll), move |py, stream| made(py, waiter, stream)))
    }

    /// Accepts no more, also for accepts under way; streams that wait are reset. May be called twice.
    fn close(&self, py: Python<'_>) {
        if let Ok(listener) = self.0.get(py) {
            py.detach(|| listener.get().close());
        }
        self.0.close();
    }
}

fn made(py: Python<'_>, waiter: Waiter, stream: sealane::Stream) -> PyResult<Py<PyAny>> {
    Ok(Py::new(py, Stream::new(waiter, stream))?.into_any())
}

fn options(window_bytes: Option<u64>) -> StreamOptions {
    let default = StreamOptions::default();
    StreamOptions { window_bytes: window_bytes.unwrap_or(default.window_bytes), ..default }
}

/// Dials the listener of that name at the task ``to``.
#[pyfunction]
#[pyo3(signature = (task, to, name, window_bytes=None))]
pub(crate) fn dial(
    py: Python<'_>,
    task: &Bound<'_, Task>,
    to: &str,
    name: &str,
    window_bytes: Option<u64>,
) -> PyResult<Receiving> {
    let (task, options) = (task.get(), options(window_bytes));
    let mut dialing = blocking(py, || Ok(Apart::new(task.streams()?.connect(to, name, options))))?;
    let poll = move |context: &mut Context<'_>| Future::poll(std::pin::Pin::new(dialing.get_mut()), context);
    let waiter = task.waiter();
    Ok(Receiving::new(task.waiter(), Polled(poll), move |py, stream| made(py, waiter, stream)))
}

/// Listens for streams of that name.
#[pyfunction]
#[pyo3(signature = (task, name, window_bytes=None))]
pub(crate) fn listen(
    py: Python<'_>,
    task: &Bound<'_, Task>,
    name: &str,
    window_bytes: Option<u64>,
) -> PyResult<StreamListener> {
    let task = task.get();
    let listener = blocking(py, || task.streams()?.listen(name, options(window_bytes)))?;
    Ok(StreamListener(Open::new(listener, task.waiter())))
}
