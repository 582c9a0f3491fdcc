//! `sealane.Task`: the identity under which Python code sends and receives. Every call crosses into Rust once, and releases the
//! GIL while it copies or waits.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pyo3::{
    exceptions::PyRuntimeWarning,
    prelude::*,
    types::{PyDict, PyMapping, PyString, PyTuple},
};
use sealane::{
    AcceptOptions, Code, DType, Engine, Error, Keys, PullOptions, PullingMany, RecvOptions, SendOptions, SliceVersions,
    Streams, TableOptions, TensorMeta, Waiter, cuda::Staged,
};

use crate::{
    acceptor::Acceptor,
    batch::{Wanted, arrays_of, key_set, keys_of, tensors_of},
    call::{Receiving, Sending},
    connect::authentication,
    device::{Landing, OnDevice},
    errors::{OrRaise, invalid},
    fork::Generation,
    input::{Destination, Outgoing, received},
    numpy::Numpy,
    plan::Plan,
    pull::{Single, by_key, pulled},
    rows::{OutgoingRows, ShardedTable, Table, WantedRows},
    slicing::Slicing,
    tensor::Tensor,
    wait::{All, Begun, Settled, Valueless, outcome, timeout},
};

/// A task of this process, under whose name it sends and receives. Returned by ``sealane.attach`` and ``sealane.embedded``.
///
/// Usable from any thread. Use it as a context manager, or call ``close``; dropping it closes it too.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Task {
    name: Box<str>,
    connected: RwLock<Option<Connected>>,
    waiter: Waiter,
    made: Generation,
}

/// What is given up when a task is closed.
#[derive(Clone)]
struct Connected {
    task: sealane::Task,
    /// Once there are any.
    streams: Arc<OnceLock<Streams>>,
    /// Of a task whose engine is in this process.
    engine: Option<Engine>,
    /// That the arena is not pinned.
    warned: Arc<AtomicBool>,
}

impl Connected {
    /// A tensor in memory from which it can be sent. Without the interpreter's lock.
    fn place(&self, tensor: Outgoing) -> Result<sealane::Tensor, Error> {
        // The client copies what does not lie in its arena; an engine in this process would send Python's memory in place.
        tensor.place(&self.task, self.engine.is_none())
    }

    /// Makes a call with these names and this tensor; for one of a device, when it was copied. Without the interpreter's lock.
    fn begin<const N: usize, C: Send + 'static>(
        &self,
        names: [&str; N],
        tensor: Outgoing,
        call: impl FnOnce(&sealane::Task, [&str; N], sealane::Tensor) -> C + Send + 'static,
    ) -> Result<Staged<C>, Error> {
        let tensor = match tensor {
            Outgoing::Device(tensor) => tensor,
            tensor => return Ok(Staged::begun(call(&self.task, names, self.place(tensor)?))),
        };
        self.check_pinned(tensor.bytes().device());
        let names = names.map(Box::<str>::from);
        Ok(self.task.copy_from_device(vec![tensor], move |task, mut host| {
            call(task, std::array::from_fn(|index| &*names[index]), host.remove(0))
        }))
    }

    /// [`begin`](Self::begin) for many tensors, which may be of the host and of one device.
    fn begin_all<C: Send + 'static>(
        &self,
        names: Vec<&str>,
        tensors: Vec<Outgoing>,
        call: impl FnOnce(&sealane::Task, &[&str], Vec<sealane::Tensor>) -> C + Send + 'static,
    ) -> Result<Staged<C>, Error> {
        if !tensors.iter().any(|tensor| matches!(tensor, Outgoing::Device(_))) {
            let tensors = tensors.into_iter().map(|tensor| self.place(tensor)).collect::<Result<Vec<_>, Error>>()?;
            return Ok(Staged::begun(call(&self.task, &names, tensors)));
        }
        let names: Vec<Box<str>> = names.into_iter().map(Box::from).collect();
        let (mut ready, mut device) = (Vec::with_capacity(tensors.len()), Vec::new());
        for tensor in tensors {
            match tensor {
                Outgoing::Device(tensor) => {
                    device.push(tensor);
                    ready.push(None);
                }
                tensor => ready.push(Some(self.place(tensor)?)),
            }
        }
        self.check_pinned(device[0].bytes().device());
        Ok(self.task.copy_from_device(device, move |task, host| {
            let (names, mut host): (Vec<&str>, _) = (names.iter().map(|name| &**name).collect(), host.into_iter());
            let tensors = ready.into_iter().map(|ready| ready.or_else(|| host.next()).expect("one for each"));
            call(task, &names, tensors.collect())
        }))
    }

    /// Warns, once, if the arena is not pinned: copies of this device are slow then.
    fn check_pinned(&self, device: usize) {
        if self.engine.is_some() || self.warned.load(Ordering::Relaxed) {
            return;
        }
        let Err(error) = self.task.is_pinned(device) else { return };
        // While there is no daemon, there is no arena.
        if error.code() == Code::Unavailable && self.task.arena_range().is_err() {
            return;
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            Python::attach(|py| {
                let text = format!("sealane: the CUDA driver does not pin the arena, so copies are slow: {error}");
                let text = std::ffi::CString::new(text).unwrap_or_default();
                // Somebody may have made warnings errors, and this is none.
                let _ = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1);
            });
        }
    }

    fn pull(&self, peer: &str, keys: Keys, (min_version, options): (i64, PullOptions), view: bool) -> PullingMany {
        match view {
            true => self.task.view_many_with(peer, keys, min_version, options),
            false => self.task.pull_many_with(peer, keys, min_version, options),
        }
    }

    /// Where a tensor is copied to when it has come.
    fn landing(&self, place: Option<OnDevice>) -> Option<(sealane::Task, OnDevice)> {
        let place = place?;
        self.check_pinned(place.bytes().device());
        Some((self.task.clone(), place))
    }

    fn close(self) {
        if let Some(engine) = &self.engine {
            // A shard that hangs or has panicked was reported already, and nothing is left to be done about it.
            let _ = engine.stop();
        }
    }
}

impl Task {
    pub(crate) fn new(task: sealane::Task, engine: Option<Engine>, waiter: Waiter) -> Self {
        let name = task.name().into();
        let connected = RwLock::new(Some(Connected { task, streams: Arc::default(), engine, warned: Arc::default() }));
        Self { name, connected, waiter, made: Generation::now() }
    }

    /// Not with the interpreter's lock: closing may take a while.
    fn connected(&self) -> Result<Connected, Error> {
        self.made.check(&self.name)?;
        let connected = self.connected.read().unwrap_or_else(PoisonError::into_inner).clone();
        connected.ok_or_else(|| Error::invalid(format!("the task {} was closed", self.name)))
    }

    /// Without the interpreter's lock.
    fn deposit(
        &self,
        peer: &str,
        step: i64,
        key: &str,
        tensor: Outgoing,
        options: SendOptions,
    ) -> Result<Staged<sealane::Sending>, Error> {
        self.connected()?.begin([peer, key], tensor, move |task, [peer, key], tensor| {
            task.send_with(peer, step, key, tensor, options)
        })
    }

    /// [`deposit`](Self::deposit) for many. Without the interpreter's lock.
    fn deposit_all(
        &self,
        peer: &str,
        step: i64,
        keys: Vec<&str>,
        tensors: Vec<Outgoing>,
        timeout: Option<Duration>,
    ) -> Result<Staged<All<sealane::Sending>>, Error> {
        let peer: Box<str> = peer.into();
        self.connected()?.begin_all(keys, tensors, move |task, keys, tensors| {
            let tensors = keys.iter().copied().zip(tensors);
            All::new(task.send_all_with(&peer, step, tensors, SendOptions { timeout }))
        })
    }

    /// Pulls rows, and waits until they are there.
    fn pull_wanted(&self, py: Python<'_>, wanted: &WantedRows) -> PyResult<Vec<sealane::PulledRows>> {
        let memory = wanted.memory(py)?;
        outcome(py, &self.waiter, || Ok(wanted.begin(&self.connected()?.task, memory)))
    }

    /// Pushes. Without the interpreter's lock.
    fn enqueue(
        &self,
        to: &str,
        queue: &str,
        tensor: Outgoing,
        options: SendOptions,
    ) -> Result<Staged<sealane::Sending>, Error> {
        self.connected()?
            .begin([to, queue], tensor, move |task, [to, queue], tensor| task.push_with(to, queue, tensor, options))
    }

    /// Publishes. Without the interpreter's lock.
    fn tell(
        &self,
        version: i64,
        keys: Vec<&str>,
        tensors: Vec<Outgoing>,
    ) -> Result<Staged<sealane::Publishing>, Error> {
        self.connected()?.begin_all(keys, tensors, move |task, keys, tensors| {
            task.publish_many(version, keys.iter().copied().zip(tensors))
        })
    }

    /// A recv, into memory of a device too. Without the interpreter's lock.
    fn ask(
        &self,
        peer: &str,
        step: i64,
        key: &str,
        options: RecvOptions,
        place: Option<OnDevice>,
    ) -> Result<Landing<sealane::Receiving>, Error> {
        let connected = self.connected()?;
        let receiving = connected.task.recv_with(peer, step, key, options);
        Ok(Landing::new(receiving, connected.landing(place)))
    }

    /// [`ask`](Self::ask) for many.
    fn ask_all(
        &self,
        peer: &str,
        step: i64,
        asked: Vec<(&str, RecvOptions)>,
        places: Vec<Option<OnDevice>>,
    ) -> Result<Vec<Landing<sealane::Receiving>>, Error> {
        let connected = self.connected()?;
        let calls = connected.task.recv_all(peer, step, asked);
        let landing = |(call, place)| Landing::new(call, connected.landing(place));
        Ok(calls.into_iter().zip(places).map(landing).collect())
    }

    /// Its streams. Without the interpreter's lock.
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

    /// The task, which warns if it is `for_device`, by its number, and its arena is not pinned. Without the interpreter's lock.
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
        let buffer = destination.buffer(py, || self.task()).or_raise(py)?;
        Ok((RecvOptions { timeout, destination: Some(buffer), fail_if_gone }, destination.on_device().cloned()))
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

    /// Requests a tensor from ``peer``, which may be sent before or after, and waits for it.
    ///
    /// ``timeout`` is in seconds, by default the daemon's ``request_timeout``; ``math.inf`` for no limit. With ``out``
    /// the tensor arrives in that array, which must have its type and shape, and which is returned, without a copy if it
    /// came from ``empty``. Do not touch it until the call has ended. With ``fail_if_gone=True``, ``Left`` is raised as soon as the
    /// peer's process is known to have ended, also if it had before; a peer that was never there is waited for.
    #[pyo3(signature = (peer, step, key, *, out=None, timeout=None, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn recv<'py>(
        &self,
        py: Python<'py>,
        peer: &str,
        step: i64,
        key: &str,
        out: Option<&Bound<'py, PyAny>>,
        timeout: Option<f64>,
        fail_if_gone: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let destination = out.map(Destination::new).transpose()?;
        let (options, place) = self.options(py, destination.as_ref(), timeout, fail_if_gone)?;
        let tensor = outcome(py, &self.waiter, || self.ask(peer, step, key, options, place))?;
        received(py, tensor, destination.as_ref())
    }

    /// ``recv`` that does not wait: ``await`` the returned object, or call its ``result``.
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
        let call = py.detach(|| self.ask(peer, step, key, options, place));
        let make = move |py: Python<'_>, tensor| received(py, tensor, destination.as_ref()).map(Bound::unbind);
        Ok(Receiving::new(self.waiter(), call.or_raise(py)?, make))
    }

    /// ``recv`` for many tensors, as a dict in the order of the keys: asked for together, which is much cheaper than one by
    /// one.
    ///
    /// ``out`` may hold arrays for some keys. If one tensor fails, its error is raised and the others are lost; with
    /// ``partial=True`` the dict holds the error in the tensor's place.
    #[pyo3(signature = (peer, step, keys, *, out=None, timeout=None, partial=false, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn recv_all<'py>(
        &self,
        py: Python<'py>,
        peer: &str,
        step: i64,
        keys: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyMapping>>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let wanted = Wanted::new(keys, out, partial)?;
        let options = (self::timeout(timeout).or_raise(py)?, fail_if_gone);
        let (asked, places) = wanted.asked(py, options, || self.task())?;
        let ask = || self.ask_all(peer, step, asked, places);
        let outcomes = if partial {
            outcome(py, &self.waiter, || Ok(All::new(ask()?.into_iter().map(Settled).collect())))?
        } else {
            outcome(py, &self.waiter, || Ok(All::new(ask()?)))?.into_iter().map(Ok).collect()
        };
        wanted.arrays(py, outcomes)
    }

    /// ``recv_all`` that does not wait: ``await`` the returned object, or call its ``result``. A parameter server that requests
    /// from all workers before it waits for the first overlaps their transfers.
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
        let calls = py.detach(|| self.ask_all(peer, step, asked, places)).or_raise(py)?;
        let make = move |py: Python<'_>, outcomes| Ok(wanted.arrays(py, outcomes)?.unbind().into_any());
        Ok(if partial {
            Receiving::new(self.waiter(), All::new(calls.into_iter().map(Settled).collect()), make)
        } else {
            Receiving::new(self.waiter(), All::new(calls), move |py: Python<'_>, tensors: Vec<_>| {
                make(py, tensors.into_iter().map(Ok).collect())
            })
        })
    }

    /// Sends a tensor to ``peer``, which may request it before or after, and waits until it has it.
    ///
    /// ``timeout`` is in seconds; after it, ``DeadlineExceeded`` is raised. If that says "delivery unknown", the tensor was in
    /// transit and may arrive; do not touch an array from ``empty`` then, because its memory is the daemon's until its consumer
    /// has it; use another. ``tensor`` is a numpy array, any object with
    /// ``__dlpack__`` or the buffer protocol, or a list of strings. Arrays from ``empty`` are sent in place; others are
    /// copied when the call is made, including non-contiguous ones.
    #[pyo3(signature = (peer, step, key, tensor, *, timeout=None))]
    fn send(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        key: &str,
        tensor: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (tensor, options) = (Outgoing::new(tensor)?, SendOptions { timeout: self::timeout(timeout).or_raise(py)? });
        let deposit = || self.deposit(peer, step, key, tensor, options);
        outcome(py, &self.waiter, deposit)
    }

    /// ``send`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the send continues.
    ///
    /// Do not touch arrays from ``empty`` until it has ended; others were copied.
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
        let call = py.detach(|| self.deposit(peer, step, key, tensor, options));
        call.or_raise(py).map(|call| Sending::new(self.waiter(), call))
    }

    /// ``send`` for many tensors: a mapping from keys to tensors. Waits until ``peer`` has all of them.
    ///
    /// If one fails, its error is raised and the others continue.
    #[pyo3(signature = (peer, step, tensors, *, timeout=None))]
    fn send_all(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        tensors: &Bound<'_, PyMapping>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = self::timeout(timeout).or_raise(py)?;
        let (keys, outgoing) = tensors_of(tensors)?;
        let keys = keys.iter().map(|key| key.to_str()).collect::<PyResult<Vec<_>>>()?;
        let deposit = || self.deposit_all(peer, step, keys, outgoing, timeout);
        outcome(py, &self.waiter, deposit).map(drop)
    }

    /// ``send_all`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the sends continue.
    ///
    /// Do not touch arrays from ``empty`` until it has ended; others were copied.
    #[pyo3(signature = (peer, step, tensors, *, timeout=None))]
    fn send_all_async(
        &self,
        py: Python<'_>,
        peer: &str,
        step: i64,
        tensors: &Bound<'_, PyMapping>,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let timeout = self::timeout(timeout).or_raise(py)?;
        let (keys, outgoing) = tensors_of(tensors)?;
        let keys = keys.iter().map(|key| key.to_str()).collect::<PyResult<Vec<_>>>()?;
        let calls = py.detach(|| self.deposit_all(peer, step, keys, outgoing, timeout));
        calls.or_raise(py).map(|calls| Sending::new(self.waiter(), Valueless(calls)))
    }

    /// Publishes a tensor: any peer may ``pull`` it, as often as it likes, until a newer one replaces it. Waits until all
    /// peers can see it.
    ///
    /// ``version`` is chosen by the caller, such as the step number, and may not decrease. ``tensor`` is as for ``send``. An array
    /// from ``empty`` is read in place: do not touch it until a newer version has replaced it and nobody reads it any more.
    fn publish(&self, py: Python<'_>, key: &str, version: i64, tensor: &Bound<'_, PyAny>) -> PyResult<()> {
        let tensor = Outgoing::new(tensor)?;
        outcome(py, &self.waiter, || self.tell(version, vec![key], vec![tensor]))
    }

    /// ``publish`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and it continues.
    fn publish_async(&self, py: Python<'_>, key: &str, version: i64, tensor: &Bound<'_, PyAny>) -> PyResult<Sending> {
        let tensor = Outgoing::new(tensor)?;
        let call = py.detach(|| self.tell(version, vec![key], vec![tensor]));
        call.or_raise(py).map(|call| Sending::new(self.waiter(), call))
    }

    /// ``publish`` for many tensors of one version: a mapping from keys to tensors. Much cheaper than one by one.
    ///
    /// If one fails, its error is raised; the others are published.
    fn publish_many(&self, py: Python<'_>, version: i64, tensors: &Bound<'_, PyMapping>) -> PyResult<()> {
        let (keys, outgoing) = tensors_of(tensors)?;
        let keys = keys.iter().map(|key| key.to_str()).collect::<PyResult<Vec<_>>>()?;
        outcome(py, &self.waiter, || self.tell(version, keys, outgoing))
    }

    /// Publishes this task's slices of a tensor, which ``sliced_plan`` gathers from all tasks that ``slicing`` names.
    ///
    /// ``tensor`` is the whole array or this task's rows of it, one slice behind the other; it is treated as by ``publish``.
    fn publish_slices(
        &self,
        py: Python<'_>,
        key: &str,
        version: i64,
        slicing: &Slicing,
        tensor: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let tensor = Outgoing::new(tensor)?;
        let slicing = slicing.0.clone();
        let publish = || {
            self.connected()?.begin([key], tensor, move |task, [key], tensor| {
                Begun(task.publish_slices(key, version, &slicing, tensor))
            })
        };
        outcome(py, &self.waiter, publish)
    }

    /// Withdraws this task's slices of a tensor, as when its owners change.
    fn withdraw_slices(&self, py: Python<'_>, key: &str, slicing: &Slicing) -> PyResult<()> {
        py.detach(|| self.connected()?.task.withdraw_slices(key, &slicing.0)).or_raise(py)
    }

    /// Withdraws a published tensor; pulls of it wait for the next one.
    fn withdraw(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        py.detach(|| self.connected()?.task.withdraw(key)).or_raise(py)
    }

    /// Waits for a tensor published by ``peer``, at ``min_version`` or newer; returns a ``Pulled``: the array and its version.
    ///
    /// ``timeout`` is in seconds, by default the daemon's ``request_timeout``; ``math.inf`` for no limit. To pull the same
    /// keys repeatedly, ``plan`` is cheaper.
    ///
    /// With ``view=True`` a tensor of 64 KiB or more that another process of this user and host has published is not copied: the
    /// array lies in that process's memory, which is not free again until the array is dropped. It stays readable
    /// when its publisher goes. Other tensors are copied. All are read-only. ``fail_if_gone`` is as for ``recv``.
    #[pyo3(signature = (peer, key, min_version=0, *, timeout=None, view=false, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull<'py>(
        &self,
        py: Python<'py>,
        peer: &str,
        key: &str,
        min_version: i64,
        timeout: Option<f64>,
        view: bool,
        fail_if_gone: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (keys, timeout) = (Keys::new([key]).or_raise(py)?, self::timeout(timeout).or_raise(py)?);
        let options = PullOptions { timeout, fail_if_gone };
        let ask = || Ok(Single(self.connected()?.pull(peer, keys, (min_version, options), view)));
        pulled(py, outcome(py, &self.waiter, ask)?, view)
    }

    /// ``pull`` that does not wait: ``await`` the returned object, or call its ``result``.
    #[pyo3(signature = (peer, key, min_version=0, *, timeout=None, view=false, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_async(
        &self,
        py: Python<'_>,
        peer: &str,
        key: &str,
        min_version: i64,
        timeout: Option<f64>,
        view: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let (keys, timeout) = (Keys::new([key]).or_raise(py)?, self::timeout(timeout).or_raise(py)?);
        let options = PullOptions { timeout, fail_if_gone };
        let call = py.detach(|| Ok(self.connected()?.pull(peer, keys, (min_version, options), view)));
        Ok(Receiving::new(self.waiter(), Single(call.or_raise(py)?), move |py, value| {
            pulled(py, value, view).map(Bound::unbind)
        }))
    }

    /// ``pull`` for many tensors, as a dict in the order of the keys: requested together, in few messages.
    ///
    /// If one fails, its error is raised; with ``partial=True`` the dict holds the error in the tensor's place.
    #[pyo3(signature = (peer, keys, min_version=0, *, timeout=None, partial=false, view=false, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_many<'py>(
        &self,
        py: Python<'py>,
        peer: &str,
        keys: &Bound<'py, PyAny>,
        min_version: i64,
        timeout: Option<f64>,
        partial: bool,
        view: bool,
        fail_if_gone: bool,
    ) -> PyResult<Bound<'py, PyDict>> {
        let (names, timeout) = (keys_of(keys)?, self::timeout(timeout).or_raise(py)?);
        let (keys, options) = (key_set(py, &names)?, PullOptions { timeout, fail_if_gone });
        let ask = || Ok(self.connected()?.pull(peer, keys, (min_version, options), view));
        let outcomes = outcome(py, &self.waiter, ask)?;
        by_key(py, &names, outcomes, partial, |_, value| pulled(py, value, view))
    }

    /// A plan: keys that ``peer`` publishes, pulled together repeatedly, into the same arrays.
    fn plan<'py>(slf: &Bound<'py, Self>, peer: &str, keys: &Bound<'py, PyAny>) -> PyResult<Plan> {
        let (py, task) = (slf.py(), slf.get());
        let names = keys_of(keys)?;
        let keys = key_set(py, &names)?;
        let plan = py.detach(|| task.connected().map(|connected| connected.task.plan(peer, keys))).or_raise(py)?;
        Ok(Plan::new(slf, peer, PyTuple::new(py, names)?.unbind(), plan))
    }

    /// Prepares to pull tensors that are published in slices, each from all of its owners at once and into one array: a mapping from
    /// keys to slicings. Returns a ``Plan``.
    ///
    /// If the slices of a tensor were pulled at different versions, since one owner had published before another, ``Aborted`` is
    /// raised; with ``any_versions=True`` any that are new enough do, and ``Plan.versions`` has the oldest. With a daemon, the arrays
    /// are gathered in this task's arena.
    #[pyo3(signature = (slicings, *, any_versions=false))]
    fn sliced_plan<'py>(
        slf: &Bound<'py, Self>,
        slicings: &Bound<'py, PyMapping>,
        any_versions: bool,
    ) -> PyResult<Plan> {
        let (py, task) = (slf.py(), slf.get());
        let (mut names, mut wanted) = (Vec::new(), Vec::new());
        for item in slicings.items()? {
            let (name, slicing): (Bound<'py, PyString>, PyRef<'py, Slicing>) = item.extract()?;
            wanted.push((name.to_str()?.to_owned(), slicing.0.clone()));
            names.push(name);
        }
        let versions = if any_versions { SliceVersions::Any } else { SliceVersions::Same };
        let plan = py.detach(|| task.connected()?.task.sliced_plan(wanted, versions)).or_raise(py)?;
        Ok(Plan::new(slf, "several tasks", PyTuple::new(py, names)?.unbind(), plan))
    }

    /// Pushes a tensor into a queue of the task ``to``, which accepts from it with an ``acceptor``. Waits until the queue has
    /// taken it, which needs an acceptor and room.
    ///
    /// Pushes into one queue stay in order. ``array`` is as for ``send``, and is copied when the call is made, unless it came
    /// from ``empty``. ``timeout`` is in seconds, by default the daemon's ``request_timeout``; a tensor that was not taken in
    /// time may still arrive.
    #[pyo3(signature = (to, queue, array, *, timeout=None))]
    fn push(
        &self,
        py: Python<'_>,
        to: &str,
        queue: &str,
        array: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let (tensor, options) = (Outgoing::new(array)?, SendOptions { timeout: self::timeout(timeout).or_raise(py)? });
        outcome(py, &self.waiter, || self.enqueue(to, queue, tensor, options))
    }

    /// ``push`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the push continues.
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
        let call = py.detach(|| self.enqueue(to, queue, tensor, options));
        call.or_raise(py).map(|call| Sending::new(self.waiter(), call))
    }

    /// ``push`` for many tensors, in order: any iterable of them, or the rows of an array. Much cheaper than one by one. Waits
    /// until the queue has taken all of them.
    ///
    /// If one fails, its error is raised and the others continue.
    #[pyo3(signature = (to, queue, arrays, *, timeout=None))]
    fn push_many(
        &self,
        py: Python<'_>,
        to: &str,
        queue: &str,
        arrays: &Bound<'_, PyAny>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        let outgoing = arrays_of(arrays)?;
        let push = || {
            self.connected()?.begin_all(vec![to, queue], outgoing, move |task, names, tensors| {
                task.push_all_with(names[0], names[1], tensors, options)
            })
        };
        outcome(py, &self.waiter, push)
    }

    /// Opens a queue of this task, into which peers push: iterate over it, or call its ``accept``.
    ///
    /// Pushes wait while ``tensors_max`` tensors are in the queue, or ``bytes_max`` bytes (256 MiB; at most half of the daemon's
    /// ``area_bytes``). A queue has one acceptor at a time: every accept of another raises ``InvalidArgument``.
    #[pyo3(signature = (queue, *, tensors_max=4096, bytes_max=268_435_456))]
    fn acceptor(slf: &Bound<'_, Self>, queue: &str, tensors_max: usize, bytes_max: usize) -> PyResult<Acceptor> {
        let (py, task) = (slf.py(), slf.get());
        let options = AcceptOptions { tensors_max, bytes_max };
        let open = || task.connected().map(|connected| connected.task.acceptor(queue, options));
        Ok(Acceptor::new(slf, queue, py.detach(open).or_raise(py)?))
    }

    /// Has the CUDA driver pin the memory of ``empty`` for all devices, by the context of ``device``, which the first tensor of a
    /// device does too: copies between it and devices are then asynchronous and at full speed. Experimental. Raises ``Unavailable`` or ``ResourceExhausted`` with
    /// the driver's reason if it does not; copies work all the same, but slowly.
    #[pyo3(signature = (device=0))]
    fn pin(&self, py: Python<'_>, device: usize) -> PyResult<()> {
        py.detach(|| self.task()?.pin(device)).or_raise(py)
    }

    /// Publishes a table: an array of one dimension or more, whose rows any peer may ``pull_rows`` by their numbers. Waits until all
    /// peers can see it.
    ///
    /// An array from ``empty`` is published in place, and so is any writable array with an embedded engine: do not write it from now on
    /// but through the ``Table`` that is returned. Others are copied. With ``torn=True`` whoever pulls a row while it is written may get half of
    /// it, which saves a little time on both sides, and the table may also be pulled as one array.
    #[pyo3(signature = (key, array, *, version=0, torn=false))]
    fn publish_table(
        slf: &Bound<'_, Self>,
        key: &str,
        array: &Bound<'_, PyAny>,
        version: i64,
        torn: bool,
    ) -> PyResult<Table> {
        let (py, task) = (slf.py(), slf.get());
        let options = TableOptions { version, torn };
        let memory = Destination::new(array).and_then(|memory| memory.tensor(py));
        let array = Outgoing::new(array)?;
        let publish = || {
            let connected = task.connected()?;
            let tensor = match memory {
                Ok(tensor) => tensor,
                Err(_) => connected.place(array)?,
            };
            connected.task.publish_table(key, tensor, options)
        };
        Ok(Table::new(slf, py.detach(publish).or_raise(py)?))
    }

    /// ``Table.set_version`` of many tables of this task, in one round trip. After an error, each may have the version or not.
    fn set_versions<'py>(&self, py: Python<'py>, tables: Vec<PyRef<'py, Table>>, version: i64) -> PyResult<()> {
        let tables: Vec<&sealane::Table> = tables.iter().map(|table| table.inner()).collect();
        py.detach(|| self.connected()?.task.set_versions(&tables, version)).or_raise(py)
    }

    /// Pulls rows of a table by their numbers, each to its place: an array of the shape of ``ids`` with that of a row behind it.
    /// A table that is not published yet, or older than ``min_version``, is waited for.
    ///
    /// ``ids`` are integers, an array of any shape or anything that ``numpy.asarray`` takes, in any order; a row that is named twice is
    /// fetched once. ``out`` and ``timeout`` are as for ``recv``. If one row cannot be had, the error is raised; with ``partial=True`` a
    /// tuple is returned: the array, and for rows that the table does not have, or whose owner is gone or late, a list of (owner, places
    /// in ``ids``, error). An owner that has left is not waited for, unless ``fail_if_gone=False``.
    #[pyo3(signature = (table, ids, *, out=None, min_version=None, timeout=None, partial=false, fail_if_gone=true))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_rows<'py>(
        &self,
        py: Python<'py>,
        table: &ShardedTable,
        ids: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
        min_version: Option<i64>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = WantedRows::one(table, ids, out, (min_version, timeout, partial, fail_if_gone))?;
        wanted.made_one(py, self.pull_wanted(py, &wanted)?)
    }

    /// ``pull_rows`` from many tables at once: ``ids`` has those of each table, ``out``, if it is given, an
    /// array for each, and a list is returned, in the order of the tables. If one fails, its error is raised.
    #[pyo3(signature = (tables, ids, *, out=None, min_version=None, timeout=None, partial=false, fail_if_gone=true))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_all_rows<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'py, ShardedTable>>,
        ids: Vec<Bound<'py, PyAny>>,
        out: Option<Vec<Bound<'py, PyAny>>>,
        min_version: Option<i64>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let wanted = WantedRows::all(py, tables, ids, out, (min_version, timeout, partial, fail_if_gone))?;
        wanted.made(py, self.pull_wanted(py, &wanted)?)
    }

    /// ``pull_all_rows`` that does not wait: ``await`` the returned object, or call its ``result``.
    #[pyo3(signature = (tables, ids, *, out=None, min_version=None, timeout=None, partial=false, fail_if_gone=true))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_all_rows_async<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'py, ShardedTable>>,
        ids: Vec<Bound<'py, PyAny>>,
        out: Option<Vec<Bound<'py, PyAny>>>,
        min_version: Option<i64>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let wanted = WantedRows::all(py, tables, ids, out, (min_version, timeout, partial, fail_if_gone))?;
        let memory = wanted.memory(py)?;
        let call = py.detach(|| Ok(wanted.begin(&self.connected()?.task, memory)));
        let make = move |py: Python<'_>, pulled| wanted.made(py, pulled).map(Bound::unbind);
        Ok(Receiving::new(self.waiter(), call.or_raise(py)?, make))
    }

    /// ``pull_rows`` that does not wait: ``await`` the returned object, or call its ``result``.
    #[pyo3(signature = (table, ids, *, out=None, min_version=None, timeout=None, partial=false, fail_if_gone=true))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_rows_async(
        &self,
        py: Python<'_>,
        table: &ShardedTable,
        ids: &Bound<'_, PyAny>,
        out: Option<&Bound<'_, PyAny>>,
        min_version: Option<i64>,
        timeout: Option<f64>,
        partial: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let wanted = WantedRows::one(table, ids, out, (min_version, timeout, partial, fail_if_gone))?;
        let memory = wanted.memory(py)?;
        let call = py.detach(|| Ok(wanted.begin(&self.connected()?.task, memory)));
        let make = move |py: Python<'_>, pulled| wanted.made_one(py, pulled).map(Bound::unbind);
        Ok(Receiving::new(self.waiter(), call.or_raise(py)?, make))
    }

    /// Pushes rows to the owners of a table, into the queue ``queue`` of each, from which they take them with ``accept_rows``. Waits until
    /// all have taken theirs.
    ///
    /// ``rows`` has the shape of ``ids`` with that of a row behind it. With ``sum=True`` rows of the same number are added up and
    /// pushed once, for float32 and float64. ``timeout`` is as for ``push``.
    #[pyo3(signature = (table, queue, ids, rows, *, sum=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn push_rows(
        &self,
        py: Python<'_>,
        table: &ShardedTable,
        queue: &str,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        sum: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let rows = vec![OutgoingRows::new(table, ids, rows)?];
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        outcome(py, &self.waiter, || OutgoingRows::push(rows, &self.connected()?.task, queue, sum, &options))
    }

    /// ``push_rows`` to many tables at once: ``ids`` and ``rows`` have those of each table. What goes to one owner travels together, and
    /// is accepted table by table, in order, each with its key.
    #[pyo3(signature = (tables, queue, ids, rows, *, sum=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn push_all_rows<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'py, ShardedTable>>,
        queue: &str,
        ids: Vec<Bound<'py, PyAny>>,
        rows: Vec<Bound<'py, PyAny>>,
        sum: bool,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let rows = OutgoingRows::all(py, tables, ids, rows)?;
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        outcome(py, &self.waiter, || OutgoingRows::push(rows, &self.connected()?.task, queue, sum, &options))
    }

    /// ``push_all_rows`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the pushes continue.
    #[pyo3(signature = (tables, queue, ids, rows, *, sum=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn push_all_rows_async<'py>(
        &self,
        py: Python<'py>,
        tables: Vec<PyRef<'py, ShardedTable>>,
        queue: &str,
        ids: Vec<Bound<'py, PyAny>>,
        rows: Vec<Bound<'py, PyAny>>,
        sum: bool,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let rows = OutgoingRows::all(py, tables, ids, rows)?;
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        let call = py.detach(|| OutgoingRows::push(rows, &self.connected()?.task, queue, sum, &options));
        call.or_raise(py).map(|call| Sending::new(self.waiter(), call))
    }

    /// ``push_rows`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and the push continues.
    #[pyo3(signature = (table, queue, ids, rows, *, sum=false, timeout=None))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn push_rows_async(
        &self,
        py: Python<'_>,
        table: &ShardedTable,
        queue: &str,
        ids: &Bound<'_, PyAny>,
        rows: &Bound<'_, PyAny>,
        sum: bool,
        timeout: Option<f64>,
    ) -> PyResult<Sending> {
        let rows = vec![OutgoingRows::new(table, ids, rows)?];
        let options = SendOptions { timeout: self::timeout(timeout).or_raise(py)? };
        let call = py.detach(|| OutgoingRows::push(rows, &self.connected()?.task, queue, sum, &options));
        call.or_raise(py).map(|call| Sending::new(self.waiter(), call))
    }

    /// Opens a queue of this task into which peers ``push_rows``: an ``Acceptor`` of ``AcceptedRows``, which are the name of the task that
    /// pushed them, the table's key, the numbers of the rows in this task's part of the table, and the rows. What is no rows raises
    /// ``InvalidArgument``. Tables that were pushed together come one after the other, from this acceptor, even after it was closed.
    #[pyo3(signature = (queue, *, tensors_max=4096, bytes_max=268_435_456))]
    fn accept_rows(slf: &Bound<'_, Self>, queue: &str, tensors_max: usize, bytes_max: usize) -> PyResult<Acceptor> {
        Ok(Self::acceptor(slf, queue, tensors_max, bytes_max)?.of_rows())
    }

    /// An array whose memory is shared with the daemon, so that it is sent and received into without a copy. Its contents
    /// are undefined.
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
        py.detach(|| Ok(self.connected()?.task.direct_peers())).or_raise(py)
    }

    /// Ends a step, here and at its peers: calls that wait for one of its tensors raise ``Aborted`` with this reason, and so do
    /// later ones, until ``cleanup``.
    fn abort(&self, py: Python<'_>, step: i64, reason: &str) -> PyResult<()> {
        py.detach(|| self.connected()?.task.abort(step, reason)).or_raise(py)
    }

    /// Frees everything that is left of a step: waiting tensors, requests, and the record of an abort. A small tensor of it that has been
    /// sent already goes to a recv that the other side makes before it hears of this.
    fn cleanup(&self, py: Python<'_>, step: i64) -> PyResult<()> {
        py.detach(|| self.connected()?.task.cleanup(step)).or_raise(py)
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
