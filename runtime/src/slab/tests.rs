//! The slab's guarantees: no overlap, every byte comes back from any thread, and memory outlives its slab.

use std::{sync::mpsc, thread};

use proptest::prelude::*;

use super::{Buffer, Slab, SlabFull, SlabSettings};
use crate::RuntimeError;

const KIB: usize = 1024;

fn slab(bytes: usize) -> Slab {
    Slab::new(SlabSettings { name: "send", bytes, populate: false }).unwrap()
}

#[test]
fn a_buffer_is_exactly_as_long_as_asked_and_aligned() {
    let slab = slab(1024 * KIB);
    let (base, bytes) = slab.region();
    assert_eq!((bytes, slab.capacity_bytes()), (1024 * KIB, 1024 * KIB));
    for len in [1, 63, 64, 65, 1000, 4096, 65_536, 65_537, 300_000] {
        let mut buffer = slab.allocate(len).unwrap();
        assert_eq!(buffer.len(), len);
        let at = buffer.as_ptr() as usize;
        assert_eq!(at % 64, 0);
        assert!(at >= base as usize && at + len <= base as usize + bytes);
        buffer.fill(7);
        assert!(buffer.iter().all(|byte| *byte == 7));
    }
    assert_eq!(slab.in_use_bytes(), 0);
}

#[test]
fn fresh_memory_is_zeroed_and_populated_memory_too() {
    let slab = Slab::new(SlabSettings { bytes: 256 * KIB, ..SlabSettings::default() }).unwrap();
    assert!(slab.allocate(100 * KIB).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn nothing_takes_nothing_even_from_a_full_slab() {
    let slab = slab(4 * KIB);
    let all = slab.allocate(4 * KIB).unwrap();
    let nothing = slab.allocate(0).unwrap();
    assert!(nothing.is_empty());
    assert_eq!(slab.in_use_bytes(), 4 * KIB);
    drop((all, nothing));
    assert_eq!(slab.in_use_bytes(), 0);
}

#[test]
fn a_full_slab_says_what_it_lacks() {
    let slab = slab(64 * KIB);
    let _half = slab.allocate(32 * KIB).unwrap();
    let full = slab.allocate(64 * KIB).unwrap_err();
    let expected = SlabFull { name: "send", requested: 64 * KIB, available: 32 * KIB, limit: 64 * KIB };
    assert_eq!(full, expected);
    assert!(full.to_string().contains("send slab is full"));
}

#[test]
fn impossible_sizes_are_refused() {
    for bytes in [0, 1 << 60] {
        let error = Slab::new(SlabSettings { bytes, ..SlabSettings::default() }).unwrap_err();
        assert!(matches!(error, RuntimeError::Setting { setting: "bytes", .. }), "{error}");
    }
}

#[test]
fn a_truncated_buffer_keeps_its_block() {
    let slab = slab(64 * KIB);
    let mut buffer = slab.allocate(100).unwrap();
    buffer.truncate(200);
    assert_eq!(buffer.len(), 100);
    buffer.truncate(10);
    assert_eq!(buffer.len(), 10);
    assert_eq!(slab.in_use_bytes(), 128);
    drop(buffer);
    assert_eq!(slab.in_use_bytes(), 0);
}

#[test]
fn a_heap_buffer_gives_its_vector_back_and_a_slab_buffer_itself() {
    let mut heap = Buffer::from_vec(vec![1, 2, 3]);
    heap.truncate(2);
    assert_eq!(format!("{heap:?}"), "Buffer(2 bytes, heap)");
    assert_eq!(heap.into_vec().unwrap(), [1, 2]);
    let slab = slab(64 * KIB);
    let buffer = slab.allocate(5).unwrap().into_vec().unwrap_err();
    assert_eq!(format!("{buffer:?}"), "Buffer(5 bytes, slab)");
    assert_eq!(slab.in_use_bytes(), 64);
}

#[test]
fn the_memory_outlives_the_slab() {
    let filled = |slab: &Slab, number: u8| {
        let mut buffer = slab.allocate(1000).unwrap();
        buffer.fill(number);
        buffer
    };
    let is_intact = |buffer: &Buffer, number: u8| buffer.iter().all(|byte| *byte == number);
    // None, some or all of the buffers are dropped on the owner's thread, before and after the others.
    for here in 0..=4_u8 {
        let slab = slab(64 * KIB);
        let (mine, theirs): (Vec<_>, Vec<_>) =
            (0..4).map(|number| (number, filled(&slab, number))).partition(|(n, _)| *n < here);
        let threads: Vec<_> = theirs
            .into_iter()
            .map(|(number, buffer)| thread::spawn(move || assert!(is_intact(&buffer, number))))
            .collect();
        drop(slab);
        if here % 2 == 0 {
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            mine.into_iter().for_each(|(number, buffer)| assert!(is_intact(&buffer, number)));
        } else {
            mine.into_iter().for_each(|(number, buffer)| assert!(is_intact(&buffer, number)));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(usize),
    DropHere(prop::sample::Index),
    DropElsewhere(prop::sample::Index),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0_u32..17, 0.0..1.0).prop_map(|(power, part)| {
            Step::Allocate(((1_usize << power) as f64 * (1.0 + part)) as usize)
        }),
        1 => any::<prop::sample::Index>().prop_map(Step::DropHere),
        1 => any::<prop::sample::Index>().prop_map(Step::DropElsewhere),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_two_buffers_overlap_and_all_bytes_come_back(steps in prop::collection::vec(step(), 1..200)) {
        let slab = slab(512 * KIB);
        let (sender, receiver) = mpsc::channel::<Buffer>();
        let elsewhere = thread::spawn(move || receiver.into_iter().for_each(drop));
        let mut held: Vec<(u8, Buffer)> = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            match step {
                Step::Allocate(len) => match slab.allocate(len) {
                    Ok(mut buffer) => {
                        prop_assert_eq!(buffer.len(), len);
                        buffer.fill(number as u8);
                        held.push((number as u8, buffer));
                    }
                    Err(full) => prop_assert_eq!(full.requested, len),
                },
                Step::DropHere(index) if !held.is_empty() => {
                    held.swap_remove(index.index(held.len()));
                }
                Step::DropElsewhere(index) if !held.is_empty() => {
                    sender.send(held.swap_remove(index.index(held.len())).1).unwrap();
                }
                _ => {}
            }
        }
        // Every buffer was filled with its own number: an overlap shows a different number.
        for (number, buffer) in &held {
            prop_assert!(buffer.iter().all(|byte| byte == number));
        }
        drop((held, sender));
        elsewhere.join().unwrap();
        prop_assert_eq!(slab.in_use_bytes(), 0);
        let whole = slab.allocate(512 * KIB);
        prop_assert!(whole.is_ok(), "free space is coalesced again");
    }
}
