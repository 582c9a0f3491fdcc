//! Clients that are killed while they move large tensors, with their daemon or alone: their peers are told, or have the
//! whole tensor, and the daemon keeps nothing of the dead clients.

use std::time::Duration;

use sealane::{Code, Receiving, RecvOptions, Sending, Task, Unreceived};

use crate::fixture::{PS, WORKER};
use crate::hosts::{Hosts, NEAR_AND_FAR};
use crate::processes::Process;
use crate::tensors::{LARGE, STEP, in_arena, tensor, verify};

/// Clients that are killed, each a little later in its work than the one before.
const ROUNDS: u64 = 4;

/// The survivor's calls in flight when the other one dies.
const UNDER_WAY: u64 = 6;

/// How long to wait for a tensor that may never come: already taken by another recv, or asked for too late.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for a time that grows with the round.
fn dither(round: u64) {
    (0..round * 20_000).for_each(|_| std::hint::spin_loop());
}

/// Whether the error names the producer's process.
fn names(unreceived: &Unreceived, producer: &Process) -> bool {
    unreceived.error.code() == Code::Unavailable
        && unreceived.error.to_string().contains(&format!("process {} was attached as this task", producer.pid()))
}

/// Starts a recv of a large tensor into a destination.
fn ask(consumer: &Task, number: u64) -> Receiving {
    let options = RecvOptions {
        timeout: Some(PATIENCE),
        destination: Some(consumer.alloc(LARGE).unwrap().into()),
        ..RecvOptions::default()
    };
    consumer.recv_with(PS, STEP, &number.to_string(), options)
}

fn producers_die(mut hosts: Hosts) {
    let consumer = hosts.attach(WORKER);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    for round in 0..ROUNDS {
        let mut producer = Process::start(&format!("send {PS} {WORKER}"), &hosts.socket(PS));
        let in_vain = ["some", "others"].map(|key| consumer.recv(PS, STEP, key));
        // These are asked for later, so once they arrive, the earlier requests are known there.
        for number in 0..2 {
            verify(&consumer.recv(PS, STEP, &number.to_string()).wait().unwrap(), number, LARGE);
        }
        let under_way: Vec<Receiving> = (2..2 + UNDER_WAY).map(|number| ask(&consumer, number)).collect();
        dither(round);
        producer.kill();
        for (number, receiving) in (2..).zip(under_way) {
            match receiving.wait() {
                Ok(tensor) => verify(&tensor, number, LARGE),
                Err(unreceived) if unreceived.error.code() == Code::DeadlineExceeded => {
                    // It was asked for after the process had gone: it waited for a successor.
                }
                Err(unreceived) => assert!(names(&unreceived, &producer), "{unreceived}"),
            }
        }
        for receiving in in_vain {
            let unreceived = receiving.wait().unwrap_err();
            assert!(names(&unreceived, &producer), "{unreceived}");
        }
        hosts.until_clients(PS, beside);
    }
    // The next producer is served like the first, and nothing that its predecessors still had to send is left.
    let producer = hosts.attach(PS);
    let sending = producer.send(WORKER, STEP, "0", in_arena(&producer, 77, LARGE));
    verify(&consumer.recv(PS, STEP, "0").wait().unwrap(), 77, LARGE);
    sending.wait().unwrap();
    drop((consumer, producer));
    hosts.drain();
}

#[test]
fn a_producer_is_killed_in_the_middle_of_large_sends() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(producers_die);
}

fn consumers_die(mut hosts: Hosts) {
    let producer = hosts.attach(PS);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    for round in 0..ROUNDS {
        let mut consumer = Process::start(&format!("recv {WORKER} {PS}"), &hosts.socket(WORKER));
        let numbers = || (0..UNDER_WAY).rev();
        let send = |number: u64| (number, producer.send(WORKER, STEP, &number.to_string(), tensor(number, LARGE)));
        // The last first: the consumer starts once all are there.
        let mut under_way: Vec<(u64, Sending)> = numbers().take(5).map(send).collect();
        under_way.push(send(0));
        consumer.hear("got 0");
        dither(round);
        consumer.kill();
        hosts.until_clients(WORKER, beside);
        // Its successor gets the tensors that it did not take, whole.
        let successor = hosts.attach(WORKER);
        for (number, mut sending) in under_way {
            loop {
                if let Some(outcome) = sending.try_outcome() {
                    break outcome.unwrap();
                }
                let options = RecvOptions { timeout: Some(PATIENCE), destination: None, ..RecvOptions::default() };
                match successor.recv_with(PS, STEP, &number.to_string(), options).wait() {
                    Ok(tensor) => {
                        verify(&tensor, number, LARGE);
                        break sending.wait().unwrap();
                    }
                    // The dead consumer had just taken it.
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
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(consumers_die);
}

#[test]
fn a_client_and_its_daemon_are_killed_and_new_ones_work() {
    let mut hosts = Hosts::start(&[&[PS], &[WORKER]]);
    let consumer = hosts.attach(WORKER);
    for _ in 0..2 {
        let mut producer = Process::start(&format!("send {PS} {WORKER}"), &hosts.socket(PS));
        verify(&consumer.recv(PS, STEP, "0").wait().unwrap(), 0, LARGE);
        let under_way: Vec<Receiving> = (1..1 + UNDER_WAY).map(|number| ask(&consumer, number)).collect();
        producer.kill();
        hosts.kill(PS);
        for (number, receiving) in (1..).zip(under_way) {
            match receiving.wait().map_err(|unreceived| unreceived.error.code()) {
                Ok(tensor) => verify(&tensor, number, LARGE),
                // The last for tensors not asked for yet: they wait for another daemon.
                Err(code) => assert!(matches!(code, Code::Unavailable | Code::DeadlineExceeded), "{code:?}"),
            }
        }
        hosts.restart(PS);
    }
    let producer = hosts.attach(PS);
    let sending = producer.send(WORKER, STEP, "0", in_arena(&producer, 5, LARGE));
    verify(&consumer.recv(PS, STEP, "0").wait().unwrap(), 5, LARGE);
    sending.wait().unwrap();
    drop((producer, consumer));
    hosts.drain();
}
