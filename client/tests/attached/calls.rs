//! Calls between two clients of one daemon.

#[path = "../calls/scenarios.rs"]
mod scenarios;

use crate::fixture::two_clients;

macro_rules! between_clients {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (_directory, _daemon, ps, worker) = two_clients();
            scenarios::$scenario(&ps, &worker);
        })*
    };
}

scenarios::all!(between_clients);

/// The same with a direct lane, by which small tensors go.
mod by_lane {
    use super::*;
    use crate::direct::open_lane;

    macro_rules! between_neighbours {
        ($($scenario:ident),* $(,)?) => {
            $(#[test]
            fn $scenario() {
                let (_directory, _daemon, ps, worker) = two_clients();
                open_lane(&worker, &ps, ps.name());
                scenarios::$scenario(&ps, &worker);
            })*
        };
    }

    scenarios::all!(between_neighbours);
}
