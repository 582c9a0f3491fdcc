//! Tensors pushed into queues and accepted.

use std::ptr::{null, null_mut};

use sealane_c::*;

use crate::fixture::*;

fn open(task: &Task, tensors_max: u64) -> *mut sealane_acceptor {
    let options = sealane_accept_options { size: size_of::<sealane_accept_options>(), tensors_max, bytes_max: 0 };
    let mut acceptor = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_acceptor_open(task.0, text("grads"), &options, &mut acceptor) });
    acceptor
}

fn push(task: &Task, values: &[u8], ear: &Ear) {
    let dims = [1];
    let sources: Vec<sealane_source> = values.chunks(1).map(|value| source(value, &dims)).collect();
    let (start, count) = (sources.as_ptr(), sources.len());
    // SAFETY: everything lives until the function returns, the ear longer.
    ok(unsafe {
        sealane_push(task.0, text(PS), text("grads"), start, count, 0, Some(done), ear.context(), null_mut())
    });
}

#[test]
fn what_is_pushed_is_accepted_in_its_order() {
    let World { ps, worker, .. } = &world();
    let acceptor = open(ps, 2);
    let (pushed, taken) = (Ear::new(), Ear::new());
    let values: Vec<u8> = (0..100).collect();
    push(worker, &values, &pushed);
    let mut all = Vec::new();
    while all.len() < values.len() {
        // SAFETY: the acceptor is open, the ear lives.
        ok(unsafe { sealane_accept(acceptor, 7, 0, Some(accepted), taken.context(), null_mut()) });
        let tensors = taken.ok().tensors;
        assert!((1..=7).contains(&tensors.len()));
        all.extend(tensors);
    }
    pushed.ok();
    assert!(all.iter().all(|tensor| tensor.from() == Some(WORKER)));
    assert_eq!(all.iter().map(|tensor| tensor.bytes()[0]).collect::<Vec<u8>>(), values);
    // SAFETY: nobody uses it any more.
    unsafe { sealane_acceptor_close(acceptor) };
}

#[test]
fn an_accept_ends_when_its_acceptor_is_closed() {
    let World { ps, worker, .. } = &world();
    let acceptor = open(ps, 0);
    let taken = [Ear::new(), Ear::new()];
    for ear in &taken {
        // SAFETY: the acceptor is open, the ears live.
        ok(unsafe { sealane_accept(acceptor, 1, 0, Some(accepted), ear.context(), null_mut()) });
    }
    // SAFETY: nobody uses it any more.
    unsafe { sealane_acceptor_close(acceptor) };
    for ear in &taken {
        assert_eq!(ear.told().code, sealane_code::Cancelled);
        ear.nothing();
    }
    // The queue can be opened again once it is closed, by anyone.
    let pushed = Ear::new();
    push(worker, &[9], &pushed);
    loop {
        let mut again = null_mut();
        let ear = Ear::new();
        // SAFETY: it is closed when it was told, the ear lives.
        unsafe {
            ok(sealane_acceptor_open(ps.0, text("grads"), null(), &mut again));
            ok(sealane_accept(again, 1, 0, Some(accepted), ear.context(), null_mut()));
            let told = ear.told();
            sealane_acceptor_close(again);
            if told.code == sealane_code::Ok {
                assert_eq!(told.tensors[0].bytes(), [9]);
                break;
            }
            assert_eq!(told.code, sealane_code::InvalidArgument);
        }
    }
    pushed.ok();
    // SAFETY: nothing happens.
    unsafe { sealane_acceptor_close(null_mut()) };
}

#[test]
fn an_accept_ends_at_its_deadline_and_loses_nothing() {
    let World { ps, worker, daemon: _daemon, _directory } = &world();
    let (taken, late, pushed) = (Ear::new(), Ear::new(), Ear::new());
    let mut acceptor = null_mut();
    // SAFETY: everything lives until the functions return, the ears until they are told; the acceptor is closed once.
    unsafe {
        ok(sealane_acceptor_open(worker.0, text("timed"), null(), &mut acceptor));
        ok(sealane_accept(acceptor, 7, 20, Some(accepted), late.context(), null_mut()));
        assert_eq!(late.told().code, sealane_code::DeadlineExceeded);
        let bytes = [1_u8, 2];
        let source = source(&bytes, &[2]);
        ok(sealane_accept(acceptor, 7, i64::MAX, Some(accepted), taken.context(), null_mut()));
        let (to, queue, context) = (text(WORKER), text("timed"), pushed.context());
        ok(sealane_push(ps.0, to, queue, &source, 1, 0, Some(done), context, null_mut()));
        assert_eq!(taken.tensor().bytes(), [1, 2]);
        pushed.ok();
        sealane_acceptor_close(acceptor);
    }
    late.nothing();
}
