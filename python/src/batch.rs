//! Arguments of calls for many tensors: keys, and mappings from keys to tensors or to memory.

use std::time::Duration;

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyDict, PyMapping, PyString, PyTuple},
};
use sealane::{Error, Keys, RecvOptions, Tensor};

use crate::{
    device::OnDevice,
    errors::{OrRaise, invalid},
    input::{Destination, Outgoing, received},
    pull::by_key,
};

/// Keys to request: any iterable of strings except a string.
///
/// # Errors
/// TypeError for anything else.
pub(crate) fn keys_of<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyString>>> {
    if keys.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("keys are a list of strings: for one, call recv or pull"));
    }
    keys.try_iter()?.map(|key| Ok(key?.cast_into()?)).collect()
}

/// Keys as Rust strings.
///
/// # Errors
/// UnicodeEncodeError for a key that is not valid text.
pub(crate) fn names_of<'a>(keys: &'a [Bound<'_, PyString>]) -> PyResult<Vec<&'a str>> {
    keys.iter().map(|key| key.to_str()).collect()
}

/// Keys of published tensors.
///
/// # Errors
/// InvalidArgument if they are too many or too long.
pub(crate) fn key_set(py: Python<'_>, keys: &[Bound<'_, PyString>]) -> PyResult<Keys> {
    Keys::new(names_of(keys)?).or_raise(py)
}

/// Keys and tensors of a mapping.
///
/// # Errors
/// As for [`Outgoing::new`], TypeError for keys that are not strings.
pub(crate) fn tensors_of<'py>(tensors: &Bound<'py, PyMapping>) -> PyResult<(Vec<Bound<'py, PyString>>, Vec<Outgoing>)> {
    let items = tensors.items()?;
    let (mut keys, mut outgoing) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for item in items {
        let item = item.cast_into::<PyTuple>()?;
        keys.push(item.get_item(0)?.cast_into()?);
        outgoing.push(Outgoing::new(&item.get_item(1)?)?);
    }
    Ok((keys, outgoing))
}

/// Tensors from any iterable.
///
/// # Errors
/// As for [`Outgoing::new`], TypeError for anything but an iterable.
pub(crate) fn arrays_of(arrays: &Bound<'_, PyAny>) -> PyResult<Vec<Outgoing>> {
    arrays.try_iter()?.map(|array| Outgoing::new(&array?)).collect()
}

/// Tensors to receive together: keys, and memory for some.
pub(crate) struct Wanted {
    keys: Vec<Py<PyString>>,
    destinations: Vec<Option<Destination>>,
    /// Whether errors are returned next to what arrived.
    partial: bool,
}

impl Wanted {
    /// # Errors
    /// As [`keys_of`] and [`Destination::new`].
    pub(crate) fn new(keys: &Bound<'_, PyAny>, out: Option<&Bound<'_, PyMapping>>, partial: bool) -> PyResult<Self> {
        let keys = keys_of(keys)?;
        let destinations = keys.iter().map(|key| destination(out, key)).collect::<PyResult<_>>()?;
        Ok(Self { keys: keys.into_iter().map(Bound::unbind).collect(), destinations, partial })
    }

    /// The request: the keys, and where each tensor is received; and their places on devices.
    #[allow(clippy::type_complexity, reason = "two lists")]
    pub(crate) fn asked<'a>(
        &'a self,
        py: Python<'a>,
        (timeout, fail_if_gone): (Option<Duration>, bool),
        task: impl Fn() -> Result<sealane::Task, Error>,
    ) -> PyResult<(Vec<(&'a str, RecvOptions)>, Vec<Option<OnDevice>>)> {
        let asked = self.keys.iter().zip(&self.destinations).map(|(key, destination)| {
            let memory = destination.as_ref().map(|destination| destination.memory(py, &task)).transpose();
            let options = RecvOptions { timeout, destination: memory.or_raise(py)?, fail_if_gone };
            let place = destination.as_ref().and_then(Destination::on_device).cloned();
            Ok(((key.bind(py).to_str()?, options), place))
        });
        asked.collect()
    }

    /// The arrived tensors by key.
    ///
    /// # Errors
    /// As for [`by_key`], InvalidArgument for a key that was requested twice.
    pub(crate) fn arrays<'py>(
        &self,
        py: Python<'py>,
        outcomes: Vec<Result<Tensor, Error>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let make = |index: usize, tensor| received(py, tensor, self.destinations[index].as_ref());
        let all = by_key(py, &self.keys, outcomes, self.partial, make)?;
        if all.len() < self.keys.len() {
            return Err(invalid(py, "a key is listed twice, but a tensor is received only once"));
        }
        Ok(all)
    }
}

/// Memory for the tensor with that key, if the mapping has any.
///
/// # Errors
/// As [`Destination::new`].
fn destination(out: Option<&Bound<'_, PyMapping>>, key: &Bound<'_, PyString>) -> PyResult<Option<Destination>> {
    match out {
        Some(out) if out.contains(key)? => Destination::new(&out.get_item(key)?).map(Some),
        _ => Ok(None),
    }
}
