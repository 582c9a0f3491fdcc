//! `cargo xtask soak`: the hosts and the traffic of `chaos`, harmed gently and again and again, while some of the processes
//! live through all of it. In the end these hold what they held after the first round, every tensor is accounted for,
//! and no sleeper was left asleep.

mod plan;
mod samples;
mod wakes;

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::chaos::{LAYOUT, carry_out, conclude, show, table, tidy_up};
use crate::hosts::{Hosts, Interrupts, Manner, Patience, Shown};
use crate::traffic::{Order, now_us};
use samples::Samples;
use wakes::Prober;

/// Who lives through all of it: two daemons, a client of each, and the task whose engine is its own.
const WATCHED_DAEMONS: [usize; 2] = [0, 1];
const WATCHED_TASKS: [usize; 3] = [0, 2, 6];

/// How long nothing new begins before the books are compared: longer than any call's deadline, so that everything has
/// ended, and been released.
const REST: Duration = Duration::from_secs(12);

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
    pub(crate) fn run(&self) -> ExitCode {
        let folder = std::env::temp_dir().join(format!("sealane-soak-{}", std::process::id()));
        let passed = self.soak(&folder);
        tidy_up(&folder, "soak", self.keep || passed != Ok(true));
        match passed {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn soak(&self, folder: &Path) -> Result<bool, String> {
        let interrupts = Interrupts::take()?;
        let start = Instant::now();
        let mut hosts = Hosts::start(LAYOUT, Manner { patience: Patience::Short, shown: Shown::Tls }, folder)?;
        let prober = Prober::start()?;
        interrupts.sleep(plan::WARM_UP)?;
        let samples = Samples::begin(watched(&mut hosts));
        // The first round fills what is filled once: receive areas, connections, pools of the allocator.
        let rounds = (self.seconds / plan::ROUND.as_secs()).max(2);
        let mut history = carry_out(&plan::round(0), plan::ROUND, &mut hosts, &interrupts)?;
        let began = rest(&mut hosts, &interrupts)?;
        for round in 1..rounds {
            let (seconds, line) = (start.elapsed().as_secs(), samples.line());
            println!("round {} of {rounds}, {seconds} s: {line}", round + 1);
            history.append(carry_out(&plan::round(round), plan::ROUND, &mut hosts, &interrupts)?);
        }
        let ended = rest(&mut hosts, &interrupts)?;
        let samples = samples.end();
        let wakes = prober.stop();
        let (books, mut verdict) = conclude(hosts, &history)?;
        let held = samples::held(&books, began, ended);
        let report = samples.report(began, ended);
        verdict.violations.extend(report.violations.into_iter().chain(held.violations).chain(wakes.violations));
        print!("{}", table::table(&books, &history, &verdict));
        print!("{}{}{}", report.text, held.text, wakes.text);
        show(&verdict);
        let passed = verdict.violations.is_empty();
        let (took, result) = (start.elapsed().as_secs_f64(), if passed { "passed" } else { "FAILED" });
        println!("soak {result} in {took:.0} s");
        Ok(passed)
    }
}

/// What a part of the soak came to.
struct Report {
    text: String,
    violations: Vec<String>,
}

/// The names and numbers of the processes that are watched.
fn watched(hosts: &mut Hosts) -> Vec<(String, u32)> {
    let mut all = Vec::new();
    for host in WATCHED_DAEMONS {
        all.extend(hosts.daemon(host).map(|daemon| (format!("daemon{host}"), daemon.id())));
    }
    for task in WATCHED_TASKS {
        all.extend(hosts.task(task).map(|process| (format!("task{task}"), process.id())));
    }
    all
}

/// Lets everything come to an end, and tells when it had.
fn rest(hosts: &mut Hosts, interrupts: &Interrupts) -> Result<u64, String> {
    println!("all rest for {} s", REST.as_secs());
    for task in 0..LAYOUT.tasks() {
        if let Some(process) = hosts.task(task) {
            process.order(Order::Rest { millis: REST.as_millis() as u64 });
        }
    }
    // Not to the very end: what comes next must not have begun.
    interrupts.sleep(REST - Duration::from_secs(1))?;
    Ok(now_us())
}
