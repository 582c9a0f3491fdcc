//! Clients that are killed while they publish and pull large tensors: their peers get whole tensors or an error, and
//! the daemon keeps nothing of the dead clients.

use std::time::Duration;

use sealane::{Code, Keys, Plan, Task};

use crate::fixture::{PS, WORKER};
use crate::hosts::{ARENA_BYTES, Hosts, NEAR_AND_FAR};
use crate::processes::Process;
use crate::roles::PUBLISHED;
use crate::tensors::{LARGE, number_in, tensor, verify};
use crate::traces::eventually;

/// Clients that are killed.
const ROUNDS: usize = 4;

/// How long to wait for a tensor that may never come: pulled after its producer has gone, or half read when it goes.
const PATIENCE: Duration = Duration::from_secs(1);

fn keys() -> Keys {
    Keys::new(PUBLISHED).unwrap()
}

fn pulling(consumer: &Task) -> Plan {
    consumer.plan(PS, keys())
}

fn publishers_die(mut hosts: Hosts, plan: fn(&Task) -> Plan) {
    let consumer = hosts.attach(WORKER);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    let mut plan = plan(&consumer);
    for _ in 0..ROUNDS {
        let mut producer = Process::start(&format!("publish {PS}"), &hosts.socket(PS));
        for version in 0..3 {
            plan.pull(version).wait().unwrap();
            for at in 0..PUBLISHED.len() {
                let tensor = plan.get(at).unwrap();
                verify(tensor, number_in(tensor), LARGE);
            }
        }
        let pulling = plan.pull_within(3, PATIENCE);
        producer.kill();
        // It may have published that version, or the pull waits for another producer.
        if let Err(error) = pulling.wait() {
            assert!(matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded), "{error}");
        }
        for at in 0..PUBLISHED.len() {
            if let Ok(tensor) = plan.get(at) {
                verify(tensor, number_in(tensor), LARGE);
            }
        }
        hosts.until_clients(PS, beside);
    }
    drop((plan, consumer));
    hosts.drain();
}

#[test]
fn a_publisher_is_killed_while_its_tensors_are_pulled() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(|hosts| publishers_die(hosts, pulling));
}

#[test]
fn a_publisher_is_killed_while_its_tensors_are_viewed() {
    publishers_die(Hosts::start(&[&[PS, WORKER]]), |consumer| consumer.viewing_plan(PS, keys()));
}

fn pullers_die(mut hosts: Hosts, role: &str) {
    let producer = hosts.attach(PS);
    let beside = usize::from(hosts.socket(PS) == hosts.socket(WORKER));
    for round in 0..ROUNDS as i64 {
        let mut consumer = Process::start(&format!("{role} {WORKER} {PS}"), &hosts.socket(WORKER));
        producer.publish_many(round, PUBLISHED.map(|key| (key, tensor(round as u64, LARGE)))).wait().unwrap();
        consumer.hear("pulled 3");
        consumer.kill();
        hosts.until_clients(WORKER, beside);
        // Memory that it read is freed once there is a newer version.
        producer.publish_many(round, PUBLISHED.map(|key| (key, tensor(0, 1)))).wait().unwrap();
        eventually("the arena is free", || producer.alloc(ARENA_BYTES as usize).is_ok());
    }
    drop(producer);
    hosts.drain();
}

#[test]
fn a_client_is_killed_while_it_views_tensors() {
    pullers_die(Hosts::start(&[&[PS, WORKER]]), "view");
}

#[test]
fn a_client_is_killed_in_the_middle_of_its_pulls() {
    NEAR_AND_FAR.into_iter().map(Hosts::start).for_each(|hosts| pullers_die(hosts, "pull"));
}
