//! A direct lane: memory that two clients of one host and one user share, by which small tensors go from one to the other past the
//! daemon, which makes it, gives it to both, and ends it when one of them has gone. Each end on one thread at a time, without locks,
//! system calls or allocation; bounded by [`LANE_ENTRIES`].
//!
//! Each direction has entries, each of which holds one record of a submission ring: a send, the end of a step, or a recv, by which the
//! sender says that a tensor of that name goes by the daemon. **Whose a record is, one word decides**: its state, which the receiver changes from *sent* to what became of it, and the sender from *sent* to
//! *withdrawn*. Who comes first has it, so a deadline, an abort or the death of one end needs no answer from the other: no tensor is
//! both received and taken back.
//!
//! Two queues of entries' numbers go with them. *Notes*, from the sender: that an entry was sent, and that it was withdrawn. *Returns*,
//! from the receiver: entries that it has done with, what became of their records, and that they may be written anew. A record that nobody wants yet stays where it is;
//! so what a receiver does not take costs its sender entries, and when there are none, tensors go by the daemon.
//!
//! Beside them each direction has [rings of bytes](BytesWriter), for streams.
//!
//! Each end checks what the other writes as a peer's: numbers before they are used, records after they were copied. A queue that is
//! written past what was read (which no correct end can do) loses what its writer has written.

mod bytes;
#[cfg(not(loom))]
mod memory;
mod receiver;
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
    sender::{LaneSender, Returned},
};
use super::limits::{LANE_ENTRY_WORDS, LANE_NOTES_PER_ENTRY};

/// Where one direction of a lane lies. The memory must be zero before its first use.
pub trait LaneMemory {
    /// How many entries there are, a power of two.
    const ENTRIES: usize;

    /// The word of a note, whose position is taken modulo [`LANE_NOTES_PER_ENTRY`] times as many as there are entries.
    fn note(&self, position: u64) -> &AtomicU64;

    /// The word of a return, whose position is taken modulo how many entries there are.
    fn returned(&self, position: u64) -> &AtomicU64;

    /// An entry: its state, what kind of record it holds, and the record.
    fn entry(&self, entry: u16) -> &[AtomicU64; LANE_ENTRY_WORDS];

    /// A hint that the record of this entry is read soon, and decided about.
    fn is_read_soon(&self, _entry: u16) {}

    /// A hint that this entry is written soon.
    fn is_written_soon(&self, _entry: u16) {}

    /// A hint that the note at a position is written soon.
    fn is_noted_soon(&self, _position: u64) {}

    /// The same of a return.
    fn is_returned_soon(&self, _position: u64) {}
}

/// What became of a record that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// A recv has it.
    Taken,
    /// Another tensor of its name waits already.
    Duplicate,
    /// Its step has ended at the receiver.
    Aborted,
    /// Its sender took it back.
    Withdrawn,
}

/// States of an entry.
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

/// In a return, above the entry: what became of its record, so that the sender need not load the entry's state, whose cache line the receiver
/// has just written.
const FATE_AT: u32 = 16;

/// In a note: the entry was withdrawn, and not sent.
const WITHDRAWAL: u64 = 1 << 16;

/// The word of a queue of so many at a position: how often it was gone round, from 1 on, and the value. What was written the last time
/// round cannot be mistaken for it.
#[inline]
fn queued(position: u64, of: usize, value: u64) -> u64 {
    lap(position, of) << 32 | value
}

/// What a word says, if it was written this time round.
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
