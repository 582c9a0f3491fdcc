//! The systems that can be measured, and what they share.
//!
//! A system is set up once by [`set_up`], with its producer in a process that runs [`serve`], measured round by round as a
//! [`Client`](crate::system::Client), and torn down by being dropped. What a round does is written once for all systems:
//!
//! - [`client`] measures requests, windows of them, and steps of many tensors. A system says how it requests and how it takes what
//!   came: `raw`, `grpc`, Sealane in a process or attached to a daemon, its streams, and the peers of a fan-in, which together are
//!   one client.
//! - [`training`] measures workers that make steps with parameter servers: tasks of gRPC, sessions over sockets, or a thread for
//!   each worker. Workers that pull [`rows`] belong here, too.
//! - [`crowd`] measures callers that greet a listener, with the [`Manners`](crowd::Manners) of its system.

pub(crate) mod client;
mod crowd;
mod grpc;
mod raw;
mod rows;
mod sealane;
mod sockets;
pub(crate) mod training;

use std::path::Path;

use crate::commands::serve_ranks;
use crate::error::BenchError;
use crate::limits::FEW_PEERS;
use crate::peer::{OtherHost, PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Link, Plan, Security, SystemName, Variant};
use crate::system::System;

/// Sealane, also with few peers if many are compared with few, then each baseline of the plan once, in all the ways in which it is
/// measured.
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
        let first = plan.training.as_ref().map(|training| training.variants[0]);
        // gRPC is measured both ways, whatever Sealane does.
        let both = [Fuse::Off, Fuse::Receive];
        let plans = match (plan.bench, *name, first) {
            (_, SystemName::Open, _) => vec![Plan { security: Security::None, ..plan.clone() }],
            (Bench::Ps, SystemName::Grpc, Some(first)) => {
                both.map(|fuse| plan.with_variant(Variant { fuse, ..first })).into()
            }
            (Bench::Ps, SystemName::Whole, Some(first)) => vec![plan.with_variant(first).with_whole_tables()],
            (Bench::Fuse, SystemName::Grpc, _) => both.map(|fuse| Plan { fuse, ..plan.clone() }).into(),
            _ => vec![plan.clone()],
        };
        systems.extend(plans.into_iter().map(|plan| (*name, plan)));
    }
    systems
}

/// Sets up every system of the plan, each with its producer at rest.
///
/// # Errors
/// [`BenchError::Setting`] if the kernel lacks the wanted congestion control; whatever keeps a system from starting.
pub(crate) fn set_up(
    plan: &Plan,
    producer_cpu: Option<usize>,
    program: &PeerProgram,
) -> Result<Vec<System>, BenchError> {
    if let (Link::Tcp | Link::Verbs, Some(name)) = (plan.link, &plan.congestion) {
        sockets::check_congestion(name)?;
    }
    let other_host = program.other_host();
    let hosts = other_host.map(OtherHost::hosts).unwrap_or_default();
    let socket = other_host.and_then(OtherHost::socket);
    let mut systems = Vec::new();
    for (system, plan) in measured(plan) {
        let (consumer_port, meeting_place, keys) = (None, socket.map(Path::to_owned), None);
        let job = PeerJob { system, plan, cpu: producer_cpu, hosts, consumer_port, meeting_place, keys };
        systems.push(one(&job, program)?);
    }
    Ok(systems)
}

fn one(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    use SystemName::{Grpc, GrpcStream, Raw, Sealane};
    match (job.plan.bench, job.system, job.plan.link) {
        (Bench::FanIn, Raw, _) => raw::fan_in(job, program),
        (Bench::FanIn, ..) => sealane::training::fan_in(job, program),
        (Bench::Idle, ..) => sealane::idle(job, program),
        (Bench::Connect, Raw, _) => crowd::start_storm(job, program, raw::ZEROS),
        (Bench::Connect, ..) => crowd::start_storm(job, program, sealane::GREETERS),
        (Bench::Ps | Bench::Rows, Grpc, _) => grpc::training::start(job, program),
        (Bench::Rows, Raw, _) => raw::rows::start(job, program),
        (Bench::Ps | Bench::Rows, ..) => sealane::training::start(job, program),
        (Bench::Restart | Bench::Collectives, ..) => unreachable!("they have systems of their own"),
        (_, Raw, Link::Tcp) => raw::over_tcp(job, program),
        (_, Raw, Link::Shm) => Ok(raw::shm::start(job)),
        (_, Raw, Link::Verbs) => raw::verbs::start(job),
        (_, Raw, Link::Loopback) => Ok(raw::in_memory(&job.plan)),
        (_, Grpc | GrpcStream, Link::Shm) => grpc::over_unix(job, program),
        (_, Grpc | GrpcStream, Link::Loopback) => grpc::in_memory(job),
        // gRPC does not support verbs: it goes through the kernel in either case.
        (_, Grpc | GrpcStream, Link::Tcp | Link::Verbs) => grpc::over_tcp(job, program),
        (_, _, Link::Shm) => sealane::attached(job, program),
        (_, _, Link::Loopback) => sealane::in_memory(&job.plan),
        (_, Sealane, _) if job.plan.daemon.is_some() => sealane::by_daemons(job, program),
        (_, _, Link::Tcp | Link::Verbs) => sealane::between_processes(job, program),
    }
}

/// Runs the producer's side of a system until its consumer is gone.
pub(crate) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    use SystemName::{Grpc, GrpcStream, Raw, Sealane};
    match (job.plan.bench, job.system, job.plan.link) {
        (Bench::Collectives, ..) => serve_ranks(job),
        (Bench::Connect | Bench::FanIn, Raw, _) => raw::serve_many(job),
        (Bench::Ps | Bench::Rows, Grpc, _) => grpc::training::serve(job),
        (Bench::Rows, Raw, _) => raw::rows::serve(job),
        (Bench::Ps | Bench::Rows | Bench::FanIn | Bench::Connect | Bench::Idle, ..) => sealane::training::serve(job),
        (_, Raw, _) => raw::serve(job),
        (_, Grpc | GrpcStream, Link::Shm) => grpc::serve_unix(job),
        (_, Grpc | GrpcStream, _) => grpc::serve(job),
        (_, _, Link::Shm) => sealane::serve_attached(job),
        (_, Sealane, _) if job.plan.daemon.is_some() => sealane::serve_by_daemon(job),
        (..) => sealane::serve(job),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_congestion_control_is_the_users_mistake() {
        let plan = Plan { congestion: Some("tin-can".to_owned()), ..Plan::new(Bench::Rate) };
        let error = set_up(&plan, None, &PeerProgram::this(&[])).err().expect("no kernel has it");
        assert!(error.is_usage() && error.to_string().contains("tin-can"), "{error}");
    }
}
