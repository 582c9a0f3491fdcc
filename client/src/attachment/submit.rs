//! Submitting: a call's record goes into the ring of the shard that serves the pair, its memory into the table. Runs on the
//! callers' threads; waits for room in a ring for at most `ROOM_WAIT_MAX`, many calls together as long as one.

use std::{
    cell::OnceCell,
    sync::{Arc, PoisonError},
    time::{Duration, Instant},
};

use sealane_runtime::{Buffer, MemoryKind};
use sealane_transport::{
    Code, Error, PullOptions, RecvOptions, SendOptions, Tensor, Unreceived,
    named_rows::{NamedRows, NamedRowsBuf},
    shm::{
        NO_TIMEOUT, PayloadAt, Span, Submission,
        limits::{INLINE_BYTES_MAX, SLOTS},
    },
};

use super::{
    Attachment, Held, Line, Link, State,
    backlog::Way,
    calls::Direction,
    dropped,
    held::RoomWait,
    link::{Peer, Unsubmitted},
    memory::{Memory, Substitute},
};
use crate::{
    clock::{Tick, timeout_ms},
    limits::{CALLS_MAX, ROOM_SPINS, SUBMISSIONS_PER_LOOK},
    memory::Arena,
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

impl Attachment {
    /// Submits a send or a push; returns the call's number.
    #[inline]
    pub(crate) fn send(&self, to: To<'_>, name: &str, tensor: Tensor, options: &SendOptions) -> Result<u32, Error> {
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

    /// Submits a recv; returns the call's number.
    #[inline]
    pub(crate) fn recv(&self, from: With<'_>, key: &str, options: RecvOptions) -> Result<u32, Unreceived> {
        let now = Tick::now();
        let mut destination = options.destination;
        let (mut memory, mut held) = loop {
            let memory = self.destination(destination, || self.arena(now, options.timeout))?;
            match self.up(now, options.timeout) {
                Ok(held) if held.span(&memory).is_ok() => break (memory, held),
                // The daemon was restarted meanwhile.
                Ok(_) => destination = memory.into_destination().0,
                Err(error) => return Err(unreceived(error, memory.into_destination().0)),
            }
        };
        let asked = held.recv(now, from, (key, false, options.fail_if_gone), &mut memory, options.timeout);
        held.submitted(1);
        drop(held);
        asked.map_err(|error| unreceived(error, memory.into_destination().0))
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

    /// Submits many sends or pushes under one lock and rings once; `each` is called for every one, in order.
    pub(crate) fn send_all<K: AsRef<str>>(
        &self,
        to: To<'_>,
        tensors: impl Iterator<Item = (K, Tensor)>,
        options: &SendOptions,
        mut each: impl FnMut(Result<u32, Error>),
    ) {
        // The iterator is the caller's code, and runs before anything is locked.
        let mut tensors: Vec<(K, Option<Tensor>)> = tensors.map(|(key, tensor)| (key, Some(tensor))).collect();
        // Nothing is copied behind a tensor that had no room: a full arena is not tried a thousand times.
        let now = Tick::now();
        let (placed, refusal, mut held) = loop {
            let (mut placed, mut refusal) = (0, None);
            for (_, tensor) in &mut tensors {
                match self.place(tensor, now, options.timeout) {
                    Ok(true) => placed += 1,
                    Ok(false) => break,
                    Err(error) => {
                        refusal = Some((placed, error));
                        break;
                    }
                }
            }
            let held = match self.up(now, options.timeout) {
                Ok(held) => held,
                Err(error) => return tensors.iter().for_each(|_| each(Err(error.clone()))),
            };
            if tensors[..placed].iter().all(|(_, tensor)| held.reaches(tensor.as_ref())) {
                break (placed, refusal, held);
            }
        };
        let (mut next, mut may_share) = (0, true);
        while next < tensors.len() {
            if let (true, Purpose::Send { step }) = (may_share, to.purpose) {
                let sent = held.send_together(now, (to.peer, step), &tensors[next..], options.timeout, &mut each);
                may_share = sent.is_some();
                if let Some(sent @ 1..) = sent {
                    next += sent;
                    continue;
                }
            }
            let (key, tensor) = &mut tensors[next];
            each(match &refusal {
                Some((refused, error)) if next >= *refused && !tensor.as_ref().is_some_and(is_small) => {
                    Err(error.clone())
                }
                // Tensors behind one without room were not looked at before.
                _ if next >= placed && tensor.as_ref().is_some_and(is_of_device) => Err(on_device()),
                _ => held.send(now, to, key.as_ref(), tensor, options.timeout),
            });
            next += 1;
        }
        held.submitted(tensors.len());
        drop(held);
    }

    /// Submits many recvs under one lock and rings once; `each` is called for every one, in order.
    pub(crate) fn recv_all<K: AsRef<str>>(
        &self,
        from: With<'_>,
        mut wanted: Vec<(K, RecvOptions)>,
        mut each: impl FnMut(Result<u32, Unreceived>),
    ) {
        let now = Tick::now();
        // Deadlines differ: the longest is used for waiting, and calls whose deadline passes meanwhile end at once.
        let timeouts = wanted.iter().map(|(_, options)| options.timeout);
        let timeout = timeouts.max_by_key(|timeout| timeout.unwrap_or(Duration::MAX)).flatten();
        let arena = OnceCell::new();
        let arena = || arena.get_or_init(|| self.arena(now, timeout)).clone();
        // Before the lock is taken.
        let destinations = wanted.iter_mut().filter_map(|(_, options)| options.destination.as_mut());
        let memories = destinations.map(|destination| self.destination(Some(std::mem::take(destination)), arena));
        let mut memories = memories.collect::<Vec<_>>().into_iter();
        // Each taken destination was replaced by an empty buffer.
        let mut next_memory = |options: &RecvOptions| match options.destination {
            None => Ok(Memory::Nothing),
            Some(_) => memories.next().expect("each destination has its memory"),
        };
        let mut held = match self.up(now, timeout) {
            Ok(held) => held,
            Err(error) => {
                let refused = |memory: Memory| unreceived(error.clone(), memory.into_destination().0);
                return wanted
                    .iter()
                    .for_each(|(_, options)| each(Err(next_memory(options).map_or_else(|e| e, refused))));
            }
        };
        let (mut next, mut may_share) = (0, true);
        while let Some((key, options)) = wanted.get(next) {
            if may_share && options.destination.is_none() {
                let asked = held.recv_together(now, from, &wanted[next..], |call| each(Ok(call)));
                may_share = asked.is_some();
                if let Some(asked @ 1..) = asked {
                    next += asked;
                    continue;
                }
            }
            each(next_memory(options).and_then(|mut memory| {
                let what = (key.as_ref(), true, options.fail_if_gone);
                let asked = held.recv(now, from, what, &mut memory, options.timeout);
                asked.map_err(|error| unreceived(error, memory.into_destination().0))
            }));
            next += 1;
        }
        held.submitted(wanted.len());
        // Keys are the caller's and are dropped like payloads, without the lock.
        drop(held);
    }

    /// Tells every shard that a step is aborted.
    pub(crate) fn abort(&self, step: i64, reason: &str) -> Result<(), Error> {
        self.end_step(step, reason, &Submission::Abort { step, reason })
    }

    /// Tells every shard to free what is left of a step.
    pub(crate) fn cleanup(&self, step: i64) -> Result<(), Error> {
        self.end_step(step, "it was cleaned up", &Submission::Cleanup { step })
    }

    /// Ends a step: drops what came in it for recvs that were given up, and does not send what waits for the arena.
    fn end_step(&self, step: i64, reason: &str, told: &Submission<'_>) -> Result<(), Error> {
        self.check_fork()?;
        // Ends of steps go out one after the other, to all: what another thread begins when the daemon reports a step's end
        // comes behind what lanes are told of it.
        let _in_turn = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.lock();
        held.pump();
        let State { calls, aftermath, .. } = &mut *held;
        calls.forget_step(step, aftermath);
        if held.has_unplaced() {
            held.end_unplaced(step, reason);
        }
        held.ask_for_step(step);
        drop(held);
        let aborted = matches!(told, Submission::Abort { .. });
        // The daemon hears before the peers on lanes.
        match self.up(Tick::now(), None) {
            Ok(mut held) => {
                let outcome = held.tell_all(told);
                held.end_direct(step, reason, aborted);
                outcome
            }
            Err(error) => {
                self.lock().end_direct(step, reason, aborted);
                Err(error)
            }
        }
    }

    /// Makes sure that a tensor is small, or lies in the arena; false if it must wait for room there.
    #[inline]
    pub(super) fn place(
        &self,
        tensor: &mut Option<Tensor>,
        now: Tick,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        match tensor.take_if(|tensor| !is_small(tensor) || is_of_device(tensor)) {
            Some(tensor) if is_of_device(&tensor) => Err(on_device()),
            Some(large) => {
                let (placed, is_placed) = self.place_large(large, now, timeout)?;
                *tensor = Some(placed);
                Ok(is_placed)
            }
            None => Ok(true),
        }
    }

    fn place_large(&self, tensor: Tensor, now: Tick, timeout: Option<Duration>) -> Result<(Tensor, bool), Error> {
        let (arena, limit, is_behind) = {
            let held = self.up(now, timeout)?;
            (held.link().arena.clone(), held.link().tensor_bytes_max, held.has_unplaced())
        };
        let len = tensor.bytes().len();
        if len as u64 > limit {
            return Err(too_large(len as u64, limit));
        }
        if arena.span_of(tensor.bytes()).is_some() {
            return Ok((tensor, true));
        }
        // First come, first served.
        let room = if is_behind { None } else { self.room_in_arena(len)? };
        let Some(mut copy) = room else { return Ok((tensor, false)) };
        copy.copy_from_slice(tensor.bytes());
        Ok((Tensor::new(tensor.into_parts().0, copy)?, true))
    }

    /// Memory from the arena; `None` if it is full and the tensor waits for it elsewhere.
    fn room_in_arena(&self, len: usize) -> Result<Option<Buffer>, Error> {
        match self.allocate(len) {
            Err(error) if error.code() == Code::ResourceExhausted && self.settings.backlog.is_some() => Ok(None),
            allocated => allocated.map(Some),
        }
    }

    /// What the daemon is lent for a destination: the destination itself if it lies in the arena, else a block in its place.
    #[inline]
    fn destination(
        &self,
        destination: Option<Buffer>,
        arena: impl FnOnce() -> Result<Arc<Arena>, Error>,
    ) -> Result<Memory, Unreceived> {
        let Some(destination) = destination else { return Ok(Memory::Nothing) };
        if is_on_device(destination.memory()) {
            return Err(unreceived(on_device(), Some(destination)));
        }
        match self.landing(&destination, arena) {
            Ok(None) => Ok(Memory::Destination(destination)),
            Ok(Some(landing)) => Ok(Memory::Substitute(Box::new(Substitute { landing, destination }))),
            Err(error) => Err(unreceived(error, Some(destination))),
        }
    }

    fn landing(
        &self,
        destination: &Buffer,
        arena: impl FnOnce() -> Result<Arc<Arena>, Error>,
    ) -> Result<Option<Buffer>, Error> {
        if destination.is_empty() || arena()?.span_of(destination).is_some() {
            return Ok(None);
        }
        // Without a block, it is filled by a copy from wherever the tensor arrives.
        Ok(Some(self.room_in_arena(destination.len())?.unwrap_or_default()))
    }
}

impl Held<'_> {
    /// Tells every shard of the link.
    pub(super) fn tell_all(&mut self, submission: &Submission<'_>) -> Result<(), Error> {
        let segments = self.link().segments();
        let told = (0..segments)
            .try_for_each(|segment| self.submit(WHILE_IT_READS, |link| link.submit(segment, submission)).map(drop));
        self.submitted(segments.into());
        told
    }

    /// Submits a send or a push. A small tensor stays where it is, a large one goes into the table.
    #[inline]
    fn send(
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
        if let (Purpose::Send { step }, Some(large)) = (purpose, &tensor)
            && !is_small(large)
        {
            self.say_by_daemon(now, (peer, to.peer), (step, name));
        }
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
        if let Purpose::Send { step } = purpose
            && let Some(call) = self.send_direct(now, (peer, to.peer), (step, name), small, deadline)
        {
            return Ok(call);
        }
        let sent = self.enter(purpose.direction(), segment, deadline, Memory::Nothing, |call| {
            let (meta, payload) = (small.meta().as_wire(), PayloadAt::Inline(small.bytes()));
            (timeout_ms, purpose.submission((call, number, timeout_ms), name, meta, payload))
        });
        sent.map_err(|(error, _)| error)
    }

    /// Submits a recv; `fused` if it is one of many that are asked for together. It ends at once if its tensor came before, for a recv
    /// that was given up. The memory is the call's if it is entered.
    #[inline]
    fn recv(
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
        let borrowed = match (&*memory, &self.line) {
            (Memory::Destination(destination), Line::Up(link)) => !link.arena.is_of(destination),
            _ => false,
        };
        if let Some(found) = self.recv_direct(now, to, place, memory, (deadline, borrowed, fail_if_gone)) {
            return found;
        }
        if let Some(claimed) = self.claim(place, memory) {
            return claimed;
        }
        self.give_back_blocks();
        let Peer { segment, number: peer } = to;
        let asked = self.enter(Direction::Recv, segment, deadline, std::mem::take(memory), |call| {
            let step = from.step;
            (timeout_ms, Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone })
        });
        match asked {
            Ok(call) => {
                let State { calls, aftermath, .. } = &mut **self;
                calls.asked(call, place, borrowed, aftermath);
                self.asked_by_name(call, to, place);
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

    /// True if the tensor is small, or lies in the arena of this link.
    #[inline]
    fn reaches(&self, tensor: Option<&Tensor>) -> bool {
        tensor.is_none_or(|tensor| is_small(tensor) || self.link().arena.span_of(tensor.bytes()).is_some())
    }

    /// Where memory that was allocated before the lock was taken lies in the arena; `None` without memory.
    #[inline]
    pub(super) fn span(&self, memory: &Memory) -> Result<Option<Span>, Error> {
        match (memory.lent(), &self.line) {
            (None, _) => Ok(None),
            (Some([]), _) => Ok(Some(Span::default())),
            (Some(bytes), Line::Up(link)) => link.arena.span_of(bytes).map(Some).ok_or_else(|| {
                Error::unavailable(&link.daemon, "it was lost and reattached while the call was in transit")
            }),
            (Some(_), line) => Err(down(line)),
        }
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
                let reason = format!(
                    "its {SLOTS} slots have no room for this, and the daemon made none in time: wait for earlier calls \
                     before making more, and see its log if it hangs"
                );
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

    /// After a call or a batch: wakes those who were written to, and looks at the answers now and then. Calls over lanes do not
    /// concern shards.
    #[inline]
    pub(super) fn submitted(&mut self, count: usize) {
        let Line::Up(link) = &mut self.line else { return };
        if link.is_for_shards() {
            self.chores();
        } else {
            link.direct.ring();
        }
        self.unlooked = self.unlooked.saturating_add(count as u32);
        if self.unlooked >= SUBMISSIONS_PER_LOOK {
            self.pump();
        }
    }
}

pub(super) fn too_large(len: u64, limit: u64) -> Error {
    let reason = format!("the tensor has {len} bytes, the daemon carries at most {limit}");
    Error::full("transport.tensor_bytes_max", reason)
}

pub(super) fn table_full() -> Error {
    let reason = format!("{CALLS_MAX} calls are in flight, or have ended and were not collected");
    Error::full("client calls", reason)
}

#[inline]
pub(super) fn is_small(tensor: &Tensor) -> bool {
    tensor.len() <= INLINE_BYTES_MAX
}

pub(super) fn is_of_device(tensor: &Tensor) -> bool {
    is_on_device(tensor.memory())
}

fn is_on_device(memory: MemoryKind) -> bool {
    matches!(memory, MemoryKind::Device(_))
}

fn on_device() -> Error {
    Error::Unimplemented { reason: "an attached client's tensors are in host memory: copy this one there first".into() }
}

/// The error of a recv that could not begin.
fn unreceived(error: Error, destination: Option<Buffer>) -> Unreceived {
    Unreceived { error, destination }
}

/// The error if there is no link.
pub(super) fn down(line: &Line) -> Error {
    match line {
        Line::Lost(error) => error.clone(),
        Line::Up(_) | Line::Closed => dropped(),
    }
}
