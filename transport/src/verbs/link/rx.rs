//! The receiving half of a link: parses messages, passes frames to the session and payloads to their places.

use sealane_runtime::MemoryKind;

use super::Side;
use super::places::TheirPlace;
use super::tools::Tools;
use crate::error::LinkError;
use crate::limits::FRAME_BODY_BYTES_MAX;
use crate::link::Receiver;
use crate::verbs::limits::{MESSAGE_BYTES, TO_SAY_MAX};
use crate::verbs::message::{self, BadMessage, Part};
use crate::verbs::port::{Arrival, State};
use crate::wire::{FRAME_HEADER_BYTES, WireError};

/// The largest incomplete frame, with a message behind it.
const PARTIAL_BYTES_MAX: usize = FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX + MESSAGE_BYTES;

impl From<BadMessage> for LinkError {
    fn from(bad: BadMessage) -> Self {
        WireError::BadValue { what: bad.what, found: bad.found }.into()
    }
}

impl Side {
    /// Takes in what has come, at most about `budget` bytes; returns how many.
    pub(super) fn hear(
        &mut self,
        state: &mut State,
        receiver: &mut dyn Receiver,
        budget: usize,
    ) -> Result<usize, LinkError> {
        let mut total = 0;
        while total < budget {
            let Some(arrival) = state.entry(self.link).arrivals.pop_front() else { break };
            // Pushes arrive in order, and the next one may be in this message.
            if matches!(arrival, Arrival::Message { .. }) {
                if self.incoming.is_closing_push() {
                    state.entry(self.link).arrivals.push_front(arrival);
                    break;
                }
                self.landed.drain(..).for_each(|landing| receiver.landed(landing));
            }
            match arrival {
                Arrival::Word(word) => {
                    let Self { queue, windows, to_say, incoming, landed, .. } = self;
                    let tools = &mut Tools { state: &mut *state, queue, windows, to_say };
                    total += incoming.word(tools, word, landed)?;
                }
                Arrival::Message { buffer, bytes } => {
                    let memory = state.lift_receive_buffer(buffer);
                    let heard = self.hear_message(state, receiver, &memory[..bytes.min(MESSAGE_BYTES)]);
                    state.put_down_receive_buffer(buffer, memory);
                    state.refill(buffer);
                    heard?;
                    total += bytes;
                }
            }
            self.credits.refilled(&mut state.buffers);
            if self.credits.is_overdrawn() {
                return Err(
                    BadMessage::new("place in the window, beyond all credit,", self.credits.window().into()).into()
                );
            }
        }
        if !state.entry(self.link).arrivals.is_empty() {
            state.entry(self.link).has_news.set(true);
        }
        state.post_refills().map_err(|error| LinkError::Verbs(error.to_string()))?;
        Ok(total)
    }

    fn hear_message(
        &mut self,
        state: &mut State,
        receiver: &mut dyn Receiver,
        message: &[u8],
    ) -> Result<(), LinkError> {
        // Its credit was taken when it arrived.
        let (_, mut parts) = message::open(message)?;
        while let Some(part) = parts.next()? {
            if let Part::Frames(bytes) = part {
                self.hear_frames(receiver, bytes)?;
                continue;
            }
            let Self { queue, windows, to_say, outgoing, incoming, places, returned, landed, current, .. } = self;
            let tools = &mut Tools { state: &mut *state, queue, windows, to_say };
            match part {
                Part::Frames(_) => unreachable!("heard above"),
                Part::Payload { transfer, bytes, how } => {
                    let wrong = BadMessage::new("payload without a frame", u64::from(transfer));
                    let landing = current.take().ok_or(wrong)?;
                    incoming.begin(tools, (transfer, bytes, how), landing, places, landed)?;
                }
                Part::Clear { transfer, answer } => outgoing.answered(tools, transfer, answer, returned)?,
                Part::Done { transfer } => outgoing.done(tools, transfer, returned)?,
                Part::Bytes { transfer, bytes } => incoming.bytes(tools, transfer, bytes, landed)?,
                Part::Place { request, bytes, place } => places.learn(request, TheirPlace { remote: place, bytes }),
                Part::Revoke { request, reply } => places.forget(tools, request, reply, outgoing),
                Part::Revoked { request } => places.revoked(request)?,
            }
            if to_say.len() > TO_SAY_MAX {
                return Err(BadMessage::new("part, with answers that wait to leave", to_say.len() as u64).into());
            }
        }
        Ok(())
    }

    /// Handles the next bytes of the stream of frames, or of a payload among them.
    #[inline]
    fn hear_frames(&mut self, receiver: &mut dyn Receiver, mut bytes: &[u8]) -> Result<(), LinkError> {
        if let Some(mut landing) = self.current.take() {
            if matches!(landing.memory(), Some(MemoryKind::Device(_))) {
                // Kept so that it is returned later: the peer may be writing there.
                self.current = Some(landing);
                return Err(
                    BadMessage::new("byte of a payload that travels beside the frames", bytes.len() as u64).into()
                );
            }
            let count = landing.take(bytes);
            bytes = &bytes[count..];
            if !landing.is_complete() {
                self.current = Some(landing);
                return Ok(());
            }
            receiver.landed(landing);
        }
        if bytes.is_empty() {
            return Ok(());
        }
        if self.partial.is_empty() {
            let frames = receiver.frames(bytes)?;
            self.current = frames.landing;
            self.partial.extend_from_slice(&bytes[frames.consumed..]);
        } else {
            self.partial.extend_from_slice(bytes);
            let frames = receiver.frames(&self.partial)?;
            self.current = frames.landing;
            self.partial.drain(..frames.consumed);
        }
        debug_assert!(self.partial.len() <= PARTIAL_BYTES_MAX);
        Ok(())
    }
}
