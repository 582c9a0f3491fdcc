//! Small tensors between two tasks of one host go over a lane, past the daemon or through its switch; everything else behaves as if they went
//! through calls there.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use sealane::{Buffer, Code, Receiving, RecvOptions, SendOptions, Sending, Task};
use sealane_fusion::{Counters, Portion};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, LONG, PORTION, Settings},
    fixture::{TASK, block_on, bytes, directory, peers, tensor, to, to_as, until_there_is_room},
};

/// Two tasks, and the name of the second.
struct Both {
    daemon: Daemon,
    one: Task,
    other: Task,
    peer: String,
    are_direct: bool,
    _directory: TempDir,
}

impl Both {
    fn attached() -> Both {
        Both::attached_as(true)
    }

    fn attached_as(are_direct: bool) -> Both {
        let (directory, peer) = (directory(), peers().swap_remove(0));
        let daemon = start_daemon(&directory, are_direct);
        let (one, other) = (to(&daemon).attach().unwrap(), to_as(&daemon, &peer).attach().unwrap());
        Both { daemon, one, other, peer, are_direct, _directory: directory }
    }

    /// Like [`Both::attached`], with a lane that both read: shared by them, or through the daemon's switch.
    fn with_lane(are_direct: bool) -> Both {
        let both = Both::attached_as(are_direct);
        both.until_there_is_a_lane();
        both
    }

    fn until_there_is_a_lane(&self) {
        open_lane_as(self.are_direct, &self.daemon, (&self.one, &self.other, &self.peer));
    }

    /// Tensors that the shards themselves carried for clients, not only counted.
    fn submissions(&self) -> u64 {
        self.daemon.sum(|counters| counters.tensors_sent)
    }
}

fn start_daemon(directory: &TempDir, direct_lanes: bool) -> Daemon {
    Daemon::start_as(directory, Settings::default(), Portion { direct_lanes, ..PORTION }, |_| {})
}

/// Exchanges tensors until both have opened their ends.
pub fn open_lane(one: &Task, other: &Task, peer: &str) {
    exchange_until((one, other, peer), || one.direct_peers() == [peer] && other.direct_peers() == [one.name()]);
}

/// Exchanges tensors until all small ones between the two go over lanes, which they share or not.
fn open_lane_as(are_direct: bool, daemon: &Daemon, (one, other, peer): (&Task, &Task, &str)) {
    let mut step = 2_000_000;
    exchange_until((one, other, peer), || {
        step += 1;
        let takes_two = |to: &Task, from: &Task| takes_two_recvs_of_a_key(to, from, step);
        !daemon.engine.lanes(are_direct).is_empty() && takes_two(one, other) && takes_two(other, one)
    });
}

/// True if a task serves two recvs of one key in order, as it does where tensors from the other come over a lane alone.
fn takes_two_recvs_of_a_key(to: &Task, from: &Task, step: i64) -> bool {
    let receivings = [(); 2].map(|()| to.recv(from.name(), step, "twice"));
    let send = || from.send(to.name(), step, "twice", tensor(10, 1)).wait().unwrap();
    let [first, second] = receivings;
    send();
    first.wait().unwrap();
    let sending = from.send(to.name(), step, "twice", tensor(10, 1));
    let takes_two = match second.wait() {
        Ok(_) => true,
        Err(unreceived) => {
            assert_eq!(unreceived.error.code(), Code::InvalidArgument);
            to.recv(from.name(), step, "twice").wait().unwrap();
            false
        }
    };
    sending.wait().unwrap();
    takes_two
}

fn exchange_until((one, other, peer): (&Task, &Task, &str), mut is_over: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    for step in 1_000_000.. {
        if is_over() {
            return;
        }
        assert!(Instant::now() < deadline, "{:?} {:?}", one.direct_peers(), other.direct_peers());
        let sending = one.send(peer, step, "opening", tensor(10, step as u64));
        assert_eq!(other.recv(one.name(), step, "opening").wait().unwrap().bytes(), bytes(10, step as u64));
        sending.wait().unwrap();
        // Makes the other ask for its end, too.
        let sending = other.send(one.name(), step, "opening", tensor(10, step as u64));
        assert_eq!(one.recv(peer, step, "opening").wait().unwrap().bytes(), bytes(10, step as u64));
        sending.wait().unwrap();
    }
}

fn code(sending: Sending) -> Code {
    sending.wait().unwrap_err().code()
}

fn within(timeout: Duration) -> SendOptions {
    SendOptions { timeout: Some(timeout) }
}

#[test]
fn tensors_of_every_small_size_arrive_whichever_comes_first() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        for len in (0..=600).step_by(7) {
            let (step, seed) = (len as i64, len as u64);
            let sending = one.send(peer, step, "sent first", tensor(len, seed));
            assert_eq!(other.recv(TASK, step, "sent first").wait().unwrap().bytes(), bytes(len, seed));
            sending.wait().unwrap();
            let receiving = other.recv(TASK, step, "asked first");
            one.send(peer, step, "asked first", tensor(len, seed + 1)).wait().unwrap();
            assert_eq!(receiving.wait().unwrap().bytes(), bytes(len, seed + 1));
            let receiving = one.recv_into(peer, step, "back", Buffer::from_vec(vec![0; 700]));
            let sending = other.send(TASK, step, "back", tensor(len, seed + 2));
            let received = receiving.wait().unwrap();
            assert_eq!((received.bytes(), &*received.meta().shape()), (&*bytes(len, seed + 2), &[len as u64][..]));
            sending.wait().unwrap();
        }
    }
}

#[test]
fn all_small_tensors_go_over_the_lane() {
    for are_direct in [true, false] {
        let Both { daemon, one, other, peer, .. } = &Both::with_lane(are_direct);
        let sum = |daemon: &Daemon, of: fn(&Counters) -> u64| {
            daemon.engine.figures().iter().map(|shard| of(&shard.counters)).sum::<u64>()
        };
        // Counters lag by a few milliseconds: once they include this one's bytes, they include everything before it.
        const MARK: usize = 1 << 20;
        let marked = sum(daemon, |counters| counters.bytes_sent) + MARK as u64;
        let receiving = other.recv(TASK, 0, "mark");
        one.send(peer, 0, "mark", tensor(MARK, 1)).wait().unwrap();
        receiving.wait().unwrap();
        daemon.until("it is counted", |daemon| sum(daemon, |counters| counters.bytes_sent) >= marked);
        let before = sum(daemon, |counters| counters.tensors_sent);
        for step in 0..500 {
            let receivings = other.recv_all(TASK, step, ["a", "b"].map(|key| (key, RecvOptions::default())));
            let sendings = one.send_all(peer, step, ["a", "b"].map(|key| (key, tensor(64, step as u64))));
            for received in Receiving::wait_all(receivings) {
                assert_eq!(received.unwrap().bytes(), bytes(64, step as u64));
            }
            assert!(Sending::wait_all(sendings).iter().all(Result::is_ok));
        }
        let carried = sum(daemon, |counters| counters.tensors_sent) - before;
        assert_eq!(carried, 0, "none goes through calls at the daemon");
    }
}

#[test]
fn tensors_beyond_the_credit_wait_at_their_producer() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        let sendings = one.send_all(peer, 1, (0..900).map(|key| (key.to_string(), tensor(64, key))));
        let receivings = other.recv_all(TASK, 1, (0..900).map(|key| (key.to_string(), RecvOptions::default())));
        for (received, key) in Receiving::wait_all(receivings).into_iter().zip(0..) {
            assert_eq!(received.unwrap().bytes(), bytes(64, key));
        }
        assert!(Sending::wait_all(sendings).iter().all(Result::is_ok));
    }
}

#[test]
fn large_tensors_and_small_ones_of_one_list_arrive() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        for step in 0..60 {
            let len = |key: u64| [10, 5_000, 64, 600, 512, 100_000][(key + step as u64) as usize % 6];
            let keys: Vec<String> = (0..40).map(|key| key.to_string()).collect();
            let ask = || other.recv_all(TASK, step, keys.iter().map(|key| (key, RecvOptions::default())));
            let early = (step % 2 == 0).then(ask);
            let sendings =
                one.send_all(peer, step, keys.iter().zip(0..).map(|(key, seed)| (key, tensor(len(seed), seed))));
            let receivings = early.unwrap_or_else(ask);
            for (received, seed) in Receiving::wait_all(receivings).into_iter().zip(0..) {
                assert_eq!(received.unwrap().bytes(), bytes(len(seed), seed));
            }
            assert!(Sending::wait_all(sendings).iter().all(Result::is_ok));
        }
    }
}

#[test]
fn futures_of_both_sides_complete() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        for step in 0..300 {
            let len = if step % 10 == 0 { 5_000 } else { 64 };
            let receiving = other.recv(TASK, step, "w");
            let sending = one.send(peer, step, "w", tensor(len, step as u64));
            match step % 3 {
                0 => assert_eq!(block_on(receiving).unwrap().bytes(), bytes(len, step as u64)),
                1 => assert_eq!(receiving.wait().unwrap().bytes(), bytes(len, step as u64)),
                _ => {
                    let waiting = thread::spawn(move || block_on(receiving).unwrap());
                    assert_eq!(waiting.join().unwrap().bytes(), bytes(len, step as u64));
                }
            }
            block_on(sending).unwrap();
        }
    }
}

#[test]
fn what_was_sent_is_counted_while_the_clients_go_on() {
    for are_direct in [true, false] {
        let both = Both::with_lane(are_direct);
        let Both { daemon, one, other, peer, .. } = &both;
        let before = both.submissions();
        for step in 0..100 {
            let sending = one.send(peer, step, "w", tensor(64, 1));
            other.recv(TASK, step, "w").wait().unwrap();
            sending.wait().unwrap();
        }
        let deadline = Instant::now() + LONG;
        for step in 100.. {
            if both.submissions() >= before + 100 {
                break;
            }
            assert!(Instant::now() < deadline, "{}", both.submissions());
            let sending = one.send(peer, step, "w", tensor(64, 1));
            other.recv(TASK, step, "w").wait().unwrap();
            sending.wait().unwrap();
        }
        let mut pair = [peer.to_owned(), TASK.to_owned()];
        pair.sort();
        assert_eq!(daemon.engine.lanes(are_direct), [pair]);
    }
}

#[test]
fn a_send_that_nobody_asks_for_ends_at_its_deadline_and_is_not_received_after_it() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        let late = one.send_with(peer, 1, "w", tensor(10, 1), within(Duration::from_millis(30)));
        let error = late.wait().unwrap_err();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(error.to_string().contains("'w'"), "{error}");
        // This one and the first are waited for, but not received by anyone.
        let awaited = one.send_with(peer, 1, "v", tensor(10, 2), within(Duration::from_millis(30)));
        assert_eq!(block_on(awaited).unwrap_err().code(), Code::DeadlineExceeded);
        for (key, seed) in [("w", 3), ("v", 4)] {
            let sending = one.send(peer, 1, key, tensor(10, seed));
            assert_eq!(other.recv(TASK, 1, key).wait().unwrap().bytes(), bytes(10, seed));
            sending.wait().unwrap();
        }
    }
}

#[test]
fn a_step_that_ends_at_one_ends_at_both_and_can_be_used_again() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        for (step, (ends, hears, to)) in [(1, (one, other, peer.as_str())), (2, (other, one, TASK))] {
            let from = ends.name();
            let sendings = [ends.send(to, step, "mine", tensor(10, 1)), hears.send(from, step, "its", tensor(10, 2))];
            let receivings = [ends.recv(to, step, "none"), hears.recv(from, step, "none")];
            let other_step = hears.recv(from, step + 100, "w");
            ends.abort(step, "it makes no sense").unwrap();
            for sending in sendings {
                let error = sending.wait().unwrap_err();
                assert_eq!(error.code(), Code::Aborted);
                assert!(error.to_string().contains("no sense"), "{error}");
            }
            for receiving in receivings {
                let error = receiving.wait().unwrap_err().error;
                assert_eq!(error.code(), Code::Aborted);
                assert!(error.to_string().contains("no sense"), "{error}");
            }
            // The step stays ended until it is cleaned up.
            for (task, peer) in [(ends, to), (hears, from)] {
                assert_eq!(code(task.send(peer, step, "late", tensor(10, 3))), Code::Aborted);
                assert_eq!(task.recv(peer, step, "late").wait().unwrap_err().error.code(), Code::Aborted);
            }
            ends.send(to, step + 100, "w", tensor(10, 4)).wait().unwrap();
            assert_eq!(other_step.wait().unwrap().bytes(), bytes(10, 4));
            for task in [ends, hears] {
                task.cleanup(step).unwrap();
            }
            let sending = ends.send(to, step, "mine", tensor(10, 5));
            assert_eq!(hears.recv(from, step, "mine").wait().unwrap().bytes(), bytes(10, 5));
            sending.wait().unwrap();
        }
    }
}

#[test]
fn what_is_left_of_a_step_that_is_cleaned_up_is_not_received() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        let sending = one.send(peer, 1, "w", tensor(10, 1));
        one.cleanup(1).unwrap();
        assert_eq!(code(sending), Code::Aborted);
        // The other learns of it with what arrives.
        assert!(other.recv(TASK, 1, "none").try_outcome().is_none());
        let receiving = other.recv(TASK, 1, "w");
        one.send(peer, 1, "w", tensor(10, 2)).wait().unwrap();
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, 2));
    }
}

#[test]
fn a_recv_that_is_given_up_leaves_its_tensor_to_the_next() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        for step in 0..200 {
            let given_up = other.recv(TASK, step, "w");
            let sending = (step % 2 == 0).then(|| one.send(peer, step, "w", tensor(10, step as u64)));
            drop(given_up);
            let sending = sending.unwrap_or_else(|| one.send(peer, step, "w", tensor(10, step as u64)));
            assert_eq!(other.recv(TASK, step, "w").wait().unwrap().bytes(), bytes(10, step as u64));
            sending.wait().unwrap();
        }
    }
}

#[test]
fn two_tensors_of_one_name_are_refused_and_two_recvs_are_served_in_order() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        let first = one.send(peer, 1, "w", tensor(10, 1));
        let second = one.send(peer, 1, "w", tensor(10, 2));
        // The other sees both when it next looks.
        assert!(other.recv(TASK, 1, "none").try_outcome().is_none());
        assert_eq!(code(second), Code::InvalidArgument);
        assert_eq!(other.recv(TASK, 1, "w").wait().unwrap().bytes(), bytes(10, 1));
        first.wait().unwrap();
        let recvs = [other.recv(TASK, 2, "w"), other.recv(TASK, 2, "w")];
        for (receiving, seed) in recvs.into_iter().zip([3, 4]) {
            let sending = one.send(peer, 2, "w", tensor(10, seed));
            assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, seed));
            sending.wait().unwrap();
        }
    }
}

#[test]
fn recvs_from_a_process_that_goes_hear_of_it_and_later_ones_wait_for_the_next() {
    for are_direct in [true, false] {
        let Both { _directory, daemon, one, other, peer, .. } = Both::with_lane(are_direct);
        let receiving = other.recv(TASK, 1, "w");
        let unreceived = one.send(&peer, 1, "lost with its sender", tensor(10, 1));
        drop((unreceived, one));
        assert_eq!(receiving.wait().unwrap_err().error.code(), Code::Unavailable);
        daemon.until_detached(TASK);
        let receiving = other.recv(TASK, 1, "w");
        let one = to(&daemon).attach().unwrap();
        one.send(&peer, 1, "w", tensor(10, 2)).wait().unwrap();
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, 2));
        open_lane_as(are_direct, &daemon, (&one, &other, &peer));
    }
}

#[test]
fn a_daemon_that_dies_ends_the_lane_and_the_next_gives_another() {
    for are_direct in [true, false] {
        let Both { _directory: directory, daemon, one, other, peer, .. } = Both::with_lane(are_direct);
        let (sending, receiving) = (one.send(&peer, 1, "w", tensor(10, 1)), other.recv(TASK, 2, "w"));
        daemon.kill();
        assert_eq!(code(sending), Code::Unavailable);
        assert_eq!(receiving.wait().unwrap_err().error.code(), Code::Unavailable);
        let daemon = start_daemon(&directory, are_direct);
        [&one, &other].into_iter().for_each(|task| until_there_is_room(task, 10));
        open_lane_as(are_direct, &daemon, (&one, &other, &peer));
        let sending = one.send(&peer, 1, "w", tensor(10, 2));
        assert_eq!(other.recv(TASK, 1, "w").wait().unwrap().bytes(), bytes(10, 2));
        sending.wait().unwrap();
    }
}

#[test]
fn tasks_share_no_memory_where_the_daemon_allows_none() {
    let Both { daemon, one, .. } = &Both::with_lane(false);
    assert_eq!((one.direct_peers(), daemon.engine.lanes(true)), (vec![], vec![]));
}

#[test]
fn recv_has_its_tensor_though_its_step_is_cleaned_up() {
    // By a switch it arrives some time after it was sent.
    let Both { one, other, peer, .. } = &Both::with_lane(true);
    for step in 0..50 {
        let receiving = other.recv(TASK, step, "w");
        let sending = one.send(peer, step, "w", tensor(10, step as u64));
        // This recv takes in what has arrived.
        assert!(other.recv(TASK, step + 1000, "none").try_outcome().is_none());
        other.cleanup(step).unwrap();
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, step as u64));
        sending.wait().unwrap();
    }
}

#[test]
fn recvs_end_when_the_other_goes_and_leave_nothing_behind() {
    for are_direct in [true, false] {
        let Both { _directory, daemon, one, other, peer, .. } = Both::with_lane(are_direct);
        let [waited_for, given_up] = ["a", "b"].map(|key| other.recv(TASK, 1, key));
        drop(one);
        assert_eq!(waited_for.wait().unwrap_err().error.code(), Code::Unavailable);
        drop(given_up);
        let one = to(&daemon).attach().unwrap_or_else(|_| {
            daemon.until_detached(TASK);
            to(&daemon).attach().unwrap()
        });
        for step in 0..100 {
            let sending = other.send(TASK, step, "w", tensor(10, step as u64));
            assert_eq!(one.recv(&peer, step, "w").wait().unwrap().bytes(), bytes(10, step as u64));
            sending.wait().unwrap();
        }
    }
}

#[test]
fn all_that_a_process_which_has_gone_left_in_its_lane_waits_for_the_next() {
    for are_direct in [true, false] {
        let Both { _directory, daemon, one, other, peer, .. } = Both::with_lane(are_direct);
        let keys: Vec<String> = (0..900).map(|key| key.to_string()).collect();
        let sendings = one.send_all(&peer, 1, keys.iter().map(|key| (key, tensor(500, key.len() as u64))));
        drop(other);
        daemon.until_detached(&peer);
        let other = to_as(&daemon, &peer).attach().unwrap();
        let receivings = other.recv_all(TASK, 1, keys.iter().map(|key| (key, RecvOptions::default())));
        for (received, key) in Receiving::wait_all(receivings).into_iter().zip(&keys) {
            assert_eq!(received.unwrap().bytes(), bytes(500, key.len() as u64));
        }
        assert!(Sending::wait_all(sendings).iter().all(Result::is_ok));
    }
}

#[test]
fn a_step_that_was_ended_before_there_was_a_lane_has_ended() {
    let both = Both::attached();
    let Both { one, other, peer, .. } = &both;
    // Tasks that have never met need not hear of each other's steps.
    for (task, other, peer) in [(one, other, peer.as_str()), (other, one, TASK)] {
        let sending = task.send(peer, 0, "w", tensor(10, 1));
        other.recv(task.name(), 0, "w").wait().unwrap();
        sending.wait().unwrap();
    }
    one.abort(1, "it makes no sense").unwrap();
    both.until_there_is_a_lane();
    for (task, peer) in [(one, peer.as_str()), (other, TASK)] {
        assert_eq!(code(task.send(peer, 1, "w", tensor(10, 1))), Code::Aborted, "{}", task.name());
        assert_eq!(task.recv(peer, 1, "w").wait().unwrap_err().error.code(), Code::Aborted, "{}", task.name());
    }
}

#[test]
fn recvs_that_do_not_wait_for_one_who_has_left_have_lanes_too() {
    for are_direct in [true, false] {
        let Both { one, other, peer, .. } = &Both::with_lane(are_direct);
        for step in 0..100 {
            let ask = || other.recv_with(TASK, step, "w", RecvOptions { fail_if_gone: true, ..RecvOptions::default() });
            let asked_first = (step % 2 == 0).then(ask);
            let sending = one.send(peer, step, "w", tensor(10, step as u64));
            let receiving = asked_first.unwrap_or_else(ask);
            assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, step as u64));
            sending.wait().unwrap();
        }
    }
}

/// Both ways at once, from several threads each, while lanes come and go with the other process.
#[test]
fn nothing_is_lost_or_received_twice_while_the_other_comes_and_goes() {
    const THREADS: usize = 3;
    for are_direct in [true, false] {
        let Both { _directory, daemon, one, other, peer, .. } = Both::attached_as(are_direct);
        let (stop, other) = (AtomicBool::new(false), std::sync::RwLock::new(other));
        let exchange = |thread: usize| {
            let key = thread.to_string();
            let mut step = 0;
            while !stop.load(Ordering::Relaxed) || step < 300 {
                let other = other.read().unwrap();
                let len = [3, 60, 500, 5000][step as usize % 4];
                let sendings =
                    [one.send(&peer, step, &key, tensor(len, 1)), other.send(TASK, step, &key, tensor(len, 2))];
                let receivings = [other.recv(TASK, step, &key), one.recv(&peer, step, &key)];
                for (receiving, seed) in receivings.into_iter().zip([1, 2]) {
                    assert_eq!(receiving.wait().unwrap().bytes(), bytes(len, seed));
                }
                sendings.into_iter().for_each(|sending| sending.wait().unwrap());
                step += 1;
            }
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || exchange(thread))).collect();
            for _ in 0..5 {
                let deadline = Instant::now() + LONG;
                while daemon.engine.lanes(are_direct).is_empty() {
                    assert!(Instant::now() < deadline);
                    thread::yield_now();
                }
                let mut other = other.write().unwrap();
                let former = std::mem::replace(&mut *other, one.clone());
                drop(former);
                daemon.until_detached(&peer);
                *other = to_as(&daemon, &peer).attach().unwrap();
            }
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
