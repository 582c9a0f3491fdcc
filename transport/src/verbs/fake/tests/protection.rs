//! Who may access which memory.

use super::harness::{Host, MEMORY, Pair};
use crate::verbs::device::{Access, Device, Grant, Piece, Remote, Status, Window, Work};
use crate::verbs::fake::FakeSettings;

/// The status of a write of 8 bytes to `to`.
fn write(pair: &mut Pair, to: Remote) -> Status {
    let from = pair.near.piece(0, 8);
    pair.ask(Work::Write { from, to, word: None })
}

#[test]
fn local_memory_must_be_within_a_region_of_the_device() {
    let wrong: [fn(&Pair) -> Piece; 6] = [
        |pair| pair.near.piece(MEMORY - 3, 4),
        |pair| Piece { address: pair.near.address(0) - 1, ..pair.near.piece(0, 4) },
        |pair| Piece { address: u64::MAX, ..pair.near.piece(0, 4) },
        |pair| Piece { lkey: pair.near.region.rkey, ..pair.near.piece(0, 4) },
        |pair| Piece { lkey: pair.far.region.lkey, ..pair.near.piece(0, 4) },
        |pair| Piece { lkey: 0, ..pair.near.piece(0, 4) },
    ];
    for piece in wrong {
        let mut pair = Pair::new();
        pair.far.receive(1, 0, 64);
        let work = Work::Send(piece(&pair));
        assert_eq!(pair.ask(work), Status::LOCAL_PROTECTION, "{work:?}");
        assert!(pair.far.poll().is_empty(), "the peer heard nothing");
    }
    let mut pair = Pair::new();
    let window = pair.far.open(pair.there, 0, 8, Grant::Read);
    let into = pair.near.piece(MEMORY, 8);
    let work = Work::Read { into, from: pair.far.remote(0, window.rkey) };
    assert_eq!(pair.ask(work), Status::LOCAL_PROTECTION);
}

#[test]
fn no_bytes_need_no_memory() {
    let mut pair = Pair::new();
    pair.far.receive(1, 0, 0);
    let from = Piece { address: 0, bytes: 0, lkey: 0 };
    let work = Work::Write { from, to: Remote { address: 0, rkey: 0 }, word: Some(5) };
    assert_eq!(pair.ask(work), Status::SUCCESS);
    assert_eq!(pair.far.poll()[0].word, Some(5));
}

#[test]
fn a_receive_buffer_outside_of_regions_fails_both_sides() {
    let mut pair = Pair::new();
    pair.far.receive(1, MEMORY - 1, 8);
    assert_eq!(pair.send(b"x"), Status::REMOTE_OPERATION);
    assert_eq!(pair.far.outcomes(), [(1, Status::LOCAL_PROTECTION)]);
}

#[test]
fn a_window_opens_under_its_present_key_to_its_own_peer_alone() {
    type To = fn(&mut Pair, Window) -> Remote;
    let cases: [(&str, To, Status); 7] = [
        ("its key", |pair, window| pair.far.remote(100, window.rkey), Status::SUCCESS),
        ("the key before", |pair, window| pair.far.remote(100, window.rkey - 1), Status::REMOTE_ACCESS),
        ("the next key", |pair, window| pair.far.remote(100, window.next_key()), Status::REMOTE_ACCESS),
        ("its region's", |pair, _| pair.far.remote(100, pair.far.region.rkey), Status::REMOTE_ACCESS),
        ("its region's local one", |pair, _| pair.far.remote(100, pair.far.region.lkey), Status::REMOTE_ACCESS),
        ("another device's", |pair, _| pair.far.remote(100, pair.near.region.rkey), Status::REMOTE_ACCESS),
        (
            "the end of the address space",
            |_, window| Remote { address: u64::MAX - 3, rkey: window.rkey },
            Status::REMOTE_ACCESS,
        ),
    ];
    for (name, to, status) in cases {
        let mut pair = Pair::new();
        let window = pair.far.open(pair.there, 100, 100, Grant::Write);
        let to = to(&mut pair, window);
        assert_eq!(write(&mut pair, to), status, "{name}");
    }
    let mut pair = Pair::new();
    let (_, other_there) = pair.join();
    let window = pair.far.open(other_there, 0, 8, Grant::Write);
    let to = pair.far.remote(0, window.rkey);
    assert_eq!(write(&mut pair, to), Status::REMOTE_ACCESS, "another queue pair's");
    let mut pair = Pair::new();
    let window = pair.far.open(pair.there, 0, 8, Grant::Read);
    let to = pair.far.remote(0, window.rkey);
    assert_eq!(write(&mut pair, to), Status::REMOTE_ACCESS, "granted for reading");
}

#[test]
fn a_freed_window_and_one_whose_region_is_gone_open_nothing() {
    let mut pair = Pair::new();
    let window = pair.far.open(pair.there, 0, 8, Grant::Write);
    pair.far.device.free_window(window.id);
    let to = pair.far.remote(0, window.rkey);
    assert_eq!(write(&mut pair, to), Status::REMOTE_ACCESS);
    pair.check();

    let mut pair = Pair::new();
    let window = pair.far.open(pair.there, 0, 8, Grant::Write);
    let region = pair.far.region.id;
    pair.far.device.deregister(region);
    let to = pair.far.remote(0, window.rkey);
    assert_eq!(write(&mut pair, to), Status::REMOTE_ACCESS);
    assert_eq!(pair.fabric.violations().len(), 1, "a window was bound to it");
}

#[test]
fn a_bind_that_does_not_fit_fails() {
    type Change = fn(&mut Host, Work) -> Work;
    let wrong: [(&str, Change); 9] = [
        ("too long", |_, work| change(work, |bind| bind.bytes = MEMORY as u64 + 1)),
        ("too far", |_, work| change(work, |bind| bind.address += MEMORY as u64)),
        ("wrapping", |_, work| change(work, |bind| bind.bytes = u64::MAX)),
        ("empty", |_, work| change(work, |bind| bind.bytes = 0)),
        ("no region", |_, work| change(work, |bind| bind.region += 1000)),
        ("the same key", |_, work| change(work, |bind| bind.rkey = bind.window.rkey)),
        ("another key", |_, work| change(work, |bind| bind.rkey += 1)),
        ("an old key", |_, work| change(work, |bind| bind.window.rkey = bind.rkey)),
        ("freed", |host, work| {
            change(work, |bind| {
                host.device.free_window(bind.window.id);
            })
        }),
    ];
    for (name, change) in wrong {
        let mut pair = Pair::new();
        let (_, work) = pair.near.bind(0, 8, Grant::Write);
        let work = change(&mut pair.near, work);
        assert_eq!(pair.ask(work), Status::WINDOW_BIND, "{name}");
    }
}

struct Bind {
    window: Window,
    rkey: u32,
    region: u32,
    address: u64,
    bytes: u64,
}

fn change(work: Work, change: impl FnOnce(&mut Bind)) -> Work {
    let Work::Bind { window, rkey, region, address, bytes, grant } = work else {
        panic!("not a bind: {work:?}");
    };
    let mut bind = Bind { window, rkey, region, address, bytes };
    change(&mut bind);
    let Bind { window, rkey, region, address, bytes } = bind;
    Work::Bind { window, rkey, region, address, bytes, grant }
}

#[test]
fn a_window_that_is_bound_cannot_be_bound_again() {
    let mut pair = Pair::new();
    let window = pair.near.open(pair.here, 0, 8, Grant::Write);
    let (region, address, rkey) = (pair.near.region.id, pair.near.address(0), window.next_key());
    let work = Work::Bind { window, rkey, region, address, bytes: 8, grant: Grant::Write };
    assert_eq!(pair.ask(work), Status::WINDOW_BIND);
}

#[test]
fn a_window_is_invalidated_through_its_queue_pair_only() {
    let mut pair = Pair::new();
    let (other_here, _) = pair.join();
    let window = pair.near.open(other_here, 0, 8, Grant::Write);
    assert_eq!(pair.ask(Work::Invalidate { rkey: window.rkey }), Status::LOCAL_OPERATION);

    let mut pair = Pair::new();
    let rkey = pair.near.region.rkey;
    assert_eq!(pair.ask(Work::Invalidate { rkey }), Status::LOCAL_OPERATION);
}

#[test]
fn a_window_of_a_destroyed_queue_pair_is_counted_and_stays_closed() {
    let mut pair = Pair::new();
    let (other_here, here) = (pair.join().0, pair.here);
    let window = pair.near.open(other_here, 0, 8, Grant::Write);
    pair.near.device.destroy(other_here.id);
    assert_eq!(pair.fabric.counters_of("near").windows_orphaned, 1);
    let work = Work::Write { from: pair.far.piece(0, 8), to: pair.near.remote(0, window.rkey), word: None };
    pair.far.ask(pair.there, 1, work);
    assert_eq!(pair.far.outcomes(), [(1, Status::REMOTE_ACCESS)]);
    let rkey = window.next_key();
    let (region, address) = (pair.near.region.id, pair.near.address(0));
    pair.near.ask(here, 2, Work::Bind { window, rkey, region, address, bytes: 8, grant: Grant::Write });
    // The peer's queue pair has failed, which does not affect a bind.
    assert_eq!(pair.near.outcomes(), [(2, Status::WINDOW_BIND)]);
    pair.near.device.free_window(window.id);
    assert_eq!(pair.fabric.counters_of("near").windows, 0);
}

#[test]
fn without_windows_a_region_may_be_open_to_peers() {
    let mut pair = Pair::with(FakeSettings { has_windows: false, ..FakeSettings::default() });
    assert!(!pair.far.device.attributes().has_windows);
    let rkey = pair.far.region.rkey;
    let to = pair.far.remote(4000, rkey);
    assert_eq!(write(&mut pair, to), Status::SUCCESS);
    let work = Work::Read { into: pair.near.piece(0, 8), from: to };
    assert_eq!(pair.ask(work), Status::SUCCESS);
    let to = pair.far.remote(MEMORY - 7, rkey);
    assert_eq!(write(&mut pair, to), Status::REMOTE_ACCESS);
}

#[test]
fn a_region_that_is_open_to_peers_takes_no_windows() {
    for (access, status) in [(Access::Windows, Status::SUCCESS), (Access::Peers, Status::WINDOW_BIND)] {
        let mut pair = Pair::new();
        let region = pair.near.register_as(MEMORY, access).expect("a region");
        let (_, work) = pair.near.bind(0, 8, Grant::Write);
        let work = change(work, |bind| bind.region = region.id);
        assert_eq!(pair.ask(work), status);
    }
}

#[test]
fn regions_and_windows_of_another_device_are_of_no_use() {
    let mut pair = Pair::new();
    let (region, address) = (pair.far.region.id, pair.far.address(0));
    let (_, work) = pair.near.bind(0, 8, Grant::Write);
    let work = change(work, |bind| (bind.region, bind.address) = (region, address));
    assert_eq!(pair.ask(work), Status::WINDOW_BIND);

    let mut pair = Pair::new();
    let window = pair.far.window();
    let (_, work) = pair.near.bind(0, 8, Grant::Write);
    let work = change(work, |bind| (bind.window, bind.rkey) = (window, window.next_key()));
    assert_eq!(pair.ask(work), Status::WINDOW_BIND);
}
