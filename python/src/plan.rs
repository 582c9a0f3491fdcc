//! `sealane.Plan`: published keys that are pulled together repeatedly, into the same arrays. One pull at a time, from any
//! thread; one array per key.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use pyo3::{
    prelude::*,
    types::{PyDict, PyMapping, PyTuple},
};
use sealane::{Error, PullOptions, Waiter};

use crate::{
    arrays::Arrays,
    call::Receiving,
    device::{OnDevice, matches},
    errors::{OrRaise, exception, invalid},
    fork::Generation,
    input::Destination,
    task::Task,
    wait::{UnderWay, timeout},
};

/// Keys that a peer publishes, pulled together. Returned by ``Task.plan``.
///
/// The peer is told of the keys once; from then on a pull is one small message. For any thread, one pull at a time. Use it as
/// a context manager, or call ``close``; when it is dropped it is closed, too.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Plan {
    /// Held, since dropping it would close it before its plans.
    task: Py<Task>,
    peer: Box<str>,
    keys: Arc<Py<PyTuple>>,
    home: Arc<Home>,
    waiter: Waiter,
    made: Generation,
}

/// State of a plan between two pulls.
struct Home {
    standing: Mutex<Standing>,
    /// Versions of the tensors in the arrays, by the number of the key; `None` for what did not arrive.
    versions: Mutex<Vec<Option<i64>>>,
}

enum Standing {
    Here(Box<Contents>),
    /// A pull has borrowed it.
    Lent,
    Closed,
}

struct Contents {
    /// `None` only while copies to a device use it.
    plan: Option<Box<sealane::Plan>>,
    arrays: Arrays,
}

impl Home {
    fn standing(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn versions(&self) -> MutexGuard<'_, Vec<Option<i64>>> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// InvalidArgument while a pull is in progress, and once the plan is closed.
    fn lend(self: &Arc<Self>) -> Result<Lease, Error> {
        let mut standing = self.standing();
        match std::mem::replace(&mut *standing, Standing::Lent) {
            Standing::Here(contents) => Ok(Lease { contents: Some(contents), home: self.clone() }),
            Standing::Lent => Err(Error::invalid(
                "another pull of this plan is in progress, or its result was not taken: wait for it, or drop it",
            )),
            Standing::Closed => {
                *standing = Standing::Closed;
                Err(Error::invalid("the plan was closed"))
            }
        }
    }

    /// Returns the former contents, to be dropped without the lock.
    fn close(&self) -> Standing {
        std::mem::replace(&mut *self.standing(), Standing::Closed)
    }
}

/// What a pull borrows while it lasts.
struct Lease {
    /// `None` only while it is dropped.
    contents: Option<Box<Contents>>,
    home: Arc<Home>,
}

impl Lease {
    fn contents(&mut self) -> &mut Contents {
        self.contents.as_mut().expect("only drop takes it")
    }

    fn plan(&mut self) -> &mut sealane::Plan {
        self.contents().plan.as_mut().expect("copies give it back")
    }

    /// Copies what arrived to its places on a device.
    async fn copy_to_device(&mut self, task: &sealane::Task, out: &Out) -> Result<(), Error> {
        let mut places = Vec::new();
        for (number, memory) in out.on_device() {
            // Errors of what did not arrive are reported with the others.
            if let Ok(tensor) = self.plan().get(number) {
                matches(tensor.meta(), memory.meta())?;
                places.push((number, memory.bytes()));
            }
        }
        if places.is_empty() {
            return Ok(());
        }
        let plan = self.contents().plan.take().expect("copies give it back");
        let copied = match task.copy_plan_to_device(plan, places) {
            Ok(copying) => copying.await,
            Err((plan, error)) => {
                self.contents().plan = Some(plan);
                return Err(error);
            }
        };
        self.contents().plan = Some(copied?);
        Ok(())
    }

    /// The result of the pull, in the caller's memory.
    fn hand_out_to<'py>(mut self, py: Python<'py>, keys: &Arc<Py<PyTuple>>, out: &Out) -> PyResult<Bound<'py, PyDict>> {
        let dict = PyDict::new(py);
        let versions =
            (0..out.0.len()).map(|number| self.plan().get(number).is_ok().then(|| self.plan().version(number)));
        let versions = versions.collect();
        let home = self.home.clone();
        py.detach(|| *home.versions() = versions);
        for ((number, key), destination) in keys.bind(py).iter().enumerate().zip(&out.0) {
            match self.plan().get(number) {
                Ok(tensor) => dict.set_item(key, destination.filled(py, tensor)?)?,
                Err(error) => dict.set_item(key, exception(py, &error).into_value(py))?,
            }
        }
        Ok(dict)
    }

    /// The result of the pull, in the plan's arrays or in new ones.
    fn hand_out<'py>(mut self, py: Python<'py>, keys: &Arc<Py<PyTuple>>, copy: bool) -> PyResult<Bound<'py, PyDict>> {
        let home = self.home.clone();
        let Contents { plan, arrays } = self.contents();
        let plan = plan.as_deref().expect("copies give it back");
        let count = plan.keys().len();
        let mut new = copy.then(|| Arrays::new(keys.clone(), count));
        let arrays = new.as_mut().unwrap_or(arrays);
        let found = py.detach(|| {
            let version = |index| plan.get(index).is_ok().then(|| plan.version(index));
            *home.versions() = (0..count).map(version).collect();
            arrays.fill(plan)
        });
        arrays.dict(py, found)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut standing = self.home.standing();
        if matches!(*standing, Standing::Lent)
            && let Some(contents) = self.contents.take()
        {
            // If its copies have failed, the plan is lost with them.
            *standing = if contents.plan.is_some() { Standing::Here(contents) } else { Standing::Closed };
        }
    }
}

/// The caller's memory, by the number of the key.
struct Out(Vec<Destination>);

impl Out {
    /// # Errors
    /// InvalidArgument if the mapping has not exactly the plan's keys, and as [`Destination::new`].
    fn new(keys: &Bound<'_, PyTuple>, out: &Bound<'_, PyMapping>) -> PyResult<Out> {
        let py = out.py();
        if out.len()? != keys.len() {
            return Err(invalid(py, format!("out has {} arrays, and the plan {} keys", out.len()?, keys.len())));
        }
        let destination = |key: Bound<'_, PyAny>| match out.contains(&key)? {
            true => Destination::new(&out.get_item(&key)?),
            false => Err(invalid(py, format!("out has no array for the key {key}"))),
        };
        keys.iter().map(destination).collect::<PyResult<_>>().map(Out)
    }

    fn on_device(&self) -> impl Iterator<Item = (usize, &OnDevice)> {
        self.0.iter().enumerate().filter_map(|(number, destination)| Some((number, destination.on_device()?)))
    }
}

/// A pull that owns what it needs.
struct Pull(Pin<Box<dyn Future<Output = Result<Lease, Error>> + Send>>);

impl Pull {
    fn new(
        mut lease: Lease,
        min_version: i64,
        options: PullOptions,
        partial: bool,
        out: Option<(sealane::Task, Arc<Out>)>,
    ) -> Self {
        Self(Box::pin(async move {
            let ended = lease.plan().pull_with(min_version, options).await;
            if !partial {
                ended?;
            }
            if let Some((task, out)) = out {
                lease.copy_to_device(&task, &out).await?;
            }
            Ok(lease)
        }))
    }
}

impl UnderWay for Pull {
    type Value = Lease;

    fn look(&mut self) -> Option<Result<Lease, Error>> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Lease, Error>> {
        self.0.as_mut().poll(context)
    }
}

impl Plan {
    pub(crate) fn new(task: &Bound<'_, Task>, peer: &str, keys: Py<PyTuple>, plan: sealane::Plan) -> Self {
        let (keys, count) = (Arc::new(keys), plan.keys().len());
        let contents = Contents { plan: Some(Box::new(plan)), arrays: Arrays::new(keys.clone(), count) };
        let standing = Mutex::new(Standing::Here(Box::new(contents)));
        let home = Arc::new(Home { standing, versions: Mutex::new(vec![None; count]) });
        let (waiter, made) = (task.get().waiter(), Generation::now());
        Self { task: task.clone().unbind(), peer: peer.into(), keys, home, waiter, made }
    }

    /// The caller's memory, and the task that copies to devices.
    fn out(&self, py: Python<'_>, out: &Bound<'_, PyMapping>) -> PyResult<(sealane::Task, Arc<Out>)> {
        let out = Out::new(self.keys.bind(py), out)?;
        let task = py
            .detach(|| self.task.get().pinned_task(out.on_device().next().map(|(_, memory)| memory.bytes().device())));
        Ok((task.or_raise(py)?, Arc::new(out)))
    }

    fn lend(&self) -> Result<Lease, Error> {
        self.made.check(self.task.get().name())?;
        self.home.lend()
    }
}

#[pymethods]
impl Plan {
    /// ``pull`` that does not wait: ``await`` the returned object, or call its ``result``.
    /// The arrays are written when the result is taken; until then the plan has no other pull.
    ///
    /// Pulls every tensor of the plan at ``min_version`` or newer, and waits for those that are older; gives them as a dict
    /// with the keys in their order.
    ///
    /// The arrays are the plan's own: each pull writes over those of the last one, and they are the same objects as long
    /// as type and shape stay the same. Copy what you keep, or pass ``copy=True``, which returns new arrays.
    /// ``timeout`` is in seconds, unless given the daemon's ``request_timeout``. If a tensor does not come, its error is
    /// raised and the arrays stay as they were; with ``partial=True`` the error is in the dict, in the tensor's place.
    /// ``fail_if_gone`` is as for ``recv``.
    ///
    /// With ``out``, a mapping from all keys to arrays of the tensors' types and shapes, also in the memory of devices, the tensors
    /// are written there, and the dict has those arrays.
    #[pyo3(signature = (min_version=0, *, timeout=None, partial=false, copy=false, out=None, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_async(
        &self,
        py: Python<'_>,
        min_version: i64,
        timeout: Option<f64>,
        partial: bool,
        copy: bool,
        out: Option<&Bound<'_, PyMapping>>,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let options = PullOptions { timeout: self::timeout(timeout).or_raise(py)?, fail_if_gone };
        let out = out.map(|out| self.out(py, out)).transpose()?;
        let pull = Pull::new(self.lend().or_raise(py)?, min_version, options, partial, out.clone());
        let keys = self.keys.clone();
        let make = move |py: Python<'_>, lease: Lease| {
            let dict = match &out {
                Some((_, out)) => lease.hand_out_to(py, &keys, out)?,
                None => lease.hand_out(py, &keys, copy)?,
            };
            Ok(dict.into_any().unbind())
        };
        let receiving = Receiving::new(self.waiter.clone(), pull, make);
        receiving.begin(py);
        Ok(receiving)
    }

    /// The keys.
    #[getter]
    fn keys(&self, py: Python<'_>) -> Py<PyTuple> {
        self.keys.clone_ref(py)
    }

    /// The versions of the last pull by key; ``None`` for tensors that did not arrive.
    #[getter]
    fn versions<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let versions = py.detach(|| self.home.versions().clone());
        let dict = PyDict::new(py);
        for (key, version) in self.keys.bind(py).iter().zip(versions) {
            dict.set_item(key, version)?;
        }
        Ok(dict)
    }

    /// Frees the plan here and at its peer; a pull in progress may still end. Arrays that it returned stay valid.
    /// May be called twice.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.made.check(self.task.get().name()).or_raise(py)?;
        py.detach(|| drop(self.home.close()));
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

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        Ok(format!("<sealane.Plan of {}: {} keys>", self.peer, self.keys.bind(py).len()))
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if self.made.is_over() {
            // A child must not speak to the shards of its parent.
            std::mem::forget(self.home.close());
        } else {
            Python::attach(|py| py.detach(|| drop(self.home.close())));
        }
    }
}
