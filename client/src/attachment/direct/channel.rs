//! One channel of this process: its half under a lock of its own, and what wakes the peer.
//!
//! Threads: any. A call takes the channel's lock and no other. Where the attachment's lock is needed too, it is taken first.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
};

use hashbrown::HashMap;
use sealane_runtime::{Buffer, Urgency};
use sealane_transport::{
    Destination, Error, RecvOptions, RecvOutcome, Tensor, Unreceived,
    channel::{Half, Outgoing, Posting, Refusal, Ring, RingMemory, Seed, Sent, Steps, Why},
    limits::KEY_BYTES_MAX,
    shm::{ClientBell, DirectLane, Doorbell, NO_TIMEOUT, Standing, Way},
    tensor::LastKind,
};

use super::{
    super::{Attachment, State, placing::is_inline},
    calls::{Awaited, ChannelRecv, ChannelSend, Ended},
    errors,
    lock::{Guard, Lock},
};
use crate::{
    clock::{Tick, timeout_ms},
    memory::ForkMark,
};

pub(crate) struct Channel {
    pub(in crate::attachment) peer: Box<str>,
    inner: Lock<Inner>,
    pub(super) lane: DirectLane,
    pub(super) bell: Bell,
    incoming: Way,
    /// Where the next record will be, for polls without the lock.
    head: AtomicU64,
    /// Calls that futures wait for.
    watched: AtomicUsize,
    /// Somebody with the attachment's lock must [serve](super::Lanes) this channel.
    owes: AtomicBool,
    default_timeout_ms: u32,
    mark: Arc<ForkMark>,
    attachment: Weak<Attachment>,
}

/// Wakes the reader of a channel's records.
#[derive(Clone)]
pub(super) enum Bell {
    /// The peer's process.
    Peer(ClientBell),
    /// The shard that passes them on to it.
    Shard(Arc<Doorbell>),
}

impl Bell {
    pub(super) fn ring(&self) {
        match self {
            Bell::Peer(bell) => bell.ring(),
            Bell::Shard(bell) => bell.ring(),
        }
    }
}

/// What the channel's lock protects.
pub(crate) struct Inner {
    /// The names of both tasks.
    pub(super) task: Box<str>,
    pub(super) peer: Box<str>,
    /// Number of the lane.
    pub(super) serial: u32,
    pub(in crate::attachment) half: Half<Way, Destination>,
    kinds: LastKind,
    /// The other side reads: small tensors go through the ring.
    pub(super) is_active: bool,
    /// The other side broke the rules.
    pub(super) is_broken: bool,
    /// The error of calls that end because this side leaves.
    pub(super) end: Option<Error>,
    /// Calls at the daemon by which unsettled sends go on, by their handles.
    pub(super) redirected: HashMap<u64, Result<u32, Error>>,
    /// Why the daemon did not take recvs, by their slots.
    pub(super) refused: HashMap<u32, Error>,
}

/// Why a call is not the channel's.
pub(in crate::attachment) enum NotHere {
    /// It goes through the daemon, with its options as they were.
    Switch,
    Fails(Error),
}

/// How a send ended over a channel.
pub(crate) enum SendEnd {
    Taken,
    Returned(Why),
    /// This side has left.
    Closed,
    /// The daemon did not take it when the peer had left.
    Refused,
}

impl Channel {
    pub(super) fn new(
        (task, peer, serial): (&str, Box<str>, u32),
        (lane, bell): (DirectLane, Bell),
        (ended, default_timeout_ms): (Steps, u32),
        (mark, attachment): (Arc<ForkMark>, Weak<Attachment>),
    ) -> Arc<Channel> {
        let half = Half::new(lane.outgoing(), lane.incoming(), Seed::random(), ended);
        let inner = Inner {
            task: task.into(),
            peer: peer.clone(),
            serial,
            half,
            kinds: LastKind::default(),
            is_active: false,
            is_broken: false,
            end: None,
            redirected: HashMap::new(),
            refused: HashMap::new(),
        };
        Arc::new(Channel {
            peer,
            inner: Lock::new(inner),
            incoming: lane.incoming(),
            lane,
            bell,
            head: AtomicU64::new(0),
            watched: AtomicUsize::new(0),
            owes: AtomicBool::new(false),
            default_timeout_ms,
            mark,
            attachment,
        })
    }

    /// True in a forked child, where the lock may be held by a thread that does not exist.
    #[inline]
    pub(super) fn is_forked(&self) -> bool {
        self.mark.forked()
    }

    #[inline]
    pub(in crate::attachment) fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn attachment(&self) -> Option<Arc<Attachment>> {
        self.attachment.upgrade()
    }

    /// Timeout and deadline of a call that is made at `now`.
    #[inline]
    fn deadline(&self, timeout: Option<std::time::Duration>, now: impl FnOnce() -> Tick) -> (u32, Tick) {
        let timeout_ms = timeout.map_or(self.default_timeout_ms, timeout_ms);
        (timeout_ms, if timeout_ms == NO_TIMEOUT { Tick::NEVER } else { now().deadline(timeout_ms) })
    }

    /// True if the next record has arrived.
    #[inline]
    pub(super) fn has_record(&self) -> bool {
        self.incoming.word(self.head.load(Ordering::Relaxed)).load(Ordering::Relaxed) != 0
    }

    /// True if the attachment's lock must be taken for this channel: it has ended, or owes something.
    #[inline]
    pub(super) fn owes(&self) -> bool {
        self.owes.load(Ordering::Relaxed) || self.lane.has_ended()
    }

    /// Notes that somebody must [serve](super::Lanes) the channel, or that somebody does.
    pub(super) fn set_owing(&self, owes: bool) {
        self.owes.store(owes, Ordering::Relaxed);
    }

    /// Calls that futures wait for.
    #[inline]
    pub(super) fn watched(&self) -> usize {
        self.watched.load(Ordering::Relaxed)
    }

    /// Notes how many futures wait, after a waker was set or taken.
    pub(super) fn watches(&self, inner: &Inner) {
        self.watched.store(inner.half.watched(), Ordering::Relaxed);
    }

    /// Releases the lock, and does what must not be done under it. What needs the attachment's lock is left owing.
    #[inline]
    pub(super) fn finish(&self, mut inner: Guard<'_, Inner>) {
        let ring = inner.half.take_ring();
        self.head.store(inner.half.head(), Ordering::Relaxed);
        if inner.half.news.is_empty() {
            drop(inner);
        } else {
            self.finish_with_news(inner);
        }
        self.ring(ring);
    }

    #[cold]
    fn finish_with_news(&self, mut inner: Guard<'_, Inner>) {
        let wakers = std::mem::take(&mut inner.half.news.wakers);
        self.watched.store(inner.half.watched(), Ordering::Relaxed);
        if !inner.half.news.is_empty() {
            self.set_owing(true);
        }
        drop(inner);
        wakers.into_iter().for_each(|waker| super::super::aftermath::survive(|| waker.wake()));
    }

    /// [`finish`](Self::finish) for a caller that has the attachment's lock: wakers are woken when that is released.
    pub(in crate::attachment) fn finish_held(&self, mut inner: Guard<'_, Inner>, wakers: &mut Vec<Waker>) {
        wakers.append(&mut inner.half.news.wakers);
        self.watched.store(inner.half.watched(), Ordering::Relaxed);
        self.finish(inner);
    }

    /// Wakes the peer if it sleeps, however deeply.
    pub(super) fn poke(&self) {
        if self.is_switched() {
            self.lane.poke();
        }
        self.ring(Ring::Urgent);
    }

    /// Wakes the peer if it sleeps and waits for what was written.
    #[inline]
    fn ring(&self, ring: Ring) {
        let urgency = match ring {
            Ring::No => return,
            Ring::Settled => Urgency::Low,
            Ring::Written => Urgency::Normal,
            Ring::Urgent => Urgency::High,
        };
        if self.lane.other_sleep().must_ring_for(urgency) {
            self.bell.ring();
        }
    }

    /// Takes in what has arrived.
    #[inline]
    pub(super) fn drain(&self, inner: &mut Inner) {
        if inner.half.drain().is_err() {
            inner.is_broken = true;
            self.set_owing(true);
        }
    }

    /// Takes in what has arrived; true if the call has ended.
    pub(in crate::attachment) fn look(&self, call: &dyn Awaited) -> bool {
        let mut inner = self.lock();
        self.drain(&mut inner);
        let has_ended = call.has_ended(&mut inner);
        self.finish(inner);
        has_ended
    }

    /// True if [`look`](Self::look) may find more than last time. Takes no lock.
    #[inline]
    pub(in crate::attachment) fn has_news(&self) -> bool {
        self.has_record() || self.owes()
    }

    /// Makes what the last use of this channel left for the attachment's lock happen now.
    #[inline]
    pub(super) fn settle_debts(&self) {
        if self.owes.load(Ordering::Relaxed) {
            self.serve();
        }
    }

    /// [`settle_debts`](Self::settle_debts), and closes the channel if it has ended.
    #[inline]
    pub(super) fn attend(&self) {
        if self.owes() {
            self.serve();
        }
    }

    #[cold]
    fn serve(&self) {
        let Some(attachment) = self.attachment() else { return };
        let mut held = attachment.lock();
        held.pump();
        let mut inner = self.lock();
        if inner.half.has_ended() {
            // A recv may have given up its tensor after the channel had ended.
            let State { calls, aftermath, .. } = &mut *held;
            inner.keep_given_up(calls, aftermath);
        }
        self.finish(inner);
    }

    /// Sends a tensor through the ring.
    ///
    /// # Errors
    /// [`NotHere`]; the daemon sends large tensors, and those of devices.
    #[inline]
    pub(in crate::attachment) fn send(
        self: Arc<Channel>,
        (step, key): (i64, &str),
        tensor: &Tensor,
        timeout: Option<std::time::Duration>,
    ) -> Result<ChannelSend, NotHere> {
        let Some(outgoing) = outgoing(tensor) else { return Err(NotHere::Switch) };
        let (timeout_ms, deadline) = self.deadline(timeout, Tick::now);
        let mut inner = self.lock();
        let sent = inner.send((step, key), outgoing, deadline);
        self.finish(inner);
        match sent {
            Ok(handle) => Ok(ChannelSend::new(self, handle, (timeout_ms, deadline))),
            Err(Refusal::Switch) => Err(NotHere::Switch),
            Err(Refusal::Fails(why)) => Err(NotHere::Fails(errors::unsent(&self.peer, why, (step, key)))),
        }
    }

    /// Sends the first of these tensors through the ring, as far as the channel takes them; the peer sees them together. Returns how many,
    /// and calls `each` for them.
    pub(in crate::attachment) fn send_all<K: AsRef<str>>(
        self: &Arc<Channel>,
        step: i64,
        tensors: &[(K, Option<Tensor>)],
        timeout: Option<std::time::Duration>,
        mut each: impl FnMut(Result<ChannelSend, Error>),
    ) -> usize {
        let time = self.deadline(timeout, Tick::now);
        let small = tensors.iter().map_while(|(key, tensor)| Some((key.as_ref(), outgoing(tensor.as_ref()?)?)));
        // The keys are the caller's code, and run before the channel is locked.
        let small: Vec<(&str, Outgoing<'_>)> = small.collect();
        // An atomic increment waits for all stores before it, such as those into the ring.
        let mut owners = vec![self.clone(); small.len()];
        let mut count = 0;
        let mut inner = self.lock();
        inner.half.begin_batch();
        for (key, outgoing) in &small {
            let sent = inner.send((step, key), *outgoing, time.1);
            let Some(owner) = owners.pop().filter(|_| sent != Err(Refusal::Switch)) else { break };
            count += 1;
            each(match sent {
                Ok(handle) => Ok(ChannelSend::new(owner, handle, time)),
                Err(Refusal::Fails(why)) => Err(errors::unsent(&self.peer, why, (step, key))),
                Err(Refusal::Switch) => unreachable!("it was left above"),
            });
        }
        inner.half.end_batch();
        self.finish(inner);
        count
    }

    /// Begins a recv.
    ///
    /// # Errors
    /// [`NotHere`].
    #[inline]
    pub(in crate::attachment) fn recv(
        self: Arc<Channel>,
        (step, key): (i64, &str),
        options: &mut RecvOptions,
    ) -> Result<ChannelRecv, NotHere> {
        if self.has_just_ended() {
            return Err(NotHere::Switch);
        }
        let time = self.deadline(options.timeout, Tick::now);
        let mut inner = self.lock();
        let posted = inner.recv((step, key), options, time.1);
        self.finish(inner);
        self.settle_debts();
        Ok(ChannelRecv::new(self, posted?, time))
    }

    /// True if the channel has ended; it is closed by then. A recv that is made now is not among those that fail because the peer is gone.
    #[inline]
    fn has_just_ended(&self) -> bool {
        let has_ended = self.has_ended();
        if has_ended {
            self.serve();
        }
        has_ended
    }

    /// True if the channel is to be closed, or was.
    #[inline]
    pub(in crate::attachment) fn has_ended(&self) -> bool {
        self.lane.has_ended()
    }

    /// Begins the first of these recvs, as far as the channel takes them; returns how many, and calls `each` for them.
    pub(in crate::attachment) fn recv_all<K: AsRef<str>>(
        self: &Arc<Channel>,
        step: i64,
        wanted: &mut [(K, RecvOptions)],
        mut each: impl FnMut(Result<ChannelRecv, Unreceived>),
    ) -> usize {
        if self.has_just_ended() {
            return 0;
        }
        // As in `send_all`.
        let mut owners = vec![self.clone(); wanted.len()];
        let now = Tick::now();
        let named = wanted.iter_mut().map(|(key, options)| {
            let (key, time): (&K, _) = (key, self.deadline(options.timeout, || now));
            (key.as_ref(), options, time)
        });
        let named: Vec<(&str, &mut RecvOptions, (u32, Tick))> = named.collect();
        let mut count = 0;
        let mut inner = self.lock();
        for (key, options, time) in named {
            let Some(owner) = owners.pop() else { break };
            match inner.recv((step, key), options, time.1) {
                Ok(slot) => each(Ok(ChannelRecv::new(owner, slot, time))),
                Err(NotHere::Fails(error)) => each(Err(error.into())),
                Err(NotHere::Switch) => break,
            }
            count += 1;
        }
        self.finish(inner);
        self.settle_debts();
        count
    }

    /// Calls `take` as long as it takes outcomes, with the lock taken once.
    pub(crate) fn take_all(&self, mut take: impl FnMut(&mut Inner) -> bool) {
        let mut inner = self.lock();
        if self.has_record() {
            self.drain(&mut inner);
        }
        while take(&mut inner) {}
        self.finish(inner);
        self.settle_debts();
    }

    /// True if a shard passes on what the two sides write.
    pub(super) fn is_switched(&self) -> bool {
        matches!(self.bell, Bell::Shard(_))
    }

    /// True if both sides read.
    pub(super) fn is_open(&self) -> bool {
        self.lane.other() == Standing::Here
    }
}

/// A tensor as the ring carries it, if it is small and lies in host memory.
#[inline]
fn outgoing(tensor: &Tensor) -> Option<Outgoing<'_>> {
    is_inline(tensor).then(|| Outgoing { meta: tensor.meta().as_wire(), payload: tensor.bytes() })
}

impl Inner {
    #[inline]
    fn send(&mut self, (step, key): (i64, &str), outgoing: Outgoing<'_>, deadline: Tick) -> Result<u64, Refusal> {
        if !self.is_active {
            return Err(Refusal::Switch);
        }
        self.half.send((step, key.as_bytes()), outgoing, deadline.milliseconds())
    }

    #[inline]
    fn recv(&mut self, (step, key): (i64, &str), options: &mut RecvOptions, deadline: Tick) -> Result<u32, NotHere> {
        let is_on_device = |destination: &Destination| destination.device().is_some();
        if key.len() > KEY_BYTES_MAX || options.destination.as_ref().is_some_and(is_on_device) {
            return Err(NotHere::Switch);
        }
        let (key, data) = (key.as_bytes(), &mut options.destination);
        if !self.half.takes_recvs(step) {
            return self.half.claim(step, key, data).ok_or(NotHere::Switch);
        }
        let (deadline, fails_if_gone) = (deadline.milliseconds(), options.fail_if_gone);
        let posted = self.half.post(Posting { step, key, deadline, fails_if_gone, data });
        posted.map_err(|why| NotHere::Fails(errors::too_many(why)))
    }

    /// The tensor of a recv that is done.
    #[inline]
    pub(super) fn received(&mut self, slot: u32) -> RecvOutcome {
        if let Some(destination) = self.half.take_data(slot) {
            return self.landed(slot, destination);
        }
        let content = self.half.content(slot);
        let tensor = self.kinds.tensor(content.meta(), Buffer::copy_of(content.payload()));
        self.half.free(slot);
        Ok(tensor?)
    }

    /// The tensor of a recv that is done, in the caller's memory.
    #[cold]
    fn landed(&mut self, slot: u32, destination: Destination) -> RecvOutcome {
        let content = self.half.content(slot);
        let (meta, payload) = (content.meta(), content.payload());
        let mut memory = destination.into_memory();
        memory.truncate(payload.len());
        memory.copy_from_slice(payload);
        let tensor = self.kinds.tensor(meta, memory);
        self.half.free(slot);
        Ok(tensor?)
    }

    /// The error of a recv that has failed.
    #[cold]
    pub(super) fn unreceived(&mut self, slot: u32, why: Why, (peer, timeout_ms): (&str, u32)) -> Unreceived {
        let (step, key) = self.half.name(slot);
        let data = self.half.take_data(slot);
        let content = self.half.content(slot);
        let misfit = data.as_ref().and_then(|data| data.check(content.meta(), content.payload().len() as u64).err());
        let error = match (why, self.refused.remove(&slot), &self.end) {
            (Why::Misfit, ..) => misfit.unwrap_or_else(|| errors::too_many(why)),
            (Why::Refused, Some(error), _) => error,
            (Why::Closed, _, Some(end)) => end.clone(),
            _ => errors::unreceived(peer, why, (step, &key), timeout_ms, self.half.reason(step)),
        };
        self.half.free(slot);
        Unreceived::returning(error, data)
    }

    /// How a send ended, if it has.
    #[inline]
    pub(super) fn end_of_send(&mut self, handle: u64) -> Option<Ended<SendEnd>> {
        match self.half.sent(handle) {
            Sent::Taken => Some(Ended::Here(SendEnd::Taken)),
            Sent::Open if self.half.has_ended() => self.end_elsewhere(handle),
            Sent::Open => None,
            Sent::Returned(why) => Some(Ended::Here(SendEnd::Returned(why))),
        }
    }

    /// How a send ended that the peer had not taken when the channel ended.
    #[cold]
    fn end_elsewhere(&self, handle: u64) -> Option<Ended<SendEnd>> {
        if self.end.is_some() {
            return Some(Ended::Here(SendEnd::Closed));
        }
        Some(match self.redirected.get(&handle)? {
            Ok(call) => Ended::Moved(*call),
            Err(_) => Ended::Here(SendEnd::Refused),
        })
    }

    /// Takes the outcome of a send that has ended.
    #[inline]
    pub(super) fn take_sent(&mut self, handle: u64, end: SendEnd, of: (&str, u32)) -> Result<(), Error> {
        match end {
            SendEnd::Taken => Ok(()),
            end => Err(self.send_error(handle, end, of)),
        }
    }

    #[cold]
    fn send_error(&mut self, handle: u64, end: SendEnd, of: (&str, u32)) -> Error {
        let refused = self.redirected.remove(&handle).and_then(Result::err);
        match (end, refused, &self.end) {
            (SendEnd::Returned(why), ..) => self.unsent(handle, why, of),
            (_, Some(error), _) => error,
            (_, None, Some(end)) => end.clone(),
            (_, None, None) => unreachable!("it was refused, or this side has left"),
        }
    }

    #[cold]
    fn unsent(&mut self, handle: u64, why: Why, (peer, timeout_ms): (&str, u32)) -> Error {
        let (step, key) =
            self.half.name_of_returned(handle).map_or((0, Vec::new()), |(step, key)| (step, key.to_vec()));
        let error = errors::returned(peer, why, (step, &key), timeout_ms, self.half.reason(step));
        self.half.forget_send(handle);
        error
    }
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Channel({})", self.peer)
    }
}
