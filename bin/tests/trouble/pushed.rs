//! Acceptors and pushers that are killed: their peers wait and go on with the next process, and the daemon keeps
//! nothing of the dead ones.

use std::time::Duration;

use sealane::{AcceptOptions, Code, Error, SendOptions};

use crate::fixture::{PS, WORKER};
use crate::hosts::{ARENA_BYTES, Hosts, NEAR_AND_FAR};
use crate::processes::Process;
use crate::roles::QUEUE;
use crate::tensors::{MIDDLING, number_in, tensor, verify};
use crate::traces::eventually;

/// Clients that are killed.
const ROUNDS: u64 = 4;

/// Pushes in flight at once.
const PUSHES_AT_ONCE: usize = 8;

/// Tensors that an acceptor takes before it is killed.
const TAKEN: u64 = 20;

/// A dying acceptor refuses tensors on their way to it; they may be pushed again to the next one.
fn may_be_repeated(error: &Error) -> bool {
    error.code() == Code::Unavailable
}

fn acceptors_die(mut hosts: Hosts) {
    let pusher = hosts.attach(WORKER);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    let mut pushes = std::collections::VecDeque::new();
    let mut number = 0;
    for _ in 0..ROUNDS {
        let mut acceptor = Process::start(&format!("accept {PS}"), &hosts.socket(PS));
        let end = number + TAKEN;
        while number < end || pushes.len() == PUSHES_AT_ONCE {
            if pushes.len() < PUSHES_AT_ONCE {
                let len = if number % 2 == 0 { 64 } else { MIDDLING };
                pushes.push_back(pusher.push(PS, QUEUE, tensor(number, len)));
                number += 1;
            } else if let Err(error) = pushes.pop_front().expect("there are some").wait() {
                assert!(may_be_repeated(&error), "{error}");
            }
        }
        acceptor.hear("accepted 3");
        acceptor.kill();
        hosts.until_clients(PS, beside);
        // Nobody accepts: pushers wait, and hear at most that the last acceptor has gone.
        let soon = SendOptions { timeout: Some(Duration::from_millis(10)) };
        let late = pusher.push_with(PS, QUEUE, tensor(0, 64), soon).wait();
        let code = late.unwrap_err().code();
        assert!(matches!(code, Code::DeadlineExceeded | Code::Unavailable), "{code:?}");
    }
    // The next acceptor is served like the first.
    let successor = hosts.attach(PS);
    let acceptor = successor.acceptor(QUEUE, AcceptOptions::default());
    pushes.push_back(pusher.push(PS, QUEUE, tensor(7777, MIDDLING)));
    loop {
        let accepted = acceptor.accept().wait().unwrap();
        let len = accepted.tensor.bytes().len();
        verify(&accepted.tensor, number_in(&accepted.tensor), len);
        if number_in(&accepted.tensor) == 7777 {
            break;
        }
    }
    for push in pushes {
        if let Err(error) = push.wait() {
            assert!(may_be_repeated(&error), "{error}");
        }
    }
    eventually("the arena is free", || pusher.alloc(ARENA_BYTES as usize).is_ok());
    drop((acceptor, successor, pusher));
    hosts.drain();
}

#[test]
fn an_acceptor_is_killed_and_its_pushers_go_on_with_the_next() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(acceptors_die);
}

fn pushers_die(mut hosts: Hosts) {
    let consumer = hosts.attach(PS);
    let acceptor = consumer.acceptor(QUEUE, AcceptOptions { tensors_max: 4, ..AcceptOptions::default() });
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    for _ in 0..ROUNDS {
        let mut pusher = Process::start(&format!("push {WORKER} {PS}"), &hosts.socket(WORKER));
        let mut taken = 0;
        while taken < TAKEN {
            let accepted = acceptor.accept().wait().unwrap();
            verify(&accepted.tensor, number_in(&accepted.tensor), MIDDLING);
            taken += 1;
        }
        pusher.kill();
        hosts.until_clients(WORKER, beside);
        // The tensors it had pushed are whole.
        let patience = Duration::from_millis(50);
        while let Some(accepted) = acceptor.accept().wait_within(patience).unwrap() {
            verify(&accepted.tensor, number_in(&accepted.tensor), MIDDLING);
        }
    }
    drop((acceptor, consumer));
    hosts.drain();
}

#[test]
fn a_pusher_is_killed_in_the_middle_of_its_pushes() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(pushers_die);
}
