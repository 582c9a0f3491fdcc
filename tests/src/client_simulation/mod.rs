//! Attached client processes on virtual time: two or three real [`Task`](sealane::Task)s, each on the shard of its node, two of them on one
//! node, with lanes that come and go, direct ones or ones of the switch. They make random sends and recvs; calls, turns of a shard and turns of a client's driver
//! alternate. Tasks end steps, give calls up, die and come back, and a ledger knows what each call may report.
//!
//! One thread, no clock, and no waiting on sockets; everything that happens follows from the seed. A run is bounded by `ACTIONS`.
//! [`simulate`] runs one seed; a [`Violation`] names the seed that replays it.
//!
//! Broken nodes, failing links and everything that needs no client are in [`simulation`](crate::simulation).

mod actions;
mod ends;
mod killed;
mod lanes;
mod ledger;
mod seats;
mod settle;
mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use killed::{Round, kill_anywhere};
pub use lanes::LaneKind;
pub(crate) use seats::TASKS;
use world::World;
pub(crate) use world::node;

/// Totals of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// A hash over everything that happened: the same seed gives the same hash.
    pub trace_hash: u64,
    /// Tensors that were received.
    pub delivered: usize,
    /// How many of them came by a lane, at least.
    pub by_lane: u64,
    /// Recvs that were given up.
    pub cancelled: usize,
    /// Tensors that came for a recv which was given up, and that the next recv got.
    pub claimed: usize,
    /// Calls that ended because their step had.
    pub aborted: usize,
    /// Calls that found no room.
    pub exhausted: usize,
    /// Calls that timed out.
    pub late: usize,
    /// Calls that ended because a task had gone.
    pub gone: usize,
    /// Lanes that were ended while both clients were attached.
    pub lanes_ended: usize,
    /// Clients that died.
    pub deaths: usize,
}

/// A promise that was broken.
#[derive(Debug)]
pub struct Violation {
    /// The seed that reproduces it.
    pub seed: u64,
    pub lanes: LaneKind,
    /// Which promise, and who broke it.
    pub what: String,
    /// The last lines of the trace before it, oldest first.
    pub recent: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.recent {
            writeln!(out, "{line}")?;
        }
        write!(out, "seed {}, {:?} lanes: {}", self.seed, self.lanes, self.what)
    }
}

impl std::error::Error for Violation {}

/// Trace lines that a violation shows.
pub const TRACE_LINES: usize = 40;

/// Runs one seed from start to end, with lanes of one kind, and checks every promise. A violation shows the last `lines` lines of the trace.
///
/// # Errors
/// The first broken promise; a panic of the code under test counts as one.
pub fn simulate(seed: u64, lanes: LaneKind, lines: usize) -> Result<Report, Box<Violation>> {
    let fails = |what, recent| Box::new(Violation { seed, lanes, what, recent });
    let mut world = World::new(seed, lanes, lines).map_err(|what| fails(what, Vec::new()))?;
    let run = catch_unwind(AssertUnwindSafe(|| world.run())).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(format!("panic: {text}"))
    });
    // The daemons have hung up, so that tasks wait for no answer to their goodbye; then they see the system's time again.
    world.seats.iter().filter_map(|seat| seat.client.as_ref()).for_each(|client| client.hands.hang_up());
    sealane::by_hand::set_time(None);
    run.map_err(|what| fails(what, world.trace.recent()))
}
