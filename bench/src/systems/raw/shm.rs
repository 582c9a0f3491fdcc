//! The baseline `raw` of the shm link: what shared memory itself can do between the same two cores, with nothing around it. For the
//! length of each round, a thread on the producer's CPU is the other side.
//!
//! - *latency*: a descriptor of 64 bytes there and back through two bare rings, both sides spinning; with polling off, two
//!   words on which the two threads sleep in turn (parking is a futex).
//! - *rate*: a bare ring of such descriptors, one way, as fast as possible: nothing is requested.
//! - *bandwidth*: memcpy by the other thread, from as many buffers as the window has, into as many others.
//!
//! Descriptors stay 64 bytes whatever the tensors' size is.

use std::cell::Cell;
use std::hint;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread::{self, Thread};
use std::time::Duration;

use super::channel::{NAME, Patience, explained};
use crate::error::BenchError;
use crate::figures::Sample;
use crate::limits::STALL_LIMIT;
use crate::machine::Pinned;
use crate::peer::PeerJob;
use crate::plan::{Bench, Plan};
use crate::system::{Client, System};
use crate::systems::client::measure_now;

/// Descriptors in a ring: as many as slots in a ring of the shm link.
const SLOTS: usize = 1024;

/// The reader publishes its position once in this many descriptors.
const READS_A_HEAD: u64 = SLOTS as u64 / 4;

/// Words of a descriptor besides the one that tells that it is written: 64 bytes together.
const WORDS: usize = 7;

/// Descriptors that are read between two clock readings, each of which costs as much as several of them.
const READ_AT_ONCE: usize = 64;

type Descriptor = [u64; WORDS];

#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Slot {
    /// The position of the descriptor in the slot, plus one.
    written: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// A value that shares no pair of cache lines with another: the processor fetches lines in pairs.
#[derive(Debug, Default)]
#[repr(C, align(128))]
struct Apart<T>(T);

/// A bare ring with one writer and one reader, each with a private position; they trust each other.
#[derive(Debug)]
struct Ring {
    slots: Box<[Slot]>,
    /// The reader's position, or an earlier one.
    head: Apart<AtomicU64>,
    /// The writer's position, and the head as it last read it; the reader's position.
    writer: Apart<AtomicU64>,
    seen: AtomicU64,
    reader: Apart<AtomicU64>,
}

impl Ring {
    fn new() -> Self {
        let slots = (0..SLOTS).map(|_| Slot::default()).collect();
        let (seen, writer) = Default::default();
        Self { slots, head: Apart::default(), writer, seen, reader: Apart::default() }
    }

    /// Writes one descriptor; false while the ring is full.
    #[inline]
    fn push(&self, descriptor: &Descriptor) -> bool {
        let position = self.writer.0.load(Relaxed);
        if position - self.seen.load(Relaxed) == SLOTS as u64 {
            // HEAD: Acquire here, Release in `pop`: a slot is not overwritten before it was read.
            let head = self.head.0.load(Acquire);
            self.seen.store(head, Relaxed);
            if position - head == SLOTS as u64 {
                return false;
            }
        }
        let slot = &self.slots[position as usize % SLOTS];
        for (word, value) in slot.words.iter().zip(descriptor) {
            word.store(*value, Relaxed);
        }
        self.writer.0.store(position + 1, Relaxed);
        // WRITTEN: Release here, Acquire in `pop`: a reader that sees it sees the words.
        slot.written.store(position + 1, Release);
        true
    }

    /// Reads the next descriptor, if there is one.
    #[inline]
    fn pop(&self) -> Option<Descriptor> {
        let position = self.reader.0.load(Relaxed);
        let slot = &self.slots[position as usize % SLOTS];
        // WRITTEN: see `push`.
        if slot.written.load(Acquire) != position + 1 {
            return None;
        }
        let descriptor = std::array::from_fn(|index| slot.words[index].load(Relaxed));
        self.reader.0.store(position + 1, Relaxed);
        if (position + 1).is_multiple_of(READS_A_HEAD) {
            // HEAD: see `push`.
            self.head.0.store(position + 1, Release);
        }
        Some(descriptor)
    }
}

/// What the two threads share.
#[derive(Debug)]
struct Board {
    /// True if the round is over, which ends the other thread.
    is_over: AtomicBool,
    to_producer: Ring,
    from_producer: Ring,
    /// Questions and answers, or copies made.
    asked: Apart<AtomicU64>,
    answered: Apart<AtomicU64>,
}

struct Shm {
    cpu: Option<usize>,
    /// Not zero, since zero pages would only be allocated when first written.
    buffers: [Vec<Box<[u8]>>; 2],
}

pub(in crate::systems) fn start(job: &PeerJob) -> System {
    let plan = &job.plan;
    let variant = match plan.bench {
        Bench::Latency if plan.polling => "polling, descriptor echo".to_owned(),
        Bench::Latency => "sleeping, futex".to_owned(),
        Bench::Rate => "polling, one-way ring".to_owned(),
        _ => format!("memcpy, {} buffers", plan.window),
    };
    let copied = if plan.bench == Bench::Bandwidth { plan.window } else { 0 };
    let buffers = [(); 2].map(|()| (0..copied).map(|_| vec![1; plan.size_bytes].into()).collect());
    System::new(NAME, variant, plan, Shm { cpu: job.cpu, buffers })
}

impl Client for Shm {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let Self { cpu, buffers } = self;
        let (asked, answered) = Default::default();
        let (to_producer, from_producer) = (Ring::new(), Ring::new());
        let board = Board { is_over: AtomicBool::new(false), to_producer, from_producer, asked, answered };
        let (board, consumer) = (&board, thread::current());
        thread::scope(|scope| {
            let beside = scope.spawn(move || {
                let _pinned = cpu.map(Pinned::to).transpose()?;
                produce(board, plan, buffers, &consumer);
                Ok::<_, BenchError>(())
            });
            let mut client = Beside { board, plan, producer: beside.thread().clone(), seen: Cell::new(0) };
            let sample = measure_now(&mut client, plan, length);
            board.is_over.store(true, Relaxed);
            beside.thread().unpark();
            beside.join().expect("the other thread does not panic")?;
            sample
        })
    }
}

/// The other thread's side, until the round is over.
fn produce(board: &Board, plan: &Plan, [sources, targets]: &mut [Vec<Box<[u8]>>; 2], consumer: &Thread) {
    let mut count = 0;
    while !board.is_over.load(Relaxed) {
        match plan.bench {
            Bench::Latency if plan.polling => match board.to_producer.pop() {
                // The consumer waits for one answer before it asks again, so there is room.
                Some(descriptor) => assert!(board.from_producer.push(&descriptor), "one is in flight"),
                None => hint::spin_loop(),
            },
            Bench::Latency if board.asked.0.load(Acquire) == count => thread::park(),
            Bench::Latency => {
                count += 1;
                board.answered.0.store(count, Release);
                consumer.unpark();
            }
            Bench::Rate => {
                for _ in 0..READ_AT_ONCE {
                    if !board.from_producer.push(&std::array::from_fn(|index| count + index as u64)) {
                        hint::spin_loop();
                        break;
                    }
                    count += 1;
                }
            }
            _ => {
                let index = count as usize % sources.len();
                targets[index].copy_from_slice(hint::black_box(&sources[index]));
                hint::black_box(&mut targets[index]);
                count += 1;
                board.answered.0.store(count, Release);
            }
        }
    }
}

/// The consumer's side.
struct Beside<'a> {
    board: &'a Board,
    plan: &'a Plan,
    producer: Thread,
    /// Answers or copies that were counted.
    seen: Cell<u64>,
}

impl Beside<'_> {
    /// The number that came since the last look.
    #[inline]
    fn look(&self) -> usize {
        match self.plan.bench {
            Bench::Latency if self.plan.polling => usize::from(self.board.from_producer.pop().is_some()),
            Bench::Rate => {
                (0..READ_AT_ONCE).take_while(|_| hint::black_box(self.board.from_producer.pop()).is_some()).count()
            }
            _ => {
                let now = self.board.answered.0.load(Acquire);
                (now - self.seen.replace(now)) as usize
            }
        }
    }
}

impl Client for Beside<'_> {
    fn ask(&mut self, _count: usize) -> Result<(), BenchError> {
        if self.plan.bench == Bench::Latency {
            let asked = self.board.asked.0.fetch_add(1, Release) + 1;
            if self.plan.polling {
                assert!(self.board.to_producer.push(&[asked; WORDS]), "none is in flight");
            } else {
                self.producer.unpark();
            }
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        let sleeps = self.plan.bench == Bench::Latency && !self.plan.polling;
        let mut patience = Patience::default();
        loop {
            match self.look() {
                0 if sleeps => thread::park_timeout(STALL_LIMIT),
                0 => hint::spin_loop(),
                count => return Ok(count),
            }
            // A thread that sleeps so long that its time limit wakes it reads the clock at once.
            if sleeps {
                patience.look().map_err(explained)?;
            } else {
                patience.idle_pass().map_err(explained)?;
            }
        }
    }

    fn is_one_way(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_threads_lose_nothing() {
        const COUNT: u64 = 20_000;
        let ring = Ring::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..COUNT {
                    while !ring.push(&[number; WORDS]) {
                        thread::yield_now();
                    }
                }
            });
            for number in 0..COUNT {
                let descriptor = loop {
                    match ring.pop() {
                        Some(descriptor) => break descriptor,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(descriptor, [number; WORDS]);
            }
        });
        assert_eq!(ring.pop(), None);
    }
}
