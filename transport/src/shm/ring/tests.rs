//! The ring on heap memory: order, a full ring, and what the other side may do to it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{lap, memory::Heap};
use crate::shm::{
    Broken, Completion, PushError, Reader, Record, Submission, Writer,
    limits::{CONTENT_WORDS, RECORD_SLOTS_MAX, RECORD_WORDS_MAX, SLOTS},
};

fn ends<const N: usize>() -> (Heap<N>, Writer<Heap<N>>, Reader<Heap<N>>) {
    let memory = Heap::new();
    (memory.clone(), Writer::new(memory.clone()), Reader::new(memory))
}

fn record(kind: u8, len: usize) -> Record {
    let mut record = Record::new();
    let content: Vec<u64> = (0..len as u64).map(|word| u64::from(kind) << 32 | word).collect();
    record.set(kind, &content);
    record
}

fn popped<const N: usize>(reader: &mut Reader<Heap<N>>) -> Option<(u8, Vec<u64>)> {
    let mut record = Record::new();
    reader.pop(&mut record).unwrap().then(|| (record.kind, record.content().to_vec()))
}

#[test]
fn records_of_every_length_arrive_in_order() {
    let (_, mut writer, mut reader) = ends::<64>();
    for len in 0..=RECORD_WORDS_MAX {
        let sent = record(len as u8, len);
        assert!(reader.is_empty());
        writer.push(&sent).unwrap();
        assert!(!reader.is_empty());
        assert_eq!(popped(&mut reader), Some((sent.kind, sent.content().to_vec())));
        reader.publish();
    }
    assert_eq!(popped(&mut reader), None);
}

#[test]
fn a_full_ring_takes_nothing_until_slots_are_published() {
    let (_, mut writer, mut reader) = ends::<8>();
    let two_slots = record(1, CONTENT_WORDS + 1);
    for _ in 0..4 {
        writer.push(&two_slots).unwrap();
    }
    assert_eq!(writer.push(&record(2, 0)), Err(PushError::Full));
    assert_eq!((writer.free_slots(), writer.behind()), (Ok(0), Some(0)));
    assert!(popped(&mut reader).is_some());
    // After a quarter of the ring the reader publishes its head by itself.
    assert_eq!((writer.free_slots(), writer.behind()), (Ok(2), Some(2)));
    writer.push(&record(2, 0)).unwrap();
    assert_eq!(writer.push(&two_slots), Err(PushError::Full));
    while popped(&mut reader).is_some() {}
    reader.publish();
    assert_eq!((writer.free_slots(), writer.behind()), (Ok(8), None));
}

#[test]
fn the_reader_publishes_only_when_told_or_after_a_quarter() {
    let (memory, mut writer, mut reader) = ends::<16>();
    for _ in 0..5 {
        writer.push(&record(0, 1)).unwrap();
    }
    for read in 1..=5_u64 {
        assert!(popped(&mut reader).is_some());
        assert_eq!(memory.head.load(Ordering::Relaxed), if read < 4 { 0 } else { 4 });
    }
    reader.publish();
    assert_eq!(memory.head.load(Ordering::Relaxed), 5);
}

#[test]
fn a_head_that_cannot_be_breaks_the_ring() {
    let (memory, mut writer, _) = ends::<4>();
    for _ in 0..4 {
        writer.push(&record(0, 0)).unwrap();
    }
    for wrong in [5, 4 + (1 << 40), u64::MAX] {
        memory.head.store(wrong, Ordering::Relaxed);
        let broken = Broken { what: "the reader's position is not among the records", found: wrong };
        assert_eq!(writer.push(&record(0, 0)), Err(PushError::Broken(broken)));
        assert_eq!(writer.free_slots(), Err(broken));
    }
    // A valid head further on: the writer continues.
    memory.head.store(4, Ordering::Relaxed);
    writer.push(&record(0, 0)).unwrap();
    // A head that is further behind than the ring is long.
    for _ in 0..3 {
        writer.push(&record(0, 0)).unwrap();
    }
    memory.head.store(3, Ordering::Relaxed);
    assert!(matches!(writer.push(&record(0, 0)), Err(PushError::Broken(_))));
}

#[test]
fn a_record_longer_than_any_breaks_the_ring() {
    let (memory, _, mut reader) = ends::<SLOTS>();
    let mut into = record(3, 2);
    memory.slots[0][0].store(1 << 32 | (RECORD_WORDS_MAX as u64 + 1) << 16, Ordering::Relaxed);
    let broken = Broken { what: "a record is longer than any may be", found: RECORD_WORDS_MAX as u64 + 1 };
    assert_eq!(reader.pop(&mut into), Err(broken));
    assert_eq!(into.content(), record(3, 2).content());
    assert!(broken.to_string().contains("901"));

    // A record of legal length that is longer than the ring.
    let (memory, _, mut reader) = ends::<4>();
    memory.slots[0][0].store(1 << 32 | 61 << 16, Ordering::Relaxed);
    assert!(reader.pop(&mut into).is_err());
}

#[test]
fn what_lies_there_from_an_earlier_lap_is_no_record() {
    let (_, mut writer, mut reader) = ends::<4>();
    for _ in 0..4 {
        writer.push(&record(9, 3)).unwrap();
    }
    while popped(&mut reader).is_some() {}
    reader.publish();
    assert!(reader.is_empty());
    // It covers slots with old commit words at which no record begins.
    writer.push(&record(8, 3 * CONTENT_WORDS)).unwrap();
    assert_eq!(popped(&mut reader).unwrap().0, 8);
    assert!(reader.is_empty());
}

#[test]
fn no_lap_is_zero() {
    let round = SLOTS as u64;
    assert_eq!(lap::<Heap<SLOTS>>(0), 1);
    assert_eq!(lap::<Heap<SLOTS>>(round - 1), 1);
    assert_eq!(lap::<Heap<SLOTS>>(round), 2);
    let last = round * u64::from(u32::MAX);
    assert_eq!(lap::<Heap<SLOTS>>(last - 1), u32::MAX);
    assert_eq!(lap::<Heap<SLOTS>>(last), 1);
}

#[test]
fn two_threads_exchange_records_of_all_lengths() {
    const RECORDS: usize = 20_000;
    let (_, mut writer, mut reader) = ends::<128>();
    let sizes = || {
        let mut random = SmallRng::seed_from_u64(1);
        std::iter::repeat_with(move || random.random_range(0..40))
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            for (index, len) in sizes().take(RECORDS).enumerate() {
                let record = record(index as u8, len);
                while let Err(error) = writer.push(&record) {
                    assert_eq!(error, PushError::Full);
                    thread::yield_now();
                }
            }
        });
        let mut into = Record::new();
        for (index, len) in sizes().take(RECORDS).enumerate() {
            while !reader.pop(&mut into).unwrap() {
                reader.publish();
                thread::yield_now();
            }
            let sent = record(index as u8, len);
            assert_eq!((into.kind, into.content()), (sent.kind, sent.content()));
        }
    });
}

/// A client that writes anything into the ring at any time harms nobody.
#[test]
fn a_ring_that_is_scribbled_over_is_read_without_harm() {
    const POPS: usize = 50_000;
    let (memory, mut writer, mut reader) = ends::<SLOTS>();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(2);
            while !over.load(Ordering::Relaxed) {
                let index = random.random_range(0..SLOTS);
                let slot = &memory.slots[index];
                // Mostly plausible commit words, with arbitrary contents after them.
                for lap in 1..8_u64 {
                    let len = random.random_range(0..RECORD_WORDS_MAX as u64 + 3);
                    let commit = lap << 32 | len << 16 | random.random_range(0..10) << 8 | random.random_range(0..3);
                    slot[random.random_range(1..slot.len())].store(random.random(), Ordering::Relaxed);
                    slot[1].store(random.random::<u64>() & 0x0020_0020_0020_0020, Ordering::Relaxed);
                    slot[0].store(commit, Ordering::Release);
                }
                memory.head.store(random.random_range(0..3 * SLOTS as u64), Ordering::Release);
            }
        });
        let mut into = Record::new();
        for turn in 0..POPS {
            match reader.pop(&mut into) {
                Ok(true) => {
                    assert!(into.content().len() <= RECORD_WORDS_MAX);
                    let _ = Submission::decode(&into);
                    let _ = Completion::decode(&into);
                }
                Ok(false) => {}
                // A broken ring would be given up; here it is read on, to see more.
                Err(Broken { found, .. }) => assert!(found as usize > RECORD_WORDS_MAX),
            }
            reader.publish();
            if turn % 16 == 0 {
                let _ = writer.push(&record(1, turn % (RECORD_SLOTS_MAX * CONTENT_WORDS)));
            }
        }
        over.store(true, Ordering::Relaxed);
    });
}
