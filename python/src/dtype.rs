//! Element types by the names that numpy and related packages give them. No I/O.

use std::borrow::Cow;

use sealane::{DType, TypeCode};

/// The types that numpy itself knows, so that arrays of them can be made.
pub(crate) const NUMPY: [(&str, DType); 14] = [
    ("bool", DType::BOOL),
    ("int8", DType::I8),
    ("int16", DType::I16),
    ("int32", DType::I32),
    ("int64", DType::I64),
    ("uint8", DType::U8),
    ("uint16", DType::U16),
    ("uint32", DType::U32),
    ("uint64", DType::U64),
    ("float16", DType::F16),
    ("float32", DType::F32),
    ("float64", DType::F64),
    ("complex64", DType::C64),
    ("complex128", DType::C128),
];

/// Further types of frameworks, by their names in `ml_dtypes`; they have the same layout in memory, in whole bytes.
const BEYOND_NUMPY: [(&str, DType); 9] = [
    ("bfloat16", DType::BF16),
    ("float8_e3m4", DType::scalar(TypeCode::Float8E3m4, 8)),
    ("float8_e4m3", DType::scalar(TypeCode::Float8E4m3, 8)),
    ("float8_e4m3b11fnuz", DType::scalar(TypeCode::Float8E4m3b11fnuz, 8)),
    ("float8_e4m3fn", DType::scalar(TypeCode::Float8E4m3fn, 8)),
    ("float8_e4m3fnuz", DType::scalar(TypeCode::Float8E4m3fnuz, 8)),
    ("float8_e5m2", DType::scalar(TypeCode::Float8E5m2, 8)),
    ("float8_e5m2fnuz", DType::scalar(TypeCode::Float8E5m2fnuz, 8)),
    ("float8_e8m0fnu", DType::scalar(TypeCode::Float8E8m0fnu, 8)),
];

pub(crate) fn by_name(name: &str) -> Option<DType> {
    NUMPY.iter().chain(&BEYOND_NUMPY).find(|(known, _)| *known == name).map(|(_, dtype)| *dtype)
}

/// The name of the type; DLPack's types without a name in numpy or `ml_dtypes` are described.
pub(crate) fn name(dtype: DType) -> Cow<'static, str> {
    let known = NUMPY.iter().chain(&BEYOND_NUMPY).find(|(_, known)| *known == dtype);
    known.map_or_else(|| dtype.to_string().into(), |(name, _)| Cow::Borrowed(*name))
}

/// Its index in [`NUMPY`].
pub(crate) fn numpy_place(dtype: DType) -> Option<usize> {
    NUMPY.iter().position(|(_, known)| *known == dtype)
}

/// The type of an element of a buffer, from its format in the `struct` module and its size.
///
/// # Errors
/// The reason.
pub(crate) fn of_format(format: &str, itemsize: usize) -> Result<DType, String> {
    let (order, kind) = match format.as_bytes() {
        [order @ (b'@' | b'=' | b'<' | b'>' | b'!'), kind @ ..] => (*order, kind),
        kind => (b'@', kind),
    };
    if matches!(order, b'>' | b'!') && itemsize > 1 {
        return Err("the buffer's elements are big-endian: convert them to the machine's byte order first".into());
    }
    let code = match kind {
        b"?" => TypeCode::Bool,
        b"b" | b"h" | b"i" | b"l" | b"q" | b"n" => TypeCode::Int,
        b"B" | b"H" | b"I" | b"L" | b"Q" | b"N" | b"c" => TypeCode::UInt,
        b"e" | b"f" | b"d" => TypeCode::Float,
        b"Zf" | b"Zd" => TypeCode::Complex,
        _ => return Err(format!("no tensor has elements of the format '{format}'")),
    };
    Ok(DType::scalar(code, (itemsize * 8) as u8))
}

/// The format of the `struct` module for a type that it knows.
pub(crate) fn format(dtype: DType) -> Option<&'static std::ffi::CStr> {
    const FORMATS: [&std::ffi::CStr; NUMPY.len()] =
        [c"?", c"b", c"h", c"i", c"q", c"B", c"H", c"I", c"Q", c"e", c"f", c"d", c"Zf", c"Zd"];
    numpy_place(dtype).map(|place| FORMATS[place])
}
