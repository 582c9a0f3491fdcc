//! The reactor: the task that takes a shard's turns, and sleeps when the policy says so. The shard's thread runs it;
//! the constants of `limits` bound each of its steps.
//!
//! An idle turn checks epoll too, even though hot links do not need it: reading a socket in the tightest loop takes its lock from
//! the very softirq that delivers to it (a writer's `send` costs 3.9 µs against a reader that never pauses, 1.3 µs against one that
//! pauses for a hundred empty loops). Without that check the 64 B round trip went from 1.14 to 1.18 times the raw one.

use std::{
    future::poll_fn,
    sync::Arc,
    task::Poll,
    time::{Duration, Instant},
};

use crate::{
    alarm::Alarm,
    error::RuntimeError,
    executor::{Wait, yield_now},
    idleness::{Idleness, Next},
    limits::{EPOLL_EVERY, EPOLL_EVERY_PEEKING, JOBS_PER_TURN, PEEKS, SOURCE_BUDGET, STOP_ROUNDS, TIMERS_PER_TURN},
    load::LoadMeter,
    mailbox::Mailbox,
    polling::Polling,
    readiness::Report,
    shard::Shard,
    source::{SourceId, SourceTable},
    stall::{Lap, StallWatch},
    task::contain,
};

pub(crate) struct Reactor {
    shard: Shard,
    mailbox: Arc<Mailbox>,
    sources: SourceTable,
    reports: Vec<Report>,
    turns_since_look: u32,
    /// True if the last peek found sources with memory to peek at.
    peeking: bool,
    idleness: Idleness,
    stalls: StallWatch,
    load: LoadMeter,
    wait: Wait,
    alarm: Alarm,
}

impl Reactor {
    pub(crate) fn new(
        shard: Shard,
        wait: Wait,
        polling: Polling,
        stall_report: Duration,
    ) -> Result<Self, RuntimeError> {
        let alarm = Alarm::new()?;
        let mailbox = Arc::clone(&shard.mailbox().0);
        let load = LoadMeter::new(shard.mailbox().load(), Instant::now());
        shard.0.epoll.watch_own(&alarm)?;
        shard.0.epoll.watch_own(mailbox.doorbell())?;
        Ok(Self {
            shard,
            mailbox,
            sources: SourceTable::default(),
            reports: Vec::new(),
            turns_since_look: 0,
            peeking: false,
            idleness: Idleness::new(polling),
            stalls: StallWatch::new(stall_report, Instant::now()),
            load,
            wait,
            alarm,
        })
    }

    /// Takes turns until the shard is asked to stop, then ends its tasks and drops its sources.
    pub(crate) async fn run(mut self) {
        while !self.mailbox.stop_asked() {
            let worked = self.turn();
            match self.idleness.after_turn(worked, self.shard.now()) {
                Next::Park if self.try_sleep() => self.park().await,
                Next::Yield => {
                    std::thread::yield_now();
                    yield_now().await;
                }
                // Every runnable task runs once before the next turn: the executor's queue is first in, first out.
                _ => yield_now().await,
            }
        }
        self.end().await;
    }

    /// One pass over everything that can have work; true if any had.
    fn turn(&mut self) -> bool {
        let now = Instant::now();
        self.shard.0.now.set(now);
        let notified = self.shard.0.notified.replace(false);
        self.load.turn_begins(now, notified, self.shard.0.set_up_until.get());
        self.lap(now, "a task, or a source that found no work");

        let mut work = self.change_sources();
        work += self.run_jobs();
        work += self.shard.0.timers.fire(now, TIMERS_PER_TURN);
        work += self.poll_sources();
        if work == 0 {
            work += self.peek();
        }
        self.turns_since_look += 1;
        let look_every = match (self.peeking, work) {
            (true, _) => EPOLL_EVERY_PEEKING,
            (false, 0) => 1,
            (false, _) => EPOLL_EVERY,
        };
        if self.turns_since_look >= look_every {
            work += self.look();
        }
        if work > 0 {
            self.load.turn_worked();
        }
        work > 0 || notified
    }

    /// Peeks at the memory of sources for a while, and polls the first that has work: so an idle turn ends with the work that
    /// arrived meanwhile.
    fn peek(&mut self) -> usize {
        self.peeking = false;
        for (id, source) in self.sources.iter_mut() {
            let look = || {
                for _ in 0..PEEKS {
                    match source.peek() {
                        Some(true) => return Some(source.poll(&self.shard, SOURCE_BUDGET)),
                        Some(false) => {}
                        None => return None,
                    }
                }
                Some(0)
            };
            match guard(&self.shard, id, look) {
                Some(None) => {}
                Some(Some(0)) => self.peeking = true,
                Some(Some(work)) => {
                    self.peeking = true;
                    return work;
                }
                None => return 1,
            }
        }
        0
    }

    /// Applies queued changes to the sources; returns 1 if there were any, as an amount of work.
    fn change_sources(&mut self) -> usize {
        let mut changed = 0;
        while self.shard.0.sources.any() {
            let removed = self.sources.apply(&self.shard.0.sources);
            contain(&self.shard, "dropping a source", || drop(removed));
            changed = 1;
        }
        changed
    }

    /// Runs the jobs and wake-ups that other threads sent.
    fn run_jobs(&mut self) -> usize {
        let woken = self.mailbox.take_woken();
        for task in &woken {
            self.shard.0.tasks.wake_posted(*task);
        }
        let mut ran = 0;
        while ran < JOBS_PER_TURN
            && let Some(job) = self.mailbox.pop()
        {
            contain(&self.shard, "a job", || job(&self.shard));
            ran += 1;
        }
        if ran > 0 {
            self.station("a job");
        }
        woken.len() + ran
    }

    fn poll_sources(&mut self) -> usize {
        let mut work = 0;
        for (id, source) in self.sources.iter_mut() {
            let poll = || {
                let done = source.poll(&self.shard, SOURCE_BUDGET);
                (done, (done > 0).then(|| source.name()))
            };
            match guard(&self.shard, id, poll) {
                Some((_, None)) => {}
                Some((done, Some(name))) => {
                    work += done;
                    if self.stalls.is_on() {
                        let now = Instant::now();
                        report(&self.shard, &mut self.stalls, now, name);
                    }
                }
                None => work += 1,
            }
        }
        work
    }

    /// Asks the kernel, without waiting, which descriptors are ready, and tells their sources.
    fn look(&mut self) -> usize {
        self.turns_since_look = 0;
        let mut reports = std::mem::take(&mut self.reports);
        self.shard.0.epoll.look(&mut reports);
        let work = reports.len();
        if work > 0 {
            // A source that was added in this turn may already have been reported.
            self.change_sources();
            for (id, token, readiness) in reports.drain(..) {
                if let Some(source) = self.sources.get_mut(id) {
                    guard(&self.shard, id, || source.ready(token, readiness));
                }
            }
        }
        self.reports = reports;
        work
    }

    /// Prepares all sources for sleep. Returns false, with all awake again, if one has work after all.
    fn try_sleep(&mut self) -> bool {
        let mut due = self.shard.0.timers.next_deadline();
        for (id, source) in self.sources.iter() {
            let ask = || (source.has_work(), source.next_timeout());
            match guard(&self.shard, id, ask) {
                Some((false, timeout)) => due = due.into_iter().chain(timeout).min(),
                _ => return false,
            }
        }
        if due.is_some_and(|due| !self.alarm.set(Instant::now(), due)) {
            return false;
        }
        let mut asked = 0;
        let willing = self.sources.iter_mut().all(|(id, source)| {
            asked += 1;
            guard(&self.shard, id, || source.try_sleep()) == Some(true)
        });
        let state = &self.shard.0;
        let idle = willing && !state.notified.get() && !state.sources.any() && self.mailbox.try_sleep();
        if !idle {
            self.wake_sources(asked);
        }
        idle
    }

    fn wake_sources(&mut self, count: usize) {
        for (id, source) in self.sources.iter_mut().take(count) {
            guard(&self.shard, id, || source.wake());
        }
    }

    /// Sleeps until the epoll set reports something or a task of this shard calls `notify`.
    async fn park(&mut self) {
        self.load.falls_asleep(Instant::now(), self.shard.0.set_up_until.get());
        let state = &*self.shard.0;
        state.parked.set(true);
        let mut registered = false;
        let outcome = poll_fn(|context| {
            if !registered {
                *state.reactor.borrow_mut() = Some(context.waker().clone());
                registered = true;
            }
            if state.notified.get() {
                return Poll::Ready(Ok(()));
            }
            self.wait.poll(&state.epoll, context)
        })
        .await;
        state.parked.set(false);
        self.mailbox.awake();
        if let Err(error) = outcome {
            // Without a descriptor to wait with, the shard can only go on polling.
            tracing::warn!(shard = state.index, %error, "the shard cannot sleep");
            yield_now().await;
        }
        let now = Instant::now();
        self.stalls.slept(now);
        self.load.wakes(now);
        self.alarm.awake(now);
        self.wake_sources(usize::MAX);
        self.look();
    }

    fn station(&mut self, culprit: &'static str) {
        if self.stalls.is_on() {
            self.lap(Instant::now(), culprit);
        }
    }

    fn lap(&mut self, now: Instant, culprit: &'static str) {
        report(&self.shard, &mut self.stalls, now, culprit);
    }

    /// Drops tasks, then sources, then the jobs that other threads still wait for.
    async fn end(mut self) {
        self.mailbox.close();
        let tasks = &self.shard.0.tasks;
        tasks.end_all();
        for _ in 0..STOP_ROUNDS {
            if tasks.live() == 0 {
                break;
            }
            yield_now().await;
            // Tasks that were not waiting yet at the first call are now, if they still exist.
            tasks.end_all();
        }
        if tasks.live() > 0 {
            tracing::warn!(shard = self.shard.index(), tasks = tasks.live(), "tasks outlive the shard");
        }
        self.change_sources();
        let sources = self.sources.clear();
        contain(&self.shard, "a source", || drop(sources));
        self.shard.0.reactor.borrow_mut().take();
    }
}

/// Ends a lap of the stall watch, and counts and logs what it found.
fn report(shard: &Shard, stalls: &mut StallWatch, now: Instant, culprit: &'static str) {
    let lap = stalls.lap(now, shard.0.set_up_until.get());
    if lap == Lap::Fine {
        return;
    }
    shard.mailbox().0.load().count_stall();
    if let Lap::Report(stall) = lap {
        let shard = shard.index();
        let (lasted, unreported) = (stall.lasted, stall.unreported);
        tracing::warn!(shard, ?lasted, culprit, unreported, "the shard took no turn for too long");
    }
}

/// Calls a source; one that panics is removed, because nobody knows what state it is in.
fn guard<T>(shard: &Shard, id: SourceId, call: impl FnOnce() -> T) -> Option<T> {
    let answer = contain(shard, "a source", call);
    if answer.is_none() {
        shard.0.sources.remove(id);
    }
    answer
}
