//! One connected queue pair as a link.
//!
//! Frames travel in messages (`message.rs`), each with all frames that a turn has queued. Payloads over 8 KiB travel
//! separately, straight into their destination: written by the producer to the consumer's address, or read by the consumer
//! from the producer's address (`outgoing.rs`, `incoming.rs`). The TCP connection of the handshake stays open, so that the
//! exit of the peer's process is noticed immediately.
//!
//! Belongs to its shard; bounded by `limits.rs` and by the credit that both sides grant each other.
#![allow(unsafe_code)]

mod incoming;
mod outgoing;
mod places;
mod queue;
mod rx;
#[cfg(test)]
mod tests;
mod tools;
mod tx;

use std::cell::Cell;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::Instant;

use sealane_runtime::Reacher;
use socket2::Socket;

use super::credits::Credits;
use super::device::{QueuePair, Status};
use super::message::{BadMessage, Part};
use super::port::{Port, State};
use super::provider::KIND;
use super::windows::Windows;
use crate::arena::Handle;
use crate::error::LinkError;
use crate::link::{Landing, Link, LinkKind, Receiver, Traits};
use crate::outbox::{Outbox, Owner};
use crate::payload::Payload;
use crate::wire::WireError;

use incoming::Incoming;
use outgoing::Outgoing;
use places::Places;
use queue::{Queue, Then};
use tools::Tools;

/// Parts other than frames that wait for a message; all are short.
type ToSay = VecDeque<Part<'static>>;

/// A connected queue pair, and all that goes with it.
pub(super) struct Connected {
    pub(super) link: Handle,
    pub(super) queue_pair: QueuePair,
    pub(super) credits: Credits,
}

pub(super) struct VerbsLink {
    port: Rc<Port>,
    peer: Box<str>,
    socket: Socket,
    /// The port's registrations of device memory are made under this.
    reacher: Reacher,
    /// The port has something for this link.
    has_news: Rc<Cell<bool>>,
    /// The socket is readable: most likely the peer has closed it.
    look_at_socket: bool,
    side: Side,
    /// The queue pair was destroyed.
    is_down: bool,
    /// Something has been received on this link.
    has_carried: bool,
    /// The port knows of the link's failure.
    has_failed: bool,
}

/// The part of a link that it does not share with others.
struct Side {
    link: Handle,
    queue_pair: QueuePair,
    /// Most bytes of a message that both sides accept.
    message_bytes: usize,
    credits: Credits,
    queue: Queue,
    outgoing: Outgoing,
    incoming: Incoming,
    places: Places,
    windows: Windows,
    to_say: ToSay,
    /// Completed work requests; kept to reuse its memory.
    done: Vec<Then>,
    /// Payloads to return to the outbox.
    returned: Vec<(Owner, Payload)>,
    /// Fully arrived payloads, for the receiver.
    landed: Vec<Landing>,
    /// Payload bytes that this side has read since it last reported how many it had received.
    read_bytes: usize,
    /// Bytes of an incomplete frame.
    partial: Vec<u8>,
    /// The payload that the next part begins or continues with.
    current: Option<Landing>,
}

impl VerbsLink {
    pub(super) fn new(
        port: Rc<Port>,
        peer: Box<str>,
        socket: Socket,
        connected: Connected,
        message_bytes: usize,
    ) -> Self {
        let Connected { link, queue_pair, credits } = connected;
        let has_news = port.state().entry(link).has_news.clone();
        // What came before the link was negotiated must still be handled.
        has_news.set(true);
        let (depth, reads, reacher) = {
            let state = port.state();
            let reads = state.settings.transfer == super::Transfer::Read;
            (state.device.attributes().send_depth, reads, state.regions.direct.reacher())
        };
        let side = Side {
            link,
            queue_pair,
            message_bytes,
            credits,
            queue: Queue::new(depth),
            outgoing: Outgoing::new(reads),
            incoming: Incoming::default(),
            places: Places::new(!reads),
            windows: Windows::default(),
            to_say: VecDeque::new(),
            done: Vec::new(),
            returned: Vec::new(),
            landed: Vec::new(),
            read_bytes: 0,
            partial: Vec::new(),
            current: None,
        };
        Self {
            port,
            peer,
            socket,
            reacher,
            has_news,
            look_at_socket: true,
            side,
            is_down: false,
            has_carried: false,
            has_failed: false,
        }
    }

    /// Handles the device's completions of this link's work requests.
    fn handle_completions(&mut self, state: &mut State) -> Result<(), LinkError> {
        loop {
            let entry = state.entry(self.side.link);
            let Some((id, status)) = entry.completed.pop_front() else { break };
            if status == Status::FLUSHED && entry.broken.is_some() {
                // The flush is only a consequence; `broken` has the cause.
                break;
            }
            self.side.retire(state, id, status)?;
        }
        let heard = std::mem::take(&mut state.entry(self.side.link).credits);
        if heard > 0 && !self.side.credits.heard(heard) {
            return Err(BadMessage::new("credit", heard.into()).into());
        }
        match state.entry(self.side.link).broken.clone() {
            Some(reason) => Err(LinkError::Verbs(reason)),
            None => Ok(()),
        }
    }

    /// Reads the socket, on which only the end can come. It is handled after everything that the device has yet to report.
    fn look_at_socket(&mut self) -> Result<(), LinkError> {
        let mut byte = [0];
        match (&self.socket).read(&mut byte) {
            Ok(0) if self.port.state().has_more(self.side.link) => Ok(()),
            Ok(0) => Err(LinkError::Closed),
            Ok(_) => Err(WireError::BadValue { what: "byte beside a verbs link", found: u64::from(byte[0]) }.into()),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                self.look_at_socket = false;
                Ok(())
            }
            Err(error) => Err(LinkError::io("read", &error)),
        }
    }

    /// Destroys the queue pair, and returns what the link holds of its port.
    fn tear_down(&mut self) {
        if std::mem::replace(&mut self.is_down, true) {
            return;
        }
        let state = &mut *self.port.state();
        let side = &mut self.side;
        // Windows before the queue pair that they are bound through, and before the regions that they are in.
        side.outgoing.close_all(&mut side.windows);
        side.incoming.close_all(&mut side.windows);
        side.places.close_all(&mut side.windows);
        side.windows.clear(&mut *state.device);
        state.end_link(side.link, &side.queue_pair, &side.credits, side.queue.outstanding());
        side.queue.clear(state);
        side.outgoing.clear(state, &mut side.returned);
        side.incoming.clear(state, &mut side.landed);
        side.places.clear(state, &mut side.landed);
        side.landed.extend(side.current.take());
    }

    /// Explains a failure of the link. If the peer has closed, that is why its queue pair does not answer. An error of verbs
    /// itself is recorded, so that a peer for which they never work is reached over TCP.
    fn explain(&mut self, error: LinkError) -> LinkError {
        let LinkError::Verbs(reason) = &error else { return error };
        if let Ok(0) = (&self.socket).read(&mut [0]) {
            return LinkError::Closed;
        }
        if !std::mem::replace(&mut self.has_failed, true) {
            let mut state = self.port.state();
            state.counters.links_failed += 1;
            state.failures.note(&self.peer, Instant::now(), reason);
        }
        error
    }

    fn try_transmit(&mut self, outbox: &mut Outbox, budget: usize) -> Result<usize, LinkError> {
        let port = self.port.clone();
        let state = &mut *port.state();
        self.handle_completions(state)?;
        let total = self.side.say(state, outbox, budget)?;
        for (owner, payload) in self.side.returned.drain(..) {
            outbox.give_back(owner, payload);
        }
        Ok(total)
    }

    /// Hands over the fully arrived payloads; their bytes were counted as they came. True if there were any.
    fn deliver(&mut self, receiver: &mut dyn Receiver) -> bool {
        let has_landed = !self.side.landed.is_empty();
        self.side.landed.drain(..).for_each(|landing| receiver.landed(landing));
        has_landed
    }

    fn try_receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        if !self.has_news.replace(false) && !self.look_at_socket && self.side.landed.is_empty() {
            return Ok(0);
        }
        let port = self.port.clone();
        let mut total = {
            let state = &mut *port.state();
            let handled = self.handle_completions(state);
            // What came before the end of a link counts.
            let heard = self.side.hear(state, receiver, if handled.is_ok() { budget } else { usize::MAX })?;
            if let Err(error) = handled {
                self.deliver(receiver);
                return Err(error);
            }
            self.side.answer(state)?;
            if !self.side.returned.is_empty() {
                // These go back through the outbox when the owner next transmits, for which it may have no other reason.
                state.mark_told(self.side.link, true);
            }
            heard
        };
        total += std::mem::take(&mut self.side.read_bytes);
        if self.deliver(receiver) {
            // A payload without bytes counts as something received.
            total = total.max(1);
        }
        if total > 0 && !self.has_carried {
            self.has_carried = true;
            port.state().failures.forget(&self.peer);
        }
        // What waits behind a push came before the end.
        if self.look_at_socket && !self.side.incoming.is_closing_push() {
            self.look_at_socket()?;
        }
        Ok(total)
    }
}

impl Side {
    /// A work request has completed, and so have all before it.
    fn retire(&mut self, state: &mut State, id: u64, status: Status) -> Result<(), LinkError> {
        if !status.is_success() {
            return Err(LinkError::Verbs(format!("a work request: {status}")));
        }
        let mut done = std::mem::take(&mut self.done);
        self.queue.retire(state, id, &mut done);
        for then in done.drain(..) {
            let Self { queue, windows, to_say, outgoing, incoming, places, returned, landed, .. } = self;
            let tools = &mut Tools { state, queue, windows, to_say };
            match then {
                Then::Nothing | Then::FreeBuffer(_) => unreachable!("the queue has done these"),
                Then::Written { transfer, bytes, is_last } => {
                    outgoing.written(tools, (transfer, bytes, is_last), returned);
                }
                Then::ClosedOut(transfer) => outgoing.closed(tools, transfer, returned),
                Then::Read { transfer, bytes } => {
                    self.read_bytes += bytes as usize;
                    incoming.read(tools, transfer, bytes, landed);
                }
                Then::ClosedIn => incoming.closed(tools, landed),
                Then::ClosedPlace(request) => places.closed(tools, request, landed),
            }
        }
        self.done = done;
        Ok(())
    }
}

impl Link for VerbsLink {
    fn kind(&self) -> LinkKind {
        KIND
    }

    fn traits(&self) -> Traits {
        Traits { aside: true, tells_of_room: true, reacher: Some(self.reacher), ..Traits::STREAM }
    }

    fn adopt(&mut self, name: Handle) {
        self.port.state().adopt(self.side.link, name);
    }

    fn descriptor_ready(&mut self) {
        self.look_at_socket = true;
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, _more_follows: bool) -> Result<usize, LinkError> {
        self.try_transmit(outbox, budget).map_err(|error| self.explain(error))
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.try_receive(receiver, budget).map_err(|error| self.explain(error))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.tear_down();
        for (owner, payload) in self.side.returned.drain(..) {
            outbox.give_back(owner, payload);
        }
        std::mem::take(&mut self.side.landed)
    }
}

impl Drop for VerbsLink {
    fn drop(&mut self) {
        self.tear_down();
    }
}
