//! One engine takes over the listening sockets of another.

use std::net::TcpStream;

use sealane_fusion::{Engine, StartError};

use crate::fixture::{listener, map, port, settings, task, tensor, until};

/// Moves a tensor from the first task to the second.
fn exchange(ps: &Engine, worker: &Engine, step: i64) {
    let sending = ps.task(&task(0)).unwrap().send(&task(1), step, "w", tensor(100, 7));
    let arrived = worker.task(&task(1)).unwrap().recv(&task(0), step, "w").wait().unwrap();
    assert_eq!(arrived.bytes(), tensor(100, 7).bytes());
    sending.wait().unwrap();
}

#[test]
fn the_next_engine_serves_at_the_sockets_of_the_one_before() {
    let listeners = [listener(), listener()];
    let ports = listeners.each_ref().map(port);
    let [first, second] = listeners;
    let old = Engine::start(settings(map(&ports), 0, first)).unwrap();
    let worker = Engine::start(settings(map(&ports), 1, second)).unwrap();
    exchange(&old, &worker, 1);
    let own = || {
        let mut settings = settings(map(&ports), 0, listener());
        settings.listeners.clear();
        settings
    };
    // Without the other engine's consent there is nothing to listen on.
    let alone = Engine::prepare(own(), Vec::new(), &[]).map(drop);
    assert!(matches!(alone, Err(StartError::Listen { .. })));
    let next = Engine::prepare(own(), Vec::new(), &old.listening()).unwrap();
    exchange(&old, &worker, 2);
    old.drain().unwrap();
    let sockets = old.yield_listeners().unwrap();
    assert!(old.listening().is_empty() && sockets.len() == 1);
    // A caller that comes in between waits.
    let _caller = TcpStream::connect(("127.0.0.1", ports[0])).unwrap();
    let next = next.open(sockets).unwrap();
    old.stop().unwrap();
    // A request that the worker makes before it hears that the old engine is going ends with that engine.
    until(&worker, "the old engine has gone", |counters| counters.links == 0);
    assert_eq!(next.listening().len(), 1);
    exchange(&next, &worker, 3);
}

#[test]
fn an_engine_that_drained_for_another_takes_its_sockets_back() {
    let listeners = [listener(), listener()];
    let ports = listeners.each_ref().map(port);
    let [first, second] = listeners;
    let ps = Engine::start(settings(map(&ports), 0, first)).unwrap();
    ps.drain().unwrap();
    let sockets = ps.yield_listeners().unwrap();
    ps.resume(sockets).unwrap();
    assert_eq!(ps.listening().len(), 1);
    // The worker has no link yet, and calls.
    let worker = Engine::start(settings(map(&ports), 1, second)).unwrap();
    let arriving = worker.task(&task(1)).unwrap().recv(&task(0), 1, "w");
    let sending = ps.task(&task(0)).unwrap().send(&task(1), 1, "w", tensor(10, 3));
    assert_eq!(arriving.wait().unwrap().bytes(), tensor(10, 3).bytes());
    sending.wait().unwrap();
}
