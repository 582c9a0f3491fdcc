//! State of a task until it is closed: how tensors are sent from Python's memory, from the arena and from devices. Runs on the
//! callers' threads, without the GIL.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, Ordering},
};

use pyo3::{exceptions::PyRuntimeWarning, prelude::*};
use sealane::{Code, Engine, Error, Keys, PullOptions, PullingMany, Streams, cuda::Staged};

use crate::{device::OnDevice, input::Outgoing};

/// What is given up when a task is closed.
#[derive(Clone)]
pub(super) struct Connected {
    pub(super) task: sealane::Task,
    /// Empty until the first stream is used.
    pub(super) streams: Arc<OnceLock<Streams>>,
    /// For a task whose engine is in this process.
    pub(super) engine: Option<Engine>,
    /// True once it has warned that the arena is not pinned.
    warned: Arc<AtomicBool>,
}

impl Connected {
    pub(super) fn new(task: sealane::Task, engine: Option<Engine>) -> Self {
        Self { task, streams: Arc::default(), engine, warned: Arc::default() }
    }

    /// The tensor in memory from which it can be sent. Without the GIL.
    pub(super) fn place(&self, tensor: Outgoing) -> Result<sealane::Tensor, Error> {
        // The client copies what is outside its arena; an engine in this process would send Python's memory in place.
        tensor.place(&self.task, self.engine.is_none())
    }

    /// Makes a call with these names and this tensor; a tensor on a device is copied first. Without the GIL.
    pub(super) fn begin<const N: usize, C: Send + 'static>(
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

    /// Like [`begin`](Self::begin), for many tensors, which may be on the host and on one device.
    pub(super) fn begin_all<C: Send + 'static>(
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

    pub(super) fn publish(
        &self,
        version: i64,
        keys: Vec<&str>,
        tensors: Vec<Outgoing>,
    ) -> Result<Staged<sealane::Publishing>, Error> {
        self.begin_all(keys, tensors, move |task, keys, tensors| {
            task.publish_many(version, keys.iter().copied().zip(tensors))
        })
    }

    /// Warns once if the arena is not pinned, since copies of this device are slow then.
    pub(super) fn check_pinned(&self, device: usize) {
        if self.engine.is_some() || self.warned.load(Ordering::Relaxed) {
            return;
        }
        let Err(error) = self.task.is_pinned(device) else { return };
        // Without a daemon there is no arena.
        if error.code() == Code::Unavailable && self.task.arena_range().is_err() {
            return;
        }
        if !self.warned.swap(true, Ordering::Relaxed) {
            Python::attach(|py| {
                let text = format!("sealane: the CUDA driver does not pin the arena, so copies are slow: {error}");
                let text = std::ffi::CString::new(text).unwrap_or_default();
                // Warnings may have been turned into errors, but this is none.
                let _ = PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, caller_level(py));
            });
        }
    }

    pub(super) fn pull(
        &self,
        peer: &str,
        keys: Keys,
        (min_version, options): (i64, PullOptions),
        view: bool,
    ) -> PullingMany {
        match view {
            true => self.task.view_many_with(peer, keys, min_version, options),
            false => self.task.pull_many_with(peer, keys, min_version, options),
        }
    }

    /// Where a tensor is copied to after it has arrived.
    pub(super) fn landing(&self, place: Option<OnDevice>) -> Option<(sealane::Task, OnDevice)> {
        let place = place?;
        self.check_pinned(place.bytes().device());
        Some((self.task.clone(), place))
    }

    pub(super) fn close(self) {
        if let Some(engine) = &self.engine {
            // A shard that hangs or has panicked was already reported, and nothing can be done about it.
            let _ = engine.stop();
        }
    }
}

/// How many frames up the caller's own code is: a call that waits has a frame of this package.
fn caller_level(py: Python<'_>) -> i32 {
    let name =
        py.import("sys").and_then(|sys| sys.call_method0("_getframe")?.getattr("f_globals")?.get_item("__name__"));
    let is_waiting = name.is_ok_and(|name| name.eq("sealane._waiting").unwrap_or(false));
    if is_waiting { 2 } else { 1 }
}
