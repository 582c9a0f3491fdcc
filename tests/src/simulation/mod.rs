//! Whole clusters on virtual time. Engines are reduced to their nodes; the network delays, breaks, partitions and denies; processes
//! restart; jobs of other threads reach a shard late; someone lies when introducing itself. Tasks send, receive, publish, pull, push and
//! accept at random, write tables and pull their rows, and a ledger knows what each call may report. After every event the nodes' queues
//! and streams must agree with themselves and with each other.
//!
//! One thread, no clock, no socket; everything that happens follows from the seed. A run is bounded by
//! `EVENTS_MAX` events. [`simulate`] runs one seed; a [`Violation`] names the seed that replays it.

mod agenda;
mod climate;
mod conduct;
mod fused;
mod growth;
mod hosts;
mod ledger;
mod lies;
mod network;
mod plans;
mod probes;
mod published;
mod pushes;
mod run;
mod sends;
mod tables;
pub(crate) mod trace;
mod verdict;
mod wire;
mod workload;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use run::Simulation;
use sealane_transport::loopback::loopback;
pub use wire::{Clock, Join};

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// A hash over everything that happened: the same seed gives the same hash.
    pub trace_hash: u64,
    /// Events carried out.
    pub events: usize,
    /// Recvs that got their tensor.
    pub delivered: usize,
    /// Recvs that ended with an error.
    pub refused: usize,
    /// Fused receives asked for; their recvs are counted above.
    pub fused: u64,
    /// Published tensors that were pulled.
    pub pulled: usize,
    /// Published tensors that pulls asked for but did not get.
    pub missed: usize,
    /// Tensors that were pushed and accepted.
    pub accepted: usize,
    /// Pushes that ended with an error, each of one tensor or of many.
    pub unpushed: usize,
    /// Rows of tables that came.
    pub rows: usize,
    /// Pulls of rows that ended with an error.
    pub rows_missed: usize,
    /// Links that were lost.
    pub links_lost: u64,
    /// Sessions given up, and sessions whose peer had restarted.
    pub sessions_reset: u64,
}

/// A promise that was broken.
#[derive(Debug)]
pub struct Violation {
    /// The seed that reproduces it.
    pub seed: u64,
    /// Virtual time since the start.
    pub at: Duration,
    /// Which promise, and who broke it.
    pub what: String,
    /// The last events before it, oldest first.
    pub recent: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.recent {
            writeln!(out, "{line}")?;
        }
        write!(out, "seed {} at {:?}: {}", self.seed, self.at, self.what)
    }
}

impl std::error::Error for Violation {}

/// Trace lines that a violation shows.
pub const TRACE_LINES: usize = 200;

/// Runs one seed from start to end and checks every promise. A violation shows the last `lines` lines of the trace; [`TRACE_LINES`] are
/// enough most often.
///
/// # Errors
/// The first broken promise; a panic of the code under test counts as one.
pub fn simulate(seed: u64, lines: usize) -> Result<Report, Box<Violation>> {
    let join: Join = |_| {
        let (one, other) = loopback();
        [Box::new(one), Box::new(other)]
    };
    simulate_over(join, seed, lines)
}

/// As [`simulate`], over other links than loopbacks.
///
/// # Errors
/// As [`simulate`].
pub fn simulate_over(join: Join, seed: u64, lines: usize) -> Result<Report, Box<Violation>> {
    let mut simulation = Simulation::new(seed, lines, join);
    let outcome = catch_unwind(AssertUnwindSafe(|| simulation.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {text}"))
    });
    outcome.map_err(|what| Box::new(simulation.violation(what)))
}
