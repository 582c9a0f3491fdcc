//! `sealane.Slicing`: which task publishes which rows of a tensor. No I/O.

use pyo3::{
    prelude::*,
    types::{PySlice, PyString, PyTuple},
};
use sealane::{DType, TensorMeta};

use crate::{batch::keys_of, dtype, errors::OrRaise, numpy::Numpy};

/// A cut of an array along its first dimension into slices, each published by one task.
///
/// ``owners`` names those tasks in the order of their rows; one may be named more than once. Each gets as many rows as the
/// others, or one more; with ``rows``, as many as that says. Publishers and pullers make the same one: slices of another are
/// not found.
#[pyclass(frozen, eq, module = "sealane")]
#[derive(PartialEq, Eq)]
pub(crate) struct Slicing(pub(crate) sealane::Slicing);

#[pymethods]
impl Slicing {
    #[new]
    #[pyo3(signature = (shape, dtype, owners, *, rows=None))]
    fn new(
        py: Python<'_>,
        shape: Vec<u64>,
        dtype: &Bound<'_, PyAny>,
        owners: &Bound<'_, PyAny>,
        rows: Option<Vec<u64>>,
    ) -> PyResult<Self> {
        let meta = TensorMeta::new(Numpy::get(py)?.dtype_named(dtype)?, &shape).or_raise(py)?;
        let names = keys_of(owners)?;
        let names = names.iter().map(|name| name.to_str()).collect::<PyResult<Vec<_>>>()?;
        let slicing = match rows {
            None => sealane::Slicing::even(meta, names),
            Some(rows) if rows.len() == names.len() => sealane::Slicing::new(meta, names.into_iter().zip(rows)),
            Some(rows) => {
                let (rows, owners) = (rows.len(), names.len());
                Err(sealane::Error::InvalidArgument {
                    reason: format!("{rows} counts of rows for {owners} owners").into(),
                })
            }
        };
        slicing.or_raise(py).map(Self)
    }

    /// The dimensions of the whole array.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.meta().shape())
    }

    /// The element type's name.
    #[getter]
    fn dtype(&self) -> std::borrow::Cow<'static, str> {
        dtype::name(self.dtype_of())
    }

    /// The slices in the order of their rows: each one's owner, and the ``slice`` that cuts it out of the whole array.
    #[getter]
    fn slices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let slice = |index| {
            let rows = self.0.rows(index);
            let cut = PySlice::new(py, rows.start as isize, rows.end as isize, 1);
            (PyString::new(py, self.0.owner(index)), cut)
        };
        PyTuple::new(py, (0..self.0.len()).map(slice))
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __repr__(&self) -> String {
        let (shape, dtype) = (self.0.meta().shape(), self.dtype());
        format!("<sealane.Slicing of {dtype}{:?} in {}>", shape.as_slice(), self.0.len())
    }
}

impl Slicing {
    fn dtype_of(&self) -> DType {
        self.0.meta().dtype()
    }
}
