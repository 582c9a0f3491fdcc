//! Every interleaving of one sender and one receiver.

use loom::thread;

use super::{Fate, LaneCopy, LaneReceiver, LaneRecord, LaneSender, Note, heap::Heap};

fn record(step: i64) -> LaneRecord<'static> {
    LaneRecord::Tensor { step, key: "", meta: &[], bytes: &[7] }
}

fn model(test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(test);
}

#[test]
fn loom_a_record_is_received_or_withdrawn_and_never_both() {
    model(|| {
        let memory = Heap::<1>::new();
        let (mut sender, mut receiver) = (LaneSender::new(memory.clone()), LaneReceiver::new(memory));
        let thread = thread::spawn(move || {
            let entry = sender.send(&record(3)).unwrap();
            sender.publish();
            let is_back = sender.withdraw(entry);
            sender.publish();
            let returned = loop {
                match sender.next_returned().unwrap() {
                    Some(returned) => break returned,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(returned.fate, if is_back { Fate::Withdrawn } else { Fate::Taken });
            is_back
        });
        let (mut has_it, mut loaded) = (false, LaneCopy::new());
        loop {
            match receiver.next_note().unwrap() {
                Some(Note::Sent(entry)) => {
                    receiver.load(entry, &mut loaded).unwrap();
                    has_it = receiver.settle(entry, Fate::Taken);
                    receiver.publish();
                    if has_it {
                        assert_eq!(loaded.record(), Ok(record(3)));
                        break;
                    }
                }
                Some(Note::Withdrawn(_)) => {
                    receiver.publish();
                    break;
                }
                None => thread::yield_now(),
            }
        }
        assert_ne!(thread.join().unwrap(), has_it);
    });
}

/// The receiver has read an entry before it is written anew.
#[test]
fn loom_an_entry_is_used_again() {
    model(|| {
        let memory = Heap::<1>::new();
        let (mut sender, mut receiver) = (LaneSender::new(memory.clone()), LaneReceiver::new(memory));
        let thread = thread::spawn(move || {
            for value in 1..=2 {
                let record = record(value);
                while sender.send(&record).is_none() {
                    if sender.next_returned().unwrap().is_none() {
                        thread::yield_now();
                    }
                }
                sender.publish();
            }
        });
        let (mut expected, mut loaded) = (1, LaneCopy::new());
        while expected <= 2 {
            let Some(note) = receiver.next_note().unwrap() else {
                thread::yield_now();
                continue;
            };
            let Note::Sent(entry) = note else { panic!("{note:?}") };
            receiver.load(entry, &mut loaded).unwrap();
            assert!(receiver.settle(entry, Fate::Taken));
            receiver.publish();
            assert_eq!(loaded.record(), Ok(record(expected)));
            expected += 1;
        }
        thread.join().unwrap();
    });
}
