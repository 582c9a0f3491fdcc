//! Streams between two engines in this process, as on two hosts.

#[path = "../streams/scenarios.rs"]
mod scenarios;

use crate::two;

macro_rules! between_engines {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (ps, worker) = two();
            scenarios::$scenario(&ps, &worker, scenarios::NARROW);
        })*
    };
}

scenarios::all!(between_engines);
