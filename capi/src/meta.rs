//! Type, shape and flags of a tensor, in DLPack's terms: conversion in both directions.
#![allow(unsafe_code)]

use sealane::{DType, Tensor, TensorMeta};

use crate::{error::sealane_error, guard::Outcome, input::array};

/// Flag: a dead tensor, as TensorFlow's control flow sends it for a branch that was not taken. It has no bytes, and its shape is
/// ignored.
pub const SEALANE_DEAD: u8 = 1;

/// Flag: a tensor of byte strings. Its type is bytes (code SEALANE_UINT, 8 bits, 1 lane); its data is one uint64_t
/// offset per string and one for the end, relative to the first text byte, followed by the texts without separators.
pub const SEALANE_STRINGS: u8 = 2;

/// DLPack's code of signed integers.
pub const SEALANE_INT: u8 = 0;
/// DLPack's code of unsigned integers.
pub const SEALANE_UINT: u8 = 1;
/// DLPack's code of IEEE floating-point numbers.
pub const SEALANE_FLOAT: u8 = 2;
/// DLPack's code of an opaque handle: with 8 bits, bytes that only the two sides understand; their number is the only
/// dimension.
pub const SEALANE_OPAQUE: u8 = 3;
/// DLPack's code of bfloat16.
pub const SEALANE_BFLOAT: u8 = 4;
/// DLPack's code of complex numbers; bits are those of both parts.
pub const SEALANE_COMPLEX: u8 = 5;
/// DLPack's code of booleans.
pub const SEALANE_BOOL: u8 = 6;

/// Maximum number of dimensions of a tensor.
pub const SEALANE_RANK_MAX: u8 = 254;

/// Type, shape and flags of a tensor.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_meta {
    /// DLPack's DLDataTypeCode: SEALANE_FLOAT, for example. Codes up to 17 (DLPack 1.1) are known.
    pub code: u8,
    /// Bits of one lane, 1 to 255. Elements of fewer than 8 are packed.
    pub bits: u8,
    /// Lanes of one element; 1 unless elements are vectors.
    pub lanes: u16,
    /// 0, or SEALANE_DEAD or SEALANE_STRINGS.
    pub flags: u8,
    /// Number of dimensions, 0 to SEALANE_RANK_MAX; 0 for a scalar.
    pub rank: u8,
    /// 0.
    pub reserved: u16,
    /// The dimensions, outermost first. May be NULL if there are none.
    pub dims: *const u64,
}

/// Metadata from C code.
///
/// # Errors
/// InvalidArgument if it is invalid.
///
/// # Safety
/// As `sealane_meta` says of its dimensions.
pub(crate) unsafe fn meta(given: &sealane_meta) -> Outcome<TensorMeta> {
    let sealane_meta { code, bits, lanes, flags, rank, reserved, dims } = *given;
    if ![0, SEALANE_DEAD, SEALANE_STRINGS].contains(&flags) || reserved != 0 {
        let reason = format!("tensor metadata: the flags {flags:#x} or the reserved {reserved:#x} are not known");
        return Err(sealane_error::invalid(reason));
    }
    let dtype = DType::from_numbers(code, bits, lanes)?;
    if flags == SEALANE_DEAD {
        return Ok(Tensor::dead(dtype).into_parts().0);
    }
    // SAFETY: as this function's caller promises.
    let dims = unsafe { array(dims, rank.into(), "dims") }?;
    if flags != SEALANE_STRINGS {
        return Ok(TensorMeta::new(dtype, dims)?);
    }
    if dtype != DType::U8 {
        return Err(sealane_error::invalid(format!("a tensor of strings has the type of bytes, u8, not {dtype}")));
    }
    Ok(TensorMeta::strings(dims)?)
}

/// Metadata for C code, with its dimensions in `dims`.
pub(crate) fn told(meta: &TensorMeta, dims: &[u64]) -> sealane_meta {
    let dtype = meta.dtype();
    sealane_meta {
        code: dtype.code as u8,
        bits: dtype.bits,
        lanes: dtype.lanes,
        flags: match (meta.is_dead(), meta.is_strings()) {
            (true, _) => SEALANE_DEAD,
            (_, true) => SEALANE_STRINGS,
            _ => 0,
        },
        rank: meta.rank() as u8,
        reserved: 0,
        dims: dims.as_ptr(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{sealane_code, sealane_error_code};

    fn given(code: u8, bits: u8, flags: u8, dims: &[u64]) -> sealane_meta {
        let rank = dims.len() as u8;
        sealane_meta { code, bits, lanes: 1, flags, rank, reserved: 0, dims: dims.as_ptr() }
    }

    fn made(given: &sealane_meta) -> Outcome<TensorMeta> {
        // SAFETY: the dimensions are those of a slice, or missing.
        unsafe { meta(given) }
    }

    #[test]
    fn what_is_given_is_told_again() {
        let of_all = [(SEALANE_FLOAT, 32, 0), (SEALANE_UINT, 8, SEALANE_STRINGS), (SEALANE_OPAQUE, 8, 0)];
        for (code, bits, flags) in of_all {
            let dims = [2, 3];
            let meta = made(&given(code, bits, flags, &dims)).unwrap();
            let again = told(&meta, &dims);
            assert_eq!((again.code, again.bits, again.lanes, again.flags, again.rank), (code, bits, 1, flags, 2));
        }
        assert!(made(&given(SEALANE_FLOAT, 32, SEALANE_DEAD, &[])).unwrap().is_dead());
        assert_eq!(made(&given(SEALANE_INT, 8, 0, &[1; 254])).unwrap().rank(), 254);
    }

    #[test]
    fn what_is_no_metadata_is_refused() {
        let huge = [1 << 40, 1 << 40];
        let bad = [
            given(99, 8, 0, &[]),
            given(SEALANE_INT, 0, 0, &[]),
            sealane_meta { lanes: 0, ..given(SEALANE_INT, 8, 0, &[]) },
            given(SEALANE_INT, 8, 4, &[]),
            given(SEALANE_INT, 8, 3, &[]),
            sealane_meta { reserved: 1, ..given(SEALANE_INT, 8, 0, &[]) },
            given(SEALANE_FLOAT, 32, SEALANE_STRINGS, &[1]),
            given(SEALANE_INT, 8, 0, &[1; 255]),
            sealane_meta { rank: 2, dims: std::ptr::null(), ..given(SEALANE_INT, 8, 0, &[]) },
            given(SEALANE_FLOAT, 64, 0, &huge),
        ];
        for bad in bad {
            let error = made(&bad).unwrap_err();
            // SAFETY: the error lives.
            assert_eq!(unsafe { sealane_error_code(&error) }, sealane_code::InvalidArgument, "{bad:?}");
        }
    }
}
