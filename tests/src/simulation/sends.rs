//! Calls that send several tensors and end once. In the ledger, each tensor is a send of its own.
//!
//! If such a call ends well, every tensor was taken. If it fails, only its first error is known, and for each tensor it is unknown whether
//! it was taken.

use std::time::Duration;

use sealane_fusion::SendOutcome;
use sealane_fusion::node::SendWaiter;

use super::conduct::key;
use super::ledger::End;
use super::run::Simulation;
use super::workload::Spot;

struct Group {
    host: usize,
    outcome: oneshot::Receiver<SendOutcome>,
    /// Its sends in the ledger.
    sends: Vec<usize>,
}

/// Groups that have not ended.
#[derive(Default)]
pub(super) struct SendGroups(Vec<Group>);

impl Simulation {
    /// Sends tensors of one producer to one consumer in one step, given with their lengths, in one call.
    pub(super) fn send_many(&mut self, tensors: Vec<(Spot, usize)>, timeout: Duration) -> Result<(), String> {
        let Some(&(Spot { producer, consumer, step, .. }, _)) = tensors.first() else { return Ok(()) };
        let host = self.host_of(producer);
        let Some((shard, pair)) = self.seat_of(host, producer, consumer)? else { return Ok(()) };
        let (mut sends, mut given) = (Vec::new(), Vec::new());
        for (at, bytes) in tensors {
            if let Some((number, tensor)) = self.enter_send((host, shard), at, bytes, timeout)? {
                sends.push(number);
                given.push((key(at.key), tensor));
            }
        }
        self.trace.note(self.now, format_args!("sends {sends:?} are of one call"));
        let (sender, outcome) = oneshot::channel();
        let (until, waiter) = (self.base + self.now + timeout, SendWaiter::Channel(sender));
        self.hosts[host].seats[shard].node.send_many((pair, step), given.into_iter(), until, waiter);
        self.groups.0.push(Group { host, outcome, sends });
        self.settle(host, shard)
    }

    /// A process has ended; the ledger ends the sends.
    pub(super) fn forget_groups_of(&mut self, host: usize) {
        self.groups.0.retain(|group| group.host != host);
    }

    /// Collects the outcomes of a host's groups.
    pub(super) fn look_at_groups(&mut self, host: usize) -> Result<(), String> {
        let groups = std::mem::take(&mut self.groups.0);
        for group in groups {
            if group.host != host {
                self.groups.0.push(group);
                continue;
            }
            match group.outcome.try_recv() {
                Ok(Ok(())) => group.sends.iter().try_for_each(|&send| self.send_ended(send, Ok(())))?,
                Ok(Err(error)) => {
                    self.trace.note(self.now, format_args!("the call of sends {:?} failed: {error}", group.sends));
                    let explains = |&&send: &&usize| self.unexplained_send(send, &error).is_none();
                    if group.sends.iter().find(explains).is_none() {
                        return Err(format!("the call of sends {:?} was told '{error}' for none of them", group.sends));
                    }
                    group.sends.iter().for_each(|&send| self.ledger.end_send(send, self.now, End::Untold));
                }
                Err(oneshot::TryRecvError::Empty) => self.groups.0.push(group),
                Err(oneshot::TryRecvError::Disconnected) => {
                    return Err(format!("the call of sends {:?} was forgotten without a word", group.sends));
                }
            }
        }
        Ok(())
    }
}
