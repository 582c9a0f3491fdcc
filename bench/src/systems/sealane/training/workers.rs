//! Many workers in one thread, each with a session over its own socket to every ps. All sockets are in one epoll set, which is
//! polled, or waited for with polling off. In a fan-in they make no steps, but request each tensor again. Bounded by the plan's
//! workers and ps.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::epoll::{EpollFlags, EpollTimeout};
use sealane_runtime::earliest;

use super::super::engine::NAME;
use super::pair::{Ended, Pair, QUIET_TIME, Tensors};
use crate::error::BenchError;
use crate::figures::Metric;
use crate::limits::STALL_LIMIT;
use crate::plan::{Fuse, Mode, Plan, Training};
use crate::process::Interface;
use crate::system::Client;
use crate::systems::client::slowest_share;
use crate::systems::crowd::Crowd;
use crate::systems::sockets::{Poller, at_most};
use crate::systems::training::{self, Moved, StepLog};

struct Worker {
    /// The number of its next step.
    step: i64,
    steps_left: u64,
    began: Instant,
    /// The number of ps whose tensors of this step are missing, and of those that have not taken its gradients.
    to_pull: usize,
    to_push: usize,
}

pub(in super::super) struct Workers {
    poller: Poller,
    training: Training,
    workers: Vec<Worker>,
    /// The pairs of worker 0 with every ps, then those of worker 1, and so on.
    pairs: Vec<Pair>,
    /// Workers that compute, and until when, in the order of time.
    computing: VecDeque<(Instant, usize)>,
    /// Pairs whose recvs wait for tensors sent ahead, and since when.
    quiet: VecDeque<(Instant, usize)>,
    /// Number of workers that have steps to make.
    busy: usize,
    /// For a fan-in: pairs at which tensors arrived in the last look with their number, and the number at each since they were last
    /// counted.
    came: Vec<(usize, usize)>,
    arrived: Vec<u64>,
    /// Like `came`, for tensors that had arrived before they were wanted: for the next look.
    at_once: Vec<(usize, usize)>,
    /// Growth of the other process's resident memory for each pair, when all had greeted and requested nothing.
    pub(super) resident_bytes_each: f64,
    /// The interface of all sockets.
    interface: Interface,
}

impl Workers {
    /// Takes over sockets that have greeted: those of all workers with one ps, then with the next.
    pub(super) fn new(
        connected: Vec<Crowd>,
        plan: &Plan,
        (resident_bytes_each, interface): (f64, Interface),
    ) -> Result<Self, BenchError> {
        let poller = Poller::new()?;
        let training = training::of(plan).clone();
        let tensors = |share| Tensors::new(share).map(Rc::new);
        let shares = training::shares(plan).map(tensors).collect::<Result<Vec<_>, _>>()?;
        let mut sockets: Vec<_> = connected.into_iter().map(Crowd::into_sockets).collect();
        let mut pairs = Vec::with_capacity(training.pairs());
        for _ in 0..training.size.workers {
            for (ps, (sockets, share)) in sockets.iter_mut().zip(&shares).enumerate() {
                let socket = sockets.next().expect("every worker was welcomed by every ps");
                socket.0.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
                let pair = Pair::new(socket, (ps, training.size.ps), share.clone(), training.variants[0])?;
                poller.watch(pair.socket(), pairs.len(), EpollFlags::EPOLLIN)?;
                pairs.push(pair);
            }
        }
        let began = Instant::now();
        let worker = |_| Worker { step: 0, steps_left: 0, began, to_pull: 0, to_push: 0 };
        let workers = (0..training.size.workers).map(worker).collect();
        let (came, arrived) = (Vec::new(), vec![0; pairs.len()]);
        let (computing, quiet) = (VecDeque::new(), VecDeque::new());
        Ok(Self {
            poller,
            training,
            workers,
            pairs,
            computing,
            quiet,
            busy: 0,
            came,
            arrived,
            at_once: Vec::new(),
            resident_bytes_each,
            interface,
        })
    }

    /// Answers pings for `length`, for workers that want nothing.
    pub(in super::super) fn attend(&mut self, length: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + length;
        while let left = end.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            for number in 0..self.poller.look(at_most(left))? {
                let (place, now) = (self.poller.reported(number).0, Instant::now());
                self.pairs[place].hear(now)?;
                self.send(place, now)?;
            }
        }
        Ok(())
    }

    fn pairs_of(&self, worker: usize) -> std::ops::Range<usize> {
        worker * self.training.size.ps..(worker + 1) * self.training.size.ps
    }

    /// Whether nothing is pushed before everything was pulled.
    fn waits_for_all(&self) -> bool {
        self.training.compute_us > 0 || self.training.variants[0].fuse == Fuse::ReceiveWaitAll
    }

    fn begin_step(&mut self, worker: usize, now: Instant, log: &mut StepLog) -> Result<(), BenchError> {
        let (ps, mode) = (self.training.size.ps, self.training.mode);
        let one = &mut self.workers[worker];
        (one.began, one.to_pull, one.to_push) = (now, ps, ps);
        let step = one.step;
        one.step += 1;
        for place in self.pairs_of(worker) {
            let min_version = if mode == Mode::Sync { step } else { 0 };
            self.pairs[place].pull(now, min_version)?;
            if self.pairs[place].has_pulled() {
                self.pulled(place, now, log)?;
            }
            self.wants(place, now)?;
        }
        Ok(())
    }

    /// Called when a ps's tensors have arrived.
    fn pulled(&mut self, place: usize, now: Instant, log: &mut StepLog) -> Result<(), BenchError> {
        let worker = place / self.training.size.ps;
        self.workers[worker].to_pull -= 1;
        if !self.waits_for_all() {
            return self.push(place, now, log);
        }
        if self.workers[worker].to_pull > 0 {
            return Ok(());
        }
        if self.training.compute_us > 0 {
            self.computing.push_back((now + Duration::from_micros(self.training.compute_us), worker));
            return Ok(());
        }
        self.push_all(worker, now, log)
    }

    fn push_all(&mut self, worker: usize, now: Instant, log: &mut StepLog) -> Result<(), BenchError> {
        for place in self.pairs_of(worker) {
            self.push(place, now, log)?;
            self.send(place, now)?;
        }
        Ok(())
    }

    fn push(&mut self, place: usize, now: Instant, log: &mut StepLog) -> Result<(), BenchError> {
        if self.pairs[place].push(now)? { self.pushed(place, now, log) } else { Ok(()) }
    }

    /// Called when a ps has taken the gradients.
    fn pushed(&mut self, place: usize, now: Instant, log: &mut StepLog) -> Result<(), BenchError> {
        let worker = place / self.training.size.ps;
        let one = &mut self.workers[worker];
        one.to_push -= 1;
        if one.to_push > 0 {
            return Ok(());
        }
        log.completed(worker, one.began, now);
        one.steps_left -= 1;
        if one.steps_left > 0 {
            return self.begin_step(worker, now, log);
        }
        self.busy -= 1;
        Ok(())
    }

    /// Called when a pair has been told what to pull.
    fn wants(&mut self, place: usize, now: Instant) -> Result<(), BenchError> {
        if self.pairs[place].is_quiet() {
            self.quiet.push_back((now, place));
        }
        self.send(place, now)
    }

    /// Requests what was not sent ahead in time.
    fn ask_at_last(&mut self, now: Instant) -> Result<(), BenchError> {
        while let Some((_, place)) = self.quiet.pop_front_if(|(since, _)| now >= *since + QUIET_TIME) {
            self.pairs[place].ask_at_last(now)?;
            self.send(place, now)?;
        }
        Ok(())
    }

    fn send(&mut self, place: usize, now: Instant) -> Result<(), BenchError> {
        let pair = &mut self.pairs[place];
        if !pair.send(now)? {
            return Ok(());
        }
        let flags = if pair.is_blocked { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN };
        self.poller.watch_for(pair.socket(), place, flags)
    }

    /// Looks once at all sockets; true if any had something.
    fn turn(&mut self, log: &mut StepLog) -> Result<bool, BenchError> {
        let count = self.poller.look(self.patience())?;
        let now = Instant::now();
        self.ask_at_last(now)?;
        while let Some(&(until, worker)) = self.computing.front()
            && until <= now
        {
            self.computing.pop_front();
            self.push_all(worker, now, log)?;
        }
        for number in 0..count {
            let (place, ready) = self.poller.reported(number);
            let now = Instant::now();
            // The end of the connection must be read as well: otherwise it would be reported forever.
            if ready != EpollFlags::EPOLLOUT {
                let ended = self.pairs[place].hear(now)?;
                if ended.pull {
                    self.pulled(place, now, log)?;
                }
                if ended.push {
                    self.pushed(place, now, log)?;
                }
            }
            self.send(place, now)?;
        }
        Ok(count > 0)
    }

    /// How long to wait for the epoll set.
    fn patience(&self) -> EpollTimeout {
        if self.training.variants[0].polling {
            return EpollTimeout::ZERO;
        }
        let computed = self.computing.front().map(|(until, _)| *until);
        let until = earliest([computed, self.quiet.front().map(|(since, _)| *since + QUIET_TIME)]);
        at_most(until.map_or(STALL_LIMIT, |until| until.saturating_duration_since(Instant::now())))
    }
}

impl Client for Workers {
    fn train(&mut self, steps: u64, log: &mut StepLog) -> Result<(), BenchError> {
        self.busy = self.workers.len();
        let mut moved = Instant::now();
        for worker in 0..self.workers.len() {
            self.workers[worker].steps_left = steps;
            self.begin_step(worker, Instant::now(), log)?;
        }
        while self.busy > 0 {
            if self.turn(log)? || !self.computing.is_empty() {
                moved = Instant::now();
            } else if moved.elapsed() >= STALL_LIMIT {
                return Err(BenchError::Stalled { system: NAME, waited: moved.elapsed() });
            }
        }
        Ok(())
    }

    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        Moved::through(&self.interface, self.pairs.iter().map(Pair::messages).sum())
    }

    fn ask(&mut self, _count: usize) -> Result<(), BenchError> {
        let (now, came) = (Instant::now(), std::mem::take(&mut self.came));
        if came.is_empty() {
            for place in 0..self.pairs.len() {
                let at_once = self.pairs[place].pull(now, 0)?;
                self.at_once.extend((at_once > 0).then_some((place, at_once)));
                self.wants(place, now)?;
            }
        }
        for (place, count) in came {
            self.arrived[place] += count as u64;
            let at_once = self.pairs[place].pull_again(now)?;
            self.at_once.extend((at_once > 0).then_some((place, at_once)));
            self.wants(place, now)?;
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        let began = Instant::now();
        self.came = std::mem::take(&mut self.at_once);
        while self.came.is_empty() {
            let count = self.poller.look(EpollTimeout::ZERO)?;
            let now = Instant::now();
            self.ask_at_last(now)?;
            for number in 0..count {
                let (place, ready) = self.poller.reported(number);
                let ended =
                    if ready == EpollFlags::EPOLLOUT { Ended::default() } else { self.pairs[place].hear(now)? };
                self.send(place, now)?;
                self.came.extend((ended.came > 0).then_some((place, ended.came)));
            }
            let waited = now - began;
            if waited >= STALL_LIMIT {
                return Err(BenchError::Stalled { system: NAME, waited });
            }
        }
        Ok(self.came.iter().map(|(_, count)| count).sum())
    }

    async fn end(&mut self) -> Result<(), BenchError> {
        self.came.clear();
        Ok(())
    }

    fn further(&mut self) -> Vec<(Metric, f64)> {
        let share = slowest_share(&self.arrived);
        self.arrived.fill(0);
        vec![share, (Metric::ResidentBytesPerPeer, self.resident_bytes_each)]
    }
}
