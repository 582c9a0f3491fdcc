//! What must work in fine weather whatever the storm did: every pair of tasks, every open plan, and every queue.

use std::time::Duration;

use rand::Rng;
use sealane_fusion::AcceptOptions;

use super::fused::Fusing;
use super::ledger::End;
use super::pushes::QueueId;
use super::run::Simulation;
use super::workload::{self, Deed, PROBE_STEP, Spot, Told};

/// How long a recv in fine weather may take: longer than it takes to notice and replace a dead link.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_secs(8);
/// Tries of an exchange in fine weather: the first two may only discover that earlier requests are lost.
pub(super) const PROBE_TRIES: usize = 3;
/// Number of the first plan of the last pulls.
const PROBE_PLAN: usize = 1000;
const PROBE_KEY: u32 = 1000;
const PROBE_BYTES: usize = 100;
/// Largest tensor of a last exchange.
const PROBE_BYTES_MAX: usize = 10_000;
/// Times that all wires are cut at the end of the run.
pub(super) const CUTS: i64 = 2;
/// Step number, and fused receive number, of what is in flight at a cut.
pub(super) const CUT_STEP: i64 = 2000;
const CUT_BATCH: usize = 1000;
/// The queue of the last pushes, which the storm has used too; its capacity, if it is not open yet; and how much is pushed: more than it
/// holds, and where limits are small as much as may wait.
const PROBE_QUEUE: u32 = 0;
const PROBE_QUEUE_TENSORS: usize = 3;
const PROBE_PUSHES: usize = 5;
/// The table of the last pulls of rows, and the numbers of these pulls.
const PROBE_TABLE: u32 = 1000;
const PROBE_ASK: usize = 1_000_000;
const CUT_ASK: usize = 2_000_000;
/// Pause between two looks into that queue.
const PROBE_PAUSE: Duration = Duration::from_micros(300);

impl Simulation {
    /// In fine weather every task can exchange a tensor with every task, itself included.
    pub(super) fn probe_all(&mut self) -> Result<(), String> {
        let tasks = self.tasks();
        for (producer, consumer) in (0..tasks).flat_map(|one| (0..tasks).map(move |other| (one, other))) {
            let mut well = false;
            for attempt in 0..PROBE_TRIES as i64 {
                well = well || self.probe(Spot { producer, consumer, step: PROBE_STEP + attempt, key: 0 })?;
            }
            if !well {
                return Err(format!("task {consumer} cannot receive from task {producer} in fine weather"));
            }
        }
        Ok(())
    }

    /// One exchange while nothing else goes on; true if it ends well.
    fn probe(&mut self, at: Spot) -> Result<bool, String> {
        let bytes = self.random_length();
        self.conduct(Deed::Consume)?;
        let send = self.send(at, bytes, PROBE_TIMEOUT)?;
        let recv = self.recv(at, None, PROBE_TIMEOUT)?;
        let (Some(send), Some(recv)) = (send, recv) else { return Err("the probe's host is down".into()) };
        while self.ledger.recvs[recv].ended.is_none() {
            self.step()?;
        }
        let well = matches!(self.ledger.recvs[recv].ended, Some((_, End::Ok)));
        if !well {
            self.conduct(Deed::Cleanup { task: at.producer, step: at.step })?;
        }
        while self.ledger.sends[send].ended.is_none() {
            self.step()?;
        }
        Ok(well)
    }

    /// In fine weather every open plan can be pulled, and every task can pull from every task.
    pub(super) fn probe_plans(&mut self) -> Result<(), String> {
        for (plan, producer, keys) in self.open_plans() {
            keys.into_iter().try_for_each(|key| self.publish(producer, key, 1, PROBE_BYTES))?;
            self.probe_plan(plan)?;
        }
        let tasks = self.tasks();
        for producer in 0..tasks {
            self.publish(producer, PROBE_KEY, 1, PROBE_BYTES)?;
            for consumer in 0..tasks {
                let plan = PROBE_PLAN + producer * tasks + consumer;
                self.name_plan(plan, producer, consumer, vec![PROBE_KEY]);
                self.probe_plan(plan)?;
            }
        }
        Ok(())
    }

    fn probe_plan(&mut self, plan: usize) -> Result<(), String> {
        for _ in 0..PROBE_TRIES {
            let pull = self.pull(plan, workload::ANY_AGE, None, PROBE_TIMEOUT)?;
            let Some(pull) = pull else { return Err("the probe's host is down".into()) };
            while self.plans.is_open(pull) {
                self.step()?;
            }
            if self.is_plan_filled(plan) {
                return Ok(());
            }
        }
        Err(format!("plan {plan} cannot be pulled in fine weather"))
    }

    /// In fine weather every task pushes to every task, more than the queue holds.
    pub(super) fn probe_pushes(&mut self) -> Result<(), String> {
        let tasks = self.tasks();
        for (pusher, task) in (0..tasks).flat_map(|one| (0..tasks).map(move |other| (one, other))) {
            let mut well = false;
            for _ in 0..PROBE_TRIES {
                well = well || self.probe_push(pusher, QueueId { task, queue: PROBE_QUEUE })?;
            }
            if !well {
                return Err(format!("task {pusher} cannot push to task {task} in fine weather"));
            }
        }
        Ok(())
    }

    fn probe_push(&mut self, pusher: usize, to: QueueId) -> Result<bool, String> {
        self.open_probed(to)?;
        let group = self.push(pusher, to, &[PROBE_BYTES; PROBE_PUSHES], PROBE_TIMEOUT)?;
        let Some(group) = group else { return Err("the probe's host is down".into()) };
        while self.pushes.is_open(group) {
            self.run_until(self.now + PROBE_PAUSE)?;
            self.take_all()?;
        }
        self.conduct(Deed::Consume)?;
        Ok(self.pushes.is_taken(group))
    }

    /// In fine weather every task pulls rows from every task.
    pub(super) fn probe_rows(&mut self) -> Result<(), String> {
        let tasks = self.tasks();
        for producer in 0..tasks {
            self.publish_table(producer, PROBE_TABLE)?;
            for consumer in 0..tasks {
                let ask = |attempt| PROBE_ASK + (producer * tasks + consumer) * PROBE_TRIES + attempt;
                let mut well = false;
                for attempt in 0..PROBE_TRIES {
                    well = well || self.probe_row(ask(attempt), producer, consumer)?;
                }
                if !well {
                    return Err(format!("task {consumer} cannot pull rows from task {producer} in fine weather"));
                }
            }
            if self.climate.scarce {
                self.withdraw_table(producer, PROBE_TABLE)?;
            }
        }
        Ok(())
    }

    fn probe_row(&mut self, ask: usize, producer: usize, consumer: usize) -> Result<bool, String> {
        let tables = vec![(PROBE_TABLE, vec![0, 7, 19])];
        if !self.pull_rows(ask, (producer, consumer), tables, 0, PROBE_TIMEOUT)? {
            return Err("the probe's host is down".into());
        }
        loop {
            if let Some(well) = self.tables.outcome(ask) {
                return Ok(well);
            }
            self.step()?;
        }
    }

    fn open_probed(&mut self, id: QueueId) -> Result<(), String> {
        self.open_queue(id, AcceptOptions { tensors_max: PROBE_QUEUE_TENSORS, ..AcceptOptions::default() })
    }

    /// Requests in flight when a link breaks are sent again on the next one and answered; no caller hears of the break.
    pub(super) fn probe_cuts(&mut self) -> Result<(), String> {
        (CUT_STEP..CUT_STEP + CUTS).try_for_each(|step| self.probe_cut(step))
    }

    fn probe_cut(&mut self, step: i64) -> Result<(), String> {
        let tasks = self.tasks();
        let (producer, consumer) = (self.random.random_range(0..tasks), self.random.random_range(0..tasks));
        let spot = |key| Spot { producer, consumer, step, key };
        let plan = PROBE_PLAN + producer * tasks + consumer;
        let (keys, told, timeout) = (vec![1, 2], Told::OneByOne, PROBE_TIMEOUT);
        let first = self.ledger.recvs.len();
        self.recv(spot(0), None, timeout)?;
        self.fuse(Fusing { batch: CUT_BATCH, producer, consumer, step, keys, rooms: 0, told, timeout })?;
        let pull = self.pull(plan, 1, None, timeout)?.ok_or("the probe's host is down")?;
        self.send(spot(1), PROBE_BYTES, timeout)?;
        let queue = QueueId { task: consumer, queue: PROBE_QUEUE };
        self.open_probed(queue)?;
        let pushed = [PROBE_BYTES, PROBE_BYTES_MAX, PROBE_BYTES, 0, PROBE_BYTES_MAX];
        let group = self.push(producer, queue, &pushed, timeout)?.ok_or("the probe's host is down")?;
        let rows = CUT_ASK + step as usize;
        self.pull_rows(rows, (producer, consumer), vec![(PROBE_TABLE, vec![3, 5])], 1, timeout)?;
        self.pause()?;
        self.trace.note(self.now, format_args!("all wires are cut"));
        self.air.cut();
        self.pause()?;
        for key in [0, 2] {
            let bytes = self.random_length();
            self.send(spot(key), bytes, timeout)?;
        }
        self.publish(producer, PROBE_KEY, 1, PROBE_BYTES)?;
        self.publish_table(producer, PROBE_TABLE)?;
        let waiting = |open: &[Vec<usize>]| open.iter().any(|open| !open.is_empty());
        while self.plans.is_open(pull) || waiting(&self.ledger.open_recvs) || waiting(&self.ledger.open_sends) {
            self.step()?;
        }
        let mut came = None;
        while came.is_none() || self.pushes.is_open(group) {
            self.run_until(self.now + PROBE_PAUSE)?;
            self.take_all()?;
            came = came.or_else(|| self.tables.outcome(rows));
        }
        if came != Some(true) {
            return Err(format!("the rows {rows} did not outlive their link"));
        }
        if !self.pushes.is_taken(group) {
            return Err(format!("push {group} did not outlive its link"));
        }
        let lost = |recv: &usize| !matches!(self.ledger.recvs[*recv].ended, Some((_, End::Ok)));
        if let Some(recv) = (first..self.ledger.recvs.len()).find(lost) {
            return Err(format!("recv {recv} did not outlive its link"));
        }
        match self.is_plan_filled(plan) {
            true => Ok(()),
            false => Err(format!("pull {pull} did not outlive its link")),
        }
    }

    /// Waits as long as a message is on its way.
    fn pause(&mut self) -> Result<(), String> {
        let pause = Duration::from_micros(self.random.random_range(0..2000));
        self.run_until(self.now + pause)
    }

    fn random_length(&mut self) -> usize {
        self.random.random_range(8..PROBE_BYTES_MAX)
    }
}
