//! One attachment to the daemon, shared by any number of threads: its state is under one lock, and no thread sleeps holding it.
//!
//! One lock rather than one per shard: it is held for tens of nanoseconds per call and never while tensor bytes are copied, a
//! batch takes it once, and a waiting thread checks all rings at once. Waiting threads also do work: they take everyone's
//! answers out of the rings. When there is nothing to do, one thread, the *listener*, sleeps on the daemon's bell, and the
//! others park until it hands them their outcome or its role.

mod acceptors;
mod aftermath;
mod attend;
mod backlog;
#[cfg(feature = "fuzzing")]
mod by_hand;
mod calls;
mod direct;
mod driver;
mod elsewhere;
mod held;
mod link;
mod loss;
mod memory;
mod moving;
mod nudge;
mod placing;
mod plans;
mod publish;
mod published;
#[cfg(feature = "tokio")]
mod readable;
mod republish;
#[cfg(test)]
mod rig;
#[cfg(feature = "tokio")]
mod runtime_driver;
mod steps;
mod submit;
mod together;
mod unclaimed;
mod views;
mod wait;

pub(crate) use self::{
    calls::{Calls, Received},
    direct::{Awaited, Channel, ChannelRecv, ChannelSend, Ended, OverChannel, RingPlace, RingReader, RingWriter},
    elsewhere::Streamed,
    held::together,
    loss::at_once,
    plans::{Gathered, Landed, Placed, PlanOf, Pull, Seat},
    publish::Lying,
    submit::{Begun, Purpose, To, With},
};

use std::{
    ops::Range,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use sealane_runtime::{Buffer, WithRemedy};
#[cfg(any(test, feature = "fuzzing"))]
use sealane_transport::shm::attach::GivenLane;
use sealane_transport::{
    Error,
    shm::attach::{Attached, RequiredJob},
};

use self::{
    acceptors::Acceptors, aftermath::Aftermath, attend::Listening, direct::ChannelCache, driver::Driver,
    elsewhere::Elsewhere, held::Held, link::Link, nudge::Nudge, published::Published,
};
use crate::{
    attach::{self, Settings},
    clock::Tick,
    limits::LETTING_GO_SPINS,
    memory::{Arena, ForkMark, Freed},
    patience::Patience,
};

/// What the clones of a task, its calls and its driver share.
pub(crate) struct Attachment {
    settings: Settings,
    mark: Arc<ForkMark>,
    state: Mutex<State>,
    /// Held while [telling the shards](publish) what is published; taken before the state.
    turn: Mutex<()>,
    /// Held while ending a step; taken before the state.
    ending: Mutex<()>,
    /// Held while attaching again.
    attaching: Mutex<Attempts>,
    /// The listener sleeps.
    asleep: AtomicBool,
    /// Blocks were freed while another thread held the lock, which is to give them back.
    owes_chores: AtomicBool,
    /// Starting a call may find no room, or no daemon.
    crowded: AtomicBool,
    /// Tensors are kept that arrived from the daemon for cancelled recvs.
    has_unclaimed: AtomicBool,
    /// The channels to peers, as threads remember them.
    channels: ChannelCache,
    /// Daemons so far that drained and are gone. Compared with its value before a call, it says whether that may have ended the call.
    restarts: AtomicU64,
    nudge: Arc<Nudge>,
    nudge_waker: Waker,
    /// For the driver's thread, and for areas, which report blocks that are free.
    me: Weak<Attachment>,
}

struct State {
    line: Line,
    /// If the last daemon had drained: until when the next is waited for.
    restart_until: Option<Instant>,
    calls: Calls,
    acceptors: Acceptors,
    elsewhere: Elsewhere,
    published: Published,
    listening: Listening,
    /// Threads that sleep because another one listens.
    parked: Vec<(u64, Waker)>,
    next_parked: u64,
    /// Threads that wait for futures, and poll the rings in place of the driver.
    attending: usize,
    /// Threads that poll the rings without pause.
    spinning: usize,
    patience: Patience,
    /// When to check next whether the daemon lives.
    next_check: Tick,
    driver: Driver,
    aftermath: Aftermath,
    /// Submissions since the last look at the answers.
    unlooked: u32,
    /// The last clone of the task is gone.
    closing: bool,
}

/// Attempts to attach again.
#[derive(Default)]
struct Attempts {
    last: Option<Instant>,
    /// Attempts so far, which number the links.
    count: u64,
}

/// Takes the outcome of one kind of call out of the table.
pub(crate) type Take<T> = fn(&mut Calls, u32) -> Option<T>;
/// Takes the outcomes of the first of these calls, as far as they have ended and need no work without the lock; returns how many.
pub(crate) type TakeSome<O> = fn(&mut Calls, &[u32], &mut Vec<O>) -> usize;

/// The state of the connection to the daemon.
enum Line {
    Up(Box<Link>),
    /// Lost, and why: the next call attaches again.
    Lost(Error),
    /// There will be no daemon again, and why: the last clone of the task is gone, another process has taken the task's name, or
    /// the socket is now another job's.
    Ended(Error),
}

impl Attachment {
    /// Attaches.
    ///
    /// # Errors
    /// As [`Attach::attach`](crate::Attach::attach) says.
    pub(crate) fn new(settings: Settings) -> Result<Arc<Attachment>, Error> {
        let connected = attach::connect(&settings, true).map_err(|error| attach::told(&settings, error))?;
        Attachment::over(settings, connected, Tick::now())
    }

    /// Attaches over the memory that a daemon of that name has given. Whether it lives is checked from `first_check` on.
    ///
    /// # Errors
    /// Unavailable if the system gives no page, or no eventfd.
    pub(crate) fn over(
        settings: Settings,
        (attached, daemon): (Attached, Box<str>),
        first_check: Tick,
    ) -> Result<Arc<Attachment>, Error> {
        // From now on this process belongs to the daemon's job, and replaces no process unasked.
        let job = RequiredJob::exactly(attached.welcome.job.clone());
        let settings = Settings { job, replace: false, ..settings };
        let broken = |what: &str, error: &dyn std::fmt::Display| Error::unavailable(what, error.to_string());
        // Unknown if the system does not tell; then nothing speaks against a spin.
        let cpus = std::thread::available_parallelism().map_or(usize::MAX, |cpus| cpus.get());
        let mark = Arc::new(ForkMark::new().map_err(|error| broken("a page that forks are known by", &error))?);
        let nudge = Arc::new(Nudge::new().map_err(|error| broken("an eventfd", &WithRemedy(&error.into())))?);
        Ok(Arc::new_cyclic(|me: &Weak<Attachment>| {
            let freed: Weak<dyn Freed> = me.clone();
            let link = Link::new(0, attached, daemon, (&mark, &freed), settings.backlog);
            let line = Line::Up(Box::new(link));
            let state = State {
                line,
                restart_until: None,
                calls: Calls::default(),
                acceptors: Acceptors::default(),
                elsewhere: Elsewhere::default(),
                published: Published::default(),
                listening: Listening::default(),
                parked: Vec::new(),
                next_parked: 0,
                attending: 0,
                spinning: 0,
                patience: Patience::new(cpus),
                next_check: first_check,
                driver: Driver::default(),
                aftermath: Aftermath::default(),
                unlooked: 0,
                closing: false,
            };
            Attachment {
                settings,
                mark,
                state: Mutex::new(state),
                turn: Mutex::default(),
                ending: Mutex::default(),
                attaching: Mutex::default(),
                asleep: AtomicBool::new(false),
                owes_chores: AtomicBool::new(false),
                crowded: AtomicBool::new(false),
                has_unclaimed: AtomicBool::new(false),
                channels: ChannelCache::default(),
                restarts: AtomicU64::new(0),
                nudge_waker: nudge.clone().into(),
                nudge,
                me: me.clone(),
            }
        }))
    }

    pub(crate) fn task(&self) -> &str {
        &self.settings.task
    }

    /// The error of a child that uses its parent's attachment.
    #[inline]
    pub(crate) fn check_fork(&self) -> Result<(), Error> {
        if self.mark.forked() {
            return Err(Error::invalid(format!(
                "this process was forked after it attached as {}: attach again in the child, under another task's name",
                self.task()
            )));
        }
        Ok(())
    }

    /// True in a forked child; the attachment is then never dropped, since its locks may be held by threads that do not exist here.
    pub(crate) fn abandon_if_forked(&self) -> bool {
        let forked = self.mark.forked();
        if forked {
            std::mem::forget(self.me.upgrade());
        }
        forked
    }

    /// Memory from the arena.
    ///
    /// # Errors
    /// ResourceExhausted if there is no room, and as attaching again fails.
    pub(crate) fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        let arena = self.arena(Tick::now(), None)?;
        if let Some(buffer) = arena.allocate(len) {
            return Ok(buffer);
        }
        // Answers that free memory may still be waiting in the rings.
        self.lock().pump();
        arena.allocate(len).ok_or_else(|| no_room(&arena, len))
    }

    /// The error of a tensor that the arena has no room for.
    fn no_room(&self, len: usize) -> Error {
        match &self.lock().line {
            Line::Up(link) => no_room(&link.arena, len),
            line => submit::down(line),
        }
    }

    /// Shards of the daemon; 1 while there is none, and in a forked child.
    pub(crate) fn shards(&self) -> usize {
        if self.mark.forked() {
            return 1;
        }
        match &self.lock().line {
            Line::Up(link) => link.segments().into(),
            Line::Lost(_) | Line::Ended(_) => 1,
        }
    }

    /// The addresses of the arena.
    ///
    /// # Errors
    /// As attaching again fails.
    pub(crate) fn arena_range(&self) -> Result<Range<*const u8>, Error> {
        Ok(self.arena(Tick::now(), None)?.range())
    }

    /// Size of a shard's receive area.
    ///
    /// # Errors
    /// As attaching again fails.
    pub(crate) fn area_bytes(&self) -> Result<u64, Error> {
        Ok(self.up(Tick::now(), None)?.link().area_bytes(0))
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn open_lane(&self, peer: &str, given: GivenLane) {
        let mut held = self.lock();
        // Time plays no part: what is slow is not asked of a daemon that nobody drives.
        held.driver.is_the_caller();
        let State { line: Line::Up(link), calls, .. } = &mut *held else { return };
        link.open_lane(peer.into(), given, calls, (self.task(), self.mark.clone(), self.me.clone()));
        self.channels.changes(true);
    }

    /// Tasks to whose processes this one has a direct lane that both ends read.
    pub(crate) fn direct_peers(&self) -> Vec<String> {
        match &self.lock().line {
            Line::Up(link) => link.direct.peers(),
            Line::Lost(_) | Line::Ended(_) => Vec::new(),
        }
    }

    /// Pins the arena with the CUDA driver, unless that was tried; does not wait for a daemon.
    ///
    /// # Errors
    /// Why it does not.
    #[cfg(feature = "cuda")]
    pub(crate) fn pin_once(&self, device: usize) -> Result<(), Error> {
        let arena = match &self.lock().line {
            Line::Up(link) => link.arena.clone(),
            line => return Err(submit::down(line)),
        };
        arena.pin(device, false)
    }

    /// Pins the arena with the CUDA driver.
    ///
    /// # Errors
    /// Why it does not, or as attaching again fails.
    #[cfg(feature = "cuda")]
    pub(crate) fn pin(&self, device: usize) -> Result<(), Error> {
        self.arena(Tick::now(), None)?.pin(device, true)
    }

    /// Makes sure that there is a daemon that takes calls; waits for one that is being restarted.
    ///
    /// # Errors
    /// As attaching again fails.
    pub(crate) fn wait_for_daemon(&self, timeout: Option<Duration>) -> Result<(), Error> {
        self.up(Tick::now(), timeout).map(drop)
    }

    fn arena(&self, now: Tick, timeout: Option<Duration>) -> Result<Arc<Arena>, Error> {
        let held = self.up(now, timeout)?;
        Ok(held.link().arena.clone())
    }

    /// The caller gives up a call; `cancel` tells the daemon to stop as well.
    pub(crate) fn forsake(&self, call: u32, cancel: bool) {
        if self.abandon_if_forked() {
            return;
        }
        let mut held = self.lock();
        if cancel {
            // What came for it may hold memory that others wait for.
            held.pump();
        }
        let State { calls, aftermath, line, .. } = &mut *held;
        let borrows = calls.borrows(call);
        if let (Some(segment), true, Line::Up(link)) = (calls.forsake(call, cancel, aftermath), cancel, line) {
            let cancelled = link.cancel(segment, call);
            link.ring();
            if let Err(fault) = cancelled {
                held.lose(&fault);
            }
            if borrows {
                held.wait_for_release(segment, call);
            }
        }
        held.cancel_those_set_aside();
    }

    /// Closes the attachment after the last clone of the task: says goodbye, and ends the calls that are left. The shards may be using what
    /// these have lent: waits until the daemon hangs up, which it does when they have let go. What is still
    /// lent after `LET_GO_MAX` stays so.
    pub(crate) fn close(&self) {
        if self.abandon_if_forked() {
            return;
        }
        let areas = match &self.lock().line {
            Line::Up(link) => link.segments.iter().map(|segment| segment.area.clone()).collect(),
            Line::Lost(_) | Line::Ended(_) => Vec::new(),
        };
        areas.iter().for_each(|area| area.keep_views());
        let mut held = self.lock();
        held.pump();
        held.closing = true;
        if let Line::Up(link) = &mut held.line {
            link.tell_what_went();
        }
        held.tell_elsewhere(true);
        held.wait_for_backlog();
        if let Line::Up(link) = &mut held.line {
            link.detach();
            if held.calls.lend_memory() {
                held.wait_for_hang_up();
            }
        }
        held.end(Line::Ended(dropped()), false);
    }
}

impl Freed for Attachment {
    fn freed(&self, many: bool) {
        // ASLEEP: see `Area::has_piled`. While somebody is awake, the next look gives them back.
        if !many && !self.asleep.load(Ordering::SeqCst) {
            return;
        }
        // Whoever releases the lock gives the blocks back. That may be this very thread, so do not wait for it; but another one that
        // has already checked releases the lock in a moment.
        self.owes_chores.store(true, Ordering::SeqCst);
        for _ in 0..LETTING_GO_SPINS {
            drop(self.try_lock());
            if !self.owes_chores.load(Ordering::SeqCst) {
                return;
            }
            std::hint::spin_loop();
        }
    }
}

/// The error of calls whose task was dropped.
fn dropped() -> Error {
    Error::unavailable("this attachment", "its task was dropped")
}

fn no_room(arena: &Arena, wanted: usize) -> Error {
    let (size, free) = arena.size_and_free();
    let (why, first) = match wanted as u64 {
        wanted if wanted > size => (format!("the arena has {size} bytes"), ""),
        wanted if wanted > free => {
            (format!("{free} of the arena's {size} are free"), "drop tensors that are done with, or ")
        }
        _ => (
            format!("{free} of the arena's {size} are free, but not in one piece"),
            "drop tensors that are done with, or ",
        ),
    };
    let reason = format!(
        "{wanted} bytes were wanted, and {why}: {first}attach with a larger arena (arena_bytes of attach() in Python, of \
         Attach in Rust, of sealane_attach_options in C)"
    );
    Error::full("client arena_bytes", reason)
}
