//! Publishing, pulls and fused receives for any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sealane_runtime::Buffer;
use sealane_transport::{Error, Handle, Keys, PullOptions, Pulled, RecvOutcome, SendOutcome, Tensor, Tray, Unreceived};

use super::deadline;
use super::recall::{Name, Recall};
use super::task::{Outcome, Task, submit_always};
use crate::node::{BatchWaiter, FusedRequest, Node, PullRequest, PullWaiter};

impl Task {
    /// Publishes a tensor: any peer may [pull](Self::pull) it, as often as it likes, until a newer one replaces it. Completes
    /// when it is visible to all peers. `version` is chosen by the caller, such as the step number; it may not decrease.
    ///
    /// # Errors
    /// The future's: InvalidArgument if a newer version is published, ResourceExhausted if
    /// `fusion.published_tensors_max` are.
    pub fn publish(&self, key: &str, version: i64, tensor: Tensor) -> Publishing {
        self.publish_many(version, [(key.to_owned(), tensor)])
    }

    /// Publishes many tensors of one version at once: on any one shard, a pull finds all of them new or none.
    ///
    /// # Errors
    /// The future's: the first of [`publish`](Self::publish)'s. The other tensors are published.
    pub fn publish_many(&self, version: i64, tensors: impl IntoIterator<Item = (String, Tensor)>) -> Publishing {
        // Kept beyond the turn: memory that is given back may run code of its owner, which may publish.
        let tensors: Vec<_> = tensors.into_iter().map(|(key, tensor)| (key, tensor.into_shared())).collect();
        let shards = self.shards();
        let (told, outcome) = Told::by(shards);
        let turn = self.publishing_turn();
        for shard in 0..shards {
            let share = |(key, tensor): &(String, Tensor)| (key.clone(), tensor.share());
            let mine: Vec<_> = tensors.iter().map(share).collect();
            let (task, told_here) = (self.place(), told.clone());
            let submitted = self.submit_to(shard, move |node, _| {
                told_here.tell(node.publish_all(task, version, mine));
            });
            if let Err(error) = submitted {
                told.tell(Err(error));
            }
        }
        drop(turn);
        Publishing(outcome)
    }

    /// Withdraws a published tensor; pulls of it wait for the next publication.
    ///
    /// # Errors
    /// ResourceExhausted if a shard's mailbox is full, Unavailable if the engine has stopped.
    pub fn withdraw(&self, key: &str) -> Result<(), Error> {
        let _turn = self.publishing_turn();
        (0..self.shards()).try_for_each(|shard| {
            let (task, key) = (self.place(), key.to_owned());
            self.submit_to(shard, move |node, _| {
                node.withdraw(task, &key);
            })
        })
    }

    /// Pulls a tensor that `from` has published or will publish, at `min_version` or newer. To pull the same key repeatedly, a
    /// [plan](Self::plan) is cheaper.
    pub fn pull(&self, from: &str, key: &str, min_version: i64) -> Pulling {
        match Keys::new([key]) {
            Ok(keys) => Pulling(self.pull_many(from, keys, min_version)),
            Err(error) => Pulling(PullingMany::failed(error)),
        }
    }

    /// Pulls many tensors together, each at `min_version` or newer. The outcomes are in the order of the keys.
    pub fn pull_many(&self, from: &str, keys: Keys, min_version: i64) -> PullingMany {
        self.pull_many_within(from, keys, min_version, None)
    }

    /// [`pull_many`](Self::pull_many) with a timeout, by default the engine's `request_timeout`.
    pub fn pull_many_within(&self, from: &str, keys: Keys, min_version: i64, timeout: Option<Duration>) -> PullingMany {
        self.pull_many_with(from, keys, min_version, PullOptions { timeout, ..PullOptions::default() })
    }

    /// [`pull_many`](Self::pull_many) with options.
    pub fn pull_many_with(&self, from: &str, keys: Keys, min_version: i64, options: PullOptions) -> PullingMany {
        let mut plan = self.plan(from, keys);
        let outcome = plan.submit(min_version, options);
        PullingMany { plan: Some(plan), outcome }
    }

    /// A plan: keys that `from` publishes, to be pulled together. They are sent once per link; after that a pull is one small
    /// message, and tensors are received into the plan's own memory, the same each time.
    pub fn plan(&self, from: &str, keys: Keys) -> Plan {
        self.plan_over(0, from, keys)
    }

    /// [`plan`](Self::plan) that is pulled over another shard: `stripe` shards after the one that serves the pair, counted
    /// around. Plans of one pair with different stripes are pulled side by side, each over links of its own.
    pub fn plan_over(&self, stripe: usize, from: &str, keys: Keys) -> Plan {
        let shard = (self.serving(from) + stripe) % self.shards();
        let seat = Seat { task: self.clone(), from: from.into(), shard, plan: Arc::default(), is_open: false };
        Plan { tray: Tray::new(keys.len()), keys: Arc::new(keys), seat }
    }

    /// Receives many tensors of a step from `from` at once. Those that do not come ahead of a request within 1 ms are requested
    /// together, not a window's worth at a time. Only tensors that have not arrived by the deadline end with DeadlineExceeded.
    pub fn recv_fused<K: AsRef<str>>(&self, from: &str, step: i64, keys: impl IntoIterator<Item = K>) -> ReceivingMany {
        self.recv_fused_with(from, step, keys, Vec::new(), None)
    }

    /// [`recv_fused`](Self::recv_fused) into the caller's memory, one buffer per key for the first keys; `timeout` defaults to
    /// the engine's `request_timeout`.
    pub fn recv_fused_with<K: AsRef<str>>(
        &self,
        from: &str,
        step: i64,
        keys: impl IntoIterator<Item = K>,
        destinations: Vec<Buffer>,
        timeout: Option<Duration>,
    ) -> ReceivingMany {
        let timeout = timeout.unwrap_or(self.request_timeout());
        let keys: Vec<Box<str>> = keys.into_iter().map(|key| key.as_ref().into()).collect();
        let count = keys.len();
        let (sender, receiver) = oneshot::channel();
        let (local, peer) = (self.place(), from.to_owned());
        let (recall, tag) = self.recall(from);
        let submitted = self.submit(from, move |node, now| match node.pair(local, &peer) {
            Ok(pair) => {
                let (deadline, waiter) = (deadline(now, timeout), BatchWaiter::Channel(sender));
                let keys = keys.iter().map(|key| &**key);
                let request = FusedRequest { pair, step, keys, destinations, deadline, waiter };
                let _ = tag.set(Name::Batch(node.recv_fused(now, request)));
            }
            Err(error) => drop(sender.send(Err(error))),
        });
        ReceivingMany { count, outcome: Outcome::of(submitted, receiver), recall }
    }
}

/// Counts the shards that have told how a publication ended there.
struct Told {
    left: AtomicUsize,
    error: Mutex<Option<Error>>,
    sender: Mutex<Option<oneshot::Sender<SendOutcome>>>,
}

impl Told {
    fn by(shards: usize) -> (Arc<Told>, Outcome<SendOutcome>) {
        let (sender, receiver) = oneshot::channel();
        let (left, sender) = (AtomicUsize::new(shards), Mutex::new(Some(sender)));
        (Arc::new(Told { left, error: Mutex::default(), sender }), Outcome::of(Ok(()), receiver))
    }

    fn tell(&self, outcome: SendOutcome) {
        if let Err(error) = outcome {
            self.error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
        if self.left.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = self.sender.lock().unwrap_or_else(PoisonError::into_inner).take() {
            // A caller that no longer listens has dropped its end.
            drop(sender.send(error.map_or(Ok(()), Err)));
        }
    }
}

/// A publication in progress: await it, or [`wait`](Self::wait).
#[must_use = "await it to know that it is visible, or drop it explicitly"]
pub struct Publishing(Outcome<SendOutcome>);

impl Publishing {
    /// Blocks until the tensors are visible to all peers. Not for code on a shard.
    ///
    /// # Errors
    /// See [`Task::publish`]; Unavailable if the engine stops.
    pub fn wait(self) -> SendOutcome {
        self.0.wait()
    }
}

impl Future for Publishing {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        self.0.poll(context)
    }
}

/// Many recvs in progress: await them, or [`wait`](Self::wait).
///
/// Dropping it cancels the outstanding ones: their tensors stay with the producer, or are returned to it. Tensors that had
/// already arrived were released, and are lost.
#[must_use = "dropping it cancels the recvs"]
pub struct ReceivingMany {
    count: usize,
    outcome: Outcome<Result<Vec<RecvOutcome>, Error>>,
    recall: Recall,
}

impl ReceivingMany {
    /// Blocks until each has ended, at the latest at the deadline; the outcomes in the order of the keys. Not for code on a
    /// shard.
    pub fn wait(mut self) -> Vec<RecvOutcome> {
        each(self.outcome.take().wait(), self.count)
    }
}

impl Drop for ReceivingMany {
    fn drop(&mut self) {
        if self.outcome.hang_up() {
            self.recall.give_up();
        }
    }
}

impl Future for ReceivingMany {
    type Output = Vec<RecvOutcome>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Vec<RecvOutcome>> {
        let count = self.count;
        self.outcome.poll(context).map(|outcome| each(outcome, count))
    }
}

/// An error of all is an error of each.
fn each(outcome: Result<Vec<RecvOutcome>, Error>, count: usize) -> Vec<RecvOutcome> {
    outcome.unwrap_or_else(|error| (0..count).map(|_| Err(Unreceived::from(error.clone()))).collect())
}

/// Where a plan is known: made with its first pull, closed with its last owner.
struct Seat {
    task: Task,
    from: Box<str>,
    shard: usize,
    /// The node's handle; 0 until it has one.
    plan: Arc<AtomicU64>,
    /// A pull was submitted, and the node has a plan when that has run.
    is_open: bool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let plan = self.plan.clone();
        if self.is_open {
            submit_always(&self.task.shard(self.shard), move |node, _| {
                node.close_plan(Handle::from_bits(plan.load(Ordering::Relaxed)));
            });
        }
    }
}

/// Keys that are pulled together, and the memory they are pulled into.
pub struct Plan {
    seat: Seat,
    keys: Arc<Keys>,
    tray: Tray,
}

impl Plan {
    /// Pulls every tensor of the plan at `min_version` or newer; waits for those that are older. Tensors that have not arrived
    /// by the deadline fail individually: check each in the [pull buffer](Self::tray).
    pub fn pull(&mut self, min_version: i64) -> PlanPulling<'_> {
        self.pull_with(min_version, PullOptions::default())
    }

    /// [`pull`](Self::pull) with its own timeout; `Duration::MAX` for none.
    pub fn pull_within(&mut self, min_version: i64, timeout: Duration) -> PlanPulling<'_> {
        self.pull_with(min_version, PullOptions { timeout: Some(timeout), ..PullOptions::default() })
    }

    /// [`pull`](Self::pull) with options.
    pub fn pull_with(&mut self, min_version: i64, options: PullOptions) -> PlanPulling<'_> {
        let outcome = self.submit(min_version, options);
        PlanPulling { plan: self, outcome }
    }

    /// The keys.
    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The results of the last pull.
    pub fn tray(&self) -> &Tray {
        &self.tray
    }

    /// The results of the last pull, for taking tensors out or providing memory.
    pub fn tray_mut(&mut self) -> &mut Tray {
        &mut self.tray
    }

    /// [`pull_with`](Self::pull_with) for those who keep the plan and its pull apart: [`end`](Self::end) takes what comes of it.
    pub fn begin(&mut self, min_version: i64, options: PullOptions) -> Begun {
        Begun(self.submit(min_version, options))
    }

    /// Takes what a pull has brought that was [begun](Self::begin).
    ///
    /// # Errors
    /// The first error, if any tensor did not arrive; the pull buffer has each one's.
    pub fn end(&mut self, brought: Brought) -> Result<(), Error> {
        self.take(brought.0)
    }

    fn submit(&mut self, min_version: i64, options: PullOptions) -> Outcome<Result<Tray, Error>> {
        let Seat { task, from, shard, plan, .. } = &self.seat;
        let PullOptions { timeout, fail_if_gone } = options;
        let timeout = timeout.unwrap_or(task.request_timeout());
        let mut tray = std::mem::take(&mut self.tray);
        if tray.len() != self.keys.len() {
            // A pull that was dropped has taken the places along.
            tray = Tray::new(self.keys.len());
        }
        let (sender, receiver) = oneshot::channel();
        let (local, peer, plan, keys) = (task.place(), from.to_string(), plan.clone(), self.keys.clone());
        let submitted = task.submit_to(*shard, move |node, now| match seat(node, local, &peer, &plan, keys) {
            Ok(plan) => {
                let (deadline, waiter) = (deadline(now, timeout), PullWaiter::Channel(sender));
                let views = false;
                node.pull(now, PullRequest { plan, min_version, deadline, tray, views, fail_if_gone, waiter });
            }
            Err(error) => {
                tray.begin();
                tray.fail_missing(|_| error.clone());
                drop(sender.send(Ok(tray)));
            }
        });
        self.seat.is_open |= submitted.is_ok();
        Outcome::of(submitted, receiver)
    }

    fn take(&mut self, outcome: Result<Tray, Error>) -> Result<(), Error> {
        self.tray = outcome.unwrap_or_else(|error| {
            let mut tray = Tray::new(self.keys.len());
            tray.fail_missing(|_| error.clone());
            tray
        });
        self.tray.first_error().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// The node's handle of a plan.
fn seat(node: &mut Node, local: u16, peer: &str, plan: &AtomicU64, keys: Arc<Keys>) -> Result<Handle, Error> {
    let known = plan.load(Ordering::Relaxed);
    if known != 0 {
        return Ok(Handle::from_bits(known));
    }
    let pair = node.pulling_pair(local, peer)?;
    let handle = node.open_plan(pair, keys);
    plan.store(handle.to_bits(), Ordering::Relaxed);
    Ok(handle)
}

/// A pull in progress, apart from its plan: await it, or [`wait`](Self::wait), and [end](Plan::end) the plan's pull with what it
/// brought. If it is dropped, the pull continues, and the plan allocates new memory.
#[must_use = "await it to get the tensors"]
pub struct Begun(Outcome<Result<Tray, Error>>);

/// What a pull has brought to its plan.
#[must_use = "the plan's tensors are in it"]
pub struct Brought(Result<Tray, Error>);

impl Begun {
    /// Blocks until every tensor has arrived or failed, at the latest at the deadline. Not for code on a shard.
    pub fn wait(self) -> Brought {
        Brought(self.0.wait())
    }
}

impl Future for Begun {
    type Output = Brought;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Brought> {
        self.0.poll(context).map(Brought)
    }
}

/// A pull of a plan in progress: await it, or [`wait`](Self::wait). If it is dropped, the pull continues, and the plan
/// allocates new memory.
#[must_use = "await it to get the tensors"]
pub struct PlanPulling<'a> {
    plan: &'a mut Plan,
    outcome: Outcome<Result<Tray, Error>>,
}

impl PlanPulling<'_> {
    /// Blocks until every tensor has arrived or failed, at the latest at the deadline. Not for code on a shard.
    ///
    /// # Errors
    /// The first error, if any tensor did not arrive; the pull buffer has each one's.
    pub fn wait(self) -> Result<(), Error> {
        self.plan.take(self.outcome.wait())
    }
}

impl Future for PlanPulling<'_> {
    type Output = Result<(), Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let outcome = ready!(self.outcome.poll(context));
        Poll::Ready(self.plan.take(outcome))
    }
}

/// Many pulls in progress: await them, or [`wait`](Self::wait).
#[must_use = "await it to get the tensors"]
pub struct PullingMany {
    plan: Option<Plan>,
    outcome: Outcome<Result<Tray, Error>>,
}

impl PullingMany {
    fn failed(error: Error) -> PullingMany {
        PullingMany { plan: None, outcome: Outcome::Here(Err(error)) }
    }

    /// Blocks until every tensor has arrived or failed, at the latest at the deadline; the outcomes in the order of the keys.
    /// Not for code on a shard.
    pub fn wait(self) -> Vec<Result<Pulled, Error>> {
        let PullingMany { plan, outcome } = self;
        // The plan stays open until its pull has ended.
        let outcome = outcome.wait();
        take_all(outcome, plan.map_or(1, |plan| plan.keys.len()))
    }
}

impl Future for PullingMany {
    type Output = Vec<Result<Pulled, Error>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = ready!(self.outcome.poll(context));
        let count = self.plan.take().map_or(1, |plan| plan.keys.len());
        Poll::Ready(take_all(outcome, count))
    }
}

fn take_all(outcome: Result<Tray, Error>, count: usize) -> Vec<Result<Pulled, Error>> {
    match outcome {
        Ok(mut tray) => (0..tray.len()).map(|index| tray.take_pulled(index)).collect(),
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

/// A pull in progress: await it, or [`wait`](Self::wait).
#[must_use = "await it to get the tensor"]
pub struct Pulling(PullingMany);

impl Pulling {
    /// Blocks until the tensor has arrived, at the latest until the deadline. Not for code on a shard.
    ///
    /// # Errors
    /// As [`Error`] says; DeadlineExceeded if it was not published in time.
    pub fn wait(self) -> Result<Pulled, Error> {
        self.0.wait().pop().expect("one key, one outcome")
    }
}

impl Future for Pulling {
    type Output = Result<Pulled, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(|mut outcomes| outcomes.pop().expect("one key, one outcome"))
    }
}
