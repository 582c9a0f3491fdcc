//! Daemons that are killed under busy clients and started again: the clients go on by themselves, and no tensor whose send
//! reported success is lost or delivered twice.

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

/// Kills the daemon of the first member once for each of its reports but the last.
fn daemons_die(mut hosts: Hosts) {
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
        hosts.kill(MEMBERS[0]);
        hosts.restart(MEMBERS[0]);
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

#[test]
fn a_daemon_is_killed_under_four_busy_clients() {
    daemons_die(Hosts::start(&[&MEMBERS]));
}

#[test]
fn one_of_two_daemons_is_killed_under_four_busy_clients() {
    daemons_die(Hosts::start(&[&MEMBERS[..2], &MEMBERS[2..]]));
}
