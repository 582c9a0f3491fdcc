//! Clusters on virtual time: a fixed set of seeds, each with a different cluster, weather and workload. `cargo xtask sim` runs more.

use std::time::Duration;

use sealane_tests::delayed::DelayedLink;
use sealane_tests::simulation::{Join, TRACE_LINES, simulate, simulate_over};
use sealane_transport::Link;
use sealane_transport::loopback::loopback;

/// Seeds that the suite runs.
const SEEDS: u64 = 160;

#[test]
fn promises_hold_whatever_the_weather() {
    let (mut delivered, mut refused, mut lost, mut reset) = (0, 0, 0, 0);
    let (mut fused, mut pulled, mut missed) = (0, 0, 0);
    let (mut accepted, mut unpushed) = (0, 0);
    let (mut rows, mut rows_missed) = (0, 0);
    for seed in 0..SEEDS {
        match simulate(seed, TRACE_LINES) {
            Ok(report) => {
                delivered += report.delivered;
                refused += report.refused;
                fused += report.fused;
                pulled += report.pulled;
                missed += report.missed;
                accepted += report.accepted;
                unpushed += report.unpushed;
                rows += report.rows;
                rows_missed += report.rows_missed;
                lost += report.links_lost;
                reset += report.sessions_reset;
            }
            Err(violation) => panic!("{violation}"),
        }
    }
    // A simulation in which nothing goes wrong, or nothing goes well, would prove nothing.
    assert!(delivered > 50 * SEEDS as usize && refused > SEEDS as usize && lost > SEEDS && reset > SEEDS / 4);
    assert!(fused > 2 * SEEDS && pulled > 50 * SEEDS as usize && missed > SEEDS as usize);
    assert!(accepted > 50 * SEEDS as usize && unpushed > SEEDS as usize);
    assert!(rows > 200 * SEEDS as usize && rows_missed > SEEDS as usize);
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..12 {
        let (first, second) = (simulate(seed, TRACE_LINES), simulate(seed, TRACE_LINES));
        assert_eq!(first.unwrap(), second.unwrap(), "seed {seed}");
    }
}

#[test]
fn promises_hold_over_a_link_that_delays() {
    let join: Join = |clock| {
        let delayed = |link| Box::new(DelayedLink::new(Box::new(link), Duration::from_micros(300), clock.clone()));
        let (one, other) = loopback();
        [delayed(one) as Box<dyn Link>, delayed(other)]
    };
    let mut delivered = 0;
    for seed in 0..SEEDS / 4 {
        match simulate_over(join, seed, TRACE_LINES) {
            Ok(report) => delivered += report.delivered,
            Err(violation) => panic!("{violation}"),
        }
    }
    assert!(delivered > 10 * SEEDS as usize);
}
