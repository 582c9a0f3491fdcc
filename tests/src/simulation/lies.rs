//! Someone in everyone's map who lies when introducing itself: about its shards, which of them it is, its tasks, its process, what it
//! remembers, the link's number, the shard that it wants; and again and again from one address. A host that believes it still keeps its
//! promises to the others.

use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;
use sealane_fusion::node::Answer;
use sealane_transport::endpoint_map::{TaskName, TransportAddress};
use sealane_transport::lane::shard_of;
use sealane_transport::loopback::{LoopbackLink, loopback};
use sealane_transport::wire::Hello;

use super::agenda::{Agenda, Event};
use super::climate::{Climate, STORM};
use super::run::Simulation;

/// Lies told in a run.
const LIES_MAX: usize = 40;
/// Most shards that it claims to have.
const SHARDS_MAX: u16 = 4;
/// Most links that it can have to one shard.
pub(super) const LINKS_MAX: usize = SHARDS_MAX as usize;

/// Its ends of the links it was given.
#[derive(Default)]
pub(super) struct Lies {
    links: Vec<LoopbackLink>,
}

pub(super) fn plan(climate: &Climate, random: &mut SmallRng, agenda: &mut Agenda) {
    let lies = if climate.liar { random.random_range(1..LIES_MAX) } else { 0 };
    for _ in 0..lies {
        let when = random.random_range(Duration::ZERO..STORM);
        agenda.add(when, Event::Lie(random.random_range(0..climate.hosts)));
    }
}

impl Simulation {
    /// Its task and its address, which no host has.
    pub(super) fn liar(&self) -> (TaskName, TransportAddress) {
        ("liar:2222".parse().expect("a task's name"), self.address(self.climate.hosts))
    }

    pub(super) fn lie(&mut self, host: usize) -> Result<(), String> {
        if !self.hosts[host].runs() {
            return Ok(());
        }
        let hello = self.false_hello();
        let seats = self.hosts[host].seats.len();
        let right = shard_of(hello.lane, seats);
        let shard = if self.random.random_bool(0.8) { right } else { self.random.random_range(0..seats) };
        let now = self.instant();
        let answer = self.hosts[host].seats[shard].node.called(now, 0, &hello);
        let is_welcome = matches!(answer, Answer::Welcome { .. });
        self.trace.note(self.now, format_args!("{host}.{shard} hears {hello:?}, and believes it: {is_welcome}"));
        if let Answer::Welcome { peer } = answer {
            if shard != right {
                return Err(format!("host {host} shard {shard} takes a link that shard {right} serves"));
            }
            let (near, far) = loopback();
            self.hosts[host].seats[shard].node.accepted(now, peer, Box::new(far), &hello);
            if self.random.random_bool(0.5) {
                self.lies.links.push(near);
            }
        }
        if self.random.random_bool(0.3) {
            self.lies.links.clear();
        }
        self.settle(host, shard)
    }

    fn false_hello(&mut self) -> Hello {
        let mut tasks: Vec<String> = (0..self.tasks()).map(|task| self.task_name(task).to_string()).collect();
        let (name, address) = self.liar();
        tasks.extend([name.to_string(), "nobody:1".to_owned()]);
        let random = &mut self.random;
        tasks.retain(|_| random.random_bool(0.5));
        let shards = random.random_range(1..=SHARDS_MAX);
        let some = |random: &mut SmallRng| [0, 1, 7, 8, 1 << 40, u64::MAX][random.random_range(0..6)];
        Hello {
            features: 0,
            incarnation: some(random),
            remembers: some(random),
            tensor_bytes_max: some(random),
            epoch: [0, 1, 5, u32::MAX][random.random_range(0..4)],
            shards,
            shard: random.random_range(0..shards),
            lane: random.random(),
            address: address.to_string(),
            job: None,
            tasks,
        }
    }

    /// The liar goes away.
    pub(super) fn silence_the_liar(&mut self) {
        self.lies.links.clear();
    }
}
