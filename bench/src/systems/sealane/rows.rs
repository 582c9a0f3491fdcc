//! Rows by Sealane: every ps and every worker is a task of the crate `sealane`. Over TCP, all ps are tasks of one engine and all
//! workers of another; over shm, all of them are clients of one engine, which has a process to itself with the ps. Beside it, for
//! comparison, the same tables pulled whole, by a plan.

use std::thread;
use std::time::Instant;

use sealane::{
    Attach, Buffer, DType, Error, Keys, Plan as PullPlan, Polling, PullingAllRows, RowsOptions, RowsWanted,
    ShardedTable, Sharding, Table, TableOptions, Task, Tensor, TensorMeta,
};
use sealane_fusion::{Engine, EngineSettings};
use sealane_transport::shm::attach;

use super::attached::{SLACK_BYTES, admit_next, room_bytes};
use super::engine::{self, NAME, key_of, listener, ps_task};
use super::peers;
use crate::error::BenchError;
use crate::limits::{CONNECT_LIMIT, STALL_LIMIT};
use crate::peer::{PeerJob, PeerProgram, PeerReady, announce, until_ended};
use crate::plan::{Link, Plan, Size, SystemName, Tables};
use crate::process;
use crate::system::System;
use crate::systems::rows::{self, Wanted, fill, tables};
use crate::systems::sockets::Meeting;
use crate::systems::training::{self, Moved, StepLog, Trainees};

/// Files that a client has open.
const OPEN_FILES: usize = 8;

/// See the module.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    let workers = training::of(plan).size.workers;
    process::allow_open_files("--workers", workers, OPEN_FILES)?;
    let meeting = Meeting::arrange()?;
    let (network, port) = listener(plan)?;
    let job = PeerJob { meeting_place: Some(meeting.socket()), consumer_port: Some(port), ..job.clone() };
    System::with_peer(&job, program, |peer| {
        let failed = BenchError::sealane("attach");
        let (engine, tasks) = match plan.link {
            Link::Shm => {
                let attach = |number| client(plan, &meeting, &peers::task(number), room(plan));
                (None, (0..workers).map(attach).collect::<Result<Vec<_>, _>>().map_err(failed)?)
            }
            _ => {
                let names: Vec<String> = (0..workers).map(peers::task).collect();
                let mut settings =
                    engine::settings(plan, &map(plan, peer.ready().port, port), &names, vec![network], None)?;
                // Its workers, which share its CPU, would have to wait for a shard that spins.
                settings.runtime.polling = Polling::Park;
                if job.system == SystemName::Whole {
                    // A plan keeps what it has pulled, and a ps answers all workers at once.
                    settings.slab_receive_bytes += workers * tables(plan).bytes() as usize * 5 / 4;
                }
                let engine = run(settings)?;
                let tasks = names.iter().map(|name| engine.task(name).map(Task::from));
                let tasks = tasks.collect::<Result<Vec<_>, _>>().map_err(failed)?;
                (Some(engine), tasks)
            }
        };
        let whole = job.system == SystemName::Whole;
        let worker = |(number, task)| Worker::new(plan, number, task, whole);
        let workers = tasks.into_iter().enumerate().map(worker).collect::<Result<_, _>>();
        let workers = workers.map_err(BenchError::sealane("pull rows"))?;
        let variant = if whole { "tables as a whole, plan" } else { "rows" };
        training::system((job.system.as_str(), variant.to_owned()), plan, Workers { engine, workers }, 0.0, peer)
    })
}

/// Bytes of what a worker receives without a destination: the rows of all tables at once.
fn room(plan: &Plan) -> u64 {
    (room_bytes(&bytes_of_each(plan)) + SLACK_BYTES) as u64
}

/// Bytes of what a worker pulls of each table in a step.
pub(super) fn bytes_of_each(plan: &Plan) -> Vec<usize> {
    rows::each(plan).iter().map(Tables::step_bytes).collect()
}

fn client(plan: &Plan, meeting: &Meeting, name: &str, arena_bytes: u64) -> Result<Task, Error> {
    let alone = training::of(plan).size.workers == 1 && plan.polling;
    let polling = if alone { Polling::Spin } else { Polling::Park };
    Attach::new(name).socket(meeting.socket()).arena_bytes(arena_bytes).timeout(CONNECT_LIMIT).polling(polling).attach()
}

/// Where the ps and the workers are.
fn map(plan: &Plan, ps_port: u16, workers_port: u16) -> String {
    let Size { workers, ps } = training::of(plan).size;
    let ps = (0..ps).map(|ps| (ps_task(ps), ps_port));
    let all = ps.chain((0..workers).map(|worker| (peers::task(worker), workers_port)));
    all.map(|(task, port)| format!("{task}=127.0.0.1:{port}\n")).collect()
}

fn run(mut settings: EngineSettings) -> Result<Engine, BenchError> {
    engine::let_rest(&mut settings);
    settings.request_timeout = STALL_LIMIT;
    engine::start(settings)
}

/// The process of the ps.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let Size { workers, ps } = training::of(plan).size;
    let (network, port) = listener(plan)?;
    let shm = plan.link == Link::Shm;
    let names: Vec<String> = (0..ps).map(ps_task).collect();
    let clients = (0..workers).filter(|_| shm).map(peers::task);
    let all: Vec<String> = names.iter().cloned().chain(clients).collect();
    let map = map(plan, port, job.consumer_port.filter(|_| !shm).unwrap_or(port));
    let engine = run(engine::settings(plan, &map, &all, vec![network], None)?)?;
    let failed = BenchError::sealane("publish tables");
    if shm {
        let door = attach::listen(job.meeting_place()?).map_err(BenchError::sealane("let a client in"))?;
        let arena_bytes =
            tables(plan).bytes() / ps as u64 + (room_bytes(&vec![1 << 20; tables(plan).tables]) + SLACK_BYTES) as u64;
        let place = job.meeting_place()?;
        let attach =
            |name: &String| Attach::new(name).socket(place).arena_bytes(arena_bytes).timeout(CONNECT_LIMIT).attach();
        // The sockets are the clients': they live as long as this process.
        let _kept = thread::scope(|scope| {
            let publish = scope.spawn(|| publish(plan, names.iter().map(attach)));
            let sockets = (0..ps).map(|_| admit_next(&engine, &door, SLACK_BYTES as u64));
            let sockets = sockets.collect::<Result<Vec<_>, _>>()?;
            let published = publish.join().expect("a publisher's thread does not panic").map_err(failed)?;
            Ok::<_, BenchError>((sockets, published))
        })?;
        announce(PeerReady::default())?;
        let _attached = (0..workers).map(|_| admit_next(&engine, &door, room(plan))).collect::<Result<Vec<_>, _>>()?;
        until_ended()
    } else {
        let _published = publish(plan, names.iter().map(|name| engine.task(name).map(Task::from))).map_err(failed)?;
        announce(port)?;
        until_ended()
    }
}

/// Every ps publishes its part of each table.
fn publish(plan: &Plan, ps: impl Iterator<Item = Result<Task, Error>>) -> Result<Vec<Table>, Error> {
    let mut published = Vec::new();
    for (number, task) in ps.enumerate() {
        let task = task?;
        for part in parts(plan, number, |bytes| task.alloc(bytes)) {
            let (key, part) = part?;
            published.push(task.publish_table(&key, part, TableOptions::default())?);
        }
    }
    Ok(published)
}

/// The part of each table that a ps has, and its key.
pub(super) fn parts(
    plan: &Plan,
    ps: usize,
    alloc: impl Fn(usize) -> Result<Buffer, Error>,
) -> impl Iterator<Item = Result<(String, Tensor), Error>> {
    rows::each(plan).into_iter().enumerate().map(move |(number, table)| {
        let sharding = sharding(plan, &table)?;
        let rows = sharding.rows_of(ps);
        let mut memory = alloc(rows as usize * table.row_bytes())?;
        fill(&mut memory, &table, number, (0..rows).map(|local| sharding.row(ps, local)));
        let part = Tensor::new(TensorMeta::new(DType::F32, &[rows, table.dim as u64])?, memory)?;
        Ok((table_key(plan, number), part))
    })
}

fn sharding(plan: &Plan, table: &Tables) -> Result<Sharding, Error> {
    Sharding::modulo(table.rows, training::of(plan).size.ps)
}

/// The keys of tables follow those of the variables.
fn table_key(plan: &Plan, number: usize) -> String {
    key_of(plan.step.len() + number)
}

/// All workers, and their engine where it is in this process.
struct Workers {
    workers: Vec<Worker>,
    engine: Option<Engine>,
}

impl Trainees for Workers {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        training::in_threads(&mut self.workers, log, |worker| {
            let mut times = Vec::new();
            for _ in 0..steps {
                let began = Instant::now();
                worker.make_step().map_err(BenchError::sealane("pull rows"))?;
                times.push((began, Instant::now()));
            }
            worker.check()?;
            Ok(times)
        })
    }

    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        self.engine.as_ref().map(|engine| engine::moved(std::iter::once(engine))).transpose()
    }
}

/// The rows that a worker pulls, step after step.
pub(super) struct Rows {
    wanted: Wanted,
    tables: Vec<ShardedTable>,
    /// Where the rows of each table go; gone if a step has failed.
    rows: Vec<Option<Buffer>>,
}

/// A step's rows of all tables that were asked for.
pub(super) type Pull = PullingAllRows;

impl Rows {
    /// Of the worker with this number.
    pub(super) fn new(plan: &Plan, worker: usize) -> Result<Self, Error> {
        let ps: Vec<String> = (0..training::of(plan).size.ps).map(ps_task).collect();
        let of = |(number, table)| ShardedTable::new(&table_key(plan, number), &ps, sharding(plan, &table)?);
        let memory = |bytes| Some(Buffer::from_vec(vec![0; bytes]));
        Ok(Self {
            wanted: Wanted::new(plan, worker),
            tables: rows::each(plan).into_iter().enumerate().map(of).collect::<Result<_, _>>()?,
            rows: bytes_of_each(plan).into_iter().map(memory).collect(),
        })
    }

    /// Asks for those of the next step.
    pub(super) fn begin(&mut self, task: &Task) -> Pull {
        let ids = self.wanted.advance();
        let tables = self.tables.iter().zip(ids).zip(&mut self.rows);
        let wanted = tables.map(|((table, ids), rows)| RowsWanted { table, ids, out: rows.take() });
        task.pull_all_rows(wanted, &RowsOptions::default())
    }

    /// Waits for all of them.
    pub(super) fn end(&mut self, pull: Pull) -> Result<(), Error> {
        let pulled = pull.wait()?;
        self.rows = pulled.into_iter().map(|pulled| Some(pulled.rows.into_buffer())).collect();
        Ok(())
    }

    /// Looks whether the last step's are what was named.
    pub(super) fn check(&self) -> Result<(), BenchError> {
        let mut rows = self.rows.iter().enumerate();
        rows.try_for_each(|(table, rows)| self.wanted.check(NAME, table, rows.as_deref().unwrap_or_default()))
    }
}

/// One worker.
struct Worker {
    task: Task,
    rows: Rows,
    /// One a ps, if tables are pulled whole.
    plans: Vec<PullPlan>,
}

impl Worker {
    fn new(plan: &Plan, number: usize, task: Task, whole: bool) -> Result<Self, Error> {
        let keys: Vec<String> = (0..tables(plan).tables).map(|table| table_key(plan, table)).collect();
        let ps = (0..training::of(plan).size.ps).filter(|_| whole);
        let plans = ps.map(|ps| Ok(task.plan(&ps_task(ps), Keys::new(&keys)?))).collect::<Result<_, Error>>()?;
        Ok(Self { rows: Rows::new(plan, number)?, plans, task })
    }

    fn make_step(&mut self) -> Result<(), Error> {
        if !self.plans.is_empty() {
            let pulls: Vec<_> = self.plans.iter_mut().map(|plan| plan.pull(0)).collect();
            return pulls.into_iter().try_for_each(|pull| pull.wait());
        }
        let pull = self.rows.begin(&self.task);
        self.rows.end(pull)
    }

    fn check(&self) -> Result<(), BenchError> {
        if self.plans.is_empty() { self.rows.check() } else { Ok(()) }
    }
}
