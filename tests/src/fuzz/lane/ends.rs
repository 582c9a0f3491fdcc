//! Both ends of one direction of a lane, each over memory that changes between any two looks at it: whatever the other side writes, and
//! whenever, an end reports what is broken, and its own state stays true.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use sealane_transport::shm::limits::{INLINE_BYTES_MAX, LANE_ENTRY_WORDS, LANE_NOTES_PER_ENTRY};
use sealane_transport::shm::{Fate, LaneCopy, LaneMemory, LaneReceiver, LaneRecord, LaneSender, Note, Returned};

use super::super::assert_says;
use super::super::script::Script;

const ENTRIES: usize = 4;
const NOTES: usize = ENTRIES * LANE_NOTES_PER_ENTRY;
const FATES: [Fate; 3] = [Fate::Taken, Fate::Duplicate, Fate::Aborted];
/// Most looks at the memory before a pending store takes effect.
const LOOKS_MAX: usize = 8;
const RECORD_BYTES_MAX: usize = 200;

/// Shared words, and the pending stores: after how many looks, into which word, and the value.
struct Wild {
    words: Vec<AtomicU64>,
    entries: Vec<[AtomicU64; LANE_ENTRY_WORDS]>,
    stores: RefCell<VecDeque<(usize, usize, u64)>>,
}

impl Wild {
    fn new() -> Self {
        let zero = || AtomicU64::new(0);
        let entry = |_| std::array::from_fn(|_| zero());
        Self {
            words: (0..NOTES + ENTRIES).map(|_| zero()).collect(),
            entries: (0..ENTRIES).map(entry).collect(),
            stores: RefCell::default(),
        }
    }

    /// Called for each look of an end at the memory.
    fn look(&self) {
        let mut stores = self.stores.borrow_mut();
        if let Some((looks, ..)) = stores.front_mut() {
            if let Some(left) = looks.checked_sub(1) {
                *looks = left;
            } else if let Some((_, word, value)) = stores.pop_front() {
                self.store(word, value);
            }
        }
    }

    fn store(&self, word: usize, value: u64) {
        match self.words.get(word) {
            Some(word) => word.store(value, Ordering::Release),
            None => {
                let word = (word - self.words.len()) % (ENTRIES * LANE_ENTRY_WORDS);
                self.entries[word / LANE_ENTRY_WORDS][word % LANE_ENTRY_WORDS].store(value, Ordering::Release);
            }
        }
    }
}

impl LaneMemory for &Wild {
    const ENTRIES: usize = ENTRIES;

    fn note(&self, position: u64) -> &AtomicU64 {
        self.look();
        &self.words[position as usize % NOTES]
    }

    fn returned(&self, position: u64) -> &AtomicU64 {
        self.look();
        &self.words[NOTES + position as usize % ENTRIES]
    }

    fn entry(&self, entry: u16) -> &[AtomicU64; LANE_ENTRY_WORDS] {
        self.look();
        &self.entries[usize::from(entry)]
    }
}

/// Runs the script word by word.
pub(super) fn run(script: &mut Script<'_>) {
    let memory = Wild::new();
    let (mut sender, mut receiver) = (LaneSender::new(&memory), LaneReceiver::new(&memory));
    let mut loaded = LaneCopy::new();
    // Sent entries that have not been returned, and whether they were withdrawn; entries that the receiver knows of and has not decided.
    let (mut away, mut known) = ([None; ENTRIES], [false; ENTRIES]);
    while !script.is_over() {
        match script.below(11) {
            0 => {
                let (step, bytes) = (script.number() as i64, script.bytes(RECORD_BYTES_MAX));
                let (meta, bytes) = bytes.split_at(bytes.len() / 3);
                if let Some(entry) = sender.send(&LaneRecord::Tensor { step, key: "key", meta, bytes }) {
                    let before = away[usize::from(entry)].replace(false);
                    assert_eq!(before, None, "an entry is used twice");
                }
            }
            1 => {
                let entry = script.below(ENTRIES + 1);
                if sender.withdraw(entry as u16) {
                    assert_eq!(away[entry].replace(true), Some(false), "it was not the receiver's");
                }
            }
            2 => match sender.next_returned() {
                Ok(None) => {}
                Ok(Some(Returned { entry, fate })) => {
                    let was_withdrawn = away[usize::from(entry)].take().expect("only what is away comes back");
                    assert_eq!(was_withdrawn, fate == Fate::Withdrawn, "a record is the sender's and the receiver's");
                }
                Err(broken) => assert_says(&broken),
            },
            3 => match receiver.next_note() {
                Ok(None) => {}
                Ok(Some(Note::Sent(entry))) => {
                    assert!(!std::mem::replace(&mut known[usize::from(entry)], true), "an entry is sent twice");
                }
                Ok(Some(Note::Withdrawn(entry))) => {
                    assert!(std::mem::take(&mut known[usize::from(entry)]), "what was never sent is withdrawn");
                }
                Err(broken) => assert_says(&broken),
            },
            4 => {
                let entry = script.below(ENTRIES);
                let found = if known[entry] { receiver.load(entry as u16, &mut loaded) } else { Ok(()) };
                found.unwrap_or_else(|broken| assert_says(&broken));
                match loaded.record() {
                    Ok(LaneRecord::Tensor { bytes, .. }) => assert!(bytes.len() <= INLINE_BYTES_MAX),
                    Ok(_) => {}
                    Err(broken) => assert_says(&broken),
                }
            }
            5 => {
                let entry = script.below(ENTRIES);
                if known[entry] && receiver.settle(entry as u16, script.one_of(&FATES)) {
                    known[entry] = false;
                }
            }
            6 => {
                let position = script.below(4 * NOTES);
                let note = script.yes();
                let (of, at) = if note { (NOTES, 0) } else { (ENTRIES, NOTES) };
                let value = u64::from(script.byte() & 7) << 16 | script.below(ENTRIES + 1) as u64;
                let word = at + position % of;
                let value = ((position / of + 1) as u64) << 32 | value;
                memory.stores.borrow_mut().push_back((script.below(LOOKS_MAX), word, value));
            }
            7 => {
                let (entry, word) = (script.below(ENTRIES), script.one_of(&[0, 0, 0, 1, 1, 2, 3, 4]));
                let word = NOTES + ENTRIES + entry * LANE_ENTRY_WORDS + word;
                memory.stores.borrow_mut().push_back((script.below(LOOKS_MAX), word, script.number()));
            }
            8 => memory.store(script.below(NOTES + ENTRIES), script.number()),
            9 => sender.publish(),
            _ => receiver.publish(),
        }
        let held = away.iter().flatten().count();
        assert_eq!(sender.away(), held, "an entry is lost, or there is one more");
        assert!((0..ENTRIES).all(|entry| sender.is_away(entry as u16) == away[entry].is_some()));
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let send = [0, 1, 24, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 9];
    vec![
        [&send[..], &[3, 4, 0, 5, 0, 0, 10, 2], &send, &[1, 0, 9, 3, 10, 2]].concat(),
        [&send[..], &[7, 0, 0, 1, 2, 1, 3, 1, 0, 2], &[6, 0, 0, 2, 0, 0, 2]].concat(),
        [&[6, 0, 1, 0, 1, 0, 3, 7, 1, 3, 0, 200, 4, 1, 5, 1, 0][..], &send, &[2, 8, 9, 5]].concat(),
    ]
}
