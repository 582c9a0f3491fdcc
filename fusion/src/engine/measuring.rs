//! Measures the link to a peer's task over the session that calls use: single small pushes show the round trip, bursts of larger ones
//! the rate. The peer acknowledges and drops them ([`MEASURE_QUEUE`]); no task of the peer and none of this engine sees them.
//!
//! Threads: the shard that serves the pair. Limits: bursts take a quarter of the time at most, and their bytes in flight are reduced
//! while they delay acknowledgements; [`ROUND_TRIPS_MAX`].

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sealane_runtime::{JoinHandle, LoadSnapshot};
use sealane_transport::limits::MEASURE_QUEUE;
use sealane_transport::tcp::{TcpCounts, TcpState};
use sealane_transport::{Error, LinkKind, Tensor};

use super::local::{LocalEngine, LocalPair};
use super::{Engine, stopped};

/// Most round trips that are measured: more do not change the 99th percentile much.
const ROUND_TRIPS_MAX: usize = 200;
/// Size of a tensor whose round trip is measured.
pub const ROUND_TRIP_BYTES: usize = 64;
/// Size of a tensor of a burst. Its copy and its frame cost little compared with its bytes, and even a slow link sends several per burst.
pub const BURST_TENSOR_BYTES: usize = 128 << 10;

/// Shortest burst; on a link with a long round trip, a burst takes [`BURST_ROUND_TRIPS`] of them.
const BURST_TIME_MIN: Duration = Duration::from_millis(20);
const BURST_TIME_MAX: Duration = Duration::from_millis(100);
const BURST_ROUND_TRIPS: u32 = 10;
/// The pause after a burst, as a multiple of the burst's time: bursts take at most a quarter of the time.
const PAUSE_PER_BURST: u32 = 3;
/// Longest pause. Only a link below 2 MB/s has bursts that would need a longer one.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Tensors of a burst in flight: at the beginning and at least, and at most.
const IN_FLIGHT_MIN: usize = 4;
const IN_FLIGHT_MAX: usize = 128;
/// Delay that a burst may add to a link, besides another round trip: a job's tensor may wait behind it for twice as long. Less
/// leaves fast links idle between acknowledgements, which come once per turn of the peer.
const ADDED_DELAY: Duration = Duration::from_millis(2);

/// What a measurement of the link to one peer found.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Kind of the link.
    pub link: LinkKind,
    /// Times from a push of [`ROUND_TRIP_BYTES`] bytes to its acknowledgement, in ascending order; at least one.
    pub round_trips: Vec<Duration>,
    /// Bytes per second of each burst, in ascending order; at least one.
    pub rates: Vec<f64>,
    /// Share of the bursts' time, from 0 to 1, in which this side's shard was busy.
    pub busy_share: f64,
    /// The time of all bursts.
    pub burst_time: Duration,
    /// The connection's state after the last burst, with its counts during the bursts; `None` if the link is not TCP.
    pub tcp: Option<TcpState>,
}

impl Engine {
    /// Checks that the peer's task answers measurements: connects if necessary, and waits for at most `timeout`. Returns immediately.
    ///
    /// # Errors
    /// The handle's: NotFound if `task` is not served here, or `peer` is not in the endpoint map; Unavailable if the peer cannot be
    /// reached; Unimplemented if it is connected and does not answer.
    pub fn greet(&self, task: &str, peer: &str, timeout: Duration) -> JoinHandle<Result<(), Error>> {
        let (task, name) = (task.to_owned(), peer.to_owned());
        self.on_shard(self.shard_of(&task, &name), async move |engine| {
            let pair = engine.task(&task)?.pair(&name)?;
            match round_trip(&pair, timeout).await {
                Err(Error::DeadlineExceeded(_)) if pair.has_link() => Err(Error::Unimplemented {
                    reason: format!(
                        "{name} is connected and did not answer a measurement within {timeout:?}: its release is older \
                         than this one, it drains, or its shard hangs"
                    )
                    .into(),
                }),
                answered => answered.map(drop).map_err(|error| late_peer(error, &name)),
            }
        })
    }

    /// Measures the link between a task of this engine and a peer's for about `time`, while other calls use it too. **Blocks**
    /// meanwhile.
    ///
    /// # Errors
    /// Those of [`greet`](Self::greet); Unavailable also if the peer stops answering, or the link is too slow for one burst.
    pub fn measure(&self, task: &str, peer: &str, time: Duration) -> Result<Measured, Error> {
        let (task, peer) = (task.to_owned(), peer.to_owned());
        let measuring = self.on_shard(self.shard_of(&task, &peer), async move |engine| {
            let pair = engine.task(&task)?.pair(&peer)?;
            let measured = Measurement { engine, pair, until: Instant::now() + time }.run(time).await;
            measured.map_err(|error| late_peer(error, &peer))
        });
        measuring.wait().map_err(|error| stopped(&error))?
    }
}

/// Returns the error without the push that measured the link, if its deadline has passed.
fn late_peer(error: Error, peer: &str) -> Error {
    match error {
        Error::DeadlineExceeded(late) => Error::unavailable(peer, late.awaited),
        error => error,
    }
}

/// Pushes one small tensor, and returns the time until its acknowledgement.
async fn round_trip(pair: &LocalPair, timeout: Duration) -> Result<Duration, Error> {
    let tensor = Tensor::from_elements(&[ROUND_TRIP_BYTES as u64], &[0_u8; ROUND_TRIP_BYTES])?;
    let begun = Instant::now();
    pair.push_within(timeout, MEASURE_QUEUE, std::iter::once(tensor)).await?;
    Ok(begun.elapsed())
}

impl LocalPair {
    fn has_link(&self) -> bool {
        self.engine.borrow_node(|node| node.link_of(self.pair).is_some())
    }

    fn tcp_state(&self) -> Option<TcpState> {
        self.engine.borrow_node(|node| node.link_of(self.pair)?.tcp_state())
    }
}

struct Measurement {
    engine: LocalEngine,
    pair: LocalPair,
    /// When the pause after the last burst ends.
    until: Instant,
}

impl Measurement {
    async fn run(&self, time: Duration) -> Result<Measured, Error> {
        let mut round_trips = Vec::with_capacity(ROUND_TRIPS_MAX);
        let bursts_begin = Instant::now() + time / 4;
        while round_trips.is_empty() || round_trips.len() < ROUND_TRIPS_MAX && Instant::now() < bursts_begin {
            round_trips.push(round_trip(&self.pair, time).await?);
        }
        round_trips.sort_unstable();
        let usual = round_trips[round_trips.len() / 2];
        let burst_time = (usual * BURST_ROUND_TRIPS).clamp(BURST_TIME_MIN, BURST_TIME_MAX);
        let tensor =
            Tensor::from_elements(&[BURST_TENSOR_BYTES as u64], &vec![0_u8; BURST_TENSOR_BYTES])?.into_shared();
        let mut in_flight = InFlight::new(usual);
        let (mut rates, mut taken, mut busy, mut counts) = (Vec::new(), Duration::ZERO, Duration::ZERO, None);
        while rates.is_empty() || Instant::now() + burst_time * (1 + PAUSE_PER_BURST) <= self.until {
            let (load_before, tcp_before) = (self.load(), self.pair.tcp_state());
            let (rate, took) = self.burst(&tensor, burst_time, &mut in_flight).await?;
            rates.push(rate);
            taken += took;
            busy += Duration::from_nanos(self.load().busy.sum().saturating_sub(load_before.busy.sum()));
            if let (Some(before), Some(after)) = (tcp_before, self.pair.tcp_state()) {
                *counts.get_or_insert(TcpCounts::default()) += after.counts.since(&before.counts);
            }
            self.engine.shard().sleep((took * PAUSE_PER_BURST).min(PAUSE_MAX)).await;
        }
        rates.sort_by(f64::total_cmp);
        let link = self.pair.engine.borrow_node(|node| node.link_of(self.pair.pair).map(|link| link.kind()));
        let lost = || Error::unavailable("the peer", "the link was lost while it was measured");
        Ok(Measured {
            link: link.ok_or_else(lost)?,
            round_trips,
            rates,
            busy_share: (busy.as_secs_f64() / taken.as_secs_f64().max(f64::MIN_POSITIVE)).min(1.0),
            burst_time: taken,
            tcp: self.pair.tcp_state().zip(counts).map(|(state, counts)| TcpState { counts, ..state }),
        })
    }

    fn load(&self) -> LoadSnapshot {
        let shard = self.engine.shard();
        shard.shard_ref(shard.index()).load().snapshot()
    }

    /// Pushes tensors for `time`; returns the rate in bytes per second, and the time until the last was acknowledged.
    async fn burst(&self, tensor: &Tensor, time: Duration, in_flight: &mut InFlight) -> Result<(f64, Duration), Error> {
        let begun = Instant::now();
        let mut pushes = VecDeque::with_capacity(IN_FLIGHT_MAX);
        let (mut first, mut acknowledged) = (None, 0);
        loop {
            let now = Instant::now();
            while pushes.len() < in_flight.most && now - begun < time {
                // The last ones may take as long again as all others.
                let timeout = self.until.saturating_duration_since(now) + BURST_TIME_MAX * PAUSE_PER_BURST;
                pushes.push_back((now, self.pair.push_within(timeout, MEASURE_QUEUE, std::iter::once(tensor.share()))));
            }
            let Some((pushed, push)) = pushes.pop_front() else { break };
            push.await?;
            let now = Instant::now();
            first.get_or_insert(now);
            acknowledged += 1;
            in_flight.on_acknowledged(now - pushed);
        }
        let end = Instant::now();
        // From the first acknowledgement on, so that the round trip before it does not count.
        let (from, tensors) = match first {
            Some(first) if acknowledged > 2 * IN_FLIGHT_MIN => (first, acknowledged - 1),
            _ => (begun, acknowledged),
        };
        let bytes = (tensors * BURST_TENSOR_BYTES) as f64;
        Ok((bytes / (end - from).as_secs_f64().max(f64::MIN_POSITIVE), end - begun))
    }
}

/// How many tensors of a burst may be in flight: more while acknowledgements are not delayed, fewer while they are. So a burst fills
/// the link without a long queue.
struct InFlight {
    most: usize,
    /// Acknowledgements that take longer are delayed.
    delayed: Duration,
}

impl InFlight {
    /// Starts with few tensors, on a link with this round trip.
    fn new(round_trip: Duration) -> InFlight {
        InFlight { most: IN_FLIGHT_MIN, delayed: 2 * round_trip + ADDED_DELAY }
    }

    /// Records that a tensor was acknowledged after `latency`.
    fn on_acknowledged(&mut self, latency: Duration) {
        if latency <= self.delayed {
            self.most = (self.most + 1).min(IN_FLIGHT_MAX);
        } else if latency > 2 * self.delayed {
            self.most = (self.most - 1).max(IN_FLIGHT_MIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_in_flight_follow_the_delay() {
        let mut in_flight = InFlight::new(Duration::from_millis(5));
        for _ in 0..2 * IN_FLIGHT_MAX {
            in_flight.on_acknowledged(Duration::from_millis(12));
        }
        assert_eq!(in_flight.most, IN_FLIGHT_MAX);
        in_flight.on_acknowledged(Duration::from_millis(24));
        assert_eq!(in_flight.most, IN_FLIGHT_MAX);
        in_flight.on_acknowledged(Duration::from_millis(25));
        assert_eq!(in_flight.most, IN_FLIGHT_MAX - 1);
        for _ in 0..2 * IN_FLIGHT_MAX {
            in_flight.on_acknowledged(Duration::from_secs(1));
        }
        assert_eq!(in_flight.most, IN_FLIGHT_MIN);
    }
}
