//! Workers that are clients of the parameter servers' engine, attached through the crate `sealane` as training processes of
//! its host are: each with a thread, an arena and rings of its own. The parameter servers are code on the engine's shard, as
//! over the other links; one that is a client as well would have a hop more. All workers are in this process and share its
//! CPU. Bounded by [`HOSTED_WORKERS_MAX`](crate::limits::HOSTED_WORKERS_MAX).
//!
//! Where rows of tables are pulled, or the same tables whole, workers over TCP are tasks as well: of one engine in this process, each
//! with a connection of its own with every ps.
//!
//! All pulls of a step are begun before the first is waited for, rows come first, and what came from a ps is followed by what is
//! pushed to it.

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sealane::{
    Attach, Buffer, DType, Error, Keys, Plan as PullPlan, PlanPulling, Polling, Pushing, Receiving, RecvOptions,
    Sending, Task, Tensor, TensorMeta,
};
use sealane_fusion::Engine;

use super::super::engine::{self, QUEUE, key_of, ps_task};
use super::super::peers;
use super::super::rows::{self, Rows};
use super::memory::{Copies, OPEN_FILES, arena_bytes};
use super::servers;
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, FILL, STALL_LIMIT};
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::{Fuse, Link, Mode, Plan, SystemName, Training, Variant};
use crate::process::{self, Growth};
use crate::system::System;
use crate::systems::sockets::Meeting;
use crate::systems::training::{self, Moved, Share, StepLog, Trainees};

/// All workers, and their engine where it is in this process.
struct Clients {
    workers: Vec<Worker>,
    engine: Option<Engine>,
}

/// Parameter servers in a process of their own, and a client of their engine for every worker.
pub(super) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let workers = training::of(&job.plan).size.workers;
    let connections = if job.plan.link == Link::Shm { 0 } else { training::of(&job.plan).size.ps };
    process::allow_open_files("--workers", workers, OPEN_FILES + connections)?;
    let meeting = Meeting::arrange()?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), ..job.clone() };
    System::with_peer(&job, program, |peer| {
        let growth = Growth::of(peer.process_id())?;
        let plan = &job.plan;
        let engine = match plan.link {
            Link::Shm => None,
            _ => Some(host(plan, &peer.ready().ports)?),
        };
        let task = |number| match &engine {
            None => {
                let attach = Attach::new(&peers::task(number)).socket(meeting.socket()).arena_bytes(arena_bytes(plan));
                attach.timeout(CONNECT_LIMIT).polling(polling(plan)).attach()
            }
            Some(engine) => engine.task(&peers::task(number)).map(Task::from),
        };
        let workers = (0..workers).map(|number| Worker::new(plan, number, task(number)?));
        let workers = workers.collect::<Result<_, ::sealane::Error>>().map_err(BenchError::sealane("attach"))?;
        let clients = Clients { workers, engine };
        let each = growth.bytes_each(training::of(plan).pairs())?;
        training::system((job.system.as_str(), described(&job)), plan, clients, each, peer)
    })
}

/// The engine of all workers, which call parameter servers at these ports.
fn host(plan: &Plan, ports: &[u16]) -> Result<Engine, BenchError> {
    let training = training::of(plan);
    let names: Vec<String> = (0..training.size.workers).map(peers::task).collect();
    // Each worker is at a transport address of its own, and so has a connection with each ps.
    let listeners = names.iter().map(|_| Ok(engine::listener(plan)?.0)).collect::<Result<_, BenchError>>()?;
    let mut settings = engine::settings(plan, &servers::map(training, ports), &names, listeners, None)?;
    settings.links_max = settings.links_max.max(2 * training.pairs());
    engine::let_rest(&mut settings);
    settings.request_timeout = STALL_LIMIT + Duration::from_micros(training.compute_us);
    settings.fuse = engine::fuse(plan);
    settings.session.window = plan.window;
    // The workers, which share its CPU, would have to wait for a shard that spins.
    settings.runtime.polling = Polling::Park;
    // A plan keeps what it has pulled, and all parameter servers answer all workers at once.
    let pulled = engine::room_bytes(&plan.step) + engine::room_bytes(&rows::bytes_of_each(plan));
    settings.slab_receive_bytes += training.size.workers * pulled;
    engine::start(settings)
}

/// The variant, with what a shared CPU forbids, and how tables are pulled.
fn described(job: &PeerJob) -> String {
    let plan = &job.plan;
    let waiting = if plan.polling && shares_cpu(plan) { ", workers parking" } else { "" };
    let tables = match job.system {
        SystemName::Whole => ", tables whole",
        _ if plan.tables.is_empty() => "",
        _ => ", rows",
    };
    format!("{}{waiting}{tables}", training::variant(plan))
}

/// Whether a worker that spins would keep others from working.
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

impl Trainees for Clients {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        training::in_threads(&mut self.workers, log, |worker| {
            let times = worker.train(steps).map_err(BenchError::sealane("train"))?;
            worker.rows.as_ref().map_or(Ok(()), Rows::check)?;
            Ok(times)
        })
    }

    /// Records in rings are no messages, and nobody counts them.
    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        self.engine.as_ref().map(|engine| engine::moved(std::iter::once(engine))).transpose()
    }
}

/// One worker.
pub(super) struct Worker {
    task: Task,
    training: Training,
    /// Its steps so far: the number of the next.
    step: i64,
    sides: Vec<Side>,
    /// One a ps; empty where no plan is pulled.
    plans: Vec<PullPlan>,
    /// Where tables are pulled by rows.
    rows: Option<Rows>,
}

/// What it has of one ps.
struct Side {
    ps: String,
    keys: Vec<String>,
    /// Bytes of what it pulls, and the memory for it where that stays, which is empty while a tensor is in flight.
    sizes: Vec<usize>,
    memory: Vec<Option<Buffer>>,
    /// Memory of the arena that is sent again and again.
    gradients: Vec<(TensorMeta, Bytes)>,
    copies: Option<Copies>,
}

/// Pulls from one ps that were begun.
enum Pull<'a> {
    Planned(PlanPulling<'a>),
    /// All of them, or the first so many, by their numbers.
    Received(VecDeque<(usize, Receiving)>),
}

/// Pushes to one ps in flight.
enum Push {
    All(Pushing),
    OneByOne(VecDeque<Sending>),
}

impl Worker {
    /// Takes a task, and memory for a step.
    fn new(plan: &Plan, number: usize, task: Task) -> Result<Self, Error> {
        let training = training::of(plan).clone();
        let side = |(ps, share): (usize, Share)| {
            let gradient = |&bytes: &usize| {
                let mut memory = task.alloc(bytes)?;
                memory.fill(FILL);
                Ok((TensorMeta::new(DType::U8, &[bytes as u64])?, Bytes::from_owner(memory)))
            };
            Ok(Side {
                ps: ps_task(ps),
                keys: share.numbers.into_iter().map(key_of).collect(),
                memory: share.pulled.iter().map(|_| None).collect(),
                gradients: share.pushed.iter().map(gradient).collect::<Result<_, Error>>()?,
                copies: training.variants[0].copies.then(|| Copies::new(&share.pulled)),
                sizes: share.pulled,
            })
        };
        let sides: Vec<Side> = training::shares(plan).enumerate().map(side).collect::<Result<_, Error>>()?;
        let planned = sides.iter().filter(|_| plan.fuse == Fuse::Plan);
        let plans = planned.map(|side| Ok(task.plan(&side.ps, Keys::new(&side.keys)?)));
        let plans = plans.collect::<Result<_, Error>>()?;
        let rows = if plan.tables.is_empty() { None } else { Some(Rows::new(plan, number)?) };
        Ok(Self { task, training, step: 0, sides, plans, rows })
    }

    /// Makes so many steps, one after the other; when each began and ended.
    pub(super) fn train(&mut self, steps: u64) -> Result<Vec<(Instant, Instant)>, Error> {
        let one = |_| {
            let began = Instant::now();
            self.make_step()?;
            Ok((began, Instant::now()))
        };
        (0..steps).map(one).collect()
    }

    fn make_step(&mut self) -> Result<(), Error> {
        let Self { task, training, step, sides, plans, rows } = self;
        let variant = training.variants[0];
        let at = *step;
        *step += 1;
        let min_version = if training.mode == Mode::Sync { at } else { 0 };
        let mut plans = plans.iter_mut();
        let begin = |side: &mut Side| match plans.next() {
            Some(plan) => Ok(Pull::Planned(plan.pull(min_version))),
            None => side.ask(task, at, variant).map(Pull::Received),
        };
        let pulls = sides.iter_mut().map(begin).collect::<Result<Vec<_>, Error>>()?;
        if let Some(rows) = rows {
            let pull = rows.begin(task);
            rows.end(pull)?;
        }
        let waits_for_all = training.compute_us > 0 || variant.fuse == Fuse::ReceiveWaitAll;
        let mut pushes = Vec::with_capacity(sides.len());
        for (side, pull) in sides.iter_mut().zip(pulls) {
            match pull {
                Pull::Planned(pulling) => pulling.wait()?,
                Pull::Received(asked) => side.receive(task, at, asked, variant)?,
            }
            if !waits_for_all {
                pushes.push(side.push(task, variant)?);
            }
        }
        // What a plan has pulled is looked at when all have: until then the plans are lent.
        for (side, plan) in sides.iter_mut().zip(&self.plans) {
            for number in 0..side.keys.len() {
                side.arrived(number, plan.get(number)?.bytes())?;
            }
        }
        if waits_for_all {
            // The processor is for others meanwhile: what computes here is a device.
            thread::sleep(Duration::from_micros(training.compute_us));
            for side in sides.iter_mut() {
                pushes.push(side.push(task, variant)?);
            }
        }
        pushes.into_iter().try_for_each(Push::wait)
    }
}

impl Side {
    /// Begins to ask for the tensors of a step: for all at once, or for as many as there are request buffers.
    fn ask(&mut self, task: &Task, step: i64, variant: Variant) -> Result<VecDeque<(usize, Receiving)>, Error> {
        if variant.fuse == Fuse::Off {
            let first = 0..variant.request_buffers.min(self.keys.len());
            return first.map(|number| Ok((number, self.ask_one(task, step, number, variant)?))).collect();
        }
        let options = (0..self.keys.len()).map(|number| self.options(task, number, variant));
        let options = options.collect::<Result<Vec<_>, Error>>()?;
        let wanted = self.keys.iter().map(String::as_str).zip(options);
        Ok(task.recv_all(&self.ps, step, wanted).into_iter().enumerate().collect())
    }

    fn ask_one(&mut self, task: &Task, step: i64, number: usize, variant: Variant) -> Result<Receiving, Error> {
        let options = self.options(task, number, variant)?;
        Ok(task.recv_with(&self.ps, step, &self.keys[number], options))
    }

    /// The memory that a tensor is asked for in: its own, or such as was made for this transfer.
    fn options(&mut self, task: &Task, number: usize, variant: Variant) -> Result<RecvOptions, Error> {
        let kept = self.memory[number].take().filter(|_| variant.keeps_memory());
        let memory = kept.map_or_else(|| task.alloc(self.sizes[number]), Ok)?;
        Ok(RecvOptions { destination: Some(memory), ..RecvOptions::default() })
    }

    /// Waits for all tensors of a step, and asks for those that were not yet.
    fn receive(
        &mut self,
        task: &Task,
        step: i64,
        mut asked: VecDeque<(usize, Receiving)>,
        variant: Variant,
    ) -> Result<(), Error> {
        if variant.fuse != Fuse::Off {
            // Under one lock, as far as they have ended.
            let arrived = Receiving::wait_all(asked.into_iter().map(|(_, receiving)| receiving));
            let mut arrived = arrived.into_iter().enumerate();
            return arrived.try_for_each(|(number, tensor)| self.received(number, tensor?, variant));
        }
        let mut next = asked.len();
        while let Some((number, receiving)) = asked.pop_front() {
            self.received(number, receiving.wait()?, variant)?;
            if next < self.keys.len() {
                asked.push_back((next, self.ask_one(task, step, next, variant)?));
                next += 1;
            }
        }
        Ok(())
    }

    fn received(&mut self, number: usize, tensor: Tensor, variant: Variant) -> Result<(), Error> {
        let memory = tensor.into_buffer();
        self.arrived(number, &memory)?;
        if variant.keeps_memory() {
            self.memory[number] = Some(memory);
        }
        Ok(())
    }

    /// Looks at a tensor that came, and copies it if that is to be measured.
    fn arrived(&mut self, number: usize, bytes: &[u8]) -> Result<(), Error> {
        if bytes.len() != self.sizes[number] || bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
            let reason = format!("{} of {} arrived with other bytes than it left with", self.keys[number], self.ps);
            return Err(Error::InvalidArgument { reason: reason.into() });
        }
        if let Some(copies) = &mut self.copies {
            copies.take(number, bytes);
        }
        Ok(())
    }

    /// Pushes all gradients; where each is one, the last request buffers' worth is still in flight.
    fn push(&self, task: &Task, variant: Variant) -> Result<Push, Error> {
        if variant.fuse != Fuse::Off {
            let tensors = self.gradients.iter().map(|gradient| self.tensor(task, gradient));
            return Ok(Push::All(task.push_all(&self.ps, QUEUE, tensors.collect::<Result<Vec<_>, Error>>()?)));
        }
        let mut under_way: VecDeque<Sending> = VecDeque::new();
        for gradient in &self.gradients {
            if under_way.len() == variant.request_buffers
                && let Some(first) = under_way.pop_front()
            {
                first.wait()?;
            }
            under_way.push_back(task.push(&self.ps, QUEUE, self.tensor(task, gradient)?));
        }
        Ok(Push::OneByOne(under_way))
    }

    fn tensor(&self, task: &Task, (meta, bytes): &(TensorMeta, Bytes)) -> Result<Tensor, Error> {
        if self.copies.is_none() {
            return Tensor::new(meta.clone(), bytes.clone());
        }
        let mut copy = task.alloc(bytes.len())?;
        copy.copy_from_slice(bytes);
        Tensor::new(meta.clone(), copy)
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
