//! The baseline `raw` of the shm link: what shared memory itself can do between the same two cores, with nothing around it.
//!
//! - *latency*: a descriptor of 64 bytes there and back through two bare rings, both sides spinning; with polling off, two
//!   words on which the two processes sleep in turn (futex).
//! - *rate*: a bare ring of such descriptors, one way, as fast as it goes: nobody asks for anything.
//! - *bandwidth*: memcpy by one thread on the producer's CPU, from as many buffers as the window has, into as many others.
//!
//! Descriptors stay 64 bytes whatever the tensors' size is. The two processes share a sealed memfd; the producer, which is
//! the peer process, opens the consumer's descriptor by its path in `/proc`.

mod board;
mod futex;
mod producer;
mod ring;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};
use std::{hint, io};

use super::channel::{NAME, Patience, explained};
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Plan};
use crate::sample::Sample;
use crate::stopwatch::Tally;
use crate::system::{Rounds, System};
use crate::systems;
use board::{Board, SharedBoard};
use producer::Producer;
use ring::{Descriptor, Reader, Writer};

/// Shared memory between two processes.
struct OverShm {
    plan: Plan,
    board: SharedBoard,
    consumer: Consumer,
}

/// Shared memory, the producer in a process of its own.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let (board, descriptor) = SharedBoard::create()?;
    let job = PeerJob { meeting_place: Some(board::path_of(&descriptor)), ..job.clone() };
    let plan = job.plan.clone();
    let variant = match plan.bench {
        Bench::Latency if plan.polling => "polling, descriptor echo".to_owned(),
        Bench::Latency => "sleeping, futex".to_owned(),
        Bench::Rate => "polling, one-way ring".to_owned(),
        Bench::Bandwidth => format!("memcpy, {} buffers", plan.window),
        none => none.is_measured_elsewhere(),
    };
    let rounds = OverShm { plan, board, consumer: Consumer::default() };
    System::with_peer(&job, program, |_| Ok(System::new(NAME, variant, rounds)))
}

impl Rounds for OverShm {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let Self { plan, board, consumer } = self;
        let sample = match plan.bench {
            Bench::Latency => consumer.round_trips(board, plan, length),
            Bench::Rate => consumer.pumped(board, plan, length),
            Bench::Bandwidth => consumer.copied(board, plan, length),
            none => none.is_measured_elsewhere(),
        };
        sample.map_err(explained)
    }
}

/// The producer's side: serves until the process is ended.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let board = SharedBoard::open(job.meeting_place()?)?;
    let producer = Producer::new(&job.plan);
    announce(0)?;
    producer.serve(&board).map_err(BenchError::io("serve the consumer"))
}

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
    fn round_trips(&mut self, board: &Board, plan: &Plan, length: Duration) -> io::Result<Sample> {
        systems::round_trips(plan, length, || if plan.polling { self.echo(board) } else { self.ask_asleep(board) })
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
    fn pumped(&mut self, board: &Board, plan: &Plan, length: Duration) -> io::Result<Sample> {
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
    fn copied(&mut self, board: &Board, plan: &Plan, length: Duration) -> io::Result<Sample> {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::sample::Metric;

    const LENGTH: Duration = Duration::from_millis(2);

    /// Two rounds with a producer on another thread; its turns of the kind that the plan says.
    fn two_rounds(plan: &Plan, round: impl Fn(&mut Consumer, &SharedBoard) -> std::io::Result<Sample>) -> [Sample; 2] {
        let (board, _) = SharedBoard::create().expect("memory");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut producer = Producer::new(plan);
                while !over.load(Relaxed) {
                    match &mut producer {
                        Producer::Echo(echo) => echo.turn(&board),
                        Producer::Sleeper(sleeper) => sleeper.turn(&board).expect("no limit"),
                        Producer::Pump(pump) => pump.turn(&board),
                        Producer::Copier(copier) => copier.turn(&board),
                    }
                }
            });
            let mut consumer = Consumer::default();
            let samples = [(); 2].map(|()| round(&mut consumer, &board));
            // Before anything can panic: the scope waits for the producer.
            over.store(true, Relaxed);
            // A sleeping producer looks whether it is over once it is woken.
            board.asked.fetch_add(1, Relaxed);
            futex::wake(&board.asked);
            samples.map(|sample| sample.expect("it moves"))
        })
    }

    #[test]
    fn questions_are_answered_awake_and_asleep() {
        for polling in [true, false] {
            let plan = Plan { polling, ..Plan::new(Bench::Latency) };
            let samples = two_rounds(&plan, |consumer, board| consumer.round_trips(board, &plan, LENGTH));
            for sample in samples {
                assert!(!sample.round_trips.expect("they were measured").is_empty());
            }
        }
    }

    #[test]
    fn what_is_pumped_and_copied_is_counted() {
        let rate = Plan::new(Bench::Rate);
        let pumped = two_rounds(&rate, |consumer, board| consumer.pumped(board, &rate, LENGTH));
        let bandwidth = Plan { size_bytes: 4096, window: 3, ..Plan::new(Bench::Bandwidth) };
        let copied = two_rounds(&bandwidth, |consumer, board| consumer.copied(board, &bandwidth, LENGTH));
        for (samples, metric) in [(pumped, Metric::TensorsPerSecond), (copied, Metric::GigabytesPerSecond)] {
            for sample in samples {
                let [(found, value)] = sample.figures[..] else { panic!("one figure") };
                assert!(found == metric && value > 0.0, "{metric} {value}");
            }
        }
    }
}
