//! What pulls of small published tensors look at, by slot: versions, and bytes packed in chunks. Tensors that were published one after the
//! other lie side by side, so that a pull copies many of them at once. A chunk less than half used is emptied into others, so that no call
//! copies more than a few chunks, and no more than twice the used memory is kept.

use sealane_runtime::VolatileSlice;

use crate::limits::{PACKED_CHUNK_BYTES, PACKED_CHUNK_TENSORS};

/// Where the bytes of a slot's tensor lie.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The number of the chunk, and in the low 32 bits where the bytes start in it.
    at: u64,
    len: u32,
}

/// The place of a slot with nothing packed. It never equals the end of another place, and no small tensor has this length.
const NOWHERE: Place = Place { at: u64::MAX, len: u32::MAX };

/// What lies in a slot, as far as pulls of small tensors look at it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) version: i64,
    /// 0 if nothing lies there.
    pub(super) stamp: u64,
    place: Place,
}

impl Place {
    fn chunk(self) -> usize {
        (self.at >> 32) as usize
    }

    fn start(self) -> usize {
        self.at as u32 as usize
    }

    fn end(self) -> u64 {
        self.at + u64::from(self.len)
    }
}

#[derive(Debug, Default)]
struct Chunk {
    bytes: Vec<u8>,
    /// The slots whose tensors were packed here, in order; some are no longer here.
    slots: Vec<u32>,
    /// Tensors still packed here.
    tensors: usize,
    /// Bytes of those.
    used: usize,
}

impl Chunk {
    fn has_room(&self, len: usize) -> bool {
        self.slots.len() < PACKED_CHUNK_TENSORS && self.bytes.len() + len <= PACKED_CHUNK_BYTES
    }

    /// True if less than half is used.
    fn is_loose(&self) -> bool {
        2 * self.tensors < self.slots.len() || 2 * self.used < self.bytes.len()
    }
}

/// The packed tensors of a store; see the module.
#[derive(Debug)]
pub(super) struct Packed {
    slots: Vec<Slot>,
    chunks: Vec<Chunk>,
    /// Numbers of empty chunks.
    vacant: Vec<usize>,
    /// The chunk that new tensors go to.
    open: usize,
}

impl Packed {
    pub(super) fn new() -> Self {
        Self { slots: Vec::new(), chunks: vec![Chunk::default()], vacant: Vec::new(), open: 0 }
    }

    /// Adds an empty slot.
    pub(super) fn add_slot(&mut self) {
        self.slots.push(Slot { version: 0, stamp: 0, place: NOWHERE });
    }

    #[inline]
    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    /// Sets the version and stamp of a slot, packed or not.
    #[inline]
    pub(super) fn set(&mut self, slot: u32, version: i64, stamp: u64) {
        let there = &mut self.slots[slot as usize];
        (there.version, there.stamp) = (version, stamp);
    }

    /// Packs the bytes of a slot's tensor, at most 512; nothing of the slot may be packed yet.
    pub(super) fn put(&mut self, slot: u32, bytes: VolatileSlice<'_>) {
        debug_assert!(self.get(slot).is_none(), "its bytes would be counted for ever");
        while !self.chunks[self.open].has_room(bytes.len()) {
            self.open_another();
        }
        let chunk = &mut self.chunks[self.open];
        let at = (self.open as u64) << 32 | chunk.bytes.len() as u64;
        self.slots[slot as usize].place = Place { at, len: bytes.len() as u32 };
        bytes.append_to(&mut chunk.bytes);
        chunk.slots.push(slot);
        (chunk.tensors, chunk.used) = (chunk.tensors + 1, chunk.used + bytes.len());
    }

    /// Overwrites the bytes of a slot's tensor with a new version; false if the old one is newer, of another length, or not packed.
    #[inline]
    pub(super) fn overwrite(&mut self, slot: u32, version: i64, with: &[u8]) -> bool {
        let there = &mut self.slots[slot as usize];
        if there.version > version || there.place.len as usize != with.len() {
            return false;
        }
        // If nothing is packed, there is no such chunk.
        let Some(chunk) = self.chunks.get_mut(there.place.chunk()) else { return false };
        chunk.bytes[there.place.start()..][..with.len()].copy_from_slice(with);
        there.version = version;
        true
    }

    /// The bytes of a slot's tensor, if they are packed.
    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&[u8]> {
        let place = self.slots[slot as usize].place;
        (place.at != NOWHERE.at).then(|| &self.chunks[place.chunk()].bytes[place.start()..][..place.len as usize])
    }

    /// The longest run of these slots' tensors, from the first on, that have this version and these stamps, lie one after the other, and
    /// have at most `bytes_max` bytes; returns the number of tensors, and their bytes.
    #[inline]
    pub(super) fn run(&self, slots: &[u32], version: i64, stamps: &[u64], bytes_max: usize) -> (usize, &[u8]) {
        let of_version = |(&slot, &stamp): (&u32, &u64)| {
            let there = self.slots.get(slot as usize)?;
            (there.version == version && there.stamp == stamp).then_some(there.place)
        };
        let mut places = slots.iter().zip(stamps).map_while(of_version);
        let Some(first) = places.next().filter(|first| first.len as usize <= bytes_max && first.at != NOWHERE.at)
        else {
            return (0, &[]);
        };
        let (mut count, mut end, last) = (1, first.end(), first.at.saturating_add(bytes_max as u64));
        for place in places {
            let next = end + u64::from(place.len);
            if place.at != end || next > last {
                break;
            }
            (count, end) = (count + 1, next);
        }
        let bytes = &self.chunks[first.chunk()].bytes[first.start()..];
        (count, &bytes[..(end - first.at) as usize])
    }

    /// Unpacks the bytes of a slot's tensor, if they are packed.
    pub(super) fn remove(&mut self, slot: u32) {
        let place = std::mem::replace(&mut self.slots[slot as usize].place, NOWHERE);
        if place.at == NOWHERE.at {
            return;
        }
        let number = place.chunk();
        let chunk = &mut self.chunks[number];
        (chunk.tensors, chunk.used) = (chunk.tensors - 1, chunk.used - place.len as usize);
        if number != self.open && chunk.is_loose() {
            self.empty(number);
        }
    }

    fn open_another(&mut self) {
        let full = self.open;
        self.open = self.vacant.pop().unwrap_or(self.chunks.len());
        if self.open == self.chunks.len() {
            self.chunks.push(Chunk::default());
        }
        if self.chunks[full].is_loose() {
            self.empty(full);
        } else {
            self.chunks[full].bytes.shrink_to_fit();
        }
    }

    /// Moves what lies in a chunk to the open chunk.
    fn empty(&mut self, number: usize) {
        debug_assert_ne!(number, self.open, "it would be filled with what is taken out");
        let Chunk { bytes, slots, .. } = std::mem::take(&mut self.chunks[number]);
        for slot in slots {
            let place = self.slots[slot as usize].place;
            // The others were unpacked, or lie elsewhere by now.
            if place.at != NOWHERE.at && place.chunk() == number {
                self.slots[slot as usize].place = NOWHERE;
                self.put(slot, bytes[place.start()..][..place.len as usize].into());
            }
        }
        self.vacant.push(number);
    }

    /// Number of slots, empty or not.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Panics unless each tensor has bytes of its own, and each chunk counts what lies in it.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self) {
        let places = self.slots.iter().map(|slot| slot.place);
        let mut all: Vec<Place> = places.filter(|place| place.at != NOWHERE.at).collect();
        all.sort_unstable_by_key(|place| (place.at, place.len));
        assert!(all.is_sorted_by(|one, next| one.end() <= next.at), "two tensors would share bytes");
        for (number, chunk) in self.chunks.iter().enumerate() {
            let here = || all.iter().filter(|place| place.chunk() == number);
            let used: usize = here().map(|place| place.len as usize).sum();
            assert_eq!(
                (chunk.tensors, chunk.used),
                (here().count(), used),
                "memory would be kept, or read when it is free"
            );
            let is_in_use = number == self.open || !self.vacant.contains(&number);
            assert!(is_in_use || chunk.bytes.capacity() == 0, "a chunk of nothing would keep its memory");
            assert!(number == self.open || !is_in_use || !chunk.is_loose(), "more than twice as much would be kept");
        }
    }

    /// Bytes of all chunks.
    #[cfg(test)]
    fn memory(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.bytes.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(count: u32, len: usize) -> Packed {
        let mut packed = Packed::new();
        for slot in 0..count {
            packed.add_slot();
            packed.put(slot, vec![slot as u8; len][..].into());
            packed.set(slot, 1, 1);
        }
        packed
    }

    #[test]
    fn neighbours_are_read_at_once_as_far_as_there_is_room() {
        let mut packed = with(4, 3);
        let run = |packed: &Packed, slots: &[u32], bytes_max| {
            let (count, bytes) = packed.run(slots, 1, &[1; 4], bytes_max);
            (count, bytes.to_vec())
        };
        assert_eq!(run(&packed, &[0, 1, 2, 3], 100), (4, vec![0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]));
        assert_eq!(run(&packed, &[0, 1, 2, 3], 8), (2, vec![0, 0, 0, 1, 1, 1]));
        assert_eq!(run(&packed, &[0, 1], 2), (0, vec![]));
        assert_eq!(run(&packed, &[0, 2, 3], usize::MAX), (1, vec![0; 3]));
        assert_eq!(run(&packed, &[], 8), (0, vec![]));
        packed.remove(1);
        assert_eq!(run(&packed, &[0, 1, 2], 100), (1, vec![0; 3]));
        assert_eq!(run(&packed, &[1, 2], 100), (0, vec![]));
        assert_eq!((packed.get(1), packed.get(2)), (None, Some(&[2; 3][..])));
        packed.set(3, 2, 1);
        assert_eq!(run(&packed, &[2, 3], 100), (1, vec![2; 3]), "of another version");
        packed.set(3, 1, 2);
        assert_eq!(run(&packed, &[2, 3], 100), (1, vec![2; 3]), "with another stamp");
    }

    #[test]
    fn bytes_are_written_over_by_as_many() {
        let mut packed = with(2, 3);
        assert!(packed.overwrite(1, 5, &[7; 3]) && !packed.overwrite(1, 5, &[7; 4]));
        assert!(!packed.overwrite(1, 4, &[8; 3]), "it is older");
        packed.remove(0);
        assert!(!packed.overwrite(0, 5, &[]) && !packed.overwrite(0, 5, &[7; 3]));
        assert_eq!((packed.get(1), packed.slot(1).version), (Some(&[7; 3][..]), 5));
    }

    #[test]
    fn a_run_ends_with_its_chunk() {
        let len = 500;
        let (packed, slots) = (with(1000, len), Vec::from_iter(0..1000));
        let (mut at, mut runs) = (0, 0);
        while at < 1000 {
            let (count, bytes) = packed.run(&slots[at..], 1, &[1; 1000], usize::MAX);
            assert!(count > 0 && bytes.chunks(len).enumerate().all(|(more, bytes)| bytes == [(at + more) as u8; 500]));
            (at, runs) = (at + count, runs + 1);
        }
        assert_eq!(runs, 1000usize.div_ceil(PACKED_CHUNK_BYTES / len));
    }

    #[test]
    fn a_chunk_that_is_less_than_half_used_is_emptied() {
        let mut packed = with(2000, 100);
        for slot in (0..2000).filter(|slot| slot % 5 != 0) {
            packed.remove(slot);
            packed.check_invariants();
        }
        assert!((0..2000).step_by(5).all(|slot| packed.get(slot) == Some(&[slot as u8; 100])));
        assert!(packed.memory() <= 2 * 400 * 100 + 2 * PACKED_CHUNK_BYTES, "{}", packed.memory());
        (0..2000).step_by(5).for_each(|slot| packed.remove(slot));
        packed.check_invariants();
        assert!(packed.memory() <= PACKED_CHUNK_BYTES);
    }

    #[test]
    fn what_changes_its_length_again_and_again_takes_no_more_memory() {
        // One tensor stays in each chunk among many versions of a changing one; or all tensors are empty.
        for lens in [[511, 512], [0, 0]] {
            let mut packed = with(300, lens[0]);
            for round in 0..60_000usize {
                let slot = if round % 250 == 0 { 1 + (round / 250) as u32 } else { 0 };
                packed.remove(slot);
                packed.put(slot, vec![slot as u8; lens[round % 2]][..].into());
                if round % 1000 == 0 {
                    packed.check_invariants();
                }
            }
            assert!(packed.memory() <= 2 * 300 * 512 + 2 * PACKED_CHUNK_BYTES, "{}", packed.memory());
            let entries: usize = packed.chunks.iter().map(|chunk| chunk.slots.len()).sum();
            assert!(entries <= 2 * (300 + PACKED_CHUNK_TENSORS), "{entries}");
            assert!((0..300).all(|slot| packed.get(slot).unwrap().iter().all(|byte| *byte == slot as u8)));
        }
    }
}
