//! Arguments from Python: tensors to send, and memory to receive into. Runs with the GIL, except for copying.

use pyo3::{exceptions::PyTypeError, intern, prelude::*};
use sealane::{Buffer, Error, Payload, TensorMeta};

use crate::{
    buffer, dlpack, dtype,
    errors::{OrRaise, invalid},
    memory::Borrowed,
    numpy::Numpy,
    strings,
    tensor::Tensor,
};

/// Tensors of at most so many bytes are copied while the interpreter's lock is held: giving it up costs more.
const SMALL_BYTES_MAX: usize = 512;

/// A tensor to send.
pub(crate) enum Outgoing {
    /// That needs nothing of Python any more.
    Ready(sealane::Tensor),
    /// That still lies in Python's memory.
    Borrowed(TensorMeta, Borrowed),
}

impl Outgoing {
    /// # Errors
    /// TypeError for what is no array, InvalidArgument for arrays that no tensor can be made of.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Outgoing> {
        let py = object.py();
        if let Some(borrowed) = array(object)? {
            return Self::of(py, borrowed);
        }
        if let Ok(tensor) = object.cast::<Tensor>()
            && tensor.get().meta().is_dead()
        {
            return Ok(Outgoing::Ready(sealane::Tensor::dead(tensor.get().meta().dtype())));
        }
        if let Some(strings) = strings::tensor(object)? {
            return Ok(Outgoing::Ready(strings));
        }
        Self::of(py, foreign(object)?)
    }

    fn of(py: Python<'_>, borrowed: Borrowed) -> PyResult<Outgoing> {
        let meta = TensorMeta::new(borrowed.dtype(), borrowed.shape()).or_raise(py)?;
        if borrowed.len() > SMALL_BYTES_MAX {
            return Ok(Outgoing::Borrowed(meta, borrowed));
        }
        let mut bytes = [0; SMALL_BYTES_MAX];
        let bytes = &mut bytes[..borrowed.len()];
        borrowed.copy_to(bytes);
        sealane::Tensor::new(meta, Buffer::copy_of(bytes)).or_raise(py).map(Outgoing::Ready)
    }

    /// The tensor, in memory from which it can be sent. `in_place` says that the task itself copies what does not lie in
    /// its arena; otherwise it is done here. Without the interpreter's lock.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room.
    pub(crate) fn place(self, task: &sealane::Task, in_place: bool) -> Result<sealane::Tensor, Error> {
        match self {
            Outgoing::Ready(tensor) => Ok(tensor),
            Outgoing::Borrowed(meta, borrowed) if in_place && borrowed.contiguous() => {
                sealane::Tensor::new(meta, borrowed.into_bytes())
            }
            Outgoing::Borrowed(meta, borrowed) => {
                let mut buffer = task.alloc(borrowed.len())?;
                borrowed.copy_to(&mut buffer);
                sealane::Tensor::new(meta, Payload::from(buffer))
            }
        }
    }
}

/// Numbers in an array of numpy's.
fn array(object: &Bound<'_, PyAny>) -> PyResult<Option<Borrowed>> {
    Numpy::get(object.py())?.borrow(object)
}

/// Numbers in anything else that lets others look at its memory.
fn foreign(object: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
    let py = object.py();
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return dlpack::borrow(object);
    }
    if buffer::exports(object) {
        return buffer::borrow(object);
    }
    let kind = object.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "a tensor can be a numpy array, an object with __dlpack__ or the buffer protocol, or a list of strings; \
         {kind} is none of these: call numpy.asarray first"
    )))
}

/// The caller's memory for a tensor that is received.
pub(crate) struct Destination {
    memory: Borrowed,
    object: Py<PyAny>,
}

impl Destination {
    /// # Errors
    /// TypeError for what is no array, InvalidArgument for arrays that cannot be written or have gaps.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Destination> {
        let py = object.py();
        let memory = match array(object)? {
            Some(memory) => memory,
            None if strings::is_array(object)? => return Err(invalid(py, "strings cannot be received into an array")),
            None => foreign(object)?,
        };
        if !memory.writable() {
            return Err(invalid(py, "out is read-only"));
        }
        if !memory.contiguous() {
            return Err(invalid(py, "out must be row-major without gaps: receive without it, and copy"));
        }
        Ok(Destination { memory, object: object.clone().unbind() })
    }

    /// The memory, to be received into.
    pub(crate) fn buffer(&self, py: Python<'_>) -> Buffer {
        self.memory.destination(py)
    }

    /// The object, in which the tensor now lies.
    ///
    /// # Errors
    /// InvalidArgument if the tensor is of another type or shape than the object; its bytes are there all the same.
    pub(crate) fn filled<'py>(&self, py: Python<'py>, tensor: &sealane::Tensor) -> PyResult<Bound<'py, PyAny>> {
        let (meta, memory) = (tensor.meta(), &self.memory);
        let plain = !meta.is_dead() && !meta.is_strings();
        if !plain || meta.dtype() != memory.dtype() || meta.shape()[..] != *memory.shape() {
            let (found, wanted) = (dtype::name(meta.dtype()), dtype::name(memory.dtype()));
            let kind = if meta.is_strings() { "strings" } else { &*found };
            let reason = format!(
                "the tensor is {kind} of shape {:?}, and out is {wanted} of shape {:?}",
                meta.shape().as_slice(),
                memory.shape()
            );
            return Err(invalid(py, reason));
        }
        memory.hold(tensor.bytes());
        Ok(self.object.bind(py).clone())
    }
}

/// A received tensor: in the caller's memory, or in an array of its own.
///
/// # Errors
/// As [`Destination::filled`], MemoryError.
pub(crate) fn received<'py>(
    py: Python<'py>,
    tensor: sealane::Tensor,
    destination: Option<&Destination>,
) -> PyResult<Bound<'py, PyAny>> {
    match destination {
        Some(destination) => destination.filled(py, &tensor),
        None => crate::tensor::handed_out(py, tensor),
    }
}
