//! Pushed tensors are accepted in order and with credit; queues are opened, closed, and opened again.

use std::{
    sync::{Arc, mpsc::channel},
    time::{Duration, Instant},
};

use sealane::{AcceptOptions, Accepted, Code, SendOptions, Task};

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, attached, block_on, bytes, peers, tensor, until_there_is_room},
};

/// Few tensors, so that credit is used up.
const NARROW: AcceptOptions = AcceptOptions { tensors_max: 8, bytes_max: 1 << 20 };

fn seed(accepted: &Accepted) -> u8 {
    accepted.tensor.bytes()[0]
}

#[test]
fn an_idle_acceptor_holds_its_pushers_back_and_goes_on() {
    let (_directory, daemon, task) = attached();
    let acceptor = task.acceptor("grads", NARROW);
    let (other, peer) = (task.acceptor("other", NARROW), daemon.engine.task(&peers()[0]).unwrap());
    let mut pushing: Vec<_> = (0..100).map(|at| task.push(TASK, "grads", tensor(8, at))).collect();
    for at in 0..100 {
        peer.push(TASK, "other", tensor(8, at)).wait().unwrap();
        assert_eq!(seed(&other.accept().wait().unwrap()), at as u8);
    }
    let ended = pushing.iter_mut().filter_map(sealane::Sending::try_outcome).count();
    assert_eq!(ended, 4, "what one of two shards may hold");
    daemon.until_under_way(96);
    for at in 0..100 {
        assert_eq!(seed(&acceptor.accept().wait().unwrap()), at);
    }
    assert!(acceptor.accept().wait_within(Duration::from_millis(1)).unwrap().is_none());
    drop(acceptor);
    // Without an acceptor, pushes wait until their deadlines.
    let soon = || SendOptions { timeout: Some(Duration::from_millis(1)) };
    let late = task.push_with(TASK, "grads", tensor(8, 0), soon()).wait().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    let late = task.push_all_with(TASK, "grads", [tensor(1000, 0), tensor(8, 0)], soon()).wait().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert!(task.push_all(TASK, "grads", []).wait().is_ok());
    until_there_is_room(&task, 4 << 20);
}

#[test]
fn what_nobody_took_from_an_acceptor_that_is_dropped_is_the_next_ones() {
    let (_directory, _daemon, task) = attached();
    for round in 0..100 {
        let first = task.acceptor("grads", NARROW);
        let pushes: Vec<_> =
            (0..4).map(|at| task.push(TASK, "grads", tensor(if at % 2 == 0 { 64 } else { 5000 }, at))).collect();
        // The other tensors are in the acceptor's hands by now, in the rings, or with the daemon.
        let taken = round % 3;
        let mut all: Vec<_> = (0..taken).map(|_| seed(&first.accept().wait().unwrap())).collect();
        drop(first);
        let next = task.acceptor("grads", NARROW);
        while all.len() < 4 {
            all.extend(next.accept_many(9).wait().unwrap().iter().map(seed));
        }
        assert_eq!(all, [0, 1, 2, 3]);
        pushes.into_iter().for_each(|push| push.wait().unwrap());
    }
}

/// Fills the ring of the shard that serves the pair with a peer, while the shards are held.
fn fill_ring(task: &Task, peer: &str) {
    let at_once = || SendOptions { timeout: Some(Duration::ZERO) };
    while task.push_with(peer, "full", tensor(64, 1), at_once()).try_outcome().is_none() {}
}

/// A peer that this shard serves.
fn peer_at(daemon: &Daemon, shard: usize) -> String {
    peers().into_iter().find(|peer| daemon.engine.shard_of(TASK, peer) == shard).unwrap()
}

#[test]
fn a_queue_is_not_opened_again_before_it_is_closed_when_the_ring_is_full() {
    let (_directory, daemon, task) = attached();
    let first = task.acceptor("grads", NARROW);
    let held = daemon.hold();
    fill_ring(&task, TASK);
    drop(first);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| task.acceptor("grads", NARROW));
        drop(held);
        let second = opening.join().unwrap();
        let push = task.push(TASK, "grads", tensor(64, 7));
        assert_eq!(seed(&accept_in_the_end(&second)), 7);
        push.wait().unwrap();
    });
}

#[test]
fn a_queue_that_was_opened_in_part_is_closed_and_opened_again() {
    let (_directory, daemon, task) = attached();
    let mut held = daemon.hold();
    drop(held.remove(0));
    fill_ring(&task, &peer_at(&daemon, 1));
    let acceptor = task.acceptor("grads", NARROW);
    let pushes: Vec<_> = (0..2)
        .map(|shard| daemon.engine.task(&peer_at(&daemon, shard)).unwrap().push(TASK, "grads", tensor(8, shard as u64)))
        .collect();
    assert_eq!(acceptor.accept().wait().unwrap_err().code(), Code::ResourceExhausted);
    drop(held);
    let mut seeds = [(); 2].map(|()| seed(&accept_in_the_end(&acceptor)));
    seeds.sort_unstable();
    assert_eq!(seeds, [0, 1]);
    pushes.into_iter().for_each(|push| push.wait().unwrap());
}

#[test]
fn who_waits_while_another_opens_the_queue_in_vain_opens_it() {
    let (_directory, daemon, task) = attached();
    let held = daemon.hold();
    fill_ring(&task, &peer_at(&daemon, 0));
    let acceptor = Arc::new(task.acceptor("grads", NARROW));
    let (ending, ended) = channel();
    for _ in 0..2 {
        let (acceptor, ending) = (acceptor.clone(), ending.clone());
        std::thread::spawn(move || ending.send(acceptor.accept().wait()));
    }
    // Whichever of the two it was.
    assert_eq!(ended.recv_timeout(LONG).unwrap().unwrap_err().code(), Code::ResourceExhausted);
    drop(held);
    drop(task.push(TASK, "grads", tensor(8, 7)));
    assert_eq!(seed(&ended.recv_timeout(LONG).unwrap().unwrap()), 7);
}

/// Retries accepting until it works: the daemon may be starting, or not have read yet.
fn accept_in_the_end(acceptor: &sealane::Acceptor) -> Accepted {
    let deadline = Instant::now() + LONG;
    loop {
        match acceptor.accept().wait() {
            Ok(accepted) => return accepted,
            Err(error) => {
                assert!(matches!(error.code(), Code::Unavailable | Code::ResourceExhausted), "{error}");
                assert!(Instant::now() < deadline, "{error}");
            }
        }
    }
}

#[test]
fn a_queue_is_opened_again_with_a_daemon_that_is_new() {
    let (directory, daemon, task) = attached();
    let acceptor = task.acceptor("grads", NARROW);
    task.push_all(TASK, "grads", [tensor(8, 1), tensor(1000, 2)]).wait().unwrap();
    assert_eq!(seed(&acceptor.accept().wait().unwrap()), 1);
    daemon.kill();
    // Tensors already handed over are still there; then nothing more comes.
    assert_eq!(acceptor.accept().wait().unwrap().tensor.bytes(), bytes(1000, 2));
    assert_eq!(acceptor.accept().wait().unwrap_err().code(), Code::Unavailable);
    let _daemon = Daemon::start(&directory, Settings { shards: 1, ..Settings::default() });
    let pusher = task.clone();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let deadline = Instant::now() + LONG;
            while let Err(error) = pusher.push(TASK, "grads", tensor(8, 3)).wait() {
                assert!(error.code() == Code::Unavailable && Instant::now() < deadline, "{error}");
            }
        });
        assert_eq!(seed(&accept_in_the_end(&acceptor)), 3);
    });
    drop(task);
    assert_eq!(acceptor.accept().wait().unwrap_err().code(), Code::Unavailable);
}

#[test]
fn an_accept_that_waits_hears_that_the_daemon_is_gone() {
    let (_directory, daemon, task) = attached();
    let acceptor = task.acceptor("grads", NARROW);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| acceptor.accept().wait().unwrap_err());
        let awaiting = scope.spawn(|| block_on(acceptor.accept()).unwrap_err());
        daemon.kill();
        for gone in [waiting, awaiting] {
            assert_eq!(gone.join().unwrap().code(), Code::Unavailable);
        }
    });
}
