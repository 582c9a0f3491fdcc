//! The simulated hosts, each with one process of a few nodes or none, and the turns of those nodes.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::Rng;
use sealane_fusion::node::{Node, NodeSettings};
use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::Handle;

use super::agenda::{Ending, Event};
use super::climate::{IDLE_MAX, WITHHELD_MAX};
use super::run::Simulation;

/// Incarnations are spaced so far apart that counting up never reaches the next one.
const INCARNATION_STRIDE: u64 = 1 << 32;
/// Turns that a node gets to say goodbye.
const FAREWELL_TURNS: usize = 3;

/// One shard of a running process.
pub(super) struct Seat {
    pub(super) node: Node,
    links: Vec<Handle>,
    /// The number of the next turn; turns entered before it are void.
    turn: u64,
    /// When that turn is due.
    due: Duration,
    idle: Duration,
    slow_until: Duration,
    writes: u64,
    /// Jobs from other threads in order, each with the time at which the shard sees it.
    mailbox: VecDeque<(Duration, Job)>,
}

/// A job that another thread passes to a node.
pub(super) type Job = Box<dyn FnOnce(&mut Node)>;

/// A host, with its process if one runs.
pub(super) struct Host {
    pub(super) seats: Vec<Seat>,
    /// Processes that ran here, the present one included.
    pub(super) process: u32,
    pub(super) power: Rc<Cell<bool>>,
    /// When it loaded the map that names all tasks.
    pub(super) learned: Option<Duration>,
    /// Totals over its former processes.
    pub(super) links_lost: u64,
    pub(super) sessions_reset: u64,
}

impl Host {
    pub(super) fn new(learned: Option<Duration>) -> Self {
        let power = Rc::new(Cell::new(true));
        Host { seats: Vec::new(), process: 0, power, learned, links_lost: 0, sessions_reset: 0 }
    }

    pub(super) fn runs(&self) -> bool {
        !self.seats.is_empty()
    }

    fn take_down(&mut self) {
        for seat in self.seats.drain(..) {
            let counters = seat.node.counters();
            self.links_lost += counters.links_lost;
            self.sessions_reset += counters.sessions_reset;
        }
    }
}

impl Simulation {
    pub(super) fn start(&mut self, index: usize) -> Result<(), String> {
        if self.hosts[index].runs() {
            return Ok(());
        }
        let shards = self.random.random_range(1..=self.climate.shards_max);
        let slab =
            |name, bytes| Slab::new(SlabSettings { name, bytes, populate: false }).map_err(|error| error.to_string());
        self.hosts[index].process += 1;
        self.hosts[index].power = Rc::new(Cell::new(true));
        let process = self.hosts[index].process;
        self.trace.note(self.now, format_args!("host {index} starts process {process} with {shards} shards"));
        for shard in 0..shards {
            let settings = NodeSettings {
                addresses: vec![self.address(index)],
                tasks: self.tasks_of(index).map(|task| (task, 0)).collect(),
                shard: shard as u16,
                shards: shards as u16,
                job: None,
                incarnation: (index as u64 + 1) * INCARNATION_STRIDE * 64 + u64::from(process) * INCARNATION_STRIDE,
                session: self.climate.limits.clone(),
                pending_sends_max: self.climate.pending_sends_max,
                published_tensors_max: self.climate.published_tensors_max,
                links_max: 64,
                connect_timeout: super::climate::CONNECT_TIMEOUT,
                lease: super::climate::LEASE,
                fuse: self.climate.fuse,
                path_reason: "simulated".to_owned(),
                features: 0,
                kinds: Vec::new(),
            };
            let send = slab("send", self.climate.slab_send_bytes)?;
            let receive = slab("receive", self.climate.slab_receive_bytes)?;
            let node = Node::new(settings, self.map_of(index), send, receive).map_err(|error| error.to_string())?;
            let seat = Seat {
                node,
                links: Vec::new(),
                turn: 0,
                due: Duration::MAX,
                idle: Duration::ZERO,
                slow_until: Duration::ZERO,
                writes: 0,
                mailbox: VecDeque::new(),
            };
            self.hosts[index].seats.push(seat);
            self.schedule_turn(index, shard);
        }
        Ok(())
    }

    pub(super) fn stop(&mut self, index: usize, ending: Ending) -> Result<(), String> {
        if !self.hosts[index].runs() {
            return Ok(());
        }
        self.trace.note(self.now, format_args!("host {index} stops: {ending:?}"));
        let now = self.instant();
        if ending == Ending::Graceful {
            self.ledger.note_farewell(index);
            for shard in 0..self.hosts[index].seats.len() {
                self.hosts[index].seats[shard].node.shut_down(now, "the test stops this engine");
                for _ in 0..FAREWELL_TURNS {
                    self.hosts[index].seats[shard].node.turn(now);
                }
            }
        }
        self.look_at_calls(index)?;
        self.hosts[index].power.set(ending != Ending::PowerLoss);
        self.drop_calls_of(index);
        self.hosts[index].take_down();
        self.end_calls_of_process(index);
        Ok(())
    }

    pub(super) fn turn(&mut self, index: usize, shard: usize, number: u64) -> Result<(), String> {
        let now = self.instant();
        let Some(seat) = self.hosts[index].seats.get_mut(shard).filter(|seat| seat.turn == number) else {
            return Ok(());
        };
        seat.links.retain(|&link| seat.node.link(link).is_some());
        for &link in &seat.links {
            seat.node.mark_hot(link);
        }
        let mut work = 0;
        while let Some((_, job)) = seat.mailbox.pop_front_if(|(found, _)| *found <= self.now) {
            job(&mut seat.node);
            work += 1;
        }
        work += seat.node.turn(now);
        seat.idle = if work > 0 { Duration::ZERO } else { (seat.idle * 2).clamp(Duration::from_micros(20), IDLE_MAX) };
        let writes = seat.node.counters().writes;
        let wrote = writes != seat.writes;
        seat.writes = writes;
        match work {
            0 => self.settle_idle(index, shard)?,
            _ => self.settle(index, shard)?,
        }
        if wrote {
            self.rouse();
        }
        Ok(())
    }

    /// Another thread submits a job to a shard; false if its mailbox is full.
    pub(super) fn try_submit(&mut self, index: usize, shard: usize, job: Job) -> bool {
        let room = self.hosts[index].seats[shard].mailbox.len() < self.climate.mailbox_slots;
        if room {
            self.submit(index, shard, job);
        }
        room
    }

    /// As `try_submit`, for a job that a full mailbox does not refuse.
    pub(super) fn submit(&mut self, index: usize, shard: usize, job: Job) {
        let found = self.now + self.random.random_range(Duration::ZERO..self.climate.mailbox_time);
        let mailbox = &mut self.hosts[index].seats[shard].mailbox;
        let found = mailbox.back().map_or(found, |(last, _)| found.max(*last));
        mailbox.push_back((found, job));
        self.schedule_turn(index, shard);
    }

    /// Follows every call of a node: carries out its orders, collects its answers, checks its limits and what it keeps, and schedules its
    /// next turn.
    pub(super) fn settle(&mut self, index: usize, shard: usize) -> Result<(), String> {
        self.settle_idle(index, shard)?;
        self.look_at_streams(index, shard)
    }

    /// Checks that what nodes keep of their queues and streams is consistent, and agrees with what their peers keep.
    fn look_at_streams(&self, index: usize, shard: usize) -> Result<(), String> {
        let Some(Seat { node, .. }) = self.hosts[index].seats.get(shard) else { return Ok(()) };
        node.check_invariants();
        for (number, host) in self.hosts.iter().enumerate().filter(|(number, _)| *number != index) {
            for other in &host.seats {
                node.check_streams_from(&other.node).map_err(|what| format!("host {index} shard {shard}, {what}"))?;
                other.node.check_streams_from(node).map_err(|what| format!("host {number}, {what}"))?;
            }
        }
        Ok(())
    }

    /// [`settle`](Self::settle) after an idle turn.
    fn settle_idle(&mut self, index: usize, shard: usize) -> Result<(), String> {
        while let Some(order) = self.hosts[index].seats[shard].node.poll_order() {
            self.carry_out(index, shard, order);
        }
        let seat = &mut self.hosts[index].seats[shard];
        seat.node.take_new_links(&mut seat.links);
        // All waiting calls are checked below, woken or not.
        seat.node.take_wakers(&mut Vec::new());
        self.look_at_calls(index)?;
        self.look_at_limits(index, shard)?;
        self.schedule_turn(index, shard);
        Ok(())
    }

    fn schedule_turn(&mut self, index: usize, shard: usize) {
        let now = self.now;
        let base = self.base;
        let pause = Duration::from_micros(self.random.random_range(5..80));
        let withheld = self.random.random_range(Duration::from_millis(1)..WITHHELD_MAX);
        let seat = &mut self.hosts[index].seats[shard];
        let mut due = now + pause.max(seat.idle);
        if let Some(timeout) = seat.node.next_timeout() {
            due = due.min(timeout.saturating_duration_since(base).max(now + pause));
        }
        if let Some((found, _)) = seat.mailbox.front() {
            due = due.min((*found).max(now + pause));
        }
        if seat.slow_until > now && self.climate.slow {
            // A withheld turn does not come sooner because of what happens meanwhile.
            due = if seat.due > now && seat.due != Duration::MAX { seat.due } else { now + withheld };
        }
        seat.turn += 1;
        seat.due = due;
        let number = seat.turn;
        self.agenda.add(due, Event::Turn { host: index, shard, number });
    }

    /// Something was written somewhere: pausing nodes look sooner.
    fn rouse(&mut self) {
        for index in 0..self.hosts.len() {
            for shard in 0..self.hosts[index].seats.len() {
                let seat = &mut self.hosts[index].seats[shard];
                if seat.due > self.now + Duration::from_micros(100) {
                    seat.idle = Duration::ZERO;
                    self.schedule_turn(index, shard);
                }
            }
        }
    }

    pub(super) fn slow_down(&mut self, index: usize, shard: usize, until: Duration) {
        if let Some(seat) = self.hosts[index].seats.get_mut(shard) {
            seat.slow_until = until;
        }
    }

    fn look_at_limits(&self, index: usize, shard: usize) -> Result<(), String> {
        let seat = &self.hosts[index].seats[shard];
        let counters = seat.node.counters();
        // A session for each shard of each other host, and those for calls among tasks of this host.
        let liars = if self.climate.liar { super::lies::LINKS_MAX } else { 0 };
        let sessions = (self.hosts.len() * self.climate.shards_max + liars) as u64;
        let limits = &self.climate.limits;
        let own = limits.queued_requests_max * self.climate.tasks_per_host;
        let parked_max = limits.parked_requests_max as u64 * sessions + own as u64;
        let found = [
            ("pending_sends", counters.pending_sends, self.climate.pending_sends_max as u64),
            ("parked", counters.parked, parked_max),
            ("published", counters.published, self.climate.published_tensors_max as u64),
            ("links", counters.links, sessions),
            ("slab_send_bytes", counters.slab_send_bytes, self.climate.slab_send_bytes as u64),
            ("slab_receive_bytes", counters.slab_receive_bytes, self.climate.slab_receive_bytes as u64),
        ];
        for (what, now, most) in found {
            if now > most {
                return Err(format!("host {index} shard {shard} has {what} {now}, the limit is {most}"));
            }
        }
        Ok(())
    }

    /// Checks that nothing is left once everything is over.
    pub(super) fn look_for_leftovers(&self) -> Result<(), String> {
        for (index, host) in self.hosts.iter().enumerate() {
            for (shard, seat) in host.seats.iter().enumerate() {
                let counters = seat.node.counters();
                let left = [
                    ("pending_sends", counters.pending_sends),
                    ("parked requests", counters.parked),
                    ("published tensors", counters.published),
                    ("calls under way", seat.node.under_way() as u64),
                    ("bytes of the send slab", counters.slab_send_bytes),
                    ("bytes of the receive slab", counters.slab_receive_bytes),
                ];
                if let Some((what, count)) = left.into_iter().find(|(_, count)| *count > 0) {
                    return Err(format!("host {index} shard {shard} still has {count} {what} when all is over"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn instant(&self) -> Instant {
        self.base + self.now
    }
}
