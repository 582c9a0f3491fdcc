//! Malformed answers cost a daemon its client: here a minimal daemon answers as the test wants, which a real
//! engine cannot be made to do.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::channel,
    },
    thread,
    time::{Duration, Instant},
};

use sealane::{AcceptOptions, Attach, Buffer, Code, Error, Keys, RecvOptions, Task};
use sealane_transport::shm::{
    AcceptedAt, BOARD_BYTES_PER_KEY, CallList, CallListBuf, Completion, DaemonEnd, ReceivedAt, Record, SmallCall, Span,
    Submission,
    attach::{Request, accept, credentials, listen, read_request},
};

use crate::{
    daemon::{LONG, PORTION},
    fixture::{TASK, bytes, directory, meta, tensor},
};

/// Runs `test` with a task attached to one shard, which handles the task's submissions by `script`.
fn with_daemon(script: impl FnMut(&mut DaemonEnd, &Submission<'_>) + Send, test: impl FnOnce(Task)) {
    let directory = directory();
    let path = directory.path().join("sealane.sock");
    let listener = listen(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve(listener, script));
        test(Attach::new(TASK).socket(&path).arena_bytes(1 << 20).attach().unwrap());
    });
}

/// Admits one client, and serves it until it hangs up.
fn serve(listener: OwnedFd, script: impl FnMut(&mut DaemonEnd, &Submission<'_>)) {
    serve_after(0, listener, script);
}

/// Closes that many connections without an answer, then admits one client, and serves it until it hangs up.
fn serve_after(closed: usize, listener: OwnedFd, mut script: impl FnMut(&mut DaemonEnd, &Submission<'_>)) {
    let deadline = Instant::now() + LONG;
    for _ in 0..closed {
        drop(until(deadline, || accept(&listener).unwrap()));
    }
    let socket = Arc::new(until(deadline, || accept(&listener).unwrap()));
    drop(listener);
    let Request::Attach(wish) = until(deadline, || read_request(&socket).unwrap()) else { panic!("it attaches") };
    let (ends, mut welcoming) = PORTION.make(&wish, credentials(&socket).unwrap(), &socket, &[]).unwrap();
    let (mut end, _doorbell) = ends.shards.into_iter().next().unwrap();
    until(deadline, || welcoming.step(&socket).unwrap().then_some(()));
    let mut record = Record::new();
    while let Ok(None) = read_request(&socket) {
        while end.submissions.pop(&mut record).unwrap() {
            let asked = Submission::decode(&record).unwrap();
            if matches!(asked, Submission::Detach) {
                return;
            }
            script(&mut end, &asked);
            ends.bell.ring();
        }
        end.submissions.publish();
        thread::yield_now();
    }
}

fn until<T>(deadline: Instant, mut look: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
}

fn say(end: &mut DaemonEnd, completion: &Completion<'_>) {
    let mut record = Record::new();
    completion.encode(&mut record).unwrap();
    end.completions.push(&record).unwrap();
}

fn received(end: &mut DaemonEnd, call: u32, len: usize, payload: ReceivedAt) {
    say(end, &Completion::Received { call, meta: meta(len).as_wire(), payload });
}

fn arrived(end: &mut DaemonEnd, call: u32, bytes: &[u8]) {
    let mut calls = CallListBuf::default();
    assert!(calls.push(SmallCall { call, key: "", meta: meta(bytes.len()).as_wire(), bytes }));
    say(end, &Completion::Arrived { calls: calls.as_list() });
}

/// Answers a recv with a destination of 100 bytes as given: the client disconnects, with an error that says why. Plan 1 has one
/// key and was pulled; queue 1 is open, with credit for four tensors.
fn found_out(why: &str, mut answer: impl FnMut(&mut DaemonEnd, u32) + Send) {
    let script = |end: &mut DaemonEnd, asked: &Submission<'_>| match asked {
        Submission::Pull { call, plan, .. } => {
            let (board, span) = (Span { offset: 0, len: BOARD_BYTES_PER_KEY as u64 }, Span { offset: 64, len: 1000 });
            say(end, &Completion::Board { plan: *plan, span: board, token: 1 });
            let (plan, meta) = (*plan, meta(1000));
            say(end, &Completion::Placed { plan, index: 0, meta: meta.as_wire(), span, token: 2 });
            say(end, &Completion::Pulled { call: *call });
        }
        Submission::Recv { call, .. } => answer(end, *call),
        _ => {}
    };
    with_daemon(script, |task| {
        let acceptor = task.acceptor("grads", AcceptOptions { tensors_max: 8, bytes_max: 1 << 20 });
        let mut plan = task.plan(TASK, Keys::new(["w"]).unwrap());
        plan.pull(0).wait().unwrap();
        let [first, second] = [(); 2].map(|()| task.alloc(100).unwrap()); // before the first answer, which loses the arena
        let other = task.recv_into(TASK, 1, "other", first);
        let error = task.recv_into(TASK, 1, "key", second).wait().unwrap_err().error;
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains(why), "{error}");
        assert_eq!(plan.get(0).unwrap().bytes(), [0; 1000], "what was received stays");
        let error = task.recv(TASK, 1, "key").wait().unwrap_err().error;
        assert!(error.to_string().contains("reattaching"), "it may have become better: {error}");
        drop((acceptor, other));
    });
}

#[test]
fn attach_retries_after_a_closed_connection() {
    let directory = directory();
    let path = directory.path().join("sealane.sock");
    let listener = listen(&path).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| serve_after(3, listener, |_, _| ()));
        drop(Attach::new(TASK).socket(&path).arena_bytes(1 << 20).timeout(LONG).attach().unwrap());
    });
    // The retries end with the timeout.
    let listener = listen(&directory.path().join("other.sock")).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::SeqCst) {
                drop(accept(&listener).unwrap());
                thread::yield_now();
            }
        });
        let attach = Attach::new(TASK).socket(directory.path().join("other.sock")).timeout(Duration::from_millis(50));
        let error = attach.attach().unwrap_err();
        over.store(true, Ordering::SeqCst);
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("the daemon closed the connection"), "{error}");
    });
}

#[test]
fn a_daemon_that_breaks_the_protocol_is_lost() {
    found_out("not in flight", |end, call| say(end, &Completion::Sent { calls: &[call ^ 0x8000] }));
    found_out("released a recv", |end, call| say(end, &Completion::Sent { calls: &[call] }));
    found_out("not in flight", |end, call| say(end, &Completion::Returned { calls: &[call] }));
    found_out("not arrive where", |end, call| {
        received(end, call, 1, ReceivedAt::Area { span: Span { offset: 4096, len: 1 }, token: 3 });
    });
    found_out("longer than its destination", |end, call| arrived(end, call, &[1; 101]));
    found_out("longer than its destination", |end, call| {
        received(end, call, 101, ReceivedAt::Destination { len: 101 });
    });
    found_out("outside the receive area", |end, call| {
        let span = Span { offset: u64::MAX, len: 64 };
        received(end, call, 64, ReceivedAt::Area { span, token: 3 });
    });
    found_out("malformed", |end, _| {
        let mut record = Record::new();
        record.set(99, &[1, 2, 3]);
        end.completions.push(&record).unwrap();
    });
    found_out("not in flight", |end, call| {
        received(end, call, 5, ReceivedAt::Destination { len: 5 });
        received(end, call, 5, ReceivedAt::Destination { len: 5 });
    });
}

#[test]
fn a_daemon_that_breaks_the_protocol_of_plans_is_lost() {
    let free = Span { offset: 1 << 20, len: 64 };
    found_out("a pull that does not exist", |end, call| say(end, &Completion::Pulled { call }));
    found_out("neither a publish nor a push", |end, call| say(end, &Completion::Published { calls: &[call] }));
    found_out("that is not in the plan", move |end, _| {
        say(end, &Completion::Placed { plan: 1, index: 1, meta: meta(64).as_wire(), span: free, token: 3 });
    });
    found_out("that is not in the plan", |end, _| {
        say(end, &Completion::Missed { plan: 1, index: u32::MAX, error: Error::InvalidArgument { reason: "".into() } });
    });
    found_out("invalid metadata", |end, _| {
        say(end, &Completion::Reshaped { plan: 1, index: 0, meta: &[1, 2, 3] });
    });
    found_out("more tensors than the plan has", |end, _| {
        for _ in 0..2 {
            say(end, &Completion::Reshaped { plan: 1, index: 0, meta: meta(1000).as_wire() });
        }
    });
    found_out("board", move |end, _| say(end, &Completion::Board { plan: 1, span: free, token: 3 }));
    found_out("outside the receive area", |end, _| {
        let span = Span { offset: u64::MAX, len: 8 };
        say(end, &Completion::Board { plan: 1, span, token: 3 });
    });
    found_out("overlaps another", |end, _| {
        let (meta, span) = (meta(64), Span { offset: 0, len: 1 << 20 });
        say(end, &Completion::Placed { plan: 1, index: 0, meta: meta.as_wire(), span, token: 3 });
    });
}

#[test]
fn a_daemon_that_breaks_the_protocol_of_queues_is_lost() {
    let accepted = |end: &mut DaemonEnd, meta: &[u8], payload| {
        say(end, &Completion::Accepted { queue: 1, from: "worker:1", meta, payload });
    };
    found_out("more to a queue", move |end, _| {
        (0..5).for_each(|_| accepted(end, meta(8).as_wire(), AcceptedAt::Inline(&[1; 8])));
    });
    found_out("invalid metadata", move |end, _| accepted(end, &[1, 2, 3], AcceptedAt::Inline(&[1; 8])));
    found_out("outside the receive area", move |end, _| {
        let span = Span { offset: u64::MAX, len: 8 };
        accepted(end, meta(8).as_wire(), AcceptedAt::Area { span, token: 3 });
    });
}

#[test]
fn metadata_that_is_no_tensors_ends_the_call_alone() {
    let mut lies = true;
    let script = move |end: &mut DaemonEnd, asked: &Submission<'_>| {
        let Submission::Recv { call, .. } = *asked else { return };
        if std::mem::take(&mut lies) {
            say(end, &Completion::Received { call, meta: &[1, 2, 3], payload: ReceivedAt::Destination { len: 5 } });
        } else {
            arrived(end, call, &bytes(10, 1));
        }
    };
    with_daemon(script, |task| {
        let destination = Buffer::from_vec(vec![0; 10]);
        let unreceived = task.recv_into(TASK, 1, "key", destination).wait().unwrap_err();
        assert_eq!(unreceived.error.code(), Code::InvalidArgument);
        assert_eq!(unreceived.destination.unwrap().len(), 10);
        assert_eq!(task.recv(TASK, 1, "key").wait().unwrap().bytes(), bytes(10, 1));
    });
}

#[test]
fn what_is_told_to_be_viewed_and_cannot_be_is_asked_for_again() {
    let (telling, told) = channel();
    let script = move |end: &mut DaemonEnd, asked: &Submission<'_>| match *asked {
        Submission::Pull { call, plan, views, .. } => {
            let (meta, token) = (meta(1000), if views { 6 } else { 2 });
            let (meta, span) = (meta.as_wire(), Span { offset: 64, len: 1000 });
            if views {
                let board = Span { offset: 0, len: BOARD_BYTES_PER_KEY as u64 };
                say(end, &Completion::Board { plan, span: board, token: 1 });
                say(end, &Completion::Viewed { plan, index: 0, meta, arena: 9, span, token });
                say(end, &Completion::ArenaGone { arena: 8 });
            } else {
                say(end, &Completion::Placed { plan, index: 0, meta, span, token });
            }
            say(end, &Completion::Pulled { call });
            telling.send(token).unwrap();
        }
        Submission::Free { tokens } => tokens.iter().for_each(|token| telling.send(*token).unwrap()),
        _ => {}
    };
    with_daemon(script, |task| {
        // Nobody listens at the daemon's socket any more.
        let pulled = task.view(TASK, "w", 0).wait().unwrap();
        assert_eq!(pulled.tensor.bytes(), [0; 1000]);
        // The view is freed before its replacement is requested.
        assert_eq!([(); 3].map(|()| told.recv().unwrap()), [6, 6, 2]);
    });
}

#[test]
fn small_calls_that_are_made_together_share_a_record_and_others_are_fused() {
    let (telling, told) = channel();
    let script = move |_: &mut DaemonEnd, asked: &Submission<'_>| {
        let keys = |calls: &CallList<'_>| calls.iter().map(|call| call.key.to_owned()).collect::<Vec<_>>().join(" ");
        telling
            .send(match asked {
                Submission::Send { key, .. } => format!("send {key}"),
                Submission::SendMany { calls, .. } => format!("send together {}", keys(calls)),
                Submission::Recv { key, fused, .. } => format!("recv {key} {fused}"),
                Submission::RecvMany { calls, fail_if_gone, .. } => {
                    format!("recv together {} {fail_if_gone}", keys(calls))
                }
                _ => return,
            })
            .unwrap();
    };
    with_daemon(script, |task| {
        let with = |destination: usize, fail_if_gone| RecvOptions {
            destination: (destination > 0).then(|| Buffer::from_vec(vec![0; destination]).into()),
            fail_if_gone,
            ..RecvOptions::default()
        };
        drop(task.recv(TASK, 1, "alone"));
        let wanted = [("a", with(0, false)), ("b", with(0, false)), ("c", with(10, false)), ("d", with(0, true))];
        drop(task.recv_all(TASK, 1, wanted.into_iter().chain([("e", with(0, true)), ("f", with(0, false))])));
        let tensors = [("a", 1), ("b", 8), ("c", 1000), ("d", 2)];
        drop(task.send_all(TASK, 1, tensors.map(|(key, len)| (key, tensor(len, 1)))));
        let all: Vec<String> = (0..8).map(|_| told.recv_timeout(LONG).unwrap()).collect();
        let recvs =
            ["recv alone false", "recv together a b false", "recv c true", "recv together d e true", "recv f true"];
        assert_eq!(all[..5], recvs);
        assert_eq!(all[5..], ["send together a b", "send c", "send d"]);
    });
}
