//! Tasks whose engines are in this process.

use std::{ffi::CString, net::TcpListener, path::Path, ptr::null_mut};

use sealane_c::*;
use tempfile::TempDir;

use crate::fixture::*;

/// A task of a map that lies in a file.
fn start(map: &Path, task: &str) -> Task {
    let map = CString::new(map.to_str().unwrap()).unwrap();
    let options = sealane_embedded_options {
        size: size_of::<sealane_embedded_options>(),
        shards: 1,
        idle_spin_us: SEALANE_SLEEP_AT_ONCE,
        request_timeout_ms: SEALANE_NO_TIMEOUT,
        secret_file: std::ptr::null(),
        tls_certificate: std::ptr::null(),
        tls_key: std::ptr::null(),
        tls_authorities: std::ptr::null(),
        insecure: 0,
    };
    let task = CString::new(task).unwrap();
    let mut embedded = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_embedded(map.as_ptr(), task.as_ptr(), &options, &mut embedded) });
    Task(embedded)
}

#[test]
fn the_same_calls_work_with_engines_of_ones_own() {
    let directory = TempDir::new().unwrap();
    // An address of this test's own, so that nobody takes the ports between now and the engines' start.
    let [_, one, two, three] = std::process::id().to_be_bytes();
    let address = std::net::Ipv4Addr::new(127, one.max(1), two, three.max(1));
    let ports = [(); 2].map(|()| TcpListener::bind((address, 0)).unwrap());
    let [ps, worker] = ports.map(|listener| listener.local_addr().unwrap());
    let map = directory.path().join("endpoint_map");
    std::fs::write(&map, format!("{PS}={ps}\n{WORKER}={worker}\n")).unwrap();
    let (ps, worker) = (start(&map, PS), start(&map, WORKER));

    assert!(ps.knows(WORKER) && ps.knows(PS) && !ps.knows("nobody:1"));
    let (sent, got) = (Ear::new(), Ear::new());
    let bytes = vec![5; 100_000];
    ps.send(WORKER, 1, "key", &bytes, &sent);
    worker.recv(PS, 1, "key", &got);
    assert_eq!(got.tensor().bytes(), bytes);
    sent.ok();

    let mut memory = null_mut();
    let (mut start, mut length) = (std::ptr::null(), 1);
    let (lent, sent) = (Ear::new(), Ear::new());
    // SAFETY: memory stays until it is released, all else until the functions return.
    unsafe {
        ok(sealane_alloc(ps.0, 10_000, &mut memory));
        assert_eq!(memory.addr() % 64, 0);
        ok(sealane_arena_range(ps.0, &mut start, &mut length));
        assert!(start.is_null() && length == 0 && !sealane_in_arena(ps.0, memory, 1));
        memory.cast::<u8>().write_bytes(9, 10_000);
        let dims = [10_000];
        let source = sealane_source {
            data: memory,
            bytes: 10_000,
            release: Some(release),
            release_context: lent.context(),
            ..source(&[], &dims)
        };
        ok(sealane_send(ps.0, text(WORKER), 2, text("key"), &source, 0, Some(done), sent.context(), null_mut()));
        worker.recv(PS, 2, "key", &got);
        assert_eq!(got.tensor().bytes(), [9; 10_000]);
        sent.ok();
        assert!(lent.ok().released);
        sealane_free(memory);
    }

    for bytes in [1 << 60, usize::MAX - 1] {
        // SAFETY: the place lives.
        let error = unsafe { sealane_alloc(ps.0, bytes, &mut memory) };
        let (code, message) = code(error);
        assert!([sealane_code::ResourceExhausted, sealane_code::InvalidArgument].contains(&code), "{message}");
    }

    worker.recv_within(PS, 3, "key", i64::MAX, &got);
    worker.detach();
    assert_eq!(got.told().code, sealane_code::Cancelled);
    got.nothing();
}

#[test]
fn an_engine_that_cannot_start_says_why() {
    let mut embedded = null_mut();
    // SAFETY: everything lives until the function returns.
    let error = unsafe { sealane_embedded(c"/no/map".as_ptr(), c"a:1".as_ptr(), std::ptr::null(), &mut embedded) };
    assert!(refused(error, sealane_code::InvalidArgument).contains("/no/map"));
    assert!(embedded.is_null());
}
