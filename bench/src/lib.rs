//! Measures Sealane and the alternatives that users would otherwise run, side by side.
//!
//! A [`Plan`] says what to measure. [`run`] sets every system up once, the consumer in this process
//! on the first CPU and the producer in a process of its own on the second, and measures them in
//! turn, round by round. The [`Outcome`] becomes JSON, a table or a plot.
//!
//! The baselines do the same work in the same run: `raw` is the bare operation of the kernel (with link `shm`: of shared memory
//! between the same two cores; with `verbs`: of the RDMA device; with `loopback`: of memory, as two rings of bytes in one thread),
//! `grpc` is gRPC through tonic.
//!
//! A program that calls [`run`] must be able to start itself as a producer, by calling
//! [`serve_peer`] with the last argument that [`PeerProgram`]'s command line gets.

#![deny(unsafe_code)]

mod allocator;
mod byte_count;
pub mod commands;
mod distance;
mod disturbance;
mod error;
mod figures;
mod hosts;
mod limits;
mod machine;
mod peer;
mod plan;
mod plot;
mod process;
mod report;
mod run;
mod stopwatch;
mod system;
mod systems;

pub use crate::error::BenchError;
pub use crate::figures::Metric;
pub use crate::limits::{FEW_PEERS, STALL_LIMIT};
pub use crate::peer::{Hosts, Peer, PeerJob, PeerProgram};
pub use crate::plan::{
    Bench, Fuse, Keys, Link, Mode, Plan, Registration, Security, Size, Skew, SystemName, Tables, Training, Variant,
};
pub use crate::report::{Figures, Report};
pub use crate::run::{Outcome, Progress, run, serve_peer};
