//! `cargo xtask chaos`: real daemons and tasks on hosts of their own, harmed by a schedule that follows from a seed. When it is
//! over, all is put right, what was under way ends, and the tasks' ledgers are judged: see `verdict/`.

mod deeds;
mod history;
mod schedule;
mod table;
mod verdict;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use crate::hosts::{Hosts, Interrupts, Layout};
use crate::traffic::{Order, now_us};
use deeds::Deed;
use history::{History, SETTLE};
use verdict::books::Books;
use verdict::{Verdict, judge};

/// Three hosts, so that there is somebody to notice what two do to each other; two tasks on each, so that some share a daemon.
pub(crate) const LAYOUT: Layout = Layout { hosts: 3, attached_per_host: 2 };

/// How long nothing is harmed at first, while the daemons and tasks start.
const WARM_UP: Duration = Duration::from_secs(2);

/// How long nothing is harmed in the end, beside the time that healing takes: every call of it must go well.
const CALM: Duration = Duration::from_secs(4);

/// Violations that are printed; the others are counted.
const SHOWN: usize = 20;

#[derive(Args)]
#[command(
    after_help = "Examples:\n  cargo xtask chaos --seconds 30 --seed 7\n  cargo xtask chaos --seconds 30 --seed 100 --seeds 20"
)]
pub(crate) struct Chaos {
    /// How long the hosts are harmed
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// What is done to them, and when, follows from it
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Run so many seeds one after the other, until one fails
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Keep logs and ledgers of a run that passes as well
    #[arg(long)]
    keep: bool,
}

impl Chaos {
    pub(crate) fn run(&self) -> ExitCode {
        match self.run_seeds() {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("error: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn run_seeds(&self) -> Result<bool, String> {
        let interrupts = Interrupts::take()?;
        for seed in self.seed..self.seed.saturating_add(self.seeds) {
            let folder = std::env::temp_dir().join(format!("sealane-chaos-{}", std::process::id()));
            let passed = self.run_seed(seed, &folder, &interrupts);
            if passed == Ok(true) && !self.keep {
                let _ = fs::remove_dir_all(&folder);
            } else {
                let kept = folder.with_extension(format!("seed-{seed}"));
                let _ = fs::remove_dir_all(&kept);
                let kept = if fs::rename(&folder, &kept).is_ok() { kept } else { folder };
                println!("logs and ledgers: {}", kept.display());
            }
            if passed != Ok(true) {
                println!("again with: cargo xtask chaos --seconds {} --seed {seed}", self.seconds);
                return passed;
            }
        }
        Ok(true)
    }

    fn run_seed(&self, seed: u64, folder: &PathBuf, interrupts: &Interrupts) -> Result<bool, String> {
        let start = Instant::now();
        let plan = schedule::schedule(seed, Duration::from_secs(self.seconds), LAYOUT);
        let mut hosts = Hosts::start(LAYOUT, folder)?;
        println!("seed {seed}: {} hosts, {} tasks, {} deeds", LAYOUT.hosts, LAYOUT.tasks(), plan.len());
        let history = self.harm(&plan, &mut hosts, interrupts)?;
        interrupts.sleep(SETTLE + CALM)?;
        // Everybody ends with the same tick.
        let at_us = now_us() + Duration::from_millis(300).as_micros() as u64;
        let fallen = hosts.fallen();
        let finished = hosts.finish(&Order::Finish { at_us }.to_string());
        let lives = (0..LAYOUT.tasks()).map(|task| hosts.lives(task)).collect::<Vec<_>>();
        let books = Books::read(&lives, |task, life| hosts.ledger(task, life))?;
        drop(hosts);
        let mut verdict = judge(&books, &history);
        verdict.violations.extend(fallen.into_iter().chain(finished.err()));
        let passed = verdict.violations.is_empty();
        print!("{}", table::table(&books, &history, &verdict));
        show(&verdict);
        let (took, result) = (start.elapsed().as_secs_f64(), if passed { "passed" } else { "FAILED" });
        println!("seed {seed} {result} in {took:.0} s");
        Ok(passed)
    }

    /// Does what the plan says, and notes when it was done.
    fn harm(&self, plan: &[schedule::Planned], hosts: &mut Hosts, interrupts: &Interrupts) -> Result<History, String> {
        interrupts.sleep(WARM_UP)?;
        let (start, start_us) = (Instant::now(), now_us());
        let mut history = History::new(LAYOUT, start_us);
        let begins = plan.iter().enumerate().map(|(index, planned)| (planned.at, index, true));
        let ends = plan.iter().enumerate().map(|(index, planned)| (planned.at + planned.lasts, index, false));
        let mut moments: Vec<_> = begins.chain(ends).collect();
        moments.sort_unstable();
        for (at, index, begins) in moments {
            interrupts.sleep_until(start + at)?;
            let deed = plan[index].deed;
            if begins {
                let lasts = plan[index].lasts.as_secs_f64();
                println!("{:8.3} s  {deed}, {lasts:.1} s", start.elapsed().as_secs_f64());
                let began = now_us();
                deed.begin(hosts)?;
                history.begin(index, deed, began);
            } else {
                deed.end(hosts)?;
                history.end(index, now_us());
                if !matches!(deed, Deed::Burst { .. }) {
                    println!("{:8.3} s    over: {deed}", start.elapsed().as_secs_f64());
                }
            }
        }
        Ok(history)
    }
}

fn show(verdict: &Verdict) {
    for violation in verdict.violations.iter().take(SHOWN) {
        println!("VIOLATION: {violation}");
    }
    if verdict.violations.len() > SHOWN {
        println!("and {} more", verdict.violations.len() - SHOWN);
    }
}
