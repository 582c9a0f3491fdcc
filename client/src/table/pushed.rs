//! Rows that are pushed to the owners of a table: one tensor for each owner, with the numbers of the rows before their bytes.
//!
//! The tensor is one of bytes: a header, the table's key, the metadata of the rows, their numbers, and the rows. Who accepts it checks all
//! of it, for it comes from another process.

use sealane_runtime::{Buffer, MemoryKind};
use sealane_transport::{
    Error, Payload, SendOptions, Tensor, TensorMeta,
    limits::{KEY_BYTES_MAX, META_BYTES_MAX},
    tensor::{DType, Shape},
};

use super::{
    sharding::ShardedTable,
    shares::{Share, split},
};
use crate::{Accepted, Pushing, Task, limits::ROWS_PER_CALL_MAX};

/// The first bytes, which say that rows follow, and how they do.
const MAGIC: [u8; 8] = *b"SL-rows2";

/// Where the rows begin is a multiple of this.
const ALIGNMENT: usize = 64;

/// Behind the magic: how many rows there are, the length of the table's key, and that of their metadata as one tensor (8 each). Both
/// follow, each padded to 8 bytes.
const HEADER_BYTES: usize = 32;

/// Adds the numbers of a row to those of another.
type Add = fn(&mut [u8], &[u8]);

/// What becomes of rows that are pushed more than once in one call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SumRows {
    /// Each is pushed as often as it is named.
    #[default]
    No,
    /// They are added up, and pushed once. For 32-bit and 64-bit floats.
    Yes,
}

/// Rows of a table that are to be pushed.
#[derive(Debug, Clone, Copy)]
pub struct TableRows<'a> {
    /// The table.
    pub table: &'a ShardedTable,
    /// The numbers of the rows.
    pub ids: &'a [u64],
    /// A row for each number: of shape `[ids, ...]`.
    pub rows: &'a Tensor,
}

/// Rows that were pushed.
#[derive(Debug)]
pub struct RowUpdate {
    /// The key of their table.
    pub table: Box<str>,
    /// Their numbers in the part of the task that accepts them.
    pub ids: Vec<u64>,
    /// The rows, of shape `[ids, ...]`.
    pub rows: Tensor,
}

impl Task {
    /// Pushes rows to the owners of a table, into the queue `queue` of each, where [`RowUpdate::of`] reads what was
    /// [accepted](Task::acceptor). It ends when all queues have taken their part, with the first error if there was any: other owners
    /// have then taken theirs.
    ///
    /// # Errors
    /// InvalidArgument if the table has no such row, or there are not as many rows as numbers, or they cannot be added up, are strings,
    /// or are in a device's memory. All else is
    /// the future's.
    pub fn push_rows(
        &self,
        queue: &str,
        rows: TableRows<'_>,
        sum: SumRows,
        options: &SendOptions,
    ) -> Result<Pushing, Error> {
        self.push_all_rows(queue, &[rows], sum, options)
    }

    /// [`push_rows`](Self::push_rows) for many tables, in order, at a fraction of the cost each. With an error nothing was pushed.
    ///
    /// # Errors
    /// As there.
    pub fn push_all_rows(
        &self,
        queue: &str,
        rows: &[TableRows<'_>],
        sum: SumRows,
        options: &SendOptions,
    ) -> Result<Pushing, Error> {
        let mut by_owner: Vec<(&str, Vec<Tensor>)> = Vec::new();
        for rows in rows {
            for (owner, part) in encode(rows, sum, |bytes| self.alloc(bytes))? {
                let owner = rows.table.owner(owner);
                match by_owner.iter_mut().find(|(of, _)| *of == owner) {
                    Some((_, parts)) => parts.push(part),
                    None => by_owner.push((owner, vec![part])),
                }
            }
        }
        let mut pushes = Vec::new();
        for (owner, parts) in by_owner {
            self.push_each(owner, queue, parts, options, &mut pushes);
        }
        Ok(Pushing::of(pushes))
    }
}

impl RowUpdate {
    /// Reads what was pushed by [`Task::push_rows`], without a copy of the rows.
    ///
    /// # Errors
    /// InvalidArgument if it is anything else.
    pub fn of(accepted: Accepted) -> Result<RowUpdate, Error> {
        decode(accepted.tensor)
    }
}

/// One tensor for each owner that gets rows.
fn encode(
    &TableRows { table, ids, rows }: &TableRows<'_>,
    sum: SumRows,
    mut allocate: impl FnMut(usize) -> Result<Buffer, Error>,
) -> Result<Vec<(usize, Tensor)>, Error> {
    let shape = rows.shape();
    if rows.meta().is_strings() || rows.meta().is_dead() || !matches!(rows.memory(), MemoryKind::Host) {
        return Err(Error::invalid(format!("{:?} is no rows of a fixed size in the host's memory", rows.meta())));
    }
    if shape.first() != Some(&(ids.len() as u64)) {
        return Err(Error::invalid(format!("rows of shape {shape:?} for {} numbers", ids.len())));
    }
    let add = match (sum, rows.dtype()) {
        (SumRows::No, _) => None,
        (SumRows::Yes, DType::F32) => Some(add::<f32, 4> as Add),
        (SumRows::Yes, DType::F64) => Some(add::<f64, 8> as fn(&mut [u8], &[u8])),
        (SumRows::Yes, other) => return Err(Error::invalid(format!("rows of {other} are not added up"))),
    };
    let row_bytes = rows.bytes().len().checked_div(ids.len()).unwrap_or(0);
    let mut parts = Vec::new();
    for share in split(table, ids)? {
        let count = if add.is_some() { share.rows.len() } else { share.places().len() };
        let mut part_shape = shape.clone();
        part_shape[0] = count as u64;
        let meta = TensorMeta::new(rows.dtype(), &part_shape)?;
        let (key, wire) = (table.key().as_bytes(), meta.as_wire());
        let header =
            [MAGIC, (count as u64).to_le_bytes(), (key.len() as u64).to_le_bytes(), (wire.len() as u64).to_le_bytes()];
        let meta_at = HEADER_BYTES + key.len().next_multiple_of(8);
        let ids_at = meta_at + wire.len().next_multiple_of(8);
        let rows_at = (ids_at + count * 8).next_multiple_of(ALIGNMENT);
        let mut buffer = allocate(rows_at + count * row_bytes)?;
        let (head, body) = buffer.split_at_mut(rows_at);
        head.fill(0);
        head[..HEADER_BYTES].copy_from_slice(header.as_flattened());
        head[HEADER_BYTES..][..key.len()].copy_from_slice(key);
        head[meta_at..][..wire.len()].copy_from_slice(wire);
        fill(&share, add, rows.bytes(), row_bytes, (&mut head[ids_at..], body));
        let tensor = Tensor::new(TensorMeta::new(DType::U8, &[buffer.len() as u64])?, buffer)?;
        parts.push((share.owner, tensor));
    }
    Ok(parts)
}

/// Writes the numbers and the rows of a share.
fn fill(share: &Share, add: Option<Add>, rows: &[u8], row_bytes: usize, (ids, mut to): (&mut [u8], &mut [u8])) {
    let mut ids = ids.chunks_exact_mut(8);
    let mut next = |id: u64| ids.next().expect("there is a place for each").copy_from_slice(&id.to_le_bytes());
    for (index, &id) in share.rows.iter().enumerate() {
        let mut target: &mut [u8] = &mut [];
        for (nth, &place) in share.places_of(index).iter().enumerate() {
            let row = &rows[place as usize * row_bytes..][..row_bytes];
            match add {
                Some(add) if nth > 0 => add(target, row),
                _ => {
                    next(id);
                    (target, to) = to.split_at_mut(row_bytes);
                    target.copy_from_slice(row);
                }
            }
        }
    }
}

/// A number of `N` bytes, in the order of this host.
trait Number<const N: usize>: Copy + std::ops::Add<Output = Self> {
    fn of(bytes: [u8; N]) -> Self;
    fn bytes(self) -> [u8; N];
}

impl Number<4> for f32 {
    fn of(bytes: [u8; 4]) -> Self {
        f32::from_ne_bytes(bytes)
    }
    fn bytes(self) -> [u8; 4] {
        self.to_ne_bytes()
    }
}

impl Number<8> for f64 {
    fn of(bytes: [u8; 8]) -> Self {
        f64::from_ne_bytes(bytes)
    }
    fn bytes(self) -> [u8; 8] {
        self.to_ne_bytes()
    }
}

/// Adds numbers to others.
fn add<T: Number<N>, const N: usize>(to: &mut [u8], more: &[u8]) {
    for (to, more) in to.as_chunks_mut::<N>().0.iter_mut().zip(more.as_chunks::<N>().0) {
        *to = (T::of(*to) + T::of(*more)).bytes();
    }
}

fn decode(tensor: Tensor) -> Result<RowUpdate, Error> {
    let bad = |what: &str| Error::invalid(format!("the tensor is not one of pushed rows: {what}"));
    let bytes = tensor.bytes();
    let (header, rest) = bytes.split_at_checked(HEADER_BYTES).ok_or_else(|| bad("it is too short"))?;
    let [magic, numbers @ ..] = header.as_chunks::<8>().0 else { return Err(bad("it is too short")) };
    if *magic != MAGIC {
        return Err(bad("it begins with something else"));
    }
    let [rows, key_bytes, meta_bytes] = *numbers else { return Err(bad("it is too short")) };
    let [rows, key_bytes, meta_bytes] = [rows, key_bytes, meta_bytes].map(u64::from_le_bytes);
    if rows > ROWS_PER_CALL_MAX as u64 || key_bytes > KEY_BYTES_MAX as u64 || meta_bytes > META_BYTES_MAX as u64 {
        return Err(bad("it claims too much"));
    }
    let (count, key_bytes, meta_bytes) = (rows as usize, key_bytes as usize, meta_bytes as usize);
    let table =
        rest.get(..key_bytes).and_then(|key| str::from_utf8(key).ok()).ok_or_else(|| bad("it has no key"))?.into();
    let meta_at = HEADER_BYTES + key_bytes.next_multiple_of(8);
    let meta = bytes.get(meta_at..meta_at + meta_bytes).ok_or_else(|| bad("it ends in the metadata"))?;
    let meta = TensorMeta::from_wire(meta)?;
    let ids_at = meta_at + meta_bytes.next_multiple_of(8);
    let ids = bytes.get(ids_at..ids_at + count * 8).ok_or_else(|| bad("it ends in the numbers"))?;
    let ids = ids.as_chunks().0.iter().map(|id| u64::from_le_bytes(*id)).collect();
    let rows_at = (ids_at + count * 8).next_multiple_of(ALIGNMENT);
    let rows_bytes = bytes.len().checked_sub(rows_at).ok_or_else(|| bad("it ends before the rows"))?;
    let shape: Shape = meta.shape();
    if shape.first() != Some(&rows) || meta.is_strings() {
        return Err(bad("there are not as many rows as numbers"));
    }
    let rows = behind(tensor.into_parts().1, rows_at, rows_bytes);
    Ok(RowUpdate { table, ids, rows: Tensor::new(meta, rows)? })
}

/// The last bytes of a payload.
fn behind(payload: Payload, from: usize, len: usize) -> Payload {
    match payload {
        Payload::Owned(buffer) => bytes::Bytes::from_owner(buffer).slice(from..from + len).into(),
        Payload::Bytes(bytes) => bytes.slice(from..from + len).into(),
        Payload::Shared(_) => Buffer::copy_of(&payload.as_ref()[from..from + len]).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sharding;

    fn parts(table: &ShardedTable, ids: &[u64], rows: &Tensor, sum: SumRows) -> Vec<(usize, Tensor)> {
        encode(&TableRows { table, ids, rows }, sum, |bytes| Ok(Buffer::from_vec(vec![0xaa; bytes]))).unwrap()
    }

    fn update(tensor: &Tensor) -> RowUpdate {
        decode(tensor.share()).unwrap()
    }

    #[test]
    fn rows_go_to_their_owners_and_are_read_there() {
        let table = ShardedTable::new("t", ["a", "b"], Sharding::modulo(100, 2).unwrap()).unwrap();
        let rows = Tensor::from_elements(&[5, 2], &[0., 1., 10., 11., 20., 21., 30., 31., 40., 41_f32]).unwrap();
        let ids = [7, 4, 7, 0, 9];
        let sent = parts(&table, &ids, &rows, SumRows::No);
        let [(0, even), (1, odd)] = &sent[..] else { panic!("{sent:?}") };
        let (even, odd) = (update(even), update(odd));
        assert_eq!((&*even.table, &*odd.table), ("t", "t"));
        assert_eq!((&even.ids[..], even.rows.elements::<f32>().unwrap()), (&[0, 2][..], &[30., 31., 10., 11.][..]));
        assert_eq!((&odd.ids[..], &odd.rows.shape()[..]), (&[3, 3, 4][..], &[3, 2][..]));
        assert_eq!(odd.rows.elements::<f32>().unwrap(), [0., 1., 20., 21., 40., 41.]);
        let summed = parts(&table, &ids, &rows, SumRows::Yes);
        let odd = update(&summed[1].1);
        assert_eq!((&odd.ids[..], odd.rows.elements::<f32>().unwrap()), (&[3, 4][..], &[20., 22., 40., 41.][..]));
    }

    #[test]
    fn rows_of_every_kind_and_none_come_through() {
        let table = ShardedTable::of("a", "t").unwrap();
        let words = Tensor::from_elements(&[2, 3], &[1_u16, 2, 3, 4, 5, 6]).unwrap();
        let read = update(&parts(&table, &[u64::MAX, 1], &words, SumRows::No)[0].1);
        assert_eq!(
            (&read.ids[..], read.rows.elements::<u16>().unwrap()),
            (&[1, u64::MAX][..], &[4, 5, 6, 1, 2, 3][..])
        );
        let none = Tensor::from_elements::<f64>(&[0, 3], &[]).unwrap();
        assert!(parts(&table, &[], &none, SumRows::Yes).is_empty());
        let double = Tensor::from_elements(&[2, 1], &[0.5_f64, 0.25]).unwrap();
        let read = update(&parts(&table, &[5, 5], &double, SumRows::Yes)[0].1);
        assert_eq!(read.rows.elements::<f64>().unwrap(), [0.75]);
        let refuse = |ids: &[u64], rows: &Tensor| {
            let rows = TableRows { table: &table, ids, rows };
            encode(&rows, SumRows::Yes, |_| unreachable!("it is refused before")).unwrap_err()
        };
        assert!(refuse(&[1, 2], &words).to_string().contains("not added up"));
        let strings = Tensor::from_strings(&[2], &["a", "b"]).unwrap();
        for wrong in [strings, Tensor::dead(DType::F32)] {
            let rows = TableRows { table: &table, ids: &[1, 2], rows: &wrong };
            let error = encode(&rows, SumRows::No, |_| unreachable!("it is refused before"));
            assert!(error.unwrap_err().to_string().contains("no rows"), "{wrong:?}");
        }
        assert!(refuse(&[1, 2, 3], &double).to_string().contains("3 numbers"));
    }

    #[test]
    fn bytes_that_are_no_rows_are_refused_wherever_they_are_wrong() {
        let table = ShardedTable::of("a", "t").unwrap();
        let rows = Tensor::from_elements(&[3, 2], &[1_u32, 2, 3, 4, 5, 6]).unwrap();
        let good = parts(&table, &[1, 2, 3], &rows, SumRows::No).remove(0).1.bytes().to_vec();
        let read = |bytes: &[u8]| decode(Tensor::from_elements(&[bytes.len() as u64], bytes).unwrap());
        assert!(read(&good).is_ok());
        for shorter in 0..good.len() {
            assert!(read(&good[..shorter]).is_err(), "cut to {shorter}");
        }
        assert!(read(&[&good[..], &[0]].concat()).is_err());
        // Every byte of the header and the metadata is read.
        for at in 0..HEADER_BYTES {
            for value in [0xff, 0x80, 1] {
                let mut bad = good.clone();
                bad[at] ^= value;
                assert!(read(&bad).is_err(), "byte {at} changed by {value}");
            }
        }
    }
}
