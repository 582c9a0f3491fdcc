//! Recvs whose producer is a task of this very node: no session, no link, one copy at most.
//!
//! A tensor goes from the producer's memory into the consumer's: its own destination, or memory that its pool gives out.
//! Small ones, and tensors of an engine in the consumer's process, change hands without a copy. Large copies are made a
//! helping a turn, so that they do not hold up the shard. Bounded by `fusion.queued_requests_max` a task.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_runtime::{Buffer, VolatileSlice};
use sealane_transport::limits::KEY_BYTES_MAX;
use sealane_transport::session::ReceiveMemory;
use sealane_transport::trace::Moment;
use sealane_transport::{Arena, Chains, Error, Handle, Payload, Tensor, TensorMeta, Unreceived};

use super::Node;
use super::calls::{RecvRequest, Ticket};
use super::cells::RecvWaiter;
use super::memory::Memory;
use super::outcomes::unheard;
use crate::metrics::{Operation, Way};
use crate::rendezvous::{Found, Meeting, Parked, Spot, Waiting, asked_twice};

/// Bytes copied at once; a larger tensor is copied in several turns.
pub(super) const COPY_AT_ONCE_BYTES: usize = 64 << 10;
/// Bytes that one `memcpy` is given: for more, the C library changes to stores that pass the caches by, which was slower
/// (4 MiB at once 31 GB/s, in pieces of 64 KiB 38 GB/s).
const COPY_PIECE_BYTES: usize = 64 << 10;
/// Bytes copied in one turn at most, all copies together: about 30 µs, so that small messages do not wait long.
pub(super) const COPY_BUDGET_BYTES: usize = 1 << 20;

/// Bytes copied for one producer, or for one pull, before the next one's turn comes.
pub(super) const COPY_HELPING_BYTES: usize = 256 << 10;

/// A recv that waits for its tensor, or whose tensor is being copied.
struct Wanted {
    /// The pair, from the consumer's side.
    pair: u32,
    consumer: u16,
    step: i64,
    since: Instant,
    deadline: Instant,
    /// Where it waits in the table, if it does.
    entry: Handle,
    destination: Option<Buffer>,
    waiter: RecvWaiter,
}

/// No entry of the table.
const NOWHERE: Handle = Handle::NONE;

/// A tensor on its way from the producer's memory into the consumer's.
struct Copy {
    wanted: Handle,
    from: (TensorMeta, Payload),
    deposit: Handle,
    to: Buffer,
    filled: usize,
}

/// Where a tensor goes.
enum Place {
    /// Into this memory.
    Memory(Buffer),
    /// To the consumer as it is.
    AsItIs,
}

pub(super) struct LocalRecvs {
    wanted: Arena<Wanted>,
    /// `wanted` by pair and step, for those who end a step.
    steps: Chains,
    /// No deadline is earlier; it may be later than the truth says, never earlier.
    earliest: Option<Instant>,
    /// Copies under way: a queue for each producer, and the producers take turns.
    copies: VecDeque<(u16, VecDeque<Copy>)>,
    /// Recvs of each task, by its place; those that the queue holds as well.
    of_task: Vec<usize>,
    requests_max: usize,
}

impl LocalRecvs {
    pub(super) fn new(requests_max: usize) -> Self {
        let (wanted, copies) = (Arena::new(usize::MAX), VecDeque::new());
        Self { wanted, steps: Chains::default(), earliest: None, copies, of_task: Vec::new(), requests_max }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.earliest
    }

    pub(super) fn is_copying(&self) -> bool {
        !self.copies.is_empty()
    }

    /// True if a task may have no more recvs waiting: the limit is each task's own.
    fn is_full_for(&self, task: u16) -> bool {
        self.of_task.get(usize::from(task)).is_some_and(|count| *count >= self.requests_max)
    }

    fn enter(&mut self, wanted: Wanted) -> Result<Handle, Wanted> {
        if self.is_full_for(wanted.consumer) {
            return Err(wanted);
        }
        let (deadline, task) = (wanted.deadline, usize::from(wanted.consumer));
        let kind = (wanted.pair, wanted.step);
        let handle = self.wanted.insert(wanted)?;
        self.steps.add(handle, kind);
        if self.of_task.len() <= task {
            self.of_task.resize(task + 1, 0);
        }
        self.of_task[task] += 1;
        self.earliest = Some(self.earliest.map_or(deadline, |earliest| earliest.min(deadline)));
        Ok(handle)
    }

    fn remove(&mut self, handle: Handle) -> Option<Wanted> {
        let wanted = self.wanted.remove(handle)?;
        self.steps.remove(handle);
        self.of_task[usize::from(wanted.consumer)] -= 1;
        if self.wanted.is_empty() {
            self.earliest = None;
        }
        Some(wanted)
    }

    fn begin(&mut self, producer: u16, copy: Copy) {
        match self.copies.iter_mut().find(|(of, _)| *of == producer) {
            Some((_, queue)) => queue.push_back(copy),
            None => self.copies.push_back((producer, VecDeque::from([copy]))),
        }
    }
}

impl Node {
    /// Asks a task of this node. `producer_pair` is the pair as its producer numbers it.
    pub(super) fn recv_local(&mut self, now: Instant, recv: RecvRequest<'_>, producer_pair: u32) -> Option<Ticket> {
        let RecvRequest { pair, step, key, deadline, destination, waiter, .. } = recv;
        let at = Meeting { pair: producer_pair, step, key };
        if let Err(error) = self.check_local(at) {
            self.context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
            return None;
        }
        let consumer = self.context.pairs[pair].local;
        let spot = self.table.spot(at);
        match self.table.waiting(spot) {
            Some(Waiting::Tensor(payload)) => {
                let len = payload.len();
                let place = place(
                    &self.context.memory,
                    self.context.settings.session.tensor_bytes_max,
                    consumer,
                    destination,
                    payload,
                );
                match place {
                    Ok(Place::Memory(to)) if len > COPY_AT_ONCE_BYTES && !self.local.is_full_for(consumer) => {
                        let wanted = Wanted {
                            pair,
                            consumer,
                            step,
                            since: now,
                            deadline,
                            entry: NOWHERE,
                            destination: None,
                            waiter,
                        };
                        let handle = self.local.enter(wanted).ok().expect("there is room");
                        let found = self.table.want(at, Parked::Local(handle));
                        let Ok(Found::Tensor(from, deposit)) = found else { unreachable!("just looked at") };
                        let producer = self.context.pairs[producer_pair].local;
                        self.local.begin(producer, Copy { wanted: handle, from, deposit, to, filled: 0 });
                        return Some(Ticket::Local(handle));
                    }
                    Ok(place) => {
                        let (tensor, sender) = self.table.take_tensor(spot).expect("just looked at");
                        self.context.reporter.metrics.latencies.record(Operation::Send, Way::Memory, sender.since, now);
                        self.hand_over(waiter, (now, step, key), place, tensor);
                        self.context.reporter.finish_send(sender.waiter, Ok(()));
                    }
                    // The tensor stays where it is.
                    Err(unreceived) => self.context.reporter.finish_recv(waiter, Err(unreceived)),
                }
                None
            }
            Some(Waiting::Request(_)) => {
                self.context.reporter.finish_recv(waiter, Err(Unreceived { error: asked_twice(at), destination }));
                None
            }
            None => {
                let wanted = Wanted { pair, consumer, step, since: now, deadline, entry: NOWHERE, destination, waiter };
                match self.local.enter(wanted) {
                    Ok(handle) => {
                        let entry = self.table.park_local(spot, at, handle);
                        self.local.wanted.get_mut(handle).expect("just entered").entry = entry;
                        Some(Ticket::Local(handle))
                    }
                    Err(Wanted { destination, waiter, .. }) => {
                        let limit = self.context.settings.session.queued_requests_max;
                        let reason = format!("{limit} requests to tasks of this engine wait already");
                        let error = Error::full("fusion.queued_requests_max", reason);
                        self.context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                        None
                    }
                }
            }
        }
    }

    fn check_local(&self, at: Meeting<'_>) -> Result<(), Error> {
        if at.key.len() > KEY_BYTES_MAX {
            let found = at.key.len();
            return Err(Error::invalid(format!("the key has {found} bytes, at most {KEY_BYTES_MAX} are accepted")));
        }
        let producer = self.context.pairs[at.pair].local;
        match self.ended.reason(producer, at.pair, at.step) {
            Some(reason) => Err(Error::Aborted { step: at.step, reason: reason.into() }),
            None => Ok(()),
        }
    }

    /// Hands a tensor to the task of this node that waits for it at a spot, if one does and it takes no longer than this
    /// turn; else gives the tensor back.
    #[inline]
    pub(super) fn send_local(
        &mut self,
        spot: Spot,
        key: &str,
        tensor: (TensorMeta, Payload),
    ) -> Option<(TensorMeta, Payload)> {
        let Some(Waiting::Request(Parked::Local(handle))) = self.table.waiting(spot) else { return Some(tensor) };
        let Some(wanted) = self.local.wanted.get_mut(handle) else { return Some(tensor) };
        if !self.context.reporter.outcomes.listens(&wanted.waiter) {
            self.fail_local(handle, unheard());
            return Some(tensor);
        }
        if tensor.1.len() > COPY_AT_ONCE_BYTES {
            return Some(tensor);
        }
        let limit = self.context.settings.session.tensor_bytes_max;
        let place = place(&self.context.memory, limit, wanted.consumer, wanted.destination.take(), &tensor.1);
        self.table.take_request(spot);
        let Wanted { waiter, since, step, .. } = self.local.remove(handle).expect("just looked at");
        match place {
            Ok(place) => {
                self.hand_over(waiter, (since, step, key), place, tensor);
                None
            }
            Err(unreceived) => {
                self.context.reporter.finish_recv(waiter, Err(unreceived));
                Some(tensor)
            }
        }
    }

    /// Hands a tensor that was lent to a recv that waited for it in the table.
    pub(super) fn lend_local(&mut self, handle: Handle, tensor: (TensorMeta, Payload), deposit: Handle) {
        let outcomes = &self.context.reporter.outcomes;
        let Some(wanted) = self.local.wanted.get_mut(handle).filter(|wanted| outcomes.listens(&wanted.waiter)) else {
            self.fail_local(handle, unheard());
            return self.settled(deposit, tensor, false);
        };
        let limit = self.context.settings.session.tensor_bytes_max;
        match place(&self.context.memory, limit, wanted.consumer, wanted.destination.take(), &tensor.1) {
            Ok(Place::Memory(to)) => {
                // It keeps its name, by which it can be given up while it is copied.
                let producer = self.context.pairs[wanted.pair].mirror.map_or(0, |pair| self.context.pairs[pair].local);
                self.local.begin(producer, Copy { wanted: handle, from: tensor, deposit, to, filled: 0 });
            }
            Ok(Place::AsItIs) => {
                let Wanted { waiter, since, step, entry, .. } = self.local.remove(handle).expect("just looked at");
                let (meta, bytes) = (tensor.0.clone(), tensor.1.len() as u64);
                let key = self.traced_key(entry);
                self.hand_over(waiter, (since, step, &key), Place::AsItIs, tensor);
                self.settled_as(deposit, (meta, Payload::default()), bytes, true, Way::Memory);
            }
            Err(unreceived) => {
                let waiter = self.local.remove(handle).expect("just looked at").waiter;
                // First back with it: the one who hears the error may ask again at once.
                self.settled(deposit, tensor, false);
                self.context.reporter.finish_recv(waiter, Err(unreceived));
            }
        }
    }

    /// Ends a recv with its tensor: copied now, or as it is. The tensor's sender is the caller's to tell.
    #[inline]
    fn hand_over(
        &mut self,
        waiter: RecvWaiter,
        (since, step, key): (Instant, i64, &str),
        place: Place,
        (meta, payload): (TensorMeta, Payload),
    ) {
        let bytes = payload.len();
        let payload = match place {
            Place::AsItIs => payload,
            Place::Memory(mut to) => {
                to.truncate(bytes);
                to.volatile_mut().copy_from(payload.volatile());
                to.into()
            }
        };
        self.context.reporter.count_received(bytes);
        self.context.reporter.record(Operation::Recv, Way::Memory, since);
        self.context.reporter.counters.tensors_sent += 1;
        self.context.reporter.counters.bytes_sent += bytes as u64;
        let moment = || Moment::RecvInMemory { step, key: key.into(), since, bytes: bytes as u64 };
        self.context.reporter.trace(Handle::NONE, moment);
        self.context.reporter.finish_recv(waiter, Ok(Tensor::from_parts(meta, payload)));
    }

    /// The key of an entry of the table, for a trace, if there is one.
    fn traced_key(&self, entry: Handle) -> Box<str> {
        let key = self.context.reporter.recorder.as_ref().and_then(|_| self.table.key_of(entry));
        key.unwrap_or_default().into()
    }

    fn copied(&mut self, Wanted { waiter, since, step, .. }: Wanted, copy: Copy) {
        let Copy { from: (meta, payload), deposit, mut to, .. } = copy;
        to.truncate(payload.len());
        let tensor = Tensor::from_parts(meta.clone(), to);
        self.context.reporter.count_received(payload.len());
        self.context.reporter.record(Operation::Recv, Way::Memory, since);
        let (key, bytes) = (self.traced_key(deposit), payload.len() as u64);
        self.context.reporter.trace(Handle::NONE, || Moment::RecvInMemory { step, key, since, bytes });
        self.settled(deposit, (meta, payload), true);
        self.context.reporter.finish_recv(waiter, Ok(tensor));
    }

    /// Goes on with the copies under way, a helping for each producer in turn; the bytes copied.
    pub(super) fn copy_on(&mut self) -> usize {
        let mut budget = COPY_BUDGET_BYTES;
        while budget > 0
            && let Some((producer, mut queue)) = self.local.copies.pop_front()
        {
            let mut copy = queue.pop_front().expect("queues without copies are dropped");
            let listens = |wanted: &Wanted| self.context.reporter.outcomes.listens(&wanted.waiter);
            if !self.local.wanted.get(copy.wanted).is_some_and(listens) {
                self.fail_local(copy.wanted, unheard());
                self.settled(copy.deposit, copy.from, false);
            } else {
                budget -= copy.advance(budget.min(COPY_HELPING_BYTES));
                if copy.is_complete() {
                    let wanted = self.local.remove(copy.wanted).expect("just looked at");
                    self.copied(wanted, copy);
                } else {
                    queue.push_front(copy);
                }
            }
            if !queue.is_empty() {
                self.local.copies.push_back((producer, queue));
            }
        }
        COPY_BUDGET_BYTES - budget
    }

    /// Gives a recv up: a tensor that is being copied for it goes back to its producer. False if it has ended.
    pub(super) fn cancel_local(&mut self, handle: Handle) -> bool {
        let wanted = self.local.remove(handle);
        if let Some(wanted) = &wanted {
            self.table.withdraw_local(wanted.entry);
        }
        wanted.is_some()
    }

    /// Ends the recvs of a pair in `step` with `error`.
    pub(super) fn end_local_of(&mut self, pair: u32, step: i64, error: &Error) {
        for handle in self.local.steps.of((pair, step)) {
            if self.local.wanted.get(handle).is_some_and(|wanted| (wanted.pair, wanted.step) == (pair, step)) {
                self.fail_local(handle, error.clone());
            }
        }
    }

    /// Ends all recvs of `consumer` with `error`.
    pub(super) fn end_local(&mut self, consumer: u16, error: &Error) {
        for handle in self.local.wanted.select(|wanted| wanted.consumer == consumer) {
            self.fail_local(handle, error.clone());
        }
    }

    /// Ends one recv with `error`, wherever it is.
    pub(super) fn fail_local(&mut self, handle: Handle, error: Error) {
        if let Some(Wanted { waiter, destination, entry, .. }) = self.local.remove(handle) {
            self.table.withdraw_local(entry);
            self.context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
        }
    }

    /// Ends every recv with `error`, and gives back what was being copied: the engine stops.
    pub(super) fn end_all_local(&mut self, error: &Error) {
        for handle in self.local.wanted.select(|_| true) {
            self.fail_local(handle, error.clone());
        }
        self.copy_on();
    }

    pub(super) fn expire_local(&mut self, now: Instant) {
        if self.local.earliest.is_none_or(|earliest| earliest > now) {
            return;
        }
        for handle in self.local.wanted.select(|wanted| wanted.deadline <= now) {
            let wanted = self.local.wanted.get(handle).expect("just selected");
            let key = self.table.key_of(wanted.entry).unwrap_or("that is being copied");
            let waited = wanted.deadline.saturating_duration_since(wanted.since);
            let error = Error::late(Operation::Recv, wanted.step, key, waited);
            self.fail_local(handle, error);
        }
        self.local.earliest = self.local.wanted.iter().map(|(_, wanted)| wanted.deadline).min();
    }
}

impl Copy {
    /// Copies up to `budget` bytes on; how many.
    fn advance(&mut self, budget: usize) -> usize {
        let copied = copy_in_pieces(&mut self.to, self.from.1.volatile(), self.filled, budget);
        self.filled += copied;
        copied
    }

    fn is_complete(&self) -> bool {
        self.filled == self.from.1.len()
    }
}

/// Copies up to `budget` bytes of `source` from `filled` on, a piece at a time, see [`COPY_PIECE_BYTES`]; how many.
pub(super) fn copy_in_pieces(target: &mut Buffer, source: VolatileSlice<'_>, filled: usize, budget: usize) -> usize {
    let end = source.len().min(filled.saturating_add(budget));
    for at in (filled..end).step_by(COPY_PIECE_BYTES) {
        let piece = at..end.min(at + COPY_PIECE_BYTES);
        target.volatile_mut().range(piece.clone()).copy_from(source.range(piece));
    }
    end - filled
}

/// Where a tensor goes, or why it does not.
#[inline]
fn place(
    memory: &Memory,
    limit: u64,
    consumer: u16,
    destination: Option<Buffer>,
    payload: &Payload,
) -> Result<Place, Unreceived> {
    let len = payload.len();
    if len as u64 > limit {
        let reason = format!("the tensor has {len} bytes, the limit is {limit}");
        return Err(Unreceived { error: Error::full("transport.tensor_bytes_max", reason), destination });
    }
    match destination {
        Some(destination) if destination.len() < len => {
            let reason = format!("the destination has {} bytes, the tensor needs {len}", destination.len());
            Err(Unreceived { error: Error::invalid(reason), destination: Some(destination) })
        }
        // A client that sends to itself may name one place twice.
        Some(destination) if destination.volatile().overlaps(payload.volatile()) => {
            let error = Error::invalid("the destination lies where the tensor does that is to be copied there");
            Err(Unreceived { error, destination: Some(destination) })
        }
        Some(destination) => Ok(Place::Memory(destination)),
        None if memory.takes_as_is(consumer, payload) => Ok(Place::AsItIs),
        None => Ok(Place::Memory(memory.allocate(consumer, len)?)),
    }
}
