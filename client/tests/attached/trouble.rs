//! Daemons that are not there, refuse, die, come back, hang or lie.

use std::{
    os::unix::fs::PermissionsExt,
    sync::{Arc, mpsc::channel},
    time::{Duration, Instant},
};

use bytes::Bytes;
use sealane::{Attach, Buffer, Code, Error, Polling, RecvOptions, SendOptions, Tensor};
use sealane_transport::shm::{Completion, DaemonEnd, ReceivedAt, Record, Span};

use crate::{
    daemon::{Conduct, Daemon, LONG, Settings, say},
    fixture::{PEER, attached, block_on, bytes, directory, meta, tensor, to, until_there_is_room},
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

    // The socket of one that was killed.
    drop(sealane_transport::shm::attach::listen(&path).unwrap());
    let refused = attach();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.to_string().contains("start `sealane daemon`"), "{refused}");
}

#[test]
fn a_socket_of_another_user_is_permission_denied() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o000)).unwrap();
    let attach = || {
        give_up_capabilities();
        to(&daemon).attach().unwrap_err()
    };
    let error = std::thread::scope(|scope| scope.spawn(attach).join().unwrap());
    assert_eq!(error.code(), Code::PermissionDenied);
}

/// Root may connect to any socket; this thread may no longer do more than its user id allows.
#[allow(unsafe_code)]
fn give_up_capabilities() {
    // `struct __user_cap_header_struct` and two of `struct __user_cap_data_struct` (capget(2)), with no capability.
    let (header, none) = ([0x2008_0522_u32, 0], [0_u32; 6]);
    // SAFETY: both live through the call, and are as long as this version of the header has the kernel read.
    let changed = unsafe { nix::libc::syscall(nix::libc::SYS_capset, header.as_ptr(), none.as_ptr()) };
    assert_eq!(changed, 0);
}

#[test]
fn a_refusal_is_passed_on() {
    let directory = directory();
    let reason = "the task worker0.train:2222 is attached by process 77";
    let refusal = Error::PermissionDenied { reason: reason.into() };
    let daemon = Daemon::start(&directory, Settings { refusal: Some(refusal.clone()), ..Settings::default() });
    assert_eq!(to(&daemon).attach().unwrap_err(), refusal);
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
        let directory = directory();
        let daemon = Daemon::start(&directory, Settings::default());
        let task = to(&daemon).polling(polling).attach().unwrap();
        let sending = task.send(PEER, 1, "early", tensor(10_000, 3));
        let kept = task.recv(PEER, 1, "early").wait().unwrap();
        sending.wait().unwrap();

        let waiting: Vec<_> = (0..4)
            .map(|number| {
                let task = task.clone();
                std::thread::spawn(move || {
                    let destination = task.alloc(100).unwrap();
                    task.recv_into(PEER, 1, &format!("late{number}"), destination).wait().unwrap_err()
                })
            })
            .collect();
        let awaited = {
            let task = task.clone();
            std::thread::spawn(move || block_on(task.recv(PEER, 1, "awaited")).unwrap_err().error)
        };
        let destination = Buffer::from_vec(vec![5; 1000]);
        let place = destination.as_ptr();
        let onto_heap = task.recv_into(PEER, 1, "late", destination);
        let sending = task.send(PEER, 1, "unheard of", tensor(10_000, 3));
        daemon.until("everybody waits", |log| log.recvs == 7 && log.sends == 2);
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

        let error = task.recv(PEER, 2, "key").wait().unwrap_err().error;
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("attaching again"), "{error}");
        assert_eq!(task.abort(1, "too late").unwrap_err().code(), Code::Unavailable);
        drop(task);
        assert_eq!(kept.bytes(), bytes(10_000, 3), "what was received stays");
    }
}

#[test]
fn what_the_daemon_had_answered_before_it_died_counts() {
    let (_directory, daemon, task) = attached();
    let sending = task.send(PEER, 1, "key", tensor(1000, 3));
    let receiving = task.recv(PEER, 1, "key");
    daemon.until("both are there", |log| (log.sends, log.recvs) == (1, 1));
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
    // Calls that go out before it is found that the daemon is gone end with Unavailable.
    let deadline = Instant::now() + LONG;
    while let Err(error) = task.send(PEER, 1, "key", tensor(10, 1)).reach(&daemon) {
        assert_eq!(error.code(), Code::Unavailable);
        assert!(Instant::now() < deadline, "{error}");
    }

    // Memory of the former arena can be sent and received into all the same, by a copy.
    let receiving = task.recv_into(PEER, 3, "copied", old);
    task.send(PEER, 3, "copied", Tensor::new(meta(10_000), memory).unwrap()).wait().unwrap();
    assert_eq!(receiving.wait().unwrap().into_buffer().as_ptr(), place);
    drop(task);
    daemon.until("the task is detached", |log| log.detaches == 3 && log.hang_ups == 1);
}

/// Waits until a send has failed or has reached the daemon.
trait Reaching {
    fn reach(self, daemon: &Daemon) -> Result<(), Error>;
}

impl Reaching for sealane::Sending {
    fn reach(mut self, daemon: &Daemon) -> Result<(), Error> {
        loop {
            match self.try_outcome() {
                Some(outcome) => return outcome,
                None if daemon.log().sends > 0 => return Ok(()),
                None => std::thread::yield_now(),
            }
        }
    }
}

#[test]
fn a_daemon_that_hangs_does_not_hang_its_clients() {
    for polling in [Polling::default(), Polling::Spin] {
        let directory = directory();
        let daemon = Daemon::start(&directory, Settings::default());
        daemon.conduct(Conduct::Mute);
        let task = to(&daemon).polling(polling).attach().unwrap();
        let timeout = Some(Duration::from_millis(1));
        let receiving = task.recv_with(PEER, 1, "a", RecvOptions { timeout, destination: None });
        let sending = task.send_with(PEER, 1, "b", tensor(10, 1), SendOptions { timeout });
        let memory = task.alloc(100).unwrap();
        let held = task.recv_with(PEER, 1, "c", RecvOptions { timeout, destination: Some(memory) });
        let error = receiving.wait().unwrap_err().error;
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("does not answer"), "{error}");
        assert_eq!(block_on(sending).unwrap_err().code(), Code::Unavailable);
        assert!(held.wait().unwrap_err().destination.is_none(), "the daemon may still write it");
    }
}

#[test]
fn what_is_answered_after_all_gives_its_memory_back() {
    let (_directory, daemon, task) = attached();
    let (calls, heard) = channel();
    daemon.conduct(Conduct::Answer(Box::new(move |_, call| calls.send(call).unwrap())));
    let timeout = Some(Duration::from_millis(1));
    let destination = Some(task.alloc(4 << 20).unwrap());
    let receiving = task.recv_with(PEER, 1, "key", RecvOptions { timeout, destination });
    assert_eq!(receiving.wait().unwrap_err().error.code(), Code::Unavailable);
    let late = heard.recv().unwrap();
    assert!(task.alloc(1).is_err());
    daemon.conduct(Conduct::Answer(Box::new(move |end, _| {
        let meta = meta(5).into_wire();
        say(end, &Completion::Received { call: late, meta: &meta, payload: ReceivedAt::Destination { len: 5 } });
    })));
    drop(task.recv(PEER, 2, "go on"));
    until_there_is_room(&task, 4 << 20);
}

#[test]
fn memory_of_a_failed_call_comes_back_when_the_daemon_says_so() {
    let (_directory, daemon, task) = attached();
    let mut first = None;
    daemon.conduct(Conduct::Answer(Box::new(move |end, call| match first.take() {
        None => {
            let error = Error::Aborted { step: 1, reason: "first".into() };
            say(end, &Completion::Failed { call, memory_back: false, error });
            first = Some(call);
        }
        Some(first) => {
            say(end, &Completion::Returned { calls: &[first] });
            let error = Error::Aborted { step: 2, reason: "second".into() };
            say(end, &Completion::Failed { call, memory_back: true, error });
        }
    })));
    let whole = task.alloc(4 << 20).unwrap();
    let unreceived = task.recv_into(PEER, 1, "key", whole).wait().unwrap_err();
    assert_eq!(unreceived.error, Error::Aborted { step: 1, reason: "first".into() });
    assert!(unreceived.destination.is_none());
    assert!(task.alloc(1).is_err());
    assert_eq!(task.recv(PEER, 2, "key").wait().unwrap_err().error.code(), Code::Aborted);
    task.alloc(4 << 20).unwrap();
}

/// A daemon that answers a recv as `answer` says loses this client, which is told why.
fn found_out(why: &str, answer: impl FnMut(&mut DaemonEnd, u32) + Send + 'static) {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings { shards: 1, ..Settings::default() });
    let task = to(&daemon).attach().unwrap();
    daemon.conduct(Conduct::Answer(Box::new(answer)));
    let other = task.recv_into(PEER, 1, "other", task.alloc(100).unwrap());
    let error = task.recv_into(PEER, 1, "key", task.alloc(100).unwrap()).wait().unwrap_err().error;
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains(why), "{error}");
    let _ = other.wait();
    daemon.conduct(Conduct::Serve);
    daemon.until("the client is gone", |log| log.hang_ups == 1);
    // It may have become better.
    let sending = task.send(PEER, 2, "key", tensor(10, 1));
    task.recv(PEER, 2, "key").wait().unwrap();
    sending.wait().unwrap();
}

#[test]
fn a_daemon_that_breaks_the_protocol_is_lost() {
    fn received(end: &mut DaemonEnd, call: u32, len: usize, payload: ReceivedAt<'_>) {
        say(end, &Completion::Received { call, meta: &meta(len).into_wire(), payload });
    }

    found_out("not under way", |end, call| say(end, &Completion::Sent { calls: &[call ^ 0x8000] }));
    found_out("released a recv", |end, call| say(end, &Completion::Sent { calls: &[call] }));
    found_out("not under way", |end, call| say(end, &Completion::Returned { calls: &[call] }));
    found_out("elsewhere", |end, call| {
        received(end, call, 1, ReceivedAt::Area { span: Span { offset: 0, len: 1 }, token: 1 });
    });
    found_out("longer than its destination", |end, call| received(end, call, 101, ReceivedAt::Inline(&[1; 101])));
    found_out("longer than its destination", |end, call| {
        received(end, call, 101, ReceivedAt::Destination { len: 101 });
    });
    found_out("outside the receive area", |end, call| {
        let span = Span { offset: u64::MAX, len: 64 };
        received(end, call, 64, ReceivedAt::Area { span, token: 1 });
    });
    found_out("malformed", |end, _| {
        let mut record = Record::new();
        record.set(99, 0, &[1, 2, 3]);
        end.completions.push(&record).unwrap();
    });
    found_out("not under way", |end, call| {
        received(end, call, 5, ReceivedAt::Destination { len: 5 });
        received(end, call, 5, ReceivedAt::Destination { len: 5 });
    });
}

#[test]
fn two_tensors_cannot_lie_in_the_same_place() {
    let (_directory, daemon, task) = attached();
    let mut count = 0;
    daemon.conduct(Conduct::Answer(Box::new(move |end, call| {
        count += 1;
        let (span, meta) = (Span { offset: 64, len: 1000 }, meta(1000).into_wire());
        let payload = ReceivedAt::Area { span, token: count };
        say(end, &Completion::Received { call, meta: &meta, payload });
    })));
    let first = task.recv(PEER, 1, "key").wait().unwrap();
    let error = task.recv(PEER, 1, "key").wait().unwrap_err().error;
    assert!(error.to_string().contains("where another does"), "{error}");
    assert_eq!(first.bytes().len(), 1000);
}

#[test]
fn metadata_that_is_no_tensors_ends_the_call_alone() {
    let (_directory, daemon, task) = attached();
    daemon.conduct(Conduct::Answer(Box::new(|end, call| {
        let payload = ReceivedAt::Destination { len: 5 };
        say(end, &Completion::Received { call, meta: &[1, 2, 3], payload });
    })));
    let destination = Buffer::from_vec(vec![0; 10]);
    let unreceived = task.recv_into(PEER, 1, "key", destination).wait().unwrap_err();
    assert_eq!(unreceived.error.code(), Code::InvalidArgument);
    assert_eq!(unreceived.destination.unwrap().len(), 10);
    daemon.conduct(Conduct::Serve);
    drop(task.send(PEER, 1, "key", tensor(1, 1)));
    task.recv(PEER, 1, "key").wait().unwrap();
}

/// Memory that is seen to be freed.
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
        let receiving = task.recv_into(PEER, 1, "never sent", task.alloc(10_000).unwrap());
        let used = Arc::new(());
        let source = Bytes::from_owner(Watched(task.alloc(10_000).unwrap(), used.clone()));
        let sending = task.send(PEER, 1, "never asked for", Tensor::new(meta(10_000), source).unwrap());
        daemon.until("both are there", |log| (log.sends, log.recvs) == (1, 1));
        if listened {
            let waiting = task.recv(PEER, 1, "neither");
            let waiting = std::thread::spawn(move || waiting.wait().unwrap_err().error);
            daemon.until("it waits", |log| log.recvs == 2);
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
fn closing_does_not_wait_for_a_daemon_that_hangs_and_leaves_it_what_it_was_lent() {
    let (_directory, daemon, task) = attached();
    let receiving = task.recv_into(PEER, 1, "never sent", task.alloc(10_000).unwrap());
    daemon.until("it is there", |log| log.recvs == 1);
    daemon.conduct(Conduct::Deaf);
    drop(task);
    assert!(receiving.wait().unwrap_err().destination.is_none(), "the daemon may still write it");
}
