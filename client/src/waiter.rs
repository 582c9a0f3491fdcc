//! Waiting for futures on the calling thread. Bounded by the time that the caller gives.

use std::{
    pin::pin,
    sync::Arc,
    task::Context,
    time::{Duration, Instant},
};

use sealane_runtime::Polling;

use crate::{
    attachment::Attachment,
    in_process::{self, Spinning},
};

/// Waits for futures of a task's calls, without an executor, and for a limited time. Cheap to clone; it does not keep the task
/// attached.
///
/// A thread that waits with it polls for the daemon's answers itself. A thread that [parks](std::thread::park) until a future's waker
/// wakes it costs one more wake-up for every answer: of the thread that polls for it.
///
/// ```no_run
/// # use std::{pin::pin, time::Duration};
/// # let task = sealane::Task::attach("worker0.train:2222")?;
/// let waiter = task.waiter();
/// let mut weights = pin!(task.recv("ps0.train:2222", 7, "dense/kernel"));
/// let weights = loop {
///     match waiter.block_on(weights.as_mut(), Duration::from_millis(100)) {
///         Some(outcome) => break outcome?,
///         None => println!("still waiting"),
///     }
/// };
/// # Ok::<(), sealane::Error>(())
/// ```
#[derive(Clone)]
pub struct Waiter(Backing);

#[derive(Clone)]
enum Backing {
    Daemon(Arc<Attachment>),
    InProcess(Spinning),
}

impl Waiter {
    pub(crate) fn of(attachment: &Arc<Attachment>) -> Waiter {
        Waiter(Backing::Daemon(attachment.clone()))
    }

    /// For calls of an embedded engine: the thread spins for as long as the policy says, then sleeps.
    pub fn embedded(polling: Polling) -> Waiter {
        Waiter(Backing::InProcess(Spinning::Always(polling)))
    }

    /// The same if no policy was set: it learns whether spinning pays, as an attachment does.
    pub(crate) fn learning() -> Waiter {
        Waiter(Backing::InProcess(Spinning::learned()))
    }

    /// False if a waiting thread is to sleep at once.
    pub(crate) fn may_spin(&self) -> bool {
        match &self.0 {
            Backing::Daemon(attachment) => attachment.may_spin(),
            Backing::InProcess(_) => false,
        }
    }

    /// How a thread spins that waits for something other than the daemon's answers.
    pub(crate) fn spinning(&self) -> Spinning {
        match &self.0 {
            Backing::Daemon(attachment) => attachment.polling().map_or_else(Spinning::learned, Spinning::Always),
            Backing::InProcess(spinning) => spinning.clone(),
        }
    }

    /// The future's output; `None` if it is not ready after `timeout`. Polls at least once, and may be called again.
    ///
    /// Futures of calls of other tasks, and any others, work too.
    pub fn block_on<F: Future>(&self, future: F, timeout: Duration) -> Option<F::Output> {
        let mut future = pin!(future);
        // A time that the clock cannot hold counts as none.
        let until = Instant::now().checked_add(timeout);
        let poll = |context: &mut Context<'_>| future.as_mut().poll(context);
        match &self.0 {
            Backing::Daemon(attachment) => attachment.attend(until, poll),
            Backing::InProcess(spinning) => in_process::wait(spinning, until, poll),
        }
    }
}

impl std::fmt::Debug for Waiter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Waiter")
    }
}
