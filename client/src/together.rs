//! Sends that end together, with the first error. Runs on the callers' threads.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use sealane_transport::{Error, SendOutcome};

use crate::under_way::Sending;

/// Sends whose outcomes matter only together.
pub(crate) struct Together {
    /// Sends whose outcomes were not asked for yet, the last one first.
    rest: Vec<Sending>,
    error: Option<Error>,
    /// The outcome was taken.
    is_over: bool,
}

const TOLD: &str = "the outcome was handed out before";

impl Together {
    /// Of sends in the order in which their errors count.
    pub(crate) fn of(mut sendings: Vec<Sending>) -> Self {
        sendings.reverse();
        Self { rest: sendings, error: None, is_over: false }
    }

    pub(crate) fn wait(self) -> SendOutcome {
        let Self { rest, error, is_over } = self;
        assert!(!is_over, "{TOLD}");
        let outcomes = Sending::wait_all(rest.into_iter().rev());
        error.map_or(Ok(()), Err).and(outcomes.into_iter().collect())
    }

    pub(crate) fn look(&mut self) -> Option<SendOutcome> {
        while let Some(sending) = self.rest.last_mut() {
            let outcome = sending.try_outcome()?;
            self.note(outcome);
        }
        Some(self.end())
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<SendOutcome> {
        while let Some(sending) = self.rest.last_mut() {
            let outcome = ready!(Pin::new(sending).poll(context));
            self.note(outcome);
        }
        Poll::Ready(self.end())
    }

    /// Notes the outcome of the next send; keeps the first error.
    fn note(&mut self, outcome: SendOutcome) {
        self.rest.pop();
        if let Err(failure) = outcome {
            self.error.get_or_insert(failure);
        }
    }

    fn end(&mut self) -> SendOutcome {
        assert!(!std::mem::replace(&mut self.is_over, true), "{TOLD}");
        self.error.take().map_or(Ok(()), Err)
    }
}
