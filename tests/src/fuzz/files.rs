//! Tensor files, `.npy` and `.safetensors`: what is read from a file and written again must read the same.

use std::path::Path;

use sealane_cli::files::{NamedTensor, decode, encode};
use sealane_fusion::Tensor;

use super::assert_says;

const NPY: &str = "tensor.npy";
const SAFETENSORS: &str = "tensors.safetensors";

pub(super) fn run_npy(input: &[u8]) {
    run(Path::new(NPY), input);
}

pub(super) fn run_safetensors(input: &[u8]) {
    run(Path::new(SAFETENSORS), input);
}

fn run(path: &Path, input: &[u8]) {
    let tensors = match decode(path, input.to_vec(), None) {
        Err(error) => return assert_says(&error),
        Ok(tensors) => tensors,
    };
    assert!(tensors.iter().map(|(_, tensor)| tensor.bytes().len()).sum::<usize>() <= input.len());
    let Some(first) = tensors.first() else { return };
    assert_eq!(decode(path, input.to_vec(), Some(&first.0)).map(|chosen| chosen.len()).ok(), Some(1));
    match encode(path, &tensors) {
        // A file may have types and names that are never written here.
        Err(error) => assert_says(&error),
        Ok(bytes) => {
            let again = decode(path, bytes, None).expect("its own file");
            assert_eq!(contents(&again), contents(&tensors));
        }
    }
}

fn contents(tensors: &[NamedTensor]) -> Vec<(&str, &[u8], &[u8])> {
    let mut contents: Vec<_> =
        tensors.iter().map(|(key, tensor)| (key.as_str(), tensor.meta().as_wire(), tensor.bytes())).collect();
    contents.sort_unstable();
    contents
}

pub(super) fn npy_seeds() -> Vec<Vec<u8>> {
    let seed = |tensor| encode(Path::new(NPY), &[("t".to_owned(), tensor)]).expect("a type that numpy has");
    let version_2 = [
        &b"\x93NUMPY\x02\0\x41\0\0\0"[..],
        b"{\"shape\": (2,3,), \"fortran_order\": False, \"descr\": \"|b1\"}        \n",
        &[1; 6],
    ];
    let big = b"\x93NUMPY\x01\0\x3a\0{'descr': '>f4', 'fortran_order': True, 'shape': (2, 2), }".to_vec();
    vec![numbers(seed, &[2, 3]), numbers(seed, &[]), numbers(seed, &[0, 7]), version_2.concat(), big]
}

pub(super) fn safetensors_seeds() -> Vec<Vec<u8>> {
    let path = Path::new(SAFETENSORS);
    let several = [
        ("small".to_owned(), Tensor::from_elements(&[3], &[1_u8, 2, 3]).expect("it fits")),
        ("large".to_owned(), Tensor::from_elements(&[], &[0.5_f64]).expect("it fits")),
        ("empty".to_owned(), Tensor::from_elements::<f32>(&[0, 5], &[]).expect("it fits")),
    ];
    let of_text = |text: &str, data: &[u8]| [&(text.len() as u64).to_le_bytes(), text.as_bytes(), data].concat();
    vec![
        encode(path, &several).expect("types that the format has"),
        encode(path, &several[..1]).expect("types that the format has"),
        of_text(r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}"#, &[7]),
        of_text(r#"{"a":{"dtype":"BF16","shape":[1,1],"data_offsets":[0,2]}}"#, &[0]),
    ]
}

fn numbers(seed: impl Fn(Tensor) -> Vec<u8>, shape: &[u64]) -> Vec<u8> {
    let count = shape.iter().product::<u64>();
    let elements: Vec<f32> = (0..count).map(|number| number as f32).collect();
    seed(Tensor::from_elements(shape, &elements).expect("it fits"))
}
