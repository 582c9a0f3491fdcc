//! Queues of a task, and pushes into those of others.

use pyo3::prelude::*;
use sealane::{AcceptOptions, SendOptions};

use super::Task;
use crate::{
    acceptor::Acceptor,
    batch::arrays_of,
    call::Sending,
    errors::OrRaise,
    input::Outgoing,
    wait::{blocking, timeout},
};

#[pymethods]
impl Task {
    /// ``push`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the push continues.
    ///
    /// Pushes a tensor into a queue of the task ``to``, which accepts from it with an ``acceptor``. Waits until the queue has
    /// taken it, which needs an acceptor and room.
    ///
    /// Pushes into one queue stay in order. ``array`` is as for ``send``, and is copied when the call is made, unless it came
    /// from ``empty``. ``timeout`` is in seconds, by default the daemon's ``request_timeout``; a tensor that was not taken in
    /// time may still arrive.
    #[pyo3(signature = (to, queue, array, *, timeout=None))]
    fn push_async(
        &self,
        py: Python<'_>,
        to: &str,
        queue: &str,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let (tensor, options) = (Outgoing::new(array)?, SendOptions { timeout: self::timeout(timeout).or_raise(py)? });
        self.sending(py, |connected| {
            connected
                .begin([to, queue], tensor, move |task, [to, queue], tensor| task.push_with(to, queue, tensor, options))
        })
    }

    /// ``push_many`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the pushes continue.
    ///
    /// ``push`` for many tensors, in order: any iterable of them, or the rows of an array. Much cheaper than one by one. Waits
    /// until the queue has taken all of them.
    ///
    /// If one fails, its error is raised and the others continue. Tensors that would bring a task's calls in flight on one shard of the
    /// daemon above 16,384 are refused as a whole with ``ResourceExhausted``.
    #[pyo3(signature = (to, queue, arrays, *, timeout=None))]
    fn push_many_async(
        &self,
        py: Python<'_>,
        to: &str,
        queue: &str,
        arrays: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        let outgoing = arrays_of(arrays)?;
        self.sending(py, |connected| {
            connected.begin_all(vec![to, queue], outgoing, move |task, names, tensors| {
                task.push_all_with(names[0], names[1], tensors, options)
            })
        })
    }

    /// Opens a queue of this task, into which peers push: iterate over it, or call its ``accept``.
    ///
    /// Pushes wait while ``tensors_max`` tensors are in the queue, or ``bytes_max`` bytes (256 MiB; at most half of the daemon's
    /// ``area_bytes``). A queue has one acceptor at a time: every accept of another raises ``InvalidArgument``.
    #[pyo3(signature = (queue, *, tensors_max=4096, bytes_max=268_435_456))]
    pub(super) fn acceptor(
        slf: &Bound<'_, Self>,
        queue: &str,
        tensors_max: usize,
        bytes_max: usize,
    ) -> PyResult<Acceptor> {
        let (py, task) = (slf.py(), slf.get());
        let options = AcceptOptions { tensors_max, bytes_max };
        let open = || task.connected().map(|connected| connected.task.acceptor(queue, options));
        Ok(Acceptor::new(slf, queue, blocking(py, open)?))
    }
}
