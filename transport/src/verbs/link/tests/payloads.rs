//! Payloads beside the frames: from and into memory of every kind, and by copy where the memory is not registered.

use super::harness::{Fate, Into, LARGE, Manner, Pair};
use crate::verbs::fake::{RequestKind, Verb};
use crate::verbs::limits::{PIECE_BYTES, TRANSFERS_MAX};
use crate::verbs::settings::Transfer;

const BOTH: [Transfer; 2] = [Transfer::Write, Transfer::Read];

fn manners() -> Vec<Manner> {
    let each = |transfer| {
        let manner = || Manner::with(transfer);
        [
            manner(),
            manner().registering_each(),
            manner().without_windows(),
            manner().registering_each().without_windows(),
            manner().tiny(),
        ]
    };
    BOTH.into_iter().flat_map(each).collect()
}

#[test]
fn tensors_of_every_size_go_between_memory_of_every_kind() {
    let sizes = [0, 1, 8192, 8193, LARGE, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 5];
    for manner in manners() {
        for sends_from_slab in [false, true] {
            let mut pair = Pair::new(&manner);
            for side in &mut pair.sides {
                side.sends_from_slab = sends_from_slab;
                let kinds = [Into::Anywhere, Into::Heap, Into::Slab];
                for (number, size) in sizes.into_iter().enumerate() {
                    side.ask(pair.now, number as u32, size, kinds[number % 3]);
                    side.ask(pair.now, (number + sizes.len()) as u32, size, kinds[(number + 1) % 3]);
                }
            }
            pair.settle();
            for side in 0..2 {
                for number in 0..2 * sizes.len() {
                    let fate = pair.fate(side, number as u32);
                    assert!(matches!(fate, Fate::Arrived { bytes, .. } if *bytes == sizes[number % sizes.len()]));
                }
                assert_eq!(pair.sides[side].home.len(), 2 * sizes.len());
                assert_eq!(pair.sides[side].slab.in_use_bytes(), 0);
            }
            pair.check();
        }
    }
}

#[test]
fn what_lies_in_the_slab_is_never_registered_again() {
    for transfer in BOTH {
        let mut pair = Pair::new(&Manner::with(transfer));
        pair.sides[1].sends_from_slab = true;
        for (number, into) in [(0, Into::Anywhere), (1, Into::Slab)] {
            pair.sides[0].ask(pair.now, number, LARGE, into);
        }
        pair.settle();
        assert_eq!(pair.sides.each_ref().map(|side| side.port.counters().registrations), [0, 0]);
        // From a vector of the producer, into a vector of the consumer.
        pair.sides[1].sends_from_slab = false;
        pair.sides[0].ask(pair.now, 2, LARGE, Into::Heap);
        pair.settle();
        assert_eq!(pair.sides.each_ref().map(|side| side.port.counters().registrations), [1, 1]);
        pair.check();
    }
}

#[test]
fn with_dynamic_registration_everything_is_registered_each_time() {
    for transfer in BOTH {
        let mut pair = Pair::new(&Manner::with(transfer).registering_each());
        pair.sides[1].sends_from_slab = true;
        for number in 0..5 {
            pair.sides[0].ask(pair.now, number, LARGE, Into::Anywhere);
        }
        pair.settle();
        assert_eq!(pair.sides.each_ref().map(|side| side.port.counters().registrations), [5, 5]);
        pair.check();
    }
}

/// On either side, registering or opening a window fails: the payload arrives all the same, in messages.
#[test]
fn what_cannot_be_registered_or_opened_goes_by_copy() {
    for transfer in BOTH {
        for side in 0..2 {
            for verb in [Verb::Register, Verb::AllocateWindow] {
                for into in [Into::Anywhere, Into::Heap] {
                    let mut pair = Pair::new(&Manner::with(transfer).registering_each());
                    for skip in [0, 0, 0] {
                        pair.fail(side, verb, skip);
                    }
                    pair.sides[0].ask(pair.now, 0, 5 * LARGE, into);
                    pair.settle();
                    assert!(matches!(pair.fate(0, 0), Fate::Arrived { .. }));
                    assert_eq!(pair.sides[1].home, [(0, true)]);
                    // The side that opens windows: the producer if the consumer reads, otherwise the consumer.
                    let opens = if transfer == Transfer::Read { 1 } else { 0 };
                    let streamed = pair.sides[1].port.counters().payloads_streamed;
                    let expected = verb == Verb::Register || side == opens;
                    assert_eq!(streamed, u64::from(expected), "{transfer:?}, side {side}, {verb:?}");
                    pair.check();
                }
            }
        }
    }
}

#[test]
fn many_that_go_by_copy_take_turns_with_the_others() {
    for manner in manners() {
        let mut pair = Pair::new(&manner);
        for side in &mut pair.sides {
            side.parks = true;
            for number in 0..40 {
                side.ask(pair.now, number, 20_000 + number as usize, Into::Heap);
            }
        }
        pair.run(|pair| pair.sides.iter().all(|side| side.parked.len() == 40));
        for skip in 0..20 {
            pair.fail(0, Verb::Register, skip % 3);
            pair.fail(1, Verb::Register, skip % 2);
        }
        pair.sides.iter_mut().for_each(|side| side.answer_parked());
        pair.settle();
        assert!((0..80).all(|number| matches!(pair.fate(number / 40, number as u32 % 40), Fate::Arrived { .. })));
        assert!(pair.sides.iter().all(|side| side.port.counters().payloads_streamed > 0));
        pair.check();
    }
}

#[test]
fn more_payloads_than_transfers_wait_for_each_other() {
    for manner in manners() {
        let mut pair = Pair::new(&manner);
        let count = 4 * TRANSFERS_MAX;
        for number in 0..count {
            pair.sides[0].ask(pair.now, number as u32, 9_000 + number, Into::Heap);
        }
        pair.settle();
        let numbers: Vec<_> = pair.sides[0].fates.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers.len(), count);
        assert_eq!(pair.sides[1].home.len(), count);
        pair.check();
    }
}

#[test]
fn small_messages_share_one_send() {
    let mut pair = Pair::new(&Manner::default());
    for number in 0..100 {
        pair.sides[0].ask(pair.now, number, 64, Into::Anywhere);
    }
    pair.settle();
    // One message with 100 requests, one with 100 answers, one with releases, and acknowledgements.
    let sends = |side| pair.counters(side).of(RequestKind::Send).requests;
    assert!(sends(0) <= 3 && sends(1) <= 3, "{} and {}", sends(0), sends(1));
    pair.check();
}
