//! `.npy` files: numpy's format for one array, whose header is a Python dictionary of three entries (NEP 1). Pure code over bytes.

use bytes::Bytes;
use sealane_fusion::{DType, Tensor, TensorMeta, TypeCode};
use serde::Deserialize;
use serde_json::Value as Json;

use super::{NamedTensor, plain_dtype, unfit};

/// The first bytes of a file, before its version.
const MAGIC: &[u8] = b"\x93NUMPY";
/// Longest header that is read; one with 254 dimensions has some 5,000 bytes.
const HEADER_BYTES_MAX: usize = 64 * 1024;
/// Alignment in the file of the tensor's bytes.
const ALIGNMENT: usize = 64;
/// Length of magic, version and header length, in version 1.0.
const PREFIX_BYTES: usize = 10;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    /// numpy's name of the type, such as `<f4`; a list for records.
    descr: Json,
    /// True if the first dimension varies fastest.
    fortran_order: bool,
    shape: Vec<u64>,
}

impl Header {
    /// Reads the header of a file; also returns where the tensor's bytes begin.
    fn decode(file: &[u8]) -> Result<(Header, usize), String> {
        let truncated = || "the file ends within its header; copy it again".to_owned();
        if !file.starts_with(MAGIC) {
            return Err("byte 0: this is not a numpy file; save it with numpy.save".to_owned());
        }
        let (version, rest) = file[MAGIC.len()..].split_first_chunk::<2>().ok_or_else(truncated)?;
        let (length, rest) = match version {
            [1, 0] => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
                (usize::from(u16::from_le_bytes(*length)), rest)
            }
            [2 | 3, 0] => {
                let (length, rest) = rest.split_first_chunk().ok_or_else(truncated)?;
                (u32::from_le_bytes(*length) as usize, rest)
            }
            [major, minor] => {
                return Err(format!("byte 6: format version {major}.{minor} is unknown; 1.0, 2.0 and 3.0 are read"));
            }
        };
        if length > HEADER_BYTES_MAX {
            return Err(format!("byte 8: the header has {length} bytes; at most {HEADER_BYTES_MAX} are read"));
        }
        let text = String::from_utf8_lossy(rest.get(..length).ok_or_else(truncated)?);
        let header = serde_json::from_str(&json_of_python(&text))
            .map_err(|error| format!("the header's dictionary cannot be read ({error}); save the array again"))?;
        Ok((header, file.len() - rest.len() + length))
    }

    /// The start of a file of version 1.0, up to where the tensor's bytes begin.
    fn encode(&self) -> Vec<u8> {
        let Header { descr, fortran_order, shape } = self;
        let order = if *fortran_order { "True" } else { "False" };
        let mut shape = shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        if self.shape.len() == 1 {
            // Otherwise it would be a number in parentheses.
            shape.push(',');
        }
        let descr = descr.as_str().unwrap_or_default();
        let mut text = format!("{{'descr': '{descr}', 'fortran_order': {order}, 'shape': ({shape}), }}");
        let unpadded = PREFIX_BYTES + text.len() + 1;
        text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(ALIGNMENT) - unpadded));
        text.push('\n');
        let length = u16::try_from(text.len()).expect("254 dimensions of 20 digits are no 64 KiB");
        [MAGIC, &[1, 0], &length.to_le_bytes(), text.as_bytes()].concat()
    }
}

/// The Python that numpy writes is JSON except for its quotes, tuples, booleans and trailing commas. The JSON parser bounds what an
/// untrusted header can do.
fn json_of_python(text: &str) -> String {
    let mut json = String::with_capacity(text.len());
    for character in text.replace("True", "true").replace("False", "false").chars() {
        match character {
            '\'' => json.push('"'),
            '(' => json.push('['),
            ')' | ']' | '}' => {
                json.truncate(json.trim_end().trim_end_matches(',').len());
                json.push(if character == '}' { '}' } else { ']' });
            }
            other => json.push(other),
        }
    }
    json
}

/// Reads a whole file; the tensor keeps its memory.
pub(super) fn decode(file: Vec<u8>) -> Result<Tensor, String> {
    let (Header { descr, fortran_order, shape }, start) = Header::decode(&file)?;
    let dtype = match &descr {
        Json::Array(_) => return Err("the elements are records; save each field as an array of its own".to_owned()),
        descr => dtype_of(descr.as_str().unwrap_or_default())?,
    };
    if fortran_order && shape.len() > 1 {
        return Err("the array is in Fortran order; save numpy.ascontiguousarray of it".to_owned());
    }
    let meta = TensorMeta::new(dtype, &shape).map_err(|error| format!("invalid shape: {error}"))?;
    Tensor::new(meta, Bytes::from(file).slice(start..))
        .map_err(|error| format!("byte {start}: {error}; copy or save it again"))
}

/// The start of a file that contains the tensor.
pub(super) fn header(named: &NamedTensor) -> Result<Vec<u8>, String> {
    let tensor = &named.1;
    let descr = plain_dtype(tensor).and_then(descr_of);
    let descr = descr.ok_or_else(|| unfit("an .npy file", named, "numpy has no such type"))?;
    Ok(Header { descr: descr.into(), fortran_order: false, shape: tensor.shape().to_vec() }.encode())
}

/// The types that numpy and DLPack share: numpy's letter, DLPack's code, and the possible sizes of an element.
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
        [&header(&named).unwrap(), named.1.bytes()].concat()
    }

    fn file(descr: &str, fortran_order: bool, shape: &[u64], data: &[u8]) -> Vec<u8> {
        let header = Header { descr: descr.into(), fortran_order, shape: shape.to_vec() };
        [header.encode().as_slice(), data].concat()
    }

    /// A file of version 1.0 that consists of this header alone.
    fn of_text(text: &str) -> Vec<u8> {
        [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn headers_come_back_and_leave_the_bytes_aligned() {
        for shape in [vec![], vec![0], vec![7], vec![2, 3], vec![u64::MAX; 254]] {
            let header = Header { descr: "<f4".into(), fortran_order: false, shape };
            let bytes = header.encode();
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            assert_eq!(Header::decode(&bytes), Ok((header, bytes.len())));
        }
    }

    #[test]
    fn what_other_programs_write_is_read() {
        let expected = Header { descr: "|b1".into(), fortran_order: true, shape: vec![2, 3] };
        let text = "{\"shape\": (2,3,), \"fortran_order\": True, \"descr\": \"|b1\"}  \n";
        assert_eq!(Header::decode(&of_text(text)).unwrap().0, expected);
        let mut second = of_text(text);
        second.splice(6..10, [3, 0].into_iter().chain((text.len() as u32).to_le_bytes()));
        assert_eq!(Header::decode(&second), Ok((expected, second.len())));
    }

    #[test]
    fn what_is_wrong_with_a_header_is_said() {
        let problem = |file: &[u8]| decode(file.to_vec()).unwrap_err();
        assert!(problem(b"PK").starts_with("byte 0: "));
        assert!(problem(b"\x93NUMPY\x01").starts_with("the file ends within its header"));
        assert!(problem(b"\x93NUMPY\x04\x00").starts_with("byte 6: format version 4.0 is unknown"));
        assert!(problem(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").starts_with("byte 8: the header has 4294967295 bytes"));
        assert!(problem(b"\x93NUMPY\x01\x00\x09\x00{").starts_with("the file ends within its header"));
        for (text, says) in [
            ("{'x': 1}", "unknown field `x`"),
            ("{'descr': '<f4'", "EOF while parsing an object"),
            ("{'fortran_order': 1}", "invalid type: integer `1`, expected a boolean"),
            ("{'shape': (-1,)}", "invalid value: integer `-1`, expected u64"),
            ("{'shape': (18446744073709551616,)}", "expected u64"),
            ("{'shape': (1,)}", "missing field `descr`"),
            ("{'descr': ''}", "missing field `fortran_order`"),
            ("{'descr': '', 'fortran_order': True}", "missing field `shape`"),
            ("{'descr': '', 'fortran_order': True, 'shape': ()} {}", "trailing characters"),
            (&"(".repeat(60_000), "recursion limit exceeded"),
        ] {
            let problem = problem(&of_text(text));
            assert!(
                problem.starts_with("the header's dictionary cannot be read (") && problem.contains(says),
                "{problem}"
            );
        }
        let records = of_text("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }");
        assert!(problem(&records).starts_with("the elements are records; "));
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
    }
}
