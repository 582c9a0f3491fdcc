//! Last words about streams that a peer is to be told, each until a push of it was taken. No I/O.
//!
//! A push that was taken is in the peer's queue, ahead of everything pushed later: the peer's end hears it, unless its
//! process or its daemon ends, and the stream with it. Bounded by the number of streams, and for words that the peer asked
//! for by `STREAM_ANSWERS_MAX`.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use crate::limits::{STREAM_ANSWERS_MAX, STREAM_TELL_MAX, STREAMS_MAX};

/// A stream with the peer: whether this side has dialed it, and its number.
pub(super) type Id = (bool, u64);

/// The last word to an end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Word {
    /// Everything it wrote was taken in: so many bytes.
    Taken(u64),
    /// The stream has ended for this reason; so many of its bytes were taken in.
    Reset { code: u64, taken: u64, reason: Arc<str> },
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Entry {
    word: Word,
    /// Distinguishes a word from an earlier one about the same stream.
    serial: u64,
    since: Instant,
    is_answer: bool,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Due,
    Pushed,
    /// The push failed: again after a pause.
    Failed,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Untold {
    entries: BTreeMap<Id, Entry>,
    /// Streams whose word is to be pushed, in order.
    due: VecDeque<Id>,
    /// Streams whose word was pushed in vain.
    failed: Vec<Id>,
    last: u64,
    answers: usize,
}

impl Untold {
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if words are to be pushed.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// True if words are to be pushed again after a pause.
    pub(super) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Queues a word for the peer, replacing an earlier one about that stream. If there are too many, its end finds out when
    /// it asks.
    pub(super) fn tell(&mut self, id: Id, word: Word, now: Instant) {
        if self.entries.len() < STREAMS_MAX || self.entries.contains_key(&id) {
            self.enter(id, word, now, false);
        }
    }

    /// Queues a word that the peer has asked for itself, unless another about that stream is pending.
    pub(super) fn answer(&mut self, id: Id, word: Word, now: Instant) {
        if self.answers < STREAM_ANSWERS_MAX && !self.entries.contains_key(&id) {
            self.enter(id, word, now, true);
        }
    }

    fn enter(&mut self, id: Id, word: Word, now: Instant, is_answer: bool) {
        self.last += 1;
        let entry = Entry { word, serial: self.last, since: now, is_answer, stage: Stage::Due };
        let before = self.entries.insert(id, entry);
        self.answers += usize::from(is_answer);
        self.answers -= usize::from(before.as_ref().is_some_and(|before| before.is_answer));
        if before.is_none_or(|before| before.stage != Stage::Due) {
            self.due.push_back(id);
        }
    }

    /// The next word to push, with its serial number.
    pub(super) fn next(&mut self) -> Option<(Id, u64, Word)> {
        let id = self.due.pop_front()?;
        let entry = self.entries.get_mut(&id).expect("it stays until its push was taken");
        entry.stage = Stage::Pushed;
        Some((id, entry.serial, entry.word.clone()))
    }

    /// A push of a word ended: it was taken, or not.
    pub(super) fn settle(&mut self, id: Id, serial: u64, is_taken: bool, now: Instant) {
        // A later word about the stream is in flight, or will be.
        let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.serial == serial) else { return };
        if is_taken || now.saturating_duration_since(entry.since) >= STREAM_TELL_MAX {
            self.answers -= usize::from(entry.is_answer);
            self.entries.remove(&id);
        } else {
            entry.stage = Stage::Failed;
            self.failed.push(id);
        }
    }

    /// Failed words are due again.
    pub(super) fn again(&mut self) {
        for id in self.failed.drain(..) {
            // A later word may be due or in flight by now.
            if let Some(entry) = self.entries.get_mut(&id).filter(|entry| entry.stage == Stage::Failed) {
                entry.stage = Stage::Due;
                self.due.push_back(id);
            }
        }
    }

    /// The outcomes of the pushes in flight will stay unknown: all words are due again.
    pub(super) fn interrupt(&mut self) {
        self.failed.clear();
        self.entries.values_mut().for_each(|entry| entry.stage = Stage::Due);
        self.due = self.entries.keys().copied().collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reset(code: u64) -> Word {
        Word::Reset { code, taken: 0, reason: "a test".into() }
    }

    /// Everything that is due, by stream.
    fn next(untold: &mut Untold) -> Vec<(u64, u64, Word)> {
        std::iter::from_fn(|| untold.next()).map(|((_, stream), serial, word)| (stream, serial, word)).collect()
    }

    #[test]
    fn what_one_peer_asks_for_takes_no_answer_from_another_and_no_word_from_its_own_streams() {
        let (most, now) = (STREAM_ANSWERS_MAX as u64, Instant::now());
        let (mut greedy, mut other) = (Untold::default(), Untold::default());
        (0..2 * most).for_each(|stream| greedy.answer((false, stream), reset(1), now));
        greedy.tell((true, 7), Word::Taken(9), now);
        other.answer((false, 2 * most), reset(2), now);
        let streams: Vec<u64> = next(&mut greedy).into_iter().map(|(stream, ..)| stream).collect();
        assert_eq!(streams, (0..most).chain([7]).collect::<Vec<_>>());
        let answered = next(&mut other);
        assert!(matches!(&answered[..], [(stream, _, word)] if *stream == 2 * most && *word == reset(2)));
        // Each answer that the peer has taken makes room for another.
        greedy.settle((false, 0), 1, true, now);
        (0..2).for_each(|more| greedy.answer((false, 3 * most + more), reset(3), now));
        assert!(matches!(&next(&mut greedy)[..], [(stream, ..)] if *stream == 3 * most));
        // So does a word that replaces an answer.
        greedy.tell((false, 1), reset(4), now);
        (0..2).for_each(|more| greedy.answer((false, 4 * most + more), reset(5), now));
        let streams: Vec<u64> = next(&mut greedy).into_iter().map(|(stream, ..)| stream).collect();
        assert_eq!(streams, [1, 4 * most]);
    }
}
