//! Element types as in DLPack: a code, bits, lanes.

use std::fmt;

use crate::Error;

/// DLPack's type codes (`DLDataTypeCode`, DLPack 1.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum TypeCode {
    Int = 0,
    UInt = 1,
    Float = 2,
    OpaqueHandle = 3,
    Bfloat = 4,
    Complex = 5,
    Bool = 6,
    Float8E3m4 = 7,
    Float8E4m3 = 8,
    Float8E4m3b11fnuz = 9,
    Float8E4m3fn = 10,
    Float8E4m3fnuz = 11,
    Float8E5m2 = 12,
    Float8E5m2fnuz = 13,
    Float8E8m0fnu = 14,
    Float6E2m3fn = 15,
    Float6E3m2fn = 16,
    Float4E2m1fn = 17,
}

const CODES: [TypeCode; 18] = [
    TypeCode::Int,
    TypeCode::UInt,
    TypeCode::Float,
    TypeCode::OpaqueHandle,
    TypeCode::Bfloat,
    TypeCode::Complex,
    TypeCode::Bool,
    TypeCode::Float8E3m4,
    TypeCode::Float8E4m3,
    TypeCode::Float8E4m3b11fnuz,
    TypeCode::Float8E4m3fn,
    TypeCode::Float8E4m3fnuz,
    TypeCode::Float8E5m2,
    TypeCode::Float8E5m2fnuz,
    TypeCode::Float8E8m0fnu,
    TypeCode::Float6E2m3fn,
    TypeCode::Float6E3m2fn,
    TypeCode::Float4E2m1fn,
];

impl TypeCode {
    #[inline]
    pub(super) fn from_number(code: u8) -> Option<TypeCode> {
        CODES.get(usize::from(code)).copied()
    }
}

/// An element type: DLPack's `DLDataType`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DType {
    /// The kind of number.
    pub code: TypeCode,
    /// Bits of one lane: 1 to 255.
    pub bits: u8,
    /// Lanes of one element; 1 unless elements are vectors.
    pub lanes: u16,
}

impl DType {
    /// 32-bit float.
    pub const F32: DType = DType::scalar(TypeCode::Float, 32);
    /// 64-bit float.
    pub const F64: DType = DType::scalar(TypeCode::Float, 64);
    /// 16-bit IEEE float.
    pub const F16: DType = DType::scalar(TypeCode::Float, 16);
    /// 16-bit brain float.
    pub const BF16: DType = DType::scalar(TypeCode::Bfloat, 16);
    /// 8-bit signed integer.
    pub const I8: DType = DType::scalar(TypeCode::Int, 8);
    /// 16-bit signed integer.
    pub const I16: DType = DType::scalar(TypeCode::Int, 16);
    /// 32-bit signed integer.
    pub const I32: DType = DType::scalar(TypeCode::Int, 32);
    /// 64-bit signed integer.
    pub const I64: DType = DType::scalar(TypeCode::Int, 64);
    /// 8-bit unsigned integer.
    pub const U8: DType = DType::scalar(TypeCode::UInt, 8);
    /// 16-bit unsigned integer.
    pub const U16: DType = DType::scalar(TypeCode::UInt, 16);
    /// 32-bit unsigned integer.
    pub const U32: DType = DType::scalar(TypeCode::UInt, 32);
    /// 64-bit unsigned integer.
    pub const U64: DType = DType::scalar(TypeCode::UInt, 64);
    /// One byte per truth value.
    pub const BOOL: DType = DType::scalar(TypeCode::Bool, 8);
    /// Two 32-bit floats.
    pub const C64: DType = DType::scalar(TypeCode::Complex, 64);
    /// Two 64-bit floats.
    pub const C128: DType = DType::scalar(TypeCode::Complex, 128);

    /// A type of one lane.
    pub const fn scalar(code: TypeCode, bits: u8) -> DType {
        DType { code, bits, lanes: 1 }
    }

    /// A type from numbers that may be untrusted.
    ///
    /// # Errors
    /// InvalidArgument if the code is not DLPack's, or bits or lanes are 0.
    pub fn from_numbers(code: u8, bits: u8, lanes: u16) -> Result<DType, Error> {
        match TypeCode::from_number(code) {
            Some(code) if bits > 0 && lanes > 0 => Ok(DType { code, bits, lanes }),
            _ => Err(Error::invalid(format!("no DLPack type has code {code}, {bits} bits and {lanes} lanes"))),
        }
    }

    /// Bits of one element.
    pub fn element_bits(self) -> u64 {
        u64::from(self.bits) * u64::from(self.lanes)
    }

    /// Bytes of `count` elements packed without gaps; `None` if that overflows.
    pub fn bytes_of(self, count: u64) -> Option<u64> {
        Some(count.checked_mul(self.element_bits())?.div_ceil(8))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            TypeCode::Int => write!(f, "i{}", self.bits)?,
            TypeCode::UInt => write!(f, "u{}", self.bits)?,
            TypeCode::Float => write!(f, "f{}", self.bits)?,
            TypeCode::Bfloat => write!(f, "bf{}", self.bits)?,
            TypeCode::Complex => write!(f, "c{}", self.bits)?,
            TypeCode::Bool => write!(f, "bool")?,
            other => write!(f, "{other:?}")?,
        }
        if self.lanes > 1 { write!(f, "x{}", self.lanes) } else { Ok(()) }
    }
}
