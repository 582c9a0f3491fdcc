//! The plans of one client on one shard: the keys it pulls together, and what it was told about where the tensors are.
//!
//! A plan's pull buffer is in the client's receive area and stays with the plan between pulls. Bounded by
//! `PLANS_MAX`, `PLAN_KEYS_MAX` and `PLAN_KEY_BYTES_MAX`; one pull of a plan at a time.

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use sealane_runtime::Buffer;
use sealane_transport::limits::SET_KEYS_MAX;
use sealane_transport::shm::limits::{PLAN_KEY_BYTES_MAX, PLAN_KEYS_MAX, PLANS_MAX};
use sealane_transport::shm::{BOARD_BYTES_PER_KEY, Completion, KeyList, PushError, Record, Span};
use sealane_transport::{Error, Handle, Keys, Payload, PullBuffer, Tensor, TensorMeta};

use super::answers::Answer;
use super::{Client, Misconduct};
use crate::engine::clients::memory::{ClientArena, ReceiveArea};
use crate::node::{ClientCall, Node, Pool, PullRequest, PullWaiter};

#[derive(Default)]
pub(super) struct Plans {
    open: HashMap<u32, Seat>,
    /// Pulls whose outcome the node has not reported, by call, with the plan that each was made for.
    pulling: HashMap<u32, (u32, Pull)>,
    /// Number of pulls so far.
    pulls: u32,
    /// Keys of all plans.
    keys: usize,
    key_bytes: usize,
}

struct Seat {
    peer: u16,
    naming: Naming,
    key_bytes: usize,
    /// The node's handle, once it was pulled.
    plan: Option<Handle>,
    /// Present while no pull is in progress.
    pull_buffer: PullBuffer,
    board: Board,
    /// What the client was told, by the index of the key.
    told: Vec<Told>,
    /// Bytes of all tensors that the client was told of.
    bytes: u64,
    state: State,
}

enum Naming {
    /// The number of keys expected, and those received so far.
    Partly(usize, Vec<Box<str>>),
    Whole(Arc<Keys>),
}

/// The memory in which the versions are written.
#[derive(Default)]
struct Board {
    memory: Buffer,
    told: bool,
}

/// What the client knows of one tensor.
#[derive(Default)]
struct Told {
    token: u64,
    meta: Option<TensorMeta>,
    bytes: u64,
}

/// One pull. The client may reuse the numbers of its call and plan before the node has reported how the pull ended, so the node identifies
/// it by a serial number that no other current pull has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pull {
    call: u32,
    serial: u32,
}

impl Pull {
    /// The handle that the node gets for it.
    fn name(self) -> Handle {
        Handle::from_bits(u64::from(self.serial) << 32 | u64::from(self.call))
    }

    fn named(name: Handle) -> Self {
        Self { call: name.to_bits() as u32, serial: (name.to_bits() >> 32) as u32 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    /// Has the node's handle, unless the pull ended at once.
    Pulling(Pull, Option<Handle>),
    /// The pull has ended; the client is being told what is new.
    Telling(Pull),
}

fn not_open(plan: u32) -> Misconduct {
    Misconduct(format!("plan {plan} is not open"))
}

impl Plans {
    pub(super) fn open(&mut self, plan: u32, peer: u16, keys: u32) -> Result<(), Misconduct> {
        let expected = keys as usize;
        if self.open.len() >= PLANS_MAX || expected > SET_KEYS_MAX || self.keys + expected > PLAN_KEYS_MAX {
            let (plans, all) = (self.open.len(), self.keys);
            return Err(Misconduct(format!(
                "plan {plan} of {keys} keys is over a limit: {plans} plans of {all} keys are open"
            )));
        }
        if self.open.contains_key(&plan) {
            return Err(Misconduct(format!("plan {plan} is already open")));
        }
        let seat = Seat {
            peer,
            naming: Naming::Partly(expected, Vec::new()),
            key_bytes: 0,
            plan: None,
            pull_buffer: PullBuffer::default(),
            board: Board::default(),
            told: Vec::new(),
            bytes: 0,
            state: State::Idle,
        };
        self.open.insert(plan, seat);
        self.keys += expected;
        // A plan without keys is complete from the start.
        self.name(plan, std::iter::empty())
    }

    pub(super) fn add_keys(&mut self, plan: u32, keys: KeyList<'_>) -> Result<(), Misconduct> {
        self.name(plan, keys.iter())
    }

    /// Drops the plans, except what is being pulled.
    pub(super) fn forget(&mut self) {
        self.open.clear();
    }

    /// Gives a tensor of a plan a place in the client's own memory.
    pub(super) fn set_place(&mut self, plan: u32, index: u32, place: Buffer) -> Result<(), Misconduct> {
        let seat = self.open.get_mut(&plan).ok_or_else(|| not_open(plan))?;
        let is_new = matches!(seat.naming, Naming::Whole(_)) && seat.plan.is_none() && seat.state == State::Idle;
        if !is_new || index as usize >= seat.pull_buffer.len() {
            return Err(Misconduct(format!("plan {plan} has no room for a place of tensor {index} now")));
        }
        seat.pull_buffer.set_destination(index as usize, place);
        Ok(())
    }

    fn name<'k>(&mut self, plan: u32, keys: impl Iterator<Item = &'k str>) -> Result<(), Misconduct> {
        let seat = self.open.get_mut(&plan).ok_or_else(|| not_open(plan))?;
        let too_many = || Misconduct(format!("plan {plan} has more keys than announced"));
        let Naming::Partly(expected, names) = &mut seat.naming else { return Err(too_many()) };
        for key in keys {
            seat.key_bytes += key.len();
            self.key_bytes += key.len();
            if names.len() == *expected {
                return Err(too_many());
            }
            if self.key_bytes > PLAN_KEY_BYTES_MAX {
                return Err(Misconduct(format!("keys of plans have over {PLAN_KEY_BYTES_MAX} bytes")));
            }
            names.push(key.into());
        }
        if names.len() == *expected {
            let keys = Keys::new(std::mem::take(names)).map_err(|error| Misconduct(error.to_string()))?;
            seat.pull_buffer = PullBuffer::new(keys.len());
            seat.naming = Naming::Whole(Arc::new(keys));
        }
        Ok(())
    }
}

impl Client {
    pub(super) fn pull(
        &mut self,
        node: &mut Node,
        now: Instant,
        (call, plan): (u32, u32),
        (min_version, views, fail_if_gone): (i64, bool, bool),
        deadline: Instant,
    ) -> Result<(), Misconduct> {
        let seat = self.plans.open.get(&plan).ok_or_else(|| not_open(plan))?;
        let Naming::Whole(keys) = &seat.naming else {
            return Err(Misconduct(format!("plan {plan} is pulled before its keys are known")));
        };
        if seat.state != State::Idle {
            return Err(Misconduct(format!("plan {plan} is already being pulled")));
        }
        let (keys, peer, opened) = (keys.clone(), seat.peer, seat.plan);
        self.plans.pulls = self.plans.pulls.wrapping_add(1);
        let asked = Pull { call, serial: self.plans.pulls };
        if self.plans.pulling.insert(call, (plan, asked)).is_some() {
            return Err(Misconduct(format!("call {call} is already in flight")));
        }
        let found = match opened {
            Some(handle) => Ok(handle),
            None => self.pulling_pair(node, peer)?.map(|pair| node.open_plan(pair, keys.clone())),
        };
        let checked = self.check_calls(());
        self.under_way += 1;
        let seat = self.plans.open.get_mut(&plan).expect("just looked at");
        seat.plan = found.as_ref().ok().copied();
        let prepared = checked.and_then(|()| Ok((found?, seat.board.prepare(keys.len(), &self.area)?)));
        let (handle, ()) = match prepared {
            Ok(prepared) => prepared,
            Err(error) => {
                self.plans.pulling.remove(&call);
                self.under_way -= 1;
                self.refused.push((call, error));
                return Ok(());
            }
        };
        seat.told.resize_with(keys.len(), Told::default);
        let waiter = PullWaiter::Client(ClientCall { client: self.handle, call: asked.name() });
        let pull_buffer = std::mem::take(&mut seat.pull_buffer);
        let request = PullRequest { plan: handle, min_version, deadline, pull_buffer, views, fail_if_gone, waiter };
        let pull = node.pull(now, request);
        seat.state = State::Pulling(asked, pull);
        Ok(())
    }

    /// A pull has ended; `None` if it was cancelled.
    pub(super) fn pulled(&mut self, name: Handle, pull_buffer: PullBuffer) -> Option<Answer> {
        let pull @ Pull { call, .. } = Pull::named(name);
        let &(plan, _) = self.plans.pulling.get(&call).filter(|(_, asked)| *asked == pull)?;
        self.plans.pulling.remove(&call);
        self.under_way -= 1;
        // If the plan was closed meanwhile there is nothing to tell, and a new plan under its number has its own pull buffer.
        if let Some(seat) = self.plans.open.get_mut(&plan)
            && matches!(seat.state, State::Pulling(asked, _) if asked == pull)
        {
            seat.pull_buffer = pull_buffer;
            seat.state = State::Telling(pull);
        }
        Some(Answer::Pulled { call, plan, next: 0 })
    }

    /// Cancels a pull. False if the call is not a pull, or has ended and its outcome is on its way.
    pub(super) fn cancel_pull(&mut self, node: &mut Node, call: u32) -> bool {
        let Some(&(plan, asked)) = self.plans.pulling.get(&call) else { return false };
        let Some(seat) = self.plans.open.get_mut(&plan) else { return false };
        let State::Pulling(by, Some(pull)) = seat.state else { return false };
        if by != asked {
            // Its plan was closed, and a new plan with the same number is being pulled.
            return false;
        }
        let pull_buffer = node.cancel_pull(pull);
        seat.pull_buffer = pull_buffer.unwrap_or_else(|| PullBuffer::new(seat.told.len()));
        // What could have been viewed is not reported to anybody.
        seat.pull_buffer.drop_shared();
        seat.state = State::Idle;
        self.plans.pulling.remove(&call);
        self.under_way -= 1;
        true
    }

    /// Closes a plan; returns the call of a pull that this ends.
    pub(super) fn close_plan(&mut self, node: &mut Node, plan: u32) -> Result<Option<u32>, Misconduct> {
        let state = self.plans.open.get(&plan).ok_or_else(|| not_open(plan))?.state;
        let ended = match state {
            State::Pulling(pull, _) if self.cancel_pull(node, pull.call) => Some(pull.call),
            _ => None,
        };
        let seat = self.plans.open.remove(&plan).expect("just looked at");
        self.plans.key_bytes -= seat.key_bytes;
        self.plans.keys -= match &seat.naming {
            Naming::Partly(expected, _) => *expected,
            Naming::Whole(keys) => keys.len(),
        };
        if let Some(plan) = seat.plan {
            node.close_plan(plan);
        }
        Ok(ended)
    }

    /// Writes what is new of a plan into the ring, from tensor `next` on. If the ring is full, returns how far it came.
    pub(super) fn tell_plan(
        &mut self,
        call: u32,
        plan: u32,
        next: usize,
        record: &mut Record,
    ) -> Result<(), (usize, PushError)> {
        let Client { plans, end, area, arena, counters, .. } = self;
        let completions = &mut end.completions;
        let mut tell = |completion: &Completion<'_>| {
            completion.encode(record).expect("metadata is within its limit, and texts are cut");
            completions.push(record)
        };
        // The plan may have been closed meanwhile, and another opened under the same number.
        if let Some(seat) =
            plans.open.get_mut(&plan).filter(|seat| matches!(seat.state, State::Telling(pull) if pull.call == call))
        {
            seat.board.tell(plan, area, &mut tell).map_err(|full| (next, full))?;
            for index in next..seat.told.len() {
                let viewed = seat.tell(plan, index, (area, arena), &mut tell).map_err(|full| (index, full))?;
                if viewed > 0 {
                    (counters.tensors_viewed, counters.bytes_viewed) =
                        (counters.tensors_viewed + 1, counters.bytes_viewed + viewed);
                }
            }
            tell(&Completion::Pulled { call }).map_err(|full| (seat.told.len(), full))?;
            seat.state = State::Idle;
            let (peer, tensors, bytes) = (seat.peer, seat.told.len() as u64, seat.bytes);
            counters.count_received(tensors, bytes);
            self.traffic_of(peer).received(tensors, bytes);
            return Ok(());
        }
        tell(&Completion::Pulled { call }).map_err(|full| (next, full))
    }
}

impl Seat {
    /// Notes a tensor's version, and tells the client what it does not know of the tensor; returns the bytes that are viewed.
    #[inline]
    fn tell(
        &mut self,
        plan: u32,
        index: usize,
        (area, arena): (&ReceiveArea, &ClientArena),
        mut tell: impl FnMut(&Completion<'_>) -> Result<(), PushError>,
    ) -> Result<u64, PushError> {
        let tensor = match self.pull_buffer.get(index) {
            Ok(tensor) => tensor,
            Err(error) => return tell(&Completion::Missed { plan, index: index as u32, error }).map(|()| 0),
        };
        if let Payload::Shared(_) = tensor.payload() {
            return self.tell_of_view(plan, index, area, tell);
        }
        self.board.note(index, self.pull_buffer.version(index));
        let told = &mut self.told[index];
        // The client knows where its own places are.
        let in_own_place = matches!(tensor.payload(), Payload::Owned(buffer) if arena.is_destination(buffer));
        let token = if in_own_place { 0 } else { token_of(tensor) };
        let is_known = told.meta.as_ref().is_some_and(|meta| meta.as_wire() == tensor.meta().as_wire());
        if is_known && told.token == token {
            return Ok(0);
        }
        let (index, meta) = (index as u32, tensor.meta().as_wire());
        if in_own_place || told.token == token && told.meta.is_some() {
            tell(&Completion::Reshaped { plan, index, meta })?;
        } else {
            // A tensor without bytes has no position.
            let span = place_of(tensor, area).unwrap_or_default();
            tell(&Completion::Placed { plan, index, meta, span, token })?;
            area.told(token);
        }
        let bytes = tensor.len() as u64;
        self.bytes = self.bytes - told.bytes + bytes;
        *told = Told { token, meta: Some(tensor.meta().clone()), bytes };
        Ok(0)
    }

    /// Tells the client of a tensor to view; from then on the client holds it.
    #[cold]
    fn tell_of_view(
        &mut self,
        plan: u32,
        index: usize,
        area: &ReceiveArea,
        tell: impl FnOnce(&Completion<'_>) -> Result<(), PushError>,
    ) -> Result<u64, PushError> {
        self.board.note(index, self.pull_buffer.version(index));
        let tensor = self.pull_buffer.get(index).expect("the caller has looked at it");
        let (arena, span, token) = area.lend_view(tensor.payload()).expect("only what can be viewed is shared");
        let (meta, bytes) = (tensor.meta().clone(), tensor.len() as u64);
        let viewed = Completion::Viewed { plan, index: index as u32, meta: meta.as_wire(), arena, span, token };
        if let Err(full) = tell(&viewed) {
            area.free(token);
            return Err(full);
        }
        self.bytes = self.bytes - self.told[index].bytes + bytes;
        self.told[index] = Told { token, meta: Some(meta), bytes };
        let _the_clients = self.pull_buffer.take(index);
        Ok(bytes)
    }
}

/// The token of a tensor's memory; 0 if it has no bytes.
#[inline]
fn token_of(tensor: &Tensor) -> u64 {
    match tensor.payload() {
        Payload::Owned(buffer) => buffer.lender().map_or(0, |(_, token)| token),
        Payload::Shared(_) | Payload::Bytes(_) => 0,
    }
}

fn place_of(tensor: &Tensor, area: &ReceiveArea) -> Option<Span> {
    let Payload::Owned(buffer) = tensor.payload() else { return None };
    area.place_of(buffer).map(|(span, _)| span)
}

impl Board {
    /// Allocates memory for so many versions, if there is none yet.
    fn prepare(&mut self, keys: usize, area: &ReceiveArea) -> Result<(), Error> {
        if self.memory.is_empty() {
            self.memory = area.allocate_to_stay(keys * BOARD_BYTES_PER_KEY)?;
        }
        Ok(())
    }

    #[inline]
    fn note(&mut self, index: usize, version: i64) {
        let at = index * BOARD_BYTES_PER_KEY;
        self.memory.volatile_mut().range(at..at + BOARD_BYTES_PER_KEY).copy_from(&version.to_le_bytes());
    }

    fn tell(
        &mut self,
        plan: u32,
        area: &ReceiveArea,
        tell: impl FnOnce(&Completion<'_>) -> Result<(), PushError>,
    ) -> Result<(), PushError> {
        if self.told {
            return Ok(());
        }
        let (span, token) = area.place_of(&self.memory).unwrap_or_default();
        tell(&Completion::Board { plan, span, token })?;
        area.told(token);
        self.told = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(plans: &mut Plans, plan: u32, keys: &[&str]) -> Result<(), Misconduct> {
        let mut packed = Vec::new();
        plans.add_keys(plan, KeyList::pack(keys.iter().copied(), &mut packed).unwrap())
    }

    fn is_whole(plans: &Plans, plan: u32) -> bool {
        matches!(plans.open[&plan].naming, Naming::Whole(_))
    }

    #[test]
    fn a_plan_is_whole_when_its_keys_are_there() {
        let mut plans = Plans::default();
        plans.open(1, 0, 3).unwrap();
        add(&mut plans, 1, &["a", "b"]).unwrap();
        assert!(!is_whole(&plans, 1));
        add(&mut plans, 1, &["c"]).unwrap();
        assert!(is_whole(&plans, 1) && plans.open[&1].pull_buffer.len() == 3);
        plans.open(2, 0, 0).unwrap();
        assert!(is_whole(&plans, 2));
    }

    #[test]
    fn plans_that_are_too_much_or_too_little_are_refused() {
        let mut plans = Plans::default();
        plans.open(1, 0, 1).unwrap();
        assert!(plans.open(1, 0, 1).is_err_and(|misconduct| misconduct.0.contains("already open")));
        assert!(add(&mut plans, 1, &["a", "b"]).is_err_and(|misconduct| misconduct.0.contains("more keys")));
        assert!(add(&mut plans, 9, &["a"]).is_err_and(|misconduct| misconduct.0.contains("not open")));
        assert!(plans.open(2, 0, u32::MAX).is_err_and(|misconduct| misconduct.0.contains("is over a limit")));
        let most = SET_KEYS_MAX as u32;
        let opened = (2..100).take_while(|plan| plans.open(*plan, 0, most).is_ok()).count();
        assert!(opened * SET_KEYS_MAX <= PLAN_KEYS_MAX && opened > 1);
        let mut plans = Plans::default();
        (0..PLANS_MAX as u32).for_each(|plan| plans.open(plan, 0, 0).unwrap());
        assert!(plans.open(u32::MAX, 0, 0).is_err());
    }

    #[test]
    fn keys_may_not_be_long_without_end() {
        let mut plans = Plans::default();
        let long = "k".repeat(4096);
        plans.open(1, 0, SET_KEYS_MAX as u32).unwrap();
        let refused = (0..SET_KEYS_MAX).find_map(|_| add(&mut plans, 1, &[&long]).err());
        assert!(refused.unwrap().0.contains("bytes"));
        assert!(plans.key_bytes <= PLAN_KEY_BYTES_MAX + long.len());
    }
}
