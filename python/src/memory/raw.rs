//! Memory that a framework specifies by its address, such as a PyTorch tensor's; used without the GIL, while a reference to its
//! owner is held, which may be dropped on any thread.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use pyo3::{exceptions::PyValueError, prelude::*};
use sealane::Error;
use sealane_runtime::{VolatileSlice, VolatileSliceMut, copy_bytes};

/// Contiguous memory of a Python object: `(address, bytes, object)`. The Python caller guarantees that the object keeps that many
/// bytes there, and that they are writable if they are written.
pub(crate) struct Raw {
    start: NonNull<u8>,
    len: usize,
    _keeper: Py<PyAny>,
}

// SAFETY: the address may be used by any thread as long as the keeper is held, which may be dropped by any thread.
unsafe impl Send for Raw {}

impl<'py> FromPyObject<'_, 'py> for Raw {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Raw> {
        let (address, len, keeper): (usize, usize, Py<PyAny>) = object.extract()?;
        let start = NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        match start {
            _ if len == 0 => Ok(Raw { start: NonNull::dangling(), len, _keeper: keeper }),
            Some(start) if isize::try_from(len).is_ok() => Ok(Raw { start, len, _keeper: keeper }),
            _ => Err(PyValueError::new_err("no memory lies at address 0")),
        }
    }
}

impl AsRef<[u8]> for Raw {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: its maker guarantees the bytes, which the keeper keeps. Other Python threads may write to them meanwhile: what is
        // read is then torn, as with numpy.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for Raw {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and its maker guarantees that they may be written.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Raw {
    fn overlaps(&self, other: &Raw) -> bool {
        let end = |memory: &Raw| memory.start.addr().get() + memory.len;
        self.start.addr().get() < end(other) && other.start.addr().get() < end(self)
    }

    /// Copies these bytes to the byte offset `at` of `into`. The two may overlap.
    ///
    /// # Panics
    /// If `into` is too short.
    pub(crate) fn copy_to(&self, into: &mut Raw, at: usize) {
        assert!(at <= into.len && self.len <= into.len - at, "{} bytes fit at {at} of {}", self.len, into.len);
        // SAFETY: `at` is within the memory of `into`, as asserted.
        let place = unsafe { into.start.add(at) };
        if place != self.start {
            // SAFETY: both makers guarantee their bytes, which the keepers keep, and `copy_from` allows an overlap.
            let (mut place, bytes) = unsafe {
                (VolatileSliceMut::new(place.as_ptr(), self.len), VolatileSlice::new(self.start.as_ptr(), self.len))
            };
            place.copy_from(bytes);
        }
    }
}

/// Runs a call that reads `given` and writes `into`. If the two overlap, the call uses a copy of the shorter.
///
/// # Errors
/// Those of the call.
pub(crate) fn apart(
    given: &Raw,
    into: &mut Raw,
    call: impl FnOnce(&[u8], &mut [u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    if !given.overlaps(into) {
        return call(given.as_ref(), into.as_mut());
    }
    if given.len <= into.len {
        let copy = given.as_ref().to_vec();
        return call(&copy, into.as_mut());
    }
    let mut result = into.as_ref().to_vec();
    call(given.as_ref(), &mut result)?;
    copy_bytes(into.as_mut(), &result);
    Ok(())
}
