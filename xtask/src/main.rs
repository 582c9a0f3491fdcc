//! Developer chores: `cargo xtask sim` runs the simulation over many seeds, `cargo xtask readme` keeps the README's
//! table of settings.

mod readme;
mod sim;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Developer chores of the Sealane workspace.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Runs the simulation of whole clusters on virtual time, and prints every seed that breaks a promise
    Sim(sim::Sim),
    /// Makes the README's table of settings anew
    Readme,
}

fn main() -> ExitCode {
    match Arguments::parse().chore {
        Chore::Sim(sim) => sim.run(),
        Chore::Readme => readme::run(),
    }
}
