//! Queue pairs: connected, failed, destroyed.

use super::harness::{FIRST_PACKETS, Host, Pair};
use crate::verbs::device::{Device, Endpoint, Grant, Post, QueuePair, Status, Work};
use crate::verbs::fake::{Fabric, FakeSettings};

/// What the near side tells of its first packet, if the far side connects too, and what it was told of the far side.
type Told = (Option<u32>, fn(&mut Endpoint));

#[test]
fn both_ends_must_be_told_the_truth() {
    let cases: [(Told, Status); 9] = [
        ((Some(1), |_| {}), Status::SUCCESS),
        ((Some(1), |to| to.first_packet += 1), Status::RETRIES_EXCEEDED),
        ((Some(1), |to| to.number += 1), Status::RETRIES_EXCEEDED),
        ((Some(1), |to| to.number = 1), Status::RETRIES_EXCEEDED),
        ((Some(1), |to| to.gid[15] += 1), Status::RETRIES_EXCEEDED),
        ((Some(1), |to| to.mtu = 256), Status::RETRIES_EXCEEDED),
        // The smaller of both is the same.
        ((Some(1), |to| to.mtu = 4096), Status::SUCCESS),
        ((Some(3), |_| {}), Status::RETRIES_EXCEEDED),
        ((None, |_| {}), Status::RETRIES_EXCEEDED),
    ];
    for (number, ((first_packet, change), status)) in cases.into_iter().enumerate() {
        let mut pair = Pair::new();
        let (here, there) = (pair.near.create(), pair.far.create());
        let mut to_far = pair.far.endpoint(there, 2);
        change(&mut to_far);
        pair.near.device.connect(here.id, 1, &to_far).expect("a connection");
        if let Some(first_packet) = first_packet {
            let to_near = pair.near.endpoint(here, first_packet);
            pair.far.device.connect(there.id, 2, &to_near).expect("a connection");
        }
        pair.far.receive(1, 0, 8);
        pair.here = here;
        assert_eq!(pair.send(b"x"), status, "case {number}");
    }
}

#[test]
fn connecting_refuses_what_cannot_be() {
    let mut pair = Pair::new();
    let (here, there) = (pair.near.create(), pair.far.create());
    let to_far = pair.far.endpoint(there, 2);
    let work = Work::Send(pair.near.piece(0, 1));
    let (taken, error) = pair.near.post(here, &[Post { id: 1, signaled: true, work }]).expect_err("too early");
    assert!(taken == 0 && error.to_string().contains("not connected"), "{error}");
    let mut refused = |id, first_packet, peer: Endpoint| {
        pair.near.device.connect(id, first_packet, &peer).expect_err("refused").to_string()
    };
    assert!(refused(here.id, 1 << 24, to_far).contains("24 bits"));
    assert!(refused(here.id, 1, Endpoint { first_packet: 1 << 24, ..to_far }).contains("24 bits"));
    assert!(refused(here.id, 1, Endpoint { number: 1 << 24, ..to_far }).contains("24 bits"));
    assert!(refused(here.id, 1, Endpoint { mtu: 1500, ..to_far }).contains("MTU"));
    assert!(refused(u64::from(here.number), 1, to_far).contains("no such"), "a number is not an id");
    assert!(refused(there.id, 1, to_far).contains("no such"), "another device's");
    assert!(refused(pair.here.id, 1, to_far).contains("before"), "connected");
}

#[test]
fn reads_are_as_many_as_both_agree() {
    let read = |reads| {
        let mut pair = Pair::with(FakeSettings { reads: 4, ..FakeSettings::default() });
        let (here, there) = (pair.near.create(), pair.far.create());
        let (to_far, to_near) = (pair.far.endpoint(there, 2), pair.near.endpoint(here, 1));
        pair.near.device.connect(here.id, 1, &Endpoint { reads, ..to_far }).expect("a connection");
        pair.far.device.connect(there.id, 2, &to_near).expect("a connection");
        let window = pair.far.open(there, 0, 8, Grant::Read);
        pair.here = here;
        let work = Work::Read { into: pair.near.piece(0, 8), from: pair.far.remote(0, window.rkey) };
        pair.ask(work)
    };
    assert_eq!(read(0), Status::LOCAL_OPERATION);
    assert_eq!(read(2), Status::SUCCESS);
    assert_eq!(read(4), Status::SUCCESS);
    assert_eq!(read(5), Status::REMOTE_REJECTED);
}

#[test]
fn a_failed_request_flushes_all_behind_it_and_all_later() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    let (good, bad) = (Work::Send(pair.near.piece(0, 1)), Work::Send(pair.near.piece(0, 9)));
    let posts = [(1, true, good), (2, false, bad), (3, false, good), (4, true, good)];
    let posts = posts.map(|(id, signaled, work)| Post { id, signaled, work });
    pair.far.receive(2, 0, 8);
    pair.near.post(pair.here, &posts).expect("four requests");
    let statuses = [Status::SUCCESS, Status::REMOTE_REJECTED, Status::FLUSHED, Status::FLUSHED];
    assert_eq!(pair.near.outcomes(), [1, 2, 3, 4].into_iter().zip(statuses).collect::<Vec<_>>());
    assert_eq!(pair.send(b"x"), Status::FLUSHED);
    assert_eq!(pair.fabric.counters_of("near").failed, 4);
}

#[test]
fn the_peer_of_a_failed_queue_pair_hears_of_it_at_its_next_request() {
    let mut pair = Pair::new();
    let work = Work::Send(pair.near.piece(4096, 1));
    assert_eq!(pair.ask(work), Status::LOCAL_PROTECTION);
    assert!(pair.far.poll().is_empty());
    assert_eq!(pair.far.device.next_event(), None);
    // What does not involve its peer still works.
    pair.far.open(pair.there, 0, 8, Grant::Write);
    pair.near.receive(1, 0, 8);
    pair.far.send(pair.there, 2, b"x");
    pair.far.send(pair.there, 3, b"x");
    assert_eq!(pair.far.outcomes(), [(2, Status::RETRIES_EXCEEDED), (3, Status::FLUSHED)]);
}

#[test]
fn a_destroyed_queue_pair_leaves_its_completions() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 8);
    pair.near.send(pair.here, 1, b"x");
    pair.fabric.pause();
    pair.near.send(pair.here, 2, b"x");
    pair.near.device.destroy(pair.here.id);
    pair.fabric.resume();
    assert_eq!(pair.near.outcomes(), [(1, Status::SUCCESS)], "what was under way has none");
    assert_eq!(pair.far.poll().len(), 1);
    pair.far.send(pair.there, 3, b"x");
    assert_eq!(pair.far.outcomes(), [(3, Status::RETRIES_EXCEEDED)]);
    let work = Work::Send(pair.near.piece(0, 1));
    assert!(pair.near.post(pair.here, &[Post { id: 4, signaled: true, work }]).is_err());
    pair.check();
}

#[test]
fn a_dropped_device_is_gone_for_its_peers() {
    let fabric = Fabric::new(1);
    let Pair { mut near, far, here, .. } = Pair::on(&fabric, FakeSettings::default());
    drop(far);
    near.send(here, 1, b"x");
    assert_eq!(near.outcomes(), [(1, Status::RETRIES_EXCEEDED)]);
    assert_eq!(fabric.counters_of("far").left_behind, 2, "a region and a queue pair");
}

#[test]
fn numbers_and_keys_are_never_used_again() {
    let fabric = Fabric::new(1);
    let mut host = Host::new(&fabric, FakeSettings::default());
    let (mut numbers, mut keys) = (Vec::new(), vec![host.region.lkey, host.region.rkey]);
    for _ in 0..10 {
        let queue_pair: QueuePair = host.create();
        numbers.push(queue_pair.number);
        host.device.destroy(queue_pair.id);
        let (region, window) = (host.register(16).expect("a region"), host.window());
        keys.extend([region.lkey, region.rkey, window.rkey]);
        host.device.deregister(region.id);
        host.device.free_window(window.id);
    }
    for mut all in [numbers, keys] {
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
    assert_eq!(fabric.violations(), [""; 0]);
    assert_ne!(FIRST_PACKETS.0, FIRST_PACKETS.1);
}
