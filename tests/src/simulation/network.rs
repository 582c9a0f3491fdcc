//! Connections in the network: calls in flight, what becomes of them, and the routing that greetings do in an engine.

use std::collections::BTreeMap;
use std::time::Duration;

use rand::Rng;
use sealane_fusion::node::{Answer, ConnectOrder, DialFailure, DialFailureKind};
use sealane_transport::endpoint_map::TaskName;
use sealane_transport::fault::FaultLink;
use sealane_transport::lane::shard_of;
use sealane_transport::wire::{Greeting, Hello, RejectCode};
use sealane_transport::{Handle, Link};

use super::agenda::Event;
use super::climate::{HANDSHAKE_TIMEOUT, Weather};
use super::hosts::Host;
use super::run::Simulation;
use super::wire::{Ear, Wire};

pub(super) type CallId = u64;

/// A call for a link.
pub(super) struct Call {
    host: usize,
    process: u32,
    shard: usize,
    peer: Handle,
    to: usize,
    hello: Hello,
    /// The caller's end, once the call is answered.
    wire: Option<Wire>,
    /// How long the caller waits for the welcome.
    until: Duration,
    /// The caller has hung up or died; its greeting still arrives.
    abandoned: bool,
}

#[derive(Default)]
pub(super) struct Calls {
    calls: BTreeMap<CallId, Call>,
    made: CallId,
}

impl Simulation {
    pub(super) fn carry_out(&mut self, host: usize, shard: usize, order: ConnectOrder) {
        match order {
            ConnectOrder::Dial { peer, address, hello } => {
                let to = self.host_at(&address);
                self.trace.note(
                    self.now,
                    format_args!(
                        "{host}.{shard} calls {to}, epoch {}, incarnation {:x}",
                        hello.epoch, hello.incarnation
                    ),
                );
                self.calls.made += 1;
                let (id, process) = (self.calls.made, self.hosts[host].process);
                let until = self.now + HANDSHAKE_TIMEOUT;
                let call = Call { host, process, shard, peer, to, hello, wire: None, until, abandoned: false };
                self.calls.calls.insert(id, call);
                let after = self.latency();
                if to == self.hosts.len() {
                    self.agenda.add(self.now + after, Event::CallFails(id, DialFailureKind::Transient, "the liar's"));
                } else if self.random.random_range(0..1000) < self.climate.calls_lost {
                    // If something else rejects for the host, such as a firewall, it looks like a host without a listener.
                    let storm = self.climate.weather == Weather::Storm;
                    let kind = match self.random.random_bool(0.3) && storm {
                        true => DialFailureKind::Refused,
                        false => DialFailureKind::Transient,
                    };
                    self.agenda.add(self.now + after, Event::CallFails(id, kind, "the network lost it"));
                } else {
                    self.agenda.add(self.now + after, Event::CallArrives(id));
                }
            }
            ConnectOrder::HangUp(peer) => {
                self.trace.note(self.now, format_args!("{host}.{shard} hangs up"));
                self.abandon(|call| (call.host, call.shard, call.peer) == (host, shard, peer));
            }
        }
    }

    fn abandon(&mut self, pick: impl Fn(&Call) -> bool) {
        for call in self.calls.calls.values_mut().filter(|call| pick(call)) {
            call.abandoned = true;
            call.wire = None;
        }
    }

    /// A process has ended, and its calls with it.
    pub(super) fn drop_calls_of(&mut self, host: usize) {
        self.abandon(|call| call.host == host);
    }

    fn latency(&mut self) -> Duration {
        Duration::from_micros(if self.random.random_bool(0.9) {
            self.random.random_range(20..800)
        } else {
            self.random.random_range(800..60_000)
        })
    }

    pub(super) fn call_arrives(&mut self, id: CallId) -> Result<(), String> {
        let Some(call) = self.calls.calls.get(&id) else { return Ok(()) };
        let (host, to, until, hello) = (call.host, call.to, call.until, call.hello.clone());
        if self.air.is_parted(host, to) || !self.hosts[to].power.get() {
            self.agenda.add(until, Event::CallFails(id, DialFailureKind::Transient, "no answer"));
            return Ok(());
        }
        let after = self.latency();
        if self.air.is_denied(host, to) {
            self.agenda.add(self.now + after, Event::CallFails(id, DialFailureKind::Denied, "not authenticated"));
            return Ok(());
        }
        if !self.hosts[to].runs() {
            self.agenda.add(self.now + after, Event::CallFails(id, DialFailureKind::Refused, "nobody listens"));
            return Ok(());
        }
        let shard = shard_of(hello.lane, self.hosts[to].seats.len());
        let now = self.instant();
        match self.hosts[to].seats[shard].node.called(now, 0, &hello) {
            Answer::Reject(code, reason) => {
                self.trace.note(self.now, format_args!("{to}.{shard} rejects {host}.{}: {reason}", hello.shard));
                let kind = match code {
                    RejectCode::Crossed => DialFailureKind::Crossed,
                    RejectCode::Full => DialFailureKind::Transient,
                    RejectCode::Version | RejectCode::Refused => DialFailureKind::Final,
                    RejectCode::Unauthenticated | RejectCode::Job => DialFailureKind::Denied,
                };
                self.agenda.add(self.now + after, Event::CallFails(id, kind, "rejected"));
            }
            Answer::Welcome { peer } => {
                self.trace.note(self.now, format_args!("{to}.{shard} welcomes {host}.{}", hello.shard));
                let [calling, called] = (self.join)(&self.clock);
                let calling = self.wire(calling, host, to);
                let called = self.wire(called, to, host);
                self.hosts[to].seats[shard].node.accepted(now, peer, Box::new(called), &hello);
                let call = self.calls.calls.get_mut(&id).expect("looked up above");
                // The caller's end of an abandoned call is dropped here; the other end learns that it is closed.
                call.wire = (!call.abandoned).then_some(calling);
                self.agenda.add(self.now + after, Event::CallPolled(id));
            }
        }
        self.settle(to, shard)
    }

    fn wire(&mut self, link: Box<dyn Link>, from: usize, to: usize) -> Wire {
        let (seed, random) = (self.random.random(), self.random.random());
        let link = FaultLink::new(link, self.climate.faults, seed);
        let power = self.hosts[from].power.clone();
        Wire::new(link, (from, to), &self.air, &power, self.climate.piecemeal, random)
    }

    pub(super) fn call_polled(&mut self, id: CallId) -> Result<(), String> {
        let now = self.now;
        let pause = Duration::from_micros(self.random.random_range(20..2000));
        let Some(call) = self.calls.calls.get_mut(&id) else { return Ok(()) };
        let Some(wire) = &mut call.wire else {
            self.calls.calls.remove(&id);
            return Ok(());
        };
        let mut ear = Ear::default();
        if let Err(error) = wire.receive(&mut ear, usize::MAX) {
            self.trace.note(now, format_args!("the answer to {} is lost: {error}", call.host));
            return self.call_fails(id, DialFailureKind::Transient, "lost before the welcome");
        }
        match ear.0 {
            Some(Greeting::Welcome(welcome)) => {
                let Call { host, shard, peer, wire, .. } = self.calls.calls.remove(&id).expect("just there");
                self.trace.note(
                    now,
                    format_args!(
                        "{host}.{shard} is welcome, epoch {}, incarnation {:x}",
                        welcome.epoch, welcome.incarnation
                    ),
                );
                let wire = Box::new(wire.expect("just there"));
                let now = self.instant();
                self.hosts[host].seats[shard].node.dialed(now, peer, wire, &welcome);
                self.settle(host, shard)
            }
            Some(other) => Err(format!("a call was answered with {other:?}")),
            None if now >= call.until => self.call_fails(id, DialFailureKind::Transient, "no welcome in time"),
            None => {
                self.agenda.add(now + pause, Event::CallPolled(id));
                Ok(())
            }
        }
    }

    pub(super) fn call_fails(&mut self, id: CallId, kind: DialFailureKind, why: &str) -> Result<(), String> {
        let Some(call) = self.calls.calls.remove(&id).filter(|call| !call.abandoned) else { return Ok(()) };
        let Call { host, shard, peer, process, .. } = call;
        debug_assert_eq!(self.hosts[host].process, process, "calls go with their process");
        self.trace.note(self.now, format_args!("{host}.{shard}'s call failed: {kind:?}, {why}"));
        let failure = DialFailure { reason: why.into(), kind };
        let now = self.instant();
        self.hosts[host].seats[shard].node.dial_failed(now, peer, failure);
        self.settle(host, shard)
    }
}

impl Host {
    pub(super) fn shard_for(&self, one: &TaskName, other: &TaskName) -> usize {
        shard_of(sealane_transport::lane::lane(one.as_str(), other.as_str()), self.seats.len())
    }
}
