//! One engine takes over the listening sockets of another.

use std::net::TcpStream;

use sealane_fusion::{Engine, StartError};

use crate::fixture::{carry, listener, map, port, settings, until};

#[test]
fn the_next_engine_serves_at_the_sockets_of_the_one_before() {
    let listeners = [listener(), listener()];
    let ports = listeners.each_ref().map(port);
    let [first, second] = listeners;
    let old = Engine::start(settings(map(&ports), 0, first)).unwrap();
    let worker = Engine::start(settings(map(&ports), 1, second)).unwrap();
    carry((&old, 0), (&worker, 1), 1, 100);
    let own = || {
        let mut settings = settings(map(&ports), 0, listener());
        settings.listeners.clear();
        settings
    };
    // Without the other engine's consent there is nothing to listen on.
    let alone = Engine::prepare(own(), Vec::new(), &[]).map(drop);
    assert!(matches!(alone, Err(StartError::Listen { .. })));
    let next = Engine::prepare(own(), Vec::new(), &old.listening()).unwrap();
    carry((&old, 0), (&worker, 1), 2, 100);
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
    carry((&next, 0), (&worker, 1), 3, 100);
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
    carry((&ps, 0), (&worker, 1), 1, 10);
}
