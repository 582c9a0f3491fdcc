//! What passes between channels and the daemon: recvs that the daemon is asked for because their tensors are large, calls there that a tensor
//! of a channel serves, and tensors that go on through the daemon when their consumer has left. Under the attachment's lock.

use std::iter::once;

use sealane_runtime::Buffer;
use sealane_transport::{
    Code, Destination, Error, Tensor,
    channel::{Unsettled, Wanted, Why},
    shm::{NO_TIMEOUT, PayloadAt, Span, Standing, Submission},
};

use super::{
    super::{
        Held, Line, Link, State,
        aftermath::Aftermath,
        backlog::Way,
        calls::{Calls, Direction},
        link::{Peer, Unsubmitted},
        memory::{Memory, Substitute},
    },
    Lane,
    channel::{Channel, Inner},
};
use crate::clock::{Tick, timeout_ms};

impl Held<'_> {
    /// Notes a recv that the daemon was asked for: a tensor that arrives over the channel may serve it.
    pub(in crate::attachment) fn asked_daemon(&mut self, call: u32, peer: &str, (step, key): (i64, &str)) {
        let State { line: Line::Up(link), calls, aftermath, .. } = &mut **self else { return };
        let Some(index) = link.direct.index_of(peer) else { return };
        let Some(lane) = link.direct.get(index) else { return };
        let channel = lane.channel.clone();
        let mut inner = channel.lock();
        if let Some(slot) = inner.half.adopt(step, key.as_bytes(), call) {
            calls.adopt(call, lane.serial, slot);
        }
        link.serve_news(&mut inner, calls, aftermath);
        channel.finish_held(inner, &mut aftermath.wakers);
    }

    /// Ends a step of this task in all channels, as the daemon was told.
    pub(in crate::attachment) fn end_direct(&mut self, step: i64, reason: &str, is_aborted: bool) {
        let State { line: Line::Up(link), aftermath, .. } = &mut **self else { return };
        if link.direct.neighbours.is_empty() {
            return;
        }
        link.direct.end_step(step, reason, is_aborted, &mut aftermath.wakers);
    }
}

impl Link {
    /// Takes in what has arrived over all channels, and does what they owe.
    #[inline]
    pub(in crate::attachment) fn drain_lanes(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        for index in 0..self.direct.lanes.len() {
            let Some(lane) = &mut self.direct.lanes[index] else { continue };
            if lane.channel.lane.has_ring_news() {
                lane.rings.wake(lane.channel.lane.take_ring_news(), after);
            }
            if lane.channel.has_record() || lane.channel.owes() || !lane.is_told_active {
                self.serve(index, calls, after);
            }
        }
        if self.direct.retired.len() > 0 {
            self.drain_retired(calls, after);
        }
        self.settle_adopted(calls, after);
    }

    /// Serves one channel.
    fn serve(&mut self, index: usize, calls: &mut Calls, after: &mut Aftermath) {
        let Some(lane) = &mut self.direct.lanes[index] else { return };
        let channel = lane.channel.clone();
        // First: what was written before the end is read.
        let has_ended = channel.lane.has_ended();
        channel.set_owing(false);
        let mut inner = channel.lock();
        if !lane.is_told_active && channel.is_open() {
            inner.is_active = true;
            inner.half.tell_ended();
            lane.is_told_active = true;
        }
        channel.drain(&mut inner);
        let (is_broken, is_clear) = (inner.is_broken, !inner.half.has_blinded());
        if lane.is_told_active && !is_clear && !lane.is_awaiting(calls) {
            inner.half.clear();
        }
        self.serve_news(&mut inner, calls, after);
        channel.finish_held(inner, &mut after.wakers);
        if is_broken || has_ended {
            self.close_lane(index as u16, calls, after);
        }
    }

    /// Does what a channel asks for, as far as possible: see `News`.
    fn serve_news(&mut self, inner: &mut Inner, calls: &mut Calls, after: &mut Aftermath) {
        let mut asks = std::mem::take(&mut inner.half.news.asks);
        asks.retain(|slot| !self.ask(*slot, inner, calls, after));
        inner.half.news.asks.extend(asks);
        // The daemon's answers come first: a producer may send over the channel because the daemon's delivery of an earlier tensor was
        // acknowledged to it.
        while self.has_taken_answers()
            && let Some(slot) = inner.half.news.arrived.pop()
        {
            let call = inner.half.arrived_for(slot);
            let content = inner.half.content(slot);
            let is_used = calls.serve(call, content.meta(), content.payload(), after);
            inner.half.is_served(slot, is_used);
        }
    }

    /// Asks the daemon for a recv; false if there is no room to.
    fn ask(&mut self, slot: u32, inner: &mut Inner, calls: &mut Calls, after: &mut Aftermath) -> bool {
        let Some(wanted) = inner.half.wanted(slot) else { return true };
        let Ok(with) = self.peer(&inner.task, &inner.peer) else { return false };
        let peer = inner.peer.clone();
        let destination = inner.half.take_data(slot);
        let memory = match destination.map(|destination| self.lent(destination)) {
            None => Memory::Nothing,
            Some(memory) => memory,
        };
        match self.submit_recv(with, &wanted, memory, calls) {
            Ok(call) => {
                let place = (&*peer, wanted.step, &*String::from_utf8_lossy(&wanted.key));
                let borrows = self.borrows(calls, call);
                calls.asked(call, place, borrows, after);
                if let Some(adopted) = inner.half.has_moved(slot, call) {
                    calls.adopt(call, inner.serial, adopted);
                }
                true
            }
            Err((error, memory)) => {
                let destination = memory.into_destination().0;
                if error.code() == Code::ResourceExhausted {
                    inner.half.give_data(slot, destination);
                    return false;
                }
                inner.half.give_data(slot, destination);
                inner.refused.insert(slot, error);
                inner.half.is_refused(slot);
                true
            }
        }
    }

    /// What the daemon is lent for a destination: itself, a block of the arena, or nothing if that is full.
    fn lent(&self, destination: Destination) -> Memory {
        if destination.is_empty() || self.arena.span_of(&destination).is_some() {
            return Memory::Destination(destination);
        }
        match self.arena.allocate(destination.len()) {
            Some(landing) => Memory::Substitute(Box::new(Substitute { landing, destination })),
            None => Substitute::of_a_tensor(destination),
        }
    }

    /// Submits a recv without waiting for room.
    fn submit_recv(
        &mut self,
        Peer { segment, number }: Peer,
        wanted: &Wanted,
        memory: Memory,
        calls: &mut Calls,
    ) -> Result<u32, (Error, Memory)> {
        let destination = match memory.lent() {
            None => None,
            Some([]) => Some(Span::default()),
            Some(lent) => self.arena.span_of(lent),
        };
        let deadline = Tick::of_milliseconds(wanted.deadline);
        let timeout_ms = deadline.from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let meta = memory.destination().and_then(Destination::meta).cloned();
        let call = calls.open(Direction::Recv, segment, deadline, memory);
        let call = call.map_err(|memory| (super::super::submit::table_full(), memory))?;
        let destination = destination.map(|span| (span, meta.as_ref().map_or(&[][..], |meta| meta.as_wire())));
        let key = String::from_utf8_lossy(&wanted.key);
        let (step, fail_if_gone) = (wanted.step, wanted.fails_if_gone);
        let key = &*key;
        let recv =
            Submission::Recv { call, peer: number, step, timeout_ms, key, destination, fused: false, fail_if_gone };
        self.submitted(segment, call, &recv, calls)
    }

    /// Submits a call that was entered, or takes it out again.
    fn submitted(
        &mut self,
        segment: u16,
        call: u32,
        submission: &Submission<'_>,
        calls: &mut Calls,
    ) -> Result<u32, (Error, Memory)> {
        let mut after = Aftermath::default();
        let refused = match self.submit(segment, submission) {
            Ok(way) => {
                if way == Way::Backlog {
                    calls.waits(call);
                }
                return Ok(call);
            }
            Err(Unsubmitted::Refused(error)) => error,
            // A fault is noticed by the next who submits.
            Err(Unsubmitted::Full | Unsubmitted::Fault(_)) => Error::full("the ring of a shard", "it is full"),
        };
        Err((refused, calls.retract(call, &mut after)))
    }

    fn borrows(&self, calls: &mut Calls, call: u32) -> bool {
        calls.lends_destination(call, |destination| !self.arena.is_of(destination))
    }

    /// Tells channels that calls which they had adopted have ended.
    fn settle_adopted(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        while let Some((serial, slot, call, is_received)) = calls.take_left() {
            let Some(lane) = self.direct.lanes.iter().flatten().find(|lane| lane.serial == serial) else { continue };
            let channel = lane.channel.clone();
            let mut inner = channel.lock();
            inner.half.is_over(slot, call, is_received);
            self.serve_news(&mut inner, calls, after);
            channel.finish_held(inner, &mut after.wakers);
        }
    }

    /// Gives recvs that wait in channels the tensors that arrived from the daemon for cancelled recvs.
    #[cold]
    pub(in crate::attachment) fn offer_unclaimed(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        for lane in self.direct.lanes.iter().flatten() {
            let channel = lane.channel.clone();
            let mut inner = channel.lock();
            for (step, key) in calls.unclaimed().names(&channel.peer) {
                let Some(slot) = inner.half.posted(step, key.as_bytes()) else { continue };
                let destination = inner.half.take_data(slot);
                let room = destination.as_ref().map(Destination::room);
                let place = (&*channel.peer, step, &*key);
                let Ok(Some(tensor)) = calls.unclaimed().take(place, room) else {
                    inner.half.give_data(slot, destination);
                    continue;
                };
                let mut memory = destination.map_or(Memory::Nothing, Memory::Destination);
                match calls.claim(place, tensor, &mut memory, after) {
                    Some(call) => inner.half.is_served_elsewhere(slot, call),
                    None => inner.half.give_data(slot, memory.into_destination().0),
                }
            }
            channel.finish_held(inner, &mut after.wakers);
        }
    }

    /// Closes a lane that has ended, or whose other side broke the rules: what this side had sent and what waits here go on through the
    /// daemon, unless the peer's process is gone, which ends the recvs.
    #[cold]
    pub(super) fn close_lane(&mut self, index: u16, calls: &mut Calls, after: &mut Aftermath) {
        self.tell_what_went();
        let Some(lane) = self.direct.take_out(index) else { return };
        let channel = lane.channel.clone();
        let is_gone = channel.lane.other() == Standing::Gone;
        let mut inner = channel.lock();
        let adopted = inner.half.close(if is_gone { Why::Gone } else { Why::Abandoned });
        self.serve_news(&mut inner, calls, after);
        for call in adopted {
            calls.disown(call);
            if is_gone {
                // As calls are told that wait at the daemon, and before the next process of that task is heard of.
                let error = Error::Left { task: lane.channel.peer.clone(), reason: "its process is gone".into() };
                calls.give_up(call, error, after);
            }
        }
        inner.keep_given_up(calls, after);
        channel.finish_held(inner, &mut after.wakers);
        channel.lane.close();
        channel.bell.ring();
        self.direct.retired.keep(lane, Tick::now(), after);
        self.drain_retired(calls, after);
        self.ring_shards();
    }

    /// Sends on what the consumers of closed channels have not taken, and asks for what their recvs wait for, as far as there is room.
    pub(super) fn drain_retired(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        for place in 0..self.direct.retired.len() {
            let Some(lane) = self.direct.retired.get_mut(place) else { return };
            lane.rings.wake(lane.channel.lane.take_ring_news(), after);
            if !lane.owes {
                continue;
            }
            let channel = lane.channel.clone();
            let mut inner = channel.lock();
            if !lane.is_reclaimed && channel.lane.is_left() {
                lane.is_reclaimed = true;
                lane.unsent = inner.half.reclaim().into();
            }
            let (mut unsent, is_reclaimed) = (std::mem::take(&mut lane.unsent), lane.is_reclaimed);
            while let Some(tensor) = unsent.pop_front() {
                if !self.send_on(&channel, &mut inner, &tensor, calls, after) {
                    unsent.push_front(tensor);
                    break;
                }
            }
            self.serve_news(&mut inner, calls, after);
            inner.keep_given_up(calls, after);
            let owes = !is_reclaimed || !unsent.is_empty() || !inner.half.news.is_served();
            channel.finish_held(inner, &mut after.wakers);
            if let Some(lane) = self.direct.retired.get_mut(place) {
                (lane.unsent, lane.owes) = (unsent, owes);
            }
        }
    }

    /// Sends a tensor through the daemon that was sent over a channel; false if there is no room.
    fn send_on(
        &mut self,
        channel: &Channel,
        inner: &mut Inner,
        tensor: &Unsettled,
        calls: &mut Calls,
        after: &mut Aftermath,
    ) -> bool {
        let deadline = Tick::of_milliseconds(tensor.deadline);
        let Ok(with) = self.peer(&inner.task, &inner.peer) else { return false };
        let sent = self.submit_send(with, tensor, deadline, calls);
        let key = String::from_utf8_lossy(&tensor.key);
        let name = (tensor.step, &*key);
        match (sent, tensor.handle) {
            (Err(error), _) if error.code() == Code::ResourceExhausted => return false,
            (Ok(call), None) => {
                self.direct.sent_by_daemon(once(call), (&channel.peer, 0, Tick::now()), name, calls);
                calls.forsake(call, false, after);
            }
            (Ok(call), Some(handle)) => {
                self.direct.sent_by_daemon(once(call), (&channel.peer, 0, Tick::now()), name, calls);
                inner.redirected.insert(handle, Ok(call));
            }
            (Err(error), Some(handle)) => {
                inner.redirected.insert(handle, Err(error));
            }
            (Err(_), None) => {}
        }
        inner.half.wake_senders();
        true
    }

    fn submit_send(
        &mut self,
        Peer { segment, number }: Peer,
        tensor: &Unsettled,
        deadline: Tick,
        calls: &mut Calls,
    ) -> Result<u32, Error> {
        let timeout_ms = deadline.from(Tick::now()).map_or(NO_TIMEOUT, timeout_ms);
        let call = calls.open(Direction::Send, segment, deadline, Memory::Nothing);
        let call = call.map_err(|_| super::super::submit::table_full())?;
        let key = String::from_utf8_lossy(&tensor.key);
        let (key, payload) = (&*key, PayloadAt::Inline(&tensor.payload));
        let meta = &tensor.meta;
        let send = Submission::Send { call, peer: number, step: tensor.step, timeout_ms, key, meta, payload };
        self.submitted(segment, call, &send, calls).map_err(|(error, _)| error)
    }
}

impl Inner {
    /// Passes tensors of an ended channel that recvs have given up after they had taken them to other recvs, or keeps them.
    pub(super) fn keep_given_up(&mut self, calls: &mut Calls, after: &mut Aftermath) {
        for (step, key, slot) in self.half.given_up() {
            let content = self.half.content(slot);
            let tensor = Tensor::from_wire(content.meta(), Buffer::copy_of(content.payload()));
            self.half.drop_given_up(slot);
            if let Ok(tensor) = tensor {
                calls.keep_given_up((&self.peer, step, &String::from_utf8_lossy(&key)), tensor, after);
            }
        }
    }
}

impl Lane {
    /// True if sends that went through the daemon before the channel was active are not over.
    fn is_awaiting(&mut self, calls: &mut Calls) -> bool {
        self.by_daemon.retain(|call| calls.is_at_daemon(*call));
        !self.by_daemon.is_empty()
    }
}
