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
mod consumer;
mod futex;
mod producer;
mod ring;

use std::time::Duration;

use crate::error::BenchError;
use crate::peer::{Peer, PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Plan};
use crate::sample::Sample;
use crate::system::{Rounds, System};
use crate::systems::raw::channel::{NAME, explained};

use board::SharedBoard;
use consumer::Consumer;
use producer::Producer;

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
    let mut peer = Peer::start(program, &job)?;
    peer.rest()?;
    let plan = job.plan;
    let variant = match plan.bench {
        Bench::Latency if plan.polling => "polling, descriptor echo".to_owned(),
        Bench::Latency => "sleeping, futex".to_owned(),
        Bench::Rate => "polling, one-way ring".to_owned(),
        Bench::Bandwidth => format!("memcpy, {} buffers", plan.window),
        none => none.is_measured_elsewhere(),
    };
    let rounds = OverShm { plan, board, consumer: Consumer::default() };
    Ok(System::new(NAME, variant, rounds).with_peer(peer))
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
