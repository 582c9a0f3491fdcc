//! Daemons that drain and come back: calls made meanwhile wait for the next daemon, but not forever.

use std::{
    future::Future,
    net::{Ipv4Addr, TcpListener},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use sealane::{
    AcceptOptions, Code, Error, Keys, Plan, Polling, RecvOptions, SliceVersions, Slicing, StreamOptions, Streams, Task,
    Tensor,
};
use sealane_fusion::{EndpointMap, EngineSettings};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, attached, attached_with, block_on, bytes, directory, meta, peers, tensor, to},
};

/// Makes a daemon announce that it drains; when this returns, the task has heard it.
fn drain(daemon: &Daemon, task: &Task) {
    daemon.engine.announce_drain().unwrap();
    let at_once = || RecvOptions { timeout: Some(Duration::ZERO), destination: None, ..RecvOptions::default() };
    // Until then this call reaches its timeout.
    while task.recv_with(TASK, 0, "nothing", at_once()).wait().unwrap_err().error.code() != Code::Unavailable {}
}

/// A daemon that has drained and is gone, and its task.
fn drained() -> (TempDir, Task) {
    let (directory, daemon, task) = attached();
    drain(&daemon, &task);
    daemon.kill();
    (directory, task)
}

#[test]
fn what_is_under_way_ends_and_later_calls_are_the_next_daemons() {
    for polling in [Polling::default(), Polling::Spin] {
        let (directory, daemon, task) = attached_with(|attach| attach.polling(polling));
        let source = Tensor::new(meta(20_000), {
            let mut memory = task.alloc(20_000).unwrap();
            memory.copy_from_slice(&bytes(20_000, 5));
            memory
        });
        let (source, destination) = (source.unwrap(), task.alloc(20_000).unwrap());
        let peer = &peers()[0];
        let (early, in_vain) = (task.recv(peer, 1, "early"), task.recv(peer, 1, "never"));
        daemon.until_under_way(2);
        drain(&daemon, &task);
        let calling = {
            let task = task.clone();
            thread::spawn(move || {
                let sending = task.send(TASK, 2, "late", source);
                let received = task.recv_into(TASK, 2, "late", destination).wait().unwrap();
                sending.wait().unwrap();
                let wanted = ["x", "y"].map(|key| (key, RecvOptions::default()));
                let sent = ["x", "y"].map(|key| (key, tensor(10_000, 6)));
                let sending = task.send_all(TASK, 3, sent);
                for received in task.recv_all(TASK, 3, wanted) {
                    assert_eq!(received.wait().unwrap().bytes(), bytes(10_000, 6));
                }
                sending.into_iter().for_each(|sending| sending.wait().unwrap());
                received
            })
        };
        // Through the draining daemon.
        daemon.engine.task(peer).unwrap().send(TASK, 1, "early", tensor(100, 4)).wait().unwrap();
        assert_eq!(early.wait().unwrap().bytes(), bytes(100, 4));
        daemon.engine.drain().unwrap();
        assert_eq!(in_vain.wait().unwrap_err().error.code(), Code::Unavailable);
        daemon.until_under_way(0);
        assert_eq!(daemon.sum(|counters| counters.tensors_sent), 0);
        daemon.kill();
        let next = Daemon::start(&directory, Settings::default());
        assert_eq!(calling.join().unwrap().bytes(), bytes(20_000, 5));
        next.until("all is sent with the next", |next| next.sum(|counters| counters.tensors_sent) == 3);
    }
}

#[test]
fn a_restart_is_waited_for_until_the_calls_deadline_and_no_longer_than_was_said() {
    let (directory, task) = drained();
    let timeout = Duration::from_millis(30);
    let options = || RecvOptions { timeout: Some(timeout), destination: None, ..RecvOptions::default() };
    let begun = Instant::now();
    let error = task.recv_with(TASK, 1, "key", options()).wait().unwrap_err().error;
    assert!(begun.elapsed() >= timeout);
    assert_eq!(error.code(), Code::Unavailable);
    assert!(error.to_string().contains("it has drained; reattaching"), "{error}");
    let begun = Instant::now();
    let error = task.pull_many_within(TASK, Keys::new(["key"]).unwrap(), 1, timeout.into()).wait().remove(0);
    assert!(begun.elapsed() >= timeout);
    assert_eq!(error.unwrap_err().code(), Code::Unavailable);
    let acceptor = task.acceptor("queue", AcceptOptions::default());
    drop((task, acceptor, directory));
}

#[test]
fn who_does_not_want_to_wait_and_who_outlives_a_crash_is_told_at_once() {
    for drains in [true, false] {
        let directory = directory();
        let daemon = Daemon::start(&directory, Settings::default());
        let patience = if drains { Duration::ZERO } else { Duration::MAX };
        let task = to(&daemon).restart_timeout(patience).attach().unwrap();
        if drains {
            drain(&daemon, &task);
        }
        daemon.kill();
        // Waiting for either would take longer than any test.
        assert_eq!(task.recv(TASK, 1, "key").wait().unwrap_err().error.code(), Code::Unavailable);
        assert_eq!(task.abort(1, "too late").unwrap_err().code(), Code::Unavailable);
        let mut plan = task.plan(TASK, Keys::new(["key"]).unwrap());
        assert_eq!(plan.pull(1).wait().unwrap_err().code(), Code::Unavailable);
    }
}

#[test]
fn what_a_restart_does_not_mend_is_told_at_once() {
    let (directory, task) = drained();
    let _next = Daemon::start(&directory, Settings { tasks: peers(), ..Settings::default() });
    let error = task.send(TASK, 1, "key", tensor(10, 1)).wait().unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
}

/// Pulls by plans of these, one of them looked at, one awaited, one waited for, while daemons change; then it is published.
fn asked_of_the_next_daemon(plan: impl Fn(&Task) -> Plan, publish: impl Fn(&Task)) {
    let (directory, daemon, task) = attached();
    let waiting = [false, true].map(|awaited| {
        let mut plan = plan(&task);
        thread::spawn(move || {
            if awaited {
                block_on(plan.pull(7)).unwrap()
            } else {
                plan.pull(7).wait().unwrap()
            }
            (plan.version(0), plan.get(0).unwrap().bytes().to_vec())
        })
    });
    let mut looked_at = plan(&task);
    let mut looking = looked_at.pull_within(7, LONG);
    daemon.until_under_way(3);
    drain(&daemon, &task);
    // Nobody will publish any more, so waiting for it would only delay the next daemon.
    daemon.engine.drain().unwrap();
    daemon.until_under_way(0);
    daemon.kill();
    assert!(looking.try_outcome().is_none(), "it is waited for");
    let next = Daemon::start(&directory, Settings::default());
    while next.under_way() < 3 {
        assert!(looking.try_outcome().is_none());
        thread::yield_now();
    }
    publish(&task);
    for waiting in waiting {
        assert_eq!(waiting.join().unwrap(), (7, bytes(1000, 4)));
    }
    looking.wait().unwrap();
    assert_eq!(looked_at.get(0).unwrap().bytes(), bytes(1000, 4));
}

#[test]
fn pulls_under_way_are_asked_of_the_next_daemon() {
    let plan = |task: &Task| task.plan(TASK, Keys::new(["weights"]).unwrap());
    asked_of_the_next_daemon(plan, |task| task.publish("weights", 7, tensor(1000, 4)).wait().unwrap());
    let slicing = || Slicing::even(meta(1000), [TASK; 2]).unwrap();
    let plan = |task: &Task| task.sliced_plan([("weights", slicing())], SliceVersions::Same).unwrap();
    let publish = |task: &Task| task.publish_slices("weights", 7, &slicing(), tensor(1000, 4)).unwrap().wait();
    asked_of_the_next_daemon(plan, |task| publish(task).unwrap());
}

#[test]
fn pulls_that_nobody_looked_at_are_asked_of_the_next_daemon_that_another_call_found() {
    let (directory, daemon, task) = attached();
    let slicing = Slicing::even(meta(1000), [TASK; 2]).unwrap();
    let mut plan = task.plan(TASK, Keys::new(["weights"]).unwrap());
    let mut sliced = task.sliced_plan([("slices", slicing.clone())], SliceVersions::Same).unwrap();
    let (pulling, pulling_slices) = (plan.pull_within(7, LONG), sliced.pull_within(7, LONG));
    daemon.until_under_way(2);
    drain(&daemon, &task);
    daemon.kill();
    let _next = Daemon::start(&directory, Settings::default());
    task.publish("weights", 7, tensor(1000, 4)).wait().unwrap();
    task.publish_slices("slices", 7, &slicing, tensor(1000, 5)).unwrap().wait().unwrap();
    pulling.wait().unwrap();
    pulling_slices.wait().unwrap();
    assert_eq!(plan.get(0).unwrap().bytes(), bytes(1000, 4));
    assert_eq!(sliced.get(0).unwrap().bytes(), bytes(1000, 5));
}

#[test]
fn an_accept_after_a_restart_ends_when_a_tasks_host_goes() {
    let (place, task) = drained();
    let (far, listener) = ("far.train:2222", TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let at = listener.local_addr().unwrap();
    let with = |settings: &mut EngineSettings, more: &str| {
        let map = settings.map.iter().map(|(task, address)| format!("{task}={address}\n")).collect::<String>();
        settings.map = Arc::new(EndpointMap::parse(&(map + more), "test").unwrap());
    };
    let next = Daemon::start_with(&place, Settings::default(), |settings| with(settings, &format!("{far}={at}\n")));
    let (elsewhere, tasks) = (directory(), vec![far.to_owned()]);
    let here = next.engine.addresses()[0].to_string();
    let other = Daemon::start_with(&elsewhere, Settings { shards: 2, tasks }, |settings| {
        settings.listeners = vec![listener];
        settings.map = Arc::new(EndpointMap::parse(&format!("{far}={at}\n{TASK}={here}\n"), "test").unwrap());
    });
    // Not a client process, whose leaving would be reported.
    let far_task = other.engine.task(far).unwrap();
    let acceptor = task.acceptor("queue", AcceptOptions::default());
    far_task.push(TASK, "queue", tensor(10, 1)).wait().unwrap();
    assert_eq!(acceptor.accept().wait().unwrap().tensor.bytes(), bytes(10, 1));
    let mut accepting = pin!(acceptor.accept().fail_if_gone([far]));
    assert!(accepting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let parked = |daemon: &Daemon| daemon.engine.figures().iter().map(|shard| shard.counters.parked).sum::<u64>();
    other.until("it is asked whether its task has left", |other| parked(other) == 1);
    other.engine.stop().unwrap();
    let error = block_on(accepting).unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error}");
}

#[test]
fn accepts_under_way_go_on_with_the_next_daemon() {
    let (directory, daemon, task) = attached();
    let accepting = [false, true].map(|awaited| {
        let task = task.clone();
        let queue = if awaited { "awaited" } else { "waited for" };
        let acceptor = task.acceptor(queue, AcceptOptions::default());
        thread::spawn(move || {
            let accepted = if awaited { block_on(acceptor.accept()) } else { acceptor.accept().wait() };
            accepted.unwrap().tensor.bytes().to_vec()
        })
    });
    let quiet = task.acceptor("quiet", AcceptOptions::default());
    drain(&daemon, &task);
    assert_eq!(quiet.try_accept(1, &mut Vec::new()), Ok(0));
    daemon.kill();
    // Nothing arrives, which is no error while the daemon is restarted.
    assert!(quiet.accept().wait_within(Duration::from_millis(20)).unwrap().is_none());
    let _next = Daemon::start(&directory, Settings::default());
    for (queue, accepting) in ["waited for", "awaited"].into_iter().zip(accepting) {
        task.push(TASK, queue, tensor(1000, 8)).wait().unwrap();
        assert_eq!(accepting.join().unwrap(), bytes(1000, 8));
    }
}

#[test]
fn what_waits_in_a_queue_is_there_where_the_daemon_does_not_end_after_all() {
    let (_directory, daemon, task) = attached();
    let acceptor = task.acceptor("queue", AcceptOptions::default());
    let pusher = daemon.engine.task(&peers()[0]).unwrap();
    let push = |seed| pusher.push(TASK, "queue", tensor(100, seed));
    push(0).wait().unwrap();
    assert_eq!(acceptor.accept().wait().unwrap().tensor.bytes(), bytes(100, 0));
    (1..500).map(push).collect::<Vec<_>>().into_iter().for_each(|push| push.wait().unwrap());
    drain(&daemon, &task);
    daemon.engine.drain().unwrap();
    daemon.engine.stop_reading().unwrap();
    daemon.engine.resume(Vec::new()).unwrap();
    // Otherwise the former link may hand everything over.
    daemon.until_detached(TASK);
    for seed in 1..500 {
        let accepted = acceptor.accept().wait_within(LONG).unwrap().expect("nobody has taken it");
        assert_eq!(accepted.tensor.bytes(), bytes(100, seed));
    }
}

#[test]
fn an_executors_thread_does_not_wait_for_a_restart() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    // A call that blocks this thread for the restart hangs.
    let task = to(&daemon).restart_timeout(LONG).attach().unwrap();
    let mut context = Context::from_waker(Waker::noop());
    let streams = Streams::of(&task);
    let listener = streams.listen("listener", StreamOptions::default()).unwrap();
    let acceptor = task.acceptor("queue", AcceptOptions::default());
    let mut accepting = pin!(acceptor.accept());
    assert!(accepting.as_mut().poll(&mut context).is_pending());
    drain(&daemon, &task);
    daemon.kill();
    assert!(accepting.as_mut().poll(&mut context).is_pending());
    let mut connecting = pin!(streams.connect(TASK, "listener", StreamOptions::default()));
    assert!(connecting.as_mut().poll(&mut context).is_pending());
    while let Poll::Ready(accepted) = listener.poll_accept(&mut context) {
        assert_eq!(accepted.unwrap_err().code(), Code::Unavailable, "it may have heard of the end of the daemon");
    }
    let _next = Daemon::start(&directory, Settings::default());
    let stream = block_on(connecting).unwrap();
    let accepted = loop {
        match block_on(listener.accept()) {
            Err(error) if error.code() == Code::Unavailable => {}
            accepted => break accepted.unwrap(),
        }
    };
    assert_eq!((accepted.peer(), stream.peer()), (TASK, TASK));
    let pushing = task.push(TASK, "queue", tensor(1000, 8));
    assert_eq!(block_on(accepting).unwrap().tensor.bytes(), bytes(1000, 8));
    pushing.wait().unwrap();
}

/// Makes a call that does not wait for a daemon.
fn ask(task: &Task) {
    let options = RecvOptions { timeout: Some(Duration::ZERO), ..RecvOptions::default() };
    task.recv_with(TASK, 2, "more", options).wait().unwrap_err();
}

/// When woken, makes a call on the waking thread.
struct Asker(Task);

impl Wake for Asker {
    fn wake(self: Arc<Self>) {
        ask(&self.0);
    }
}

#[test]
fn who_is_woken_by_a_thread_that_attaches_may_ask_for_something() {
    for _ in 0..20 {
        let (_directory, daemon, task) = attached();
        let waker = Waker::from(Arc::new(Asker(task.clone())));
        let mut waiting = Vec::from_iter((0..64).map(|step| Box::pin(task.recv(TASK, step, "never"))));
        for recv in &mut waiting {
            assert!(recv.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        drain(&daemon, &task);
        let gone = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                // Each looks for the next daemon, and hears from the draining one that waiting calls need not wait.
                scope.spawn(|| {
                    while !gone.load(Ordering::Relaxed) {
                        ask(&task);
                    }
                });
            }
            daemon.engine.drain().unwrap();
            daemon.kill();
            gone.store(true, Ordering::Relaxed);
        });
        for recv in waiting {
            assert_eq!(block_on(recv).unwrap_err().error.code(), Code::Unavailable);
        }
    }
}

#[test]
fn many_recvs_with_destinations_wait_for_a_restart_together() {
    let (_directory, task) = drained();
    let timeout = Duration::from_millis(500);
    let options = |destination| RecvOptions { timeout: Some(timeout), destination, ..RecvOptions::default() };
    let wanted = (0..100).map(|key| (key.to_string(), options(Some(sealane::Buffer::from_vec(vec![0; 4]).into()))));
    let begun = Instant::now();
    for receiving in task.recv_all(TASK, 1, wanted) {
        let failed = receiving.wait().unwrap_err();
        assert_eq!((failed.error.code(), failed.destination.map(|memory| memory.len())), (Code::Unavailable, Some(4)));
    }
    // One after the other they would take fifty seconds.
    assert!(begun.elapsed() >= timeout && begun.elapsed() < LONG / 3, "{:?}", begun.elapsed());
}
