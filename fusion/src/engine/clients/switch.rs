//! The switch: moves the records of channels between two clients of this shard that share no memory, because they belong to different users
//! or the daemon gives no direct lanes. Each of the two has a lane, and the shard has the other side of it. The clients match the tensors;
//! nothing here looks at names.
//!
//! Limits: a pair of clients has its current lanes and at most [`FORMER_LANES_MAX`] former ones. A client that does not read stops its own
//! pairs alone. If a client breaks the rules of a channel, that channel ends.

use std::time::Instant;

use sealane_runtime::Urgency;
use sealane_transport::Handle;
use sealane_transport::channel::{Ring, Splice};
use sealane_transport::shm::{DirectLane, Standing, Way};

use crate::limits::{CLIENT_BACKLOG_LOOK, FORMER_LANES_MAX, LANE_END_MAX};

/// The lanes of one shard.
#[derive(Default)]
pub(super) struct Switch {
    pairs: Vec<Pair>,
}

/// A client, the shard's side of its lane, and what the other client knows of it.
struct Port {
    client: Handle,
    lane: DirectLane,
    told: Standing,
    /// If it has gone or has closed its lane: how long the other has to make room for what it left.
    ends: Option<Instant>,
    is_gone: bool,
}

struct Pair {
    ports: [Port; 2],
    /// From each client to the other.
    splices: [Splice<Way>; 2],
    /// If the two have newer lanes: when these end at the latest. Until then both can close them in order.
    replaced: Option<Instant>,
}

impl Switch {
    /// Connects two lanes whose other sides are the shard's. Former lanes of the two clients end. [`Handle::NONE`] stands for a client that has
    /// gone.
    pub(super) fn connect(&mut self, clients: [Handle; 2], lanes: [DirectLane; 2], now: Instant) {
        let splice = |from: usize| Splice::new(lanes[from].incoming(), lanes[1 - from].outgoing());
        let splices = [splice(0), splice(1)];
        let [first, second] = lanes;
        let port =
            |client, lane| Port { client, lane, told: Standing::Absent, ends: None, is_gone: client == Handle::NONE };
        let is_former = |pair: &&mut Pair| pair.ports.each_ref().map(|port| port.client) == clients;
        for (age, pair) in self.pairs.iter_mut().rev().filter(is_former).enumerate() {
            let until = if age < FORMER_LANES_MAX { now + LANE_END_MAX } else { now };
            pair.replaced = Some(pair.replaced.map_or(until, |before| before.min(until)));
        }
        let ports = [port(clients[0], first), port(clients[1], second)];
        self.pairs.push(Pair { ports, splices, replaced: None });
    }

    /// A client has gone. Its peers still read what it has written.
    pub(super) fn client_gone(&mut self, client: Handle) {
        let ports = self.pairs.iter_mut().flat_map(|pair| &mut pair.ports);
        ports.filter(|port| port.client == client).for_each(|port| port.is_gone = true);
    }

    /// Moves what has come; `wake` is called with clients that sleep and have something to read. Returns how many directions had something.
    pub(super) fn turn(&mut self, now: Instant, mut wake: impl FnMut(Handle)) -> usize {
        let mut work = 0;
        self.pairs.retain_mut(|pair| {
            work += pair.turn(now, &mut wake);
            !pair.is_over()
        });
        work
    }

    /// True if a turn would find work.
    pub(super) fn has_work(&self) -> bool {
        self.pairs.iter().any(Pair::has_work)
    }

    /// Announces that the shard goes to sleep; false if there is work.
    pub(super) fn try_sleep(&self) -> bool {
        self.ports().for_each(|port| port.lane.own_sleep().announce());
        !self.has_work()
    }

    pub(super) fn wake(&self) {
        self.ports().for_each(|port| port.lane.own_sleep().awake());
    }

    fn ports(&self) -> impl Iterator<Item = &Port> {
        self.pairs.iter().flat_map(|pair| &pair.ports)
    }

    /// When to look again at a client whose lane is full, as it does not say that it has read, or whose lane was replaced.
    pub(super) fn next_look(&self, now: Instant) -> Option<Instant> {
        self.pairs.iter().any(Pair::is_waiting).then(|| now + CLIENT_BACKLOG_LOOK)
    }
}

impl Pair {
    fn turn(&mut self, now: Instant, wake: &mut impl FnMut(Handle)) -> usize {
        // Before the records: of a client that has closed its lane, all that it has written is there.
        let standing = self.ports.each_ref().map(Port::standing);
        let (mut rings, mut work) = ([Ring::No; 2], 0);
        for from in 0..2 {
            match self.splices[from].turn() {
                Ok(spliced) => {
                    work += usize::from(spliced.words > 0 || spliced.writer > Ring::No);
                    rings[from] = rings[from].max(spliced.writer);
                    rings[1 - from] = rings[1 - from].max(spliced.reader);
                }
                Err(broken) => {
                    tracing::warn!(%broken, "the channel of two clients has ended");
                    return self.end(wake);
                }
            }
            if self.ports[from].lane.take_poke() {
                rings[1 - from] = Ring::Urgent;
            }
        }
        for (from, standing) in standing.into_iter().enumerate() {
            work += usize::from(self.tell_standing(from, standing, now, wake));
        }
        for (port, ring) in self.ports.iter().zip(rings) {
            let urgency = match ring {
                Ring::No => continue,
                Ring::Settled => Urgency::Low,
                Ring::Written => Urgency::Normal,
                Ring::Urgent => Urgency::High,
            };
            if port.lane.other_sleep().must_ring_for(urgency) {
                wake(port.client);
            }
        }
        if self.replaced.is_some_and(|until| until <= now) { work + self.end(wake) } else { work }
    }

    /// Tells a client that the other one has come or left, after all that the other has written. True if that is new.
    fn tell_standing(&mut self, of: usize, standing: Standing, now: Instant, wake: &mut impl FnMut(Handle)) -> bool {
        if standing == self.ports[of].told {
            return false;
        }
        if is_left(standing) {
            let until = *self.ports[of].ends.get_or_insert(now + LANE_END_MAX);
            if self.splices[of].is_blocked() && now < until {
                return false;
            }
        }
        self.ports[of].told = standing;
        let other = &self.ports[1 - of];
        match standing {
            Standing::Absent => {}
            Standing::Here => other.lane.arrive(),
            Standing::Gone => other.lane.leave(),
            Standing::Closed => other.lane.close(),
        }
        wake(other.client);
        true
    }

    /// Has both clients close their lanes.
    #[cold]
    fn end(&mut self, wake: &mut impl FnMut(Handle)) -> usize {
        for port in &mut self.ports {
            port.lane.abandon();
            port.lane.close();
            wake(port.client);
            port.told = Standing::Closed;
        }
        1
    }

    fn has_work(&self) -> bool {
        let has_come_or_left = |port: &Port| port.standing() != port.told && port.ends.is_none();
        let has_written =
            || self.splices.iter().any(Splice::has_work) || self.ports.iter().any(|port| port.lane.has_poke());
        self.ports.iter().any(has_come_or_left) || has_written()
    }

    /// True if it needs another turn soon although nobody rings.
    fn is_waiting(&self) -> bool {
        self.replaced.is_some() || self.splices.iter().any(Splice::is_blocked)
    }

    /// True if no client has anything more to hear: each knows that the other has left, or one is gone and the other knows it.
    fn is_over(&self) -> bool {
        let has_gone = |port: &Port| port.is_gone && port.told == Standing::Gone;
        self.ports.iter().all(|port| is_left(port.told)) || self.ports.iter().any(has_gone)
    }
}

impl Port {
    fn standing(&self) -> Standing {
        if self.is_gone { Standing::Gone } else { self.lane.other() }
    }
}

fn is_left(standing: Standing) -> bool {
    matches!(standing, Standing::Gone | Standing::Closed)
}

#[cfg(test)]
mod tests;
