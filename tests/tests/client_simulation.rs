//! Attached clients on virtual time: a fixed set of seeds, each with different clients, lanes and calls.

use proptest::prelude::*;
use sealane_tests::client_simulation::{Deed, Round, TRACE_LINES, kill_anywhere, outcomes, simulate};

/// Seeds that the suite runs, starting at the one in the environment if it is set: that is how to run others by hand.
const SEEDS: u64 = 600;

#[test]
fn promises_to_clients_hold_whatever_they_do() {
    let first = std::env::var("CLIENT_SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let lines =
        std::env::var("CLIENT_SIMULATION_LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(TRACE_LINES);
    let (mut delivered, mut by_lane, mut cancelled, mut claimed) = (0, 0, 0, 0);
    let (mut aborted, mut exhausted, mut late, mut gone) = (0, 0, 0, 0);
    let (mut lanes_ended, mut deaths) = (0, 0);
    for seed in first..first + SEEDS {
        match simulate(seed, lines) {
            Ok(report) => {
                delivered += report.delivered;
                by_lane += report.by_lane;
                cancelled += report.cancelled;
                claimed += report.claimed;
                aborted += report.aborted;
                exhausted += report.exhausted;
                late += report.late;
                gone += report.gone;
                lanes_ended += report.lanes_ended;
                deaths += report.deaths;
            }
            Err(violation) => panic!("{violation}"),
        }
    }
    let seeds = SEEDS as usize;
    println!("{delivered} delivered, {by_lane} by lanes, {cancelled} cancelled, {claimed} claimed");
    println!(
        "{aborted} aborted, {exhausted} exhausted, {late} late, {gone} gone, {lanes_ended} lanes, {deaths} deaths"
    );
    // A simulation in which nothing goes wrong, or nothing goes well, would prove nothing.
    assert!(delivered > 30 * seeds && by_lane > 5 * SEEDS && cancelled > 5 * seeds && claimed > 0);
    assert!(aborted > seeds && exhausted > 0 && late > seeds / 4 && gone > seeds / 4);
    assert!(lanes_ended > seeds / 4 && deaths > seeds / 4);
}

#[test]
fn who_heard_that_a_tensor_was_received_may_rely_on_it_wherever_the_daemon_is_killed() {
    for recvs_first in [true, false] {
        for (tensors, alone) in [(1, true), (2, true), (2, false), (9, true), (9, false)] {
            let round = Round { tensors, alone, recvs_first };
            let records = kill_anywhere(round).unwrap_or_else(|lost| panic!("{lost}"));
            assert!(records >= 4, "{round:?}: each client is told of what came and of what was received");
        }
    }
}

/// What a client does; mostly calls, half of them of the same tensors in the same order.
fn deed() -> impl Strategy<Value = Deed> {
    let tensors = || prop_oneof![Just((0, 8)), Just((8, 8)), Just((0, 16)), (0..16u32, 1..9u32)];
    let calls = (any::<bool>(), 0..2i64, tensors(), prop::bool::weighted(0.2));
    let calls = calls.prop_map(|(are_recvs, step, (first, count), is_short)| Deed::Calls {
        are_recvs,
        step,
        first,
        count,
        is_short,
    });
    let one = (0..2i64, tensors()).prop_map(|(step, (first, count))| Deed::SendsOne { step, first, count });
    prop_oneof![
        20 => calls,
        2 => one,
        2 => (0..64u32).prop_map(|call| Deed::GivesUp { call }),
        1 => (0..2i64).prop_map(|step| Deed::Aborts { step }),
        1 => (0..2i64).prop_map(|step| Deed::Cleans { step }),
        1 => Just(Deed::Leaves),
        3 => Just(Deed::Waits),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2000) })]
    #[test]
    fn calls_that_are_made_together_end_as_if_each_were_made_alone(
        deeds in prop::collection::vec((0..2usize, deed()), 1..24),
    ) {
        let [together, alone] = [true, false].map(|together| outcomes(&deeds, together));
        prop_assert_eq!(together.map_err(TestCaseError::fail)?, alone.map_err(TestCaseError::fail)?);
    }
}

/// They once found recvs that waited although their tensor had come, and tensors of a key in the wrong order.
const FOUND: [u64; 10] = [1355, 5232, 6782, 8273, 11_226, 500_166, 904_564, 915_161, 916_520, 921_561];

#[test]
fn seeds_that_have_found_something_find_nothing_more() {
    for seed in FOUND {
        if let Err(violation) = simulate(seed, TRACE_LINES) {
            panic!("{violation}");
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..12 {
        let (first, second) = (simulate(seed, TRACE_LINES), simulate(seed, TRACE_LINES));
        assert_eq!(first.unwrap(), second.unwrap(), "seed {seed}");
    }
}
