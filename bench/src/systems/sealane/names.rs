//! What the tasks and their tensors are called.

use crate::plan::Plan;

pub(super) const NAME: &str = "sealane";
pub(super) const PS: &str = "ps:1";
pub(super) const WORKER: &str = "worker:1";

/// The queue of a ps into which gradients are pushed.
pub(super) const QUEUE: &str = "gradients";

/// The task of one of many ps.
pub(super) fn ps_task(number: usize) -> String {
    format!("ps{number:03}:1")
}

/// The key of the tensor with that number.
pub(super) fn key_of(tensor: usize) -> String {
    format!("layer_{tensor}/kernel")
}

/// Bytes of the tensors that are asked for under a key each: a window of one size, or all of a step.
pub(super) fn lanes(plan: &Plan) -> Vec<usize> {
    if plan.step.is_empty() { vec![plan.size_bytes; plan.window] } else { plan.step.clone() }
}

/// Where the two tasks are.
pub(super) fn map(ps: u16, worker: u16) -> String {
    format!("{PS}=127.0.0.1:{ps}\n{WORKER}=127.0.0.1:{worker}\n")
}
