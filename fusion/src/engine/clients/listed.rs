//! Small calls that clients have made together, and that wait as they came: as lists. Sends and recvs of the same keys in the same order
//! are matched as a whole; nothing is entered into a table for one tensor, and no key is hashed.
//!
//! A list waits so for [`LISTED_TIME_MAX`], and only while nothing happens that concerns one of its calls alone: then they are entered into
//! the node one by one, as they would have been at once. What happens elsewhere in the node is found then, so late by about that time. Of a
//! pair and a step, sends or recvs wait here, and never both. (Two calls of one key, which is an error, may both find their other half here
//! where the node would refuse the second.) No I/O; bounded by [`LISTS_MAX`] and [`LISTED_CALLS_MAX`], which all clients of a shard share:
//! one that uses up either makes the others' calls cost more, and nothing else.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use sealane_runtime::Buffer;
use sealane_transport::shm::{CallList, CallListBuf, SmallCall};
use sealane_transport::{Handle, Tensor};

use super::client::name;
use crate::limits::{LISTED_CALLS_MAX, LISTED_CALLS_PER_TURN, LISTED_TIME_MAX, LISTS_MAX};
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
    /// Clients whose calls the node could not take in, and the panics.
    failed: Vec<(Handle, Box<dyn Any + Send>)>,
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
        self.waiting.front().map(|list| list.common.since + LISTED_TIME_MAX)
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

    /// Matches a list of recvs with as many sends as were [found](Self::find) for it, which the caller tells; since when it has waited.
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
            let Some(list) = self.waiting.remove(index) else { break };
            let (common, tickets) = (list.common, &mut self.tickets);
            self.calls -= list.rest().len();
            // It is not the turn of the client whose calls these are, or of no client.
            let entered = catch_unwind(AssertUnwindSafe(|| {
                list.rest().iter().for_each(|call| tickets.extend(enter_one(node, common, call)));
            }));
            self.failed.extend(entered.err().map(|panic| (common.client, panic)));
            self.reuse(list.calls);
        }
    }

    /// Enters the calls of lists that have waited long enough; returns how many.
    #[inline]
    pub(super) fn enter_old(&mut self, node: &mut Node, now: Instant) -> usize {
        let calls = self.calls;
        while self.due().is_some_and(|due| due <= now) && calls - self.calls < LISTED_CALLS_PER_TURN {
            let mut is_first = true;
            self.enter(node, |_| std::mem::take(&mut is_first));
        }
        calls - self.calls
    }

    /// The next client whose calls the node could not take in, and the panic.
    pub(super) fn next_failed(&mut self) -> Option<(Handle, Box<dyn Any + Send>)> {
        self.failed.pop()
    }

    /// The next recv that is the node's now, and its ticket.
    #[inline]
    pub(super) fn next_ticket(&mut self) -> Option<(ClientCall, Ticket)> {
        self.tickets.pop()
    }

    /// Takes the tickets of a client out of those after the first `looked_at`; returns how many are left, all of others.
    #[inline]
    pub(super) fn take_tickets_of(
        &mut self,
        client: Handle,
        looked_at: usize,
        mut each: impl FnMut(ClientCall, Ticket),
    ) -> usize {
        self.tickets.extract_if(looked_at.., |(of, _)| of.client == client).for_each(|(of, ticket)| each(of, ticket));
        self.tickets.len()
    }
}

/// Enters a call that has waited in a list; returns the ticket of a recv that waits.
fn enter_one(node: &mut Node, common: Common, call: SmallCall<'_>) -> Option<(ClientCall, Ticket)> {
    let Common { client, are_recvs, of: Of { step, .. }, pair, deadline, since, .. } = common;
    let SmallCall { call, key, meta, bytes } = call;
    #[cfg(test)]
    super::tests::fall_into_trap_of_key(key);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn list(calls: u32) -> CallListBuf {
        let mut list = CallListBuf::default();
        assert!((0..calls).all(|call| list.push(SmallCall { call, key: "w", meta: &[], bytes: &[1; 8] })));
        list
    }

    #[test]
    fn tickets_that_were_looked_at_are_not_looked_at_again() {
        let mut listed = Listed::default();
        let [one, other] = [1, 2].map(|number| Handle::from_bits(1 << 32 | number));
        let ticket = Ticket::Peer { session: Handle::NONE, request: Handle::NONE };
        let add = |listed: &mut Listed, client| listed.tickets.push((ClientCall { client, call: name(7) }, ticket));
        let take = |listed: &mut Listed, looked_at| {
            let mut taken = 0;
            (listed.take_tickets_of(one, looked_at, |_, _| taken += 1), taken)
        };
        [one, other, other].iter().for_each(|client| add(&mut listed, *client));
        assert_eq!(take(&mut listed, 0), (2, 1));
        [other, one].iter().for_each(|client| add(&mut listed, *client));
        assert_eq!(take(&mut listed, 2), (3, 1));
        add(&mut listed, one);
        assert_eq!(take(&mut listed, 4), (4, 0), "nothing was entered since");
    }

    #[test]
    fn few_lists_wait_and_few_calls_and_those_that_are_matched_make_room() {
        let now = Instant::now();
        let of = Of { producer_pair: 1, step: 3 };
        let common =
            |are_recvs| Common { client: Handle::NONE, peer: 0, are_recvs, of, pair: 1, deadline: now, since: now };
        for (calls, most) in [(2, LISTS_MAX), (128, LISTED_CALLS_MAX / 128)] {
            let (mut listed, list) = (Listed::default(), list(calls));
            let calls = calls as usize;
            for waiting in 0..most {
                assert!(listed.has_room_for(calls), "{waiting} lists of {calls}");
                listed.wait(common(waiting % 2 == 0), list.as_list());
            }
            assert!(!listed.has_room_for(calls));
            assert_eq!(listed.due(), Some(now + LISTED_TIME_MAX));
            // Of the first list of recvs, then of the first of sends.
            let (first, rest) = list.as_list().split_at(1);
            for part in [first, rest, first, rest] {
                let are_recvs = listed.waiting[0].common.are_recvs;
                assert_eq!(listed.find(are_recvs, of, &part), Some((0, part.len())));
                match are_recvs {
                    true => _ = listed.take_recvs(0, part),
                    false => _ = listed.take_sends(0, part, (Handle::NONE, 0)),
                }
            }
            let left = listed.waiting.iter().map(|list| list.rest().len()).sum::<usize>();
            assert_eq!((listed.calls, listed.matched.len()), (left, 4));
            assert!(listed.has_room_for(calls));
        }
    }
}
