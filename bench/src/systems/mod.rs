//! The systems that can be measured, and what they share.

mod crowd;
mod fanin;
mod grpc;
mod raw;
mod rows;
mod sealane;
mod sockets;
mod training;

pub(crate) use rows::Wanted;

use std::time::{Duration, Instant};
use std::{hint, thread};

use crate::error::BenchError;
use crate::limits::{FEW_PEERS, FILL};
use crate::peer::{PeerJob, PeerProgram};
use crate::plan::{Bench, Fuse, Link, Plan, Security, SystemName, Variant};
use crate::sample::Sample;
use crate::stopwatch::RoundTrips;
use crate::system::System;

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
        if let (Bench::Ps, Some(training), SystemName::Grpc) = (plan.bench, &plan.training, *name) {
            let first = training.variants[0];
            systems
                .extend([Fuse::Off, Fuse::Receive].map(|fuse| (*name, plan.with_variant(Variant { fuse, ..first }))));
            continue;
        }
        if let (Bench::Ps, Some(training), SystemName::Whole) = (plan.bench, &plan.training, *name) {
            systems.push((*name, plan.with_variant(training.variants[0]).with_whole_tables()));
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
pub fn set_up(plan: &Plan, cpus: Option<[usize; 2]>, program: &PeerProgram) -> Result<Vec<System>, BenchError> {
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

fn one(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let is_raw = job.system == SystemName::Raw;
    match job.plan.bench {
        Bench::FanIn if is_raw => return raw::fanin::start(job, program),
        Bench::FanIn => return sealane::fanin::start(job, program),
        Bench::Idle => return sealane::idle(job, program),
        Bench::Connect if is_raw => return crowd::start_storm(job, program, raw::Zeros::like_sealane()),
        Bench::Connect => return crowd::start_storm(job, program, sealane::Workers::Answering),
        Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::Fuse => {}
        Bench::Ps if job.system == SystemName::Grpc => return grpc::training::start(job, program),
        Bench::Ps => return sealane::training::start(job, program),
        Bench::Rows if is_raw => return raw::rows::start(job, program),
        Bench::Rows if job.system == SystemName::Grpc => return grpc::rows::start(job, program),
        Bench::Rows => return sealane::rows::start(job, program),
        Bench::Restart => job.plan.bench.is_measured_elsewhere(),
    }
    match (job.system, job.plan.link) {
        (SystemName::Sealane | SystemName::Open, Link::Tcp | Link::Verbs) => sealane::between_processes(job, program),
        (SystemName::Sealane | SystemName::Open, Link::Shm) => sealane::attached(job, program),
        (SystemName::Sealane | SystemName::Open, Link::Loopback) => sealane::in_memory(&job.plan),
        (SystemName::Stream, Link::Shm) => sealane::streams::between_clients(job, program),
        (SystemName::Stream, _) => sealane::streams::between_processes(job, program),
        (SystemName::Whole, _) => job.plan.bench.is_measured_elsewhere(),
        (SystemName::Raw, Link::Tcp) => raw::over_tcp(job, program),
        (SystemName::Raw, Link::Shm) => raw::over_shm(job, program),
        (SystemName::Raw, Link::Verbs) => raw::over_verbs(job),
        (SystemName::Raw, Link::Loopback) => Ok(raw::in_memory(&job.plan)),
        // gRPC knows no verbs: it goes through the kernel all the same.
        (SystemName::Grpc | SystemName::GrpcStream, Link::Tcp | Link::Verbs) => grpc::over_tcp(job, program),
        (SystemName::Grpc | SystemName::GrpcStream, Link::Shm) => grpc::over_unix(job, program),
        (SystemName::Grpc | SystemName::GrpcStream, Link::Loopback) => grpc::in_memory(job),
    }
}

/// Runs the producer's side of a system until its consumer is gone.
pub(crate) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    match (job.plan.bench, job.system) {
        (Bench::Connect | Bench::FanIn, SystemName::Raw) => return raw::serve_many(job),
        (Bench::Ps, SystemName::Grpc) => return grpc::training::serve(job),
        (Bench::Ps, _) => return sealane::training::serve(job),
        (Bench::Rows, SystemName::Raw) => return raw::rows::serve(job),
        (Bench::Rows, SystemName::Grpc) => return grpc::rows::serve(job),
        (Bench::Rows, _) => return sealane::rows::serve(job),
        (Bench::Connect | Bench::Idle | Bench::FanIn, _) => return sealane::serve_peers(job),
        (Bench::Latency | Bench::Rate | Bench::Bandwidth | Bench::Fuse, _) => {}
        (Bench::Restart, _) => job.plan.bench.is_measured_elsewhere(),
    }
    match (job.system, job.plan.link) {
        (SystemName::Sealane | SystemName::Stream | SystemName::Open, Link::Shm) => sealane::serve_attached(job),
        (SystemName::Stream, _) => sealane::streams::serve(job),
        (SystemName::Sealane | SystemName::Open, Link::Tcp | Link::Verbs | Link::Loopback) => sealane::serve(job),
        (SystemName::Whole, _) => job.plan.bench.is_measured_elsewhere(),
        (SystemName::Raw, Link::Shm) => raw::serve_shm(job),
        (SystemName::Raw, Link::Tcp | Link::Verbs | Link::Loopback) => raw::serve(&job.plan),
        (SystemName::Grpc | SystemName::GrpcStream, Link::Shm) => grpc::serve_unix(job),
        (SystemName::Grpc | SystemName::GrpcStream, _) => grpc::serve(&job.plan),
    }
}

/// Looks at the memory that the last step of a round has filled, and that was empty before its first.
pub(super) fn check_arrival<'t>(
    system: &'static str,
    tensors: impl Iterator<Item = &'t [u8]>,
) -> Result<(), BenchError> {
    let wrong = tensors.enumerate().find(|(_, bytes)| bytes.iter().any(|byte| *byte != FILL));
    wrong.map_or(Ok(()), |(tensor, _)| Err(BenchError::WrongBytes { system, tensor }))
}

/// A round of requests one at a time, for consumers that are plain threads.
pub(super) fn round_trips<E>(
    plan: &Plan,
    length: Duration,
    mut request: impl FnMut() -> Result<(), E>,
) -> Result<Sample, E> {
    let mut trips = RoundTrips::start(Instant::now(), length);
    loop {
        if let Some(idle) = plan.idle() {
            pass_gap(idle, plan.polling);
        }
        let asked = Instant::now();
        request()?;
        if trips.completed(asked, Instant::now()) {
            return Ok(trips.sample());
        }
    }
}

/// Lets the gap pass as the run waits for everything else: spinning, or asleep.
pub(super) fn pass_gap(idle: Duration, polling: bool) {
    if !polling {
        return thread::sleep(idle);
    }
    let end = Instant::now() + idle;
    while Instant::now() < end {
        hint::spin_loop();
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

    #[test]
    fn memory_that_was_not_filled_is_named() {
        let (full, short) = ([FILL; 3], [FILL, FILL, 0]);
        check_arrival("raw", [&full[..], &[]].into_iter()).expect("all of it is");
        let error = check_arrival("raw", [&full[..], &short].into_iter()).expect_err("the last byte is missing");
        assert!(error.to_string().starts_with("raw delivered tensor 1"), "{error}");
    }
}
