//! The plans of tasks and their pulls, as tasks open, pull and close them. What a pull may report is in `verdict.rs`.

mod verdict;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use sealane_fusion::node::{PullRequest, PullWaiter};
use sealane_fusion::{Buffer, Error, Keys, PullBuffer};
use sealane_transport::Handle;

use super::run::Simulation;
use super::workload;

/// The latest tensor in a place of a plan.
#[derive(Clone, Copy)]
struct Place {
    process: u32,
    version: i64,
    when: Duration,
}

/// A plan of a task; it is opened again when the task's process has restarted.
struct Plan {
    producer: usize,
    consumer: usize,
    keys: Vec<u32>,
    open: Option<Opened>,
    /// Its task has closed it for good.
    closed: bool,
    /// The latest tensor it has brought for each key, by number.
    seen: Vec<Option<Place>>,
}

struct Opened {
    handle: Handle,
    host: usize,
    shard: usize,
    /// `None` while a pull has it.
    pull_buffer: Option<PullBuffer>,
    /// Address and length of each tensor in the pull buffer, if the last pull brought all of them.
    memory: Vec<(usize, usize)>,
}

enum Ear {
    Channel(oneshot::Receiver<Result<PullBuffer, Error>>),
    Cell(Handle),
}

struct Pull {
    plan: usize,
    handle: Option<Handle>,
    ear: Ear,
    min_version: i64,
    issued: Duration,
    deadline: Duration,
    /// Address and length of the memory that the task provided for the first tensor.
    brought: Option<(usize, usize)>,
    /// The `memory` of the plan when its pull buffer went along, if nothing was lost from that since.
    memory: Vec<(usize, usize)>,
    /// The plan had been closed before the pull was asked.
    refused: bool,
}

/// All plans and open pulls.
#[derive(Default)]
pub(super) struct Plans {
    plans: BTreeMap<usize, Plan>,
    open: BTreeMap<u64, Pull>,
    asked: u64,
    /// Counts of tensors that came, and of those that did not.
    pub(super) pulled: usize,
    pub(super) failed: usize,
}

impl Plans {
    /// Any pull that never ended.
    pub(super) fn left(&self) -> Option<u64> {
        self.open.keys().next().copied()
    }

    pub(super) fn is_open(&self, pull: u64) -> bool {
        self.open.contains_key(&pull)
    }

    /// The latest open pull of a plan.
    fn latest_of(&self, plan: usize) -> Option<u64> {
        self.open.iter().rev().find(|(_, pull)| pull.plan == plan).map(|(number, _)| *number)
    }
}

impl Simulation {
    pub(super) fn name_plan(&mut self, plan: usize, producer: usize, consumer: usize, keys: Vec<u32>) {
        let seen = vec![None; keys.len()];
        self.plans.plans.insert(plan, Plan { producer, consumer, keys, open: None, closed: false, seen });
    }

    /// Opens a plan, if its task's host runs and knows both tasks.
    pub(super) fn open_plan(&mut self, plan: usize) -> Result<(), String> {
        let Plan { producer, consumer, .. } = self.plans.plans[&plan];
        let host = self.host_of(consumer);
        // Any shard may pull.
        let seat = self.pulling_seat_of(plan, host, (consumer, producer))?;
        let Some((shard, pair)) = seat else { return Ok(()) };
        let known = self.plans.plans.get_mut(&plan).expect("just looked at");
        let keys = Keys::new(known.keys.iter().map(|&number| super::published::key(number)));
        let keys = Arc::new(keys.map_err(|error| error.to_string())?);
        let pull_buffer = Some(PullBuffer::new(keys.len()));
        let handle = self.hosts[host].seats[shard].node.open_plan(pair, keys);
        known.open = Some(Opened { handle, host, shard, pull_buffer, memory: Vec::new() });
        let count = known.keys.len();
        self.trace.note(
            self.now,
            format_args!("plan {plan} is open: {count} tensors of {producer}, by {consumer} on {host}.{shard}"),
        );
        self.settle(host, shard)
    }

    /// Pulls a plan; returns the pull's number, or `None` if the host is down.
    pub(super) fn pull(
        &mut self,
        plan: usize,
        ahead: i64,
        room: Option<usize>,
        timeout: Duration,
    ) -> Result<Option<u64>, String> {
        let Some(known) = self.plans.plans.get(&plan) else { return Ok(None) };
        if known.open.is_none() && !known.closed {
            self.open_plan(plan)?;
        }
        let Plan { producer, ref keys, closed, .. } = self.plans.plans[&plan];
        let newest = keys.iter().map(|&key| self.published.newest(producer, key)).min().unwrap_or(0);
        let min_version = if ahead == workload::ANY_AGE { i64::MIN } else { newest + ahead };
        let as_cell = self.plans.asked % 3 == 2;
        let Some(opened) = &mut self.plans.plans.get_mut(&plan).expect("just looked at").open else { return Ok(None) };
        let (host, shard, handle) = (opened.host, opened.shard, opened.handle);
        let (mut pull_buffer, mut memory) = match opened.pull_buffer.take() {
            Some(pull_buffer) => (pull_buffer, std::mem::take(&mut opened.memory)),
            None => (PullBuffer::new(self.plans.plans[&plan].keys.len()), Vec::new()),
        };
        let room = room.filter(|_| !pull_buffer.is_empty());
        let brought = room.map(|room| {
            let buffer = Buffer::from_vec(vec![0; room]);
            let place = (buffer.as_ptr() as usize, room);
            pull_buffer.set_destination(0, buffer);
            memory.clear();
            place
        });
        let node = &mut self.hosts[host].seats[shard].node;
        let (waiter, ear) = if as_cell {
            let cell = node.open_pull();
            (PullWaiter::Cell(cell), Ear::Cell(cell))
        } else {
            let (sender, receiver) = oneshot::channel();
            (PullWaiter::Channel(sender), Ear::Channel(receiver))
        };
        self.plans.asked += 1;
        let number = self.plans.asked;
        let (issued, deadline) = (self.now, self.now + timeout);
        self.trace.note(issued, format_args!("pull {number} of plan {plan}, version {min_version}, for {timeout:?}"));
        let request = PullRequest {
            plan: handle,
            min_version,
            deadline: self.base + deadline,
            pull_buffer,
            views: false,
            fail_if_gone: false,
            waiter,
        };
        let now = self.instant();
        let handle = self.hosts[host].seats[shard].node.pull(now, request);
        let pull = Pull { plan, handle, ear, min_version, issued, deadline, brought, memory, refused: closed };
        self.plans.open.insert(number, pull);
        self.settle(host, shard)?;
        Ok(Some(number))
    }

    pub(super) fn give_up_pull(&mut self, plan: usize) -> Result<(), String> {
        let Some(number) = self.plans.latest_of(plan) else { return Ok(()) };
        let Pull { handle, ear, .. } = self.plans.open.remove(&number).expect("just looked at");
        let opened = self.plans.plans.get_mut(&plan).and_then(|plan| plan.open.as_mut());
        let Some(opened) = opened else { return Err(format!("pull {number} stands without a plan")) };
        let (host, shard) = (opened.host, opened.shard);
        self.trace.note(self.now, format_args!("pull {number} is given up"));
        let node = &mut self.hosts[host].seats[shard].node;
        let (pull_buffer, told) = match ear {
            Ear::Cell(cell) => (node.close_pull(cell, handle), false),
            Ear::Channel(receiver) => {
                let pull_buffer = handle.and_then(|handle| node.cancel_pull(handle));
                (pull_buffer, !matches!(receiver.try_recv(), Err(oneshot::TryRecvError::Disconnected)))
            }
        };
        let Some(pull_buffer) = pull_buffer.filter(|_| !told) else {
            return Err(format!("pull {number} was given up and did not give its pull_buffer back"));
        };
        opened.pull_buffer.get_or_insert(pull_buffer);
        opened.memory.clear();
        self.settle(host, shard)
    }

    pub(super) fn deafen_pull(&mut self, plan: usize) {
        let is_channel = |number: &u64| matches!(self.plans.open[number].ear, Ear::Channel(_));
        if let Some(number) = self.plans.latest_of(plan).filter(is_channel) {
            self.trace.note(self.now, format_args!("nobody listens to pull {number}"));
            self.plans.open.remove(&number);
        }
    }

    /// A task closes a plan, which gives up its pulls.
    pub(super) fn close_plan(&mut self, plan: usize) -> Result<(), String> {
        let Some(known) = self.plans.plans.get_mut(&plan).filter(|plan| !plan.closed) else { return Ok(()) };
        known.closed = true;
        let Some(opened) = &mut known.open else { return Ok(()) };
        opened.memory.clear();
        opened.pull_buffer = None;
        let (host, shard, handle) = (opened.host, opened.shard, opened.handle);
        // Closed by code on the shard, or by another thread, whose pulls go on until the shard hears of it.
        let later = self.random.random_bool(0.5);
        self.trace.note(self.now, format_args!("plan {plan} is closed, later: {later}"));
        if later {
            self.submit(host, shard, Box::new(move |node| node.close_plan(handle)));
            let node = &mut self.hosts[host].seats[shard].node;
            self.plans.open.retain(|_, pull| {
                if let Ear::Cell(cell) = pull.ear
                    && pull.plan == plan
                {
                    node.close_pull(cell, pull.handle);
                }
                pull.plan != plan
            });
            return self.settle(host, shard);
        }
        let node = &mut self.hosts[host].seats[shard].node;
        node.close_plan(handle);
        let mut told = None;
        self.plans.open.retain(|number, pull| {
            let is_of = pull.plan == plan;
            if is_of {
                let spoken = match &pull.ear {
                    Ear::Channel(receiver) => !matches!(receiver.try_recv(), Err(oneshot::TryRecvError::Disconnected)),
                    Ear::Cell(cell) => node.close_pull(*cell, None).is_some(),
                };
                told = told.or(spoken.then_some(*number));
            }
            !is_of
        });
        match told {
            Some(number) => Err(format!("pull {number} goes on, or was told something, though its plan was closed")),
            None => self.settle(host, shard),
        }
    }

    /// Replaces a plan by another, possibly while it is being pulled.
    pub(super) fn reopen_plan(&mut self, plan: usize, keys: Vec<u32>) -> Result<(), String> {
        let Some(&Plan { producer, consumer, .. }) = self.plans.plans.get(&plan) else { return Ok(()) };
        self.close_plan(plan)?;
        self.name_plan(plan, producer, consumer, keys);
        self.open_plan(plan)
    }

    pub(super) fn close_plans(&mut self, pick: impl Fn(usize) -> bool) -> Result<(), String> {
        let chosen: Vec<_> = self.plans.plans.keys().copied().filter(|&plan| pick(plan)).collect();
        chosen.into_iter().try_for_each(|plan| self.close_plan(plan))
    }

    /// A process has ended, and its plans with it.
    pub(super) fn forget_plans_of(&mut self, host: usize) {
        let Plans { plans, open, .. } = &mut self.plans;
        for (number, plan) in plans.iter_mut() {
            if plan.open.as_ref().is_some_and(|opened| opened.host == host) {
                plan.open = None;
                plan.seen.fill(None);
                open.retain(|_, pull| pull.plan != *number);
            }
        }
    }

    /// The open plans, each with its producer and keys.
    pub(super) fn open_plans(&self) -> Vec<(usize, usize, Vec<u32>)> {
        let open = self.plans.plans.iter().filter(|(_, plan)| plan.open.is_some() && !plan.closed);
        open.map(|(&number, plan)| (number, plan.producer, plan.keys.clone())).collect()
    }

    /// True if the last pull of a plan that has ended brought everything.
    pub(super) fn is_plan_filled(&self, plan: usize) -> bool {
        let pull_buffer = self.plans.plans[&plan].open.as_ref().and_then(|opened| opened.pull_buffer.as_ref());
        pull_buffer.is_some_and(|pull_buffer| pull_buffer.is_complete() && pull_buffer.first_error().is_none())
    }
}
