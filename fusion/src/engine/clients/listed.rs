//! Small calls that clients have made together, and that wait as they came: as lists. Sends and recvs of the same keys in the same order are
//! matched as a whole; nothing is entered into a table for one tensor, and no key is hashed. (So a switch forwards a frame.)
//!
//! A list waits so for [`LISTED_MAX`] at most, and only while nothing happens that concerns one of its calls alone: then they are entered
//! into the node one by one, as they would have been at once. So whatever happens elsewhere in the node is found then: a list is late by
//! that time at most. Of a pair and a step, sends or recvs wait here, and never both. No I/O; bounded by [`LISTS_MAX`] and
//! [`LISTED_CALLS_MAX`].

use std::collections::VecDeque;
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::shm::{CallList, CallListBuf, SmallCall};
use sealane_transport::{Handle, Tensor};

use super::client::name;
use crate::limits::{LISTED_CALLS_MAX, LISTED_CALLS_PER_TURN, LISTED_MAX, LISTS_MAX};
use crate::node::{ClientCall, Node, RecvRequest, RecvWaiter, SendWaiter, Ticket};

/// Lists that wait, the oldest first.
#[derive(Default)]
pub(super) struct Listed {
    waiting: VecDeque<List>,
    /// Calls that wait.
    calls: usize,
    matched: VecDeque<Matched>,
    /// Clients whose sends had waited and were matched, and the numbers of these.
    sent: VecDeque<(Handle, Vec<u32>)>,
    /// Whose calls are being entered: the client to blame for a panic.
    entering: Option<Handle>,
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

    /// True if so many more calls may wait, as a list.
    #[inline]
    pub(super) fn has_room_for(&self, calls: usize) -> bool {
        self.waiting.len() < LISTS_MAX && self.calls + calls <= LISTED_CALLS_MAX
    }

    /// Lets calls wait as a list, for which there is room.
    pub(super) fn wait(&mut self, common: Common, list: CallList<'_>) {
        let mut calls = self.spare.pop().unwrap_or_default();
        calls.copy_from(list);
        self.calls += list.len();
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
        self.matched.push_back(Matched { client, peer, arrived });
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
        let bytes = sends.bytes();
        self.sent.push_back((sender, sends.numbers().collect()));
        self.matched.push_back(Matched { client, peer, arrived });
        self.took(index, recvs.len());
        (bytes, since)
    }

    #[inline]
    fn took(&mut self, index: usize, count: usize) {
        self.waiting[index].matched += count;
        self.calls -= count;
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

    /// The next client whose sends were matched, and their numbers: to be told after all recvs.
    pub(super) fn next_sent(&mut self) -> Option<(Handle, Vec<u32>)> {
        self.sent.pop_front()
    }

    fn reuse(&mut self, list: CallListBuf) {
        if self.spare.len() < LISTS_MAX {
            self.spare.push(list);
        }
    }

    /// Enters the calls of some lists into the node, one by one.
    #[cold]
    pub(super) fn enter(&mut self, node: &mut Node, mut is_meant: impl FnMut(&Common) -> bool) {
        let mut index = 0;
        while let Some(list) = self.waiting.get(index) {
            if !is_meant(&list.common) {
                index += 1;
                continue;
            }
            let common = list.common;
            self.entering = Some(common.client);
            self.calls -= list.rest().len();
            for call in list.rest().iter() {
                self.tickets.extend(enter(node, common, call));
            }
            self.entering = None;
            self.waiting.remove(index).into_iter().for_each(|list| self.reuse(list.calls));
        }
    }

    /// Enters the calls of lists that have waited long enough.
    #[inline]
    pub(super) fn enter_old(&mut self, node: &mut Node, now: Instant) {
        let calls = self.calls;
        while self.due().is_some_and(|due| due <= now) && calls - self.calls < LISTED_CALLS_PER_TURN {
            let mut is_first = true;
            self.enter(node, |_| std::mem::take(&mut is_first));
        }
    }

    /// The next recv that is the node's now, and its ticket.
    #[inline]
    pub(super) fn next_ticket(&mut self) -> Option<(ClientCall, Ticket)> {
        self.tickets.pop()
    }

    /// Takes out the tickets of a client.
    #[inline]
    pub(super) fn take_tickets_of(&mut self, client: Handle, mut each: impl FnMut(ClientCall, Ticket)) {
        self.tickets.retain(|(of, ticket)| {
            if of.client == client {
                each(*of, *ticket);
            }
            of.client != client
        });
    }

    /// The client whose calls were being entered when that panicked; what is left of its lists is forgotten.
    pub(super) fn take_blamed(&mut self) -> Option<Handle> {
        let blamed = self.entering.take()?;
        self.waiting.retain(|list| list.common.client != blamed);
        self.calls = self.waiting.iter().map(|list| list.rest().len()).sum();
        Some(blamed)
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
        return node.recv(since, request).map(|ticket| (of, ticket));
    }
    let waiter = SendWaiter::Client(of);
    match Tensor::from_wire(meta, Buffer::copy_of(bytes)) {
        Ok(tensor) => node.send(pair, step, key, tensor, deadline, waiter),
        Err(error) => node.finish_send(waiter, Err(error)),
    }
    None
}
