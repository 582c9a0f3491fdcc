//! Invalid arguments are refused at once, and then nothing is called back or released.

use std::{
    ffi::{CStr, CString, c_void},
    ptr::{null, null_mut},
};

use sealane_c::*;

use crate::fixture::*;

const NONE: sealane_text = sealane_text { start: null(), bytes: 1 };
const UNTERMINATED_NULL: sealane_text = sealane_text { start: null(), bytes: SEALANE_NUL_TERMINATED };

#[test]
fn a_send_that_makes_no_sense_takes_nothing_over() {
    let World { ps, .. } = &world();
    let ear = Ear::new();
    let (bytes, dims) = ([1_u8, 2, 3], [3]);
    let good = sealane_source { release: Some(release), release_context: ear.context(), ..source(&bytes, &dims) };
    let with_meta = |change: &dyn Fn(&mut sealane_meta)| {
        let mut source = good;
        change(&mut source.meta);
        source
    };
    let not_utf8 = sealane_text { start: [0xff_u8, 0xfe].as_ptr().cast(), bytes: 2 };
    let (to, key) = (text(WORKER), text("key"));
    let mut misaligned = null_mut::<sealane_call>();
    let misaligned = std::ptr::from_mut(&mut misaligned).wrapping_byte_add(1);
    let context = ear.context();
    let cases: Vec<(&str, *mut sealane_error)> = {
        // SAFETY: what is no null lives until each function returns; nothing of this is taken over.
        let send = |task, to, key, source: *const sealane_source, timeout| unsafe {
            sealane_send(task, to, 1, key, source, timeout, Some(done), context, null_mut())
        };
        vec![
            ("task", send(null_mut(), to, key, &good, 0)),
            ("to", send(ps.0, NONE, key, &good, 0)),
            ("to", send(ps.0, UNTERMINATED_NULL, key, &good, 0)),
            ("key", send(ps.0, to, not_utf8, &good, 0)),
            ("key", send(ps.0, to, sealane_text { bytes: usize::MAX - 1, ..key }, &good, 0)),
            ("source", send(ps.0, to, key, null(), 0)),
            ("timeout", send(ps.0, to, key, &good, -2)),
            ("data", send(ps.0, to, key, &sealane_source { data: null(), ..good }, 0)),
            ("the data has 2", send(ps.0, to, key, &sealane_source { bytes: 2, ..good }, 0)),
            ("is too large", send(ps.0, to, key, &sealane_source { bytes: usize::MAX, ..good }, 0)),
            ("dims", send(ps.0, to, key, &with_meta(&|meta| meta.dims = null()), 0)),
            ("dims", send(ps.0, to, key, &with_meta(&|meta| meta.dims = meta.dims.wrapping_byte_add(1)), 0)),
            ("DLPack", send(ps.0, to, key, &with_meta(&|meta| meta.code = 200), 0)),
            ("flags", send(ps.0, to, key, &with_meta(&|meta| meta.flags = 4), 0)),
            // SAFETY: as above.
            ("call", unsafe { sealane_send(ps.0, to, 1, key, &good, 0, Some(done), context, misaligned) }),
        ]
    };
    for (expected, error) in cases {
        let message = refused(error, sealane_code::InvalidArgument);
        assert!(message.contains(expected), "{message} should speak of {expected}");
    }
    // One invalid item is enough for none of them to be sent.
    let items = [good, sealane_source { bytes: 2, ..good }].map(|source| sealane_item { key, source, context });
    // SAFETY: as above.
    let all = unsafe { sealane_send_all(ps.0, to, 1, items.as_ptr(), 2, 0, Some(done), null_mut()) };
    refused(all, sealane_code::InvalidArgument);
    // SAFETY: as above.
    let pushed = unsafe {
        let sources = [good, sealane_source { bytes: 2, ..good }];
        sealane_push(ps.0, to, text("queue"), sources.as_ptr(), 2, 0, Some(done), context, null_mut())
    };
    refused(pushed, sealane_code::InvalidArgument);
    nothing_comes(ps, &ear);
}

/// After one more complete call, nothing has been reported.
fn nothing_comes(task: &Task, ear: &Ear) {
    let late = Ear::new();
    task.recv_within(WORKER, 99, "none", 1, &late);
    late.told();
    ear.nothing();
}

#[test]
fn a_recv_that_makes_no_sense_takes_nothing_over() {
    let World { worker, .. } = &world();
    let ear = Ear::new();
    let mut memory = [0_u8; 8];
    let memory: *mut c_void = memory.as_mut_ptr().cast();
    let good = sealane_destination { memory, bytes: 8, release: Some(release), release_context: ear.context() };
    let (from, key, context) = (text(PS), text("key"), ear.context());
    // SAFETY: what is no null lives until each function returns; nothing of this is taken over.
    unsafe {
        let recv = |destination: *const sealane_destination, received: sealane_received, timeout| {
            sealane_recv(worker.0, from, 1, key, destination, timeout, received, context, null_mut())
        };
        let message = |error| refused(error, sealane_code::InvalidArgument);
        assert!(message(recv(null(), None, 0)).contains("callback"));
        assert!(message(recv(&sealane_destination { release: None, ..good }, Some(received), 0)).contains("release"));
        assert!(
            message(recv(&sealane_destination { bytes: usize::MAX, ..good }, Some(received), 0)).contains("too large")
        );
        assert!(message(recv(&good, Some(received), -7)).contains("timeout"));
        let wanted = [good, sealane_destination { release: None, ..good }];
        let wanted = wanted.map(|destination| sealane_wanted { key, destination, context });
        let all = |wanted: *const sealane_wanted, count| {
            sealane_recv_all(worker.0, from, 1, wanted, count, 0, Some(received), null_mut())
        };
        message(all(wanted.as_ptr(), 2));
        message(all(null(), 2));
        message(all(wanted.as_ptr(), usize::MAX / 8));
        message(sealane_pull(worker.0, from, null(), 1, 0, 0, Some(received), null(), null_mut()));
        message(sealane_pull(worker.0, from, &key, 1, 0, 0, None, null(), null_mut()));
        message(sealane_plan_open(worker.0, from, &key, 1, null_mut()));
        message(sealane_plan_pull(null_mut(), 1, 0, Some(done), context, null_mut()));
        message(sealane_accept(null_mut(), 1, 0, Some(accepted), context, null_mut()));
        message(sealane_accept(null_mut(), 1, -2, Some(accepted), context, null_mut()));
        message(sealane_acceptor_open(worker.0, NONE, null(), &mut null_mut()));
        message(sealane_alloc(worker.0, 1, null_mut()));
        message(sealane_arena_range(worker.0, null_mut(), null_mut()));
        message(sealane_call_cancel(null_mut()));
        message(sealane_abort(null_mut(), 1, key));
        message(sealane_cleanup(null_mut(), 1));
        message(sealane_knows_task(worker.0, from, null_mut()));
        message(sealane_withdraw(worker.0, NONE));
        for bytes in [1 << 40, usize::MAX] {
            refused(sealane_alloc(worker.0, bytes, &mut null_mut()), sealane_code::ResourceExhausted);
        }
    }
    nothing_comes(worker, &ear);
}

#[test]
fn what_is_null_is_nothing() {
    // SAFETY: each says that it takes null.
    unsafe {
        sealane_detach(null_mut());
        sealane_call_free(null_mut());
        sealane_tensor_free(null_mut());
        sealane_error_free(null_mut());
        assert!(sealane_task_name(null()).is_null() && sealane_tensor_from(null()).is_null());
        assert!(!sealane_error_delivery_unknown(null()) && !sealane_in_arena(null_mut(), null(), 0));
        let view = sealane_tensor_view(null());
        assert_eq!((view.bytes, view.meta.flags, view.meta.rank), (0, SEALANE_DEAD, 1));
    }
}

/// Options of a later header.
#[repr(C)]
struct Later {
    known: sealane_attach_options,
    more: u64,
}

#[test]
fn options_of_other_headers_are_understood_or_refused() {
    let World { daemon, .. } = &world();
    let socket = CString::new(daemon.socket.to_str().unwrap()).unwrap();
    let known = sealane_attach_options { size: size_of::<Later>(), socket: socket.as_ptr(), ..DEFAULTS };
    // No task has that name; the daemon says so if it understands the options.
    let attach = |options: *const sealane_attach_options| {
        // SAFETY: everything lives until the function returns.
        code(unsafe { sealane_attach(c"nobody:1".as_ptr(), options, &mut null_mut()) }).0
    };
    let mut later = Later { known, more: 0 };
    assert_eq!(attach(std::ptr::from_ref(&later).cast()), sealane_code::NotFound);
    later.more = 1;
    assert_eq!(attach(std::ptr::from_ref(&later).cast()), sealane_code::InvalidArgument);
    // Options of an earlier header, which had the socket alone; the rest is ignored.
    let earlier = sealane_attach_options { size: 16, idle_spin_us: -99, ..known };
    assert_eq!(attach(&earlier), sealane_code::NotFound);
    for size in [0, 7, 1 << 20] {
        assert_eq!(attach(&sealane_attach_options { size, ..known }), sealane_code::InvalidArgument);
    }
    let unknown = sealane_attach_options { size: size_of::<sealane_attach_options>(), idle_spin_us: -99, ..known };
    assert_eq!(attach(&unknown), sealane_code::InvalidArgument);
    let size = size_of::<sealane_attach_options>();
    let of_job = |job: &CStr, replace| sealane_attach_options { size, job: job.as_ptr(), replace, ..known };
    assert_eq!(attach(&of_job(c"two words", 0)), sealane_code::InvalidArgument);
    assert_eq!(attach(&of_job(c"train-7", 1)), sealane_code::NotFound);
}
