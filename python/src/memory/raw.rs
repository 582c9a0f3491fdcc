//! Memory that a framework specifies by its address, such as a PyTorch tensor's; used without the GIL, while a reference to its
//! owner is held, which may be dropped on any thread.
#![allow(unsafe_code)]

use std::ptr::NonNull;

use pyo3::{exceptions::PyValueError, prelude::*};

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
