//! What pushers and acceptors are promised.
//!
//! A tensor is accepted at most once, whatever happens, and in its pusher's order. A push that ends well was accepted, by this acceptor or
//! a later one, unless the accepting process ended after the push; one that fails may have been accepted. Every push ends by its deadline,
//! and what happened explains its error.

use sealane_fusion::{Accepted, Code, Error, SendOutcome};

use super::{Group, NEVER_FULL, QueueId};
use crate::simulation::climate::{LATENESS_MAX, Weather};
use crate::simulation::ledger::End;
use crate::simulation::run::{MEETING_TIME, Simulation};
use crate::simulation::workload;

/// Groups of at most so many tensors are taken within [`MEETING_TIME`] when nothing goes wrong.
const PROMPT_MAX: usize = 8;

impl Simulation {
    /// Checks tensors that came out of a queue.
    pub(super) fn accepted(&mut self, id: QueueId, items: Vec<Accepted>) -> Result<(), String> {
        let tensors_max = self.pushes.queues[&id].tensors_max;
        // Each stream has credit for at most half of the queue, and always for one tensor. Tensors that were not accepted before this queue
        // was opened are as many again on each shard.
        let widest = self.pushes.widest[&id];
        let under_way = self.climate.shards_max * widest + self.tasks() * (widest / 2).max(1);
        if items.len() > tensors_max + under_way {
            return Err(format!("{id:?} held {} tensors, {tensors_max} and {under_way} at most", items.len()));
        }
        for Accepted { from, tensor } in items {
            let number = workload::number_of(&tensor).filter(|&number| number < self.pushes.pushed.len());
            let Some(number) = number else { return Err(format!("{id:?} got a tensor that nobody pushed")) };
            self.trace.note(self.now, format_args!("{id:?} got tensor {number}"));
            let pushed = &mut self.pushes.pushed[number];
            let group = &self.pushes.groups[pushed.group];
            if group.to != id {
                return Err(format!("{id:?} got tensor {number}, which was pushed to {:?}", group.to));
            }
            if std::mem::replace(&mut pushed.accepted, true) {
                return Err(format!("tensor {number} was accepted twice"));
            }
            let (pusher, bytes) = (group.pusher, pushed.bytes);
            if !workload::is_of(&tensor, workload::seed_of_pushed(pusher, id, number), number, bytes) {
                return Err(format!("tensor {number} was corrupted"));
            }
            if *from != *self.task_name(pusher).as_str() {
                return Err(format!("tensor {number} of task {pusher} is said to be from {from}"));
            }
            if let Some(last) = self.pushes.last.insert((pusher, id), number)
                && last > number
            {
                return Err(format!("tensor {number} was accepted after {last}, which was pushed later"));
            }
            self.ledger.held.push(tensor);
        }
        Ok(())
    }

    /// Collects the outcomes of a host's pushes.
    pub(in crate::simulation) fn look_at_pushes(&mut self, host: usize) -> Result<(), String> {
        let mut ended = Vec::new();
        for &number in &self.pushes.open {
            let group = &self.pushes.groups[number];
            if group.host != host {
                continue;
            }
            match group.receiver.as_ref().map(|receiver| receiver.try_recv()) {
                Some(Ok(outcome)) => ended.push((number, outcome)),
                Some(Err(oneshot::TryRecvError::Empty)) => {}
                Some(Err(oneshot::TryRecvError::Disconnected)) | None => {
                    return Err(format!("push {number} was forgotten without a word"));
                }
            }
        }
        ended.into_iter().try_for_each(|(number, outcome)| self.push_ended(number, outcome))
    }

    fn push_ended(&mut self, number: usize, outcome: SendOutcome) -> Result<(), String> {
        let (now, group) = (self.now, &self.pushes.groups[number]);
        if now > group.deadline + LATENESS_MAX {
            return Err(format!("push {number} ended {:?} after its deadline", now - group.deadline));
        }
        let end = match outcome {
            Ok(()) => {
                self.trace.note(now, format_args!("push {number} was taken"));
                End::Ok
            }
            Err(error) => {
                self.trace.note(now, format_args!("push {number} failed: {error}"));
                if !self.explains(group, &error) {
                    return Err(format!("push {number} was told '{error}', but nothing that happened explains it"));
                }
                End::Err(error.code())
            }
        };
        self.pushes.end(number, now, end);
        Ok(())
    }

    fn explains(&self, group: &Group, error: &Error) -> bool {
        match error.code() {
            Code::DeadlineExceeded => self.now >= group.deadline && !self.should_be_taken(group),
            Code::Unavailable => self.climate.weather != Weather::Calm || !self.was_open_throughout(group),
            Code::ResourceExhausted => self.climate.scarce,
            Code::NotFound => self.is_news(group.pusher, group.to.task),
            Code::PermissionDenied => self.was_denied(group.pusher, group.to.task),
            _ => false,
        }
    }

    fn was_open_throughout(&self, group: &Group) -> bool {
        self.pushes.queues.get(&group.to).is_some_and(|open| open.since <= group.issued)
    }

    /// True if nothing went wrong, and the queue had room for long enough.
    fn should_be_taken(&self, group: &Group) -> bool {
        let disturbed = self.climate.weather != Weather::Calm
            || self.climate.scarce
            || self.is_newcomer(group.pusher)
            || self.is_newcomer(group.to.task);
        let Some(open) = self.pushes.queues.get(&group.to).filter(|_| !disturbed) else { return false };
        let roomy = open.tensors_max == NEVER_FULL && group.count <= PROMPT_MAX;
        roomy && open.since.max(group.issued) + MEETING_TIME < group.deadline
    }

    /// Checks that every push has ended, and every tensor that was taken has been accepted.
    pub(in crate::simulation) fn look_for_lost_pushes(&self) -> Result<(), String> {
        if let Some(number) = self.pushes.open.first() {
            return Err(format!("push {number} never ended"));
        }
        for (number, group) in self.pushes.groups.iter().enumerate() {
            let stopped = self.pushes.stopped.get(&self.host_of(group.to.task));
            let is_well = matches!(group.ended, Some((_, End::Ok)));
            if !is_well || stopped.is_some_and(|&stopped| stopped >= group.issued) {
                continue;
            }
            let of = group.first..group.first + group.count;
            if let Some(lost) = of.into_iter().find(|&tensor| !self.pushes.pushed[tensor].accepted) {
                let to = group.to;
                return Err(format!("push {number} to {to:?} ended well, but nobody got its tensor {lost}"));
            }
        }
        Ok(())
    }
}
