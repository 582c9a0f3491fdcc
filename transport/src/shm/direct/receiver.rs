//! The receiving end of a direction.

#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;

use super::{FATE_AT, Fate, LaneCopy, LaneMemory, WITHDRAWAL, notes_of, queued, read, state};
use crate::shm::{limits::LANE_NOTES_TOGETHER, ring::Broken};

/// The end that receives records and decides their fate.
pub struct LaneReceiver<M> {
    memory: M,
    /// By entry: it was sent and is not returned yet.
    known: Box<[bool]>,
    notes: u64,
    returns: u64,
    /// Returns that are not written yet.
    unpublished: Vec<u64>,
}

/// A message from the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// The sender has sent the record of this entry.
    Sent(u16),
    /// The sender has taken back the record of this entry; the entry was returned.
    Withdrawn(u16),
}

impl<M: LaneMemory> LaneReceiver<M> {
    /// The receiving end of a direction that was not used yet.
    pub fn new(memory: M) -> Self {
        let (known, unpublished) = (vec![false; M::ENTRIES].into(), Vec::with_capacity(LANE_NOTES_TOGETHER));
        Self { memory, known, notes: 0, returns: 0, unpublished }
    }

    /// The next note of the sender.
    ///
    /// # Errors
    /// [`Broken`] if no correct sender would write it.
    #[inline]
    pub fn next_note(&mut self) -> Result<Option<Note>, Broken> {
        // NOTE: see `LaneSender::publish`.
        let word = self.memory.note(self.notes).load(Ordering::Acquire);
        let Some(value) = read(word, self.notes, notes_of::<M>()) else { return Ok(None) };
        let broken = |what| Broken { what, found: value };
        let entry = u16::try_from(value & !WITHDRAWAL).map_err(|_| broken("a note of an entry that there is not"))?;
        let is_known = self.known.get_mut(usize::from(entry)).ok_or(broken("a note of an entry that there is not"))?;
        self.notes += 1;
        if value & WITHDRAWAL == 0 {
            if std::mem::replace(is_known, true) {
                return Err(broken("an entry was sent again that was not returned"));
            }
            // What is in another core's cache is fetched while the record is handled, and so is the next record.
            self.memory.is_read_soon(entry);
            if self.unpublished.is_empty() {
                self.memory.is_returned_soon(self.returns);
            }
            let next = self.memory.note(self.notes).load(Ordering::Relaxed);
            if let Some(next) = read(next, self.notes, notes_of::<M>()) {
                self.memory.is_read_soon(next as u16);
            }
            return Ok(Some(Note::Sent(entry)));
        }
        if !*is_known || self.memory.entry(entry)[0].load(Ordering::Acquire) != state::WITHDRAWN {
            return Err(broken("an entry was withdrawn that was not sent"));
        }
        self.give_back(entry, Fate::Withdrawn);
        Ok(Some(Note::Withdrawn(entry)))
    }

    /// True if there is a note from the sender; costs one load.
    #[inline]
    pub fn has_note(&self) -> bool {
        // NOTE: see `LaneSender::publish`.
        read(self.memory.note(self.notes).load(Ordering::Acquire), self.notes, notes_of::<M>()).is_some()
    }

    /// Copies the record of an entry that was sent. It counts only once [`settle`](Self::settle) returns true.
    ///
    /// # Errors
    /// [`Broken`] if it claims to be longer than possible.
    #[inline]
    pub fn load(&self, entry: u16, into: &mut LaneCopy) -> Result<(), Broken> {
        match into.load(self.memory.entry(entry)) {
            true => Ok(()),
            false => Err(Broken { what: "a record is longer than any may be", found: entry.into() }),
        }
    }

    /// Decides the fate of a record, and returns its entry by the next [`publish`](Self::publish) at the latest; false if its sender has withdrawn it
    /// first, which a [note](Note::Withdrawn) reports.
    #[inline]
    pub fn settle(&mut self, entry: u16, fate: Fate) -> bool {
        debug_assert!(self.known[usize::from(entry)], "it is not the receiver's");
        // STATE: see `LaneSender::withdraw`.
        let state = &self.memory.entry(entry)[0];
        let won = state.compare_exchange(state::SENT, fate.state(), Ordering::AcqRel, Ordering::Acquire).is_ok();
        if won {
            self.give_back(entry, fate);
        }
        won
    }

    #[inline]
    fn give_back(&mut self, entry: u16, fate: Fate) {
        self.known[usize::from(entry)] = false;
        self.unpublished.push(fate.state() << FATE_AT | u64::from(entry));
        if self.unpublished.len() == LANE_NOTES_TOGETHER {
            self.publish();
        }
    }

    /// Tells the sender what was decided and not told yet. Together, since the words are in the sender's cache, and what is written after
    /// them waits until they are in this one's; but not so late that the sender, with all entries away, has to use the daemon.
    #[inline]
    pub fn publish(&mut self) {
        for what in self.unpublished.drain(..) {
            // RETURN: see `LaneSender::next_returned`.
            self.memory.returned(self.returns).store(queued(self.returns, M::ENTRIES, what), Ordering::Release);
            self.returns += 1;
        }
    }
}
