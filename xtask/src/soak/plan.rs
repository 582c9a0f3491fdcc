//! A round of trouble: connections break, a daemon and clients come and go, pools are filled. Those who are watched live.

use std::time::Duration;

use crate::chaos::deeds::Deed;
use crate::chaos::schedule::Planned;
use crate::hosts::Cut;

/// How long nothing is done at first, while the daemons and tasks start.
pub(super) const WARM_UP: Duration = Duration::from_secs(3);

/// How long a round takes: after the last deed it settles.
pub(super) const ROUND: Duration = Duration::from_secs(16);

/// The daemon that comes and goes, and the clients that do.
const COMING_AND_GOING: usize = 2;
const CLIENTS: [usize; 3] = [1, 3, 5];

/// How long a client that leaves is given: all its calls come to their ends.
const LEAVING_MS: u64 = 11_000;

/// What is done in a round, by its number.
pub(super) fn round(number: u64) -> Vec<Planned> {
    let turn = |choices: usize| number as usize % choices;
    let host = turn(2);
    let client = CLIENTS[turn(CLIENTS.len())];
    let other = CLIENTS[(number as usize + 1) % CLIENTS.len()];
    let cuts = [Cut::Silent, Cut::Pulled, Cut::OneWay];
    let end = [Deed::KillDaemon(COMING_AND_GOING), Deed::DrainDaemon(COMING_AND_GOING)][turn(2)];
    let planned = |at_ms, lasts_ms, deed| Planned {
        at: Duration::from_millis(at_ms),
        lasts: Duration::from_millis(lasts_ms),
        deed,
    };
    vec![
        planned(200, 1500, Deed::Cut(host, cuts[turn(3)])),
        planned(2500, 300, Deed::KillTask(client)),
        planned(2600, LEAVING_MS, Deed::Leave(other)),
        planned(4000, 1000, end),
        planned(5500, 2500, Deed::Burst { task: client, bytes: 100, count: 3000 }),
        planned(8500, 400, Deed::StopTask(client)),
        planned(9500, 2000, Deed::Deafen { task: client, millis: 2000 }),
        planned(10_500, 400, Deed::Cut(1 - host, cuts[turn(3)])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::deeds::Victim;
    use crate::soak::{WATCHED_DAEMONS, WATCHED_TASKS};

    #[test]
    fn nobody_who_is_watched_is_ended() {
        for deed in (0..12).flat_map(round).map(|planned| planned.deed).filter(|deed| deed.kills()) {
            match deed.victim() {
                Victim::Daemon(host) => assert!(!WATCHED_DAEMONS.contains(&host)),
                Victim::Task(task) => assert!(!WATCHED_TASKS.contains(&task)),
                Victim::Cable(_) => {}
            }
        }
    }
}
