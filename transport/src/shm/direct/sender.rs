//! The sending end of a direction.

#[cfg(loom)]
use loom::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::atomic::Ordering;

use super::{FATE_AT, Fate, LaneCopy, LaneMemory, LaneRecord, WITHDRAWAL, notes_of, queued, read, state};
use crate::shm::{limits::LANE_NOTES_TOGETHER, ring::Broken};

/// The end that sends records and may take them back.
pub struct LaneSender<M> {
    memory: M,
    /// Entries that may be written; the last used is reused first, so that few are touched.
    free: Vec<u16>,
    /// Who has each entry.
    held: Box<[Holder]>,
    notes: u64,
    /// Notes that are not written yet.
    unpublished: Vec<u64>,
    returns: u64,
}

/// Who has an entry, as far as its sender knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Sender,
    /// It also has the record, and decides its fate.
    Receiver,
    /// The sender has taken back the record; the receiver must still return the entry.
    Withdrawn,
}

/// An entry that came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Returned {
    /// The entry, which may be reused.
    pub entry: u16,
    pub fate: Fate,
}

impl<M: LaneMemory> LaneSender<M> {
    /// The sending end of a direction that was not used yet.
    pub fn new(memory: M) -> Self {
        let entries = M::ENTRIES as u16;
        let held = vec![Holder::Sender; M::ENTRIES].into();
        Self {
            memory,
            free: (0..entries).rev().collect(),
            held,
            notes: 0,
            unpublished: Vec::with_capacity(LANE_NOTES_TOGETHER),
            returns: 0,
        }
    }

    /// Sends a record. Returns its entry, or `None` if no entry is free or the record is longer than an entry. The receiver hears of it by
    /// the next [`publish`](Self::publish) at the latest.
    #[inline]
    pub fn send(&mut self, record: &LaneRecord<'_>) -> Option<u16> {
        let &entry = self.free.last()?;
        if self.unpublished.is_empty() {
            // The word is in another core's cache, and is fetched while the entry is written.
            self.memory.is_noted_soon(self.notes);
        }
        let words = self.memory.entry(entry);
        if !record.write(words) {
            return None;
        }
        self.free.pop();
        words[0].store(state::SENT, Ordering::Relaxed);
        self.held[usize::from(entry)] = Holder::Receiver;
        self.note(entry.into());
        Some(entry)
    }

    #[inline]
    fn note(&mut self, what: u64) {
        self.unpublished.push(what);
        if self.unpublished.len() == LANE_NOTES_TOGETHER {
            self.publish();
        }
    }

    /// Tells the receiver what was sent and withdrawn. The receiver polls a cache line of notes: each time it finds the line changed, the next
    /// write has to wait for it.
    #[inline]
    pub fn publish(&mut self) {
        for what in self.unpublished.drain(..) {
            // NOTE: Release here, Acquire in `LaneReceiver::next_note`, so that who sees the note sees the entry.
            self.memory.note(self.notes).store(queued(self.notes, notes_of::<M>(), what), Ordering::Release);
            self.notes += 1;
        }
    }

    /// Takes back a record, if the receiver has not decided its fate. True if it is back: it was not received and never will
    /// be. Its entry is returned later in either case; the receiver hears of it by the next [`publish`](Self::publish).
    pub fn withdraw(&mut self, entry: u16) -> bool {
        if self.held.get(usize::from(entry)) != Some(&Holder::Receiver) {
            return false;
        }
        let state = &self.memory.entry(entry)[0];
        // STATE: who changes it first has the record. Acquire, for the record is read again after it.
        let won = state.compare_exchange(state::SENT, state::WITHDRAWN, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if won {
            self.held[usize::from(entry)] = Holder::Withdrawn;
            self.note(WITHDRAWAL | u64::from(entry));
        }
        won
    }

    /// The receiver's decision about the record of an entry that is away.
    pub fn fate(&self, entry: u16) -> Option<Fate> {
        Fate::of(self.memory.entry(entry)[0].load(Ordering::Acquire))
    }

    /// The record of an entry that is away, as it is there now: the receiver may have changed it.
    pub fn load(&self, entry: u16, into: &mut LaneCopy) {
        into.load(self.memory.entry(entry));
    }

    /// The next entry that came back.
    ///
    /// # Errors
    /// [`Broken`] if the receiver returns what it was not sent, or with an impossible fate.
    #[inline]
    pub fn next_returned(&mut self) -> Result<Option<Returned>, Broken> {
        // RETURN: Acquire here, Release in `LaneReceiver::publish`, so that its loads are over before the entry is written anew.
        let word = self.memory.returned(self.returns).load(Ordering::Acquire);
        let Some(number) = read(word, self.returns, M::ENTRIES) else { return Ok(None) };
        let broken = |what| Broken { what, found: number };
        let (entry, fate) = (number as u16, Fate::of(number >> FATE_AT));
        let holder = self.held.get_mut(usize::from(entry)).filter(|holder| **holder != Holder::Sender);
        let holder = holder.ok_or(broken("an entry came back that was not away"))?;
        // A withdrawn record can only come back as withdrawn, and any other only with the receiver's decision.
        let fate = match (&holder, fate) {
            (Holder::Withdrawn, Some(Fate::Withdrawn)) => Fate::Withdrawn,
            (Holder::Receiver, Some(fate)) if fate != Fate::Withdrawn => fate,
            _ => return Err(broken("an entry came back with what cannot have become of it")),
        };
        *holder = Holder::Sender;
        self.returns += 1;
        self.free.push(entry);
        // The free entries are a stack: the next send writes this one.
        self.memory.is_written_soon(entry);
        Ok(Some(Returned { entry, fate }))
    }

    /// True if an entry came back; costs one load.
    #[inline]
    pub fn has_returned(&self) -> bool {
        // RETURN: see `next_returned`.
        read(self.memory.returned(self.returns).load(Ordering::Acquire), self.returns, M::ENTRIES).is_some()
    }

    /// True if the receiver has this entry.
    pub fn is_away(&self, entry: u16) -> bool {
        self.held.get(usize::from(entry)).is_some_and(|holder| *holder != Holder::Sender)
    }

    /// Number of entries that the receiver has.
    pub fn away(&self) -> usize {
        M::ENTRIES - self.free.len()
    }
}
