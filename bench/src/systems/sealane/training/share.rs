//! The tensors of one ps: what its workers pull from it, and the gradients that they push to it. The same for all workers.

use std::sync::Arc;

use bytes::Bytes;
use sealane_fusion::{DType, Keys, TensorMeta};
use sealane_transport::Meta;

use super::super::names::key_of;
use crate::error::BenchError;
use crate::limits::FILL;
use crate::plan::{Plan, spread};
use crate::systems::training;

/// See the module.
pub(super) struct Share {
    /// The keys of what is pulled, and its bytes each.
    pub(super) keys: Arc<Keys>,
    pub(super) pulled: Vec<usize>,
    /// What each gradient is, and its bytes: memory that all workers send from.
    pub(super) gradients: Vec<(Meta, Bytes)>,
}

/// The tensors of every ps of a plan.
pub(super) fn shares(plan: &Plan) -> Result<Vec<Share>, BenchError> {
    let training = training::of(plan);
    let pulled = spread(&plan.step, training.size.ps);
    let pushed = spread(&training.push, training.size.ps);
    let one = |(pulled, pushed): (Vec<usize>, Vec<usize>)| {
        let gradient = |number: &usize| {
            let bytes = training.push[*number];
            let meta = TensorMeta::new(DType::U8, &[bytes as u64]).map_err(BenchError::sealane("train"))?;
            Ok((meta.into_wire(), Bytes::from(vec![FILL; bytes])))
        };
        Ok(Share {
            keys: Arc::new(
                Keys::new(pulled.iter().map(|number| key_of(*number))).map_err(BenchError::sealane("train"))?,
            ),
            pulled: pulled.iter().map(|number| plan.step[*number]).collect(),
            gradients: pushed.iter().map(gradient).collect::<Result<_, BenchError>>()?,
        })
    };
    pulled.into_iter().zip(pushed).map(one).collect()
}
