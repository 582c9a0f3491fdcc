//! What clients read of tables: row numbers in frames and records, the places of tables, and rows that were pushed.

use sealane::{Accepted, RowUpdate};
use sealane_runtime::Buffer;
use sealane_transport::gathered_rows::{self, Part};
use sealane_transport::limits::{
    META_BYTES_MAX, NAMED_TABLES_MAX, ROW_IDS_BYTES_MAX, ROW_IDS_MAX, TABLE_KEY_BYTES_MAX,
};
use sealane_transport::named_rows::{NamedRows, NamedRowsBuf, OfTable};
use sealane_transport::row_ids::{self, RowIds};
use sealane_transport::shm::Span;
use sealane_transport::shm::table_places::{self, Place, TablePlace};
use sealane_transport::tensor::{DType, Tensor, TensorMeta};

use super::assert_says;

/// The first bytes of pushed rows.
const MAGIC: &[u8] = b"SL-rows3";

/// The first byte selects what is read; the rest is read.
pub(super) fn run(input: &[u8]) {
    match input.split_first() {
        Some((0, numbers)) => read_numbers(numbers),
        Some((1, pushed)) => read_pushed(tensor(pushed)),
        Some((2, named)) => read_named(named),
        Some((3, answer)) => read_answer(answer),
        Some((4, answer)) => read_places(answer),
        // With metadata of its own, as in the target `tensor`.
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
    let (mut numbers, mut again) = (Vec::new(), Vec::new());
    ids.decode(&mut numbers);
    assert_eq!((numbers.len(), numbers.is_empty()), (ids.len(), ids.is_empty()));
    let mut encoded = Vec::new();
    let count = row_ids::encode(&numbers, ROW_IDS_BYTES_MAX, &mut encoded);
    RowIds::parse(&encoded).expect("just encoded").decode(&mut again);
    assert_eq!(again, numbers[..count]);
    assert!(count == numbers.len() || count > 0 && encoded.len() <= ROW_IDS_BYTES_MAX);
}

fn read_named(bytes: &[u8]) {
    let rows = match NamedRows::parse(bytes) {
        Err(error) => return assert_says(&error),
        Ok(rows) => rows,
    };
    assert!((1..=NAMED_TABLES_MAX).contains(&rows.len()) && rows.as_bytes() == bytes);
    let (mut again, mut numbers) = (NamedRowsBuf::default(), Vec::new());
    for OfTable { key, ids, named } in rows.iter() {
        numbers.clear();
        ids.decode(&mut numbers);
        assert!(key.len() <= TABLE_KEY_BYTES_MAX && numbers.len() == ids.len());
        if again.name(key, &numbers, |_| named) != Some(numbers.len()) {
            return;
        }
    }
    assert_eq!(again.as_rows().iter().count(), rows.len());
}

/// Reads gathered rows; the first byte is the number of tables.
fn read_answer(bytes: &[u8]) {
    let Some((&tables, answer)) = bytes.split_first() else { return };
    match gathered_rows::read(answer, tables.into()) {
        Err(error) => assert_says(&error),
        Ok(parts) => {
            assert!(parts.iter().map(|part| part.rows.len()).sum::<usize>() <= answer.len());
            for part in parts {
                part.meta.check_bytes(part.rows.len() as u64).expect("a tensor");
                assert!(part.meta.rank() > 0);
            }
        }
    }
}

/// Reads places of tables; the first byte is the number of tables.
fn read_places(bytes: &[u8]) {
    let Some((&tables, answer)) = bytes.split_first() else { return };
    match table_places::read(answer, tables.into()) {
        Err(error) => assert_says(&error),
        Ok(places) => {
            assert_eq!(places.len(), usize::from(tables));
            for TablePlace { meta, place } in places {
                assert!(meta.rank() > 0 && place.is_none_or(|place| meta.check_bytes(place.rows.len).is_ok()));
            }
        }
    }
}

fn read_pushed(tensor: Tensor) {
    let bytes = tensor.len();
    match RowUpdate::all_of(Accepted { from: "worker0:2222".into(), tensor }) {
        Err(error) => assert_says(&error),
        Ok(updates) => {
            let mut read = MAGIC.len();
            for RowUpdate { ids, rows, .. } in updates {
                assert_eq!(rows.shape().first(), Some(&(ids.len() as u64)));
                rows.meta().check_bytes(rows.bytes().len() as u64).expect("a tensor");
                read += rows.bytes().len() + 8 * ids.len();
            }
            assert!(read <= bytes);
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
        row_ids::encode(ids, ROW_IDS_BYTES_MAX, &mut bytes);
        [&[0], &bytes[..]].concat()
    };
    let meta = TensorMeta::new(DType::U16, &[2, 3]).expect("two dimensions");
    let meta = meta.as_wire();
    assert!(meta.len() <= META_BYTES_MAX);
    let mut pushed = [MAGIC, &2_u64.to_le_bytes()].concat();
    for key in [b"user", b"item"] {
        let lengths = [2, 4, meta.len() as u64, 12].map(u64::to_le_bytes);
        pushed.resize(pushed.len().next_multiple_of(8), 0);
        pushed.extend([lengths.as_flattened(), key, &[0; 4], meta].concat());
        pushed.resize(pushed.len().next_multiple_of(8), 0);
        pushed.extend([5_u64, u64::MAX].iter().flat_map(|id| id.to_le_bytes()));
        pushed.resize(pushed.len().next_multiple_of(64), 0);
        pushed.extend([9; 12]);
    }
    assert!(RowUpdate::all_of(Accepted { from: "worker0:2222".into(), tensor: tensor(&pushed) }).is_ok());
    let pushed = [&[1], &pushed[..]].concat();
    let mut named = NamedRowsBuf::default();
    for (key, ids) in [("user", &[5, 700][..]), ("item", &[9, 1]), ("none", &[])] {
        named.name(key, ids, |count| count as u32);
    }
    let mut parts = [2, 0].map(|rows| {
        let meta = TensorMeta::new(DType::U16, &[rows, 3]).expect("two dimensions");
        Part::new(9, meta, rows as usize * 6)
    });
    let heads = gathered_rows::heads(parts.iter());
    let mut answer = vec![7; gathered_rows::lay_out(parts.iter_mut(), heads).expect("it is small")];
    gathered_rows::write_heads(parts.iter(), |at, head| answer[at..][..head.len()].copy_from_slice(head));
    assert!(gathered_rows::read(&answer, 2).is_ok());
    let span = |offset, len| Span { offset, len };
    let place = Place { arena: 7, rows: span(64, 12), locks: span(4096, 64) };
    let table = TensorMeta::new(DType::U16, &[2, 3]).expect("two dimensions");
    let places = table_places::write([(&table, Some(place)), (&table, None)].into_iter());
    assert!(table_places::read(&places, 2).is_ok());
    let places = [&[4, 2], &places[..]].concat();
    let (named, answer) = ([&[2], named.as_rows().as_bytes()].concat(), [&[3, 2], &answer[..]].concat());
    vec![
        pushed,
        named,
        answer,
        places,
        numbers(&[5, 5, 700, 70_000]),
        numbers(&[9, 1, 3]),
        numbers(&[u64::MAX, 1]),
        numbers(&[]),
    ]
}
