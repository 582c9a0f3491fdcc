//! Tables between two engines in this process, as on two hosts.

#[path = "../rows/scenarios.rs"]
mod scenarios;

use sealane_runtime::Pin;

use crate::{two, two_with};

macro_rules! between_engines {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            let (ps, worker) = two();
            scenarios::$scenario(&ps, &worker);
        })*
    };
}

scenarios::all!(between_engines);

#[test]
fn more_rows_than_one_request_names_come_over_all_shards() {
    let (ps, worker) = two_with(|settings| (settings.runtime.shards, settings.runtime.pin) = (2, Pin::Off));
    scenarios::more_rows_than_one_request_names_come_together(&ps, &worker);
    scenarios::rows_of_many_tables_come_together(&ps, &worker);
}
