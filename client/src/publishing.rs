//! Publications in flight: of one tensor or of many, at every shard. Can be waited for, awaited or polled.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use sealane_transport::SendOutcome;

use crate::{together::Together, under_way::Sending};

/// A publication in progress: await it, or [`wait`](Self::wait). If it is dropped, the publication continues.
#[must_use = "await it to know that the tensors are visible, or drop it explicitly"]
pub struct Publishing(Together);

impl Publishing {
    /// Ends when all of these have; `tellings` are in the order in which their errors count.
    pub(crate) fn of(tellings: Vec<Sending>) -> Publishing {
        Publishing(Together::of(tellings))
    }

    /// Blocks until the tensors are visible to all peers.
    ///
    /// # Errors
    /// The first error, if any tensor was not published: InvalidArgument for a version older than the published one,
    /// ResourceExhausted if the daemon or the engine can hold no more, Unavailable if it is gone.
    ///
    /// # Panics
    /// If the outcome was already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(self) -> SendOutcome {
        self.0.wait()
    }

    /// Checks whether the publication has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<SendOutcome> {
        self.0.look()
    }
}

impl Future for Publishing {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        self.0.poll(context)
    }
}
