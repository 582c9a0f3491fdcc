//! Peers that stop, restart, or are gone: every caller is told.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use sealane_fusion::{Code, Engine, Error, Operation, SendOptions};

use crate::fixture::{
    LONG, Refusing, assert_empty, bytes as pattern, carry, listener, map, port, settings, task, tensor, two, until,
};

#[test]
fn stopping_an_engine_ends_its_calls_and_its_peers() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let asked = worker_task.recv(&task(0), 1, "never sent");
    let own = ps_task.recv(&task(1), 1, "never sent either");
    let kept = ps_task.send(&task(1), 1, "never asked for", tensor(8192, 0));
    let ahead = ps_task.send(&task(1), 1, "small, and never asked for", tensor(10, 0));
    until(&ps, "the request arrives", |counters| counters.parked == 1);
    ps.stop().unwrap();
    let error = asked.wait().unwrap_err().error;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(own.wait().unwrap_err().error.code(), Code::Unavailable);
    assert_eq!(kept.wait().unwrap_err().code(), Code::Aborted);
    // A tensor that was sent ahead may come back too late, and then it is unknown whether the worker took it.
    let returned = ahead.wait().unwrap_err().code();
    assert!(matches!(returned, Code::Aborted | Code::Unavailable), "{returned:?}");
    let late = ps_task.recv(&task(1), 2, "w").wait().unwrap_err().error;
    assert_eq!(late.code(), Code::Unavailable, "{late}");
    assert_empty(&worker);
}

/// Memory that must not be freed.
struct Trap;

impl AsRef<[u8]> for Trap {
    fn as_ref(&self) -> &[u8] {
        &[7; 4]
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        panic!("a tensor's owner panics, on purpose");
    }
}

#[test]
fn an_engine_whose_reactor_fails_tells_everyone() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let waiting = ps_task.recv(&task(1), 1, "never sent");
    let meta = sealane_fusion::TensorMeta::new(sealane_fusion::DType::U8, &[4]).unwrap();
    let trap = sealane_fusion::Tensor::new(meta, ::bytes::Bytes::from_owner(Trap)).unwrap();
    let sending = ps_task.send(&task(1), 1, "w", trap);
    assert_eq!(worker_task.recv(&task(0), 1, "w").wait().unwrap().bytes(), [7; 4]);
    // The release frees the memory, within a turn of the engine itself.
    assert_eq!(waiting.wait().unwrap_err().error.code(), Code::Unavailable);
    assert_eq!(sending.wait().unwrap_err().code(), Code::Unavailable);
    assert_eq!(ps_task.recv(&task(1), 2, "w").wait().unwrap_err().error.code(), Code::Unavailable);
}

#[test]
fn a_peer_that_restarted_is_told_apart_and_serves_again() {
    let (ps_listener, worker_listener) = (listener(), listener());
    let ports = [port(&ps_listener), port(&worker_listener)];
    let address: SocketAddr = ps_listener.local_addr().unwrap();
    // A second handle keeps the port for the restarted engine.
    let kept_port: TcpListener = ps_listener.try_clone().unwrap();
    let ps = Engine::start(settings(map(&ports), 0, ps_listener)).unwrap();
    let worker = Engine::start(settings(map(&ports), 1, worker_listener)).unwrap();
    let worker_task = worker.task(&task(1)).unwrap();
    let asked = worker_task.recv(&task(0), 1, "lost");
    until(&ps, "the request arrives", |counters| counters.parked == 1);
    ps.stop().unwrap();
    drop(ps);
    let error = asked.wait().unwrap_err().error;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert_eq!(kept_port.local_addr().unwrap(), address);
    let ps = Engine::start(settings(map(&ports), 0, kept_port)).unwrap();
    carry((&ps, 0), (&worker, 1), 2, 100_000);
    assert_empty(&worker);
}

#[test]
fn a_peer_that_starts_late_is_waited_for() {
    let (ps_port, worker_listener) = (Refusing::new(), listener());
    let ports = [ps_port.port(), port(&worker_listener)];
    let worker = Engine::start(settings(map(&ports), 1, worker_listener)).unwrap();
    let receiving = worker.task(&task(1)).unwrap().recv(&task(0), 1, "w");
    // It has called more than once, and was refused each time.
    let figures = crate::figures::until(&worker, "it calls again", |figures| {
        figures.peers.iter().any(|peer| peer.counters.calls_failed >= 2)
    });
    assert!(figures.peers[0].path.last_error.contains("refused"), "{figures:#?}");
    let ps = Engine::start(settings(map(&ports), 0, ps_port.listen())).unwrap();
    let sending = ps.task(&task(0)).unwrap().send(&task(1), 1, "w", tensor(10, 5));
    assert_eq!(receiving.wait().unwrap().bytes(), pattern(10, 5));
    sending.wait().unwrap();
}

#[test]
fn a_peer_that_never_listens_is_unavailable_after_the_connect_timeout() {
    let (ps_port, own) = (Refusing::new(), listener());
    let mut settings = settings(map(&[ps_port.port(), port(&own)]), 1, own);
    settings.connect_timeout = Duration::from_millis(50);
    let worker = Engine::start(settings).unwrap();
    let error = worker.task(&task(1)).unwrap().recv(&task(0), 1, "w").wait().unwrap_err().error;
    assert_eq!(error.code(), Code::Unavailable);
    let text = error.to_string();
    assert!(text.contains("connect_timeout_ms") && text.contains("refused"), "{text}");
}

#[test]
fn a_send_on_its_way_at_its_deadline_ends_in_time_and_may_arrive() {
    // Within the promised 100 ms, though not every time on a machine that is shared.
    let late: Vec<_> = (0..10).map(|_| lateness_of_a_send_on_its_way()).collect();
    assert!(late.iter().min() < Some(&Duration::from_millis(100)), "{late:?}");
}

/// How long after its deadline a send hears that it is over.
fn lateness_of_a_send_on_its_way() -> Duration {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let asked = worker_task.recv(&task(0), 1, "w");
    until(&ps, "the request arrives", |counters| counters.parked == 1);
    // Meanwhile the worker's shard neither reads nor releases.
    let (go_on, told) = std::sync::mpsc::channel::<()>();
    let (stands_still, begun) = std::sync::mpsc::channel::<()>();
    let held = worker.on_shard(0, async move |_| {
        stands_still.send(()).unwrap();
        let _ = told.recv_timeout(LONG / 2);
    });
    begun.recv().unwrap();
    let timeout = Duration::from_millis(50);
    let (started, options) = (Instant::now(), SendOptions { timeout: Some(timeout) });
    let error = ps_task.send_with(&task(1), 1, "w", tensor(100_000, 5), options).wait().unwrap_err();
    let late = started.elapsed().saturating_sub(timeout);
    let Error::DeadlineExceeded(unsure) = &error else { panic!("{error}") };
    assert_eq!((unsure.operation, unsure.delivery_unknown), (Operation::Send, true));
    drop(go_on);
    held.wait().unwrap();
    assert_eq!(asked.wait().unwrap().bytes(), pattern(100_000, 5));
    assert_empty(&ps);
    assert_empty(&worker);
    late
}
