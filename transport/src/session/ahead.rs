//! Small tensors sent ahead of their requests, so that each needs only one message. They are written once into the frames
//! that they leave in, and kept there until the peer has said what became of each.
//!
//! Exactly once, over any number of links: each tensor has a number, unique in the life of the session. The peer reports
//! what became of tensors in its log of releases, which it repeats on a new link until acknowledged. When a link is lost
//! the peer forgets the tensors that no recv has taken. Once it has reported all that it knows (*resumed*), this side takes
//! back the tensors not reported. So no frame is sent twice. A tensor that comes back goes to its owner, who keeps it for a
//! request.

use std::collections::VecDeque;

use sealane_runtime::{Buffer, VolatileSlice};

use super::control::Control;
use super::{Event, Session, Sink};
use crate::limits::{AHEAD_BYTES_MAX, AHEAD_RECORD_BYTES, AHEAD_TENSOR_BYTES};
use crate::outbox::Outbox;
use crate::payload::Meta;
use crate::spares;
use crate::wire::{Ahead, AheadEnd, AheadRecord, AheadRecords, AheadRecordsBuf, Ends, Fate, RecordPlace, WireError};

/// A small tensor to send before it is requested.
#[derive(Debug)]
pub struct AheadParams<'a, D> {
    /// Its name within the step.
    pub key: &'a str,
    /// Its metadata.
    pub meta: &'a [u8],
    /// Its bytes, at most [`AHEAD_TENSOR_BYTES`]; copied.
    pub payload: VolatileSlice<'a>,
    /// Returned when the tensor is done with. Tensors that end together may have the same.
    pub pending: D,
}

/// Small tensors of one step for one task, as a session [sends them ahead](Session::send_ahead).
pub struct SendingAhead<'a, D> {
    sent: &'a mut SentAhead<D>,
    ends: Ends,
    alone: bool,
    bytes_max: usize,
}

impl<D> SendingAhead<'_, D> {
    /// Number of the next tensor, by which it can be [revoked](Session::revoke_ahead).
    #[inline]
    pub fn next(&self) -> u64 {
        self.sent.next
    }

    /// False if a tensor with this many bytes of key and metadata, and of payload, has to wait for its request: it is too
    /// large, or there is no credit.
    #[inline]
    pub fn has_room(&self, name_bytes: usize, payload_bytes: usize) -> bool {
        payload_bytes <= self.bytes_max && self.sent.has_room(name_bytes + payload_bytes)
    }

    /// Sends one more, for which there [is room](Self::has_room). Its end comes as [`Event::TakenAhead`] or [`Event::BackFromAhead`].
    #[inline]
    pub fn add(&mut self, params: AheadParams<'_, D>) {
        self.sent.add(self.ends, self.alone, params);
    }
}

/// A tensor that was sent ahead and not taken by any recv.
#[derive(Debug)]
pub struct AheadBack<D> {
    /// The `pending` of its [`AheadParams`].
    pub pending: D,
    /// Another tensor with its key waits at the peer.
    pub is_duplicate: bool,
    /// Its name within the step.
    pub key: Box<str>,
    /// Its metadata.
    pub meta: Meta,
    /// Its bytes.
    pub buffer: Buffer,
}

/// Tensors of the peer that came ahead of their requests, in one frame.
#[derive(Debug, Clone, Copy)]
pub struct CameTogether<'a> {
    /// Number of the first.
    pub first: u64,
    /// The peer's task, by the owner's number for it.
    pub producer: u32,
    /// The task of this side that they are for, by its index in this side's list.
    pub consumer: u16,
    /// The step.
    pub step: i64,
    /// The tensors; their metadata is unchecked.
    pub records: AheadRecords<'a>,
}

/// How many of the first of them a sink has taken or keeps.
#[derive(Debug, Clone, Copy, Default)]
pub struct TakenTogether {
    /// Their number.
    pub count: u32,
    /// These are all.
    pub is_all: bool,
    /// If they are kept, to be [released](Session::release_ahead) later: their total [cost](CameAhead::cost).
    pub kept: Option<usize>,
}

/// A tensor of the peer that came ahead of its request.
#[derive(Debug, Clone, Copy)]
pub struct CameAhead<'a> {
    /// Its number, by which it is [released](Session::release_ahead).
    pub number: u64,
    /// The peer's task, by the owner's number for it.
    pub producer: u32,
    /// The task of this side that it is for, by its index in this side's list.
    pub consumer: u16,
    /// The step.
    pub step: i64,
    /// The bytes of its key; a caller that keeps them must check them to be [text](crate::wire::text).
    pub key: &'a [u8],
    /// Its metadata, unchecked.
    pub meta: &'a [u8],
    /// Its bytes.
    pub payload: &'a [u8],
}

impl CameAhead<'_> {
    /// What it is charged while it is kept.
    #[inline]
    pub fn cost(&self) -> usize {
        ahead_cost(self.key, self.meta, self.payload)
    }
}

/// What a tensor that came ahead is charged while it is kept.
#[inline]
pub fn ahead_cost(key: &[u8], meta: &[u8], payload: &[u8]) -> usize {
    AHEAD_RECORD_BYTES + key.len() + meta.len() + payload.len()
}

/// One tensor of a frame.
struct Record<D> {
    place: RecordPlace,
    /// Taken when the tensor is done with.
    pending: Option<D>,
}

/// Tensors that leave in one frame.
struct Sent<D> {
    first: u64,
    ends: Ends,
    written: AheadRecordsBuf,
    /// One for each tensor; none once all are done with.
    records: Vec<Record<D>>,
    /// How many are not done with.
    left: usize,
    /// Their total cost, until all are done with.
    bytes: usize,
    /// It was sent, or queued, on an earlier link.
    is_stale: bool,
}

impl<D> Sent<D> {
    fn end(&self) -> u64 {
        self.first + self.records.len() as u64
    }
}

/// Tensors sent ahead and not done with; see the module's documentation.
pub(super) struct SentAhead<D> {
    frames: VecDeque<Sent<D>>,
    /// Number of the next tensor.
    next: u64,
    /// Number of frames at the back that were not sent.
    unsent: usize,
    /// Total cost of all frames.
    bytes: usize,
    /// Number of frames between others whose tensors are all done with. They are removed together, so that a peer that ends the
    /// last first costs no more.
    gaps: usize,
    /// Memory for the records of the next frames.
    spare: Vec<Vec<Record<D>>>,
}

/// Number of frames for whose records a session keeps memory: as many as are on their way when it is busy.
const SPARE_RECORDS_MAX: usize = 8;

/// Gaps are removed when their number exceeds half of the frames by this.
const GAPS_SLACK: usize = 16;

impl<D> SentAhead<D> {
    pub(super) fn new() -> Self {
        Self { frames: VecDeque::new(), next: 0, unsent: 0, bytes: 0, gaps: 0, spare: Vec::new() }
    }

    /// Number of tensors that are not done with.
    pub(super) fn len(&self) -> usize {
        self.frames.iter().map(|frame| frame.left).sum()
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if there is nothing to send.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.unsent == 0
    }

    /// True if the peer keeps a tensor with this many bytes of key, metadata and payload in addition to the others.
    #[inline]
    fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes + AHEAD_RECORD_BYTES <= AHEAD_BYTES_MAX
    }

    #[inline]
    fn add(&mut self, ends: Ends, alone: bool, params: AheadParams<'_, D>) {
        let AheadParams { key, meta, payload, pending } = params;
        let bytes = key.len() + meta.len() + payload.len();
        let cost = bytes + AHEAD_RECORD_BYTES;
        debug_assert!(self.has_room(bytes), "the peer would end the link");
        // A frame whose last tensor was taken back cannot take this number.
        let number = self.next;
        let is_open = |frame: &&mut Sent<D>| {
            frame.ends == ends && !alone && frame.end() == number && !frame.written.is_full(bytes)
        };
        let open = if self.unsent > 0 { self.frames.back_mut().filter(is_open) } else { None };
        let frame = match open {
            Some(frame) => frame,
            None => {
                let records = self.spare.pop().unwrap_or_default();
                let (first, written) = (number, AheadRecordsBuf::within(spares::take()));
                let frame = Sent { first, ends, written, records, left: 0, bytes: 0, is_stale: false };
                self.unsent += 1;
                self.frames.push_back(frame);
                self.frames.back_mut().expect("just entered")
            }
        };
        let place = frame.written.push(key, meta, payload);
        frame.records.push(Record { place, pending: Some(pending) });
        (frame.left, frame.bytes) = (frame.left + 1, frame.bytes + cost);
        self.bytes += cost;
        self.next += 1;
    }

    /// Stages the next frame; false if there is none.
    #[inline]
    pub(super) fn stage(&mut self, outbox: &mut Outbox) -> bool {
        if self.unsent == 0 {
            return false;
        }
        let frame = &self.frames[self.frames.len() - self.unsent];
        let ahead = Ahead { first: frame.first, ends: frame.ends, records: frame.written.records() };
        outbox.stage(|writer| writer.ahead(&ahead));
        outbox.count_small(frame.records.len() as u64);
        self.unsent -= 1;
        true
    }

    /// The index of the frame with the tensor of this number, and its index there, if the frame still exists.
    #[inline]
    fn find(&self, number: u64) -> Option<(usize, usize)> {
        // It is usually in the first.
        let index = match self.frames.front() {
            Some(front) if front.end() > number => 0,
            _ => self.frames.partition_point(|frame| frame.end() <= number),
        };
        let place = number.checked_sub(self.frames.get(index)?.first)?;
        Some((index, place as usize))
    }

    /// Removes a frame whose tensors are all done with.
    fn remove(&mut self, index: usize) {
        let is_unsent = index >= self.frames.len() - self.unsent;
        let Some(frame) = self.frames.get_mut(index) else { return };
        self.bytes -= std::mem::take(&mut frame.bytes);
        spares::give_back(&mut std::mem::take(&mut frame.written).into_memory());
        let mut records = std::mem::take(&mut frame.records);
        records.clear();
        if self.spare.len() < SPARE_RECORDS_MAX {
            self.spare.push(records);
        }
        if is_unsent {
            self.frames.remove(index);
            self.unsent -= 1;
            return;
        }
        self.gaps += 1;
        while self.frames.front().is_some_and(|front| front.left == 0) {
            self.frames.pop_front();
            self.gaps -= 1;
        }
        if self.gaps > self.frames.len() / 2 + GAPS_SLACK {
            self.frames.retain(|frame| frame.left > 0);
            self.gaps = 0;
        }
    }

    /// The peer has said what became of some tensors.
    ///
    /// # Errors
    /// They were not all sent, or are already done with.
    pub(super) fn ended<W>(
        &mut self,
        AheadEnd { first, count, fate }: AheadEnd,
        sink: &mut Option<&mut dyn Sink<W, D>>,
        events: &mut VecDeque<Event<W, D>>,
    ) -> Result<(), WireError>
    where
        D: PartialEq,
    {
        let wrong = |number| WireError::BadValue { what: "number of a tensor sent ahead", found: number };
        let end = first.checked_add(u64::from(count)).ok_or(wrong(first))?;
        let mut number = first;
        while number < end {
            let sent = self.frames.len() - self.unsent;
            let (index, from) = self.find(number).filter(|(index, _)| *index < sent).ok_or(wrong(number))?;
            let frame = &mut self.frames[index];
            let to = frame.records.len().min(from + (end - number) as usize);
            let after = frame.first + to as u64;
            let mut taken = None;
            for record in &mut frame.records[from..to] {
                let Some(pending) = record.pending.take() else { break };
                (frame.left, number) = (frame.left - 1, number + 1);
                if fate != Fate::Taken {
                    events.push_back(back(&frame.written, record.place, pending, fate == Fate::Duplicate));
                    continue;
                }
                match &mut taken {
                    Some((of, count)) if *of == pending => *count += 1,
                    _ => tell_taken(taken.replace((pending, 1)), sink, events),
                }
            }
            tell_taken(taken, sink, events);
            // Also if the next has already ended: an empty frame never stays.
            if frame.left == 0 {
                self.remove(index);
            }
            if number < after {
                return Err(wrong(number));
            }
        }
        Ok(())
    }

    /// The link is gone.
    pub(super) fn suspend(&mut self) {
        self.frames.iter_mut().for_each(|frame| frame.is_stale = true);
        self.unsent = 0;
    }

    /// The peer has reported all that it knows of tensors sent on earlier links: the others were not taken.
    pub(super) fn take_back_stale<W>(&mut self, events: &mut VecDeque<Event<W, D>>) {
        // The first is never a gap.
        while self.frames.front().is_some_and(|frame| frame.is_stale) {
            self.give_back(0, events);
        }
    }

    /// The peer no longer knows any tensor sent ahead.
    pub(super) fn take_back_all<W>(&mut self, events: &mut VecDeque<Event<W, D>>) {
        self.suspend();
        self.take_back_stale(events);
    }

    /// Gives back the tensors of a frame that are not done with.
    fn give_back<W>(&mut self, index: usize, events: &mut VecDeque<Event<W, D>>) {
        let Some(frame) = self.frames.get_mut(index).filter(|frame| frame.left > 0) else { return };
        for record in &mut frame.records {
            let pending = record.pending.take();
            events.extend(pending.map(|pending| back(&frame.written, record.place, pending, false)));
        }
        frame.left = 0;
        self.remove(index);
    }

    /// Recalls a tensor: from the peer, or if its frame was not sent, at once with all tensors of the frame.
    fn revoke<W>(&mut self, number: u64, events: &mut VecDeque<Event<W, D>>) -> Option<Control> {
        let (index, place) = self.find(number)?;
        let frame = &self.frames[index];
        let Record { place, pending: Some(_) } = frame.records[place] else { return None };
        if index >= self.frames.len() - self.unsent {
            self.give_back(index, events);
            return None;
        }
        let key = frame.written.records().at(place).ok()?.key;
        Some(Control::AheadRevoke { number, ends: frame.ends, key: String::from_utf8_lossy(key).into() })
    }

    fn key_of(&self, number: u64) -> Option<String> {
        let (index, place) = self.find(number)?;
        let frame = &self.frames[index];
        let Record { place, pending: Some(_) } = frame.records[place] else { return None };
        let key = frame.written.records().at(place).ok()?.key;
        Some(String::from_utf8_lossy(key).into())
    }
}

/// Reports that `count` tensors of the same pending send were taken.
#[inline]
fn tell_taken<W, D>(
    taken: Option<(D, u32)>,
    sink: &mut Option<&mut dyn Sink<W, D>>,
    events: &mut VecDeque<Event<W, D>>,
) {
    match (taken, sink) {
        (Some((pending, count)), Some(sink)) => sink.taken_ahead(pending, count),
        (Some((pending, count)), None) => events.push_back(Event::TakenAhead { pending, count }),
        (None, _) => {}
    }
}

/// A tensor that no recv has taken, read from its frame.
#[cold]
fn back<W, D>(written: &AheadRecordsBuf, place: RecordPlace, pending: D, is_duplicate: bool) -> Event<W, D> {
    let AheadRecord { key, meta, payload } = written.records().at(place).expect("written here");
    let (key, meta) = (String::from_utf8_lossy(key).into(), Meta::from_slice(meta.unwrap_or_default()));
    Event::BackFromAhead(Box::new(AheadBack { pending, is_duplicate, key, meta, buffer: Buffer::copy_of(payload) }))
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// Starts sending small tensors before they are requested: from `producer`, by its index in this side's list, to
    /// `consumer`, by the owner's number; with `alone`, each in a frame of its own. `None` if they have to wait for their
    /// requests: there is no link, or the peer does not serve the task.
    #[inline]
    pub fn send_ahead(
        &mut self,
        (producer, consumer): (u16, u32),
        step: i64,
        alone: bool,
    ) -> Option<SendingAhead<'_, D>> {
        let attached = self.attached.as_ref().filter(|_| self.going_away.is_none())?;
        let ends = Ends { step, producer, consumer: attached.roster.place_of(consumer)? };
        let bytes_max = AHEAD_TENSOR_BYTES.min(attached.tensor_bytes_max.try_into().unwrap_or(usize::MAX));
        Some(SendingAhead { sent: &mut self.ahead, ends, alone, bytes_max })
    }

    /// Recalls a tensor that was [sent ahead](Self::send_ahead), unless a recv has it or it is already done with.
    pub fn revoke_ahead(&mut self, number: u64) {
        if let Some(control) = self.ahead.revoke(number, &mut self.events)
            && self.attached.is_some()
        {
            self.control.push(control);
        }
    }

    /// Tells the peer's task that a tensor waits to be requested. If a peer reads so little that the queue for such messages is
    /// full, it is not told: it requests the tensor anyway, a little later.
    pub fn hold(&mut self, (producer, consumer): (u16, u32), step: i64, key: &str) {
        if let Some(attached) = &self.attached
            && let Some(consumer) = attached.roster.place_of(consumer)
            && self.control.has_room()
        {
            self.control.push(Control::AheadHeld { ends: Ends { step, producer, consumer }, key: key.into() });
        }
    }

    /// `count` tensors from `first` on, which came ahead and were kept at this total cost, are done with.
    pub fn release_ahead(&mut self, (first, count): (u64, u32), cost: usize, fate: Fate) {
        debug_assert!(self.kept_ahead >= cost, "the peer would lose its link for what it may do");
        self.kept_ahead -= cost;
        self.consumer.release_ahead(first, count, fate);
    }

    /// Tensors that came ahead are kept, at this total cost.
    ///
    /// # Errors
    /// The peer has sent more than it may.
    #[inline]
    pub(super) fn keep_ahead(&mut self, cost: usize) -> Result<(), WireError> {
        self.kept_ahead += cost;
        if self.kept_ahead > AHEAD_BYTES_MAX {
            return Err(WireError::BadValue { what: "bytes of tensors sent ahead", found: self.kept_ahead as u64 });
        }
        Ok(())
    }

    /// The key of a tensor that was sent ahead and is not done with.
    pub fn key_ahead(&self, number: u64) -> Option<String> {
        self.ahead.key_of(number)
    }

    /// Checks what must hold between any two calls, if the owner keeps tensors that came ahead at a total cost of `kept`.
    ///
    /// # Errors
    /// The disagreement.
    pub fn check_ahead(&self, kept: usize) -> Result<(), String> {
        if self.kept_ahead != kept {
            return Err(format!("tensors kept at a cost of {kept} have {} of their peer's credit", self.kept_ahead));
        }
        self.ahead.check()
    }
}

impl<D> SentAhead<D> {
    fn check(&self) -> Result<(), String> {
        let (mut bytes, mut next) = (0, 0);
        for frame in &self.frames {
            let left = frame.records.iter().filter(|record| record.pending.is_some()).count();
            if left != frame.left || frame.left == 0 && frame.bytes > 0 {
                return Err(format!(
                    "{left} tensors are left of frame {}, and {} are counted",
                    frame.first, frame.left
                ));
            }
            if frame.first < next {
                return Err(format!("tensor {} would be found as another", frame.first));
            }
            (bytes, next) = (bytes + frame.bytes, frame.end());
        }
        if bytes != self.bytes || bytes > AHEAD_BYTES_MAX || next > self.next || self.unsent > self.frames.len() {
            let Self { bytes: counted, next: own, unsent, .. } = self;
            return Err(format!(
                "frames of {bytes} bytes up to {next}, counted {counted} up to {own}, {unsent} unsent"
            ));
        }
        Ok(())
    }
}
