//! The systems that can be measured, by name, and the sockets that they share.

mod arrival;
mod crowd;
mod fanin;
mod gap;
mod grpc;
mod meeting;
mod raw;
mod sealane;
mod sockets;
mod storm;
mod training;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::limits::FEW_PEERS;
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Link, Plan, Security, Variant};
use crate::system::System;

/// A system's name, as flags and reports spell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SystemName {
    /// Sealane itself: always measured, and so never a baseline.
    Sealane,
    /// The bare operation of the kernel, or of memory where the link is in memory.
    Raw,
    /// gRPC, through tonic.
    Grpc,
    /// Sealane whose two sides show each other nothing, beside Sealane with [`Security`].
    Open,
}

impl SystemName {
    /// The name itself.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Sealane => "sealane",
            Self::Raw => "raw",
            Self::Grpc => "grpc",
            Self::Open => "open",
        }
    }
}

impl fmt::Display for SystemName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SystemName {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        match text {
            "raw" => Ok(Self::Raw),
            "grpc" => Ok(Self::Grpc),
            "open" => Ok(Self::Open),
            _ => Err(BenchError::Setting {
                setting: "--baseline",
                value: text.to_owned(),
                accepted: "raw, grpc or open".to_owned(),
            }),
        }
    }
}

/// Sealane, also with few peers where that is what many are compared with, then each baseline of the plan once, in all
/// the ways in which it is measured.
fn measured(plan: &Plan) -> Vec<(SystemName, Plan)> {
    let mut systems = match &plan.training {
        Some(training) => training.variants.iter().map(|one| (SystemName::Sealane, plan.with_variant(*one))).collect(),
        None => vec![(SystemName::Sealane, plan.clone())],
    };
    if plan.bench == Bench::FanIn && plan.peers > FEW_PEERS {
        systems.push((SystemName::Sealane, Plan { peers: FEW_PEERS, ..plan.clone() }));
    }
    for name in &plan.baselines {
        if systems.iter().any(|(measured, _)| measured == name) {
            continue;
        }
        if *name == SystemName::Open {
            systems.push((*name, Plan { security: Security::None, ..plan.clone() }));
            continue;
        }
        if let (Some(training), SystemName::Grpc) = (&plan.training, *name) {
            let first = training.variants[0];
            systems
                .extend([Fuse::Off, Fuse::Receive].map(|fuse| (*name, plan.with_variant(Variant { fuse, ..first }))));
            continue;
        }
        if plan.bench == Bench::Fuse && *name == SystemName::Grpc {
            // gRPC can do both, whatever Sealane is to do.
            systems.extend([Fuse::Off, Fuse::Receive].map(|fuse| (*name, Plan { fuse, ..plan.clone() })));
            continue;
        }
        systems.push((*name, plan.clone()));
    }
    systems
}

/// Sets up every system of the plan, each with its producer at rest.
///
/// # Errors
/// [`BenchError::Congestion`] when the kernel lacks the one that is wanted; whatever keeps a system from starting.
pub fn set_up(
    plan: &Plan,
    cpus: Option<[usize; 2]>,
    program: &PeerProgram,
) -> Result<Vec<Box<dyn System>>, BenchError> {
    if let (Link::Tcp | Link::Verbs, Some(name)) = (plan.link, &plan.congestion) {
        sockets::check_congestion(name)?;
    }
    let producer_cpu = cpus.map(|[_, producer]| producer);
    let mut systems = Vec::new();
    for (system, plan) in measured(plan) {
        let job = PeerJob { system, plan, cpu: producer_cpu, consumer_port: None, meeting_place: None, keys: None };
        systems.push(one(&job, program)?);
    }
    Ok(systems)
}

fn one(job: &PeerJob, program: &PeerProgram) -> Result<Box<dyn System>, BenchError> {
    match (job.plan.bench, job.system) {
        (Bench::FanIn, SystemName::Raw) => return Ok(Box::new(raw::fanin::start(job, program)?)),
        (Bench::FanIn, _) => return Ok(Box::new(sealane::fanin::start(job, program)?)),
        (Bench::Idle, _) => return Ok(Box::new(sealane::Idle::start(job, program)?)),
        (Bench::Connect, SystemName::Raw) => {
            return Ok(Box::new(storm::Storm::start(job, program, raw::Zeros::like_sealane())?));
        }
        (Bench::Connect, _) => return Ok(Box::new(storm::Storm::start(job, program, sealane::Workers)?)),
        (Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::Fuse, _) => {}
        (Bench::Ps, SystemName::Grpc) => return Ok(Box::new(grpc::training::start(job, program)?)),
        (Bench::Ps, _) => return sealane::training::start(job, program),
        (Bench::Restart, _) => job.plan.bench.is_measured_elsewhere(),
    }
    Ok(match (job.system, job.plan.link) {
        (SystemName::Sealane | SystemName::Open, Link::Tcp | Link::Verbs) => {
            Box::new(sealane::Sealane::between_processes(job, program)?)
        }
        (SystemName::Sealane | SystemName::Open, Link::Shm) => Box::new(sealane::Attached::start(job, program)?),
        (SystemName::Sealane | SystemName::Open, Link::Loopback) => Box::new(sealane::Sealane::in_memory(&job.plan)?),
        (SystemName::Raw, Link::Tcp) => Box::new(raw::OverTcp::start(job, program)?),
        (SystemName::Raw, Link::Shm) => Box::new(raw::OverShm::start(job, program)?),
        (SystemName::Raw, Link::Verbs) => Box::new(raw::OverVerbs::start(job)?),
        (SystemName::Raw, Link::Loopback) => Box::new(raw::InMemory::new(&job.plan)),
        // gRPC knows no verbs: it goes through the kernel all the same.
        (SystemName::Grpc, Link::Tcp | Link::Verbs) => Box::new(grpc::Unary::over_tcp(job, program)?),
        (SystemName::Grpc, Link::Shm) => Box::new(grpc::Unary::over_unix(job, program)?),
        (SystemName::Grpc, Link::Loopback) => Box::new(grpc::Unary::in_memory(&job.plan)?),
    })
}

/// Runs the producer's side of a system until its consumer is gone.
pub(crate) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    match (job.plan.bench, job.system) {
        (Bench::Connect, SystemName::Raw) => return raw::serve_calls(job),
        (Bench::FanIn, SystemName::Raw) => return raw::fanin::serve(job),
        (Bench::Ps, SystemName::Grpc) => return grpc::training::serve(job),
        (Bench::Connect | Bench::Idle | Bench::FanIn | Bench::Ps, _) => return sealane::serve_peers(job),
        (Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::Fuse, _) => {}
        (Bench::Restart, _) => job.plan.bench.is_measured_elsewhere(),
    }
    match (job.system, job.plan.link) {
        (SystemName::Sealane | SystemName::Open, Link::Shm) => sealane::serve_attached(job),
        (SystemName::Sealane | SystemName::Open, Link::Tcp | Link::Verbs | Link::Loopback) => sealane::serve(job),
        (SystemName::Raw, Link::Shm) => raw::serve_shm(job),
        (SystemName::Raw, Link::Tcp | Link::Verbs | Link::Loopback) => raw::serve(&job.plan),
        (SystemName::Grpc, Link::Shm) => grpc::serve_unix(job),
        (SystemName::Grpc, Link::Tcp | Link::Verbs | Link::Loopback) => grpc::serve(&job.plan),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systems_are_read_by_name() {
        for name in [SystemName::Raw, SystemName::Grpc, SystemName::Open] {
            assert_eq!(name.to_string().parse::<SystemName>().expect("known"), name);
        }
        assert!("smoke-signals".parse::<SystemName>().expect_err("unknown").is_usage());
    }

    #[test]
    fn an_unknown_congestion_control_is_the_users_mistake() {
        let plan = Plan { congestion: Some("tin-can".to_owned()), ..Plan::new(Bench::Rate) };
        let error = set_up(&plan, None, &PeerProgram::this(&[])).err().expect("no kernel has it");
        assert!(error.is_usage() && error.to_string().contains("tin-can"), "{error}");
    }

    #[test]
    fn a_baseline_that_is_named_twice_is_measured_once() {
        let baselines = vec![SystemName::Raw, SystemName::Grpc, SystemName::Raw];
        let plan = Plan { baselines, ..Plan::new(Bench::Rate) };
        let names: Vec<_> = measured(&plan).into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["sealane", "raw", "grpc"]);
    }

    #[test]
    fn a_step_goes_through_grpc_in_two_ways() {
        let baselines = vec![SystemName::Grpc];
        let plan = Plan { baselines, fuse: Fuse::Off, ..Plan::new(Bench::Fuse) };
        let found: Vec<_> = measured(&plan).into_iter().map(|(name, plan)| (name.as_str(), plan.fuse)).collect();
        assert_eq!(found, [("sealane", Fuse::Off), ("grpc", Fuse::Off), ("grpc", Fuse::Receive)]);
    }

    #[test]
    fn many_peers_are_compared_with_few() {
        for (peers, expected) in [(FEW_PEERS, vec![FEW_PEERS]), (1_000, vec![1_000, FEW_PEERS])] {
            let plan = Plan { peers, ..Plan::new(Bench::FanIn) };
            let found: Vec<_> = measured(&plan).into_iter().map(|(_, plan)| plan.peers).collect();
            assert_eq!(found, expected);
        }
    }
}
