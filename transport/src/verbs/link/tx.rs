//! The sending half of a link: assembles parts and frames into messages, and posts other work requests.
#![allow(unsafe_code)]

use super::Side;
use super::queue::Then;
use super::tools::Tools;
use crate::error::LinkError;
use crate::outbox::{Front, Outbox};
use crate::verbs::device::Work;
use crate::verbs::message::{PART_BYTES, PLACE_PART_BYTES, Part, Writer};
use crate::verbs::port::State;

/// Frames go into the rest of a message only if there is at least this much room: a handful of bytes is not worth a part.
const FRAMES_ROOM_MIN: usize = PART_BYTES + 64;

impl Side {
    /// Sends all that there is, as far as room and credit allow; returns the number of bytes taken from the outbox.
    pub(super) fn say(&mut self, state: &mut State, outbox: &mut Outbox, budget: usize) -> Result<usize, LinkError> {
        let Self { queue, windows, to_say, places, landed, .. } = self;
        let tools = &mut Tools { state: &mut *state, queue, windows, to_say };
        // The order matters: a request may be given up while its place waits here to be announced, and memory must not be
        // announced after it was let go.
        let access = tools.state.access();
        for memory in outbox.unregistered().drain(..) {
            tools.state.regions.begin_direct(&mut *tools.state.device, memory, access);
        }
        for announcement in outbox.announced().drain(..) {
            places.announce(tools, announcement);
        }
        for revocation in outbox.revoked().drain(..) {
            places.revoke(tools, revocation, landed);
        }
        self.pump(state);
        let mut total = 0;
        while self.has_something(outbox) && self.credits.may_send() {
            let Some(taken) = self.say_message(state, Some(outbox), budget - total)? else { break };
            total = (total + taken).min(budget);
            if taken == 0 && self.to_say.is_empty() && !self.outgoing.streams() {
                break;
            }
        }
        // Payloads that were just begun can be written.
        self.pump(state);
        self.end_tx(state)?;
        if !self.landed.is_empty() {
            // The owner must come and take it, though no completion reports it.
            state.mark_told(self.link, false);
        }
        Ok(total)
    }

    fn has_something(&self, outbox: &Outbox) -> bool {
        !outbox.is_empty() || !self.to_say.is_empty() || self.outgoing.streams()
    }

    /// Sends what does not wait for the session: where to write, what was read, which buffers are free again.
    pub(super) fn answer(&mut self, state: &mut State) -> Result<(), LinkError> {
        self.pump(state);
        while (!self.to_say.is_empty() || self.outgoing.streams()) && self.credits.may_send() {
            if self.say_message(state, None, 0)?.is_none() {
                break;
            }
        }
        self.end_tx(state)
    }

    fn end_tx(&mut self, state: &mut State) -> Result<(), LinkError> {
        self.tell_credit(state);
        // A link that waits for credit is told when some comes, also while the session accepts nothing.
        state.entry(self.link).wants_credit = !self.credits.may_send();
        self.flush(state)
    }

    fn pump(&mut self, state: &mut State) {
        let Self { queue, windows, to_say, outgoing, incoming, places, credits, landed, .. } = self;
        let tools = &mut Tools { state, queue, windows, to_say };
        places.pump(tools, landed);
        incoming.pump(tools);
        outgoing.pump(tools, credits);
        let is_left = places.has_unposted() || incoming.has_unposted() || outgoing.has_unposted();
        if is_left && !tools.has_room(1) {
            // Others may have taken the room: no completion of this link reports when there is some.
            state.wait(self.link);
        }
    }

    /// Returns buffers in a message of its own if no other message will do so soon.
    fn tell_credit(&mut self, state: &mut State) {
        if self.credits.must_tell() && !self.say_nothing(state) {
            state.wait(self.link);
        }
    }

    fn say_nothing(&mut self, state: &mut State) -> bool {
        if !self.queue.has_room(state, 1) {
            return false;
        }
        let Some(buffer) = state.take_send_buffer() else { return false };
        let credits = self.credits.tell();
        let bytes = Writer::new(state.send_buffer(buffer)).finish(credits);
        self.send(state, buffer, bytes);
        true
    }

    /// Sends one message; returns the number of bytes that it took from the outbox. `None` if there is no room for a message:
    /// the link is told when there is.
    fn say_message(
        &mut self,
        state: &mut State,
        mut outbox: Option<&mut Outbox>,
        budget: usize,
    ) -> Result<Option<usize>, LinkError> {
        // Room for a message, and for a window that its last part may need.
        let buffer = if self.queue.has_room(state, 2) { state.take_send_buffer() } else { None };
        let Some(buffer) = buffer else {
            state.wait(self.link);
            return Ok(None);
        };
        let mut memory = state.lift_send_buffer(buffer);
        let mut writer = Writer::new(&mut memory[..self.message_bytes]);
        let mut total = 0;
        while writer.room() >= PLACE_PART_BYTES
            && let Some(part) = self.to_say.pop_front()
        {
            writer.push(part);
        }
        while let Some(outbox) = &mut outbox
            && total < budget
            && let Some(front) = outbox.front()
        {
            match front {
                Front::Staged(bytes) => {
                    if writer.room() < FRAMES_ROOM_MIN {
                        break;
                    }
                    let count = bytes.len().min(writer.room() - PART_BYTES).min(budget - total);
                    writer.push(Part::Frames(&bytes[..count]));
                    outbox.advance(count);
                    total += count;
                }
                Front::Payload => {
                    if writer.room() < PLACE_PART_BYTES || !self.outgoing.has_room() || !self.queue.has_room(state, 2) {
                        break;
                    }
                    let Some(aside) = outbox.take_aside() else { break };
                    let bytes = aside.payload.len();
                    let place = self.places.find(aside.request.to_bits());
                    let Self { queue, windows, to_say, outgoing, .. } = self;
                    let tools = &mut Tools { state: &mut *state, queue, windows, to_say };
                    let (transfer, how) = outgoing.begin(tools, aside, place);
                    writer.push(Part::Payload { transfer, bytes: bytes as u64, how });
                    total += bytes;
                }
            }
        }
        let mut streamed = Ok(());
        if self.outgoing.streams() {
            let Self { queue, windows, to_say, outgoing, returned, .. } = self;
            let tools = &mut Tools { state: &mut *state, queue, windows, to_say };
            streamed = outgoing.stream(tools, &mut writer, returned);
        }
        let is_empty = writer.is_empty();
        let bytes = writer.finish(if is_empty { 0 } else { self.credits.tell() });
        state.put_down_send_buffer(buffer, memory);
        if is_empty || streamed.is_err() {
            state.free_send_buffer(buffer);
            streamed.map_err(|error| LinkError::Verbs(error.to_string()))?;
            return Ok(None);
        }
        self.send(state, buffer, bytes);
        Ok(Some(total))
    }

    /// Queues a message.
    #[inline]
    fn send(&mut self, state: &mut State, buffer: u32, bytes: usize) {
        self.credits.sent();
        let piece = state.message_piece(buffer, bytes);
        if bytes as u32 <= self.queue_pair.inline_bytes {
            let work = Work::SendInline { address: piece.address, bytes: piece.bytes };
            self.queue.push_inline(state, work, buffer);
        } else {
            self.queue.push(state, Work::Send(piece), Then::FreeBuffer(buffer));
        }
    }

    fn flush(&mut self, state: &mut State) -> Result<(), LinkError> {
        // SAFETY: messages lie in buffers that are used again only when they have left; payloads and places are kept, and
        // their regions with them, until their work requests are done or the queue pair is destroyed.
        let posted = unsafe { self.queue.flush(state, &self.queue_pair) };
        posted.map_err(|error| LinkError::Verbs(error.to_string()))
    }
}
