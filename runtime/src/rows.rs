//! Rows of a table in memory that others may write meanwhile: gathered by number, and written in place.
//!
//! A row is copied whole or not at all where the table has [sequence locks](Stripe); without them a row that is written
//! meanwhile may be half old. No allocation; bounded by the numbers that the caller gives.
#![allow(unsafe_code)]

use std::{
    ptr,
    sync::atomic::{Ordering, compiler_fence},
};

use crate::{VolatileSlice, VolatileSliceMut, prefetch, stripes::Stripe};

/// How many rows ahead of the one being copied memory is prefetched: a table is larger than the caches, and the processor cannot
/// guess which row comes next.
const AHEAD: usize = 20;
/// Bytes of a row that are prefetched this way: in a longer row, the processor itself notices the sequential reads.
const AHEAD_BYTES: usize = 256;

/// Attempts to copy one row that is being written, before the reader gives up.
const LOOKS_MAX: usize = 64;

/// Bytes of one row that these attempts copy together at most, unless a single one copies more: without this bound, the process
/// that can write the locks would decide how many attempts there are.
const LOOKS_BYTES: usize = 64 << 10;

/// Most locks of one table. More would only mean that fewer rows wait for the same writer.
pub const STRIPES_MAX: usize = 4096;

/// A table in memory: rows of one size, one behind the other.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    bytes: VolatileSlice<'a>,
    row_bytes: usize,
    /// The number of locks is a power of two, or zero.
    stripes: &'a [Stripe],
}

impl<'a> Rows<'a> {
    /// Rows of `row_bytes` each, and the memory of their locks, which may be empty; it may hold any bytes.
    ///
    /// # Panics
    /// If `row_bytes` is 0.
    pub fn new(bytes: VolatileSlice<'a>, row_bytes: usize, locks: VolatileSlice<'a>) -> Self {
        assert!(row_bytes > 0, "rows without bytes have no place");
        Self { bytes, row_bytes, stripes: stripes(locks) }
    }

    pub fn len(&self) -> usize {
        self.bytes.len() / self.row_bytes
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The lock that covers a row, if the table has locks.
    #[inline]
    fn stripe(&self, id: u64) -> Option<&'a Stripe> {
        self.stripes.get(id as usize & self.stripes.len().wrapping_sub(1))
    }

    /// Copies the rows `ids` into `target`, one after the other.
    ///
    /// # Errors
    /// The number of rows copied: the next one was being written at every attempt.
    ///
    /// # Panics
    /// If `target` has not exactly the room needed, or a row does not exist.
    pub fn gather(&self, ids: &[u64], target: VolatileSliceMut<'_>) -> Result<(), usize> {
        assert_eq!(Some(target.len()), ids.len().checked_mul(self.row_bytes), "a place for each row");
        self.copy(ids, |at| at, target)
    }

    /// Copies the rows `ids` into `target`, each to its place in `places`, counted in rows.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    ///
    /// # Panics
    /// If there are not as many places as rows, a place lies outside `target`, or a row does not exist.
    pub fn gather_to(&self, ids: &[u64], places: &[u32], target: VolatileSliceMut<'_>) -> Result<(), usize> {
        let room = target.len() / self.row_bytes;
        assert!(
            ids.len() == places.len() && places.iter().all(|&place| (place as usize) < room),
            "a place for each row"
        );
        self.copy(ids, |at| places[at] as usize, target)
    }

    /// Rows of common sizes are copied without a function call for each. `place` maps an index into `ids` to the row's place in
    /// `target`, which has room for it.
    #[inline]
    fn copy(&self, ids: &[u64], place: impl Fn(usize) -> usize, mut target: VolatileSliceMut<'_>) -> Result<(), usize> {
        let len = self.len() as u64;
        assert!(ids.iter().all(|&id| id < len), "the caller has looked for rows that are not there");
        let to = target.as_mut_ptr();
        // The compiler may read memory twice if it assumes that nobody else writes it: between the fences it does not.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the numbers are below `len`, which was just checked, and `target` has room at each place, as the callers have
        // checked. The makers of the two slices have promised that the bytes can be read and written, whoever else writes them.
        let gathered = unsafe {
            match self.row_bytes {
                16 => self.gather_of::<16>(ids, place, to),
                32 => self.gather_of::<32>(ids, place, to),
                64 => self.gather_of::<64>(ids, place, to),
                128 => self.gather_of::<128>(ids, place, to),
                256 => self.gather_of::<256>(ids, place, to),
                512 => self.gather_of::<512>(ids, place, to),
                bytes => self.gather_with(ids, place, to, |from, to| ptr::copy_nonoverlapping(from, to, bytes)),
            }
        };
        compiler_fence(Ordering::SeqCst);
        gathered
    }

    /// # Safety
    /// As [`gather_with`](Self::gather_with); rows have `N` bytes.
    unsafe fn gather_of<const N: usize>(
        &self,
        ids: &[u64],
        place: impl Fn(usize) -> usize,
        to: *mut u8,
    ) -> Result<(), usize> {
        // SAFETY: as this function asks of its caller.
        unsafe { self.gather_with(ids, place, to, |from, to| ptr::copy_nonoverlapping(from, to, N)) }
    }

    /// # Safety
    /// Every number is that of a row, and at `to` there is room for a row at each place.
    #[inline(always)]
    unsafe fn gather_with(
        &self,
        ids: &[u64],
        place: impl Fn(usize) -> usize,
        to: *mut u8,
        copy: impl Fn(*const u8, *mut u8),
    ) -> Result<(), usize> {
        let base = self.bytes.as_ptr();
        let row = |id: u64| base.wrapping_add(id as usize * self.row_bytes);
        let looks = (LOOKS_BYTES / self.row_bytes).clamp(1, LOOKS_MAX);
        // All attempts together copy at most twice the bytes asked for, plus what one row may take.
        let mut left = 2 * ids.len() + looks;
        for (at, &id) in ids.iter().enumerate() {
            if let Some(&next) = ids.get(at + AHEAD) {
                prefetch::for_reading(row(next), self.row_bytes.min(AHEAD_BYTES));
                if let Some(stripe) = self.stripe(next) {
                    prefetch::for_reading(ptr::from_ref(stripe).cast(), 1);
                }
            }
            let (from, to) = (row(id), to.wrapping_add(place(at) * self.row_bytes));
            let Some(stripe) = self.stripe(id) else {
                copy(from, to);
                continue;
            };
            let Some(taken) = copy_whole(stripe, looks.min(left), || copy(from, to)) else { return Err(at) };
            left -= taken;
        }
        Ok(())
    }

    /// Calls `write` with each of the rows `ids` and its index, so that no reader takes a half-written row for whole. The caller
    /// ensures that there is one writer at a time.
    ///
    /// # Safety
    /// This process may write the memory of the rows, and has no reference into it.
    ///
    /// # Panics
    /// If a row does not exist.
    pub unsafe fn write(&self, ids: &[u64], mut write: impl FnMut(usize, VolatileSliceMut<'_>)) {
        for (at, &id) in ids.iter().enumerate() {
            assert!(id < self.len() as u64, "the caller has looked for rows that are not there");
            let from = id as usize * self.row_bytes;
            let stripe = self.stripe(id);
            // SAFETY: the row was just looked for, and it may be written, as this function asks of its caller.
            let row = unsafe { VolatileSliceMut::new(self.bytes.as_ptr().cast_mut().add(from), self.row_bytes) };
            if let Some(stripe) = stripe {
                stripe.begin_write();
            }
            write(at, row);
            if let Some(stripe) = stripe {
                stripe.end_write();
            }
        }
    }
}

/// Copies a row until no write has interfered; returns the attempts that took, or `None` if all `looks` failed.
#[inline(always)]
fn copy_whole(stripe: &Stripe, looks: usize, copy: impl Fn()) -> Option<usize> {
    for look in 1..=looks {
        if let Some(number) = stripe.begin_read() {
            compiler_fence(Ordering::SeqCst);
            copy();
            if stripe.is_unchanged(number) {
                return Some(look);
            }
        }
        std::hint::spin_loop();
    }
    None
}

/// The locks in a piece of memory: the largest power of two that fits.
fn stripes(locks: VolatileSlice<'_>) -> &[Stripe] {
    let fits = (locks.len() / size_of::<Stripe>()).min(STRIPES_MAX);
    if fits == 0 || !locks.as_ptr().cast::<Stripe>().is_aligned() {
        return &[];
    }
    let count = 1 << fits.ilog2();
    // SAFETY: the memory can be read, holds that many locks, and is aligned; a lock is one atomic word, which any process may write
    // at any time, and every value of it is legal.
    unsafe { std::slice::from_raw_parts(locks.as_ptr().cast(), count) }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::*;

    fn gathered(rows: &Rows<'_>, ids: &[u64]) -> Vec<u8> {
        let mut target = vec![0xee; ids.len() * rows.row_bytes];
        rows.gather(ids, (&mut target).into()).unwrap();
        target
    }

    #[test]
    fn rows_of_every_size_are_those_that_were_asked_for() {
        for row_bytes in [1, 3, 16, 32, 64, 100, 128, 256, 512, 1000] {
            let table: Vec<u8> = (0..row_bytes * 50).map(|at| (at * 31 % 251) as u8).collect();
            for locks in [vec![], vec![0_u8; 64]] {
                let rows = Rows::new((&table).into(), row_bytes, (&locks).into());
                let ids: Vec<u64> = (0..70).map(|at| at * 17 % 50).collect();
                let wanted: Vec<u8> =
                    ids.iter().flat_map(|&id| &table[id as usize * row_bytes..][..row_bytes]).copied().collect();
                assert_eq!(gathered(&rows, &ids), wanted, "rows of {row_bytes}");
                // Each row to its own place; the one place left over stays unchanged.
                let places: Vec<u32> = (0..70).map(|at| at * 3 % 71).collect();
                let mut target = vec![0xee; 71 * row_bytes];
                rows.gather_to(&ids, &places, (&mut target).into()).unwrap();
                let row_at = |place: usize| &target[place * row_bytes..][..row_bytes];
                for (at, &place) in places.iter().enumerate() {
                    assert_eq!(row_at(place as usize), &wanted[at * row_bytes..][..row_bytes]);
                }
                let left = (0..71).find(|place| !places.contains(place)).unwrap();
                assert_eq!(row_at(left as usize), vec![0xee; row_bytes]);
            }
        }
    }

    #[test]
    fn rows_that_are_not_there_and_places_of_another_size_are_bugs() {
        let table = [7; 100];
        let rows = Rows::new((&table).into(), 10, VolatileSlice::empty());
        for (ids, room) in [(&[10_u64][..], 10), (&[u64::MAX], 10), (&[1], 11), (&[1, 2], 10)] {
            let mut target = vec![0; room];
            let gather = || rows.gather(ids, (&mut target).into());
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(gather)).is_err(), "{ids:?} {room}");
        }
        // The extra bytes at the end are not a row.
        assert_eq!(Rows::new((&table).into(), 30, VolatileSlice::empty()).len(), 3);
    }

    #[test]
    fn a_row_that_is_always_written_is_given_up() {
        let (table, mut locks) = ([7; 100], [0_u32; 16]);
        // The lock of the third row says that the row is being written.
        locks[2] = 5;
        let bytes: Vec<u8> = locks.iter().flat_map(|lock| lock.to_ne_bytes()).collect();
        let mut room = vec![0_u8; bytes.len() + 4];
        let start = room.as_ptr().align_offset(4);
        room[start..start + bytes.len()].copy_from_slice(&bytes);
        let rows = Rows::new((&table).into(), 10, (&room[start..start + bytes.len()]).into());
        let mut target = [0; 40];
        assert_eq!(rows.gather(&[0, 1, 2, 3], (&mut target).into()), Err(2));
        assert_eq!(rows.gather(&[0, 1, 3, 3], (&mut target).into()), Ok(()));
    }

    #[test]
    fn the_looks_at_a_row_are_bounded_by_its_bytes() {
        // A row too large for a second look is copied once, however often its lock changes; a small row at most 64 times.
        for (row_bytes, most) in [(LOOKS_BYTES * 4, 1), (LOOKS_BYTES, 1), (LOOKS_BYTES / 8, 8), (16, LOOKS_MAX)] {
            let table = vec![7_u8; row_bytes];
            let mut lock = [0_u32];
            // SAFETY: the lock outlives the rows, and is used through the volatile slice alone.
            let locks = unsafe { VolatileSlice::new(lock.as_mut_ptr().cast(), 4) };
            let rows = Rows::new((&table).into(), row_bytes, locks);
            let (copies, mut target) = (std::cell::Cell::new(0), vec![0_u8; row_bytes]);
            let copy = |_: *const u8, _: *mut u8| {
                copies.set(copies.get() + 1);
                rows.stripes[0].begin_write();
                rows.stripes[0].end_write();
            };
            // SAFETY: there is such a row and room for it, and the copy touches neither.
            assert_eq!(unsafe { rows.gather_with(&[0], |at| at, target.as_mut_ptr(), copy) }, Err(0));
            assert_eq!(copies.get(), most, "rows of {row_bytes}");
        }
    }

    #[test]
    fn no_reader_sees_half_of_a_row_while_others_write() {
        const ROWS: usize = 64;
        const WRITES: u64 = 50_000;
        // 32 locks for 64 rows of 24 bytes: an odd row size, and two rows per lock.
        let mut memory = vec![0_u64; ROWS * 3];
        let mut locks = vec![0_u32; 32];
        // SAFETY: both vectors outlive the scope below, in which they are used through volatile slices alone.
        let (bytes, locks) = unsafe {
            let bytes = VolatileSlice::new(memory.as_mut_ptr().cast(), ROWS * 24);
            (bytes, VolatileSlice::new(locks.as_mut_ptr().cast(), 32 * 4))
        };
        let rows = Rows::new(bytes, 24, locks);
        let done = &AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(move || {
                for number in 1..=WRITES {
                    let ids = [number * 7 % ROWS as u64, number * 13 % ROWS as u64];
                    let row: Vec<u8> = (0..3).flat_map(|_| number.to_ne_bytes()).collect();
                    // SAFETY: the memory is used through volatile slices alone.
                    unsafe { rows.write(&ids, |_, mut to| to.copy_from(&row)) };
                }
                done.store(true, Ordering::Release);
            });
            for _ in 0..2 {
                scope.spawn(move || {
                    let ids: Vec<u64> = (0..200).map(|at| at * 11 % ROWS as u64).collect();
                    let mut target = vec![0; ids.len() * 24];
                    while !done.load(Ordering::Acquire) {
                        let whole = match rows.gather(&ids, (&mut target).into()) {
                            Ok(()) => ids.len(),
                            Err(whole) => whole,
                        };
                        for row in target[..whole * 24].chunks_exact(24) {
                            assert!(row[..8] == row[8..16] && row[..8] == row[16..], "a torn row {row:?}");
                        }
                    }
                });
            }
        });
    }
}
