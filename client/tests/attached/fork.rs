//! A forked child cannot use its parent's task, and what it drops is not lost to the parent.

use nix::{
    sys::wait::{WaitStatus, waitpid},
    unistd::{ForkResult, fork},
};
use sealane::Code;

use crate::{
    direct::open_lane,
    fixture::{TASK, attached, bytes, meta, peers, tensor, to_as, until_there_is_room},
};

/// Runs `check` in a child; true if it returned true there.
pub fn in_a_child(check: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs `check`, which takes no lock that a thread of the parent may have held, and leaves without
    // running anything of the parent's.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(false);
            // SAFETY: it ends the process.
            unsafe { nix::libc::_exit(if held { 0 } else { 1 }) }
        }
        ForkResult::Parent { child } => waitpid(child, None).unwrap() == WaitStatus::Exited(child, 0),
    }
}

#[test]
fn a_child_is_told_and_may_drop_what_it_inherited() {
    let (_directory, daemon, task) = attached();
    let sending = task.send(TASK, 1, "key", tensor(10_000, 1));
    let tensor_of_area = task.recv(TASK, 1, "key").wait().unwrap();
    sending.wait().unwrap();
    let mut memory = task.alloc(1000).unwrap();
    memory.fill(3);
    let under_way = task.recv(TASK, 2, "key");
    let other = task.recv(TASK, 3, "key");
    daemon.until_under_way(2);

    let inherited = (task, under_way, other, tensor_of_area, memory);
    let mut inherited = Some(inherited);
    assert!(in_a_child(|| {
        let (task, under_way, other, tensor_of_area, memory) = inherited.take().unwrap();
        let told = |error: sealane::Error| {
            error.code() == Code::InvalidArgument && error.to_string().contains("forked after it attached as worker0")
        };
        told(task.alloc(10).unwrap_err())
            && told(task.send(TASK, 1, "key", tensor(10, 1)).wait().unwrap_err())
            && told(task.send(TASK, 1, "key", tensor(10_000, 1)).wait().unwrap_err())
            && told(task.recv(TASK, 1, "key").wait().unwrap_err().error)
            && told(task.abort(1, "child").unwrap_err())
            && told(task.cleanup(1).unwrap_err())
            && told(under_way.wait().unwrap_err().error)
            && tensor_of_area.bytes() == bytes(10_000, 1)
            && memory[999] == 3
            && {
                drop((task, other, tensor_of_area, memory));
                true
            }
    }));

    // The parent can still use everything, and the daemon has noticed nothing.
    let (task, under_way, other, tensor_of_area, memory) = inherited.take().unwrap();
    assert_eq!(daemon.under_way(), 2);
    assert_eq!(tensor_of_area.bytes(), bytes(10_000, 1));
    drop((tensor_of_area, memory));
    for (step, receiving) in [(2, under_way), (3, other)] {
        let sending = task.send(TASK, step, "key", tensor(64, 9));
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(64, 9));
        sending.wait().unwrap();
    }
    task.alloc(4 << 20).unwrap();
    drop(task);
    daemon.until_detached(TASK);
}

#[test]
fn what_a_child_does_with_both_ends_of_a_lane_is_seen_at_neither() {
    let (_directory, daemon, one) = attached();
    let peer = &peers()[0];
    let other = to_as(&daemon, peer).attach().unwrap();
    open_lane(&one, &other, peer);
    let (sending, receiving) = (one.send(peer, 1, "w", tensor(10, 1)), one.recv(peer, 1, "back"));
    let mut inherited = Some((one, other, sending, receiving));
    assert!(in_a_child(|| {
        let (one, other, sending, receiving) = inherited.take().unwrap();
        one.send(peer, 1, "v", tensor(10, 2)).wait().is_err()
            && other.recv(TASK, 1, "w").wait().is_err()
            && sending.wait().is_err()
            && one.direct_peers().is_empty()
            && {
                drop((one, other, receiving));
                true
            }
    }));
    let (one, other, sending, receiving) = inherited.take().unwrap();
    assert_eq!((one.direct_peers(), other.direct_peers()), (vec![peer.clone()], vec![TASK.to_owned()]));
    assert_eq!(other.recv(TASK, 1, "w").wait().unwrap().bytes(), bytes(10, 1));
    sending.wait().unwrap();
    other.send(TASK, 1, "back", tensor(10, 3)).wait().unwrap();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, 3));
    // Its name is free: the child has sent nothing.
    let sending = one.send(peer, 1, "v", tensor(10, 4));
    assert_eq!(other.recv(TASK, 1, "v").wait().unwrap().bytes(), bytes(10, 4));
    sending.wait().unwrap();
}

#[test]
fn a_child_may_attach_for_itself() {
    let (_directory, daemon, task) = attached();
    let child = &peers()[0];
    let attach = to_as(&daemon, child);
    let (sending, receiving) = (task.send(child, 1, "key", tensor(10_000, 2)), task.recv(child, 1, "key"));
    assert!(in_a_child(move || {
        let own = attach.attach().unwrap();
        let sending = own.send(TASK, 1, "key", tensor(10_000, 1));
        let arrived = own.recv(TASK, 1, "key").wait().unwrap();
        sending.wait().unwrap();
        arrived.bytes() == bytes(10_000, 2)
    }));
    sending.wait().unwrap();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(10_000, 1));
    daemon.until_detached(child);
}

#[test]
fn a_child_does_not_wait_for_a_thread_of_its_parent_that_had_its_streams() {
    use sealane::{StreamOptions, Streams};

    let (_directory, daemon, task) = attached();
    let other = to_as(&daemon, &peers()[0]).attach().unwrap();
    let (streams, others) = (Streams::of(&task), Streams::of(&other));
    let listener = streams.listen("bytes", StreamOptions::default()).unwrap();
    let dialed = others.connect(TASK, "bytes", StreamOptions::default()).wait().unwrap();
    let accepted = listener.accept().wait().unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A thread holds the state's lock nearly all the time.
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                streams.figures();
            }
        });
        let mut inherited = Some((accepted, listener));
        for _ in 0..50 {
            assert!(in_a_child(|| {
                let (accepted, listener) = inherited.take().unwrap();
                let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
                let told = |outcome| matches!(outcome, std::task::Poll::Ready(Err(_)));
                accepted.reset("in the child");
                told(accepted.poll_read(&mut [0], context).map_ok(drop))
                    && told(listener.poll_accept(context).map_ok(drop))
                    && streams.connect("ps0:1", "bytes", StreamOptions::default()).wait().is_err()
                    && {
                        drop((accepted, listener));
                        true
                    }
            }));
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        // The parent's ends are as they were.
        let (mut accepted, _) = inherited.unwrap();
        std::io::Write::write_all(&mut &dialed, b"a").unwrap();
        std::io::Read::read_exact(&mut accepted, &mut [0]).unwrap();
    });
}

#[test]
fn a_child_does_not_wait_for_a_thread_of_its_parent_that_had_its_task() {
    use sealane::{AcceptOptions, SliceVersions, Slicing};

    let (_directory, _daemon, task) = attached();
    let slicing = Slicing::even(meta(1000), [TASK; 1]).unwrap();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        // A thread holds the state's lock nearly all the time.
        scope.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                task.cleanup(1).unwrap();
            }
        });
        for _ in 0..50 {
            assert!(in_a_child(|| {
                let mut plan = task.sliced_plan([("w", slicing.clone())], SliceVersions::Same).unwrap();
                let acceptor = task.acceptor("queue", AcceptOptions::default());
                let told = |error: sealane::Error| error.code() == Code::InvalidArgument;
                told(acceptor.accept().wait().unwrap_err()) && told(plan.pull(1).wait().unwrap_err())
            }));
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_call_that_no_thread_can_wait_for_is_given_up() {
    use std::{future::Future, pin::pin, task};

    let (_directory, daemon, _task) = attached();
    let attach = to_as(&daemon, &peers()[0]);
    assert!(in_a_child(move || {
        let own = attach.attach().unwrap();
        let whole = own.alloc(4 << 20).unwrap();
        let mut receiving = pin!(own.recv_into(TASK, 1, "key", whole));
        let none = nix::libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: they take plain values, and concern this process alone, which may start no thread from then on.
        unsafe {
            nix::libc::setrlimit(nix::libc::RLIMIT_NPROC, &none);
            nix::libc::syscall(nix::libc::SYS_setuid, 65_534);
        }
        let polled = receiving.as_mut().poll(&mut task::Context::from_waker(task::Waker::noop()));
        let refused =
            matches!(polled, task::Poll::Ready(Err(refused)) if refused.error.code() == Code::ResourceExhausted);
        until_there_is_room(&own, 4 << 20);
        refused
    }));
}
