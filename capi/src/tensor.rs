//! Tensors that arrived, as C code holds them.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_void};

use sealane::{Accepted, DType, Pulled, Shape, Tensor};

use crate::{
    guard::{given, unpanicked},
    meta::{sealane_meta, told},
};

/// A tensor that was received, pulled or accepted. It is the callback's, which frees it with sealane_tensor_free, then or later, on
/// any thread; it may outlive its task. Until then the memory stays taken that it came in.
pub struct sealane_tensor {
    tensor: Tensor,
    dims: Shape,
    version: i64,
    from: Option<CString>,
}

impl sealane_tensor {
    /// For a callback.
    pub(crate) fn into_raw(self) -> *mut sealane_tensor {
        Box::into_raw(Box::new(self))
    }
}

impl From<Tensor> for sealane_tensor {
    fn from(tensor: Tensor) -> Self {
        Self { dims: tensor.shape(), tensor, version: 0, from: None }
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

/// What a tensor is and where its bytes are. Pointers are valid as long as the tensor they describe; each function says how long that is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_view {
    /// Type, shape and flags.
    pub meta: sealane_meta,
    /// The bytes: row-major and little-endian, without gaps. Not NULL, also without bytes.
    pub data: *const c_void,
    /// How many there are.
    pub bytes: usize,
    /// The version of a tensor that was pulled, else 0.
    pub version: i64,
}

pub(crate) fn view(tensor: &Tensor, dims: &[u64], version: i64) -> sealane_view {
    let bytes = tensor.bytes();
    sealane_view { meta: told(tensor.meta(), dims), data: bytes.as_ptr().cast(), bytes: bytes.len(), version }
}

/// What a tensor is and where its bytes are. Valid until the tensor is freed. Of NULL it is a dead tensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_tensor_view(tensor: *const sealane_tensor) -> sealane_view {
    let seen = unpanicked(|| {
        // SAFETY: null, or a tensor of this library that was not freed.
        let tensor = unsafe { given(tensor, "tensor") }?;
        Ok(view(&tensor.tensor, &tensor.dims, tensor.version))
    });
    seen.unwrap_or_else(|_| view(&Tensor::dead(DType::U8), &[0], 0))
}

/// The task that pushed a tensor, for one that was accepted; else NULL. Ends in NUL, valid until the tensor is freed.
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
        // There is nobody to tell.
        drop(unpanicked);
    }
}
