//! Tensors in device memory: sent, received, published, pulled and pushed, between engines and within one engine.

use sealane_fusion::{AcceptOptions, Buffer, Code, Engine, Keys, MemoryKind, Task, Tensor};
use sealane_transport::PullOptions;
use sealane_transport::fake_device::{FakeDevice, bytes_of};
use sealane_transport::verbs::PortCounters;

use crate::fixture::{
    LONG, assert_empty, bytes, engines, listener, map, port, pull, settings, task, tensor, total, until,
};
use crate::verbs;

/// Sizes that travel in a frame, and beside frames in one chunk and in several.
const SIZES: [usize; 7] = [0, 1, 64, 8192, 8193, 1 << 20, 5_000_001];
const IN_DEVICE: MemoryKind = MemoryKind::Device(FakeDevice::NAME);

/// A tensor of [`bytes`] in device memory.
fn in_device(device: &FakeDevice, len: usize, seed: u64) -> Tensor {
    Tensor::new(tensor(len, seed).meta().clone(), device.with(&bytes(len, seed))).unwrap()
}

fn bytes_in(tensor: Tensor) -> Vec<u8> {
    bytes_of(&tensor.into_buffer())
}

/// Runs a test with engines of two tasks, and the tasks: over TCP, over verbs, and both tasks in one engine.
fn everywhere(each: impl Fn(&[Engine], [&Task; 2])) {
    let larger = |_: usize, settings: &mut sealane_fusion::EngineSettings| settings.slab_send_bytes = 8 << 20;
    let alone = {
        let listener = listener();
        let port = port(&listener);
        let mut settings = settings(map(&[port, port]), 0, listener);
        settings.tasks.push(task(1).parse().unwrap());
        vec![Engine::start(settings).unwrap()]
    };
    for engines in [engines(2, larger), verbs::two_with(larger), alone] {
        let tasks = [0, 1].map(|number| engines[number.min(engines.len() - 1)].task(&task(number)).unwrap());
        each(&engines, [&tasks[0], &tasks[1]]);
        for engine in &engines {
            assert_empty(engine);
            assert_eq!(total(engine).links_lost, 0, "a device is no reason to lose a link");
        }
    }
}

#[test]
fn tensors_are_sent_from_and_received_into_device_memory() {
    let device = FakeDevice::default();
    everywhere(|_, [ps, worker]| {
        for (step, len) in SIZES.into_iter().enumerate() {
            let step = step as i64;
            let (from_device, from_host) = (|seed| in_device(&device, len, seed), |seed| tensor(len, seed));
            let sent = [
                ps.send(worker.name(), step, "to host", from_device(1)),
                ps.send(worker.name(), step, "to slab", from_device(2)),
                ps.send(worker.name(), step, "to device", from_host(3)),
                ps.send(worker.name(), step, "on device", from_device(4)),
            ];
            let host = worker.recv_into(ps.name(), step, "to host", Buffer::from_vec(vec![0; len + 3])).wait().unwrap();
            let slab = worker.recv(ps.name(), step, "to slab").wait().unwrap();
            assert_eq!((host.memory(), slab.memory()), (MemoryKind::Host, MemoryKind::Host));
            assert!(host.bytes() == bytes(len, 1) && slab.bytes() == bytes(len, 2), "{len} bytes differ");
            for (key, seed) in [("to device", 3), ("on device", 4)] {
                let place = device.allocate(len + 3);
                let mut arrived = worker.recv_into(ps.name(), step, key, place).wait().unwrap();
                assert_eq!((arrived.memory(), arrived.len()), (IN_DEVICE, len));
                assert!(arrived.bytes_mut().is_none() && arrived.elements::<u8>().is_err());
                assert!(bytes_in(arrived) == bytes(len, seed), "{len} bytes differ");
            }
            sent.into_iter().for_each(|sending| sending.wait().unwrap());
        }
        // A recv that waits for its tensor.
        let waiting = worker.recv_into(ps.name(), -1, "late", device.allocate(100));
        ps.send(worker.name(), -1, "late", in_device(&device, 100, 5)).wait().unwrap();
        assert_eq!(bytes_in(waiting.wait().unwrap()), bytes(100, 5));
    });
    assert_eq!(device.in_use_bytes(), 0);
}

#[test]
fn a_copy_that_fails_ends_its_recv_alone() {
    let device = FakeDevice::default();
    everywhere(|_, [ps, worker]| {
        for (step, len) in SIZES.into_iter().enumerate() {
            // The copy from the device fails, then the copy into it.
            for (passing, key) in [(0, "from"), (1, "into")] {
                let (step, place) = (step as i64, device.allocate(len));
                let sending = ps.send(worker.name(), step, key, in_device(&device, len, 1));
                device.fail_after(if len == 0 { 0 } else { passing }, 1);
                let failed = worker.recv_into(ps.name(), step, key, place).wait();
                if len == 0 && failed.is_ok() {
                    // Within one engine nothing is copied.
                    device.fail_after(0, 0);
                    sending.wait().unwrap();
                    continue;
                }
                let unreceived = failed.unwrap_err();
                assert_eq!(unreceived.error.code(), Code::Unavailable, "{}", unreceived.error);
                let place = unreceived.destination.expect("it comes back");
                assert_eq!((place.memory(), place.len()), (IN_DEVICE, len));
                // The tensor is still there.
                let arrived = worker.recv_into(ps.name(), step, key, place).wait().unwrap();
                assert_eq!(bytes_in(arrived), bytes(len, 1));
                sending.wait().unwrap();
            }
            // Published and pulled, or pushed: the copy of small ones fails here, that of large ones where they are wanted.
            let name = len.to_string();
            device.fail_after(0, 1);
            let published = ps.publish(&name, 1, in_device(&device, len, 2)).wait();
            if published.is_err() {
                ps.publish(&name, 1, in_device(&device, len, 2)).wait().unwrap();
            } else {
                let error = pull(worker, ps.name(), &name, 1).wait().unwrap_err();
                assert_eq!((len > 8192, error.code()), (true, Code::Unavailable), "{error}");
            }
            assert_eq!(pull(worker, ps.name(), &name, 1).wait().unwrap().tensor.bytes(), bytes(len, 2));
            ps.withdraw(&name).unwrap();
            let acceptor = ps.acceptor("grads", AcceptOptions::default());
            device.fail_after(0, 1);
            let error = worker.push(ps.name(), "grads", in_device(&device, len, 3)).wait().unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            let pushing = worker.push(ps.name(), "grads", in_device(&device, len, 4));
            let accepted = acceptor.wait_many(1, Some(LONG)).unwrap().pop().expect("one");
            assert_eq!(accepted.tensor.bytes(), bytes(len, 4));
            pushing.wait().unwrap();
        }
    });
    assert_eq!(device.in_use_bytes(), 0);
}

/// Over verbs. What is sent, received into, published and pulled lies in memory that the RDMA device registers.
#[test]
fn exported_memory_is_reached_without_copies_once_it_is_registered() {
    let device = FakeDevice::default();
    let export = device.export(32 << 20);
    let engines = verbs::two_in_memory(|settings| settings.slab_send_bytes = 8 << 20);
    let [ps, worker] = [0, 1].map(|number| engines[number].task(&task(number)).unwrap());
    let len = 5_000_001;
    let exported =
        |seed| Tensor::new(tensor(len, seed).meta().clone(), export.with(&bytes(len, seed)).unwrap()).unwrap();
    let mut plan = worker.plan(ps.name(), Keys::new(["weights"]).unwrap());
    plan.pull_buffer_mut().set_destination(0, export.allocate(len).unwrap());
    // True if anything was copied.
    let mut round = |step: i64| {
        let before = device.copies();
        let sending = ps.send(worker.name(), step, "key", exported(step as u64));
        let place = export.allocate(len).unwrap();
        let arrived = worker.recv_into(ps.name(), step, "key", place).wait().unwrap();
        sending.wait().unwrap();
        ps.publish("weights", step, exported(step as u64 + 100)).wait().unwrap();
        plan.pull(step, PullOptions::default()).unwrap();
        let is_copied = device.copies() != before;
        assert!(bytes_in(arrived) == bytes(len, step as u64), "{len} bytes differ");
        let mut read = vec![0; len];
        plan.pull_buffer().get(0).unwrap().payload().read(0, (&mut read).into()).unwrap();
        assert!(read == bytes(len, step as u64 + 100), "{len} bytes differ");
        is_copied
    };
    assert!(round(1), "nothing is registered yet");
    let direct = (2..1_000).find(|step| !round(*step)).expect("every shard registers it");
    (direct + 1..direct + 10).for_each(|step| assert!(!round(step), "step {step}"));
    // Sleeping shards wake and check whether the last handle was dropped.
    drop(plan);
    ps.withdraw("weights").unwrap();
    drop(export);
    for engine in &engines {
        let regions = || {
            let shards = engine.counters().unwrap().into_iter();
            shards.map(|shard| PortCounters::of_figures(&shard.kinds[0].figures).direct_regions).sum::<u64>()
        };
        until(engine, "device memory that is given up", |_| regions() == 0);
        assert_empty(engine);
    }
    assert_eq!(device.in_use_bytes(), 0);
}

#[test]
fn published_tensors_are_pulled_from_and_into_device_memory() {
    let device = FakeDevice::default();
    everywhere(|_, [ps, worker]| {
        let names: Vec<_> = SIZES.iter().map(ToString::to_string).collect();
        let mut plan = worker.plan(ps.name(), Keys::new(&names).unwrap());
        // From the fourth on, tensors are pulled into device memory.
        for (index, len) in SIZES.into_iter().enumerate().skip(3) {
            plan.pull_buffer_mut().set_destination(index, device.allocate(len));
        }
        for version in 1..4 {
            let seed = version as u64;
            let published = SIZES.into_iter().zip(&names).map(|(len, name)| {
                let from_device = len % 2 == 0 || version == 3;
                (name.clone(), if from_device { in_device(&device, len, seed) } else { tensor(len, seed) })
            });
            ps.publish_many(version, published).wait().unwrap();
            plan.pull(version, PullOptions::default()).unwrap();
            for (index, len) in SIZES.into_iter().enumerate() {
                let tensor = plan.pull_buffer().get(index).unwrap();
                assert_eq!(tensor.memory(), if index < 3 { MemoryKind::Host } else { IN_DEVICE });
                let mut read = vec![0; len];
                tensor.payload().read(0, (&mut read).into()).unwrap();
                assert!(read == bytes(len, seed), "{len} bytes differ in version {version}");
            }
        }
        drop(plan);
        names.iter().for_each(|name| ps.withdraw(name).unwrap());
    });
    assert_eq!(device.in_use_bytes(), 0);
}
