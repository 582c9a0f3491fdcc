//! Measures a direct lane: the worker is in this process, the ps in the other one, next to the engine that gives them the lane and
//! then sleeps.
//!
//! The worker requests a batch with one small tensor; the ps already has a recv for that, and the worker has recvs for the batch: a
//! round trip, as over the links between hosts. So latency is that of two sends over the lane.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

use sealane::{Error, Receiving, RecvOptions, Sending, Task, Tensor};

use super::super::engine::{PATIENCE, PS, WORKER, key_of, lanes};
use super::clients::{BATCHES, batches, unmoved};
use crate::error::BenchError;
use crate::limits::{FILL, STALL_LIMIT};
use crate::plan::{Bench, Fuse, Plan, SystemName};
use crate::system::Client;
use crate::systems::client::check_length;

pub(super) const NAME: &str = SystemName::Direct.as_str();

/// The key of the tensor with which the worker requests a batch.
const ASK: &str = "ask";

pub(super) fn variant(plan: &Plan) -> String {
    match (plan.bench, plan.fuse) {
        (Bench::Latency, _) if plan.polling => "polling, there and back",
        (Bench::Latency, _) => "parking, there and back",
        (_, Fuse::Off) => "polling, a call each",
        _ => "polling, batched calls",
    }
    .to_owned()
}

/// What both sides know: the batches, one after the other, each with its own step.
struct Batches {
    keys: Vec<String>,
    ranges: Vec<Range<usize>>,
    /// Whether a batch is one call.
    fused: bool,
}

impl Batches {
    fn new(plan: &Plan) -> Batches {
        let count = lanes(plan).len();
        let fused = plan.bench == Bench::Rate && plan.fuse == Fuse::Turn;
        Batches { keys: (0..count).map(key_of).collect(), ranges: batches(count).collect(), fused }
    }

    fn keys_of(&self, step: i64) -> &[String] {
        &self.keys[self.ranges[step as usize % self.ranges.len()].clone()]
    }

    fn recv(&self, task: &Task, step: i64) -> Vec<Receiving> {
        let keys = self.keys_of(step);
        match self.fused {
            true => task.recv_all(PS, step, keys.iter().map(|key| (key, RecvOptions::default()))),
            false => keys.iter().map(|key| task.recv(PS, step, key)).collect(),
        }
    }

    fn send(&self, task: &Task, step: i64, tensor: &Tensor) -> Vec<Sending> {
        let keys = self.keys_of(step);
        match self.fused {
            true => task.send_all(WORKER, step, keys.iter().map(|key| (key, tensor.share()))),
            false => keys.iter().map(|key| task.send(WORKER, step, key, tensor.share())).collect(),
        }
    }
}

pub(super) struct Asker {
    worker: Task,
    batches: Batches,
    question: Tensor,
    size_bytes: usize,
    /// The next step to request, and those in progress.
    step: i64,
    under_way: VecDeque<(Sending, Vec<Receiving>)>,
}

impl Asker {
    /// Retries until there is a lane.
    ///
    /// # Errors
    /// There is no lane within [`STALL_LIMIT`].
    pub(super) fn new(plan: &Plan, worker: Task) -> Result<Asker, BenchError> {
        let question = tensor(1).map_err(unmoved)?;
        let (batches, size_bytes) = (Batches::new(plan), plan.size_bytes);
        let mut asker = Asker { worker, batches, question, size_bytes, step: 0, under_way: VecDeque::new() };
        let begun = Instant::now();
        while asker.worker.direct_peers() != [PS] {
            if begun.elapsed() > STALL_LIMIT {
                let reason = format!("the daemon has given none in {STALL_LIMIT:?}");
                return Err(BenchError::failed(NAME, "open a direct lane")(reason));
            }
            asker.begin();
            asker.end()?;
        }
        Ok(asker)
    }

    fn begin(&mut self) -> usize {
        let receivings = self.batches.recv(&self.worker, self.step);
        let asked = self.worker.send(PS, self.step, ASK, self.question.share());
        let count = receivings.len();
        self.under_way.push_back((asked, receivings));
        self.step += 1;
        count
    }

    fn end(&mut self) -> Result<usize, BenchError> {
        let (asked, receivings) = self.under_way.pop_front().expect("something was asked for");
        let count = receivings.len();
        for came in Receiving::wait_all(receivings) {
            check_length(NAME, self.size_bytes, came.map_err(unmoved)?.len())?;
        }
        asked.wait().map_err(unmoved)?;
        Ok(count)
    }
}

impl Client for Asker {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        let mut left = count;
        while left > 0 && self.under_way.len() < self.batches.ranges.len() {
            left = left.saturating_sub(self.begin());
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        self.end()
    }

    /// Checks that the lane still exists, so that everything has used it.
    fn check(&self) -> Result<(), BenchError> {
        match self.worker.direct_peers() == [PS] {
            true => Ok(()),
            false => Err(BenchError::failed(NAME, "keep its direct lane")("it has none any more")),
        }
    }
}

/// The ps: answers whatever is asked for until the process ends.
pub(super) fn answer(plan: &Plan, ps: &Task) -> Result<(), Error> {
    let (batches, tensor) = (Batches::new(plan), tensor(plan.size_bytes)?);
    // It may be stopped for long between two of them.
    let patient = || RecvOptions { timeout: Some(PATIENCE), ..RecvOptions::default() };
    let mut asked = VecDeque::new();
    let mut sent: VecDeque<Vec<Sending>> = VecDeque::new();
    for step in 0.. {
        asked.push_back(ps.recv_with(WORKER, step, ASK, patient()));
        if asked.len() <= BATCHES {
            continue;
        }
        let first = asked.pop_front().expect("there are some");
        first.wait()?;
        sent.push_back(batches.send(ps, step - BATCHES as i64, &tensor));
        if sent.len() > BATCHES {
            let sendings = sent.pop_front().expect("there are some");
            Sending::wait_all(sendings).into_iter().collect::<Result<(), _>>()?;
        }
    }
    Ok(())
}

fn tensor(bytes: usize) -> Result<Tensor, Error> {
    Ok(Tensor::from_elements(&[bytes as u64], &vec![FILL; bytes])?.into_shared())
}
