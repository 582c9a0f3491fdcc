//! Tensors of strings: lists of `str` and `bytes`, and numpy arrays of them. Runs with the GIL.

use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};
use sealane::Tensor;

use crate::errors::{OrRaise, invalid};

/// A tensor of strings, if the object has any: a list or tuple has one dimension, an array keeps its own.
///
/// # Errors
/// InvalidArgument if an element is not a string.
pub(crate) fn tensor(object: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let py = object.py();
    let (shape, items): (Vec<u64>, Bound<'_, PyAny>) =
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            (vec![object.len()? as u64], object.clone())
        } else if is_array(object)? {
            (object.getattr("shape")?.extract()?, object.call_method0("ravel")?.call_method0("tolist")?)
        } else {
            return Ok(None);
        };
    let mut strings: Vec<Vec<u8>> = Vec::with_capacity(items.len()?);
    for item in items.try_iter()? {
        let item = item?;
        strings.push(if let Ok(text) = item.cast::<PyString>() {
            text.to_str()?.as_bytes().to_vec()
        } else if let Ok(bytes) = item.cast::<PyBytes>() {
            bytes.as_bytes().to_vec()
        } else {
            let kind = item.get_type().name()?;
            return Err(invalid(
                py,
                format!(
                    "a list is sent as strings, and one of its items is of type {kind}: make an array of numbers first"
                ),
            ));
        });
    }
    Tensor::from_strings(&shape, &strings).or_raise(py).map(Some)
}

/// True for arrays of `str`, of `bytes`, and of objects, which may be strings.
pub(crate) fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(dtype) = object.getattr_opt("dtype")? else { return Ok(false) };
    let Some(kind) = dtype.getattr_opt("kind")? else { return Ok(false) };
    Ok(kind.extract::<&str>().is_ok_and(|kind| matches!(kind, "O" | "S" | "U")))
}

/// An array of `bytes` objects.
///
/// # Errors
/// InvalidArgument if the tensor's offsets are wrong, MemoryError.
pub(crate) fn array<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let strings = tensor.strings().or_raise(py)?;
    let options = PyDict::new(py);
    options.set_item("dtype", "object")?;
    let array = EMPTY.import(py, "numpy", "empty")?.call((strings.len(),), Some(&options))?;
    for (index, string) in strings.iter().enumerate() {
        array.set_item(index, PyBytes::new(py, string))?;
    }
    array.call_method1("reshape", (PyTuple::new(py, tensor.shape())?,))
}
