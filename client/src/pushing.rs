//! Many pushes in progress, which end together. Can be waited for, awaited or polled.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use sealane_transport::SendOutcome;

use crate::{together::Together, under_way::Sending};

/// Many pushes in progress: await them, or [`wait`](Self::wait). If it is dropped, they continue.
#[must_use = "await it to know that the tensors were taken, or drop it explicitly"]
pub struct Pushing(Together);

impl Pushing {
    pub(crate) fn of(pushes: Vec<Sending>) -> Pushing {
        Pushing(Together::of(pushes))
    }

    /// Blocks until the queue has taken all of them, or the others have failed: at the latest a second after
    /// the deadline, whatever the daemon does.
    ///
    /// # Errors
    /// The first error, if any tensor was not taken: see [`Task::push`](crate::Task::push).
    pub fn wait(self) -> SendOutcome {
        self.0.wait()
    }

    /// Checks whether all have ended, without waiting; `None` while they have not. The outcome is handed out once.
    pub fn try_outcome(&mut self) -> Option<SendOutcome> {
        self.0.look()
    }
}

impl Future for Pushing {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        self.0.poll(context)
    }
}
