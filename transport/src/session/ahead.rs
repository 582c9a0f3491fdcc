//! Small tensors that are sent ahead of their requests, so that one message carries each: written once into the frames that they leave
//! in, and kept there until the peer has said what became of each.
//!
//! Exactly once, over any number of links: a tensor has a number in the life of the session. What the peer says of numbers is in its log
//! of releases, which is sent again on a new link until it is acknowledged. When a link is lost the peer forgets those that no recv has
//! taken, and this side takes back, when the peer has said all that it knows (*resumed*), those of which it has heard nothing. So no
//! frame leaves twice. A tensor that comes back is its owner's, who keeps it for a request.

use std::collections::VecDeque;

use sealane_runtime::{Buffer, VolatileSlice};

use super::control::Control;
use super::{Event, Session, Sink};
use crate::limits::{AHEAD_BYTES_MAX, AHEAD_RECORD_BYTES, AHEAD_TENSOR_BYTES};
use crate::outbox::Outbox;
use crate::payload::Meta;
use crate::spares;
use crate::wire::{Ahead, AheadEnd, AheadRecordsBuf, Ends, Fate, WireError};

/// A small tensor, to be sent before it is asked for.
#[derive(Debug)]
pub struct AheadAsk<'a, D> {
    /// The sending task, by its index in this side's task list.
    pub producer: u16,
    /// The peer's task that it is for, by the owner's number.
    pub consumer: u32,
    /// The step.
    pub step: i64,
    /// Its name within the step.
    pub key: &'a str,
    /// Its metadata.
    pub meta: &'a [u8],
    /// Its bytes, at most [`AHEAD_TENSOR_BYTES`]; copied.
    pub payload: VolatileSlice<'a>,
    /// Comes back with the end.
    pub deposit: D,
    /// It leaves in a frame of its own.
    pub alone: bool,
}

/// A tensor that was sent ahead, and that no recv has taken.
#[derive(Debug)]
pub struct AheadBack<D> {
    /// What [`AheadAsk`] came with.
    pub deposit: D,
    /// Another tensor with its key waits at the peer.
    pub is_duplicate: bool,
    /// Its name within the step.
    pub key: Box<str>,
    /// Its metadata.
    pub meta: Meta,
    /// Its bytes.
    pub buffer: Buffer,
}

/// A tensor of the peer's that has come ahead of its request.
#[derive(Debug, Clone, Copy)]
pub struct CameAhead<'a> {
    /// Its number, by which it is [released](Session::release_ahead).
    pub number: u64,
    /// The peer's task, by the owner's number.
    pub producer: u32,
    /// The task of this side that it is for, by its index in this side's list.
    pub consumer: u16,
    /// The step.
    pub step: i64,
    /// The bytes of its key, to be looked at by who keeps them for [text](crate::wire::text).
    pub key: &'a [u8],
    /// Its metadata, not looked at.
    pub meta: &'a [u8],
    /// Its bytes.
    pub payload: &'a [u8],
}

impl CameAhead<'_> {
    /// What it counts while it is kept.
    #[inline]
    pub fn cost(&self) -> usize {
        AHEAD_RECORD_BYTES + self.key.len() + self.meta.len() + self.payload.len()
    }
}

/// Tensors that leave in one frame.
struct Sent<D> {
    first: u64,
    ends: Ends,
    records: AheadRecordsBuf,
    /// One of each; taken when its tensor has ended.
    deposits: Vec<Option<D>>,
    /// Those that have not ended.
    left: usize,
    /// What they count, until all have ended.
    bytes: usize,
    /// It left on an earlier link, or was to.
    is_stale: bool,
}

impl<D> Sent<D> {
    fn end(&self) -> u64 {
        self.first + self.deposits.len() as u64
    }
}

/// See the module.
pub(super) struct SentAhead<D> {
    frames: VecDeque<Sent<D>>,
    /// Number of the next tensor.
    next: u64,
    /// Frames at the back that have not left.
    unsent: usize,
    /// What all frames count.
    bytes: usize,
    /// Memory for the deposits of the next frames.
    spare: Vec<Vec<Option<D>>>,
}

/// Frames for whose deposits a session keeps memory: as many as are on their way when it is busy.
const SPARE_DEPOSITS_MAX: usize = 8;

impl<D> SentAhead<D> {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::new(), next: 0, unsent: 0, bytes: 0, spare: Vec::new() }
    }

    /// Those that have not ended.
    pub(super) fn len(&self) -> usize {
        self.frames.iter().map(|frame| frame.left).sum()
    }

    /// True if there is nothing to send.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.unsent == 0
    }

    #[inline]
    fn add(&mut self, ends: Ends, ask: AheadAsk<'_, D>) -> Result<u64, D> {
        let AheadAsk { key, meta, payload, deposit, alone, .. } = ask;
        let bytes = key.len() + meta.len() + payload.len();
        let cost = bytes + AHEAD_RECORD_BYTES;
        if self.bytes + cost > AHEAD_BYTES_MAX {
            return Err(deposit);
        }
        let number = self.next;
        let is_open = |frame: &&mut Sent<D>| frame.ends == ends && !alone && !frame.records.is_full(bytes);
        let open = if self.unsent > 0 { self.frames.back_mut().filter(is_open) } else { None };
        let frame = match open {
            Some(frame) => frame,
            None => {
                let deposits = self.spare.pop().unwrap_or_default();
                let records = AheadRecordsBuf::within(spares::take());
                let frame = Sent { first: number, ends, records, deposits, left: 0, bytes: 0, is_stale: false };
                self.unsent += 1;
                self.frames.push_back(frame);
                self.frames.back_mut().expect("just entered")
            }
        };
        frame.records.push(key, meta, payload);
        frame.deposits.push(Some(deposit));
        (frame.left, frame.bytes) = (frame.left + 1, frame.bytes + cost);
        self.bytes += cost;
        self.next += 1;
        Ok(number)
    }

    /// Stages the next frame; false if there is none.
    #[inline]
    pub(super) fn stage(&mut self, outbox: &mut Outbox) -> bool {
        if self.unsent == 0 {
            return false;
        }
        let frame = &self.frames[self.frames.len() - self.unsent];
        let ahead = Ahead { first: frame.first, ends: frame.ends, records: frame.records.records() };
        outbox.stage(|writer| writer.ahead(&ahead));
        outbox.count_small(frame.deposits.len() as u64);
        self.unsent -= 1;
        true
    }

    /// The frame that has the tensor of this number, or else the one behind it.
    fn frame_at(&self, number: u64) -> usize {
        // Most often it is the first.
        match self.frames.front() {
            Some(front) if front.end() > number => 0,
            _ => self.frames.partition_point(|frame| frame.end() <= number),
        }
    }

    fn remove(&mut self, index: usize) {
        if index >= self.frames.len() - self.unsent {
            self.unsent -= 1;
        }
        let Some(Sent { records, mut deposits, bytes, .. }) = self.frames.remove(index) else { return };
        self.bytes -= bytes;
        spares::give_back(&mut records.into_memory());
        deposits.clear();
        if self.spare.len() < SPARE_DEPOSITS_MAX {
            self.spare.push(deposits);
        }
    }

    /// The peer has said what became of some.
    ///
    /// # Errors
    /// They have not all been sent.
    pub(super) fn ended<W>(
        &mut self,
        AheadEnd { first, count, fate }: AheadEnd,
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Result<(), WireError> {
        let end = first.saturating_add(u64::from(count));
        let sent = self.frames.len() - self.unsent;
        let known = self.frames.get(sent).map_or(self.next, |frame| frame.first);
        if end > known {
            return Err(WireError::BadValue { what: "number of a tensor sent ahead", found: end });
        }
        let mut number = first;
        loop {
            let index = self.frame_at(number);
            let Some(frame) = self.frames.get_mut(index).filter(|frame| frame.first < end) else { return Ok(()) };
            let start = number.max(frame.first);
            number = end.min(frame.end());
            let of = (start - frame.first) as usize..(number - frame.first) as usize;
            if fate == Fate::Taken {
                for deposit in frame.deposits[of].iter_mut().filter_map(Option::take) {
                    frame.left -= 1;
                    match sink {
                        Some(sink) => sink.taken_ahead(deposit),
                        None => events.push_back(Event::TakenAhead { deposit }),
                    }
                }
            } else {
                frame.give_back(of, fate == Fate::Duplicate, events);
            }
            if frame.left == 0 {
                self.remove(index);
            }
            if number == end {
                return Ok(());
            }
        }
    }

    /// The link is gone.
    pub(super) fn suspend(&mut self) {
        self.frames.iter_mut().for_each(|frame| frame.is_stale = true);
        self.unsent = 0;
    }

    /// The peer has said all that it knows of those that were sent on earlier links: the others have not been taken.
    pub(super) fn take_back_stale<W>(&mut self, events: &mut VecDeque<Event<W, D>>) {
        while self.frames.front().is_some_and(|frame| frame.is_stale) {
            let frame = &mut self.frames[0];
            frame.give_back(0..frame.deposits.len(), false, events);
            self.remove(0);
        }
    }

    /// The peer knows of none any more.
    pub(super) fn take_back_all<W>(&mut self, events: &mut VecDeque<Event<W, D>>) {
        self.suspend();
        self.take_back_stale(events);
    }

    /// Has a tensor come back: from the peer, or at once with those of its frame if that has not left.
    fn revoke<W>(&mut self, number: u64, events: &mut VecDeque<Event<W, D>>) -> Option<Control> {
        let index = self.frame_at(number);
        let unsent = self.frames.len() - self.unsent;
        let frame = self.frames.get_mut(index).filter(|frame| frame.first <= number)?;
        let place = (number - frame.first) as usize;
        frame.deposits[place].as_ref()?;
        if index >= unsent {
            frame.give_back(0..frame.deposits.len(), false, events);
            self.remove(index);
            return None;
        }
        let key = frame.key_at(place)?.into();
        Some(Control::AheadRevoke { number, ends: frame.ends, key })
    }

    fn key_of(&self, number: u64) -> Option<String> {
        let frame = self.frames.get(self.frame_at(number)).filter(|frame| frame.first <= number)?;
        frame.key_at((number - frame.first) as usize)
    }
}

impl<D> Sent<D> {
    fn key_at(&self, place: usize) -> Option<String> {
        let record = self.records.records().iter().nth(place)?.ok()?;
        Some(String::from_utf8_lossy(record.key).into())
    }

    /// Gives those in a range of places back that have not ended.
    #[cold]
    fn give_back<W>(&mut self, of: std::ops::Range<usize>, is_duplicate: bool, events: &mut VecDeque<Event<W, D>>) {
        let mut last: &[u8] = &[];
        for (place, record) in self.records.records().iter().enumerate().take(of.end) {
            let Ok(record) = record else { return debug_assert!(false, "written here") };
            last = record.meta.unwrap_or(last);
            if place < of.start {
                continue;
            }
            if let Some(deposit) = self.deposits[place].take() {
                self.left -= 1;
                let key = String::from_utf8_lossy(record.key).into();
                let (meta, buffer) = (Meta::from_slice(last), Buffer::copy_of(record.payload));
                events.push_back(Event::BackFromAhead(Box::new(AheadBack {
                    deposit,
                    is_duplicate,
                    key,
                    meta,
                    buffer,
                })));
            }
        }
    }
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Sends a small tensor before it is asked for; its number. Its end comes as [`Event::TakenAhead`] or [`Event::BackFromAhead`].
    ///
    /// # Errors
    /// It has to wait for its request: there is no link, or no credit, or the peer does not serve the task. The deposit comes back.
    #[inline]
    pub fn send_ahead(&mut self, ask: AheadAsk<'_, D>) -> Result<u64, D> {
        let Some(attached) = self.attached.as_ref().filter(|_| self.going_away.is_none()) else {
            return Err(ask.deposit);
        };
        let is_small = ask.payload.len() <= AHEAD_TENSOR_BYTES && ask.payload.len() as u64 <= attached.tensor_bytes_max;
        let Some(consumer) = attached.roster.place_of(ask.consumer).filter(|_| is_small) else {
            return Err(ask.deposit);
        };
        let ends = Ends { step: ask.step, producer: ask.producer, consumer };
        self.ahead.add(ends, ask)
    }

    /// Has a tensor that was [sent ahead](Self::send_ahead) come back, unless a recv has it.
    pub fn revoke_ahead(&mut self, number: u64) {
        if let Some(control) = self.ahead.revoke(number, &mut self.events)
            && self.attached.is_some()
        {
            self.control.push(control);
        }
    }

    /// Tells the peer's task that a tensor waits for its request. A peer that reads so little that a queue of such messages is full is
    /// not told: it asks all the same, a little later.
    pub fn hold(&mut self, (producer, consumer): (u16, u32), step: i64, key: &str) {
        if let Some(attached) = &self.attached
            && let Some(consumer) = attached.roster.place_of(consumer)
            && !self.control.is_full()
        {
            self.control.push(Control::AheadHeld { ends: Ends { step, producer, consumer }, key: key.into() });
        }
    }

    /// A tensor that came ahead, and was kept at such a cost, has ended.
    pub fn release_ahead(&mut self, number: u64, cost: usize, fate: Fate) {
        debug_assert!(self.kept_ahead >= cost, "the peer would lose its link for what it may do");
        self.kept_ahead -= cost;
        self.consumer.release_ahead(number, fate);
    }

    /// The key of a tensor that was sent ahead and has not ended.
    pub fn key_ahead(&self, number: u64) -> Option<String> {
        self.ahead.key_of(number)
    }
}
