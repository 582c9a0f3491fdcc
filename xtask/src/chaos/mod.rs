//! `cargo xtask chaos`: real daemons and tasks on separate hosts, with faults injected by a schedule derived from a seed. At the
//! end all faults are undone, calls in flight end, and the tasks' ledgers are judged: see `verdict/`. `soak` is the same with
//! milder faults, and limits on what remains.

mod deeds;
mod history;
mod limits;
mod schedule;
mod soak;
mod verdict;
mod wakes;

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

pub(crate) use deeds::Victim;
pub(crate) use soak::Soak;

use crate::Outcome;
use crate::hosts::{HOSTS, Hosts, Manner, Shown, TASKS, ledger};
use crate::traffic::{Order, now_us};
use history::{History, SETTLE, micros};
use limits::Limits;
use schedule::Planned;
use verdict::books::Books;
use verdict::{Verdict, judge, outcomes};

/// How long no fault is injected at first, while the daemons and tasks start.
const WARM_UP: Duration = Duration::from_secs(3);

/// How long no fault is injected at the end, besides the time that healing takes: every call then must succeed.
const CALM: Duration = Duration::from_secs(4);

/// How long before the common end everybody is told of it: nobody may be late.
const FINISH_NOTICE: Duration = Duration::from_millis(300);

/// Violations that are printed; further ones are counted.
const SHOWN: usize = 20;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo xtask chaos --seconds 30 --seed 7\n  cargo xtask chaos --seconds 30 --seed 100 --seeds 20"
)]
pub(crate) struct Chaos {
    /// Duration of the fault injection, in seconds
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Determines the faults and their times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run this many seeds in sequence, until one fails
    #[arg(long, default_value_t = 1)]
    seeds: u64,
}

impl Chaos {
    pub(crate) fn run(&self) -> Outcome {
        for seed in self.seed..self.seed.saturating_add(self.seeds) {
            let (name, span) = (format!("seed {seed}"), Duration::from_secs(self.seconds));
            let is_patient = seed.is_multiple_of(2);
            let shown = [Shown::Tls, Shown::Secret, Shown::Nothing][(seed / 2 % 3) as usize];
            let rounds = vec![schedule::schedule(seed, span)];
            let trial = Trial { name, manner: Manner { is_patient, shown }, rounds, span, is_soak: false };
            let passed = trial.run();
            if passed != Ok(true) {
                println!("again with: cargo xtask chaos --seconds {} --seed {seed}", self.seconds);
                return passed;
            }
        }
        Ok(true)
    }
}

/// A run: how the hosts behave, and which faults are injected.
struct Trial {
    name: String,
    manner: Manner,
    /// The faults of each round, and the round's duration.
    rounds: Vec<Vec<Planned>>,
    span: Duration,
    /// True if all rest after each round, and what they hold then is limited.
    is_soak: bool,
}

impl Trial {
    /// Runs in a directory for sockets, logs and ledgers, which is kept if the run fails.
    fn run(&self) -> Outcome {
        let folder = tempfile::Builder::new().prefix("sealane-chaos-").tempdir();
        let folder = folder.map_err(|error| format!("no folder can be made for logs: {error}"))?;
        println!("logs and ledgers: {}", folder.path().display());
        let passed = self.run_in(folder.path());
        if passed != Ok(true) {
            // It would be removed when dropped.
            let _ = folder.keep();
        }
        passed
    }

    fn run_in(&self, folder: &Path) -> Outcome {
        let start = Instant::now();
        let mut hosts = Hosts::start(self.manner, folder)?;
        println!("{}: {HOSTS} hosts, {TASKS} tasks, {:?}", self.name, self.manner);
        let mut limits = self.is_soak.then(|| Limits::start(&hosts));
        thread::sleep(WARM_UP);
        let mut history = History::new(self.manner.is_patient, now_us());
        for (number, plan) in self.rounds.iter().enumerate() {
            println!("round {} of {}", number + 1, self.rounds.len());
            carry_out(plan, self.span, &mut hosts, &mut history)?;
            match &mut limits {
                Some(limits) => limits.rest_and_look(&mut hosts),
                None => thread::sleep(SETTLE + CALM),
            }
        }
        // Everybody ends with the same tick.
        let at_us = now_us() + micros(FINISH_NOTICE);
        let fallen = hosts.fallen();
        let finished = hosts.finish(Order::Finish { at_us });
        let lives: Vec<u32> = hosts.tasks.iter().map(|task| task.lives).collect();
        drop(hosts);
        let books = Books::read(&lives, |task, life| ledger(folder, task, life))?;
        let mut verdict = judge(&books, &history);
        verdict.violations.extend(fallen.into_iter().chain(finished.err()));
        if let Some(limits) = limits {
            limits.judge(&mut verdict);
        }
        print_tables(&books, &history, &verdict);
        for violation in verdict.violations.iter().take(SHOWN) {
            println!("VIOLATION: {violation}");
        }
        if verdict.violations.len() > SHOWN {
            println!("and {} more", verdict.violations.len() - SHOWN);
        }
        let passed = verdict.violations.is_empty();
        let (took, result) = (start.elapsed().as_secs(), if passed { "passed" } else { "FAILED" });
        println!("{} {result} in {took} s", self.name);
        Ok(passed)
    }
}

/// Injects the planned faults during `span`, and records when.
fn carry_out(plan: &[Planned], span: Duration, hosts: &mut Hosts, history: &mut History) -> Result<(), String> {
    let start = Instant::now();
    let begins = plan.iter().enumerate().map(|(index, planned)| (planned.at, index, true));
    let ends = plan.iter().enumerate().map(|(index, planned)| (planned.at + planned.lasts, index, false));
    let mut moments: Vec<_> = begins.chain(ends).collect();
    moments.sort_unstable();
    let mut places = vec![0; plan.len()];
    for (at, index, begins) in moments {
        thread::sleep((start + at).saturating_duration_since(Instant::now()));
        let Planned { deed, lasts, .. } = plan[index];
        if begins {
            println!("{:8.3} s  {deed}, {:.1} s", history.seconds(now_us()), lasts.as_secs_f64());
            places[index] = history.begin(deed, now_us());
            deed.begin(hosts)?;
        } else {
            deed.end(hosts)?;
            history.done[places[index]].ended = now_us();
            println!("{:8.3} s    over: {deed}", history.seconds(now_us()));
        }
    }
    thread::sleep((start + span).saturating_duration_since(Instant::now()));
    Ok(())
}

/// Prints the faults, how calls ended, and the measured times.
fn print_tables(books: &Books, history: &History, verdict: &Verdict) {
    let mut deeds: BTreeMap<String, usize> = BTreeMap::new();
    for done in &history.done {
        // Without numbers of hosts and tasks, sizes and rates.
        let kind = done.deed.to_string().chars().filter(|letter| !letter.is_ascii_digit()).collect();
        *deeds.entry(kind).or_default() += 1;
    }
    println!("\ndeeds");
    deeds.iter().for_each(|(kind, count)| println!("  {count:6}  {kind}"));
    println!("calls");
    for (kind, ends) in outcomes(books) {
        let ends: Vec<String> = ends.iter().map(|(end, count)| format!("{count} {end}")).collect();
        println!("  {:10}  {}", format!("{kind:?}"), ends.join(", "));
    }
    println!("times (ms: count, median, most)");
    for (what, times) in &verdict.times {
        let mut sorted = times.clone();
        sorted.sort_unstable();
        if let Some(&most) = sorted.last() {
            let (count, median) = (sorted.len(), sorted[sorted.len() / 2] as f64 / 1e3);
            println!("  {what:52}  {count}, {median:.1}, {:.1}", most as f64 / 1e3);
        }
    }
}
