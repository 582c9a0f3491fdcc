//! Plans (sets of published keys that are pulled together repeatedly), and single pulls.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use sealane_transport::{Error, Keys, PullOptions, Pulled, Tensor};

use crate::attached_plan::{AttachedPlan, AttachedPulling};
#[cfg(feature = "embedded")]
use crate::embedded::Embedded;
use crate::sliced_plan::SlicedPlan;

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
pub struct Plan(Backing);

enum Backing {
    Daemon(Box<AttachedPlan>),
    #[cfg(feature = "embedded")]
    Embedded(sealane_fusion::Plan),
    /// Of several owners' plans.
    Sliced(Box<SlicedPlan>),
}

impl Plan {
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
        PlanPulling(match &mut self.0 {
            Backing::Daemon(plan) => {
                plan.begin(min_version, options);
                PullStage::Daemon(AttachedPulling(plan))
            }
            #[cfg(feature = "embedded")]
            Backing::Embedded(plan) => PullStage::Embedded(Embedded::new(plan.pull_with(min_version, options))),
            Backing::Sliced(plan) => {
                plan.begin(min_version, options);
                PullStage::Sliced(SlicedPulling(plan))
            }
        })
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        match &self.0 {
            Backing::Daemon(plan) => plan.keys(),
            #[cfg(feature = "embedded")]
            Backing::Embedded(plan) => plan.keys(),
            Backing::Sliced(plan) => plan.keys(),
        }
    }

    /// The tensor of that index, from the last pull.
    ///
    /// # Errors
    /// Why it did not arrive; InvalidArgument before the first pull, and after a pull that was dropped.
    ///
    /// # Panics
    /// If there are fewer keys.
    pub fn get(&self, index: usize) -> Result<&Tensor, Error> {
        match &self.0 {
            Backing::Daemon(plan) => plan.get(index),
            #[cfg(feature = "embedded")]
            Backing::Embedded(plan) => plan.tray().get(index),
            Backing::Sliced(plan) => plan.get(index),
        }
    }

    /// The version of that tensor; meaningless if [`get`](Self::get) fails, but as [`SliceVersions`](crate::SliceVersions) says.
    ///
    /// # Panics
    /// If there are fewer keys.
    pub fn version(&self, index: usize) -> i64 {
        match &self.0 {
            Backing::Daemon(plan) => plan.version(index),
            #[cfg(feature = "embedded")]
            Backing::Embedded(plan) => plan.tray().version(index),
            Backing::Sliced(plan) => plan.version(index),
        }
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Plan({} keys)", self.keys().len())
    }
}

impl From<AttachedPlan> for Plan {
    fn from(plan: AttachedPlan) -> Plan {
        Plan(Backing::Daemon(Box::new(plan)))
    }
}

impl From<SlicedPlan> for Plan {
    fn from(plan: SlicedPlan) -> Plan {
        Plan(Backing::Sliced(Box::new(plan)))
    }
}

#[cfg(feature = "embedded")]
impl From<sealane_fusion::Plan> for Plan {
    fn from(plan: sealane_fusion::Plan) -> Plan {
        Plan(Backing::Embedded(plan))
    }
}

/// A pull of a plan in progress: await it, or [`wait`](Self::wait). Dropping it cancels the pull.
#[must_use = "await it to get the tensors"]
pub struct PlanPulling<'a>(PullStage<'a>);

enum PullStage<'a> {
    Daemon(AttachedPulling<'a>),
    #[cfg(feature = "embedded")]
    Embedded(Embedded<sealane_fusion::PlanPulling<'a>>),
    Sliced(SlicedPulling<'a>),
}

/// A pull of several owners' plans; dropping it before it has ended cancels it.
struct SlicedPulling<'a>(&'a mut SlicedPlan);

impl Drop for SlicedPulling<'_> {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

impl PlanPulling<'_> {
    /// Blocks until every tensor has arrived or failed, at the latest a second after the deadline, whatever the daemon does.
    ///
    /// # Errors
    /// The first error, if any tensor did not arrive; [`Plan::get`] returns each one's.
    ///
    /// # Panics
    /// If the outcome was already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(self) -> Result<(), Error> {
        match self.0 {
            PullStage::Daemon(pulling) => pulling.0.wait(),
            #[cfg(feature = "embedded")]
            PullStage::Embedded(engine) => engine.wait(),
            PullStage::Sliced(pulling) => pulling.0.wait(),
        }
    }

    /// Checks whether the pull has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<(), Error>> {
        match &mut self.0 {
            PullStage::Daemon(pulling) => pulling.0.look(),
            #[cfg(feature = "embedded")]
            PullStage::Embedded(engine) => engine.look(),
            PullStage::Sliced(pulling) => pulling.0.look(),
        }
    }
}

impl Future for PlanPulling<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            PullStage::Daemon(pulling) => pulling.0.poll(context),
            #[cfg(feature = "embedded")]
            PullStage::Embedded(engine) => engine.poll(context),
            PullStage::Sliced(pulling) => pulling.0.poll(context),
        }
    }
}

/// Many pulls in progress: await them, or [`wait`](Self::wait). Dropping it cancels them.
#[must_use = "await it to get the tensors"]
pub struct PullingMany(ManyStage);

enum ManyStage {
    Daemon(Box<AttachedPlan>),
    #[cfg(feature = "embedded")]
    Embedded(Embedded<sealane_fusion::PullingMany>),
}

impl PullingMany {
    /// Blocks until every tensor has arrived or failed, at the latest a second after the deadline, whatever the daemon does;
    /// the outcomes in the order of the keys.
    ///
    /// # Panics
    /// If the outcomes were already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    pub fn wait(self) -> Vec<Result<Pulled, Error>> {
        match self.0 {
            ManyStage::Daemon(mut plan) => {
                // Each one's error is in its place.
                let _ = plan.wait();
                plan.take_all()
            }
            #[cfg(feature = "embedded")]
            ManyStage::Embedded(engine) => engine.wait(),
        }
    }

    /// Checks whether all have ended, without waiting; `None` while they have not. The outcomes can be taken once.
    ///
    /// # Panics
    /// If the outcomes were already taken.
    pub fn try_outcome(&mut self) -> Option<Vec<Result<Pulled, Error>>> {
        match &mut self.0 {
            ManyStage::Daemon(plan) => plan.look().map(|_| plan.take_all()),
            #[cfg(feature = "embedded")]
            ManyStage::Embedded(engine) => engine.look(),
        }
    }
}

impl Future for PullingMany {
    type Output = Vec<Result<Pulled, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            ManyStage::Daemon(plan) => {
                let _each_has_its_own = ready!(plan.poll(context));
                Poll::Ready(plan.take_all())
            }
            #[cfg(feature = "embedded")]
            ManyStage::Embedded(engine) => engine.poll(context),
        }
    }
}

impl From<AttachedPlan> for PullingMany {
    /// Of a plan whose pull is in progress.
    fn from(plan: AttachedPlan) -> PullingMany {
        PullingMany(ManyStage::Daemon(Box::new(plan)))
    }
}

#[cfg(feature = "embedded")]
impl From<sealane_fusion::PullingMany> for PullingMany {
    fn from(pulling: sealane_fusion::PullingMany) -> PullingMany {
        PullingMany(ManyStage::Embedded(Embedded::new(pulling)))
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
