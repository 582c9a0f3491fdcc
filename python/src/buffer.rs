//! The buffer protocol: tensors from `bytes`, `memoryview` and `array.array`, and views of tensors. Runs with the GIL; an exported
//! view keeps its tensor alive.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int},
    ptr,
};

use pyo3::{exceptions::PyBufferError, ffi, prelude::*, types::PyMemoryView};

use crate::{
    dtype,
    errors::{OrRaise, invalid},
    memory::{Borrowed, Strides},
    tensor::Tensor,
};

/// True for objects that have the buffer protocol.
pub(crate) fn exports(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: it only looks at the object's type.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}

/// A view of another object's memory, until it is dropped.
///
/// Not moved once it is filled in: exporters may let it point into itself.
struct View<'py>(Box<ffi::Py_buffer>, Python<'py>);

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: the view was filled in by its exporter, and is released once.
        unsafe { ffi::PyBuffer_Release(&mut *self.0) };
    }
}

impl<'py> View<'py> {
    fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: an exporter fills the view in, or raises.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut *view, ffi::PyBUF_FULL_RO) } {
            0 => Ok(View(view, object.py())),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    fn members(&self, start: *const isize) -> &[isize] {
        let rank = self.0.ndim as usize;
        // SAFETY: `shape`, `strides` and `suboffsets` each have `ndim` members, or are null.
        if rank == 0 || start.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(start, rank) } }
    }

    fn format(&self) -> &str {
        if self.0.format.is_null() {
            return "B";
        }
        // SAFETY: a format is a string that lives as long as the view.
        unsafe { CStr::from_ptr(self.0.format) }.to_str().unwrap_or("?")
    }
}

/// The array in an object that has the buffer protocol.
///
/// # Errors
/// InvalidArgument if no tensor has the type of its elements, and what the object raises.
pub(crate) fn borrow(object: &Bound<'_, PyAny>) -> PyResult<Borrowed> {
    let py = object.py();
    // It holds its own export until it is dropped, wherever that happens.
    let keeper = PyMemoryView::from(object)?;
    let view = View::of(&keeper)?;
    if view.members(view.0.suboffsets).iter().any(|offset| *offset >= 0) {
        return Err(invalid(py, "the buffer's rows are behind pointers: make a contiguous copy first"));
    }
    let dtype = dtype::of_format(view.format(), view.0.itemsize as usize).map_err(|reason| invalid(py, reason))?;
    let shape = view.members(view.0.shape).iter().map(|dimension| *dimension as u64).collect();
    let strides = (!view.0.strides.is_null()).then(|| Strides::from_slice(view.members(view.0.strides)));
    let (start, writable) = (view.0.buf.cast(), view.0.readonly == 0);
    drop(view);
    // SAFETY: a buffer's elements lie where its exporter says until the view that `keeper` holds is released.
    unsafe { Borrowed::new(start, dtype, shape, strides, writable, keeper.into_any().unbind()) }.or_raise(py)
}

/// Dimensions and strides of an exported view.
struct Extent {
    shape: Box<[isize]>,
    strides: Box<[isize]>,
}

/// Fills in a view of a tensor's memory. Types without a format appear as bytes.
///
/// # Errors
/// BufferError if a writable view of shared memory is requested.
///
/// # Safety
/// `view` may be written, and is passed to [`release`] after it was filled in.
pub(crate) unsafe fn fill_in(tensor: &Bound<'_, Tensor>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
    let memory = tensor.get().memory();
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no view to fill in"));
    }
    if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE && !memory.writable() {
        return Err(PyBufferError::new_err("the tensor's memory is shared with others: it is read-only"));
    }
    let meta = tensor.get().meta();
    let known = dtype::format(meta.dtype()).filter(|_| !meta.is_strings());
    let (format, itemsize, shape) = match known {
        Some(format) => {
            let shape: Box<[isize]> = meta.shape().iter().map(|dimension| *dimension as isize).collect();
            (format, (meta.dtype().element_bits() / 8) as isize, shape)
        }
        None => (c"B", 1, Box::from([memory.len() as isize])),
    };
    let strides = row_major(&shape, itemsize);
    let extent = Box::new(Extent { shape, strides });
    let wants = |flag| flags & flag == flag;
    // SAFETY: the caller passes the view to be written. It points to the tensor's memory, which the reference to the tensor keeps,
    // to a constant, and to the extent, which `release` frees.
    unsafe {
        (*view).buf = memory.start().cast();
        (*view).len = memory.len() as isize;
        (*view).readonly = (!memory.writable()).into();
        (*view).itemsize = itemsize;
        (*view).format = if wants(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
        (*view).ndim = if wants(ffi::PyBUF_ND) { extent.shape.len() as c_int } else { 1 };
        (*view).shape = if wants(ffi::PyBUF_ND) { extent.shape.as_ptr().cast_mut() } else { ptr::null_mut() };
        (*view).strides = if wants(ffi::PyBUF_STRIDES) { extent.strides.as_ptr().cast_mut() } else { ptr::null_mut() };
        (*view).suboffsets = ptr::null_mut();
        (*view).internal = Box::into_raw(extent).cast();
        (*view).obj = tensor.clone().into_ptr();
    }
    Ok(())
}

/// Frees what a view points to besides the tensor.
///
/// # Safety
/// The view was filled in by [`fill_in`], and is released once.
pub(crate) unsafe fn release(view: *mut ffi::Py_buffer) {
    // SAFETY: `fill_in` put the box there, and nobody else takes it.
    unsafe { drop(Box::from_raw((*view).internal.cast::<Extent>())) };
}

/// Strides of elements that lie row-major without gaps, in units of `element`.
pub(crate) fn row_major(shape: &[isize], element: isize) -> Box<[isize]> {
    let mut stride = element;
    let mut strides: Box<[isize]> = shape.into();
    for place in strides.iter_mut().rev() {
        let dimension = std::mem::replace(place, stride);
        stride = stride.saturating_mul(dimension.max(1));
    }
    strides
}
