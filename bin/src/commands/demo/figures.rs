//! What a demo has measured so far, added up step by step, and the links between its engines. Memory does not grow with the steps.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::protocol::Fetched;
use crate::figures::Peer;

/// Longest latency that is distinguished, in ns: no request of the demo waits for longer.
const LATENCY_NS_MAX: u64 = 120_000_000_000;
/// Digits of a latency that are kept.
const LATENCY_DIGITS: u8 = 3;
/// Most points in the course of time: as many as a wide plot can show.
const POINTS_MAX: u64 = 256;

/// What moved in one direction, and how long that took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Flow {
    pub(super) tensors: u64,
    pub(super) bytes: u64,
    pub(super) time: Duration,
}

impl Flow {
    /// 10^9 bytes a second; 0 where nothing moved.
    pub(super) fn gigabytes_per_s(&self) -> f64 {
        if self.time.is_zero() { 0.0 } else { self.bytes as f64 / self.time.as_secs_f64() / 1e9 }
    }

    fn add(&mut self, other: Flow) {
        self.tensors += other.tensors;
        self.bytes += other.bytes;
        self.time += other.time;
    }

    /// Two that took place at once.
    fn beside(self, other: Flow) -> Flow {
        Flow { tensors: self.tensors + other.tensors, bytes: self.bytes + other.bytes, time: self.time.max(other.time) }
    }
}

/// What one worker, or all, moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    pub(super) pull: Flow,
    pub(super) push: Flow,
}

impl Traffic {
    /// Tensors both ways.
    pub(super) fn tensors(&self) -> u64 {
        self.pull.tensors + self.push.tensors
    }

    /// Bytes both ways.
    pub(super) fn bytes(&self) -> u64 {
        self.pull.bytes + self.push.bytes
    }

    /// Time of all transfers of a step, in ms, on average.
    pub(super) fn step_ms(&self, steps: u64) -> f64 {
        (self.pull.time + self.push.time).as_secs_f64() * 1e3 / steps.max(1) as f64
    }

    pub(super) fn add(&mut self, other: Traffic) {
        self.pull.add(other.pull);
        self.push.add(other.push);
    }
}

/// Some steps, one after another.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Point {
    /// When the last of them was done, since the first step that counts began.
    pub(super) ended: Duration,
    pub(super) steps: u64,
    pub(super) traffic: Traffic,
}

/// All figures of a demo.
#[derive(Debug)]
pub(super) struct Figures {
    /// Of each worker, by number.
    pub(super) workers: Vec<Traffic>,
    /// Of all workers, whose transfers take place at once.
    pub(super) total: Traffic,
    /// Of the single pulls, in ns.
    pub(super) latencies: Histogram<u64>,
    pub(super) tensors_verified: u64,
    pub(super) bytes_verified: u64,
    pub(super) steps: u64,
    /// What moved in the course of time.
    pub(super) points: Vec<Point>,
    /// Steps of each point but the last.
    pub(super) steps_a_point: u64,
}

impl Figures {
    /// For so many workers and steps.
    pub(super) fn new(workers: usize, steps: u64) -> Figures {
        let latencies = Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS);
        Figures {
            workers: vec![Traffic::default(); workers],
            total: Traffic::default(),
            latencies: latencies.expect("the bounds are constants that make a histogram"),
            tensors_verified: 0,
            bytes_verified: 0,
            steps: 0,
            points: Vec::new(),
            steps_a_point: steps.div_ceil(POINTS_MAX).max(1),
        }
    }

    /// Adds a step: what each worker fetched from each ps, and what each ps fetched from each worker; it `ended` so long
    /// after the first one began. Gives what all workers moved in it.
    pub(super) fn add_step(&mut self, pulled: &[Vec<Fetched>], pushed: &[Vec<Fetched>], ended: Duration) -> Traffic {
        let mut step = vec![Traffic::default(); self.workers.len()];
        for (worker, from_ps) in pulled.iter().enumerate() {
            for fetched in from_ps {
                step[worker].pull = step[worker].pull.beside(flow(fetched));
                fetched.latencies_ns.iter().for_each(|latency| self.latencies.saturating_record(*latency));
            }
        }
        for fetched in pushed.iter().flatten() {
            step[fetched.peer].push = step[fetched.peer].push.beside(flow(fetched));
        }
        let all = step.iter().fold(Traffic::default(), |all, worker| Traffic {
            pull: all.pull.beside(worker.pull),
            push: all.push.beside(worker.push),
        });
        self.workers.iter_mut().zip(step).for_each(|(sum, worker)| sum.add(worker));
        self.total.add(all);
        if self.points.last().is_none_or(|last| last.steps == self.steps_a_point) {
            self.points.push(Point::default());
        }
        let point = self.points.last_mut().expect("there is one by now");
        point.traffic.add(all);
        (point.ended, point.steps) = (ended, point.steps + 1);
        self.steps += 1;
        all
    }

    /// Adds what was compared byte by byte.
    pub(super) fn add_verified(&mut self, tensors: u64, bytes: u64) {
        self.tensors_verified += tensors;
        self.bytes_verified += bytes;
    }
}

fn flow(fetched: &Fetched) -> Flow {
    Flow { tensors: fetched.tensors, bytes: fetched.bytes, time: Duration::from_nanos(fetched.elapsed_ns) }
}

/// An engine's link to another engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PeerLink {
    /// The engine that tells: a task, or a daemon.
    pub(super) engine: String,
    /// The other one; its transport address, until the demo says whose that is.
    pub(super) peer: String,
    /// `tcp` or `verbs`; `none` if none ever stood.
    pub(super) link: String,
    pub(super) reason: String,
    /// Sent to the peer.
    pub(super) tensors: u64,
    /// Frames of the wire sent to the peer, requests and releases included.
    pub(super) messages: u64,
    /// Times that something was written to the link.
    pub(super) writes: u64,
}

impl PeerLink {
    fn of(engine: &str, peer: Peer) -> PeerLink {
        let Peer { peer, link, reason, counters, .. } = peer;
        PeerLink {
            engine: engine.to_owned(),
            peer,
            link: link.unwrap_or_else(|| "none".to_owned()),
            reason,
            tensors: counters.tensors_sent,
            messages: counters.messages_sent,
            writes: counters.writes,
        }
    }

    /// Those of all shards of an engine, one for each peer and kind.
    pub(super) fn of_engine(engine: &str, peers: impl Iterator<Item = Peer>) -> Vec<PeerLink> {
        let mut links: Vec<PeerLink> = Vec::new();
        for link in peers.map(|peer| PeerLink::of(engine, peer)) {
            let is_same = |known: &&mut PeerLink| {
                (&known.peer, &known.link, &known.reason) == (&link.peer, &link.link, &link.reason)
            };
            match links.iter_mut().find(is_same) {
                Some(known) => {
                    known.tensors += link.tensors;
                    known.messages += link.messages;
                    known.writes += link.writes;
                }
                None => links.push(link),
            }
        }
        links
    }
}

/// Tensors a message over all links; none where there were no messages.
pub(super) fn fusion_ratio(links: &[PeerLink]) -> Option<f64> {
    let sum = |of: fn(&PeerLink) -> u64| links.iter().map(of).sum::<u64>();
    let (tensors, messages) = (sum(|link| link.tensors), sum(|link| link.messages));
    (messages > 0).then(|| tensors as f64 / messages as f64)
}

#[cfg(test)]
mod tests {
    use sealane_fusion::metrics::PeerCounters;

    use super::*;

    fn fetched(peer: usize, bytes: u64, elapsed_ms: u64) -> Fetched {
        let elapsed_ns = elapsed_ms * 1_000_000;
        Fetched { peer, tensors: 1, bytes, elapsed_ns, latencies_ns: vec![elapsed_ns] }
    }

    #[test]
    fn flows_at_once_take_as_long_as_the_longest_and_steps_add_up() {
        let mut figures = Figures::new(2, 2);
        // Two ps: each worker pulls from both, each ps takes the pushes of both.
        let pulled = [[fetched(0, 100, 2), fetched(1, 200, 4)], [fetched(0, 100, 6), fetched(1, 200, 1)]];
        let pushed = [[fetched(0, 10, 1), fetched(1, 10, 3)], [fetched(0, 20, 2), fetched(1, 20, 5)]];
        let (pulled, pushed) = (pulled.map(Vec::from), pushed.map(Vec::from));
        let ms = Duration::from_millis;
        let step = figures.add_step(&pulled, &pushed, ms(9));
        assert_eq!(step.pull, Flow { tensors: 4, bytes: 600, time: ms(6) });
        assert_eq!(step.push, Flow { tensors: 4, bytes: 60, time: ms(5) });
        assert_eq!(figures.workers[0].pull, Flow { tensors: 2, bytes: 300, time: ms(4) });
        assert_eq!(figures.workers[0].push, Flow { tensors: 2, bytes: 30, time: ms(2) });
        assert_eq!(figures.workers[1].push.time, ms(5));
        figures.add_step(&pulled, &pushed, ms(19));
        assert_eq!(figures.points.iter().map(|point| point.ended).collect::<Vec<_>>(), [ms(9), ms(19)]);
        assert_eq!((figures.total.tensors(), figures.total.bytes(), figures.steps), (16, 1320, 2));
        assert_eq!(figures.total.step_ms(2), 11.0);
        assert_eq!(figures.latencies.len(), 8);
        figures.add_verified(3, 30);
        figures.add_verified(4, 40);
        assert_eq!((figures.tensors_verified, figures.bytes_verified), (7, 70));
    }

    #[test]
    fn no_step_is_lost_and_the_points_stay_few() {
        let time = Duration::from_millis(1);
        let steps = 3 * POINTS_MAX + 1;
        let mut figures = Figures::new(1, steps);
        for step in 1..=steps {
            figures.add_step(&[vec![fetched(0, 1_000_000, 1)]], &[vec![]], time * step as u32);
            assert_eq!(figures.points.iter().map(|point| point.steps).sum::<u64>(), step);
        }
        assert!(figures.points.len() as u64 <= POINTS_MAX);
        assert_eq!(figures.steps_a_point, 4);
        let (last, others) = figures.points.split_last().unwrap();
        assert!(others.iter().all(|point| point.steps == 4 && point.traffic.pull.tensors == 4));
        assert!(others.windows(2).all(|pair| pair[1].ended - pair[0].ended == time * 4));
        assert_eq!((last.steps, last.ended), (1, time * steps as u32));
        assert_eq!(others[0].traffic.pull.gigabytes_per_s(), 1.0);
        assert_eq!(Figures::new(1, POINTS_MAX).steps_a_point, 1);
    }

    #[test]
    fn rates_are_of_ten_to_the_ninth() {
        let flow = Flow { tensors: 1, bytes: 3_000_000_000, time: Duration::from_secs(2) };
        assert_eq!(flow.gigabytes_per_s(), 1.5);
        assert_eq!(Flow::default().gigabytes_per_s(), 0.0);
    }

    fn peer(address: &str, link: Option<&str>, counters: PeerCounters) -> Peer {
        Peer {
            peer: address.to_owned(),
            peer_shard: Some(0),
            state: "up".to_owned(),
            link: link.map(str::to_owned),
            reason: "a test says so".to_owned(),
            last_error: String::new(),
            since_unix_ms: 0,
            counters,
        }
    }

    #[test]
    fn shards_with_the_same_path_to_a_peer_are_one_link() {
        let counters = PeerCounters { tensors_sent: 6, messages_sent: 3, writes: 2, ..PeerCounters::default() };
        let peers = [
            peer("h:1", Some("tcp"), counters),
            peer("h:2", None, PeerCounters::default()),
            peer("h:1", Some("tcp"), counters),
            peer("h:1", Some("verbs"), counters),
        ];
        let links = PeerLink::of_engine("worker-daemon", peers.into_iter());
        let shown: Vec<_> = links.iter().map(|link| (link.peer.as_str(), link.link.as_str(), link.tensors)).collect();
        assert_eq!(shown, [("h:1", "tcp", 12), ("h:2", "none", 0), ("h:1", "verbs", 6)]);
        assert_eq!((links[0].messages, links[0].writes), (6, 4));
        assert_eq!(links[0].engine, "worker-daemon");
        assert_eq!(fusion_ratio(&links), Some(2.0));
        assert_eq!(fusion_ratio(&links[1..2]), None, "it carried nothing");
    }
}
