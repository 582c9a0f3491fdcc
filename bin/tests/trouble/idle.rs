//! Clients that do nothing cost nothing: the shards sleep.

use std::time::Duration;

use sealane::{Attach, Code, RecvOptions, Task};

use crate::fixture::{PS, STUCK, WORKER};
use crate::hosts::{Hosts, NEAR_AND_FAR};
use crate::tensors::{STEP, tensor, verify};
use crate::traces::{eventually, sleeps, time_used};

/// Attached clients.
const CLIENTS: usize = 64;

/// How long they do nothing.
const QUIET: Duration = Duration::from_secs(1);

/// A shard that does not sleep would use all of [`QUIET`], one that sleeps less than a hundredth of it. The rest is for
/// machines that are busy with other things.
const USED_MAX: Duration = QUIET.checked_div(5).unwrap();

#[test]
fn shards_with_idle_clients_sleep() {
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("worker{number}:2222")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut hosts = Hosts::start(&[&names]);
    let attach = |task: &&str| {
        Attach::new(task).socket(hosts.socket(task)).arena_bytes(1 << 16).timeout(STUCK).attach().unwrap()
    };
    let tasks: Vec<Task> = names.iter().map(attach).collect();
    for (from, to) in tasks.iter().zip(tasks.iter().skip(1)) {
        let sending = from.send(to.name(), STEP, "key", tensor(1, 64));
        verify(&to.recv(from.name(), STEP, "key").wait().unwrap(), 1, 64);
        sending.wait().unwrap();
    }
    let pid = hosts.daemon(names[0]).pid();
    let before = time_used(pid);
    // Time itself is tested here, so a recv that nobody answers waits for this long.
    let options = RecvOptions { timeout: Some(QUIET), destination: None, ..RecvOptions::default() };
    let error = tasks[0].recv_with(names[1], STEP, "never", options).wait().unwrap_err().error;
    assert_eq!(error.code(), Code::DeadlineExceeded);
    let used = time_used(pid) - before;
    eprintln!("a daemon with {CLIENTS} idle clients used {used:?} in {QUIET:?}");
    assert!(used < USED_MAX, "{used:?} in {QUIET:?}");
    drop(tasks);
    hosts.drain();
}

#[test]
fn shards_sleep_after_their_last_client_has_gone_in_the_middle_of_calls() {
    for groups in NEAR_AND_FAR {
        let mut hosts = Hosts::start(groups);
        let (producer, consumer) = (hosts.attach(PS), hosts.attach(WORKER));
        let sending = producer.send(WORKER, STEP, "key", tensor(1, 64));
        verify(&consumer.recv(PS, STEP, "key").wait().unwrap(), 1, 64);
        sending.wait().unwrap();
        let wanted = ["some", "others"].map(|key| consumer.recv_into(PS, STEP, key, consumer.alloc(10_000).unwrap()));
        let sending = producer.send(WORKER, STEP, "never", tensor(1, 10_000));
        drop((consumer, producer));
        for receiving in wanted {
            assert_eq!(receiving.wait().unwrap_err().error.code(), Code::Unavailable);
        }
        sending.wait().unwrap_err();
        for task in [PS, WORKER] {
            hosts.until_clients(task, 0);
            let pid = hosts.daemon(task).pid();
            eventually("the daemon sleeps", || sleeps(pid));
        }
        hosts.drain();
    }
}
