//! DLPack 1.x: how frameworks exchange tensors without copying. Runs with the GIL, except that another framework may free an
//! exported tensor on any thread.
//!
//! Reference: <https://dmlc.github.io/dlpack/latest/> (structures and Python protocol).
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int, c_void},
    ptr,
};

use pyo3::{
    exceptions::{PyBufferError, PyTypeError},
    ffi,
    prelude::*,
    types::{PyCapsule, PyDict},
};
use sealane::DType;

use crate::{
    buffer::row_major,
    device::OnDevice,
    errors::{OrRaise, invalid},
    memory::{Borrowed, Layout, Strides},
    tensor::Tensor,
};

/// DLPack's device for host memory: device type 1, device 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// Device types whose memory this process can read directly: the CPU's, and pinned memory of CUDA and of ROCm.
const READABLE_DEVICES: [i32; 3] = [1, 3, 11];

/// Types of CUDA's own memory: a device's, and managed memory, which it shares with the host.
const CUDA_DEVICES: [i32; 2] = [2, 13];

/// The supported version. Later minor versions only add to it.
const VERSION: Version = Version { major: 1, minor: 0 };

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 2;

/// The names of capsules that nobody has consumed yet.
const UNVERSIONED: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

#[repr(C)]
#[derive(Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
}

#[repr(C)]
struct DlDataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    dtype: DlDataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`.
#[repr(C)]
struct Unversioned {
    tensor: DlTensor,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// `DLManagedTensorVersioned`.
#[repr(C)]
struct Versioned {
    version: Version,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: DlTensor,
}

/// Where the memory of an object with `__dlpack__` is.
pub(crate) enum Place {
    Host(Borrowed),
    Cuda(OnDevice),
}

/// The array in an object with `__dlpack__`. Its capsule is kept, and frees the tensor when it is dropped. Memory of a CUDA device
/// can be used in the stream whose number `stream` returns for the device.
///
/// # Errors
/// InvalidArgument for memory of other devices and for unknown types, those of `stream`, what the object raises.
pub(crate) fn look(
    object: &Bound<'_, PyAny>,
    stream: impl FnOnce(Python<'_>, usize) -> PyResult<u64>,
) -> PyResult<Place> {
    let py = object.py();
    let (device, number): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    let is_cuda = CUDA_DEVICES.contains(&device);
    if !is_cuda && !READABLE_DEVICES.contains(&device) {
        let reason = format!("the tensor is in device memory (DLPack's type {device}): copy it to the CPU first");
        return Err(invalid(py, reason));
    }
    let number = usize::try_from(number).unwrap_or(0);
    let capsule = match is_cuda {
        true => ask(object, Some(stream(py, number)?))?,
        false => ask(object, None)?,
    };
    // SAFETY: a capsule with that name holds that structure, as DLPack's protocol says, until it is dropped or renamed by its
    // consumer, which must have been given this capsule.
    let (tensor, flags) = unsafe {
        if let Ok(managed) = capsule.pointer_checked(Some(VERSIONED)) {
            let managed = managed.cast::<Versioned>().as_ptr();
            let version = (*managed).version;
            if version.major != VERSION.major {
                let reason =
                    format!("the tensor uses DLPack {}.{}, but 1.x is supported", version.major, version.minor);
                return Err(invalid(py, reason));
            }
            (&(*managed).tensor, (*managed).flags)
        } else {
            (&(*capsule.pointer_checked(Some(UNVERSIONED))?.cast::<Unversioned>().as_ptr()).tensor, 0)
        }
    };
    let dtype = DType::from_numbers(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes).or_raise(py)?;
    let rank = usize::try_from(tensor.ndim).unwrap_or(0);
    // SAFETY: `shape` has `ndim` members, and so has `strides` unless it is null.
    let (shape, strides) = unsafe {
        let members = |start: *mut i64| if rank == 0 { &[] } else { std::slice::from_raw_parts(start, rank) };
        (members(tensor.shape), (!tensor.strides.is_null()).then(|| members(tensor.strides)))
    };
    let bytes = (dtype.element_bits() / 8) as isize;
    let strides = strides.filter(|strides| bytes > 0 || !strides.is_empty());
    let strides = strides.map(|strides| strides.iter().map(|stride| *stride as isize * bytes).collect::<Strides>());
    let shape = shape.iter().map(|dimension| *dimension as u64).collect();
    // A null pointer is allowed if there are no elements.
    let start = tensor.data.cast::<u8>().wrapping_add(tensor.byte_offset as usize);
    let (writable, capsule) = (flags & READ_ONLY == 0, capsule.clone().into_any().unbind());
    if is_cuda {
        let layout = Layout::new(dtype, shape, strides).or_raise(py)?;
        // SAFETY: as below; the object was given the stream, and has made it wait.
        let tensor = unsafe { OnDevice::new(&layout, (number, start as u64), None, writable, capsule) };
        return tensor.or_raise(py).map(Place::Cuda);
    }
    // SAFETY: the elements lie where the structure says, as long as the capsule holds it.
    let borrowed = unsafe { Borrowed::new(start, dtype, shape, strides, writable, capsule) };
    borrowed.or_raise(py).map(Place::Host)
}

fn ask<'py>(object: &Bound<'py, PyAny>, stream: Option<u64>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = object.py();
    let arguments = PyDict::new(py);
    if let Some(stream) = stream {
        arguments.set_item("stream", stream)?;
    }
    arguments.set_item("max_version", (VERSION.major, VERSION.minor))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&arguments)) {
        // Producers older than DLPack 1.0 do not know the argument.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => {
            arguments.del_item("max_version")?;
            object.call_method("__dlpack__", (), Some(&arguments))?
        }
        capsule => capsule?,
    };
    Ok(capsule.cast_into::<PyCapsule>()?)
}

/// An exported structure, what it points to, and what keeps the memory.
#[repr(C)]
struct Export<M> {
    managed: M,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    _tensor: Py<Tensor>,
}

/// The two structures, which differ in little.
trait Managed: Sized {
    const NAME: &'static CStr;

    fn new(tensor: DlTensor, manager_ctx: *mut c_void, flags: u64) -> Self;

    fn tensor(&mut self) -> &mut DlTensor;
}

impl Managed for Unversioned {
    const NAME: &'static CStr = UNVERSIONED;

    fn new(tensor: DlTensor, manager_ctx: *mut c_void, _flags: u64) -> Self {
        Unversioned { tensor, manager_ctx, deleter: Some(free::<Unversioned>) }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

impl Managed for Versioned {
    const NAME: &'static CStr = VERSIONED;

    fn new(tensor: DlTensor, manager_ctx: *mut c_void, flags: u64) -> Self {
        Versioned { version: VERSION, manager_ctx, deleter: Some(free::<Versioned>), flags, tensor }
    }

    fn tensor(&mut self) -> &mut DlTensor {
        &mut self.tensor
    }
}

/// A capsule with the tensor, in the version that its consumer accepts.
///
/// # Errors
/// BufferError for shared memory if the consumer could not know that it is read-only.
pub(crate) fn export<'py>(
    tensor: &Bound<'py, Tensor>,
    max_version: Option<(u32, u32)>,
    copy: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let versioned = max_version.is_some_and(|(major, _)| major >= VERSION.major);
    let copied = if copy { Some(copy_of(tensor)?) } else { None };
    let source = copied.as_ref().unwrap_or(tensor);
    let read_only = !source.get().memory().writable();
    if read_only && !versioned {
        return Err(PyBufferError::new_err(
            "the tensor is read-only, which DLPack before 1.0 cannot express: ask with max_version=(1, 0) or copy=True",
        ));
    }
    let flags = if read_only { READ_ONLY } else { 0 } | if copy { IS_COPIED } else { 0 };
    if versioned { capsule::<Versioned>(source, flags) } else { capsule::<Unversioned>(source, flags) }
}

fn copy_of<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, Tensor>> {
    let py = tensor.py();
    let (meta, memory) = (tensor.get().meta().clone(), tensor.get().memory());
    let copy = py.detach(|| sealane::Tensor::new(meta, memory.to_vec())).or_raise(py)?;
    Bound::new(py, Tensor::new(copy))
}

fn capsule<'py, M: Managed>(tensor: &Bound<'py, Tensor>, flags: u64) -> PyResult<Bound<'py, PyAny>> {
    let (meta, memory) = (tensor.get().meta(), tensor.get().memory());
    let DType { code, bits, lanes } = meta.dtype();
    let shape: Box<[i64]> = meta.shape().iter().map(|dimension| *dimension as i64).collect();
    let dimensions: Strides = meta.shape().iter().map(|dimension| *dimension as isize).collect();
    let strides = row_major(&dimensions, 1).iter().map(|stride| *stride as i64).collect();
    let described = DlTensor {
        data: memory.start().cast(),
        device_type: CPU.0,
        device_id: CPU.1,
        ndim: shape.len() as i32,
        dtype: DlDataType { code: code as u8, bits, lanes },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = M::new(described, ptr::null_mut(), flags);
    let export = Box::into_raw(Box::new(Export { managed, shape, strides, _tensor: tensor.clone().unbind() }));
    // SAFETY: the box was just made, and is owned by the capsule, or by the consumer that takes the structure from it: one of them
    // calls `free`. `managed` is its first member, so it has the box's address.
    unsafe {
        let described = (*export).managed.tensor();
        described.shape = (*export).shape.as_mut_ptr();
        described.strides = (*export).strides.as_mut_ptr();
        let capsule = ffi::PyCapsule_New(export.cast(), M::NAME.as_ptr(), Some(forgotten::<M>));
        if capsule.is_null() {
            drop(Box::from_raw(export));
        }
        Bound::from_owned_ptr_or_err(tensor.py(), capsule)
    }
}

/// The structure's deleter, called on any thread.
unsafe extern "C" fn free<M>(managed: *mut M) {
    if !managed.is_null() {
        // SAFETY: it is the first member of the box that `capsule` made, and its consumer calls this once. A
        // reference to a Python object may be dropped without the interpreter's lock.
        unsafe { drop(Box::from_raw(managed.cast::<Export<M>>())) };
    }
}

/// A capsule's destructor: frees the structure if nobody has consumed it, which would have renamed the capsule.
unsafe extern "C" fn forgotten<M: Managed>(capsule: *mut ffi::PyObject) {
    // SAFETY: the interpreter calls this with the capsule that `capsule` made.
    unsafe {
        const VALID: c_int = 1;
        if ffi::PyCapsule_IsValid(capsule, M::NAME.as_ptr()) == VALID {
            let managed = ffi::PyCapsule_GetPointer(capsule, M::NAME.as_ptr()).cast::<M>();
            // With the GIL known to be held, the tensor is freed at once.
            Python::attach(|_| free(managed));
        }
    }
}
