//! The consumer's side of the raw baseline in shared memory: one round of each measurement, on the calling thread.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use std::{hint, io};

use super::super::channel::Patience;
use super::board::Board;
use super::futex;
use super::ring::{Descriptor, Reader, Writer};
use crate::limits::STALL_LIMIT;
use crate::plan::Plan;
use crate::sample::Sample;
use crate::stopwatch::{RoundTrips, Tally};
use crate::systems::pass_gap;

/// Descriptors that are read between two looks at the clock, which costs as much as several of them.
const READ_AT_ONCE: u64 = 64;

/// Where the consumer is, which the producer's side matches: it goes on from round to round.
#[derive(Debug, Default)]
pub(super) struct Consumer {
    writer: Writer,
    reader: Reader,
    /// Questions asked, or descriptors written.
    asked: u32,
    ordered: u64,
}

impl Consumer {
    /// One question at a time, each answered by the other process.
    pub(super) fn round_trips(&mut self, board: &Board, plan: &Plan, length: Duration) -> io::Result<Sample> {
        let mut trips = RoundTrips::start(Instant::now(), length);
        loop {
            if let Some(idle) = plan.idle() {
                pass_gap(idle, plan.polling);
            }
            let asked = Instant::now();
            if plan.polling {
                self.echo(board)?;
            } else {
                self.ask_asleep(board)?;
            }
            if trips.completed(asked, Instant::now()) {
                return Ok(trips.sample());
            }
        }
    }

    /// A descriptor there and back.
    #[inline]
    fn echo(&mut self, board: &Board) -> io::Result<()> {
        self.asked = self.asked.wrapping_add(1);
        let question: Descriptor = [self.asked.into(); _];
        assert!(self.writer.push(&board.to_producer, &question), "none is in flight");
        let mut patience = Patience::default();
        let answer = loop {
            match self.reader.pop(&board.from_producer) {
                Some(answer) => break answer,
                None => patience.idle_pass()?,
            }
            hint::spin_loop();
        };
        assert_eq!(answer, question, "the echo of this question");
        Ok(())
    }

    /// Two words, on each of which one process sleeps until the other changes it.
    fn ask_asleep(&mut self, board: &Board) -> io::Result<()> {
        let answered = self.asked;
        self.asked = self.asked.wrapping_add(1);
        board.asked.store(self.asked, Release);
        futex::wake(&board.asked);
        while board.answered.load(Acquire) == answered {
            futex::wait(&board.answered, answered, Some(STALL_LIMIT))?;
        }
        Ok(())
    }

    /// Descriptors as fast as they come, one way.
    pub(super) fn pumped(&mut self, board: &Board, plan: &Plan, length: Duration) -> io::Result<Sample> {
        let mut tally = Tally::start(Instant::now(), length);
        let mut patience = Patience::default();
        self.order(board);
        loop {
            let read = self.read(board);
            if tally.completed(read, Instant::now()) {
                break;
            }
            if read == 0 {
                patience.idle_pass()?;
                hint::spin_loop();
            } else {
                patience = Patience::default();
            }
        }
        self.order(board);
        self.until_rested(board)?;
        // RESTED was seen: what is in the ring now is all that there will be.
        while self.read(board) > 0 {}
        Ok(tally.sample(plan))
    }

    /// Reads what is there, within a bound; how many.
    #[inline]
    fn read(&mut self, board: &Board) -> u64 {
        for count in 0..READ_AT_ONCE {
            match self.reader.pop(&board.from_producer) {
                Some(descriptor) => hint::black_box(descriptor),
                None => return count,
            };
        }
        READ_AT_ONCE
    }

    /// Counts the copies that the other process makes.
    pub(super) fn copied(&mut self, board: &Board, plan: &Plan, length: Duration) -> io::Result<Sample> {
        let mut tally = Tally::start(Instant::now(), length);
        let mut patience = Patience::default();
        let mut seen = board.copies.load(Acquire);
        self.order(board);
        loop {
            let copies = board.copies.load(Acquire);
            if copies == seen {
                patience.idle_pass()?;
                hint::spin_loop();
                continue;
            }
            patience = Patience::default();
            if tally.completed(copies - seen, Instant::now()) {
                break;
            }
            seen = copies;
        }
        self.order(board);
        self.until_rested(board)?;
        Ok(tally.sample(plan))
    }

    /// Turns the producer's stream on, or off.
    fn order(&mut self, board: &Board) {
        self.ordered += 1;
        board.ordered.store(self.ordered, Release);
    }

    /// Waits until the producer has seen that it is to rest. It may be waiting for room in the ring meanwhile, but not for
    /// long: it looks at the orders between its tries.
    fn until_rested(&self, board: &Board) -> io::Result<()> {
        debug_assert!(self.ordered.is_multiple_of(2) && board.ordered.load(Relaxed) == self.ordered);
        let mut patience = Patience::default();
        while board.rested.load(Acquire) != self.ordered {
            patience.idle_pass()?;
            hint::spin_loop();
        }
        Ok(())
    }
}
