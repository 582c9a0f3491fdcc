//! Publications under way: of one tensor or of many, at every shard. To be waited for, awaited or looked at.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use sealane_transport::{Error, SendOutcome};

#[cfg(feature = "embedded")]
use crate::embedded::Embedded;
use crate::under_way::Sending;

/// A publication under way: await it, or [`wait`](Self::wait). Dropping it lets it go on.
#[must_use = "await it to know that the tensors are to be seen, or drop it on purpose"]
pub struct Publishing(Stage);

enum Stage {
    /// Told to the shards; those that have not been asked how it ended, the last one first.
    Daemon { tellings: Vec<Sending>, error: Option<Error> },
    #[cfg(feature = "embedded")]
    Embedded(Embedded<sealane_fusion::Publishing>),
}

impl Publishing {
    /// One that ends when all of these have; `tellings` in the order in which their errors count.
    pub(crate) fn of(mut tellings: Vec<Sending>) -> Publishing {
        tellings.reverse();
        Publishing(Stage::Daemon { tellings, error: None })
    }

    /// Blocks until the tensors are to be seen by all peers.
    ///
    /// # Errors
    /// The first, if any tensor was not published: InvalidArgument for a version older than the one that is published,
    /// ResourceExhausted if the daemon or the engine keeps no more, Unavailable if it is gone.
    ///
    /// # Panics
    /// If the outcome was handed out before, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(self) -> SendOutcome {
        match self.0 {
            Stage::Daemon { tellings, error } => {
                let outcomes = Sending::wait_all(tellings.into_iter().rev());
                error.map_or(Ok(()), Err).and(outcomes.into_iter().collect())
            }
            #[cfg(feature = "embedded")]
            Stage::Embedded(engine) => engine.wait(),
        }
    }

    /// Looks whether the publication has ended, without waiting; `None` while it has not. The outcome is handed out once.
    ///
    /// # Panics
    /// If the outcome was handed out before.
    pub fn try_outcome(&mut self) -> Option<SendOutcome> {
        match &mut self.0 {
            Stage::Daemon { tellings, error } => {
                while let Some(telling) = tellings.last_mut() {
                    let outcome = telling.try_outcome()?;
                    tellings.pop();
                    note(error, outcome);
                }
                Some(error.take().map_or(Ok(()), Err))
            }
            #[cfg(feature = "embedded")]
            Stage::Embedded(engine) => engine.look(),
        }
    }
}

/// Keeps the first error.
fn note(error: &mut Option<Error>, outcome: SendOutcome) {
    if let Err(failure) = outcome {
        error.get_or_insert(failure);
    }
}

impl Future for Publishing {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        match &mut self.0 {
            Stage::Daemon { tellings, error } => {
                while let Some(telling) = tellings.last_mut() {
                    let outcome = ready!(Pin::new(telling).poll(context));
                    tellings.pop();
                    note(error, outcome);
                }
                Poll::Ready(error.take().map_or(Ok(()), Err))
            }
            #[cfg(feature = "embedded")]
            Stage::Embedded(engine) => engine.poll(context),
        }
    }
}

#[cfg(feature = "embedded")]
impl From<sealane_fusion::Publishing> for Publishing {
    fn from(publishing: sealane_fusion::Publishing) -> Publishing {
        Publishing(Stage::Embedded(Embedded::new(publishing)))
    }
}
