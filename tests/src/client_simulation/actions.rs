//! The random actions of a run, one after the other.

use std::time::Duration;

use rand::Rng;
use sealane::{Buffer, RecvOptions, SendOptions, Tensor};

use super::ledger::{Call, KEYS, Recv, Send, Spot, tensor};
use super::world::World;

/// Actions of one run.
pub(super) const ACTIONS: usize = 400;
/// A new step begins every so many actions.
const ACTIONS_PER_STEP: usize = 50;
/// Number of consecutive steps that calls are drawn from at any time.
const STEPS: i64 = 3;
const BYTES_MAX: usize = 40 << 10;
/// The timeout of calls that name none, in milliseconds; clients are configured with it.
const TIMEOUT: u64 = 60_000;
/// Records that a shard may leave unread: far fewer than fill a ring, since a caller would wait for a full one.
const UNREAD_MAX: usize = 40;
/// Received tensors that are kept for a while before they are dropped.
const KEPT_MAX: usize = 3;

impl World {
    pub(super) fn act(&mut self) -> Result<(), String> {
        self.actions += 1;
        let seat = self.random.random_range(0..self.seats.len());
        let host = self.seats[seat].host;
        if self.seats[seat].unread > UNREAD_MAX {
            self.turn(host)?;
        }
        while self.kept.len() > KEPT_MAX {
            let index = self.random.random_range(0..self.kept.len());
            self.kept.swap_remove(index);
        }
        match self.random.random_range(0..100) {
            0..22 => self.send(seat, 1),
            22..25 => self.send(seat, 4),
            25..46 => self.recv(seat, 1),
            46..49 => self.recv(seat, 4),
            49..53 => self.cancel(),
            53..55 => self.stop_caring(),
            55..63 => self.look(Some(seat))?,
            63..73 => self.drive(seat)?,
            73..87 => self.turn(host)?,
            87..92 => {
                let milliseconds = [1, 3, 10, 40, 300][self.random.random_range(0..5)];
                self.pass(milliseconds);
            }
            92..95 => {
                let peer = self.random.random_range(0..self.seats.len());
                self.open_lane(seat, peer)?;
                if self.random.random_bool(0.7) {
                    self.open_lane(peer, seat)?;
                }
            }
            95 if self.random.random_bool(0.5) => {
                let index = self.random.random_range(0..3);
                self.end_lane(index);
            }
            96 => self.end_step(seat)?,
            97 => self.live_or_die(seat)?,
            _ => self.kept.clear(),
        }
        Ok(())
    }

    fn draw_step(&mut self) -> i64 {
        (self.actions / ACTIONS_PER_STEP) as i64 + self.random.random_range(0..STEPS)
    }

    /// Draws the spot of a call, preferably one where a matching call waits.
    fn draw_spot(&mut self, is_send: bool, seat: usize) -> Spot {
        let is_own = |spot: &Spot| if is_send { spot.from == seat } else { spot.to == seat };
        let waiting: Vec<Spot> = match is_send {
            true => self.ledger.open_recvs.iter().map(|recv| self.ledger.recvs[*recv].call.spot).collect(),
            false => self.ledger.open_sends.iter().map(|send| self.ledger.sends[*send].call.spot).collect(),
        };
        let waiting: Vec<Spot> = waiting.into_iter().filter(is_own).collect();
        if !waiting.is_empty() && self.random.random_bool(0.7) {
            return waiting[self.random.random_range(0..waiting.len())];
        }
        let peer = (seat + self.random.random_range(1..self.seats.len())) % self.seats.len();
        let (from, to) = if is_send { (seat, peer) } else { (peer, seat) };
        Spot { from, to, step: self.draw_step(), key: self.random.random_range(0..KEYS) }
    }

    fn call(&mut self, spot: Spot, timeout: Option<u64>) -> Call {
        let lives = [spot.from, spot.to].map(|seat| self.seats[seat].life);
        let due = self.now + timeout.unwrap_or(TIMEOUT);
        Call { spot, began: self.ledger.event(), due, lives, ended: None }
    }

    fn draw_timeout(&mut self) -> Option<u64> {
        self.random.random_bool(0.08).then(|| self.random.random_range(1..100))
    }

    fn draw_bytes(&mut self) -> usize {
        match self.random.random_range(0..20) {
            0 => 0,
            1..10 => self.random.random_range(8..=64),
            10..14 => self.random.random_range(65..=512),
            14..18 => self.random.random_range(513..=4096),
            _ => self.random.random_range(4097..=BYTES_MAX),
        }
    }

    /// Memory from the task's arena, or from the heap if the arena is full or not wanted.
    fn memory(&mut self, seat: usize, bytes: usize) -> Buffer {
        let is_arena = self.random.random_bool(0.4);
        let client = self.seats[seat].client.as_ref().filter(|_| is_arena);
        client.and_then(|client| client.task.alloc(bytes).ok()).unwrap_or_else(|| Buffer::from_vec(vec![0; bytes]))
    }

    /// Sends tensors: in one call for many where they belong to one step.
    fn send(&mut self, seat: usize, at_most: usize) {
        if self.seats[seat].client.is_none() {
            return;
        }
        let first = self.draw_spot(true, seat);
        let timeout = self.draw_timeout();
        let mut tensors: Vec<(&str, Tensor)> = Vec::new();
        for index in 0..at_most {
            let spot = Spot { key: (first.key + index) % KEYS, ..first };
            let (call, number) = (self.call(spot, timeout), self.ledger.sends.len());
            let bytes = self.draw_bytes();
            let memory = self.memory(seat, bytes);
            tensors.push((spot.key(), tensor(number, memory)));
            let (from, to) = (self.seats[spot.from].name, self.seats[spot.to].name);
            let step = spot.step;
            self.note(format_args!("send {number}: {from} to {to}, step {step}, '{}', {bytes} bytes", spot.key()));
            self.ledger.open_sends.push(number);
            self.ledger.sends.push(Send { call, bytes, delivered: None, sending: None });
        }
        let (to, step) = (self.seats[first.to].name, first.step);
        let options = SendOptions { timeout: timeout.map(Duration::from_millis) };
        let Some(client) = &self.seats[seat].client else { return };
        let sendings = match tensors.len() {
            1 => tensors
                .into_iter()
                .map(|(key, tensor)| {
                    client.task.send_with(to, step, key, tensor, SendOptions { timeout: options.timeout })
                })
                .collect(),
            _ => client.task.send_all_with(to, step, tensors, options),
        };
        let sends = self.ledger.sends.iter_mut().rev().zip(sendings.into_iter().rev());
        sends.for_each(|(send, sending)| send.sending = Some(sending));
        self.seats[seat].unread += at_most;
    }

    /// Receives tensors, likewise.
    fn recv(&mut self, seat: usize, at_most: usize) {
        if self.seats[seat].client.is_none() {
            return;
        }
        let first = self.draw_spot(false, seat);
        let mut wanted = Vec::new();
        for index in 0..at_most {
            let spot = Spot { key: (first.key + index) % KEYS, ..first };
            let timeout = self.draw_timeout();
            let room = [None, None, Some(BYTES_MAX), Some(512)][self.random.random_range(0..4)];
            let destination = room.map(|room| self.memory(seat, room).into());
            let fail_if_gone = self.random.random_bool(0.1);
            let options = RecvOptions { timeout: timeout.map(Duration::from_millis), destination, fail_if_gone };
            wanted.push((spot.key(), options));
            self.enter_recv(spot, timeout, (fail_if_gone, room));
        }
        let (from, step) = (self.seats[first.from].name, first.step);
        let Some(client) = &self.seats[seat].client else { return };
        let receivings = match wanted.len() {
            1 => wanted.into_iter().map(|(key, options)| client.task.recv_with(from, step, key, options)).collect(),
            _ => client.task.recv_all(from, step, wanted),
        };
        let recvs = self.ledger.recvs.iter_mut().rev().zip(receivings.into_iter().rev());
        recvs.for_each(|(recv, receiving)| recv.receiving = Some(receiving));
        self.seats[seat].unread += at_most;
    }

    fn enter_recv(&mut self, spot: Spot, timeout: Option<u64>, (fails_if_gone, room): (bool, Option<usize>)) {
        let (call, number) = (self.call(spot, timeout), self.ledger.recvs.len());
        let (from, to) = (self.seats[spot.from].name, self.seats[spot.to].name);
        let step = spot.step;
        self.note(format_args!("recv {number}: {to} from {from}, step {step}, '{}', room {room:?}", spot.key()));
        self.ledger.open_recvs.push(number);
        let is_narrow = room.is_some_and(|room| room < BYTES_MAX);
        self.ledger.recvs.push(Recv { call, fails_if_gone, is_narrow, receiving: None });
    }

    /// Makes a plain recv, which takes a tensor that has already come.
    pub(super) fn claim(&mut self, spot: Spot) -> usize {
        self.enter_recv(spot, None, (false, None));
        let number = self.ledger.recvs.len() - 1;
        let (from, to) = (self.seats[spot.from].name, spot.to);
        let client = self.seats[to].client.as_ref().expect("all are there");
        self.ledger.recvs[number].receiving = Some(client.task.recv(from, spot.step, spot.key()));
        number
    }

    /// Gives up an open recv.
    fn cancel(&mut self) {
        if !self.ledger.open_recvs.is_empty() {
            let index = self.random.random_range(0..self.ledger.open_recvs.len());
            self.cancel_at(index);
        }
    }

    pub(super) fn cancel_at(&mut self, index: usize) {
        let number = self.ledger.open_recvs.swap_remove(index);
        self.note(format_args!("recv {number} is given up"));
        let event = self.ledger.event();
        let recv = &mut self.ledger.recvs[number];
        recv.receiving = None;
        recv.call.ended = Some((event, super::ledger::End::Unknown));
        self.ledger.given_up.insert(recv.call.spot);
        self.report.cancelled += 1;
    }

    /// Stops waiting for an open send; the send itself goes on.
    fn stop_caring(&mut self) {
        if !self.ledger.open_sends.is_empty() {
            let index = self.random.random_range(0..self.ledger.open_sends.len());
            let number = self.ledger.open_sends.swap_remove(index);
            self.note(format_args!("nobody waits for send {number} any more"));
            self.ledger.sends[number].sending = None;
        }
    }

    fn end_step(&mut self, seat: usize) -> Result<(), String> {
        let (step, aborts) = (self.draw_step(), self.random.random_bool(0.6));
        self.end_step_of(seat, step, aborts)
    }

    pub(super) fn end_step_of(&mut self, seat: usize, step: i64, aborts: bool) -> Result<(), String> {
        let Some(client) = &self.seats[seat].client else { return Ok(()) };
        let ended = if aborts { client.task.abort(step, "it diverged") } else { client.task.cleanup(step) };
        let name = self.seats[seat].name;
        self.note(format_args!("{name} {} step {step}", if aborts { "aborts" } else { "cleans up" }));
        ended.map_err(|error| format!("{name} could not end step {step}: {error}"))?;
        self.ledger.has_ended(seat, step);
        let aborted = &mut self.seats[seat].aborted;
        if aborts {
            aborted.insert(step);
        } else {
            aborted.remove(&step);
        }
        self.seats[seat].unread += 1;
        Ok(())
    }

    /// Attaches a client if there is none; kills the one there is now and then. If nothing else goes on meanwhile, every recv that waits
    /// for it must hear.
    fn live_or_die(&mut self, seat: usize) -> Result<(), String> {
        if self.seats[seat].client.is_none() {
            return self.attach(seat);
        }
        if self.random.random_bool(0.7) {
            return Ok(());
        }
        let is_quiet = self.random.random_bool(0.5);
        if is_quiet {
            self.rounds(30)?;
        }
        let waits = |recv: &usize| self.ledger.recvs[*recv].call.spot.from == seat;
        let waiting: Vec<usize> = self.ledger.open_recvs.iter().copied().filter(waits).collect();
        self.die(seat)?;
        if is_quiet {
            self.rounds(30)?;
            let left = waiting.iter().find(|recv| self.ledger.open_recvs.contains(recv));
            if let Some(left) = left {
                return Err(format!("recv {left} still waits for a task that has gone"));
            }
        }
        Ok(())
    }
}
