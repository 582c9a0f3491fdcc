//! Rust's number types as tensor elements.

use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::DType;

/// A Rust type whose in-memory values are tensor elements.
pub trait Element: FromBytes + IntoBytes + Immutable + Copy {
    /// Its DLPack type.
    const DTYPE: DType;

    /// The elements in `bytes`, in place; `None` if they are misaligned or incomplete.
    fn slice_of(bytes: &[u8]) -> Option<&[Self]> {
        // An empty slice may be at any address.
        if bytes.is_empty() { Some(&[]) } else { <[Self]>::ref_from_bytes(bytes).ok() }
    }
}

macro_rules! element {
    ($($rust:ty => $dtype:ident),*) => { $(impl Element for $rust { const DTYPE: DType = DType::$dtype; })* };
}

element!(f32 => F32, f64 => F64, i8 => I8, i16 => I16, i32 => I32, i64 => I64, u8 => U8, u16 => U16, u32 => U32, u64 => U64);

// Values are sent as they are in memory, and the wire is little-endian.
const _: () = assert!(cfg!(target_endian = "little"), "Sealane runs on little-endian machines");
