//! The ring on heap memory: order, a full ring, and what the other side may do to it.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{KINDS, memory::Heap, words_of};
use crate::{
    ring::{Header, PAD},
    shm::{
        Broken, Completion, PushError, Reader, Record, Submission, Writer,
        limits::{RECORD_WORDS_MAX, TRUNK_WORDS},
    },
};

/// Words of a line; a record's first is its header.
const LINE: u64 = 8;

fn ends<const N: u64>() -> (Heap<N>, Writer<Heap<N>>, Reader<Heap<N>>) {
    let memory = Heap::new();
    (memory.clone(), Writer::new(memory.clone()), Reader::new(memory))
}

fn record(kind: u8, len: usize) -> Record {
    let mut record = Record::new();
    let content: Vec<u64> = (0..len as u64).map(|word| u64::from(kind) << 32 | word).collect();
    record.set(kind, &content);
    record
}

fn popped<const N: u64>(reader: &mut Reader<Heap<N>>) -> Option<(u8, Vec<u64>)> {
    let mut record = Record::new();
    reader.pop(&mut record).unwrap().then(|| (record.kind, record.content().to_vec()))
}

#[test]
fn records_of_every_length_arrive_in_order() {
    let (_, mut writer, mut reader) = ends::<2048>();
    for len in 0..=RECORD_WORDS_MAX {
        let sent = record((len % 200) as u8, len);
        assert!(reader.is_empty());
        writer.push(&sent).unwrap();
        assert!(!reader.is_empty());
        assert_eq!(popped(&mut reader), Some((sent.kind, sent.content().to_vec())));
        reader.publish();
    }
    assert_eq!(popped(&mut reader), None);
}

#[test]
fn full_ring_takes_nothing_until_the_reader_has_told() {
    let (_, mut writer, mut reader) = ends::<64>();
    // The 0 behind the last record needs a line of its own.
    let two_lines = record(1, 8);
    for _ in 0..3 {
        writer.push(&two_lines).unwrap();
    }
    assert_eq!(writer.push(&two_lines), Err(PushError::Full));
    writer.push(&record(2, 0)).unwrap();
    assert_eq!(writer.push(&record(2, 0)), Err(PushError::Full));
    assert_eq!((writer.behind(), writer.has_unread(), writer.is_half_free()), (Some(0), true, false));
    assert!(popped(&mut reader).is_some());
    // After a quarter of the ring the reader tells by itself.
    assert_eq!(writer.behind(), Some(2 * LINE));
    assert_eq!(writer.push(&two_lines), Err(PushError::Full), "it does not fit in one piece");
    writer.push(&record(2, 7)).unwrap();
    while popped(&mut reader).is_some() {}
    reader.publish();
    assert_eq!((writer.behind(), writer.has_unread(), writer.is_half_free()), (None, false, true));
}

#[test]
fn reader_tells_only_when_asked_or_after_a_quarter() {
    let (memory, mut writer, mut reader) = ends::<128>();
    for _ in 0..5 {
        writer.push(&record(0, 1)).unwrap();
    }
    for read in 1..=5_u64 {
        assert!(popped(&mut reader).is_some());
        assert_eq!(memory.read.load(Ordering::Relaxed), if read < 4 { 0 } else { 4 * LINE });
    }
    reader.publish();
    assert_eq!(memory.read.load(Ordering::Relaxed), 5 * LINE);
}

#[test]
fn position_that_cannot_be_breaks_the_ring() {
    let (memory, mut writer, _) = ends::<32>();
    let fill = |writer: &mut Writer<Heap<32>>| while writer.push(&record(0, 0)).is_ok() {};
    fill(&mut writer);
    for wrong in [25, 24 + (1 << 40), u64::MAX] {
        memory.read.store(wrong, Ordering::Relaxed);
        let broken = Broken { what: "the reader's position is not among the records", found: wrong };
        assert_eq!(writer.push(&record(0, 0)), Err(PushError::Broken(broken)));
        assert!(!writer.is_half_free() && !writer.has_unread());
    }
    // A valid position further on: the writer continues.
    memory.read.store(24, Ordering::Relaxed);
    fill(&mut writer);
    // One that is further behind than the ring is long.
    memory.read.store(8, Ordering::Relaxed);
    assert!(matches!(writer.push(&record(0, 0)), Err(PushError::Broken(_))));
}

#[test]
fn record_that_no_writer_makes_breaks_the_ring() {
    let header = |kind: u8, words: u64, len: usize| Header::new(kind, words, len as u64).0;
    let of = |len: usize| header(KINDS, words_of(len), len);
    let longest = RECORD_WORDS_MAX;
    let wrong =
        [of(longest + 1), header(KINDS, 8, 8), header(KINDS, 16, 7), header(KINDS, 0, 0), header(KINDS - 1, 8, 7)];
    for wrong in wrong {
        let (memory, _, mut reader) = ends::<TRUNK_WORDS>();
        let mut into = record(3, 2);
        memory.words[0].store(wrong, Ordering::Relaxed);
        let broken = Broken { what: "a record is none that a writer makes", found: wrong };
        assert_eq!(reader.pop(&mut into), Err(broken));
        assert_eq!((into.kind, into.content()), (3, record(3, 2).content()));
    }
    // A record of legal length that does not fit between its place and the end; a pad that is too short or too long.
    for wrong in [of(longest), header(PAD, 8, 0), header(PAD, 64, 0), header(PAD, 0, 0)] {
        let (memory, _, mut reader) = ends::<32>();
        memory.words[0].store(wrong, Ordering::Relaxed);
        assert!(reader.pop(&mut record(3, 2)).is_err());
    }
    // Two pads in a row.
    let (memory, _, mut reader) = ends::<32>();
    memory.words[0].store(header(PAD, 32, 0), Ordering::Relaxed);
    assert!(reader.pop(&mut record(3, 2)).is_err());
}

#[test]
fn what_lies_there_from_an_earlier_lap_is_no_record() {
    let (_, mut writer, mut reader) = ends::<64>();
    for _ in 0..7 {
        writer.push(&record(9, 3)).unwrap();
    }
    while popped(&mut reader).is_some() {}
    reader.publish();
    assert!(reader.is_empty());
    // It covers lines with old headers at which no record begins, behind a pad.
    writer.push(&record(8, 23)).unwrap();
    assert_eq!(popped(&mut reader).unwrap().0, 8);
    assert!(reader.is_empty());
}

#[test]
fn two_threads_exchange_records_of_all_lengths() {
    const RECORDS: usize = 20_000;
    let (_, mut writer, mut reader) = ends::<1024>();
    let sizes = || {
        let mut random = SmallRng::seed_from_u64(1);
        std::iter::repeat_with(move || random.random_range(0..40))
    };
    thread::scope(|scope| {
        scope.spawn(move || {
            for (index, len) in sizes().take(RECORDS).enumerate() {
                let record = record((index % 200) as u8, len);
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
            let sent = record((index % 200) as u8, len);
            assert_eq!((into.kind, into.content()), (sent.kind, sent.content()));
        }
    });
}

/// A client that writes anything into the ring at any time harms nobody.
#[test]
fn a_ring_that_is_scribbled_over_is_read_without_harm() {
    const POPS: usize = 50_000;
    let (memory, mut writer, mut reader) = ends::<TRUNK_WORDS>();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = SmallRng::seed_from_u64(2);
            while !over.load(Ordering::Relaxed) {
                let line = (LINE * random.random_range(0..TRUNK_WORDS / LINE)) as usize;
                // Mostly plausible headers, with arbitrary contents after them.
                for _ in 0..7 {
                    let (kind, len) = (KINDS + random.random_range(0..30), random.random_range(0..40));
                    let words = if random.random_bool(0.9) { words_of(len) } else { random.random_range(0..200) };
                    let line = &memory.words[line..line + LINE as usize];
                    line[random.random_range(1..line.len())].store(random.random(), Ordering::Relaxed);
                    line[1].store(random.random::<u64>() & 0x0020_0020_0020_0020, Ordering::Relaxed);
                    line[0].store(Header::new(kind, words, len as u64).0, Ordering::Release);
                }
                memory.read.store(random.random_range(0..3 * TRUNK_WORDS), Ordering::Release);
            }
        });
        let mut into = Record::new();
        let mut read = 0;
        for turn in 0..POPS {
            match reader.pop(&mut into) {
                Ok(true) => {
                    read += 1;
                    assert!(into.content().len() <= RECORD_WORDS_MAX);
                    let _ = Submission::decode(&into);
                    let _ = Completion::decode(&into);
                }
                Ok(false) => {}
                // A broken ring would be given up; here it is read on at the next line, to see more.
                Err(_) => reader.ring.head += LINE,
            }
            reader.publish();
            if turn % 16 == 0 {
                let _ = writer.push(&record(1, turn % RECORD_WORDS_MAX));
            }
        }
        over.store(true, Ordering::Relaxed);
        assert!(read > POPS / 100, "{read}");
    });
}
