//! `cargo xtask chaos`: real daemons and tasks on hosts of their own, harmed by a schedule that follows from a seed. When it is
//! over, all is put right, what was in flight ends, and the tasks' ledgers are judged: see `verdict/`.

pub(crate) mod deeds;
pub(crate) mod history;
pub(crate) mod schedule;
pub(crate) mod table;
pub(crate) mod verdict;

use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use tempfile::TempDir;

use crate::Outcome;
use crate::hosts::{HOSTS, Hosts, Manner, Patience, Shown, TASKS, ledger};
use crate::traffic::{Order, now_us};
use history::{History, SETTLE, micros};
use schedule::Planned;
use verdict::books::Books;
use verdict::{Verdict, judge};

/// How long nothing is harmed at first, while the daemons and tasks start.
const WARM_UP: Duration = Duration::from_secs(2);

/// How long nothing is harmed in the end, beside the time that healing takes: every call of it must go well.
const CALM: Duration = Duration::from_secs(4);

/// How long before everybody finishes they are told: nobody may be late.
const FINISH_NOTICE: Duration = Duration::from_millis(300);

/// Violations that are printed; the others are counted.
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
    /// Keep logs and ledgers of passing runs too
    #[arg(long)]
    keep: bool,
}

impl Chaos {
    pub(crate) fn run(&self) -> Outcome {
        for seed in self.seed..self.seed.saturating_add(self.seeds) {
            let passed = in_folder("chaos", self.keep, |folder| self.run_seed(seed, folder));
            if passed != Ok(true) {
                println!("again with: cargo xtask chaos --seconds {} --seed {seed}", self.seconds);
                return passed;
            }
        }
        Ok(true)
    }

    fn run_seed(&self, seed: u64, folder: &TempDir) -> Outcome {
        let start = Instant::now();
        let span = Duration::from_secs(self.seconds);
        let plan = schedule::schedule(seed, span);
        let patience = if seed.is_multiple_of(2) { Patience::Long } else { Patience::Short };
        let shown = [Shown::Tls, Shown::Secret, Shown::Nothing][(seed / 2 % 3) as usize];
        let mut hosts = Hosts::start(Manner { patience, shown }, folder.path())?;
        let deeds = plan.len();
        println!(
            "seed {seed}: {HOSTS} hosts, {TASKS} tasks, {deeds} deeds, patience is {patience:?}, peers show {shown:?}"
        );
        thread::sleep(WARM_UP);
        let history = carry_out(&plan, span, &mut hosts)?;
        thread::sleep(SETTLE + CALM);
        let (books, verdict) = conclude(hosts, &history)?;
        Ok(show(&format!("seed {seed}"), start, &books, &history, &verdict, ""))
    }
}

/// Runs in a folder for sockets, logs and ledgers, which is kept where that is wanted or the run does not pass.
pub(crate) fn in_folder(name: &str, keep: bool, run: impl FnOnce(&TempDir) -> Outcome) -> Outcome {
    let folder = tempfile::Builder::new().prefix(&format!("sealane-{name}-")).tempdir();
    let folder = folder.map_err(|error| format!("no folder can be made for logs: {error}"))?;
    println!("logs and ledgers: {}", folder.path().display());
    let passed = run(&folder);
    if keep || passed != Ok(true) {
        // Dropped, it would be removed.
        let _ = folder.keep();
    }
    passed
}

/// Does what the plan says for so long, and notes when it was done.
///
/// # Errors
/// It cannot be done.
pub(crate) fn carry_out(plan: &[Planned], span: Duration, hosts: &mut Hosts) -> Result<History, String> {
    let (start, start_us) = (Instant::now(), now_us());
    let mut history = History::new(hosts.manner.patience, start_us);
    let begins = plan.iter().enumerate().map(|(index, planned)| (planned.at, index, true));
    let ends = plan.iter().enumerate().map(|(index, planned)| (planned.at + planned.lasts, index, false));
    let mut moments: Vec<_> = begins.chain(ends).collect();
    moments.sort_unstable();
    for (at, index, begins) in moments {
        thread::sleep((start + at).saturating_duration_since(Instant::now()));
        let Planned { deed, lasts, .. } = plan[index];
        let now = || start.elapsed().as_secs_f64();
        if begins {
            println!("{:8.3} s  {deed}, {:.1} s", now(), lasts.as_secs_f64());
            history.begin(index, deed, now_us());
            deed.begin(hosts)?;
        } else {
            deed.end(hosts)?;
            history.end(index, now_us());
            println!("{:8.3} s    over: {deed}", now());
        }
    }
    thread::sleep((start + span).saturating_duration_since(Instant::now()));
    Ok(history)
}

/// Has all tasks finish, ends everything, and judges the ledgers.
///
/// # Errors
/// A ledger cannot be read.
pub(crate) fn conclude(mut hosts: Hosts, history: &History) -> Result<(Books, Verdict), String> {
    // Everybody ends with the same tick.
    let at_us = now_us() + micros(FINISH_NOTICE);
    let fallen = hosts.fallen();
    let finished = hosts.finish(Order::Finish { at_us });
    let lives: Vec<u32> = hosts.tasks.iter().map(|task| task.lives).collect();
    let books = Books::read(&lives, |task, life| ledger(&hosts.folder, task, life))?;
    drop(hosts);
    let mut verdict = judge(&books, history);
    verdict.violations.extend(fallen.into_iter().chain(finished.err()));
    Ok((books, verdict))
}

/// Prints what a run came to, with what else is to be said of it; whether it passed.
pub(crate) fn show(
    name: &str,
    start: Instant,
    books: &Books,
    history: &History,
    verdict: &Verdict,
    more: &str,
) -> bool {
    print!("{}{more}", table::table(books, history, verdict));
    for violation in verdict.violations.iter().take(SHOWN) {
        println!("VIOLATION: {violation}");
    }
    if verdict.violations.len() > SHOWN {
        println!("and {} more", verdict.violations.len() - SHOWN);
    }
    let passed = verdict.violations.is_empty();
    let (took, result) = (start.elapsed().as_secs_f64(), if passed { "passed" } else { "FAILED" });
    println!("{name} {result} in {took:.0} s");
    passed
}
