//! The rows that answer a request: one tensor of bytes with a part for each table named in the request. The heads of all
//! parts come first, then their rows.
//!
//! Pure. A reader checks everything: it comes from another process.

use zerocopy::byteorder::little_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::Error;
use crate::limits::META_BYTES_MAX;
use crate::tensor::{DType, TensorMeta};

/// The rows of each part begin at a multiple of this: rows of 64 bytes take exactly one cache line each.
const ALIGNMENT: usize = 64;

/// Followed by the metadata, padded to 8 bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct Head {
    table_rows: U64,
    bytes: U64,
    meta_bytes: U64,
}

/// The rows of one table in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part<R> {
    /// Rows of the whole table: requested rows beyond this are not in the answer.
    pub table_rows: u64,
    /// Metadata of the other rows together, in the order in which they were named.
    pub meta: TensorMeta,
    /// Where they are in the answer, or their bytes.
    pub rows: R,
}

/// Where rows are in an answer.
pub type Place = std::ops::Range<usize>;

impl Part<Place> {
    /// A part without a place: [`lay_out`] finds one for its `bytes` bytes of rows.
    pub fn new(table_rows: u64, meta: TensorMeta, bytes: usize) -> Self {
        Self { table_rows, meta, rows: 0..bytes }
    }

    fn head_bytes(&self) -> usize {
        size_of::<Head>() + self.meta.as_wire().len().next_multiple_of(8)
    }
}

/// Gives each part its place; returns the size of the answer, or `None` if it overflows `usize`.
pub fn lay_out<'p>(mut parts: impl Iterator<Item = &'p mut Part<Place>>, heads: usize) -> Option<usize> {
    parts.try_fold(heads, |end, part| {
        let at = end.checked_next_multiple_of(ALIGNMENT)?;
        part.rows = at..at.checked_add(part.rows.len())?;
        Some(part.rows.end)
    })
}

/// Size of the heads of all parts, in bytes.
pub fn heads<'p>(parts: impl Iterator<Item = &'p Part<Place>>) -> usize {
    parts.map(Part::head_bytes).sum()
}

/// Writes the heads of all parts, which must have their places, and zeros between the parts: `write` gets an offset and
/// bytes.
pub fn write_heads<'p>(parts: impl Iterator<Item = &'p Part<Place>> + Clone, mut write: impl FnMut(usize, &[u8])) {
    let mut heads = Vec::with_capacity(self::heads(parts.clone()));
    for part in parts.clone() {
        let meta = part.meta.as_wire();
        let bytes = U64::new(part.rows.len() as u64);
        let head = Head { table_rows: U64::new(part.table_rows), bytes, meta_bytes: U64::new(meta.len() as u64) };
        heads.extend_from_slice(head.as_bytes());
        heads.extend_from_slice(meta);
        heads.resize(heads.len().next_multiple_of(8), 0);
    }
    write(0, &heads);
    let mut at = heads.len();
    for part in parts {
        write(at, &[0; ALIGNMENT][..part.rows.start - at]);
        at = part.rows.end;
    }
}

/// The metadata of an answer of `bytes` bytes.
///
/// # Errors
/// InvalidArgument if a tensor cannot be that large.
pub fn meta(bytes: usize) -> Result<TensorMeta, Error> {
    TensorMeta::new(DType::U8, &[bytes as u64])
}

/// Splits off the metadata of rows, `meta_bytes` long and padded to 8; also returns the rest.
///
/// # Errors
/// InvalidArgument: it is too long, cut off, or not for rows of a fixed size.
pub(crate) fn split_meta(bytes: &[u8], meta_bytes: U64) -> Result<(TensorMeta, &[u8]), Error> {
    let meta_bytes = usize::try_from(meta_bytes.get()).unwrap_or(usize::MAX);
    if meta_bytes > META_BYTES_MAX {
        return Err(Error::invalid(format!("the metadata of a table's rows has {meta_bytes} bytes")));
    }
    let padded = bytes.split_at_checked(meta_bytes.next_multiple_of(8));
    let (meta, behind) = padded.ok_or_else(|| Error::invalid("the metadata of a table's rows is cut off"))?;
    let meta = TensorMeta::from_wire(&meta[..meta_bytes])?;
    match meta.is_strings() || meta.is_dead() || meta.rank() == 0 {
        true => Err(Error::invalid("a table has no rows of a fixed size")),
        false => Ok((meta, behind)),
    }
}

/// Reads an answer to a request for `tables` tables.
///
/// # Errors
/// InvalidArgument saying what is wrong with it.
pub fn read(answer: &[u8], tables: usize) -> Result<Vec<Part<&[u8]>>, Error> {
    let bad = |what: &str| Error::invalid(format!("{} bytes are no rows of {tables} tables: {what}", answer.len()));
    let (mut rest, mut heads) = (answer, Vec::new());
    for _ in 0..tables {
        let (head, behind) = Head::ref_from_prefix(rest).map_err(|_| bad("they end in a head"))?;
        let (meta, behind) = split_meta(behind, head.meta_bytes)?;
        heads.push((*head, meta));
        rest = behind;
    }
    let mut end = answer.len() - rest.len();
    let part = |(head, meta): (Head, TensorMeta)| {
        let bytes = usize::try_from(head.bytes.get()).unwrap_or(usize::MAX);
        let place = end.checked_next_multiple_of(ALIGNMENT).and_then(|at| Some(at..at.checked_add(bytes)?));
        let place = place.ok_or_else(|| bad("the rows are too long"))?;
        end = place.end;
        let rows = answer.get(place).ok_or_else(|| bad("they end in the rows"))?;
        meta.check_bytes(rows.len() as u64)?;
        Ok(Part { table_rows: head.table_rows.get(), meta, rows })
    };
    let parts = heads.into_iter().map(part).collect::<Result<Vec<_>, Error>>()?;
    match end == answer.len() {
        true => Ok(parts),
        false => Err(bad("something follows the rows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(rows: &[(u64, &[u64], usize)]) -> (Vec<u8>, Vec<Part<Place>>) {
        let part = |&(table_rows, shape, bytes): &(u64, &[u64], usize)| {
            Part::new(table_rows, TensorMeta::new(DType::F32, shape).unwrap(), bytes)
        };
        let mut parts: Vec<_> = rows.iter().map(part).collect();
        let heads = heads(parts.iter());
        let mut bytes = vec![7; lay_out(parts.iter_mut(), heads).unwrap()];
        write_heads(parts.iter(), |at, head| bytes[at..][..head.len()].copy_from_slice(head));
        (bytes, parts)
    }

    #[test]
    fn parts_come_back_as_they_were_laid_out() {
        let (bytes, parts) = answer(&[(10, &[2, 3], 24), (1 << 40, &[0, 5, 5], 0), (7, &[1], 4)]);
        let read = read(&bytes, 3).unwrap();
        for (read, laid_out) in read.iter().zip(&parts) {
            assert_eq!((read.table_rows, &read.meta), (laid_out.table_rows, &laid_out.meta));
            assert_eq!(read.rows, vec![7; laid_out.rows.len()]);
            assert_eq!(laid_out.rows.start % ALIGNMENT, 0);
        }
        let of_rows: usize = parts.iter().map(|part| part.rows.len()).sum();
        let heads = heads(parts.iter());
        assert_eq!(bytes[heads..].iter().filter(|&&byte| byte == 7).count(), of_rows, "nothing is left in the gaps");
    }

    #[test]
    fn whatever_comes_is_read_or_refused() {
        let (bytes, _) = answer(&[(10, &[2, 3], 24), (7, &[1], 4)]);
        assert!(read(&bytes, 2).is_ok());
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end], 2).is_err(), "{end}");
        }
        assert!(read(&[&bytes[..], &[0]].concat(), 2).is_err());
        assert!(read(&bytes, 1).is_err());
        assert!(read(&bytes, 3).is_err());
        // Forges each length.
        for at in (0..heads(answer(&[(10, &[2, 3], 24), (7, &[1], 4)]).1.iter())).step_by(8) {
            for forged in [1_u64, u64::MAX, 1 << 63, u64::MAX - 64] {
                let mut forgery = bytes.clone();
                forgery[at..at + 8].copy_from_slice(&forged.to_le_bytes());
                if let Ok(parts) = read(&forgery, 2) {
                    assert!(parts.iter().all(|part| part.meta.check_bytes(part.rows.len() as u64).is_ok()));
                }
            }
        }
        let strings = TensorMeta::strings(&[2]).unwrap();
        let mut part = Part::new(2, strings, 32);
        let heads = part.head_bytes();
        let mut bytes = vec![0; lay_out(std::iter::once(&mut part), heads).unwrap()];
        write_heads(std::iter::once(&part), |at, head| bytes[at..][..head.len()].copy_from_slice(head));
        assert!(read(&bytes, 1).is_err());
    }
}
