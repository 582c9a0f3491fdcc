//! Received tensors, as C code holds them.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};

use sealane::{Accepted, DType, Pulled, PulledRows, Shape, Tensor};

use crate::{
    guard::{given, unpanicked},
    meta::{sealane_meta, told},
    pushed::Pushed,
    rows::Missing,
};

/// A tensor that was received, pulled or accepted. The callback owns it and frees it with sealane_tensor_free, then or later,
/// on any thread; it may outlive its task. Its memory stays in use until then.
pub struct sealane_tensor {
    pub(crate) tensor: Tensor,
    dims: Shape,
    version: i64,
    from: Option<CString>,
    /// For pulled rows: those that are missing.
    pub(crate) missing: Box<[Missing]>,
    /// The pushed rows, once somebody has looked.
    pub(crate) pushed: Option<Box<Pushed>>,
}

impl sealane_tensor {
    /// As a pointer for a callback.
    pub(crate) fn into_raw(self) -> *mut sealane_tensor {
        Box::into_raw(Box::new(self))
    }
}

impl From<Tensor> for sealane_tensor {
    fn from(tensor: Tensor) -> Self {
        Self { dims: tensor.shape(), tensor, version: 0, from: None, missing: Box::default(), pushed: None }
    }
}

impl From<Pulled> for sealane_tensor {
    fn from(Pulled { tensor, version }: Pulled) -> Self {
        Self { version, ..tensor.into() }
    }
}

impl From<Accepted> for sealane_tensor {
    fn from(Accepted { from, tensor }: Accepted) -> Self {
        Self { from: CString::new(&*from).ok(), ..tensor.into() }
    }
}

impl From<PulledRows> for sealane_tensor {
    fn from(PulledRows { rows, missing, .. }: PulledRows) -> Self {
        Self { missing: missing.into_iter().map(Missing::from).collect(), ..rows.into() }
    }
}

/// Type, shape and bytes of a tensor. The pointers are valid as long as the tensor; each function says how long that is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_view {
    /// Type, shape and flags.
    pub meta: sealane_meta,
    /// The bytes: row-major, little-endian, contiguous. Never NULL, even for 0 bytes.
    pub data: *const c_void,
    /// Number of bytes.
    pub bytes: usize,
    /// The version of a pulled tensor, else 0.
    pub version: i64,
}

pub(crate) fn view(tensor: &Tensor, dims: &[u64], version: i64) -> sealane_view {
    let bytes = tensor.bytes();
    sealane_view { meta: told(tensor.meta(), dims), data: bytes.as_ptr().cast(), bytes: bytes.len(), version }
}

/// Type, shape and bytes of a tensor. Valid until the tensor is freed. For NULL, a dead tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_tensor_view(tensor: *const sealane_tensor) -> sealane_view {
    let seen = unpanicked(|| {
        // SAFETY: null, or a tensor of this library that was not freed.
        let tensor = unsafe { given(tensor, "tensor") }?;
        Ok(view(&tensor.tensor, &tensor.dims, tensor.version))
    });
    seen.unwrap_or_else(|_| view(&Tensor::dead(DType::U8), &[0], 0))
}

/// The task that pushed an accepted tensor; else NULL. NUL-terminated, valid until the tensor is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_tensor_from(tensor: *const sealane_tensor) -> *const c_char {
    // SAFETY: as in `sealane_tensor_view`.
    let from = unsafe { tensor.as_ref() }.and_then(|tensor| tensor.from.as_ref());
    from.map_or(std::ptr::null(), |from| from.as_ptr())
}

/// Frees a tensor; does nothing with NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_tensor_free(tensor: *mut sealane_tensor) {
    if !tensor.is_null() {
        let unpanicked = unpanicked(|| {
            // SAFETY: `into_raw` made it, and it is freed once.
            drop(unsafe { Box::from_raw(tensor) });
            Ok(())
        });
        // An error cannot be reported.
        drop(unpanicked);
    }
}
