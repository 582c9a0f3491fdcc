//! One ps and one worker on a virtual line, and their steps.
//!
//! Cores cost nothing here except what the line charges for writes and messages: the figures show what the protocol costs, not how fast its
//! code is.

use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use sealane_fusion::node::{
    BatchWaiter, FusedRequest, PullRequest, PullWaiter, PushRequest, RecvRequest, RecvWaiter, SendWaiter,
};
use sealane_fusion::{Error, Fuse, PullBuffer, RecvOutcome, Tensor};
use sealane_transport::{Handle, Link, Unreceived};

use super::line::{Air, Carried, line};
use super::load::Load;
use crate::two_nodes::{DEADLINE, PS, QUEUE, TwoNodes, WORKER, Wire, memory};

type Pair = TwoNodes<Rc<Air>>;

impl Wire for Rc<Air> {
    fn link(&self) -> (Box<dyn Link>, Box<dyn Link>) {
        let (one, other) = line(self);
        (Box::new(one), Box::new(other))
    }

    fn now(&self) -> Duration {
        self.now.get()
    }

    fn wait(&self) -> bool {
        self.next_arrival().map(|arrival| self.now.set(arrival)).is_some()
    }
}

/// How a step's tensors are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Recvs one by one, each message in a write of its own.
    Off,
    /// Recvs one by one, all messages of a turn in one write.
    Turn,
    /// One fused receive.
    Receive,
    /// A plan.
    Plan,
    /// One unrequested push into a queue of the default size.
    Push,
}

impl Way {
    pub(super) const ALL: [Way; 5] = [Way::Off, Way::Turn, Way::Receive, Way::Plan, Way::Push];

    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Off => "off",
            Way::Turn => "turn",
            Way::Receive => "receive",
            Way::Plan => "plan",
            Way::Push => "push",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cost {
    /// In both directions, releases included.
    pub(super) messages: u64,
    pub(super) carried: Carried,
    /// From the first request or push until the worker has every tensor.
    pub(super) time: Duration,
}

/// Costs of the second step of a load: by then the sides are connected, and plans are agreed.
///
/// # Errors
/// What went wrong; nothing should.
pub(super) fn second_step(load: &Load, way: Way) -> Result<Cost, String> {
    let fuse = if way == Way::Off { Fuse::Off } else { Fuse::Turn };
    let mut pair = Pair::new(Rc::default(), fuse)?;
    let tensor = |(key, bytes): &(String, usize)| {
        let tensor = Tensor::from_elements(&[*bytes as u64], &vec![7_u8; *bytes]).map(Tensor::into_shared);
        tensor.map(|tensor| (key.clone(), tensor)).map_err(|error| error.to_string())
    };
    let tensors = load.tensors.iter().map(tensor).collect::<Result<Vec<_>, String>>()?;
    let mut plan = None;
    pair.step(1, way, &tensors, &mut plan)?;
    pair.step(2, way, &tensors, &mut plan)
}

impl Pair {
    fn step(
        &mut self,
        step: i64,
        way: Way,
        tensors: &[(String, Tensor)],
        plan: &mut Option<(Handle, PullBuffer)>,
    ) -> Result<Cost, String> {
        let failed = |error: Error| error.to_string();
        let (messages, carried, started) = (self.messages(), self.wire.carried.get(), self.wire.now.get());
        let pairs = [self.number(PS).map_err(failed)?, self.number(WORKER).map_err(failed)?];
        let until = self.now() + DEADLINE;
        for (key, tensor) in tensors {
            match way {
                Way::Plan => self.nodes[PS].publish(0, key, step, tensor.share()).map_err(failed)?,
                Way::Push => {}
                _ => self.nodes[PS].send(pairs[PS], step, key, tensor.share(), until, SendWaiter::Nobody),
            }
        }
        let done = match way {
            Way::Off | Way::Turn => {
                let recvs = self.recv_each(pairs[WORKER], step, tensors, until);
                let mut left = recvs.iter();
                let mut waits = left.next();
                self.run(|_| {
                    while let Some(recv) = waits {
                        match recv.try_recv() {
                            Ok(Ok(_)) => waits = left.next(),
                            Ok(Err(unreceived)) => return Err(unreceived.error.to_string()),
                            Err(_) => return Ok(false),
                        }
                    }
                    Ok(true)
                })?
            }
            Way::Receive => {
                let recv = self.recv_fused(pairs[WORKER], step, tensors, until);
                self.run(|nodes| {
                    let Poll::Ready(outcomes) = nodes[WORKER].poll_batch(recv, Waker::noop()) else { return Ok(false) };
                    let failed = |unreceived: Unreceived| unreceived.error.to_string();
                    outcomes.into_iter().try_for_each(|outcome| outcome.map(drop).map_err(failed))?;
                    Ok(true)
                })?
            }
            Way::Plan => {
                let (handle, pull_buffer) = match plan.take() {
                    Some(plan) => plan,
                    None => self.open_plan(pairs[WORKER], tensors).map_err(failed)?,
                };
                let (sender, pulled) = oneshot::channel();
                let waiter = PullWaiter::Channel(sender);
                let now = self.now();
                self.nodes[WORKER].pull(
                    now,
                    PullRequest {
                        plan: handle,
                        min_version: step,
                        deadline: until,
                        pull_buffer,
                        views: false,
                        fail_if_gone: false,
                        waiter,
                    },
                );
                self.run(|_| match pulled.try_recv() {
                    Ok(pull_buffer) => {
                        let pull_buffer = pull_buffer.map_err(failed)?;
                        let error = pull_buffer.first_error().map(|(_, error)| error.to_string());
                        *plan = Some((handle, pull_buffer));
                        error.map_or(Ok(true), Err)
                    }
                    Err(_) => Ok(false),
                })?
            }
            Way::Push => {
                self.push(pairs[PS], tensors, until);
                let (queue, mut items) = (self.queue.clone(), Vec::new());
                self.run(|_| {
                    queue.take(usize::MAX, &mut items).map_err(failed)?;
                    Ok(items.len() == tensors.len())
                })?
            }
        };
        let before = carried;
        let Carried { writes, bytes } = self.wire.carried.get();
        let carried = Carried { writes: writes - before.writes, bytes: bytes - before.bytes };
        Ok(Cost { messages: self.messages() - messages, carried, time: done - started })
    }

    fn recv_each(
        &mut self,
        pair: u32,
        step: i64,
        tensors: &[(String, Tensor)],
        deadline: Instant,
    ) -> Vec<oneshot::Receiver<RecvOutcome>> {
        let now = self.now();
        let ask = |(key, tensor): &(String, Tensor)| {
            let (sender, receiver) = oneshot::channel();
            let (destination, waiter) = (Some(memory(tensor).into()), RecvWaiter::Channel(sender));
            self.nodes[WORKER].recv(
                now,
                RecvRequest { pair, step, key, deadline, destination, waiter, fused: false, fail_if_gone: false },
            );
            receiver
        };
        tensors.iter().map(ask).collect()
    }

    fn recv_fused(&mut self, pair: u32, step: i64, tensors: &[(String, Tensor)], deadline: Instant) -> Handle {
        let keys = tensors.iter().map(|(key, _)| key.as_str());
        let destinations = tensors.iter().map(|(_, tensor)| memory(tensor));
        let (now, waiter) = (self.now(), BatchWaiter::Future(None));
        self.nodes[WORKER].recv_fused(now, FusedRequest { pair, step, keys, destinations, deadline, waiter })
    }

    fn push(&mut self, pair: u32, tensors: &[(String, Tensor)], deadline: Instant) {
        let tensors = tensors.iter().map(|(_, tensor)| tensor.share());
        let (now, queue, waiter) = (self.now(), QUEUE, SendWaiter::Nobody);
        self.nodes[PS].push(now, PushRequest { pair, queue, tensors, deadline, waiter });
    }

    fn messages(&self) -> u64 {
        self.nodes.iter().map(|node| node.counters().messages_sent).sum()
    }
}
