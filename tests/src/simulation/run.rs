//! One run: the storm, then fine weather in which every pair must work again, then the end, after which nothing may be left.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::SmallRng;
use sealane_transport::endpoint_map::{TaskName, TransportAddress};

use super::agenda::{Agenda, Event};
use super::climate::{CONNECT_TIMEOUT, Climate, DEADLINE_MAX, LEASE, PEER_TIMEOUT, STORM, Weather};
use super::fused::Batches;
use super::hosts::Host;
use super::ledger::{End, Ledger, Send};
use super::lies::Lies;
use super::network::Calls;
use super::plans::Plans;
use super::probes::{CUT_STEP, CUTS, PROBE_TIMEOUT, PROBE_TRIES};
use super::published::Published;
use super::pushes::Pushes;
use super::sends::SendGroups;
use super::tables::Tables;
use super::trace::Trace;
use super::wire::{Air, Clock, Join};
use super::workload::{self, Deed, PROBE_STEP, STEPS};
use super::{Report, Violation};

/// Most events of one run: many times what any run needs, so that one which does not end is noticed.
pub(super) const EVENTS_MAX: usize = 3_000_000;
/// The first port; each host's follows from its number.
const FIRST_PORT: u16 = 7000;
/// In fine weather everyone has heard within this time that a plan is closed: longer than it takes to notice a dead link.
const CLOSING_TIME: Duration = Duration::from_secs(2);
/// Longest that a send and its recv take when nothing goes wrong.
pub(super) const MEETING_TIME: Duration = Duration::from_millis(500);

pub(super) struct Simulation {
    seed: u64,
    pub(super) random: SmallRng,
    pub(super) base: Instant,
    pub(super) join: Join,
    /// What the links' clock shows.
    time: Rc<Cell<Instant>>,
    pub(super) clock: Clock,
    /// Virtual time since the start.
    pub(super) now: Duration,
    pub(super) climate: Climate,
    pub(super) hosts: Vec<Host>,
    pub(super) calls: Calls,
    pub(super) air: Rc<Air>,
    pub(super) ledger: Ledger,
    pub(super) batches: Batches,
    pub(super) groups: SendGroups,
    pub(super) published: Published,
    pub(super) plans: Plans,
    pub(super) pushes: Pushes,
    pub(super) tables: Tables,
    pub(super) lies: Lies,
    pub(super) agenda: Agenda,
    pub(super) trace: Trace,
    events: usize,
}

impl Simulation {
    pub(super) fn new(seed: u64, lines: usize, join: Join) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let climate = Climate::draw(&mut random);
        let learned = (!climate.grows).then_some(Duration::ZERO);
        let mut agenda = Agenda::default();
        workload::plan(&climate, &mut random, &mut agenda);
        let base = Instant::now();
        let time = Rc::new(Cell::new(base));
        let shown = time.clone();
        Simulation {
            seed,
            random,
            join,
            base,
            time,
            clock: Rc::new(move || shown.get()),
            now: Duration::ZERO,
            hosts: (0..climate.hosts).map(|_| Host::new(learned)).collect(),
            calls: Calls::default(),
            air: Rc::default(),
            ledger: Ledger::new(climate.hosts),
            batches: Batches::default(),
            groups: SendGroups::default(),
            published: Published::default(),
            plans: Plans::default(),
            pushes: Pushes::default(),
            tables: Tables::default(),
            lies: Lies::default(),
            agenda,
            trace: Trace::new(lines),
            events: 0,
            climate,
        }
    }

    pub(super) fn violation(&self, what: String) -> Violation {
        Violation { seed: self.seed, at: self.now, what, recent: self.trace.recent() }
    }

    pub(super) fn run(&mut self) -> Result<Report, String> {
        self.trace.note(self.now, format_args!("{:?}", self.climate));
        for host in 0..self.hosts.len() {
            self.start(host)?;
        }
        self.run_until(STORM)?;
        self.clear_up()?;
        self.run_until(STORM * 2 + DEADLINE_MAX)?;
        self.take_all()?;
        if self.climate.scarce {
            // Published tensors, named keys, and tensors that wait for the next acceptor would leave no room to check anything else.
            self.clear_stores()?;
            self.empty_queues()?;
        }
        self.probe_all()?;
        self.probe_plans()?;
        self.probe_pushes()?;
        self.probe_rows()?;
        self.look_for_lost_links()?;
        if !self.climate.scarce {
            self.probe_cuts()?;
        }
        self.wind_down()?;
        Ok(self.report())
    }

    /// Checks that no link is lost while nothing goes wrong. (A host that learns of new tasks greets again even if it has just been
    /// greeted.)
    fn look_for_lost_links(&self) -> Result<(), String> {
        let report = self.report();
        let calm = self.climate.weather == Weather::Calm && !self.climate.grows && !self.climate.liar;
        if calm && (report.links_lost, report.sessions_reset) != (0, 0) {
            return Err(format!("nothing went wrong, and yet {report:?}"));
        }
        Ok(())
    }

    pub(super) fn run_until(&mut self, until: Duration) -> Result<(), String> {
        while self.now < until {
            self.step()?;
        }
        Ok(())
    }

    pub(super) fn step(&mut self) -> Result<(), String> {
        let Some((at, event)) = self.agenda.next() else { return Err("nothing happens any more".into()) };
        self.events += 1;
        if self.events > EVENTS_MAX {
            return Err(format!("{EVENTS_MAX} events and no end"));
        }
        self.now = self.now.max(at);
        self.time.set(self.instant());
        match event {
            Event::Turn { host, shard, number } => self.turn(host, shard, number),
            Event::CallArrives(call) => self.call_arrives(call),
            Event::CallPolled(call) => self.call_polled(call),
            Event::CallFails(call, kind, why) => self.call_fails(call, kind, why),
            Event::Deed(deed) => self.conduct(deed),
            Event::Part(one, other) => {
                self.trace.note(at, format_args!("hosts {one} and {other} part"));
                self.air.part(one, other);
                Ok(())
            }
            Event::Heal(one, other) => {
                self.trace.note(at, format_args!("hosts {one} and {other} hear each other again"));
                self.air.heal(one, other);
                Ok(())
            }
            Event::Deny(one, other) => {
                self.trace.note(at, format_args!("hosts {one} and {other} have other credentials"));
                self.air.deny(one, other);
                Ok(())
            }
            Event::Trust(one, other) => {
                self.trace.note(at, format_args!("hosts {one} and {other} have the same credentials again"));
                self.air.trust(one, other);
                Ok(())
            }
            Event::Lie(host) => self.lie(host),
            Event::Stop(host, ending) => self.stop(host, ending),
            Event::Start(host) => self.start(host),
            Event::Learn(host) => self.load_map(host),
            Event::Slow { host, shard, until } => {
                self.slow_down(host, shard, until);
                Ok(())
            }
        }
    }

    /// The weather turns fine: every host runs, every route works, every map is loaded, new links have no faults.
    fn clear_up(&mut self) -> Result<(), String> {
        self.trace.note(self.now, format_args!("fine weather"));
        self.climate.fine();
        self.air.heal_all();
        self.silence_the_liar();
        (0..self.hosts.len()).try_for_each(|host| self.start(host))?;
        (0..self.hosts.len())
            .filter(|_| self.climate.grows)
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|host| self.load_map(host))
    }

    /// Every deadline passes, every step is cleaned up, every lease ends: nothing may be left, and no call may wait.
    fn wind_down(&mut self) -> Result<(), String> {
        self.trace.note(self.now, format_args!("the end begins"));
        if self.climate.weather == Weather::Calm && !self.climate.scarce {
            self.look_for_missed_meetings()?;
        }
        let steps = (0..STEPS).chain(PROBE_STEP..PROBE_STEP + PROBE_TRIES as i64).chain(CUT_STEP..CUT_STEP + CUTS);
        for (task, step) in (0..self.tasks()).flat_map(|task| steps.clone().map(move |step| (task, step))) {
            self.conduct(Deed::Cleanup { task, step })?;
        }
        // Some plans are closed while they are pulled, others long after.
        self.close_plans(|plan| plan % 2 == 1)?;
        self.run_until(self.now + PROBE_TIMEOUT + CONNECT_TIMEOUT + LEASE + PEER_TIMEOUT)?;
        self.clear_stores()?;
        self.empty_queues()?;
        self.look_for_lost_pushes()?;
        self.ledger.held.clear();
        let waiting = |open: &[Vec<usize>]| open.iter().flatten().next().copied();
        if let Some(recv) = waiting(&self.ledger.open_recvs) {
            return Err(format!("recv {recv} never ended"));
        }
        if let Some(send) = waiting(&self.ledger.open_sends) {
            return Err(format!("send {send} never ended"));
        }
        let is_lost = |send: &&Send| send.is_released() && send.deliveries.is_empty();
        if let Some(send) = self.ledger.sends.iter().filter(is_lost).find(|send| !self.ledger.may_have_taken(send.at)) {
            return Err(format!("the send to {:?} ended well, but nobody got the tensor", send.at));
        }
        self.look_for_leftovers()?;
        self.look_for_kept_keys()
    }

    /// Closes every plan, and empties the stores.
    fn clear_stores(&mut self) -> Result<(), String> {
        if let Some(pull) = self.plans.left() {
            return Err(format!("pull {pull} never ended"));
        }
        if let Some(batch) = self.batches.left() {
            return Err(format!("fused receive {batch} never ended"));
        }
        if let Some(ask) = self.tables.left() {
            return Err(format!("the rows {ask} never came to an end"));
        }
        self.close_plans(|_| true)?;
        self.withdraw_all()?;
        self.withdraw_tables()?;
        self.run_until(self.now + CLOSING_TIME)
    }

    /// Checks that a send and a recv that meet both end well when nothing goes wrong.
    fn look_for_missed_meetings(&self) -> Result<(), String> {
        for (number, send) in self.ledger.sends.iter().enumerate() {
            let ([_], [recv]) = (self.ledger.sends_of(send.at), self.ledger.recvs_of(send.at)) else { continue };
            let recv = &self.ledger.recvs[*recv];
            let met = send.issued.max(recv.issued) + MEETING_TIME;
            let long_enough = met < send.deadline.min(recv.deadline).min(self.now);
            let undisturbed = recv.destination.is_none_or(|(_, room)| room >= send.bytes)
                && !matches!(recv.ended, Some((_, End::Deaf | End::GivenUp)))
                && !matches!(send.ended, Some((_, End::Untold)))
                && !self.ledger.is_touched(send.at)
                && !self.is_newcomer(send.at.producer)
                && !self.is_newcomer(send.at.consumer);
            let well = |ended: Option<(Duration, End)>| ended.is_some_and(|(_, end)| end == End::Ok);
            if long_enough && undisturbed && !(well(send.ended) && well(recv.ended)) {
                return Err(format!("send {number} met its recv, nothing went wrong, and yet it failed"));
            }
        }
        Ok(())
    }

    fn report(&self) -> Report {
        let ends = |wanted: fn(End) -> bool| {
            let recvs = self.ledger.recvs.iter();
            recvs.filter(|recv| recv.ended.is_some_and(|(_, end)| wanted(end))).count()
        };
        let total = |count: fn(&sealane_fusion::Counters) -> u64, past: fn(&Host) -> u64| {
            let of = |host: &Host| past(host) + host.seats.iter().map(|seat| count(&seat.node.counters())).sum::<u64>();
            self.hosts.iter().map(of).sum()
        };
        let (accepted, unpushed) = self.pushes.outcomes();
        Report {
            trace_hash: self.trace.hash(),
            events: self.events,
            delivered: ends(|end| end == End::Ok),
            refused: ends(|end| matches!(end, End::Err(_))),
            fused: self.batches.asked(),
            pulled: self.plans.pulled,
            missed: self.plans.failed,
            accepted,
            unpushed,
            rows: self.tables.rows,
            rows_missed: self.tables.failed,
            links_lost: total(|counters| counters.links_lost, |host| host.links_lost),
            sessions_reset: total(|counters| counters.sessions_reset, |host| host.sessions_reset),
        }
    }

    pub(super) fn tasks(&self) -> usize {
        self.climate.hosts * self.climate.tasks_per_host
    }

    pub(super) fn host_of(&self, task: usize) -> usize {
        task / self.climate.tasks_per_host
    }

    /// The task's place among its host's.
    pub(super) fn place_of(&self, task: usize) -> u16 {
        (task % self.climate.tasks_per_host) as u16
    }

    pub(super) fn task_name(&self, task: usize) -> TaskName {
        task_name(self.host_of(task), usize::from(self.place_of(task)))
    }

    /// The tasks that a host serves, as far as its map has them.
    pub(super) fn tasks_of(&self, host: usize) -> impl Iterator<Item = TaskName> {
        let tasks = host * self.climate.tasks_per_host..(host + 1) * self.climate.tasks_per_host;
        tasks.filter(move |&task| self.knows(host, task)).map(|task| self.task_name(task))
    }

    pub(super) fn address(&self, host: usize) -> TransportAddress {
        address(host)
    }

    pub(super) fn host_at(&self, address: &TransportAddress) -> usize {
        usize::from(address.port - FIRST_PORT)
    }

    /// True if calls between the hosts of two tasks may have been denied.
    pub(super) fn was_denied(&self, one: usize, other: usize) -> bool {
        self.air.was_denied(self.host_of(one), self.host_of(other))
    }
}

fn task_name(host: usize, number: usize) -> TaskName {
    format!("task{host}-{number}:2222").parse().expect("a task's name")
}

fn address(host: usize) -> TransportAddress {
    format!("10.0.0.1:{}", FIRST_PORT + host as u16).parse().expect("an address")
}
