//! Pushed rows as their owner reads them. Every byte is checked, since it comes from another process; the rows are not copied.

use std::ops::Range;

use bytes::Bytes;
use sealane_transport::{
    Error, Payload, Tensor, TensorMeta,
    limits::{KEY_BYTES_MAX, META_BYTES_MAX},
};

use super::pushed::{ALIGNMENT, HEADER_BYTES, MAGIC, PART_HEADER_BYTES, ROWS_ALIGNMENT};
use crate::{
    Accepted,
    limits::{PUSHED_TABLES_MAX, ROWS_PER_CALL_MAX},
    task::bytes_of,
};

/// Pushed rows of one table.
#[derive(Debug)]
pub struct RowUpdate {
    /// The key of their table.
    pub table: Box<str>,
    /// Their numbers in the part of the task that accepts them.
    pub ids: Vec<u64>,
    /// The rows, of shape `[ids, ...]`.
    pub rows: Tensor,
}

impl RowUpdate {
    /// Reads what was pushed by [`Task::push_rows`](crate::Task::push_rows) or [`push_all_rows`](crate::Task::push_all_rows): an update for
    /// each table, in the order of the push. Rows are not copied: each update keeps the memory of all.
    ///
    /// # Errors
    /// InvalidArgument if it was not pushed so.
    pub fn all_of(accepted: Accepted) -> Result<Vec<RowUpdate>, Error> {
        let mut reader = Reader { bytes: bytes_of(accepted.tensor.into_parts().1), at: 0 };
        let [magic, tables] = reader.numbers(HEADER_BYTES)?;
        if magic != u64::from_le_bytes(MAGIC) {
            return Err(bad("it begins with something else"));
        }
        if tables == 0 || tables > PUSHED_TABLES_MAX as u64 {
            return Err(bad(&format!("it claims {tables} tables")));
        }
        let (mut updates, mut left) = (Vec::new(), ROWS_PER_CALL_MAX as u64);
        for _ in 0..tables {
            updates.push(reader.update(&mut left)?);
        }
        match reader.at == reader.bytes.len() {
            true => Ok(updates),
            false => Err(bad("more follows behind the rows")),
        }
    }
}

fn bad(what: &str) -> Error {
    Error::invalid(format!("the tensor is not one of pushed rows: {what}"))
}

/// Reads bytes from front to back.
struct Reader {
    bytes: Bytes,
    at: usize,
}

impl Reader {
    /// The range of the next piece.
    fn next(&mut self, alignment: usize, len: usize) -> Result<Range<usize>, Error> {
        let start = self.at.next_multiple_of(alignment);
        let end = start.checked_add(len).filter(|&end| end <= self.bytes.len());
        self.at = end.ok_or_else(|| bad("it is too short"))?;
        Ok(start..self.at)
    }

    /// The numbers in a header of so many bytes.
    fn numbers<const N: usize>(&mut self, bytes: usize) -> Result<[u64; N], Error> {
        let header = self.next(ALIGNMENT, bytes)?;
        let numbers = self.bytes[header].as_chunks::<8>().0;
        Ok(std::array::from_fn(|index| u64::from_le_bytes(numbers[index])))
    }

    /// Reads the next part, of at most `left` rows.
    fn update(&mut self, left: &mut u64) -> Result<RowUpdate, Error> {
        let [count, key_bytes, meta_bytes, rows_bytes] = self.numbers(PART_HEADER_BYTES)?;
        if key_bytes > KEY_BYTES_MAX as u64 || meta_bytes > META_BYTES_MAX as u64 {
            return Err(bad("it claims too much"));
        }
        *left = left.checked_sub(count).ok_or_else(|| bad("it claims too many rows"))?;
        let key = self.next(ALIGNMENT, key_bytes as usize)?;
        let table = str::from_utf8(&self.bytes[key]).map_err(|_| bad("it has no key"))?.into();
        let meta = self.next(ALIGNMENT, meta_bytes as usize)?;
        let meta = TensorMeta::from_wire(&self.bytes[meta])?;
        if meta.shape().first() != Some(&count) || meta.is_strings() || meta.is_dead() {
            return Err(bad("there are not as many rows as numbers"));
        }
        let ids = self.next(ALIGNMENT, count as usize * size_of::<u64>())?;
        let ids = self.bytes[ids].as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect();
        let rows_bytes = usize::try_from(rows_bytes).map_err(|_| bad("it claims too much"))?;
        let rows = self.next(ROWS_ALIGNMENT, rows_bytes)?;
        Ok(RowUpdate { table, ids, rows: Tensor::new(meta, Payload::from(self.bytes.slice(rows)))? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<RowUpdate>, Error> {
        let tensor = Tensor::from_elements(&[bytes.len() as u64], bytes).unwrap();
        RowUpdate::all_of(Accepted { from: "worker".into(), tensor })
    }

    /// A part that claims `claimed` rows, and holds these row numbers and one byte per row.
    fn part(claimed: u64, ids: &[u64]) -> Vec<u8> {
        let meta =
            TensorMeta::new(sealane_transport::tensor::DType::U8, &[claimed.min(ROWS_PER_CALL_MAX as u64), 1]).unwrap();
        // The key has 8 bytes; any other length would shift what follows.
        let lengths = [claimed, 8, meta.as_wire().len() as u64, ids.len() as u64].map(u64::to_le_bytes);
        let mut bytes = [lengths.as_flattened(), b"user_ids", meta.as_wire()].concat();
        bytes.resize(bytes.len().next_multiple_of(8), 0);
        bytes.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        bytes
    }

    fn tensor(tables: u64, parts: &[(u64, &[u64])]) -> Vec<u8> {
        let mut bytes = [MAGIC, tables.to_le_bytes()].as_flattened().to_vec();
        for &(claimed, ids) in parts {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            bytes.extend(part(claimed, ids));
            bytes.resize(bytes.len().next_multiple_of(ROWS_ALIGNMENT), 0);
            bytes.extend(ids.iter().map(|&id| id as u8));
        }
        bytes
    }

    #[test]
    fn bytes_that_are_no_rows_are_refused_wherever_they_are_wrong() {
        let good = tensor(2, &[(3, &[1, 2, 3]), (2, &[4, 5])]);
        let updates = read(&good).unwrap();
        let read_of = |update: &RowUpdate| (update.ids.clone(), update.rows.bytes().to_vec());
        assert_eq!(read_of(&updates[0]), (vec![1, 2, 3], vec![1, 2, 3]));
        assert_eq!(read_of(&updates[1]), (vec![4, 5], vec![4, 5]));
        for shorter in 0..good.len() {
            assert!(read(&good[..shorter]).is_err(), "cut to {shorter}");
        }
        assert!(read(&[&good[..], &[0]].concat()).is_err());
        // Every byte of the headers is checked.
        let second = tensor(1, &[(3, &[1, 2, 3])]).len().next_multiple_of(ALIGNMENT);
        for at in (0..HEADER_BYTES + PART_HEADER_BYTES).chain(second..second + PART_HEADER_BYTES) {
            for value in [0xff, 0x80, 1] {
                let mut bad = good.clone();
                bad[at] ^= value;
                assert!(read(&bad).is_err(), "byte {at} changed by {value}");
            }
        }
    }

    #[test]
    fn forged_counts_are_refused() {
        let one: (u64, &[u64]) = (1, &[7]);
        assert_eq!(read(&tensor(1, &[one])).unwrap().len(), 1);
        for tables in [0, 2, PUSHED_TABLES_MAX as u64 + 1, u64::MAX] {
            assert!(read(&tensor(tables, &[one])).is_err(), "{tables} tables");
        }
        let many = PUSHED_TABLES_MAX + 1;
        let error = read(&tensor(many as u64, &vec![one; many])).unwrap_err().to_string();
        assert!(error.contains(&format!("{many} tables")), "{error}");
        for rows in [ROWS_PER_CALL_MAX as u64 + 1, 1 << 61, u64::MAX] {
            let error = read(&tensor(2, &[one, (rows, &[7])])).unwrap_err().to_string();
            assert!(error.contains("too many rows"), "{error}");
        }
        // Each may have as many rows by itself, but not together.
        let most = ROWS_PER_CALL_MAX as u64;
        let rows = |left: u64| {
            let mut reader = Reader { bytes: part(most, &[]).into(), at: 0 };
            reader.update(&mut { left }).unwrap_err().to_string()
        };
        assert!(rows(most - 1).contains("too many rows") && rows(most).contains("too short"));
        // A length that overflows when anything is added to it.
        let mut long = tensor(1, &[one]);
        long[HEADER_BYTES + 24..][..8].fill(0xff);
        assert!(read(&long).unwrap_err().to_string().contains("too short"));
    }
}
