//! The producer's side of the raw baseline in shared memory: one bounded turn at a time, so that tests can take turns in
//! one thread.

use std::hint;
use std::io;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::board::Board;
use super::futex;
use super::ring::{Descriptor, Reader, Writer};
use crate::plan::{Bench, Plan};

/// Descriptors pumped between two looks at the orders.
const PUMPED_AT_ONCE: usize = 64;

/// The producer of any measurement.
#[derive(Debug)]
pub(super) enum Producer {
    /// Latency, polling.
    Echo(Echo),
    /// Latency, asleep.
    Sleeper(Sleeper),
    /// Rate.
    Pump(Pump),
    /// Bandwidth.
    Copier(Copier),
}

impl Producer {
    pub(super) fn new(plan: &Plan) -> Self {
        match plan.bench {
            Bench::Latency if plan.polling => Self::Echo(Echo::default()),
            Bench::Latency => Self::Sleeper(Sleeper::default()),
            Bench::Rate => Self::Pump(Pump::default()),
            Bench::Bandwidth => Self::Copier(Copier::new(plan)),
            none => none.is_measured_elsewhere(),
        }
    }

    /// Takes turns for ever, in a loop of the one kind.
    pub(super) fn serve(mut self, board: &Board) -> io::Result<()> {
        match &mut self {
            Self::Echo(echo) => loop {
                echo.turn(board);
            },
            Self::Sleeper(sleeper) => loop {
                sleeper.turn(board)?;
            },
            Self::Pump(pump) => loop {
                pump.turn(board);
            },
            Self::Copier(copier) => loop {
                copier.turn(board);
            },
        }
    }
}

/// Writes back every descriptor that it reads.
#[derive(Debug, Default)]
pub(super) struct Echo {
    reader: Reader,
    writer: Writer,
}

impl Echo {
    #[inline]
    pub(super) fn turn(&mut self, board: &Board) {
        match self.reader.pop(&board.to_producer) {
            // The consumer waits for one answer before it asks again, so that there is room.
            Some(descriptor) => assert!(self.writer.push(&board.from_producer, &descriptor), "one is in flight"),
            None => hint::spin_loop(),
        }
    }
}

/// Sleeps until a question is asked, and answers it.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    answered: u32,
}

impl Sleeper {
    pub(super) fn turn(&mut self, board: &Board) -> io::Result<()> {
        if board.asked.load(Acquire) == self.answered {
            return futex::wait(&board.asked, self.answered, None);
        }
        self.answered = self.answered.wrapping_add(1);
        board.answered.store(self.answered, Release);
        futex::wake(&board.answered);
        Ok(())
    }
}

/// Whether the producer is to stream; once it is not, says that it does not.
#[inline]
fn streams(board: &Board) -> bool {
    let ordered = board.ordered.load(Acquire);
    if !ordered.is_multiple_of(2) {
        return true;
    }
    if board.rested.load(Acquire) != ordered {
        // RESTED: Release here, Acquire in the consumer: whoever sees it sees all that was streamed before.
        board.rested.store(ordered, Release);
    }
    hint::spin_loop();
    false
}

/// Writes descriptors as fast as the ring takes them.
#[derive(Debug, Default)]
pub(super) struct Pump {
    writer: Writer,
    pumped: u64,
}

impl Pump {
    #[inline]
    pub(super) fn turn(&mut self, board: &Board) {
        if !streams(board) {
            return;
        }
        for _ in 0..PUMPED_AT_ONCE {
            let descriptor: Descriptor = std::array::from_fn(|index| self.pumped + index as u64);
            if !self.writer.push(&board.from_producer, &descriptor) {
                return hint::spin_loop();
            }
            self.pumped += 1;
        }
    }
}

/// Copies tensors from one set of buffers to another, all of which exist before the first round.
#[derive(Debug)]
pub(super) struct Copier {
    sources: Vec<Box<[u8]>>,
    targets: Vec<Box<[u8]>>,
    copies: u64,
}

impl Copier {
    fn new(plan: &Plan) -> Self {
        // Not zero: such pages would exist only when they are first written.
        let buffers = || (0..plan.window).map(|_| vec![1; plan.size_bytes].into_boxed_slice()).collect();
        Self { sources: buffers(), targets: buffers(), copies: 0 }
    }

    pub(super) fn turn(&mut self, board: &Board) {
        if !streams(board) {
            return;
        }
        let index = self.copies as usize % self.sources.len();
        self.targets[index].copy_from_slice(hint::black_box(&self.sources[index]));
        hint::black_box(&mut self.targets[index]);
        self.copies += 1;
        board.copies.store(self.copies, Release);
    }
}
