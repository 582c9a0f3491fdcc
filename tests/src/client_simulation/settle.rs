//! The end of a run: every client is attached and does what is left to do. Then all calls that match have ended, nothing was lost, and once
//! all steps are over nothing is left.

use std::collections::BTreeSet;

use sealane_transport::shm::limits::INLINE_BYTES_MAX;

use super::ledger::{End, Spot};
use super::world::World;

/// Rounds that take longer than a send waits in a lane.
const ROUNDS: usize = 300;
/// Milliseconds of one round.
const ROUND: u64 = 2;

impl World {
    /// Lets time pass while shards and drivers take turns and calls end.
    pub(super) fn rounds(&mut self, rounds: usize) -> Result<(), String> {
        for _ in 0..rounds {
            self.pass(ROUND);
            (0..self.hosts.len()).try_for_each(|host| self.turn(host))?;
            (0..self.seats.len()).try_for_each(|seat| self.drive(seat))?;
            self.look(None)?;
            self.kept.clear();
        }
        Ok(())
    }

    pub(super) fn settle(&mut self) -> Result<(), String> {
        for seat in 0..self.seats.len() {
            if self.seats[seat].client.is_none() {
                self.attach(seat)?;
            }
        }
        self.note(format_args!("nothing new happens"));
        self.rounds(ROUNDS)?;
        self.check_partners()?;
        self.check_aborted()?;
        self.claim_all()?;
        self.end_all()?;
        self.report.by_lane = self.seats.iter().map(|seat| seat.came_before).sum();
        let came = |seat: &super::seats::Seat| seat.client.as_ref().map_or(0, |client| client.hands.came_by_lanes());
        self.report.by_lane += self.seats.iter().map(came).sum::<u64>();
        Ok(())
    }

    /// Checks that no send waits while a recv of its spot does.
    fn check_partners(&self) -> Result<(), String> {
        for &send in self.ledger.open_sends.iter().filter(|send| !self.may_wait_for_room(**send)) {
            let spot = self.ledger.sends[send].call.spot;
            let recv = self.ledger.open_recvs.iter().find(|recv| self.ledger.recvs[**recv].call.spot == spot);
            if let Some(recv) = recv {
                return Err(format!("send {send} and recv {recv} wait for each other: {spot:?}"));
            }
        }
        Ok(())
    }

    /// True if a send may have to wait in its process because sends that nobody receives fill its arena.
    fn may_wait_for_room(&self, number: usize) -> bool {
        let send = &self.ledger.sends[number];
        let client = self.seats[send.call.spot.from].client.as_ref();
        send.bytes > INLINE_BYTES_MAX && client.is_some_and(|client| client.hands.has_backlog())
    }

    /// Checks that a task that aborted a step has no call of its own waiting in it, and nobody waits to receive from it. (A send to it that
    /// arrives after word of the abort may wait until somebody asks for its tensor, which nobody does.)
    fn check_aborted(&self) -> Result<(), String> {
        let sends = self.ledger.open_sends.iter().filter(|send| !self.may_wait_for_room(**send));
        let sends = sends.map(|send| ("send", send, &self.ledger.sends[*send].call));
        let recvs = self.ledger.open_recvs.iter().map(|recv| ("recv", recv, &self.ledger.recvs[*recv].call));
        for (what, number, call) in sends.chain(recvs) {
            let Spot { from, to, step, .. } = call.spot;
            let has_aborted = |seat: usize| self.seats[seat].aborted.contains(&step);
            if has_aborted(from) || (what == "recv" && has_aborted(to)) {
                return Err(format!("{what} {number} has not heard that its step was aborted: {:?}", call.spot));
            }
        }
        Ok(())
    }

    /// Checks that every tensor that was sent well and not received yet goes to the next recv.
    fn claim_all(&mut self) -> Result<(), String> {
        let kept: Vec<usize> = (0..self.ledger.sends.len()).filter(|send| self.must_be_kept(*send)).collect();
        for &send in &kept {
            let spot = self.ledger.sends[send].call.spot;
            // A recv may wait beside a tensor that does not fit its memory.
            let waits = self.ledger.open_recvs.iter().find(|recv| {
                let recv = &self.ledger.recvs[**recv];
                recv.call.spot == spot && !recv.is_narrow
            });
            if let Some(recv) = waits {
                return Err(format!("send {send} ended well, and recv {recv} waits for it: {spot:?}"));
            }
            // Tensors of sends with no known outcome may come first.
            while self.ledger.sends[send].delivered.is_none() {
                let recv = self.claim(spot);
                self.rounds(10)?;
                if self.ledger.recvs[recv].call.ended.is_none_or(|(_, end)| end != End::Ok) {
                    return Err(format!("send {send} ended well, and no recv has its tensor or gets it: {spot:?}"));
                }
            }
        }
        Ok(())
    }

    /// True if a send's tensor must still be kept: it has arrived, and its step was not ended nor did its receiver go. (Where a recv was
    /// given up and the step cleaned up after that, the tensor may have come between the two as the shard heard of them.)
    fn must_be_kept(&self, number: usize) -> bool {
        let send = &self.ledger.sends[number];
        let is_sent = matches!(send.call.ended, Some((_, End::Ok))) && send.delivered.is_none();
        let is_there = self.seats[send.call.spot.to].life == send.call.lives[1];
        let is_given_up = self.ledger.given_up.contains(&send.call.spot);
        let since = if is_given_up { 0 } else { send.call.began };
        is_sent && is_there && !self.ledger.step_ended(send.call.spot, since)
    }

    /// Every task gives up its calls and cleans up; nothing may be left.
    fn end_all(&mut self) -> Result<(), String> {
        while !self.ledger.open_recvs.is_empty() {
            self.cancel_at(0);
        }
        self.rounds(20)?;
        let steps: BTreeSet<i64> = self.ledger.sends.iter().map(|send| send.call.spot.step).collect();
        for step in steps {
            for seat in 0..self.seats.len() {
                self.end_step_of(seat, step, false)?;
            }
            self.rounds(1)?;
        }
        self.rounds(ROUNDS)?;
        if let Some(send) = self.ledger.open_sends.first() {
            return Err(format!("send {send} goes on when its step was cleaned up"));
        }
        for seat in 0..self.seats.len() {
            self.check_nothing_left(seat)?;
        }
        for host in &self.hosts {
            let (node, counters) = (&host.clients.node, host.clients.node.counters());
            let left =
                [node.under_way() as u64, counters.pending_sends, counters.parked, host.clients.leaving() as u64];
            if left != [0; 4] {
                return Err(format!("a node has calls, pending_sends, requests, and clients that leave: {left:?}"));
            }
        }
        Ok(())
    }

    fn check_nothing_left(&self, seat: usize) -> Result<(), String> {
        let (at, client) = (&self.seats[seat], self.seats[seat].client.as_ref().expect("all are there"));
        let clients = &self.hosts[at.host].clients;
        let calls = (clients.under_way(client.handle), client.hands.calls());
        if calls != (0, 0) {
            return Err(format!("the shard and the library of {} have calls left: {calls:?}", at.name));
        }
        if !clients.has_whole_area(client.handle) {
            return Err(format!("something lies in the receive area of {}", at.name));
        }
        match client.task.alloc(at.arena_bytes as usize) {
            Ok(_) => Ok(()),
            Err(error) => Err(format!("something lies in the arena of {}: {error}", at.name)),
        }
    }
}
