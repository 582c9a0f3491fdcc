//! The workers: a task each, in one runtime, with a channel for every ps. Every tensor that is pulled goes to the worker's
//! own memory.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use tokio::runtime::Runtime;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::super::callers::{Caller, Callers};
use super::super::connection::spin;
use super::super::runtime::NAME;
use crate::error::BenchError;
use crate::limits::{FILL, SLOWEST_BYTES_PER_SECOND, STALL_LIMIT};
use crate::plan::{Fuse, Mode, Plan, Training, spread};
use crate::systems::training::{self, Moved, StepLog, Trainees};

/// A call's request and its answer.
const MESSAGES_A_CALL: u64 = 2;

/// See the module.
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
        let pulled = spread(&plan.step, training.size.ps);
        let gradients = |share: &Vec<usize>| {
            share.iter().map(|number| Bytes::from(vec![FILL; training.push[*number]])).collect::<Arc<[_]>>()
        };
        let pushed: Vec<_> = spread(&training.push, training.size.ps).iter().map(gradients).collect();
        let variant = training.variants[0];
        let mut channels = channels.into_iter();
        let mut pair = |ps: usize| {
            let sizes: Vec<usize> = pulled[ps].iter().map(|number| plan.step[*number]).collect();
            let channel = channels.next().expect("every worker is connected with every ps");
            let caller = Caller::new(channel, sizes.iter().sum());
            let waits = training.mode == Mode::Sync && !pushed[ps].is_empty();
            Pair {
                callers: Callers::new(caller, variant.request_buffers.min(sizes.len().max(pushed[ps].len()))),
                pulled: sizes.iter().map(|bytes| vec![0; *bytes]).collect(),
                gradients: pushed[ps].clone(),
                fused: variant.fuse != Fuse::Off,
                waits,
            }
        };
        let workers = (0..training.size.workers)
            .map(|_| Worker { step: 0, pairs: (0..training.size.ps).map(&mut pair).collect() });
        let workers = workers.collect();
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
