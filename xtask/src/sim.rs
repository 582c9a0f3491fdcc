//! `cargo xtask sim`: the simulation over any number of seeds.

use std::time::Instant;

use clap::Args;
use sealane_tests::simulation::{TRACE_LINES, simulate};

use crate::Outcome;

/// Seeds between two lines of progress.
const PROGRESS_EVERY: u64 = 1000;

#[derive(Args)]
#[command(after_help = "Examples:\n  cargo xtask sim --seeds 10000\n  cargo xtask sim --seed 4711")]
pub(crate) struct Sim {
    /// Number of seeds to run, in sequence
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Sim {
    pub(crate) fn run(&self) -> Outcome {
        let start = Instant::now();
        let (mut delivered, mut refused, mut lost, mut reset) = (0, 0, 0, 0);
        let (mut pulled, mut missed, mut rows, mut rows_missed) = (0, 0, 0, 0);
        for seed in self.seed..self.seed.saturating_add(self.seeds) {
            match simulate(seed, TRACE_LINES) {
                Ok(report) => {
                    delivered += report.delivered;
                    refused += report.refused;
                    pulled += report.pulled;
                    missed += report.missed;
                    rows += report.rows;
                    rows_missed += report.rows_missed;
                    lost += report.links_lost;
                    reset += report.sessions_reset;
                }
                Err(violation) => {
                    println!("{violation}\nagain with: cargo xtask sim --seed {seed}");
                    return Ok(false);
                }
            }
            if (seed - self.seed + 1).is_multiple_of(PROGRESS_EVERY) {
                eprintln!("{} seeds in {:.0?}", seed - self.seed + 1, start.elapsed());
            }
        }
        println!(
            "{} seeds: {delivered} recvs got their tensor, {refused} an error, pulls brought {pulled} tensors \
             and missed {missed}, {rows} rows of tables came and {rows_missed} pulls of rows failed, {lost} links were lost, \
             {reset} sessions reset",
            self.seeds
        );
        Ok(true)
    }
}
