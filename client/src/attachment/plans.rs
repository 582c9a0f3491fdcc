//! Plans as the daemon knows them: their keys go into the ring once, and the shard's reports are collected until their pull has
//! ended. Under the attachment's lock; bounded by the limits on plans and keys of one shard.

use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use sealane_runtime::Buffer;
use sealane_transport::{
    Error, Keys, Payload, TensorMeta,
    shm::{
        BOARD_BYTES_PER_KEY, KeyList, NO_TIMEOUT, Submission,
        limits::{PLAN_KEY_BYTES_MAX, PLAN_KEYS_MAX, PLANS_MAX},
    },
};

use super::{
    Attachment, Held, Line, State,
    aftermath::Aftermath,
    calls::{Direction, Fault},
    link::{Link, Peer, Unsubmitted},
    memory::Memory,
    submit::WHILE_IT_READS,
};
use crate::{clock::Tick, memory::Viewable};

/// A plan that is open at a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seat {
    serial: u64,
    segment: u16,
    plan: u32,
}

/// What a plan pulls, from which task, and where to, if not to the receive area.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlanOf<'a> {
    pub(crate) from: &'a str,
    /// The shard, counted from the one that serves the pair.
    pub(crate) stripe: usize,
    pub(crate) keys: &'a Keys,
    /// Empty, or one for each key, in the arena.
    pub(crate) places: &'a [Bytes],
}

/// What a shard has reported of a plan and nobody has taken yet.
#[derive(Default)]
pub(crate) struct Gathered {
    /// Where the versions are, if that has changed.
    pub(crate) board: Option<Buffer>,
    pub(crate) placed: Vec<Placed>,
    /// Numbers of the tensors that did not come, with the reasons.
    pub(crate) missed: Vec<(u32, Error)>,
}

/// A tensor with a new place, or new metadata.
pub(crate) struct Placed {
    pub(crate) index: u32,
    pub(crate) meta: TensorMeta,
    /// Its new place; `None` if that has not changed.
    pub(crate) memory: Option<Landed>,
}

/// Where a tensor lies.
pub(crate) enum Landed {
    /// In the receive area.
    Here(Buffer),
    /// In the arena of its publisher.
    Elsewhere(Viewable),
}

/// Parameters of a pull.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pull {
    pub(crate) min_version: i64,
    /// Tensors in the arenas of other clients may be viewed there.
    pub(crate) views: bool,
    pub(crate) fail_if_gone: bool,
}

/// The plans that are open with one daemon.
#[derive(Default)]
pub(super) struct Plans {
    open: HashMap<u32, Open>,
    last: u32,
}

struct Open {
    segment: u16,
    keys: usize,
    taken: Taken,
    gathered: Gathered,
}

/// What the plans of one shard take of its limits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Taken {
    pub(super) plans: usize,
    pub(super) keys: usize,
    pub(super) key_bytes: usize,
}

/// A plan to be closed, and what that frees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Closing {
    pub(super) plan: u32,
    pub(super) taken: Taken,
}

impl Taken {
    fn of(keys: &Keys) -> Taken {
        Taken { plans: 1, keys: keys.len(), key_bytes: keys.iter().map(str::len).sum() }
    }

    /// With one more plan, if that is within the limits.
    fn and(self, more: Taken) -> Result<Taken, Error> {
        let sum = Taken {
            plans: self.plans + more.plans,
            keys: self.keys + more.keys,
            key_bytes: self.key_bytes + more.key_bytes,
        };
        for (what, wanted, limit) in [
            ("plans", sum.plans, PLANS_MAX),
            ("keys of plans", sum.keys, PLAN_KEYS_MAX),
            ("bytes of keys of plans", sum.key_bytes, PLAN_KEY_BYTES_MAX),
        ] {
            if wanted > limit {
                let reason = format!("{wanted} {what} would be open with one shard, at most {limit} are possible");
                return Err(Error::full("client plans", reason));
            }
        }
        Ok(sum)
    }

    /// Subtracts a closed plan.
    pub(super) fn give_back(&mut self, less: Taken) {
        self.plans -= less.plans;
        self.keys -= less.keys;
        self.key_bytes -= less.key_bytes;
    }
}

const ELSEWHERE: Fault = "it reported a tensor that is not in the plan";
const TOO_OFTEN: Fault = "it reported more tensors than the plan has";

impl Plans {
    /// The reports of a plan, unless it was closed. A report by another shard is a fault.
    fn of(&mut self, segment: u16, plan: u32) -> Result<Option<&mut Open>, Fault> {
        match self.open.get_mut(&plan) {
            Some(open) if open.segment != segment => Err("it reported a plan of another shard"),
            found => Ok(found),
        }
    }

    fn of_item(&mut self, segment: u16, plan: u32, index: u32) -> Result<Option<&mut Open>, Fault> {
        match self.of(segment, plan)? {
            Some(open) if index as usize >= open.keys => Err(ELSEWHERE),
            found => Ok(found),
        }
    }

    pub(super) fn board(
        &mut self,
        segment: u16,
        plan: u32,
        memory: Buffer,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let memory = match self.of(segment, plan)? {
            Some(open) if memory.len() != open.keys * BOARD_BYTES_PER_KEY => {
                after.spent.push(Memory::Destination(memory.into()));
                return Err("a plan's board is not as large as it should be");
            }
            Some(open) => open.gathered.board.replace(memory),
            None => Some(memory),
        };
        after.spent.extend(memory.map(|memory| Memory::Destination(memory.into())));
        Ok(())
    }

    /// Notes a tensor's new place, or without `memory` its new metadata.
    pub(super) fn placed(
        &mut self,
        segment: u16,
        plan: u32,
        index: u32,
        meta: &[u8],
        memory: Option<Landed>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let refused = match self.of_item(segment, plan, index) {
            Ok(Some(open)) if open.gathered.placed.len() >= open.keys => Err(TOO_OFTEN),
            Ok(Some(open)) => match TensorMeta::from_wire(meta) {
                Ok(meta) => {
                    open.gathered.placed.push(Placed { index, meta, memory });
                    return Ok(());
                }
                Err(_) => Err("a plan's tensor has invalid metadata"),
            },
            Ok(None) => Ok(()),
            Err(fault) => Err(fault),
        };
        if let Some(Landed::Here(memory)) = memory {
            after.spent.push(Memory::Destination(memory.into()));
        }
        refused
    }

    pub(super) fn missed(&mut self, segment: u16, plan: u32, index: u32, error: Error) -> Result<(), Fault> {
        match self.of_item(segment, plan, index)? {
            Some(open) if open.gathered.missed.len() >= open.keys => Err(TOO_OFTEN),
            Some(open) => {
                open.gathered.missed.push((index, error));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Attachment {
    /// Submits a pull of a plan, and opens the plan if this daemon does not know it; returns the call's number. Waits for a daemon
    /// that is being restarted, at most for `restart`. [`Calls::take_sent`] tells how the pull ended.
    pub(crate) fn pull(
        &self,
        seat: &mut Option<Seat>,
        plan: PlanOf<'_>,
        wish: Pull,
        timeout: Option<Duration>,
        restart: Option<Duration>,
    ) -> Result<u32, Error> {
        let now = Tick::now();
        let mut held = self.up(now, restart)?;
        held.give_back_blocks();
        let pulled = held.pull(now, (seat, plan), wish, timeout);
        held.submitted(1);
        drop(held);
        pulled
    }

    /// Cancels a pull; it still ends.
    pub(crate) fn cancel(&self, call: u32) {
        if self.abandon_if_forked() {
            return;
        }
        let mut held = self.lock();
        let State { calls, aftermath, .. } = &mut *held;
        calls.end_untold(call, Error::Aborted { step: 0, reason: "it was given up".into() }, aftermath);
        if let (Some(segment), Line::Up(link)) = (held.calls.at_work_on(call), &mut held.line) {
            let cancelled = link.cancel(segment, call);
            link.ring();
            if let Err(fault) = cancelled {
                held.lose(&fault);
            }
        }
    }

    /// Takes out what is new of a plan.
    ///
    /// # Errors
    /// Unavailable if the daemon that had the plan is gone, and its reports with it.
    pub(crate) fn gathered(&self, seat: Seat, each: impl FnOnce(Gathered)) -> Result<(), Error> {
        let mut held = self.lock();
        let link = match &mut held.line {
            Line::Up(link) if link.serial == seat.serial => link,
            Line::Lost(error) | Line::Ended(error) => return Err(error.clone()),
            Line::Up(_) => {
                return Err(Error::unavailable("the daemon", "the daemon that took the call is gone"));
            }
        };
        let Some(open) = link.plans.open.get_mut(&seat.plan) else { return Ok(()) };
        let gathered = &mut open.gathered;
        if gathered.board.is_none() && gathered.placed.is_empty() && gathered.missed.is_empty() {
            return Ok(());
        }
        let gathered = std::mem::take(gathered);
        drop(held);
        each(gathered);
        Ok(())
    }

    /// The bytes of a tensor that a plan's daemon has reported, in the memory where they lie.
    ///
    /// # Errors
    /// As [`others_arena`](Self::others_arena); InvalidArgument if they are not there.
    pub(crate) fn view(&self, seat: Seat, viewable: Viewable) -> Result<Bytes, Error> {
        let memory = self.others_arena(seat.serial, viewable.arena())?;
        viewable.over(&memory).map_err(|outside| Error::invalid(outside.to_string()))
    }

    /// Closes a plan.
    pub(crate) fn close_plan(&self, seat: Seat) {
        if self.abandon_if_forked() {
            return;
        }
        let mut held = self.lock();
        let Line::Up(link) = &mut held.line else { return };
        if link.serial != seat.serial {
            return;
        }
        let closed = link.close_plan(seat);
        link.ring();
        match closed {
            // Its memory is dropped without the lock.
            Ok(gathered) => {
                drop(held);
                drop(gathered);
            }
            Err(fault) => held.lose(&fault),
        }
    }
}

impl Link {
    /// Closes a plan; returns what was gathered of it.
    fn close_plan(&mut self, Seat { segment, plan, .. }: Seat) -> Result<Option<Gathered>, Box<str>> {
        let Some(Open { taken, gathered, .. }) = self.plans.open.remove(&plan) else { return Ok(None) };
        self.close(segment, Closing { plan, taken })?;
        Ok(Some(gathered))
    }
}

impl Held<'_> {
    fn pull(
        &mut self,
        now: Tick,
        (seat, plan): (&mut Option<Seat>, PlanOf<'_>),
        Pull { min_version, views, fail_if_gone }: Pull,
        timeout: Option<Duration>,
    ) -> Result<u32, Error> {
        let (timeout_ms, deadline) = self.time(now, timeout)?;
        let Seat { segment, plan, .. } = match *seat {
            Some(known) if known.serial == self.link().serial => known,
            _ => *seat.insert(self.open_plan(plan)?),
        };
        let submitted = self.enter(Direction::Pull, segment, deadline, Memory::Nothing, |call| {
            (timeout_ms, Submission::Pull { call, plan, min_version, timeout_ms, views, fail_if_gone })
        });
        submitted.map_err(|(error, _)| error)
    }

    /// Tells the plan's shard of the plan and its keys.
    #[cold]
    fn open_plan(&mut self, PlanOf { from, stripe, keys, places }: PlanOf<'_>) -> Result<Seat, Error> {
        let task = self.attachment.task();
        let Peer { segment, number: peer } =
            self.submit(WHILE_IT_READS, |link| link.pulled_peer(task, from, stripe))?;
        let more = Taken::of(keys);
        let plan = self.submit(WHILE_IT_READS, |link| {
            let plan = link.plans.last.wrapping_add(1);
            let taken = link.plans_of(segment).and(more).map_err(Unsubmitted::Refused)?;
            link.submit(segment, &Submission::OpenPlan { plan, peer, keys: keys.len() as u32 })?;
            *link.plans_of(segment) = taken;
            link.plans.last = plan;
            let open = Open { segment, keys: keys.len(), taken: more, gathered: Gathered::default() };
            link.plans.open.insert(plan, open);
            Ok(plan)
        })?;
        let seat = Seat { serial: self.link().serial, segment, plan };
        let mut packed = Vec::new();
        let mut told = 0;
        while told < keys.len() {
            let some = KeyList::pack(keys.iter().skip(told), &mut packed)
                .map_err(|malformed| Error::invalid(malformed.to_string()))?;
            let submission = Submission::PlanKeys { plan, keys: some };
            if let Err(error) = self.submit(WHILE_IT_READS, |link| link.submit(segment, &submission)) {
                self.give_plan_up(seat);
                return Err(error);
            }
            told += some.iter().count();
        }
        for (index, place) in (0..).zip(places) {
            if let Err(error) = self.lend_place(seat, index, place) {
                self.give_plan_up(seat);
                return Err(error);
            }
        }
        Ok(seat)
    }

    /// Lends a plan that was just opened the place for one of its tensors. Nobody waits for that call: it stays in the table
    /// until the daemon has released the place.
    fn lend_place(&mut self, Seat { segment, plan, .. }: Seat, index: u32, place: &Bytes) -> Result<(), Error> {
        let memory = Memory::Source(Payload::Bytes(place.clone()));
        let span = self.span(&memory)?.unwrap_or_default();
        let entered = self.enter(Direction::Publish, segment, Tick::NEVER, memory, |call| {
            (NO_TIMEOUT, Submission::PlanPlace { call, plan, index, span })
        });
        let State { calls, aftermath, .. } = &mut **self;
        match entered {
            Ok(call) => {
                let _at_work = calls.forsake(call, false, aftermath);
                Ok(())
            }
            Err((error, memory)) => {
                aftermath.spent.push(memory);
                Err(error)
            }
        }
    }

    /// Closes a plan of which not all keys were told.
    fn give_plan_up(&mut self, seat: Seat) {
        let Line::Up(link) = &mut self.line else { return };
        if link.serial != seat.serial {
            return;
        }
        // Nothing was pulled, so nothing was gathered.
        if let Err(fault) = link.close_plan(seat) {
            self.lose(&fault);
        }
    }
}
