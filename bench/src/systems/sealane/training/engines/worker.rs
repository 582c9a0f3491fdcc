//! A worker's steps as code on its engine's shard: from every ps at once, a pull and then a push.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use sealane_fusion::{DType, Engine, Error, LocalEngine, LocalPair, LocalSending, Tensor, TensorMeta};

use super::super::super::engine::on_shard;
use super::super::super::lane::Lane;
use super::super::super::memory;
use super::super::super::names::{QUEUE, ps_task};
use super::super::super::peers::greeting;
use super::super::super::steps::Way;
use super::super::memory::Copies;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Fuse, Mode, Plan, Variant, spread};
use crate::systems::training;

/// When each step began and ended.
pub(super) type Times = Vec<(Instant, Instant)>;

/// What a worker keeps from round to round.
pub(super) struct Worker {
    name: String,
    /// Its steps so far: the number of the next.
    step: i64,
    sides: Vec<Side>,
}

/// What it has of one ps.
struct Side {
    /// The tensors that it pulls, with their memory.
    lanes: Vec<Lane>,
    /// The gradients that it pushes: memory that is sent again and again.
    gradients: Vec<(TensorMeta, Bytes)>,
    copies: Option<Copies>,
}

impl Worker {
    /// The worker of that number, with memory on its engine's shard.
    pub(super) fn new(engine: &Engine, plan: &Plan, number: usize) -> Result<Self, BenchError> {
        let plan = plan.clone();
        on_shard(engine, "find memory for a worker's tensors", async move |shard| {
            let training = training::of(&plan);
            let shares = spread(&plan.step, training.size.ps).into_iter().zip(spread(&training.push, training.size.ps));
            let sides = shares.map(|(pulled, pushed)| Side::new(&shard, &plan, &pulled, &pushed));
            Ok(Self { name: greeting::task(number), step: 0, sides: sides.collect::<Result<_, Error>>()? })
        })
    }

    /// Makes so many steps, one after the other.
    pub(super) async fn train(mut self, shard: &LocalEngine, plan: &Plan, steps: u64) -> Result<(Self, Times), Error> {
        let training = training::of(plan);
        let task = shard.task(&self.name)?;
        let open = |(ps, side)| Open::new(shard, task.pair(&ps_task(ps))?, training.variants[0], side);
        let mut open: Vec<Open<'_>> = self.sides.iter_mut().enumerate().map(open).collect::<Result<_, Error>>()?;
        let compute = Duration::from_micros(training.compute_us);
        let mut times = Times::with_capacity(steps as usize);
        for step in (self.step..).take(steps as usize) {
            let began = Instant::now();
            let min_version = if training.mode == Mode::Sync { step } else { 0 };
            if compute.is_zero() && plan.fuse != Fuse::ReceiveWaitAll {
                let both = async |one: &mut Open<'_>| {
                    one.pull(min_version).await?;
                    one.push().await
                };
                try_join_all(open.iter_mut().map(both)).await?;
            } else {
                try_join_all(open.iter_mut().map(|one| one.pull(min_version))).await?;
                if !compute.is_zero() {
                    shard.shard().sleep(compute).await;
                }
                try_join_all(open.iter().map(Open::push)).await?;
            }
            times.push((began, Instant::now()));
        }
        open.into_iter().try_for_each(Open::close)?;
        self.step += steps as i64;
        Ok((self, times))
    }
}

impl Side {
    fn new(shard: &LocalEngine, plan: &Plan, pulled: &[usize], pushed: &[usize]) -> Result<Self, Error> {
        let training = training::of(plan);
        let lane = |&tensor: &usize| Ok(Lane::new(tensor, memory::buffer(shard, plan, plan.step[tensor])?));
        let gradient = |&tensor: &usize| {
            let bytes = training.push[tensor];
            Ok((TensorMeta::new(DType::U8, &[bytes as u64])?, memory::filled(shard, plan, bytes)?))
        };
        let sizes: Vec<usize> = pulled.iter().map(|&tensor| plan.step[tensor]).collect();
        Ok(Self {
            lanes: pulled.iter().map(lane).collect::<Result<_, Error>>()?,
            gradients: pushed.iter().map(gradient).collect::<Result<_, Error>>()?,
            copies: training.variants[0].copies.then(|| Copies::new(&sizes)),
        })
    }
}

/// A worker and a ps during a round.
struct Open<'a> {
    shard: &'a LocalEngine,
    pair: LocalPair,
    /// `None` where there is nothing to pull.
    way: Option<Way>,
    side: &'a mut Side,
    /// Pushes in flight at most, where each gradient is one.
    pushes: Option<usize>,
}

impl<'a> Open<'a> {
    fn new(shard: &'a LocalEngine, pair: LocalPair, variant: Variant, side: &'a mut Side) -> Result<Self, Error> {
        let way = match side.lanes.is_empty() {
            true => None,
            false => Some(Way::open(&pair, variant.fuse, false, &mut side.lanes)?),
        };
        let pushes = matches!(variant.fuse, Fuse::Off | Fuse::Turn).then_some(variant.request_buffers);
        Ok(Self { shard, pair, way, side, pushes })
    }

    /// Receives all tensors of the next step, and looks at each.
    async fn pull(&mut self, min_version: i64) -> Result<(), Error> {
        let Some(way) = &mut self.way else { return Ok(()) };
        let Side { lanes, copies, .. } = &mut *self.side;
        way.step(&self.pair, lanes, min_version).await?;
        for number in 0..lanes.len() {
            let bytes = way.bytes(lanes, number)?;
            if bytes.first() != Some(&FILL) || bytes.last() != Some(&FILL) {
                let reason = format!("{} arrived with other bytes than it left with", lanes[number].key());
                return Err(Error::InvalidArgument { reason: reason.into() });
            }
            if let Some(copies) = copies {
                copies.take(number, bytes);
            }
        }
        Ok(())
    }

    /// Pushes all gradients.
    async fn push(&self) -> Result<(), Error> {
        let gradients = self.side.gradients.iter();
        let Some(most) = self.pushes else {
            let tensors = gradients.map(|gradient| self.tensor(gradient)).collect::<Result<Vec<_>, Error>>()?;
            return if tensors.is_empty() { Ok(()) } else { self.pair.push_many(QUEUE, tensors).await };
        };
        let mut under_way: VecDeque<LocalSending> = VecDeque::with_capacity(most);
        for gradient in gradients {
            if under_way.len() == most
                && let Some(first) = under_way.pop_front()
            {
                first.await?;
            }
            under_way.push_back(self.pair.push(QUEUE, self.tensor(gradient)?));
        }
        for pushed in under_way {
            pushed.await?;
        }
        Ok(())
    }

    fn tensor(&self, (meta, bytes): &(TensorMeta, Bytes)) -> Result<Tensor, Error> {
        if self.side.copies.is_none() {
            return Tensor::new(meta.clone(), bytes.clone());
        }
        let mut copy = self.shard.allocate(bytes.len())?;
        copy.copy_from_slice(bytes);
        Tensor::new(meta.clone(), copy)
    }

    /// Takes the lanes' memory back.
    fn close(self) -> Result<(), Error> {
        self.way.map_or(Ok(()), |way| way.close(&mut self.side.lanes))
    }
}
