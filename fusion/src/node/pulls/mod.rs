//! Publishing, plans, and pulls: from a peer through its session, from a task of this node by a copy out of the store.

mod local;
mod packed;
mod plans;
mod shares;
mod store;
mod watchers;

use std::collections::VecDeque;
use std::time::Instant;

use sealane_runtime::Sweep;
use sealane_transport::limits::LOCKS_SUFFIX;
use sealane_transport::session::{Named, PullParams, Store, Wait};
use sealane_transport::tensor::IntoTensor;
use sealane_transport::trace::Moment;
use sealane_transport::{Arena, Error, Handle, PullBuffer};

use super::cells::{PullWaiter, RecvWaiter};
use super::context::{Context, draining};
use super::pairs::STRANGER;
use super::peers::Peers;
use super::reporter::Reporter;
use super::row_requests::Table;
use crate::metrics::Operation;
use local::LocalPull;
use plans::Plan;
pub(super) use plans::Producer;
use store::{Planner, PublishedStore};
use watchers::Watcher;

/// A pull, as a task of this shard requests it.
#[derive(Debug)]
pub struct PullRequest {
    /// The plan, from [`Node::open_plan`](super::Node::open_plan).
    pub plan: Handle,
    /// The oldest version that is acceptable.
    pub min_version: i64,
    /// When what is missing ends with DeadlineExceeded.
    pub deadline: Instant,
    /// The places for the tensors, as many as the plan has keys.
    pub pull_buffer: PullBuffer,
    /// Tensors of tasks of this node may be shared with the task's [pool](super::Pool) instead of being copied.
    pub views: bool,
    /// Do not wait for what a task that has left has not published.
    pub fail_if_gone: bool,
    /// Who gets the pull buffer back.
    pub waiter: PullWaiter,
}

/// A pull moving from one session to another.
pub(super) type MovedPull = PullParams<RecvWaiter>;

/// A pull in progress.
struct UnderWay {
    plan: Handle,
    since: Instant,
    waiter: PullWaiter,
    at: At,
}

enum At {
    Peer { session: Handle, pull: Handle },
    Here(Box<LocalPull>),
}

/// The published tensors, plans and pulls of a node; see the module.
pub(super) struct Pulls {
    store: PublishedStore,
    plans: Arena<Plan>,
    under_way: Arena<UnderWay>,
    /// Pulls from this node's store that have something to copy.
    copying: VecDeque<Handle>,
    /// A lower bound of the earliest deadline of pulls from this node's store.
    deadlines: Sweep,
    /// Kept to reuse its memory; empty between calls.
    watchers: Vec<Watcher>,
}

impl Pulls {
    pub(super) fn new(published_max: usize) -> Pulls {
        Pulls {
            store: PublishedStore::new(published_max),
            plans: Arena::new(usize::MAX),
            under_way: Arena::new(usize::MAX),
            copying: VecDeque::new(),
            deadlines: Sweep::default(),
            watchers: Vec::new(),
        }
    }

    /// What is published, for the sessions whose peers pull it.
    #[inline]
    pub(super) fn published(&self) -> &impl Store {
        &self.store
    }

    /// A published tensor as a table, with the locks of its rows if they are published too; `locks_key` is overwritten with the locks' key.
    pub(super) fn table(&mut self, task: u16, key: &str, locks_key: &mut String) -> Option<Table> {
        let (version, meta, payload) = self.store.share_in_place(task, key)?;
        locks_key.clear();
        locks_key.extend([key, LOCKS_SUFFIX]);
        let locks = self.store.share_in_place(task, locks_key).map(|(_, _, locks)| locks);
        Some(Table { version, meta, payload, locks })
    }

    /// The version of a task's published tensor, if there is one.
    pub(super) fn version_of(&self, task: u16, key: &str) -> Option<i64> {
        self.store.version_of(task, key)
    }

    /// Published tensors.
    pub(super) fn count(&self) -> usize {
        self.store.published()
    }

    /// Keys that are published or named by plans.
    pub(super) fn keys(&self) -> usize {
        self.store.keys()
    }

    /// Publishes tensors of a local task by key, each replacing its previous version.
    ///
    /// # Errors
    /// The first: InvalidArgument if a newer version is published, ResourceExhausted if the store is full or the task has its share.
    pub(super) fn publish<K: AsRef<str>, T: IntoTensor>(
        &mut self,
        local: u16,
        version: i64,
        tensors: impl Iterator<Item = (K, T)>,
        context: &mut Context,
    ) -> Result<(), Error> {
        let mut ready = std::mem::take(&mut self.watchers);
        debug_assert!(ready.is_empty(), "who waited for another tensor would be told that it is there");
        let published = self.store.publish(local, version, tensors, &mut ready);
        if !ready.is_empty() {
            self.tell_ready(&mut ready, context);
        }
        self.watchers = ready;
        published
    }

    /// Tells further watchers of what was published, as many as a turn may tell; returns how many.
    #[inline]
    pub(super) fn wake(&mut self, context: &mut Context) -> usize {
        self.store.begin_turn();
        if self.store.has_woken() { self.tell_woken(context) } else { 0 }
    }

    fn tell_woken(&mut self, context: &mut Context) -> usize {
        let mut ready = std::mem::take(&mut self.watchers);
        self.store.move_woken(&mut ready);
        let woken = ready.len();
        self.tell_ready(&mut ready, context);
        self.watchers = ready;
        woken
    }

    /// Tells watchers that what they wait for is there.
    fn tell_ready(&mut self, ready: &mut Vec<Watcher>, context: &mut Context) {
        for Watcher { session, wait } in ready.drain(..) {
            let Some(session) = session else {
                self.local_ready(wait.pull, wait.index);
                continue;
            };
            if let Some(with) = context.peers.session_mut(session) {
                with.pull_ready(wait.pull, wait.index);
                context.peers.mark_dirty(session);
            }
        }
    }

    /// Withdraws a published tensor; false if there was none. Pulls of it wait.
    pub(super) fn withdraw(&mut self, local: u16, key: &str) -> bool {
        self.store.withdraw(local, key)
    }

    /// Withdraws all that a task has published, and ends the pulls that wait for its tensors.
    pub(super) fn withdraw_all(&mut self, local: u16, error: &Error, context: &mut Context) {
        self.fail_local_of(local, error, context);
        for handle in context.peers.select(|_| true) {
            context.peers.session_mut(handle).expect("just selected").refuse_pulls_of(local, error);
            context.peers.mark_dirty(handle);
        }
        let mut waiting = Vec::new();
        self.store.withdraw_all(local, &mut waiting);
        for Watcher { session, wait } in waiting {
            match session {
                None => self.fail_local(wait.pull, wait.index, error, &mut context.reporter),
                Some(session) => {
                    if let Some(with) = context.peers.session_mut(session) {
                        with.refuse_pull(wait.pull, wait.index, error);
                        context.peers.mark_dirty(session);
                    }
                }
            }
        }
    }

    /// A pull from a peer has finished; some of its tensors may have failed.
    pub(super) fn arrived(
        &mut self,
        session: Handle,
        waiter: RecvWaiter,
        pull_buffer: PullBuffer,
        context: &mut Context,
    ) {
        let handle = named(&waiter);
        let (came, bytes) = pull_buffer.came();
        context.reporter.count_received(came as u32, bytes);
        if let Some(pull) = self.under_way.get(handle).filter(|_| came == pull_buffer.len()) {
            context.reporter.record(Operation::Pull, context.peers.way_of(session), pull.since);
        }
        self.ended(handle, pull_buffer, &mut context.reporter);
    }

    fn ended(&mut self, handle: Handle, pull_buffer: PullBuffer, reporter: &mut Reporter) {
        if let Some(pull) = self.under_way.remove(handle) {
            reporter.trace(handle, || Moment::PullEnded);
            reporter.finish_pull(pull.waiter, pull_buffer);
        }
    }

    /// Cancels a pull, whose waiter then hears nothing; returns its pull buffer, or `None` if it has ended.
    pub(super) fn cancel(&mut self, handle: Handle, peers: &mut Peers) -> Option<PullBuffer> {
        match self.under_way.remove(handle)?.at {
            At::Here(local) => Some(local.into_pull_buffer()),
            At::Peer { session, pull } => {
                let (_, pull_buffer) = peers.session_mut(session)?.cancel_pull(pull)?;
                peers.mark_dirty(session);
                Some(pull_buffer)
            }
        }
    }

    /// A peer names the keys of a set that it will pull.
    pub(super) fn named(&mut self, session: Handle, named: Named, peers: &mut Peers) {
        let Named { set, serial, consumer, producer, keys } = named;
        let found = if consumer == STRANGER {
            let reason = "the pulling task is not in the endpoint map of the producer's host".into();
            Err(Error::NotFound { task: "the pulling task".into(), reason })
        } else {
            self.store.hold(Planner::Peer, producer, keys.iter().map(|key| &**key))
        };
        let Some(with) = peers.session_mut(session) else {
            return self.store.let_go(&found.unwrap_or_default());
        };
        match found {
            // Otherwise the set was named and forgotten in one read of the link.
            Ok(slots) => {
                if let Err(slots) = with.set_found(set, serial, slots) {
                    self.store.let_go(&slots);
                }
            }
            Err(error) => with.refuse_set(set, serial, error),
        }
        peers.mark_dirty(session);
    }

    /// A peer no longer pulls from these slots.
    pub(super) fn forgotten(&mut self, slots: &[u32]) {
        self.store.let_go(slots);
    }

    /// Registers what the pulls of a session wait for.
    pub(super) fn watch_for(&mut self, session: Handle, context: &mut Context) {
        let mut waits: Vec<Wait> = Vec::new();
        if let Some(with) = context.peers.session_mut(session) {
            with.take_waits(&mut waits);
        }
        if context.draining {
            for wait in waits {
                if let Some(with) = context.peers.session_mut(session) {
                    with.refuse_pull(wait.pull, wait.index, &draining());
                }
            }
            return;
        }
        for wait in waits {
            match self.in_vain(&wait, context) {
                None => self.watch(Watcher { session: Some(session), wait }, &context.peers),
                Some(error) => {
                    if let Some(with) = context.peers.session_mut(session) {
                        with.refuse_pull(wait.pull, wait.index, &error);
                        context.peers.mark_dirty(session);
                    }
                }
            }
        }
    }

    /// The error for a wait that would be in vain.
    fn in_vain(&self, wait: &Wait, context: &Context) -> Option<Error> {
        self.store.refusal(wait.slot).or_else(|| context.gone(self.store.task(wait.slot), wait.fail_if_gone))
    }

    fn watch(&mut self, watcher: Watcher, peers: &Peers) {
        let under_way = &self.under_way;
        self.store.watch(watcher, |watcher| match watcher.session {
            Some(session) => peers.session(session).is_some_and(|with| with.is_serving(watcher.wait.pull)),
            None => under_way.get(watcher.wait.pull).is_some(),
        });
    }

    /// Panics unless slots in use hold tensors or belong to plans, and each pull is where it says.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check_invariants(&self, peers: &Peers) {
        let here = self.plans.iter().flat_map(|(_, plan)| plan.slots_here());
        let there = peers.iter().flat_map(|peer| peer.session.slots_named());
        self.store.check_invariants(here.copied().chain(there));
        assert!(self.watchers.is_empty(), "who waited for another tensor would be told that it is there");
        for (handle, pull) in self.under_way.iter() {
            assert!(self.plans.get(pull.plan).is_some(), "a pull of no plan would never be moved nor closed");
            let with = match &pull.at {
                At::Peer { session, .. } => peers.session(*session).is_some(),
                At::Here(_) => true,
            };
            assert!(with, "nobody would answer a pull, nor end it");
            if let At::Here(local) = &pull.at {
                let places = self.copying.iter().filter(|&&copying| copying == handle).count();
                local.check_invariants(places);
                let ends = self.deadlines.covers(local.deadline);
                assert!(ends, "a pull would wait past its deadline");
            }
        }
    }
}

/// The pull's handle: pulls are requested from sessions under their own handles.
fn named(waiter: &RecvWaiter) -> Handle {
    let RecvWaiter::Pull(handle) = waiter else { unreachable!("pulls are asked with their own names") };
    *handle
}
