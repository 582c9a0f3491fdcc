//! What clients read of tables: the numbers of rows as frames and records have them, and rows that were pushed.

use sealane::{Accepted, RowUpdate};
use sealane_runtime::Buffer;
use sealane_transport::limits::{META_BYTES_MAX, ROW_IDS_BYTES_MAX, ROW_IDS_MAX};
use sealane_transport::row_ids::{self, RowIds};
use sealane_transport::tensor::{DType, Tensor, TensorMeta};

use super::assert_says;

/// What pushed rows begin with.
const MAGIC: &[u8] = b"SL-rows2";

/// The first byte says which; the rest is read.
pub(super) fn run(input: &[u8]) {
    match input.split_first() {
        Some((0, numbers)) => read_numbers(numbers),
        Some((1, pushed)) => read_pushed(tensor(pushed)),
        // With metadata of its own: as the target `tensor` has it.
        Some((_, rest)) => {
            let Some((&length, rest)) = rest.split_first() else { return };
            let (meta, data) = rest.split_at(usize::from(length).min(rest.len()));
            if let Ok(tensor) = Tensor::from_wire(meta, Buffer::copy_of(data)) {
                read_pushed(tensor);
            }
        }
        None => {}
    }
}

fn read_numbers(bytes: &[u8]) {
    let ids = match RowIds::parse(bytes) {
        Err(error) => return assert_says(&error),
        Ok(ids) => ids,
    };
    assert!(ids.len() <= ROW_IDS_MAX && bytes.len() <= ROW_IDS_BYTES_MAX && ids.as_bytes() == bytes);
    let (mut numbers, mut again) = (vec![7], Vec::new());
    ids.decode(&mut numbers);
    assert_eq!((numbers.len(), numbers.is_empty()), (ids.len(), ids.is_empty()));
    let mut encoded = Vec::new();
    let count = row_ids::encode(&numbers, &mut encoded);
    RowIds::parse(&encoded).expect("just encoded").decode(&mut again);
    assert_eq!(again, numbers[..count]);
    assert!(count == numbers.len() || count > 0 && encoded.len() <= ROW_IDS_BYTES_MAX);
}

fn read_pushed(tensor: Tensor) {
    let bytes = tensor.len();
    match RowUpdate::of(Accepted { from: "worker0:2222".into(), tensor }) {
        Err(error) => assert_says(&error),
        Ok(RowUpdate { ids, rows, .. }) => {
            assert_eq!(rows.shape().first(), Some(&(ids.len() as u64)));
            assert!(rows.bytes().len() + 8 * ids.len() + MAGIC.len() <= bytes);
            rows.meta().check_bytes(rows.bytes().len() as u64).expect("a tensor");
        }
    }
}

fn tensor(bytes: &[u8]) -> Tensor {
    let meta = TensorMeta::new(DType::U8, &[bytes.len() as u64]).expect("one dimension");
    Tensor::new(meta, Buffer::copy_of(bytes)).expect("as many bytes")
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let numbers = |ids: &[u64]| {
        let mut bytes = Vec::new();
        row_ids::encode(ids, &mut bytes);
        [&[0], &bytes[..]].concat()
    };
    let meta = TensorMeta::new(DType::U16, &[2, 3]).expect("two dimensions");
    let meta = meta.as_wire();
    assert!(meta.len() <= META_BYTES_MAX);
    let [rows, key, length] = [2, 4, meta.len() as u64].map(u64::to_le_bytes);
    let mut pushed = [MAGIC, &rows, &key, &length, b"user\0\0\0\0", meta].concat();
    pushed.resize(pushed.len().next_multiple_of(8), 0);
    pushed.extend([5_u64, u64::MAX].iter().flat_map(|id| id.to_le_bytes()));
    pushed.resize(pushed.len().next_multiple_of(64), 0);
    pushed.extend([9; 12]);
    assert!(RowUpdate::of(Accepted { from: "worker0:2222".into(), tensor: tensor(&pushed) }).is_ok());
    let pushed = [&[1], &pushed[..]].concat();
    vec![pushed, numbers(&[5, 5, 700, 70_000]), numbers(&[9, 1, 3]), numbers(&[u64::MAX, 1]), numbers(&[])]
}
