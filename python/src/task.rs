//! `sealane.Task`: the identity under which Python code sends and receives. Every call crosses into Rust once, and releases the GIL
//! while it copies or waits.

mod connected;
mod published;
mod queues;
mod tables;

use std::{
    path::PathBuf,
    sync::{PoisonError, RwLock},
};

use pyo3::{prelude::*, types::PyMapping};
use sealane::{DType, Engine, Error, RecvOptions, SendOptions, Streams, TensorMeta, Waiter};

use crate::{
    batch::{Wanted, names_of, tensors_of},
    call::{Receiving, Sending},
    connect::authentication,
    device::{Landing, OnDevice},
    errors::{OrRaise, invalid},
    fork::Generation,
    input::{Destination, Outgoing, received},
    numpy::Numpy,
    tensor::Tensor,
    wait::{All, UnderWay, blocking, timeout},
};

use self::connected::Connected;

/// A task of this process, under whose name it sends and receives. Returned by ``sealane.attach`` and ``sealane.embedded``.
///
/// Usable from any thread. Use it as a context manager, or call ``close``; dropping it closes it too. Each call has a form that
/// waits, which ``_waiting.py`` makes of the one that does not.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Task {
    name: Box<str>,
    connected: RwLock<Option<Connected>>,
    waiter: Waiter,
    made: Generation,
}

impl Task {
    pub(crate) fn new(task: sealane::Task, engine: Option<Engine>, waiter: Waiter) -> Self {
        let name = task.name().into();
        let connected = RwLock::new(Some(Connected::new(task, engine)));
        Self { name, connected, waiter, made: Generation::now() }
    }

    /// Without the GIL: closing may take a while.
    fn connected(&self) -> Result<Connected, Error> {
        self.made.check(&self.name)?;
        let connected = self.connected.read().unwrap_or_else(PoisonError::into_inner).clone();
        connected.ok_or_else(|| Error::invalid(format!("the task {} was closed", self.name)))
    }

    /// Makes a call that returns no value to Python.
    fn sending<C: UnderWay + 'static>(
        &self,
        py: Python<'_>,
        begin: impl FnOnce(Connected) -> Result<C, Error> + Send,
    ) -> PyResult<Sending> {
        let call = blocking(py, || begin(self.connected()?))?;
        Ok(Sending::new(self.waiter(), call))
    }

    /// Makes a call whose value `make` turns into a Python object.
    fn receiving<C, F>(
        &self,
        py: Python<'_>,
        begin: impl FnOnce(Connected) -> Result<C, Error> + Send,
        make: F,
    ) -> PyResult<Receiving>
    where
        C: UnderWay<Value: 'static> + 'static,
        F: FnOnce(Python<'_>, C::Value) -> PyResult<Py<PyAny>> + Send + Unpin + 'static,
    {
        let call = blocking(py, || begin(self.connected()?))?;
        Ok(Receiving::new(self.waiter(), call, make))
    }

    /// The task's streams. Without the GIL.
    ///
    /// # Errors
    /// InvalidArgument if it was closed, or in a forked child.
    pub(crate) fn streams(&self) -> Result<Streams, Error> {
        let connected = self.connected()?;
        Ok(connected.streams.get_or_init(|| Streams::of(&connected.task)).clone())
    }

    pub(crate) fn waiter(&self) -> Waiter {
        self.waiter.clone()
    }

    /// # Errors
    /// InvalidArgument if it was closed, or in a forked child.
    fn task(&self) -> Result<sealane::Task, Error> {
        Ok(self.connected()?.task)
    }

    /// The task; warns if it is used for device number `for_device` and its arena is not pinned. Without the GIL.
    ///
    /// # Errors
    /// As [`task`](Self::task).
    pub(crate) fn pinned_task(&self, for_device: Option<usize>) -> Result<sealane::Task, Error> {
        let connected = self.connected()?;
        if let Some(device) = for_device {
            connected.check_pinned(device);
        }
        Ok(connected.task)
    }

    /// Options of a recv, and its place on a device.
    fn options(
        &self,
        py: Python<'_>,
        destination: Option<&Destination>,
        timeout: Option<f64>,
        fail_if_gone: bool,
    ) -> PyResult<(RecvOptions, Option<OnDevice>)> {
        let timeout = self::timeout(timeout).or_raise(py)?;
        let Some(destination) = destination else {
            return Ok((RecvOptions { timeout, destination: None, fail_if_gone }, None));
        };
        let memory = destination.memory(py, || self.task()).or_raise(py)?;
        Ok((RecvOptions { timeout, destination: Some(memory), fail_if_gone }, destination.on_device().cloned()))
    }

    fn take(&self) -> Option<Connected> {
        self.connected.write().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let Some(connected) = self.take() else { return };
        if self.made.is_over() && connected.engine.is_some() {
            // A child has no threads to stop, and must not wait for those of its parent.
            std::mem::forget(connected);
        } else {
            Python::attach(|py| py.detach(|| connected.close()));
        }
    }
}

#[pymethods]
impl Task {
    /// The task's name, as in the endpoint map.
    #[getter]
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// ``recv`` that does not wait: ``await`` the returned object, or call its ``result``.
    ///
    /// Requests a tensor from ``peer``, which may be sent before or after, and waits for it. An array of more than 512 bytes is in memory
    /// shared with the daemon, which a forked child shares too: copy the array before the fork if the child reads or writes it.
    ///
    /// ``timeout`` is in seconds, by default the daemon's ``request_timeout``; ``math.inf`` for no limit. With ``out``
    /// the tensor arrives in that array, which must have its type and shape, and which is returned, without a copy if it
    /// came from ``empty``. If the tensor has another type or shape, ``InvalidArgument`` is raised, and the tensor stays for the next
    /// ``recv``. Do not touch the array until the call has ended. With ``fail_if_gone=True``, ``Left`` is raised as soon as the
    /// peer's process is known to have ended, also if it had before; a peer that was never there is waited for.
    #[pyo3(signature = (peer, step, key, *, out=None, timeout=None, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn recv_async(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        key: &str,
        out: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let destination = out.map(Destination::new).transpose()?;
        let (options, place) = self.options(py, destination.as_ref(), timeout, fail_if_gone)?;
        let ask = |connected: Connected| {
            let receiving = connected.task.recv_with(peer, step, key, options);
            Ok(Landing::new(receiving, connected.landing(place)))
        };
        self.receiving(py, ask, move |py, tensor| received(py, tensor, destination.as_ref()).map(Bound::unbind))
    }

    /// ``recv_all`` that does not wait: ``await`` the returned object, or call its ``result``. A parameter server that requests
    /// from all workers before it waits for the first overlaps their transfers.
    ///
    /// ``recv`` for many tensors, as a dict in the order of the keys: asked for together, which is much cheaper than one by
    /// one. Keys that would bring a task's calls in flight on one shard of the daemon above 16,384 are refused as a whole with
    /// ``ResourceExhausted``.
    ///
    /// ``out`` may hold arrays for some keys. If one tensor fails, its error is raised and the others are lost; with
    /// ``partial=True`` the dict holds the error in the tensor's place.
    #[pyo3(signature = (peer, step, keys, *, out=None, timeout=None, partial=false, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn recv_all_async(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        keys: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyMapping>>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let wanted = Wanted::new(keys, out, partial)?;
        let options = (self::timeout(timeout).or_raise(py)?, fail_if_gone);
        let (asked, places) = wanted.asked(py, options, || self.task())?;
        let ask = || {
            let connected = self.connected()?;
            let calls = connected.task.recv_all(peer, step, asked);
            let landing = |(call, place)| Landing::new(call, connected.landing(place));
            Ok(All::new(calls.into_iter().zip(places).map(landing).collect(), partial))
        };
        let calls = blocking(py, ask)?;
        let make = move |py: Python<'_>, outcomes| Ok(wanted.arrays(py, outcomes)?.unbind().into_any());
        Ok(Receiving::new(self.waiter(), calls, make))
    }

    /// ``send`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the send continues.
    /// Do not touch arrays from ``empty`` until it has ended; others were copied.
    ///
    /// Sends a tensor to ``peer``, which may request it before or after, and waits until it has it.
    ///
    /// ``timeout`` is in seconds; after it, ``DeadlineExceeded`` is raised. If that says "delivery unknown", the tensor was in
    /// transit and may arrive; do not touch an array from ``empty`` then, because its memory is the daemon's until its consumer
    /// has it; use another. ``tensor`` is a numpy array, any object with
    /// ``__dlpack__`` or the buffer protocol, or a list of strings. Arrays from ``empty`` are sent in place; others are
    /// copied when the call is made, including non-contiguous ones.
    #[pyo3(signature = (peer, step, key, tensor, *, timeout=None))]
    fn send_async(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        key: &str,
        tensor: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let (tensor, options) = (Outgoing::new(tensor)?, SendOptions { timeout: self::timeout(timeout).or_raise(py)? });
        self.sending(py, |connected| {
            connected.begin([peer, key], tensor, move |task, [peer, key], tensor| {
                task.send_with(peer, step, key, tensor, options)
            })
        })
    }

    /// ``send_all`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the sends continue.
    /// Do not touch arrays from ``empty`` until it has ended; others were copied.
    ///
    /// ``send`` for many tensors: a mapping from keys to tensors. Waits until ``peer`` has all of them.
    ///
    /// If one fails, its error is raised and the others continue. A mapping that would bring a task's sends, recvs and pushes in flight on
    /// one shard of the daemon above 16,384 is refused as a whole with ``ResourceExhausted``.
    #[pyo3(signature = (peer, step, tensors, *, timeout=None))]
    fn send_all_async(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        tensors: &Bound<'_, PyMapping>,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        let (keys, outgoing) = tensors_of(tensors)?;
        let (keys, peer) = (names_of(&keys)?, Box::<str>::from(peer));
        self.sending(py, |connected| {
            connected.begin_all(keys, outgoing, move |task, keys, tensors| {
                All::new(task.send_all_with(&peer, step, keys.iter().copied().zip(tensors), options), false)
            })
        })
    }

    /// Has the CUDA driver pin the memory of ``empty`` for all devices, by the context of ``device``, which the first tensor of a
    /// device does too: copies between it and devices are then asynchronous and at full speed. Experimental. Raises ``Unavailable`` or ``ResourceExhausted`` with
    /// the driver's reason if it does not; copies work all the same, but slowly.
    #[pyo3(signature = (device=0))]
    fn pin(&self, py: Python<'_>, device: usize) -> PyResult<()> {
        blocking(py, || self.task()?.pin(device))
    }

    /// An array whose memory is shared with the daemon, so that it is sent and received into without a copy. Its contents
    /// are undefined. A forked child shares the memory with its parent: copy the array before the fork if both use it.
    ///
    /// ``dtype`` is anything that numpy accepts, or the name of a type that numpy lacks; then a ``Tensor`` is returned.
    /// With an embedded engine the memory is ordinary.
    #[pyo3(signature = (shape, dtype=None))]
    fn empty<'py>(
        &self,
        py: Python<'py>,
        shape: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = Numpy::get(py)?;
        let dtype = dtype.map_or(Ok(DType::F32), |dtype| numpy.dtype_named(dtype))?;
        let shape: Vec<u64> = match shape.extract() {
            Ok(length) => vec![length],
            Err(_) => shape.extract()?,
        };
        let meta = TensorMeta::new(dtype, &shape).or_raise(py)?;
        let count = shape.iter().product();
        let bytes = dtype.bytes_of(count).and_then(|bytes| usize::try_from(bytes).ok());
        let bytes = bytes.ok_or_else(|| invalid(py, "the array does not fit into memory"))?;
        let tensor = py.detach(|| sealane::Tensor::new(meta, self.connected()?.task.alloc(bytes)?));
        let tensor = Bound::new(py, Tensor::new(tensor.or_raise(py)?))?;
        match numpy.descriptor(dtype) {
            Some(descriptor) => numpy.array_over(&tensor, descriptor.bind(py)),
            None => Ok(tensor.into_any()),
        }
    }

    /// Tasks with which this one has a direct lane now.
    fn direct_peers(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        blocking(py, || Ok(self.connected()?.task.direct_peers()))
    }

    /// Ends a step, here and at its peers: calls that wait for one of its tensors raise ``Aborted`` with this reason, and so do
    /// later ones, until ``cleanup``.
    fn abort(&self, py: Python<'_>, step: i64, reason: &str) -> PyResult<()> {
        blocking(py, || self.connected()?.task.abort(step, reason))
    }

    /// Frees everything that is left of a step: waiting tensors, requests, and the record of an abort. A small tensor of it that has been
    /// sent already goes to a recv that the other side makes before it hears of this.
    fn cleanup(&self, py: Python<'_>, step: i64) -> PyResult<()> {
        blocking(py, || self.connected()?.task.cleanup(step))
    }

    /// Replaces the secret or certificates of an embedded engine by those in these files, as for ``embedded``. New links use
    /// them; existing links continue.
    #[pyo3(signature = (*, secret_file=None, tls=None))]
    fn set_credentials(
        &self,
        py: Python<'_>,
        secret_file: Option<PathBuf>,
        tls: Option<(PathBuf, PathBuf, PathBuf)>,
    ) -> PyResult<()> {
        py.detach(|| match self.connected()?.engine {
            Some(engine) => engine.set_authentication(authentication(secret_file, tls)?),
            None => Err(Error::invalid("the task is attached to a daemon, which reloads its own files")),
        })
        .or_raise(py)
    }

    /// Detaches; stops an embedded engine. Calls in progress end with ``Unavailable``, and the daemon stops using their arrays,
    /// unless that takes longer than a second. Received arrays stay valid. May be called twice.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.made.check(&self.name).or_raise(py)?;
        py.detach(|| {
            if let Some(connected) = self.take() {
                connected.close();
            }
        });
        Ok(())
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
        format!("<sealane.Task {}>", self.name)
    }
}
