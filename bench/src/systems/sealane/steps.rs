//! The consumer's side of a round of steps: all tensors of a step, each into its own memory, then the next step. One task
//! on the shard.

use std::time::{Duration, Instant};

use sealane_fusion::{Buffer, Error, Keys, LocalEngine, LocalPair, LocalPlan, LocalReceiving, Unreceived};

use super::lane::Lane;
use super::messages;
use super::names::{PS, WORKER};
use crate::plan::{Bench, Fuse, Plan};
use crate::sample::Sample;
use crate::step_tally::StepTally;

/// The key under which the worker says that it wants the next version published.
pub(super) const NEXT: &str = "next";

/// Step after step until the round, the `number`th, is over.
pub(super) async fn round(
    shard: &LocalEngine,
    plan: &Plan,
    mut lanes: Vec<Lane>,
    number: i64,
    length: Duration,
) -> Result<(Sample, Vec<Lane>), Error> {
    let pair = shard.task(WORKER)?.pair(PS)?;
    let counts = plan.bench == Bench::Fuse;
    let before = if counts { messages::sent(shard, &pair, 2 * number).await? } else { 0 };
    let mut way = Way::open(&pair, plan.fuse, plan.republish, &mut lanes)?;
    let mut tally = StepTally::start(Instant::now(), length);
    loop {
        let began = Instant::now();
        way.step(&pair, &mut lanes, 0).await?;
        if tally.completed(began, Instant::now()) {
            break;
        }
    }
    way.close(&mut lanes)?;
    if !counts {
        return Ok((tally.tensors_per_second(lanes.len()), lanes));
    }
    let sent = messages::sent(shard, &pair, 2 * number + 1).await? - before;
    Ok((tally.sample(plan, Some(sent as f64 / tally.steps() as f64)), lanes))
}

/// How the tensors of a step are asked for.
pub(super) enum Way {
    /// A recv a tensor, all at once: the session's window decides how many are in flight. The list is empty between steps.
    OneByOne(Vec<LocalReceiving>),
    /// One request for all, by their keys. The list is empty between steps.
    Fused(Vec<Buffer>),
    /// One request for all, by the plan's number.
    Planned(Planned),
}

pub(super) struct Planned {
    plan: LocalPlan,
    /// The last version that was pulled, if each step has one of its own.
    version: Option<i64>,
}

impl Way {
    /// The way of these lanes; with `republish` each step of a plan has a version of its own, which is asked for.
    pub(super) fn open(pair: &LocalPair, fuse: Fuse, republish: bool, lanes: &mut [Lane]) -> Result<Self, Error> {
        Ok(match fuse {
            Fuse::Off | Fuse::Turn => Self::OneByOne(Vec::with_capacity(lanes.len())),
            Fuse::Push => unreachable!("who pushes asks for nothing"),
            Fuse::Receive | Fuse::ReceiveWaitAll => Self::Fused(Vec::with_capacity(lanes.len())),
            Fuse::Plan => {
                let mut agreed = pair.plan(Keys::new(lanes.iter().map(Lane::key))?);
                for (number, lane) in lanes.iter_mut().enumerate() {
                    agreed.tray_mut().set_destination(number, lane.lend());
                }
                Self::Planned(Planned { plan: agreed, version: republish.then(|| lanes[0].step()) })
            }
        })
    }

    /// Receives the lanes' tensors of their next step; what is published, at `min_version` or newer.
    pub(super) async fn step(&mut self, pair: &LocalPair, lanes: &mut [Lane], min_version: i64) -> Result<(), Error> {
        match self {
            Self::OneByOne(receiving) => {
                receiving.extend(lanes.iter_mut().map(|lane| lane.ask(pair)));
                for (lane, receiving) in lanes.iter_mut().zip(receiving.drain(..)) {
                    lane.take_in(receiving.await.map_err(|Unreceived { error, .. }| error)?)?;
                }
                Ok(())
            }
            Self::Fused(memory) => {
                memory.extend(lanes.iter_mut().map(Lane::lend));
                let (step, keys) = (lanes[0].step(), lanes.iter().map(Lane::key));
                let outcomes = pair.recv_fused_with(step, keys, memory.drain(..), None).await;
                for (lane, outcome) in lanes.iter_mut().zip(outcomes) {
                    lane.take_in(outcome.map_err(|Unreceived { error, .. }| error)?)?;
                }
                Ok(())
            }
            Self::Planned(planned) => planned.step(pair, min_version).await,
        }
    }

    /// What a step has brought to a lane.
    pub(super) fn bytes<'a>(&'a self, lanes: &'a [Lane], number: usize) -> Result<&'a [u8], Error> {
        match self {
            Self::Planned(planned) => Ok(planned.plan.tray().get(number)?.bytes()),
            Self::OneByOne(_) | Self::Fused(_) => Ok(lanes[number].bytes()),
        }
    }

    /// Gives the lanes their memory back.
    pub(super) fn close(self, lanes: &mut [Lane]) -> Result<(), Error> {
        let Self::Planned(Planned { mut plan, version }) = self else { return Ok(()) };
        for (number, lane) in lanes.iter_mut().enumerate() {
            lane.take_in(plan.tray_mut().take(number)?)?;
            lane.go_on_from(version.unwrap_or_default());
        }
        Ok(())
    }
}

impl Planned {
    async fn step(&mut self, pair: &LocalPair, min_version: i64) -> Result<(), Error> {
        let Some(version) = &mut self.version else { return self.plan.pull(min_version).await };
        *version += 1;
        // The pull says whether it was heard.
        drop(pair.send(*version, NEXT, messages::word()?));
        self.plan.pull(*version).await
    }
}
