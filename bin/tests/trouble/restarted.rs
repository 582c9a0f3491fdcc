//! Daemons that are killed, drain, or hand over under busy clients and are started again: the clients go on by themselves, and no
//! tensor whose send reported success is lost or delivered twice.

use std::collections::HashMap;

use crate::hosts::Hosts;
use crate::processes::Process;
use crate::roles::{ITEMS, REPORTS};

/// Each sends to the next and receives from the one before.
const MEMBERS: [&str; 4] = ["ps0:2222", "worker0:2222", "ps1:2222", "worker1:2222"];

/// Item and attempt, as a member tells them.
fn attempts(member: &Process, begin: &str) -> Vec<(usize, u64)> {
    let read = |line: &str| {
        let (item, attempt) = line.split_once(' ').unwrap();
        (item.parse().unwrap(), attempt.parse().unwrap())
    };
    member.heard(begin).into_iter().map(read).collect()
}

/// Ends the daemon of the first member, and starts it again, once for each of its reports but the last.
fn daemons_end(mut hosts: Hosts, end: impl Fn(&mut Hosts, &str)) {
    let neighbour = |member: usize, distance: usize| MEMBERS[(member + distance) % MEMBERS.len()];
    let mut members: Vec<Process> = (0..MEMBERS.len())
        .map(|member| {
            let (task, to, from) = (MEMBERS[member], neighbour(member, 1), neighbour(member, MEMBERS.len() - 1));
            Process::start(&format!("circle {task} {to} {from}"), &hosts.socket(task))
        })
        .collect();
    for member in &mut members {
        member.hear("attached");
    }
    for _ in 1..REPORTS {
        members[0].hear("has ");
        end(&mut hosts, MEMBERS[0]);
    }
    for member in &mut members {
        member.hear("done");
    }
    for member in &mut members {
        member.release();
        member.hear("end");
    }
    for (index, member) in members.iter().enumerate() {
        let got = attempts(&members[(index + 1) % MEMBERS.len()], "got ");
        let arrived: HashMap<usize, u64> = got.iter().copied().collect();
        assert_eq!((got.len(), arrived.len()), (ITEMS, ITEMS), "each item is delivered once");
        let sent = attempts(member, "sent ");
        assert!(sent.len() > ITEMS / 2, "most sends are not disturbed");
        for (item, attempt) in sent {
            assert_eq!(arrived[&item], attempt, "attempt {attempt} of item {item} is said to have arrived");
        }
    }
    drop(members);
    hosts.drain();
}

fn killed(hosts: &mut Hosts, task: &str) {
    hosts.kill(task);
    hosts.restart(task);
}

fn drained(hosts: &mut Hosts, task: &str) {
    hosts.drain_one(task);
    hosts.restart(task);
}

#[test]
fn a_daemon_is_killed_under_four_busy_clients() {
    daemons_end(Hosts::start(&[&MEMBERS]), killed);
}

#[test]
fn one_of_two_daemons_is_killed_under_four_busy_clients() {
    daemons_end(Hosts::start(&[&MEMBERS[..2], &MEMBERS[2..]]), killed);
}

#[test]
fn a_daemon_drains_under_four_busy_clients() {
    daemons_end(Hosts::start(&[&MEMBERS]), drained);
}

#[test]
fn one_of_two_daemons_drains_under_four_busy_clients() {
    daemons_end(Hosts::start(&[&MEMBERS[..2], &MEMBERS[2..]]), drained);
}

#[test]
fn a_daemon_hands_over_under_four_busy_clients() {
    daemons_end(Hosts::start(&[&MEMBERS]), Hosts::hand_over);
}

#[test]
fn one_of_two_daemons_hands_over_under_four_busy_clients() {
    daemons_end(Hosts::start(&[&MEMBERS[..2], &MEMBERS[2..]]), Hosts::hand_over);
}

#[test]
fn a_workers_daemon_is_drained_and_started_anew_and_training_goes_on() {
    training_goes_on(drained);
}

#[test]
fn a_workers_daemon_hands_over_and_training_goes_on() {
    training_goes_on(Hosts::hand_over);
}

fn training_goes_on(restart: impl Fn(&mut Hosts, &str)) {
    let (ps, worker) = ("ps0:2222", "worker0:2222");
    let mut hosts = Hosts::start(&[&[ps], &[worker]]);
    let mut leads = Process::start(&format!("lead {ps}"), &hosts.socket(ps));
    let mut trains = Process::start(&format!("train {worker} {ps}"), &hosts.socket(worker));
    for _ in 1..REPORTS {
        trains.hear("has ");
        restart(&mut hosts, worker);
    }
    leads.hear("done");
    trains.hear("done");
    drop((leads, trains));
    hosts.drain();
}
