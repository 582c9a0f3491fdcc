//! What a worker that is a client takes of both processes.

use super::super::arena::{SLACK_BYTES, room_bytes};
use crate::plan::{Fuse, Plan};
use crate::systems::training;

/// Open files of a client: its socket, its doorbell, and what it sleeps on.
pub(super) const OPEN_FILES: usize = 3;

/// Memory of a client for what it pulls with a plan, which lies where the engine puts it.
pub(super) fn area_bytes(plan: &Plan) -> u64 {
    (SLACK_BYTES + if plan.fuse == Fuse::Plan { room_bytes(&plan.step) } else { 0 }) as u64
}

/// Memory of a client for its gradients, once more where they are copied, and for what it pulls without a plan.
pub(super) fn arena_bytes(plan: &Plan) -> u64 {
    let training = training::of(plan);
    let pushed = room_bytes(&training.push) * if training.variants[0].copies { 2 } else { 1 };
    let pulled = if plan.fuse == Fuse::Plan { 0 } else { room_bytes(&plan.step) };
    (SLACK_BYTES + pushed + pulled) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Bench, Training, Variant};

    #[test]
    fn an_arena_has_room_for_what_lies_in_it() {
        let (step, push) = (vec![100_000, 1], vec![70_000]);
        let plan = |fuse, copies| {
            let whole = Plan { step: step.clone(), fuse, ..Plan::new(Bench::Ps) };
            let variants = vec![Variant { fuse, copies, ..Variant::default() }];
            let training = Training { push: push.clone(), variants, ..training::of(&whole).clone() };
            Plan { training: Some(training), ..whole }
        };
        let [planned, copied, received] =
            [(Fuse::Plan, false), (Fuse::Plan, true), (Fuse::Receive, false)].map(|(fuse, copies)| plan(fuse, copies));
        assert!(
            area_bytes(&planned) as usize >= SLACK_BYTES + 100_001 && area_bytes(&received) as usize == SLACK_BYTES
        );
        assert!(arena_bytes(&planned) as usize >= SLACK_BYTES + 70_000);
        assert!(arena_bytes(&copied) >= arena_bytes(&planned) + 70_000);
        assert!(arena_bytes(&received) >= arena_bytes(&planned) + 100_001);
    }
}
