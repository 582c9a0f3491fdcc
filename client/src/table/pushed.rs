//! Rows that are pushed to the owners of tables: one tensor for each owner, with a part for each table, in order. If the parts would
//! exceed [`PUSHED_ROWS_BYTES`] or [`PUSHED_TABLES_MAX`], further tensors follow.
//!
//! The tensor consists of bytes: a header, and the parts. A part is a header, the table's key, the metadata of the rows, their numbers, and
//! the rows. [`RowUpdate`](super::RowUpdate) reads it.

use std::collections::HashMap;

use sealane_runtime::{Buffer, MemoryKind};
use sealane_transport::{Error, SendOptions, Tensor, TensorMeta, tensor::DType};

use super::{
    sharding::ShardedTable,
    shares::{self, Share, split},
};
use crate::{
    Pushing, Task, attachment,
    limits::{PUSHED_ROWS_BYTES, PUSHED_TABLES_MAX},
};

/// The first bytes: rows follow, in this format.
pub(super) const MAGIC: [u8; 8] = *b"SL-rows3";

/// Header of the tensor: the magic, and the number of parts (8).
pub(super) const HEADER_BYTES: usize = 16;

/// Header of a part: the number of rows, and the bytes of the table's key, of the rows' metadata as one tensor, and of the rows (8 each).
pub(super) const PART_HEADER_BYTES: usize = 32;

/// A part, its key, its metadata and its numbers each begin at a multiple of this.
pub(super) const ALIGNMENT: usize = 8;

/// Rows begin at a multiple of this.
pub(super) const ROWS_ALIGNMENT: usize = 64;

/// Adds one row to another.
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

/// Rows of a table to be pushed.
#[derive(Debug, Clone, Copy)]
pub struct TableRows<'a> {
    /// The table.
    pub table: &'a ShardedTable,
    /// The numbers of the rows.
    pub ids: &'a [u64],
    /// A row for each number: of shape `[ids, ...]`.
    pub rows: &'a Tensor,
}

impl Task {
    /// Pushes rows to the owners of a table, into the queue `queue` of each, where
    /// [`RowUpdate::all_of`](crate::RowUpdate::all_of) reads what was [accepted](Task::acceptor). It ends when all queues have taken their
    /// part, with the first error if there was any: the other owners have then taken theirs.
    ///
    /// # Errors
    /// InvalidArgument if the table has no such row, or there are not as many rows as numbers, or they cannot be added up, are strings,
    /// or are in a device's memory. The future reports all other errors.
    pub fn push_rows(
        &self,
        queue: &str,
        rows: TableRows<'_>,
        sum: SumRows,
        options: &SendOptions,
    ) -> Result<Pushing, Error> {
        self.push_all_rows(queue, &[rows], sum, options)
    }

    /// [`push_rows`](Self::push_rows) for many tables, in order, at a fraction of the cost each: rows for one owner are sent together,
    /// about a MiB at a time. After an error nothing was pushed.
    ///
    /// # Errors
    /// Those of [`push_rows`](Self::push_rows).
    pub fn push_all_rows(
        &self,
        queue: &str,
        rows: &[TableRows<'_>],
        sum: SumRows,
        options: &SendOptions,
    ) -> Result<Pushing, Error> {
        let mut pushes = Vec::new();
        let encoded = encode(rows, sum, |bytes| self.alloc(bytes))?;
        attachment::together(|| {
            for (owner, tensors) in encoded {
                self.push_each(owner, queue, tensors, options, &mut pushes);
            }
        });
        Ok(Pushing::of(pushes))
    }
}

/// Rows of one table for one owner.
struct Part<'a> {
    key: &'a str,
    meta: TensorMeta,
    share: Share,
    /// Number of rows pushed: each sum once, other rows as often as they are named.
    count: usize,
    add: Option<Add>,
    /// The caller's rows for the whole table, some of which are in this part.
    rows: &'a [u8],
    row_bytes: usize,
}

/// Where the pieces of a part begin, and where the part ends.
struct Layout {
    header: usize,
    key: usize,
    meta: usize,
    ids: usize,
    rows: usize,
    end: usize,
}

/// The tensors for each owner that gets rows.
fn encode<'a>(
    rows: &[TableRows<'a>],
    sum: SumRows,
    mut allocate: impl FnMut(usize) -> Result<Buffer, Error>,
) -> Result<Vec<(&'a str, Vec<Tensor>)>, Error> {
    let mut by_owner: Vec<(&str, Vec<Part<'_>>)> = Vec::new();
    let mut numbers = HashMap::new();
    for rows in rows {
        for part in Part::all_of(rows, sum)? {
            let owner = rows.table.owner(part.share.owner);
            let number = *numbers.entry(owner).or_insert(by_owner.len());
            if number == by_owner.len() {
                by_owner.push((owner, Vec::new()));
            }
            by_owner[number].1.push(part);
        }
    }
    let mut tensors = Vec::with_capacity(by_owner.len());
    for (owner, parts) in by_owner {
        tensors.push((owner, together(&parts, &mut allocate)?));
    }
    Ok(tensors)
}

/// Packs parts into as few tensors as possible.
fn together(
    mut parts: &[Part<'_>],
    mut allocate: impl FnMut(usize) -> Result<Buffer, Error>,
) -> Result<Vec<Tensor>, Error> {
    let mut tensors = Vec::new();
    while !parts.is_empty() {
        let (mut count, mut bytes) = (0, HEADER_BYTES);
        for part in parts.iter().take(PUSHED_TABLES_MAX) {
            let end = part.layout(bytes).end;
            if count > 0 && end > PUSHED_ROWS_BYTES {
                break;
            }
            (count, bytes) = (count + 1, end);
        }
        let (these, rest) = parts.split_at(count);
        let mut buffer = allocate(bytes)?;
        buffer[..HEADER_BYTES].copy_from_slice([MAGIC, (count as u64).to_le_bytes()].as_flattened());
        these.iter().fold(HEADER_BYTES, |at, part| part.write(at, &mut buffer));
        tensors.push(Tensor::new(TensorMeta::new(DType::U8, &[bytes as u64])?, buffer)?);
        parts = rest;
    }
    Ok(tensors)
}

impl<'a> Part<'a> {
    /// One part for each owner that gets rows.
    fn all_of(&TableRows { table, ids, rows }: &TableRows<'a>, sum: SumRows) -> Result<Vec<Part<'a>>, Error> {
        let mut shape = rows.shape();
        if rows.meta().is_strings() || rows.meta().is_dead() || !matches!(rows.memory(), MemoryKind::Host) {
            return Err(Error::invalid(format!("{:?} is no rows of a fixed size in the host's memory", rows.meta())));
        }
        if shape.first() != Some(&(ids.len() as u64)) {
            return Err(Error::invalid(format!("rows of shape {shape:?} for {} numbers", ids.len())));
        }
        let add = match (sum, rows.dtype()) {
            (SumRows::No, _) => None,
            (SumRows::Yes, DType::F32) => Some(add::<f32, 4> as Add),
            (SumRows::Yes, DType::F64) => Some(add::<f64, 8> as Add),
            (SumRows::Yes, other) => return Err(Error::invalid(format!("rows of {other} are not added up"))),
        };
        let (key, rows, dtype) = (table.key(), rows.bytes(), rows.dtype());
        let row_bytes = rows.len().checked_div(ids.len()).unwrap_or(0);
        let mut parts = Vec::new();
        for share in split(table, ids)?.iter().map(shares::Part::share) {
            let count = if add.is_some() { share.rows.len() } else { share.places().len() };
            shape[0] = count as u64;
            let meta = TensorMeta::new(dtype, &shape)?;
            parts.push(Part { key, meta, share, count, add, rows, row_bytes });
        }
        Ok(parts)
    }

    /// The layout of this part behind what ends at `at`.
    fn layout(&self, at: usize) -> Layout {
        let header = at.next_multiple_of(ALIGNMENT);
        let key = header + PART_HEADER_BYTES;
        let meta = (key + self.key.len()).next_multiple_of(ALIGNMENT);
        let ids = (meta + self.meta.as_wire().len()).next_multiple_of(ALIGNMENT);
        let rows = (ids + self.count * size_of::<u64>()).next_multiple_of(ROWS_ALIGNMENT);
        Layout { header, key, meta, ids, rows, end: rows + self.count * self.row_bytes }
    }

    /// Writes the part behind what ends at `at`; returns where it ends.
    fn write(&self, at: usize, buffer: &mut [u8]) -> usize {
        let (to, wire) = (self.layout(at), self.meta.as_wire());
        let (head, body) = buffer[..to.end].split_at_mut(to.rows);
        // Gaps between the pieces are cleared too: the memory was used before.
        head[at..].fill(0);
        let lengths = [self.count, self.key.len(), wire.len(), body.len()].map(|length| (length as u64).to_le_bytes());
        head[to.header..to.key].copy_from_slice(lengths.as_flattened());
        head[to.key..][..self.key.len()].copy_from_slice(self.key.as_bytes());
        head[to.meta..][..wire.len()].copy_from_slice(wire);
        fill(&self.share, self.add, self.rows, self.row_bytes, (&mut head[to.ids..], body));
        to.end
    }
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

/// A number of `N` bytes, in this host's byte order.
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

/// Adds numbers elementwise.
fn add<T: Number<N>, const N: usize>(to: &mut [u8], more: &[u8]) {
    for (to, more) in to.as_chunks_mut::<N>().0.iter_mut().zip(more.as_chunks::<N>().0) {
        *to = (T::of(*to) + T::of(*more)).bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Accepted, RowUpdate, Sharding};

    fn pushed<'a>(rows: &[TableRows<'a>], sum: SumRows) -> Vec<(&'a str, Vec<Tensor>)> {
        encode(rows, sum, |bytes| Ok(Buffer::from_vec(vec![0xaa; bytes]))).unwrap()
    }

    /// What each owner gets, for one table.
    fn parts(table: &ShardedTable, ids: &[u64], rows: &Tensor, sum: SumRows) -> Vec<RowUpdate> {
        pushed(&[TableRows { table, ids, rows }], sum).into_iter().map(|(_, tensors)| update(&tensors)).collect()
    }

    fn updates(tensor: &Tensor) -> Vec<RowUpdate> {
        RowUpdate::all_of(Accepted { from: "worker".into(), tensor: tensor.share() }).unwrap()
    }

    fn update(tensors: &[Tensor]) -> RowUpdate {
        let [tensor] = tensors else { panic!("{tensors:?}") };
        let mut updates = updates(tensor);
        assert_eq!(updates.len(), 1);
        updates.remove(0)
    }

    #[test]
    fn rows_go_to_their_owners_and_are_read_there() {
        let table = ShardedTable::new("t", ["a", "b"], Sharding::modulo(100, 2).unwrap()).unwrap();
        let rows = Tensor::from_elements(&[5, 2], &[0., 1., 10., 11., 20., 21., 30., 31., 40., 41_f32]).unwrap();
        let ids = [7, 4, 7, 0, 9];
        let sent = parts(&table, &ids, &rows, SumRows::No);
        let [even, odd] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((&*even.table, &*odd.table), ("t", "t"));
        assert_eq!((&even.ids[..], even.rows.elements::<f32>().unwrap()), (&[0, 2][..], &[30., 31., 10., 11.][..]));
        assert_eq!((&odd.ids[..], &odd.rows.shape()[..]), (&[3, 3, 4][..], &[3, 2][..]));
        assert_eq!(odd.rows.elements::<f32>().unwrap(), [0., 1., 20., 21., 40., 41.]);
        let summed = parts(&table, &ids, &rows, SumRows::Yes);
        let odd = &summed[1];
        assert_eq!((&odd.ids[..], odd.rows.elements::<f32>().unwrap()), (&[3, 4][..], &[20., 22., 40., 41.][..]));
    }

    #[test]
    fn rows_of_every_kind_and_none_come_through() {
        let table = ShardedTable::of("a", "t").unwrap();
        let words = Tensor::from_elements(&[2, 3], &[1_u16, 2, 3, 4, 5, 6]).unwrap();
        let read = &parts(&table, &[u64::MAX, 1], &words, SumRows::No)[0];
        assert_eq!(
            (&read.ids[..], read.rows.elements::<u16>().unwrap()),
            (&[1, u64::MAX][..], &[4, 5, 6, 1, 2, 3][..])
        );
        let none = Tensor::from_elements::<f64>(&[0, 3], &[]).unwrap();
        assert!(parts(&table, &[], &none, SumRows::Yes).is_empty());
        let double = Tensor::from_elements(&[2, 1], &[0.5_f64, 0.25]).unwrap();
        let read = &parts(&table, &[5, 5], &double, SumRows::Yes)[0];
        assert_eq!(read.rows.elements::<f64>().unwrap(), [0.75]);
        let refuse = |ids: &[u64], rows: &Tensor| {
            let rows = TableRows { table: &table, ids, rows };
            encode(&[rows], SumRows::Yes, |_| unreachable!("it is refused before")).unwrap_err()
        };
        assert!(refuse(&[1, 2], &words).to_string().contains("not added up"));
        let strings = Tensor::from_strings(&[2], &["a", "b"]).unwrap();
        for wrong in [strings, Tensor::dead(DType::F32)] {
            let rows = TableRows { table: &table, ids: &[1, 2], rows: &wrong };
            let error = encode(&[rows], SumRows::No, |_| unreachable!("it is refused before"));
            assert!(error.unwrap_err().to_string().contains("no rows"), "{wrong:?}");
        }
        assert!(refuse(&[1, 2, 3], &double).to_string().contains("3 numbers"));
    }

    #[test]
    fn what_an_owner_gets_of_many_tables_goes_together_and_in_order() {
        let users = ShardedTable::new("user", ["a", "b"], Sharding::modulo(100, 2).unwrap()).unwrap();
        let items = ShardedTable::of("b", "item").unwrap();
        let bytes = Tensor::from_elements(&[3, 5], &[7_u8; 15]).unwrap();
        let doubles = Tensor::from_elements(&[2, 1], &[0.5_f64, 0.25]).unwrap();
        let all = [
            TableRows { table: &users, ids: &[1, 3, 0], rows: &bytes },
            TableRows { table: &items, ids: &[9, 9], rows: &doubles },
            TableRows { table: &users, ids: &[5, 7], rows: &doubles },
        ];
        let sent = pushed(&all, SumRows::No);
        let [("a", even), ("b", odd)] = &sent[..] else { panic!("{sent:?}") };
        assert_eq!((&*update(even).table, &update(even).ids[..]), ("user", &[0][..]));
        let odd_bytes = bytes::Bytes::copy_from_slice(odd[0].bytes());
        let read = updates(&Tensor::from_parts(odd[0].meta().clone(), odd_bytes.clone()));
        let names = read.iter().map(|update| (&*update.table, &update.ids[..])).collect::<Vec<_>>();
        assert_eq!((odd.len(), names), (1, vec![("user", &[0, 1][..]), ("item", &[9, 9]), ("user", &[2, 3])]));
        assert_eq!((read[0].rows.bytes(), &read[0].rows.shape()[..]), (&[7; 10][..], &[2, 5][..]));
        assert_eq!(read[1].rows.elements::<f64>().unwrap(), [0.5, 0.25]);
        // The rows are views of the accepted tensor, each aligned for its elements.
        let all = odd_bytes.as_ptr_range();
        for rows in read.iter().map(|update| update.rows.bytes().as_ptr()) {
            assert!(all.contains(&rows) && (rows as usize - all.start as usize).is_multiple_of(ROWS_ALIGNMENT));
        }
    }

    #[test]
    fn many_rows_and_many_tables_go_in_several_tensors() {
        let table = ShardedTable::of("a", "t").unwrap();
        let large = Tensor::from_elements(&[1, 400_000], &[1_u8; 400_000]).unwrap();
        let giant = Tensor::from_elements(&[1, 3_000_000], &[1_u8; 3_000_000]).unwrap();
        let small = Tensor::from_elements(&[1, 1], &[1_u8]).unwrap();
        let tables_of = |all: &[&Tensor]| {
            let all: Vec<_> = all.iter().map(|rows| TableRows { table: &table, ids: &[7], rows }).collect();
            let sent = pushed(&all, SumRows::No).remove(0).1;
            assert!(sent.iter().all(|tensor| tensor.len() <= PUSHED_ROWS_BYTES || updates(tensor).len() == 1));
            sent.iter().map(|tensor| updates(tensor).len()).collect::<Vec<_>>()
        };
        assert_eq!(tables_of(&[&large; 5]), [2, 2, 1]);
        assert_eq!(tables_of(&[&small, &giant, &small, &large]), [1, 1, 2]);
        assert_eq!(tables_of(&vec![&small; PUSHED_TABLES_MAX + 1]), [PUSHED_TABLES_MAX, 1]);
    }
}
