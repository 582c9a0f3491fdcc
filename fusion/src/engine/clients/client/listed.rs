//! A client's small calls that are made together: matched with another client's as lists, or made one by one. See the module of
//! [`Listed`].

use std::time::Instant;

use sealane_transport::shm::{CallList, CallListBuf, Record, SmallCall};

use super::answers::Answer;
use super::{Asked, Client, Misconduct, in_flight};
use crate::engine::clients::listed::{Common, Listed, Of};
use crate::limits::CLIENT_CALLS_MAX;
use crate::node::{ClientCall, Node, Ticket};

impl Client {
    /// Sends tensors to recvs that wait as lists, or lets them wait as one; returns those that are to be sent one by one.
    pub(super) fn send_listed<'s>(
        &mut self,
        node: &mut Node,
        now: Instant,
        to: Asked<'_>,
        mut sends: CallList<'s>,
        listed: &mut Listed,
    ) -> CallList<'s> {
        let Asked { peer, pair, step, deadline } = to;
        let Ok(pair) = *pair else { return sends };
        let of = Of { producer_pair: pair, step };
        let may = sends.len() > 1
            && self.under_way + sends.len() <= CLIENT_CALLS_MAX
            && node.may_send_listed(pair, step)
            // Else each hears of its own fault.
            && sends.iter().all(|SmallCall { meta, bytes, .. }| self.kinds.allows(meta, bytes));
        if !may {
            to.enter_listed(node, listed);
            return sends;
        }
        while !sends.is_empty()
            && let Some((list, count)) = listed.find(true, of, &sends)
        {
            let (first, rest) = sends.split_at(count);
            self.count_sent_listed(peer, first);
            let since = listed.take_recvs(list, first);
            node.count_listed((count as u32, first.bytes() as usize), since, now);
            self.sent.extend(first.numbers());
            sends = rest;
        }
        if sends.is_empty() {
            return sends;
        }
        let may_wait = sends.len() > 1 && !listed.has(true, of) && listed.has_room_for(sends.len());
        if !may_wait || node.knows_any_of((pair, step), sends.iter().map(|send| send.key)) {
            to.enter_listed(node, listed);
            return sends;
        }
        self.count_sent_listed(peer, sends);
        self.under_way += sends.len();
        let (client, since) = (self.handle, now);
        listed.wait(Common { client, peer, are_recvs: false, of, pair, deadline, since }, sends);
        CallList::default()
    }

    fn count_sent_listed(&mut self, peer: u16, sends: CallList<'_>) {
        let (count, bytes) = (sends.len() as u64, sends.bytes());
        self.counters.count_sent_together(count, bytes);
        self.traffic_of(peer).sent(count, bytes);
    }

    /// Gives recvs the tensors that wait as lists, or lets them wait as one; returns those that are to be entered one by one.
    pub(super) fn recv_listed<'s>(
        &mut self,
        node: &mut Node,
        now: Instant,
        from: Asked<'_>,
        mut recvs: CallList<'s>,
        listed: &mut Listed,
    ) -> Result<CallList<'s>, Misconduct> {
        let Asked { peer, pair, step, deadline } = from;
        let Ok(pair) = *pair else { return Ok(recvs) };
        let may = recvs.len() > 1 && self.under_way + recvs.len() <= CLIENT_CALLS_MAX;
        let Some(producer_pair) = node.may_recv_listed(pair, step).filter(|_| may) else {
            from.enter_listed(node, listed);
            return Ok(recvs);
        };
        let of = Of { producer_pair, step };
        while !recvs.is_empty()
            && let Some((list, count)) = listed.find(false, of, &recvs)
        {
            let (first, rest) = recvs.split_at(count);
            self.enter_recvs(peer, first)?;
            let (bytes, since) = listed.take_sends(list, first, (self.handle, peer));
            node.count_listed((count as u32, bytes as usize), now, since);
            recvs = rest;
        }
        if recvs.is_empty() {
            return Ok(recvs);
        }
        let may_wait = recvs.len() > 1 && !listed.has(false, of) && listed.has_room_for(recvs.len());
        if !may_wait || node.knows_any_of((producer_pair, step), recvs.iter().map(|recv| recv.key)) {
            from.enter_listed(node, listed);
            return Ok(recvs);
        }
        self.enter_recvs(peer, recvs)?;
        let (client, since) = (self.handle, now);
        listed.wait(Common { client, peer, are_recvs: true, of, pair, deadline, since }, recvs);
        Ok(CallList::default())
    }

    fn enter_recvs(&mut self, peer: u16, recvs: CallList<'_>) -> Result<(), Misconduct> {
        for call in recvs.numbers() {
            if !self.receiving.insert(call, peer, false) {
                return Err(in_flight(call));
            }
            self.under_way += 1;
        }
        Ok(())
    }

    /// Takes in that recvs were matched with sends as lists, to be reported to the client.
    pub(in crate::engine::clients) fn tell_listed(&mut self, peer: u16, arrived: CallListBuf, record: &mut Record) {
        let list = arrived.as_list();
        let (count, bytes) = (list.len() as u64, list.bytes());
        list.numbers().for_each(|call| _ = self.receiving.remove(call));
        self.under_way -= list.len();
        self.traffic_of(peer).received(count, bytes);
        self.counters.count_received(count, bytes);
        self.put(Answer::Arrived(arrived), record);
    }

    /// Takes in that sends which had waited as a list have succeeded, likewise.
    pub(in crate::engine::clients) fn sent_listed(&mut self, calls: &[u32]) {
        self.under_way -= calls.len();
        self.sent.extend_from_slice(calls);
    }

    /// Keeps the tickets of recvs that have waited as a list; the first `looked_at` are of others. Returns how many of others there are.
    #[inline]
    pub(super) fn note_tickets(&mut self, listed: &mut Listed, looked_at: usize) -> usize {
        listed.take_tickets_of(self.handle, looked_at, |of, ticket| self.note_ticket_of(of, ticket))
    }

    /// Keeps the ticket of a recv that has waited as one of a list.
    pub(in crate::engine::clients) fn note_ticket_of(&mut self, of: ClientCall, ticket: Ticket) {
        self.note_ticket(of.call.to_bits() as u32, Some(ticket));
    }
}

impl Asked<'_> {
    /// A call of one tensor, or of some, is made: lists that might concern it wait no longer.
    #[inline]
    pub(super) fn enter_listed(self, node: &mut Node, listed: &mut Listed) {
        if !listed.is_empty()
            && let Ok(pair) = *self.pair
        {
            let pairs = [Some(pair), node.mirror_of(pair)];
            listed.enter(node, |list| list.of.step == self.step && pairs.contains(&Some(list.pair)));
        }
    }
}
