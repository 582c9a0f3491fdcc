//! One run: the storm, then fine weather in which every pair must work again, then the end, at which nothing is left.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sealane_fusion::EndpointMap;
use sealane_transport::endpoint_map::{TaskName, TransportAddress};

use super::agenda::{Agenda, Event};
use super::climate::{CONNECT_TIMEOUT, Climate, DEADLINE_MAX, LEASE, PEER_TIMEOUT, STORM, Weather};
use super::hosts::Host;
use super::ledger::{End, Ledger};
use super::network::Calls;
use super::trace::Trace;
use super::wire::Air;
use super::workload::{self, Deed, PROBE_STEP, STEPS, Spot};
use super::{Report, Violation};

/// Events of one run at most: many times what any needs, so that a run which does not end is found out.
pub(super) const EVENTS_MAX: usize = 3_000_000;
/// The first port; a host's follows from its number.
const FIRST_PORT: u16 = 7000;
/// How long a recv in fine weather may take: over what a dead link takes to be found out and replaced.
const PROBE_TIMEOUT: Duration = Duration::from_secs(8);
/// Tries of an exchange in fine weather: the first two may find out that what the peer was asked before is lost.
const PROBE_TRIES: usize = 3;
/// What a send and its recv need at most when nothing goes wrong.
const MEETING_TIME: Duration = Duration::from_millis(500);

pub(super) struct Simulation {
    seed: u64,
    pub(super) random: SmallRng,
    pub(super) base: Instant,
    /// Since the start.
    pub(super) now: Duration,
    pub(super) climate: Climate,
    pub(super) map: Arc<EndpointMap>,
    pub(super) hosts: Vec<Host>,
    pub(super) calls: Calls,
    pub(super) air: Rc<Air>,
    pub(super) ledger: Ledger,
    pub(super) agenda: Agenda,
    pub(super) trace: Trace,
    events: usize,
}

impl Simulation {
    pub(super) fn new(seed: u64, lines: usize) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let climate = Climate::draw(&mut random);
        let entries = (0..climate.hosts).flat_map(|host| {
            let task = move |number| (task_name(host, number), address(host));
            (0..climate.tasks_per_host).map(task)
        });
        let map = EndpointMap::from_entries(entries).expect("no task twice");
        let mut agenda = Agenda::default();
        workload::plan(&climate, &mut random, &mut agenda);
        Simulation {
            seed,
            random,
            base: Instant::now(),
            now: Duration::ZERO,
            map: Arc::new(map),
            hosts: (0..climate.hosts).map(|_| Host::new()).collect(),
            calls: Calls::default(),
            air: Rc::default(),
            ledger: Ledger::new(climate.hosts),
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
        self.probe_all()?;
        self.wind_down()?;
        let report = self.report();
        if self.climate.weather == Weather::Calm && (report.links_lost, report.sessions_reset) != (0, 0) {
            return Err(format!("nothing went wrong, and yet {report:?}"));
        }
        Ok(report)
    }

    fn run_until(&mut self, until: Duration) -> Result<(), String> {
        while self.now < until {
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), String> {
        let Some((at, event)) = self.agenda.next() else { return Err("nothing happens any more".into()) };
        self.events += 1;
        if self.events > EVENTS_MAX {
            return Err(format!("{EVENTS_MAX} events and no end"));
        }
        self.now = self.now.max(at);
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
            Event::Stop(host, ending) => self.stop(host, ending),
            Event::Start(host) => self.start(host),
            Event::Slow { host, shard, until } => {
                self.slow_down(host, shard, until);
                Ok(())
            }
        }
    }

    /// The weather turns fine: every host runs, every route stands, new links are good.
    fn clear_up(&mut self) -> Result<(), String> {
        self.trace.note(self.now, format_args!("fine weather"));
        self.climate.fine();
        self.air.heal_all();
        (0..self.hosts.len()).try_for_each(|host| self.start(host))
    }

    /// In fine weather every task reaches every task, itself included.
    fn probe_all(&mut self) -> Result<(), String> {
        let tasks = self.tasks();
        for (producer, consumer) in (0..tasks).flat_map(|one| (0..tasks).map(move |other| (one, other))) {
            let mut well = false;
            for attempt in 0..PROBE_TRIES as i64 {
                well = well || self.probe(Spot { producer, consumer, step: PROBE_STEP + attempt, key: 0 })?;
            }
            if !well {
                return Err(format!("task {consumer} cannot receive from task {producer} in fine weather"));
            }
        }
        Ok(())
    }

    /// One exchange with nothing else going on; true if it ends well.
    fn probe(&mut self, at: Spot) -> Result<bool, String> {
        let bytes = self.random.random_range(8..10_000);
        self.conduct(Deed::Consume)?;
        let send = self.send(at, bytes, PROBE_TIMEOUT)?;
        let recv = self.recv(at, None, PROBE_TIMEOUT)?;
        let (Some(send), Some(recv)) = (send, recv) else { return Err("the probe's host is down".into()) };
        while self.ledger.recvs[recv].ended.is_none() {
            self.step()?;
        }
        let well = matches!(self.ledger.recvs[recv].ended, Some((_, End::Ok)));
        if !well {
            self.conduct(Deed::Cleanup { task: at.producer, step: at.step })?;
        }
        while self.ledger.sends[send].ended.is_none() {
            self.step()?;
        }
        Ok(well)
    }

    /// Every deadline passes, every step is cleaned up, every lease ends: nothing is left, and nobody waits.
    fn wind_down(&mut self) -> Result<(), String> {
        self.trace.note(self.now, format_args!("the end begins"));
        if self.climate.weather == Weather::Calm && !self.climate.scarce {
            self.look_for_missed_meetings()?;
        }
        let steps = (0..STEPS).chain(PROBE_STEP..PROBE_STEP + PROBE_TRIES as i64);
        for (task, step) in (0..self.tasks()).flat_map(|task| steps.clone().map(move |step| (task, step))) {
            self.conduct(Deed::Cleanup { task, step })?;
        }
        self.run_until(self.now + PROBE_TIMEOUT + CONNECT_TIMEOUT + LEASE + PEER_TIMEOUT)?;
        self.ledger.held.clear();
        let waiting = |open: &[Vec<usize>]| open.iter().flatten().next().copied();
        if let Some(recv) = waiting(&self.ledger.open_recvs) {
            return Err(format!("recv {recv} never ended"));
        }
        if let Some(send) = waiting(&self.ledger.open_sends) {
            return Err(format!("send {send} never ended"));
        }
        self.look_for_leftovers()
    }

    /// When nothing goes wrong, a send and a recv that meet both end well.
    fn look_for_missed_meetings(&self) -> Result<(), String> {
        for (number, send) in self.ledger.sends.iter().enumerate() {
            let ([_], [recv]) = (self.ledger.sends_of(send.at), self.ledger.recvs_of(send.at)) else { continue };
            let recv = &self.ledger.recvs[*recv];
            let met = send.issued.max(recv.issued) + MEETING_TIME;
            let long_enough = met < send.deadline.min(recv.deadline).min(self.now);
            let undisturbed = recv.destination.is_none_or(|(_, room)| room >= send.bytes)
                && !matches!(recv.ended, Some((_, End::Deaf | End::GivenUp)))
                && !self.ledger.is_touched(send.at);
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
        Report {
            trace_hash: self.trace.hash(),
            events: self.events,
            delivered: ends(|end| end == End::Ok),
            refused: ends(|end| matches!(end, End::Err(_))),
            links_lost: total(|counters| counters.links_lost, |host| host.links_lost),
            sessions_reset: total(|counters| counters.sessions_reset, |host| host.sessions_reset),
        }
    }

    fn tasks(&self) -> usize {
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

    pub(super) fn tasks_of(&self, host: usize) -> Vec<TaskName> {
        (0..self.climate.tasks_per_host).map(|number| task_name(host, number)).collect()
    }

    pub(super) fn address(&self, host: usize) -> TransportAddress {
        address(host)
    }

    pub(super) fn host_at(&self, address: &TransportAddress) -> usize {
        usize::from(address.port - FIRST_PORT)
    }
}

fn task_name(host: usize, number: usize) -> TaskName {
    format!("task{host}-{number}:2222").parse().expect("a task's name")
}

fn address(host: usize) -> TransportAddress {
    format!("10.0.0.1:{}", FIRST_PORT + host as u16).parse().expect("an address")
}
