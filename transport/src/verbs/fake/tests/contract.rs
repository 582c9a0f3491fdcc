//! Breaches of the device contract that only the fabric can notice, and what is left behind.

use super::harness::{Host, Pair};
use crate::verbs::device::{Device, Grant, Post, Work};
use crate::verbs::fake::network::NUMBERS;
use crate::verbs::fake::{Fabric, FakeSettings};

/// The only breach reported so far.
fn breach(fabric: &Fabric) -> String {
    match &fabric.violations()[..] {
        [only] => only.clone(),
        others => panic!("not one breach: {others:?}"),
    }
}

#[test]
fn a_region_under_a_posted_request_stays() {
    let works: [fn(&mut Pair) -> Work; 4] = [
        |pair| Work::Send(pair.near.piece(0, 8)),
        |pair| Work::Write { from: pair.near.piece(0, 8), to: pair.far.remote(0, 0), word: None },
        |pair| Work::Read { into: pair.near.piece(0, 8), from: pair.far.remote(0, 0) },
        |pair| pair.near.bind(0, 8, Grant::Read).1,
    ];
    for work in works {
        let mut pair = Pair::new();
        let (here, region) = (pair.here, pair.near.region.id);
        pair.fabric.pause();
        let work = work(&mut pair);
        pair.near.ask(here, 1, work);
        pair.near.device.deregister(region);
        assert!(breach(&pair.fabric).contains("under a posted request"));
        // The memory is not accessed any more.
        pair.fabric.resume();
        assert!(!pair.near.outcomes()[0].1.is_success());
    }
}

#[test]
fn a_region_under_a_receive_buffer_stays() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    let region = pair.far.region.id;
    pair.far.device.deregister(region);
    assert!(breach(&pair.fabric).contains("under a posted receive buffer"));
}

#[test]
fn nothing_is_given_back_twice() {
    let again: [fn(&mut Host); 3] = [
        |host| {
            let region = host.register(16).expect("a region");
            host.device.deregister(region.id);
            host.device.deregister(region.id);
        },
        |host| {
            let window = host.window();
            host.device.free_window(window.id);
            host.device.free_window(window.id);
        },
        |host| {
            let queue_pair = host.create();
            host.device.destroy(queue_pair.id);
            host.device.destroy(queue_pair.id);
        },
    ];
    for again in again {
        let fabric = Fabric::new(1);
        again(&mut Host::new(&fabric, FakeSettings::default()));
        assert!(breach(&fabric).contains("is not there"));
    }
}

#[test]
fn what_belongs_to_another_device_is_not_given_back() {
    let mut pair = Pair::new();
    let (there, region, window) = (pair.there, pair.far.region.id, pair.far.window());
    pair.near.device.destroy(there.id);
    pair.near.device.deregister(region);
    pair.near.device.free_window(window.id);
    assert_eq!(pair.fabric.violations().len(), 3);
    let left = pair.fabric.counters_of("far");
    assert_eq!((left.regions, left.windows, left.queue_pairs), (1, 1, 1));
}

#[test]
fn memory_that_cannot_be_is_not_registered() {
    let fabric = Fabric::new(1);
    let mut host = Host::new(&fabric, FakeSettings::default());
    assert!(host.register(0).is_err());
    assert!(host.register(usize::MAX).is_err());
    assert_eq!(fabric.counters().registrations, 1);
}

#[test]
fn windows_need_a_device_that_has_them() {
    let mut pair = Pair::with(FakeSettings { has_windows: false, ..FakeSettings::default() });
    assert!(pair.near.device.allocate_window().is_err());
    let work = Work::Invalidate { rkey: 1 };
    let post = Post { id: 1, signaled: true, work };
    assert_eq!(pair.near.post(pair.here, &[post]).expect_err("no windows").0, 0);
}

#[test]
fn numbers_and_keys_come_to_an_end() {
    let fabric = Fabric::new(1);
    let mut host = Host::new(&fabric, FakeSettings::default());
    {
        let mut network = fabric.lock();
        (network.next_index, network.next_number) = (NUMBERS - 1, NUMBERS - 1);
    }
    let (last, queue_pair) = (host.register(16).expect("the last key"), host.create());
    assert_eq!(last.rkey >> 8, NUMBERS - 1);
    assert_eq!(queue_pair.number, NUMBERS - 1);
    assert!(host.register(16).is_err());
    assert!(host.device.allocate_window().is_err());
    assert!(host.device.create().is_err());
}
