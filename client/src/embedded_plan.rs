//! A plan of an embedded engine whose pull is begun, and asked after later. Runs on the callers' threads.

use std::{
    sync::{Mutex, PoisonError},
    task::{Context, Poll, ready},
};

use sealane_fusion::{Begun, Plan};
use sealane_runtime::Buffer;
use sealane_transport::{Error, PullOptions, Pulled, Tensor};

use crate::embedded::Embedded;

/// See the module.
pub(crate) struct EmbeddedPlan {
    plan: Plan,
    /// The pull in progress. Never locked: it can only be used by one thread, and the plan by many.
    begun: Mutex<Option<Embedded<Begun>>>,
}

impl EmbeddedPlan {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, begun: Mutex::default() }
    }

    /// Gives a tensor of the next pull memory to arrive in.
    pub(crate) fn set_destination(&mut self, index: usize, memory: Buffer) {
        self.plan.tray_mut().set_destination(index, memory);
    }

    fn begun(&mut self) -> &mut Option<Embedded<Begun>> {
        self.begun.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&mut self, min_version: i64, options: PullOptions) {
        let begun = Embedded::new(self.plan.begin(min_version, options));
        *self.begun() = Some(begun);
    }

    /// Waits for the end of the pull.
    ///
    /// # Panics
    /// If none is in progress.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        let brought = self.begun().take().expect("a pull is in progress").wait();
        self.plan.end(brought)
    }

    /// How the pull ended, or the task is woken when it has.
    ///
    /// # Panics
    /// If none is in progress.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let brought = ready!(self.begun().as_mut().expect("a pull is in progress").poll(context));
        *self.begun() = None;
        Poll::Ready(self.plan.end(brought))
    }

    /// Takes a tensor of the last pull out, with its version.
    pub(crate) fn take(&mut self, index: usize) -> Result<(Tensor, i64), Error> {
        let Pulled { tensor, version } = self.plan.tray_mut().take_pulled(index)?;
        Ok((tensor, version))
    }
}
