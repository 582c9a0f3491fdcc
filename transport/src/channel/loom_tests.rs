//! Loom explores the interleavings of a ring's writer and reader, and of the words by which the reader answers.

use loom::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use super::{ChannelMemory, record::Kind};
use crate::ring::{Header, Reader, RingMemory, Writer};

const WORDS: u64 = 32;
const RECORD: u64 = 8;

#[derive(Clone)]
struct Heap(Arc<(Vec<AtomicU64>, [AtomicU64; 3])>);

impl Heap {
    fn new() -> Heap {
        let zero = || AtomicU64::new(0);
        Heap(Arc::new(((0..WORDS).map(|_| zero()).collect(), [zero(), zero(), zero()])))
    }
}

impl RingMemory for Heap {
    const WORDS: u64 = WORDS;

    fn word(&self, position: u64) -> &AtomicU64 {
        &self.0.0[(position % WORDS) as usize]
    }

    fn words(&self, position: u64, count: u64) -> &[AtomicU64] {
        let at = (position % WORDS) as usize;
        &self.0.0[at..at + count as usize]
    }

    fn read(&self) -> &AtomicU64 {
        &self.0.1[0]
    }
}

impl ChannelMemory for Heap {
    fn took(&self) -> &AtomicU64 {
        &self.0.1[1]
    }

    fn returned(&self) -> &AtomicU64 {
        &self.0.1[2]
    }
}

fn write(writer: &mut Writer<Heap>, kind: Kind, value: u64) {
    writer.record(RECORD)[1].store(value, Ordering::Relaxed);
    writer.commit(RECORD, Header::note(kind, RECORD, 0));
}

fn read(reader: &mut Reader<Heap>) -> Option<u64> {
    let header = reader.peek()?;
    let value = reader.record(header.words()).unwrap()[1].load(Ordering::Relaxed);
    reader.head += header.words();
    Some(value)
}

/// A record is seen whole or not at all, in order, alone and in a batch, and its place is not reused before it was read.
#[test]
fn loom_records_are_read_whole_and_in_order() {
    for is_batch in [false, true] {
        loom::model(move || {
            let memory = Heap::new();
            let mut writer = Writer::new(memory.clone());
            let writes = thread::spawn(move || {
                if is_batch {
                    writer.begin_batch();
                }
                (1..=3).for_each(|value| write(&mut writer, Kind::Took, value));
                writer.end_batch();
                // The fourth needs the place of the first: the 0 behind it lies there.
                if writer.memory.read().load(Ordering::Acquire) >= RECORD {
                    write(&mut writer, Kind::Took, 4);
                }
            });
            let mut reader = Reader::new(memory);
            let mut seen = 0;
            for _ in 0..3 {
                while let Some(value) = read(&mut reader) {
                    assert_eq!(value, seen + 1);
                    seen = value;
                    reader.tell();
                }
                thread::yield_now();
            }
            writes.join().unwrap();
            while let Some(value) = read(&mut reader) {
                assert_eq!(value, seen + 1);
                seen = value;
            }
            assert!(seen >= 3);
        });
    }
}

/// The producer that looks at `took` and then at `returned` does not take a returned tensor for one that was taken.
#[test]
fn loom_return_is_known_before_the_acknowledgement_passes_it() {
    loom::model(|| {
        let (forth, back) = (Heap::new(), Heap::new());
        let consumer = {
            let (forth, back) = (forth.clone(), back.clone());
            thread::spawn(move || {
                // Tensor 0 is returned.
                let mut writer = Writer::new(back);
                write(&mut writer, Kind::Returned, 0);
                forth.returned().store(1, Ordering::Release);
                forth.took().swap(1, Ordering::SeqCst);
            })
        };
        let took = forth.took().load(Ordering::Acquire);
        let returned = forth.returned().load(Ordering::Acquire);
        let mut reader = Reader::new(back);
        if took == 1 {
            assert_eq!(returned, 1, "a return is counted before the acknowledgement passes it");
            assert_eq!(read(&mut reader), Some(0), "and its record is there");
        }
        consumer.join().unwrap();
    });
}
