//! Developer chores: `cargo xtask sim` runs the simulation over many seeds, `fuzz` the fuzz targets, `chaos` and `soak` real
//! processes under faults, `rdma-lab` what needs an RDMA device; `docs` generates the parts of the documentation that come from the
//! code, `report` and `peers` those that come from measurements; `pages`, `deb` and `wheels` make what is installed.

mod build;
mod chaos;
mod command;
mod docs;
mod fuzz;
mod gpu_lab;
mod hosts;
mod instructions;
mod licences;
mod package;
mod rdma_lab;
mod scripts;
mod sim;
mod traffic;
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
    /// Simulates whole clusters in virtual time, and prints every seed that violates a guarantee
    Sim(sim::Sim),
    /// Fuzzes every parser of external input
    Fuzz(fuzz::Fuzz),
    /// Boots an emulated machine with a software RDMA device, and runs the RDMA tests and benchmarks there
    RdmaLab(rdma_lab::RdmaLab),
    /// Measures tensors that go to and from GPU memory, beside the driver's own copies, on a machine with a GPU; prints JSON
    GpuLab(gpu_lab::GpuLab),
    /// Kills, stops, disconnects and floods real processes in network namespaces, and accounts for every tensor
    Chaos(chaos::Chaos),
    /// Runs the same with reconnects and restarts for ten minutes, and checks for leaks
    Soak(chaos::Soak),
    /// A task of `chaos` and `soak`
    #[command(name = traffic::ROLE, hide = true)]
    Traffic { role: String },
    /// Runs a command with io_uring forbidden, as in many containers
    WithoutIoUring(without_io_uring::WithoutIoUring),
    /// Checks that deny.toml allows the license of every dependency
    Licences,
    /// Generates the settings page and the C header from the code; checks the documentation
    Docs(docs::Docs),
    /// Counts the instructions of the data path under valgrind, and compares with the counts that are kept
    Instructions(instructions::Instructions),
    /// Measures every figure in the documentation and bench/REPORT.md, saves the results, and updates both
    Report(scripts::Script),
    /// Installs UCX, ZeroMQ, iceoryx2 and grpcio, measures them in turn with Sealane, and does as `report` with what comes of it
    Peers(scripts::Script),
    /// Writes the manual pages and shell completions
    Pages(package::Pages),
    /// Builds the Debian packages
    Deb(package::Deb),
    /// Builds the wheels of the Python package, and of the plugin for each release of TensorFlow that it supports
    Wheels(scripts::Script),
}

/// Whether everything is well, or why a chore could not be done.
type Outcome = Result<bool, String>;

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Sim(sim) => sim.run(),
        Chore::Fuzz(fuzz) => fuzz.run(),
        Chore::RdmaLab(lab) => lab.run(),
        Chore::GpuLab(lab) => lab.run(),
        Chore::Chaos(chaos) => chaos.run(),
        Chore::Soak(soak) => soak.run(),
        Chore::Traffic { role } => traffic::Role::take_on(&role),
        Chore::WithoutIoUring(command) => command.run(),
        Chore::Licences => licences::run(),
        Chore::Docs(docs) => docs.run(),
        Chore::Instructions(instructions) => instructions.run(),
        Chore::Report(report) => report.report(None),
        Chore::Peers(report) => report.report(Some("other_systems")),
        Chore::Pages(pages) => pages.run(),
        Chore::Deb(deb) => deb.run(),
        Chore::Wheels(wheels) => wheels.wheels(),
    };
    outcome.map_or_else(
        |error| {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        },
        |is_well| ExitCode::from(u8::from(!is_well)),
    )
}
