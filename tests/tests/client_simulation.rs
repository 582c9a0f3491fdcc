//! Attached clients on virtual time: a fixed set of seeds, each with different clients, lanes and calls.

use sealane_tests::client_simulation::{LaneKind, Round, TRACE_LINES, kill_anywhere, simulate};

/// Seeds that the suite runs, starting at the one in the environment if it is set: that is how to run others by hand.
const SEEDS: u64 = 600;

const KINDS: [LaneKind; 2] = [LaneKind::Direct, LaneKind::Switched];

#[test]
fn promises_to_clients_hold_whatever_they_do() {
    let first = std::env::var("CLIENT_SIMULATION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let lines =
        std::env::var("CLIENT_SIMULATION_LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(TRACE_LINES);
    let (mut delivered, mut by_lane, mut cancelled, mut claimed) = (0, 0, 0, 0);
    let (mut aborted, mut exhausted, mut late, mut gone) = (0, 0, 0, 0);
    let (mut lanes_ended, mut deaths) = (0, 0);
    for (seed, lanes) in (first..first + SEEDS).flat_map(|seed| KINDS.map(|lanes| (seed, lanes))) {
        match simulate(seed, lanes, lines) {
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
    let seeds = KINDS.len() * SEEDS as usize;
    println!("{delivered} delivered, {by_lane} by lanes, {cancelled} cancelled, {claimed} claimed");
    println!(
        "{aborted} aborted, {exhausted} exhausted, {late} late, {gone} gone, {lanes_ended} lanes, {deaths} deaths"
    );
    // A simulation in which nothing goes wrong, or nothing goes well, would prove nothing.
    assert!(delivered > 30 * seeds && by_lane > 5 * seeds as u64 && cancelled > 5 * seeds && claimed > 0);
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

/// They once found recvs that waited although their tensor had come, and tensors of a key in the wrong order.
const FOUND: [u64; 10] = [1355, 5232, 6782, 8273, 11_226, 500_166, 904_564, 915_161, 916_520, 921_561];

#[test]
fn seeds_that_have_found_something_find_nothing_more() {
    for (seed, lanes) in FOUND.into_iter().flat_map(|seed| KINDS.map(|lanes| (seed, lanes))) {
        if let Err(violation) = simulate(seed, lanes, TRACE_LINES) {
            panic!("{violation}");
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    for seed in 0..12 {
        for lanes in KINDS {
            let [first, second] = [(); 2].map(|()| simulate(seed, lanes, TRACE_LINES));
            assert_eq!(first.unwrap(), second.unwrap(), "seed {seed}");
        }
    }
}
