//! Publishing and pulls for any thread.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use sealane_transport::{Error, Handle, Keys, PullBuffer, PullOptions, SendOutcome, Tensor};

use super::deadline;
use super::task::{Outcome, Sending, Task, submit_always};
use crate::node::{Node, PullRequest, PullWaiter};

impl Task {
    /// Publishes a tensor: any peer may [pull](Self::plan) it, as often as it likes, until a newer one replaces it. Completes
    /// when it is visible to all peers. `version` is chosen by the caller, such as the step number; it may not decrease.
    ///
    /// # Errors
    /// The future's: InvalidArgument if a newer version is published, ResourceExhausted if
    /// `fusion.published_tensors_max` are, or this task has its share of them.
    pub fn publish(&self, key: &str, version: i64, tensor: Tensor) -> Sending {
        self.publish_many(version, [(key.to_owned(), tensor)])
    }

    /// Publishes many tensors of one version at once: on any one shard, a pull finds all of them new or none.
    ///
    /// # Errors
    /// The future's: the first of [`publish`](Self::publish)'s. The other tensors are published.
    pub fn publish_many(&self, version: i64, tensors: impl IntoIterator<Item = (String, Tensor)>) -> Sending {
        // Kept until the turn is over: giving memory back may run its owner's code, which may publish.
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
        Sending::of(outcome)
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

    /// A plan: keys that `from` publishes, to be pulled together. They are sent once per link; after that a pull is one small
    /// message, and tensors are received into the plan's own memory, the same each time.
    pub fn plan(&self, from: &str, keys: Keys) -> Plan {
        self.plan_over(0, from, keys)
    }

    /// Like [`plan`](Self::plan), but pulled over another shard: `stripe` shards after the one that serves the pair, wrapping around. Plans
    /// of one pair with different stripes are pulled side by side, each over links of its own.
    pub fn plan_over(&self, stripe: usize, from: &str, keys: Keys) -> Plan {
        let shard = (self.serving(from) + stripe) % self.shards();
        let seat = Seat { task: self.clone(), from: from.into(), shard, plan: Arc::default(), is_open: false };
        Plan { pull_buffer: PullBuffer::new(keys.len()), keys: Arc::new(keys), seat }
    }
}

/// Counts the shards that have reported how a publication ended there.
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
            // If the caller no longer listens, it has dropped its end.
            drop(sender.send(error.map_or(Ok(()), Err)));
        }
    }
}

/// A plan's registration with a node: made with its first pull, closed with its last owner.
struct Seat {
    task: Task,
    from: Box<str>,
    shard: usize,
    /// The node's handle; 0 until it has one.
    plan: Arc<AtomicU64>,
    /// A pull was submitted: once it has run, the node has the plan.
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
    pull_buffer: PullBuffer,
}

impl Plan {
    /// Pulls every tensor of the plan at `min_version` or newer; waits for older ones. Tensors that have not arrived by the deadline fail
    /// individually: check each in the [pull buffer](Self::pull_buffer). Blocks until each has arrived or failed; not for code on a shard.
    ///
    /// # Errors
    /// The first error, if any tensor did not arrive.
    pub fn pull(&mut self, min_version: i64, options: PullOptions) -> Result<(), Error> {
        let brought = self.begin(min_version, options).wait();
        self.end(brought)
    }

    pub fn keys(&self) -> &Keys {
        &self.keys
    }

    /// The results of the last pull.
    pub fn pull_buffer(&self) -> &PullBuffer {
        &self.pull_buffer
    }

    /// The results of the last pull, for taking tensors out or providing memory.
    pub fn pull_buffer_mut(&mut self) -> &mut PullBuffer {
        &mut self.pull_buffer
    }

    /// A [`pull`](Self::pull) that does not block: pass its outcome to [`end`](Self::end).
    pub fn begin(&mut self, min_version: i64, options: PullOptions) -> Begun {
        let Seat { task, from, shard, plan, .. } = &self.seat;
        let PullOptions { timeout, fail_if_gone } = options;
        let timeout = timeout.unwrap_or(task.request_timeout());
        let mut pull_buffer = std::mem::take(&mut self.pull_buffer);
        if pull_buffer.len() != self.keys.len() {
            // A pull that was dropped has taken the pull buffer along.
            pull_buffer = PullBuffer::new(self.keys.len());
        }
        let (sender, receiver) = oneshot::channel();
        let (local, peer, plan, keys) = (task.place(), from.to_string(), plan.clone(), self.keys.clone());
        let submitted = task.submit_to(*shard, move |node, now| match seat(node, local, &peer, &plan, keys) {
            Ok(plan) => {
                let (deadline, waiter) = (deadline(now, timeout), PullWaiter::Channel(sender));
                let views = false;
                node.pull(now, PullRequest { plan, min_version, deadline, pull_buffer, views, fail_if_gone, waiter });
            }
            Err(error) => {
                pull_buffer.begin();
                pull_buffer.fail_missing(|_| error.clone());
                drop(sender.send(Ok(pull_buffer)));
            }
        });
        self.seat.is_open |= submitted.is_ok();
        Begun(Outcome::of(submitted, receiver))
    }

    /// Takes the outcome of a pull that was [begun](Self::begin).
    ///
    /// # Errors
    /// The first error, if any tensor did not arrive; the pull buffer has each one's.
    pub fn end(&mut self, brought: Brought) -> Result<(), Error> {
        self.pull_buffer = brought.0.unwrap_or_else(|error| {
            let mut pull_buffer = PullBuffer::new(self.keys.len());
            pull_buffer.fail_missing(|_| error.clone());
            pull_buffer
        });
        self.pull_buffer.first_error().map_or(Ok(()), |(_, error)| Err(error.clone()))
    }
}

/// The node's handle of a plan, which is opened if it has none.
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

/// A pull in progress, apart from its plan: await it, or [`wait`](Self::wait), and pass the outcome to [`Plan::end`]. If it is dropped, the
/// pull continues, and the plan allocates new memory.
#[must_use = "await it to get the tensors"]
pub struct Begun(Outcome<Result<PullBuffer, Error>>);

/// The outcome of a pull.
#[must_use = "the plan's tensors are in it"]
pub struct Brought(Result<PullBuffer, Error>);

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
