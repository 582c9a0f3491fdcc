//! What a pull may report, and when.
//!
//! - A pull ends once, by its deadline (and the lateness of a turn), with its pull buffer: each place holds a tensor, or an error
//!   that what happened explains.
//! - A tensor is one that its task has published under that key, to the last byte, with the version that it was published
//!   with. It is as new as was asked, it lay in its store at some time while the pull was in progress, and it is no older than
//!   what the plan brought before from the same process.
//! - Tensors of the same length land in the same memory, pull after pull, unless one failed or was given up between them;
//!   memory that the task brings is used if the tensor fits.
//! - When nothing goes wrong, a tensor that lies in the store long enough comes.
//! - A pull that is given up returns its pull buffer and reports nothing; so do the pulls of a plan that is closed. Pulling a closed
//!   plan is refused.

use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sealane_fusion::{Code, Error, PullBuffer};
use sealane_transport::lane::{lane, lane_by, shard_of};

use super::{Ear, Place, Plan, Pull};
use crate::simulation::climate::{LATENESS_MAX, Weather};
use crate::simulation::run::Simulation;
use crate::simulation::workload;

/// When nothing goes wrong, a tensor that lies in the store for this long while a pull waits must come.
const PULL_TIME: Duration = Duration::from_millis(500);

impl Simulation {
    /// Collects the outcomes of a host's pulls.
    pub(in crate::simulation) fn look_at_pulls(&mut self, host: usize) -> Result<(), String> {
        let context = Context::from_waker(Waker::noop());
        let numbers: Vec<u64> = self.plans.open.keys().copied().collect();
        for number in numbers {
            let pull = &self.plans.open[&number];
            let Some(opened) = &self.plans.plans[&pull.plan].open else { continue };
            if opened.host != host {
                continue;
            }
            let pull_buffer = match &pull.ear {
                Ear::Cell(cell) => match self.hosts[host].seats[opened.shard].node.poll_pull(*cell, context.waker()) {
                    Poll::Ready(pull_buffer) => pull_buffer,
                    Poll::Pending => continue,
                },
                Ear::Channel(receiver) => match receiver.try_recv() {
                    Ok(Ok(pull_buffer)) => pull_buffer,
                    Ok(Err(error)) => return Err(format!("pull {number} failed as a whole: {error}")),
                    Err(oneshot::TryRecvError::Empty) => continue,
                    Err(oneshot::TryRecvError::Disconnected) => {
                        return Err(format!("pull {number} was forgotten without a word"));
                    }
                },
            };
            let pull = self.plans.open.remove(&number).expect("just looked at");
            self.pull_ended(number, &pull, pull_buffer)
                .map_err(|what| format!("pull {number} of plan {}: {what}", pull.plan))?;
        }
        Ok(())
    }

    fn pull_ended(&mut self, number: u64, pull: &Pull, pull_buffer: PullBuffer) -> Result<(), String> {
        let now = self.now;
        if now > pull.deadline + LATENESS_MAX {
            return Err(format!("it ended {:?} after its deadline", now - pull.deadline));
        }
        let count = self.plans.plans[&pull.plan].keys.len();
        if pull_buffer.len() != count {
            return Err(format!("its pull_buffer has {} places, the plan {count} keys", pull_buffer.len()));
        }
        let mut failed = 0;
        for index in 0..count {
            match pull_buffer.get(index) {
                Ok(_) if pull.refused => return Err("it brought a tensor though its plan was closed".into()),
                Ok(_) => self.pulled(pull, index, &pull_buffer).map_err(|what| format!("tensor {index}: {what}"))?,
                Err(error) => {
                    failed += 1;
                    let plan = &self.plans.plans[&pull.plan];
                    self.trace.note(now, format_args!("pull {number} fails at {index}: {error}"));
                    if let Some(reason) = self.unexplained_pull(pull, plan, index, &error) {
                        return Err(format!("tensor {index} was told '{error}', but {reason}"));
                    }
                }
            }
        }
        self.trace.note(now, format_args!("pull {number} ends: {} came, {failed} did not", count - failed));
        self.plans.pulled += count - failed;
        self.plans.failed += failed;
        let places = || (0..count).filter_map(|index| pull_buffer.get(index).ok());
        let memory = places().map(|tensor| (tensor.bytes().as_ptr() as usize, tensor.bytes().len()));
        let memory = if failed == 0 { memory.collect() } else { Vec::new() };
        let known = self.plans.plans.get_mut(&pull.plan).expect("just looked at");
        if let Some(opened) = &mut known.open
            && opened.pull_buffer.is_none()
            && !known.closed
        {
            (opened.pull_buffer, opened.memory) = (Some(pull_buffer), memory);
        }
        Ok(())
    }

    fn pulled(&mut self, pull: &Pull, index: usize, pull_buffer: &PullBuffer) -> Result<(), String> {
        let (now, version) = (self.now, pull_buffer.version(index));
        let tensor = pull_buffer.get(index).expect("the caller looked at it");
        let plan = &self.plans.plans[&pull.plan];
        let number = workload::number_of(tensor).filter(|&number| number < self.published.all.len());
        let Some(number) = number else { return Err("nobody published it".into()) };
        let from = &self.published.all[number];
        if (from.task, from.key) != (plan.producer, plan.keys[index]) {
            return Err(format!("it is of task {} key {}", from.task, from.key));
        }
        let seed = workload::seed_of_published(from.task, from.key, from.version);
        if !workload::is_of(tensor, seed, number, from.bytes) {
            return Err(format!("publication {number} came corrupted"));
        }
        if version != from.version || version < pull.min_version {
            let least = pull.min_version;
            return Err(format!(
                "publication {number} of version {} came as {version}, asked was {least}",
                from.version
            ));
        }
        if !self.published.lay_within(number, pull.issued, now) {
            return Err(format!("publication {number} came, and was in no store since the pull was asked"));
        }
        if let Some(seen) = &plan.seen[index]
            && seen.process == from.process
            && seen.when <= pull.issued
            && seen.version > version
        {
            return Err(format!("version {version} came after version {}", seen.version));
        }
        let place = (tensor.bytes().as_ptr() as usize, tensor.bytes().len());
        // A pull that was sent again may first have brought a tensor of another length.
        let alike = place.1 > 0 && self.published.are_alike(number, pull.issued, now);
        if let Some(&before) = pull.memory.get(index)
            && alike
            && before.1 == place.1
            && before.0 != place.0
        {
            return Err("it lies elsewhere than the one before it, which had the same length".into());
        }
        if let Some((at, room)) = pull.brought
            && index == 0
            && alike
            && place.1 <= room
            && place.0 != at
        {
            return Err("it lies elsewhere than in the memory that was brought for it".into());
        }
        let place = Place { process: from.process, version, when: now };
        let seen = &mut self.plans.plans.get_mut(&pull.plan).expect("just looked at").seen[index];
        *seen = Some(place);
        Ok(())
    }

    /// Why nothing that happened explains the error; `None` if something does.
    fn unexplained_pull(&self, pull: &Pull, plan: &Plan, index: usize, error: &Error) -> Option<&'static str> {
        if pull.refused {
            return (error.code() != Code::InvalidArgument).then_some("its plan was closed");
        }
        let explained = match error.code() {
            Code::DeadlineExceeded => self.now >= pull.deadline,
            Code::Unavailable => self.climate.weather != Weather::Calm,
            Code::ResourceExhausted => self.climate.scarce,
            Code::NotFound => self.is_news(plan.producer, plan.consumer),
            Code::PermissionDenied => self.was_denied(plan.producer, plan.consumer),
            _ => false,
        };
        if !explained {
            return Some("nothing that happened explains it");
        }
        let undisturbed = self.climate.weather == Weather::Calm
            && !self.climate.scarce
            && !self.is_newcomer(plan.producer)
            && !self.is_newcomer(plan.consumer);
        let (producer, consumer) = (self.task_name(plan.producer), self.task_name(plan.consumer));
        let here = plan.open.as_ref().map_or(0, |opened| opened.shard);
        let (there, shards) = (self.host_of(plan.producer), |host: usize| self.hosts[host].seats.len());
        let lane = lane_by(lane(producer.as_str(), consumer.as_str()), here, shards(self.host_of(plan.consumer)));
        let store = if there == self.host_of(plan.consumer) { here } else { shard_of(lane, shards(there)) };
        // Where maps grow, links are replaced and a pull starts over: what had come no longer counts.
        let there = self.published.lay_long_enough(
            (plan.producer, plan.keys[index], store),
            pull.min_version,
            (pull.issued, pull.deadline),
            PULL_TIME,
            self.climate.grows,
        );
        (undisturbed && there).then_some("it was published, and nothing went wrong")
    }
}
