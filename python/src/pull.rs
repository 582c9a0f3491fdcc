//! Single pulls: published tensors with their versions, as Python objects.

use std::task::{Context, Poll};

use pyo3::{
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyString},
};
use sealane::{Error, Pulled, PullingMany};

use crate::{errors::exception, tensor::handed_out, wait::UnderWay};

pub(crate) struct Single(pub(crate) PullingMany);

fn only(mut outcomes: Vec<Result<Pulled, Error>>) -> Result<Pulled, Error> {
    outcomes.pop().expect("one key, one outcome")
}

impl UnderWay for Single {
    type Value = Pulled;

    fn look(&mut self) -> Option<Result<Pulled, Error>> {
        Some(self.0.look()?.and_then(only))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Pulled, Error>> {
        UnderWay::poll(&mut self.0, context).map(|outcomes| outcomes.and_then(only))
    }
}

/// A ``sealane.Pulled``, whose array is writable unless `read_only`.
///
/// # Errors
/// As [`handed_out`].
pub(crate) fn pulled(
    py: Python<'_>,
    Pulled { tensor, version }: Pulled,
    read_only: bool,
) -> PyResult<Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let tensor = match read_only {
        true => {
            let (meta, payload) = tensor.into_parts();
            sealane::Tensor::from_parts(meta, payload.into_shared())
        }
        false => tensor,
    };
    let array = handed_out(py, tensor)?;
    // numpy's own memory, into which a small tensor was copied.
    if read_only && let Ok(flags) = array.getattr(intern!(py, "flags")) {
        flags.setattr(intern!(py, "writeable"), false)?;
    }
    CLASS.import(py, "sealane._pulled", "Pulled")?.call1((array, version))
}

/// The arrived tensors by key; a missing one raises its error, or is its exception if the caller wants partial results.
///
/// # Errors
/// The first error, and as for `make`.
pub(crate) fn by_key<'py, T>(
    py: Python<'py>,
    keys: &[Py<PyString>],
    outcomes: Vec<Result<T, Error>>,
    partial: bool,
    mut make: impl FnMut(usize, T) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (index, (key, outcome)) in keys.iter().zip(outcomes).enumerate() {
        match outcome.map_err(|error| exception(py, &error)).and_then(|value| make(index, value)) {
            Ok(object) => all.set_item(key, object)?,
            Err(error) if partial => all.set_item(key, error.into_value(py))?,
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}
