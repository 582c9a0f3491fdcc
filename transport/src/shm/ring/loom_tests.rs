//! Every interleaving of one writer and one reader on rings so small that they go round.

use loom::{cell::UnsafeCell, sync::Arc, thread};

use super::memory::Heap;
use crate::shm::{PushError, Reader, Record, Writer};

/// Words of a cache line, and of a record with up to 7 words of content.
const LINE: usize = 8;

/// Sends records of these lengths through a ring of `N` words and checks each word on the other side.
fn all_arrive<const N: u64>(lens: &'static [usize], preemptions: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let memory = Heap::<N>::new();
        let mut writer = Writer::new(memory.clone());
        let thread = thread::spawn(move || {
            let mut record = Record::new();
            for (index, len) in lens.iter().enumerate() {
                record.set(index as u8, &vec![index as u64 + 1; *len]);
                while let Err(error) = writer.push(&record) {
                    assert_eq!(error, PushError::Full);
                    thread::yield_now();
                }
            }
        });

        let mut reader = Reader::new(memory);
        let mut record = Record::new();
        for (index, len) in lens.iter().enumerate() {
            while !reader.pop(&mut record).unwrap() {
                reader.publish();
                thread::yield_now();
            }
            assert_eq!(record.kind, index as u8);
            assert_eq!(record.content(), vec![index as u64 + 1; *len]);
        }
        thread.join().unwrap();
        assert!(reader.is_empty());
    });
}

#[test]
fn loom_small_records_go_round() {
    all_arrive::<16>(&[1, 1, 1, 1], 3);
}

#[test]
fn loom_pad_goes_round() {
    all_arrive::<32>(&[1, 8, 8, 1], 3);
}

/// Loom reports no race between relaxed atomics. A plain cell beside each line makes it report a line that is overwritten before it was
/// read.
#[test]
fn loom_word_is_written_anew_only_after_it_was_read() {
    const LINES: usize = 2;
    const WORDS: u64 = (LINES * LINE) as u64;
    const RECORDS: usize = LINES + 1;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let memory = Heap::<WORDS>::new();
        let cells: Arc<[UnsafeCell<usize>; LINES]> = Arc::new(std::array::from_fn(|_| UnsafeCell::new(0)));
        let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory));
        let thread = thread::spawn({
            let cells = Arc::clone(&cells);
            move || {
                let mut record = Record::new();
                record.set(1, &[1]);
                for index in 0..RECORDS {
                    while writer.ring.tail + LINE as u64 >= writer.read().unwrap() + WORDS {
                        thread::yield_now();
                    }
                    // The model notices a write that may be concurrent with the reader's look. The header behind the record is cleared.
                    cells[index % LINES].with_mut(|_| ());
                    cells[(index + 1) % LINES].with_mut(|_| ());
                    writer.push(&record).unwrap();
                }
            }
        });
        for index in 0..RECORDS {
            let header = loop {
                match reader.ring.peek() {
                    Some(header) => break header,
                    None => thread::yield_now(),
                }
            };
            cells[index % LINES].with(|_| ());
            // What `pop` does, without telling the writer early.
            reader.ring.head += header.words();
            reader.publish();
        }
        thread.join().unwrap();
    });
}
