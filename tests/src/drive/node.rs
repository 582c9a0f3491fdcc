//! Steps between two nodes.

use std::task::{Poll, Waker};

use sealane_fusion::node::{
    BatchWaiter, ClientCall, ClientOutcome, ClientOutcomes, FusedRequest, Node, PullRequest, PullWaiter, PushRequest,
    RecvRequest, RecvWaiter, SendWaiter,
};
use sealane_fusion::{AcceptQueue, Accepted, AcceptedBatch, Buffer, Error, Fuse, IntoTensor, Tensor, TensorView};
use sealane_transport::Handle;

use super::keys;
use crate::two_nodes::{DEADLINE, PS, QUEUE, TwoNodes, WORKER, Wire};

const BYTES: usize = 64;
/// A call whose outcome waits in the node until it is taken, as for an attached client.
const CALL: ClientCall = ClientCall { client: Handle::NONE, call: Handle::NONE };

fn tensor() -> Result<Tensor, String> {
    Tensor::from_elements(&[BYTES as u64], &[7_u8; BYTES]).map(Tensor::into_shared).map_err(said)
}

fn said(error: Error) -> String {
    error.to_string()
}

/// Sends and receives all tensors of a step at once.
pub(super) fn recvs(wire: impl Wire, tensors: usize, steps: i64) -> Result<(), String> {
    let (mut two, keys, tensor) = (TwoNodes::new(wire, Fuse::Turn)?, keys(tensors), tensor()?);
    let pairs = [two.number(PS).map_err(said)?, two.number(WORKER).map_err(said)?];
    let deadline = two.now() + DEADLINE;
    let mut outcomes = ClientOutcomes::default();
    let mut buffers: Vec<_> = (0..tensors).map(|_| Buffer::from_vec(vec![0; BYTES])).collect();
    for step in 0..steps {
        let now = two.now();
        for key in &keys {
            let (pair, waiter) = (pairs[WORKER], RecvWaiter::Client(CALL));
            let destination = buffers.pop().map(Into::into);
            two.nodes[WORKER].recv(
                now,
                RecvRequest { pair, step, key, deadline, destination, waiter, fused: false, fail_if_gone: false },
            );
            two.nodes[PS].send(pairs[PS], step, key, &tensor, deadline, SendWaiter::Nobody);
        }
        two.until(|nodes| {
            nodes[WORKER].swap_client_outcomes(&mut outcomes);
            while let Some((_, outcome)) = outcomes.take_next() {
                let outcome = std::mem::replace(outcome, ClientOutcome::Returned);
                let ClientOutcome::Received(outcome) = outcome else { return Err(format!("{outcome:?}")) };
                buffers.push(outcome.map_err(|unreceived| said(unreceived.error))?.into_buffer());
            }
            Ok(buffers.len() == tensors)
        })?;
    }
    Ok(())
}

/// As `recvs`, with one call for all sends of a step and one for all recvs, each into memory of its own.
pub(super) fn batches(wire: impl Wire, tensors: usize, steps: i64) -> Result<(), String> {
    let buffers: Vec<_> = (0..tensors).map(|_| Buffer::from_vec(vec![0; BYTES])).collect();
    recv_together(wire, (tensors, steps), buffers, BatchWaiter::Future, |worker, batch, buffers| {
        let Poll::Ready(outcomes) = worker.poll_batch(batch, Waker::noop()) else { return Ok(false) };
        for outcome in outcomes {
            buffers.push(outcome.map_err(|unreceived| said(unreceived.error))?.into_buffer());
        }
        Ok(true)
    })
}

/// As `batches`, with tensors that are read where they lie.
pub(super) fn views(wire: impl Wire, tensors: usize, steps: i64) -> Result<(), String> {
    recv_together(wire, (tensors, steps), Vec::new(), BatchWaiter::Views, |worker, batch, _| {
        let Poll::Ready(received) = worker.poll_views(batch, Waker::noop()) else { return Ok(false) };
        let is_whole = |view: TensorView<'_>| view.bytes.first() == Some(&7) && view.bytes.len() == BYTES;
        let all_whole = received.iter().all(|outcome| outcome.is_ok_and(is_whole));
        all_whole.then_some(true).ok_or_else(|| "other bytes came".into())
    })
}

fn recv_together(
    wire: impl Wire,
    (tensors, steps): (usize, i64),
    mut buffers: Vec<Buffer>,
    waiter: impl Fn(Option<Waker>) -> BatchWaiter,
    mut take: impl FnMut(&mut Node, Handle, &mut Vec<Buffer>) -> Result<bool, String>,
) -> Result<(), String> {
    let (mut two, keys, tensor) = (TwoNodes::new(wire, Fuse::Turn)?, keys(tensors), tensor()?);
    let pairs = [two.number(PS).map_err(said)?, two.number(WORKER).map_err(said)?];
    let deadline = two.now() + DEADLINE;
    for step in 0..steps {
        let (now, wanted) = (two.now(), keys.iter().map(String::as_str));
        let (pair, destinations, waiter) = (pairs[WORKER], buffers.drain(..), waiter(None));
        let request = FusedRequest { pair, step, keys: wanted, destinations, deadline, waiter };
        let batch = two.nodes[WORKER].recv_fused(now, request);
        let tensors = keys.iter().map(|key| (key, &tensor));
        two.nodes[PS].send_many((pairs[PS], step), tensors, deadline, SendWaiter::Nobody);
        two.until(|nodes| take(&mut nodes[WORKER], batch, &mut buffers))?;
    }
    Ok(())
}

/// Publishes all tensors of a step, and pulls them.
pub(super) fn pulls(wire: impl Wire, tensors: usize, steps: i64) -> Result<(), String> {
    let (mut two, tensor) = (TwoNodes::new(wire, Fuse::Turn)?, tensor()?);
    let pair = two.number(WORKER).map_err(said)?;
    let tensors: Vec<_> = keys(tensors).into_iter().map(|key| (key, tensor.share())).collect();
    let (plan, pull_buffer) = two.open_plan(pair, &tensors).map_err(said)?;
    let deadline = two.now() + DEADLINE;
    let (mut pull_buffer, mut outcomes) = (Some(pull_buffer), ClientOutcomes::default());
    for step in 0..steps {
        let now = two.now();
        two.nodes[PS].publish_all(0, step, tensors.iter().map(|(key, tensor)| (key, tensor))).map_err(said)?;
        let (Some(pulled), waiter) = (pull_buffer.take(), PullWaiter::Client(CALL)) else {
            return Err("no pull buffer".into());
        };
        two.nodes[WORKER].pull(
            now,
            PullRequest {
                plan,
                min_version: step,
                deadline,
                pull_buffer: pulled,
                views: false,
                fail_if_gone: false,
                waiter,
            },
        );
        two.until(|nodes| {
            nodes[WORKER].swap_client_outcomes(&mut outcomes);
            while let Some((_, outcome)) = outcomes.take_next() {
                let outcome = std::mem::replace(outcome, ClientOutcome::Returned);
                let ClientOutcome::Pulled(pulled) = outcome else { return Err(format!("{outcome:?}")) };
                if let Some((_, error)) = pulled.first_error() {
                    return Err(error.to_string());
                }
                pull_buffer = Some(pulled);
            }
            Ok(pull_buffer.is_some())
        })?;
    }
    Ok(())
}

/// Pushes all tensors of a step at once, by reference, and looks at what arrived.
pub(super) fn pushes(wire: impl Wire, tensors: usize, steps: i64) -> Result<(), String> {
    let (tensor, mut batches) = (tensor()?, Vec::<AcceptedBatch>::new());
    let is_whole = |view: TensorView<'_>| view.bytes.first() == Some(&7) && view.bytes.len() == BYTES;
    push_all(
        wire,
        (tensors, steps),
        || &tensor,
        |queue| {
            let count = queue.take_all(&mut batches).map_err(said)?;
            let all_whole = batches.drain(..).all(|batch| batch.iter().all(is_whole));
            all_whole.then_some(count).ok_or_else(|| "other bytes came".into())
        },
    )
}

/// As `pushes`, with tensors that are moved into the push and taken out one by one.
pub(super) fn single_pushes(wire: impl Wire, tensors: usize, steps: i64) -> Result<(), String> {
    let (tensor, mut items) = (tensor()?, Vec::<Accepted>::new());
    push_all(
        wire,
        (tensors, steps),
        || tensor.share(),
        |queue| {
            items.clear();
            queue.take(usize::MAX, &mut items).map_err(said)
        },
    )
}

fn push_all<T: IntoTensor>(
    wire: impl Wire,
    (tensors, steps): (usize, i64),
    tensor: impl Fn() -> T,
    mut accept: impl FnMut(&AcceptQueue) -> Result<usize, String>,
) -> Result<(), String> {
    let mut two = TwoNodes::new(wire, Fuse::Turn)?;
    let pair = two.number(PS).map_err(said)?;
    let deadline = two.now() + DEADLINE;
    let queue = two.queue.clone();
    for _ in 0..steps {
        let (now, pushed) = (two.now(), (0..tensors).map(|_| tensor()));
        let push = PushRequest { pair, queue: QUEUE, tensors: pushed, deadline, waiter: SendWaiter::Nobody };
        two.nodes[PS].push(now, push);
        let mut count = 0;
        two.until(|_| {
            count += accept(&queue)?;
            Ok(count == tensors)
        })?;
    }
    Ok(())
}
