//! `cargo xtask soak`: gentle chaos in rounds, while some of the processes live through all of it. At the end these hold what they
//! held after the first round, every tensor is accounted for, and no wake-up was lost.

use std::time::Duration;

use clap::Args;

use super::Trial;
use super::deeds::{Deed, Harm, Victim};
use super::limits::REST;
use super::schedule::Planned;
use crate::Outcome;
use crate::hosts::{Cut, Manner, Shown};
use crate::traffic::Order;

/// How long the faults of a round take: after the last one it settles.
const ROUND: Duration = Duration::from_secs(16);

/// The daemon that is restarted, and the clients that are; the others are watched.
const COMING_AND_GOING: usize = 2;
const CLIENTS: [usize; 3] = [1, 3, 5];

/// Time for a client that leaves: all its calls come to their ends.
const LEAVING_MS: u64 = 11_000;

#[derive(Args)]
#[command(after_help = "Example:\n  cargo xtask soak --seconds 600")]
pub(crate) struct Soak {
    /// Duration of the traffic, in seconds; a round takes 28 s, and there are at least two
    #[arg(long, default_value_t = 600)]
    seconds: u64,
}

impl Soak {
    pub(crate) fn run(&self) -> Outcome {
        // The first round fills what is filled only once: receive areas, connections, pools of the allocator.
        let rounds = (self.seconds / (ROUND + REST).as_secs()).max(2);
        let manner = Manner { is_patient: false, shown: Shown::Tls };
        let rounds = (0..rounds as usize).map(round).collect();
        Trial { name: "soak".to_owned(), manner, rounds, span: ROUND, is_soak: true }.run()
    }
}

/// The faults of a round, given its number.
fn round(number: usize) -> Vec<Planned> {
    let (host, daemon) = (number % 2, Victim::Daemon(COMING_AND_GOING));
    let [client, other] = [number, number + 1].map(|number| Victim::Task(CLIENTS[number % CLIENTS.len()]));
    let cut = [Cut::Silent, Cut::Pulled, Cut::OneWay][number % 3];
    let end = [Harm::Kill, Harm::Drain][number % 2];
    let deed = |harm, victim| Deed { harm, victim };
    let (burst, deaf) = (Order::Burst { bytes: 100, count: 3000 }, Order::Deaf { millis: 2000 });
    let planned = |(at, lasts, deed)| {
        let [at, lasts] = [at, lasts].map(Duration::from_millis);
        Planned { at, lasts, deed }
    };
    let deeds = [
        (200, 1500, Deed::cut(host, cut)),
        (2500, 300, deed(Harm::Kill, client)),
        (2600, LEAVING_MS, deed(Harm::Leave, other)),
        (4000, 1000, deed(end, daemon)),
        (5500, 2500, deed(Harm::Order(burst), client)),
        (8500, 400, deed(Harm::Stop, client)),
        (9500, 2000, deed(Harm::Order(deaf), client)),
        (10_500, 400, Deed::cut(1 - host, cut)),
    ];
    deeds.into_iter().map(planned).collect()
}
