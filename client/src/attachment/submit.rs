//! Submitting: a call's record goes into the ring of the shard that serves the pair, its memory into the table. Runs on the
//! callers' threads; waits for room in a ring for at most `ROOM_WAIT_MAX`, many calls together as long as one.

use std::{
    iter::once,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use sealane_transport::{
    Destination, Error, PullOptions, RecvOptions, SendOptions, Tensor, Unreceived,
    named_rows::{NamedRows, NamedRowsBuf},
    shm::{NO_TIMEOUT, PayloadAt, Submission},
};

use super::{
    Attachment, Held, Line, Link, State,
    backlog::Way,
    calls::Direction,
    direct::{Channel, ChannelRecv, ChannelSend, NotHere},
    dropped,
    held::RoomWait,
    link::{Peer, Unsubmitted},
    memory::Memory,
    placing::is_small,
};
use crate::{
    clock::{Tick, timeout_ms},
    limits::{CALLS_MAX, ROOM_SPINS, SUBMISSIONS_PER_LOOK},
};

/// How long a call without a deadline waits for room: as long as the daemon reads.
pub(super) const WHILE_IT_READS: Duration = Duration::MAX;

/// The peer that tensors are sent to, and their purpose.
#[derive(Clone, Copy)]
pub(crate) struct To<'a> {
    pub(crate) peer: &'a str,
    pub(crate) purpose: Purpose,
}

/// What a sent tensor is for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose {
    /// Kept for a recv of that step; the name is the key.
    Send {
        /// The step.
        step: i64,
    },
    /// Put into a queue; the name is the queue's.
    Push,
}

impl Purpose {
    pub(super) fn direction(self) -> Direction {
        match self {
            Purpose::Send { .. } => Direction::Send,
            Purpose::Push => Direction::Push,
        }
    }

    #[inline]
    pub(super) fn submission<'s>(
        self,
        (call, peer, timeout_ms): (u32, u16, u32),
        name: &'s str,
        meta: &'s [u8],
        payload: PayloadAt<'s>,
    ) -> Submission<'s> {
        match self {
            Purpose::Send { step } => Submission::Send { call, peer, step, timeout_ms, key: name, meta, payload },
            Purpose::Push => Submission::Push { call, peer, timeout_ms, queue: name, meta, payload },
        }
    }
}

/// The peer and the step of a recv, or of a batch of them.
#[derive(Clone, Copy)]
pub(crate) struct With<'a> {
    pub(crate) peer: &'a str,
    pub(crate) step: i64,
}

/// A call that was begun.
pub(crate) enum Begun<C> {
    AtDaemon(u32),
    OverChannel(C),
}

impl Attachment {
    /// Begins a send or a push.
    #[inline]
    pub(crate) fn send(
        &self,
        to: To<'_>,
        name: &str,
        tensor: Tensor,
        options: &SendOptions,
    ) -> Result<Begun<ChannelSend>, Error> {
        if let Purpose::Send { step } = to.purpose
            && let Some(channel) = self.channel_to(to.peer)
        {
            match channel.send((step, name), &tensor, options.timeout) {
                Ok(sent) => return Ok(Begun::OverChannel(sent)),
                Err(NotHere::Fails(error)) => return Err(error),
                Err(NotHere::Switch) => {}
            }
        }
        self.send_by_daemon(to, name, tensor, options).map(Begun::AtDaemon)
    }

    fn send_by_daemon(&self, to: To<'_>, name: &str, tensor: Tensor, options: &SendOptions) -> Result<u32, Error> {
        let mut tensor = Some(tensor);
        let now = Tick::now();
        let mut held = loop {
            let placed = self.place(&mut tensor, now, options.timeout)?;
            let held = self.up(now, options.timeout)?;
            if !placed || held.reaches(tensor.as_ref()) {
                break held;
            }
        };
        let sent = held.send(now, to, name, &mut tensor, options.timeout);
        held.submitted(1);
        // The rest of the tensor is dropped after the lock is released: its owner's drop may run code.
        drop(held);
        sent
    }

    /// Begins a recv.
    #[inline]
    pub(crate) fn recv(
        &self,
        from: With<'_>,
        key: &str,
        mut options: RecvOptions,
    ) -> Result<Begun<ChannelRecv>, Unreceived> {
        if let Some(channel) = self.channel_to(from.peer)
            && !self.has_unclaimed.load(Ordering::Relaxed)
        {
            match channel.recv((from.step, key), &mut options) {
                Ok(recv) => return Ok(Begun::OverChannel(recv)),
                Err(NotHere::Fails(error)) => return Err(Unreceived::returning(error, options.destination)),
                Err(NotHere::Switch) => {}
            }
        }
        self.recv_by_daemon(from, key, options).map(Begun::AtDaemon)
    }

    fn recv_by_daemon(&self, from: With<'_>, key: &str, options: RecvOptions) -> Result<u32, Unreceived> {
        let now = Tick::now();
        let mut destination = options.destination;
        let (mut memory, mut held) = loop {
            let memory = self.destination(destination, || self.arena(now, options.timeout))?;
            match self.up(now, options.timeout) {
                Ok(held) if held.span(&memory).is_ok() => break (memory, held),
                // The daemon was restarted meanwhile.
                Ok(_) => destination = memory.into_destination().0,
                Err(error) => return Err(Unreceived::returning(error, memory.into_destination().0)),
            }
        };
        let asked = held.recv(now, from, (key, false, options.fail_if_gone), &mut memory, options.timeout);
        held.submitted(1);
        drop(held);
        asked.map_err(|error| Unreceived::returning(error, memory.into_destination().0))
    }

    /// The channel to a peer, if there is one; a forked child has none.
    #[inline]
    pub(super) fn channel_to(&self, peer: &str) -> Option<Arc<Channel>> {
        if self.mark.forked() {
            return None;
        }
        self.channels.find(peer, || self.lock().channel(peer))
    }

    /// Asks a peer for rows of tables, in as many requests as `wanted` has, under one lock; `each` is called for every one, in order. The
    /// first goes to the shard `stripe` places after the one that serves the pair, and each further one to the next.
    pub(crate) fn pull_rows(
        &self,
        (((peer, stripe), min_version), views): (((&str, usize), i64), bool),
        options: PullOptions,
        wanted: &[NamedRowsBuf],
        mut each: impl FnMut(Result<u32, Error>),
    ) {
        let now = Tick::now();
        let mut held = match self.up(now, options.timeout) {
            Ok(held) => held,
            Err(error) => return wanted.iter().for_each(|_| each(Err(error.clone()))),
        };
        held.give_back_blocks();
        for (stripe, rows) in (stripe..).zip(wanted) {
            each(held.pull_rows(now, ((peer, stripe), min_version, views), rows.as_rows(), options));
        }
        held.submitted(wanted.len());
    }
}

impl Held<'_> {
    /// Submits a send or a push. A small tensor stays where it is, a large one goes into the table.
    #[inline]
    pub(super) fn send(
        &mut self,
        now: Tick,
        to: To<'_>,
        name: &str,
        tensor: &mut Option<Tensor>,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let is_small = tensor.as_ref().is_some_and(is_small);
        let call = self.submit_send(now, to, name, tensor, timeout)?;
        if let Purpose::Send { step } = to.purpose {
            self.sent_by_daemon(once(call), (to.peer, is_small.into(), now), (step, name));
        }
        Ok(call)
    }

    #[inline]
    fn submit_send(
        &mut self,
        now: Tick,
        to: To<'_>,
        name: &str,
        tensor: &mut Option<Tensor>,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let (timeout_ms, deadline) = self.time(now, timeout)?;
        let peer = self.peer(to.peer)?;
        let To { purpose, .. } = to;
        if let Some(early) = tensor.take_if(|tensor| self.must_wait(purpose, tensor)) {
            return self.keep_waiting((peer, purpose, name), (timeout_ms, deadline), early);
        }
        let Peer { segment, number } = peer;
        if let Some(large) = tensor.take_if(|tensor| !is_small(tensor)) {
            let (meta, payload) = large.into_parts();
            let memory = Memory::Source(payload);
            let sent = match self.span(&memory) {
                Ok(span) => self.enter(purpose.direction(), segment, deadline, memory, |call| {
                    let (meta, payload) = (meta.as_wire(), PayloadAt::Arena(span.unwrap_or_default()));
                    (timeout_ms, purpose.submission((call, number, timeout_ms), name, meta, payload))
                }),
                Err(error) => Err((error, memory)),
            };
            return sent.map_err(|(error, memory)| {
                self.aftermath.spent.push(memory);
                error
            });
        }
        let Some(small) = tensor else { unreachable!("only a large tensor is taken") };
        let sent = self.enter(purpose.direction(), segment, deadline, Memory::Nothing, |call| {
            let (meta, payload) = (small.meta().as_wire(), PayloadAt::Inline(small.bytes()));
            (timeout_ms, purpose.submission((call, number, timeout_ms), name, meta, payload))
        });
        sent.map_err(|(error, _)| error)
    }

    /// Submits a recv; `fused` if it is one of many that are asked for together. It ends at once if its tensor came before, for a recv
    /// that was given up. The memory is the call's if it is entered.
    #[inline]
    pub(super) fn recv(
        &mut self,
        now: Tick,
        from: With<'_>,
        (key, fused, fail_if_gone): (&str, bool, bool),
        memory: &mut Memory,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let place = (from.peer, from.step, key);
        let (timeout_ms, deadline) = self.time(now, timeout)?;
        let destination = self.span(memory)?;
        let to = self.peer(from.peer)?;
        self.counts(from.peer, now, 1);
        if self.channel(from.peer).is_some_and(|channel| channel.has_ended()) {
            // Before the call is made, which is not among those that fail because the peer is gone.
            self.pump();
        }
        let borrowed = match (&*memory, &self.line) {
            (Memory::Destination(destination), Line::Up(link)) => !link.arena.is_of(destination),
            _ => false,
        };
        if let Some(claimed) = self.claim(place, memory) {
            return claimed;
        }
        self.give_back_blocks();
        let Peer { segment, number: peer } = to;
        let wanted = memory.destination().and_then(Destination::meta).cloned();
        let asked = self.enter(Direction::Recv, segment, deadline, std::mem::take(memory), |call| {
            let step = from.step;
            let destination = destination.map(|span| (span, wanted.as_ref().map_or(&[][..], |meta| meta.as_wire())));
            (timeout_ms, Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone })
        });
        match asked {
            Ok(call) => {
                let State { calls, aftermath, .. } = &mut **self;
                calls.asked(call, place, borrowed, aftermath);
                self.asked_daemon(call, from.peer, (from.step, key));
                Ok(call)
            }
            Err((error, back)) => {
                *memory = back;
                Err(error)
            }
        }
    }

    /// A recv of what an earlier one has left, which may have come when lanes and rings were last polled.
    #[inline]
    pub(super) fn claim(&mut self, place: (&str, i64, &str), memory: &mut Memory) -> Option<Result<u32, Error>> {
        let State { calls, aftermath, .. } = &mut **self;
        if calls.unclaimed().is_empty() {
            return None;
        }
        let taken = calls.unclaimed().take(place, memory.room()).transpose()?;
        Some(taken.and_then(|tensor| calls.claim(place, tensor, memory, aftermath).ok_or_else(table_full)))
    }

    /// Submits a request for rows. A cancelled one leaves nothing for the next: other rows are other tensors.
    fn pull_rows(
        &mut self,
        now: Tick,
        ((peer, stripe), min_version, views): ((&str, usize), i64, bool),
        rows: NamedRows<'_>,
        PullOptions { timeout, fail_if_gone }: PullOptions,
    ) -> Result<u32, Error> {
        let (timeout_ms, deadline) = self.time(now, timeout)?;
        let Peer { segment, number: peer } = match stripe {
            0 => self.peer(peer)?,
            _ => {
                let task = self.attachment.task();
                self.submit(WHILE_IT_READS, |link| link.pulled_peer(task, peer, stripe))?
            }
        };
        let asked = self.enter(Direction::Recv, segment, deadline, Memory::Nothing, |call| {
            (timeout_ms, Submission::Rows { call, peer, min_version, timeout_ms, rows, views, fail_if_gone })
        });
        asked.map_err(|(error, _)| error)
    }

    /// Enters a call and submits what `say` makes of its number; the memory is returned if that fails.
    #[inline]
    pub(super) fn enter<'s>(
        &mut self,
        direction: Direction,
        segment: u16,
        deadline: Tick,
        memory: Memory,
        say: impl Fn(u32) -> (u32, Submission<'s>),
    ) -> Result<u32, (Error, Memory)> {
        let opened = self.calls.open(direction, segment, deadline, memory);
        let call = opened.map_err(|memory| (table_full(), memory))?;
        let (timeout_ms, submission) = say(call);
        // A call does not wait longer for room than for its end.
        let wait = Duration::from_millis(timeout_ms.into());
        match self.submit(wait, |link| link.submit(segment, &submission)) {
            Ok(Way::Ring) => {}
            Ok(Way::Backlog) => self.calls.waits(call),
            Err(error) => {
                let State { calls, aftermath, .. } = &mut **self;
                return Err((error, calls.retract(call, aftermath)));
            }
        }
        Ok(call)
    }

    #[inline]
    pub(super) fn peer(&mut self, name: &str) -> Result<Peer, Error> {
        if let Line::Up(link) = &self.line
            && let Some(peer) = link.recent_peer(name)
        {
            return Ok(peer);
        }
        let task = self.attachment.task();
        self.submit(WHILE_IT_READS, |link| link.peer(task, name))
    }

    /// The timeout told to the daemon, and the deadline, of a call that was made at `now`. Time spent waiting for a daemon counts.
    #[inline]
    pub(super) fn time(&self, now: Tick, timeout: Option<Duration>) -> Result<(u32, Tick), Error> {
        let whole = match (&self.line, timeout) {
            (Line::Up(_), Some(timeout)) => timeout_ms(timeout),
            (Line::Up(link), None) => link.default_timeout_ms,
            (line, _) => return Err(down(line)),
        };
        let left = match (whole, self.waited()) {
            (NO_TIMEOUT, _) | (_, Duration::ZERO) => whole,
            (whole, waited) => whole.saturating_sub(u32::try_from(waited.as_millis()).unwrap_or(whole)),
        };
        Ok((left, now.deadline(whole)))
    }

    /// Submits to the current link, and waits for room if there is none.
    #[inline]
    pub(super) fn submit<T>(
        &mut self,
        wait: Duration,
        mut attempt: impl FnMut(&mut Link) -> Result<T, Unsubmitted>,
    ) -> Result<T, Error> {
        let Line::Up(link) = &mut self.line else { return Err(down(&self.line)) };
        match attempt(link) {
            Ok(done) => Ok(done),
            Err(Unsubmitted::Full) => self.submit_in_time(wait, attempt),
            Err(Unsubmitted::Refused(error)) => Err(error),
            Err(Unsubmitted::Fault(fault)) => Err(self.faulted(&fault)),
        }
    }

    #[cold]
    fn submit_in_time<T>(
        &mut self,
        wait: Duration,
        mut attempt: impl FnMut(&mut Link) -> Result<T, Unsubmitted>,
    ) -> Result<T, Error> {
        let serial = self.link().serial;
        let until = self.waiting_for_room(|room| room.until(Instant::now(), wait));
        let mut tries = 0;
        loop {
            let Line::Up(link) = &mut self.line else { return Err(down(&self.line)) };
            if link.serial != serial {
                // The numbers and places of this attempt were the former link's.
                return Err(Error::unavailable(&link.daemon, "it was lost while the call waited for room in its ring"));
            }
            match attempt(link) {
                Ok(done) => {
                    self.waiting_for_room(RoomWait::found);
                    return Ok(done);
                }
                Err(Unsubmitted::Full) => {}
                Err(Unsubmitted::Refused(error)) => return Err(error),
                Err(Unsubmitted::Fault(fault)) => return Err(self.faulted(&fault)),
            }
            link.ring();
            // The daemon may be waiting for room too, in the other ring.
            self.pump();
            if Instant::now() >= until {
                let reason = "it has no room for this, and the daemon made none in time: wait for earlier calls before making \
                              more, and see its log if it hangs";
                return Err(Error::full("submission ring", reason));
            }
            tries += 1;
            self.check_life(Tick::now());
            self.pause(|| if tries > ROOM_SPINS { std::thread::yield_now() } else { std::hint::spin_loop() });
        }
    }

    fn faulted(&mut self, fault: &str) -> Error {
        self.lose(fault);
        down(&self.line)
    }

    /// Gives blocks back before a recv, which may need the room: the shard takes records in order.
    #[inline]
    pub(super) fn give_back_blocks(&mut self) {
        if let Line::Up(link) = &mut self.line
            && let Err(fault) = link.flush()
        {
            self.lose(&fault);
        }
    }

    /// After a call or a batch: wakes shards that were written to, and looks at the answers now and then.
    #[inline]
    pub(super) fn submitted(&mut self, count: usize) {
        let Line::Up(link) = &mut self.line else { return };
        if link.is_for_shards() {
            self.chores();
        }
        self.unlooked = self.unlooked.saturating_add(count as u32);
        if self.unlooked >= SUBMISSIONS_PER_LOOK {
            self.pump();
        }
    }
}

pub(super) fn table_full() -> Error {
    let reason = format!("no number of {CALLS_MAX} is free: calls are in flight, or have ended and were not collected");
    Error::full("client calls", reason)
}

/// The error if there is no link.
pub(super) fn down(line: &Line) -> Error {
    match line {
        Line::Lost(error) | Line::Ended(error) => error.clone(),
        Line::Up(_) => dropped(),
    }
}
