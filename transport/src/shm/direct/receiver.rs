//! The end of a direction that receives.

#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;

use super::{FATE_AT, Fate, LaneMemory, WITHDRAWAL, notes_of, queued, read, sender::copy, state};
use crate::shm::{record::Record, ring::Broken};

/// The end that receives records, and decides what becomes of them.
pub struct LaneReceiver<M> {
    memory: M,
    /// Entries that were sent and are not returned.
    known: Box<[bool]>,
    notes: u64,
    returns: u64,
}

/// What a sender has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Note {
    /// It has sent the record of that entry.
    Sent(u16),
    /// It has taken back the record of that entry, which is returned.
    Withdrawn(u16),
}

impl<M: LaneMemory> LaneReceiver<M> {
    /// The receiving end of a direction that nobody has used yet.
    pub fn new(memory: M) -> Self {
        Self { memory, known: vec![false; M::ENTRIES].into(), notes: 0, returns: 0 }
    }

    /// The next that the sender says.
    ///
    /// # Errors
    /// [`Broken`] if it is what no correct sender says.
    #[inline]
    pub fn next_note(&mut self) -> Result<Option<Note>, Broken> {
        // NOTE: see `LaneSender::note`.
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
            // What another core has in its cache comes while the record is dealt with, and so does the next one.
            self.memory.is_read_soon(entry);
            self.memory.is_returned_soon(self.returns);
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

    /// True if the sender has said something: one load.
    #[inline]
    pub fn has_note(&self) -> bool {
        // NOTE: see `LaneSender::note`.
        read(self.memory.note(self.notes).load(Ordering::Acquire), self.notes, notes_of::<M>()).is_some()
    }

    /// Copies the record of an entry that was sent. It counts once [`settle`](Self::settle) says so.
    ///
    /// # Errors
    /// [`Broken`] if it claims to be longer than one can be.
    #[inline]
    pub fn load(&self, entry: u16, into: &mut Record) -> Result<(), Broken> {
        match copy(self.memory.entry(entry), into) {
            true => Ok(()),
            false => Err(Broken { what: "a record is longer than any may be", found: entry.into() }),
        }
    }

    /// Decides what becomes of a record, and returns its entry; false if its sender has withdrawn it before, which it
    /// [says](Note::Withdrawn).
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
        // RETURN: see `LaneSender::next_returned`.
        let word = queued(self.returns, M::ENTRIES, fate.state() << FATE_AT | u64::from(entry));
        self.memory.returned(self.returns).store(word, Ordering::Release);
        self.returns += 1;
    }
}
