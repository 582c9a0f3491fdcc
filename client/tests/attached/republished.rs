//! What a task has published is published again with the next daemon, automatically; nothing else is.

use std::time::Duration;

use sealane::{Code, Keys, Task};
use sealane_fusion::{Portion, metrics::ClientCounters};

use crate::{
    daemon::{Daemon, PORTION, Settings},
    fixture::{TASK, attached, bytes, directory, meta, peers, tensor, to, to_as},
};

/// Empty, and sizes that travel in the ring or lie in the arena.
const SIZES: [usize; 5] = [64, 0, 512, 513, 100_000];

/// What another task pulls, once it is there.
fn pulled(daemon: &Daemon, key: &str, version: i64) -> (i64, Vec<u8>) {
    daemon.until_detached(&peers()[0]);
    let puller = to_as(daemon, &peers()[0]).attach().unwrap();
    let pulled = puller.pull(TASK, key, version).wait().unwrap();
    (pulled.version, pulled.tensor.bytes().to_vec())
}

fn is_there(daemon: &Daemon, key: &str) -> bool {
    daemon.until_detached(&peers()[1]);
    let puller = to_as(daemon, &peers()[1]).attach().unwrap();
    let at_once = Some(Duration::from_millis(1));
    let pulled = puller.pull_many_within(TASK, Keys::new([key]).unwrap(), i64::MIN, at_once).wait().remove(0);
    pulled.inspect_err(|error| assert_eq!(error.code(), Code::DeadlineExceeded, "{error}")).is_ok()
}

/// Waits until a counter over all clients has that value.
fn until(daemon: &Daemon, counter: fn(&ClientCounters) -> u64, value: u64) {
    daemon.until("it is told", |daemon| daemon.sum(counter) == value);
}

fn publish(task: &Task, version: i64) {
    let tensors = SIZES.map(|size| (size.to_string(), tensor(size, version as u64)));
    task.publish_many(version, tensors).wait().unwrap();
}

#[test]
fn what_was_published_is_pulled_from_the_next_daemon_while_its_publisher_does_nothing() {
    for (drains, shards) in [(true, 2), (false, 1), (true, 3)] {
        let (directory, daemon, task) = attached();
        (1..4).for_each(|version| publish(&task, version));
        if drains {
            daemon.engine.announce_drain().unwrap();
        }
        daemon.kill();
        let next = Daemon::start(&directory, Settings { shards, ..Settings::default() });
        for size in SIZES {
            assert_eq!(pulled(&next, &size.to_string(), i64::MIN), (3, bytes(size, 3)));
        }
        until(&next, |counters| counters.tensors_published_again, SIZES.len() as u64);
        assert_eq!(next.sum(|counters| counters.bytes_published_again), SIZES.iter().sum::<usize>() as u64);
        assert_eq!(next.sum(|counters| counters.tensors_not_published_again), 0);
        // The task can still replace and withdraw it, and it goes with the task.
        publish(&task, 4);
        assert_eq!(pulled(&next, "513", 4), (4, bytes(513, 4)));
        task.withdraw("64").unwrap();
        task.publish("64", 1, tensor(64, 9)).wait().unwrap();
        assert_eq!(pulled(&next, "64", i64::MIN), (1, bytes(64, 9)));
        drop(task);
        next.until_detached(TASK);
        assert!(!is_there(&next, "513"));
    }
}

#[test]
fn what_is_withdrawn_or_refused_stays_away() {
    let directory = directory();
    let two = |settings: &mut sealane_fusion::EngineSettings| settings.published_tensors_max = 2;
    let daemon = Daemon::start_with(&directory, Settings::default(), two);
    let task = to(&daemon).attach().unwrap();
    task.publish("withdrawn", 1, tensor(1000, 1)).wait().unwrap();
    task.withdraw("withdrawn").unwrap();
    task.publish_many(2, [("a", tensor(1000, 2)), ("b", tensor(10, 2))]).wait().unwrap();
    assert_eq!(task.publish("a", 1, tensor(10, 3)).wait().unwrap_err().code(), Code::InvalidArgument);
    for len in [10, 1000] {
        assert_eq!(task.publish("refused", 1, tensor(len, 4)).wait().unwrap_err().code(), Code::ResourceExhausted);
    }
    daemon.kill();
    let next = Daemon::start(&directory, Settings::default());
    until(&next, |counters| counters.tensors_published_again, 2);
    assert!(!is_there(&next, "withdrawn") && !is_there(&next, "refused"));
    assert_eq!(pulled(&next, "a", i64::MIN), (2, bytes(1000, 2)));
    assert_eq!(pulled(&next, "b", i64::MIN), (2, bytes(10, 2)));
}

#[test]
fn a_small_tensor_is_that_which_was_published_whatever_becomes_of_its_memory() {
    let (directory, daemon, task) = attached();
    let mut memory = task.alloc(512).unwrap();
    memory.copy_from_slice(&bytes(512, 1));
    task.publish("w", 1, sealane::Tensor::new(meta(512), memory).unwrap()).wait().unwrap();
    // Most likely the same block.
    let mut again = task.alloc(512).unwrap();
    again.fill(0);
    daemon.kill();
    let next = Daemon::start(&directory, Settings::default());
    assert_eq!(pulled(&next, "w", 1), (1, bytes(512, 1)));
}

#[test]
fn what_the_next_daemon_does_not_carry_is_told_of_and_the_rest_is_there() {
    let (directory, daemon, task) = attached();
    task.publish_many(1, [("small", tensor(600, 1)), ("large", tensor(100_000, 1))]).wait().unwrap();
    daemon.kill();
    let portion = Portion { tensor_bytes_max: 1000, ..PORTION };
    let next =
        Daemon::start_as(&directory, Settings::default(), portion, |settings| settings.session.tensor_bytes_max = 1000);
    assert_eq!(pulled(&next, "small", 1), (1, bytes(600, 1)));
    until(&next, |counters| counters.tensors_not_published_again, 1);
    assert!(!is_there(&next, "large"));
    drop(task);
}

#[test]
fn a_version_never_goes_back_while_its_publisher_goes_on() {
    let directory = directory();
    let mut daemon = Daemon::start(&directory, Settings::default());
    let task = to(&daemon).attach().unwrap();
    let mut version = 0;
    for _ in 0..10 {
        let mut last = version;
        for _ in 0..20 {
            version += 1;
            // It races with the thread that publishes the previous version again.
            while let Err(error) = task.publish("w", version, tensor(1000, version as u64)).wait() {
                assert_eq!(error.code(), Code::Unavailable, "{error}");
            }
            let (pulled, data) = pulled(&daemon, "w", i64::MIN);
            assert!(pulled >= last && data == bytes(1000, pulled as u64), "{pulled} after {last}");
            last = pulled;
        }
        daemon.kill();
        daemon = Daemon::start(&directory, Settings::default());
        assert!(pulled(&daemon, "w", i64::MIN) >= (version, Vec::new()));
    }
}
