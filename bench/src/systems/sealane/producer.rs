//! The producer's side: for every lane of the consumer, the tensor of the next step is always deposited already.

use std::collections::VecDeque;

use bytes::Bytes;
use sealane_fusion::{Code, DType, Engine, Error, LocalEngine, LocalPair, LocalSending, Tensor, TensorMeta};

use super::consumer::key_of;
use super::{PS, WORKER, lanes, memory, messages, published, pushes};
use crate::error::BenchError;
use crate::plan::{Bench, Fuse, Plan};

/// Tensors deposited ahead, a lane: the one that is asked for and the next.
pub(super) const AHEAD: usize = 2;

/// Starts the producer's task on the shard; it runs until the engine stops.
pub(super) fn start(engine: &Engine, plan: &Plan) -> Result<(), BenchError> {
    let plan = plan.clone();
    let started = engine.on_shard(0, async move |shard| {
        let pair = shard.task(PS)?.pair(WORKER)?;
        if plan.bench == Bench::Fuse {
            drop(shard.shard().spawn(messages::answer(shard.clone(), pair.clone())));
        }
        if plan.fuse == Fuse::Plan {
            return published::start(&shard, &plan);
        }
        if plan.fuse == Fuse::Push {
            return pushes::accept(&shard);
        }
        // One large parameter that is pulled again and again, as the raw baseline sends one.
        let shared = match plan.bench {
            Bench::Bandwidth => memory::filled(&shard, &plan, plan.size_bytes)?,
            _ => Bytes::new(),
        };
        let mut sources = Vec::new();
        for (lane, size_bytes) in lanes(&plan).into_iter().enumerate() {
            let meta = TensorMeta::new(DType::U8, &[size_bytes as u64])?;
            let memory = match plan.bench {
                Bench::Bandwidth => Memory::Shared(shared.clone()),
                // A parameter that has memory of its own, and is not copied to be sent.
                Bench::Fuse => Memory::Shared(memory::filled(&shard, &plan, size_bytes)?),
                _ => Memory::Slab(shard.clone(), size_bytes),
            };
            sources.push(Source { key: key_of(lane), meta, memory });
        }
        drop(shard.shard().spawn(serve(pair, sources)));
        Ok::<(), Error>(())
    });
    let failed = |reason: String| BenchError::Sealane { operation: "start its producer", reason };
    started.wait().map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// A lane's tensors.
struct Source {
    key: String,
    meta: TensorMeta,
    memory: Memory,
}

/// Where a tensor's bytes come from.
enum Memory {
    Slab(LocalEngine, usize),
    Shared(Bytes),
}

impl Source {
    fn tensor(&self) -> Result<Tensor, Error> {
        match &self.memory {
            Memory::Slab(engine, size) => Tensor::new(self.meta.clone(), engine.allocate(*size)?),
            Memory::Shared(bytes) => Tensor::new(self.meta.clone(), bytes.clone()),
        }
    }
}

/// Deposits the tensors of every lane, `AHEAD` steps ahead: the next as soon as the one that was deposited first is released.
async fn serve(pair: LocalPair, sources: Vec<Source>) {
    if let Err(error) = serve_until(&pair, &sources).await
        && !is_the_end(&error)
    {
        eprintln!("the producer ended: {error}");
    }
}

async fn serve_until(pair: &LocalPair, sources: &[Source]) -> Result<(), Error> {
    let mut sent: VecDeque<LocalSending> = VecDeque::new();
    for step in 0.. {
        for source in sources {
            if sent.len() == AHEAD * sources.len()
                && let Some(first) = sent.pop_front()
            {
                first.await?;
            }
            sent.push_back(pair.send(step, &source.key, source.tensor()?));
        }
    }
    Ok(())
}

/// The engine stops: that is how every run ends.
pub(super) fn is_the_end(error: &Error) -> bool {
    matches!(error.code(), Code::Aborted | Code::Unavailable)
}
