//! Arguments from Python: tensors to send, and memory to receive into. Runs with the GIL, except for copying.

use pyo3::{exceptions::PyTypeError, intern, prelude::*};
use sealane::{
    Buffer, Error, Payload, TensorMeta,
    cuda::{DeviceTensor, Direction},
};

use crate::{
    buffer,
    device::{self, OnDevice},
    dlpack::{self, Place},
    errors::{OrRaise, invalid},
    memory::Borrowed,
    numpy::Numpy,
    strings,
    tensor::Tensor,
};

/// Tensors up to this size are copied while the GIL is held: releasing it costs more.
const SMALL_BYTES_MAX: usize = 512;

/// The same limit for tensors that arrived elsewhere than where they are wanted, most of which are already in place.
const COPIED_WITH_THE_LOCK_MAX: usize = 64 << 10;

const ROWS_OF_DEVICES: &str = "rows of tables are in host memory: copy them from or to the device";

pub(crate) enum Outgoing {
    /// One that needs nothing from Python any more.
    Ready(sealane::Tensor),
    /// One that still lies in Python's memory.
    Borrowed(TensorMeta, Borrowed),
    /// One in a device's memory.
    Device(DeviceTensor),
}

impl Outgoing {
    /// # Errors
    /// TypeError for anything but an array, InvalidArgument for arrays that cannot become a tensor.
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
        match foreign(object, Direction::ToHost)? {
            Foreign::Host(borrowed) => Self::of(py, borrowed),
            Foreign::Device(tensor) => Ok(Outgoing::Device(tensor.into_tensor())),
        }
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

    /// The tensor in place, to be read at once; one with gaps is copied.
    ///
    /// # Errors
    /// InvalidArgument if it is not a valid tensor, or is on a device.
    pub(crate) fn in_place(self) -> Result<sealane::Tensor, Error> {
        match self {
            Outgoing::Device(_) => Err(Error::invalid(ROWS_OF_DEVICES)),
            Outgoing::Ready(tensor) => Ok(tensor),
            Outgoing::Borrowed(meta, borrowed) if borrowed.contiguous() => {
                sealane::Tensor::new(meta, borrowed.into_bytes())
            }
            Outgoing::Borrowed(meta, borrowed) => {
                let mut copy = Buffer::from_vec(vec![0; borrowed.len()]);
                borrowed.copy_to(&mut copy);
                sealane::Tensor::new(meta, copy)
            }
        }
    }

    /// The tensor in memory from which it can be sent. With `in_place`, the task itself copies what is outside its arena; otherwise
    /// that is done here. Without the GIL.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room.
    ///
    /// # Panics
    /// If it is on a device.
    pub(crate) fn place(self, task: &sealane::Task, in_place: bool) -> Result<sealane::Tensor, Error> {
        match self {
            Outgoing::Device(_) => unreachable!("it is copied by the driver"),
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

fn array(object: &Bound<'_, PyAny>) -> PyResult<Option<Borrowed>> {
    Numpy::get(object.py())?.borrow(object)
}

/// Numbers in an object of another library.
enum Foreign {
    Host(Borrowed),
    Device(OnDevice),
}

/// Numbers in any other object that exposes its memory, to be copied in that direction if they are on a device.
fn foreign(object: &Bound<'_, PyAny>, direction: Direction) -> PyResult<Foreign> {
    let py = object.py();
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return Ok(match dlpack::look(object, |py, number| device::stream(py, number, direction))? {
            Place::Host(borrowed) => Foreign::Host(borrowed),
            Place::Cuda(tensor) => Foreign::Device(tensor),
        });
    }
    if let Some(tensor) = OnDevice::by_interface(object, direction)? {
        return Ok(Foreign::Device(tensor));
    }
    if buffer::exports(object) {
        return buffer::borrow(object).map(Foreign::Host);
    }
    let kind = object.get_type().name()?;
    Err(PyTypeError::new_err(format!(
        "a tensor can be a numpy array, an object with __dlpack__, __cuda_array_interface__ or the buffer protocol, or a list of \
         strings; {kind} is none of these: call numpy.asarray first"
    )))
}

/// The caller's memory for a tensor to receive.
pub(crate) struct Destination {
    memory: Memory,
    object: Py<PyAny>,
}

enum Memory {
    Host(Borrowed),
    Device(OnDevice),
}

impl Destination {
    /// # Errors
    /// TypeError for anything but an array, InvalidArgument for arrays that are read-only or have gaps.
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Destination> {
        let py = object.py();
        let memory = match array(object)? {
            Some(memory) => Memory::Host(memory),
            None if strings::is_array(object)? => return Err(invalid(py, "strings cannot be received into an array")),
            None => match foreign(object, Direction::ToDevice)? {
                Foreign::Host(memory) => Memory::Host(memory),
                Foreign::Device(memory) => Memory::Device(memory),
            },
        };
        let (writable, contiguous) = match &memory {
            Memory::Host(memory) => (memory.writable(), memory.contiguous()),
            Memory::Device(memory) => (memory.writable(), true),
        };
        if !writable {
            return Err(invalid(py, "out is read-only"));
        }
        if !contiguous {
            return Err(invalid(py, "out must be row-major without gaps: receive without it, and copy"));
        }
        Ok(Destination { memory, object: object.clone().unbind() })
    }

    /// The memory that the tensor is received into, for this type and shape only: for a device, memory of the task.
    ///
    /// # Errors
    /// ResourceExhausted if the task has no room, InvalidArgument if no tensor has this shape.
    pub(crate) fn memory(
        &self,
        py: Python<'_>,
        task: impl FnOnce() -> Result<sealane::Task, Error>,
    ) -> Result<sealane::Destination, Error> {
        let (meta, memory) = match &self.memory {
            Memory::Host(memory) => (TensorMeta::new(memory.dtype(), memory.shape())?, memory.destination(py)),
            Memory::Device(memory) => (memory.meta().clone(), task()?.alloc(memory.bytes().len())?),
        };
        Ok(sealane::Destination::of(meta, memory))
    }

    /// The device memory, if it is on a device.
    pub(crate) fn on_device(&self) -> Option<&OnDevice> {
        match &self.memory {
            Memory::Host(_) => None,
            Memory::Device(memory) => Some(memory),
        }
    }

    /// The memory as a writable tensor.
    ///
    /// # Errors
    /// InvalidArgument if it is not a valid tensor, or is on a device.
    pub(crate) fn tensor(&self, py: Python<'_>) -> PyResult<sealane::Tensor> {
        match &self.memory {
            Memory::Host(memory) => {
                let meta = TensorMeta::new(memory.dtype(), memory.shape()).or_raise(py)?;
                sealane::Tensor::new(meta, memory.destination(py)).or_raise(py)
            }
            Memory::Device(_) => Err(invalid(py, ROWS_OF_DEVICES)),
        }
    }

    /// The object that now contains the tensor; on a device it was copied before.
    ///
    /// # Errors
    /// InvalidArgument if the type or shape of the tensor differs from the object's, which is then unchanged.
    pub(crate) fn filled<'py>(&self, py: Python<'py>, tensor: &sealane::Tensor) -> PyResult<Bound<'py, PyAny>> {
        if let Memory::Host(memory) = &self.memory {
            let wanted = TensorMeta::new(memory.dtype(), memory.shape()).or_raise(py)?;
            device::matches(tensor.meta(), &wanted).or_raise(py)?;
            match tensor.len() {
                0..=COPIED_WITH_THE_LOCK_MAX => memory.hold(tensor.bytes()),
                _ => py.detach(|| memory.hold(tensor.bytes())),
            }
        }
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
