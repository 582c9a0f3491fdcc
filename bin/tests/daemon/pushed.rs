//! What one client pushes, another accepts in order: on the same host, and on another.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sealane::{AcceptOptions, Accepted, Attach, DType, Sending, Task, Tensor, TensorMeta};

use crate::fixture::{Daemon, Ended, PS, Place, STUCK, WORKER};

/// Lets a client have all tensors of a round in flight.
const ARENA_BYTES: u64 = 2 << 20;

/// Empty, and sizes that travel in the ring, together in one frame, or alone.
const SIZES: [usize; 6] = [64, 0, 512, 513, 9_000, 40_000];

/// How often an acceptor is dropped and the next one opened.
const REOPENED: usize = 1000;

/// Pushes in flight at once meanwhile.
const PUSHES_AT_ONCE: usize = 8;

fn attach(place: &Place, task: &str) -> Task {
    Attach::new(task).socket(place.socket()).arena_bytes(ARENA_BYTES).timeout(STUCK).attach().unwrap()
}

fn tensor(number: usize) -> Tensor {
    let len = SIZES[number % SIZES.len()];
    let bytes: Vec<u8> = (0..len).map(|at| (at.wrapping_mul(31) ^ number ^ (at >> 8)) as u8).collect();
    Tensor::new(TensorMeta::new(DType::U8, &[len as u64]).unwrap(), bytes).unwrap()
}

/// Two daemons, each at its own address with one task.
pub fn two_hosts() -> (Vec<Place>, Vec<Daemon>) {
    two_hosts_with(&[])
}

/// Like [`two_hosts`], with more arguments for the daemons.
pub fn two_hosts_with(arguments: &[&str]) -> (Vec<Place>, Vec<Daemon>) {
    let make = || {
        let places = vec![Place::new(), Place::new()];
        let map = format!("{PS}={}\n{WORKER}={}\n", places[0].address, places[1].address);
        places.iter().for_each(|place| place.replace_map(&map));
        places
    };
    let start = |places: &Vec<Place>| -> Result<Vec<Daemon>, Ended> {
        let tasks = places.iter().zip([PS, WORKER]);
        let all = |task| [&["--set", "runtime.pin=false", "--task", task], arguments].concat();
        tasks.map(|(place, task)| Daemon::start_at(place, &all(task))).collect()
    };
    Daemon::start_in(make, start)
}

/// The acceptor is dropped and opened again, with tensors in its hands, in its rings and at the daemon, while the pusher
/// never stops: each tensor is accepted once, in order.
fn acceptors_come_and_go(ps: &Task, worker: &Task) {
    let over = AtomicBool::new(false);
    let mut next = 0;
    let mut note = |items: Vec<Accepted>| {
        for accepted in items {
            assert!(accepted.tensor.bytes() == tensor(next).bytes(), "tensor {next} is not the next");
            next += 1;
        }
        next
    };
    std::thread::scope(|scope| {
        let pushing = scope.spawn(|| {
            let (mut under_way, mut number) = (VecDeque::new(), 0);
            while !over.load(Ordering::Relaxed) {
                if under_way.len() == PUSHES_AT_ONCE {
                    under_way.pop_front().map(Sending::wait).expect("there are some").unwrap();
                }
                under_way.push_back(worker.push(PS, "grads", tensor(number)));
                number += 1;
            }
            under_way.into_iter().for_each(|push| push.wait().unwrap());
            number
        });
        for round in 0..REOPENED {
            let acceptor =
                ps.acceptor("grads", AcceptOptions { tensors_max: 1 + round % 9, ..AcceptOptions::default() });
            if round % 2 == 0 {
                let some = acceptor.accept_many(3).wait_within(STUCK).unwrap();
                assert!(!some.is_empty(), "round {round}: nothing is accepted, and pushes are under way");
                note(some);
            }
        }
        over.store(true, Ordering::Relaxed);
        let last = ps.acceptor("grads", AcceptOptions::default());
        while !pushing.is_finished() {
            note(last.accept_many(100).wait_within(Duration::from_millis(1)).unwrap());
        }
        let pushed = pushing.join().unwrap();
        while note(Vec::new()) < pushed {
            let some = last.accept_many(100).wait_within(STUCK).unwrap();
            assert!(!some.is_empty(), "{} of {pushed} were accepted", note(Vec::new()));
            note(some);
        }
        assert_eq!(last.try_accept(1, &mut Vec::new()).unwrap(), 0);
    });
}

#[test]
fn a_worker_pushes_and_a_ps_of_another_host_accepts() {
    let (places, daemons) = two_hosts();
    let (ps, worker) = (attach(&places[0], PS), attach(&places[1], WORKER));
    acceptors_come_and_go(&ps, &worker);
    drop((ps, worker));
    daemons.into_iter().for_each(|daemon| assert_eq!(daemon.stop().code, Some(0)));
}

#[test]
fn clients_of_one_daemon_push_to_each_other() {
    for shards in ["runtime.shards=1", "runtime.shards=2"] {
        let (place, daemon) = Daemon::start(&["--set", shards]);
        let (ps, worker) = (attach(&place, PS), attach(&place, WORKER));
        acceptors_come_and_go(&ps, &worker);
        drop((ps, worker));
        assert_eq!(daemon.stop().code, Some(0));
    }
}
