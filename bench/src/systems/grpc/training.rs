//! Workers and parameter servers through gRPC, which train or pull rows of tables. All parameter servers are services in one
//! process and runtime, each with its own port; every worker is a task in one runtime, with a channel for every ps and its own
//! memory. There is either a call for each tensor, or one call for each ps, whose message has all tensors, or names all rows and is
//! answered with them.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::future::try_join_all;
use futures_util::stream::{self, Stream};
use sealane::Sharding;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::sleep;
use tonic::transport::Channel;

use super::calls::{Caller, MESSAGES_A_CALL, Pair, bounded};
use super::codec::Message;
use super::service::{self, ID_BYTES, PULL_ROWS, Ps};
use super::{NAME, adopt, open, runtime, spin};
use crate::error::BenchError;
use crate::limits::{FILL, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{Growth, PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Mode, Plan, Tables};
use crate::process::{self, Interface};
use crate::system::{Client, System};
use crate::systems::rows::{Memory, Wanted, tables};
use crate::systems::sockets;
use crate::systems::training::{self, Moved, Share, StepLog};

/// Parameter servers in a process of their own, and workers connected to all of them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    let pairs = training::of(plan).pairs();
    process::allow_open_files("--workers x --ps", pairs, 1)?;
    System::with_peer(job, program, |peer| {
        let growth = Growth::of(peer)?;
        let runtime = runtime()?;
        let (channels, congestion) = connect(&runtime, plan, &peer.addresses())?;
        let each = growth.bytes_each(pairs)?;
        let workers = Workers::new(runtime, channels, job)?;
        Ok(training::system((NAME, variant(plan)), plan, workers, each, peer)?.with_congestion(congestion))
    })
}

/// A channel from every worker to every ps, worker by worker.
fn connect(runtime: &Runtime, plan: &Plan, addresses: &[SocketAddr]) -> Result<(Vec<Channel>, String), BenchError> {
    let mut channels = Vec::new();
    let mut congestion = String::new();
    for _ in 0..training::of(plan).size.workers {
        for address in addresses {
            let stream = sockets::connect(*address, plan.congestion.as_deref())?;
            if channels.is_empty() {
                congestion = sockets::congestion(&stream)?;
            }
            channels.push(runtime.block_on(async { open(adopt(stream, TcpStream::from_std)?).await })?);
        }
    }
    Ok((channels, congestion))
}

fn variant(plan: &Plan) -> String {
    let training = training::of(plan);
    let variant = training.variants[0];
    let waiting = if variant.polling { "polling" } else { "parking" };
    match (plan.bench, variant.fuse) {
        (Bench::Rows, _) => "one message a ps".to_owned(),
        (_, Fuse::Off) => format!("{}, unary, {} calls, {waiting}", training.mode, variant.request_buffers),
        _ => format!("{}, one message, {waiting}", training.mode),
    }
}

/// How the rows of tables are distributed, if there are any.
fn sharding(plan: &Plan) -> Result<Option<Sharding>, BenchError> {
    let of = |table: &Tables| Sharding::modulo(table.rows, training::of(plan).size.ps);
    plan.tables.first().map(of).transpose().map_err(BenchError::sealane("shard tables"))
}

/// Serves workers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    process::allow_open_files("--workers x --ps", training.pairs(), 1)?;
    let sharding = sharding(plan)?;
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(spin);
        let mut ports = Vec::new();
        for (number, share) in training::shares(plan).enumerate() {
            let listener = sockets::listen(job.hosts.producer, plan.congestion.as_deref())?;
            ports.push(sockets::port(&listener)?);
            let listener = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            let listener = listener.map_err(BenchError::io("hand a listener to gRPC"))?;
            let rows_of =
                |all: &Sharding| Memory::new(plan, || (0..all.rows_of(number)).map(|local| all.row(number, local)));
            let tables = sharding.as_ref().map(rows_of);
            let ps = Ps::new(share.pulled.into_iter(), share.pushed.len(), training.size.workers, tables);
            tokio::spawn(async {
                if let Err(error) = service::serve(ps, connections(listener)).await {
                    eprintln!("a ps no longer serves: {error}");
                }
            });
        }
        announce(&ports)?;
        pending().await
    })
}

fn connections(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    Box::pin(stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        Some((accepted, listener))
    }))
}

struct Workers {
    /// Dropped before the runtime, which runs their channels.
    workers: Vec<Worker>,
    runtime: Runtime,
    polling: bool,
    /// Bytes of all workers' steps, each way.
    step_bytes: usize,
    calls: u64,
    /// The interface of all connections.
    interface: Interface,
}

struct Worker {
    step: i64,
    compute: Duration,
    /// Whether a step uses the version that has all gradients of the step before.
    waits: bool,
    /// One for each ps.
    pairs: Vec<Pair>,
    rows: Option<Rows>,
}

impl Workers {
    fn new(runtime: Runtime, channels: Vec<Channel>, job: &PeerJob) -> Result<Self, BenchError> {
        let plan = &job.plan;
        let training = training::of(plan);
        let gradients = |share: &Share| share.pushed.iter().map(|&bytes| Bytes::from(vec![FILL; bytes])).collect();
        let shares: Vec<(Arc<[Bytes]>, Share)> =
            training::shares(plan).map(|share| (gradients(&share), share)).collect();
        let variant = training.variants[0];
        let largest = |share: &Share| {
            share.pulled.iter().sum::<usize>() + plan.tables.iter().map(Tables::step_bytes).sum::<usize>()
        };
        let mut channels = channels.into_iter();
        let mut pair = |(gradients, share): &(Arc<[Bytes]>, Share)| {
            let channel = channels.next().expect("every worker is connected with every ps");
            let (caller, fused) = (Caller::new(channel, largest(share)), variant.fuse != Fuse::Off);
            Pair::new(caller, variant.request_buffers, &share.pulled, gradients.clone(), fused)
        };
        let sharding = sharding(plan)?;
        let mut worker = |number| Worker {
            step: 0,
            compute: Duration::from_micros(training.compute_us),
            waits: training.mode == Mode::Sync,
            pairs: shares.iter().map(&mut pair).collect(),
            rows: sharding.clone().map(|sharding| Rows::new(plan, number, sharding)),
        };
        let workers: Vec<Worker> = (0..training.size.workers).map(&mut worker).collect();
        let step_bytes = workers.len() * (plan.step.iter().sum::<usize>() + training.push.iter().sum::<usize>());
        let interface = Interface::with(job.hosts.consumer)?;
        Ok(Self { workers, runtime, polling: variant.polling, step_bytes, calls: 0, interface })
    }
}

impl Client for Workers {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let slowest = Duration::from_secs((self.step_bytes / SLOWEST_BYTES_PER_SECOND) as u64);
        let limit = (STALL_LIMIT + slowest).saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
        let workers = std::mem::take(&mut self.workers);
        let polling = self.polling;
        let trained = bounded(&self.runtime, limit, async {
            let _spinner = polling.then(spin);
            // A task each, so that waking one wakes no other.
            let tasks: Vec<_> = workers.into_iter().map(|worker| tokio::spawn(worker.train(steps))).collect();
            Ok(try_join_all(tasks).await.expect("no worker panics"))
        })?;
        for (number, trained) in trained.into_iter().enumerate() {
            let (worker, times) = trained?;
            log.completed_all(number, times);
            self.calls += steps * worker.calls();
            self.workers.push(worker);
        }
        Ok(())
    }

    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        Moved::through(&self.interface, self.calls * MESSAGES_A_CALL)
    }
}

impl Worker {
    /// Makes `steps` steps; returns when each began and ended.
    async fn train(mut self, steps: u64) -> Result<(Self, Vec<(Instant, Instant)>), BenchError> {
        let mut times = Vec::new();
        for _ in 0..steps {
            let began = Instant::now();
            match &mut self.rows {
                Some(rows) => rows.pull(&mut self.pairs).await?,
                None => self.make_step().await?,
            }
            times.push((began, Instant::now()));
        }
        self.rows.as_ref().map_or(Ok(()), |rows| rows.wanted.check_all(NAME, &rows.rows))?;
        Ok((self, times))
    }

    async fn make_step(&mut self) -> Result<(), BenchError> {
        let version = if self.waits { self.step } else { 0 };
        self.step += 1;
        if self.compute.is_zero() {
            try_join_all(self.pairs.iter_mut().map(async |pair| {
                pair.pull(version).await?;
                pair.push().await
            }))
            .await?;
        } else {
            try_join_all(self.pairs.iter_mut().map(|pair| pair.pull(version))).await?;
            sleep(self.compute).await;
            try_join_all(self.pairs.iter_mut().map(Pair::push)).await?;
        }
        Ok(())
    }

    fn calls(&self) -> u64 {
        if self.rows.is_some() { self.pairs.len() as u64 } else { self.pairs.iter().map(Pair::calls).sum() }
    }
}

/// The rows that a worker pulls: one call for each ps, whose request has for each table the number of rows, and their 32-bit
/// numbers.
struct Rows {
    tables: Tables,
    wanted: Wanted,
    sharding: Sharding,
    /// The rows of a step, one table after the other.
    rows: Vec<u8>,
}

impl Rows {
    fn new(plan: &Plan, number: usize, sharding: Sharding) -> Self {
        let tables = tables(plan);
        Self { tables, wanted: Wanted::new(plan, number), sharding, rows: vec![0; tables.step_bytes()] }
    }

    async fn pull(&mut self, pairs: &mut [Pair]) -> Result<(), BenchError> {
        let (row_bytes, ps) = (self.tables.row_bytes(), pairs.len());
        let room = self.tables.rows_a_step() / ps * 5 / 4;
        // What each ps is asked for, and where its rows go.
        let part = |_| (BytesMut::with_capacity((room + self.tables.tables) * ID_BYTES), Vec::with_capacity(room));
        let mut parts: Vec<(BytesMut, Vec<u32>)> = (0..ps).map(part).collect();
        for (table, ids) in self.wanted.advance().iter().enumerate() {
            let begin = |(request, _): &mut (BytesMut, Vec<u32>)| {
                request.put_u32_le(0);
                request.len()
            };
            let begun: Vec<usize> = parts.iter_mut().map(begin).collect();
            for (place, &id) in ids.iter().enumerate() {
                let (owner, local) = self.sharding.place(id);
                let (request, places) = &mut parts[owner];
                request.put_u32_le(local as u32);
                places.push((table * self.tables.batch + place) as u32);
            }
            for ((request, _), begun) in parts.iter_mut().zip(begun) {
                let count = (request.len() - begun) / ID_BYTES;
                request[begun - ID_BYTES..begun].copy_from_slice(&(count as u32).to_le_bytes());
            }
        }
        let calls = pairs.iter_mut().zip(parts).map(async |(pair, (request, places))| {
            let answer = pair.callers[0].call(PULL_ROWS, Message::Bytes(request.freeze())).await?;
            Ok::<_, BenchError>((places, answer))
        });
        for (places, answer) in try_join_all(calls).await? {
            if ps == 1 && answer.len() == self.rows.len() {
                // All rows came in the order in which they were named.
                self.rows.copy_from_slice(&answer);
                continue;
            }
            for (place, row) in places.into_iter().zip(answer.chunks_exact(row_bytes)) {
                self.rows[place as usize * row_bytes..][..row_bytes].copy_from_slice(row);
            }
        }
        Ok(())
    }
}
