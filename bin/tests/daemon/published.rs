//! What one client publishes, another pulls from the daemon alone.

use std::time::Duration;

use sealane::{Attach, Code, DType, Keys, RecvOptions, Task, Tensor, TensorMeta};

use crate::fixture::{Daemon, PS, Place, STUCK, WORKER};

/// Larger than the arenas of other tests: a tensor of 300 KiB is stored three times.
const ARENA_BYTES: u64 = 2 << 20;

/// Sizes that are copied with others or alone, in the ring or from the arena, in several batches, and empty.
const SIZES: [usize; 6] = [64, 0, 512, 513, 70_000, 300_000];

fn attach(place: &Place, task: &str) -> Task {
    Attach::new(task).socket(place.socket()).arena_bytes(ARENA_BYTES).timeout(STUCK).attach().unwrap()
}

fn keys() -> Keys {
    Keys::new(SIZES.map(|size| format!("{size} bytes"))).unwrap()
}

fn bytes(len: usize, version: i64) -> Vec<u8> {
    (0..len as i64).map(|at| (at.wrapping_mul(31) ^ version ^ (at >> 8)) as u8).collect()
}

fn tensor(shape: &[u64], version: i64) -> Tensor {
    let len = shape.iter().product::<u64>() as usize;
    Tensor::new(TensorMeta::new(DType::U8, shape).unwrap(), bytes(len, version)).unwrap()
}

fn publish(ps: &Task, version: i64) {
    let keys = keys();
    let tensors = keys.iter().zip(SIZES).map(|(key, size)| (key.to_owned(), tensor(&[size as u64], version)));
    ps.publish_many(version, tensors.collect::<Vec<_>>()).wait().unwrap();
}

#[test]
fn plans_keep_their_memory_and_give_it_back() {
    for shards in ["runtime.shards=1", "runtime.shards=2"] {
        let (place, daemon) = Daemon::start(&["--set", shards]);
        let (ps, worker) = (attach(&place, PS), attach(&place, WORKER));
        // Each plan takes a third of the receive area.
        for round in 0..10 {
            let mut plan = worker.plan(PS, keys());
            let mut places = Vec::new();
            for version in 2 * round..2 * round + 2 {
                let pulling = plan.pull(version);
                publish(&ps, version);
                pulling.wait().unwrap();
                for (at, size) in SIZES.into_iter().enumerate() {
                    let tensor = plan.get(at).unwrap();
                    assert_eq!((plan.version(at), tensor.shape()[0]), (version, size as u64));
                    assert!(tensor.bytes() == bytes(size, version), "{size} bytes of version {version}");
                    places.push(tensor.bytes().as_ptr());
                }
            }
            assert_eq!(places[..SIZES.len()], places[SIZES.len()..]);
            let once = worker.pull_many(PS, keys(), i64::MIN).wait();
            assert!(once.into_iter().zip(SIZES).all(|(pulled, size)| pulled.unwrap().tensor.bytes().len() == size));
        }
        drop((ps, worker));
        assert_eq!(daemon.stop().code, Some(0));
    }
}

#[test]
fn what_changes_and_what_does_not_come_is_told() {
    let (place, mut daemon) = Daemon::start(&[]);
    let (ps, worker) = (attach(&place, PS), attach(&place, WORKER));
    let mut plan = worker.plan(PS, Keys::new(["w", "absent"]).unwrap());
    let soon = Duration::from_millis(1);
    let mut pull = |version, shape: &[u64]| {
        ps.publish("w", version, tensor(shape, version)).wait().unwrap();
        assert_eq!(plan.pull_within(version, soon).wait().unwrap_err().code(), Code::DeadlineExceeded);
        let missed = plan.get(1).unwrap_err().to_string();
        assert!(missed.starts_with("pull of version 1 of key 'absent' waited"), "{missed}");
        let tensor = plan.get(0).unwrap();
        assert_eq!(
            (&tensor.shape()[..], tensor.bytes()),
            (shape, &*bytes(shape.iter().product::<u64>() as usize, version))
        );
        tensor.bytes().as_ptr() as usize
    };
    let first = pull(1, &[600]);
    assert_eq!(pull(1, &[20, 30]), first);
    assert_ne!(pull(1, &[700]), first);
    let older = ps.publish("w", 0, tensor(&[1000], 0)).wait().unwrap_err();
    assert_eq!(older.code(), Code::InvalidArgument);

    // One pull is dropped in time, another with its plan.
    drop(plan.pull(9));
    ps.publish("absent", 1, tensor(&[8], 1)).wait().unwrap();
    plan.pull(1).wait().unwrap();
    assert_eq!(plan.get(1).unwrap().bytes(), bytes(8, 1));
    drop(plan.pull(9));
    drop(plan);
    // Many tensors are received together, while pulls go on.
    let tensors = (0..200).map(|at| (at.to_string(), tensor(&[64], at)));
    drop(ps.send_all(WORKER, 1, tensors));
    let wanted = (0..200).map(|at| (at.to_string(), RecvOptions::default()));
    for (at, receiving) in worker.recv_all(PS, 1, wanted).into_iter().enumerate() {
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(64, at as i64));
    }

    // A client's publications go with it.
    let pulling = worker.pull(PS, "w", 9);
    drop(ps);
    daemon.wait_for("; 1 client attached;");
    let gone = pulling.wait().unwrap_err();
    assert_eq!(gone.code(), Code::Unavailable, "{gone}");
    let timeout = Some(soon);
    let gone = worker.pull_many_within(PS, Keys::new(["w"]).unwrap(), 1, timeout).wait().pop().unwrap().unwrap_err();
    assert_eq!(gone.code(), Code::DeadlineExceeded, "{gone}");
    drop(worker);
    assert_eq!(daemon.stop().code, Some(0));
}

#[test]
fn a_plan_that_has_no_room_says_so() {
    let (place, daemon) = Daemon::start(&[]);
    let (ps, worker) = (attach(&place, PS), attach(&place, WORKER));
    let large = |version| tensor(&[600_000], version);
    ps.publish_many(1, [("a", large(1)), ("b", large(1))]).wait().unwrap();
    let mut plan = worker.plan(PS, Keys::new(["a", "b"]).unwrap());
    let full = plan.pull(1).wait().unwrap_err();
    assert_eq!(full.code(), Code::ResourceExhausted);
    assert!(full.to_string().contains("daemon.area_bytes"), "{full}");
    assert!(plan.get(0).is_ok() && plan.get(1).is_err());
    ps.publish("a", 2, tensor(&[10], 2)).wait().unwrap();
    plan.pull(1).wait().unwrap_err();
    // The first place was freed when the end of the second pull was reported.
    plan.pull(1).wait().unwrap();
    assert_eq!(plan.get(1).unwrap().bytes(), bytes(600_000, 1));
    drop((plan, ps, worker));
    assert_eq!(daemon.stop().code, Some(0));
}
