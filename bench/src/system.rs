//! The interface of everything that the harness measures.

use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::figures::{Metric, Sample};
use crate::machine::RdmaDevice;
use crate::peer::{Meter, Peer, PeerJob, PeerProgram};
use crate::plan::Plan;
use crate::systems::client::{measure_now, pass_gap};
use crate::systems::training::{Moved, StepLog};

/// The consumer's side of a system. Which of its methods are called depends on what the plan measures; a system with its own loop
/// only needs [`round`](Self::round).
pub(crate) trait Client: Sized {
    /// Measures for `length`, after a warm-up that is not counted (see [`RoundClock`](crate::stopwatch::RoundClock)), and leaves
    /// nothing in flight.
    ///
    /// # Errors
    /// A dead producer, a stall, a reply of the wrong length.
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let mut sample = measure_now(self, plan, length)?;
        self.check()?;
        sample.figures.extend(self.further());
        Ok(sample)
    }

    /// Wakes this process's side for a round.
    fn resume(&mut self) {}

    /// Makes this process's side quiet until the next [`resume`](Self::resume).
    fn rest(&mut self) {}

    /// Requests `count` more tensors without waiting for them. If tensors come unasked, the first call starts them.
    fn ask(&mut self, _count: usize) -> Result<(), BenchError> {
        unreachable!("nobody asks this system for tensors")
    }

    /// Waits until some tensors have arrived; returns how many.
    async fn take(&mut self) -> Result<usize, BenchError> {
        unreachable!("nobody asks this system for tensors")
    }

    /// Whether tensors come unasked: then those in flight at the end of a round are left to [`end`](Self::end).
    fn is_one_way(&self) -> bool {
        false
    }

    /// Called when a round is over: nothing may be in flight afterwards.
    async fn end(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Requests one tensor, after a gap if the plan has one; returns when it was requested and when it arrived.
    async fn exchange(&mut self, plan: &Plan) -> Result<(Instant, Instant), BenchError> {
        if let Some(idle) = plan.idle() {
            pass_gap(idle, plan.polling);
        }
        let asked = Instant::now();
        self.ask(1)?;
        self.take().await?;
        Ok((asked, Instant::now()))
    }

    /// Work before a step that is not timed.
    fn prepare(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Receives all tensors of a step, each into its own memory.
    async fn step(&mut self) -> Result<(), BenchError> {
        unreachable!("this system has no steps")
    }

    /// Has every worker make `steps` steps, one after the other; returns when all have made their last.
    fn train(&mut self, _steps: u64, _log: &mut StepLog) -> Result<(), BenchError> {
        unreachable!("this system has no workers")
    }

    /// What has moved in all steps so far, in both directions; `None` if nobody counts that.
    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        Ok(None)
    }

    /// The time, as exactly as the system counts.
    fn now(&self) -> Instant {
        Instant::now()
    }

    /// Checks what the last step of a round has brought.
    fn check(&self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Figures of a round other than those of its requests.
    fn further(&mut self) -> Vec<(Metric, f64)> {
        Vec::new()
    }
}

/// A client of any type, with the way to measure it.
trait Rounds {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError>;
    fn resume(&mut self);
    fn rest(&mut self);
}

impl<C: Client> Rounds for (Plan, C) {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        self.1.round(&self.0, length)
    }

    fn resume(&mut self) {
        self.1.resume();
    }

    fn rest(&mut self) {
        self.1.rest();
    }
}

/// Something that moves tensors, set up once and then measured in turn with others.
///
/// The consumer's side runs in this process, on a thread that is pinned to the first CPU while a round is measured; the producer's
/// side is a separate process on the second CPU. Between its rounds a system must be quiet on both, since others are measured
/// there.
pub(crate) struct System {
    /// The name in the report, such as `sealane`, `raw` or `grpc-stream`.
    pub(crate) name: &'static str,
    /// How it is run, as in `polling` or `unary`.
    pub(crate) variant: String,
    /// The congestion control of its sockets, read back from one; `None` without TCP.
    pub(crate) congestion: Option<String>,
    pub(crate) device: Option<RdmaDevice>,
    /// The producer's process, if it rests between rounds. Dropped before the client, which would otherwise wait for an answer from
    /// a resting process.
    peer: Option<Peer>,
    /// The consumer's process and the producer's.
    meters: Option<[Meter; 2]>,
    rounds: Box<dyn Rounds>,
}

impl System {
    /// A system without a socket, a device, or a producer that rests.
    pub(crate) fn new(
        name: &'static str,
        variant: impl Into<String>,
        plan: &Plan,
        client: impl Client + 'static,
    ) -> Self {
        let (variant, rounds) = (variant.into(), Box::new((plan.clone(), client)));
        Self { name, variant, congestion: None, device: None, peer: None, meters: None, rounds }
    }

    /// A system with a producer's process, which rests once `set_up` has what it needs from it. If the process ends before, that is
    /// the error.
    pub(crate) fn with_peer(
        job: &PeerJob,
        program: &PeerProgram,
        set_up: impl FnOnce(&Peer) -> Result<Self, BenchError>,
    ) -> Result<Self, BenchError> {
        let mut peer = Peer::start(program, job)?;
        let system = set_up(&peer).map_err(|failure| peer.blame(failure))?;
        let meters = Some([Meter::of_this_process()?, peer.meter()?]);
        peer.rest()?;
        Ok(Self { peer: Some(peer), meters, ..system })
    }

    pub(crate) fn with_congestion(self, congestion: impl Into<Option<String>>) -> Self {
        Self { congestion: congestion.into(), ..self }
    }

    pub(crate) fn with_device(self, device: Option<RdmaDevice>) -> Self {
        Self { device, ..self }
    }

    /// Wakes both sides for a round.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when the producer is gone.
    pub(crate) fn resume(&mut self) -> Result<(), BenchError> {
        self.rounds.resume();
        self.peer.as_mut().map_or(Ok(()), Peer::resume)
    }

    /// Measures a round.
    ///
    /// # Errors
    /// What [`Client::round`] says, or how the producer ended, if it did.
    pub(crate) fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let (spent, began) = (self.cpu_times()?, Instant::now());
        let measured = self.rounds.round(length).map_err(|failure| match &mut self.peer {
            Some(peer) => peer.blame(failure),
            None => failure,
        });
        let (mut sample, took) = (measured?, began.elapsed());
        if let (Some(before), Some(&(Metric::GigabytesPerSecond, rate))) = (spent, sample.figures.first())
            && rate > 0.0
            && let Some(after) = self.cpu_times()?
        {
            let per_gigabyte = |side: usize| (after[side] - before[side]).div_duration_f64(took) / rate;
            sample.figures.push((Metric::CpuPerGigabyte, per_gigabyte(0)));
            sample.figures.push((Metric::ProducerCpuPerGigabyte, per_gigabyte(1)));
        }
        Ok(sample)
    }

    /// The CPU time of the consumer's process and of the producer's since they started.
    fn cpu_times(&self) -> Result<Option<[Duration; 2]>, BenchError> {
        let Some([consumer, producer]) = &self.meters else { return Ok(None) };
        Ok(Some([consumer.cpu_time()?, producer.cpu_time()?]))
    }

    /// Makes both sides quiet until the next [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when the producer is gone.
    pub(crate) fn rest(&mut self) -> Result<(), BenchError> {
        self.peer.as_mut().map_or(Ok(()), Peer::rest)?;
        self.rounds.rest();
        Ok(())
    }
}
