//! The lower bound for rows: over TCP, a gather in one process and one message with all rows of a step; over shm, a gather in the
//! process that wants them, as by `numpy.take`. Rows that are named twice are gathered twice.

use std::sync::Arc;
use std::thread;

use super::channel::{NAME, TcpChannel, explained, receive_exact, send_all};
use crate::error::BenchError;
use crate::limits::STALL_LIMIT;
use crate::peer::{PeerJob, PeerProgram, announce, until_ended};
use crate::plan::{Link, Plan};
use crate::system::{Client, System};
use crate::systems::rows::{Memory, Wanted, tables};
use crate::systems::sockets;
use crate::systems::training::{self, Threads};

/// The request for a step, which both sides know.
const REQUEST: [u8; 8] = *b"the next";

pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    System::with_peer(job, program, |peer| {
        let here = plan.link == Link::Shm;
        let memory = here.then(|| Arc::new(Memory::new(plan, || 0..tables(plan).rows)));
        let place = || match &memory {
            Some(memory) => Ok(Place::Here(memory.clone())),
            None => {
                let socket = sockets::connect(peer.address(), plan.congestion.as_deref())?;
                TcpChannel::new(socket, spins(plan), Some(STALL_LIMIT)).map(Place::There)
            }
        };
        let puller = |(wanted, rows)| Ok(Puller { wanted, rows, place: place()? });
        let workers = pulls(plan).into_iter().map(puller).collect::<Result<_, BenchError>>()?;
        let variant = if here { "gather in one process" } else { "gather, one message" };
        let threads = Threads { workers, moved: Box::new(|| Ok(None)) };
        training::system((NAME, variant.to_owned()), plan, threads, 0.0, peer)
    })
}

/// Several threads on one CPU would block each other by spinning.
fn spins(plan: &Plan) -> bool {
    plan.polling && training::of(plan).size.workers == 1
}

/// The rows that each worker names, and memory for the rows of a step.
fn pulls(plan: &Plan) -> Vec<(Wanted, Vec<u8>)> {
    let of = |worker| (Wanted::new(plan, worker), vec![0; tables(plan).step_bytes()]);
    (0..training::of(plan).size.workers).map(of).collect()
}

/// Serves the workers, with a thread for each, until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    let plan = &job.plan;
    if plan.link == Link::Shm {
        announce(&[])?;
        until_ended();
    }
    let memory = Memory::new(plan, || 0..tables(plan).rows);
    let listener = sockets::listen(job.hosts.producer, plan.congestion.as_deref())?;
    announce(&[sockets::port(&listener)?])?;
    thread::scope(|scope| {
        for (mut wanted, mut rows) in pulls(plan) {
            let mut channel = TcpChannel::new(sockets::accept(&listener, job.hosts)?, spins(plan), None)?;
            let memory = &memory;
            scope.spawn(move || -> Result<(), BenchError> {
                loop {
                    receive_exact(&mut channel, &mut [0; REQUEST.len()]).map_err(explained)?;
                    gather(memory, wanted.advance(), &mut rows);
                    send_all(&mut channel, &rows).map_err(explained)?;
                }
            });
        }
        Ok::<_, BenchError>(())
    })
}

/// Gathers the rows of a step, one table after the other.
fn gather(memory: &Memory, named: &[Vec<u64>], rows: &mut [u8]) {
    let bytes = rows.len() / named.len();
    for ((table, ids), target) in named.iter().enumerate().zip(rows.chunks_exact_mut(bytes)) {
        memory.gather(table, ids.iter().copied(), target);
    }
}

enum Place {
    Here(Arc<Memory>),
    There(TcpChannel),
}

struct Puller {
    wanted: Wanted,
    rows: Vec<u8>,
    place: Place,
}

impl Client for Puller {
    async fn step(&mut self) -> Result<(), BenchError> {
        let named = self.wanted.advance();
        match &mut self.place {
            Place::Here(memory) => gather(memory, named, &mut self.rows),
            Place::There(channel) => {
                send_all(channel, &REQUEST).map_err(explained)?;
                receive_exact(channel, &mut self.rows).map_err(explained)?;
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), BenchError> {
        self.wanted.check_all(NAME, &self.rows)
    }
}
