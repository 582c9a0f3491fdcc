//! What the demo's parent and its tasks say to each other: one JSON object a line, orders on a task's standard input,
//! reports on its standard output. Every order but `Begin` and `Finish` is answered by one report; a task whose
//! standard input ends is to end at once.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::figures::Shard;
use crate::settings::Role;

/// What a task is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Part {
    /// Owns parameters, which workers pull, and takes their gradients.
    Ps,
    /// Pulls parameters and pushes gradients.
    Worker,
}

impl Part {
    /// Whose variables its processes read.
    pub(super) fn role(self) -> Role {
        match self {
            Part::Ps => Role::Ps,
            Part::Worker => Role::Worker,
        }
    }
}

/// All that a task has to know.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) part: Part,
    /// Its number among those of its part.
    pub(super) index: usize,
    pub(super) workers: usize,
    pub(super) ps: usize,
    /// The workload, as its file has it.
    pub(super) workload: String,
    /// Pin the shard of an own engine where a CPU is free and no setting says otherwise.
    pub(super) pin: bool,
    /// Flip one bit of what is sent in the first step.
    pub(super) flip_bit: bool,
}

impl Job {
    /// The task's name in the endpoint map.
    pub(super) fn task(&self) -> String {
        task_name(self.part, self.index)
    }
}

/// The name of a task in the endpoint map.
pub(super) fn task_name(part: Part, index: usize) -> String {
    match part {
        Part::Ps => format!("ps{index}:2222"),
        Part::Worker => format!("worker{index}:2222"),
    }
}

/// What a task is to do next.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Take a port for an engine in the task's own process; answered by `Listening`.
    Begin(Job),
    /// Start that engine; answered by `Ready`.
    Start { endpoint_map: PathBuf },
    /// Attach to the daemon at the socket, and look for answers before sleeping only if told to spin; answered by `Ready`.
    Attach { job: Job, socket: PathBuf, spin: bool },
    /// Make what is sent in the step, and offer it; answered by `Filled`.
    Fill { step: i64 },
    /// Receive all that the peers offer; answered by `Fetched`.
    Fetch { step: i64 },
    /// Compare every byte that was received; answered by `Verified`.
    Verify { step: i64 },
    /// Show the shards of the task's own engine; answered by `Shards`.
    ShowShards,
    /// Stop the engine or detach, and end.
    Finish,
}

/// What a task has done, or a daemon.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Report {
    Listening {
        address: SocketAddr,
    },
    Ready,
    /// Only of a daemon, which does not write this but its announcement: clients can attach.
    Serving,
    Filled,
    Fetched(Vec<Fetched>),
    Verified {
        tensors: u64,
        bytes: u64,
    },
    Shards(Vec<Shard>),
    /// It cannot go on, and why.
    Failed {
        reason: String,
    },
}

/// What came from one peer in one step.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fetched {
    /// The peer's number among those of its part.
    pub(super) peer: usize,
    pub(super) tensors: u64,
    pub(super) bytes: u64,
    /// From the first request to the last arrival.
    pub(super) elapsed_ns: u64,
    /// From the request to the arrival of each tensor.
    pub(super) latencies_ns: Vec<u64>,
}
