//! The producer's side of a half: the tensors that were sent and are not settled, and everything that waits for room in the ring.
//!
//! An unsettled tensor stays in the ring until its place is needed, and is then copied out (`kept`), so that all that a dead consumer has
//! not taken can be sent to its successor. A tensor without credit is held, and sent when half of the credit is back or when the consumer
//! asks for it.
//!
//! Limits: credit of three quarters of the ring; [`NOTES_MAX`] notes, beyond which the consumer counts as broken; held tensors as
//! `stored.rs` says.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::atomic::Ordering,
    task::Waker,
};

use super::{
    BrokenChannel, ChannelMemory, Ring, SILENCE_MS, Why,
    record::{FIXED_WORDS, Kind, Shape, store_bytes},
    slots::SLOTS_MAX,
    stored::{Copied, HELD, Held, Kept, Named, Of, Unsettled},
};
use crate::ring::{Header, Writer, index, lines};

/// Most notes that wait for room: more than a peer that reads can cause, which is one for each slot.
pub(super) const NOTES_MAX: usize = 2 * SLOTS_MAX;

/// Stands for the time of a revocation before the next sweep.
const JUST_NOW: u64 = u64::MAX;

/// Words of a ring's first page, from which a quiet channel does not grow.
pub(super) const QUIET_WORDS: u64 = 448;

/// How urgently the reader of a record is to be woken.
#[inline]
pub(super) fn urgency(of: Kind) -> Ring {
    match of {
        Kind::Took => Ring::Settled,
        Kind::Tensor | Kind::Pad | Kind::Resumed | Kind::Clear | Kind::Reopened => Ring::Written,
        _ => Ring::Urgent,
    }
}

/// A tensor to be sent: its metadata in wire form, and its payload.
#[derive(Clone, Copy)]
pub struct Outgoing<'a> {
    /// A multiple of 8 bytes, at least 8.
    pub meta: &'a [u8],
    pub payload: &'a [u8],
}

impl Outgoing<'_> {
    #[inline]
    fn shape(&self, key: &[u8]) -> Shape {
        Shape { rank: (self.meta.len() / 8).wrapping_sub(1), key: key.len(), payload: self.payload.len() }
    }
}

/// What a send's handle is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// Nobody has settled it.
    Open,
    /// A recv of the consumer has it.
    Taken,
    /// It was returned, or its step has ended.
    Returned(Why),
}

/// A tensor in the ring.
#[derive(Debug, Clone, Copy)]
struct InRing {
    at: u64,
    of: Of,
    is_settled: bool,
}

/// A record that found no room.
#[derive(Debug)]
enum Note {
    Numbers(Kind, u64, u64),
    Named(Kind, i64, Box<[u8]>),
}

/// Where a send went that was held when it was made.
#[derive(Debug, Clone, Copy)]
enum Whereabouts {
    Held,
    InRing(u64),
}

/// What few channels ever need.
#[derive(Default)]
struct Rare {
    notes: VecDeque<Note>,
    /// Announcements among the notes.
    announcements: usize,
    held: Held,
    kept: Kept,
    /// Sends that were held and whose outcomes somebody asks for, by handle.
    whereabouts: HashMap<u64, Whereabouts>,
    /// Handles of sends that were reclaimed.
    reclaimed: HashSet<u64>,
    /// How sends ended that were not taken, and their names, by handle.
    outcomes: HashMap<u64, (Why, Named)>,
    waiters: Vec<(u64, Waker, bool)>,
}

pub(super) struct Producer<M> {
    writer: Writer<M>,
    /// Number of the next tensor.
    next: u64,
    /// The tensors in the ring, from number `low` on.
    in_ring: VecDeque<InRing>,
    low: u64,
    /// Words of settled tensors at or after `low`.
    settled_words: u64,
    /// The most words that were unsettled at a time recently.
    peak: u64,
    /// The number before which the consumer has settled all, as its records said.
    took: u64,
    /// `Returned` records that were read, and that were written.
    returned: u64,
    pub(super) returns_written: u64,
    /// The earliest deadline of an unsettled tensor, or earlier.
    earliest: u64,
    /// Nothing is in `rare` that a send must look at.
    is_plain: bool,
    rare: Box<Rare>,
    /// Tensors and bytes sent.
    pub(super) moved: (u64, u64),
    /// How urgently the peer is to be woken for what was written since the half was asked last.
    pub(super) ring: Ring,
}

impl<M: ChannelMemory> Producer<M> {
    /// Words of tensors that may be unsettled. The rest of the ring is for answers and notes.
    const CREDIT: u64 = M::WORDS / 4 * 3;

    pub(super) fn new(memory: M) -> Self {
        Producer {
            writer: Writer::new(memory),
            next: 0,
            in_ring: VecDeque::with_capacity(64),
            low: 0,
            settled_words: 0,
            peak: 0,
            took: 0,
            returned: 0,
            returns_written: 0,
            earliest: u64::MAX,
            is_plain: true,
            rare: Box::default(),
            moved: (0, 0),
            ring: Ring::No,
        }
    }

    /// True if notes or tensors wait for room.
    pub(super) fn is_waiting(&self) -> bool {
        !self.is_plain
    }

    /// True if a tensor of that key is small enough to be sent through the ring.
    #[inline]
    pub(super) fn is_small(key: &[u8], tensor: &Outgoing<'_>) -> bool {
        Self::is_record(tensor.shape(key))
    }

    #[inline]
    fn is_record(shape: Shape) -> bool {
        let most = (super::TENSOR_WORDS_MAX as u64).min(M::WORDS / 4);
        shape.payload <= super::PAYLOAD_BYTES_MAX && shape.words() <= most
    }

    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Sends a small tensor, if nothing waits and there is room; returns its handle. `took` acknowledges the tensors of the other direction.
    #[inline]
    pub(super) fn send_at_once(
        &mut self,
        (step, key): (i64, &[u8]),
        tensor: Outgoing<'_>,
        deadline: u64,
        took: impl FnOnce() -> u64,
    ) -> Option<u64> {
        let shape = tensor.shape(key);
        if !self.is_plain || !Self::is_record(shape) || !self.writer.fits(shape.words()) {
            return None;
        }
        let of = Of { handle: Some(self.next), step, deadline, shape, revoked: None, is_aborted: false };
        self.write_tensor(of, key, tensor, took());
        Some(self.next - 1)
    }

    /// [`send_at_once`](Self::send_at_once), or holds the tensor.
    ///
    /// # Errors
    /// `Duplicate` if one of that name is held, `Full` if too many are.
    pub(super) fn send(
        &mut self,
        (step, key): (i64, &[u8]),
        tensor: Outgoing<'_>,
        deadline: u64,
        took: u64,
    ) -> Result<u64, Why> {
        self.flush(took);
        let shape = tensor.shape(key);
        // Held tensors may have been sent.
        let of = Of { handle: Some(self.next), step, deadline, shape, revoked: None, is_aborted: false };
        // A tensor that a recv waits for needs no credit. While tensors are held, others wait behind them.
        let is_asked = self.rare.held.take_asked(step, key);
        if (is_asked || !self.rare.held.is_active()) && self.make_room(of.shape.words(), !is_asked) {
            self.write_tensor(of, key, tensor, took);
            return Ok(self.next - 1);
        }
        self.hold(of, key, tensor)
    }

    /// Writes a tensor for which there is room.
    #[inline]
    fn write_tensor(&mut self, of: Of, key: &[u8], tensor: Outgoing<'_>, took: u64) {
        let words = of.shape.words();
        let record = self.writer.record(words);
        record[1].store(took & u64::from(u32::MAX), Ordering::Relaxed);
        record[2].store(of.step as u64, Ordering::Relaxed);
        store_bytes(&record[FIXED_WORDS..], key);
        store_bytes(&record[of.shape.meta_at()..], tensor.meta);
        store_bytes(&record[of.shape.payload_at()..], tensor.payload);
        self.in_ring.push_back(InRing { at: self.writer.tail, of, is_settled: false });
        self.writer.commit(words, Header::tensor(words, of.shape));
        self.next += 1;
        self.earliest = self.earliest.min(of.deadline);
        self.moved = (self.moved.0 + 1, self.moved.1 + tensor.payload.len() as u64);
        self.ring = self.ring.max(Ring::Written);
    }

    pub(super) fn begin_batch(&mut self) {
        self.writer.begin_batch();
    }

    pub(super) fn end_batch(&mut self) {
        self.writer.end_batch();
    }

    /// Holds a tensor for which there is no room or no credit.
    fn hold(&mut self, of: Of, key: &[u8], tensor: Outgoing<'_>) -> Result<u64, Why> {
        let (handle, is_first) = self.rare.held.add(Copied::new(of, key, tensor))?;
        self.rare.whereabouts.insert(handle, Whereabouts::Held);
        self.earliest = self.earliest.min(of.deadline);
        self.is_plain = false;
        if is_first {
            self.note(Kind::Held, 0, 0);
        }
        Ok(handle)
    }

    /// Writes a held tensor for which there is room.
    fn write_held(&mut self, name: &Named, took: u64) {
        let Some(copied) = self.rare.held.take(name) else { return };
        if let Some(whereabouts) = copied.of.handle.and_then(|handle| self.rare.whereabouts.get_mut(&handle)) {
            *whereabouts = Whereabouts::InRing(self.next);
        }
        let (key, tensor) = copied.parts();
        self.write_tensor(copied.of, key, tensor, took);
    }

    /// Sends held tensors as far as there is credit, once half of it is back.
    fn release_held(&mut self, took: u64) {
        if !self.rare.held.is_active() {
            return;
        }
        self.look_at_reader();
        if !self.rare.held.is_empty() && self.unsettled_words() > Self::CREDIT / 2 {
            return;
        }
        while let Some((name, copied)) = self.rare.held.first() {
            let (name, words) = (name.clone(), copied.of.shape.words());
            if !self.make_room(words, true) {
                return;
            }
            self.write_held(&name, took);
        }
        self.rare.held.end();
        self.note(Kind::Resumed, 0, 0);
    }

    /// A recv of the consumer waits for a tensor that may be held here.
    pub(super) fn asked(&mut self, step: i64, key: &[u8], took: u64) {
        if !self.rare.held.is_active() {
            return;
        }
        let name = (step, key.into());
        let Some(copied) = self.rare.held.get(&name) else { return self.rare.held.ask(name) };
        match self.make_room(copied.of.shape.words(), false) {
            true => self.write_held(&name, took),
            false => self.rare.held.put_first(&name),
        }
    }

    /// Writes a note, or keeps it until there is room.
    pub(super) fn note(&mut self, kind: Kind, one: u64, two: u64) {
        if !self.rare.notes.is_empty() || !self.write_numbers(kind, one, two) {
            self.rare.notes.push_back(Note::Numbers(kind, one, two));
            self.is_plain = false;
        }
    }

    /// [`note`](Self::note) with a name.
    pub(super) fn note_named(&mut self, kind: Kind, step: i64, key: &[u8]) {
        if !self.rare.notes.is_empty() || !self.write_named(kind, step, key) {
            self.rare.announcements += usize::from(kind == Kind::Announce);
            self.rare.notes.push_back(Note::Named(kind, step, key.into()));
            self.is_plain = false;
        }
    }

    /// Announces a tensor that went another way; false if too many announcements wait for room.
    pub(super) fn announce(&mut self, step: i64, key: &[u8]) -> bool {
        if self.rare.announcements >= NOTES_MAX / 2 {
            return false;
        }
        self.note_named(Kind::Announce, step, key);
        true
    }

    fn write_numbers(&mut self, kind: Kind, one: u64, two: u64) -> bool {
        let words = lines(FIXED_WORDS);
        if !self.writer.fits(words) && !self.make_room(words, false) {
            return false;
        }
        let record = self.writer.record(words);
        record[1].store(one, Ordering::Relaxed);
        record[2].store(two, Ordering::Relaxed);
        self.commit_note(words, kind, 0);
        self.returns_written += u64::from(kind == Kind::Returned);
        true
    }

    fn write_named(&mut self, kind: Kind, step: i64, key: &[u8]) -> bool {
        let words = lines(FIXED_WORDS + key.len().div_ceil(8));
        if !self.writer.fits(words) && !self.make_room(words, false) {
            return false;
        }
        let record = self.writer.record(words);
        record[1].store(0, Ordering::Relaxed);
        record[2].store(step as u64, Ordering::Relaxed);
        store_bytes(&record[FIXED_WORDS..], key);
        self.commit_note(words, kind, key.len());
        true
    }

    fn commit_note(&mut self, words: u64, kind: Kind, key: usize) {
        self.writer.commit(words, Header::note(kind, words, key));
        self.ring = self.ring.max(urgency(kind));
    }

    /// Writes what found no room before, as far as there is room.
    #[cold]
    pub(super) fn flush(&mut self, took: u64) {
        while let Some(note) = self.rare.notes.pop_front() {
            let written = match &note {
                Note::Numbers(kind, one, two) => self.write_numbers(*kind, *one, *two),
                Note::Named(kind, step, key) => self.write_named(*kind, *step, key),
            };
            if !written {
                self.rare.notes.push_front(note);
                break;
            }
            self.rare.announcements -= usize::from(matches!(note, Note::Named(Kind::Announce, ..)));
        }
        self.release_held(took);
        self.is_plain = self.rare.notes.is_empty() && !self.rare.held.is_active();
    }

    /// The first tensor of the other direction whose return is not written yet.
    pub(super) fn unwritten_return(&self) -> Option<u64> {
        let returned = |note: &Note| match note {
            Note::Numbers(Kind::Returned, number, _) => Some(*number),
            _ => None,
        };
        self.rare.notes.iter().filter_map(returned).min()
    }

    /// # Errors
    /// More notes wait than a consumer that reads can cause.
    pub(super) fn check_notes(&self) -> Result<(), BrokenChannel> {
        match self.rare.notes.len() > NOTES_MAX {
            true => Err(BrokenChannel("the peer does not read")),
            false => Ok(()),
        }
    }

    fn unsettled_words(&self) -> u64 {
        self.writer.tail - self.low_at() - self.settled_words + self.rare.kept.words()
    }

    /// Where the oldest tensor lies that may be unsettled.
    fn low_at(&self) -> u64 {
        self.in_ring.front().map_or(self.writer.tail, |first| first.at)
    }

    /// Takes in what the consumer's words say; returns how far it has read, unless that is impossible.
    fn look_at_reader(&mut self) -> Option<u64> {
        let memory = &self.writer.memory;
        let took = memory.took().load(Ordering::Acquire).min(self.next);
        // After `took`: the consumer counts a return before it lets `took` pass the tensor. Until the record of each return was read, nobody
        // knows which of the tensors before `took` were returned.
        if memory.returned().load(Ordering::Acquire) <= self.returned {
            self.took = self.took.max(took);
        }
        let read = memory.read().load(Ordering::Acquire);
        self.pass();
        let tail = self.writer.tail;
        (read <= tail && read + 2 * M::WORDS >= tail).then_some(read)
    }

    /// The consumer has settled all tensors before this number, by its records; the lower half of the number is given.
    #[inline]
    pub(super) fn acknowledged(&mut self, low: u32) {
        let behind = u64::from((self.next as u32).wrapping_sub(low));
        if behind <= self.next - self.took {
            self.took = self.next - behind;
        }
    }

    /// Forgets settled tensors at the front.
    fn pass(&mut self) {
        while let Some(first) = self.in_ring.front().filter(|first| self.low < self.took || first.is_settled) {
            if first.is_settled {
                self.settled_words -= first.of.shape.words();
            }
            self.low += 1;
            self.in_ring.pop_front();
        }
        if !self.rare.kept.is_empty() {
            let took = self.took;
            self.rare.kept.drop_settled(|number| number < took);
        }
    }

    fn in_ring_mut(&mut self, number: u64) -> Option<&mut InRing> {
        self.in_ring.get_mut(usize::try_from(number.checked_sub(self.low)?).ok()?)
    }

    fn settle(&mut self, number: u64) {
        if let Some(sent) = self.in_ring_mut(number).filter(|sent| !sent.is_settled) {
            sent.is_settled = true;
            let words = sent.of.shape.words();
            self.settled_words += words;
        }
    }

    /// The consumer has taken a range of tensors out of order.
    pub(super) fn taken(&mut self, from: u64, to: u64) {
        for number in from.max(self.low)..to.min(self.next) {
            self.settle(number);
        }
        self.rare.kept.drop_settled(|number| (from..to).contains(&number));
    }

    /// The consumer has returned a tensor.
    pub(super) fn returned(&mut self, number: u64, why: Why) {
        self.returned += 1;
        let copied = self.rare.kept.take(number).or_else(|| {
            let sent = self.in_ring_mut(number).filter(|sent| !sent.is_settled).copied()?;
            Some(self.copy(&sent))
        });
        copied.into_iter().for_each(|copied| self.end(copied, why));
        self.settle(number);
    }

    /// Makes room for a record, for a tensor only within its credit; false if there is none.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, words: u64, is_tensor: bool) -> bool {
        let Some(read) = self.look_at_reader() else { return false };
        loop {
            let (tail, low_at) = (self.writer.tail, self.low_at());
            let at = index::<M>(tail);
            self.peak = self.peak.max(tail - low_at + words);
            // A quiet channel stays in its first page. Until the consumer has read the padding, only `at` words are free, so these must be
            // several times the usual burst.
            let is_quiet = low_at == tail && read == tail && at >= QUIET_WORDS && at >= 4 * self.peak;
            if is_quiet {
                self.peak -= self.peak / 8;
            }
            let pads = is_quiet || at + words > M::WORDS;
            let padding = if pads { M::WORDS - at } else { 0 };
            let unsettled = self.unsettled_words();
            if is_tensor && unsettled + words > Self::CREDIT {
                return false;
            }
            let end = low_at.min(read) + M::WORDS;
            if tail + padding + words >= end {
                // The place of an old tensor is needed that was read and not taken.
                if low_at < read && !self.in_ring.is_empty() {
                    self.keep_oldest();
                    continue;
                }
                return false;
            }
            if pads {
                self.writer.pad();
            }
            // A note needs no credit, and leaves that of tensors as it is.
            let tail = self.writer.tail;
            if is_tensor {
                let credit = tail + Self::CREDIT - unsettled.min(Self::CREDIT);
                let mut limit = end.min(credit);
                if index::<M>(tail) < QUIET_WORDS {
                    limit = limit.min(tail - index::<M>(tail) + QUIET_WORDS + 64);
                }
                self.writer.limit = limit.max(tail + words + 1);
            }
            return true;
        }
    }

    /// Copies the oldest unsettled tensor out of the ring.
    fn keep_oldest(&mut self) {
        let Some(oldest) = self.in_ring.pop_front() else { return };
        let copied = self.copy(&oldest);
        self.rare.kept.add(self.low, copied);
        self.low += 1;
        self.pass();
    }

    /// A copy of a tensor in the ring. If the consumer has written there, only the contents are wrong.
    fn copy(&self, sent: &InRing) -> Copied {
        let words = self.writer.memory.words(sent.at, sent.of.shape.words());
        let words = words[FIXED_WORDS..sent.of.shape.used()].iter();
        Copied::of_words(sent.of, words.map(|word| word.load(Ordering::Relaxed)))
    }

    /// What became of a send.
    pub(super) fn status(&mut self, handle: u64) -> Sent {
        let number = match self.number(handle) {
            Ok(number) => number,
            Err(sent) => return sent,
        };
        if number < self.took {
            return Sent::Taken;
        }
        self.look_at_reader();
        let is_open = match self.in_ring_mut(number) {
            Some(sent) => !sent.is_settled,
            None => self.rare.kept.has(number),
        };
        if is_open { Sent::Open } else { Sent::Taken }
    }

    /// The number of a send, or what became of it.
    fn number(&self, handle: u64) -> Result<u64, Sent> {
        if let Some((why, _)) = self.rare.outcomes.get(&handle) {
            return Err(Sent::Returned(*why));
        }
        if self.rare.reclaimed.contains(&handle) {
            return Err(Sent::Open);
        }
        if handle & HELD == 0 {
            return Ok(handle);
        }
        match self.rare.whereabouts.get(&handle) {
            Some(Whereabouts::Held) => Err(Sent::Open),
            Some(Whereabouts::InRing(number)) => Ok(*number),
            None => Err(Sent::Taken),
        }
    }

    /// Nobody asks for the outcome of a send any more.
    pub(super) fn forget(&mut self, handle: u64) {
        self.rare.waiters.retain(|(other, ..)| *other != handle);
        self.rare.outcomes.remove(&handle);
        let number = self.number(handle).ok();
        if let Some(sent) = number.and_then(|number| self.in_ring_mut(number)) {
            sent.of.handle = None;
        } else if let Some(kept) = number.and_then(|number| self.rare.kept.get_mut(number)) {
            kept.handle = None;
        } else {
            self.rare.held.forget(handle);
        }
        self.rare.whereabouts.remove(&handle);
    }

    /// Notes the outcome of a send, if somebody asks for it.
    fn end(&mut self, copied: Copied, why: Why) {
        if let Some(handle) = copied.of.handle {
            let why = if copied.of.is_aborted { Why::Aborted } else { why };
            self.rare.whereabouts.remove(&handle);
            self.rare.outcomes.insert(handle, (why, copied.name()));
        }
    }

    /// Step and key of a send that was returned.
    pub(super) fn name_of_returned(&self, handle: u64) -> Option<(i64, &[u8])> {
        self.rare.outcomes.get(&handle).map(|(_, (step, key))| (*step, &**key))
    }

    /// Ends held sends.
    fn end_held_where(&mut self, is: impl Fn(&Of) -> bool, why: Why) {
        self.rare.held.take_where(is).into_iter().for_each(|copied| self.end(copied, why));
    }

    /// What was sent and is not settled, with its number.
    fn unsettled_mut(&mut self) -> impl Iterator<Item = (u64, &mut Of)> {
        let in_ring = (self.low..).zip(&mut self.in_ring).filter(|(_, sent)| !sent.is_settled);
        in_ring.map(|(number, sent)| (number, &mut sent.of)).chain(self.rare.kept.iter_mut())
    }

    /// The sends of a step are aborted unless the consumer has taken their tensors: it is asked to return them.
    pub(super) fn end_step(&mut self, step: i64) {
        self.look_at_reader();
        let mut revoked = Vec::new();
        for (number, of) in self.unsettled_mut().filter(|(_, of)| of.step == step) {
            of.is_aborted = true;
            if of.revoked.is_none() {
                of.revoked = Some(JUST_NOW);
                revoked.push(number);
            }
        }
        revoked.into_iter().for_each(|number| self.note(Kind::Revoke, number, 0));
        self.end_held_where(|of| of.step == step, Why::Aborted);
        self.earliest = 0;
    }

    /// Revokes sends whose deadline has passed, and ends those for which the consumer has not answered in [`SILENCE_MS`].
    pub(super) fn sweep(&mut self, now: u64) {
        if self.earliest > now {
            return;
        }
        self.look_at_reader();
        self.end_held_where(|of| of.deadline <= now, Why::Late);
        let (mut earliest, mut late, mut silent) = (u64::MAX, Vec::new(), Vec::new());
        for (number, of) in self.unsettled_mut() {
            if of.deadline <= now && of.revoked.is_none() {
                of.revoked = Some(JUST_NOW);
                late.push(number);
            }
            match &mut of.revoked {
                None => earliest = earliest.min(of.deadline),
                Some(since) => {
                    *since = now.min(*since);
                    let until = since.saturating_add(SILENCE_MS);
                    if until > now {
                        earliest = earliest.min(until);
                    } else if let Some(handle) = of.handle.take() {
                        let why = if of.is_aborted { Why::Aborted } else { Why::Silent };
                        silent.push((handle, (why, (of.step, Box::default()))));
                    }
                }
            }
        }
        late.into_iter().for_each(|number| self.note(Kind::Revoke, number, 0));
        self.rare.outcomes.extend(silent);
        self.earliest = earliest.min(self.rare.held.earliest_deadline());
    }

    pub(super) fn earliest(&self) -> u64 {
        self.earliest
    }

    /// Wakes `waker` when a send has ended.
    pub(super) fn wait(&mut self, handle: u64, waker: Waker, is_watched: bool) -> Option<Waker> {
        let waiters = &mut self.rare.waiters;
        let before = waiters.iter().position(|(other, ..)| *other == handle).map(|at| waiters.swap_remove(at).1);
        waiters.push((handle, waker, is_watched));
        before
    }

    pub(super) fn wait_no_more(&mut self, handle: u64) {
        self.rare.waiters.retain(|(other, ..)| *other != handle);
    }

    pub(super) fn has_waiters(&self) -> bool {
        !self.rare.waiters.is_empty()
    }

    pub(super) fn watched(&self) -> usize {
        self.rare.waiters.iter().filter(|(.., is_watched)| *is_watched).count()
    }

    /// Moves the wakers of sends that have ended into `wakers`.
    pub(super) fn wake(&mut self, wakers: &mut Vec<Waker>) {
        for (handle, waker, is_watched) in std::mem::take(&mut self.rare.waiters) {
            match self.status(handle) {
                Sent::Open => self.rare.waiters.push((handle, waker, is_watched)),
                _ => wakers.push(waker),
            }
        }
    }

    /// Moves all wakers into `wakers`, since the channel has ended.
    pub(super) fn wake_all(&mut self, wakers: &mut Vec<Waker>) {
        wakers.extend(self.rare.waiters.drain(..).map(|(_, waker, _)| waker));
    }

    /// True if the consumer's words say more than its records did; for a caller that has announced its sleep (`SEQ_CST`).
    pub(super) fn has_acknowledgement(&self) -> bool {
        self.writer.memory.took().load(Ordering::SeqCst) > self.took
    }

    /// All that the consumer has not taken, in order. The channel has ended.
    pub(super) fn reclaim(&mut self) -> Vec<Unsettled> {
        // The consumer writes no more, so every return that it has counted was read.
        self.returned = u64::MAX;
        self.look_at_reader();
        let mut all = self.rare.kept.take_all();
        let in_ring = std::mem::take(&mut self.in_ring);
        let unsettled = (self.low..).zip(&in_ring).filter(|(_, sent)| !sent.is_settled);
        all.extend(unsettled.map(|(number, sent)| (number, self.copy(sent))));
        all.sort_unstable_by_key(|(number, _)| *number);
        (self.low, self.settled_words) = (self.next, 0);
        let mut all: Vec<Copied> = all.into_iter().map(|(_, copied)| copied).collect();
        all.extend(self.rare.held.take_where(|_| true));
        self.rare.reclaimed.extend(all.iter().filter_map(|copied| copied.of.handle));
        all.into_iter().map(Copied::into_unsettled).collect()
    }

    /// Tensors that are not settled: in the ring or kept, and held.
    pub(super) fn counts(&self) -> (usize, usize) {
        let in_ring = self.in_ring.iter().filter(|sent| !sent.is_settled).count();
        (in_ring + self.rare.kept.len(), self.rare.held.len())
    }

    /// # Panics
    /// If an invariant is broken.
    pub(super) fn check_invariants(&self) {
        let rare = &*self.rare;
        let settled = self.in_ring.iter().filter(|sent| sent.is_settled).map(|sent| sent.of.shape.words()).sum::<u64>();
        assert_eq!(self.settled_words, settled);
        assert_eq!(self.low + self.in_ring.len() as u64, self.next, "numbers without gaps");
        assert!(self.in_ring.iter().is_sorted_by_key(|sent| sent.at));
        rare.kept.check_invariants(self.low);
        rare.held.check_invariants();
        assert!(!self.is_plain || rare.notes.is_empty() && !rare.held.is_active());
        assert!(self.took <= self.next);
        assert!(self.writer.tail - self.low_at() <= M::WORDS, "no unsettled tensor is overwritten");
    }
}
