//! The arrays of a plan: each pull returns the same objects, as long as the tensors keep type and shape. Tensors are copied into
//! them, since Python code may keep an array longer than the plan keeps its memory. One thread copies at a time.

use std::sync::Arc;

use pyo3::{
    prelude::*,
    types::{PyDict, PyTuple},
};
use sealane::{Buffer, Error};

use crate::{
    errors::exception,
    tensor::{Tensor, handed_out, looked_at},
};

pub(crate) struct Arrays {
    keys: Arc<Py<PyTuple>>,
    /// By the number of the key; `None` for what has never arrived.
    places: Vec<Option<Place>>,
    /// The dict of all arrays, if all are there and unchanged.
    all: Option<Py<PyDict>>,
}

struct Place {
    /// The memory, if it can be overwritten.
    tensor: Option<Py<Tensor>>,
    object: Py<PyAny>,
}

/// Results of a pull that are not in an array yet.
pub(crate) struct Found {
    /// Copies of those without an array of their type and shape, by number.
    fresh: Vec<(usize, sealane::Tensor)>,
    /// Errors of those that did not arrive, by number, in order.
    missed: Vec<(usize, Error)>,
}

impl Arrays {
    pub(crate) fn new(keys: Arc<Py<PyTuple>>, count: usize) -> Self {
        Self { keys, places: (0..count).map(|_| None).collect(), all: None }
    }

    /// Writes the arrived tensors over the arrays of their type and shape, and copies the others. Without the GIL.
    pub(crate) fn fill(&self, plan: &sealane::Plan) -> Found {
        let mut found = Found { fresh: Vec::new(), missed: Vec::new() };
        for (index, place) in self.places.iter().enumerate() {
            let tensor = match plan.get(index) {
                Ok(tensor) => tensor,
                Err(error) => {
                    found.missed.push((index, error));
                    continue;
                }
            };
            let known = place.as_ref().and_then(|place| place.tensor.as_ref()).map(Py::get);
            match known.filter(|known| known.meta() == tensor.meta()) {
                Some(known) => known.memory().write_over(tensor.bytes()),
                None => {
                    let copy = Buffer::copy_of(tensor.bytes());
                    found.fresh.push((index, sealane::Tensor::from_parts(tensor.meta().clone(), copy)));
                }
            }
        }
        found
    }

    /// The arrays by key, in order; for what did not arrive, the exception with the reason.
    ///
    /// # Errors
    /// MemoryError, InvalidArgument for strings whose offsets are wrong.
    pub(crate) fn dict<'py>(&mut self, py: Python<'py>, found: Found) -> PyResult<Bound<'py, PyDict>> {
        let Found { fresh, missed } = found;
        if !fresh.is_empty() || !missed.is_empty() {
            self.all = None;
        }
        for (index, tensor) in fresh {
            self.places[index] = Some(Place::new(py, tensor)?);
        }
        if let Some(all) = &self.all {
            return all.bind(py).copy();
        }
        let dict = PyDict::new(py);
        let whole = missed.is_empty();
        let mut missed = missed.into_iter().peekable();
        for (index, (key, place)) in self.keys.bind(py).iter().zip(&self.places).enumerate() {
            match (missed.next_if(|(missed, _)| *missed == index), place) {
                (Some((_, error)), _) => dict.set_item(key, exception(py, &error).into_value(py))?,
                (None, Some(place)) => dict.set_item(key, &place.object)?,
                (None, None) => unreachable!("what came was given a place"),
            }
        }
        if whole {
            self.all = Some(dict.copy()?.unbind());
        }
        Ok(dict)
    }
}

impl Place {
    fn new(py: Python<'_>, tensor: sealane::Tensor) -> PyResult<Place> {
        if tensor.meta().is_strings() {
            return Ok(Place { tensor: None, object: handed_out(py, tensor)?.unbind() });
        }
        let tensor = Bound::new(py, Tensor::new(tensor))?;
        let object = looked_at(&tensor)?.unbind();
        Ok(Place { tensor: Some(tensor.unbind()), object })
    }
}
