//! Workers that train with parameter servers through gRPC. All parameter servers are in one process and runtime, each with a
//! port of its own; every worker has a connection with each of them. A call a tensor, or one call a ps, whose message has
//! all tensors.

mod servers;
mod workers;

use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::connection;
use super::runtime::{NAME, runtime};
use crate::error::BenchError;
use crate::open_files;
use crate::peer::{Peer, PeerJob, PeerProgram};
use crate::plan::{Fuse, Plan};
use crate::process::Growth;
use crate::system::System;
use crate::systems::sockets;
use crate::systems::training;
use workers::Workers;

pub(in crate::systems) use servers::serve;

/// Parameter servers in a process of their own, and workers that are connected with all of them.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    let training = training::of(plan);
    let pairs = training.pairs();
    open_files::allow_for("--workers x --ps", pairs, 1)?;
    let mut peer = Peer::start(program, job)?;
    let growth = Growth::of(peer.process_id())?;
    let runtime = runtime()?;
    let connected = connect(&runtime, plan, &peer.ready().ports).map_err(|failure| peer.blame(failure));
    let (channels, congestion) = connected?;
    let each = growth.bytes_each(pairs)?;
    let workers = Workers::new(runtime, channels, plan);
    peer.rest()?;
    Ok(training::system((NAME, variant(plan)), plan, workers, each, peer)?.with_congestion(congestion))
}

/// A channel of every worker with every ps, worker by worker.
fn connect(runtime: &Runtime, plan: &Plan, ports: &[u16]) -> Result<(Vec<Channel>, String), BenchError> {
    let mut channels = Vec::new();
    let mut congestion = String::new();
    for _ in 0..training::of(plan).size.workers {
        for port in ports {
            let stream = sockets::connect(*port, plan.congestion.as_deref())?;
            if channels.is_empty() {
                congestion = sockets::congestion(&stream)?;
            }
            channels.push(runtime.block_on(async { connection::open(connection::adopt(stream)?).await })?);
        }
    }
    Ok((channels, congestion))
}

fn variant(plan: &Plan) -> String {
    let training = training::of(plan);
    let variant = training.variants[0];
    let waiting = if variant.polling { "polling" } else { "parking" };
    match variant.fuse {
        Fuse::Off => format!("{}, unary, {} calls, {waiting}", training.mode, variant.request_buffers),
        _ => format!("{}, one message, {waiting}", training.mode),
    }
}
