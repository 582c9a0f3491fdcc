//! Rings in memory that the other side may overwrite at will: an honest reader or writer goes on or reports what is broken, and never reads
//! or writes out of bounds.

use std::sync::atomic::{AtomicU64, Ordering};

use sealane_transport::shm::limits::{RECORD_WORDS_MAX, SLOT_WORDS};
use sealane_transport::shm::{PushError, Reader, Record, RingMemory, Writer};

use super::assert_says;
use super::records::{check_completion, check_submission, fill};
use super::script::Script;

/// Slots of the ring: just enough for the longest record.
const SLOTS: usize = 64;
/// Longest record that an honest side writes, in bytes.
const RECORD_BYTES_MAX: usize = 600;
/// Positions that a hostile side stores to: those of the first laps.
const POSITIONS: usize = 4 * SLOTS;

struct Heap {
    head: AtomicU64,
    slots: Box<[[AtomicU64; SLOT_WORDS]]>,
}

impl RingMemory for &Heap {
    const SLOTS: usize = SLOTS;

    fn head(&self) -> &AtomicU64 {
        &self.head
    }

    fn slot(&self, position: u64) -> &[AtomicU64; SLOT_WORDS] {
        &self.slots[position as usize % SLOTS]
    }
}

/// The commit word that a writer stores at `position` for a record of `words` words.
fn commit_word(position: usize, words: u64, kind: u8) -> u64 {
    ((position / SLOTS) as u64 + 1) << 32 | words << 16 | u64::from(kind)
}

/// Two rings: an honest side reads one and writes the other; the other side of each does what the input says.
pub(super) fn run(input: &[u8]) {
    let heap = || Heap {
        head: AtomicU64::new(0),
        slots: (0..SLOTS).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect(),
    };
    let (incoming, outgoing) = (heap(), heap());
    let (mut reader, mut friend) = (Reader::new(&incoming), Writer::new(&incoming));
    let mut writer = Writer::new(&outgoing);
    let mut record = Record::new();
    let mut script = Script::new(input);
    while !script.is_over() {
        match script.below(7) {
            0 => {
                let (position, word) = (script.below(POSITIONS), script.below(SLOT_WORDS));
                (&incoming).slot(position as u64)[word].store(script.number(), Ordering::Relaxed);
            }
            1 => {
                let position = script.below(POSITIONS);
                let words = script.below(RECORD_WORDS_MAX + 100) as u64;
                let word = commit_word(position, words, script.byte());
                (&incoming).slot(position as u64)[0].store(word, Ordering::Release);
            }
            2 => {
                fill(&mut record, script.bytes(RECORD_BYTES_MAX));
                // The head may have been overwritten, so that an honest writer is confused, too.
                let _ = friend.push(&record);
            }
            3 => match reader.pop(&mut record) {
                Ok(false) => assert!(reader.is_empty()),
                Ok(true) => {
                    assert!(record.content().len() <= RECORD_WORDS_MAX);
                    check_submission(&record);
                    check_completion(&record);
                }
                Err(broken) => assert_says(&broken),
            },
            4 => outgoing.head.store(script.number(), Ordering::Relaxed),
            5 => {
                fill(&mut record, script.bytes(RECORD_BYTES_MAX));
                match writer.push(&record) {
                    Ok(()) | Err(PushError::Full) => {}
                    Err(error) => assert_says(&error),
                }
            }
            _ => match writer.free_slots() {
                Ok(free) => assert!(free <= SLOTS as u64),
                Err(broken) => assert_says(&broken),
            },
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
        [vec![1, 0, 0, 0, 9, 4, 0], vec![0, 0, 0, 1, 77], vec![3]].concat(),
        [push(5), vec![4, 2, 6], push(5), vec![4, 255, 6], push(5)].concat(),
        [push(2).repeat(9), vec![3; 9], push(2).repeat(5), vec![3; 9]].concat(),
    ]
}
