//! The consumer's side: one task on the shard, with all requests that are in flight.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane_fusion::{Engine, Error, LocalEngine, Unreceived};

use super::engine::on_shard;
use super::lane::Lane;
use super::names::{PS, WORKER};
use super::{memory, names, pushes, steps};
use crate::error::BenchError;
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::stopwatch::{RoundTrips, Tally};

/// A lane for every tensor of the plan, with memory that it keeps.
pub(super) fn lanes(engine: &Engine, plan: &Plan) -> Result<Vec<Lane>, BenchError> {
    let plan = plan.clone();
    on_shard(engine, "find memory for its tensors", async move |shard| {
        let lane = |(index, bytes)| Ok(Lane::new(index, memory::buffer(&shard, &plan, bytes)?));
        names::lanes(&plan).into_iter().enumerate().map(lane).collect()
    })
}

/// One round, the `number`th, on the engine's shard; gives the lanes back for the next.
pub(super) fn round(
    engine: &Engine,
    plan: &Plan,
    lanes: Vec<Lane>,
    number: i64,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), BenchError> {
    let plan = plan.clone();
    on_shard(engine, "move tensors", async move |shard| match plan.bench {
        Bench::Latency => round_trips(&shard, &plan, lanes, length).await,
        Bench::Rate if plan.fuse == Fuse::Push => Ok((pushes::round(&shard, &plan, length).await?, lanes)),
        Bench::Rate if plan.fuse.is_of_many() => steps::round(&shard, &plan, lanes, number, length).await,
        Bench::Rate | Bench::Bandwidth => throughput(&shard, &plan, lanes, length).await,
        Bench::Fuse => steps::round(&shard, &plan, lanes, number, length).await,
        none => none.is_measured_elsewhere(),
    })
}

async fn round_trips(
    shard: &LocalEngine,
    plan: &Plan,
    mut lanes: Vec<Lane>,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let mut trips = RoundTrips::start(Instant::now(), length);
    let lane = &mut lanes[0];
    loop {
        if let Some(idle) = plan.idle() {
            shard.shard().sleep(idle).await;
        }
        let asked = Instant::now();
        lane.pull(&pair).await?;
        if trips.completed(asked, Instant::now()) {
            return Ok((trips.sample(), lanes));
        }
    }
}

/// A window of requests, answered in the order in which they were made: whoever is first in line is asked for anew.
async fn throughput(
    shard: &LocalEngine,
    plan: &Plan,
    lanes: Vec<Lane>,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let mut tally = Tally::start(Instant::now(), length);
    let ask = |mut lane: Lane| {
        let receiving = lane.ask(&pair);
        (lane, receiving)
    };
    let mut asked: VecDeque<_> = lanes.into_iter().map(ask).collect();
    let mut lanes = Vec::with_capacity(asked.len());
    let mut over = false;
    while let Some((mut lane, receiving)) = asked.pop_front() {
        lane.take_in(receiving.await.map_err(|Unreceived { error, .. }| error)?)?;
        // The turn's own clock: exact to the turn, and free.
        over |= tally.completed(1, shard.shard().now());
        if over {
            lanes.push(lane);
        } else {
            asked.push_back(ask(lane));
        }
    }
    Ok((tally.sample(plan), lanes))
}
