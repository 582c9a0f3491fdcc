//! Streams between two engines in this process, as on two hosts.

#[path = "../streams/scenarios.rs"]
mod scenarios;

use crate::two;

macro_rules! between_engines {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (ps, worker) = two();
            scenarios::$scenario(&ps, &worker);
        })*
    };
}

between_engines!(
    both_ways_end_by_themselves,
    a_stream_that_is_not_read_holds_up_itself_alone,
    a_stream_that_is_dropped_unfinished_is_reset,
    what_cannot_be_dialed_says_why,
    a_stream_may_end_before_its_dialer_looks,
    several_accept_at_once,
    who_is_dialed_does_not_choose_the_number,
    a_thousand_pass_at_once,
    what_blocks_does_so_no_longer_than_it_was_told,
);
