//! Both ends of a ring on the heap; a peer may write anything there.

#[cfg(loom)]
use loom::{
    sync::{
        Arc, Notify,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};
#[cfg(not(loom))]
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{BytesMemory, BytesReader, BytesWriter};

const BYTES: u64 = 4;

/// Words as in [`BytesMemory`], and the ring's bytes, one per word.
#[derive(Clone)]
struct Heap(Arc<[[AtomicU64; 6]; 2]>);

impl Heap {
    fn new() -> Heap {
        Heap(Arc::new(std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)))))
    }
}

impl BytesMemory for Heap {
    const BYTES: u64 = BYTES;

    fn written(&self) -> &AtomicU64 {
        &self.0[0][0]
    }

    fn read(&self) -> &AtomicU64 {
        &self.0[0][1]
    }

    fn writer_waits(&self) -> &AtomicU64 {
        &self.0[0][2]
    }

    fn reader_waits(&self) -> &AtomicU64 {
        &self.0[0][3]
    }

    fn used(&self) -> &AtomicU64 {
        &self.0[0][4]
    }

    fn left(&self) -> &AtomicU64 {
        &self.0[0][5]
    }

    fn copy_in(&self, position: u64, bytes: &[u8]) {
        for (at, byte) in (position..).zip(bytes) {
            self.0[1][(at % BYTES) as usize].store((*byte).into(), Ordering::Relaxed);
        }
    }

    fn copy_out(&self, position: u64, into: &mut [u8]) {
        for (at, byte) in (position..).zip(into) {
            *byte = self.0[1][(at % BYTES) as usize].load(Ordering::Relaxed) as u8;
        }
    }
}

fn both() -> (BytesWriter<Heap>, BytesReader<Heap>, Heap) {
    let memory = Heap::new();
    let writer = BytesWriter::begin(memory.clone(), 1).expect("nobody has used it");
    let reader = BytesReader::begin(memory.clone(), 1).expect("it was taken into use");
    (writer, reader, memory)
}

/// Each byte is read once, in order, and the two ends never wait for each other: each announces what it did as news of the lane, which the
/// other end looks at.
#[cfg(loom)]
#[test]
fn loom_bytes_are_read_in_order_and_nobody_waits_for_ever() {
    const ALL: u8 = 5;
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (mut writer, mut reader, _) = both();
        let told = Arc::new([Notify::new(), Notify::new()]);
        let news = told.clone();
        let thread = thread::spawn(move || {
            let mut next = 0;
            while next < ALL {
                let bytes: Vec<u8> = (next..ALL).take(3).collect();
                let count = writer.write(&bytes).unwrap();
                next += count as u8;
                if count > 0 && writer.must_tell() {
                    news[1].notify();
                }
                if count == 0 && writer.wait().unwrap() {
                    news[0].wait();
                }
            }
        });
        let mut expected = 0;
        while expected < ALL {
            let mut into = [0; 2];
            let count = reader.read(&mut into).unwrap();
            for byte in &into[..count] {
                assert_eq!(*byte, expected);
                expected += 1;
            }
            if count > 0 && reader.must_tell().unwrap() {
                told[0].notify();
            }
            if count == 0 && reader.wait().unwrap() {
                told[1].wait();
            }
        }
        thread.join().unwrap();
    });
}

/// A ring whose reader has left it is used again, and nothing from before is read.
#[cfg(loom)]
#[test]
fn loom_a_ring_is_used_again_once_its_reader_has_left_it() {
    loom::model(|| {
        let (mut writer, mut reader, memory) = both();
        writer.write(&[1, 2, 3]).unwrap();
        let thread = thread::spawn(move || {
            let mut into = [0; 3];
            assert_eq!((reader.read(&mut into).unwrap(), into), (3, [1, 2, 3]));
        });
        drop(writer);
        let mut writer = loop {
            match BytesWriter::begin(memory.clone(), 2) {
                Some(writer) => break writer,
                None => thread::yield_now(),
            }
        };
        writer.write(&[4]).unwrap();
        let (mut reader, mut into) = (BytesReader::begin(memory, 2).unwrap(), [0; 3]);
        assert_eq!((reader.read(&mut into).unwrap(), into[0]), (1, 4));
        thread.join().unwrap();
    });
}

#[cfg(not(loom))]
mod alone {
    use super::*;

    #[test]
    fn bytes_go_round_whatever_the_pieces() {
        let (mut writer, mut reader, _) = both();
        let (mut next, mut expected) = (0u8, 0u8);
        for step in 0..10_000_u32 {
            let (write, room) = (step.wrapping_mul(7) % 6, step.wrapping_mul(5) / 3 % 6);
            let bytes: Vec<u8> = (0..write as u8).map(|at| next.wrapping_add(at)).collect();
            let unread = next.wrapping_sub(expected);
            let count = writer.write(&bytes).unwrap();
            assert_eq!(count, bytes.len().min(BYTES as usize - usize::from(unread)));
            next = next.wrapping_add(count as u8);
            let mut into = vec![0; room as usize];
            let count = reader.read(&mut into).unwrap();
            assert_eq!(count, into.len().min(next.wrapping_sub(expected).into()));
            for byte in &into[..count] {
                assert_eq!(*byte, expected);
                expected = expected.wrapping_add(1);
            }
            assert_eq!(reader.written().unwrap(), writer.written());
        }
    }

    #[test]
    fn who_waits_is_told_once() {
        let (mut writer, mut reader, _) = both();
        assert!(!writer.must_tell() && reader.wait().unwrap());
        writer.write(&[1]).unwrap();
        assert!(writer.must_tell() && !writer.must_tell());
        assert!(!reader.wait().unwrap(), "there is something");
        writer.write(&[2, 3, 4, 5]).unwrap();
        assert!(writer.wait().unwrap());
        let mut into = [0; 1];
        reader.read(&mut into).unwrap();
        assert!(!reader.must_tell().unwrap(), "less than half is free");
        reader.read(&mut into).unwrap();
        assert!(reader.must_tell().unwrap() && !reader.must_tell().unwrap());
        assert!(!writer.wait().unwrap(), "there is room");
    }

    #[test]
    fn an_end_that_says_what_cannot_be_is_found_out() {
        for (written, is_broken) in [(0, true), (1, true), (2, false), (5, false), (6, true), (u64::MAX, true)] {
            let (mut writer, mut reader, memory) = both();
            writer.write(&[1, 2]).unwrap();
            reader.read(&mut [0; 1]).unwrap();
            memory.written().store(written, Ordering::Relaxed);
            assert_eq!(reader.read(&mut [0; 4]).is_err(), is_broken, "{written}");
            assert_eq!((reader.written().is_err(), reader.wait().is_err()), (is_broken, is_broken));
        }
        for (read, is_broken) in [(0, true), (1, false), (4, false), (5, true), (u64::MAX, true)] {
            let (mut writer, mut reader, memory) = both();
            writer.write(&[1, 2, 3]).unwrap();
            reader.read(&mut [0; 1]).unwrap();
            writer.write(&[4]).unwrap();
            writer.wait().unwrap();
            memory.read().store(read, Ordering::Relaxed);
            assert_eq!(writer.wait().is_err(), is_broken, "{read}");
            assert_eq!(writer.write(&[5; 9]).is_err(), is_broken);
        }
    }

    #[test]
    fn a_ring_that_is_still_read_is_not_used_again() {
        let (writer, reader, memory) = both();
        drop(writer);
        assert!(BytesWriter::begin(memory.clone(), 2).is_none());
        drop(reader);
        let mut writer = BytesWriter::begin(memory.clone(), 2).unwrap();
        writer.write(&[7]).unwrap();
        assert!(BytesReader::begin(memory.clone(), 1).is_none(), "it comes too late");
        assert!(BytesReader::begin(memory.clone(), 3).is_none());
        let (mut reader, mut into) = (BytesReader::begin(memory.clone(), 2).unwrap(), [0; 2]);
        assert_eq!((reader.read(&mut into).unwrap(), into[0]), (1, 7));
        assert!(BytesWriter::begin(memory, 3).is_none());
    }
}
