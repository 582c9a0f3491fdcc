//! The memory that pulled rows go to. An owner's answer is checked before use: it may be any tensor. Pure.

use std::{hint::black_box, ops::Range, sync::Arc};

use sealane_runtime::Buffer;
use sealane_transport::{
    Destination, Error, Tensor, TensorMeta,
    tensor::{DType, Shape},
};

use super::shares::Share;
use crate::limits::ROWS_UNCHECKED_BYTES_MAX;

/// The type, shape and size of a table's rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Row {
    dtype: DType,
    shape: Shape,
    bytes: usize,
}

impl Row {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

pub(super) struct Places {
    /// Present once it is known what rows are.
    memory: Option<Buffer>,
    /// The only metadata of all rows together that the caller's memory takes.
    wanted: Option<Arc<TensorMeta>>,
    named: usize,
    /// Bytes of a row: a guess until the first rows have come.
    row_bytes: Option<usize>,
    /// Metadata of all rows together, and what each row is, once the first have come.
    known: Option<(TensorMeta, Row)>,
}

impl Places {
    /// Places for `named` rows, in the caller's memory or the heap. `row_bytes` is the size that rows had earlier.
    pub(super) fn new(out: Option<Destination>, named: usize, row_bytes: Option<usize>) -> Self {
        let (memory, wanted) = out.map(Destination::into_parts).unzip();
        let of_memory = memory.as_ref().and_then(|memory| memory.len().checked_div(named));
        let row_bytes = of_memory.filter(|&bytes| bytes > 0).or(row_bytes);
        Self { memory, wanted: wanted.flatten(), named, row_bytes: row_bytes.filter(|&bytes| bytes > 0), known: None }
    }

    /// Bytes of a row, as far as known.
    pub(super) fn row_bytes(&self) -> Option<usize> {
        self.row_bytes
    }

    pub(super) fn take_memory(&mut self) -> Option<Buffer> {
        self.memory.take()
    }

    /// What a row is, once some have come.
    pub(super) fn row(&self) -> Option<&Row> {
        self.known.as_ref().map(|(_, row)| row)
    }

    /// All rows; `None` if none has come, or they were taken.
    pub(super) fn take(&mut self) -> Option<Tensor> {
        Some(Tensor::from_parts(self.known.take()?.0, self.memory.take()?))
    }

    /// Copies received rows to their places.
    ///
    /// # Errors
    /// Unavailable naming the owner, if it has sent another number of rows than it was asked for; InvalidArgument if rows differ from the
    /// others, or do not fit the caller's memory; ResourceExhausted if there is no memory for all.
    pub(super) fn put(
        &mut self,
        share: &Share,
        (first, count): (usize, usize),
        (meta, from): (&TensorMeta, &[u8]),
        (owner, key): (&str, &str),
    ) -> Result<(), Error> {
        let Some(row) = rows_in(meta, from.len(), count) else {
            let reason = format!("it sent {meta:?} of {} bytes for {count} rows of '{key}'", from.len());
            return Err(Error::unavailable(owner, reason));
        };
        let row_bytes = row.bytes;
        self.expect(row, key)?;
        let Some(to) = self.memory.as_mut().filter(|_| count > 0) else { return Ok(()) };
        let indices = first..first + count;
        match row_bytes {
            0 => {}
            16 => scatter::<16>(from, to, share, indices),
            32 => scatter::<32>(from, to, share, indices),
            64 => scatter::<64>(from, to, share, indices),
            128 => scatter::<128>(from, to, share, indices),
            256 => scatter::<256>(from, to, share, indices),
            _ => {
                for (row, index) in from.chunks_exact(row_bytes).zip(indices) {
                    for &place in share.places_of(index) {
                        to[place as usize * row_bytes..][..row_bytes].copy_from_slice(row);
                    }
                }
            }
        }
        Ok(())
    }

    /// Prepares for rows of that kind.
    ///
    /// # Errors
    /// InvalidArgument if others are expected, or they do not fit the caller's memory; ResourceExhausted if there is no memory for all.
    pub(super) fn expect(&mut self, row: Row, key: &str) -> Result<(), Error> {
        match &self.known {
            Some((_, known)) if *known == row => Ok(()),
            Some((_, known)) => {
                let (of, other) = (&known.shape, known.dtype);
                let reason =
                    format!("the parts of '{key}' differ: rows of {other} {of:?} and of {} {:?}", row.dtype, row.shape);
                Err(Error::invalid(reason))
            }
            None => self.begin(row, key),
        }
    }

    /// Memory for the rows of a table with the metadata `meta`, and the bytes of a row.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub(super) fn of_table(
        &mut self,
        meta: &TensorMeta,
        bytes: usize,
        (owner, key): (&str, &str),
    ) -> Result<(&mut Buffer, usize), Error> {
        let rows = meta.shape().first().and_then(|&rows| usize::try_from(rows).ok());
        let Some(row) = rows.and_then(|rows| rows_in(meta, bytes, rows)).filter(|row| row.bytes > 0) else {
            return Err(Error::unavailable(owner, format!("'{key}' is {meta:?} of {bytes} bytes")));
        };
        let row_bytes = row.bytes;
        self.expect(row, key)?;
        Ok((self.memory.as_mut().expect("it was made for the first rows"), row_bytes))
    }

    /// Makes the memory ready when the first rows have come.
    fn begin(&mut self, row: Row, key: &str) -> Result<(), Error> {
        let (named, row_bytes) = (self.named, row.bytes);
        let all = named.checked_mul(row_bytes).ok_or_else(|| Error::invalid("too many rows"))?;
        let shape: Shape = std::iter::once(named as u64).chain(row.shape.iter().copied()).collect();
        let meta = TensorMeta::new(row.dtype, &shape)?;
        // Rows whose bits do not fill their last byte cannot lie side by side in one tensor.
        meta.check_bytes(all as u64)?;
        if let Some(wanted) = self.wanted.as_deref().filter(|wanted| **wanted != meta) {
            return Err(Error::invalid(format!("the memory takes {wanted:?}, the rows of '{key}' are {meta:?}")));
        }
        match &self.memory {
            Some(memory) if memory.len() != all => {
                let room = memory.len();
                let reason = format!("the memory has {room} bytes, {named} rows of '{key}' of {row_bytes} have {all}");
                return Err(Error::invalid(reason));
            }
            Some(_) => {}
            None => self.memory = Some(zeros(all)?),
        }
        (self.known, self.row_bytes) = (Some((meta, row)), Some(row_bytes));
        Ok(())
    }
}

/// What each of `count` rows of this tensor is; `None` if the tensor, of so many bytes, is something else.
fn rows_in(meta: &TensorMeta, bytes: usize, count: usize) -> Option<Row> {
    let mut shape = meta.shape();
    if meta.is_strings() || meta.is_dead() || shape.first() != Some(&(count as u64)) {
        return None;
    }
    shape.remove(0);
    let elements = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size))?;
    let row_bytes = usize::try_from(meta.dtype().bytes_of(elements)?).ok()?;
    (count.checked_mul(row_bytes)? == bytes).then_some(Row { dtype: meta.dtype(), shape, bytes: row_bytes })
}

/// Memory for rows, all zero. The size of a row is the owner's claim: if it is too large, that is an error and does not end the process.
fn zeros(bytes: usize) -> Result<Buffer, Error> {
    let mut room = Vec::<u8>::new();
    if bytes > ROWS_UNCHECKED_BYTES_MAX && black_box(&mut room).try_reserve_exact(bytes).is_err() {
        return Err(Error::full("memory for rows", format!("there is none for {bytes} bytes")));
    }
    drop(room);
    Ok(Buffer::from_vec(vec![0; bytes]))
}

/// Copies rows of `N` bytes to their places, without a call for each, which would take longer than the copy.
fn scatter<const N: usize>(from: &[u8], to: &mut [u8], share: &Share, indices: Range<usize>) {
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<N>().0);
    for (row, index) in from.iter().zip(indices) {
        for &place in share.places_of(index) {
            to[place as usize] = *row;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Code, ShardedTable, table::shares::split};

    #[test]
    fn whatever_an_owner_sends_is_rows_or_refused() {
        let share = &split(&ShardedTable::of("ps", "t").unwrap(), &[1, 2]).unwrap()[0].share();
        let put =
            |places: &mut Places, rows: &Tensor| places.put(share, (0, 2), (rows.meta(), rows.bytes()), ("ps", "t"));
        let numbers = |shape: &[u64]| Tensor::from_elements(shape, &vec![7_u8; shape.iter().product::<u64>() as usize]);
        let half_bytes = TensorMeta::new(DType::from_numbers(1, 4, 1).unwrap(), &[2, 3]).unwrap();
        let huge = TensorMeta::new(DType::U8, &[2, 1 << 40, 0, 1 << 40]);
        let wrong = [
            // 32 bytes: would pass as two rows of 16 if the type were not checked.
            Tensor::from_strings(&[2], &["", "12345678"]),
            Tensor::from_strings(&[2], &["a", "of another length"]),
            Ok(Tensor::dead(DType::U8)),
            numbers(&[]),
            numbers(&[1, 2]),
            numbers(&[3, 2]),
            Tensor::new(half_bytes, Buffer::from_vec(vec![0; 3])),
        ];
        for wrong in
            wrong.map(Result::unwrap).into_iter().chain(huge.and_then(|meta| Tensor::new(meta, Buffer::default())).ok())
        {
            let mut places = Places::new(None, 2, None);
            if let Err(error) = put(&mut places, &wrong) {
                assert_eq!(error.code(), Code::Unavailable, "{error}");
                assert!(error.to_string().contains("ps"), "{error}");
            }
            // The same after valid rows.
            let mut places = Places::new(None, 2, Some(5));
            put(&mut places, &numbers(&[2, 16]).unwrap()).unwrap();
            assert_eq!(places.row_bytes(), Some(16));
            assert!(put(&mut places, &wrong).is_err(), "{wrong:?}");
            assert_eq!(places.take().unwrap().bytes(), [7; 32]);
        }
    }

    #[test]
    fn typed_memory_takes_only_its_rows() {
        let share = &split(&ShardedTable::of("ps", "t").unwrap(), &[1, 2]).unwrap()[0].share();
        let rows = Tensor::from_elements(&[2, 4], &[7_u8; 8]).unwrap();
        for (dtype, shape, is_right) in
            [(DType::U8, vec![2, 4], true), (DType::I8, vec![2, 4], false), (DType::U8, vec![2, 2, 2], false)]
        {
            let out = Destination::of(TensorMeta::new(dtype, &shape).unwrap(), Buffer::from_vec(vec![0; 8]));
            let mut places = Places::new(Some(out), 2, None);
            let put = places.put(share, (0, 2), (rows.meta(), rows.bytes()), ("ps", "t"));
            assert_eq!(put.map_err(|error| error.code()), if is_right { Ok(()) } else { Err(Code::InvalidArgument) });
            assert_eq!(places.take_memory().unwrap()[..], if is_right { [7; 8] } else { [0; 8] });
        }
    }

    #[test]
    fn rows_that_have_no_memory_are_an_error() {
        let share = &split(&ShardedTable::of("ps", "t").unwrap(), &[1]).unwrap()[0].share();
        let row = Tensor::from_elements(&[1, 1 << 20], &vec![0_u8; 1 << 20]).unwrap();
        for named in [1 << 42, usize::MAX] {
            let error = Places::new(None, named, None).put(share, (0, 1), (row.meta(), row.bytes()), ("ps", "t"));
            let error = error.unwrap_err();
            assert!(matches!(error.code(), Code::ResourceExhausted | Code::InvalidArgument), "{error}");
        }
    }
}
