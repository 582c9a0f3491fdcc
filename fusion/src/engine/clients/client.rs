//! One client on one shard: its calls are passed to the node, and their outcomes are written into its ring. Everything the
//! client writes is checked; a client that violates the protocol is disconnected, which affects only itself.

mod answers;
mod plans;
mod publications;
mod queues;
mod receiving;
mod traffic;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_runtime::Buffer;
use sealane_transport::shm::limits::PEERS_MAX;
use sealane_transport::shm::{
    CallListBuf, ClientBell, DaemonEnd, Doorbell, NO_TIMEOUT, PayloadAt, Record, SharedMemory, SmallCall, Span,
    Submission,
};
use sealane_transport::tensor::LastKind;
use sealane_transport::{Destination, Error, Handle, Tensor, TensorMeta, Unreceived};

use super::super::deadline;
use super::memory::{ClientArena, ReceiveArea, Shown};
use crate::limits::{CLIENT_BYTES_PER_TURN, CLIENT_CALLS_MAX, CLIENT_RECORDS_PER_TURN};
use crate::metrics::{ClientCounters, ClientMetrics, Roll, SeqLock};
use crate::node::{ClientCall, Node, Pool, PullRowsRequest, RecvRequest, RecvWaiter, SendWaiter, Ticket};
use answers::Answer;
use plans::Plans;
use publications::Publication;
use queues::Queues;
use receiving::{Receiving, Receivings};
use traffic::Traffic;

/// A peer that the client has named by number.
struct Peer {
    name: Box<str>,
    /// The pair with this peer, once it is known.
    pair: Option<u32>,
}

/// What all calls of one record share.
#[derive(Clone, Copy)]
struct Asked<'a> {
    peer: u16,
    pair: &'a Result<u32, Error>,
    step: i64,
    deadline: Instant,
}

/// A client as one shard sees it.
pub(in crate::engine) struct Client {
    /// The node's handle for its calls.
    pub(super) handle: Handle,
    pub(super) task: u16,
    pub(super) pid: i32,
    end: DaemonEnd,
    doorbell: Doorbell,
    bell: ClientBell,
    arena: ClientArena,
    area: Rc<ReceiveArea>,
    /// The peers, indexed by the client's numbers.
    peers: Vec<Peer>,
    receiving: Receivings,
    kinds: LastKind,
    plans: Plans,
    queues: Queues,
    /// Tensors that are published together once the last is there.
    together: Vec<Publication>,
    /// The call that the client just gave up.
    cancelled: Option<u32>,
    /// Something submitted in this turn may have taken long: a whole step was ended or freed, or everything waiting in a queue was handed
    /// on.
    swept: bool,
    /// Calls whose outcome the node has not reported yet.
    under_way: usize,
    /// Small tensors that came in this turn, reported together.
    arrived: CallListBuf,
    /// Outcomes that found no room in the ring.
    backlog: VecDeque<Answer>,
    /// Sends that succeeded, reported together.
    sent: Vec<u32>,
    /// Publications of tensors in the arena that succeeded, likewise.
    lent_to_peers: Vec<u32>,
    /// Calls whose memory came back after they had failed, or after their publication was replaced.
    returned: Vec<u32>,
    /// Calls that ended without reaching the node, to be reported before the next record is read.
    refused: Vec<(u32, Error)>,
    /// Queues that could not be opened, or are closed; reported likewise.
    queues_told: Vec<Answer>,
    /// The most urgent news written to the ring since the client was last woken.
    news: News,
    /// Nothing more is read: the client said goodbye, or broke the protocol.
    closed: bool,
    /// When to retry, if the ring had no room for all answers.
    look_at: Option<Instant>,
    counters: ClientCounters,
    traffic: Traffic,
    pub(super) metrics: Arc<ClientMetrics>,
}

/// A client's identity: its task, by index and by name, and its process.
pub(super) struct Who {
    pub(super) task: u16,
    pub(super) name: String,
    pub(super) pid: i32,
    /// Its arena as other clients see it, if they may view it and it may view theirs.
    pub(super) shown: Option<Shown>,
}

/// How urgently a client has to be woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum News {
    None,
    /// Sends were released, or publications are known: a client that waits for something else can learn of it later.
    Releases,
    Answers,
}

/// The client broke the protocol; it is disconnected.
#[derive(Debug)]
struct Misconduct(String);

impl Client {
    pub(super) fn new(
        Who { task, name, pid, shown }: Who,
        end: DaemonEnd,
        doorbell: Doorbell,
        bell: ClientBell,
        arena: SharedMemory,
    ) -> Self {
        let area = Rc::new(ReceiveArea::new(end.area().clone(), shown.map(|shown| shown.uid)));
        Self {
            handle: Handle::from_bits(0),
            task,
            pid,
            end,
            doorbell,
            bell,
            arena: ClientArena::new(arena, shown),
            area,
            peers: Vec::new(),
            receiving: Receivings::default(),
            kinds: LastKind::default(),
            plans: Plans::default(),
            queues: Queues::default(),
            together: Vec::new(),
            cancelled: None,
            swept: false,
            under_way: 0,
            arrived: CallListBuf::default(),
            backlog: VecDeque::new(),
            sent: Vec::new(),
            lent_to_peers: Vec::new(),
            returned: Vec::new(),
            refused: Vec::new(),
            queues_told: Vec::new(),
            news: News::None,
            closed: false,
            look_at: None,
            counters: ClientCounters::default(),
            traffic: Traffic::default(),
            metrics: Arc::new(ClientMetrics {
                task: name,
                pid,
                counters: SeqLock::default(),
                traffic: Roll::default(),
            }),
        }
    }

    pub(super) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// The memory in which tensors of this client lie: its arena, and its receive area.
    pub(super) fn memories(&self) -> [&SharedMemory; 2] {
        [self.arena.memory(), self.end.area()]
    }

    /// The receive area, as the node's pool.
    pub(super) fn pool(&self) -> Rc<dyn Pool> {
        self.area.clone()
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way + self.arrived.as_list().len() + self.backlog.len()
    }

    /// Updates the metrics for other threads.
    pub(super) fn show(&self, pinned_bytes: u64) {
        let under_way = self.under_way() as u64;
        let (views, views_refused) = self.area.count_views();
        let now = ClientCounters { under_way, pinned_bytes, views, views_refused, ..self.counters };
        self.metrics.counters.write(&now);
        self.traffic.show();
    }

    /// True if there is something to read, and reading is allowed.
    #[inline]
    pub(super) fn has_submissions(&self) -> bool {
        !self.closed && !self.is_blocked() && !self.end.submissions.is_empty()
    }

    /// Nothing is read from a client that does not read its answers.
    fn is_blocked(&self) -> bool {
        self.look_at.is_some()
    }

    /// Announces that the shard goes to sleep; false if the client has written something meanwhile.
    pub(super) fn try_sleep(&self) -> bool {
        self.end.own_sleep().announce();
        !self.has_submissions()
    }

    pub(super) fn wake(&self) {
        self.end.own_sleep().awake();
    }

    /// Wakes the client, which sleeps.
    pub(super) fn ring(&self) {
        self.bell.ring();
    }

    /// True if nothing more is read.
    #[cfg(feature = "fuzzing")]
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// When to retry a client that does not read its answers.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.look_at
    }

    /// Reads a bounded batch of what the client submits; returns the number of records.
    pub(super) fn read(&mut self, node: &mut Node, now: Instant, record: &mut Record) -> usize {
        let mut count = 0;
        let bytes_max = node.bytes_received() + CLIENT_BYTES_PER_TURN;
        self.swept = false;
        while count < CLIENT_RECORDS_PER_TURN
            && !self.closed
            && !self.is_blocked()
            && !self.swept
            && node.bytes_received() < bytes_max
        {
            let outcome = match self.end.submissions.pop(record) {
                Ok(false) => break,
                Ok(true) => match Submission::decode(record) {
                    Ok(submission) => {
                        count += submission.more_calls();
                        self.carry_out(node, now, submission)
                    }
                    Err(malformed) => Err(Misconduct(malformed.to_string())),
                },
                Err(broken) => Err(Misconduct(broken.to_string())),
            };
            count += 1;
            if let Err(misconduct) = outcome {
                self.hang_up(&misconduct.0);
            }
            if let Some(call) = self.cancelled.take() {
                self.cancel(node, call, record);
            }
            while let Some((call, error)) = self.refused.pop() {
                self.put(Answer::Failed { call, error, memory_back: true }, record);
            }
            while let Some(answer) = self.queues_told.pop() {
                self.put(answer, record);
            }
        }
        if count > 0 {
            self.end.submissions.publish();
        }
        count
    }

    /// Stops reading from the client, and closes its socket.
    pub(super) fn hang_up(&mut self, reason: &str) {
        if self.closed {
            return;
        }
        tracing::warn!(pid = self.pid, reason, "a client was disconnected");
        self.closed = true;
        // The daemon sees the socket close, as when a client exits.
        self.bell.take_leave();
    }

    /// Disconnects the client without touching its state: serving it has panicked, and that may be inconsistent.
    pub(super) fn fail(&self, panic: &str) {
        tracing::error!(pid = self.pid, task = self.metrics.task, panic, "a client was disconnected");
        self.bell.take_leave();
    }

    fn carry_out(&mut self, node: &mut Node, now: Instant, submission: Submission<'_>) -> Result<(), Misconduct> {
        #[cfg(test)]
        super::tests::fall_into_trap(&submission);
        match submission {
            Submission::Send { call, peer, step, timeout_ms, key, meta, payload } => {
                let to = Asked { peer, pair: &self.pair(node, peer)?, step, deadline: until(now, timeout_ms) };
                self.send(node, to, (call, key), meta, payload);
            }
            Submission::SendMany { peer, step, timeout_ms, calls } => {
                let to = Asked { peer, pair: &self.pair(node, peer)?, step, deadline: until(now, timeout_ms) };
                for SmallCall { call, key, meta, bytes } in calls.iter() {
                    self.send(node, to, (call, key), meta, PayloadAt::Inline(bytes));
                }
            }
            Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone } => {
                let destination = destination.map(|place| self.recv_destination(call, place)).transpose()?;
                let from = Asked { peer, pair: &self.pair(node, peer)?, step, deadline: until(now, timeout_ms) };
                self.recv(node, now, from, (call, key), destination, (fused, fail_if_gone))?;
            }
            Submission::RecvMany { peer, step, timeout_ms, calls, fail_if_gone } => {
                let from = Asked { peer, pair: &self.pair(node, peer)?, step, deadline: until(now, timeout_ms) };
                for SmallCall { call, key, .. } in calls.iter() {
                    self.recv(node, now, from, (call, key), None, (true, fail_if_gone))?;
                }
            }
            Submission::Rows { call, peer, min_version, timeout_ms, rows, views, fail_if_gone } => {
                let waiter = RecvWaiter::Client(ClientCall { client: self.handle, call: name(call) });
                let pair = self.pulling_pair(node, peer)?.and_then(|pair| self.check_calls(pair));
                if !self.receiving.insert(call, peer, false) {
                    return Err(in_flight(call));
                }
                self.under_way += 1;
                let deadline = until(now, timeout_ms);
                match pair {
                    Ok(pair) => {
                        let request =
                            PullRowsRequest { pair, rows, min_version, deadline, views, fail_if_gone, waiter };
                        let ticket = node.pull_rows(now, request);
                        self.note_ticket(call, ticket);
                    }
                    Err(error) => node.finish_recv(waiter, Err(Unreceived::from(error))),
                }
            }
            Submission::Pull { call, plan, min_version, timeout_ms, views, fail_if_gone } => {
                self.pull(node, now, (call, plan), (min_version, views, fail_if_gone), until(now, timeout_ms))?;
            }
            Submission::Publish { call, version, key, meta, payload, more } => {
                self.publish(node, (call, version, more), key, meta, payload);
            }
            Submission::Commit => self.commit(node),
            Submission::Withdraw { key } => {
                // Earlier publications are committed first, so that the withdrawal covers them.
                self.commit(node);
                node.withdraw(self.task, key);
            }
            Submission::OpenPlan { plan, peer, keys } => self.plans.open(plan, peer, keys)?,
            Submission::PlanKeys { plan, keys } => self.plans.add_keys(plan, keys)?,
            Submission::PlanPlace { call, plan, index, span } => {
                let place = self.destination(call, span)?;
                self.plans.set_place(plan, index, place)?;
                self.lent_to_peers.push(call);
            }
            Submission::ClosePlan { plan } => {
                let ended = self.close_plan(node, plan)?;
                self.swept = true;
                self.refused.extend(ended.map(|call| (call, given_up())));
            }
            Submission::Push { call, peer, timeout_ms, queue, meta, payload } => {
                self.push_into(node, (call, peer), queue, (meta, payload), until(now, timeout_ms), now)?;
            }
            Submission::OpenQueue { queue, tensors_max, bytes_max, name } => {
                self.open_queue(node, queue, (tensors_max, bytes_max), name)?;
                self.swept = true;
            }
            Submission::Grant { queue, tensors, bytes } => self.queues.grant(queue, tensors, bytes)?,
            Submission::CloseQueue { queue } => {
                self.queues.close(node, self.task, queue)?;
                self.swept = true;
                self.queues_told.push(Answer::QueueClosed { queue });
            }
            Submission::Free { tokens } => tokens.iter().for_each(|token| self.area.free(*token)),
            Submission::Peer { number, name } => {
                if usize::from(number) != self.peers.len() || self.peers.len() >= PEERS_MAX {
                    return Err(Misconduct(format!("peer {number} is named out of order")));
                }
                self.peers.push(Peer { name: name.into(), pair: None });
            }
            Submission::Cancel { call } => self.cancelled = Some(call),
            // These look through everything that waits, and so end the client's turn.
            Submission::Abort { step, reason } => {
                self.swept = true;
                node.abort(self.task, step, reason);
            }
            Submission::Cleanup { step } => {
                self.swept = true;
                node.cleanup(self.task, step);
            }
            Submission::Elsewhere { peer, sent, received } => self.count_elsewhere(peer, sent, received)?,
            Submission::Direct { peer, sent, received } => self.count_direct(peer, sent, received)?,
            Submission::PublishedAgain { published, copied_bytes, left } => {
                self.note_published_again(published, copied_bytes, left);
            }
            Submission::Detach => {
                self.closed = true;
                // A forked child may hold the client's end of the socket open.
                self.bell.take_leave();
            }
        }
        Ok(())
    }

    #[inline]
    fn send(
        &mut self,
        node: &mut Node,
        Asked { peer, pair, step, deadline }: Asked<'_>,
        (call, key): (u32, &str),
        meta: &[u8],
        payload: PayloadAt<'_>,
    ) {
        let waiter = SendWaiter::Client(ClientCall { client: self.handle, call: name(call) });
        let pair = pair.clone().and_then(|pair| self.check_calls(pair));
        self.under_way += 1;
        let tensor = self.tensor(call, meta, payload);
        self.counters.count_sent(&tensor);
        match (tensor, pair) {
            (Ok(tensor), Ok(pair)) => {
                self.traffic_of(peer).sent(1, tensor.len() as u64);
                node.send(pair, step, key, tensor, deadline, waiter);
            }
            (_, Err(error)) | (Err(error), Ok(_)) => node.finish_send(waiter, Err(error)),
        }
    }

    #[inline]
    fn recv(
        &mut self,
        node: &mut Node,
        now: Instant,
        Asked { peer, pair, step, deadline }: Asked<'_>,
        (call, key): (u32, &str),
        destination: Option<Destination>,
        (fused, fail_if_gone): (bool, bool),
    ) -> Result<(), Misconduct> {
        let waiter = RecvWaiter::Client(ClientCall { client: self.handle, call: name(call) });
        let pair = pair.clone().and_then(|pair| self.check_calls(pair));
        let has_destination = destination.is_some();
        if !self.receiving.insert(call, peer, has_destination) {
            return Err(in_flight(call));
        }
        self.under_way += 1;
        match pair {
            Ok(pair) => {
                let request = RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone };
                let ticket = node.recv(now, request);
                self.note_ticket(call, ticket);
            }
            Err(error) => node.finish_recv(waiter, Err(Unreceived::returning(error, destination))),
        }
        Ok(())
    }

    /// Keeps the ticket by which a waiting recv can be cancelled.
    #[inline]
    fn note_ticket(&mut self, call: u32, ticket: Option<Ticket>) {
        if ticket.is_some()
            && let Some(receiving) = self.receiving.get_mut(call)
        {
            receiving.ticket = ticket;
        }
    }

    /// The pair with a peer for a plan or rows, which any shard may pull.
    fn pulling_pair(&self, node: &mut Node, peer: u16) -> Result<Result<u32, Error>, Misconduct> {
        let peer = self.peers.get(usize::from(peer)).ok_or_else(|| unnamed(peer))?;
        Ok(peer.pair.map_or_else(|| node.pulling_pair(self.task, &peer.name), Ok))
    }

    /// The pair with a peer. A peer missing from the endpoint map is looked up again each time: a new map may have it.
    #[inline]
    fn pair(&mut self, node: &mut Node, peer: u16) -> Result<Result<u32, Error>, Misconduct> {
        let peer = self.peers.get_mut(usize::from(peer)).ok_or_else(|| unnamed(peer))?;
        if let Some(pair) = peer.pair {
            return Ok(Ok(pair));
        }
        let found = node.pair(self.task, &peer.name);
        peer.pair = found.as_ref().ok().copied();
        Ok(found)
    }

    fn check_calls<T>(&self, checked: T) -> Result<T, Error> {
        if self.under_way < CLIENT_CALLS_MAX {
            return Ok(checked);
        }
        let reason = format!(
            "{CLIENT_CALLS_MAX} calls of this task are in flight on one shard of the daemon, which is the maximum: wait for \
             some of them before making more"
        );
        Err(Error::full("client calls", reason))
    }

    /// The tensor of a send. Its metadata is checked in private memory; its bytes are only ever copied.
    fn tensor(&mut self, call: u32, meta: &[u8], payload: PayloadAt<'_>) -> Result<Tensor, Error> {
        let buffer = match payload {
            // Not from the shared slab: at most 512 bytes a call are charged to the client itself.
            PayloadAt::Inline(bytes) => Buffer::copy_of(bytes),
            PayloadAt::Arena(span) => {
                self.arena.payload(call, span).map_err(|outside| Error::invalid(outside.to_string()))?
            }
        };
        self.kinds.tensor(meta, buffer)
    }

    fn destination(&self, call: u32, span: Span) -> Result<Buffer, Misconduct> {
        self.arena.destination(call, span).map_err(|outside| Misconduct(outside.to_string()))
    }

    fn recv_destination(&self, call: u32, (span, meta): (Span, &[u8])) -> Result<Destination, Misconduct> {
        let memory = self.destination(call, span)?;
        if meta.is_empty() {
            return Ok(memory.into());
        }
        let meta = TensorMeta::from_wire(meta).map_err(|error| Misconduct(error.to_string()))?;
        Ok(Destination::of(meta, memory))
    }

    fn cancel(&mut self, node: &mut Node, call: u32, record: &mut Record) {
        if self.cancel_pull(node, call) {
            self.swept = true;
            return self.put(Answer::Failed { call, error: given_up(), memory_back: true }, record);
        }
        let Some(&mut Receiving { ticket: Some(ticket), has_destination, .. }) = self.receiving.get_mut(call) else {
            // Its outcome is already on its way.
            return;
        };
        if !node.cancel(ticket) {
            // It ended in this turn, and its outcome is reported at the end of the turn.
            return;
        }
        self.receiving.remove(call);
        self.under_way -= 1;
        // A tensor that is just arriving in the destination keeps it for a while.
        let destination_back = !has_destination || self.arena.has_returned(call);
        self.put(Answer::Failed { call, error: given_up(), memory_back: destination_back }, record);
    }

    /// True if nothing here uses the client's arena any more.
    pub(super) fn has_let_go(&self) -> bool {
        self.arena.is_unused()
    }

    /// The client is gone: the node drops what it kept for it.
    pub(super) fn leave(&mut self, node: &mut Node) {
        // Nobody would read these.
        self.arrived.clear();
        self.backlog.clear();
        self.together.clear();
        // The client's own destinations are in the arena, which is unmapped when nothing uses it.
        self.plans.forget();
        self.queues.close_all(node, self.task);
        self.area.end_views();
        self.arena.leave();
    }

    /// The number of its arena, if others may view it.
    pub(super) fn shown(&self) -> Option<u64> {
        self.arena.shown().map(|shown| shown.number)
    }

    /// The client of that arena has gone: views of it stay valid for this client, and hold nothing here.
    pub(super) fn forget_arena(&mut self, arena: u64, record: &mut Record) {
        if self.area.forget_arena(arena) {
            self.put(Answer::ArenaGone { arena }, record);
        }
    }
}

fn in_flight(call: u32) -> Misconduct {
    Misconduct(format!("call {call} is already in flight"))
}

fn unnamed(peer: u16) -> Misconduct {
    Misconduct(format!("peer {peer} was not named"))
}

fn given_up() -> Error {
    Error::Aborted { step: 0, reason: "its caller cancelled it".into() }
}

/// Marks a call's handle: the call's memory is given back by a message of its own, however the call ends.
const LENDS: u64 = 1 << 32;

/// The handle that the node gets for a call.
pub(super) fn name(call: u32) -> Handle {
    Handle::from_bits(u64::from(call))
}

/// The handle that the node gets for a call whose memory is given back by a message of its own.
fn lender(call: u32) -> Handle {
    Handle::from_bits(u64::from(call) | LENDS)
}

fn until(now: Instant, timeout_ms: u32) -> Instant {
    let timeout = if timeout_ms == NO_TIMEOUT { Duration::MAX } else { Duration::from_millis(timeout_ms.into()) };
    deadline(now, timeout)
}
