//! Daemons that are missing, refuse, die, come back or hang.

use std::{
    future::Future,
    os::unix::fs::PermissionsExt,
    pin::pin,
    sync::Arc,
    task::{Context, Waker},
    time::{Duration, Instant},
};

use bytes::Bytes;
use sealane::{
    AcceptOptions, Attach, Buffer, Code, Error, Polling, RecvOptions, RowsOptions, SendOptions, ShardedTable, Sharding,
    Slicing, SumRows, TableRows, Tensor,
};

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, attached, attached_with, block_on, bytes, directory, meta, tensor, to, until_there_is_room},
};

#[test]
fn without_a_daemon_the_error_says_what_to_start() {
    let directory = directory();
    let path = directory.path().join("sealane.sock");
    let attach = || Attach::new("worker0.train:2222").socket(&path).attach().unwrap_err();
    let missing = attach();
    assert_eq!(missing.code(), Code::Unavailable);
    assert!(missing.to_string().contains("start `sealane daemon`"), "{missing}");
    assert!(missing.to_string().contains("sealane.sock"), "{missing}");

    // The socket of a daemon that was killed.
    drop(sealane_transport::shm::attach::listen(&path).unwrap());
    let refused = attach();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.to_string().contains("start `sealane daemon`"), "{refused}");
}

#[test]
fn a_socket_of_another_user_is_permission_denied() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    std::fs::set_permissions(&daemon.socket, std::fs::Permissions::from_mode(0o000)).unwrap();
    let attach = || {
        give_up_capabilities();
        to(&daemon).attach().unwrap_err()
    };
    let error = std::thread::scope(|scope| scope.spawn(attach).join().unwrap());
    assert_eq!(error.code(), Code::PermissionDenied);
}

/// Root may connect to any socket; this drops the thread's capabilities so that only its user id counts.
#[allow(unsafe_code)]
fn give_up_capabilities() {
    // `struct __user_cap_header_struct` and two of `struct __user_cap_data_struct` (capget(2)), with no capability.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both live through the call, and are as long as this version of the header has the kernel read.
    let changed = unsafe { nix::libc::syscall(nix::libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(changed, 0);
}

#[test]
fn a_daemon_that_says_nothing_is_not_waited_for() {
    let directory = directory();
    let path = directory.path().join("sealane.sock");
    let _listener = sealane_transport::shm::attach::listen(&path).unwrap();
    let error = Attach::new("w:1").socket(&path).timeout(Duration::from_millis(10)).attach().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains("did not answer within 10ms"), "{error}");
}

#[test]
fn the_death_of_the_daemon_ends_every_call() {
    for polling in [Polling::default(), Polling::Spin] {
        let (_directory, daemon, task) = attached_with(|attach| attach.polling(polling));
        let sending = task.send(TASK, 1, "early", tensor(10_000, 3));
        let kept = task.recv(TASK, 1, "early").wait().unwrap();
        sending.wait().unwrap();

        let waiting: Vec<_> = (0..4)
            .map(|number| {
                let task = task.clone();
                std::thread::spawn(move || {
                    let destination = task.alloc(100).unwrap();
                    task.recv_into(TASK, 1, &format!("late{number}"), destination).wait().unwrap_err()
                })
            })
            .collect();
        let awaited = {
            let task = task.clone();
            std::thread::spawn(move || block_on(task.recv(TASK, 1, "awaited")).unwrap_err().error)
        };
        let destination = Buffer::from_vec(vec![5; 1000]);
        let place = destination.as_ptr();
        let onto_heap = task.recv_into(TASK, 1, "late", destination);
        let sending = task.send(TASK, 1, "unheard of", tensor(10_000, 3));
        daemon.until_under_way(7);
        daemon.kill();

        for waiting in waiting {
            let unreceived = waiting.join().unwrap();
            assert_eq!(unreceived.error.code(), Code::Unavailable);
            let text = unreceived.error.to_string();
            assert!(text.contains("gone") && text.contains(&std::process::id().to_string()), "{text}");
            assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(100));
        }
        assert_eq!(awaited.join().unwrap().code(), Code::Unavailable);
        assert_eq!(onto_heap.wait().unwrap_err().destination.unwrap().as_ptr(), place);
        assert_eq!(sending.wait().unwrap_err().code(), Code::Unavailable);

        let error = task.recv(TASK, 2, "key").wait().unwrap_err().error;
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("reattaching"), "{error}");
        assert_eq!(task.abort(1, "too late").unwrap_err().code(), Code::Unavailable);
        drop(task);
        assert_eq!(kept.bytes(), bytes(10_000, 3), "what was received stays");
    }
}

#[test]
fn what_the_daemon_had_answered_before_it_died_counts() {
    let (_directory, daemon, task) = attached();
    let sending = task.send(TASK, 1, "key", tensor(1000, 3));
    let receiving = task.recv(TASK, 1, "key");
    daemon.until("it has answered", |daemon| daemon.sum(|counters| counters.tensors_received) == 1);
    daemon.kill();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(1000, 3));
    sending.wait().unwrap();
}

#[test]
fn the_next_call_attaches_again() {
    let (directory, daemon, task) = attached();
    let memory = task.alloc(10_000).unwrap();
    let old = task.alloc(10_000).unwrap();
    let place = old.as_ptr();
    daemon.kill();
    let daemon = Daemon::start(&directory, Settings { shards: 3, ..Settings::default() });
    // Calls made before the task notices that the daemon is gone end with Unavailable.
    let deadline = Instant::now() + LONG;
    while let Err(error) = task.send(TASK, 1, "key", tensor(10, 1)).reach(&daemon) {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(Instant::now() < deadline, "{error}");
    }

    // Memory of the former arena can still be sent and received into, by a copy.
    let receiving = task.recv_into(TASK, 3, "copied", old);
    task.send(TASK, 3, "copied", Tensor::new(meta(10_000), memory).unwrap()).wait().unwrap();
    assert_eq!(receiving.wait().unwrap().into_buffer().as_ptr(), place);
    drop(task);
    daemon.until_detached(TASK);
}

/// Waits until a send has failed or reached the daemon.
trait Reaching {
    fn reach(self, daemon: &Daemon) -> Result<(), Error>;
}

impl Reaching for sealane::Sending {
    fn reach(mut self, daemon: &Daemon) -> Result<(), Error> {
        loop {
            match self.try_outcome() {
                Some(outcome) => return outcome,
                None if daemon.under_way() > 0 => return Ok(()),
                None => std::thread::yield_now(),
            }
        }
    }
}

#[test]
fn a_daemon_that_hangs_does_not_hang_its_clients() {
    for polling in [Polling::default(), Polling::Spin] {
        let (_directory, daemon, task) = attached_with(|attach| attach.polling(polling));
        let _held = daemon.hold();
        let timeout = Some(Duration::from_millis(1));
        let receiving =
            task.recv_with(TASK, 1, "a", RecvOptions { timeout, destination: None, ..RecvOptions::default() });
        let sending = task.send_with(TASK, 1, "b", tensor(10, 1), SendOptions { timeout });
        let memory = task.alloc(100).unwrap();
        let held = task.recv_with(
            TASK,
            1,
            "c",
            RecvOptions { timeout, destination: Some(memory.into()), ..RecvOptions::default() },
        );
        let error = receiving.wait().unwrap_err().error;
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("does not answer"), "{error}");
        assert_eq!(block_on(sending).unwrap_err().code(), Code::Unavailable);
        assert!(held.wait().unwrap_err().destination.is_none(), "the daemon may still write it");
    }
}

#[test]
fn a_daemon_that_hangs_is_waited_for_once_whatever_is_asked_of_however_many_owners() {
    let (_directory, daemon, task) = attached();
    // It ends much later than all of them should, and sooner than they would one after the other.
    let options = RecvOptions { timeout: Some(Duration::from_secs(20)), ..RecvOptions::default() };
    let mut last = pin!(task.recv_with(TASK, 1, "last", options));
    let mut is_under_way = || last.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(is_under_way());
    let acceptor = task.acceptor("q", AcceptOptions::default());
    daemon.until_under_way(1);
    let _held = daemon.hold();
    while task.cleanup(2).is_ok() {}
    let full = |error: Error| assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    let owners: Vec<String> = (0..40).map(|number| format!("ps{number}:1")).collect();
    let table = ShardedTable::new("t", &owners, Sharding::modulo(40, 40).unwrap()).unwrap();
    let (ids, rows) = ((0..40).collect::<Vec<u64>>(), tensor(40, 1));
    let rows = TableRows { table: &table, ids: &ids, rows: &rows };
    full(task.push_rows("q", rows, SumRows::No, &SendOptions::default()).unwrap().wait().unwrap_err());
    full(task.pull_rows(&table, &ids, &RowsOptions::default()).wait().unwrap_err().error);
    let slicing = Slicing::even(meta(4000), [task.name(); 40]).unwrap();
    full(task.withdraw_slices("w", &slicing).unwrap_err());
    let mut accepting = pin!(acceptor.accept().fail_if_gone(&owners));
    assert!(accepting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(is_under_way());
}

#[test]
fn what_is_answered_after_all_gives_its_memory_back() {
    let (_directory, daemon, task) = attached();
    let held = daemon.hold();
    let timeout = Some(Duration::from_millis(1));
    let destination = Some(task.alloc(4 << 20).unwrap().into());
    let receiving = task.recv_with(TASK, 1, "key", RecvOptions { timeout, destination, ..RecvOptions::default() });
    assert_eq!(receiving.wait().unwrap_err().error.code(), Code::Unavailable);
    assert!(task.alloc(1).is_err());
    drop(held);
    until_there_is_room(&task, 4 << 20);
}

/// Memory that shows when it is freed.
struct Watched(Buffer, #[expect(dead_code, reason = "it is counted")] Arc<()>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[test]
fn a_task_that_is_closed_gives_back_what_its_calls_have_lent() {
    for listened in [false, true] {
        let (_directory, daemon, task) = attached();
        let receiving = task.recv_into(TASK, 1, "never sent", task.alloc(10_000).unwrap());
        let used = Arc::new(());
        let source = Bytes::from_owner(Watched(task.alloc(10_000).unwrap(), used.clone()));
        let sending = task.send(TASK, 1, "never asked for", Tensor::new(meta(10_000), source).unwrap());
        daemon.until_under_way(2);
        if listened {
            let waiting = task.recv(TASK, 1, "neither");
            let waiting = std::thread::spawn(move || waiting.wait().unwrap_err().error);
            daemon.until_under_way(3);
            drop(task);
            assert_eq!(waiting.join().unwrap().code(), Code::Unavailable);
        } else {
            drop(task);
        }
        assert_eq!(Arc::strong_count(&used), 1, "nothing reads it any more");
        let unreceived = receiving.wait().unwrap_err();
        assert!(unreceived.error.to_string().contains("its task was dropped"), "{}", unreceived.error);
        assert_eq!(unreceived.destination.map(|destination| destination.len()), Some(10_000));
        assert_eq!(sending.wait().unwrap_err().code(), Code::Unavailable);
    }
}

#[test]
fn a_task_that_is_closed_while_its_rings_are_full_says_goodbye_when_there_is_room() {
    let (_directory, daemon, task) = attached();
    let receiving = task.recv_into(TASK, 1, "never sent", task.alloc(10_000).unwrap());
    daemon.until_under_way(1);
    let held = daemon.hold();
    while task.cleanup(2).is_ok() {}
    let (telling, told) = std::sync::mpsc::channel();
    let closing = std::thread::spawn(move || {
        telling.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        let begun = Instant::now();
        drop(task);
        begun.elapsed()
    });
    // A thread that has slept many times has tried to submit it, and is waiting for an answer.
    let status = std::path::Path::new("/proc").join(told.recv().unwrap()).join("status");
    daemon.until("the task has said what there was room for", |_| {
        // If the thread is gone, it has waited as long as it does.
        let Ok(status) = std::fs::read_to_string(&status) else { return true };
        let sleeps = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
        sleeps.trim().parse::<u64>().unwrap() > 20
    });
    drop(held);
    let took = closing.join().unwrap();
    let destination = receiving.wait().unwrap_err().destination;
    // It waits for a second: on a slower machine the answer may come too late.
    if took < Duration::from_secs(1) {
        assert_eq!(destination.map(|destination| destination.len()), Some(10_000));
    }
}

#[test]
fn closing_does_not_wait_for_a_daemon_that_hangs_and_leaves_it_what_it_was_lent() {
    let (_directory, daemon, task) = attached();
    let receiving = task.recv_into(TASK, 1, "never sent", task.alloc(10_000).unwrap());
    daemon.until_under_way(1);
    let _held = daemon.hold();
    drop(task);
    assert!(receiving.wait().unwrap_err().destination.is_none(), "the daemon may still write it");
}
