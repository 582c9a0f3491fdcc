//! Code shared by tests that span crates. The tests themselves are in `tests/`, one file per subject.

pub mod client_simulation;
pub mod counting;
pub mod delayed;
pub mod drive;
pub mod fixture;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod simulation;
pub mod throughput;
mod two_nodes;
