//! Plans (sets of published keys that are pulled together repeatedly), and single pulls.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use sealane_runtime::Buffer;
use sealane_transport::{Error, Keys, PullOptions, Pulled, Tensor};

/// A set of keys that are pulled together, and the memory they are pulled into: the same for every pull, as long as the tensors
/// keep their size. From [`Task::plan`](crate::Task::plan), and of tensors that are published in slices from
/// [`Task::sliced_plan`](crate::Task::sliced_plan).
///
/// ```no_run
/// # use sealane::{Keys, Task};
/// # let task = Task::attach("worker0.train:2222")?;
/// let mut plan = task.plan("ps0.train:2222", Keys::new(["dense/kernel", "dense/bias"])?);
/// for step in 0..100 {
///     plan.pull(step).wait()?;
///     println!("{:?} of version {}", plan.get(0)?.shape(), plan.version(0));
/// }
/// # Ok::<(), sealane::Error>(())
/// ```
pub struct Plan(Box<dyn Pulls>);

/// A plan's implementation: at a daemon, in this process, or over several owners' plans.
pub(crate) trait Pulls: Send + Sync {
    fn keys(&self) -> &Keys;

    /// Gives a tensor of the next pull memory to arrive in, if an engine of this process pulls; other plans have places of their own.
    fn set_destination(&mut self, index: usize, memory: Buffer);

    /// Begins a pull, and abandons one that is in progress.
    fn begin(&mut self, min_version: i64, options: PullOptions);

    /// Waits for the end of the pull.
    ///
    /// # Panics
    /// If none is in progress.
    fn wait(&mut self) -> Result<(), Error>;

    /// How the pull ended, if it has.
    ///
    /// # Panics
    /// If none is in progress.
    fn look(&mut self) -> Option<Result<(), Error>>;

    /// How the pull ended; else the task is woken when it has.
    ///
    /// # Panics
    /// If none is in progress.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>>;

    /// Gives up the pull in progress, if there is one.
    fn give_up(&mut self);

    fn get(&self, index: usize) -> Result<&Tensor, Error>;

    fn version(&self, index: usize) -> i64;

    /// Takes a tensor of the last pull, once.
    fn take(&mut self, index: usize) -> Result<Pulled, Error>;
}

pub(crate) fn not_pulled() -> Error {
    Error::invalid("it has not been pulled, or its pull was cancelled")
}

impl Plan {
    pub(crate) fn of(plan: Box<dyn Pulls>) -> Plan {
        Plan(plan)
    }

    /// Pulls every tensor of the plan at `min_version` or newer; waits for those that are older. Tensors that have not arrived
    /// by the deadline fail individually: [`get`](Self::get) says which.
    pub fn pull(&mut self, min_version: i64) -> PlanPulling<'_> {
        self.pull_with(min_version, PullOptions::default())
    }

    /// [`pull`](Self::pull) with its own timeout; `Duration::MAX` for none.
    pub fn pull_within(&mut self, min_version: i64, timeout: Duration) -> PlanPulling<'_> {
        self.pull_with(min_version, PullOptions { timeout: Some(timeout), ..PullOptions::default() })
    }

    /// [`pull`](Self::pull) with options.
    pub fn pull_with(&mut self, min_version: i64, options: PullOptions) -> PlanPulling<'_> {
        self.0.begin(min_version, options);
        PlanPulling(&mut *self.0)
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        self.0.keys()
    }

    /// The tensor of that index, from the last pull.
    ///
    /// # Errors
    /// Why it did not arrive; InvalidArgument before the first pull, and after a pull that was dropped.
    ///
    /// # Panics
    /// If there are fewer keys.
    pub fn get(&self, index: usize) -> Result<&Tensor, Error> {
        self.0.get(index)
    }

    /// The version of that tensor; meaningless if [`get`](Self::get) fails, except as [`SliceVersions`](crate::SliceVersions) says.
    ///
    /// # Panics
    /// If there are fewer keys.
    pub fn version(&self, index: usize) -> i64 {
        self.0.version(index)
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({} keys)", self.keys().len())
    }
}

/// A pull of a plan in progress: await it, or [`wait`](Self::wait). Dropping it cancels the pull.
#[must_use = "await it to get the tensors"]
pub struct PlanPulling<'a>(&'a mut dyn Pulls);

impl PlanPulling<'_> {
    /// Blocks until every tensor has arrived or failed, at the latest a second after the deadline, whatever the daemon does.
    ///
    /// # Errors
    /// The first error, if any tensor did not arrive; [`Plan::get`] returns each one's.
    ///
    /// # Panics
    /// If the outcome was already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(self) -> Result<(), Error> {
        self.0.wait()
    }

    /// Checks whether the pull has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<(), Error>> {
        self.0.look()
    }
}

impl Future for PlanPulling<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll(context)
    }
}

impl Drop for PlanPulling<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Many pulls in progress: await them, or [`wait`](Self::wait). Dropping it cancels them.
#[must_use = "await it to get the tensors"]
pub struct PullingMany(Option<Box<dyn Pulls>>);

impl PullingMany {
    /// Of a plan whose pull is in progress.
    pub(crate) fn of(plan: Box<dyn Pulls>) -> PullingMany {
        PullingMany(Some(plan))
    }

    /// Blocks until every tensor has arrived or failed, at the latest a second after the deadline, whatever the daemon does;
    /// the outcomes in the order of the keys.
    ///
    /// # Panics
    /// If the outcomes were already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(mut self) -> Vec<Result<Pulled, Error>> {
        // Each key's error is in its own outcome.
        let _ = self.plan().wait();
        self.take_all()
    }

    /// Checks whether all have ended, without waiting; `None` while they have not. The outcomes can be taken once.
    ///
    /// # Panics
    /// If the outcomes were already taken.
    pub fn try_outcome(&mut self) -> Option<Vec<Result<Pulled, Error>>> {
        let _each_has_its_own = self.plan().look()?;
        Some(self.take_all())
    }

    fn plan(&mut self) -> &mut dyn Pulls {
        &mut **self.0.as_mut().expect(TOLD)
    }

    /// Takes the outcomes and closes the plan.
    fn take_all(&mut self) -> Vec<Result<Pulled, Error>> {
        let mut plan = self.0.take().expect(TOLD);
        (0..plan.keys().len()).map(|index| plan.take(index)).collect()
    }
}

impl Future for PullingMany {
    type Output = Vec<Result<Pulled, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let _each_has_its_own = ready!(self.plan().poll(context));
        Poll::Ready(self.take_all())
    }
}

/// A pull in progress: await it, or [`wait`](Self::wait). Dropping it cancels the pull.
#[must_use = "await it to get the tensor"]
pub struct Pulling(Result<PullingMany, Option<Error>>);

impl Pulling {
    /// Of the pull of one key.
    pub(crate) fn of(pulling: Result<PullingMany, Error>) -> Pulling {
        Pulling(pulling.map_err(Some))
    }

    /// Blocks until the tensor has arrived, at the latest a second after the deadline, whatever the daemon does.
    ///
    /// # Errors
    /// As [`Error`] says; DeadlineExceeded if it was not published in time.
    ///
    /// # Panics
    /// If the outcome was already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(self) -> Result<Pulled, Error> {
        match self.0 {
            Ok(pulling) => only(pulling.wait()),
            Err(error) => Err(error.expect(TOLD)),
        }
    }

    /// Checks whether the pull has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<Pulled, Error>> {
        match &mut self.0 {
            Ok(pulling) => pulling.try_outcome().map(only),
            Err(error) => Some(Err(error.take().expect(TOLD))),
        }
    }
}

const TOLD: &str = "the outcome was handed out before";

fn only(mut outcomes: Vec<Result<Pulled, Error>>) -> Result<Pulled, Error> {
    outcomes.pop().expect("one key, one outcome")
}

impl Future for Pulling {
    type Output = Result<Pulled, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(pulling) => Pin::new(pulling).poll(context).map(only),
            Err(error) => Poll::Ready(Err(error.take().expect(TOLD))),
        }
    }
}
