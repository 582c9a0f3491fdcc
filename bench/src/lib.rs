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
//! What no machine here can run is simulated, in [`growth`].
//!
//! A program that calls [`run`] must be able to start itself as a producer, by calling
//! [`serve_peer`] with the last argument that [`PeerProgram`]'s command line gets.

#![deny(unsafe_code)]

mod allocator;
mod byte_count;
mod error;
pub mod growth;
mod limits;
mod loopback;
mod machine;
mod open_files;
mod pace;
mod peer;
mod plan;
mod plot;
mod process;
mod progress;
mod quotient;
mod rdma_device;
mod report;
mod report_page;
mod report_text;
mod run;
mod sample;
mod spread;
mod step_tally;
mod stopwatch;
mod system;
mod systems;
mod table;
mod turns;

pub use byte_count::parse_bytes;
pub use error::BenchError;
pub use limits::{FEW_PEERS, IDLE_US_DEFAULT, REQUEST_BYTES, STALL_LIMIT, STEP_TENSORS_MAX};
pub use machine::Machine;
pub use pace::Stretch;
pub use peer::{Peer, PeerJob, PeerProgram, PeerReady};
pub use plan::{
    Bench, Executor, Fuse, Keys, Link, Mode, Plan, Registration, Security, Size, SystemName, Training, Transfer,
    Variant,
};
pub use plot::{Line, Picture, Row, brief};
pub use progress::Progress;
pub use quotient::Ratio;
pub use rdma_device::RdmaDevice;
pub use report::{Figures, Parameters, Report, ResultRow, SCHEMA, Switch};
pub use report_page::{Highlight, Page, Section};
pub use run::{Outcome, run, run_own, serve_peer};
pub use sample::{Course, Metric, Point, Sample, record_round_trip, round_trip_histogram};
pub use spread::Spread;
pub use stopwatch::{RoundClock, Tally};
pub use system::{Rounds, System};
pub use table::{Column, Table};
pub use turns::Measured;
