//! Tensors sent and received.

use std::{
    ffi::{CString, c_void},
    ptr::{null, null_mut},
    sync::mpsc::{Sender, channel},
    thread,
};

use sealane_c::*;

use crate::{daemon::LONG, fixture::*};

#[test]
fn what_went_another_way_is_told_to_the_daemon() {
    let World { _directory, daemon, worker: _worker, ps } = world();
    // More peers than are counted separately.
    let peers: Vec<String> = (0..1030).map(|peer| format!("peer{peer}:1")).collect();
    // SAFETY: the task is attached, the texts live.
    unsafe {
        for peer in peers.iter().chain(&peers) {
            ok(sealane_note_elsewhere(ps.0, text(peer), SEALANE_SENT, 1, 100));
            ok(sealane_note_elsewhere(ps.0, text(peer), SEALANE_RECEIVED, 2, 10));
        }
        refused(sealane_note_elsewhere(ps.0, text("peer"), 3, 1, 1), sealane_code::InvalidArgument);
    }
    let told = |daemon: &crate::daemon::Daemon| {
        let figures = daemon.engine.figures();
        let of_ps = figures.iter().flat_map(|shard| &shard.clients).filter(|client| client.task == PS);
        let traffic: Vec<_> = of_ps.flat_map(|client| client.traffic.clone()).collect();
        let sum = |of: fn(&sealane_fusion::metrics::TrafficCounters) -> u64| {
            traffic.iter().map(|traffic| of(&traffic.counters)).sum::<u64>()
        };
        let others: u64 = traffic
            .iter()
            .filter(|traffic| traffic.peer == "others")
            .map(|traffic| traffic.counters.elsewhere_tensors_sent)
            .sum();
        let sums = [
            sum(|counters| counters.elsewhere_tensors_sent),
            sum(|counters| counters.elsewhere_bytes_sent),
            sum(|counters| counters.elsewhere_tensors_received),
            sum(|counters| counters.elsewhere_bytes_received),
        ];
        (sums, others)
    };
    // The rest is reported a second after the first, while a call is in progress.
    let ear = Ear::new();
    ps.recv(WORKER, 1, "never", &ear);
    daemon.until("all is told", |daemon| told(daemon) == ([2060, 206_000, 4120, 20_600], 12));
    ps.detach();
    assert_eq!(ear.told().code, sealane_code::Cancelled);
}

#[test]
fn what_is_sent_is_received_and_each_side_is_called_back_once() {
    let World { ps, worker, .. } = &world();
    for bytes in [vec![], vec![7; 3], vec![9; 10_000], vec![1; 1 << 20]] {
        let (sent, got) = (Ear::new(), Ear::new());
        worker.recv(PS, 1, "key", &got);
        ps.send(WORKER, 1, "key", &bytes, &sent);
        let (sent_told, told) = (sent.ok(), got.ok());
        assert_eq!(told.tensors[0].bytes(), bytes);
        let view = told.tensors[0].view();
        assert_eq!((view.meta.code, view.meta.bits, view.meta.lanes, view.meta.rank), (SEALANE_UINT, 8, 1, 1));
        // SAFETY: the view is valid as long as the tensor.
        assert_eq!(unsafe { *view.meta.dims }, bytes.len() as u64);
        assert_ne!(told.thread, thread::current().id());
        assert_ne!(told.thread, sent_told.thread, "each task has a thread of its own");
        sent.nothing();
        got.nothing();
    }
}

#[test]
fn dead_tensors_and_those_of_strings_are_what_they_were() {
    let World { ps, worker, .. } = &world();
    let strings: Vec<u8> = [0_u64, 2, 3].iter().flat_map(|offset| offset.to_le_bytes()).chain(*b"abc").collect();
    for (flags, bytes, dims) in [(SEALANE_DEAD, &[][..], [0]), (SEALANE_STRINGS, &strings, [2])] {
        let (sent, got) = (Ear::new(), Ear::new());
        let mut source = source(bytes, &dims);
        source.meta.flags = flags;
        // SAFETY: everything lives until the function returns, the ear longer.
        ok(unsafe {
            sealane_send(ps.0, text(WORKER), 1, text("key"), &source, 0, Some(done), sent.context(), null_mut())
        });
        worker.recv(PS, 1, "key", &got);
        let tensor = got.tensor();
        assert_eq!((tensor.view().meta.flags, tensor.bytes()), (flags, bytes));
        sent.ok();
        // Nobody has to be called back of a send.
        // SAFETY: everything lives until the function returns.
        ok(unsafe { sealane_send(ps.0, text(WORKER), 1, text("key"), &source, 0, None, null_mut(), null_mut()) });
        worker.recv(PS, 1, "key", &got);
        assert_eq!(got.tensor().bytes(), bytes);
    }
}

#[test]
fn memory_that_was_lent_is_released_once_when_nobody_uses_it_any_more() {
    let World { ps, worker, .. } = &world();
    let mut elsewhere = vec![0_u8; 20_000];
    let bytes: Vec<u8> = (0..20_000).map(|at| at as u8).collect();
    let (mut from, mut to) = (null_mut(), null_mut());
    // SAFETY: the places live.
    unsafe {
        ok(sealane_alloc(ps.0, bytes.len(), &mut from));
        ok(sealane_alloc(worker.0, bytes.len(), &mut to));
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), from.cast(), bytes.len());
        assert!(sealane_in_arena(ps.0, from, bytes.len()) && !sealane_in_arena(ps.0, bytes.as_ptr().cast(), 1));
        let (mut start, mut length) = (null(), 0);
        ok(sealane_arena_range(ps.0, &mut start, &mut length));
        assert!(start <= from.cast_const() && length == 4 << 20 && from.addr() % 64 == 0);
    }
    for (from, to) in [(from.cast_const(), to), (bytes.as_ptr().cast(), elsewhere.as_mut_ptr().cast())] {
        let (sent, lent, got, filled) = (Ear::new(), Ear::new(), Ear::new(), Ear::new());
        let dims = [bytes.len() as u64];
        let source = sealane_source {
            data: from,
            release: Some(release),
            release_context: lent.context(),
            ..source(&bytes, &dims)
        };
        let destination = sealane_destination {
            memory: to,
            bytes: bytes.len(),
            release: Some(release),
            release_context: filled.context(),
        };
        // SAFETY: memory stays until it is released, all else until the functions return.
        unsafe {
            let key = text("key");
            let context = got.context();
            ok(sealane_recv(worker.0, text(PS), 1, key, &destination, 0, Some(received), context, null_mut()));
            ok(sealane_send(ps.0, text(WORKER), 1, key, &source, 0, Some(done), sent.context(), null_mut()));
        }
        sent.ok();
        assert!(lent.ok().released);
        let tensor = got.tensor();
        assert_eq!((tensor.bytes(), tensor.view().data), (&bytes[..], to.cast_const()), "in place");
        filled.nothing();
        drop(tensor);
        assert!(filled.ok().released);
        for ear in [sent, lent, got, filled] {
            ear.nothing();
        }
    }
    // SAFETY: the memory is no longer used.
    unsafe {
        sealane_free(from);
        sealane_free(to);
        // Freeing it twice, or freeing memory that was never allocated, does nothing.
        sealane_free(from);
        sealane_free(elsewhere.as_mut_ptr().cast());
        sealane_free(null_mut());
    }
}

#[test]
fn a_destination_of_a_recv_that_fails_comes_back() {
    let World { worker, .. } = &world();
    let mut memory = [0_u8; 100];
    let (got, filled) = (Ear::new(), Ear::new());
    let destination = filled.destination(&mut memory);
    // SAFETY: memory stays until it is released, all else until the function returns.
    ok(unsafe {
        let context = got.context();
        sealane_recv(worker.0, text(PS), 1, text("none"), &destination, 1, Some(received), context, null_mut())
    });
    assert_eq!(got.told().code, sealane_code::DeadlineExceeded);
    assert!(filled.ok().released);
}

#[test]
fn the_longest_times_are_as_good_as_none() {
    let World { ps, daemon, .. } = &world();
    let (got, sent) = (Ear::new(), Ear::new());
    for (step, timeout_ms) in [SEALANE_NO_TIMEOUT, i64::MAX, i64::MAX / 2, 1 << 40, 1 << 32].into_iter().enumerate() {
        ps.recv_within(PS, step as i64, "key", timeout_ms, &got);
        ps.send(PS, step as i64, "key", &[1], &sent);
        assert_eq!(got.tensor().bytes(), [1]);
        sent.ok();
    }
    let socket = CString::new(daemon.socket.to_str().unwrap()).unwrap();
    let options = sealane_attach_options {
        socket: socket.as_ptr(),
        arena_bytes: 1 << 20,
        idle_spin_us: i64::MAX,
        attach_timeout_ms: i64::MAX,
        restart_timeout_ms: i64::MAX,
        ..DEFAULTS
    };
    let mut third = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_attach(THIRD.as_ptr(), &options, &mut third) });
    let third = Task(third);
    assert!(third.knows(PS));
    third.recv(PS, 9, "key", &got);
    ps.send(THIRD.to_str().unwrap(), 9, "key", &[2], &sent);
    assert_eq!(got.tensor().bytes(), [2]);
    sent.ok();
}

#[test]
fn many_are_sent_and_received_together() {
    let World { ps, worker, .. } = &world();
    const COUNT: usize = 1000;
    let keys: Vec<String> = (0..COUNT).map(|index| format!("key{index}")).collect();
    let bytes: Vec<[u8; 2]> = (0..COUNT).map(|index| [index as u8, (index >> 8) as u8]).collect();
    let ears: Vec<(Ear, Ear)> = (0..COUNT).map(|_| (Ear::new(), Ear::new())).collect();
    let items: Vec<sealane_item> = (0..COUNT)
        .map(|index| sealane_item {
            key: text(&keys[index]),
            source: source(&bytes[index], &[2]),
            context: ears[index].0.context(),
        })
        .collect();
    let wanted: Vec<sealane_wanted> = (0..COUNT)
        .map(|index| sealane_wanted { key: text(&keys[index]), destination: NOWHERE, context: ears[index].1.context() })
        .collect();
    let mut calls = vec![null_mut(); COUNT];
    // SAFETY: everything lives until the functions return, the ears longer.
    unsafe {
        let (start, places) = (wanted.as_ptr(), calls.as_mut_ptr());
        ok(sealane_recv_all(worker.0, text(PS), 1, start, COUNT, 0, Some(received), places));
        ok(sealane_send_all(ps.0, text(WORKER), 1, items.as_ptr(), COUNT, 0, Some(done), null_mut()));
    }
    for (index, (sent, got)) in ears.iter().enumerate() {
        assert_eq!(got.tensor().bytes(), bytes[index]);
        sent.ok();
    }
    for call in calls {
        // SAFETY: each is freed once.
        unsafe { sealane_call_free(call) };
    }
}

#[test]
fn a_recv_that_is_given_up_is_told_so_once_and_the_tensor_is_anothers() {
    let World { ps, worker, .. } = &world();
    let (first, second, sent) = (Ear::new(), Ear::new(), Ear::new());
    let call = worker.recv_call(PS, 1, "key", &first);
    call.cancel();
    call.cancel();
    assert_eq!(first.told().code, sealane_code::Cancelled);
    ps.send(WORKER, 1, "key", &[1, 2, 3], &sent);
    let call = worker.recv_call(PS, 1, "key", &second);
    assert_eq!(second.tensor().bytes(), [1, 2, 3]);
    call.cancel();
    sent.ok();
    // After one more complete call, everything about the others has been reported.
    let late = Ear::new();
    worker.recv_within(PS, 2, "none", 1, &late);
    late.told();
    first.nothing();
    second.nothing();
}

#[test]
fn what_fails_says_so_in_grpcs_codes() {
    let World { worker, .. } = &world();
    let ear = Ear::new();
    assert!(!worker.knows("nobody:1") && !worker.knows("") && !worker.knows("no name"));
    worker.recv("nobody:1", 1, "key", &ear);
    assert_eq!(ear.told().code, sealane_code::NotFound);
    worker.recv(PS, 1, &"k".repeat(100_000), &ear);
    assert_eq!(ear.told().code, sealane_code::InvalidArgument);
    worker.recv_within(PS, 1, "key", 1, &ear);
    let late = ear.told();
    assert_eq!(late.code, sealane_code::DeadlineExceeded);
    assert!(late.message.contains("step 1 key 'key'"), "{}", late.message);
    worker.recv(PS, 2, "key", &ear);
    // SAFETY: the text lives until the function returns.
    ok(unsafe { sealane_abort(worker.0, 2, text("enough")) });
    let aborted = ear.told();
    assert_eq!((aborted.code, aborted.message.as_str()), (sealane_code::Aborted, "step 2 was aborted: enough"));
    // SAFETY: the task lives.
    ok(unsafe { sealane_cleanup(worker.0, 2) });
}

/// The state that a chain of callbacks passes on.
struct Chain {
    worker: *mut sealane_task,
    left: i64,
    depth: usize,
    end: Sender<()>,
}

unsafe extern "C" fn next(context: *mut c_void, error: *const sealane_error, tensor: *mut sealane_tensor) {
    assert!(error.is_null());
    let chain = context.cast::<Chain>();
    // SAFETY: the context is the chain, which the test keeps until its end, and this thread alone has.
    unsafe {
        sealane_tensor_free(tensor);
        (*chain).depth += 1;
        assert_eq!((*chain).depth, 1, "no callback runs within another");
        (*chain).left -= 1;
        let step = (*chain).left;
        if step > 0 {
            let started =
                sealane_recv((*chain).worker, text(PS), step, text("key"), null(), 0, Some(next), context, null_mut());
            ok(started);
        }
        (*chain).depth -= 1;
        if step == 0 {
            (*chain).end.send(()).unwrap();
        }
    }
}

#[test]
fn a_callback_may_start_the_next_call() {
    const STEPS: i64 = 2000;
    let World { ps, worker, .. } = &world();
    let sent = Ear::new();
    for step in 1..=STEPS {
        ps.send(WORKER, step, "key", &[1], &sent);
    }
    let (end, ended) = channel();
    let mut chain = Chain { worker: worker.0, left: STEPS, depth: 0, end };
    let context = std::ptr::from_mut(&mut chain).cast();
    // SAFETY: the chain is kept until its end.
    ok(unsafe { sealane_recv(worker.0, text(PS), STEPS, text("key"), null(), 0, Some(next), context, null_mut()) });
    ended.recv_timeout(LONG).unwrap();
    (0..STEPS).for_each(|_| drop(sent.ok()));
}

#[test]
fn each_of_many_that_are_sent_together_waits_no_longer_than_was_said() {
    let World { ps, worker, daemon: _daemon, _directory } = &world();
    let (ear, dims, bytes) = (Ear::new(), [3], [1_u8, 2, 3]);
    let items = ["asked for", "not asked for"].map(|key| sealane_item {
        key: text(key),
        source: source(&bytes, &dims),
        context: ear.context(),
    });
    let got = Ear::new();
    worker.recv(PS, 1, "asked for", &got);
    // SAFETY: everything lives until the function returns, the ear until it is told.
    ok(unsafe { sealane_send_all(ps.0, text(WORKER), 1, items.as_ptr(), 2, 500, Some(done), null_mut()) });
    got.tensor();
    let mut codes = [ear.told().code, ear.told().code];
    codes.sort_by_key(|code| *code as i32);
    assert_eq!(codes, [sealane_code::Ok, sealane_code::DeadlineExceeded]);
}
