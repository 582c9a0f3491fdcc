//! Executes and acknowledges requests: in order for each queue pair, in random order among queue pairs.
//!
//! A request takes two steps, each after a delay: its work is done, which the peer sees, and it is acknowledged, which its
//! sender sees. So the peer's answer may come before the completion of what it answers, as on a real network.

use super::fault::{RequestKind, Strike, struck_by};
use super::network::Network;
use super::queue_pair::{Outstanding, State};
use crate::verbs::device::{AsyncEvent, Completion, Grant, Piece, Status, Work};

/// Where a connection currently leads.
enum Path {
    /// To this queue pair.
    Open(Peer),
    /// To a port that is down.
    Down,
    /// Nowhere: the other end is gone, in error, not connected yet, or connected to something else.
    Gone,
}

#[derive(Clone, Copy)]
struct Peer {
    number: u32,
    context: u32,
}

/// The contents of a message.
#[derive(Clone, Copy)]
enum Payload<'a> {
    Registered(Piece),
    Inline(&'a [u8]),
}

impl Network {
    /// Does everything that is due.
    pub(super) fn progress(&mut self) {
        if self.is_paused {
            return;
        }
        self.drain();
        loop {
            let mut order: Vec<u32> = self.busy.iter().copied().collect();
            self.random.shuffle(&mut order);
            let advanced = order.into_iter().filter(|&number| self.advance(number, false)).count();
            if advanced == 0 {
                return;
            }
        }
    }

    /// Takes one step of one queue pair, due or not. False if no step is possible.
    pub(super) fn step(&mut self) -> bool {
        let mut order: Vec<u32> = self.busy.iter().copied().collect();
        self.random.shuffle(&mut order);
        order.into_iter().any(|number| self.advance(number, true))
    }

    /// The time at which something delayed from now on happens.
    pub(super) fn delayed(&mut self, context: u32) -> u64 {
        match self.contexts[&context].settings.delay_polls_max {
            0 => self.clock,
            most => self.clock + self.random.below(u64::from(most) + 1),
        }
    }

    /// Takes one step of a queue pair if it is due, or at once if `urgent`.
    fn advance(&mut self, number: u32, urgent: bool) -> bool {
        let Some(queue_pair) = self.queue_pairs.get(&number) else {
            return false;
        };
        let sleeps = self.contexts[&queue_pair.context].completions.is_armed();
        let is_due = |request: &Outstanding| urgent || sleeps || request.due <= self.clock;
        if queue_pair.carried > 0 && is_due(&queue_pair.pending[0]) {
            self.acknowledge(number, sleeps)
        } else if queue_pair.pending.get(queue_pair.carried).is_some_and(is_due) {
            self.carry_out(number, sleeps)
        } else {
            false
        }
    }

    fn carry_out(&mut self, number: u32, sleeps: bool) -> bool {
        let queue_pair = &self.queue_pairs[&number];
        let (at, context) = (queue_pair.carried, queue_pair.context);
        let work = queue_pair.pending[at].work;
        let kind = RequestKind::of(&work);
        if kind.travels() && matches!(self.path(number), Path::Down) {
            return self.try_again(number, at, sleeps);
        }
        let strike = self.strike(context, kind);
        if let Some(Strike { status, carried_out: false, .. }) = strike {
            self.fail(number, Some((at, status)));
            return true;
        }
        if kind == RequestKind::Send
            && let Path::Open(peer) = self.path(number)
        {
            let adapter = self.contexts[&context].adapter;
            if self.adapters[adapter].faults.breaks_off()
                && let Ok((id, _)) = self.take_buffer(peer)
            {
                self.queue_pairs.get_mut(&peer.number).expect("the path leads to it").partial = Some(id);
                self.fail(number, Some((at, Status::RETRIES_EXCEEDED)));
                return true;
            }
        }
        let inline = std::mem::take(&mut self.request(number, at).inline);
        match self.perform(number, &work, &inline) {
            Ok(bytes) => {
                self.counters(context).carry_out(kind, bytes);
                let due = self.delayed(context);
                let request = self.request(number, at);
                (request.due, request.deadline) = (due, None);
                request.lost = strike.map(|strike| strike.status);
                self.queue_pairs.get_mut(&number).expect("it has requests").carried += 1;
            }
            Err(status) => self.fail(number, Some((at, status))),
        }
        true
    }

    fn acknowledge(&mut self, number: u32, sleeps: bool) -> bool {
        let request = &self.queue_pairs[&number].pending[0];
        let mut lost = request.lost;
        if RequestKind::of(&request.work).travels() {
            match self.path(number) {
                Path::Open(_) => {}
                Path::Down => return self.try_again(number, 0, sleeps),
                Path::Gone => lost = lost.or(Some(Status::RETRIES_EXCEEDED)),
            }
        }
        if let Some(status) = lost {
            self.fail(number, Some((0, status)));
            return true;
        }
        let queue_pair = self.queue_pairs.get_mut(&number).expect("it has requests");
        let request = queue_pair.pending.pop_front().expect("looked at above");
        queue_pair.carried -= 1;
        if queue_pair.pending.is_empty() {
            self.busy.remove(&number);
        }
        self.complete(number, &request, Status::SUCCESS);
        true
    }

    /// A request met a port that is down. True if its retries are used up.
    fn try_again(&mut self, number: u32, at: usize, sleeps: bool) -> bool {
        let context = self.queue_pairs[&number].context;
        let last = self.clock + u64::from(self.contexts[&context].settings.retry_polls);
        let clock = self.clock;
        let deadline = *self.request(number, at).deadline.get_or_insert(last);
        let is_over = sleeps || clock >= deadline;
        if is_over {
            self.fail(number, Some((at, Status::RETRIES_EXCEEDED)));
        }
        is_over
    }

    fn request(&mut self, number: u32, at: usize) -> &mut Outstanding {
        &mut self.queue_pairs.get_mut(&number).expect("it has requests").pending[at]
    }

    /// The injected fault for the next request of a device, if any.
    fn strike(&mut self, context: u32, kind: RequestKind) -> Option<Strike> {
        let adapter = self.contexts[&context].adapter;
        let strike = self.adapters[adapter].faults.strikes(kind);
        strike.or_else(|| struck_by(&self.climate, kind, &mut self.random))
    }

    /// Puts the queue pair into error. Requests before the culprit were carried out, the culprit ends with its status, and all
    /// behind it are flushed; without a culprit, all are flushed.
    pub(super) fn fail(&mut self, number: u32, culprit: Option<(usize, Status)>) {
        self.busy.remove(&number);
        let queue_pair = self.queue_pairs.get_mut(&number).expect("a queue pair that fails is there");
        queue_pair.state = State::Failed;
        queue_pair.carried = 0;
        let pending = std::mem::take(&mut queue_pair.pending);
        let mut culprit_at = culprit.map(|(at, _)| at);
        for (at, request) in pending.iter().enumerate() {
            let status = match (culprit_at, culprit) {
                (Some(first), _) if at < first && request.lost.is_some() => {
                    // Its acknowledgement is lost as well, and earlier.
                    culprit_at = Some(at);
                    request.lost.expect("just looked at")
                }
                (Some(first), _) if at < first => Status::SUCCESS,
                (Some(first), Some((_, status))) if at == first => status,
                _ => Status::FLUSHED,
            };
            self.complete(number, request, status);
        }
    }

    fn complete(&mut self, number: u32, request: &Outstanding, status: Status) {
        let queue_pair = self.queue_pairs.get_mut(&number).expect("a queue pair that completes is there");
        let context = queue_pair.context;
        queue_pair.silent += 1;
        if request.is_signaled || !status.is_success() {
            let frees = std::mem::take(&mut queue_pair.silent);
            let completion = Completion { id: request.id, status, queue_pair: number, bytes: 0, word: None };
            self.tell_completion(context, completion, frees);
        }
        if !status.is_success() {
            self.counters(context).failed += 1;
        }
    }

    pub(super) fn tell_completion(&mut self, context: u32, completion: Completion, frees: u32) {
        let found = self.context(context);
        if !found.completions.push(completion, frees) {
            if !std::mem::replace(&mut found.has_overrun, true) {
                found.events.push(AsyncEvent::CompletionQueueOverrun);
            }
            self.counters(context).completion_overruns += 1;
        }
    }

    fn path(&self, number: u32) -> Path {
        let near = &self.queue_pairs[&number];
        let here = &self.contexts[&near.context];
        let Some(mine) = near.connection() else {
            return Path::Gone;
        };
        if self.adapters[here.adapter].is_down {
            return Path::Down;
        }
        let Some(far) = self.queue_pairs.get(&mine.peer.number) else {
            return Path::Gone;
        };
        let there = &self.contexts[&far.context];
        let Some(theirs) = far.connection() else {
            return Path::Gone;
        };
        let knows_each_other = theirs.peer.number == number
            && theirs.peer.first_packet == mine.first_packet
            && mine.peer.first_packet == theirs.first_packet
            && mine.mtu == theirs.mtu
            && mine.peer.gid == self.adapters[there.adapter].gid
            && theirs.peer.gid == self.adapters[here.adapter].gid;
        if !knows_each_other {
            Path::Gone
        } else if self.adapters[there.adapter].is_down {
            Path::Down
        } else {
            Path::Open(Peer { number: mine.peer.number, context: far.context })
        }
    }

    /// The peer of a queue pair, for a request that involves it.
    fn peer(&self, number: u32) -> Result<Peer, Status> {
        match self.path(number) {
            Path::Open(peer) => Ok(peer),
            Path::Down | Path::Gone => Err(Status::RETRIES_EXCEEDED),
        }
    }

    /// Does the work of a request; returns its bytes.
    fn perform(&mut self, number: u32, work: &Work, inline: &[u8]) -> Result<u32, Status> {
        let context = self.queue_pairs[&number].context;
        match *work {
            Work::Send(piece) => {
                self.check_local(context, piece)?;
                self.send(context, Payload::Registered(piece), self.peer(number)?)?;
                Ok(piece.bytes)
            }
            Work::SendInline { bytes, .. } => {
                self.send(context, Payload::Inline(inline), self.peer(number)?)?;
                Ok(bytes)
            }
            Work::Write { from, to, word } => {
                self.check_local(context, from)?;
                let peer = self.peer(number)?;
                let source = self.contexts[&context].protection.local(from)?;
                let there = &self.contexts[&peer.context];
                let target = there.protection.remote(peer.number, to, from.bytes, Grant::Write)?;
                let is_ready = word.is_none() || !there.receives.is_empty();
                if is_ready {
                    target.copy_from(source);
                }
                if word.is_some() {
                    let (id, _) = self.take_buffer(peer)?;
                    let struck = self.strike(peer.context, RequestKind::Receive);
                    let outcome = struck.map_or(Ok(()), |strike| Err((strike.status, Status::REMOTE_OPERATION)));
                    self.received(peer, id, outcome, from.bytes, word)?;
                }
                Ok(from.bytes)
            }
            Work::Read { into, from } => {
                self.check_local(context, into)?;
                let peer = self.peer(number)?;
                self.check_reads(number, peer)?;
                let target = self.contexts[&context].protection.local(into)?;
                let there = &self.contexts[&peer.context].protection;
                target.copy_from(there.remote(peer.number, from, into.bytes, Grant::Read)?);
                Ok(into.bytes)
            }
            Work::Bind { window, rkey, region, address, bytes, grant } => {
                self.context(context).protection.bind(number, window, rkey, (region, address, bytes), grant)?;
                Ok(0)
            }
            Work::Invalidate { rkey } => {
                self.context(context).protection.invalidate(number, rkey)?;
                Ok(0)
            }
        }
    }

    fn check_local(&self, context: u32, piece: Piece) -> Result<(), Status> {
        let here = &self.contexts[&context];
        if piece.bytes > here.settings.work_bytes_max {
            return Err(Status::LOCAL_LENGTH);
        }
        here.protection.local(piece).map(|_| ())
    }

    /// Checks the reads that both ends agreed on: none, or more than the peer supports, is a mistake of the handshake.
    fn check_reads(&self, number: u32, peer: Peer) -> Result<(), Status> {
        let near = &self.queue_pairs[&number];
        let told = near.connection().map_or(0, |connection| connection.peer.reads);
        if told.min(self.contexts[&near.context].settings.reads) == 0 {
            Err(Status::LOCAL_OPERATION)
        } else if told > self.contexts[&peer.context].settings.reads {
            Err(Status::REMOTE_REJECTED)
        } else {
            Ok(())
        }
    }

    /// Puts a message into the peer's oldest buffer.
    fn send(&mut self, context: u32, payload: Payload<'_>, peer: Peer) -> Result<(), Status> {
        let bytes = match payload {
            Payload::Registered(piece) => piece.bytes,
            Payload::Inline(inline) => inline.len() as u32,
        };
        let (id, buffer) = self.take_buffer(peer)?;
        let outcome = match self.strike(peer.context, RequestKind::Receive) {
            Some(strike) => Err((strike.status, Status::REMOTE_OPERATION)),
            None if bytes > buffer.bytes => Err((Status::LOCAL_LENGTH, Status::REMOTE_REJECTED)),
            None => match self.contexts[&peer.context].protection.local(buffer) {
                Ok(target) => match payload {
                    Payload::Registered(piece) => {
                        target.copy_from(self.contexts[&context].protection.local(piece)?);
                        Ok(())
                    }
                    Payload::Inline(inline) => {
                        target.fill_from(inline);
                        Ok(())
                    }
                },
                Err(status) => Err((status, Status::REMOTE_OPERATION)),
            },
        };
        self.received(peer, id, outcome, bytes, None)
    }

    fn take_buffer(&mut self, peer: Peer) -> Result<(u64, Piece), Status> {
        let buffer = self.context(peer.context).receives.pop_front();
        buffer.ok_or_else(|| {
            self.counters(peer.context).receiver_not_ready += 1;
            Status::RECEIVER_NOT_READY
        })
    }

    /// Reports the result to the receiver, and to the sender if it failed: the first status is for the receiver, the second for
    /// the sender.
    fn received(
        &mut self,
        peer: Peer,
        id: u64,
        outcome: Result<(), (Status, Status)>,
        bytes: u32,
        word: Option<u32>,
    ) -> Result<(), Status> {
        let queue_pair = peer.number;
        match outcome {
            Ok(()) => {
                let completion = Completion { id, status: Status::SUCCESS, queue_pair, bytes, word };
                self.tell_completion(peer.context, completion, 0);
                self.counters(peer.context).carry_out(RequestKind::Receive, bytes);
                Ok(())
            }
            Err((status, for_sender)) => {
                let completion = Completion { id, status, queue_pair, bytes: 0, word: None };
                self.tell_completion(peer.context, completion, 0);
                self.fail(peer.number, None);
                Err(for_sender)
            }
        }
    }
}
