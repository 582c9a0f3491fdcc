//! Detaching a task that has calls in flight.

use std::{
    ffi::c_void,
    ptr::{null, null_mut},
    sync::mpsc::{Sender, channel},
};

use sealane_c::*;

use crate::{daemon::LONG, fixture::*};

#[test]
fn what_a_task_made_may_be_closed_and_freed_after_it() {
    let World { _directory, daemon: _daemon, ps, worker } = world();
    let (got, sent, pulled) = (Ear::new(), Ear::new(), Ear::new());
    ps.send(WORKER, 1, "key", &[7; 5000], &sent);
    let call = worker.recv_call(PS, 1, "key", &got);
    let tensor = got.tensor();
    let (mut memory, mut plan, mut acceptor) = (null_mut(), null_mut(), null_mut());
    // SAFETY: everything lives until the functions return, and is closed or freed once.
    unsafe {
        ok(sealane_alloc(worker.0, 1000, &mut memory));
        ok(sealane_plan_open(worker.0, text(PS), &text("key"), 1, &mut plan));
        ok(sealane_acceptor_open(worker.0, text("queue"), null(), &mut acceptor));
        ok(sealane_plan_pull(plan, 1, 0, Some(done), pulled.context(), null_mut()));
        worker.detach();
        assert_eq!(pulled.told().code, sealane_code::Cancelled);
        assert_eq!(tensor.bytes(), [7; 5000]);
        memory.cast::<u8>().write_bytes(1, 1000);
        refused(sealane_plan_pull(plan, 1, 0, Some(done), pulled.context(), null_mut()), sealane_code::InvalidArgument);
        refused(
            sealane_accept(acceptor, 1, 0, Some(accepted), pulled.context(), null_mut()),
            sealane_code::InvalidArgument,
        );
        call.cancel();
        sealane_free(memory);
        sealane_plan_close(plan);
        sealane_acceptor_close(acceptor);
    }
    pulled.nothing();
    sent.ok();
}

struct Stubborn {
    worker: *mut sealane_task,
    told: Sender<(sealane_code, sealane_code)>,
}

unsafe extern "C" fn again(context: *mut c_void, error: *const sealane_error, _tensor: *mut sealane_tensor) {
    // SAFETY: the context is a `Stubborn`, which the test keeps; the task is being detached by another thread.
    unsafe {
        let Stubborn { worker, told } = &*context.cast::<Stubborn>();
        let started = sealane_recv(*worker, text(PS), 1, text("again"), null(), 0, Some(again), context, null_mut());
        told.send((sealane_error_code(error), code(started).0)).unwrap();
    }
}

#[test]
fn a_callback_of_a_task_that_is_being_detached_starts_nothing_more() {
    let World { _directory, daemon: _daemon, ps: _ps, worker } = world();
    let (told, heard) = channel();
    let stubborn = Stubborn { worker: worker.0, told };
    let context = std::ptr::from_ref(&stubborn).cast_mut().cast();
    // SAFETY: the context lives until the end.
    ok(unsafe { sealane_recv(worker.0, text(PS), 1, text("none"), null(), 0, Some(again), context, null_mut()) });
    worker.detach();
    assert_eq!(heard.try_recv(), Ok((sealane_code::Cancelled, sealane_code::InvalidArgument)));
    assert!(heard.try_recv().is_err());
}

struct Last {
    worker: *mut sealane_task,
    end: Sender<()>,
}

unsafe extern "C" fn detach(context: *mut c_void, error: *const sealane_error, _tensor: *mut sealane_tensor) {
    assert!(!error.is_null());
    // SAFETY: the context is a `Last`, which the test keeps; nobody else uses the task.
    unsafe {
        let last = &*context.cast::<Last>();
        sealane_detach(last.worker);
        last.end.send(()).unwrap();
    }
}

#[test]
fn a_callback_may_detach_its_own_task() {
    let World { _directory, daemon: _daemon, ps: _ps, worker } = world();
    let worker = std::mem::ManuallyDrop::new(worker);
    let other = Ear::new();
    worker.recv(PS, 1, "other", &other);
    let (end, ended) = channel();
    let last = Last { worker: worker.0, end };
    let context = std::ptr::from_ref(&last).cast_mut().cast();
    // SAFETY: the context lives until the end.
    ok(unsafe { sealane_recv(worker.0, text(PS), 1, text("none"), null(), 1, Some(detach), context, null_mut()) });
    ended.recv_timeout(LONG).unwrap();
    let told = other.told();
    assert!([sealane_code::Cancelled, sealane_code::Unavailable].contains(&told.code), "{}", told.message);
    other.nothing();
}

#[test]
fn memory_that_is_released_after_its_task_was_detached_is_released_all_the_same() {
    let World { _directory, daemon: _daemon, ps, worker } = world();
    let mut memory = vec![0_u8; 5000];
    let (got, filled, sent) = (Ear::new(), Ear::new(), Ear::new());
    let destination = filled.destination(&mut memory);
    // SAFETY: memory stays until it is released, all else until the function returns.
    ok(unsafe {
        let context = got.context();
        sealane_recv(worker.0, text(PS), 1, text("key"), &destination, 0, Some(received), context, null_mut())
    });
    ps.send(WORKER, 1, "key", &[3; 5000], &sent);
    let tensor = got.tensor();
    worker.detach();
    assert_eq!(tensor.bytes(), [3; 5000]);
    filled.nothing();
    drop(tensor);
    assert!(filled.ok().released);
    sent.ok();
}
