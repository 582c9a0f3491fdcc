//! Where tables are that a client reads itself: the answer to [`Submission::Rows`](super::Submission::Rows) with `views`.
//! One entry for each table named in the request.
//!
//! The answer is a tensor of bytes in the client's receive area. As long as the client keeps that memory, the tables stay
//! where they are, whatever their owners do; but only while the daemon lives.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Span;
use crate::error::Error;
use crate::gathered_rows::split_meta;
use crate::tensor::TensorMeta;

/// Where one table is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePlace {
    /// The metadata of the whole table, whose first dimension counts its rows.
    pub meta: TensorMeta,
    /// Where it is; `None` if the client may not read it there and must request its rows.
    pub place: Option<Place>,
}

/// A place in the arena of another client of the same user, not yet checked against the arena's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of the arena.
    pub arena: u64,
    /// The rows, contiguous.
    pub rows: Span,
    /// Their sequence locks; empty if they have none.
    pub locks: Span,
}

/// Followed by the metadata, padded to 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Head {
    arena: U64,
    rows_offset: U64,
    /// 0 if the client may not read it there: a table is never empty.
    rows_bytes: U64,
    locks_offset: U64,
    locks_bytes: U64,
    meta_bytes: U64,
}

pub fn write<'t>(tables: impl Iterator<Item = (&'t TensorMeta, Option<Place>)>) -> Vec<u8> {
    let mut answer = Vec::new();
    for (meta, place) in tables {
        let meta = meta.as_wire();
        let Place { arena, rows, locks } =
            place.unwrap_or(Place { arena: 0, rows: Span::default(), locks: Span::default() });
        let numbers = [arena, rows.offset, rows.len, locks.offset, locks.len, meta.len() as u64].map(U64::new);
        answer.extend_from_slice(numbers.as_bytes());
        answer.extend_from_slice(meta);
        answer.resize(answer.len().next_multiple_of(8), 0);
    }
    answer
}

/// Reads the answer to a request for `tables` tables.
///
/// # Errors
/// InvalidArgument saying what is wrong with the answer. A place must have exactly the size given by the table's metadata.
pub fn read(answer: &[u8], tables: usize) -> Result<Vec<TablePlace>, Error> {
    let bad =
        |what: &str| Error::invalid(format!("{} bytes do not say where {tables} tables are: {what}", answer.len()));
    let (mut rest, mut places) = (answer, Vec::with_capacity(tables));
    for _ in 0..tables {
        let (head, behind) = Head::ref_from_prefix(rest).map_err(|_| bad("they end in a head"))?;
        let (meta, behind) = split_meta(behind, head.meta_bytes)?;
        let span = |offset: U64, len: U64| Span { offset: offset.get(), len: len.get() };
        let (rows, locks) = (span(head.rows_offset, head.rows_bytes), span(head.locks_offset, head.locks_bytes));
        let place = (rows.len > 0).then_some(Place { arena: head.arena.get(), rows, locks });
        if place.is_some() {
            meta.check_bytes(rows.len)?;
        }
        places.push(TablePlace { meta, place });
        rest = behind;
    }
    match rest.is_empty() {
        true => Ok(places),
        false => Err(bad("something follows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    #[test]
    fn whatever_comes_is_read_or_refused() {
        let meta = TensorMeta::new(DType::F32, &[10, 3]).unwrap();
        let span = |offset, len| Span { offset, len };
        let there = Place { arena: 7, rows: span(64, 120), locks: span(4096, 64) };
        let places = [Some(there), None, Some(Place { locks: Span::default(), ..there })];
        let answer = write(places.iter().map(|place| (&meta, *place)));
        let expected = places.map(|place| TablePlace { meta: meta.clone(), place });
        assert_eq!(read(&answer, 3).unwrap(), expected);
        for end in 0..answer.len() {
            assert!(read(&answer[..end], 3).is_err(), "{end}");
        }
        assert!(read(&answer, 2).is_err() && read(&answer, 4).is_err());
        for at in (0..answer.len()).step_by(8) {
            for forged in [1_u64, u64::MAX, 1 << 63, u64::MAX - 64] {
                let mut forgery = answer.clone();
                forgery[at..at + 8].copy_from_slice(&forged.to_le_bytes());
                let whole =
                    |table: &TablePlace| table.place.is_none_or(|place| table.meta.check_bytes(place.rows.len).is_ok());
                if let Ok(places) = read(&forgery, 3) {
                    assert!(places.iter().all(whole), "{forged} at {at}");
                }
            }
        }
        let strings = TensorMeta::strings(&[2]).unwrap();
        assert!(read(&write([(&strings, Some(there))].into_iter()), 1).is_err());
    }
}
