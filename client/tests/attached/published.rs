//! Published tensors are pulled, once or by a plan; plans keep their memory, and free it.

use std::time::{Duration, Instant};

use sealane::{Code, DType, Keys, RecvOptions, Tensor, TensorMeta};

use crate::{
    daemon::LONG,
    fixture::{TASK, attached, block_on, bytes, meta, peers, tensor, until_there_is_room},
};

fn keys(names: &[&str]) -> Keys {
    Keys::new(names).unwrap()
}

#[test]
fn another_shape_takes_other_memory_only_where_it_must() {
    let (_directory, _daemon, task) = attached();
    let mut plan = task.plan(TASK, keys(&["w"]));
    let mut pull = |version, shape: &[u64]| {
        let meta = TensorMeta::new(DType::U8, shape).unwrap();
        let len = shape.iter().product::<u64>() as usize;
        task.publish("w", version, Tensor::new(meta, bytes(len, version as u64)).unwrap()).wait().unwrap();
        plan.pull(version).wait().unwrap();
        let tensor = plan.get(0).unwrap();
        assert_eq!((&tensor.shape()[..], tensor.bytes()), (shape, &*bytes(len, version as u64)));
        tensor.bytes().as_ptr() as usize
    };
    let first = pull(1, &[600]);
    assert_eq!(pull(2, &[20, 30]), first);
    assert_ne!(pull(3, &[20, 31]), first);
    pull(4, &[0]);
    // A plan frees memory that it no longer uses: all of it would not fit into the receive area.
    for version in 5..55 {
        pull(version, &[100_000 + version as u64]);
    }
}

#[test]
fn a_pull_waits_for_its_version_and_may_be_given_up() {
    let (_directory, daemon, task) = attached();
    task.publish("w", 1, tensor(1000, 1)).wait().unwrap();
    let mut plan = task.plan(TASK, keys(&["w"]));
    plan.pull(1).wait().unwrap();

    let mut pulling = plan.pull(2);
    daemon.until_under_way(1);
    assert!(pulling.try_outcome().is_none());
    task.publish("w", 2, tensor(1000, 2)).wait().unwrap();
    pulling.wait().unwrap();
    assert_eq!(plan.get(0).unwrap().bytes(), bytes(1000, 2));

    drop(plan.pull(3));
    daemon.until_under_way(0);
    assert_eq!(plan.get(0).unwrap_err().code(), Code::InvalidArgument, "the daemon may have begun to write");
    block_on(plan.pull(2)).unwrap();
    assert_eq!((plan.version(0), plan.get(0).unwrap().bytes()), (2, &*bytes(1000, 2)));

    let late = plan.pull_within(9, Duration::from_millis(1)).wait().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
    assert_eq!(plan.get(0).unwrap_err(), late);
    // Two pulls are dropped before one is waited for.
    drop(plan.pull(9));
    drop(plan.pull(9));
    let mut pulling = plan.pull(2);
    let deadline = Instant::now() + LONG;
    while pulling.try_outcome().is_none_or(|outcome| outcome.is_err()) {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    drop(pulling);
    // A pull in progress ends with its plan.
    std::mem::forget(plan.pull(10));
    assert!(plan.get(0).is_err());
    daemon.until_under_way(1);
    drop(plan);
    daemon.until_under_way(0);
}

#[test]
fn memory_that_is_published_comes_back_when_a_newer_version_is() {
    let (_directory, _daemon, task) = attached();
    let mut large = task.alloc(3 << 20).unwrap();
    large.fill(7);
    let large = Tensor::new(meta(3 << 20), large).unwrap();
    task.publish("w", 1, large).wait().unwrap();
    assert!(task.alloc(2 << 20).is_err());
    let full = task.publish("large", 1, tensor(2 << 20, 1)).wait().unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    task.publish("w", 2, tensor(1, 1)).wait().unwrap();
    until_there_is_room(&task, 4 << 20);
    let whole = Tensor::new(meta(4 << 20), task.alloc(4 << 20).unwrap()).unwrap();
    drop(task.publish("w", 3, whole));
    task.withdraw("w").unwrap();
    until_there_is_room(&task, 4 << 20);
}

#[test]
fn what_a_pull_missed_is_missed_although_the_daemon_that_said_so_is_gone() {
    let (_directory, daemon, task) = attached();
    task.publish("w", 1, tensor(1000, 1)).wait().unwrap();
    let mut plan = task.plan(TASK, keys(&["w"]));
    plan.pull(1).wait().unwrap();
    let in_vain = plan.pull_within(2, Duration::from_millis(1));
    // The daemon reports this one after the pull, and both are read together.
    let options = RecvOptions { timeout: Some(Duration::from_millis(2)), destination: None, ..RecvOptions::default() };
    assert_eq!(task.recv_with(TASK, 1, "nothing", options).wait().unwrap_err().error.code(), Code::DeadlineExceeded);
    daemon.kill();
    assert_eq!(task.recv(TASK, 1, "nothing").wait().unwrap_err().error.code(), Code::Unavailable);
    assert_eq!(in_vain.wait().unwrap_err().code(), Code::Unavailable);
    assert_eq!(plan.get(0).unwrap_err().code(), Code::Unavailable);
}

#[test]
fn a_daemon_that_says_nothing_ends_no_plan() {
    let (_directory, daemon, task) = attached();
    task.publish("w", 1, tensor(1000, 1)).wait().unwrap();
    let mut plan = task.plan(TASK, keys(&["w"]));
    plan.pull(1).wait().unwrap();
    let held = daemon.hold();
    let silent = plan.pull_within(1, Duration::from_millis(1)).wait().unwrap_err();
    assert_eq!(silent.code(), Code::Unavailable);
    assert_eq!(plan.get(0).unwrap_err(), silent);
    drop(held);
    plan.pull(1).wait().unwrap();
    assert_eq!(plan.get(0).unwrap().bytes(), bytes(1000, 1));
}

#[test]
fn of_many_tensors_those_that_fit_are_seen_and_the_others_told_at_once() {
    let (_directory, daemon, task) = attached();
    let long = "k".repeat(5000);
    // The last key fits into no record, so the records before it promise no further one.
    let mut publishing = task.publish_many(1, [("a", tensor(10, 1)), ("b", tensor(1000, 1)), (&*long, tensor(10, 1))]);
    let pulled = |key: &str| task.pull(TASK, key, 1).wait().unwrap().tensor.bytes().to_vec();
    assert_eq!((pulled("a"), pulled("b")), (bytes(10, 1), bytes(1000, 1)));
    let deadline = Instant::now() + LONG / 2;
    let outcome = loop {
        assert!(Instant::now() < deadline, "it waits for its timeout");
        if let Some(outcome) = publishing.try_outcome() {
            break outcome;
        }
    };
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    // The same when the last is not read in time: the others appear once the daemon reads again.
    let held = daemon.hold();
    let many: Vec<_> = (0..2000).map(|number| (number.to_string(), tensor(512, 2))).collect();
    let began = Instant::now();
    let publishing = task.publish_many(2, many);
    drop(held);
    let error = publishing.wait().unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(began.elapsed() < LONG / 2, "it waits for each of those that find no room");
    assert_eq!(pulled("0"), bytes(512, 2));
}

#[test]
fn a_plan_that_has_no_room_says_so() {
    const LARGE: usize = 3 << 20;
    let (_directory, daemon, task) = attached();
    let peer = &peers()[0];
    let publisher = daemon.engine.task(peer).unwrap();
    publisher.publish_many(1, ["a", "b"].map(|key| (key.to_owned(), tensor(LARGE, 1)))).wait().unwrap();
    let mut plan = task.plan(peer, keys(&["a", "b"]));
    let full = plan.pull(1).wait().unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.to_string().contains("daemon.area_bytes"), "{full}");
    assert!(plan.get(0).is_ok() && plan.get(1).is_err());
    publisher.publish("a", 2, tensor(10, 2)).wait().unwrap();
    plan.pull(1).wait().unwrap_err();
    // The first place was freed when the end of the second pull was reported.
    plan.pull(1).wait().unwrap();
    assert_eq!(plan.get(1).unwrap().bytes(), bytes(LARGE, 1));
}
