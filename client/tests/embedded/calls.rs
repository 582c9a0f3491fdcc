//! Calls between two engines in this process, as on two hosts.

#[path = "../calls/scenarios.rs"]
mod scenarios;

use sealane::{Code, Keys};

use crate::two;

macro_rules! between_engines {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (ps, worker) = two();
            scenarios::$scenario(&ps, &worker);
        })*
    };
}

scenarios::all!(between_engines);

#[test]
fn a_task_of_an_engine_has_no_arena() {
    let (_ps, worker) = two();
    assert_eq!((worker.name(), worker.arena_range()), ("worker0:2222", Ok(None)));
}

#[test]
fn a_plan_whose_pull_was_given_up_has_no_version() {
    let (ps, worker) = two();
    let mut plan = worker.plan(ps.name(), Keys::new(["a"]).unwrap());
    drop(plan.pull(1));
    assert_eq!((plan.get(0).unwrap_err().code(), plan.version(0)), (Code::InvalidArgument, 0));
}
