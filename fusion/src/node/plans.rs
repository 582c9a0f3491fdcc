//! Publishing, plans, and pulls: of a peer by its session, of a task of this node by copy from the shelf.

use std::sync::Arc;
use std::time::Instant;

use sealane_transport::session::{Named, PullAsk, Wait};
use sealane_transport::trace::Moment;
use sealane_transport::{Error, Handle, Keys, Tensor, Tray};

use super::cells::{PullWaiter, RecvWaiter};
use super::local_pulls::LocalPull;
use super::{Node, Pair, STRANGER, draining};
use crate::shelf::{Planner, Watcher};

/// A pull, as a task of this shard asks it.
#[derive(Debug)]
pub struct PullRequest {
    /// The plan, from [`Node::open_plan`].
    pub plan: Handle,
    /// The oldest version that will do.
    pub min_version: i64,
    /// When what is missing ends with DeadlineExceeded.
    pub deadline: Instant,
    /// The places, as many as the plan has keys.
    pub tray: Tray,
    /// Who is told, and gets the tray back.
    pub waiter: PullWaiter,
}

/// A set of keys of a peer, agreed once with whoever serves it.
pub(super) struct Plan {
    pub(super) pair: u32,
    keys: Arc<Keys>,
    agreed: Agreed,
}

impl Plan {
    /// The slots of this node's shelf that it names.
    pub(super) fn slots_here(&self) -> &[u32] {
        match &self.agreed {
            Agreed::Here(slots) => slots,
            _ => &[],
        }
    }
}

enum Agreed {
    Nowhere,
    /// The set of that session.
    Session(Handle, Handle),
    /// Slots of this node's shelf.
    Here(Arc<[u32]>),
}

/// A pull under way.
pub(super) struct UnderWay {
    pub(super) plan: Handle,
    pub(super) since: Instant,
    pub(super) waiter: PullWaiter,
    pub(super) at: At,
}

/// A pull on its way from one session to another: whose, the minimal version, the deadline, the places.
pub(super) type MovedPull = (RecvWaiter, i64, Instant, Tray);

/// Where a pull is.
pub(super) enum At {
    Peer { session: Handle, pull: Handle },
    Here(Box<LocalPull>),
}

impl Node {
    /// Puts a tensor of a local task on the shelf, for any peer to read, in place of the version before.
    ///
    /// # Errors
    /// InvalidArgument if a newer version lies there, ResourceExhausted if the shelf is full.
    pub fn publish(&mut self, local: u16, key: &str, version: i64, tensor: Tensor) -> Result<(), Error> {
        let mut ready = std::mem::take(&mut self.watchers);
        let published = self.shelf.publish(local, key, version, tensor, &mut ready);
        for Watcher { session, wait } in ready.drain(..) {
            let Some(session) = session else {
                self.local_pull_ready(wait.pull, wait.index);
                continue;
            };
            if let Some(peer) = self.context.peers.get_mut(session) {
                peer.session.pull_ready(wait.pull, wait.index);
                self.context.peers.mark_dirty(session);
            }
        }
        self.watchers = ready;
        published
    }

    /// Takes a tensor of a local task off the shelf; false if it was not there. Pulls of it wait.
    pub fn withdraw(&mut self, local: u16, key: &str) -> bool {
        self.shelf.withdraw(local, key)
    }

    /// Takes all that a task has published off the shelf, and ends the pulls that wait for more of it.
    pub(super) fn withdraw_all(&mut self, local: u16, error: &Error) {
        self.fail_local_pulls_of(local, error);
        for handle in self.context.peers.select(|_| true) {
            self.context.peers.get_mut(handle).expect("just selected").session.refuse_pulls_of(local, error);
            self.context.peers.mark_dirty(handle);
        }
        let mut waiting = Vec::new();
        self.shelf.withdraw_all(local, &mut waiting);
        for Watcher { session, wait } in waiting {
            match session {
                None => self.fail_local_pull(wait.pull, wait.index, error),
                Some(session) => {
                    if let Some(peer) = self.context.peers.get_mut(session) {
                        peer.session.refuse_pull(wait.pull, wait.index, error);
                        self.context.peers.mark_dirty(session);
                    }
                }
            }
        }
    }

    /// A plan: the keys that a pair's consumer pulls together from now on. The producer hears of it with the first pull.
    pub fn open_plan(&mut self, pair: u32, keys: Arc<Keys>) -> Handle {
        match self.plans.insert(Plan { pair, keys, agreed: Agreed::Nowhere }) {
            Ok(plan) => plan,
            Err(_) => unreachable!("2^32 plans do not fit in memory"),
        }
    }

    /// Forgets a plan; a pull of it that is under way is given up.
    pub fn close_plan(&mut self, plan: Handle) {
        for pull in self.pulls.select(|pull| pull.plan == plan) {
            self.cancel_pull(pull);
        }
        if let Some(plan) = self.plans.remove(plan) {
            self.part(plan.agreed);
        }
    }

    /// Forgets the plans of a local task.
    pub(super) fn close_plans_of(&mut self, local: u16) {
        let pairs = &self.context.pairs;
        for plan in self.plans.select(|plan| pairs[plan.pair].local == local) {
            self.close_plan(plan);
        }
    }

    fn part(&mut self, agreed: Agreed) {
        match agreed {
            Agreed::Nowhere => {}
            Agreed::Here(slots) => self.shelf.let_go(&slots),
            Agreed::Session(session, set) => {
                if let Some(peer) = self.context.peers.get_mut(session) {
                    peer.session.forget_set(set);
                    self.context.peers.mark_dirty(session);
                }
            }
        }
    }

    /// Pulls a plan's tensors. The tray goes back to the waiter when each place is filled or failed; the handle cancels.
    pub fn pull(&mut self, now: Instant, request: PullRequest) -> Option<Handle> {
        let PullRequest { plan, min_version, deadline, mut tray, waiter } = request;
        tray.begin();
        let refused = match self.plans.get(plan) {
            None => Some(Error::invalid("the plan was closed")),
            Some(plan) if plan.keys.len() != tray.len() => {
                let (places, keys) = (tray.len(), plan.keys.len());
                Some(Error::invalid(format!("{places} places for {keys} tensors")))
            }
            Some(_) if self.context.draining && matches!(waiter, PullWaiter::Client(_)) => Some(draining()),
            Some(_) => None,
        };
        let agreed = match refused {
            Some(error) => Err(error),
            // A plan of nothing has all that it wants.
            None if tray.is_empty() => {
                self.context.reporter.finish_pull(waiter, tray);
                return None;
            }
            None => self.agree(plan),
        };
        if let Err(error) = agreed {
            tray.fail_missing(|_| error.clone());
            self.context.reporter.finish_pull(waiter, tray);
            return None;
        }
        self.begin_pull(now, PullRequest { plan, min_version, deadline, tray, waiter })
    }

    /// Begins a pull of a plan that is agreed.
    fn begin_pull(&mut self, now: Instant, request: PullRequest) -> Option<Handle> {
        let PullRequest { plan, min_version, deadline, tray, waiter } = request;
        let tensors = tray.len() as u64;
        match &self.plans.get(plan).expect("the caller looked it up").agreed {
            Agreed::Nowhere => unreachable!("the caller agreed on it"),
            Agreed::Here(slots) => {
                let consumer = self.context.pairs[self.plans.get(plan).expect("just looked at").pair].local;
                let local = LocalPull::new(slots.clone(), consumer, min_version, now, deadline, tray);
                self.pull_here(UnderWay { plan, since: now, waiter, at: At::Here(Box::new(local)) })
            }
            &Agreed::Session(session, set) => {
                let nowhere = At::Peer { session, pull: Handle::NONE };
                let Ok(handle) = self.pulls.insert(UnderWay { plan, since: now, waiter, at: nowhere }) else {
                    unreachable!("2^32 pulls do not fit in memory")
                };
                self.context.reporter.trace(handle, || Moment::PullQueued { tensors });
                self.pull_there(
                    now,
                    session,
                    PullAsk { set, min_version, deadline, tray, waiter: RecvWaiter::Pull(handle) },
                )
            }
        }
    }

    /// Asks a peer; the pull's handle, unless it has ended at once.
    fn pull_there(&mut self, now: Instant, session: Handle, ask: PullAsk<RecvWaiter>) -> Option<Handle> {
        let RecvWaiter::Pull(handle) = ask.waiter else { unreachable!("pulls are asked with their own names") };
        let deadline = ask.deadline;
        let peer = self.context.peers.get_mut(session).expect("agreed with a session that is there");
        match peer.session.pull(now, ask) {
            Ok(pull) => {
                if let Some(under_way) = self.pulls.get_mut(handle) {
                    under_way.at = At::Peer { session, pull };
                }
                self.context.asked(now, session, deadline);
                Some(handle)
            }
            Err((error, mut tray, _)) => {
                tray.fail_missing(|_| error.clone());
                self.pulled(handle, tray);
                None
            }
        }
    }

    /// Names the plan's keys where they are served now.
    fn agree(&mut self, handle: Handle) -> Result<(), Error> {
        let plan = self.plans.get(handle).expect("the caller looked it up");
        let (pair, keys) = (plan.pair, plan.keys.clone());
        let Pair { local, peer, mirror, .. } = self.context.pairs[pair];
        let agreed = if let Some(mirror) = mirror {
            if matches!(plan.agreed, Agreed::Here(_)) {
                return Ok(());
            }
            let producer = self.context.pairs[mirror].local;
            Agreed::Here(self.shelf.hold(Planner::Here, producer, keys.iter())?.into())
        } else {
            let session = self.session_of(pair)?;
            if matches!(self.plans.get(handle).expect("still there").agreed, Agreed::Session(with, _) if with == session)
            {
                return Ok(());
            }
            let peer_session = &mut self.context.peers.get_mut(session).expect("session_of gives a live one").session;
            Agreed::Session(session, peer_session.add_set(local, peer, keys)?)
        };
        let plan = self.plans.get_mut(handle).expect("still there");
        let before = std::mem::replace(&mut plan.agreed, agreed);
        if let Agreed::Session(session, _) = before {
            self.end_pulls_left_behind(handle, session);
        }
        self.part(before);
        Ok(())
    }

    /// Ends the pulls of a plan that were asked of a session which serves it no more: the map has moved its producer.
    fn end_pulls_left_behind(&mut self, plan: Handle, session: Handle) {
        let is_left = |pull: &UnderWay| {
            pull.plan == plan && matches!(pull.at, At::Peer { session: asked, .. } if asked == session)
        };
        for handle in self.pulls.select(is_left) {
            // Those that are being moved are no longer in the session.
            let Some(&At::Peer { pull, .. }) = self.pulls.get(handle).map(|pull| &pull.at) else { continue };
            let Some(peer) = self.context.peers.get_mut(session) else { return };
            let Some((_, mut tray)) = peer.session.cancel_pull(pull) else { continue };
            let error = Error::unavailable(peer.session.peer(), "the endpoint map has moved the task that was asked");
            tray.fail_missing(|_| error.clone());
            self.pulled(handle, tray);
        }
    }

    /// Gives a pull up, whose waiter then hears nothing; its tray, or `None` if it has ended.
    pub fn cancel_pull(&mut self, handle: Handle) -> Option<Tray> {
        match self.pulls.remove(handle)?.at {
            At::Here(local) => Some(local.into_tray()),
            At::Peer { session, pull } => {
                let (_, tray) = self.context.peers.get_mut(session)?.session.cancel_pull(pull)?;
                self.context.peers.mark_dirty(session);
                Some(tray)
            }
        }
    }

    /// A pull has ended.
    pub(super) fn pulled(&mut self, handle: Handle, tray: Tray) {
        if let Some(pull) = self.pulls.remove(handle) {
            self.context.reporter.trace(handle, || Moment::PullEnded);
            self.context.reporter.finish_pull(pull.waiter, tray);
        }
    }

    /// Pulls that were to go to `session` and turned out to belong to another: asked again where they belong.
    pub(super) fn pull_elsewhere(&mut self, now: Instant, pulls: Vec<MovedPull>) {
        for (waiter, min_version, deadline, mut tray) in pulls {
            let RecvWaiter::Pull(handle) = waiter else { unreachable!("pulls are asked with their own names") };
            let Some(plan) = self.pulls.get(handle).map(|pull| pull.plan) else { continue };
            let agreed = self.agree(plan).map(|()| &self.plans.get(plan).expect("just agreed").agreed);
            match agreed {
                Ok(&Agreed::Session(session, set)) => {
                    self.pull_there(now, session, PullAsk { set, min_version, deadline, tray, waiter });
                }
                // The map has brought the producer here since it was asked.
                Ok(Agreed::Here(slots)) => {
                    let slots = slots.clone();
                    self.go_on_here(now, handle, (slots, min_version, deadline, tray));
                }
                Ok(Agreed::Nowhere) => unreachable!("just agreed"),
                Err(error) => {
                    tray.fail_missing(|_| error.clone());
                    self.pulled(handle, tray);
                }
            }
        }
    }

    fn go_on_here(
        &mut self,
        now: Instant,
        handle: Handle,
        (slots, min_version, deadline, tray): (Arc<[u32]>, i64, Instant, Tray),
    ) {
        let pull = self.pulls.get_mut(handle).expect("the caller looked it up");
        let pair = self.plans.get(pull.plan).expect("a plan stays while it is pulled").pair;
        let consumer = self.context.pairs[pair].local;
        pull.at = At::Here(Box::new(LocalPull::new(slots, consumer, min_version, now, deadline, tray)));
        self.begin_here(handle, deadline);
    }

    /// A peer names the keys that it will pull.
    pub(super) fn named(&mut self, session: Handle, named: Named) {
        let Named { set, serial, consumer, producer, keys } = named;
        let found = if consumer == STRANGER {
            let reason = "the pulling task is not in the endpoint map of the asked host".into();
            Err(Error::NotFound { task: "the pulling task".into(), reason })
        } else {
            self.shelf.hold(Planner::Peer, producer, keys.iter().map(|key| &**key))
        };
        let Some(peer) = self.context.peers.get_mut(session) else {
            return self.shelf.let_go(&found.unwrap_or_default());
        };
        match found {
            // Named and forgotten in one read of the link.
            Ok(slots) => {
                if let Err(slots) = peer.session.set_found(set, serial, slots) {
                    self.shelf.let_go(&slots);
                }
            }
            Err(error) => peer.session.refuse_set(set, serial, error),
        }
        self.context.peers.mark_dirty(session);
    }

    /// Notes what the pulls of a session wait for.
    pub(super) fn watch_for(&mut self, session: Handle) {
        let mut waits: Vec<Wait> = Vec::new();
        if let Some(peer) = self.context.peers.get_mut(session) {
            peer.session.take_waits(&mut waits);
        }
        if self.context.draining {
            for wait in waits {
                if let Some(peer) = self.context.peers.get_mut(session) {
                    peer.session.refuse_pull(wait.pull, wait.index, &draining());
                }
            }
            return;
        }
        for wait in waits {
            self.watch(Watcher { session: Some(session), wait });
        }
    }

    pub(super) fn watch(&mut self, watcher: Watcher) {
        let (peers, pulls) = (&self.context.peers, &self.pulls);
        self.shelf.watch(watcher, |watcher| match watcher.session {
            Some(session) => peers.get(session).is_some_and(|peer| peer.session.is_serving(watcher.wait.pull)),
            None => pulls.get(watcher.wait.pull).is_some(),
        });
    }
}
