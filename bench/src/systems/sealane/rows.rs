//! Rows by Sealane: every ps and every worker is a task of the crate `sealane`. Over TCP, all ps are tasks of one engine and all
//! workers of another; over shm, all of them are clients of one engine, which has a process to itself with the ps. Beside it, for
//! comparison, the same tables pulled whole, by a plan.

use std::thread;
use std::time::Instant;

use sealane::{
    Attach, Buffer, DType, Error, Keys, Plan as PullPlan, Polling, RowsOptions, RowsWanted, ShardedTable, Sharding,
    Table, TableOptions, Task, Tensor, TensorMeta,
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
use crate::systems::rows::{Wanted, fill, tables};
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
    let tables = tables(plan);
    (room_bytes(&vec![tables.batch * tables.row_bytes(); tables.tables]) + SLACK_BYTES) as u64
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
    let tables = tables(plan);
    let sharding = sharding(plan)?;
    let mut published = Vec::new();
    for (number, task) in ps.enumerate() {
        let task = task?;
        for table in 0..tables.tables {
            let rows = sharding.rows_of(number);
            let mut memory = task.alloc(rows as usize * tables.row_bytes())?;
            fill(&mut memory, &tables, table, (0..rows).map(|local| sharding.row(number, local)));
            let whole = Tensor::new(TensorMeta::new(DType::F32, &[rows, tables.dim as u64])?, memory)?;
            published.push(task.publish_table(&key_of(table), whole, TableOptions::default())?);
        }
    }
    Ok(published)
}

fn sharding(plan: &Plan) -> Result<Sharding, Error> {
    Sharding::modulo(tables(plan).rows, training::of(plan).size.ps)
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

/// One worker.
struct Worker {
    task: Task,
    wanted: Wanted,
    tables: Vec<ShardedTable>,
    /// Where the rows of each table go; gone if a step has failed.
    rows: Vec<Option<Buffer>>,
    /// One a ps, if tables are pulled whole.
    plans: Vec<PullPlan>,
}

impl Worker {
    fn new(plan: &Plan, number: usize, task: Task, whole: bool) -> Result<Self, Error> {
        let ps: Vec<String> = (0..training::of(plan).size.ps).map(ps_task).collect();
        let Tables { tables: count, batch, .. } = tables(plan);
        let table = |number| ShardedTable::new(&key_of(number), &ps, sharding(plan)?);
        let keys: Vec<String> = (0..count).map(key_of).collect();
        let plans =
            ps.iter().filter(|_| whole).map(|ps| Ok(task.plan(ps, Keys::new(&keys)?))).collect::<Result<_, Error>>()?;
        Ok(Self {
            wanted: Wanted::new(plan, number),
            tables: (0..count).map(table).collect::<Result<_, _>>()?,
            rows: (0..count).map(|_| Some(Buffer::from_vec(vec![0; batch * tables(plan).row_bytes()]))).collect(),
            plans,
            task,
        })
    }

    fn make_step(&mut self) -> Result<(), Error> {
        if !self.plans.is_empty() {
            let pulls: Vec<_> = self.plans.iter_mut().map(|plan| plan.pull(0)).collect();
            return pulls.into_iter().try_for_each(|pull| pull.wait());
        }
        let ids = self.wanted.advance();
        let tables = self.tables.iter().zip(ids).zip(&mut self.rows);
        let wanted = tables.map(|((table, ids), rows)| RowsWanted { table, ids, out: rows.take() });
        let pulled = self.task.pull_all_rows(wanted, &RowsOptions::default()).wait()?;
        self.rows = pulled.into_iter().map(|pulled| Some(pulled.rows.into_buffer())).collect();
        Ok(())
    }

    fn check(&self) -> Result<(), BenchError> {
        if !self.plans.is_empty() {
            return Ok(());
        }
        let rows = self.rows.iter().enumerate();
        rows.into_iter()
            .try_for_each(|(table, rows)| self.wanted.check(NAME, table, rows.as_deref().unwrap_or_default()))
    }
}
