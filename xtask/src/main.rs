//! Developer chores: `cargo xtask sim` runs the simulation over many seeds, `fuzz` the fuzz targets, `chaos` and `soak` real
//! processes in trouble, `rdma-lab` what needs an RDMA device; `docs` makes what the documentation has of the code, `report` what
//! it has of measurements; `pages`, `deb` and `wheels` make what is installed.

mod build;
mod chaos;
mod command;
mod docs;
mod fuzz;
mod generated;
mod hosts;
mod licences;
mod package;
mod rdma_lab;
mod report;
mod sim;
mod soak;
mod traffic;
mod wheels;
mod without_io_uring;

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
    /// Fuzzes every parser of external input
    Fuzz(fuzz::Fuzz),
    /// Boots an emulated machine with a software RDMA device, and runs there what needs one
    RdmaLab(rdma_lab::RdmaLab),
    /// Kills, stops, cuts off and floods real processes on hosts of their own, and accounts for every tensor
    Chaos(chaos::Chaos),
    /// Runs the same with reconnects and restarts for ten minutes, and checks for leaks
    Soak(soak::Soak),
    /// A task of `chaos` and `soak`
    #[command(name = traffic::ROLE, hide = true)]
    Traffic(traffic::Role),
    /// Runs a command as a container does whose profile forbids io_uring
    WithoutIoUring(without_io_uring::WithoutIoUring),
    /// Looks whether every dependency has a licence that deny.toml allows
    Licences,
    /// Generates what follows from the code: the settings page, the header of the C interface; renders the site
    Docs(docs::Docs),
    /// Measures every figure of the documentation and of bench/REPORT.md, keeps the results, and updates both
    Report(report::Report),
    /// Writes the manual pages and the completions of the shells
    Pages(package::Pages),
    /// Builds the Debian packages
    Deb(package::Deb),
    /// Builds the wheels of the Python package, and of the plugin for each release of TensorFlow that it supports
    Wheels(wheels::Wheels),
}

fn main() -> ExitCode {
    match Arguments::parse().chore {
        Chore::Sim(sim) => sim.run(),
        Chore::Fuzz(fuzz) => fuzz.run(),
        Chore::RdmaLab(lab) => lab.run(),
        Chore::Chaos(chaos) => chaos.run(),
        Chore::Soak(soak) => soak.run(),
        Chore::Traffic(role) => role.run(),
        Chore::WithoutIoUring(command) => command.run(),
        Chore::Licences => licences::run(),
        Chore::Docs(docs) => docs.run(),
        Chore::Report(report) => report.run(),
        Chore::Pages(pages) => pages.run(),
        Chore::Deb(deb) => deb.run(),
        Chore::Wheels(wheels) => wheels.run(),
    }
}
