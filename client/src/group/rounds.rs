//! Rounds of the collectives of one host: in each, every rank writes its own slot, announces it, and reads what it wants from the others'
//! slots. A slot is written again two rounds later, when all have read it. So a rank is never more than two rounds ahead of another, and
//! the next round is written while the others still read the last.
//!
//! All ranks take part in every round, with or without something to write, so that rounds are numbered the same everywhere. One thread at
//! a time.

use std::{sync::Arc, time::Instant};

use sealane_transport::{
    Error,
    shm::group::{CALL_WORDS, SLOT_BYTES, Slots, Stage, Word},
};

use super::{
    call::{Call, Told, differs, digest},
    members::{Awaited, Members},
};

pub(super) struct Rounds {
    reader: Reader,
    slots: Slots,
    /// The next round to write, by stage; the first is 1.
    next: [u32; 2],
}

/// Reads what the others write in the rounds of a call.
pub(super) struct Reader {
    members: Arc<Members>,
    /// Number of calls so far, and the last call.
    calls: u32,
    call: [u64; CALL_WORDS],
    /// The round of stage `Given` at which it began.
    began: u32,
    until: Option<Instant>,
}

impl Rounds {
    pub(super) fn new(members: Arc<Members>, slots: Slots) -> Rounds {
        let reader = Reader { members, calls: 0, call: [0; CALL_WORDS], began: 0, until: None };
        Rounds { reader, slots, next: [1, 1] }
    }

    pub(super) fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(super) fn members(&self) -> &Members {
        &self.reader.members
    }

    /// Begins a call, which is to end by `until`; returns the words that announce it to others.
    pub(super) fn begin(&mut self, call: &Call, until: Option<Instant>) -> Result<[u64; CALL_WORDS], Error> {
        let Reader { members, calls, call: before, .. } = &self.reader;
        members.check()?;
        // Checked even if everything that this call waits for was announced before.
        members.check_others()?;
        members.check_far()?;
        let calls = calls.wrapping_add(1);
        let (members, began) = (members.clone(), self.next[Stage::Given as usize]);
        let call = call.words(calls, digest(before));
        self.reader = Reader { members, calls, call, began, until };
        Ok(call)
    }

    /// The slot to write next, once all have read what it held.
    #[inline]
    pub(super) fn slot(&mut self, stage: Stage) -> Result<&mut [u8], Error> {
        Ok(self.slot_and_reader(stage)?.0)
    }

    /// The slot, and a reader for what the others have written, to fill it with.
    pub(super) fn slot_and_reader(&mut self, stage: Stage) -> Result<(&mut [u8], &Reader), Error> {
        let round = self.next[stage as usize];
        let Reader { members, call, began, until, .. } = &self.reader;
        // It held round - 2; the first two rounds find nothing to be read.
        let least = round.wrapping_sub(2);
        for rank in members.others() {
            members.wait(Awaited { rank, word: Word::Read(stage), least }, *until)?;
        }
        if (stage, round) == (Stage::Given, *began) {
            // All have compared the call that was announced there: its first round was at least two before this one.
            members.own().say_call(round, call);
        }
        Ok((self.slots.slot(stage, round), &self.reader))
    }

    /// Announces that the slot is written; returns the number of the round.
    pub(super) fn post(&mut self, stage: Stage) -> u32 {
        let round = self.next[stage as usize];
        self.next[stage as usize] = round.wrapping_add(1);
        self.members().tell(Word::Posted(stage), round);
        round
    }

    /// What this rank has written in a round that the others have not all read, and a reader for theirs.
    pub(super) fn own_and_reader(&mut self, stage: Stage, round: u32) -> (&[u8], &Reader) {
        (self.slots.slot(stage, round), &self.reader)
    }

    /// Announces that this rank has read all that it wants of a round.
    pub(super) fn done(&self, stage: Stage, round: u32) {
        self.members().tell(Word::Read(stage), round);
    }
}

impl Reader {
    /// What another rank has written in a round; waits for it.
    pub(super) fn read(&self, stage: Stage, rank: usize, round: u32) -> Result<&[u8], Error> {
        self.members.wait(Awaited { rank, word: Word::Posted(stage), least: round }, self.until)?;
        let segment = self.members.other(rank);
        if (stage, round) == (Stage::Given, self.began) {
            let theirs = segment.words.call(round);
            if theirs != self.call {
                let (own, rank) = (self.members.number(), self.members.number_of(rank));
                return Err(self.members.fail(differs((own, Told(self.call)), (rank, Told(theirs)))));
            }
        }
        Ok(segment.slot(stage, round))
    }

    pub(super) fn rank(&self) -> usize {
        self.members.rank
    }

    pub(super) fn size(&self) -> usize {
        self.members.size()
    }

    /// The number in the group of the rank at a place.
    pub(super) fn number_of(&self, rank: usize) -> usize {
        self.members.number_of(rank)
    }

    /// The other ranks, beginning with the next, so that not all read the same slot at once.
    pub(super) fn others_from_next(&self) -> impl Iterator<Item = usize> + use<> {
        let (rank, size) = (self.members.rank, self.members.size());
        (1..size).map(move |ahead| (rank + ahead) % size)
    }
}

/// How many rounds it takes to move so many bytes, `part` in each: at least one, in which the ranks compare their calls.
pub(super) fn rounds_of(bytes: usize, part: usize) -> usize {
    bytes.div_ceil(part).max(1)
}

/// The largest part of a slot for each of so many ranks, in whole elements of any type.
pub(super) fn part_of_slot(ranks: usize) -> usize {
    SLOT_BYTES / ranks / 64 * 64
}
