//! Small calls that clients have made together, and that wait as they came: as lists. Sends and recvs of the same keys in the same order are
//! matched as a whole; nothing is entered into a table for one tensor, and no key is hashed. (So a switch forwards a frame.)
//!
//! A list waits so for [`LISTED_MAX`] at most, and only while nothing happens that concerns one of its calls alone: then they are entered
//! into the node one by one, as they would have been at once. So whatever happens elsewhere in the node is found then: a list is late by
//! that time at most. Of a pair and a step, sends or recvs wait here, and never both. No I/O; bounded by the calls that clients have in
//! flight.

use std::collections::VecDeque;
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::shm::{CallList, CallListBuf, SmallCall};
use sealane_transport::{Handle, Tensor};

use super::client::name;
use crate::limits::{LISTED_MAX, SPARE_LISTS_MAX};
use crate::node::{ClientCall, Node, RecvRequest, RecvWaiter, SendWaiter, Ticket};

/// Lists that wait, the oldest first.
#[derive(Default)]
pub(super) struct Listed {
    waiting: VecDeque<List>,
    matched: VecDeque<Matched>,
    /// Of recvs that are the node's now; their clients have not heard of them yet.
    tickets: Vec<(ClientCall, Ticket)>,
    /// Lists to be filled again.
    spare: Vec<CallListBuf>,
}

/// What calls send or ask for: of which pair, as its producer numbers it, and of which step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Of {
    pub(super) producer_pair: u32,
    pub(super) step: i64,
}

/// What the calls of a list have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Common {
    pub(super) client: Handle,
    /// The client's number for the peer.
    pub(super) peer: u16,
    pub(super) are_recvs: bool,
    pub(super) of: Of,
    /// The pair, as the client's task numbers it.
    pub(super) pair: u32,
    pub(super) deadline: Instant,
    pub(super) since: Instant,
}

struct List {
    common: Common,
    calls: CallListBuf,
    /// So many of the first have been matched.
    matched: usize,
}

impl List {
    #[inline]
    fn rest(&self) -> CallList<'_> {
        self.calls.as_list().split_at(self.matched).1
    }
}

/// Recvs that have their tensors, to be told to their client.
pub(super) struct Matched {
    pub(super) client: Handle,
    pub(super) peer: u16,
    pub(super) arrived: CallListBuf,
    /// The client whose list these tensors are of, and its calls, if it has not been told.
    pub(super) sent: Option<(Handle, Vec<u32>)>,
}

impl Listed {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the oldest list is to be [entered](Self::enter_old).
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|list| list.common.since + LISTED_MAX)
    }

    /// Lets calls wait as a list.
    pub(super) fn wait(&mut self, common: Common, list: CallList<'_>) {
        let mut calls = self.spare.pop().unwrap_or_default();
        calls.copy_from(list);
        self.waiting.push_back(List { common, calls, matched: 0 });
    }

    /// A list of recvs, or of sends, that begins as these calls do, and how many of them it has.
    #[inline]
    pub(super) fn find(&self, are_recvs: bool, of: Of, calls: &CallList<'_>) -> Option<(usize, usize)> {
        let waiting = self.waiting.iter().enumerate();
        for (index, list) in waiting.filter(|(_, list)| list.common.are_recvs == are_recvs && list.common.of == of) {
            let rest = list.rest();
            if rest.begins_as(calls) {
                return Some((index, rest.len().min(calls.len())));
            }
        }
        None
    }

    /// True if recvs, or sends, of that pair and step wait.
    pub(super) fn has(&self, are_recvs: bool, of: Of) -> bool {
        self.waiting.iter().any(|list| list.common.are_recvs == are_recvs && list.common.of == of)
    }

    /// Matches a list of recvs with as many sends as were [found](Self::find) for it, which are told by the caller; since when it has waited.
    #[inline]
    pub(super) fn take_recvs(&mut self, index: usize, sends: CallList<'_>) -> Instant {
        let mut arrived = self.spare.pop().unwrap_or_default();
        let List { common: Common { client, peer, since, .. }, .. } = self.waiting[index];
        arrived.arrivals_of(self.waiting[index].rest(), sends);
        self.matched.push_back(Matched { client, peer, arrived, sent: None });
        self.took(index, sends.len());
        since
    }

    /// Matches a list of sends with as many recvs of a client as were found for it; returns the tensors' bytes, and since
    /// when they have waited.
    #[inline]
    pub(super) fn take_sends(
        &mut self,
        index: usize,
        recvs: CallList<'_>,
        (client, peer): (Handle, u16),
    ) -> (u64, Instant) {
        let mut arrived = self.spare.pop().unwrap_or_default();
        let (sends, _) = self.waiting[index].rest().split_at(recvs.len());
        arrived.arrivals_of(recvs, sends);
        let Common { client: sender, since, .. } = self.waiting[index].common;
        let (sent, bytes) = (Some((sender, sends.numbers().collect())), sends.bytes());
        self.matched.push_back(Matched { client, peer, arrived, sent });
        self.took(index, recvs.len());
        (bytes, since)
    }

    #[inline]
    fn took(&mut self, index: usize, count: usize) {
        self.waiting[index].matched += count;
        if self.waiting[index].rest().is_empty()
            && let Some(List { calls, .. }) = self.waiting.remove(index)
        {
            self.reuse(calls);
        }
    }

    /// The next recvs that have their tensors.
    pub(super) fn next_matched(&mut self) -> Option<Matched> {
        self.matched.pop_front()
    }

    fn reuse(&mut self, list: CallListBuf) {
        if self.spare.len() < SPARE_LISTS_MAX {
            self.spare.push(list);
        }
    }

    /// Enters the calls of some lists into the node, one by one.
    #[cold]
    pub(super) fn enter(&mut self, node: &mut Node, is_meant: impl Fn(&Common) -> bool) {
        let mut index = 0;
        while let Some(list) = self.waiting.get(index) {
            if !is_meant(&list.common) {
                index += 1;
                continue;
            }
            let Some(list) = self.waiting.remove(index) else { break };
            for call in list.rest().iter() {
                let ticket = enter(node, list.common, call);
                self.tickets.extend(ticket);
            }
            self.reuse(list.calls);
        }
    }

    /// Enters the calls of lists that have waited long enough.
    #[inline]
    pub(super) fn enter_old(&mut self, node: &mut Node, now: Instant) {
        if self.due().is_some_and(|due| due <= now) {
            self.enter(node, |list| list.since + LISTED_MAX <= now);
        }
    }

    /// The next recv that is the node's now, and its ticket.
    #[inline]
    pub(super) fn next_ticket(&mut self) -> Option<(ClientCall, Ticket)> {
        self.tickets.pop()
    }

    /// The next of a client.
    #[inline]
    pub(super) fn next_ticket_of(&mut self, client: Handle) -> Option<(ClientCall, Ticket)> {
        let place = self.tickets.iter().position(|(of, _)| of.client == client)?;
        Some(self.tickets.swap_remove(place))
    }
}

/// Enters a call that has waited in a list; returns the ticket of a recv that waits.
fn enter(node: &mut Node, common: Common, call: SmallCall<'_>) -> Option<(ClientCall, Ticket)> {
    let Common { client, are_recvs, of: Of { step, .. }, pair, deadline, since, .. } = common;
    let SmallCall { call, key, meta, bytes } = call;
    let of = ClientCall { client, call: name(call) };
    if are_recvs {
        let (waiter, destination, fused, fail_if_gone) = (RecvWaiter::Client(of), None, true, false);
        let request = RecvRequest { pair, step, key, deadline, destination, waiter, fused, fail_if_gone };
        return node.recv_listed(since, request).map(|ticket| (of, ticket));
    }
    let waiter = SendWaiter::Client(of);
    match Tensor::from_wire(meta, Buffer::copy_of(bytes)) {
        Ok(tensor) => node.send_listed(pair, step, key, tensor, deadline, waiter),
        Err(error) => node.finish_send(waiter, Err(error)),
    }
    None
}
