//! Device memory that is exported as a dma-buf: accessed directly once it is registered; copied before that, and where it cannot be
//! registered.

use std::time::Duration;

use sealane_runtime::Reach;

use super::harness::{Fate, Into, LARGE, Manner, Pair};
use super::stage::{Fixture, TURNS, place_in, response};
use crate::error::{Code, LinkError};
use crate::fake_device::{Copies, FakeDevice};
use crate::verbs::device::{Remote, Status};
use crate::verbs::fake::Verb;
use crate::verbs::limits::PIECE_BYTES;
use crate::verbs::message::Part;
use crate::verbs::settings::Transfer;

const BOTH: [Transfer; 2] = [Transfer::Write, Transfer::Read];
const EXPORTED: usize = 32 << 20;

/// Two sides that each have device memory, none of it registered.
fn unregistered(manner: &Manner) -> (Pair, FakeDevice) {
    let device = FakeDevice::default();
    let mut pair = Pair::new(manner);
    for side in &mut pair.sides {
        side.export = Some(device.export(EXPORTED));
        side.sends_from_device = true;
        side.session.set_copy_slab(side.slab.clone());
    }
    (pair, device)
}

/// As `unregistered`, after tensors have moved from and to the memory, which is registered by then.
fn pair(manner: &Manner) -> (Pair, FakeDevice) {
    let (mut pair, device) = unregistered(manner);
    pair.sides.iter_mut().for_each(|side| _ = side.ask(pair.now, 1_000_000, LARGE, Into::Device));
    pair.settle();
    until_registered(&mut pair);
    (pair, device)
}

fn until_registered(pair: &mut Pair) {
    for side in &mut pair.sides {
        while side.port.state().regions.awaits() {
            side.poll();
        }
    }
}

fn reach(pair: &Pair, side: usize) -> Reach {
    let side = &pair.sides[side];
    let reacher = side.port.state().regions.direct.reacher();
    side.export.as_ref().expect("it has some").region().reach(reacher)
}

fn direct_counts(pair: &Pair, side: usize) -> (u64, u64) {
    let counters = pair.sides[side].port.counters();
    (counters.direct_regions, counters.direct_refused)
}

/// Ends everything and checks that no handle is left and nothing is registered.
fn ends(mut pair: Pair, device: &FakeDevice) {
    pair.sides.iter_mut().for_each(|side| side.export = None);
    pair.settle();
    until_registered(&mut pair);
    assert_eq!(([0, 1].map(|side| direct_counts(&pair, side).0), device.in_use_bytes()), ([0, 0], 0));
    pair.check();
}

#[test]
fn tensors_go_from_and_to_registered_memory_without_a_copy() {
    for transfer in BOTH {
        let manner = || Manner::with(transfer);
        let others = [manner().registering_each(), manner().without_windows(), manner().tiny()];
        for manner in [manner()].into_iter().chain(others) {
            let (mut pair, device) = pair(&manner);
            assert_eq!([0, 1].map(|side| direct_counts(&pair, side)), [(1, 0); 2]);
            let (before, flushes, now) = (device.copies(), device.flushes(), pair.now);
            let sizes = [8193, LARGE, PIECE_BYTES, 3 * PIECE_BYTES + 5];
            for (number, size) in (0..).zip(sizes) {
                // From device to device, from device to host, and from host to device.
                pair.sides[0].ask(now, number, size, Into::Device);
                pair.sides[0].ask(now, number + 4, size, Into::Heap);
                pair.settle();
                pair.sides[1].sends_from_device = false;
                pair.sides[0].ask(now, number + 8, size, Into::Device);
                pair.settle();
                pair.sides[1].sends_from_device = true;
            }
            // Comparing the tensors that came takes copies.
            let copies = Copies { to_host: before.to_host + 8, ..before };
            assert_eq!((device.copies(), device.flushes()), (copies, flushes + 8), "{transfer:?}");
            // In a frame, it is copied.
            pair.sides[0].ask(now, 12, 8192, Into::Device);
            pair.settle();
            let copies = Copies { to_host: copies.to_host + 2, from_host: copies.from_host + 1 };
            assert_eq!(device.copies(), copies);
            let sizes = sizes.into_iter().cycle().take(12).chain([8192]);
            for (number, size) in sizes.enumerate() {
                assert!(matches!(pair.fate(0, number as u32), Fate::Arrived { bytes, .. } if *bytes == size));
            }
            assert_eq!(pair.sides[1].port.counters().payloads_streamed, 0);
            ends(pair, &device);
        }
    }
}

#[test]
fn tensors_are_copied_until_their_memory_is_registered_and_where_it_cannot_be() {
    let mut cannot = Manner::default();
    cannot.device.registers_direct = false;
    let mut slow = Manner::default();
    slow.device.register_time_per_mib = Duration::from_millis(25);
    for (manner, fails, regions) in [(slow, false, (1, 0)), (cannot, false, (0, 1)), (Manner::default(), true, (0, 1))]
    {
        let (mut pair, device) = unregistered(&manner);
        if fails {
            [0, 1].iter().for_each(|side| pair.fail(*side, Verb::Register, 0));
        }
        for number in 0..2 {
            pair.sides[0].ask(pair.now, number, LARGE, Into::Device);
            pair.settle();
            let each = u64::from(number) + 1;
            assert_eq!(device.copies(), Copies { to_host: 2 * each, from_host: each });
        }
        until_registered(&mut pair);
        assert_eq!([0, 1].map(|side| direct_counts(&pair, side)), [regions; 2]);
        assert_eq!(reach(&pair, 0), if regions.0 > 0 { Reach::Yes } else { Reach::No });
        ends(pair, &device);
    }
}

#[test]
fn memory_that_is_given_up_while_it_is_registered_leaves_nothing_behind() {
    let mut manner = Manner::default();
    manner.device.register_time_per_mib = Duration::from_millis(25);
    let (mut pair, device) = unregistered(&manner);
    pair.sides[0].ask(pair.now, 1, LARGE, Into::Device);
    pair.settle();
    assert!(pair.sides[0].port.state().regions.awaits());
    pair.sides[0].export = None;
    ends(pair, &device);
}

/// A transfer that began directly ends directly, and later ones are copied; the registration ends with the last handle.
#[test]
fn memory_that_is_withdrawn_in_the_middle_is_kept_for_what_has_begun() {
    for transfer in BOTH {
        let (mut pair, device) = pair(&Manner::with(transfer));
        let (before, now) = (device.copies(), pair.now);
        pair.sides[1].parks = true;
        pair.sides[0].ask(now, 1, 3 * PIECE_BYTES, Into::Device);
        pair.run(|pair| !pair.sides[1].parked.is_empty());
        let withdrawn: Vec<_> = pair.sides.iter_mut().filter_map(|side| side.export.take()).collect();
        // The place is announced, and its producer has decided how to answer.
        withdrawn[0].region().withdraw();
        pair.sides[1].export = withdrawn.get(1).cloned();
        pair.sides[1].answer_parked();
        pair.sides[1].session.fill(now, false);
        withdrawn[1].region().withdraw();
        pair.settle();
        assert!(matches!(pair.fate(0, 1), Fate::Arrived { .. }));
        assert_eq!(device.copies(), Copies { to_host: before.to_host + 1, ..before }, "it is compared");
        assert_eq!(direct_counts(&pair, 0), (1, 0), "there is a handle");
        pair.sides[0].export = withdrawn.into_iter().next();
        pair.sides[1].sends_from_device = false;
        pair.sides[1].parks = false;
        let copies = device.copies();
        pair.sides[0].ask(now, 2, LARGE, Into::Device);
        pair.settle();
        assert_eq!(device.copies().from_host, copies.from_host + 1, "by copy");
        ends(pair, &device);
    }
}

/// At every step of the fabric: whenever a request is given up, its memory comes back once the peer cannot reach it any more.
#[test]
fn a_request_into_a_devices_memory_may_be_given_up_at_every_step() {
    for manner in [Manner::default(), Manner::default().without_windows(), Manner::default().tiny()] {
        for steps in 0..40 {
            let (mut pair, device) = pair(&manner);
            let (request, _) = pair.sides[0].ask(pair.now, 1, LARGE, Into::Device);
            pair.fabric.pause();
            for _ in 0..steps {
                pair.fabric.step();
                for side in 0..2 {
                    pair.turn(side).expect("a healthy link");
                }
            }
            pair.sides[0].session.cancel(request);
            pair.fabric.resume();
            pair.settle();
            pair.sides[0].fates.clear();
            pair.run(|_| device.in_use_bytes() == 0);
            ends(pair, &device);
        }
    }
}

#[test]
fn a_small_answer_to_an_announced_place_of_a_devices_is_told_when_that_is_closed() {
    let (mut pair, device) = pair(&Manner::default());
    for number in 0..20 {
        pair.sides[0].ask_with_room(pair.now, number, (100, LARGE), Into::Device);
        // The copy into device memory fails once.
        device.fail_after(1, u64::from(number == 7));
        pair.settle();
        match pair.fate(0, number) {
            Fate::Arrived { bytes, .. } => assert!(number != 7 && *bytes == 100),
            Fate::Ended(code) => assert!(number == 7 && *code == Code::Unavailable, "{number}: {code:?}"),
        }
    }
    pair.sides[0].fates.clear();
    ends(pair, &device);
}

#[test]
fn a_tensor_that_a_device_cannot_see_is_not_handed_on() {
    let (mut pair, device) = pair(&Manner::default());
    pair.sides[0].ask(pair.now, 1, LARGE, Into::Device);
    device.fail_after(0, 1);
    pair.settle();
    assert_eq!(*pair.fate(0, 1), Fate::Ended(Code::Unavailable));
    assert_eq!(pair.sides[1].home.last(), Some(&(1, false)), "the producer has it back");
    ends(pair, &device);
}

/// Without free windows, or with memory at the other end that cannot be registered, payloads go in messages, in parts that are copied one
/// by one; a copy that fails ends the link and is repeated on the next.
#[test]
fn a_transfer_without_a_window_is_copied_in_parts() {
    for (transfer, fails) in BOTH.into_iter().flat_map(|transfer| [(transfer, false), (transfer, true)]) {
        let (mut pair, device) = pair(&Manner::with(transfer));
        pair.lose();
        pair.drain();
        pair.connect();
        (0..2).for_each(|side| (0..4).for_each(|_| pair.fail(side, Verb::AllocateWindow, 0)));
        let before = device.copies();
        pair.sides[0].ask(pair.now, 1, LARGE, Into::Device);
        if fails {
            device.fail_after(2, 1);
            let (_, error) = pair.run_to_the_end();
            assert!(matches!(error, LinkError::Verbs(_) | LinkError::Closed), "{error}");
            pair.lose();
            pair.drain();
            pair.connect();
        }
        pair.settle();
        assert!(matches!(pair.fate(0, 1), Fate::Arrived { bytes: LARGE, .. }));
        assert!(device.copies().to_host > before.to_host + 2, "{transfer:?}: {:?}", device.copies());
        ends(pair, &device);
    }
}

/// An honest side that has announced a place in device memory to a peer that is only a queue pair.
fn announced() -> (Fixture, FakeDevice, crate::Handle) {
    let mut stage = Fixture::new(Transfer::Write);
    let device = FakeDevice::default();
    let export = device.export(EXPORTED);
    let reacher = stage.side.port.state().regions.direct.reacher();
    assert_eq!(export.region().reach(reacher), Reach::New);
    let memory = std::sync::Arc::downgrade(export.region());
    stage.side.session.outbox().unregistered().push(memory);
    stage.turns();
    assert_eq!(export.region().reach(reacher), Reach::Yes);
    stage.side.export = Some(export);
    let (id, _) = stage.asked(LARGE, Into::Device);
    (stage, device, id)
}

#[test]
fn a_peer_reaches_a_devices_memory_through_its_window_alone() {
    let size = LARGE as u64;
    for (at, is_revoked, status) in [
        (0, false, Status::SUCCESS),
        (size - 16, false, Status::SUCCESS),
        (size - 15, false, Status::REMOTE_ACCESS),
        (u64::MAX, false, Status::REMOTE_ACCESS),
        (0, true, Status::REMOTE_ACCESS),
    ] {
        let (mut stage, device, id) = announced();
        let (_, place) = place_in(&stage.hear());
        if is_revoked {
            stage.side.session.cancel(id).expect("it waits");
            stage.turns();
            assert_eq!(device.in_use_bytes(), LARGE, "the peer may write there still");
            stage.say(&[Part::Revoked { request: id.to_bits() }]);
            stage.turns();
            assert_eq!(device.in_use_bytes(), 0, "it is closed");
        }
        stage.outcomes();
        stage.write(Remote { address: place.address.wrapping_add(at), ..place }, &[7; 16], None);
        stage.side.poll();
        assert_eq!(stage.outcomes(), [status], "at {at}");
        stage.check();
        assert_eq!(device.in_use_bytes(), 0);
    }
}

#[test]
fn bytes_of_a_devices_tensor_among_the_frames_end_the_link_and_no_more() {
    let (mut stage, device, id) = announced();
    stage.say(&[Part::Frames(&response(id, LARGE)), Part::Frames(&[1; 100])]);
    let error = stage.error();
    assert!(matches!(error, LinkError::Protocol(_)) && error.to_string().contains("beside the frames"), "{error}");
    stage.side.lose();
    assert_eq!(device.in_use_bytes(), LARGE, "its request has it again");
    stage.check();
    assert_eq!(device.in_use_bytes(), 0);

    // In one part with its frame, it arrives in host memory, as on any other link.
    let (mut stage, device, id) = announced();
    let mut both = response(id, LARGE);
    both.extend([1; 100]);
    stage.say(&[Part::Frames(&both)]);
    for _ in 0..TURNS {
        let _ = stage.turn();
    }
    stage.check();
    assert_eq!(device.in_use_bytes(), 0);
}
