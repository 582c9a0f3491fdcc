//! The simulation itself: messages pass from station to station in the order of virtual time. Owns the queues between them;
//! a worker has at most one message in flight to or from each ps, so they hold at most workers × ps.
//!
//! Every station works in the order of arrival, so only the points where streams meet are events: a message that reaches a
//! ps host or a worker host, and one that a worker host's NIC has taken in. What comes after such a point up to the next one
//! is computed at once, and exactly. Each queue is in the order of time by itself, so only its head is in the heap of events.

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use sealane_transport::lane::{lane_by, shard_of};
use serde::Serialize;

use super::scene::{Kind, Leg, Scene};
use super::station::{Nic, Station, TICKS_PER_SECOND, Tick, as_ms, draw, lognormal};
use crate::plan::Mode;
use crate::spread::rounded;

/// What draws are for.
const START: u64 = 1;
const STRAGGLING: u64 = 2;
/// Two draws each: the next is 4.
const LANE: u64 = 4;

/// A message in flight.
#[derive(Clone, Copy, Debug)]
struct Message {
    /// When its first byte reaches the receiving NIC; in an inbox, when its last byte has been taken in.
    at: Tick,
    worker: u32,
    ps: u16,
    kind: Kind,
}

const _: () = assert!(size_of::<Message>() == 16, "millions of them are under way");

/// An event: its time, its source, and the worker whose time has come. Of equal times the source with the lower number is the
/// first, so that runs repeat exactly. Source 0 is the workers' own clocks; the others are the queues, see [`Simulation::queues`].
type Event = Reverse<(Tick, usize, u32)>;

const CLOCKS: usize = 0;

#[derive(Clone, Debug, Default)]
struct Host {
    shards: Vec<Station>,
    nic: Nic,
}

impl Host {
    fn new(shards: u32) -> Host {
        Host { shards: vec![Station::default(); shards as usize], nic: Nic::default() }
    }

    /// Some of its shards get a part each at `from`. When the last is done.
    fn work(&mut self, shards: impl Iterator<Item = usize>, from: Tick, each: Tick) -> Tick {
        shards.map(|shard| self.shards[shard].work(from, each)).max().unwrap_or(from)
    }
}

/// The shards of a worker's host and of a ps's that carry a message, by its parts.
#[derive(Clone, Copy, Debug)]
struct Lanes {
    lane: u32,
    stripes: u32,
    worker_shards: usize,
    ps_shards: usize,
}

impl Lanes {
    fn new(scene: &Scene, worker: u32, ps: u16, kind: Kind) -> Lanes {
        let machines = &scene.machines;
        let drawn = || draw(scene.course.seed, LANE, u64::from(worker) << 16 | u64::from(ps));
        let is_one = machines.worker_shards == 1 && machines.ps_shards == 1;
        Lanes {
            lane: if is_one { 0 } else { (drawn() * f64::from(u32::MAX)) as u32 },
            stripes: machines.stripes_of(kind),
            worker_shards: machines.worker_shards as usize,
            ps_shards: machines.ps_shards as usize,
        }
    }

    /// As the engine chooses them: the pair's own, and those after it.
    fn at_worker(self) -> impl Iterator<Item = usize> {
        let own = shard_of(self.lane, self.worker_shards);
        (0..self.stripes as usize).map(move |stripe| (own + stripe) % self.worker_shards)
    }

    /// Where the lanes of these lead to.
    fn at_ps(self) -> impl Iterator<Item = usize> {
        self.at_worker().map(move |shard| shard_of(lane_by(self.lane, shard, self.worker_shards), self.ps_shards))
    }
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
    pushed: usize,
    /// Workers whose request waits for the next version.
    waiting: Vec<u32>,
}

/// A share for each kind of resource.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Shares {
    /// Shards of a ps.
    pub ps_cpu: f64,
    /// The NIC of a ps's host, in its busier direction.
    pub ps_nic: f64,
    /// Shards of a worker host.
    pub worker_cpu: f64,
    /// The NIC of a worker host, in its busier direction.
    pub worker_nic: f64,
}

/// What a simulation counted.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tally {
    /// How long was counted.
    length: Tick,
    /// How long each step of all workers took that ended meanwhile, the shortest first.
    pub(super) durations: Vec<Tick>,
    /// The share of the time in which the busiest of its kind worked, and the mean of its kind.
    pub(super) busiest: Shares,
    pub(super) mean: Shares,
}

impl Tally {
    pub(super) fn steps_per_second(&self) -> f64 {
        self.durations.len() as f64 * TICKS_PER_SECOND / self.length as f64
    }

    /// The step time that this share of all steps does not exceed, in milliseconds.
    pub(super) fn step_ms(&self, quantile: f64) -> f64 {
        let rank = (quantile * self.durations.len() as f64).ceil() as usize;
        self.durations.get(rank.saturating_sub(1)).copied().map_or(0.0, as_ms)
    }
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
    events: BinaryHeap<Event>,
    workers: Vec<Worker>,
    worker_hosts: Vec<Host>,
    ps_hosts: Vec<Host>,
    /// What has left each worker host for the ps; what waits for each worker host's shard; what has left each ps host for the
    /// workers. Each in the order of its messages' times.
    queues: Vec<VecDeque<Message>>,
    barriers: Vec<Barrier>,
    /// Steps of all workers that are done.
    steps: u64,
    counting_since: Tick,
    now: Tick,
    durations: Vec<Tick>,
}

impl<'a> Simulation<'a> {
    fn new(scene: &'a Scene) -> Simulation<'a> {
        let machines = &scene.machines;
        let workers = machines.size.workers;
        let worker_hosts = workers.div_ceil(machines.workers_per_host);
        let ps_hosts = scene.legs.len().div_ceil(machines.ps_per_host);
        let idle = Worker { began: 0, steps: 0, awaited: 0, kind: Kind::Request };
        // They do not begin together: each somewhere in the time that a worker by itself takes, which is what its shard does in
        // a step and its compute time.
        let of_one = |legs: &[Leg; 4]| legs[0].send + legs[1].receive + legs[2].send + legs[3].receive;
        let alone = scene.compute + scene.legs.iter().map(of_one).sum::<Tick>();
        let begins = |worker: u32| (draw(scene.course.seed, START, worker.into()) * alone as f64) as Tick;
        Simulation {
            events: (0..workers as u32).map(|worker| Reverse((begins(worker), CLOCKS, worker))).collect(),
            workers: vec![idle; workers],
            worker_hosts: vec![Host::new(machines.worker_shards); worker_hosts],
            ps_hosts: vec![Host::new(machines.ps_shards); ps_hosts],
            queues: vec![VecDeque::new(); 2 * worker_hosts + ps_hosts],
            barriers: vec![Barrier::default(); scene.legs.len()],
            steps: 0,
            counting_since: 0,
            now: 0,
            durations: Vec::with_capacity(scene.counted as usize),
            scene,
        }
    }

    fn is_over(&self) -> bool {
        self.steps >= self.scene.warm_up + self.scene.counted
    }

    /// The next event.
    fn advance(&mut self) {
        let Reverse((now, source, worker)) =
            self.events.pop().expect("a worker that is not done always waits for something");
        self.now = now;
        if source == CLOCKS {
            return self.worker_sends(now, worker);
        }
        let (queue, hosts) = (source - 1, self.worker_hosts.len());
        let message = self.queues[queue].pop_front().expect("a queue's event is that of its head");
        if let Some(next) = self.queues[queue].front() {
            self.events.push(Reverse((next.at, source, 0)));
        }
        match queue / hosts {
            0 => self.reaches_ps(message),
            1 => self.reaches_worker(queue - hosts, message),
            _ => self.reaches_worker_host(message),
        }
    }

    fn push(&mut self, queue: usize, message: Message) {
        if self.queues[queue].is_empty() {
            self.events.push(Reverse((message.at, queue + 1, 0)));
        }
        self.queues[queue].push_back(message);
    }

    fn leg(&self, message: &Message) -> Leg {
        self.scene.legs[message.ps as usize][message.kind as usize]
    }

    fn host_of(&self, worker: u32) -> usize {
        worker as usize / self.scene.machines.workers_per_host
    }

    /// A worker sends a message to each ps, at once. Each begins with another ps, as workers that do not know of each other do.
    fn worker_sends(&mut self, now: Tick, index: u32) {
        let ps_count = self.scene.legs.len();
        let worker = &mut self.workers[index as usize];
        if worker.kind == Kind::Request {
            worker.began = now;
        }
        worker.awaited = ps_count as u32;
        let (kind, place, first) = (worker.kind, self.host_of(index), index as usize % ps_count);
        for ps in (first..ps_count).chain(0..first) {
            let leg = self.scene.legs[ps][kind as usize];
            let host = &mut self.worker_hosts[place];
            let ready = host.work(Lanes::new(self.scene, index, ps as u16, kind).at_worker(), now, leg.send);
            let at = host.nic.send(ready, leg.leave) + self.scene.propagation;
            self.push(place, Message { at, worker: index, ps: ps as u16, kind });
        }
    }

    /// A message reaches its ps's host, and is worked off up to where its reply leaves.
    fn reaches_ps(&mut self, message: Message) {
        let (leg, ps) = (self.leg(&message), message.ps as usize);
        let host = &mut self.ps_hosts[ps / self.scene.machines.ps_per_host];
        let taken_in = host.nic.receive(message.at, leg.arrive, leg.leave);
        host.work(Lanes::new(self.scene, message.worker, message.ps, message.kind).at_ps(), taken_in, leg.receive);
        let mut released = Vec::new();
        if self.scene.course.mode == Mode::Sync {
            let barrier = &mut self.barriers[ps];
            if message.kind == Kind::Request && self.workers[message.worker as usize].steps > barrier.version {
                barrier.waiting.push(message.worker);
                return;
            }
            barrier.pushed += usize::from(message.kind == Kind::Push);
            if barrier.pushed == self.scene.machines.size.workers {
                (barrier.version, barrier.pushed) = (barrier.version + 1, 0);
                released = std::mem::take(&mut barrier.waiting);
            }
        }
        // The reply to the last gradients leaves first, as it does where nobody waits.
        self.reply(message.worker, ps, message.kind, taken_in);
        for worker in released {
            self.reply(worker, ps, Kind::Request, taken_in);
        }
    }

    /// The ps's shards send their reply as soon as they have done what they have.
    fn reply(&mut self, worker: u32, ps: usize, to: Kind, from: Tick) {
        let kind = to.reply();
        let leg = self.scene.legs[ps][kind as usize];
        let place = ps / self.scene.machines.ps_per_host;
        let host = &mut self.ps_hosts[place];
        let ready = host.work(Lanes::new(self.scene, worker, ps as u16, kind).at_ps(), from, leg.send);
        let at = host.nic.send(ready, leg.leave) + self.scene.propagation;
        self.push(2 * self.worker_hosts.len() + place, Message { at, worker, ps: ps as u16, kind });
    }

    /// A reply reaches its worker's host, whose NIC takes it in.
    fn reaches_worker_host(&mut self, message: Message) {
        let (leg, place) = (self.leg(&message), self.host_of(message.worker));
        let at = self.worker_hosts[place].nic.receive(message.at, leg.arrive, leg.leave);
        self.push(self.worker_hosts.len() + place, Message { at, ..message });
    }

    /// The shards of a worker's host get a reply from its NIC; the last one ends what the worker waits for.
    fn reaches_worker(&mut self, place: usize, message: Message) {
        let leg = self.leg(&message);
        let lanes = Lanes::new(self.scene, message.worker, message.ps, message.kind);
        let done = self.worker_hosts[place].work(lanes.at_worker(), message.at, leg.receive);
        let worker = &mut self.workers[message.worker as usize];
        worker.awaited -= 1;
        if worker.awaited > 0 {
            return;
        }
        let sends_again = if worker.kind == Kind::Request {
            worker.kind = Kind::Push;
            let which = u64::from(worker.steps) << 32 | u64::from(message.worker);
            done + compute_time(self.scene, which)
        } else {
            worker.kind = Kind::Request;
            worker.steps += 1;
            let took = done - worker.began;
            self.step_ends(took);
            done
        };
        self.events.push(Reverse((sends_again, CLOCKS, message.worker)));
    }

    fn step_ends(&mut self, took: Tick) {
        self.steps += 1;
        if self.steps > self.scene.warm_up {
            self.durations.push(took);
        }
        if self.steps == self.scene.warm_up {
            self.counting_since = self.now;
            for host in self.worker_hosts.iter_mut().chain(&mut self.ps_hosts) {
                host.shards.iter_mut().for_each(|shard| shard.count_from(self.now));
                host.nic.count_from(self.now);
            }
        }
    }

    fn into_tally(mut self) -> Tally {
        self.durations.sort_unstable();
        let (now, length) = (self.now, (self.now - self.counting_since).max(1));
        let of_all = |worked: &mut dyn Iterator<Item = Tick>| {
            let shares: Vec<f64> = worked.map(|worked| (worked as f64 / length as f64).min(1.0)).collect();
            let mean = shares.iter().sum::<f64>() / shares.len().max(1) as f64;
            (rounded(shares.into_iter().fold(0.0, f64::max)), rounded(mean))
        };
        let cpu =
            |hosts: &[Host]| of_all(&mut hosts.iter().flat_map(|host| &host.shards).map(|shard| shard.worked_by(now)));
        let nic = |hosts: &[Host]| of_all(&mut hosts.iter().map(|host| host.nic.worked_by(now)));
        let (ps_cpu, ps_nic) = (cpu(&self.ps_hosts), nic(&self.ps_hosts));
        let (worker_cpu, worker_nic) = (cpu(&self.worker_hosts), nic(&self.worker_hosts));
        let shares = |of: fn((f64, f64)) -> f64| Shares {
            ps_cpu: of(ps_cpu),
            ps_nic: of(ps_nic),
            worker_cpu: of(worker_cpu),
            worker_nic: of(worker_nic),
        };
        Tally {
            length,
            durations: self.durations,
            busiest: shares(|(busiest, _)| busiest),
            mean: shares(|(_, mean)| mean),
        }
    }
}

/// The compute time of a step.
fn compute_time(scene: &Scene, which: u64) -> Tick {
    let (mean, sigma, seed) = (scene.compute, scene.course.straggler_sigma, scene.course.seed);
    if sigma == 0.0 {
        return mean;
    }
    let factor = lognormal(sigma, draw(seed, STRAGGLING, which), draw(seed, STRAGGLING + 1, which));
    (mean as f64 * factor) as Tick
}
