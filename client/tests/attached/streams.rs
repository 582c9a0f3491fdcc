//! Streams between two clients of one daemon.

#[path = "../streams/scenarios.rs"]
mod scenarios;

use crate::{
    daemon::{Daemon, Settings},
    fixture::{directory, peers, to, to_as},
};

macro_rules! between_clients {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let directory = directory();
            let daemon = Daemon::start(&directory, Settings::default());
            let (ps, worker) = (to_as(&daemon, &peers()[0]).attach().unwrap(), to(&daemon).attach().unwrap());
            scenarios::$scenario(&ps, &worker);
        })*
    };
}

between_clients!(
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
