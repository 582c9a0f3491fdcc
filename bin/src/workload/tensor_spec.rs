//! One tensor of a workload: its name, type and shape, checked. Plain data.

use std::sync::Arc;

use sealane_fusion::{DType, TensorMeta};
use sealane_transport::limits::KEY_BYTES_MAX;
use serde::Deserialize;

/// Largest tensor of a workload: what an engine accepts by default.
const TENSOR_BYTES_MAX: u64 = 4 << 30;

/// The type of a tensor for which the file names none.
const DTYPE_DEFAULT: DType = DType::F32;

/// The types that a workload may name, by what they are called when they are shown.
const DTYPES: [DType; 15] = [
    DType::F16,
    DType::BF16,
    DType::F32,
    DType::F64,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::BOOL,
    DType::C64,
    DType::C128,
];

/// A tensor as a workload file describes it.
#[derive(Deserialize)]
pub(super) struct TensorEntry {
    name: String,
    shape: Vec<u64>,
    dtype: Option<String>,
}

/// A tensor of a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    name: Arc<str>,
    meta: TensorMeta,
    bytes: u64,
}

impl TensorSpec {
    pub(super) fn of(entry: TensorEntry, dtype: Option<&str>) -> Result<TensorSpec, String> {
        let TensorEntry { name, shape, dtype: own } = entry;
        if name.is_empty() || name.len() > KEY_BYTES_MAX {
            return Err(format!("a tensor's name has {} bytes; 1 to {KEY_BYTES_MAX} are accepted", name.len()));
        }
        let dtype = match own.as_deref().or(dtype) {
            None => DTYPE_DEFAULT,
            Some(text) => dtype_named(text).ok_or_else(|| {
                let known = DTYPES.map(|dtype| dtype.to_string()).join(", ");
                format!("tensor {name} has dtype {text}; write one of {known}")
            })?,
        };
        let meta = TensorMeta::new(dtype, &shape).map_err(|error| format!("tensor {name} is invalid: {error}"))?;
        match dtype.bytes_of(meta.element_count()) {
            Some(bytes) if bytes <= TENSOR_BYTES_MAX => Ok(TensorSpec { name: name.into(), meta, bytes }),
            _ => Err(format!("tensor {name} of shape {shape:?} has more than {TENSOR_BYTES_MAX} bytes; split it")),
        }
    }

    /// Its name, which is its key.
    pub fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Its type and shape.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.meta.dtype()
    }

    /// Its size.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn dtype_named(text: &str) -> Option<DType> {
    DTYPES.into_iter().find(|dtype| dtype.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, shape: &[u64], own: Option<&str>, common: Option<&str>) -> Result<TensorSpec, String> {
        let entry = TensorEntry { name: name.into(), shape: shape.into(), dtype: own.map(str::to_owned) };
        TensorSpec::of(entry, common)
    }

    #[test]
    fn the_nearest_dtype_counts() {
        assert_eq!(spec("a", &[3], None, None).unwrap().dtype(), DType::F32);
        assert_eq!(spec("a", &[3], None, Some("f16")).unwrap().bytes(), 6);
        assert_eq!(spec("a", &[3], Some("i64"), Some("f16")).unwrap().bytes(), 24);
        for dtype in DTYPES {
            assert_eq!(dtype_named(&dtype.to_string()), Some(dtype));
        }
    }

    #[test]
    fn names_and_sizes_have_limits() {
        assert!(spec("", &[], None, None).unwrap_err().starts_with("a tensor's name has 0 bytes; "));
        assert!(spec(&"x".repeat(KEY_BYTES_MAX + 1), &[], None, None).is_err());
        assert_eq!(spec("a", &[1 << 30], None, None).unwrap().bytes(), TENSOR_BYTES_MAX);
        assert!(spec("a", &[(1 << 30) + 1], None, None).unwrap_err().ends_with("; split it"));
        assert!(spec("a", &[1 << 40, 1 << 40], None, None).unwrap_err().starts_with("tensor a is invalid: "));
        assert_eq!(spec("a", &[1 << 40, 0], None, None).unwrap().bytes(), 0);
    }
}
