//! Every interleaving of one writer and one reader on rings so small that they go round.

use loom::{cell::UnsafeCell, sync::Arc, thread};

use super::memory::Heap;
use crate::shm::{PushError, Reader, Record, Writer};

/// Sends records of these lengths through a ring of `N` slots and checks each word on the other side.
fn all_arrive<const N: usize>(lens: &'static [usize], preemptions: usize) {
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
    all_arrive::<2>(&[1, 1, 1, 1, 1], 3);
}

#[test]
fn loom_records_of_several_slots_go_round() {
    all_arrive::<2>(&[1, 16, 2], 3);
}

#[test]
fn loom_a_record_fills_the_ring() {
    all_arrive::<2>(&[16, 17], 3);
}

/// Relaxed loads of atomics cannot race, so the model would not miss the order of the head. A plain cell beside each
/// slot, used as the slot is, would.
#[test]
fn loom_a_slot_is_written_anew_only_after_it_was_read() {
    const SLOTS: usize = 8;
    const RECORDS: usize = SLOTS + 2;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let memory = Heap::<SLOTS>::new();
        let cells: Arc<[UnsafeCell<usize>; SLOTS]> = Arc::new(std::array::from_fn(|_| UnsafeCell::new(0)));
        let (mut writer, mut reader) = (Writer::new(memory.clone()), Reader::new(memory));
        let thread = thread::spawn({
            let cells = Arc::clone(&cells);
            move || {
                let mut record = Record::new();
                record.set(1, &[1]);
                for index in 0..RECORDS {
                    while writer.free_slots().unwrap() == 0 {
                        thread::yield_now();
                    }
                    // The model notices a write that may be concurrent with the reader's look.
                    cells[index % SLOTS].with_mut(|_| ());
                    writer.push(&record).unwrap();
                }
            }
        });
        let mut record = Record::new();
        for index in 0..RECORDS {
            while !reader.pop(&mut record).unwrap() {
                thread::yield_now();
            }
            cells[index % SLOTS].with(|_| ());
            reader.publish();
        }
        thread.join().unwrap();
    });
}
