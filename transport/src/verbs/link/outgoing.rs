//! Outgoing payloads outside the stream of frames.
//!
//! Bounded by `TRANSFERS_MAX`. Each payload is kept here until the device is done with it and the peer can no longer access
//! it.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use sealane_runtime::DeviceError;

use super::places::TheirPlace;
use super::queue::Then;
use super::tools::Tools;
use crate::outbox::{Aside, Owner};
use crate::payload::Payload;
use crate::verbs::credits::Credits;
use crate::verbs::device::{Grant, Piece, Remote, Work};
use crate::verbs::limits::{PIECE_BYTES, PIECES_AHEAD_BYTES, TRANSFERS_MAX};
use crate::verbs::message::{Answer, BadMessage, How, PART_BYTES, Part, Writer};
use crate::verbs::port::State;
use crate::verbs::regions::Use;
use crate::verbs::windows::{Opened, Windows};

struct Transfer {
    owner: Owner,
    payload: Payload,
    /// Where it is, if it is moved by address.
    address: u64,
    /// `None` if the payload goes in messages.
    used: Option<Use>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The peer was told of it, and must say where to write it.
    Asked,
    /// `posted` bytes are posted, and `written` of them were written.
    Writing { to: Remote, posted: usize, written: usize, revoked: Option<u64>, request: u64 },
    /// The peer reads it.
    Offered(Opened),
    /// The peer has read it, and must lose access to it.
    Closing(Opened),
    /// `sent` bytes went in messages.
    Streaming { sent: usize, offered: Option<Opened> },
}

pub(super) struct Outgoing {
    /// The peer reads; otherwise this side writes.
    peer_reads: bool,
    transfers: Vec<Option<Transfer>>,
    free: Vec<u16>,
    writing: VecDeque<u16>,
    streaming: VecDeque<u16>,
    closing: VecDeque<u16>,
    /// Bytes posted and not yet written.
    ahead: usize,
}

impl Outgoing {
    pub(super) fn new(peer_reads: bool) -> Self {
        Self {
            peer_reads,
            transfers: (0..TRANSFERS_MAX).map(|_| None).collect(),
            free: (0..TRANSFERS_MAX as u16).rev().collect(),
            writing: VecDeque::new(),
            streaming: VecDeque::new(),
            closing: VecDeque::new(),
            ahead: 0,
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    pub(super) fn streams(&self) -> bool {
        !self.streaming.is_empty()
    }

    /// Takes in a payload, with the place that the peer has announced for it; returns its number and how it is sent.
    ///
    /// # Panics
    /// If there is no room for it, or for a work request in the queue.
    pub(super) fn begin(&mut self, tools: &mut Tools<'_>, aside: Aside, place: Option<TheirPlace>) -> (u16, How) {
        let number = self.free.pop().expect("the caller has seen room");
        let Aside { owner, request, payload } = aside;
        let (spot, bytes) = (payload.spot(), payload.len());
        let address = spot.address;
        // SAFETY: the payload keeps the memory, and stays here until the use is released.
        let used = unsafe { tools.lend(&spot) };
        let streamed = (None, How::Streamed, Step::Streaming { sent: 0, offered: None });
        let (used, how, step) = match used {
            Err(error) => {
                tracing::debug!(%error, bytes, "a payload goes by copy");
                streamed
            }
            Ok(used) if self.peer_reads => match tools.open(used, address, bytes, Grant::Read) {
                Ok(Some(opened)) => (Some(used), How::Offered(opened.remote), Step::Offered(opened)),
                // There are more payloads than windows, or no windows: sent by copy.
                Ok(None) | Err(_) => {
                    tools.release(used);
                    streamed
                }
            },
            Ok(used) => match place.filter(|place| place.bytes >= bytes as u64) {
                Some(TheirPlace { remote: to, .. }) => {
                    let request = request.to_bits();
                    let step = Step::Writing { to, posted: 0, written: 0, revoked: None, request };
                    (Some(used), How::Announced, step)
                }
                None => (Some(used), How::Asked, Step::Asked),
            },
        };
        tools.state.counters.payloads_streamed += u64::from(how == How::Streamed);
        match step {
            Step::Writing { .. } => self.writing.push_back(number),
            Step::Streaming { .. } => self.streaming.push_back(number),
            _ => {}
        }
        self.transfers[usize::from(number)] = Some(Transfer { owner, payload, address, used, step });
        (number, how)
    }

    fn get(&mut self, number: u16) -> Option<&mut Transfer> {
        self.transfers.get_mut(usize::from(number))?.as_mut()
    }

    /// The place of a request is revoked. True if something is on its way there; the peer is told later when nothing is any
    /// more.
    pub(super) fn revoke(&mut self, revoked_request: u64) -> bool {
        for transfer in self.transfers.iter_mut().flatten() {
            if let Step::Writing { request, revoked, .. } = &mut transfer.step
                && *request == revoked_request
                && *request != 0
            {
                *revoked = Some(revoked_request);
                return true;
            }
        }
        false
    }

    /// The peer's answer to a payload that asked where to go, or that the peer was to read.
    pub(super) fn answered(
        &mut self,
        tools: &mut Tools<'_>,
        number: u16,
        answer: Answer,
        returned: &mut Vec<(Owner, Payload)>,
    ) -> Result<(), BadMessage> {
        let wrong = BadMessage::new("transfer that is answered", u64::from(number));
        let transfer = self.get(number).ok_or(wrong)?;
        match (transfer.step, answer) {
            (Step::Asked, Answer::Write(to)) => {
                transfer.step = Step::Writing { to, posted: 0, written: 0, revoked: None, request: 0 };
                self.writing.push_back(number);
            }
            (Step::Asked, Answer::Stream) => {
                transfer.step = Step::Streaming { sent: 0, offered: None };
                tools.state.counters.payloads_streamed += 1;
                self.streaming.push_back(number);
            }
            (Step::Offered(opened), Answer::Stream) => {
                transfer.step = Step::Streaming { sent: 0, offered: Some(opened) };
                tools.state.counters.payloads_streamed += 1;
                self.streaming.push_back(number);
            }
            (Step::Asked, Answer::Drop) => self.finish(tools, number, returned),
            _ => return Err(wrong),
        }
        Ok(())
    }

    /// The peer has read a payload, or does not want it.
    pub(super) fn done(
        &mut self,
        tools: &mut Tools<'_>,
        number: u16,
        returned: &mut Vec<(Owner, Payload)>,
    ) -> Result<(), BadMessage> {
        let wrong = BadMessage::new("transfer that was read", u64::from(number));
        let transfer = self.get(number).ok_or(wrong)?;
        let Step::Offered(opened) = transfer.step else { return Err(wrong) };
        tools.state.counters.bytes_placed += transfer.payload.len() as u64;
        self.close(tools, number, opened, returned);
        Ok(())
    }

    fn close(&mut self, tools: &mut Tools<'_>, number: u16, opened: Opened, returned: &mut Vec<(Owner, Payload)>) {
        if Windows::closing(&opened).is_none() {
            return self.finish(tools, number, returned);
        }
        if let Some(transfer) = self.get(number) {
            transfer.step = Step::Closing(opened);
            self.closing.push_back(number);
        }
    }

    /// A piece was written.
    pub(super) fn written(
        &mut self,
        tools: &mut Tools<'_>,
        (number, bytes, is_last): (u16, u32, bool),
        returned: &mut Vec<(Owner, Payload)>,
    ) {
        self.ahead -= bytes as usize;
        let Some(transfer) = self.get(number) else { return };
        let Step::Writing { written, revoked, .. } = &mut transfer.step else { return };
        *written += bytes as usize;
        if !is_last {
            return;
        }
        if let Some(request) = *revoked {
            tools.say(Part::Revoked { request });
        }
        self.finish(tools, number, returned);
    }

    /// The peer can no longer read a payload.
    pub(super) fn closed(&mut self, tools: &mut Tools<'_>, number: u16, returned: &mut Vec<(Owner, Payload)>) {
        if let Some(transfer) = self.get(number)
            && let Step::Closing(opened) = transfer.step
        {
            tools.windows.closed(&opened);
            self.finish(tools, number, returned);
        }
    }

    fn finish(&mut self, tools: &mut Tools<'_>, number: u16, returned: &mut Vec<(Owner, Payload)>) {
        let Some(transfer) = self.transfers[usize::from(number)].take() else { return };
        if let Some(used) = transfer.used {
            tools.release(used);
        }
        self.free.push(number);
        returned.push((transfer.owner, transfer.payload));
    }

    /// True if work requests wait to be queued.
    pub(super) fn has_unposted(&self) -> bool {
        !self.closing.is_empty() || !self.writing.is_empty()
    }

    /// Queues the work requests that write and close.
    pub(super) fn pump(&mut self, tools: &mut Tools<'_>, credits: &mut Credits) {
        while let Some(&number) = self.closing.front()
            && tools.has_room(1)
        {
            self.closing.pop_front();
            let Some(Transfer { step: Step::Closing(opened), .. }) = self.get(number) else { continue };
            if let Some(work) = Windows::closing(opened) {
                tools.push(work, Then::ClosedOut(number));
            }
        }
        for _ in 0..self.writing.len() {
            self.write(tools, credits);
        }
    }

    /// Writes pieces of the payload whose turn it is.
    fn write(&mut self, tools: &mut Tools<'_>, credits: &mut Credits) {
        let Some(&number) = self.writing.front() else { return };
        let Some(transfer) = self.transfers[usize::from(number)].as_mut() else { return };
        let Step::Writing { to, posted, .. } = &mut transfer.step else { return };
        let bytes = transfer.payload.len();
        let lkey = transfer.used.expect("what is written is registered").region.lkey;
        while self.ahead < PIECES_AHEAD_BYTES && tools.has_room(1) {
            let piece = (bytes - *posted).min(PIECE_BYTES);
            let is_last = *posted + piece == bytes;
            if is_last && !credits.may_send() {
                break;
            }
            let from = Piece { address: transfer.address + *posted as u64, bytes: piece as u32, lkey };
            let to = Remote { address: to.address.wrapping_add(*posted as u64), rkey: to.rkey };
            let word = is_last.then_some(u32::from(number));
            let then = Then::Written { transfer: number, bytes: piece as u32, is_last };
            tools.push(Work::Write { from, to, word }, then);
            *posted += piece;
            self.ahead += piece;
            tools.state.counters.bytes_placed += piece as u64;
            if is_last {
                credits.sent();
                self.writing.pop_front();
                return;
            }
        }
        // Now it is the next one's turn.
        self.writing.rotate_left(1);
    }

    /// Puts bytes of payloads that are sent by copy into a message.
    ///
    /// # Errors
    /// They are in device memory, which cannot be copied here: the frame that announces them was already sent.
    pub(super) fn stream(
        &mut self,
        tools: &mut Tools<'_>,
        writer: &mut Writer<'_>,
        returned: &mut Vec<(Owner, Payload)>,
    ) -> Result<(), DeviceError> {
        while writer.room() > PART_BYTES
            && let Some(&number) = self.streaming.front()
        {
            let transfer = self.transfers[usize::from(number)].as_mut().expect("what streams is there");
            let Step::Streaming { sent, offered } = &mut transfer.step else { unreachable!("it streams") };
            let bytes = transfer.payload.len();
            let count = (bytes - *sent).min(writer.room() - PART_BYTES);
            match transfer.payload.host_bytes() {
                Some(bytes) => writer.push_bytes(number, bytes.range(*sent..*sent + count)),
                None => {
                    let mut copied = vec![0; count];
                    transfer.payload.read(*sent, (&mut copied).into())?;
                    writer.push_bytes(number, (&copied).into());
                }
            }
            *sent += count;
            if *sent < bytes {
                break;
            }
            let offered = *offered;
            self.streaming.pop_front();
            match offered {
                Some(opened) => self.close(tools, number, opened, returned),
                None => self.finish(tools, number, returned),
            }
        }
        Ok(())
    }

    /// The link ends: reports what was open, so that it can be closed before the payloads are returned.
    pub(super) fn close_all(&self, windows: &mut Windows) {
        for transfer in self.transfers.iter().flatten() {
            if let Step::Offered(opened) | Step::Closing(opened) | Step::Streaming { offered: Some(opened), .. } =
                &transfer.step
            {
                windows.closed(opened);
            }
        }
    }

    /// Nothing is open any more: returns every payload.
    pub(super) fn clear(&mut self, state: &mut State, returned: &mut Vec<(Owner, Payload)>) {
        for transfer in &mut self.transfers {
            let Some(transfer) = transfer.take() else { continue };
            if let Some(used) = transfer.used {
                state.regions.release(&mut *state.device, used);
            }
            returned.push((transfer.owner, transfer.payload));
        }
    }
}
