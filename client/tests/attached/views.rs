//! Large tensors of other clients are viewed in the publisher's memory; views keep that memory, and nothing else, from being freed.

use sealane::{Attach, Code, Keys, Payload, Pulled, Task, Tensor};
use sealane_fusion::{Portion, metrics::ClientCounters};
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, PORTION, Settings},
    fixture::{TASK, bytes, directory, meta, peers, tensor, to_as, until_there_is_room},
};

/// Several of these do not fit into the receive area of 4 MiB.
const LARGE: usize = 1 << 20;
const ARENA: u64 = 8 << 20;

fn keys(names: &[&str]) -> Keys {
    Keys::new(names).unwrap()
}

/// A daemon with a publisher and a consumer.
fn two_tasks() -> (TempDir, Daemon, Task, Task) {
    two_tasks_of(PORTION)
}

fn two_tasks_of(portion: Portion) -> (TempDir, Daemon, Task, Task) {
    let directory = directory();
    let daemon = Daemon::start_as(&directory, Settings::default(), portion, |_| {});
    let publisher = publisher(&daemon);
    let consumer = to_as(&daemon, TASK).attach().unwrap();
    (directory, daemon, publisher, consumer)
}

fn publisher(daemon: &Daemon) -> Task {
    Attach::new(peers()[0].as_str()).socket(&daemon.socket).arena_bytes(ARENA).attach().unwrap()
}

fn publish(task: &Task, key: &str, version: i64, len: usize) {
    let mut buffer = task.alloc(len).unwrap();
    buffer.copy_from_slice(&bytes(len, version as u64));
    task.publish(key, version, Tensor::new(meta(len), buffer).unwrap()).wait().unwrap();
}

fn view(consumer: &Task, key: &str, min_version: i64) -> Pulled {
    consumer.view(&peers()[0], key, min_version).wait().unwrap()
}

fn is_view(tensor: &Tensor) -> bool {
    matches!(tensor.payload(), Payload::Bytes(_))
}

/// Waits until the daemon's counter has this value.
fn until(daemon: &Daemon, what: &str, of: impl Fn(&ClientCounters) -> u64, expected: u64) {
    daemon.until(what, |daemon| daemon.sum(&of) == expected);
}

#[test]
fn large_tensors_are_viewed_and_small_ones_are_copied() {
    let (_directory, daemon, publisher, consumer) = two_tasks();
    let sizes = [LARGE, 64 << 10, (64 << 10) - 1, 100, 0];
    let names: Vec<String> = sizes.iter().map(|size| format!("{size} bytes")).collect();
    names.iter().zip(sizes).for_each(|(name, size)| publish(&publisher, name, 7, size));
    let pulled = consumer.view_many(&peers()[0], Keys::new(&names).unwrap(), 7, None).wait();
    for (pulled, size) in pulled.into_iter().zip(sizes) {
        let Pulled { tensor, version } = pulled.unwrap();
        assert_eq!((version, tensor.bytes()), (7, &*bytes(size, 7)));
        assert_eq!(is_view(&tensor), size >= 64 << 10, "{size} bytes");
    }
    until(&daemon, "two are viewed", |counters| counters.tensors_viewed, 2);
    assert_eq!(daemon.sum(|counters| counters.bytes_viewed), (LARGE + (64 << 10)) as u64);
    // They take nothing of the receive area, which has no room for so many.
    let held: Vec<_> = (0..20).map(|_| view(&consumer, &names[0], 7)).collect();
    assert!(held.iter().all(|view| view.tensor.bytes() == bytes(LARGE, 7)));
    until(&daemon, "they are held", |counters| counters.views, 20);
    drop(held);
    until(&daemon, "none is held", |counters| counters.views, 0);
    assert_eq!(daemon.sum(|counters| counters.views_refused), 0);
}

#[test]
fn a_view_keeps_its_bytes_until_it_is_dropped() {
    let (_directory, _daemon, publisher, consumer) = two_tasks();
    publish(&publisher, "w", 1, LARGE);
    let first = view(&consumer, "w", 1);
    publish(&publisher, "w", 2, LARGE);
    let second = view(&consumer, "w", 2);
    publisher.withdraw("w").unwrap();
    // The rest of the arena may be used and overwritten.
    until_there_is_room(&publisher, ARENA as usize / 2);
    while let Ok(mut other) = publisher.alloc(LARGE) {
        other.fill(0xee);
        std::mem::forget(other);
    }
    assert_eq!(first.tensor.bytes(), bytes(LARGE, 1));
    assert_eq!(second.tensor.bytes(), bytes(LARGE, 2));
    drop(first);
    until_there_is_room(&publisher, LARGE);
    assert_eq!(second.tensor.bytes(), bytes(LARGE, 2));
}

#[test]
fn a_publisher_has_all_its_memory_back_when_its_viewers_are_gone() {
    let (_directory, daemon, publisher, consumer) = two_tasks();
    publish(&publisher, "w", 1, ARENA as usize);
    let held = view(&consumer, "w", 1);
    let again = consumer.clone();
    publisher.withdraw("w").unwrap();
    until(&daemon, "it is held", |counters| counters.views, 1);
    assert!(publisher.alloc(1).is_err());
    drop((consumer, again));
    daemon.until_detached(TASK);
    until_there_is_room(&publisher, ARENA as usize);
    publisher.alloc(ARENA as usize).unwrap().fill(0xee);
    assert_eq!(held.tensor.bytes(), bytes(ARENA as usize, 1), "it was copied");
}

#[test]
fn a_view_outlives_its_publisher() {
    let (_directory, daemon, publisher, consumer) = two_tasks();
    publish(&publisher, "w", 1, LARGE);
    let held = view(&consumer, "w", 1);
    drop(publisher);
    daemon.until_detached(&peers()[0]);
    // Nothing waits for the view: the next publisher attaches at once, with another arena.
    let next = self::publisher(&daemon);
    publish(&next, "w", 2, LARGE);
    let newer = view(&consumer, "w", 2);
    assert_eq!((held.tensor.bytes(), newer.tensor.bytes()), (&*bytes(LARGE, 1), &*bytes(LARGE, 2)));
    drop((held, newer));
    until(&daemon, "none is held", |counters| counters.views, 0);
    next.withdraw("w").unwrap();
    until_there_is_room(&next, ARENA as usize);
}

#[test]
fn a_plan_views_one_version_after_the_other() {
    let (_directory, daemon, publisher, consumer) = two_tasks();
    let mut plan = consumer.viewing_plan(&peers()[0], keys(&["small", "large", "absent"]));
    for version in 1..20 {
        // There is room once the earlier versions are freed.
        until_there_is_room(&publisher, 3 << 20);
        publish(&publisher, "large", version, 3 << 20);
        publish(&publisher, "small", version, 1000);
        if version == 1 {
            let late = plan.pull_within(1, std::time::Duration::from_millis(1)).wait().unwrap_err();
            assert_eq!(late.code(), Code::DeadlineExceeded);
            publish(&publisher, "absent", 20, 10);
        }
        plan.pull(version).wait().unwrap();
        for (index, len) in [(0, 1000), (1, 3 << 20)] {
            let tensor = plan.get(index).unwrap();
            assert_eq!((plan.version(index), tensor.bytes()), (version, &*bytes(len, version as u64)));
        }
        assert!(is_view(plan.get(1).unwrap()));
    }
    drop(plan);
    until(&daemon, "none is held", |counters| counters.views, 0);
    // A cancelled pull leaves nothing behind, whether or not it has reached the large tensor.
    let mut plan = consumer.viewing_plan(&peers()[0], keys(&["large", "nobody's"]));
    drop(plan.pull(1));
    daemon.until_under_way(0);
    drop(plan);
    publisher.withdraw("large").unwrap();
    until_there_is_room(&publisher, ARENA as usize / 2);
}

#[test]
fn a_task_may_view_what_it_has_published_itself() {
    let (_directory, _daemon, publisher, _consumer) = two_tasks();
    publish(&publisher, "w", 3, LARGE);
    let own = publisher.view(&peers()[0], "w", 3).wait().unwrap();
    assert!(is_view(&own.tensor) && own.tensor.bytes() == bytes(LARGE, 3));
}

#[test]
fn what_cannot_be_viewed_is_copied_and_counted() {
    let (_directory, daemon, publisher, consumer) = two_tasks_of(Portion { views: false, ..PORTION });
    publish(&publisher, "w", 1, LARGE);
    let pulled = view(&consumer, "w", 1);
    assert!(!is_view(&pulled.tensor) && pulled.tensor.bytes() == bytes(LARGE, 1));
    until(&daemon, "it was refused", |counters| counters.views_refused, 1);
    assert_eq!(daemon.sum(|counters| counters.tensors_viewed), 0);
    // A tensor on the heap was copied into the arena once, and is viewed there by permitted users.
    publisher.publish("w", 2, tensor(LARGE, 2)).wait().unwrap();
    assert_eq!(view(&consumer, "w", 2).tensor.bytes(), bytes(LARGE, 2));
}
