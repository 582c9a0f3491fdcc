//! The producer's side: for every lane of the consumer, the tensor of the next step is always deposited already.

use bytes::Bytes;
use sealane_fusion::{Code, DType, Engine, Error, LocalEngine, LocalPair, Tensor, TensorMeta};

use super::consumer::key_of;
use super::{PS, WORKER, lanes, messages, published};
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Bench, Fuse, Plan};

/// Tensors deposited ahead, a lane: the one that is asked for and the next.
const AHEAD: i64 = 2;

/// Starts a task on the shard for each lane and each tensor ahead; they run until the engine stops.
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
        let shared = Bytes::from(vec![FILL; plan.size_bytes]);
        for (lane, size_bytes) in lanes(&plan).into_iter().enumerate() {
            let meta = TensorMeta::new(DType::U8, &[size_bytes as u64])?;
            // A parameter that has memory of its own, and is not copied to be sent.
            let own = if plan.bench == Bench::Fuse { Bytes::from(vec![FILL; size_bytes]) } else { Bytes::new() };
            for first in 0..AHEAD {
                let source = match plan.bench {
                    // One large parameter that is pulled again and again, as the raw baseline sends one.
                    Bench::Bandwidth => Source::Shared(shared.clone()),
                    Bench::Fuse => Source::Shared(own.clone()),
                    _ => Source::Slab(shard.clone(), size_bytes),
                };
                drop(shard.shard().spawn(serve_lane(pair.clone(), lane, first, meta.clone(), source)));
            }
        }
        Ok::<(), Error>(())
    });
    let failed = |reason: String| BenchError::Sealane { operation: "start its producer", reason };
    started.wait().map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

/// Where a tensor's bytes come from.
enum Source {
    Slab(LocalEngine, usize),
    Shared(Bytes),
}

/// Deposits the tensor of every `AHEAD`th step from `first` on, each as soon as the former was released.
async fn serve_lane(pair: LocalPair, lane: usize, first: i64, meta: TensorMeta, source: Source) {
    let key = key_of(lane);
    let mut step = first;
    loop {
        let tensor = match &source {
            Source::Slab(engine, size) => engine.allocate(*size).and_then(|buffer| Tensor::new(meta.clone(), buffer)),
            Source::Shared(bytes) => Tensor::new(meta.clone(), bytes.clone()),
        };
        let sent = match tensor {
            Ok(tensor) => pair.send(step, &key, tensor).await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            if is_the_end(&error) {
                return;
            }
            eprintln!("the producer of lane {lane} ended at step {step}: {error}");
            return;
        }
        step += AHEAD;
    }
}

/// The engine stops: that is how every run ends.
pub(super) fn is_the_end(error: &Error) -> bool {
    matches!(error.code(), Code::Aborted | Code::Unavailable)
}
