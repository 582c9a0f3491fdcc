//! The parameter server of one worker, as a client that is attached to the daemon of its host.
//!
//! Threads: the calling one. Limits: the plan's tensors, of two steps at most.

use std::collections::VecDeque;

use sealane::{AcceptOptions, Acceptor, Error, SendOptions, Sending, Task, Tensor};

use super::super::asking::tensor;
use super::super::attached::attach_with;
use super::super::daemons::tasks;
use super::super::engine::{PATIENCE, QUEUE, key_of, room_bytes};
use super::super::producer::steps_ahead;
use super::rows;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::peer::{PeerJob, announce, until_ended};
use crate::plan::{Fuse, Mode, Plan};
use crate::systems::training;

/// Serves the worker until the process ends.
pub(super) fn serve(job: &PeerJob, plan: &Plan) -> Result<(), BenchError> {
    let [worker, ps] = tasks(plan);
    let arena_bytes = room_bytes(&plan.step) as u64 + rows::room_for_part(plan);
    let ps = attach_with(ps, plan, arena_bytes, job.meeting_place.as_deref())?;
    let _tables = rows::publish(plan, |_| Ok(ps.clone()))?;
    announce(&[])?;
    if plan.step.is_empty() {
        until_ended()
    }
    train(plan, &ps, worker).map_err(BenchError::sealane("serve as a ps"))
}

/// Offers the tensors of step after step, and accepts the gradients of each.
fn train(plan: &Plan, ps: &Task, worker: &str) -> Result<(), Error> {
    let share = training::shares(plan).next().expect("the plan has one ps");
    let tensors = share.numbers.iter().zip(&share.pulled);
    let tensors = tensors.map(|(&number, &bytes)| Ok((key_of(number), tensor(ps, bytes)?)));
    let tensors: Vec<(String, Tensor)> = tensors.collect::<Result<_, Error>>()?;
    let named = || tensors.iter().map(|(key, tensor)| (key, tensor.share()));
    let gradients = share.pushed.len();
    let acceptor = ps.acceptor(QUEUE, AcceptOptions { tensors_max: gradients, ..AcceptOptions::default() });
    if plan.fuse == Fuse::Plan {
        for version in 0.. {
            ps.publish_many(version, named()).wait()?;
            accept(&acceptor, gradients)?;
        }
    }
    // The worker may be idle for long between two steps.
    let patient = || SendOptions { timeout: Some(PATIENCE) };
    let send = |step| match plan.fuse.is_of_many() {
        true => ps.send_all_with(worker, step, named(), patient()),
        false => named().map(|(key, tensor)| ps.send_with(worker, step, key, tensor, patient())).collect(),
    };
    let (steps, waits) = (steps_ahead(share.pulled.iter().copied()), training::of(plan).mode == Mode::Sync);
    let mut sent: VecDeque<Vec<Sending>> = VecDeque::new();
    for step in 0.. {
        if waits && step > 0 {
            accept(&acceptor, gradients)?;
        }
        sent.push_back(send(step));
        if !waits && step > 0 {
            accept(&acceptor, gradients)?;
        }
        if sent.len() == steps
            && let Some(first) = sent.pop_front()
        {
            Sending::wait_all(first).into_iter().collect::<Result<(), _>>()?;
        }
    }
    Ok(())
}

/// Accepts the gradients of one step.
fn accept(acceptor: &Acceptor, gradients: usize) -> Result<(), Error> {
    let mut left = gradients;
    while left > 0 {
        let accepted = acceptor.accept_many(left).wait()?;
        let is_gradient = |bytes: &[u8]| bytes.first() == Some(&FILL) && bytes.last() == Some(&FILL);
        if let Some(wrong) = accepted.iter().find(|accepted| !is_gradient(accepted.tensor.bytes())) {
            let reason = format!("{} pushed other bytes than its gradients", wrong.from);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        left -= accepted.len();
    }
    Ok(())
}
