//! What `fanin` measures: all peers of one listener ask it for small tensors at once, each with a window of requests in
//! flight. The listener has a process to itself; the peers are in one thread of this one.

use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::sample::{Metric, Sample};
use crate::stopwatch::RoundClock;
use crate::system::{Rounds, System};

/// Peers that are connected.
pub(super) trait Askers {
    /// Every peer asks for as many tensors as it may have in flight.
    fn ask_all(&mut self, now: Instant) -> Result<(), BenchError>;

    /// One look at all sockets, without waiting; how many tensors arrived. They are asked for again if `asking`.
    fn turn(&mut self, now: Instant, asking: bool) -> Result<u64, BenchError>;

    /// Whether nothing is in flight.
    fn is_quiet(&self) -> bool;

    /// How many tensors have arrived at each peer since this was asked last.
    fn take_arrived(&mut self) -> Vec<u64>;
}

/// Those who ask a listener, which has a process of its own.
struct FanIn<A> {
    system: &'static str,
    askers: A,
    /// What the resident memory of the listener's process grew by for each peer that had greeted and asked for nothing.
    resident_bytes_each: Option<f64>,
}

/// Peers that ask a listener.
pub(super) fn system(
    name: &'static str,
    peers: usize,
    congestion: String,
    resident_bytes_each: Option<f64>,
    askers: impl Askers + 'static,
) -> System {
    let rounds = FanIn { system: name, askers, resident_bytes_each };
    System::new(name, format!("{peers} peers"), rounds).with_congestion(congestion)
}

impl<A: Askers> FanIn<A> {
    /// Tensors a second of all peers together, and those of the slowest in what each would have had of an equal share.
    fn load(&mut self, length: Duration) -> Result<(f64, f64), BenchError> {
        let (system, askers) = (self.system, &mut self.askers);
        let began = Instant::now();
        askers.ask_all(began)?;
        let clock = RoundClock::start(began, length);
        let counted_from = until(system, askers, began, |now| clock.counts(now))?;
        askers.take_arrived();
        let ended = until(system, askers, counted_from, |now| clock.is_over(now))?;
        let arrived = askers.take_arrived();
        drain(system, askers, ended)?;
        let total: u64 = arrived.iter().sum();
        let fewest = arrived.iter().min().copied().unwrap_or_default();
        let per_second = total as f64 / (ended - counted_from).as_secs_f64();
        Ok((per_second, fewest as f64 * arrived.len() as f64 / total.max(1) as f64))
    }
}

/// Goes on asking until `is_over` and something has arrived; gives the time of that.
fn until(
    system: &'static str,
    askers: &mut impl Askers,
    from: Instant,
    is_over: impl Fn(Instant) -> bool,
) -> Result<Instant, BenchError> {
    let (mut moved, mut arrived) = (from, 0);
    loop {
        let now = Instant::now();
        if arrived > 0 && is_over(now) {
            return Ok(now);
        }
        let more = askers.turn(now, true)?;
        if more > 0 {
            moved = now;
            arrived += more;
        }
        give_up_after(system, now - moved)?;
    }
}

/// Takes in what is in flight, and asks for nothing more.
pub(super) fn drain(system: &'static str, askers: &mut impl Askers, from: Instant) -> Result<(), BenchError> {
    let mut moved = from;
    while !askers.is_quiet() {
        let now = Instant::now();
        if askers.turn(now, false)? > 0 {
            moved = now;
        }
        give_up_after(system, now - moved)?;
    }
    Ok(())
}

fn give_up_after(system: &'static str, silence: Duration) -> Result<(), BenchError> {
    if silence < STALL_LIMIT { Ok(()) } else { Err(BenchError::Stalled { system, waited: silence }) }
}

impl<A: Askers> Rounds for FanIn<A> {
    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        let (per_second, slowest_share) = self.load(length)?;
        let mut figures = vec![(Metric::TensorsPerSecond, per_second), (Metric::SlowestShare, slowest_share)];
        figures.extend(self.resident_bytes_each.map(|bytes| (Metric::ResidentBytesPerPeer, bytes)));
        Ok(Sample { figures, ..Sample::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two peers, of which the second gets a tensor in every other turn.
    #[derive(Default)]
    struct Uneven {
        turns: u64,
        arrived: [u64; 2],
        in_flight: usize,
    }

    impl Askers for Uneven {
        fn ask_all(&mut self, _now: Instant) -> Result<(), BenchError> {
            self.in_flight = 2;
            Ok(())
        }
        fn turn(&mut self, _now: Instant, asking: bool) -> Result<u64, BenchError> {
            self.turns += 1;
            self.arrived[0] += 1;
            self.arrived[1] += self.turns % 2;
            self.in_flight -= usize::from(!asking);
            Ok(1 + self.turns % 2)
        }
        fn is_quiet(&self) -> bool {
            self.in_flight == 0
        }
        fn take_arrived(&mut self) -> Vec<u64> {
            std::mem::take(&mut self.arrived).to_vec()
        }
    }

    #[test]
    fn asking_ends_when_it_is_over_and_nothing_is_left_in_flight() {
        let (mut askers, now) = (Uneven::default(), Instant::now());
        askers.ask_all(now).expect("scripted");
        let looks = std::cell::Cell::new(0);
        let after_nine_looks = |_| looks.replace(looks.get() + 1) == 9;
        until("raw", &mut askers, now, after_nine_looks).expect("it moves");
        assert_eq!(askers.take_arrived(), [10, 5]);
        until("raw", &mut askers, now, |_| true).expect("it moves");
        assert_eq!(askers.take_arrived(), [1, 1], "not before something has arrived");
        drain("raw", &mut askers, now).expect("it moves");
        assert!(askers.is_quiet() && askers.turns == 13);
    }

    #[test]
    fn silence_is_a_stall() {
        give_up_after("raw", STALL_LIMIT / 2).expect("not yet");
        let error = give_up_after("raw", STALL_LIMIT).expect_err("too long");
        assert!(matches!(error, BenchError::Stalled { system: "raw", .. }), "{error}");
    }
}
