//! `.safetensors` files: many named tensors behind one JSON header. Pure code over bytes.

use bytes::Bytes;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use safetensors::{SafeTensorError, SafeTensors};
use sealane_fusion::{DType, Tensor, TensorMeta, TypeCode};
use sealane_transport::limits::KEY_BYTES_MAX;

use super::{NamedTensor, plain_dtype, unfit};

/// Size of the header's length, which begins a file.
const LENGTH_BYTES: usize = 8;
/// Longest header that is read: some 100,000 tensors.
const HEADER_BYTES_MAX: usize = 16 << 20;
/// The header's end is aligned to this, so that the tensors behind it are aligned.
const ALIGNMENT: usize = 8;
/// The entry of the header that is not a tensor.
const METADATA_KEY: &str = "__metadata__";

/// Reads a whole file: all tensors, or with `key` only that one. They share the file's memory.
pub(super) fn decode(file: Vec<u8>, key: Option<&str>) -> Result<Vec<NamedTensor>, String> {
    let header_bytes = file.first_chunk::<LENGTH_BYTES>().map_or(0, |length| u64::from_le_bytes(*length));
    if header_bytes > HEADER_BYTES_MAX as u64 {
        return Err(format!("byte 0: the header has {header_bytes} bytes; at most {HEADER_BYTES_MAX} are read"));
    }
    let (header_bytes, metadata) = SafeTensors::read_metadata(&file).map_err(|error| unreadable(&error))?;
    let data = Bytes::from(file).slice(LENGTH_BYTES + header_bytes..);
    let keys: Vec<String> =
        metadata.offset_keys().into_iter().filter(|name| key.is_none_or(|key| key == name)).collect();
    if let (Some(key), []) = (key, keys.as_slice()) {
        return Err(format!("there is no tensor {key}; omit --key to send all of them"));
    }
    keys.into_iter()
        .map(|key| {
            let info = metadata.info(&key).expect("the name is one of the metadata's");
            let tensor = tensor(&key, info, &data)?;
            Ok((key, tensor))
        })
        .collect()
}

fn tensor(key: &str, info: &TensorInfo, data: &Bytes) -> Result<Tensor, String> {
    if key.len() > KEY_BYTES_MAX {
        return Err(format!("a tensor's name has {} bytes; at most {KEY_BYTES_MAX} can be sent", key.len()));
    }
    let dtype =
        dtype_of(info.dtype).ok_or_else(|| format!("tensor {key} has type {}, which cannot be sent", info.dtype))?;
    let shape: Vec<u64> = info.shape.iter().map(|dimension| *dimension as u64).collect();
    let meta = TensorMeta::new(dtype, &shape).map_err(|error| format!("tensor {key} cannot be sent: {error}"))?;
    // The offsets were checked against the file's length when the metadata was read.
    let bytes = data.slice(info.data_offsets.0..info.data_offsets.1);
    Tensor::new(meta, bytes).map_err(|error| format!("tensor {key}: {error}"))
}

/// The header of a file with all tensors, and the order in which their bytes follow: large elements first, so that each tensor is
/// aligned to its elements.
pub(super) fn header(tensors: &[NamedTensor]) -> Result<(Vec<u8>, Vec<usize>), String> {
    const FORMAT: &str = "a .safetensors file";
    let mut entries = Vec::with_capacity(tensors.len());
    for (index, named) in tensors.iter().enumerate() {
        let unfit = |remedy| unfit(FORMAT, named, remedy);
        if named.0 == METADATA_KEY {
            return Err(unfit("the name means something else there"));
        }
        let dtype = plain_dtype(&named.1).and_then(of_dtype).ok_or_else(|| unfit("the format has no such type"))?;
        let shape = named.1.shape().iter().map(|dimension| *dimension as usize).collect();
        entries.push((index, TensorInfo { dtype, shape, data_offsets: (0, 0) }));
    }
    entries.sort_by(|(one, a), (other, b)| b.dtype.cmp(&a.dtype).then(tensors[*one].0.cmp(&tensors[*other].0)));
    let mut end = 0;
    for (index, info) in &mut entries {
        let start = end;
        end += tensors[*index].1.bytes().len();
        info.data_offsets = (start, end);
    }
    let order: Vec<usize> = entries.iter().map(|(index, _)| *index).collect();
    let infos = entries.into_iter().map(|(index, info)| (tensors[index].0.clone(), info)).collect();
    let metadata = Metadata::new(None, infos);
    // The tensors' sizes were checked when they were made; the remaining error is elements smaller than a byte that do not fill
    // one.
    let metadata = metadata.map_err(|_| unfit(FORMAT, &tensors[0], "elements that fill no byte stay within one"))?;
    let mut text = serde_json::to_vec(&metadata).expect("names and numbers are JSON");
    text.resize(text.len().next_multiple_of(ALIGNMENT), b' ');
    Ok(([&(text.len() as u64).to_le_bytes(), text.as_slice()].concat(), order))
}

fn unreadable(error: &SafeTensorError) -> String {
    format!("the header cannot be used ({error}); save or copy the file again")
}

/// The types that safetensors and DLPack share.
const TYPES: [(Dtype, DType); 22] = [
    (Dtype::BOOL, DType::BOOL),
    (Dtype::F4, DType::scalar(TypeCode::Float4E2m1fn, 4)),
    (Dtype::F6_E2M3, DType::scalar(TypeCode::Float6E2m3fn, 6)),
    (Dtype::F6_E3M2, DType::scalar(TypeCode::Float6E3m2fn, 6)),
    (Dtype::U8, DType::U8),
    (Dtype::I8, DType::I8),
    (Dtype::F8_E5M2, DType::scalar(TypeCode::Float8E5m2, 8)),
    (Dtype::F8_E4M3, DType::scalar(TypeCode::Float8E4m3fn, 8)),
    (Dtype::F8_E8M0, DType::scalar(TypeCode::Float8E8m0fnu, 8)),
    (Dtype::F8_E4M3FNUZ, DType::scalar(TypeCode::Float8E4m3fnuz, 8)),
    (Dtype::F8_E5M2FNUZ, DType::scalar(TypeCode::Float8E5m2fnuz, 8)),
    (Dtype::I16, DType::I16),
    (Dtype::U16, DType::U16),
    (Dtype::F16, DType::F16),
    (Dtype::BF16, DType::BF16),
    (Dtype::I32, DType::I32),
    (Dtype::U32, DType::U32),
    (Dtype::F32, DType::F32),
    (Dtype::C64, DType::C64),
    (Dtype::F64, DType::F64),
    (Dtype::I64, DType::I64),
    (Dtype::U64, DType::U64),
];

/// `None` for a type that a later version of the format adds.
fn dtype_of(dtype: Dtype) -> Option<DType> {
    TYPES.iter().find(|(theirs, _)| *theirs == dtype).map(|(_, ours)| *ours)
}

fn of_dtype(dtype: DType) -> Option<Dtype> {
    TYPES.iter().find(|(_, ours)| *ours == dtype).map(|(theirs, _)| *theirs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use safetensors::tensor::TensorView;

    fn encode(tensors: &[NamedTensor]) -> Vec<u8> {
        let (mut bytes, order) = header(tensors).ok().unwrap();
        order.into_iter().for_each(|index| bytes.extend_from_slice(tensors[index].1.bytes()));
        bytes
    }

    fn named(key: &str, dtype: DType, shape: &[u64], data: Vec<u8>) -> NamedTensor {
        (key.to_owned(), Tensor::new(TensorMeta::new(dtype, shape).unwrap(), data).unwrap())
    }

    fn of_text(text: &str, data: &[u8]) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text.as_bytes(), data].concat()
    }

    #[test]
    fn every_type_comes_back() {
        for (theirs, ours) in TYPES {
            let data = vec![7; theirs.bitsize()];
            let tensors = [named("t", ours, &[2, 4], data.clone())];
            let read = decode(encode(&tensors), None).unwrap();
            assert_eq!((read[0].1.meta(), read[0].1.bytes()), (tensors[0].1.meta(), data.as_slice()), "{theirs}");
        }
    }

    #[test]
    fn other_readers_read_what_is_written_and_the_reverse() {
        let tensors = [
            named("small", DType::BF16, &[3], vec![1, 2, 3, 4, 5, 6]),
            named("large", DType::F64, &[], vec![8; 8]),
            named("empty", DType::F32, &[0, 5], Vec::new()),
        ];
        let bytes = encode(&tensors);
        let read = SafeTensors::deserialize(&bytes).unwrap();
        for (key, tensor) in &tensors {
            assert_eq!(read.tensor(key).unwrap().data(), tensor.bytes());
        }
        let view = |key| (key, read.tensor(key).unwrap());
        let theirs = safetensors::serialize::<&str, TensorView<'_>, _>(["large", "small", "empty"].map(view), None);
        assert_eq!(theirs.unwrap(), bytes);
    }

    #[test]
    fn a_key_chooses_one() {
        let bytes = encode(&[named("a", DType::U8, &[1], vec![1]), named("b", DType::U8, &[1], vec![2])]);
        let chosen = decode(bytes.clone(), Some("b")).unwrap();
        assert_eq!((chosen.len(), chosen[0].1.bytes()), (1, &[2][..]));
        assert!(decode(bytes, Some("c")).unwrap_err().starts_with("there is no tensor c; "));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let problem = |bytes: Vec<u8>| decode(bytes, None).unwrap_err();
        assert!(problem(vec![1]).starts_with("the header cannot be used ("));
        assert!(problem(vec![0xff; 9]).starts_with("byte 0: the header has 18446744073709551615 bytes; "));
        let short = of_text(r#"{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, &[0]);
        assert!(problem(short).contains("incomplete metadata"));
        let unknown = of_text(r#"{"a":{"dtype":"X9","shape":[2],"data_offsets":[0,2]}}"#, &[0, 0]);
        assert!(problem(unknown).contains("X9"));
        let long = "x".repeat(KEY_BYTES_MAX + 1);
        let long = of_text(&format!(r#"{{"{long}":{{"dtype":"U8","shape":[],"data_offsets":[0,1]}}}}"#), &[0]);
        assert!(problem(long).starts_with("a tensor's name has 4097 bytes; "));
        let rank = vec![1; 255];
        let rank = of_text(&format!(r#"{{"a":{{"dtype":"U8","shape":{rank:?},"data_offsets":[0,1]}}}}"#), &[0]);
        assert!(problem(rank).starts_with("tensor a cannot be sent: 255 dimensions"));
    }

    #[test]
    fn what_the_format_cannot_hold_is_refused() {
        let odd = DType::scalar(TypeCode::Float4E2m1fn, 4);
        for (tensor, remedy) in [
            (named("a", DType::C128, &[], vec![0; 16]), "the format has no such type"),
            (named(METADATA_KEY, DType::U8, &[1], vec![0]), "the name means something else there"),
            (named("a", odd, &[3], vec![0; 2]), "elements that fill no byte stay within one"),
        ] {
            let error = header(&[tensor]).err().unwrap();
            assert!(error.ends_with(&format!("; {remedy}")), "{error}");
        }
    }

    proptest! {
        #[test]
        fn any_offsets_are_checked_without_panic(shape in any::<[u64; 2]>(), start in any::<u64>(), end in any::<u64>()) {
            let text = format!(r#"{{"a":{{"dtype":"F32","shape":{shape:?},"data_offsets":[{start},{end}]}}}}"#);
            let _ = decode(of_text(&text, &[0; 8]), None);
        }
    }
}
