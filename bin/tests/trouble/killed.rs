//! Clients that are killed in the middle of large tensors, with their daemon or alone: whoever dealt with them hears it
//! or has the whole tensor, and the daemon keeps nothing of theirs.

use sealane::{Code, Receiving, RecvOptions, Sending};
use std::time::Duration;

use crate::fixture::{PS, WORKER};
use crate::hosts::Hosts;
use crate::processes::Process;
use crate::tensors::{LARGE, STEP, in_arena, tensor, verify};

/// Clients that are killed, each a little later in its work than the one before.
const ROUNDS: u64 = 4;

/// Calls of the survivor when the other one dies.
const UNDER_WAY: u64 = 6;

/// How long a tensor is asked for that may have been taken.
const PATIENCE: Duration = Duration::from_millis(500);

/// Lets a while pass that grows with the round.
fn dither(round: u64) {
    (0..round * 20_000).for_each(|_| std::hint::spin_loop());
}

fn producers_die(mut hosts: Hosts) {
    let consumer = hosts.attach(WORKER);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    let recv = |number: u64| consumer.recv(PS, STEP, &number.to_string());
    for round in 0..ROUNDS {
        let mut producer = Process::start(&format!("send {PS} {WORKER}"), &hosts.socket(PS));
        for number in 0..2 {
            verify(&recv(number).wait().unwrap(), number, LARGE);
        }
        let under_way: Vec<Receiving> = (2..2 + UNDER_WAY).map(recv).collect();
        dither(round);
        producer.kill();
        let mut told = 0;
        for (number, receiving) in (2..).zip(under_way) {
            match receiving.wait() {
                Ok(tensor) => verify(&tensor, number, LARGE),
                Err(unreceived) => {
                    assert_eq!(unreceived.error.code(), Code::Unavailable);
                    let text = unreceived.error.to_string();
                    assert!(text.contains(&format!("process {} ", producer.pid())), "{text}");
                    told += 1;
                }
            }
        }
        // It has written a few of them at most.
        assert!(told > 0);
        hosts.until_clients(PS, beside);
    }
    // The next one is served like the first, and what its predecessors had left to send is gone.
    let producer = hosts.attach(PS);
    let sending = producer.send(WORKER, STEP, "0", in_arena(&producer, 77, LARGE));
    verify(&recv(0).wait().unwrap(), 77, LARGE);
    sending.wait().unwrap();
    drop((consumer, producer));
    hosts.drain();
}

#[test]
fn a_producer_is_killed_in_the_middle_of_large_sends() {
    producers_die(Hosts::start(&[&[PS, WORKER]]));
}

#[test]
fn a_producer_is_killed_in_the_middle_of_large_sends_over_tcp() {
    producers_die(Hosts::start(&[&[PS], &[WORKER]]));
}

fn consumers_die(mut hosts: Hosts) {
    let producer = hosts.attach(PS);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    for round in 0..ROUNDS {
        let mut consumer = Process::start(&format!("recv {WORKER} {PS}"), &hosts.socket(WORKER));
        let numbers = || (0..UNDER_WAY).rev();
        let send = |number: u64| (number, producer.send(WORKER, STEP, &number.to_string(), tensor(number, LARGE)));
        // The last first: the consumer begins when all are there.
        let mut under_way: Vec<(u64, Sending)> = numbers().take(5).map(send).collect();
        under_way.push(send(0));
        consumer.hear("got 0");
        dither(round);
        consumer.kill();
        hosts.until_clients(WORKER, beside);
        // What it did not take is its successor's, whole.
        let successor = hosts.attach(WORKER);
        for (number, mut sending) in under_way {
            loop {
                if let Some(outcome) = sending.try_outcome() {
                    break outcome.unwrap();
                }
                let options = RecvOptions { timeout: Some(PATIENCE), destination: None };
                match successor.recv_with(PS, STEP, &number.to_string(), options).wait() {
                    Ok(tensor) => {
                        verify(&tensor, number, LARGE);
                        break sending.wait().unwrap();
                    }
                    // It was taken at that moment.
                    Err(unreceived) => assert_eq!(unreceived.error.code(), Code::DeadlineExceeded),
                }
            }
        }
        drop(successor);
        hosts.until_clients(WORKER, beside);
    }
    drop(producer);
    hosts.drain();
}

#[test]
fn a_consumer_is_killed_in_the_middle_of_large_recvs() {
    consumers_die(Hosts::start(&[&[PS, WORKER]]));
}

#[test]
fn a_consumer_is_killed_in_the_middle_of_large_recvs_over_tcp() {
    consumers_die(Hosts::start(&[&[PS], &[WORKER]]));
}

#[test]
fn a_client_and_its_daemon_are_killed_and_new_ones_work() {
    let mut hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let consumer = hosts.attach(WORKER);
    let recv = |number: u64| consumer.recv(PS, STEP, &number.to_string());
    for _ in 0..2 {
        let mut producer = Process::start(&format!("send {PS} {WORKER}"), &hosts.socket(PS));
        verify(&recv(0).wait().unwrap(), 0, LARGE);
        let under_way: Vec<Receiving> = (1..1 + UNDER_WAY).map(recv).collect();
        producer.kill();
        hosts.kill(PS);
        for (number, receiving) in (1..).zip(under_way) {
            match receiving.wait() {
                Ok(tensor) => verify(&tensor, number, LARGE),
                Err(unreceived) => assert_eq!(unreceived.error.code(), Code::Unavailable, "{unreceived}"),
            }
        }
        hosts.restart(PS);
    }
    let producer = hosts.attach(PS);
    let sending = producer.send(WORKER, STEP, "0", in_arena(&producer, 5, LARGE));
    verify(&recv(0).wait().unwrap(), 5, LARGE);
    sending.wait().unwrap();
    drop((producer, consumer));
    hosts.drain();
}
