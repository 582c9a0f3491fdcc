//! Tasks whose engines are in this process.

use std::{
    ffi::CString,
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    ptr::{null, null_mut},
    time::{Duration, SystemTime},
};

use sealane_c::*;
use sealane_transport::{authentication::Authority, endpoint_map::TaskName};
use tempfile::TempDir;

use crate::{
    fixture::*,
    tables::{ANY, Sharded, floats, view},
};

const OPTIONS: sealane_embedded_options = sealane_embedded_options {
    size: size_of::<sealane_embedded_options>(),
    shards: 1,
    idle_spin_us: SEALANE_SLEEP_AT_ONCE,
    request_timeout_ms: SEALANE_NO_TIMEOUT,
    secret_file: null(),
    tls_certificate: null(),
    tls_key: null(),
    tls_authorities: null(),
    insecure: 0,
};

fn start(map: &Path, task: &str) -> Task {
    start_with(map, task, &OPTIONS)
}

/// A task of the map in a file.
fn start_with(map: &Path, task: &str, options: &sealane_embedded_options) -> Task {
    let map = CString::new(map.to_str().unwrap()).unwrap();
    let task = CString::new(task).unwrap();
    let mut embedded = null_mut();
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_embedded(map.as_ptr(), task.as_ptr(), options, &mut embedded) });
    Task(embedded)
}

/// A map of two tasks at an address that only this test uses, so that nobody takes the ports before the engines start.
fn map(number: u8) -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let [_, one, two, three] = std::process::id().to_be_bytes();
    let address = std::net::Ipv4Addr::new(127, one.max(1) + number, two, three.max(1));
    let ports = [(); 2].map(|()| TcpListener::bind((address, 0)).unwrap());
    let [ps, worker] = ports.map(|listener| listener.local_addr().unwrap());
    let map = directory.path().join("endpoint_map");
    std::fs::write(&map, format!("{PS}={ps}\n{WORKER}={worker}\n")).unwrap();
    (directory, map)
}

/// A file that only its owner may read.
fn private(directory: &TempDir, name: &str, content: &str) -> CString {
    let path = directory.path().join(name);
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    CString::new(path.to_str().unwrap()).unwrap()
}

/// Whether a tensor passes from one to the other; false if they reject each other.
fn is_carried(ps: &sealane_embedded_options, worker: &sealane_embedded_options, number: u8) -> bool {
    let (_directory, map) = map(number);
    let (ps, worker) = (start_with(&map, PS, ps), start_with(&map, WORKER, worker));
    let (sent, got) = (Ear::new(), Ear::new());
    ps.send(WORKER, 1, "key", &[5; 100_000], &sent);
    worker.recv_within(PS, 1, "key", 60_000, &got);
    let told = got.told();
    match told.code {
        sealane_code::Ok => {
            assert_eq!(told.tensors[0].bytes(), [5; 100_000]);
            sent.ok();
            true
        }
        sealane_code::Unavailable | sealane_code::PermissionDenied => false,
        other => panic!("{other:?} {}", told.message),
    }
}

#[test]
fn engines_that_share_a_secret_let_each_other_in_and_nobody_else() {
    let directory = TempDir::new().unwrap();
    let [one, other] = ["one", "other"].map(|name| private(&directory, name, &format!("{name} ").repeat(16)));
    let with = |secret: &CString| sealane_embedded_options { secret_file: secret.as_ptr(), ..OPTIONS };
    assert!(is_carried(&with(&one), &with(&one), 2));
    assert!(!is_carried(&with(&one), &with(&other), 3));
}

#[test]
fn an_engine_that_cannot_start_says_why() {
    let directory = TempDir::new().unwrap();
    let there = private(&directory, "endpoint_map", "a:1=127.0.0.1:1\n");
    let absent = sealane_embedded_options { secret_file: c"/no/secret".as_ptr(), ..OPTIONS };
    for (map, options, why) in [(c"/no/map", null(), "/no/map"), (&there, &raw const absent, "/no/secret")] {
        let mut embedded = null_mut();
        // SAFETY: everything lives until the function returns.
        let error = unsafe { sealane_embedded(map.as_ptr(), c"a:1".as_ptr(), options, &mut embedded) };
        assert!(refused(error, sealane_code::InvalidArgument).contains(why));
        assert!(embedded.is_null());
    }
}

#[test]
fn engines_with_certificates_of_one_authority_let_each_other_in_and_nobody_else() {
    let directory = TempDir::new().unwrap();
    let authorities = [(); 2].map(|()| Authority::new().unwrap());
    let until = SystemTime::now() + Duration::from_secs(86_400);
    let files = |authority: &Authority, task: &str, name: &str| {
        let certified = authority.certify(&[task.parse::<TaskName>().unwrap()], until).unwrap();
        let file = |part: &str, content: &str| private(&directory, &format!("{name}.{part}"), content);
        [
            file("certificate", &certified.certificate),
            file("key", &certified.key),
            file("authority", &authority.certificate()),
        ]
    };
    let with = |[certificate, key, authority]: &[CString; 3]| sealane_embedded_options {
        tls_certificate: certificate.as_ptr(),
        tls_key: key.as_ptr(),
        tls_authorities: authority.as_ptr(),
        ..OPTIONS
    };
    let ps = files(&authorities[0], PS, "ps");
    let worker = files(&authorities[0], WORKER, "worker");
    let stranger = files(&authorities[1], WORKER, "stranger");
    assert!(is_carried(&with(&ps), &with(&worker), 4));
    assert!(!is_carried(&with(&ps), &with(&stranger), 5));
}

#[test]
fn the_same_calls_work_with_engines_of_ones_own() {
    let (_directory, map) = map(1);
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
fn tables_of_engines_of_ones_own_are_pulled_from() {
    let (_directory, map) = map(6);
    let (ps, worker) = (start(&map, PS), start(&map, WORKER));
    let dims = [1000, 4];
    let (mut memory, mut table) = (null_mut(), null_mut());
    // SAFETY: the memory has as many bytes until it is handed over; all else lives until the functions return.
    unsafe {
        ok(sealane_alloc(ps.0, 16_000, &mut memory));
        let values = std::slice::from_raw_parts_mut(memory.cast::<f32>(), 4000);
        values.iter_mut().zip(0_u16..).for_each(|(value, number)| *value = number.into());
        let tensor = sealane_view { data: memory, bytes: 16_000, ..view(&[], &dims) };
        ok(sealane_publish_table(ps.0, text("users"), &tensor, null(), &mut table));
        let row = [1.; 4];
        ok(sealane_table_add(table, &3, 1, &view(&row, &[1, 4])));
    }
    let users = Sharded::new("users", &[PS], 0, SEALANE_SHARDING_MODULO);
    let pulled = users.pull(&worker, &[3, 999], &ANY).unwrap();
    assert_eq!(floats(&pulled), [13., 14., 15., 16., 3996., 3997., 3998., 3999.]);
    // A table and its rows outlive their task.
    ps.detach();
    // SAFETY: the table is closed once.
    unsafe { sealane_table_close(table) };
    worker.detach();
    assert_eq!(floats(&pulled)[4..], [3996., 3997., 3998., 3999.]);
}
