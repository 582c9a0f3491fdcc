//! Tensors on their way: what a task offers to a peer and what it receives from one, on the shard that serves the two.
//! A window bounds the recvs in flight.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sealane_fusion::{Buffer, Engine, Error, LocalEngine, LocalPair, RecvOutcome, Tensor};
use sealane_runtime::JoinHandle;

/// A tensor for a peer.
pub(super) struct Offer {
    pub(super) key: Arc<str>,
    pub(super) tensor: Tensor,
}

/// A tensor from a peer, and the memory that is to take it.
pub(super) struct Wanted {
    pub(super) key: Arc<str>,
    pub(super) destination: Buffer,
}

/// What came from a peer.
pub(super) struct Arrived {
    /// In the order in which they were wanted.
    pub(super) tensors: Vec<Tensor>,
    /// From the request to the arrival, in the order of arrival.
    pub(super) latencies: Vec<Duration>,
    /// From the first request to the last arrival.
    pub(super) elapsed: Duration,
}

/// Two tasks, the first of which is this process's, and a step.
#[derive(Clone)]
pub(super) struct Between {
    pub(super) task: String,
    pub(super) peer: String,
    pub(super) step: i64,
}

impl Between {
    fn shard(&self, engine: &Engine) -> usize {
        engine.shard_of(&self.task, &self.peer)
    }

    fn pair(&self, local: &LocalEngine) -> Result<LocalPair, Error> {
        local.task(&self.task)?.pair(&self.peer)
    }
}

/// Offers tensors to the peer; ends when the peer has released all.
pub(super) fn offer(engine: &Engine, between: Between, offers: Vec<Offer>) -> JoinHandle<Result<(), Error>> {
    engine.on_shard(between.shard(engine), async move |local| {
        let pair = between.pair(&local)?;
        let send = |offer: Offer| pair.send(between.step, &offer.key, offer.tensor);
        let sendings: Vec<_> = offers.into_iter().map(send).collect();
        for sending in sendings {
            sending.await?;
        }
        Ok(())
    })
}

/// Receives tensors from the peer into their memory, `window` at once.
pub(super) fn fetch(
    engine: &Engine,
    between: Between,
    wanted: Vec<Wanted>,
    window: usize,
) -> JoinHandle<Result<Arrived, Error>> {
    engine.on_shard(between.shard(engine), async move |local| {
        let pair = between.pair(&local)?;
        fetch_all(&pair, between.step, wanted, window).await
    })
}

async fn fetch_all(pair: &LocalPair, step: i64, wanted: Vec<Wanted>, window: usize) -> Result<Arrived, Error> {
    let mut tensors: Vec<Option<Tensor>> = wanted.iter().map(|_| None).collect();
    let mut latencies = Vec::with_capacity(wanted.len());
    let mut waiting = wanted.into_iter().enumerate();
    let mut flying = FuturesUnordered::new();
    let start = Instant::now();
    loop {
        while flying.len() < window
            && let Some((index, wanted)) = waiting.next()
        {
            flying.push(fetch_one(pair, step, index, wanted));
        }
        let Some((index, latency, outcome)) = flying.next().await else { break };
        tensors[index] = Some(outcome?);
        latencies.push(latency);
    }
    let elapsed = start.elapsed();
    let tensors = tensors.into_iter().map(|tensor| tensor.expect("every recv has ended")).collect();
    Ok(Arrived { tensors, latencies, elapsed })
}

async fn fetch_one(pair: &LocalPair, step: i64, index: usize, wanted: Wanted) -> (usize, Duration, RecvOutcome) {
    let asked = Instant::now();
    let outcome = pair.recv_into(step, &wanted.key, wanted.destination).await;
    (index, asked.elapsed(), outcome)
}
