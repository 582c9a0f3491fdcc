//! The layout of a rank's segment, and access to it. In groups, only here does shared memory become slices.
#![allow(unsafe_code)]

use std::{
    ops::Deref,
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use super::{CALL_WORDS, MAIL_PIECE_BYTES, MAIL_PIECES, RANKS_MAX, REASON_BYTES, SLOT_BYTES};
use crate::shm::{
    error::ShmError,
    fields::Span,
    futex,
    mapping::{ARENA, Mapping, OTHERS_ARENA, SharedMemory, seal_for_readers},
};

/// Offsets in a segment, in bytes. What is written at different times has separate cache lines, in pairs as processors
/// fetch them.
mod at {
    use super::{CALL_WORDS, MAIL_PIECE_BYTES, MAIL_PIECES, RANKS_MAX, REASON_BYTES, SLOT_BYTES};

    const LINE: usize = 128;

    pub(super) const STATE: usize = 0;
    pub(super) const SLEEPS: usize = LINE;
    pub(super) const LISTENS: usize = 2 * LINE;
    pub(super) const ROUNDS: usize = 3 * LINE;
    pub(super) const CALLS: usize = 4 * LINE;
    pub(super) const REASON: usize = CALLS + 2 * CALL_WORDS * 8;
    pub(super) const MAIL_WORDS: usize = 2048;
    pub(super) const MAIL_WORDS_OF_ONE: usize = 16;
    pub(super) const SLOTS: usize = (MAIL_WORDS + RANKS_MAX * MAIL_WORDS_OF_ONE).next_multiple_of(4096);
    pub(super) const MAILBOXES: usize = SLOTS + 4 * SLOT_BYTES;
    pub(super) const MAILBOX_BYTES: usize = MAIL_PIECES * MAIL_PIECE_BYTES;

    const _: () = assert!(REASON + 8 + REASON_BYTES <= MAIL_WORDS);
}

/// The two passes of a collective: first all give their input, then what each has made of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The tensors of the call.
    Given = 0,
    /// What was made of them.
    Made = 1,
}

/// Values of [`Word::State`]; 0 means that the rank takes part.
pub mod state {
    /// It has left the group.
    pub const LEFT: u32 = 1;
    /// It has ended the group for all.
    pub const FAILED: u32 = 2;
}

#[derive(Debug, Clone, Copy)]
pub enum Word {
    State,
    /// The thread that runs its collectives sleeps.
    Sleeps,
    /// The thread that handles its messages sleeps.
    Listens,
    /// The last round of a stage that it has written.
    Posted(Stage),
    /// The last round of a stage of which it has read all that it needs.
    Read(Stage),
    /// Number of message pieces that it has written for a rank.
    Sent(usize),
    /// Number of message pieces that it has taken from a rank.
    Taken(usize),
    /// Counts what it has sent to and taken from a rank, so that the rank can wait for either.
    Told(usize),
}

impl Word {
    #[inline]
    fn offset(self) -> usize {
        let of_rank = |rank: usize| at::MAIL_WORDS + rank * at::MAIL_WORDS_OF_ONE;
        match self {
            Word::State => at::STATE,
            Word::Sleeps => at::SLEEPS,
            Word::Listens => at::LISTENS,
            Word::Posted(stage) => at::ROUNDS + 8 * stage as usize,
            Word::Read(stage) => at::ROUNDS + 8 * stage as usize + 4,
            Word::Sent(rank) => of_rank(rank),
            Word::Taken(rank) => of_rank(rank) + 4,
            Word::Told(rank) => of_rank(rank) + 8,
        }
    }
}

/// Size of a rank's segment in a group of `size`.
fn bytes_of(size: usize) -> u64 {
    (at::MAILBOXES + size * at::MAILBOX_BYTES) as u64
}

/// The words of a segment, read-only. Cheap to clone; any thread.
#[derive(Debug, Clone)]
pub struct GroupWords(Arc<Mapping>);

impl GroupWords {
    #[inline]
    fn word(&self, word: Word) -> &AtomicU32 {
        self.0.word32(word.offset() as u64)
    }

    /// The value of a word. A reader that sees it also sees what was written before it.
    ///
    /// # Panics
    /// If it names a rank beyond [`RANKS_MAX`].
    #[inline]
    pub fn load(&self, word: Word) -> u32 {
        // POSTED: Acquire here, Release in `OwnWords::store`.
        self.word(word).load(Ordering::Acquire)
    }

    /// Sleeps while a word has the value `seen`, for at most `limit`. It may return early.
    pub fn wait(&self, word: Word, seen: u32, limit: Duration) {
        futex::wait(self.word(word), seen, limit);
    }

    /// Sleeps while each of these words has the value that was seen, for at most `limit`. It may return early.
    pub fn wait_any<'w>(words: impl Iterator<Item = (&'w GroupWords, Word, u32)>, limit: Duration) {
        futex::wait_any(words.map(|(words, word, seen)| (words.word(word), seen)), limit);
    }

    /// The call that the rank makes; there is one place for calls that begin in even rounds, and one for odd ones.
    #[inline]
    pub fn call(&self, round: u32) -> [u64; CALL_WORDS] {
        let at = at::CALLS + (round as usize & 1) * CALL_WORDS * 8;
        std::array::from_fn(|index| self.0.word((at + index * 8) as u64).load(Ordering::Relaxed))
    }

    /// Why the rank has ended its group: its own text, cut to what is legal.
    pub fn reason(&self) -> String {
        let len = (self.0.word(at::REASON as u64).load(Ordering::Acquire) as usize).min(REASON_BYTES);
        let words =
            (0..len.div_ceil(8)).map(|index| self.0.word((at::REASON + 8 + index * 8) as u64).load(Ordering::Relaxed));
        let bytes: Vec<u8> = words.flat_map(u64::to_ne_bytes).take(len).collect();
        String::from_utf8_lossy(&bytes).chars().filter(|letter| !letter.is_control()).collect()
    }

    fn span(&self, offset: usize, len: usize) -> std::ptr::NonNull<[u8]> {
        let span = Span { offset: offset as u64, len: len as u64 };
        SharedMemory::part(&self.0, 0).bytes(span).expect("the layout is within the segment")
    }
}

/// The words of this process's own segment. Cheap to clone; any thread.
#[derive(Debug, Clone)]
pub struct OwnWords(GroupWords);

impl Deref for OwnWords {
    type Target = GroupWords;

    fn deref(&self) -> &GroupWords {
        &self.0
    }
}

/// A rank's own segment.
#[derive(Debug)]
pub struct OwnSegment {
    pub words: OwnWords,
    pub slots: Slots,
    pub mailboxes: Mailboxes,
}

/// The slots of a rank's own segment.
#[derive(Debug)]
pub struct Slots(GroupWords);

/// The mailboxes of a rank's own segment.
#[derive(Debug)]
pub struct Mailboxes(GroupWords, usize);

impl OwnSegment {
    /// Creates the zeroed segment of a rank in a group of `size`, with its descriptor for the others, who can only read it.
    /// Pages are allocated on first use.
    ///
    /// # Errors
    /// [`ShmError::System`] if no descriptor is left, or before Linux 5.1, where others could write the memory.
    pub(super) fn create(size: usize) -> Result<(OwnSegment, OwnedFd), ShmError> {
        let (mapping, descriptor) = Mapping::create("sealane-group", bytes_of(size), ARENA)?;
        seal_for_readers(&descriptor)?;
        let words = GroupWords(mapping);
        let (slots, mailboxes) = (Slots(words.clone()), Mailboxes(words.clone(), size));
        Ok((OwnSegment { words: OwnWords(words), slots, mailboxes }, descriptor))
    }
}

impl OwnWords {
    /// Sets a word; whoever sees it also sees all that was written before.
    #[inline]
    pub fn store(&self, word: Word, value: u32) {
        // POSTED: see `GroupWords::load`.
        self.word(word).store(value, Ordering::Release);
    }

    /// Wakes everyone who waits for a word.
    pub fn wake(&self, word: Word) {
        futex::wake(self.word(word));
    }

    /// Announces the call that this rank makes from a round on.
    #[inline]
    pub fn say_call(&self, round: u32, call: &[u64; CALL_WORDS]) {
        let at = at::CALLS + (round as usize & 1) * CALL_WORDS * 8;
        for (index, word) in call.iter().enumerate() {
            self.0.0.word((at + index * 8) as u64).store(*word, Ordering::Relaxed);
        }
    }

    /// Announces that this rank ends its group, and why, as far as there is room.
    pub fn fail(&self, reason: &str) {
        let bytes = &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES)];
        for (index, part) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.0.0.word((at::REASON + 8 + index * 8) as u64).store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
        self.0.0.word(at::REASON as u64).store(bytes.len() as u64, Ordering::Release);
        self.store(Word::State, state::FAILED);
    }
}

impl Slots {
    /// The slot for a round of a stage, [`SLOT_BYTES`] long.
    #[inline]
    pub fn slot(&mut self, stage: Stage, round: u32) -> &mut [u8] {
        let mut bytes = self.0.span(slot_at(stage, round), SLOT_BYTES);
        // SAFETY: the bytes are within the segment, which `self` keeps mapped, and only this process can write them. There is one
        // `Slots` of a segment, which is borrowed meanwhile, and `Mailboxes` are other bytes.
        unsafe { bytes.as_mut() }
    }
}

impl Mailboxes {
    /// A piece of the mailbox for rank `to`, [`MAIL_PIECE_BYTES`] long.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    pub fn piece(&mut self, to: usize, number: u32) -> &mut [u8] {
        assert!(to < self.1, "there is no rank {to}");
        let mut bytes = self.0.span(piece_at(to, number), MAIL_PIECE_BYTES);
        // SAFETY: as in `Slots::slot`.
        unsafe { bytes.as_mut() }
    }
}

fn slot_at(stage: Stage, round: u32) -> usize {
    at::SLOTS + (2 * stage as usize + (round as usize & 1)) * SLOT_BYTES
}

fn piece_at(to: usize, number: u32) -> usize {
    at::MAILBOXES + to * at::MAILBOX_BYTES + (number as usize % MAIL_PIECES) * MAIL_PIECE_BYTES
}

/// The segment of another rank, read-only.
#[derive(Debug, Clone)]
pub struct OthersSegment {
    pub words: GroupWords,
    size: usize,
}

impl OthersSegment {
    /// Opens the segment of a rank in a group of `size`.
    ///
    /// # Errors
    /// [`ShmError::Unsealed`], also if it could be written to; [`ShmError::WrongSize`]; [`ShmError::System`] if it cannot be
    /// mapped.
    pub(super) fn open(descriptor: &OwnedFd, size: usize) -> Result<OthersSegment, ShmError> {
        let mapping = Mapping::open(descriptor, bytes_of(size).next_multiple_of(4096), OTHERS_ARENA)?;
        Ok(OthersSegment { words: GroupWords(mapping), size })
    }

    /// The slot for a round of a stage, [`SLOT_BYTES`] long.
    #[inline]
    pub fn slot(&self, stage: Stage, round: u32) -> &[u8] {
        let bytes = self.words.span(slot_at(stage, round), SLOT_BYTES);
        // SAFETY: the bytes are within the segment, which `self` keeps mapped. Its owner, a process of the same user, promises to leave
        // them alone from when it says that they are posted until all others say that they have read them.
        unsafe { bytes.as_ref() }
    }

    /// A piece of its mailbox for a rank, [`MAIL_PIECE_BYTES`] long.
    ///
    /// # Panics
    /// If there is no such rank.
    #[inline]
    pub fn piece(&self, to: usize, number: u32) -> &[u8] {
        assert!(to < self.size, "there is no rank {to}");
        let bytes = self.words.span(piece_at(to, number), MAIL_PIECE_BYTES);
        // SAFETY: as in `slot`, from when the piece is sent until it is taken.
        unsafe { bytes.as_ref() }
    }
}
