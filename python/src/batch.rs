//! What calls for many tensors are given: keys, and mappings from keys to tensors or to memory.

use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyMapping, PyString, PyTuple},
};
use sealane::Keys;

use crate::{
    errors::OrRaise,
    input::{Destination, Outgoing},
};

/// Keys to ask for: any iterable of strings, but a string.
///
/// # Errors
/// TypeError for anything else.
pub(crate) fn keys_of<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyString>>> {
    if keys.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("keys are a list of strings: for one, call recv or pull"));
    }
    keys.try_iter()?.map(|key| Ok(key?.cast_into()?)).collect()
}

/// Keys of what is published.
///
/// # Errors
/// InvalidArgument if they are too many or too long.
pub(crate) fn key_set(py: Python<'_>, keys: &[Bound<'_, PyString>]) -> PyResult<Keys> {
    let keys = keys.iter().map(|key| key.to_str()).collect::<PyResult<Vec<_>>>()?;
    Keys::new(keys).or_raise(py)
}

/// Keys and tensors of a mapping.
///
/// # Errors
/// As [`Outgoing::new`], TypeError for keys that are no strings.
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

/// Tensors of any iterable of them.
///
/// # Errors
/// As [`Outgoing::new`], TypeError for what is no iterable.
pub(crate) fn arrays_of(arrays: &Bound<'_, PyAny>) -> PyResult<Vec<Outgoing>> {
    arrays.try_iter()?.map(|array| Outgoing::new(&array?)).collect()
}

/// Memory for the tensor of that key, if the mapping has any.
///
/// # Errors
/// As [`Destination::new`].
pub(crate) fn destination(
    out: Option<&Bound<'_, PyMapping>>,
    key: &Bound<'_, PyString>,
) -> PyResult<Option<Destination>> {
    match out {
        Some(out) if out.contains(key)? => Destination::new(&out.get_item(key)?).map(Some),
        _ => Ok(None),
    }
}
