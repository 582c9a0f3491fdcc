//! Workers that train with parameter servers through gRPC. All parameter servers are services in one process and runtime, each
//! with a port of its own; every worker is a task in one runtime, with a channel for every ps and memory of its own. A call a
//! tensor, or one call a ps, whose message has all tensors.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use futures_util::stream::{self, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::consumer::{Caller, Callers};
use super::service::{self, Ps};
use super::{NAME, runtime, spin};
use crate::error::BenchError;
use crate::limits::{FILL, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::peer::{PeerJob, PeerProgram, PeerReady, announce};
use crate::plan::{Fuse, Mode, Plan, Training};
use crate::process::{self, Growth};
use crate::system::System;
use crate::systems::training::{self, Moved, Share, StepLog, Trainees};
use crate::systems::{grpc, sockets};

/// Parameter servers in a process of their own, and workers that are connected with all of them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    let pairs = training.pairs();
    process::allow_open_files("--workers x --ps", pairs, 1)?;
    System::with_peer(job, program, |peer| {
        let growth = Growth::of(peer.process_id())?;
        let runtime = runtime()?;
        let (channels, congestion) = connect(&runtime, plan, &peer.ready().ports)?;
        let each = growth.bytes_each(pairs)?;
        let workers = Workers::new(runtime, channels, plan);
        Ok(training::system((NAME, variant(plan)), plan, workers, each, peer)?.with_congestion(congestion))
    })
}

/// A channel of every worker with every ps, worker by worker.
pub(super) fn connect(runtime: &Runtime, plan: &Plan, ports: &[u16]) -> Result<(Vec<Channel>, String), BenchError> {
    let mut channels = Vec::new();
    let mut congestion = String::new();
    for _ in 0..training::of(plan).size.workers {
        for port in ports {
            let stream = sockets::connect(*port, plan.congestion.as_deref())?;
            if channels.is_empty() {
                congestion = sockets::congestion(&stream)?;
            }
            channels.push(runtime.block_on(async { grpc::open(grpc::adopt(stream)?).await })?);
        }
    }
    Ok((channels, congestion))
}

fn variant(plan: &Plan) -> String {
    let training = training::of(plan);
    let variant = training.variants[0];
    let waiting = if variant.polling { "polling" } else { "parking" };
    match variant.fuse {
        Fuse::Off => format!("{}, unary, {} calls, {waiting}", training.mode, variant.request_buffers),
        _ => format!("{}, one message, {waiting}", training.mode),
    }
}

/// Serves workers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    process::allow_open_files("--workers x --ps", training.pairs(), 1)?;
    runtime()?.block_on(async {
        let _spinner = plan.polling.then(grpc::spin);
        let mut ports = Vec::new();
        for share in training::shares(plan) {
            let (listener, port) = listen(plan)?;
            ports.push(port);
            let ps = Ps::new(share.pulled.into_iter(), &share.pushed, training.size.workers);
            tokio::spawn(serve_one(ps, listener));
        }
        announce(PeerReady { port: 0, ports })?;
        pending().await
    })
}

/// A listener of the runtime that this is called in, and its port.
pub(super) fn listen(plan: &Plan) -> Result<(TcpListener, u16), BenchError> {
    let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
    let port = sockets::port(&listener)?;
    listener.set_nonblocking(true).map_err(BenchError::io("hand a listener to gRPC"))?;
    Ok((TcpListener::from_std(listener).map_err(BenchError::io("hand a listener to gRPC"))?, port))
}

/// All connections that come.
pub(super) fn connections(listener: TcpListener) -> impl Stream<Item = io::Result<TcpStream>> {
    Box::pin(stream::unfold(listener, async |listener| {
        let accepted = listener.accept().await.and_then(|(stream, _)| {
            stream.set_nodelay(true)?;
            Ok(stream)
        });
        Some((accepted, listener))
    }))
}

async fn serve_one(ps: Arc<Ps>, listener: TcpListener) {
    if let Err(error) = service::serve(ps, connections(listener)).await {
        eprintln!("a ps no longer serves: {error}");
    }
}

/// A call's request and its answer.
const MESSAGES_A_CALL: u64 = 2;

/// All workers.
pub(in crate::systems) struct Workers {
    /// Before the runtime, which runs their channels.
    workers: Vec<Worker>,
    runtime: Runtime,
    training: Training,
    /// Bytes of all workers' steps, each way.
    step_bytes: usize,
    calls: u64,
}

/// A worker; its steps so far.
struct Worker {
    step: i64,
    pairs: Vec<Pair>,
}

/// A worker and a ps.
struct Pair {
    /// As many as may be in flight at once.
    callers: Callers,
    pulled: Vec<Vec<u8>>,
    gradients: Arc<[Bytes]>,
    fused: bool,
    waits: bool,
}

impl Workers {
    pub(super) fn new(runtime: Runtime, channels: Vec<Channel>, plan: &Plan) -> Self {
        let training = training::of(plan).clone();
        let gradients = |share: &Share| share.pushed.iter().map(|&bytes| Bytes::from(vec![FILL; bytes])).collect();
        let shares: Vec<(Arc<[Bytes]>, Share)> =
            training::shares(plan).map(|share| (gradients(&share), share)).collect();
        let variant = training.variants[0];
        let mut channels = channels.into_iter();
        let mut pair = |(gradients, Share { pulled, pushed, .. }): &(Arc<[Bytes]>, Share)| {
            let channel = channels.next().expect("every worker is connected with every ps");
            let caller = Caller::new(channel, pulled.iter().sum());
            Pair {
                callers: Callers::new(caller, variant.request_buffers.min(pulled.len().max(pushed.len()))),
                pulled: pulled.iter().map(|bytes| vec![0; *bytes]).collect(),
                gradients: gradients.clone(),
                fused: variant.fuse != Fuse::Off,
                waits: training.mode == Mode::Sync && !pushed.is_empty(),
            }
        };
        let worker = |_| Worker { step: 0, pairs: shares.iter().map(&mut pair).collect() };
        let workers = (0..training.size.workers).map(worker).collect();
        let step_bytes =
            training.size.workers * (plan.step.iter().sum::<usize>() + training.push.iter().sum::<usize>());
        Self { workers, runtime, training, step_bytes, calls: 0 }
    }
}

impl Trainees for Workers {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        let compute = Duration::from_micros(self.training.compute_us);
        let polling = self.training.variants[0].polling;
        let slowest = Duration::from_secs((self.step_bytes / SLOWEST_BYTES_PER_SECOND) as u64);
        let limit = (STALL_LIMIT + slowest).saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
        let workers = std::mem::take(&mut self.workers);
        let trained = self.runtime.block_on(async {
            let _spinner = polling.then(spin);
            // A task each, so that one that is woken wakes no other.
            let tasks: Vec<_> = workers.into_iter().map(|worker| tokio::spawn(worker.train(steps, compute))).collect();
            let all = try_join_all(tasks);
            timeout(limit, all).await.map_err(|_| BenchError::Stalled { system: NAME, waited: limit })
        })?;
        for (number, trained) in trained.expect("no worker panics").into_iter().enumerate() {
            let (worker, times) = trained?;
            for (began, ended) in times {
                log.completed(number, began, ended);
            }
            self.calls += steps * worker.pairs.iter().map(Pair::calls).sum::<u64>();
            self.workers.push(worker);
        }
        Ok(())
    }

    fn moved(&self) -> Result<Option<Moved>, BenchError> {
        Moved::over_loopback(self.calls * MESSAGES_A_CALL)
    }
}

impl Worker {
    /// So many steps; when each began and ended.
    async fn train(mut self, steps: u64, compute: Duration) -> Result<(Self, Vec<(Instant, Instant)>), BenchError> {
        let mut times = Vec::new();
        for _ in 0..steps {
            let began = Instant::now();
            let step = self.step;
            self.step += 1;
            if compute.is_zero() {
                try_join_all(self.pairs.iter_mut().map(async |pair| {
                    pair.pull(step).await?;
                    pair.push().await
                }))
                .await?;
            } else {
                try_join_all(self.pairs.iter_mut().map(|pair| pair.pull(step))).await?;
                sleep(compute).await;
                try_join_all(self.pairs.iter_mut().map(Pair::push)).await?;
            }
            times.push((began, Instant::now()));
        }
        Ok((self, times))
    }
}

impl Pair {
    /// Calls of a step.
    fn calls(&self) -> u64 {
        let calls = |tensors: usize| if self.fused { tensors.min(1) } else { tensors };
        (calls(self.pulled.len()) + calls(self.gradients.len())) as u64
    }

    async fn pull(&mut self, step: i64) -> Result<(), BenchError> {
        let version = if self.waits { step } else { 0 };
        match self.fused {
            _ if self.pulled.is_empty() => Ok(()),
            true => self.callers.pull_all(version, &mut self.pulled).await,
            false => self.callers.pull_each(version, &mut self.pulled).await,
        }
    }

    async fn push(&mut self) -> Result<(), BenchError> {
        match self.fused {
            _ if self.gradients.is_empty() => Ok(()),
            true => self.callers.push_all(&self.gradients).await,
            false => self.callers.push_each(&self.gradients).await,
        }
    }
}
