//! Whole clusters on virtual time: engines as their nodes, a network that delays, breaks, partitions and denies, processes that
//! restart, threads whose jobs reach a shard late, somebody who lies when it introduces itself, tasks that send, receive,
//! publish, pull, push and accept at random, write tables and pull their rows, and a ledger that knows what each of them may be told. After every event the
//! nodes' queues and streams must agree with themselves and with each other.
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

/// What a run came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// A hash over all that happened: the same seed gives the same.
    pub trace_hash: u64,
    /// Events that were carried out.
    pub events: usize,
    /// Recvs that got their tensor.
    pub delivered: usize,
    /// Recvs that ended with an error.
    pub refused: usize,
    /// Fused receives that were asked; their recvs are counted above.
    pub fused: u64,
    /// Published tensors that pulls brought.
    pub pulled: usize,
    /// Published tensors that pulls waited for in vain.
    pub missed: usize,
    /// Tensors that were pushed and accepted.
    pub accepted: usize,
    /// Pushes that ended with an error, of one tensor or of many.
    pub unpushed: usize,
    /// Rows of tables that came.
    pub rows: usize,
    /// Pulls of rows that ended with an error.
    pub rows_missed: usize,
    /// Links that were lost.
    pub links_lost: u64,
    /// Sessions that were given up, or whose peer had restarted.
    pub sessions_reset: u64,
}

/// A promise that was broken.
#[derive(Debug)]
pub struct Violation {
    /// The seed that shows it again.
    pub seed: u64,
    /// Virtual time since the start.
    pub at: Duration,
    /// Which promise, and by whom.
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

/// Lines of the trace that a violation shows.
pub const TRACE_LINES: usize = 200;

/// Runs one seed from the first call to the last, and checks every promise. A violation shows the last `lines` lines of
/// the trace; [`TRACE_LINES`] most often tell the story.
///
/// # Errors
/// The first promise that was broken; a panic of the code under test is one too.
pub fn simulate(seed: u64, lines: usize) -> Result<Report, Box<Violation>> {
    let join: Join = |_| {
        let (one, other) = loopback();
        [Box::new(one), Box::new(other)]
    };
    simulate_over(join, seed, lines)
}

/// The same over other links than loopbacks.
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
