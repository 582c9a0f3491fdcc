//! What `ps` measures: workers that make step after step, each step a pull from every parameter server, some time to compute, and a
//! push to each. The parameter servers have their own process; the workers are in this one.
//!
//! A round is a number of steps of every worker, chosen by how long one takes: the work is fixed and its time is measured, so that
//! nothing depends on where in a step a worker is when time runs out. One step warms up.

use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use hdrhistogram::Histogram;

use crate::error::BenchError;
use crate::figures::{Metric, Sample, record_round_trip, round_trip_histogram};
use crate::limits::{ROUND_STEPS_MAX, WARM_UP_SHARE};
use crate::peer::{Meter, Peer};
use crate::plan::{Bench, Plan, Tables, Training, spread};
use crate::process::Interface;
use crate::system::{Client, System};

/// What has moved between workers and parameter servers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// Messages, both ways.
    pub(crate) messages: u64,
    /// Their bytes, as the link counts them, if it does.
    pub(crate) bytes: u64,
}

impl Moved {
    /// `messages` over TCP; the bytes are those that have passed the interface.
    pub(super) fn through(interface: &Interface, messages: u64) -> Result<Option<Self>, BenchError> {
        Ok(Some(Self { messages, bytes: interface.bytes_moved()? }))
    }

    /// `messages` whose bytes are not counted.
    pub(super) fn messages(messages: u64) -> Option<Self> {
        Some(Self { messages, bytes: 0 })
    }

    pub(super) fn since(self, before: Self) -> Self {
        Self { messages: self.messages - before.messages, bytes: self.bytes - before.bytes }
    }
}

/// The steps made since this was begun.
pub(crate) struct StepLog {
    began: Instant,
    times: Histogram<u64>,
    /// When each worker ended its last step.
    ended: Vec<Instant>,
}

impl StepLog {
    pub(super) fn begin(workers: usize) -> Self {
        let began = Instant::now();
        Self { began, times: round_trip_histogram(), ended: vec![began; workers] }
    }

    pub(super) fn completed(&mut self, worker: usize, began: Instant, ended: Instant) {
        record_round_trip(&mut self.times, ended - began);
        self.ended[worker] = ended;
    }

    /// Records the steps of a worker, each with its begin and end.
    pub(super) fn completed_all(&mut self, worker: usize, times: Vec<(Instant, Instant)>) {
        times.into_iter().for_each(|(began, ended)| self.completed(worker, began, ended));
    }

    /// Time from the beginning until the last worker ended.
    fn took(&self) -> Duration {
        self.ended.iter().max().expect("one worker at least").duration_since(self.began)
    }

    /// The pace of the slowest and of the fastest worker, relative to an equal share.
    fn shares(&self) -> (f64, f64) {
        let paces: Vec<f64> = self.ended.iter().map(|ended| 1.0 / (*ended - self.began).as_secs_f64()).collect();
        let mean = paces.iter().sum::<f64>() / paces.len() as f64;
        let of = |pick: fn(f64, f64) -> f64| paces.iter().copied().reduce(pick).expect("one worker at least") / mean;
        (of(f64::min), of(f64::max))
    }

    fn milliseconds(&self, quantile: f64) -> f64 {
        self.times.value_at_quantile(quantile) as f64 / 1e6
    }
}

/// Workers that train with parameter servers, which have their own process.
struct Experiment<C> {
    workers: C,
    /// Growth of the parameter servers' resident memory for each connection.
    resident_bytes_each: f64,
    /// How many steps of every worker fitted into a round, when last measured.
    steps: Option<u64>,
    /// The parameter servers' process, and this one.
    processes: [Meter; 2],
}

/// The experiment of a plan that has one, with parameter servers in the process `peer`.
pub(super) fn system(
    (name, variant): (&'static str, String),
    plan: &Plan,
    workers: impl Client + 'static,
    resident_bytes_each: f64,
    peer: &Peer,
) -> Result<System, BenchError> {
    let processes = [peer.meter()?, Meter::of_this_process()?];
    Ok(System::new(name, variant, plan, Experiment { workers, resident_bytes_each, steps: None, processes }))
}

impl<C: Client> Experiment<C> {
    /// The number of steps that fit into a round, estimated from the last ones; before the first round, one is made to find out.
    fn warm_up(&mut self, workers: usize, length: Duration) -> Result<u64, BenchError> {
        let warm = self.steps.map_or(1, |steps| ((steps as f64 * WARM_UP_SHARE) as u64).max(1));
        let mut log = StepLog::begin(workers);
        self.workers.train(warm, &mut log)?;
        if self.steps.is_none() {
            // The first step finds all caches cold.
            log = StepLog::begin(workers);
            self.workers.train(1, &mut log)?;
        }
        let made = if self.steps.is_none() { 1 } else { warm };
        let fitting = length.as_secs_f64() / log.took().as_secs_f64() * made as f64;
        Ok((fitting.round() as u64).clamp(1, ROUND_STEPS_MAX))
    }

    fn moved_now(&mut self) -> Result<Option<Moved>, BenchError> {
        self.workers.moved().now_or_never().expect("it waits within its calls")
    }
}

impl<C: Client> Client for Experiment<C> {
    fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let count = of(plan).size.workers;
        let steps = self.warm_up(count, length)?;
        self.steps = Some(steps);
        let cpu_time = |processes: &[Meter; 2]| {
            let [ps, workers] = processes;
            Ok::<_, BenchError>([ps.cpu_time()?, workers.cpu_time()?])
        };
        let (moved, spent) = (self.moved_now()?, cpu_time(&self.processes)?);
        let mut log = StepLog::begin(count);
        self.workers.train(steps, &mut log)?;
        let spent_after = cpu_time(&self.processes)?;
        let moved = self.moved_now()?.zip(moved).map(|(after, before)| after.since(before));
        let made = (steps * count as u64) as f64;
        let cpu_ms = |place: usize| (spent_after[place] - spent[place]).as_secs_f64() * 1_000.0 / made;
        let (slowest, fastest) = log.shares();
        let [ps, workers] = &self.processes;
        let mebibytes = |process: &Meter| Ok::<_, BenchError>(process.resident_bytes()? as f64 / f64::from(1 << 20));
        let mut figures = vec![
            (Metric::StepsPerSecond, made / log.took().as_secs_f64()),
            (Metric::StepTime, log.milliseconds(0.5)),
            (Metric::StepTimeP90, log.milliseconds(0.9)),
            (Metric::StepTimeP99, log.milliseconds(0.99)),
        ];
        if !plan.tables.is_empty() {
            let a_second = |of_step: fn(&Tables) -> usize| {
                plan.tables.iter().map(of_step).sum::<usize>() as f64 * made / log.took().as_secs_f64()
            };
            figures.push((Metric::RowsPerSecond, a_second(Tables::rows_a_step)));
            figures.push((Metric::GigabytesPerSecond, a_second(Tables::step_bytes) / 1e9));
        }
        if let Some(Moved { messages, bytes }) = moved {
            figures.push((Metric::MessagesPerStep, messages as f64 / made));
            figures.push((Metric::BytesPerStep, bytes as f64 / made));
        }
        figures.extend([
            (Metric::CpuPerStep, cpu_ms(0) + cpu_ms(1)),
            (Metric::WorkerCpuPerStep, cpu_ms(1)),
            (Metric::PsCpuPerStep, cpu_ms(0)),
            (Metric::SlowestShare, slowest),
            (Metric::FastestShare, fastest),
            (Metric::ResidentBytesPerPeer, self.resident_bytes_each),
            (Metric::PsResident, mebibytes(ps)?),
            (Metric::WorkerResident, mebibytes(workers)?),
            (Metric::PsOpenFiles, ps.open_files()? as f64),
        ]);
        Ok(figures.into())
    }
}

/// Workers that have a thread each, wait within their steps, and know what has moved between them and their parameter servers.
pub(super) struct Threads<W> {
    pub(super) workers: Vec<W>,
    pub(super) moved: Box<dyn Fn() -> Result<Option<Moved>, BenchError>>,
}

impl<W: Client + Send> Client for Threads<W> {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let train = |worker: &mut W| {
            let one = |_| {
                let began = Instant::now();
                worker.step().now_or_never().expect("it waits within its calls")?;
                Ok((began, Instant::now()))
            };
            let times = (0..steps).map(one).collect::<Result<Vec<_>, BenchError>>()?;
            worker.check().map(|()| times)
        };
        let outcomes: Vec<_> = thread::scope(|scope| {
            let begun: Vec<_> = self.workers.iter_mut().map(|worker| scope.spawn(|| train(worker))).collect();
            begun.into_iter().map(|worker| worker.join().expect("a worker's thread does not panic")).collect()
        });
        outcomes.into_iter().enumerate().try_for_each(|(worker, times)| {
            log.completed_all(worker, times?);
            Ok(())
        })
    }

    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        (self.moved)()
    }
}

/// The experiment that a plan describes.
pub(super) fn of(plan: &Plan) -> &Training {
    plan.training.as_ref().expect("a plan of ps has one")
}

/// What a worker exchanges with one ps in a step.
pub(super) struct Share {
    /// The numbers of the tensors that it pulls, and their bytes.
    pub(super) numbers: Vec<usize>,
    pub(super) pulled: Vec<usize>,
    /// Bytes of the gradients that it pushes.
    pub(super) pushed: Vec<usize>,
}

/// The shares of every ps, over which tensors and gradients are distributed.
pub(super) fn shares(plan: &Plan) -> impl ExactSizeIterator<Item = Share> {
    let Training { size, push, .. } = of(plan);
    // Workers that pull rows push nothing.
    let push = if plan.bench == Bench::Rows { &[][..] } else { push };
    let of_each = spread(&plan.step, size.ps).into_iter().zip(spread(push, size.ps));
    of_each.map(|(numbers, pushed)| Share {
        pulled: numbers.iter().map(|&tensor| plan.step[tensor]).collect(),
        pushed: pushed.into_iter().map(|gradient| push[gradient]).collect(),
        numbers,
    })
}

/// The description of how a plan with one variant trains.
pub(super) fn variant(plan: &Plan) -> String {
    let training = of(plan);
    format!("{}, {}", training.mode, training.variants[0])
}
