//! A plan of an embedded engine whose pull is begun, and asked after later. Runs on the callers' threads.

use std::{
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use sealane_fusion::{Brought, Plan};
use sealane_runtime::Buffer;
use sealane_transport::{Error, Keys, PullOptions, Pulled, Tensor};

use crate::{
    in_process::{Call, end_of, look},
    plan::Pulls,
};

/// See the module.
pub(super) struct EmbeddedPlan {
    plan: Plan,
    /// The pull in progress. Never locked: it can only be used by one thread, and the plan by many.
    begun: Mutex<Option<Call<Brought>>>,
}

const NOT_BEGUN: &str = "the outcome was handed out before";

impl EmbeddedPlan {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, begun: Mutex::default() }
    }

    fn begun(&mut self) -> &mut Option<Call<Brought>> {
        self.begun.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&mut self, brought: Brought) -> Result<(), Error> {
        *self.begun() = None;
        self.plan.end(brought)
    }
}

impl Pulls for EmbeddedPlan {
    fn keys(&self) -> &Keys {
        self.plan.keys()
    }

    fn set_destination(&mut self, index: usize, memory: Buffer) {
        self.plan.tray_mut().set_destination(index, memory);
    }

    fn begin(&mut self, min_version: i64, options: PullOptions) {
        let begun = self.plan.begin(min_version, options);
        *self.begun() = Some(Box::pin(begun));
    }

    fn wait(&mut self) -> Result<(), Error> {
        let brought = end_of(self.begun().as_mut().expect(NOT_BEGUN));
        self.end(brought)
    }

    fn look(&mut self) -> Option<Result<(), Error>> {
        let brought = look(self.begun().as_mut().expect(NOT_BEGUN))?;
        Some(self.end(brought))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let brought = ready!(self.begun().as_mut().expect(NOT_BEGUN).as_mut().poll(context));
        Poll::Ready(self.end(brought))
    }

    fn give_up(&mut self) {
        *self.begun() = None;
    }

    fn get(&self, index: usize) -> Result<&Tensor, Error> {
        self.plan.tray().get(index)
    }

    fn version(&self, index: usize) -> i64 {
        self.plan.tray().version(index)
    }

    fn take(&mut self, index: usize) -> Result<Pulled, Error> {
        self.plan.tray_mut().take_pulled(index)
    }
}
