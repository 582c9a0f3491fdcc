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

scenarios::all!(between_clients);
