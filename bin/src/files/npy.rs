//! `.npy` files: numpy's format for one array. Pure code over bytes.

use bytes::Bytes;
use sealane_fusion::{DType, Tensor, TensorMeta, TypeCode};

use super::npy_header::Header;
use super::{Layout, NamedTensor, Unfit, plain_dtype};

/// Reads a whole file, whose memory the tensor keeps.
pub(super) fn decode(file: Vec<u8>) -> Result<Tensor, String> {
    let (header, start) = Header::decode(&file)?;
    let dtype = dtype_of(&header.descr)?;
    if header.fortran_order && header.shape.len() > 1 {
        return Err("the array is in Fortran order; save numpy.ascontiguousarray of it".to_owned());
    }
    let meta = TensorMeta::new(dtype, &header.shape).map_err(|error| format!("invalid shape: {error}"))?;
    Tensor::new(meta, Bytes::from(file).slice(start..))
        .map_err(|error| format!("byte {start}: {error}; copy or save it again"))
}

/// The start of a file that holds the tensor.
pub(super) fn header(named: &NamedTensor) -> Result<Layout, Unfit> {
    let tensor = &named.1;
    let descr = plain_dtype(tensor).and_then(descr_of);
    let descr = descr.ok_or_else(|| Unfit::new("an .npy file", named, "numpy has no such type"))?;
    let header = Header { descr, fortran_order: false, shape: tensor.shape().to_vec() };
    Ok((header.encode(), vec![0]))
}

/// The types that numpy and DLPack share: numpy's letter, DLPack's code, and the bytes that an element may have.
const TYPES: [(char, TypeCode, &[u8]); 5] = [
    ('b', TypeCode::Bool, &[1]),
    ('i', TypeCode::Int, &[1, 2, 4, 8]),
    ('u', TypeCode::UInt, &[1, 2, 4, 8]),
    ('f', TypeCode::Float, &[2, 4, 8]),
    ('c', TypeCode::Complex, &[8, 16]),
];

fn dtype_of(descr: &str) -> Result<DType, String> {
    let unsupported = || {
        format!(
            "the elements are of type '{descr}'; \
             booleans, integers, floats of 2 to 8 bytes and complex numbers of 8 or 16 bytes can be sent"
        )
    };
    let mut letters = descr.chars();
    let (Some(order), Some(letter)) = (letters.next(), letters.next()) else { return Err(unsupported()) };
    let bytes: u8 = letters.as_str().parse().map_err(|_| unsupported())?;
    let known = TYPES.iter().find(|(of_type, _, sizes)| *of_type == letter && sizes.contains(&bytes));
    let (_, code, _) = known.ok_or_else(unsupported)?;
    match order {
        '<' => {}
        '|' if bytes == 1 => {}
        '>' => return Err(format!("the elements are big-endian ('{descr}'); save array.astype('<{}')", &descr[1..])),
        _ => return Err(unsupported()),
    }
    Ok(DType::scalar(*code, bytes * 8))
}

fn descr_of(dtype: DType) -> Option<String> {
    let bytes = dtype.bits / 8;
    let whole = dtype.lanes == 1 && dtype.bits.is_multiple_of(8);
    let known = TYPES.iter().find(|(_, code, sizes)| whole && *code == dtype.code && sizes.contains(&bytes));
    known.map(|(letter, _, _)| format!("{}{letter}{bytes}", if bytes == 1 { '|' } else { '<' }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use npyz::WriterBuilder;
    use proptest::prelude::*;

    fn npy(tensor: Tensor) -> Vec<u8> {
        let named = ("k".to_owned(), tensor);
        let (header, _) = header(&named).ok().unwrap();
        [header.as_slice(), named.1.bytes()].concat()
    }

    fn file(descr: &str, fortran_order: bool, shape: &[u64], data: &[u8]) -> Vec<u8> {
        let header = Header { descr: descr.to_owned(), fortran_order, shape: shape.to_vec() };
        [header.encode().as_slice(), data].concat()
    }

    #[test]
    fn every_shared_type_has_the_same_name_both_ways() {
        for (letter, code, sizes) in TYPES {
            for bytes in sizes {
                let descr = descr_of(DType::scalar(code, bytes * 8)).unwrap();
                assert!(descr.ends_with(&format!("{letter}{bytes}")), "{descr}");
                assert_eq!(dtype_of(&descr), Ok(DType::scalar(code, bytes * 8)));
            }
        }
        for dtype in [DType::BF16, DType::scalar(TypeCode::Int, 4), DType { lanes: 2, ..DType::F32 }] {
            assert_eq!(descr_of(dtype), None, "{dtype}");
        }
    }

    #[test]
    fn numpys_readers_read_what_is_written() {
        let tensor = Tensor::from_elements(&[2, 3], &[1_i32, -2, 3, -4, 5, -6]).unwrap();
        let bytes = npy(tensor);
        let read = npyz::NpyFile::new(bytes.as_slice()).unwrap();
        assert_eq!((read.shape(), read.order()), (&[2, 3][..], npyz::Order::C));
        assert_eq!(read.into_vec::<i32>().unwrap(), [1, -2, 3, -4, 5, -6]);
    }

    #[test]
    fn what_numpys_writers_write_is_read() {
        let mut bytes = Vec::new();
        let options = npyz::WriteOptions::new().default_dtype().shape(&[3, 1]).writer(&mut bytes);
        let mut writer = options.begin_nd().unwrap();
        writer.extend([0.5_f64, 1.5, 2.5]).unwrap();
        writer.finish().unwrap();
        let tensor = decode(bytes).unwrap();
        assert_eq!(tensor.shape().as_slice(), [3, 1]);
        assert_eq!(tensor.elements::<f64>().unwrap(), [0.5, 1.5, 2.5]);
    }

    #[test]
    fn what_cannot_be_sent_says_why() {
        let problem = |bytes| decode(bytes).unwrap_err();
        let big = problem(file(">f4", false, &[1], &[0; 4]));
        assert_eq!(big, "the elements are big-endian ('>f4'); save array.astype('<f4')");
        let fortran = problem(file("<f4", true, &[1, 1], &[0; 4]));
        assert!(fortran.ends_with("save numpy.ascontiguousarray of it"), "{fortran}");
        for descr in ["|O", "<U3", "|S8", "<M8[s]", "<f16", "|f4", "=f4", "", "<", "<f", "<f999", "é4"] {
            let unsupported = problem(file(descr, false, &[1], &[0; 4]));
            assert!(unsupported.starts_with("the elements are of type '"), "{unsupported}");
        }
        for data in [&[0; 7][..], &[0; 9]] {
            let length = problem(file("<f4", false, &[2], data));
            assert!(length.starts_with("byte 128: f32[2] takes 8 bytes, the data has "), "{length}");
        }
        let shape = problem(file("<f4", false, &[u64::MAX, 2], &[]));
        assert!(shape.starts_with("invalid shape: "), "{shape}");
    }

    #[test]
    fn order_means_nothing_for_one_dimension() {
        assert!(decode(file("<f4", true, &[2], &[0; 8])).is_ok());
    }

    proptest! {
        #[test]
        fn tensors_come_back(elements in proptest::collection::vec(any::<u16>(), 0..40)) {
            let tensor = Tensor::from_elements(&[elements.len() as u64], &elements).unwrap();
            let read = decode(npy(tensor)).unwrap();
            prop_assert_eq!(read.bytes(), elements.iter().flat_map(|e| e.to_le_bytes()).collect::<Vec<_>>());
            prop_assert_eq!(read.dtype(), DType::U16);
        }

        #[test]
        fn any_bytes_are_checked_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100), at in 0..128_usize) {
            let _ = decode(bytes.clone());
            let mut damaged = file("<f4", false, &[2, 2], &[0; 16]);
            let end = (at + bytes.len()).min(damaged.len());
            damaged[at..end].copy_from_slice(&bytes[..end - at]);
            let _ = decode(damaged);
        }
    }
}
