//! What tests that span crates share. The tests themselves are in `tests/`, one file a subject.

pub mod delayed;
pub mod fixture;
pub mod fuzz;
pub mod simulation;
pub mod throughput;
mod two_nodes;
