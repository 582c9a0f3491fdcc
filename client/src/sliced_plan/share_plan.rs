//! The plan of one share of the slices, with either engine.

#[cfg(feature = "embedded")]
use std::task::Waker;
use std::task::{Context, Poll};

use sealane_transport::{Error, PullOptions, Tensor};

use crate::attached_plan::AttachedPlan;
#[cfg(feature = "embedded")]
use crate::embedded_plan::EmbeddedPlan;

/// See the module.
pub(super) enum SharePlan {
    Daemon(Box<AttachedPlan>),
    #[cfg(feature = "embedded")]
    Embedded(Box<EmbeddedPlan>),
}

impl SharePlan {
    pub(super) fn begin(&mut self, min_version: i64, options: PullOptions) {
        match self {
            Self::Daemon(plan) => plan.begin(min_version, options),
            #[cfg(feature = "embedded")]
            Self::Embedded(plan) => plan.begin(min_version, options),
        }
    }

    pub(super) fn wait(&mut self) -> Result<(), Error> {
        match self {
            Self::Daemon(plan) => plan.wait(),
            #[cfg(feature = "embedded")]
            Self::Embedded(plan) => plan.wait(),
        }
    }

    pub(super) fn look(&mut self) -> Option<Result<(), Error>> {
        match self {
            Self::Daemon(plan) => plan.look(),
            #[cfg(feature = "embedded")]
            Self::Embedded(plan) => match plan.poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => Some(ended),
                Poll::Pending => None,
            },
        }
    }

    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::Daemon(plan) => plan.poll(context),
            #[cfg(feature = "embedded")]
            Self::Embedded(plan) => plan.poll(context),
        }
    }

    /// A tensor that the last pull brought, and its version.
    pub(super) fn take(&mut self, index: usize) -> Result<(Tensor, i64), Error> {
        match self {
            Self::Daemon(plan) => plan.get(index).map(|tensor| (tensor.share(), plan.version(index))),
            #[cfg(feature = "embedded")]
            Self::Embedded(plan) => plan.take(index),
        }
    }
}
