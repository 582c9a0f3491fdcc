//! How a published tensor is cut along its first dimension, and which task publishes which rows. Pure; bounded by
//! [`SLICES_MAX`].

use std::ops::Range;

use crate::error::Error;
use crate::limits::SLICES_MAX;
use crate::tensor::TensorMeta;

/// A cut of a tensor along its first dimension into consecutive slices, each published by one task. Publishers and pullers
/// compute the same cut from the whole tensor's type and shape and the owners in order.
///
/// A slice is a published tensor like any other, under a [key](Self::key) that says which rows of how many it has: if two
/// sides cut a tensor differently, they never get each other's rows.
///
/// ```
/// # use sealane_transport::{Slicing, TensorMeta, tensor::DType};
/// let whole = TensorMeta::new(DType::F32, &[1000, 16])?;
/// let slicing = Slicing::even(whole, ["ps0.train:2222", "ps1.train:2222", "ps2.train:2222"])?;
/// assert_eq!((slicing.owner(1), slicing.rows(1)), ("ps1.train:2222", 333..666));
/// assert_eq!(slicing.key("embedding", 1), "embedding[333:666/1000]");
/// # Ok::<(), sealane_transport::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slicing {
    meta: TensorMeta,
    slices: Box<[Slice]>,
    /// Bytes of one row; never 0.
    row_bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Slice {
    owner: Box<str>,
    rows: Range<u64>,
}

impl Slicing {
    /// One slice per owner, as equal as whole rows allow. An owner may be named more than once: its large slices are then
    /// pulled over different shards. If there are more owners than rows, some get none.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn even<O: AsRef<str>>(meta: TensorMeta, owners: impl IntoIterator<Item = O>) -> Result<Slicing, Error> {
        let owners: Vec<O> = owners.into_iter().collect();
        let rows = meta.shape().first().copied().unwrap_or_default();
        let end = |index: usize| (u128::from(rows) * index as u128 / owners.len() as u128) as u64;
        let share = |(index, owner): (usize, &O)| (owner.as_ref().to_owned(), end(index + 1) - end(index));
        let shares: Vec<_> = owners.iter().enumerate().map(share).filter(|(_, rows)| *rows > 0).collect();
        Self::new(meta, shares)
    }

    /// Slices of the given numbers of rows, each with its owner, in the order of the rows.
    ///
    /// # Errors
    /// InvalidArgument if the tensor has no dimension, no bytes, strings, or rows that are not whole bytes; if the slices do
    /// not cover all of its rows, or one has none; or if there are more than [`SLICES_MAX`].
    pub fn new<O: AsRef<str>>(meta: TensorMeta, slices: impl IntoIterator<Item = (O, u64)>) -> Result<Slicing, Error> {
        let shape = meta.shape();
        let (Some(&rows), false) = (shape.first(), meta.is_strings() || meta.is_dead()) else {
            return Err(Error::invalid(format!("{meta:?} has no rows to be sliced")));
        };
        let elements = TensorMeta::new(meta.dtype(), &shape[1..])?.element_count();
        let row_bits = elements.checked_mul(meta.dtype().element_bits()).unwrap_or_default();
        if rows == 0 || row_bits == 0 || !row_bits.is_multiple_of(8) {
            return Err(Error::invalid(format!("rows of {meta:?} are not whole bytes, or there are none")));
        }
        let mut begin = 0_u64;
        let mut cut = Vec::new();
        for (owner, count) in slices {
            let end = begin.checked_add(count).filter(|end| count > 0 && *end <= rows && cut.len() < SLICES_MAX);
            let Some(end) = end else {
                let reason = format!(
                    "a slice of {count} rows after {begin} of {rows}; at most {SLICES_MAX} slices with rows fit"
                );
                return Err(Error::invalid(reason));
            };
            cut.push(Slice { owner: owner.as_ref().into(), rows: begin..end });
            begin = end;
        }
        if begin < rows {
            return Err(Error::invalid(format!("the slices have {begin} of {rows} rows")));
        }
        Ok(Slicing { meta, slices: cut.into(), row_bytes: (row_bits / 8) as usize })
    }

    /// Number of slices, at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is never none")]
    pub fn len(&self) -> usize {
        self.slices.len()
    }

    /// Type and shape of the whole tensor.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Bytes of the whole tensor.
    pub fn bytes(&self) -> usize {
        self.bytes_of(self.len() - 1).end
    }

    /// The task that publishes a slice.
    ///
    /// # Panics
    /// If there is no such slice.
    pub fn owner(&self, index: usize) -> &str {
        &self.slices[index].owner
    }

    /// The rows of a slice.
    ///
    /// # Panics
    /// If there is no such slice.
    pub fn rows(&self, index: usize) -> Range<u64> {
        self.slices[index].rows.clone()
    }

    /// The range of a slice in the bytes of the whole tensor.
    ///
    /// # Panics
    /// If there is no such slice.
    pub fn bytes_of(&self, index: usize) -> Range<usize> {
        let Range { start, end } = self.rows(index);
        start as usize * self.row_bytes..end as usize * self.row_bytes
    }

    /// Type and shape of a slice.
    ///
    /// # Panics
    /// If there is no such slice.
    pub fn meta_of(&self, index: usize) -> TensorMeta {
        let rows = self.rows(index);
        self.with_rows(rows.end - rows.start)
    }

    /// Type and shape of `rows` rows.
    fn with_rows(&self, rows: u64) -> TensorMeta {
        let mut shape = self.meta.shape();
        shape[0] = rows;
        TensorMeta::new(self.meta.dtype(), &shape).expect("no larger than the whole")
    }

    /// The key under which a slice of the tensor `key` is published.
    ///
    /// # Panics
    /// If there is no such slice.
    pub fn key(&self, key: &str, index: usize) -> String {
        let (rows, of) = (self.rows(index), self.meta.shape()[0]);
        format!("{key}[{}:{}/{of}]", rows.start, rows.end)
    }

    /// The numbers of one owner's slices.
    pub fn of_owner(&self, owner: &str) -> impl Iterator<Item = usize> {
        (0..self.len()).filter(move |index| *self.slices[*index].owner == *owner)
    }

    /// The slices that `owner` publishes of the tensor `given`, which is either the whole tensor or this owner's rows
    /// concatenated: the number of each, and its range in the bytes of that tensor.
    ///
    /// # Errors
    /// InvalidArgument if the owner has no slice, or the tensor is neither of these.
    pub fn cut(&self, owner: &str, given: &TensorMeta) -> Result<Vec<(usize, Range<usize>)>, Error> {
        let own: Vec<usize> = self.of_owner(owner).collect();
        if own.is_empty() {
            return Err(Error::invalid(format!("the slicing gives {owner} no rows")));
        }
        if *given == self.meta {
            return Ok(own.into_iter().map(|index| (index, self.bytes_of(index))).collect());
        }
        let rows = own.iter().map(|&index| self.rows(index).end - self.rows(index).start).sum();
        let expected = self.with_rows(rows);
        if *given != expected {
            let whole = &self.meta;
            return Err(Error::invalid(format!(
                "a slice is cut from {whole:?} or from {expected:?}, not from {given:?}"
            )));
        }
        let mut at = 0;
        let place = |index: usize| {
            let begin = at;
            at += self.bytes_of(index).len();
            (index, begin..at)
        };
        Ok(own.into_iter().map(place).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::DType;

    fn meta(shape: &[u64]) -> TensorMeta {
        TensorMeta::new(DType::F32, shape).unwrap()
    }

    #[test]
    fn slices_have_all_rows_in_order_and_differ_by_one_at_most() {
        for (rows, owners) in [(1000, 3), (7, 7), (3, 5), (1, 1), (4096, 4096)] {
            let slicing = Slicing::even(meta(&[rows, 3]), (0..owners).map(|owner| format!("ps{owner}:1"))).unwrap();
            assert_eq!(slicing.len() as u64, rows.min(owners));
            let (mut row, mut byte, mut sizes) = (0, 0, Vec::new());
            for index in 0..slicing.len() {
                assert_eq!((slicing.rows(index).start, slicing.bytes_of(index).start), (row, byte));
                (row, byte) = (slicing.rows(index).end, slicing.bytes_of(index).end);
                sizes.push(slicing.bytes_of(index).len());
                slicing.meta_of(index).check_bytes(slicing.bytes_of(index).len() as u64).unwrap();
            }
            assert_eq!((row, byte, slicing.bytes()), (rows, rows as usize * 12, rows as usize * 12));
            assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 12);
        }
    }

    #[test]
    fn a_key_says_which_rows_of_how_many() {
        let [three, two] = [3, 2].map(|owners| Slicing::even(meta(&[10]), vec!["ps:1"; owners]).unwrap());
        let keys = |slicing: &Slicing| (0..slicing.len()).map(|index| slicing.key("w", index)).collect::<Vec<_>>();
        assert_eq!(keys(&three), ["w[0:3/10]", "w[3:6/10]", "w[6:10/10]"]);
        assert_eq!(keys(&two), ["w[0:5/10]", "w[5:10/10]"]);
    }

    #[test]
    fn an_owner_cuts_its_slices_from_the_whole_or_from_its_own_rows() {
        let slicing = Slicing::new(meta(&[10, 2]), [("a", 2), ("b", 3), ("a", 5)]).unwrap();
        assert_eq!(slicing.cut("a", &meta(&[10, 2])).unwrap(), [(0, 0..16), (2, 40..80)]);
        assert_eq!(slicing.cut("a", &meta(&[7, 2])).unwrap(), [(0, 0..16), (2, 16..56)]);
        assert_eq!(slicing.cut("b", &meta(&[3, 2])).unwrap(), [(1, 0..24)]);
        let error = slicing.cut("b", &meta(&[7, 2])).unwrap_err().to_string();
        assert!(error.contains("[3, 2]") && error.contains("[7, 2]"), "{error}");
        assert!(slicing.cut("c", &meta(&[10, 2])).unwrap_err().to_string().contains("gives c no rows"));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        let half_bytes = TensorMeta::new(DType::from_numbers(DType::U8.code as u8, 4, 1).unwrap(), &[3, 1]).unwrap();
        let strings = TensorMeta::strings(&[3]).unwrap();
        for (meta, slices) in [
            (meta(&[]), vec![("a", 1)]),
            (meta(&[0, 5]), vec![]),
            (meta(&[5, 0]), vec![("a", 5)]),
            (strings, vec![("a", 3)]),
            (half_bytes, vec![("a", 3)]),
            (meta(&[5]), vec![("a", 4)]),
            (meta(&[5]), vec![("a", 5), ("b", 0)]),
            (meta(&[5]), vec![("a", 5), ("b", 1)]),
            (meta(&[5]), vec![("a", u64::MAX), ("b", u64::MAX)]),
            (meta(&[u64::from(u32::MAX)]), vec![("a", 1); SLICES_MAX + 1]),
        ] {
            assert!(Slicing::new(meta.clone(), slices.clone()).is_err(), "{meta:?} {slices:?}");
        }
        assert!(Slicing::even(meta(&[5]), Vec::<&str>::new()).is_err());
    }
}
