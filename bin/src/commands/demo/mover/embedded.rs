//! An engine in the task's process: tensors are offered and received on the shard that serves the two tasks, without
//! another thread in between. A window bounds the recvs in flight.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use sealane_fusion::{Buffer, Engine, EngineSettings, Error, LocalEngine, LocalPair, RecvOutcome, StartError, Tensor};
use sealane_runtime::{JoinHandle, RuntimeError};

use super::{Arrived, Mover, Offer, Wanted, With};
use crate::commands::demo::peers::PeerLink;
use crate::figures::Peer;
use crate::links::Links;

/// A task with its own engine.
pub(in crate::commands::demo) struct Embedded {
    task: String,
    engine: Engine,
    window: usize,
    /// What was offered and may not have been released.
    offered: Vec<JoinHandle<Result<(), Error>>>,
}

/// The pair of this task and a peer, in a step.
struct Between {
    task: String,
    peer: String,
    step: i64,
}

impl Embedded {
    /// Starts the engine.
    pub(in crate::commands::demo) fn start(task: String, settings: EngineSettings) -> Result<Embedded, StartError> {
        let window = settings.session.window;
        Ok(Embedded { task, engine: Engine::start(settings)?, window, offered: Vec::new() })
    }

    fn between(&self, peer: String, step: i64) -> (usize, Between) {
        (self.engine.shard_of(&self.task, &peer), Between { task: self.task.clone(), peer, step })
    }

    fn offer_to(&self, With { peer, tensors }: With<Offer>, step: i64) -> JoinHandle<Result<(), Error>> {
        let (shard, between) = self.between(peer, step);
        self.engine.on_shard(shard, async move |local| {
            let pair = between.pair(&local)?;
            let send = |offer: Offer| pair.send(step, &offer.key, offer.tensor);
            let sendings: Vec<_> = tensors.into_iter().map(send).collect();
            for sending in sendings {
                sending.await?;
            }
            Ok(())
        })
    }

    fn fetch_from(&self, With { peer, tensors }: With<Wanted>, step: i64) -> JoinHandle<Result<Arrived, Error>> {
        let (shard, between) = self.between(peer, step);
        let window = self.window;
        self.engine.on_shard(shard, async move |local| {
            let pair = between.pair(&local)?;
            fetch_all(&pair, between.step, tensors, window).await
        })
    }
}

impl Mover for Embedded {
    fn alloc(&self, bytes: usize) -> Result<Buffer, Error> {
        Ok(Buffer::from_vec(vec![0; bytes]))
    }

    fn offer(&mut self, step: i64, offers: Vec<With<Offer>>) {
        let offered = offers.into_iter().map(|offers| self.offer_to(offers, step)).collect();
        self.offered = offered;
    }

    fn settle(&mut self) -> Result<(), Error> {
        self.offered.drain(..).try_for_each(settle)
    }

    fn fetch(&mut self, step: i64, wanted: Vec<With<Wanted>>) -> Result<Vec<Arrived>, Error> {
        let asked: Vec<_> = wanted.into_iter().map(|wanted| self.fetch_from(wanted, step)).collect();
        asked.into_iter().map(settle).collect()
    }

    fn cpus(&self) -> Vec<usize> {
        self.engine.cpus().into_iter().flatten().collect()
    }

    fn links(&self) -> Result<Links, Error> {
        Ok(Links::of(&self.engine.counters()?))
    }

    fn peers(&self) -> Vec<PeerLink> {
        let peers = self.engine.figures().into_iter().flat_map(|shard| shard.peers);
        PeerLink::of_engine(&self.task, peers.map(Peer::from))
    }

    fn finish(self: Box<Self>) -> Result<(), Error> {
        self.engine.stop().map_err(ended)
    }
}

impl Between {
    fn pair(&self, local: &LocalEngine) -> Result<LocalPair, Error> {
        local.task(&self.task)?.pair(&self.peer)
    }
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

fn settle<T>(handle: JoinHandle<Result<T, Error>>) -> Result<T, Error> {
    handle.wait().map_err(ended)?
}

fn ended(error: RuntimeError) -> Error {
    Error::unavailable("this engine", error.to_string())
}
