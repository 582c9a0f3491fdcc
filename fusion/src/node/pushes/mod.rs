//! Pushing: into a peer's queue through its session, into one of this node's directly; and the queues that receive pushes.
//!
//! Bounded by the credit of streams; pushes that wait for credit are bounded by `fusion.queued_requests_max`.

#[cfg(any(test, feature = "fuzzing"))]
mod invariants;
mod local;
mod promises;
mod queues;

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use sealane_runtime::Sweep;
use sealane_transport::session::PushParams;
use sealane_transport::tensor::IntoTensor;
use sealane_transport::trace::Moment;
use sealane_transport::{Arena, Error, Handle, Meta, Payload};

use super::cells::{SendGroup, SendWaiter};
use super::context::Context;
use super::reporter::Reporter;
use crate::metrics::{Operation, Way};
use promises::AllPromises;
pub(super) use queues::Arrivals;
use queues::{Queue, Stream, StreamKey};

/// Pushes with one waiter.
struct PushGroup {
    pushes: SendGroup,
    since: Instant,
    way: Way,
}

/// Pushes, as a task of this shard requests them.
#[derive(Debug)]
pub struct PushRequest<'a, T> {
    /// The pair, from [`Node::pair`](super::Node::pair).
    pub pair: u32,
    /// The queue's name at the other side.
    pub queue: &'a str,
    /// What to push, in order.
    pub tensors: T,
    /// When those not taken yet end with DeadlineExceeded.
    pub deadline: Instant,
    /// Who is told, once all have ended: the first error, if there was any.
    pub waiter: SendWaiter,
}

/// Pushes of one group on their way into a queue.
pub(super) struct Load<'a, T> {
    pub(super) pair: u32,
    pub(super) queue: &'a str,
    pub(super) tensors: T,
    pub(super) deadline: Instant,
    pub(super) group: Handle,
}

/// A push moving from one session to another: it was never sent on any link.
pub(super) struct MovedPush {
    pub(super) from: u16,
    pub(super) to: u32,
    pub(super) queue: Box<str>,
    pub(super) meta: Meta,
    pub(super) payload: Payload,
    pub(super) deadline: Instant,
    pub(super) group: Handle,
}

/// The pushes, queues and streams of a node; see the module.
pub(super) struct Pushes {
    groups: Arena<PushGroup>,
    queues: Arena<Queue>,
    names: HashMap<(u16, Box<str>), Handle>,
    streams: HashMap<StreamKey, Stream>,
    /// The stream of the last tensor, usually also that of the next, with its queue and its pusher.
    last_stream: Option<(StreamKey, Handle, Arc<str>)>,
    /// Queues that received something in this turn.
    filled: Vec<Handle>,
    /// A lower bound of the earliest deadline of pushes to tasks of this node.
    deadlines: Sweep,
    promises: AllPromises,
}

impl Pushes {
    pub(super) fn new() -> Pushes {
        Pushes {
            groups: Arena::new(usize::MAX),
            queues: Arena::new(usize::MAX),
            names: HashMap::new(),
            streams: HashMap::new(),
            last_stream: None,
            filled: Vec::new(),
            deadlines: Sweep::default(),
            promises: AllPromises::default(),
        }
    }

    /// Streams of peers that feed queues here.
    #[cfg(test)]
    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Bytes promised to streams that have not come yet.
    #[cfg(test)]
    pub(super) fn promised(&self) -> u64 {
        self.promises.bytes
    }

    /// Begins a group of `count` pushes.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        (queue, count): (&str, usize),
        waiter: SendWaiter,
        reporter: &Reporter,
    ) -> Handle {
        let group = PushGroup { pushes: SendGroup::new(count, waiter), since: now, way: Way::MEMORY };
        let Ok(group) = self.groups.insert(group) else { unreachable!("2^32 groups do not fit in memory") };
        reporter.trace(group, || Moment::PushQueued { queue: queue.into(), tensors: count as u64 });
        group
    }

    /// Pushes into a queue of a session's peer.
    pub(super) fn push_there<T: ExactSizeIterator<Item: IntoTensor>>(
        &mut self,
        now: Instant,
        session: Handle,
        load: Load<'_, T>,
        context: &mut Context,
    ) {
        let Load { pair, queue, mut tensors, deadline, group } = load;
        let (local, peer) = (context.pairs[pair].local, context.pairs[pair].peer);
        let with = context.peers.session_mut(session).expect("the caller found it");
        let stream = match with.stream(local, peer, queue) {
            Ok(stream) => stream,
            Err(error) => return self.ended(group, tensors.len() as u32, Err(error), &mut context.reporter),
        };
        self.groups.get_mut(group).expect("just made").way = context.peers.way_of(session);
        loop {
            let with = context.peers.session_mut(session).expect("the caller found it");
            let Some(next) = with.push_together(now, (stream, deadline, &group), &mut tensors) else { break };
            let (meta, payload) = next.into_tensor().into_parts();
            let params = PushParams { stream, meta: meta.into_wire(), payload, deadline, pending: group };
            self.push_one(now, session, params, context);
        }
        context.requested(now, session, deadline);
    }

    fn push_one(&mut self, now: Instant, session: Handle, params: PushParams<Handle>, context: &mut Context) {
        let with = context.peers.session_mut(session).expect("the caller found its stream");
        if let Err((error, group)) = with.push(now, params) {
            self.ended(group, 1, Err(error), &mut context.reporter);
        }
    }

    /// A push that waited for another session: it is pushed again on the right one.
    pub(super) fn push_moved(&mut self, now: Instant, session: Handle, moved: MovedPush, context: &mut Context) {
        let MovedPush { from, to, queue, meta, payload, deadline, group } = moved;
        let with = context.peers.session_mut(session).expect("the caller found it");
        match with.stream(from, to, &queue) {
            Ok(stream) => {
                self.push_one(now, session, PushParams { stream, meta, payload, deadline, pending: group }, context);
                context.requested(now, session, deadline);
            }
            Err(error) => self.ended(group, 1, Err(error), &mut context.reporter),
        }
    }

    /// `count` pushes of a group have ended, all with the same outcome.
    #[inline]
    pub(super) fn ended(&mut self, handle: Handle, count: u32, outcome: Result<(), Error>, reporter: &mut Reporter) {
        let Some(group) = self.groups.get_mut(handle) else { return };
        if outcome.is_ok() {
            reporter.counters.tensors_sent += u64::from(count);
        }
        if group.pushes.ended(count, outcome) {
            reporter.trace(handle, || Moment::PushEnded);
            let PushGroup { pushes, since, way } = self.groups.remove(handle).expect("just looked at");
            let (waiter, outcome) = pushes.into_outcome();
            if outcome.is_ok() {
                reporter.record(Operation::Push, way, since);
            }
            reporter.finish_send(waiter, outcome);
        }
    }
}
