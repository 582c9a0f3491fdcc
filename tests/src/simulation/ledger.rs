//! Every send and recv of a run: what was asked, how it ended, and which send's tensor each recv got.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use sealane_fusion::node::Ticket;
use sealane_fusion::{Code, RecvOutcome, SendOutcome, Tensor};

use super::climate::PEER_TIMEOUT;
use super::workload::{Spot, Told};

/// Identifies a node's state: its process, and how many sessions it has reset. While neither changes on either side, a tensor is delivered
/// at most once; while neither changes on the producer's, it is not delivered after its send has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Era {
    pub(super) process: u32,
    pub(super) resets: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Ok,
    Err(Code),
    /// Its deadline passed while the tensor was on its way.
    Unknown,
    /// Another call that failed was reported to its task in its place.
    Untold,
    /// Its process ended first.
    Lost,
    GivenUp,
    /// Its receiver was dropped.
    Deaf,
}

pub(super) struct Send {
    pub(super) at: Spot,
    pub(super) bytes: usize,
    pub(super) host: usize,
    pub(super) era: Era,
    pub(super) issued: Duration,
    pub(super) deadline: Duration,
    pub(super) receiver: Option<oneshot::Receiver<SendOutcome>>,
    pub(super) ended: Option<(Duration, End)>,
    /// The recvs that got it, and the eras of producer and consumer at that time.
    pub(super) deliveries: Vec<(usize, (Era, Era))>,
}

impl Send {
    pub(super) fn is_released(&self) -> bool {
        matches!(self.ended, Some((_, End::Ok)))
    }
}

pub(super) struct Recv {
    pub(super) at: Spot,
    pub(super) host: usize,
    pub(super) process: u32,
    pub(super) shard: usize,
    pub(super) issued: Duration,
    pub(super) deadline: Duration,
    /// Address and length of the memory that its task provided.
    pub(super) destination: Option<(usize, usize)>,
    pub(super) ticket: Option<Ticket>,
    pub(super) receiver: Option<oneshot::Receiver<RecvOutcome>>,
    /// How the outcome is told, if it is part of a fused receive.
    pub(super) batch: Option<Told>,
    /// The producer's era when it was asked.
    pub(super) era: Era,
    pub(super) ended: Option<(Duration, End)>,
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) sends: Vec<Send>,
    pub(super) recvs: Vec<Recv>,
    /// Open calls, by host.
    pub(super) open_sends: Vec<Vec<usize>>,
    pub(super) open_recvs: Vec<Vec<usize>>,
    sends_at: HashMap<Spot, Vec<usize>>,
    recvs_at: HashMap<Spot, Vec<usize>>,
    /// Steps that a task has aborted or cleaned up.
    pub(super) touched: BTreeSet<(usize, i64)>,
    /// Each time at which a task cleaned up a step.
    pub(super) cleaned: HashMap<(usize, i64), Vec<Duration>>,
    /// Hosts whose process has said goodbye.
    pub(super) farewells: BTreeSet<usize>,
    /// Tensors that tasks have received but not consumed yet.
    pub(super) held: Vec<Tensor>,
}

impl Ledger {
    pub(super) fn new(hosts: usize) -> Self {
        let none = || vec![Vec::new(); hosts];
        Ledger { open_sends: none(), open_recvs: none(), ..Ledger::default() }
    }

    pub(super) fn add_send(&mut self, send: Send) -> usize {
        let number = self.sends.len();
        self.open_sends[send.host].push(number);
        self.sends_at.entry(send.at).or_default().push(number);
        self.sends.push(send);
        number
    }

    pub(super) fn add_recv(&mut self, recv: Recv) -> usize {
        let number = self.recvs.len();
        self.open_recvs[recv.host].push(number);
        self.recvs_at.entry(recv.at).or_default().push(number);
        self.recvs.push(recv);
        number
    }

    pub(super) fn sends_of(&self, at: Spot) -> &[usize] {
        self.sends_at.get(&at).map_or(&[], Vec::as_slice)
    }

    pub(super) fn recvs_of(&self, at: Spot) -> &[usize] {
        self.recvs_at.get(&at).map_or(&[], Vec::as_slice)
    }

    /// The latest open single recv of a spot.
    pub(super) fn open_recv_of(&self, at: Spot) -> Option<usize> {
        let is_open = |recv: &Recv| recv.ended.is_none() && recv.batch.is_none();
        self.recvs_of(at).iter().rev().copied().find(|&recv| is_open(&self.recvs[recv]))
    }

    /// True if a recv may have taken the tensor of a spot without saying so: it is part of a fused receive that waits for more, or waited.
    pub(super) fn may_have_taken(&self, at: Spot) -> bool {
        self.recvs_of(at).iter().map(|&recv| &self.recvs[recv]).any(|recv| match recv.ended {
            None | Some((_, End::Deaf | End::GivenUp | End::Lost)) => recv.batch.is_some_and(Told::is_together),
            Some(_) => false,
        })
    }

    pub(super) fn end_send(&mut self, number: usize, now: Duration, end: End) {
        let send = &mut self.sends[number];
        (send.ended, send.receiver) = (Some((now, end)), None);
        let host = send.host;
        self.open_sends[host].retain(|&open| open != number);
    }

    pub(super) fn end_recv(&mut self, number: usize, now: Duration, end: End) {
        let recv = &mut self.recvs[number];
        (recv.ended, recv.receiver) = (Some((now, end)), None);
        let host = recv.host;
        self.open_recvs[host].retain(|&open| open != number);
    }

    pub(super) fn note_farewell(&mut self, host: usize) {
        self.farewells.insert(host);
    }

    /// True if the producer cleaned up the step between the send and the recv, and long enough ago that the consumer's side has heard of it
    /// or lost the link: the tensor may have been there already, before the recv.
    pub(super) fn is_stale(&self, send: &Send, recv: &Recv) -> bool {
        let cleaned = self.cleaned.get(&(send.at.producer, send.at.step));
        let is_between = |when: Duration| send.issued < when && when + PEER_TIMEOUT < recv.issued;
        cleaned.is_some_and(|times| times.iter().any(|&when| is_between(when)))
    }

    pub(super) fn is_touched(&self, at: Spot) -> bool {
        self.touched.contains(&(at.producer, at.step)) || self.touched.contains(&(at.consumer, at.step))
    }
}
