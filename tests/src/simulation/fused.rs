//! Fused receives: each asks for many tensors at once and ends once. In the ledger, each of its tensors is a recv of its own.
//!
//! A batch whose outcomes are told one by one must keep the promises of single recvs. One whose outcomes are told together reports early
//! ones late, so that the sends of its tensors may have ended by then; all other promises are the same.

use std::collections::HashMap;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sealane_fusion::node::{BatchWaiter, FusedRequest};
use sealane_fusion::{Buffer, Unreceived};
use sealane_transport::Handle;

use super::climate::TENSOR_BYTES_MAX;
use super::conduct::key;
use super::ledger::{End, Recv};
use super::run::Simulation;
use super::workload::{Spot, Told};

struct Batch {
    host: usize,
    shard: usize,
    handle: Handle,
    told: Told,
    /// Its recvs in the ledger, in key order.
    recvs: Vec<usize>,
}

/// A fused receive, as its task asks for it.
pub(super) struct Fusing {
    pub(super) batch: usize,
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) step: i64,
    pub(super) keys: Vec<u32>,
    pub(super) rooms: usize,
    pub(super) told: Told,
    pub(super) timeout: Duration,
}

/// Batches that have not ended, by host in the order they were asked; and the latest batch of each number.
#[derive(Default)]
pub(super) struct Batches {
    open: Vec<(u64, Batch)>,
    latest: HashMap<usize, u64>,
    asked: u64,
}

impl Batches {
    pub(super) fn asked(&self) -> u64 {
        self.asked
    }

    /// Any batch that never ended.
    pub(super) fn left(&self) -> Option<u64> {
        self.open.first().map(|(number, _)| *number)
    }

    fn take_latest(&mut self, batch: usize) -> Option<(u64, Batch)> {
        let number = self.latest.get(&batch)?;
        let at = self.open.iter().position(|(open, _)| open == number)?;
        Some(self.open.remove(at))
    }
}

impl Simulation {
    pub(super) fn fuse(&mut self, fusing: Fusing) -> Result<(), String> {
        let Fusing { batch, producer, consumer, step, keys, rooms, told, timeout } = fusing;
        let host = self.host_of(consumer);
        let Some((shard, pair)) = self.seat_of(host, consumer, producer)? else { return Ok(()) };
        self.batches.asked += 1;
        let number = self.batches.asked;
        let (issued, deadline) = (self.now, self.now + timeout);
        self.trace.note(
            issued,
            format_args!("fused receive {number} of {} tensors of {producer} by {consumer}, {timeout:?}", keys.len()),
        );
        let destinations: Vec<_> = (0..rooms).map(|_| Buffer::from_vec(vec![0; TENSOR_BYTES_MAX])).collect();
        let mut recvs = Vec::with_capacity(keys.len());
        for (index, &key) in keys.iter().enumerate() {
            let at = Spot { producer, consumer, step, key };
            recvs.push(self.ledger.add_recv(Recv {
                at,
                host,
                process: self.hosts[host].process,
                shard,
                issued,
                deadline,
                destination: destinations.get(index).map(|memory| (memory.as_ptr() as usize, memory.len())),
                ticket: None,
                receiver: None,
                batch: Some(told),
                era: self.era(at),
                ended: None,
            }));
        }
        let waiter = match told {
            Told::OneByOne | Told::Together => BatchWaiter::Future(None),
            Told::InViews => BatchWaiter::Views(None),
        };
        let names: Vec<_> = keys.iter().map(|&number| key(number)).collect();
        let (now, deadline) = (self.instant(), self.base + deadline);
        let keys = names.iter().map(String::as_str);
        let request = FusedRequest { pair, step, keys, destinations, deadline, waiter };
        let handle = self.hosts[host].seats[shard].node.recv_fused(now, request);
        self.batches.latest.insert(batch, number);
        self.batches.open.push((number, Batch { host, shard, handle, told, recvs }));
        self.settle(host, shard)
    }

    pub(super) fn give_up_fused(&mut self, batch: usize) -> Result<(), String> {
        let Some((number, Batch { host, shard, handle, recvs, .. })) = self.batches.take_latest(batch) else {
            return Ok(());
        };
        self.trace.note(self.now, format_args!("fused receive {number} is given up"));
        self.hosts[host].seats[shard].node.close_batch(handle);
        self.end_open(&recvs, End::GivenUp);
        self.settle(host, shard)
    }

    fn end_open(&mut self, recvs: &[usize], end: End) {
        for &recv in recvs {
            if self.ledger.recvs[recv].ended.is_none() {
                self.ledger.end_recv(recv, self.now, end);
            }
        }
    }

    /// A process has ended; the ledger ends the recvs.
    pub(super) fn forget_batches_of(&mut self, host: usize) {
        self.batches.open.retain(|(_, batch)| batch.host != host);
    }

    /// Collects the outcomes of a host's fused receives.
    pub(super) fn look_at_batches(&mut self, host: usize) -> Result<(), String> {
        let mut open = std::mem::take(&mut self.batches.open);
        let mut outcome = Ok(());
        open.retain(|(number, batch)| {
            if batch.host != host || outcome.is_err() {
                return true;
            }
            match self.hear(batch) {
                Ok(ended) => !ended,
                Err(what) => {
                    outcome = Err(format!("fused receive {number}: {what}"));
                    true
                }
            }
        });
        debug_assert!(self.batches.open.is_empty());
        self.batches.open = open;
        outcome
    }

    /// True if the batch has ended.
    fn hear(&mut self, batch: &Batch) -> Result<bool, String> {
        match batch.told {
            Told::OneByOne => self.hear_one_by_one(batch),
            Told::InViews => self.hear_views(batch),
            Told::Together => self.hear_all(batch),
        }
    }

    fn hear_all(&mut self, batch: &Batch) -> Result<bool, String> {
        let Batch { host, shard, handle, recvs, .. } = batch;
        let node = &mut self.hosts[*host].seats[*shard].node;
        let Poll::Ready(outcomes) = node.poll_batch(*handle, Waker::noop()) else { return Ok(false) };
        if outcomes.len() != recvs.len() {
            return Err(format!("{} outcomes for {} keys", outcomes.len(), recvs.len()));
        }
        recvs.iter().zip(outcomes).try_for_each(|(&recv, outcome)| self.recv_ended(recv, outcome).map(drop))?;
        Ok(true)
    }

    fn hear_views(&mut self, batch: &Batch) -> Result<bool, String> {
        let Batch { host, shard, handle, recvs, .. } = batch;
        let node = &mut self.hosts[*host].seats[*shard].node;
        let Poll::Ready(received) = node.poll_views(*handle, Waker::noop()) else { return Ok(false) };
        if received.len() != recvs.len() {
            return Err(format!("{} outcomes for {} keys", received.len(), recvs.len()));
        }
        for (&recv, outcome) in recvs.iter().zip(received.iter()) {
            let outcome = outcome.map(|view| view.to_tensor());
            self.recv_ended(recv, outcome.map_err(|error| Unreceived::from(error.clone())))?;
        }
        Ok(true)
    }

    fn hear_one_by_one(&mut self, batch: &Batch) -> Result<bool, String> {
        let context = Context::from_waker(Waker::noop());
        let Batch { host, shard, handle, recvs, .. } = batch;
        loop {
            let node = &mut self.hosts[*host].seats[*shard].node;
            match node.poll_next_of(*handle, context.waker()) {
                Poll::Ready(Some((index, outcome))) => {
                    let recv = recvs[index];
                    if self.ledger.recvs[recv].ended.is_some() {
                        return Err(format!("recv {recv} ended twice"));
                    }
                    self.recv_ended(recv, outcome)?;
                }
                Poll::Ready(None) => {
                    node.close_batch(*handle);
                    let left = recvs.iter().find(|&&recv| self.ledger.recvs[recv].ended.is_none());
                    return left.map_or(Ok(true), |recv| Err(format!("it is over, and recv {recv} never ended")));
                }
                Poll::Pending => return Ok(false),
            }
        }
    }
}
