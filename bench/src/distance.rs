//! How far apart the two CPUs of a run are: the time in which a cache line goes from one to the other and back.
//!
//! On an AMD EPYC it is some 100 ns between two cores that share an L3 cache, and some 390 ns between others; a virtual machine's host
//! may move its CPUs from ones to the others during a run. Everything that two CPUs exchange by memory takes correspondingly longer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use itertools::Itertools;

use crate::machine::Pinned;

/// Round trips that are timed together, and how often that is done in a look. The shortest time counts, since a thread may be interrupted.
const ROUND_TRIPS: u64 = 50;
const LOOKS: usize = 50;
/// After this time a look ends early: if both threads share a CPU, each round trip takes a time slice.
const LOOK_MAX: Duration = Duration::from_millis(50);
/// Factor between the least and the most that is warned of.
const MOVED_FACTOR: f64 = 1.7;

/// The distances of a run's CPUs, each time that they were measured.
#[derive(Debug)]
pub(crate) struct Distance {
    /// None unless both sides of the run are pinned on this machine.
    to: Option<usize>,
    /// Nanoseconds there and back.
    found: Vec<f64>,
}

impl Distance {
    /// `pinned` are the CPUs of the run; the calling thread is pinned to the first.
    pub(crate) fn between(pinned: &[usize]) -> Self {
        Self { to: pinned.get(1).copied().filter(|other| *other != pinned[0]), found: Vec::new() }
    }

    /// Measures the distance once more. Takes a few milliseconds; between rounds, when no system runs.
    pub(crate) fn look(&mut self) {
        self.found.extend(self.to.and_then(there_and_back));
    }

    /// The least and the most that was found, in nanoseconds.
    pub(crate) fn span(&self) -> Option<[f64; 2]> {
        self.found.iter().copied().minmax().into_option().map(|(least, most)| [least, most])
    }

    /// Says that rounds were measured at different distances.
    pub(crate) fn warning(&self) -> Option<String> {
        let [least, most] = self.span()?;
        (most > least * MOVED_FACTOR).then(|| {
            format!(
                "the two CPUs were moved during the run: a cache line took {least:.0} ns there and back between some rounds, {most:.0} ns \
                 between others; take more rounds, and compare those with a machine where it takes as long"
            )
        })
    }
}

/// Nanoseconds in which a cache line goes from this thread's CPU to another and back. `None` if no thread can run there.
fn there_and_back(cpu: usize) -> Option<f64> {
    /// Alone in its line, and in the next, which some processors fetch together with it.
    #[repr(align(128))]
    struct Line(AtomicU64);
    let (there, back) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    let round_trips = 1..=ROUND_TRIPS * LOOKS as u64;
    let await_number = |line: &Line, number: u64| {
        while line.0.load(Ordering::Acquire) < number {
            std::hint::spin_loop();
        }
    };
    thread::scope(|scope| {
        let echo = scope.spawn(|| {
            let pinned = Pinned::to(cpu);
            // Answered in any case: the other side waits for it.
            for number in round_trips.clone() {
                await_number(&there, number);
                back.0.store(number, Ordering::Release);
            }
            pinned.is_ok()
        });
        let (mut shortest, looked) = (f64::INFINITY, Instant::now());
        for look in &round_trips.clone().chunks(ROUND_TRIPS as usize) {
            let begun = Instant::now();
            for number in look {
                there.0.store(number, Ordering::Release);
                await_number(&back, number);
            }
            shortest = shortest.min(begun.elapsed().as_nanos() as f64 / ROUND_TRIPS as f64);
            if looked.elapsed() > LOOK_MAX {
                break;
            }
        }
        // Ends the echo, wherever it is.
        there.0.store(u64::MAX, Ordering::Release);
        let was_there = echo.join().expect("an echo does not panic");
        was_there.then_some(shortest)
    })
}

#[cfg(test)]
mod tests {
    use sealane_runtime::allowed_cpus;

    use super::*;

    #[test]
    fn distance_is_of_two_pinned_cpus() {
        let mut none = Distance::between(&[0]);
        none.look();
        assert_eq!((none.span(), none.warning()), (None, None));
        let cpus = allowed_cpus().expect("linux tells");
        let [first, second, ..] = cpus[..] else { return };
        let _pinned = Pinned::to(first).expect("allowed");
        let mut distance = Distance::between(&[first, second]);
        distance.look();
        distance.look();
        let [least, most] = distance.span().expect("two CPUs");
        assert!(1.0 < least && least <= most, "{least} to {most} ns");
    }

    #[test]
    fn moved_cpus_are_warned_of() {
        let of = |found: &[f64]| Distance { to: Some(1), found: found.to_vec() };
        assert_eq!(of(&[100.0, 150.0]).warning(), None);
        let warning = of(&[388.4, 105.2]).warning().expect("moved");
        assert!(warning.contains("105 ns") && warning.contains("388 ns"), "{warning}");
    }
}
