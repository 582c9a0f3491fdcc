//! What a task publishes, and what it pulls from others.

use pyo3::{
    prelude::*,
    types::{PyMapping, PyString, PyTuple},
};
use sealane::{Keys, PullOptions, SliceVersions};

use super::{Connected, Task};
use crate::{
    batch::{key_set, keys_of, names_of, tensors_of},
    call::{Receiving, Sending},
    errors::OrRaise,
    input::Outgoing,
    plan::Plan,
    pull::{Single, by_key, pulled},
    slicing::Slicing,
    wait::{Begun, blocking, timeout},
};

#[pymethods]
impl Task {
    /// ``publish`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and it continues.
    ///
    /// Publishes a tensor: any peer may ``pull`` it, as often as it likes, until a newer one replaces it. Waits until all
    /// peers can see it.
    ///
    /// ``version`` is chosen by the caller, such as the step number, and may not decrease. ``tensor`` is as for ``send``. An array
    /// from ``empty`` is read in place: do not touch it until a newer version has replaced it and nobody reads it any more.
    fn publish_async(&self, py: Python<'_>, key: &str, version: i64, tensor: &Bound<'_, PyAny>) -> PyResult<Sending> {
        let tensor = Outgoing::new(tensor)?;
        self.sending(py, |connected| connected.publish(version, vec![key], vec![tensor]))
    }

    /// ``publish_many`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and it continues.
    ///
    /// ``publish`` for many tensors of one version: a mapping from keys to tensors. Much cheaper than one by one.
    ///
    /// If one fails, its error is raised; the others are published.
    fn publish_many_async(&self, py: Python<'_>, version: i64, tensors: &Bound<'_, PyMapping>) -> PyResult<Sending> {
        let (keys, outgoing) = tensors_of(tensors)?;
        let keys = names_of(&keys)?;
        self.sending(py, |connected| connected.publish(version, keys, outgoing))
    }

    /// ``publish_slices`` that does not wait: ``await`` the returned object, call its ``result``, or drop it, and it continues.
    ///
    /// Publishes this task's slices of a tensor, which ``sliced_plan`` gathers from all tasks that ``slicing`` names.
    ///
    /// ``tensor`` is the whole array or this task's rows of it, one slice behind the other; it is treated as by ``publish``.
    fn publish_slices_async(
        &self,
        py: Python<'_>,
        key: &str,
        version: i64,
        slicing: &Slicing,
        tensor: &Bound<'_, PyAny>,
    ) -> PyResult<Sending> {
        let (tensor, slicing) = (Outgoing::new(tensor)?, slicing.0.clone());
        self.sending(py, |connected| {
            connected.begin([key], tensor, move |task, [key], tensor| {
                Begun(task.publish_slices(key, version, &slicing, tensor))
            })
        })
    }

    /// Withdraws this task's slices of a tensor, as when its owners change.
    fn withdraw_slices(&self, py: Python<'_>, key: &str, slicing: &Slicing) -> PyResult<()> {
        blocking(py, || self.connected()?.task.withdraw_slices(key, &slicing.0))
    }

    /// Withdraws a published tensor; pulls of it wait for the next one. A pull that another task asks for a moment later may still
    /// get it.
    fn withdraw(&self, py: Python<'_>, key: &str) -> PyResult<()> {
        blocking(py, || self.connected()?.task.withdraw(key))
    }

    /// ``pull`` that does not wait: ``await`` the returned object, or call its ``result``.
    ///
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
        let ask = |connected: Connected| Ok(Single(connected.pull(peer, keys, (min_version, options), view)));
        self.receiving(py, ask, move |py, value| pulled(py, value, view).map(Bound::unbind))
    }

    /// ``pull_many`` that does not wait: ``await`` the returned object, or call its ``result``.
    ///
    /// ``pull`` for many tensors, as a dict in the order of the keys: requested together, in few messages.
    ///
    /// If one fails, its error is raised; with ``partial=True`` the dict holds the error in the tensor's place.
    #[pyo3(signature = (peer, keys, min_version=0, *, timeout=None, partial=false, view=false, fail_if_gone=false))]
    #[allow(clippy::too_many_arguments, reason = "as many as Python callers name")]
    fn pull_many_async(
        &self,
        py: Python<'_>,
        peer: &str,
        keys: &Bound<'_, PyAny>,
        min_version: i64,
        timeout: Option<f64>,
        partial: bool,
        view: bool,
        fail_if_gone: bool,
    ) -> PyResult<Receiving> {
        let (names, timeout) = (keys_of(keys)?, self::timeout(timeout).or_raise(py)?);
        let (keys, options) = (key_set(py, &names)?, PullOptions { timeout, fail_if_gone });
        let names: Vec<_> = names.into_iter().map(Bound::unbind).collect();
        let ask = |connected: Connected| Ok(connected.pull(peer, keys, (min_version, options), view));
        self.receiving(py, ask, move |py, outcomes| {
            let all = by_key(py, &names, outcomes, partial, |_, value| pulled(py, value, view))?;
            Ok(all.unbind().into_any())
        })
    }

    /// A plan: keys that ``peer`` publishes, pulled together repeatedly, into the same arrays.
    fn plan<'py>(slf: &Bound<'py, Self>, peer: &str, keys: &Bound<'py, PyAny>) -> PyResult<Plan> {
        let (py, task) = (slf.py(), slf.get());
        let names = keys_of(keys)?;
        let keys = key_set(py, &names)?;
        let plan = blocking(py, || task.connected().map(|connected| connected.task.plan(peer, keys)))?;
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
        let plan = blocking(py, || task.connected()?.task.sliced_plan(wanted, versions))?;
        Ok(Plan::new(slf, "several tasks", PyTuple::new(py, names)?.unbind(), plan))
    }
}
