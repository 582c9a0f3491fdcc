//! Rings in memory that the other side may overwrite at will: an honest reader or writer goes on or reports what is broken, and never reads
//! or writes out of bounds.

use std::sync::atomic::{AtomicU64, Ordering};

use sealane_transport::shm::limits::RECORD_WORDS_MAX;
use sealane_transport::shm::{PushError, Reader, Record, RingMemory, Writer};

use super::assert_says;
use super::records::{check_completion, check_submission, fill};
use super::script::Script;

/// Words of the ring: just enough for the longest record, wherever it begins.
const WORDS: usize = 2048;
/// Longest record that an honest side writes, in bytes.
const RECORD_BYTES_MAX: usize = 600;
/// Words of a cache line: where records begin.
const LINE: usize = 8;

struct Heap {
    read: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl RingMemory for &Heap {
    const WORDS: u64 = WORDS as u64;

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.words[position as usize % WORDS]
    }

    fn words(&self, position: u64, count: u64) -> &[AtomicU64] {
        let at = position as usize % WORDS;
        &self.words[at..at + count as usize]
    }

    fn read(&self) -> &AtomicU64 {
        &self.read
    }
}

/// Two rings: an honest side reads one and writes the other; the other side of each does what the input says.
pub(super) fn run(input: &[u8]) {
    let heap = || Heap { read: AtomicU64::new(0), words: (0..WORDS).map(|_| AtomicU64::new(0)).collect() };
    let (incoming, outgoing) = (heap(), heap());
    let (mut reader, mut friend) = (Reader::new(&incoming), Writer::new(&incoming));
    let mut writer = Writer::new(&outgoing);
    let mut record = Record::new();
    let mut script = Script::new(input);
    while !script.is_over() {
        match script.below(7) {
            0 => (&incoming).word(script.below(WORDS) as u64).store(script.number(), Ordering::Relaxed),
            1 => {
                // A header whose length may contradict its number of words.
                let (position, len) = (LINE * script.below(WORDS / LINE), script.below(RECORD_WORDS_MAX + 100));
                let words = (len + 1).next_multiple_of(LINE) + if script.below(4) > 0 { 0 } else { LINE };
                let header = u64::from(script.byte()) | (words as u64) << 8 | (len as u64) << 24;
                (&incoming).word(position as u64).store(header, Ordering::Release);
            }
            2 => {
                fill(&mut record, script.bytes(RECORD_BYTES_MAX));
                // The reader's position may have been overwritten, so that an honest writer is confused, too.
                let _ = friend.push(&record);
            }
            3 => match reader.pop(&mut record) {
                Ok(false) => {}
                Ok(true) => {
                    assert!(record.content().len() <= RECORD_WORDS_MAX);
                    check_submission(&record);
                    check_completion(&record);
                }
                Err(broken) => assert_says(&broken),
            },
            4 => outgoing.read.store(script.number(), Ordering::Relaxed),
            5 => {
                fill(&mut record, script.bytes(RECORD_BYTES_MAX));
                match writer.push(&record) {
                    Ok(()) | Err(PushError::Full) => {}
                    Err(error) => assert_says(&error),
                }
            }
            _ => assert!(writer.behind().is_some() || writer.is_half_free()),
        }
        reader.publish();
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let length = |bytes: usize| [(bytes >> 8) as u8, bytes as u8];
    let record: Vec<u8> = (0..90).collect();
    let push = |op: u8| [&[op][..], &length(record.len()), &record].concat();
    vec![
        [push(2), vec![3, 3], push(2), vec![3]].concat(),
        [vec![1, 0, 0, 0, 9, 1, 40], vec![0, 0, 0, 1, 77], vec![3]].concat(),
        [vec![1, 0, 0, 3, 231, 1, 35], vec![3]].concat(),
        [push(5), vec![4, 2, 6], push(5), vec![4, 255, 6], push(5)].concat(),
        [push(2).repeat(9), vec![3; 9], push(2).repeat(25), vec![3; 25]].concat(),
    ]
}
