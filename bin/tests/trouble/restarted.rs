//! Daemons that are killed, drained, or replaced under busy clients, and started again: the clients continue by themselves, and no
//! tensor whose send reported success is lost or delivered twice.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use sealane::{AcceptOptions, Code, Error, Keys, Plan, Task, Tensor};

use crate::fixture::STUCK;
use crate::hosts::Hosts;
use crate::processes::Process;
use crate::roles::{ITEMS, QUEUE, REPORTS};
use crate::tensors::{number_in, tensor, verify};
use crate::traces::eventually;

/// Each sends to the next member and receives from the one before.
const MEMBERS: [&str; 4] = ["ps0:2222", "worker0:2222", "ps1:2222", "worker1:2222"];

/// All of them at one daemon, or at two.
const CIRCLES: [&[&[&str]]; 2] = [&[&MEMBERS], &[&["ps0:2222", "worker0:2222"], &["ps1:2222", "worker1:2222"]]];

/// The pairs of item and attempt that a member reports.
fn attempts(member: &Process, begin: &str) -> Vec<(usize, u64)> {
    let read = |line: &str| {
        let (item, attempt) = line.split_once(' ').unwrap();
        (item.parse().unwrap(), attempt.parse().unwrap())
    };
    member.heard(begin).into_iter().map(read).collect()
}

/// Ends the daemon of the first member with `end` after each of its reports but the last.
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
    CIRCLES.into_iter().for_each(|groups| daemons_end(Hosts::start(groups), killed));
}

#[test]
fn a_daemon_drains_under_four_busy_clients() {
    CIRCLES.into_iter().for_each(|groups| daemons_end(Hosts::start(groups), drained));
}

#[test]
fn a_daemon_hands_over_under_four_busy_clients() {
    CIRCLES.into_iter().for_each(|groups| daemons_end(Hosts::start(groups), Hosts::hand_over));
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

/// In the ring, and in the arena.
const SIZES: [usize; 3] = [64, 512, 300_000];

fn publish(ps: &Task, version: i64) -> Result<(), Error> {
    let tensor = |size: usize| Tensor::from_elements(&[size as u64], &vec![version as u8; size]).unwrap();
    ps.publish_many(version, SIZES.map(|size| (size.to_string(), tensor(size)))).wait()
}

/// The versions that the plan now has, each with its bytes checked. A pull from another host ends if its daemon goes meanwhile.
fn pull(plan: &mut Plan, version: i64) -> Vec<i64> {
    let begun = Instant::now();
    while let Err(error) = plan.pull(version).wait() {
        assert!(error.code() == Code::Unavailable && begun.elapsed() < STUCK, "{error}");
        thread::yield_now();
    }
    let of = |(at, size): (usize, usize)| {
        let version = plan.version(at);
        assert!(plan.get(at).unwrap().bytes() == vec![version as u8; size], "{size} bytes of version {version}");
        version
    };
    SIZES.into_iter().enumerate().map(of).collect()
}

#[test]
fn what_is_published_is_there_after_a_hand_over_and_no_version_goes_back() {
    what_is_published_stays(Hosts::hand_over);
}

#[test]
fn what_is_published_is_there_after_a_restart_and_no_version_goes_back() {
    what_is_published_stays(drained);
}

/// Sets the flag when dropped.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn what_is_published_stays(restart: impl Fn(&mut Hosts, &str)) {
    let (ps, near, far) = ("ps0:2222", "worker0:2222", "worker1:2222");
    let mut hosts = Hosts::start(&[&[ps, near], &[far]]);
    let publisher = hosts.attach(ps);
    let mut plans = [near, far].map(|task| {
        let task = hosts.attach(task);
        (task.plan(ps, Keys::new(SIZES.map(|size| size.to_string())).unwrap()), task)
    });
    publish(&publisher, 1).unwrap();
    for _ in 0..3 {
        restart(&mut hosts, ps);
        // Its publisher does nothing.
        for (plan, _) in &mut plans {
            assert_eq!(pull(plan, i64::MIN), [1; 3]);
        }
        eventually("it is logged", || hosts.daemon(ps).log().contains("a client has published again"));
    }
    let over = AtomicBool::new(false);
    let last = thread::scope(|scope| {
        // Threads that run until the flag is set must not outlive a failure.
        let ends = Ends(&over);
        let publishing = scope.spawn(|| {
            let mut version = 1;
            while !over.load(Ordering::Relaxed) {
                version += 1;
                let begun = Instant::now();
                while let Err(error) = publish(&publisher, version) {
                    assert!(error.code() == Code::Unavailable && begun.elapsed() < STUCK, "{error}");
                }
            }
            version
        });
        let pulling = plans.each_mut().map(|(plan, _)| {
            let over = &over;
            scope.spawn(move || {
                let mut last = vec![1; SIZES.len()];
                while !over.load(Ordering::Relaxed) {
                    let now = pull(plan, i64::MIN);
                    assert!(now.iter().zip(&last).all(|(now, last)| now >= last), "{now:?} after {last:?}");
                    last = now;
                }
            })
        });
        for _ in 0..3 {
            restart(&mut hosts, ps);
        }
        drop(ends);
        let last = publishing.join().unwrap();
        pulling.into_iter().for_each(|pulling| pulling.join().unwrap());
        last
    });
    for (plan, _) in &mut plans {
        assert_eq!(pull(plan, last), [last; 3]);
    }
    drop((plans, publisher));
    hosts.drain();
}

#[test]
fn a_queue_that_is_deeper_than_what_its_acceptor_is_handed_loses_nothing_in_a_restart() {
    queue_stays(drained);
}

#[test]
fn a_queue_that_is_deeper_than_what_its_acceptor_is_handed_loses_nothing_in_a_hand_over() {
    queue_stays(Hosts::hand_over);
}

/// Tensors that wait in a queue when its daemon goes, and the number pushed meanwhile.
const QUEUED: u64 = 1000;
const MORE: u64 = 200;
/// The number of the one after them.
const LAST: u64 = 1_000_000;

fn queue_stays(restart: impl Fn(&mut Hosts, &str)) {
    let (ps, near, far) = ("ps0:2222", "worker0:2222", "worker1:2222");
    let mut hosts = Hosts::start(&[&[ps, near], &[far]]);
    let (accepting, pushers) = (hosts.attach(ps), [near, far].map(|task| hosts.attach(task)));
    let acceptor = accepting.acceptor(QUEUE, AcceptOptions::default());
    let push = &|pusher: usize, numbers: Range<u64>| {
        let number = |number| number * 2 + pusher as u64;
        let pushes = numbers.map(|at| (number(at), pushers[pusher].push(ps, QUEUE, tensor(number(at), 64))));
        let pushes: Vec<_> = pushes.collect();
        pushes.into_iter().filter_map(|(number, push)| push.wait().is_ok().then_some(number)).collect::<Vec<_>>()
    };
    let mut known = [0, 1].map(|pusher| push(pusher, 0..QUEUED / 2)).concat();
    assert_eq!(known.len() as u64, QUEUED, "nothing has disturbed them");
    let taken = thread::scope(|scope| {
        let pushing = [0, 1].map(|pusher| scope.spawn(move || push(pusher, QUEUED / 2..(QUEUED + MORE) / 2)));
        let accepting = scope.spawn(|| {
            let mut taken = Vec::new();
            while let Some(accepted) = acceptor.accept().wait_within(STUCK).unwrap() {
                let number = number_in(&accepted.tensor);
                if number == LAST {
                    break;
                }
                verify(&accepted.tensor, number, 64);
                taken.push(number);
            }
            taken
        });
        restart(&mut hosts, ps);
        known.extend(pushing.into_iter().flat_map(|pushing| pushing.join().unwrap()));
        let last = || pushers[0].push(ps, QUEUE, tensor(LAST, 64)).wait();
        eventually("the last is taken", || last().is_ok());
        accepting.join().unwrap()
    });
    let distinct: HashSet<_> = taken.iter().copied().collect();
    assert_eq!(distinct.len(), taken.len(), "each is delivered once");
    let lost: Vec<_> = known.iter().filter(|number| !distinct.contains(number)).collect();
    assert!(
        lost.is_empty(),
        "{} are said to have been taken, and {} of them are lost: {lost:?}",
        known.len(),
        lost.len()
    );
    drop((acceptor, accepting, pushers));
    hosts.drain();
}
