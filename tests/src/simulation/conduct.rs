//! Carries out what tasks do, and records it in the ledger.

use std::time::Duration;

use sealane_fusion::node::{Node, RecvRequest, RecvWaiter, SendWaiter};
use sealane_fusion::{Buffer, Code, Error, Tensor};

use super::fused::Fusing;
use super::ledger::{End, Era, Recv, Send};
use super::run::Simulation;
use super::workload::{self, Deed, Spot};

impl Simulation {
    pub(super) fn conduct(&mut self, deed: Deed) -> Result<(), String> {
        match deed {
            Deed::Send { at, bytes, timeout } => self.send(at, bytes, timeout).map(drop),
            Deed::SendMany { tensors, timeout } => self.send_many(tensors, timeout),
            Deed::Recv { at, room, timeout } => self.recv(at, room, timeout).map(drop),
            Deed::Cancel(at) => self.cancel(at),
            Deed::Deafen(at) => {
                if let Some(number) = self.ledger.open_recv_of(at) {
                    self.trace.note(self.now, format_args!("nobody listens to recv {number}"));
                    self.ledger.end_recv(number, self.now, End::Deaf);
                }
                Ok(())
            }
            Deed::Abort { task, step } => {
                let host = self.host_of(task);
                self.trace.note(self.now, format_args!("task {task} aborts step {step}"));
                self.on_all_shards(host, task, |node, task| node.abort(task, step, "the loss is not a number"), step)?;
                let waits = |&recv: &usize| {
                    let at = self.ledger.recvs[recv].at;
                    (at.consumer, at.step) == (task, step)
                };
                match self.ledger.open_recvs[host].iter().copied().find(waits) {
                    Some(recv) => Err(format!("recv {recv} waits on although its step was aborted")),
                    None => Ok(()),
                }
            }
            Deed::Cleanup { task, step } => {
                let host = self.host_of(task);
                self.trace.note(self.now, format_args!("task {task} cleans step {step} up"));
                if self.hosts[host].runs() {
                    self.ledger.cleaned.entry((task, step)).or_default().push(self.now);
                }
                self.on_all_shards(host, task, |node, task| node.cleanup(task, step), step)
            }
            Deed::Consume => {
                self.ledger.held.clear();
                Ok(())
            }
            Deed::Fuse { batch, producer, consumer, step, keys, rooms, told, timeout } => {
                self.fuse(Fusing { batch, producer, consumer, step, keys, rooms, told, timeout })
            }
            Deed::GiveUpFused { batch } => self.give_up_fused(batch),
            Deed::Publish { task, keys, rise, bytes } => {
                keys.into_iter().try_for_each(|key| self.publish(task, key, rise, bytes))
            }
            Deed::Withdraw { task, key } => self.withdraw(task, key),
            Deed::Open { plan, producer, consumer, keys } => {
                self.name_plan(plan, producer, consumer, keys);
                self.open_plan(plan)
            }
            Deed::Pull { plan, ahead, room, timeout } => self.pull(plan, ahead, room, timeout).map(drop),
            Deed::GiveUpPull { plan } => self.give_up_pull(plan),
            Deed::DeafenPull { plan } => {
                self.deafen_pull(plan);
                Ok(())
            }
            Deed::Close { plan } => self.close_plan(plan),
            Deed::Reopen { plan, keys } => self.reopen_plan(plan, keys),
            Deed::OpenQueue { id, options } => self.open_queue(id, options),
            Deed::Take { id, most } => self.take(id, most),
            Deed::CloseQueue(id) => self.close_queue(id),
            Deed::PublishTable { task, key } => self.publish_table(task, key),
            Deed::WithdrawTable { task, key } => self.withdraw_table(task, key),
            Deed::WriteRows { task, key, rows } => {
                self.write_rows(task, key, &rows);
                Ok(())
            }
            Deed::BeginRow { task, key, row } => {
                self.begin_row(task, key, row);
                Ok(())
            }
            Deed::EndRow { task, key } => {
                self.end_row(task, key);
                Ok(())
            }
            Deed::PullRows { ask, producer, consumer, tables, ahead, timeout } => {
                self.pull_rows(ask, (producer, consumer), tables, ahead, timeout).map(drop)
            }
            Deed::GiveUpRows { ask } => self.give_up_rows(ask),
            Deed::DeafenRows { ask } => {
                self.deafen_rows(ask);
                Ok(())
            }
            Deed::Push { pusher, to, lengths, timeout } => self.push(pusher, to, &lengths, timeout).map(drop),
        }
    }

    fn on_all_shards(
        &mut self,
        host: usize,
        task: usize,
        mut act: impl FnMut(&mut sealane_fusion::node::Node, u16),
        step: i64,
    ) -> Result<(), String> {
        if !self.serves(host, task) {
            return Ok(());
        }
        self.ledger.touched.insert((task, step));
        for shard in 0..self.hosts[host].seats.len() {
            let place = self.place_of(task);
            act(&mut self.hosts[host].seats[shard].node, place);
            self.settle(host, shard)?;
        }
        Ok(())
    }

    /// The shard that serves a pair on a host, and the pair's number there; `None` while the host is down or does not know one of the two
    /// tasks.
    pub(super) fn seat_of(&mut self, host: usize, local: usize, peer: usize) -> Result<Option<(usize, u32)>, String> {
        self.seat_after(0, host, (local, peer), Node::pair)
    }

    /// As `seat_of`, for the shard `stripe` places after it, with the pair's number for pulls.
    pub(super) fn pulling_seat_of(
        &mut self,
        stripe: usize,
        host: usize,
        pair: (usize, usize),
    ) -> Result<Option<(usize, u32)>, String> {
        self.seat_after(stripe, host, pair, Node::pulling_pair)
    }

    fn seat_after(
        &mut self,
        stripe: usize,
        host: usize,
        (local, peer): (usize, usize),
        number: fn(&mut Node, u16, &str) -> Result<u32, Error>,
    ) -> Result<Option<(usize, u32)>, String> {
        if !self.hosts[host].runs() {
            return Ok(None);
        }
        let unknown = !self.knows(host, local) || !self.knows(host, peer);
        let (local, peer) = (self.task_name(local), self.task_name(peer));
        let shard = (self.hosts[host].shard_for(&local, &peer) + stripe) % self.hosts[host].seats.len();
        let node = &mut self.hosts[host].seats[shard].node;
        let pair = node.local_task(local.as_str()).and_then(|local| number(node, local, peer.as_str()));
        match pair {
            Ok(_) if unknown => Err(format!("host {host} serves a pair that its map does not have")),
            Ok(pair) => Ok(Some((shard, pair))),
            Err(error) if unknown && error.code() == Code::NotFound => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a tensor; returns the send's number, or `None` if the host is down or has no memory for the tensor.
    pub(super) fn send(&mut self, at: Spot, bytes: usize, timeout: Duration) -> Result<Option<usize>, String> {
        let host = self.host_of(at.producer);
        let Some((shard, pair)) = self.seat_of(host, at.producer, at.consumer)? else { return Ok(None) };
        let Some((number, tensor)) = self.enter_send((host, shard), at, bytes, timeout)? else { return Ok(None) };
        let (sender, receiver) = oneshot::channel();
        self.ledger.sends[number].receiver = Some(receiver);
        let until = self.base + self.now + timeout;
        let node = &mut self.hosts[host].seats[shard].node;
        node.send(pair, at.step, &key(at.key), tensor, until, SendWaiter::Channel(sender));
        self.settle(host, shard)?;
        Ok(Some(number))
    }

    /// Makes a tensor to be sent from a shard and records it in the ledger; `None` if there is no memory.
    pub(super) fn enter_send(
        &mut self,
        (host, shard): (usize, usize),
        at: Spot,
        bytes: usize,
        timeout: Duration,
    ) -> Result<Option<(usize, Tensor)>, String> {
        let node = &mut self.hosts[host].seats[shard].node;
        let Ok(mut buffer) = node.send_slab().allocate(bytes) else { return Ok(None) };
        let era = Era { process: self.hosts[host].process, ..self.era(at) };
        let (issued, deadline) = (self.now, self.now + timeout);
        let (receiver, ended, deliveries) = (None, None, Vec::new());
        let number = self.ledger.add_send(Send { at, bytes, host, era, issued, deadline, receiver, ended, deliveries });
        self.trace.note(self.now, format_args!("send {number} to {at:?}: {bytes} bytes, for {timeout:?}"));
        workload::fill(workload::seed_of(at, number), number, &mut buffer);
        let tensor = Tensor::new(workload::meta(number, bytes), buffer).map_err(|error| error.to_string())?;
        Ok(Some((number, tensor)))
    }

    /// Receives a tensor; returns the recv's number, or `None` if the host is down.
    pub(super) fn recv(&mut self, at: Spot, room: Option<usize>, timeout: Duration) -> Result<Option<usize>, String> {
        let host = self.host_of(at.consumer);
        let Some((shard, pair)) = self.seat_of(host, at.consumer, at.producer)? else { return Ok(None) };
        let (sender, receiver) = oneshot::channel();
        let destination = room.map(|room| Buffer::from_vec(vec![0; room]));
        let (issued, deadline) = (self.now, self.now + timeout);
        let number = self.ledger.add_recv(Recv {
            at,
            host,
            process: self.hosts[host].process,
            shard,
            issued,
            deadline,
            destination: destination.as_ref().map(|memory| (memory.as_ptr() as usize, memory.len())),
            ticket: None,
            receiver: Some(receiver),
            batch: None,
            era: self.era(at),
            ended: None,
        });
        self.trace.note(issued, format_args!("recv {number} of {at:?} for {timeout:?}, room {room:?}"));
        let (now, deadline, key) = (self.instant(), self.base + deadline, key(at.key));
        let waiter = RecvWaiter::Channel(sender);
        let request = RecvRequest {
            pair,
            step: at.step,
            key: &key,
            deadline,
            destination: destination.map(Into::into),
            waiter,
            fused: false,
            fail_if_gone: false,
        };
        let ticket = self.hosts[host].seats[shard].node.recv(now, request);
        self.ledger.recvs[number].ticket = ticket;
        self.settle(host, shard)?;
        Ok(Some(number))
    }

    fn cancel(&mut self, at: Spot) -> Result<(), String> {
        let Some(number) = self.ledger.open_recv_of(at) else { return Ok(()) };
        let recv = &self.ledger.recvs[number];
        let (host, shard) = (recv.host, recv.shard);
        debug_assert_eq!(recv.process, self.hosts[host].process, "recvs end with their process");
        let Some(ticket) = recv.ticket else { return Err(format!("recv {number} stands without a ticket")) };
        self.trace.note(self.now, format_args!("recv {number} is given up"));
        self.hosts[host].seats[shard].node.cancel(ticket);
        self.ledger.end_recv(number, self.now, End::GivenUp);
        self.settle(host, shard)
    }

    /// A process has ended, and its calls with it.
    pub(super) fn end_calls_of_process(&mut self, host: usize) {
        self.forget_batches_of(host);
        self.forget_groups_of(host);
        self.forget_plans_of(host);
        self.forget_pushes_of(host);
        self.forget_published_of(host);
        self.forget_tables_of(host);
        for number in std::mem::take(&mut self.ledger.open_recvs[host]) {
            self.ledger.end_recv(number, self.now, End::Lost);
        }
        for number in std::mem::take(&mut self.ledger.open_sends[host]) {
            self.ledger.end_send(number, self.now, End::Lost);
        }
    }
}

pub(super) fn key(number: u32) -> String {
    format!("layer{number}/weights")
}
