//! Plans of tensors that are published in slices: each owner's slices are pulled by a plan of their own, all at once, to their
//! places in one array. Several slices of one owner go over different shards, with a plan for each, so that more than one shard carries
//! a large tensor. Runs on the callers' threads; bounded by the slices, and by the memory for the arrays.

mod gathered;
mod shares;

use std::{
    ops::Range,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use bytes::Bytes;
use sealane_runtime::Buffer;
use sealane_transport::{Code, Error, Keys, PullOptions, Pulled, Slicing, Tensor};

use self::{
    gathered::Gathered,
    shares::{Place, Share, shares},
};

use crate::{
    attached_plan::AttachedPlan,
    attachment::{Attachment, together},
    in_process::InProcess,
    limits::TORN_PULLS_MAX,
    plan::{Pulls, not_pulled},
};

/// Which versions the slices of one tensor may have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SliceVersions {
    /// The same. A tensor whose slices were pulled at different versions, since one owner had published before another, fails
    /// with Aborted; [`Plan::version`](crate::Plan::version) is then the newest of them, which the next pull can ask for.
    #[default]
    Same,
    /// Any that are new enough, as with asynchronous training; [`Plan::version`](crate::Plan::version) is the oldest of them.
    Any,
}

/// The engine that pulls.
#[derive(Clone)]
pub(crate) enum Puller {
    Daemon(Arc<Attachment>),
    InProcess(Arc<dyn InProcess>),
}

impl Puller {
    /// Restarts of the daemon so far, for [`ended_by_restart`](Self::ended_by_restart).
    fn restarts(&self) -> u64 {
        match self {
            Self::Daemon(attachment) => attachment.restarts(),
            Self::InProcess(_) => 0,
        }
    }

    /// True if a pull may be repeated that began when there had been so many restarts.
    fn ended_by_restart(&self, restarts: u64) -> bool {
        match self {
            Self::Daemon(attachment) => attachment.ended_by_restart(restarts),
            Self::InProcess(_) => false,
        }
    }

    /// Shards of the pulling engine; 1 while there is no daemon.
    fn shards(&self) -> usize {
        match self {
            Self::Daemon(attachment) => attachment.shards(),
            Self::InProcess(task) => task.shards(),
        }
    }
}

pub(crate) struct SlicedPlan {
    puller: Puller,
    keys: Keys,
    slicings: Box<[Slicing]>,
    versions: SliceVersions,
    /// In the order of the keys; each slice has its place in one of them.
    shares: Box<[Share]>,
    /// Number of shards that they are spread over.
    shards: usize,
    /// The plans, and the memory they pull into; `None` before the first pull, and after one that did not bring everything.
    open: Option<Open>,
    pulled: Box<[Result<Tensor, Error>]>,
    version: Box<[i64]>,
    /// One owner's slices of a tensor came at different versions.
    torn: bool,
    /// The last pull, which may be in progress.
    wish: Wish,
}

/// Parameters and progress of a pull.
#[derive(Debug, Clone, Copy)]
struct Wish {
    min_version: i64,
    options: PullOptions,
    begun: Instant,
    after_drain: AfterDrain,
    /// Restarts of the daemon before the pull was begun.
    restarts: u64,
    /// How often it was repeated because a tensor was torn.
    repeated: u32,
}

impl Wish {
    fn new(min_version: i64, options: PullOptions) -> Self {
        Self { min_version, options, begun: Instant::now(), after_drain: AfterDrain::GoesOn, restarts: 0, repeated: 0 }
    }

    /// Time left.
    fn left(&self) -> Option<Duration> {
        self.options.timeout.map(|timeout| timeout.saturating_sub(self.begun.elapsed()))
    }
}

/// Whether a pull that a drain has ended is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AfterDrain {
    GoesOn,
    /// It is to be repeated at the next daemon.
    Waits,
    /// It was repeated.
    HasGoneOn,
}

/// The plans of all shares, and their memory.
struct Open {
    plans: Vec<Box<dyn Pulls>>,
    /// Memory that is pulled into, by tensor; with an embedded engine the plans have it during a pull.
    wholes: Vec<Bytes>,
    /// How the pull in progress ended, by share.
    ended: Vec<Option<Result<(), Error>>>,
}

impl Open {
    fn has_ended(&self) -> bool {
        self.ended.iter().all(Option::is_some)
    }
}

/// Asks a plan how its pull ended.
type Ask<'a> = dyn FnMut(&mut dyn Pulls) -> Poll<Result<(), Error>> + 'a;

impl SlicedPlan {
    pub(crate) fn new(
        puller: Puller,
        wanted: Vec<(Box<str>, Slicing)>,
        versions: SliceVersions,
    ) -> Result<Self, Error> {
        let keys = Keys::new(wanted.iter().map(|(key, _)| key))?;
        let slicings: Box<[Slicing]> = wanted.into_iter().map(|(_, slicing)| slicing).collect();
        let shards = puller.shards();
        let shares = shares(&keys, &slicings, shards)?;
        let pulled = slicings.iter().map(|_| Err(not_pulled())).collect();
        let version = slicings.iter().map(|_| 0).collect();
        let wish = Wish::new(0, PullOptions::default());
        Ok(Self { puller, keys, slicings, versions, shares, shards, open: None, pulled, version, torn: false, wish })
    }

    /// Starts the pull at all owners, with so much time.
    fn ask(&mut self, timeout: Option<Duration>) {
        let (min_version, options) = (self.wish.min_version, PullOptions { timeout, ..self.wish.options });
        (self.torn, self.wish.restarts) = (false, self.puller.restarts());
        let mut open = match self.reopen(timeout) {
            Ok(open) => open,
            // This is the outcome of the pull.
            Err(error) => return self.fail(&error),
        };
        if matches!(self.puller, Puller::InProcess(_)) {
            self.lend(&mut open);
        }
        self.forget(&not_pulled());
        open.ended.iter_mut().for_each(|ended| *ended = None);
        // All are started before the first is waited for.
        together(|| open.plans.iter_mut().for_each(|plan| plan.begin(min_version, options)));
        self.open = Some(open);
    }

    /// Fails the pull: nothing came, and nothing will.
    fn fail(&mut self, error: &Error) {
        self.forget(error);
        self.open = None;
    }

    fn forget(&mut self, error: &Error) {
        self.pulled.iter_mut().for_each(|pulled| *pulled = Err(error.clone()));
    }

    /// The plans of the last pull; new ones if that has not ended, or a new daemon cannot reach their memory.
    fn reopen(&mut self, timeout: Option<Duration>) -> Result<Open, Error> {
        let open = self.open.take().filter(Open::has_ended);
        let reached = match &self.puller {
            Puller::Daemon(attachment) => {
                attachment.wait_for_daemon(timeout)?;
                let arena = attachment.arena_range()?;
                open.filter(|open| open.wholes.iter().all(|whole| arena.contains(&whole.as_ptr())))
            }
            Puller::InProcess(_) => open,
        };
        reached.map_or_else(|| self.open(), Ok)
    }

    /// Opens plans for all shares, and memory to pull into.
    fn open(&mut self) -> Result<Open, Error> {
        let shards = self.puller.shards();
        if shards != self.shards {
            (self.shares, self.shards) = (shares(&self.keys, &self.slicings, shards)?, shards);
        }
        let (plans, wholes): (Vec<Box<dyn Pulls>>, Vec<Bytes>) = match &self.puller {
            Puller::Daemon(attachment) => {
                let memory = |slicing: &Slicing| Ok(Bytes::from_owner(attachment.allocate(slicing.bytes())?));
                let wholes = self.slicings.iter().map(memory).collect::<Result<Vec<_>, Error>>()?;
                let plan = |share: &Share| {
                    let place = |&place: &Place| wholes[place.tensor].slice(self.range(place));
                    let places = share.slices.iter().map(place).collect();
                    AttachedPlan::with_places(attachment, (&share.owner, share.stripe), share.keys.clone(), places)
                };
                (self.shares.iter().map(|share| Box::new(plan(share)) as Box<dyn Pulls>).collect(), wholes)
            }
            Puller::InProcess(task) => {
                let plan = |share: &Share| task.plan(&share.owner, share.stripe, share.keys.clone());
                (self.shares.iter().map(plan).collect(), Vec::new())
            }
        };
        let ended = plans.iter().map(|_| None).collect();
        Ok(Open { plans, wholes, ended })
    }

    fn range(&self, Place { tensor, slice }: Place) -> Range<usize> {
        self.slicings[tensor].bytes_of(slice)
    }

    /// Gives an embedded engine's plans the parts of the arrays into which the last pull went.
    fn lend(&mut self, open: &mut Open) {
        let mut parts: Vec<Vec<Option<Buffer>>> = Vec::with_capacity(self.slicings.len());
        for (slicing, pulled) in self.slicings.iter().zip(&mut self.pulled) {
            let whole = match std::mem::replace(pulled, Err(not_pulled())) {
                Ok(tensor) => tensor.into_buffer(),
                Err(_) => Buffer::from_vec(vec![0; slicing.bytes()]),
            };
            let lens: Vec<usize> = (0..slicing.len()).map(|slice| slicing.bytes_of(slice).len()).collect();
            parts.push(whole.split(&lens).into_iter().map(Some).collect());
        }
        for (share, plan) in self.shares.iter().zip(&mut open.plans) {
            for (index, place) in share.slices.iter().enumerate() {
                if let Some(part) = parts[place.tensor][place.slice].take() {
                    plan.set_destination(index, part);
                }
            }
        }
    }

    /// Advances the pull; `waits` for a daemon that is being restarted.
    fn advance(&mut self, waits: bool, ask: &mut Ask<'_>) -> Poll<Result<(), Error>> {
        loop {
            if self.wish.after_drain == AfterDrain::Waits {
                if !waits && self.finds_no_daemon() {
                    return Poll::Pending;
                }
                self.wish.after_drain = AfterDrain::HasGoneOn;
                self.ask(self.wish.left());
            }
            if let Some(open) = &mut self.open {
                for (plan, ended) in open.plans.iter_mut().zip(&mut open.ended) {
                    if ended.is_none()
                        && let Poll::Ready(outcome) = ask(&mut **plan)
                    {
                        *ended = Some(outcome);
                    }
                }
                if !open.has_ended() {
                    return Poll::Pending;
                }
                self.gather();
            }
            let is_late = self.wish.left() == Some(Duration::ZERO);
            if self.torn && !is_late && self.wish.repeated < TORN_PULLS_MAX && (waits || !self.finds_no_daemon()) {
                self.wish.repeated += 1;
                self.ask(self.wish.left());
                continue;
            }
            let error = self.pulled.iter().find_map(|pulled| pulled.as_ref().err());
            let is_drained = error.is_some_and(|error| error.code() == Code::Unavailable);
            if !is_drained
                || is_late
                || self.wish.after_drain != AfterDrain::GoesOn
                || !self.puller.ended_by_restart(self.wish.restarts)
            {
                return Poll::Ready(error.map_or(Ok(()), |error| Err(error.clone())));
            }
            self.wish.after_drain = AfterDrain::Waits;
        }
    }

    /// True while the next daemon is awaited and not there yet; false also if there will be none.
    fn finds_no_daemon(&self) -> bool {
        match &self.puller {
            Puller::Daemon(attachment) => {
                attachment.wait_for_daemon(Some(Duration::ZERO)).is_err() && attachment.awaits_restart()
            }
            Puller::InProcess(_) => false,
        }
    }

    /// Makes the arrays from what the plans have pulled.
    fn gather(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let mut gathered: Vec<Gathered> = self.slicings.iter().map(Gathered::new).collect();
        for (share, plan) in self.shares.iter().zip(&mut open.plans) {
            for (index, place) in share.slices.iter().enumerate() {
                let expected = self.slicings[place.tensor].meta_of(place.slice);
                let came = plan.take(index).and_then(|Pulled { tensor, version }| {
                    if *tensor.meta() == expected {
                        return Ok((tensor, version));
                    }
                    let (key, found) = (share.keys.get(index), tensor.meta());
                    Err(Error::invalid(format!("{key} of {} is {found:?}, its slicing says {expected:?}", share.owner)))
                });
                gathered[place.tensor].take(place.slice, came);
            }
        }
        for (index, gathered) in gathered.into_iter().enumerate() {
            self.torn |= self.versions == SliceVersions::Same && gathered.is_torn(&self.slicings[index]);
            (self.pulled[index], self.version[index]) =
                gathered.end((self.keys.get(index), &self.slicings[index]), open.wholes.get(index), self.versions);
        }
        // A place whose slice did not come may still be written to, and is not used again.
        let came = |pulled: &Result<Tensor, Error>| matches!(pulled, Ok(_) | Err(Error::Aborted { .. }));
        if open.ended.iter().all(|ended| matches!(ended, Some(Ok(())))) && self.pulled.iter().all(came) {
            self.open = Some(open);
        }
    }
}

impl Pulls for SlicedPlan {
    fn keys(&self) -> &Keys {
        &self.keys
    }

    fn set_destination(&mut self, _index: usize, _memory: Buffer) {}

    fn get(&self, index: usize) -> Result<&Tensor, Error> {
        self.pulled[index].as_ref().map_err(Clone::clone)
    }

    fn version(&self, index: usize) -> i64 {
        self.version[index]
    }

    fn begin(&mut self, min_version: i64, options: PullOptions) {
        self.wish = Wish::new(min_version, options);
        self.ask(options.timeout);
    }

    fn wait(&mut self) -> Result<(), Error> {
        match self.advance(true, &mut |plan| Poll::Ready(plan.wait())) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => unreachable!("waiting ends with the pull"),
        }
    }

    fn look(&mut self) -> Option<Result<(), Error>> {
        match self.advance(false, &mut |plan| plan.look().map_or(Poll::Pending, Poll::Ready)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.advance(true, &mut |plan| plan.poll(context))
    }

    fn give_up(&mut self) {
        if self.open.as_ref().is_some_and(|open| !open.has_ended()) || self.wish.after_drain == AfterDrain::Waits {
            self.wish.after_drain = AfterDrain::HasGoneOn;
            self.fail(&not_pulled());
        }
    }

    fn take(&mut self, index: usize) -> Result<Pulled, Error> {
        let version = self.version[index];
        std::mem::replace(&mut self.pulled[index], Err(not_pulled())).map(|tensor| Pulled { tensor, version })
    }
}
