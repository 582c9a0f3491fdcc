//! `cargo xtask soak`: the hosts and the traffic of `chaos`, harmed gently and again and again, while some of the processes
//! live through all of it. In the end these hold what they held after the first round, every tensor is accounted for,
//! and no sleeper was left asleep.

mod samples;
mod wakes;

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tempfile::TempDir;

use crate::Outcome;
use crate::chaos::deeds::Deed;
use crate::chaos::schedule::Planned;
use crate::chaos::{carry_out, conclude, in_folder, show};
use crate::hosts::{Cut, Hosts, Manner, Patience, Shown};
use crate::traffic::{Order, now_us};
use samples::Samples;
use wakes::Prober;

/// Who lives through all of it: two daemons, a client of each, and the task whose engine is its own.
const WATCHED_DAEMONS: [usize; 2] = [0, 1];
const WATCHED_TASKS: [usize; 3] = [0, 2, 6];

/// How long nothing new begins before the books are compared: longer than any call's deadline, so that everything has
/// ended, and been released.
const REST: Duration = Duration::from_secs(12);

/// How long nothing is done at first, while the daemons and tasks start.
const WARM_UP: Duration = Duration::from_secs(3);

/// How long a round takes: after the last deed it settles.
const ROUND: Duration = Duration::from_secs(16);

/// The daemon that comes and goes, and the clients that do.
const COMING_AND_GOING: usize = 2;
const CLIENTS: [usize; 3] = [1, 3, 5];

/// How long a client that leaves is given: all its calls come to their ends.
const LEAVING_MS: u64 = 11_000;

#[derive(Args)]
#[command(after_help = "Example:\n  cargo xtask soak --seconds 600")]
pub(crate) struct Soak {
    /// Duration of the traffic, in seconds; a round of faults takes 16 s, and there are at least two
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// Keep logs and ledgers of passing runs too
    #[arg(long)]
    keep: bool,
}

impl Soak {
    pub(crate) fn run(&self) -> Outcome {
        in_folder("soak", self.keep, |folder| self.soak(folder))
    }

    fn soak(&self, folder: &TempDir) -> Outcome {
        let start = Instant::now();
        let manner = Manner { patience: Patience::Short, shown: Shown::Tls };
        let mut hosts = Hosts::start(manner, folder.path())?;
        let prober = Prober::start()?;
        thread::sleep(WARM_UP);
        let mut samples = Samples::of(watched(&hosts));
        // The first round fills what is filled once: receive areas, connections, pools of the allocator.
        let rounds = (self.seconds / ROUND.as_secs()).max(2);
        let mut history = carry_out(&round(0), ROUND, &mut hosts)?;
        let began = rest(&mut hosts);
        samples.look();
        for number in 1..rounds {
            let (seconds, line) = (start.elapsed().as_secs(), samples.line());
            println!("round {} of {rounds}, {seconds} s: {line}", number + 1);
            history.append(carry_out(&round(number), ROUND, &mut hosts)?);
            samples.look();
        }
        let ended = rest(&mut hosts);
        samples.look();
        let wakes = prober.stop();
        let (books, mut verdict) = conclude(hosts, &history)?;
        let held = samples::held(&books, began, ended);
        let report = samples.report();
        let more = format!("{}{}{}", report.text, held.text, wakes.text);
        verdict.violations.extend(report.violations.into_iter().chain(held.violations).chain(wakes.violations));
        Ok(show("soak", start, &books, &history, &verdict, &more))
    }
}

/// What a part of the soak came to.
struct Report {
    text: String,
    violations: Vec<String>,
}

/// The names and numbers of the processes that are watched.
fn watched(hosts: &Hosts) -> Vec<(String, u32)> {
    let daemons = WATCHED_DAEMONS.map(|host| (format!("daemon{host}"), &hosts.daemons[host]));
    let tasks = WATCHED_TASKS.map(|task| (format!("task{task}"), &hosts.tasks[task]));
    daemons.into_iter().chain(tasks).filter_map(|(name, slot)| Some((name, slot.process.as_ref()?.id()))).collect()
}

/// Lets everything come to an end, and tells when it had.
fn rest(hosts: &mut Hosts) -> u64 {
    println!("all rest for {} s", REST.as_secs());
    let order = Order::Rest { millis: REST.as_millis() as u64 };
    hosts.tasks.iter_mut().for_each(|task| task.order(order));
    // Not to the very end: what comes next must not have begun.
    thread::sleep(REST - Duration::from_secs(1));
    now_us()
}

/// What is done in a round, by its number.
fn round(number: u64) -> Vec<Planned> {
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
