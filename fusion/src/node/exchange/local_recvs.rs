//! Recvs whose producer is a task of the same node: no session, no link, one copy at most.
//!
//! A tensor goes from the producer's memory into the consumer's: its own destination, or memory from its pool. Small tensors, and tensors
//! of an engine in the consumer's process, change hands without a copy. Large copies, and those from or to a device, are made in batches
//! over several turns, so that they do not hold up the shard. Bounded by `fusion.queued_requests_max` per task.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_runtime::{Buffer, DeviceError, Sweep};
use sealane_transport::limits::KEY_BYTES_MAX;
use sealane_transport::session::ReceiveMemory;
use sealane_transport::trace::Moment;
use sealane_transport::{Arena, Chains, Destination, Error, Handle, Payload, Tensor, TensorMeta, Unreceived};

use super::{Exchange, RecvRequest};
use crate::limits::{COPY_AT_ONCE_BYTES, COPY_BATCH_BYTES, COPY_BUDGET_BYTES};
use crate::metrics::{Operation, Way};
use crate::node::cells::{RecvWaiter, Ticket};
use crate::node::context::Context;
use crate::node::copying::copy_in_pieces;
use crate::node::memory::Memory;
use crate::node::outcomes::unheard;
use crate::node::pairs::Pairs;
use crate::node::reporter::Reporter;
use crate::rendezvous::{Found, MatchKey, Parked, Slot, Waiting, requested_twice};

/// A recv that waits for its tensor, or whose tensor is being copied.
struct PendingRecv {
    /// The pair, as the consumer numbers it.
    pair: u32,
    consumer: u16,
    step: i64,
    since: Instant,
    deadline: Instant,
    /// Its entry in the table, if it waits there.
    entry: Handle,
    /// By itself: few recvs bring one, and all are moved.
    destination: Option<Box<Destination>>,
    waiter: RecvWaiter,
}

impl PendingRecv {
    fn take_destination(&mut self) -> Option<Destination> {
        self.destination.take().map(|destination| *destination)
    }
}

/// Not in the table.
const NOWHERE: Handle = Handle::NONE;

/// A tensor on its way from the producer's memory into the consumer's.
struct Copy {
    recv: Handle,
    from: (TensorMeta, Payload),
    pending: Handle,
    to: Buffer,
    /// The recv brought that memory as its destination.
    is_brought: bool,
    filled: usize,
}

/// Where a tensor goes.
pub(super) enum Place {
    /// Copied into this memory.
    Memory { to: Buffer, is_brought: bool },
    /// Passed to the consumer without a copy.
    AsItIs,
}

impl Place {
    /// Puts a tensor in its place, and returns it as it lies there.
    ///
    /// # Errors
    /// A device cannot copy it; the memory is returned.
    pub(super) fn fill(self, payload: Payload) -> Result<Payload, Unreceived> {
        let Place::Memory { mut to, is_brought } = self else { return Ok(payload) };
        debug_assert!(to.len() >= payload.len(), "the tensor would be cut off");
        to.truncate(payload.len());
        if !is_of_device(&payload, Some(&to)) {
            to.volatile_mut().copy_from(payload.volatile());
        } else if let Err(error) = payload.copy_to(&mut to, 0..payload.len()) {
            return Err(Unreceived { error: error.into(), destination: is_brought.then_some(to) });
        }
        Ok(to.into())
    }
}

/// The recvs of this node's tasks whose producer is also a task of this node.
pub(super) struct LocalRecvs {
    recvs: Arena<PendingRecv>,
    /// `recvs` by pair and step, for ending a step.
    steps: Chains,
    /// A lower bound of the earliest deadline.
    deadlines: Sweep,
    /// Copies in progress: one queue per producer, served in turn.
    copies: VecDeque<(u16, VecDeque<Copy>)>,
    /// Number of recvs of each task, by the task's index, those being copied included.
    of_task: Vec<usize>,
    requests_max: usize,
}

impl LocalRecvs {
    pub(super) fn new(requests_max: usize) -> Self {
        let (recvs, copies) = (Arena::new(usize::MAX), VecDeque::new());
        Self { recvs, steps: Chains::default(), deadlines: Sweep::default(), copies, of_task: Vec::new(), requests_max }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.next()
    }

    pub(super) fn is_copying(&self) -> bool {
        !self.copies.is_empty()
    }

    /// True if a task may have no more recvs waiting; each task has a limit of its own.
    fn is_full_for(&self, task: u16) -> bool {
        self.of_task.get(usize::from(task)).is_some_and(|count| *count >= self.requests_max)
    }

    pub(super) fn is_there(&self, handle: Handle) -> bool {
        self.recvs.get(handle).is_some()
    }

    /// Enters a recv of a task that is below its limit.
    #[inline]
    fn enter(&mut self, recv: PendingRecv) -> Handle {
        debug_assert!(!self.is_full_for(recv.consumer), "the limit of the task's recvs would be none");
        let (deadline, task) = (recv.deadline, usize::from(recv.consumer));
        let kind = (recv.pair, recv.step);
        let Some(handle) = self.recvs.insert_with(|| recv) else { unreachable!("2^32 recvs do not fit in memory") };
        self.steps.add(handle, kind);
        if self.of_task.len() <= task {
            self.of_task.resize(task + 1, 0);
        }
        self.of_task[task] += 1;
        self.deadlines.enter(deadline);
        handle
    }

    fn remove(&mut self, handle: Handle) -> Option<PendingRecv> {
        let recv = self.recvs.remove(handle)?;
        self.removed(handle, recv.consumer);
        Some(recv)
    }

    /// Removes a recv whose destination was taken before; returns its waiter, and since when it has waited.
    #[inline]
    fn take_waiter(&mut self, handle: Handle) -> Option<(RecvWaiter, Instant)> {
        let nobody = RecvWaiter::Pull(Handle::NONE);
        let take = |recv: &mut PendingRecv| (std::mem::replace(&mut recv.waiter, nobody), recv.since, recv.consumer);
        let (waiter, since, consumer) = self.recvs.retire(handle, take)?;
        self.removed(handle, consumer);
        Some((waiter, since))
    }

    #[inline]
    fn removed(&mut self, handle: Handle, consumer: u16) {
        self.steps.remove(handle);
        let of_task = &mut self.of_task[usize::from(consumer)];
        debug_assert!(*of_task > 0, "the limit of the task's recvs would be none from now on");
        *of_task -= 1;
        if self.recvs.is_empty() {
            self.deadlines.clear();
        }
    }

    fn begin(&mut self, producer: u16, copy: Copy) {
        match self.copies.iter_mut().find(|(of, _)| *of == producer) {
            Some((_, queue)) => queue.push_back(copy),
            None => self.copies.push_back((producer, VecDeque::from([copy]))),
        }
    }

    /// Panics unless each recv is counted for its task, is in the list of its step, and either waits in the table or is being copied.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, at: impl Fn(Handle) -> Option<Handle>, pairs: &Pairs) {
        let mut counts = vec![0; self.of_task.len()];
        for (handle, recv) in self.recvs.iter() {
            counts[usize::from(recv.consumer)] += 1;
            assert_eq!(recv.consumer, pairs[recv.pair].local, "a recv would be ended with another task's");
            assert!(self.steps.of((recv.pair, recv.step)).contains(&handle), "a recv would outlive its step");
            let ends = self.deadlines.covers(recv.deadline);
            assert!(ends, "a recv would wait past its deadline");
            let copies = self.copies.iter().flat_map(|(_, queue)| queue).filter(|copy| copy.recv == handle).count();
            assert!(copies <= 1, "a recv would have two tensors");
            let waits = at(recv.entry) == Some(handle);
            assert!(waits != (copies == 1), "a recv would never get a tensor, or a second one");
        }
        assert_eq!(counts, self.of_task, "fusion.queued_requests_max would bound something else than recvs");
        let idle = self.copies.iter().filter(|(_, queue)| queue.is_empty()).count();
        assert_eq!(idle, 0, "a producer without copies would be asked for one");
    }
}

impl Exchange {
    /// Requests a tensor from a task of this node. `producer_pair` is the pair as its producer numbers it.
    pub(in crate::node) fn recv_here(
        &mut self,
        now: Instant,
        mut recv: RecvRequest<'_>,
        producer_pair: u32,
        context: &mut Context,
    ) -> Option<Ticket> {
        let at = MatchKey { pair: producer_pair, step: recv.step, key: recv.key };
        let gone = context.gone(context.pairs[producer_pair].local, recv.fail_if_gone);
        if let Err(error) = gone.map_or_else(|| self.check_here(at, &context.pairs), Err) {
            context.reporter.finish_recv(recv.waiter, Err(Unreceived::returning(error, recv.destination)));
            return None;
        }
        let slot = self.table.slot(at);
        match self.table.waiting(slot) {
            Some(Waiting::Tensor((meta, payload))) => {
                let (len, consumer) = (payload.len(), context.pairs[recv.pair].local);
                let limit = context.settings.session.tensor_bytes_max;
                let of_device = is_of_device(payload, recv.destination.as_deref());
                let place = place(&context.memory, limit, consumer, recv.destination.take(), (meta, payload));
                self.take_here(now, recv, (at, slot), (place, len, of_device), context)
            }
            Some(Waiting::Request(_)) => {
                let unreceived = Unreceived::returning(requested_twice(at), recv.destination);
                context.reporter.finish_recv(recv.waiter, Err(unreceived));
                None
            }
            None => self.wait_here(now, recv, (at, slot), context),
        }
    }

    fn check_here(&self, at: MatchKey<'_>, pairs: &Pairs) -> Result<(), Error> {
        if at.key.len() > KEY_BYTES_MAX {
            let found = at.key.len();
            return Err(Error::invalid(format!("the key has {found} bytes, at most {KEY_BYTES_MAX} are accepted")));
        }
        match self.ended.reason(pairs[at.pair].local, at.pair, at.step) {
            Some(reason) => Err(Error::Aborted { step: at.step, reason: reason.into() }),
            None => Ok(()),
        }
    }

    /// The tensor, of `len` bytes, is there: it is handed over, or a copy of it begins (always if a device copies it).
    #[inline]
    fn take_here(
        &mut self,
        now: Instant,
        recv: RecvRequest<'_>,
        (at, slot): (MatchKey<'_>, Slot),
        (place, len, of_device): (Result<Place, Unreceived>, usize, bool),
        context: &mut Context,
    ) -> Option<Ticket> {
        let RecvRequest { pair, step, key, deadline, waiter, .. } = recv;
        let consumer = context.pairs[pair].local;
        match place {
            Ok(Place::Memory { to, is_brought })
                if of_device || (len > COPY_AT_ONCE_BYTES && !self.local.is_full_for(consumer)) =>
            {
                if self.local.is_full_for(consumer) {
                    let (error, destination) = (too_many(context), is_brought.then_some(to));
                    context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                    return None;
                }
                let (since, entry) = (now, NOWHERE);
                let recv = PendingRecv { pair, consumer, step, since, deadline, entry, destination: None, waiter };
                let handle = self.local.enter(recv);
                let found = self.table.request(at, Parked::Local(handle));
                let Ok(Found::Tensor(from, pending)) = found else { unreachable!("just looked at") };
                let producer = context.pairs[at.pair].local;
                self.local.begin(producer, Copy { recv: handle, from, pending, to, is_brought, filled: 0 });
                return Some(Ticket::Local(handle));
            }
            Ok(place) => {
                let (tensor, sender, pending) = self.table.take_tensor(slot).expect("just looked at");
                context.reporter.trace(pending, || Moment::SendReleased);
                context.reporter.record(Operation::Send, Way::MEMORY, sender.since);
                context.reporter.count_sent(1, len);
                hand_over(&mut context.reporter, waiter, (now, step, key), place, tensor);
                context.reporter.finish_send(sender.waiter, Ok(()));
            }
            // The tensor stays where it is.
            Err(unreceived) => context.reporter.finish_recv(waiter, Err(unreceived)),
        }
        None
    }

    /// The tensor is not there: the recv waits in the table.
    #[inline]
    fn wait_here(
        &mut self,
        now: Instant,
        recv: RecvRequest<'_>,
        (at, slot): (MatchKey<'_>, Slot),
        context: &mut Context,
    ) -> Option<Ticket> {
        let RecvRequest { pair, step, deadline, destination, waiter, .. } = recv;
        let consumer = context.pairs[pair].local;
        if self.local.is_full_for(consumer) {
            let unreceived = Unreceived::returning(too_many(context), destination);
            context.reporter.finish_recv(waiter, Err(unreceived));
            return None;
        }
        let (entry, destination) = (NOWHERE, destination.map(Box::new));
        let recv = PendingRecv { pair, consumer, step, since: now, deadline, entry, destination, waiter };
        let handle = self.local.enter(recv);
        let entry = self.table.park_local(slot, at, handle);
        self.local.recvs.get_mut(handle).expect("just entered").entry = entry;
        Some(Ticket::Local(handle))
    }

    /// Hands a tensor to the local task that waits for it in a slot, if one does and this can be done within the turn; otherwise returns
    /// the tensor.
    #[inline(always)]
    pub(super) fn send_here(
        &mut self,
        (at, slot): (MatchKey<'_>, Slot),
        tensor: (TensorMeta, Payload),
        context: &mut Context,
    ) -> Option<(TensorMeta, Payload)> {
        let Some(Waiting::Request(Parked::Local(handle))) = self.table.waiting(slot) else { return Some(tensor) };
        let Some(recv) = self.local.recvs.get_mut(handle) else { return Some(tensor) };
        if !context.reporter.outcomes.listens(&recv.waiter) {
            self.fail_here(handle, unheard(), &mut context.reporter);
            return Some(tensor);
        }
        if tensor.1.len() > COPY_AT_ONCE_BYTES
            || is_of_device(&tensor.1, recv.destination.as_ref().map(|destination| &***destination))
        {
            return Some(tensor);
        }
        let limit = context.settings.session.tensor_bytes_max;
        let place = place(&context.memory, limit, recv.consumer, recv.take_destination(), (&tensor.0, &tensor.1));
        self.table.take_request(slot);
        let (waiter, since) = self.local.take_waiter(handle).expect("just looked at");
        match place {
            Ok(place) => {
                let bytes = tensor.1.len();
                context.reporter.count_sent(1, bytes);
                let moment = || Moment::SendInMemory { step: at.step, key: at.key.into(), bytes: bytes as u64 };
                context.reporter.trace(Handle::NONE, moment);
                hand_over(&mut context.reporter, waiter, (since, at.step, at.key), place, tensor);
                None
            }
            Err(unreceived) => {
                context.reporter.finish_recv(waiter, Err(unreceived));
                Some(tensor)
            }
        }
    }

    /// Delivers a matched tensor to the recv that waited for it in the table.
    pub(super) fn match_here(
        &mut self,
        handle: Handle,
        tensor: (TensorMeta, Payload),
        pending: Handle,
        context: &mut Context,
    ) {
        let outcomes = &context.reporter.outcomes;
        let Some(recv) = self.local.recvs.get_mut(handle).filter(|recv| outcomes.listens(&recv.waiter)) else {
            self.fail_here(handle, unheard(), &mut context.reporter);
            return self.released(pending, tensor, false, context);
        };
        let limit = context.settings.session.tensor_bytes_max;
        match place(&context.memory, limit, recv.consumer, recv.take_destination(), (&tensor.0, &tensor.1)) {
            Ok(Place::Memory { to, is_brought }) => {
                // It keeps its handle, by which it can be cancelled while it is copied.
                let pairs = &context.pairs;
                let producer = pairs[recv.pair].mirror.map_or(0, |pair| pairs[pair].local);
                self.local.begin(producer, Copy { recv: handle, from: tensor, pending, to, is_brought, filled: 0 });
            }
            Ok(Place::AsItIs) => {
                let PendingRecv { waiter, since, step, entry, .. } = self.local.remove(handle).expect("just looked at");
                let (meta, bytes) = (tensor.0.clone(), tensor.1.len() as u64);
                let key = self.traced_key(entry, &context.reporter);
                hand_over(&mut context.reporter, waiter, (since, step, &key), Place::AsItIs, tensor);
                self.released_as(pending, (meta, Payload::default()), (bytes, true, Way::MEMORY), context);
            }
            Err(unreceived) => {
                let waiter = self.local.remove(handle).expect("just looked at").waiter;
                // The tensor goes back first: whoever hears the error may ask again at once.
                self.released(pending, tensor, false, context);
                context.reporter.finish_recv(waiter, Err(unreceived));
            }
        }
    }

    /// The key of a table entry if calls are traced, otherwise empty.
    fn traced_key(&self, entry: Handle, reporter: &Reporter) -> Box<str> {
        let key = reporter.recorder.as_ref().and_then(|_| self.table.key_of(entry));
        key.unwrap_or_default().into()
    }

    fn copied(&mut self, PendingRecv { waiter, since, step, .. }: PendingRecv, copy: Copy, context: &mut Context) {
        let Copy { from: (meta, payload), pending, mut to, .. } = copy;
        to.truncate(payload.len());
        let tensor = Tensor::from_parts(meta.clone(), to);
        let reporter = &mut context.reporter;
        reporter.count_received(1, payload.len());
        reporter.record(Operation::Recv, Way::MEMORY, since);
        let (key, bytes) = (self.traced_key(pending, reporter), payload.len() as u64);
        reporter.trace(Handle::NONE, || Moment::RecvInMemory { step, key, since, bytes });
        self.released(pending, (meta, payload), true, context);
        context.reporter.finish_recv(waiter, Ok(tensor));
    }

    /// Continues the copies in progress, a batch for each producer in turn; returns the bytes copied.
    pub(in crate::node) fn copy_on(&mut self, context: &mut Context) -> usize {
        let mut budget = COPY_BUDGET_BYTES;
        while budget > 0
            && let Some((producer, mut queue)) = self.local.copies.pop_front()
        {
            let mut copy = queue.pop_front().expect("queues without copies are dropped");
            let listens = |recv: &PendingRecv| context.reporter.outcomes.listens(&recv.waiter);
            if !self.local.recvs.get(copy.recv).is_some_and(listens) {
                self.fail_here(copy.recv, unheard(), &mut context.reporter);
                self.released(copy.pending, copy.from, false, context);
            } else {
                let advanced = copy.advance(budget.min(COPY_BATCH_BYTES));
                budget -= advanced.as_ref().unwrap_or(&0);
                match advanced {
                    Ok(_) if !copy.is_complete() => queue.push_front(copy),
                    Ok(_) => {
                        let recv = self.local.remove(copy.recv).expect("just looked at");
                        self.copied(recv, copy, context);
                    }
                    Err(error) => {
                        let waiter = self.local.remove(copy.recv).expect("just looked at").waiter;
                        let Copy { from, pending, to, is_brought, .. } = copy;
                        // The tensor goes back first, as when there is no place for it.
                        self.released(pending, from, false, context);
                        let (error, destination) = (error.into(), is_brought.then_some(to));
                        context.reporter.finish_recv(waiter, Err(Unreceived { error, destination }));
                    }
                }
            }
            if !queue.is_empty() {
                self.local.copies.push_back((producer, queue));
            }
        }
        COPY_BUDGET_BYTES - budget
    }

    /// True if tensors are being copied.
    #[inline]
    pub(in crate::node) fn is_copying(&self) -> bool {
        self.local.is_copying()
    }

    /// Cancels a recv: a tensor that is being copied for it goes back to its producer. False if it has ended.
    pub(super) fn cancel_here(&mut self, handle: Handle) -> bool {
        let recv = self.local.remove(handle);
        if let Some(recv) = &recv {
            self.table.cancel_local(recv.entry);
        }
        recv.is_some()
    }

    /// Ends the recvs of a pair in `step` with `error`.
    pub(in crate::node) fn end_here_of(&mut self, pair: u32, step: i64, error: &Error, reporter: &mut Reporter) {
        for handle in self.local.steps.of((pair, step)) {
            if self.local.recvs.get(handle).is_some_and(|recv| (recv.pair, recv.step) == (pair, step)) {
                self.fail_here(handle, error.clone(), reporter);
            }
        }
    }

    /// Ends all recvs of `consumer` with `error`.
    pub(in crate::node) fn end_here(&mut self, consumer: u16, error: &Error, reporter: &mut Reporter) {
        for handle in self.local.recvs.select(|recv| recv.consumer == consumer) {
            self.fail_here(handle, error.clone(), reporter);
        }
    }

    /// Ends one recv with `error`, whether it waits or is being copied.
    pub(super) fn fail_here(&mut self, handle: Handle, error: Error, reporter: &mut Reporter) {
        if let Some(PendingRecv { waiter, destination, entry, .. }) = self.local.remove(handle) {
            self.table.cancel_local(entry);
            let destination = destination.map(|destination| *destination);
            reporter.finish_recv(waiter, Err(Unreceived::returning(error, destination)));
        }
    }

    /// The engine stops: ends every recv with `error`, and gives back what was being copied.
    pub(in crate::node) fn end_all_here(&mut self, error: &Error, context: &mut Context) {
        for handle in self.local.recvs.select(|_| true) {
            self.fail_here(handle, error.clone(), &mut context.reporter);
        }
        self.copy_on(context);
    }

    pub(super) fn expire_here(&mut self, now: Instant, context: &mut Context) {
        if !self.local.deadlines.is_due(now) {
            return;
        }
        for handle in self.local.recvs.select(|recv| recv.deadline <= now) {
            let recv = self.local.recvs.get(handle).expect("just selected");
            let key = self.table.key_of(recv.entry).unwrap_or("that is being copied");
            let waited = recv.deadline.saturating_duration_since(recv.since);
            let awaited = context.awaited(now, recv.pair, "nobody has sent it, or it is still being copied");
            let error = Error::late(Operation::Recv, recv.step, key, waited, awaited);
            self.fail_here(handle, error, &mut context.reporter);
        }
        self.local.deadlines = Sweep::after(now, self.local.recvs.slots());
        self.local.deadlines.extend(self.local.recvs.iter().map(|(_, recv)| recv.deadline));
    }
}

/// Ends a recv with its tensor: copied now, or as it is. The caller tells the tensor's sender and counts its send.
#[inline]
fn hand_over(
    reporter: &mut Reporter,
    waiter: RecvWaiter,
    (since, step, key): (Instant, i64, &str),
    place: Place,
    (meta, payload): (TensorMeta, Payload),
) {
    let bytes = payload.len();
    let payload = match place {
        Place::AsItIs => payload,
        Place::Memory { mut to, .. } => {
            debug_assert!(to.len() >= bytes, "the tensor would be cut off");
            to.truncate(bytes);
            to.volatile_mut().copy_from(payload.volatile());
            to.into()
        }
    };
    reporter.count_received(1, bytes);
    reporter.record(Operation::Recv, Way::MEMORY, since);
    let moment = || Moment::RecvInMemory { step, key: key.into(), since, bytes: bytes as u64 };
    reporter.trace(Handle::NONE, moment);
    reporter.finish_recv(waiter, Ok(Tensor::from_parts(meta, payload)));
}

impl Copy {
    /// Copies up to `budget` more bytes; returns how many.
    fn advance(&mut self, budget: usize) -> Result<usize, DeviceError> {
        let copied = copy_in_pieces(&mut self.to, &self.from.1, self.filled, budget)?;
        self.filled += copied;
        Ok(copied)
    }

    fn is_complete(&self) -> bool {
        self.filled == self.from.1.len()
    }
}

/// The error for a task with too many recvs.
fn too_many(context: &Context) -> Error {
    let limit = context.settings.session.queued_requests_max;
    Error::full("fusion.queued_requests_max", format!("{limit} requests to tasks of this engine are already waiting"))
}

/// True if a device copies the tensor, which takes time and may fail.
#[inline]
fn is_of_device(payload: &Payload, destination: Option<&Buffer>) -> bool {
    payload.device().is_some() || destination.is_some_and(|to| to.device().is_some())
}

/// Where a tensor goes, or the error if it cannot be placed.
#[inline]
pub(super) fn place(
    memory: &Memory,
    limit: u64,
    consumer: u16,
    destination: Option<Destination>,
    (meta, payload): (&TensorMeta, &Payload),
) -> Result<Place, Unreceived> {
    let len = payload.len();
    if len as u64 > limit {
        let reason = format!("the tensor has {len} bytes, the limit is {limit}");
        return Err(Unreceived::returning(Error::full("transport.tensor_bytes_max", reason), destination));
    }
    if let Some(Err(error)) = destination.as_ref().map(|destination| destination.check(meta.as_wire(), len as u64)) {
        return Err(Unreceived::returning(error, destination));
    }
    match destination.map(Destination::into_memory) {
        // A client that sends to itself may name the same memory for both.
        Some(destination) if overlap(&destination, payload) => {
            let error = Error::invalid("the destination overlaps the tensor that is to be copied there");
            Err(Unreceived { error, destination: Some(destination) })
        }
        Some(to) => Ok(Place::Memory { to, is_brought: true }),
        None if memory.takes_as_is(consumer, payload) => Ok(Place::AsItIs),
        None => Ok(Place::Memory { to: memory.allocate(consumer, len)?, is_brought: false }),
    }
}

/// True if the two share bytes of host memory.
fn overlap(destination: &Buffer, payload: &Payload) -> bool {
    let both = destination.host_bytes().zip(payload.host_bytes());
    both.is_some_and(|(to, from)| to.overlaps(from))
}
