//! Measurements of Sealane and of what users would otherwise run, made side by side.
//!
//! A [`Plan`] says what to measure. [`run`] sets every system up once, the consumer in this process
//! on the first CPU and the producer in a process of its own on the second, and measures them in
//! turn, round by round. The [`Outcome`] becomes JSON, a table or a plot.
//!
//! The baselines do the same work in the same run: `raw` is the bare operation of the kernel (with
//! link `shm`: of shared memory between the same two cores; with `verbs`: of the RDMA device; with
//! `loopback`: of memory, two rings of bytes in one thread), `grpc` is gRPC through tonic.
//!
//! A program that calls [`run`] must be able to start itself as a producer, by calling
//! [`serve_peer`] with the last argument that [`PeerProgram`]'s command line gets.

#![deny(unsafe_code)]

mod allocator;
mod byte_count;
pub mod commands;
mod disturbance;
mod error;
mod limits;
mod machine;
mod peer;
mod plan;
mod plot;
mod process;
mod progress;
mod report;
mod report_text;
mod run;
mod sample;
mod spread;
mod stopwatch;
mod system;
mod systems;

pub use crate::byte_count::{Sizes, parse_bytes};
pub use crate::error::BenchError;
pub use crate::limits::{FEW_PEERS, IDLE_US_DEFAULT, REQUEST_BYTES, STALL_LIMIT, STEP_TENSORS_MAX};
pub use crate::machine::RdmaDevice;
pub use crate::peer::{Peer, PeerJob, PeerProgram, PeerReady};
pub use crate::plan::{
    Bench, Executor, Fuse, Keys, Link, Mode, Plan, Registration, Security, Size, Skew, SystemName, Tables, Training,
    Transfer, Variant,
};
pub use crate::progress::Progress;
pub use crate::report::{Figures, Parameters, Report, ResultRow, SCHEMA, Switch};
pub use crate::run::{Measured, Outcome, run, run_own, serve_peer};
pub use crate::sample::{Metric, Sample, record_round_trip, round_trip_histogram};
pub use crate::spread::{Ratio, Spread};
pub use crate::stopwatch::{RoundClock, Tally};
pub use crate::system::{Rounds, System};
