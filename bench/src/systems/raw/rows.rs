//! The least that rows cost: over TCP, a gather in one process and one message with all rows of a step; over shm, a gather in the
//! process that wants them, as `numpy.take` does it. Rows that are named twice are gathered twice.

use std::thread;
use std::time::Instant;

use super::channel::{NAME, TcpChannel, explained, receive_exact, send_all};
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram, PeerReady, announce, until_ended};
use crate::plan::{Link, Plan};
use crate::system::System;
use crate::systems::rows::{Memory, Wanted, tables};
use crate::systems::sockets;
use crate::systems::training::{self, Moved, StepLog, Trainees};

/// The request for a step, which both sides know.
const REQUEST: [u8; 8] = *b"the next";

/// See the module.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    let workers = training::of(plan).size.workers;
    System::with_peer(job, program, |peer| {
        if plan.link == Link::Shm {
            let here = Here { memory: Memory::new(plan, || 0..tables(plan).rows), workers: self::workers(plan) };
            return training::system((NAME, "gather in one process".to_owned()), plan, here, 0.0, peer);
        }
        let connect = |_| {
            TcpChannel::new(
                sockets::connect(peer.ready().port, plan.congestion.as_deref())?,
                spins(plan),
                Some(STALL_LIMIT),
            )
        };
        let channels = (0..workers).map(connect).collect::<Result<Vec<_>, BenchError>>()?;
        let messages = Messages(channels.into_iter().zip(self::workers(plan)).collect());
        training::system((NAME, "gather, one message".to_owned()), plan, messages, 0.0, peer)
    })
}

/// Several threads on one CPU keep each other from working when they spin.
fn spins(plan: &Plan) -> bool {
    plan.polling && training::of(plan).size.workers == 1
}

fn workers(plan: &Plan) -> Vec<(Wanted, Vec<u8>)> {
    let worker = |worker| (Wanted::new(plan, worker), vec![0; tables(plan).step_bytes()]);
    (0..training::of(plan).size.workers).map(worker).collect()
}

/// Serves the workers, each by a thread, until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    if plan.link == Link::Shm {
        announce(PeerReady::default())?;
        until_ended();
    }
    let memory = Memory::new(plan, || 0..tables(plan).rows);
    let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
    announce(sockets::port(&listener)?)?;
    thread::scope(|scope| {
        for (mut wanted, mut rows) in workers(plan) {
            let mut channel = TcpChannel::new(sockets::accept(&listener)?, spins(plan), None)?;
            let memory = &memory;
            scope.spawn(move || -> Result<(), BenchError> {
                loop {
                    receive_exact(&mut channel, &mut [0; REQUEST.len()]).map_err(explained)?;
                    gather(memory, &mut wanted, &mut rows);
                    send_all(&mut channel, &rows).map_err(explained)?;
                }
            });
        }
        Ok::<_, BenchError>(())
    })
}

/// Gathers the rows of the next step, of one table behind those of another.
fn gather(memory: &Memory, wanted: &mut Wanted, rows: &mut [u8]) {
    let ids = wanted.advance();
    let bytes = rows.len() / ids.len();
    for ((table, ids), target) in ids.iter().enumerate().zip(rows.chunks_exact_mut(bytes)) {
        memory.gather(table, ids.iter().copied(), target);
    }
}

fn check(wanted: &Wanted, rows: &[u8], tables: usize) -> Result<(), BenchError> {
    rows.chunks_exact(rows.len() / tables).enumerate().try_for_each(|(table, rows)| wanted.check(NAME, table, rows))
}

/// Workers that have the tables.
struct Here {
    memory: Memory,
    workers: Vec<(Wanted, Vec<u8>)>,
}

impl Trainees for Here {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let Self { memory, workers } = self;
        training::in_threads(workers, log, |(wanted, rows)| {
            let mut tables = 0;
            let mut times = Vec::new();
            for _ in 0..steps {
                let began = Instant::now();
                gather(memory, wanted, rows);
                times.push((began, Instant::now()));
                tables = memory.tables();
            }
            check(wanted, rows, tables)?;
            Ok(times)
        })
    }

    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        Ok(None)
    }
}

/// Workers with a connection each.
struct Messages(Vec<(TcpChannel, (Wanted, Vec<u8>))>);

impl Trainees for Messages {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        training::in_threads(&mut self.0, log, |(channel, (wanted, rows))| {
            let (mut tables, mut times) = (0, Vec::new());
            for _ in 0..steps {
                let began = Instant::now();
                tables = wanted.advance().len();
                send_all(channel, &REQUEST).map_err(explained)?;
                receive_exact(channel, rows).map_err(explained)?;
                times.push((began, Instant::now()));
            }
            check(wanted, rows, tables)?;
            Ok(times)
        })
    }

    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        Ok(None)
    }
}
