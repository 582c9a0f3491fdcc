//! The baseline `raw` of the verbs link: the bare operations of the RDMA device between the same two processes, through the
//! seam that Sealane's own links use, with nothing around them.
//!
//! - *latency*: a SEND of the request's size there, one of the tensor's back, inline where the device takes it.
//! - *rate*: a window of requests and as many receive buffers. With `--fuse off` each request, and each tensor, is a SEND of
//!   its own; else a quarter of the window is, as bare sockets write many at once.
//! - *bandwidth*: RDMA WRITEs of the tensor's size into the other process's memory, as many outstanding as the window but
//!   at least two; what counts is acknowledged. The consumer's process writes, so the other only spins, as Sealane's does.
//! - *fuse*: a SEND that asks, and one RDMA WRITE of all the step's bytes, whose word says that they are there.
//!
//! Both processes spin on their completion queues, or sleep until there is a completion when polling is off.

mod areas;
mod card;
mod consumer;
mod end;
mod producer;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use sealane_transport::verbs::device::Device;
use sealane_transport::verbs::{self, VerbsSettings};

use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{Peer, PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse, Plan};
use crate::rdma_device::RdmaDevice;
use crate::sample::Sample;
use crate::system::System;
use crate::systems::raw::{NAME, explained};
use crate::systems::sockets;

use areas::{Areas, Side};
use consumer::Consumer;
use end::{End, Patient};
use producer::Producer;

/// One queue pair, the producer in a process of its own.
pub(in crate::systems) struct OverVerbs {
    plan: Plan,
    device: RdmaDevice,
    consumer: Consumer,
    peer: Peer,
}

impl OverVerbs {
    pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<Self, BenchError> {
        let plan = job.plan.clone();
        let areas = Areas::of(&plan, Side::Consumer);
        let device = open(&areas)?;
        let description = RdmaDevice::from(device.attributes());
        let mut end = End::open(device, areas, Patient { spins: plan.polling, limit: Some(STALL_LIMIT) })
            .map_err(failed("make a queue pair"))?;
        let mut peer = Peer::start(program, job)?;
        let mut stream = sockets::connect(peer.ready().port, None)?;
        let met = card::call(&mut stream, &mut end).map_err(failed("connect to the producer"));
        let theirs = met.map_err(|failure| peer.blame(failure))?;
        peer.rest()?;
        Ok(Self { plan, device: description, consumer: Consumer::new(end, theirs), peer })
    }
}

impl System for OverVerbs {
    fn name(&self) -> &'static str {
        NAME
    }

    fn variant(&self) -> String {
        let waiting = if self.plan.polling { "polling" } else { "sleeping" };
        match (self.plan.bench, self.plan.fuse) {
            (Bench::Latency, _) => format!("{waiting}, SEND"),
            (Bench::Rate, Fuse::Off) => format!("{waiting}, a SEND each"),
            (Bench::Rate, _) => format!("{waiting}, fused SENDs"),
            (Bench::Bandwidth, _) => format!("{waiting}, RDMA WRITE, window {}", areas::writes_outstanding(&self.plan)),
            (Bench::Fuse, _) => format!("{waiting}, one RDMA WRITE"),
            (none, _) => none.is_measured_elsewhere(),
        }
    }

    fn congestion(&self) -> Option<&str> {
        None
    }

    fn device(&self) -> Option<&RdmaDevice> {
        Some(&self.device)
    }

    fn resume(&mut self) -> Result<(), BenchError> {
        self.peer.resume()
    }

    fn round(&mut self, length: Duration) -> Result<Sample, BenchError> {
        self.consumer.round(&self.plan, length).map_err(|failure| self.peer.blame(failure))
    }

    fn rest(&mut self) -> Result<(), BenchError> {
        self.peer.rest()
    }
}

/// The producer's side: serves until the process is ended.
pub(in crate::systems) fn serve(plan: &Plan) -> Result<(), BenchError> {
    let areas = Areas::of(plan, Side::Producer);
    let device = open(&areas)?;
    let mut end =
        End::open(device, areas, Patient { spins: plan.polling, limit: None }).map_err(failed("make a queue pair"))?;
    let listener = sockets::listen(None)?;
    announce(sockets::port(&listener)?)?;
    let mut stream = sockets::accept(&listener)?;
    let theirs = card::answer(&mut stream, &mut end).map_err(failed("connect to the consumer"))?;
    if plan.bench == Bench::Bandwidth {
        loop {
            // The consumer writes, and nothing comes that this side would hear of: it spins, or sleeps, as in all others.
            end.wait().map_err(explained)?;
        }
    }
    let mut producer = Producer::new(plan, end, theirs);
    loop {
        producer.turn().map_err(explained)?;
    }
}

fn open(areas: &Areas) -> Result<Box<dyn Device>, BenchError> {
    let queue_depth = u32::try_from(areas.slots).unwrap_or(u32::MAX).max(1);
    verbs::open(&VerbsSettings { queue_depth, ..VerbsSettings::default() })
        .map_err(|error| BenchError::Verbs { operation: "open the device", reason: error.to_string() })
}

fn failed(operation: &'static str) -> impl FnOnce(io::Error) -> BenchError {
    move |error| BenchError::Verbs { operation, reason: error.to_string() }
}
