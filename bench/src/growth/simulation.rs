//! The simulation itself: messages pass from station to station in the order of virtual time. Owns the queues between them;
//! a worker has at most one message under way to or from each ps, so they hold at most workers × ps.
//!
//! Every station works in the order of arrival, so only the points where streams meet are events: a message that reaches a
//! ps host or a worker host, and one that a worker host's NIC has taken in. What comes after such a point up to the next one
//! is computed at once, and exactly. Each queue is in the order of time by itself; a [`Race`] finds the earliest of their heads.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::clock::{Tick, draw, lognormal};
use super::race::{NEVER, Race};
use super::scene::{Kind, Leg, Scene};
use super::station::{Nic, Station};
use super::tally::{Flow, Tally, of_all};
use crate::plan::Mode;

/// What draws are for.
const START: u64 = 1;
const STRAGGLING: u64 = 2;

/// A message under way.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// When its first byte reaches the receiving NIC; in an inbox, when its last byte has been taken in.
    at: Tick,
    worker: u32,
    ps: u16,
    kind: Kind,
}

const _: () = assert!(size_of::<Message>() == 16, "millions of them are under way");

/// Messages in the order of their times.
type Queue = VecDeque<Message>;

#[derive(Debug, Default)]
struct WorkerHost {
    shard: Station,
    nic: Nic,
    /// Has left for ps hosts.
    outbox: Queue,
    /// Waits for the shard.
    inbox: Queue,
}

#[derive(Debug, Default)]
struct PsHost {
    shard: Station,
    nic: Nic,
    /// Has left for worker hosts.
    outbox: Queue,
}

#[derive(Clone, Copy, Debug)]
struct Worker {
    /// When its step began.
    began: Tick,
    /// Its steps that are done.
    steps: u32,
    /// Messages that it waits for.
    awaited: u32,
    /// What it sends next, or has sent.
    kind: Kind,
}

/// What synchronous steps need of a ps.
#[derive(Clone, Debug, Default)]
struct Barrier {
    /// Steps whose gradients are all in.
    version: u32,
    /// Gradients of the next step that are in.
    pushed: u32,
    /// Workers whose request waits for the next version.
    waiting: Vec<u32>,
}

/// Runs a scene until its counted steps are done.
pub(super) fn simulate(scene: &Scene) -> Tally {
    let mut simulation = Simulation::new(scene);
    while !simulation.is_over() {
        simulation.advance();
    }
    simulation.into_tally()
}

struct Simulation<'a> {
    scene: &'a Scene,
    race: Race,
    /// When each worker that is not waiting for messages sends again.
    timers: BinaryHeap<Reverse<(Tick, u32)>>,
    workers: Vec<Worker>,
    worker_hosts: Vec<WorkerHost>,
    ps_hosts: Vec<PsHost>,
    barriers: Vec<Barrier>,
    sent: Flow,
    received: Flow,
    /// Steps of all workers that are done.
    steps: u64,
    counting_since: Tick,
    now: Tick,
    durations: Vec<Tick>,
}

impl<'a> Simulation<'a> {
    fn new(scene: &'a Scene) -> Simulation<'a> {
        let machines = &scene.machines;
        let worker_hosts = machines.workers.div_ceil(machines.workers_per_host) as usize;
        let ps_hosts = scene.legs.len().div_ceil(machines.ps_per_host as usize);
        let idle = Worker { began: 0, steps: 0, awaited: 0, kind: Kind::Request };
        let mut simulation = Simulation {
            race: Race::new(1 + 2 * worker_hosts + ps_hosts),
            timers: BinaryHeap::with_capacity(machines.workers as usize),
            workers: vec![idle; machines.workers as usize],
            worker_hosts: std::iter::repeat_with(WorkerHost::default).take(worker_hosts).collect(),
            ps_hosts: std::iter::repeat_with(PsHost::default).take(ps_hosts).collect(),
            barriers: vec![Barrier::default(); scene.legs.len()],
            sent: Flow::default(),
            received: Flow::default(),
            steps: 0,
            counting_since: 0,
            now: 0,
            durations: Vec::with_capacity(scene.course.counted as usize),
            scene,
        };
        // They do not begin together: each somewhere in the time that a worker by itself takes.
        let alone = simulation.step_alone();
        for worker in 0..machines.workers {
            let share = draw(scene.course.seed, START, worker.into());
            simulation.timers.push(Reverse(((share * alone as f64) as Tick, worker)));
        }
        simulation.show_timers();
        simulation
    }

    /// What the shard of a worker by itself does in a step, and its compute time: a step takes longer.
    fn step_alone(&self) -> Tick {
        let of_one = |legs: &[Leg; 4]| legs[0].send + legs[1].receive + legs[2].send + legs[3].receive;
        self.scene.compute + self.scene.legs.iter().map(of_one).sum::<Tick>()
    }

    fn is_over(&self) -> bool {
        self.steps >= self.scene.course.warm_up + self.scene.course.counted
    }

    /// The next event.
    fn advance(&mut self) {
        let (now, source) = self.race.first();
        assert!(now != NEVER, "a worker that is not done always waits for something");
        self.now = now;
        let hosts = self.worker_hosts.len();
        match source {
            0 => self.worker_sends(),
            _ if source <= hosts => self.reaches_ps(source - 1),
            _ if source <= 2 * hosts => self.reaches_worker(source - 1 - hosts),
            _ => self.reaches_worker_host(source - 1 - 2 * hosts),
        }
    }

    fn outbox_of_worker_host(&self, host: usize) -> usize {
        1 + host
    }

    fn inbox_of_worker_host(&self, host: usize) -> usize {
        1 + self.worker_hosts.len() + host
    }

    fn outbox_of_ps_host(&self, host: usize) -> usize {
        1 + 2 * self.worker_hosts.len() + host
    }

    fn show_timers(&mut self) {
        self.race.set(0, self.timers.peek().map_or(NEVER, |Reverse((at, _))| *at));
    }

    /// A worker sends a message to each ps, at once. Each begins with another ps, as workers that do not know of each other do.
    fn worker_sends(&mut self) {
        let Some(Reverse((now, index))) = self.timers.pop() else { return };
        self.show_timers();
        let worker = &mut self.workers[index as usize];
        if worker.kind == Kind::Request {
            worker.began = now;
        }
        let kind = worker.kind;
        let ps_count = self.scene.legs.len();
        worker.awaited = ps_count as u32;
        let place = (index / self.scene.machines.workers_per_host) as usize;
        let host = &mut self.worker_hosts[place];
        let first = index as usize % ps_count;
        for ps in (first..ps_count).chain(0..first) {
            let leg = &self.scene.legs[ps][kind as usize];
            let ready = host.shard.work(now, leg.send);
            let leaves = host.nic.send(ready, leg.leave);
            self.sent.count(leg);
            host.outbox.push_back(Message { at: leaves + self.scene.propagation, worker: index, ps: ps as u16, kind });
        }
        let head = host.outbox.front().map_or(NEVER, |message| message.at);
        let source = self.outbox_of_worker_host(place);
        self.race.set(source, head);
    }

    /// A message reaches its ps's host, and is worked off up to where its reply leaves.
    fn reaches_ps(&mut self, from: usize) {
        let queue = &mut self.worker_hosts[from].outbox;
        let Some(message) = queue.pop_front() else { return };
        let head = queue.front().map_or(NEVER, |message| message.at);
        let source = self.outbox_of_worker_host(from);
        self.race.set(source, head);

        let ps = message.ps as usize;
        let leg = &self.scene.legs[ps][message.kind as usize];
        self.received.count(leg);
        let place = ps / self.scene.machines.ps_per_host as usize;
        let host = &mut self.ps_hosts[place];
        let taken_in = host.nic.receive(message.at, leg.arrive, leg.leave);
        host.shard.work(taken_in, leg.receive);
        if self.scene.course.mode == Mode::Sync {
            let barrier = &mut self.barriers[ps];
            if message.kind == Kind::Request && self.workers[message.worker as usize].steps > barrier.version {
                barrier.waiting.push(message.worker);
                return;
            }
            if message.kind == Kind::Push {
                barrier.pushed += 1;
                if barrier.pushed == self.scene.machines.workers {
                    (barrier.version, barrier.pushed) = (barrier.version + 1, 0);
                    // The reply to the last one leaves first, as it does where nobody waits.
                    self.reply(message.worker, ps, Kind::Push, taken_in);
                    let mut waiting = std::mem::take(&mut self.barriers[ps].waiting);
                    for worker in waiting.drain(..) {
                        self.reply(worker, ps, Kind::Request, taken_in);
                    }
                    self.barriers[ps].waiting = waiting;
                    return;
                }
            }
        }
        self.reply(message.worker, ps, message.kind, taken_in);
    }

    /// The ps's shard sends its reply as soon as it has done what it has.
    fn reply(&mut self, worker: u32, ps: usize, to: Kind, from: Tick) {
        let kind = to.reply();
        let leg = &self.scene.legs[ps][kind as usize];
        let place = ps / self.scene.machines.ps_per_host as usize;
        let host = &mut self.ps_hosts[place];
        let ready = host.shard.work(from, leg.send);
        let leaves = host.nic.send(ready, leg.leave);
        self.sent.count(leg);
        let at = leaves + self.scene.propagation;
        host.outbox.push_back(Message { at, worker, ps: ps as u16, kind });
        if host.outbox.len() == 1 {
            let source = self.outbox_of_ps_host(place);
            self.race.set(source, at);
        }
    }

    /// A reply reaches its worker's host, whose NIC takes it in.
    fn reaches_worker_host(&mut self, from: usize) {
        let queue = &mut self.ps_hosts[from].outbox;
        let Some(message) = queue.pop_front() else { return };
        let head = queue.front().map_or(NEVER, |message| message.at);
        let source = self.outbox_of_ps_host(from);
        self.race.set(source, head);

        let leg = &self.scene.legs[message.ps as usize][message.kind as usize];
        let place = (message.worker / self.scene.machines.workers_per_host) as usize;
        let host = &mut self.worker_hosts[place];
        let at = host.nic.receive(message.at, leg.arrive, leg.leave);
        host.inbox.push_back(Message { at, ..message });
        if host.inbox.len() == 1 {
            let source = self.inbox_of_worker_host(place);
            self.race.set(source, at);
        }
    }

    /// The shard of a worker's host gets a reply from its NIC; the last one ends what the worker waits for.
    fn reaches_worker(&mut self, place: usize) {
        let host = &mut self.worker_hosts[place];
        let Some(message) = host.inbox.pop_front() else { return };
        let leg = &self.scene.legs[message.ps as usize][message.kind as usize];
        let done = host.shard.work(message.at, leg.receive);
        let head = host.inbox.front().map_or(NEVER, |message| message.at);
        let source = self.inbox_of_worker_host(place);
        self.race.set(source, head);
        self.received.count(leg);

        let worker = &mut self.workers[message.worker as usize];
        worker.awaited -= 1;
        if worker.awaited > 0 {
            return;
        }
        let sends_again = match worker.kind {
            Kind::Request => {
                worker.kind = Kind::Push;
                let (seed, which) = (self.scene.course.seed, u64::from(worker.steps) << 32 | u64::from(message.worker));
                done + compute_time(self.scene.compute, self.scene.course.sigma, seed, which)
            }
            _ => {
                worker.kind = Kind::Request;
                worker.steps += 1;
                let took = done - worker.began;
                self.step_ends(took);
                done
            }
        };
        self.timers.push(Reverse((sends_again, message.worker)));
        self.show_timers();
    }

    fn step_ends(&mut self, took: Tick) {
        self.steps += 1;
        let warm_up = self.scene.course.warm_up;
        if self.steps > warm_up {
            self.durations.push(took);
        }
        if self.steps == warm_up {
            self.counting_since = self.now;
            let now = self.now;
            for host in &mut self.worker_hosts {
                host.shard.count_from(now);
                host.nic.count_from(now);
            }
            for host in &mut self.ps_hosts {
                host.shard.count_from(now);
                host.nic.count_from(now);
            }
        }
    }

    fn into_tally(mut self) -> Tally {
        self.durations.sort_unstable();
        let (now, length) = (self.now, (self.now - self.counting_since).max(1));
        let share = |worked: Tick| (worked as f64 / length as f64).min(1.0);
        Tally {
            length,
            steps: self.durations.len() as u64,
            worker_cpu: of_all(self.worker_hosts.iter().map(|host| share(host.shard.worked_by(now)))),
            worker_nic: of_all(self.worker_hosts.iter().map(|host| share(host.nic.worked_by(now)))),
            ps_cpu: of_all(self.ps_hosts.iter().map(|host| share(host.shard.worked_by(now)))),
            ps_nic: of_all(self.ps_hosts.iter().map(|host| share(host.nic.worked_by(now)))),
            durations: self.durations,
            sent: self.sent,
            received: self.received,
        }
    }
}

/// The compute time of a step.
fn compute_time(mean: Tick, sigma: f64, seed: u64, which: u64) -> Tick {
    if sigma == 0.0 {
        return mean;
    }
    let factor = lognormal(sigma, draw(seed, STRAGGLING, which), draw(seed, STRAGGLING + 1, which));
    (mean as f64 * factor) as Tick
}

#[cfg(test)]
mod tests;
