//! A direct lane: memory shared by two clients of one host and one user, through which small tensors go from one to the
//! other without the daemon. The daemon creates it, gives it to both, and ends it when one of them is gone. Each end on one
//! thread at a time, without locks, system calls or allocation; bounded by [`LANE_ENTRIES`].
//!
//! Each direction has entries, each for one [record](LaneRecord): a tensor, a note that a tensor of some name goes through
//! the daemon, or the end of a step. **One word decides who owns a record**: its state, which
//! the receiver changes from *sent* to the record's fate, and the sender from *sent* to *withdrawn*. Whoever changes it
//! first wins, so a deadline, an abort or the death of one end needs no answer from the other: no tensor is both received
//! and taken back.
//!
//! Two queues of entry numbers belong to the entries. *Notes*, from the sender: an entry was sent, or withdrawn. *Returns*,
//! from the receiver: it is done with an entry, with the fate of the record, and the entry may be reused. A record that
//! nobody wants yet stays where it is; so what a receiver does not take costs its sender entries, and when none is left,
//! tensors go through the daemon.
//!
//! In addition each direction has [rings of bytes](BytesWriter), for streams.
//!
//! Each end treats the other's writes as those of a peer: it checks numbers before it uses them, and records after it has
//! copied them. If a writer writes a queue beyond what was read (which no correct end can do), its entries are lost.

mod bytes;
#[cfg(not(loom))]
mod memory;
mod receiver;
mod record;
mod sender;

#[cfg(loom)]
use loom::sync::atomic::AtomicU64;
#[cfg(not(loom))]
use std::sync::atomic::AtomicU64;

#[cfg(not(loom))]
pub use self::memory::{DirectLane, LaneBytes, LaneKeeper, LaneNews, Side, Standing, Way};
pub use self::{
    bytes::{BytesMemory, BytesReader, BytesWriter},
    receiver::{LaneReceiver, Note},
    record::{LaneCopy, LaneRecord},
    sender::{LaneSender, Returned},
};
use super::limits::{LANE_ENTRY_WORDS, LANE_NOTES_PER_ENTRY};

/// Where one direction of a lane is. The memory must be zero before its first use.
pub trait LaneMemory {
    /// Number of entries, a power of two.
    const ENTRIES: usize;

    /// The word of a note; its position is taken modulo [`LANE_NOTES_PER_ENTRY`] times the number of entries.
    fn note(&self, position: u64) -> &AtomicU64;

    /// The word of a return; its position is taken modulo the number of entries.
    fn returned(&self, position: u64) -> &AtomicU64;

    /// An entry: its state, and its record.
    fn entry(&self, entry: u16) -> &[AtomicU64; LANE_ENTRY_WORDS];

    /// A hint that the record of this entry will soon be read and decided.
    fn is_read_soon(&self, _entry: u16) {}

    /// A hint that this entry will soon be written.
    fn is_written_soon(&self, _entry: u16) {}

    /// A hint that the note at this position will soon be written.
    fn is_noted_soon(&self, _position: u64) {}

    /// A hint that the return at this position will soon be written.
    fn is_returned_soon(&self, _position: u64) {}
}

/// What became of a record that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A recv has it.
    Taken,
    /// Another tensor with its name is waiting already.
    Duplicate,
    /// Its step has ended at the receiver.
    Aborted,
    /// Its sender took it back.
    Withdrawn,
}

mod state {
    pub(super) const SENT: u64 = 1;
    pub(super) const TAKEN: u64 = 2;
    pub(super) const DUPLICATE: u64 = 3;
    pub(super) const ABORTED: u64 = 4;
    pub(super) const WITHDRAWN: u64 = 5;
}

impl Fate {
    fn state(self) -> u64 {
        match self {
            Fate::Taken => state::TAKEN,
            Fate::Duplicate => state::DUPLICATE,
            Fate::Aborted => state::ABORTED,
            Fate::Withdrawn => state::WITHDRAWN,
        }
    }

    fn of(state: u64) -> Option<Fate> {
        Some(match state {
            state::TAKEN => Fate::Taken,
            state::DUPLICATE => Fate::Duplicate,
            state::ABORTED => Fate::Aborted,
            state::WITHDRAWN => Fate::Withdrawn,
            _ => return None,
        })
    }
}

/// In a return, above the entry: the fate of its record, so that the sender need not load the entry's state, whose cache
/// line the receiver has just written.
const FATE_AT: u32 = 16;

/// In a note: the entry was withdrawn, not sent.
const WITHDRAWAL: u64 = 1 << 16;

/// The word at a position of a queue of `of` words: the lap, from 1 on, and the value. A word from the previous lap cannot
/// be mistaken for it.
#[inline]
fn queued(position: u64, of: usize, value: u64) -> u64 {
    lap(position, of) << 32 | value
}

/// The value of a word, if it was written in this lap.
#[inline]
fn read(word: u64, position: u64, of: usize) -> Option<u64> {
    (word >> 32 == lap(position, of)).then_some(word & u64::from(u32::MAX))
}

#[inline]
fn lap(position: u64, of: usize) -> u64 {
    let round = position / of as u64;
    // As in a ring of records.
    if round < u64::from(u32::MAX) { round + 1 } else { round % u64::from(u32::MAX) + 1 }
}

fn notes_of<M: LaneMemory>() -> usize {
    M::ENTRIES * LANE_NOTES_PER_ENTRY
}

#[cfg(test)]
mod heap;

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
