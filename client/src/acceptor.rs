//! Accepting tensors that peers push into a queue. Any thread.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use sealane_transport::limits::{QUEUE_BYTES_MAX, QUEUE_TENSORS_MAX};
use sealane_transport::{Error, Tensor};

use crate::Task;
pub(crate) use crate::attached_acceptor::Watch;
use crate::lives::Lives;

/// Capacity of a queue. Pushers have credit for at most the same amount again; a pusher without credit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AcceptOptions {
    /// Waiting tensors. Default 4,096.
    pub tensors_max: usize,
    /// Their bytes; the queue is full when there are as many or more. Default 256 MiB. For an attached task at most half of the
    /// daemon's memory for received tensors (`daemon.area_bytes`).
    pub bytes_max: usize,
}

impl Default for AcceptOptions {
    fn default() -> Self {
        Self { tensors_max: QUEUE_TENSORS_MAX, bytes_max: QUEUE_BYTES_MAX }
    }
}

/// A tensor that was pushed.
#[derive(Debug)]
pub struct Accepted {
    /// The task that pushed it.
    pub from: Arc<str>,
    /// The tensor.
    pub tensor: Tensor,
}

/// The receiving end of a queue. Bounded: pushers wait while it is full. From
/// [`Task::acceptor`](crate::Task::acceptor).
///
/// When it is dropped, pushers wait for the next acceptor of the queue. A successful push is not lost: the next acceptor first
/// gets the tensors that the queue had taken but nobody accepted, in order. Until then they stay in memory, which is freed when
/// the task's last clone is dropped or its process ends.
///
/// ```no_run
/// # use sealane::{AcceptOptions, Task};
/// # let task = Task::attach("ps0.train:2222")?;
/// let gradients = task.acceptor("gradients", AcceptOptions::default());
/// loop {
///     let accepted = gradients.accept().wait()?;
///     println!("{:?} from {}", accepted.tensor.shape(), accepted.from);
/// }
/// # Ok::<(), sealane::Error>(())
/// ```
pub struct Acceptor {
    queue: Box<dyn Accepts>,
    task: Task,
}

/// A queue's implementation: at a daemon or in this process.
pub(crate) trait Accepts: Send + Sync {
    fn name(&self) -> &str;

    /// Adds available tensors to `into`, at most `most`, and returns how many.
    fn take(&self, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error>;

    /// Waits until tensors are available, and takes them; none if the time passes.
    fn wait(&self, most: usize, timeout: Option<Duration>, watch: &mut Watch) -> Result<Vec<Accepted>, Error>;

    /// Available tensors; else the task is woken when there are some.
    fn poll(&self, most: usize, watch: &mut Watch, context: &mut Context<'_>) -> Poll<Result<Vec<Accepted>, Error>>;
}

impl Acceptor {
    /// Of a queue of `task`.
    pub(crate) fn of(task: &Task, queue: Box<dyn Accepts>) -> Acceptor {
        Acceptor { queue, task: task.for_its_own() }
    }

    /// The queue's name.
    pub fn name(&self) -> &str {
        self.queue.name()
    }

    /// The next tensor.
    pub fn accept(&self) -> Accepting<'_> {
        Accepting(self.accept_many(1))
    }

    /// The next tensors, at most `most`: immediately if there are any, else when the first arrives.
    pub fn accept_many(&self, most: usize) -> AcceptingMany<'_> {
        AcceptingMany { acceptor: self, most, watch: Watch::default(), lives: Lives::default() }
    }

    /// [`accept_many`](Self::accept_many), for a future that keeps the watch itself.
    pub(crate) fn poll_accept(
        &self,
        most: usize,
        watch: &mut Watch,
        context: &mut Context<'_>,
    ) -> Poll<Result<Vec<Accepted>, Error>> {
        self.queue.poll(most, watch, context)
    }

    /// Adds the available tensors to `into`, at most `most`, and returns how many.
    ///
    /// # Errors
    /// Those of [`AcceptingMany::wait`].
    pub fn try_accept(&self, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error> {
        self.queue.take(most, into)
    }
}

impl std::fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Acceptor({})", self.name())
    }
}

/// An accept of many in progress: await it, or [`wait`](Self::wait). Dropping it leaves everything in the queue.
#[must_use = "await it to get the tensors"]
pub struct AcceptingMany<'a> {
    acceptor: &'a Acceptor,
    most: usize,
    watch: Watch,
    lives: Lives,
}

impl AcceptingMany<'_> {
    /// Ends with [`Error::Left`] when there is nothing to accept and one of these tasks has left, even before this call; one that was never
    /// there is waited for. Ends with Unavailable if one cannot be reached, or its daemon is restarted. What they had pushed is
    /// accepted first, and the queue stays as it is: accept again to go on. An accept that finds nothing asks each of them.
    ///
    /// ```no_run
    /// # use sealane::{AcceptOptions, Error, Task};
    /// # let task = Task::attach("ps0.train:2222")?;
    /// let gradients = task.acceptor("gradients", AcceptOptions::default());
    /// match gradients.accept().fail_if_gone(["worker0.train:2222", "worker1.train:2222"]).wait() {
    ///     Ok(accepted) => println!("{:?} from {}", accepted.tensor.shape(), accepted.from),
    ///     Err(Error::Left { task, .. }) => println!("{task} is gone"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok::<(), sealane::Error>(())
    /// ```
    pub fn fail_if_gone<S: AsRef<str>>(mut self, tasks: impl IntoIterator<Item = S>) -> Self {
        self.lives = Lives::of(tasks.into_iter().map(|task| task.as_ref().into()));
        self
    }

    /// Blocks until there is a tensor, and takes all that are available.
    ///
    /// # Errors
    /// InvalidArgument if another acceptor has the queue; Unavailable if the engine has stopped or the daemon is gone; the next
    /// accept then attaches again, and opens the queue with the new daemon. After a drain it waits for the next daemon instead
    /// ([`Attach::restart_timeout`](crate::Attach::restart_timeout)).
    pub fn wait(self) -> Result<Vec<Accepted>, Error> {
        self.wait_for(None)
    }

    /// [`wait`](Self::wait) with a time limit; nothing if it passes.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub fn wait_within(self, timeout: Duration) -> Result<Vec<Accepted>, Error> {
        self.wait_for(Some(timeout))
    }

    fn wait_for(mut self, timeout: Option<Duration>) -> Result<Vec<Accepted>, Error> {
        if !self.lives.is_empty() {
            let waiter = self.acceptor.task.waiter();
            return waiter.block_on(self, timeout.unwrap_or(Duration::MAX)).unwrap_or_else(|| Ok(Vec::new()));
        }
        self.acceptor.queue.wait(self.most, timeout, &mut self.watch)
    }
}

impl Future for AcceptingMany<'_> {
    type Output = Result<Vec<Accepted>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { acceptor, most, watch, lives } = &mut *self;
        if let Poll::Ready(outcome) = acceptor.poll_accept(*most, watch, context) {
            return Poll::Ready(outcome);
        }
        let gone = ready!(lives.poll(&acceptor.task, context));
        // What it pushed before it left comes before the news that it has left.
        match acceptor.poll_accept(*most, watch, context) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => Poll::Ready(Err(gone)),
        }
    }
}

/// An accept in progress: await it, or [`wait`](Self::wait). Dropping it leaves everything in the queue.
#[must_use = "await it to get the tensor"]
pub struct Accepting<'a>(AcceptingMany<'a>);

impl Accepting<'_> {
    /// As [`AcceptingMany::fail_if_gone`].
    pub fn fail_if_gone<S: AsRef<str>>(self, tasks: impl IntoIterator<Item = S>) -> Self {
        Self(self.0.fail_if_gone(tasks))
    }

    /// Blocks until there is a tensor, and takes it.
    ///
    /// # Errors
    /// Those of [`AcceptingMany::wait`].
    pub fn wait(self) -> Result<Accepted, Error> {
        Ok(self.0.wait()?.pop().expect("without an end, it waits for one"))
    }

    /// [`wait`](Self::wait) with a time limit; `None` if it passes.
    ///
    /// # Errors
    /// Those of [`AcceptingMany::wait`].
    pub fn wait_within(self, timeout: Duration) -> Result<Option<Accepted>, Error> {
        Ok(self.0.wait_within(timeout)?.pop())
    }
}

impl Future for Accepting<'_> {
    type Output = Result<Accepted, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let accepted = ready!(Pin::new(&mut self.0).poll(context))?.pop();
        Poll::Ready(Ok(accepted.expect("it is ready with one")))
    }
}
