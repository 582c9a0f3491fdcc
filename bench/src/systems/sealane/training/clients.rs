//! Workers that are tasks of the crate `sealane`, like training processes, each with a thread: over shm, clients of the parameter
//! servers' engine, attached with their own arena and rings; elsewhere, tasks of one engine in this process, each with its own
//! connection to every ps. The parameter servers are code on their engine's shard, whatever the link; as clients they would add a
//! hop. All workers are in this process and share its CPU. Bounded by [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX).
//! With a plan's `daemon`, the only worker is a client of this host's daemon, and the only ps is `attached` to the other host's.
//!
//! All pulls of a step begin before the first is waited for, with rows first; once everything from a ps has arrived, the pushes to
//! it follow.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use sealane::{
    Attach, Buffer, DType, Error, Keys, Plan as PullPlan, PlanPulling, Polling, Pushing, Receiving, RecvOptions,
    SendOptions, Sending, Task, Tensor, TensorMeta,
};
use sealane_fusion::Engine;
use sealane_transport::verbs::Verbs;

use super::super::attached::attach_with;
use super::super::engine::{self, QUEUE, key_of, on_shard, ps_of};
use super::super::peers;
use super::memory::{OPEN_FILES, arena_bytes};
use super::rows::Rows;
use super::servers::{self, REGISTERED_BYTES};
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, FILL, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{Growth, Hosts, PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Link, Mode, Plan, SystemName, Training, Variant};
use crate::process;
use crate::system::{Client, System};
use crate::systems::rows::bytes_of_each;
use crate::systems::sockets::Meeting;
use crate::systems::training::{self, Share, StepLog, Threads};

/// Buffers of the shared receive queue over verbs: of 16 KiB each, and more than a few ps can have in flight.
const QUEUE_DEPTH: u32 = 256;

/// Parameter servers in a process of their own, and a task for every worker.
pub(super) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &super::pulled(job);
    let workers = training::of(plan).size.workers;
    let connections = if plan.link == Link::Shm { 0 } else { training::of(plan).size.ps };
    process::allow_open_files("--workers", workers, OPEN_FILES + connections)?;
    let meeting = Meeting::arrange()?;
    let daemon = job.meeting_place.as_deref();
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    System::with_peer(&job, program, |peer| {
        let growth = Growth::of(peer)?;
        let (verbs, opened) = engine::verbs_settings(plan).unzip();
        let mut threads = match (plan.link, &plan.daemon) {
            (_, Some([worker, _])) => join(plan, None, |_| attach_with(worker, plan, arena_bytes(plan), daemon))?,
            (Link::Shm, None) => {
                let attach = |number| {
                    let attach = Attach::new(&peers::task(number)).socket(meeting.socket());
                    let attach = attach.arena_bytes(arena_bytes(plan)).timeout(CONNECT_LIMIT);
                    attach.polling(polling(plan)).attach().map_err(BenchError::sealane("attach"))
                };
                join(plan, None, attach)?
            }
            (_, None) => hosted(plan, &peer.addresses(), verbs)?,
        };
        // Clients get each other's memory there.
        let moved = threads.moved;
        threads.moved = Box::new(move || {
            let _the_socket = &meeting;
            moved()
        });
        if plan.link == Link::Verbs {
            // The first pull makes the queue pairs.
            threads.train(1, &mut StepLog::begin(workers))?;
        }
        let each = growth.bytes_each(training::of(plan).pairs())?;
        // For tables that are pulled whole, only the named rows are counted.
        let system = training::system((job.system.as_str(), described(&job)), &job.plan, threads, each, peer)?;
        Ok(system.with_device(opened.and_then(|opened| opened.get().cloned())))
    })
}

/// The workers of an engine of this process, which call parameter servers at these addresses.
pub(super) fn hosted(plan: &Plan, ps: &[SocketAddr], verbs: Option<Verbs>) -> Result<Threads<Worker>, BenchError> {
    let engine = host(plan, ps, verbs)?;
    let task = |number| engine.task(&peers::task(number)).map(Task::from).map_err(BenchError::sealane("start"));
    let tasks = (0..training::of(plan).size.workers).map(task).collect::<Result<Vec<_>, _>>()?;
    let mut tasks = tasks.into_iter();
    join(plan, Some(engine), move |_| Ok(tasks.next().expect("one for each worker")))
}

/// A worker for each task; what has moved is only known for workers with an engine here.
fn join(
    plan: &Plan,
    engine: Option<Engine>,
    mut task: impl FnMut(usize) -> Result<Task, BenchError>,
) -> Result<Threads<Worker>, BenchError> {
    let worker = |number| Worker::new(plan, number, task(number)?, engine.as_ref());
    let workers = (0..training::of(plan).size.workers).map(worker).collect::<Result<_, _>>()?;
    // Records in rings are not messages, and nobody counts them.
    let moved = move || engine.as_ref().map(engine::moved).transpose();
    Ok(Threads { workers, moved: Box::new(moved) })
}

fn host(plan: &Plan, ps: &[SocketAddr], mut verbs: Option<Verbs>) -> Result<Engine, BenchError> {
    let training = training::of(plan);
    let workers = training.size.workers;
    let names: Vec<String> = (0..workers).map(peers::task).collect();
    // Each worker is at its own transport address, and so has a connection to each ps. They call, and are not called: any address
    // will do.
    let listeners = names
        .iter()
        .map(|_| Ok(engine::listener(plan, Hosts::default().consumer)?.0))
        .collect::<Result<_, BenchError>>()?;
    if let Some(verbs) = &mut verbs {
        verbs.settings.queue_depth = QUEUE_DEPTH;
    }
    let mut settings = engine::settings(plan, &servers::map(training, ps), &names, listeners, verbs)?;
    settings.links_max = settings.links_max.max(2 * training.pairs());
    engine::let_rest(&mut settings);
    settings.connect_timeout = CONNECT_LIMIT;
    settings.request_timeout = request_timeout(plan);
    settings.fuse = engine::fuse(plan);
    settings.session.window = plan.window;
    // The workers, which share its CPU, would have to wait for a spinning shard.
    settings.runtime.polling = Polling::Park;
    // A plan keeps what it has pulled, and all parameter servers answer all workers at the same time.
    let pulled = workers * (engine::room_bytes(&plan.step) + engine::room_bytes(&bytes_of_each(plan)));
    settings.slab_receive_bytes += pulled;
    if plan.link == Link::Verbs {
        // Memory that the device reaches is allocated at once: no more than needed.
        settings.slab_receive_bytes = REGISTERED_BYTES + pulled;
        settings.slab_send_bytes = REGISTERED_BYTES + pulled + 2 * workers * engine::room_bytes(&training.push);
    }
    engine::start(settings)
}

/// How long a worker waits for a tensor, which in synchronous mode may wait for everything that the others move in a step.
fn request_timeout(plan: &Plan) -> Duration {
    let training = training::of(plan);
    let step: usize = plan.step.iter().chain(&training.push).sum();
    let slowest = (step * training.size.workers / SLOWEST_BYTES_PER_SECOND) as u64;
    STALL_LIMIT + Duration::from_micros(training.compute_us) + Duration::from_secs(slowest)
}

/// The variant, with what sharing a CPU rules out, and how tables are pulled.
fn described(job: &PeerJob) -> String {
    let plan = &job.plan;
    let daemons = if plan.daemon.is_some() { ", through the daemons" } else { "" };
    let tables = match (plan.bench, job.system) {
        (Bench::Rows, SystemName::Whole) => return "tables as a whole, plan".to_owned(),
        (Bench::Rows, _) => return format!("rows{daemons}"),
        (_, SystemName::Whole) => ", tables whole",
        _ if plan.tables.is_empty() => "",
        _ => ", rows",
    };
    let transfer = plan.verbs().map(|(transfer, _)| format!(", {transfer}")).unwrap_or_default();
    let waiting = if plan.polling && shares_cpu(plan) { ", workers parking" } else { "" };
    format!("{}{transfer}{waiting}{tables}{daemons}", training::variant(plan))
}

/// Whether a spinning worker would keep others from working.
fn shares_cpu(plan: &Plan) -> bool {
    training::of(plan).size.workers > 1
}

fn polling(plan: &Plan) -> Polling {
    match (shares_cpu(plan), plan.polling) {
        (true, _) => Polling::Park,
        (false, true) => Polling::Spin,
        (false, false) => Polling::idle(Attach::IDLE_SPIN),
    }
}

pub(super) struct Worker {
    task: Task,
    training: Training,
    /// The number of its next step.
    step: i64,
    sides: Vec<Side>,
    /// One for each ps; empty if no plan is pulled.
    plans: Vec<PullPlan>,
    rows: Option<Rows>,
    /// How long a pull by a plan takes at most.
    timeout: Duration,
}

/// A worker's state for one ps.
struct Side {
    ps: String,
    keys: Vec<String>,
    /// Sizes of what it pulls, and the memory for it if that is kept; empty while a tensor is in flight.
    sizes: Vec<usize>,
    memory: Vec<Option<Buffer>>,
    keeps_memory: bool,
    /// How long it waits for a tensor, or until its gradients are taken.
    timeout: Duration,
    /// Memory that is sent repeatedly.
    gradients: Vec<(TensorMeta, Bytes)>,
    variant: Variant,
}

/// Pulls from one ps that have begun.
enum Pull<'a> {
    Planned(PlanPulling<'a>),
    /// All of them, or the first few, by their numbers.
    Received(VecDeque<(usize, Receiving)>),
}

enum Push {
    All(Pushing),
    OneByOne(VecDeque<Sending>),
}

impl Worker {
    /// Takes a task, and allocates memory for a step: over verbs, memory that the device reaches.
    fn new(plan: &Plan, number: usize, task: Task, engine: Option<&Engine>) -> Result<Self, BenchError> {
        let training = training::of(plan).clone();
        let failed = || BenchError::sealane("prepare its workers");
        let registered = engine.filter(|_| plan.link == Link::Verbs);
        let memory = |sizes: &[usize]| match registered {
            None => sizes.iter().map(|&bytes| task.alloc(bytes)).collect::<Result<Vec<_>, _>>().map_err(failed()),
            Some(engine) => {
                let sizes = sizes.to_vec();
                on_shard(engine, "find memory for its workers", async move |shard| {
                    sizes.into_iter().map(|bytes| shard.allocate(bytes)).collect()
                })
            }
        };
        let planned = plan.fuse == Fuse::Plan;
        let side = |(ps, share): (usize, Share)| {
            let gradient = |mut memory: Buffer| {
                memory.fill(FILL);
                Ok((TensorMeta::new(DType::U8, &[memory.len() as u64])?, Bytes::from_owner(memory)))
            };
            let gradients = memory(&share.pushed)?.into_iter().map(gradient).collect::<Result<_, Error>>();
            let kept = if registered.is_some() && !planned { memory(&share.pulled)? } else { Vec::new() };
            let mut kept = kept.into_iter();
            Ok(Side {
                ps: ps_of(plan, ps),
                keys: share.numbers.into_iter().map(key_of).collect(),
                memory: share.pulled.iter().map(|_| kept.next()).collect(),
                timeout: request_timeout(plan),
                keeps_memory: registered.is_some() || training.variants[0].keeps_memory(),
                gradients: gradients.map_err(failed())?,
                sizes: share.pulled,
                variant: training.variants[0],
            })
        };
        let sides = training::shares(plan).enumerate().map(side).collect::<Result<Vec<Side>, BenchError>>()?;
        let plans = sides.iter().filter(|_| planned);
        let plans = plans.map(|side| Ok(task.plan(&side.ps, Keys::new(&side.keys)?)));
        let plans = plans.collect::<Result<_, Error>>().map_err(failed())?;
        let rows = (!plan.tables.is_empty()).then(|| Rows::new(plan, number)).transpose().map_err(failed())?;
        Ok(Self { task, training, step: 0, sides, plans, rows, timeout: request_timeout(plan) })
    }

    fn make_step(&mut self) -> Result<(), Error> {
        let Self { task, training, step, sides, plans, rows, timeout } = self;
        let at = *step;
        *step += 1;
        let min_version = if training.mode == Mode::Sync { at } else { 0 };
        let mut planned = plans.iter_mut();
        let begin = |side: &mut Side| match planned.next() {
            Some(plan) => Ok(Pull::Planned(plan.pull_within(min_version, *timeout))),
            None => side.ask(task, at).map(Pull::Received),
        };
        let pulls = sides.iter_mut().map(begin).collect::<Result<Vec<_>, Error>>()?;
        if let Some(rows) = rows {
            rows.pull(task)?;
        }
        let waits_for_all = training.compute_us > 0 || training.variants[0].fuse == Fuse::ReceiveWaitAll;
        let mut pushes = Vec::with_capacity(sides.len());
        for (side, pull) in sides.iter_mut().zip(pulls) {
            match pull {
                Pull::Planned(pulling) => pulling.wait()?,
                Pull::Received(asked) => side.receive(task, at, asked)?,
            }
            if !waits_for_all {
                pushes.push(side.push(task)?);
            }
        }
        // Results of a plan are checked when all have arrived: until then the plans are lent.
        for (side, plan) in sides.iter().zip(&*plans) {
            for number in 0..side.keys.len() {
                side.look_at(number, plan.get(number)?.bytes())?;
            }
        }
        if waits_for_all {
            // The processor is free for others meanwhile: the simulated computation runs on a device.
            thread::sleep(Duration::from_micros(training.compute_us));
            for side in sides.iter_mut() {
                pushes.push(side.push(task)?);
            }
        }
        pushes.into_iter().try_for_each(Push::wait)
    }
}

impl Client for Worker {
    async fn step(&mut self) -> Result<(), BenchError> {
        self.make_step().map_err(BenchError::sealane("train"))
    }

    fn check(&self) -> Result<(), BenchError> {
        self.rows.as_ref().map_or(Ok(()), Rows::check)
    }
}

impl Side {
    /// Whether each tensor has its own request, and each gradient its own push.
    fn is_one_by_one(&self) -> bool {
        matches!(self.variant.fuse, Fuse::Off | Fuse::Turn)
    }

    /// Begins to request the tensors of a step: all at once, or as many as there are request buffers.
    fn ask(&mut self, task: &Task, step: i64) -> Result<VecDeque<(usize, Receiving)>, Error> {
        if self.is_one_by_one() {
            let first = 0..self.variant.request_buffers.min(self.keys.len());
            return first.map(|number| Ok((number, self.ask_one(task, step, number)?))).collect();
        }
        let options = (0..self.keys.len()).map(|number| self.options(task, number));
        let options = options.collect::<Result<Vec<_>, Error>>()?;
        let wanted = self.keys.iter().map(String::as_str).zip(options);
        Ok(task.recv_all(&self.ps, step, wanted).into_iter().enumerate().collect())
    }

    fn ask_one(&mut self, task: &Task, step: i64, number: usize) -> Result<Receiving, Error> {
        let options = self.options(task, number)?;
        Ok(task.recv_with(&self.ps, step, &self.keys[number], options))
    }

    /// The memory that a tensor is requested into: its own, or memory allocated for this transfer.
    fn options(&mut self, task: &Task, number: usize) -> Result<RecvOptions, Error> {
        let memory = self.memory[number].take().map_or_else(|| task.alloc(self.sizes[number]), Ok)?;
        Ok(RecvOptions { destination: Some(memory.into()), timeout: Some(self.timeout), ..RecvOptions::default() })
    }

    /// Waits for all tensors of a step, and requests those that were not requested yet.
    fn receive(&mut self, task: &Task, step: i64, mut asked: VecDeque<(usize, Receiving)>) -> Result<(), Error> {
        if !self.is_one_by_one() {
            // Under one lock, for those that have ended.
            let arrived = Receiving::wait_all(asked.into_iter().map(|(_, receiving)| receiving));
            return arrived.into_iter().enumerate().try_for_each(|(number, tensor)| self.received(number, tensor?));
        }
        let mut next = asked.len();
        while let Some((number, receiving)) = asked.pop_front() {
            self.received(number, receiving.wait()?)?;
            if next < self.keys.len() {
                asked.push_back((next, self.ask_one(task, step, next)?));
                next += 1;
            }
        }
        Ok(())
    }

    fn received(&mut self, number: usize, tensor: Tensor) -> Result<(), Error> {
        let memory = tensor.into_buffer();
        self.look_at(number, &memory)?;
        if self.keeps_memory {
            self.memory[number] = Some(memory);
        }
        Ok(())
    }

    fn look_at(&self, number: usize, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() != self.sizes[number] || bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
            let reason = format!("{} of {} arrived with other bytes than it left with", self.keys[number], self.ps);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        Ok(())
    }

    /// Pushes all gradients; with one push for each, the last few, as many as request buffers, are still in flight.
    fn push(&self, task: &Task) -> Result<Push, Error> {
        let options = || SendOptions { timeout: Some(self.timeout) };
        let mut tensors = self.gradients.iter().map(|(meta, bytes)| Tensor::new(meta.clone(), bytes.clone()));
        if !self.is_one_by_one() {
            let all = tensors.collect::<Result<Vec<_>, Error>>()?;
            return Ok(Push::All(task.push_all_with(&self.ps, QUEUE, all, options())));
        }
        let mut under_way: VecDeque<Sending> = VecDeque::new();
        tensors.try_for_each(|tensor| {
            if under_way.len() == self.variant.request_buffers
                && let Some(first) = under_way.pop_front()
            {
                first.wait()?;
            }
            under_way.push_back(task.push_with(&self.ps, QUEUE, tensor?, options()));
            Ok::<_, Error>(())
        })?;
        Ok(Push::OneByOne(under_way))
    }
}

impl Push {
    fn wait(self) -> Result<(), Error> {
        match self {
            Self::All(pushing) => pushing.wait(),
            Self::OneByOne(under_way) => under_way.into_iter().try_for_each(Sending::wait),
        }
    }
}
