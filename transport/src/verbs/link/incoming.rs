//! Incoming payloads outside the stream of frames.
//!
//! Bounded by `TRANSFERS_MAX`. Each place is kept here until the payload is complete and the peer can no longer access it.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use super::places::Places;
use super::queue::Then;
use super::tools::Tools;
use crate::error::LinkError;
use crate::link::{Landing, LandingOf};
use crate::verbs::device::{Grant, Piece, Remote, Work};
use crate::verbs::limits::{PIECE_BYTES, PIECES_AHEAD_BYTES, TRANSFERS_MAX};
use crate::verbs::message::{Answer, BadMessage, How, Part};
use crate::verbs::port::State;
use crate::verbs::regions::Use;
use crate::verbs::windows::{Opened, Windows};

struct Transfer {
    landing: Landing,
    /// Where it goes, if it is moved by address; 0 if it is discarded.
    address: u64,
    used: Option<Use>,
    /// What the peer can access, to be closed before the payload is handed on. `None`: nothing of this side, or something
    /// opened for another purpose.
    opened: Option<Opened>,
    step: Step,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Its place must be opened, and the peer told.
    Opening,
    /// The peer writes.
    Written,
    /// This side reads: `asked` bytes were requested, `come` have come.
    Reading { from: Remote, asked: usize, come: usize },
    /// It comes in messages.
    Streamed,
}

/// A payload that has fully arrived, and that the peer must lose access to. The peer may reuse its number.
struct Closing {
    landing: Landing,
    used: Option<Use>,
    opened: Opened,
}

pub(super) struct Incoming {
    transfers: Vec<Option<Transfer>>,
    opening: VecDeque<u16>,
    reading: VecDeque<u16>,
    /// Bytes that were requested and have not come.
    ahead: usize,
    /// Oldest first; bounded by the windows that they hold.
    closing: VecDeque<Closing>,
    /// How many of these are in the send queue.
    closing_posted: usize,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            transfers: (0..TRANSFERS_MAX).map(|_| None).collect(),
            opening: VecDeque::new(),
            reading: VecDeque::new(),
            ahead: 0,
            closing: VecDeque::new(),
            closing_posted: 0,
        }
    }
}

impl Incoming {
    /// A payload begins to come.
    pub(super) fn begin(
        &mut self,
        tools: &mut Tools<'_>,
        (number, bytes, how): (u16, u64, How),
        mut landing: Landing,
        places: &mut Places,
        landed: &mut Vec<Landing>,
    ) -> Result<(), BadMessage> {
        let slot = self.transfers.get(usize::from(number));
        if !slot.is_some_and(Option::is_none) {
            landed.push(landing);
            return Err(BadMessage::new("transfer that begins", u64::from(number)));
        }
        if bytes != landing.missing() as u64 {
            landed.push(landing);
            return Err(BadMessage::new("length of a payload", bytes));
        }
        let Some(spot) = landing.spot() else {
            return self.begin_unwanted(tools, (number, how), landing, landed);
        };
        let address = spot.address;
        // However the payload comes, the place announced for it is closed when it has come.
        if let Some((used, opened)) = places.take(landing.request.to_bits(), address) {
            landing.is_closed = true;
            let step = match how {
                How::Announced => Step::Written,
                How::Asked => {
                    tools.say(Part::Clear { transfer: number, answer: Answer::Write(opened.remote) });
                    Step::Written
                }
                How::Offered(from) => {
                    self.reading.push_back(number);
                    Step::Reading { from, asked: 0, come: 0 }
                }
                How::Streamed => Step::Streamed,
            };
            let transfer = Transfer { landing, address, used: Some(used), opened: Some(opened), step };
            self.transfers[usize::from(number)] = Some(transfer);
            return Ok(());
        }
        // If its request has no place, nothing has to be closed when it has come.
        landing.is_closed = !places.has(landing.request.to_bits());
        if how == How::Announced {
            landed.push(landing);
            return Err(BadMessage::new("transfer into a place that was not announced", u64::from(number)));
        }
        if how == How::Streamed {
            let transfer = Transfer { landing, address, used: None, opened: None, step: Step::Streamed };
            self.transfers[usize::from(number)] = Some(transfer);
            return Ok(());
        }
        // SAFETY: the landing keeps the memory, and stays here until the use is released.
        let used = unsafe { tools.lend(&spot) };
        let (used, step) = match (used, how) {
            (Err(error), _) => {
                tracing::debug!(%error, bytes, "a payload comes by copy");
                tools.say(Part::Clear { transfer: number, answer: Answer::Stream });
                (None, Step::Streamed)
            }
            (Ok(used), How::Offered(from)) => {
                self.reading.push_back(number);
                (Some(used), Step::Reading { from, asked: 0, come: 0 })
            }
            (Ok(used), _) => {
                self.opening.push_back(number);
                (Some(used), Step::Opening)
            }
        };
        self.transfers[usize::from(number)] = Some(Transfer { landing, address, used, opened: None, step });
        Ok(())
    }

    /// Nobody waits for this payload any more, or there is no room for it.
    fn begin_unwanted(
        &mut self,
        tools: &mut Tools<'_>,
        (number, how): (u16, How),
        landing: Landing,
        landed: &mut Vec<Landing>,
    ) -> Result<(), BadMessage> {
        let step = match how {
            // It is written to the announced place, which is kept until the peer confirms the revocation.
            How::Announced => Step::Written,
            How::Streamed => Step::Streamed,
            How::Asked => {
                tools.say(Part::Clear { transfer: number, answer: Answer::Drop });
                landed.push(complete(landing));
                return Ok(());
            }
            How::Offered(_) => {
                tools.say(Part::Done { transfer: number });
                landed.push(complete(landing));
                return Ok(());
            }
        };
        self.transfers[usize::from(number)] = Some(Transfer { landing, address: 0, used: None, opened: None, step });
        Ok(())
    }

    fn get(&mut self, number: u16) -> Option<&mut Transfer> {
        self.transfers.get_mut(usize::from(number))?.as_mut()
    }

    /// The peer has written the whole payload; returns the number of bytes.
    pub(super) fn word(
        &mut self,
        tools: &mut Tools<'_>,
        word: u32,
        landed: &mut Vec<Landing>,
    ) -> Result<usize, BadMessage> {
        let wrong = BadMessage::new("transfer that was written", u64::from(word));
        let number = u16::try_from(word).map_err(|_| wrong)?;
        let transfer = self.get(number).filter(|transfer| transfer.step == Step::Written).ok_or(wrong)?;
        let bytes = transfer.landing.missing();
        self.finish(tools, number, landed);
        Ok(bytes)
    }

    /// Takes in bytes of a payload that comes in messages.
    pub(super) fn bytes(
        &mut self,
        tools: &mut Tools<'_>,
        number: u16,
        bytes: &[u8],
        landed: &mut Vec<Landing>,
    ) -> Result<(), LinkError> {
        let wrong = BadMessage::new("transfer that comes in messages", u64::from(number));
        let transfer = self.get(number).filter(|transfer| transfer.step == Step::Streamed).ok_or(wrong)?;
        let copied = transfer.landing.copy(bytes).map_err(|error| LinkError::Verbs(error.to_string()))?;
        if copied < bytes.len() {
            return Err(BadMessage::new("length of a payload in messages", bytes.len() as u64).into());
        }
        if transfer.landing.is_complete() {
            self.finish(tools, number, landed);
        }
        Ok(())
    }

    /// A piece was read.
    pub(super) fn read(&mut self, tools: &mut Tools<'_>, number: u16, bytes: u32, landed: &mut Vec<Landing>) {
        self.ahead -= bytes as usize;
        let Some(transfer) = self.get(number) else { return };
        let Step::Reading { come, .. } = &mut transfer.step else { return };
        *come += bytes as usize;
        if *come == transfer.landing.missing() {
            tools.say(Part::Done { transfer: number });
            self.finish(tools, number, landed);
        }
    }

    /// The peer can no longer write to the place of the payload that was first in line to be closed.
    pub(super) fn closed(&mut self, tools: &mut Tools<'_>, landed: &mut Vec<Landing>) {
        let Some(Closing { landing, used, opened }) = self.closing.pop_front() else { return };
        self.closing_posted -= 1;
        tools.windows.closed(&opened);
        end(tools, landing, used, landed);
    }

    /// A payload has fully arrived: it is handed on once the peer can no longer access it.
    fn finish(&mut self, tools: &mut Tools<'_>, number: u16, landed: &mut Vec<Landing>) {
        let Some(Transfer { landing, used, opened, .. }) = self.transfers[usize::from(number)].take() else { return };
        match opened {
            Some(opened) if Windows::closing(&opened).is_some() => {
                self.closing.push_back(Closing { landing, used, opened });
            }
            _ => end(tools, landing, used, landed),
        }
    }

    /// True if a fully arrived push waits to be handed on: what follows it in its stream must not overtake it.
    pub(super) fn is_closing_push(&self) -> bool {
        self.closing.iter().any(|closing| matches!(closing.landing.of, LandingOf::Push { .. }))
    }

    /// True if work requests wait to be queued.
    pub(super) fn has_unposted(&self) -> bool {
        self.closing.len() > self.closing_posted || !self.opening.is_empty() || !self.reading.is_empty()
    }

    /// Queues the work requests that open, read and close places.
    pub(super) fn pump(&mut self, tools: &mut Tools<'_>) {
        while let Some(Closing { opened, .. }) = self.closing.get(self.closing_posted)
            && let Some(work) = Windows::closing(opened)
            && tools.has_room(1)
        {
            tools.push(work, Then::ClosedIn);
            self.closing_posted += 1;
        }
        while let Some(&number) = self.opening.front()
            && tools.has_room(1)
        {
            if !self.open(tools, number) {
                break;
            }
            self.opening.pop_front();
        }
        while let Some(&number) = self.reading.front()
            && self.ahead < PIECES_AHEAD_BYTES
            && tools.has_room(1)
        {
            if self.ask_piece(tools, number) {
                self.reading.pop_front();
            }
        }
    }

    /// Opens the place of a payload; false if all windows are in use.
    fn open(&mut self, tools: &mut Tools<'_>, number: u16) -> bool {
        let Some(transfer) = self.transfers[usize::from(number)].as_mut() else { return true };
        let (address, length) = (transfer.address, transfer.landing.missing());
        let used = transfer.used.expect("what is opened is registered");
        let answer = match tools.open(used, address, length, Grant::Write) {
            Ok(None) => return false,
            Ok(Some(opened)) => {
                (transfer.step, transfer.opened) = (Step::Written, Some(opened));
                Answer::Write(opened.remote)
            }
            Err(error) => {
                tracing::debug!(%error, "a payload comes by copy");
                transfer.step = Step::Streamed;
                Answer::Stream
            }
        };
        tools.say(Part::Clear { transfer: number, answer });
        true
    }

    /// Requests the next piece of a payload that this side reads; true if it was the last.
    fn ask_piece(&mut self, tools: &mut Tools<'_>, number: u16) -> bool {
        let Some(transfer) = self.transfers[usize::from(number)].as_mut() else { return true };
        let Step::Reading { from, asked, .. } = &mut transfer.step else { return true };
        let bytes = transfer.landing.missing();
        let lkey = transfer.used.expect("what is read is registered").region.lkey;
        let piece = (bytes - *asked).min(PIECE_BYTES);
        let into = Piece { address: transfer.address + *asked as u64, bytes: piece as u32, lkey };
        let from = Remote { address: from.address.wrapping_add(*asked as u64), rkey: from.rkey };
        tools.push(Work::Read { into, from }, Then::Read { transfer: number, bytes: piece as u32 });
        *asked += piece;
        self.ahead += piece;
        tools.state.counters.bytes_placed += piece as u64;
        *asked == bytes
    }

    /// The link ends: reports what was open, so that it can be closed before the places are returned.
    pub(super) fn close_all(&self, windows: &mut Windows) {
        let coming = self.transfers.iter().flatten().filter_map(|transfer| transfer.opened.as_ref());
        coming.for_each(|opened| windows.closed(opened));
        self.closing.iter().for_each(|closing| windows.closed(&closing.opened));
    }

    /// Nothing is open any more: returns every place as it is.
    pub(super) fn clear(&mut self, state: &mut State, landed: &mut Vec<Landing>) {
        let coming = self.transfers.iter_mut().filter_map(|transfer| transfer.take());
        let coming = coming.map(|Transfer { landing, used, .. }| (landing, used));
        let come = self.closing.drain(..).map(|Closing { landing, used, .. }| (landing, used));
        for (landing, used) in coming.chain(come) {
            if let Some(used) = used {
                state.regions.release(&mut *state.device, used);
            }
            landed.push(landing);
        }
    }
}

/// The peer can no longer access the place.
fn end(tools: &mut Tools<'_>, landing: Landing, used: Option<Use>, landed: &mut Vec<Landing>) {
    if let Some(used) = used {
        tools.release(used);
    }
    landed.push(complete(landing));
}

/// The payload is complete, or was never meant to come.
fn complete(mut landing: Landing) -> Landing {
    landing.advance(landing.missing());
    landing
}
