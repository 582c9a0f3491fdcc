//! The protocol with one peer shard, without I/O: requests by id, answers, releases, over any number of links.
//!
//! A session outlives its links. `handle_*` and [`Session::inbound`] take events in, [`Session::fill`] puts frames into the
//! outbox, [`Session::poll_event`] reports events to the owner, and [`Session::next_timeout`] says when to call
//! [`Session::handle_timeout`]. Time is always an argument. The style is that of quinn-proto.
//!
//! Nothing is lost when a link dies: the consumer repeats outstanding requests under the same ids; the producer keeps each
//! tensor until its release and answers a repeated id with the same tensor. Releases are numbered and acknowledged, so that
//! none is lost with its link.
//!
//! Exactly once, over any number of links:
//!
//! 1. A request has the consumer's handle as its id. The producer answers with the tensor and keeps it.
//! 2. The consumer releases it: *taken*, or *returned* (cancelled, no room, too large). Returned tensors go back into the table
//!    under their key, unless their send's deadline has passed: its caller got *delivery unknown*, and only the memory is
//!    returned.
//! 3. Releases are sent in front of the next request; a lone release waits for one turn, since the task that got the tensor
//!    usually requests more.
//! 4. On a new link the consumer sends the unacknowledged releases, then repeats all outstanding requests under the same
//!    ids, then sends *resumed*. Tensors neither released nor requested again by then go back to the table.
//! 5. A session resumes only if each side remembers the other's incarnation. If a peer restarted, or dropped the session
//!    because a lease expired, both sides find out: outstanding requests end with Unavailable, and unreleased tensors are
//!    returned.
//!
//! Small tensors that are sent ahead of their requests have a rule of their own: see `ahead.rs`.
//!
//! The window (40) counts requests that the producer has neither answered nor *parked*. Parking a request whose tensor is not
//! available yet frees its place; otherwise forty requests for late tensors would block the forty-first forever.
//!
//! `W` is returned to the owner with an answer (a waiter), `D` with a release (who has sent). Runs on one shard; bounded by
//! [`SessionLimits`] and `limits.rs`.

mod acceptor;
mod ahead;
mod consumer;
mod control;
mod landings;
mod producer;
mod puller;
mod pusher;
mod quota;
mod receive;
mod releases;
mod server;

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Slab, earliest};

use crate::arena::Handle;
use crate::call::Unreceived;
use crate::error::{Error, LinkError};
use crate::if_gone::IfGone;
use crate::limits::SessionLimits;
use crate::link::Landing;
use crate::named_rows::NamedRowsBuf;
use crate::outbox::{Kept, Outbox, Owner};
use crate::payload::Meta;
use crate::payload::Payload;
use crate::pull_buffer::PullBuffer;
use crate::tensor::Tensor;
use crate::trace::Recorder;

use acceptor::Acceptor;
pub use acceptor::{Credit, Opened, Wanted};
use ahead::SentAhead;
pub use ahead::{AheadBack, AheadParams, CameAhead, CameTogether, SendingAhead, TakenTogether, ahead_cost};
use consumer::Consumer;
pub use consumer::{RequestOptions, RequestParams};
use control::{Control, ControlQueue};
use landings::Landings;
use producer::Producer;
pub use puller::PullParams;
use puller::Puller;
pub use pusher::PushParams;
use pusher::Pusher;
pub use quota::{Charges, PeerQuota, RowCharges};
pub use receive::{Inbound, KeyOf, ReceiveMemory, Sink, Untaken};
use server::Server;
pub use server::{EmptyStore, Named, Store, Wait};

/// What a session tells its owner. Kept small, since a peer's requests come as events by the million; an owner with a
/// [`Sink`] gets tensors without events.
#[derive(Debug)]
pub enum Event<W, D> {
    /// The peer requests a tensor; a [`Sink`] hears of it at once if no event waits. Answer with [`Session::respond`],
    /// [`Session::park`] or [`Session::refuse`].
    Requested(PeerRequest),
    /// The peer requests rows of a table; answer as for [`Requested`](Self::Requested).
    RowsRequested(Box<PeerRowRequest>),
    /// The peer no longer waits for a request that was parked.
    Cancelled(Handle),
    /// A request of this side ended.
    RequestEnded {
        /// The waiter of its [`RequestParams`].
        waiter: W,
        /// The tensor, or why there is none.
        outcome: Box<Result<Arrived, Unreceived>>,
    },
    /// A tensor of this side was released.
    Released {
        /// What was given to [`Session::respond`].
        pending: D,
        /// The tensor's metadata and bytes.
        tensor: Box<(Meta, Payload)>,
        /// True if the consumer has it, false if it goes back to where it came from.
        taken: bool,
    },
    /// Tensors of this side that were [sent ahead](Session::send_ahead) were taken.
    TakenAhead {
        /// The `pending` of their [`AheadParams`]s.
        pending: D,
        /// How many.
        count: u32,
    },
    /// A tensor that was sent ahead is back.
    BackFromAhead(Box<AheadBack<D>>),
    /// A pull by this side ended: each place of its pull buffer is filled or failed.
    Pulled {
        /// The waiter of its [`PullParams`].
        waiter: W,
        /// Its pull buffer.
        pull_buffer: PullBuffer,
    },
    /// The peer names a set of keys that it will pull.
    Named(Named),
    /// The peer will no longer pull these slots. A slot is listed once for each time it was named.
    Forgotten {
        /// The slots.
        slots: Vec<u32>,
    },
    /// Pushes of this side ended, all with the same outcome.
    PushEnded {
        /// The `pending` of each [`PushParams`].
        pending: D,
        /// How many.
        count: u32,
        /// `Ok` if the peer's queue has taken them.
        outcome: Result<(), Error>,
    },
    /// The peer begins a stream of pushes.
    Opened(Opened),
    /// A stream of the peer waits for more credit: [`Session::wanted`] says how much.
    Wanting {
        /// The stream.
        stream: Handle,
    },
    /// A push came, within the credit of its stream. It counts as taken unless it is refused.
    Pushed {
        /// The stream.
        stream: Handle,
        /// Its number in the stream.
        number: u64,
        /// The tensor.
        tensor: Box<Tensor>,
    },
    /// Streams of the peer have ended.
    Closed {
        /// The streams.
        streams: Vec<Handle>,
    },
    /// The peer's task aborts a step.
    Aborted {
        /// The step.
        step: i64,
        /// The peer's task.
        peer_task: u32,
        /// Why.
        reason: Box<str>,
    },
}

/// A request of the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRequest {
    /// Names the request in the answer.
    pub id: Handle,
    /// The peer's task that wants the tensor, by the owner's number for it.
    pub consumer: u32,
    /// The task of this side that should send it, by its index in this side's list.
    pub producer: u16,
    /// The step.
    pub step: i64,
    /// How much longer the peer waits, in milliseconds.
    pub timeout_ms: u32,
    /// What the request does if the producer's task has left.
    pub if_gone: IfGone,
    /// The key's range in the session's buffer, if this came as an event: see [`Session::key`].
    key: Range<usize>,
}

/// A request of the peer for rows of tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRowRequest {
    /// Names the request in the answer.
    pub id: Handle,
    /// The peer's task that wants the rows, by the owner's number for it.
    pub consumer: u32,
    /// The task of this side that has the tables, by its index in this side's list.
    pub producer: u16,
    /// The oldest version of each table that will do.
    pub min_version: i64,
    /// How much longer the peer waits, in milliseconds.
    pub timeout_ms: u32,
    /// The request fails if the task has left.
    pub fail_if_gone: bool,
    /// The tables, and the rows of each.
    pub rows: NamedRowsBuf,
}

/// A received tensor.
#[derive(Debug)]
pub struct Arrived {
    /// Its metadata, unchecked.
    pub meta: Meta,
    /// Exactly its bytes, in the consumer's own buffer if one went with the request.
    pub buffer: Buffer,
}

/// The tasks at the other end, as the owner numbers them.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    /// The owner's number for each task in the peer's list.
    pub numbers: Vec<u32>,
}

impl Roster {
    fn place_of(&self, peer_task: u32) -> Option<u16> {
        self.numbers.iter().position(|&number| number == peer_task).map(|place| place as u16)
    }
}

/// Describes what overdue calls have waited for.
struct Awaited<'a> {
    /// For the peer's task of this number: who it is, and the state of the connection.
    standing: &'a dyn Fn(u32) -> String,
    is_attached: bool,
}

impl Awaited<'_> {
    /// As text; `missing` is what the peer has not done, which is known only while it is connected.
    fn of(&self, peer_task: u32, missing: &str) -> String {
        let standing = (self.standing)(peer_task);
        if self.is_attached { format!("{standing}, {missing}") } else { standing }
    }
}

struct Attached {
    heard: Instant,
    pinged: Option<Instant>,
    roster: Roster,
    tensor_bytes_max: u64,
}

/// One session with a peer shard; see the module's documentation.
pub struct Session<W, D> {
    /// The peer's transport address, for messages.
    peer: Box<str>,
    limits: SessionLimits,
    quota: Rc<PeerQuota>,
    /// Number of tasks in this side's task list: requests for others are refused.
    tasks: u16,
    /// Number of links that this session has had.
    epoch: u32,
    attached: Option<Attached>,
    /// Set when the peer said goodbye: nothing more is requested on this link.
    going_away: Option<Box<str>>,
    outbox: Outbox,
    control: ControlQueue,
    consumer: Consumer<W>,
    producer: Producer<D>,
    puller: Puller<W>,
    server: Server,
    pusher: Pusher<D>,
    ahead: SentAhead<D>,
    acceptor: Acceptor,
    landings: Landings,
    /// Number of the next tensor that may come ahead.
    ahead_next: u64,
    /// Total cost of the tensors that came ahead and are kept here.
    kept_ahead: usize,
    /// Which is staged first at the next turn: answers, or parts of pulls.
    parts_first: bool,
    events: VecDeque<Event<W, D>>,
    /// [`Requested`](Event::Requested) and [`RowsRequested`](Event::RowsRequested) events in the queue. The owner has not
    /// parked or answered them yet; they count as if it had.
    undecided: usize,
    /// [`Aborted`](Event::Aborted) events in the queue.
    aborts: usize,
    /// Keys of the [`Requested`](Event::Requested) events in the queue, concatenated.
    event_keys: String,
    /// What was received.
    came: Traffic,
}

/// Traffic in one direction over all links of a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames, including releases and notes.
    pub messages: u64,
    /// Tensors; one sent again on another link counts again.
    pub tensors: u64,
}

impl<W, D: PartialEq + Clone> Session<W, D> {
    /// A session without a link yet, with the peer at transport address `peer`; this side serves `tasks` tasks.
    pub fn new(peer: &str, tasks: u16, limits: SessionLimits) -> Self {
        let quota = PeerQuota::new(&limits);
        Self::sharing(peer, tasks, limits, quota)
    }

    /// Like [`new`](Self::new), for a peer with several sessions at this shard: its quota applies to all of them together.
    pub fn sharing(peer: &str, tasks: u16, limits: SessionLimits, quota: Rc<PeerQuota>) -> Self {
        Self {
            peer: peer.into(),
            tasks,
            epoch: 0,
            attached: None,
            going_away: None,
            outbox: Outbox::new(limits.turn_bytes, limits.turn_payloads, limits.chunk_bytes),
            control: ControlQueue::default(),
            consumer: Consumer::new(&limits),
            producer: Producer::new(&limits, &quota),
            puller: Puller::new(&limits),
            server: Server::new(&limits, &quota),
            pusher: Pusher::new(&limits),
            ahead: SentAhead::new(),
            acceptor: Acceptor::new(&quota),
            landings: Landings::default(),
            ahead_next: 0,
            kept_ahead: 0,
            parts_first: false,
            events: VecDeque::new(),
            undecided: 0,
            aborts: 0,
            event_keys: String::new(),
            came: Traffic::default(),
            limits,
            quota,
        }
    }

    /// From now on, records every request in the trace.
    pub fn set_recorder(&mut self, recorder: &Recorder) {
        self.consumer.recorder = Some(recorder.clone());
        self.producer.recorder = Some(recorder.clone());
    }

    /// Sets the number of tasks that this side's next handshake names.
    pub fn set_tasks(&mut self, tasks: u16) {
        self.tasks = tasks;
    }

    /// What the peer uses of this shard, over all its sessions.
    pub fn quota(&self) -> &Rc<PeerQuota> {
        &self.quota
    }

    /// What the peer uses through this session.
    ///
    /// # Panics
    /// If the counts disagree with what is kept.
    pub fn check_charges(&self) -> Charges {
        let parts = [self.server.counted(), self.acceptor.counted()];
        parts.iter().for_each(|(counted, there)| assert_eq!(counted, there, "what {} has here", self.peer));
        let mut all = self.producer.counted();
        parts.iter().for_each(|(counted, _)| all.iter_mut().zip(counted).for_each(|(all, part)| *all += part));
        all
    }

    /// The slots of the peer's sets, each as often as they name it.
    pub fn slots_named(&self) -> impl Iterator<Item = u32> {
        self.server.slots()
    }

    /// The peer's transport address.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Number of links of this session; sent in the handshake.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// True while there is a link.
    pub fn is_attached(&self) -> bool {
        self.attached.is_some()
    }

    /// Whether the state of this side's streams is consistent; for the simulation.
    ///
    /// # Errors
    /// The inconsistency.
    #[cfg(feature = "fuzzing")]
    pub fn check_streams(&self) -> Result<(), String> {
        self.pusher.check()?;
        self.acceptor.check()
    }

    /// True if the peer pushes into queues of this side; for the simulation.
    #[cfg(feature = "fuzzing")]
    pub fn has_streams(&self) -> bool {
        self.acceptor.has_streams()
    }

    /// Whether the streams that `peer` pushes here agree with what `peer` keeps of them; for the simulation. `peer` is the
    /// other end of this session, in the same life of it.
    ///
    /// # Errors
    /// The disagreement.
    #[cfg(feature = "fuzzing")]
    pub fn check_streams_from(&self, peer: &Self) -> Result<(), String> {
        self.acceptor.check_with(&peer.pusher)
    }

    /// Number of requests, pulls and pushes of this side that have not ended.
    pub fn requests(&self) -> usize {
        self.consumer.requests() + self.puller.pulls() + self.pusher.pushes()
    }

    /// Number of tensors handed to the peer and not yet released.
    pub fn unreleased(&self) -> usize {
        self.producer.unreleased() + self.ahead.len()
    }

    /// True if the two sides do not yet agree on what was released: a tensor handed to the peer was not released, or a
    /// release of one of the peer's tensors was not acknowledged.
    pub fn awaits_releases(&self) -> bool {
        self.unreleased() > 0 || self.consumer.has_releases()
    }

    /// True if a link is needed: there is something to request or to release.
    pub fn wants_link(&self) -> bool {
        let requests = self.consumer.requests() > 0 || self.puller.pulls() > 0 || self.pusher.pushes() > 0;
        self.attached.is_none() && (requests || self.consumer.has_releases())
    }

    /// A link is open, the session's `epoch`th as both sides agreed in the handshake. Outstanding requests are repeated on it;
    /// requests for tasks that the peer does not serve end with NotFound.
    pub fn attach(&mut self, now: Instant, epoch: u32, roster: Roster, tensor_bytes_max: u64) {
        debug_assert!(self.attached.is_none(), "detach comes first");
        self.epoch = epoch;
        self.going_away = None;
        self.consumer.resume(&roster, &self.peer, &mut self.events);
        let not_served = consumer::not_served(&self.peer);
        self.puller.resume(&roster, &not_served, &mut self.events);
        self.pusher.resume((&roster, tensor_bytes_max), &not_served, &mut self.control, &mut self.events);
        self.producer.resume();
        self.control.push(Control::Resumed);
        self.attached = Some(Attached { heard: now, pinged: None, roster, tensor_bytes_max });
    }

    /// The link is gone. `landings` is what it was filling; these are handled like those that waited for a chunk. The owner
    /// drops the peer's parked requests: those still open will be sent again.
    pub fn detach(&mut self, landings: impl IntoIterator<Item = Landing>) {
        self.attached = None;
        self.going_away = None;
        self.control = ControlQueue::default();
        let mut waiting = self.landings.take();
        // Without the link, nobody can write to announced places any more.
        self.consumer.stage_revoked(&mut self.outbox);
        waiting.extend(self.outbox.revoked().drain(..).filter_map(|revocation| match revocation.kept {
            Kept::Response(landing) => Some(landing),
            Kept::Memory(_) => None,
        }));
        self.outbox.clear();
        self.collect_written();
        waiting.extend(landings);
        let mut landings = waiting;
        self.puller.suspend(&mut landings);
        self.consumer.suspend(landings);
        self.producer.suspend();
        self.ahead.suspend();
        // The owner forgets the tensors that came ahead and were kept: the peer takes them back.
        self.kept_ahead = 0;
        self.pusher.suspend();
        self.acceptor.suspend();
        let slots = self.server.suspend();
        if !slots.is_empty() {
            self.events.push_back(Event::Forgotten { slots });
        }
    }

    /// The peer is another process now, or gone for good: every request already sent ends with `error`, and every tensor handed
    /// to it and not released comes back. Requests never sent keep waiting.
    pub fn reset(&mut self, error: &Error) {
        debug_assert!(self.attached.is_none(), "detach comes first");
        self.consumer.end_sent(error, &mut self.events);
        self.puller.end_sent(error, &mut self.events);
        self.forget_pushes(error);
        self.producer.take_back_all(&mut self.events);
        self.ahead.take_back_all(&mut self.events);
        (self.epoch, self.ahead_next) = (0, 0);
    }

    /// The peer is the same process, but does not remember this session: every tensor handed to it and not released comes back,
    /// and every open request will be sent as if for the first time.
    pub fn start_anew(&mut self) {
        debug_assert!(self.attached.is_none(), "detach comes first");
        self.consumer.forget_sent();
        self.puller.forget_sent();
        let error = Error::unavailable(&self.peer, "it lost its record of earlier pushes, which may have arrived");
        self.forget_pushes(&error);
        self.producer.take_back_all(&mut self.events);
        self.ahead.take_back_all(&mut self.events);
        (self.epoch, self.ahead_next) = (0, 0);
    }

    /// The owner forgets the peer: the peer's push streams have ended.
    pub fn forget_streams(&mut self) {
        let streams = self.acceptor.forget_all();
        if !streams.is_empty() {
            self.events.push_back(Event::Closed { streams });
        }
    }

    /// Resets the push streams, which are no longer in sync.
    fn forget_pushes(&mut self, error: &Error) {
        self.pusher.end_tried(error, &mut self.control, &mut self.events);
        self.forget_streams();
    }

    /// The next event for the owner.
    pub fn poll_event(&mut self) -> Option<Event<W, D>> {
        let event = self.events.pop_front();
        match event {
            Some(Event::Requested(_) | Event::RowsRequested(_)) => self.undecided -= 1,
            Some(Event::Aborted { .. }) => self.aborts -= 1,
            _ => {}
        }
        event
    }

    /// Swaps the waiting events with `other`, which must be empty: a way to handle many without taking them one by one.
    pub fn swap_events(&mut self, other: &mut VecDeque<Event<W, D>>) {
        debug_assert!(other.is_empty());
        std::mem::swap(&mut self.events, other);
        (self.undecided, self.aborts) = (0, 0);
    }

    /// True if [`poll_event`](Self::poll_event) has something.
    #[inline]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The key of a request that [`poll_event`](Self::poll_event) just returned; valid until the next call that takes in bytes.
    pub fn key(&self, request: &PeerRequest) -> &str {
        &self.event_keys[request.key.clone()]
    }

    /// What this session has sent.
    pub fn sent(&self) -> Traffic {
        Traffic { messages: self.outbox.frames(), tensors: self.outbox.tensors() }
    }

    /// What this session has received.
    pub fn received(&self) -> Traffic {
        self.came
    }

    /// Sets the slab to which tensors in device memory are copied for links that cannot read it.
    pub fn set_copy_slab(&mut self, slab: Slab) {
        self.outbox.set_copy_slab(slab);
    }

    /// What the link is to send.
    pub fn outbox(&mut self) -> &mut Outbox {
        &mut self.outbox
    }

    /// Takes back the payloads that the link has sent.
    #[inline]
    pub fn collect_written(&mut self) {
        if !self.outbox.returned().is_empty() {
            self.collect_returned();
        }
    }

    fn collect_returned(&mut self) {
        for (owner, payload) in self.outbox.returned().drain(..) {
            match owner {
                Owner::Response(token) => self.producer.written(token, payload, &mut self.events),
                Owner::Push { stream, number } => self.pusher.written(stream, number, payload),
                Owner::Nobody => {}
            }
        }
    }

    /// True if the session accepts more bytes: a peer that does not read its answers is not read from.
    pub fn can_receive(&self) -> bool {
        !self.control.is_full()
    }

    /// True if something other than releases waits to be sent: a lone release waits one turn, since the next request usually
    /// follows it and both leave in one write.
    #[inline]
    pub fn is_urgent(&self) -> bool {
        debug_assert!(!self.is_idle() || !self.has_urgent(), "what waits to leave would wait for ever");
        !self.is_idle() && self.has_urgent()
    }

    /// True if no part of the session has anything to send, now or later. This is the usual state, and costs a few loads to
    /// check.
    #[inline]
    fn is_idle(&self) -> bool {
        let answers = self.producer.is_idle() && self.server.is_idle() && !self.acceptor.has_news();
        let answers = answers && self.ahead.is_idle();
        let requests = self.consumer.is_idle() && !self.puller.can_request() && self.pusher.is_idle();
        answers && requests && self.control.is_empty() && !self.outbox.has_chunks()
    }

    fn has_urgent(&self) -> bool {
        let requests = self.going_away.is_none() && (self.consumer.can_request() || self.puller.can_request());
        let (outbox, producer, server) = (&self.outbox, &self.producer, &self.server);
        let answers = producer.has_responses(outbox) || server.has_parts(outbox) || self.acceptor.has_news();
        let answers = answers || !self.ahead.is_idle();
        let requests = requests || (self.going_away.is_none() && self.pusher.has_output(outbox));
        self.attached.is_some() && (!self.control.is_empty() || outbox.has_chunks() || answers || requests)
    }

    /// True if anything waits to be sent.
    pub fn has_output(&self) -> bool {
        !self.outbox.is_empty()
            || self.consumer.has_revoked()
            || self.is_urgent()
            || (self.attached.is_some() && self.consumer.has_unsent_releases())
    }

    /// [`fill_from`](Self::fill_from) for a side that publishes nothing.
    pub fn fill(&mut self, now: Instant, one_message: bool) -> bool {
        self.fill_from(&EmptyStore, now, one_message)
    }

    /// Puts frames into the outbox until it is full or nothing is left to send; the peer's pulls are answered from `store`.
    /// With `one_message`, stops after the first request, answer or control frame, so that each leaves in a write of its own.
    /// True if it staged any; it may then have more to stage before the owner's next turn.
    pub fn fill_from<S: Store + ?Sized>(&mut self, store: &S, now: Instant, one_message: bool) -> bool {
        self.server.may_look();
        self.fill_within(store, now, one_message) && !self.server.has_looked()
    }

    fn fill_within<S: Store + ?Sized>(&mut self, store: &S, now: Instant, one_message: bool) -> bool {
        let mut filled = false;
        if self.attached.is_none() {
            return false;
        }
        self.consumer.stage_revoked(&mut self.outbox);
        loop {
            if self.outbox.is_full() {
                return filled;
            }
            if self.consumer.has_unsent_releases() {
                self.consumer.stage_releases(&mut self.outbox);
                filled = true;
                continue;
            }
            if self.is_idle() {
                return filled;
            }
            // Control frames go first: a repeated request must not overtake the cancellation of its predecessor.
            // Chunks are next, a few at a time: other frames pass between them.
            let more = !self.control.is_empty() && self.control.stage(&mut self.outbox)
                || self.outbox.has_chunks() && self.outbox.stage_chunk()
                || self.ahead.stage(&mut self.outbox)
                || self.stage_tensors(store, one_message)
                || self.stage_requests(now, one_message)
                || !self.control.is_empty() && self.control.stage_conclusion(&mut self.outbox);
            filled |= more;
            if !more || one_message {
                return filled;
            }
        }
    }

    /// Stages responses and parts of pulls, which take turns.
    #[inline]
    fn stage_tensors<S: Store + ?Sized>(&mut self, store: &S, one_message: bool) -> bool {
        if self.server.is_idle() {
            let (producer, outbox, events) = (&mut self.producer, &mut self.outbox, &mut self.events);
            return !producer.is_idle() && producer.stage_responses(outbox, one_message, events);
        }
        self.parts_first = !self.parts_first;
        if self.parts_first && self.server.stage(store, &mut self.outbox) {
            return true;
        }
        self.producer.stage_responses(&mut self.outbox, one_message, &mut self.events)
            || self.server.stage(store, &mut self.outbox)
    }

    /// Stages requests, pulls and pushes of this side.
    #[inline]
    fn stage_requests(&mut self, now: Instant, one_message: bool) -> bool {
        let Some(attached) = &self.attached else { return false };
        if self.acceptor.has_news() && self.acceptor.stage(&mut self.outbox) {
            return true;
        }
        let (roster, outbox) = (&attached.roster, &mut self.outbox);
        self.going_away.is_none()
            && (!self.pusher.is_idle() && self.pusher.stage(roster, outbox, one_message, &mut self.events)
                || self.puller.can_request() && self.puller.stage(now, roster, outbox)
                || !self.consumer.is_idle() && self.consumer.stage_requests(now, roster, outbox, one_message))
    }

    /// Ends `step` for `task` (its index in this side's task list) at the peer too. If a peer reads so little that the queue
    /// for such messages is full, it is not told: its requests end by their deadlines.
    pub fn abort(&mut self, step: i64, task: u16, reason: &str) {
        if self.attached.is_some() && self.control.has_room() {
            self.control.push(Control::Abort { step, task, reason: reason.into() });
        }
    }

    /// Says goodbye: the peer requests nothing more on this link.
    pub fn go_away(&mut self, reason: &str) {
        if self.attached.is_some() {
            self.control.push(Control::GoAway(reason.into()));
        }
    }

    /// The latest time at which to call [`handle_timeout`](Self::handle_timeout).
    pub fn next_timeout(&self) -> Option<Instant> {
        let liveness = self.attached.as_ref().map(|attached| match attached.pinged {
            None => attached.heard + self.limits.heartbeat,
            Some(pinged) => pinged + self.pong_timeout(),
        });
        let (consumer, puller, pusher) = (&self.consumer, &self.puller, &self.pusher);
        earliest([consumer.next_deadline(), puller.next_deadline(), pusher.next_deadline(), liveness])
    }

    /// How long the answer to a ping may take. Counted from the ping, so a shard that was itself stalled pings first instead of
    /// declaring the peer dead.
    fn pong_timeout(&self) -> Duration {
        self.limits.peer_timeout.saturating_sub(self.limits.heartbeat).max(Duration::from_millis(1))
    }

    /// The peer's address and whether it is connected, for messages.
    fn standing(&self) -> String {
        format!("{}: {}", self.peer, if self.is_attached() { "connected" } else { "not connected" })
    }

    /// [`handle_timeout_of`](Self::handle_timeout_of) for an owner that knows only the peer's address.
    ///
    /// # Errors
    /// As [`handle_timeout_of`](Self::handle_timeout_of).
    pub fn handle_timeout(&mut self, now: Instant) -> Result<(), LinkError> {
        let standing = self.standing();
        self.handle_timeout_of(now, &|_| standing.clone())
    }

    /// Time has passed: ends requests whose deadline is over, and pings an idle peer. `standing` describes the peer's task of a
    /// number: who and where it is, and the state of the connection.
    ///
    /// # Errors
    /// The peer has been silent for too long: the owner detaches.
    pub fn handle_timeout_of(&mut self, now: Instant, standing: &dyn Fn(u32) -> String) -> Result<(), LinkError> {
        let awaited = Awaited { standing, is_attached: self.attached.is_some() };
        self.consumer.expire(now, &awaited, &mut self.control, &mut self.events);
        self.puller.expire(now, &awaited, &mut self.control, &mut self.events);
        self.pusher.expire(now, &awaited, &mut self.events);
        let pong_timeout = self.pong_timeout();
        if let Some(attached) = &mut self.attached {
            let silence = now.saturating_duration_since(attached.heard);
            match attached.pinged {
                Some(pinged) if now >= pinged + pong_timeout => return Err(LinkError::Silent(silence)),
                None if silence >= self.limits.heartbeat => {
                    attached.pinged = Some(now);
                    self.control.push(Control::Ping(u64::from(self.epoch)));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// An error as it is sent to a peer: its code and reason.
fn failure_of(error: &Error) -> (u8, String) {
    (error.wire_code(), error.wire_reason())
}

#[cfg(test)]
mod tests;
