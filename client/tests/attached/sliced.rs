//! Tensors that several tasks publish in slices are pulled into one array.

use std::{net::TcpListener, sync::Arc, time::Duration};

use sealane::{Code, DType, Plan, SliceVersions, Slicing, Task, Tensor, TensorMeta};
use sealane_fusion::{Authentication, EndpointMap, Engine, EngineSettings};
use sealane_runtime::Pin;

use crate::{
    daemon::{Daemon, Settings},
    fixture::{TASK, attached, bytes, directory, peers, tensor, to, to_as, until_there_is_room},
};

/// The slices of the largest are a few bytes, travel in the ring, and lie in the arena.
const SIZES: [u64; 3] = [7, 1000, 300_001];

fn slicing(rows: u64, owners: &[String]) -> Slicing {
    Slicing::even(TensorMeta::new(DType::U8, &[rows, 3]).unwrap(), owners).unwrap()
}

fn array(rows: u64, seed: u64) -> Tensor {
    Tensor::new(TensorMeta::new(DType::U8, &[rows, 3]).unwrap(), bytes(rows as usize * 3, seed)).unwrap()
}

fn key(rows: u64) -> String {
    format!("{rows} rows")
}

/// Tasks that publish; the first has two slices of each tensor.
fn publishers(daemon: &Daemon) -> (Vec<Task>, Vec<String>) {
    let owners: Vec<String> = [0, 1, 2, 0].map(|owner| peers()[owner].clone()).to_vec();
    (owners[..3].iter().map(|owner| to_as(daemon, owner).attach().unwrap()).collect(), owners)
}

fn publish(tasks: &[Task], owners: &[String], version: i64) {
    for (task, rows) in tasks.iter().flat_map(|task| SIZES.map(|rows| (task, rows))) {
        let slicing = slicing(rows, owners);
        task.publish_slices(&key(rows), version, &slicing, array(rows, version as u64)).unwrap().wait().unwrap();
    }
}

fn plan(task: &Task, owners: &[String], versions: SliceVersions) -> Plan {
    task.sliced_plan(SIZES.map(|rows| (key(rows), slicing(rows, owners))), versions).unwrap()
}

fn assert_is(plan: &Plan, version: i64) {
    for (index, rows) in SIZES.into_iter().enumerate() {
        let tensor = plan.get(index).unwrap();
        assert_eq!((&tensor.shape()[..], plan.version(index)), (&[rows, 3][..], version));
        assert!(tensor.bytes() == bytes(rows as usize * 3, version as u64), "{rows} rows of version {version}");
    }
}

#[test]
fn an_owner_needs_no_more_than_its_own_rows() {
    let (_directory, daemon, task) = attached();
    let (tasks, owners) = publishers(&daemon);
    let (slicing, whole) = (slicing(1000, &owners), bytes(3000, 1));
    for (task, owner) in tasks.iter().zip(&owners) {
        let own: Vec<u8> = slicing.of_owner(owner).flat_map(|slice| whole[slicing.bytes_of(slice)].to_vec()).collect();
        let meta = TensorMeta::new(DType::U8, &[own.len() as u64 / 3, 3]).unwrap();
        task.publish_slices("w", 1, &slicing, Tensor::new(meta, own).unwrap()).unwrap().wait().unwrap();
        assert_eq!(task.publish_slices("w", 1, &slicing, tensor(9, 1)).err().unwrap().code(), Code::InvalidArgument);
    }
    assert!(task.publish_slices("w", 1, &slicing, array(1000, 1)).is_err(), "it owns no slice");
    let mut plan = task.sliced_plan([("w", slicing.clone())], SliceVersions::Same).unwrap();
    plan.pull(1).wait().unwrap();
    assert_eq!(plan.get(0).unwrap().bytes(), whole);
    tasks[0].withdraw_slices("w", &slicing).unwrap();
    // Whatever comes later is read after it.
    tasks[0].publish("else", 1, tensor(1, 1)).wait().unwrap();
    let late = plan.pull_within(1, Duration::from_millis(1)).wait().unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded);
}

#[test]
fn slices_of_unlike_versions_are_no_tensor_unless_that_is_wanted() {
    let (_directory, daemon, task) = attached();
    let (tasks, owners) = publishers(&daemon);
    publish(&tasks, &owners, 1);
    let mut same = plan(&task, &owners, SliceVersions::Same);
    let mut any = plan(&task, &owners, SliceVersions::Any);
    same.pull(1).wait().unwrap();
    let place = same.get(2).unwrap().bytes().as_ptr();
    publish(&tasks[1..2], &owners, 2);
    let error = same.pull(1).wait().unwrap_err();
    assert_eq!((error.code(), same.version(2)), (Code::Aborted, 2));
    assert!(error.to_string().contains("the slices of '7 rows' are of versions 1 to 2"), "{error}");
    any.pull(1).wait().unwrap();
    let slicing = slicing(SIZES[2], &owners);
    let bytes_of = |version: u64, slice| bytes(SIZES[2] as usize * 3, version)[slicing.bytes_of(slice)].to_vec();
    let mixed: Vec<u8> = [1, 2, 1, 1].into_iter().enumerate().flat_map(|(slice, of)| bytes_of(of, slice)).collect();
    assert!((any.get(2).unwrap().bytes(), any.version(2)) == (&*mixed, 1));
    // The others follow.
    let pulling = same.pull(2);
    publish(&[tasks[0].clone(), tasks[2].clone()], &owners, 2);
    pulling.wait().unwrap();
    assert_is(&same, 2);
    assert_eq!(same.get(2).unwrap().bytes().as_ptr(), place);
}

#[test]
fn a_pull_is_repeated_if_slices_of_one_owner_differ() {
    let (_directory, daemon, task) = attached();
    let (tasks, owners) = publishers(&daemon);
    publish(&tasks, &owners, 1);
    let slicing = slicing(SIZES[2], &owners);
    let mut plan = task.sliced_plan([(key(SIZES[2]), slicing.clone())], SliceVersions::Same).unwrap();
    let newer = |slice| Tensor::new(slicing.meta_of(slice), bytes(slicing.bytes_of(slice).len(), 2)).unwrap();
    tasks[0].publish(&slicing.key(&key(SIZES[2]), 3), 2, newer(3)).wait().unwrap();
    let error = plan.pull(1).wait().unwrap_err();
    assert_eq!((error.code(), plan.version(0)), (Code::Aborted, 2));
    // Retried only this often: this owner never publishes the other tensor.
    let received = |daemon: &Daemon| daemon.sum(|counters| counters.tensors_received);
    daemon.until("it was pulled four times", |daemon| received(daemon) == 4 * 4);
    for owner in [1, 2] {
        tasks[owner].publish(&slicing.key(&key(SIZES[2]), owner), 2, newer(owner)).wait().unwrap();
    }
    tasks[0].publish(&slicing.key(&key(SIZES[2]), 0), 2, newer(0)).wait().unwrap();
    plan.pull(1).wait().unwrap();
    assert_eq!(plan.version(0), 2);
    daemon.until("once more", |daemon| received(daemon) == 5 * 4);
}

#[test]
fn what_does_not_come_is_told_and_its_memory_comes_back() {
    let (_directory, daemon, task) = attached();
    let (tasks, owners) = publishers(&daemon);
    publish(&tasks[1..], &owners, 1);
    let mut plan = plan(&task, &owners, SliceVersions::Same);
    for round in 0..20 {
        let late = plan.pull_within(1, Duration::from_millis(1)).wait().unwrap_err().to_string();
        assert!(late.contains("key '7 rows[0:1/7]'"), "{late}");
        match round % 2 {
            0 => drop(plan.pull(1)),
            _ => std::mem::forget(plan.pull(1)),
        }
        assert_eq!(plan.get(0).unwrap_err().code(), Code::InvalidArgument);
        // The plan still has the array of the forgotten pull, which may lie in the middle of the arena.
        until_there_is_room(&task, 3 << 19);
    }
    publish(&tasks[..1], &owners, 1);
    plan.pull(1).wait().unwrap();
    assert_is(&plan, 1);
    // One that does not match the slicing, and one larger than its place.
    let slicing = slicing(7, &owners);
    for wrong in [tensor(6, 1), tensor(2000, 1)] {
        tasks[1].publish(&slicing.key("7 rows", 1), 2, wrong).wait().unwrap();
        publish(&tasks[..1], &owners, 2);
        publish(&tasks[2..], &owners, 2);
        let error = plan.pull(1).wait().unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.to_string().contains("7 rows[1:3/7] of ps1.train:2222 is"), "{error}");
    }
    publish(&tasks, &owners, 3);
    plan.pull(3).wait().unwrap();
    assert_is(&plan, 3);
    let large = Slicing::even(TensorMeta::new(DType::U8, &[5 << 20]).unwrap(), &owners).unwrap();
    let mut large = task.sliced_plan([("large", large)], SliceVersions::Same).unwrap();
    assert_eq!(large.pull(1).wait().unwrap_err().code(), Code::ResourceExhausted);
}

#[test]
fn slices_of_another_host_arrive_in_the_array_too() {
    const REMOTE: &str = "remote.train:2222";
    let (directory, listener) = (directory(), TcpListener::bind("127.0.0.1:0").unwrap());
    let remote = listener.local_addr().unwrap();
    let mut map = format!("{REMOTE}={remote}\n");
    // Every link must prove that it knows the secret.
    let secret = || Authentication::secret_bytes(&[7; 32]).unwrap();
    let daemon = Daemon::start_with(&directory, Settings::default(), |settings| {
        let here = settings.listeners[0].local_addr().unwrap();
        map.extend(peers().iter().map(String::as_str).chain([TASK]).map(|task| format!("{task}={here}\n")));
        settings.map = Arc::new(EndpointMap::parse(&map, "test").unwrap());
        settings.authentication = secret();
    });
    let mut settings = EngineSettings::new(EndpointMap::parse(&map, "test").unwrap(), &[REMOTE]).unwrap();
    (settings.listeners, settings.authentication) = (vec![listener], secret());
    (settings.runtime.shards, settings.runtime.pin) = (2, Pin::Off);
    let engine = Engine::start(settings).unwrap();
    let far = engine.task(REMOTE).unwrap();
    let (task, near) = (to(&daemon).attach().unwrap(), to_as(&daemon, &peers()[0]).attach().unwrap());

    let owners = [REMOTE.to_owned(), peers()[0].clone(), REMOTE.to_owned()];
    let mut plan = plan(&task, &owners, SliceVersions::Same);
    for version in 1..4 {
        let pulling = plan.pull(version);
        publish(std::slice::from_ref(&near), &owners, version);
        let slice = |(rows, slice)| {
            let (slicing, whole) = (slicing(rows, &owners), bytes(rows as usize * 3, version as u64));
            let bytes = whole[slicing.bytes_of(slice)].to_vec();
            (slicing.key(&key(rows), slice), Tensor::new(slicing.meta_of(slice), bytes).unwrap())
        };
        far.publish_many(version, SIZES.iter().flat_map(|&rows| [(rows, 0), (rows, 2)]).map(slice)).wait().unwrap();
        pulling.wait().unwrap();
        assert_is(&plan, version);
    }
    // In each pull, its two slices of the largest tensor came over one shard each.
    let (far, near) = (engine.counters().unwrap(), daemon.engine.counters().unwrap());
    assert_eq!(far.iter().map(|shard| shard.links).collect::<Vec<_>>(), [1, 1]);
    assert!(near.iter().all(|shard| (shard.links, shard.bytes_received / 900_000) >= (1, 1)), "{near:?}");
    engine.stop().unwrap();
    // The slices of the last pull that the lost host had not sent.
    let error = plan.pull_within(9, Duration::from_millis(1)).wait().unwrap_err();
    assert!(matches!(error.code(), Code::DeadlineExceeded | Code::Unavailable), "{error}");
    drop(plan);
    until_there_is_room(&task, 3 << 20);
}

#[test]
fn a_plan_has_new_memory_with_the_next_daemon() {
    let (directory, daemon, task) = attached();
    let (tasks, owners) = publishers(&daemon);
    publish(&tasks, &owners, 1);
    let mut plan = plan(&task, &owners, SliceVersions::Same);
    plan.pull(1).wait().unwrap();
    let pulling = plan.pull(2);
    daemon.kill();
    assert_eq!(pulling.wait().unwrap_err().code(), Code::Unavailable);
    for (version, ends) in [(3, true), (4, false)] {
        let daemon = Daemon::start(&directory, Settings::default());
        publish(&tasks, &owners, version);
        plan.pull(version).wait().unwrap();
        assert_is(&plan, version);
        if ends {
            // Between two pulls.
            daemon.kill();
        }
    }
}
