//! `sealane.Tensor`: a tensor's memory as a Python object, viewed by arrays and other frameworks.

use std::ffi::c_int;

use pyo3::{
    exceptions::PyBufferError,
    ffi,
    prelude::*,
    types::{PyBytes, PyTuple},
};
use sealane::TensorMeta;

use crate::{
    buffer, dlpack, dtype,
    memory::Owned,
    numpy::{self, Numpy},
};

/// A tensor's memory, as it arrived or as ``Task.empty`` gave it.
///
/// Arrays that sealane hands out have one as their base, and keep it. On its own it represents what numpy does not have:
/// bfloat16 and the 8-bit floats, or TensorFlow's dead tensors. Give it to ``torch.from_dlpack``, ``jax.dlpack.from_dlpack``,
/// ``memoryview``, or, with ``ml_dtypes`` installed, call ``numpy()``.
#[pyclass(frozen, module = "sealane")]
pub(crate) struct Tensor {
    meta: TensorMeta,
    memory: Owned,
}

impl Tensor {
    pub(crate) fn new(tensor: sealane::Tensor) -> Self {
        let (meta, payload) = tensor.into_parts();
        Self { meta, memory: Owned::new(payload) }
    }

    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    pub(crate) fn memory(&self) -> &Owned {
        &self.memory
    }
}

#[pymethods]
impl Tensor {
    /// The element type's name, as numpy and ``ml_dtypes`` have it: ``"float32"``, ``"bfloat16"``.
    #[getter]
    fn dtype(&self) -> std::borrow::Cow<'static, str> {
        dtype::name(self.meta.dtype())
    }

    /// The dimensions, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.meta.shape())
    }

    /// Bytes of all elements.
    #[getter]
    fn nbytes(&self) -> usize {
        self.memory.len()
    }

    /// True for the value that TensorFlow's control flow sends on a branch that was not taken.
    #[getter]
    fn is_dead(&self) -> bool {
        self.meta.is_dead()
    }

    /// A numpy array over this memory. For types that numpy does not have, ``ml_dtypes`` must be installed.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let numpy = Numpy::get(py)?;
        let descriptor = numpy.descriptor_of(py, slf.get().meta.dtype())?;
        numpy.array_over(slf, &descriptor)
    }

    /// A copy of the bytes.
    fn tobytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.memory.to_vec())
    }

    /// The tensor for another framework, by the DLPack protocol.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if stream.is_some() {
            return Err(PyBufferError::new_err("CPU memory has no streams: pass stream=None"));
        }
        if dl_device.is_some_and(|device| device != dlpack::CPU) {
            return Err(PyBufferError::new_err("the tensor is in CPU memory: request it there, then copy it"));
        }
        dlpack::export(slf, max_version, copy == Some(true))
    }

    /// Where the memory is, by the DLPack protocol: the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        dlpack::CPU
    }

    // SAFETY: the interpreter calls it with a view that it wants to be filled in.
    #[allow(unsafe_code, reason = "a slot of the interpreter's; what it does is in `buffer`")]
    unsafe fn __getbuffer__(slf: &Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        // SAFETY: as above.
        unsafe { buffer::fill_in(slf, view, flags) }
    }

    // SAFETY: the interpreter calls it once for each view that was filled in.
    #[allow(unsafe_code, reason = "a slot of the interpreter's; what it does is in `buffer`")]
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: as above.
        unsafe { buffer::release(view) }
    }

    fn __repr__(&self) -> String {
        let dead = if self.is_dead() { ", dead" } else { "" };
        format!("sealane.Tensor({}, shape={:?}{dead})", self.dtype(), self.meta.shape().as_slice())
    }
}

/// The Python object to look at a tensor's memory: an array, or the [`Tensor`] itself if numpy lacks the type or does not allow
/// that many dimensions.
///
/// # Errors
/// MemoryError.
pub(crate) fn looked_at<'py>(tensor: &Bound<'py, Tensor>) -> PyResult<Bound<'py, PyAny>> {
    let numpy = Numpy::get(tensor.py())?;
    match numpy.descriptor(tensor.get().meta.dtype()).filter(|_| numpy::is_plain(&tensor.get().meta)) {
        Some(descriptor) => numpy.array_over(tensor, descriptor.bind(tensor.py())),
        None => Ok(tensor.clone().into_any()),
    }
}

/// A received tensor as a Python object: strings as an array of bytes objects, what numpy lacks as a [`Tensor`], everything else as
/// an array.
///
/// # Errors
/// MemoryError, InvalidArgument for strings whose offsets are wrong.
pub(crate) fn handed_out<'py>(py: Python<'py>, tensor: sealane::Tensor) -> PyResult<Bound<'py, PyAny>> {
    if tensor.meta().is_strings() {
        return crate::strings::array(py, &tensor);
    }
    match Numpy::get(py)?.array(py, tensor)? {
        Ok(array) => Ok(array),
        Err(tensor) => Ok(Bound::new(py, Tensor::new(tensor))?.into_any()),
    }
}
