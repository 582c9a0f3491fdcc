//! Calls that do not wait for a task that has left.

use std::ptr::{null, null_mut};

use sealane_c::*;

use crate::fixture::*;

/// Makes a recv, a pull and an accept that fail if the task has left.
fn ask(worker: &Task, acceptor: *mut sealane_acceptor, plan: *mut sealane_plan) -> [Ear; 3] {
    let ears = [Ear::new(), Ear::new(), Ear::new()];
    let (ps, key, tasks) = (text(PS), text("w"), [text(PS)]);
    let [of_recv, of_pull, of_accept] = [0, 1, 2].map(|at: usize| ears[at].context());
    // SAFETY: everything lives until the functions return, the ears longer.
    unsafe {
        ok(sealane_recv_fail_if_gone(worker.0, ps, 1, key, null(), 0, Some(received), of_recv, null_mut()));
        ok(sealane_plan_pull_fail_if_gone(plan, 0, 0, Some(done), of_pull, null_mut()));
        let (start, count) = (tasks.as_ptr(), tasks.len());
        ok(sealane_accept_fail_if_gone(acceptor, 1, start, count, 0, Some(accepted), of_accept, null_mut()));
    }
    ears
}

#[test]
fn a_task_that_has_left_is_not_waited_for() {
    // The directory is dropped last.
    let World { _directory, ps, worker, daemon } = world();
    let (mut acceptor, mut plan, keys) = (null_mut(), null_mut(), [text("w")]);
    // SAFETY: everything lives until the functions return.
    unsafe {
        ok(sealane_acceptor_open(worker.0, text("grads"), null(), &mut acceptor));
        ok(sealane_plan_open(worker.0, text(PS), keys.as_ptr(), keys.len(), &mut plan));
    }
    let before = ask(&worker, acceptor, plan);
    ps.detach();
    let left = |ears: [Ear; 3]| {
        for ear in ears {
            let told = ear.told();
            assert_eq!(told.code, sealane_code::Unavailable);
            assert!(told.message.starts_with(&format!("{PS} has left (")), "{}", told.message);
        }
    };
    left(before);
    left(ask(&worker, acceptor, plan));
    let again = attach(&daemon, PS);
    let anew = ask(&worker, acceptor, plan);
    again.send(WORKER, 1, "w", &[7], &Ear::new());
    assert_eq!(anew[0].tensor().bytes(), [7], "it has come back");
    anew[1..].iter().for_each(Ear::nothing);
    again.detach();
    anew[1..].iter().for_each(|ear| assert_eq!(ear.told().code, sealane_code::Unavailable));
    // SAFETY: nobody uses them any more.
    unsafe {
        sealane_acceptor_close(acceptor);
        sealane_plan_close(plan);
    }
}
