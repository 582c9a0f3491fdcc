//! A tensor's metadata and bytes as they arrive over the wire, including strings.

use sealane_runtime::Buffer;
use sealane_transport::tensor::{DType, Tensor, TensorMeta};

use super::assert_says;

/// The first two bytes are the length of the metadata, which follows; the rest are the tensor's bytes.
pub(super) fn run(input: &[u8]) {
    let Some((length, rest)) = input.split_first_chunk() else { return };
    let (meta, data) = rest.split_at(usize::from(u16::from_le_bytes(*length)).min(rest.len()));
    match TensorMeta::from_wire(meta) {
        Err(error) => assert_says(&error),
        Ok(read) => {
            assert_eq!(read.as_wire(), meta);
            assert_eq!(read.shape().len(), read.rank());
            assert_says(&read.dtype());
            assert!(!format!("{read:?}").is_empty());
        }
    }
    match Tensor::from_wire(meta, Buffer::copy_of(data)) {
        Err(error) => assert_says(&error),
        Ok(tensor) => check(tensor, data),
    }
}

fn check(tensor: Tensor, data: &[u8]) {
    assert_eq!(tensor.bytes(), data);
    let count = tensor.meta().element_count();
    if tensor.meta().is_strings() {
        match tensor.strings() {
            Err(error) => assert_says(&error),
            Ok(strings) => {
                assert_eq!(strings.len() as u64, count);
                let again = Tensor::from_strings(&tensor.shape(), &strings).expect("its own strings");
                assert_eq!(again.strings().expect("just made"), strings);
            }
        }
    } else {
        assert!(tensor.strings().is_err());
        let bits = u128::from(tensor.dtype().bits) * u128::from(tensor.dtype().lanes);
        assert!(tensor.meta().is_dead() || u128::from(count) * bits <= data.len() as u128 * 8);
    }
    match tensor.elements::<f32>() {
        Ok(elements) => assert!(tensor.dtype() == DType::F32 && size_of_val(elements) == data.len()),
        Err(error) => assert_says(&error),
    }
    let meta = tensor.meta().clone();
    let shared = tensor.share().into_shared();
    assert_eq!((shared.meta(), shared.bytes()), (&meta, data));
    let (meta, payload) = tensor.into_parts();
    assert_eq!(Tensor::new(meta, payload).expect("the same parts").bytes(), data);
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let seed = |tensor: &Tensor| {
        let meta = tensor.meta().as_wire();
        [&(meta.len() as u16).to_le_bytes(), meta, tensor.bytes()].concat()
    };
    let strings = Tensor::from_strings(&[3], &["click", "", "Größe"]).expect("three strings");
    let numbers = Tensor::from_elements(&[2, 1], &[1.0_f32, -0.0]).expect("two numbers");
    let int4 = DType::scalar(sealane_transport::tensor::TypeCode::Int, 4);
    let halves = Tensor::new(TensorMeta::new(int4, &[3]).expect("a type"), vec![7, 7]).expect("two bytes");
    let empty = Tensor::from_elements::<u64>(&[u64::MAX, 0, u64::MAX], &[]).expect("no elements");
    [strings, numbers, halves, empty, Tensor::dead(DType::F64)].iter().map(seed).collect()
}
