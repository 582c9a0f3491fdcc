//! A plan of an embedded engine whose pull is begun first and polled later. Runs on the callers' threads.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use sealane_fusion::{Brought, Plan};
use sealane_runtime::Buffer;
use sealane_transport::{Error, Keys, PullOptions, Pulled, Tensor};

use crate::{
    in_process::{Call, end_of, look},
    plan::{Pulls, not_pulled},
};

pub(super) struct EmbeddedPlan {
    plan: Plan,
    /// The pull in progress.
    begun: Option<Call<Brought>>,
}

const TOLD: &str = "the outcome was handed out before";

impl EmbeddedPlan {
    pub(super) fn new(plan: Plan) -> Self {
        Self { plan, begun: None }
    }

    /// True if the pull in progress has the plan's memory, which is lost if the pull is given up.
    fn is_with_its_pull(&self) -> bool {
        self.plan.pull_buffer().len() < self.plan.keys().len()
    }

    fn end(&mut self, brought: Brought) -> Result<(), Error> {
        self.begun = None;
        self.plan.end(brought)
    }
}

impl Pulls for EmbeddedPlan {
    fn keys(&self) -> &Keys {
        self.plan.keys()
    }

    fn set_destination(&mut self, index: usize, memory: Buffer) {
        self.plan.pull_buffer_mut().set_destination(index, memory);
    }

    fn begin(&mut self, min_version: i64, options: PullOptions) {
        let begun = self.plan.begin(min_version, options);
        self.begun = Some(Call::of(begun));
    }

    fn wait(&mut self) -> Result<(), Error> {
        let brought = end_of(self.begun.as_mut().expect(TOLD));
        self.end(brought)
    }

    fn look(&mut self) -> Option<Result<(), Error>> {
        let brought = look(self.begun.as_mut().expect(TOLD))?;
        Some(self.end(brought))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let brought = ready!(Pin::new(self.begun.as_mut().expect(TOLD)).poll(context));
        Poll::Ready(self.end(brought))
    }

    fn give_up(&mut self) {
        self.begun = None;
    }

    fn get(&self, index: usize) -> Result<&Tensor, Error> {
        match self.is_with_its_pull() && index < self.plan.keys().len() {
            true => Err(not_pulled()),
            false => self.plan.pull_buffer().get(index),
        }
    }

    fn version(&self, index: usize) -> i64 {
        match self.is_with_its_pull() && index < self.plan.keys().len() {
            true => 0,
            false => self.plan.pull_buffer().version(index),
        }
    }

    fn take(&mut self, index: usize) -> Result<Pulled, Error> {
        self.plan.pull_buffer_mut().take_pulled(index)
    }
}
