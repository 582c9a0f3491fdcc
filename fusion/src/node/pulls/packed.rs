//! The bytes of small published tensors, packed one behind the other: those that were published one after the other lie side by side,
//! so that a pull copies many of them at once.

use sealane_runtime::VolatileSlice;

use crate::limits::PACKED_FREED_BYTES_MIN;

/// Where a tensor's bytes lie, if they are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PackedAt {
    start: usize,
    len: u32,
}

impl PackedAt {
    /// Nowhere.
    pub(super) const NOWHERE: PackedAt = PackedAt { start: usize::MAX, len: 0 };

    /// Bytes that lie there.
    #[inline]
    pub(super) fn len(self) -> usize {
        self.len as usize
    }

    /// True if bytes are packed, if only none.
    #[inline]
    pub(super) fn is_somewhere(self) -> bool {
        self.start != usize::MAX
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Packed {
    bytes: Vec<u8>,
    /// Bytes that are no tensor's any more.
    freed: usize,
}

impl Packed {
    /// Packs a tensor's bytes behind the others.
    ///
    /// # Panics
    /// With over 4 GiB.
    pub(super) fn push(&mut self, bytes: VolatileSlice<'_>) -> PackedAt {
        let at = PackedAt {
            start: self.bytes.len(),
            len: u32::try_from(bytes.len()).expect("a small tensor has few bytes"),
        };
        bytes.append_to(&mut self.bytes);
        at
    }

    /// Writes over a tensor's bytes; false if they are not as many.
    #[inline]
    pub(super) fn overwrite(&mut self, at: PackedAt, with: &[u8]) -> bool {
        let is_alike = at.is_somewhere() && at.len() == with.len();
        if is_alike {
            self.bytes[at.start..at.start + with.len()].copy_from_slice(with);
        }
        is_alike
    }

    /// A tensor's bytes.
    #[inline]
    pub(super) fn get(&self, at: PackedAt) -> &[u8] {
        &self.bytes[at.start..at.start + at.len()]
    }

    /// The bytes of the first of these tensors, as long as they lie one behind the other and are no more than `bytes_max`; how many
    /// those are.
    #[inline]
    pub(super) fn run(&self, mut tensors: impl Iterator<Item = PackedAt>, bytes_max: usize) -> (usize, &[u8]) {
        let first = tensors.next().filter(|first| first.is_somewhere() && first.len() <= bytes_max);
        let Some(first) = first else { return (0, &[]) };
        let (mut count, mut end) = (1, first.start + first.len());
        for at in tensors {
            // Nothing ends nowhere.
            if at.start != end || end - first.start + at.len() > bytes_max {
                break;
            }
            (count, end) = (count + 1, end + at.len());
        }
        (count, &self.bytes[first.start..end])
    }

    /// A tensor's bytes are needed no more.
    pub(super) fn free(&mut self, at: PackedAt) {
        self.freed += at.len();
    }

    /// True if more than half is freed: to be [packed anew](Self::pack_anew).
    #[inline]
    pub(super) fn is_loose(&self) -> bool {
        self.freed > PACKED_FREED_BYTES_MIN && self.freed > self.bytes.len() / 2
    }

    /// Packs all tensors in this order, without what is freed between them.
    pub(super) fn pack_anew<'a>(&mut self, tensors: impl Iterator<Item = &'a mut PackedAt>) {
        let before = std::mem::take(self);
        self.bytes.reserve(before.bytes.len() - before.freed);
        for at in tensors.filter(|at| at.is_somewhere()) {
            *at = self.push(before.get(*at).into());
        }
    }

    /// Panics unless these are all tensors that are packed here.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, tensors: impl Iterator<Item = PackedAt>) {
        let mut all: Vec<_> = tensors.filter(|at| at.is_somewhere()).collect();
        all.sort_unstable_by_key(|at| (at.start, at.len));
        let mut end = 0;
        for at in &all {
            assert!(at.start >= end, "two tensors would share bytes");
            end = at.start + at.len();
        }
        let used: usize = all.iter().map(|at| at.len()).sum();
        assert_eq!(self.bytes.len() - self.freed, used, "bytes would be lost, or written over");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(packed: &mut Packed, count: u8, len: usize) -> Vec<PackedAt> {
        (0..count).map(|value| packed.push(vec![value; len][..].into())).collect()
    }

    #[test]
    fn neighbours_are_read_at_once_as_far_as_there_is_room() {
        let mut packed = Packed::default();
        let mut all = pushed(&mut packed, 4, 3);
        let run = |all: &[PackedAt], bytes_max| {
            let (count, bytes) = packed.run(all.iter().copied(), bytes_max);
            (count, bytes.to_vec())
        };
        assert_eq!(run(&all, 100), (4, vec![0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]));
        assert_eq!(run(&all, 8), (2, vec![0, 0, 0, 1, 1, 1]));
        assert_eq!(run(&all, 2), (0, vec![]));
        assert_eq!(run(&[all[0], all[2], all[3]], 100), (1, vec![0; 3]));
        all[1] = PackedAt::NOWHERE;
        assert_eq!(run(&all, 100), (1, vec![0; 3]));
        assert_eq!(run(&[PackedAt::NOWHERE; 2], 100), (0, vec![]));
    }

    #[test]
    fn what_is_freed_is_used_again_once_it_is_more_than_the_rest() {
        let mut packed = Packed::default();
        let mut all = pushed(&mut packed, 100, PACKED_FREED_BYTES_MIN / 40);
        let mut left: Vec<u8> = (0..100).rev().collect();
        while !packed.is_loose() {
            packed.free(std::mem::replace(&mut all[left.len() - 1], PackedAt::NOWHERE));
            left.remove(0);
        }
        assert_eq!(left.len(), 49);
        all.reverse();
        packed.pack_anew(all.iter_mut());
        packed.check_invariants(all.iter().copied());
        assert!(!packed.is_loose());
        let there = || all.iter().copied().filter(|at| at.is_somewhere());
        assert!(there().map(|at| packed.get(at)[0]).eq(left.iter().copied()));
        assert_eq!(packed.run(there(), usize::MAX).0, left.len());
    }

    #[test]
    fn bytes_are_written_over_by_as_many() {
        let mut packed = Packed::default();
        let all = pushed(&mut packed, 2, 3);
        assert!(packed.overwrite(all[1], &[7; 3]) && !packed.overwrite(all[1], &[7; 4]));
        assert!(!packed.overwrite(PackedAt::NOWHERE, &[]));
        assert_eq!((packed.get(all[0]), packed.get(all[1])), (&[0; 3][..], &[7; 3][..]));
    }
}
