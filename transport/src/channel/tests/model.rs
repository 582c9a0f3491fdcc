//! Random orders of everything that two tasks can do, against what a channel promises: each tensor is received at most once, by a recv of its
//! name; a send is taken if and only if a recv has its tensor or the library keeps it for the next one; and when all was asked for, nothing is
//! left. Large tensors go through a model of the switch.

use std::collections::{HashMap, VecDeque};

use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::*;

const KEYS: u64 = 24;
const STEPS: i64 = 3;

type Name = (i64, u64);

fn key(number: u64) -> String {
    // Of every length around the short ones.
    format!("{number:0width$}", width = 1 + (number as usize * 7) % 40)
}

/// One side, and what it is owed.
#[derive(Default)]
struct Task {
    /// Sends in progress: handle, tensor and name.
    sends: Vec<(u64, u64, Name)>,
    /// Recvs in progress.
    recvs: Vec<(u32, Name)>,
    /// Calls at the switch of recvs that have moved there.
    moved: Vec<(u32, Name)>,
    /// Adopted names, by call.
    adopted: HashMap<u32, u32>,
    /// Tensors for this side that went through the switch, by name.
    at_switch: HashMap<Name, VecDeque<u64>>,
}

struct World {
    random: SmallRng,
    halves: [Side<1024>; 2],
    between: Between<1024>,
    tasks: [Task; 2],
    /// Names of all tensors, and which side sent them.
    names: Vec<(usize, Name)>,
    received: HashMap<u64, usize>,
    next_call: u32,
    now: u64,
    taken: Vec<u64>,
    returned: Vec<u64>,
}

impl World {
    fn new(seed: u64, is_spliced: bool) -> World {
        let random = SmallRng::seed_from_u64(seed);
        let (halves, between) = pair_with(is_spliced);
        World {
            random,
            halves,
            between,
            tasks: Default::default(),
            names: Vec::new(),
            received: HashMap::new(),
            next_call: 0,
            now: 0,
            taken: Vec::new(),
            returned: Vec::new(),
        }
    }

    fn name(&mut self) -> Name {
        (self.random.random_range(0..STEPS), self.random.random_range(0..KEYS))
    }

    fn new_tensor(&mut self, side: usize, name: Name) -> u64 {
        self.names.push((side, name));
        self.names.len() as u64 - 1
    }

    fn receives(&mut self, side: usize, tensor: u64, name: Name) {
        assert_eq!(self.names[tensor as usize], (1 - side, name), "a tensor of that name");
        *self.received.entry(tensor).or_default() += 1;
        assert_eq!(self.received[&tensor], 1, "tensor {tensor} is received once");
    }

    fn event(&mut self) {
        let (side, name) = (self.random.random_range(0..2), self.name());
        let half = &mut self.halves[side];
        match self.random.random_range(0..24) {
            0..7 => {
                let bytes = [8, 8, 64, 64, 64, 100, 512][self.random.random_range(0..7)];
                let tensor = self.new_tensor(side, name);
                let deadline = if self.random.random_bool(0.2) { self.now + 5 } else { u64::MAX };
                match send_until(&mut self.halves[side], (name.0, &key(name.1)), tensor, bytes, deadline) {
                    Ok(handle) => self.tasks[side].sends.push((handle, tensor, name)),
                    Err(refusal) => assert_eq!(refusal, Refusal::Fails(Why::Duplicate)),
                }
            }
            7..13 => {
                let slot = post(half, name.0, &key(name.1));
                self.tasks[side].recvs.push((slot, name));
            }
            13..17 => drain(half),
            17 => {
                // A large tensor.
                let tensor = self.new_tensor(side, name);
                self.tasks[1 - side].at_switch.entry(name).or_default().push_back(tensor);
                assert!(self.halves[side].announce(name.0, key(name.1).as_bytes()));
            }
            18 if !self.tasks[side].recvs.is_empty() => {
                let at = self.random.random_range(0..self.tasks[side].recvs.len());
                let (slot, _) = self.tasks[side].recvs.swap_remove(at);
                if !matches!(half.recv(slot), Recv::Moved(_)) {
                    half.cancel(slot);
                    half.check_invariants();
                } else {
                    self.tasks[side].recvs.push((slot, name));
                    self.tasks[side].recvs.pop();
                    half.free(slot);
                    // The call at the switch goes on, and is answered.
                }
            }
            19 => {
                // Some deadlines pass.
                self.now += 1;
                half.sweep(self.now);
                half.check_invariants();
            }
            20 => self.switch_answers(side),
            _ => _ = self.between.turn(side),
        }
        self.settle(side);
    }

    /// Does what the library does after each call.
    fn settle(&mut self, side: usize) {
        let half = &mut self.halves[side];
        for slot in std::mem::take(&mut half.news.asks) {
            let Some(wanted) = half.wanted(slot) else { continue };
            let name = (wanted.step, String::from_utf8(wanted.key).unwrap().parse::<u64>().unwrap());
            self.next_call += 1;
            let call = self.next_call;
            if let Some(adopted) = half.has_moved(slot, call) {
                self.tasks[side].adopted.insert(call, adopted);
            }
            self.tasks[side].moved.push((call, name));
        }
        while let Some(slot) = self.halves[side].news.arrived.pop() {
            let call = self.halves[side].arrived_for(slot);
            let tensor = id(self.halves[side].content(slot));
            self.tasks[side].adopted.remove(&call);
            let waits = self.tasks[side].moved.iter().position(|(other, _)| *other == call);
            if let Some(at) = waits {
                let (_, name) = self.tasks[side].moved.swap_remove(at);
                self.receives(side, tensor, name);
            }
            self.halves[side].is_served(slot, waits.is_some());
        }
        let recvs = std::mem::take(&mut self.tasks[side].recvs);
        for (slot, name) in recvs {
            match self.halves[side].recv(slot) {
                Recv::Done => {
                    let tensor = take(&mut self.halves[side], slot).unwrap();
                    self.receives(side, tensor, name);
                }
                Recv::Moved(_) => self.halves[side].free(slot),
                Recv::Waiting => self.tasks[side].recvs.push((slot, name)),
                Recv::Failed(why) => panic!("a recv failed: {why:?}"),
            }
        }
        let sends = std::mem::take(&mut self.tasks[side].sends);
        for (handle, tensor, name) in sends {
            match self.halves[side].sent(handle) {
                Sent::Open => self.tasks[side].sends.push((handle, tensor, name)),
                Sent::Taken => self.taken.push(tensor),
                Sent::Returned(_) => {
                    self.halves[side].forget_send(handle);
                    self.returned.push(tensor);
                }
            }
        }
        self.halves[side].check_invariants();
    }

    /// The switch serves a recv for which it has a tensor.
    fn switch_answers(&mut self, side: usize) {
        let task = &mut self.tasks[side];
        let has_tensor = |name: &Name| task.at_switch.get(name).is_some_and(|tensors| !tensors.is_empty());
        let Some(at) = task.moved.iter().position(|(_, name)| has_tensor(name)) else { return };
        let (call, name) = task.moved.swap_remove(at);
        let tensor = task.at_switch.get_mut(&name).unwrap().pop_front().unwrap();
        if let Some(slot) = task.adopted.remove(&call) {
            self.halves[side].is_over(slot, call, true);
        }
        self.receives(side, tensor, name);
    }

    /// Asks for everything until nothing arrives any more.
    fn finish(mut self) {
        for _ in 0..600 {
            for side in 0..2 {
                for (step, number) in (0..STEPS).flat_map(|step| (0..KEYS).map(move |number| (step, number))) {
                    let name = (step, number);
                    let task = &self.tasks[side];
                    if !task.recvs.iter().chain(&task.moved).any(|(_, of)| *of == name) {
                        let slot = post(&mut self.halves[side], step, &key(number));
                        self.tasks[side].recvs.push((slot, name));
                    }
                }
                self.between.turn_both();
                drain(&mut self.halves[side]);
                self.settle(side);
                // Nobody answers late: the deadlines of these sends have passed, and their consumer returns them.
                self.halves[side].sweep(self.now + 5);
                (0..50).for_each(|_| self.switch_answers(side));
                self.settle(side);
            }
        }
        for task in &self.tasks {
            assert!(task.sends.is_empty(), "{} sends have no end", task.sends.len());
            let left: usize = task.at_switch.values().map(VecDeque::len).sum();
            assert_eq!(left, 0, "tensors at the switch that nobody received");
        }
        for tensor in self.taken {
            assert_eq!(self.received.get(&tensor), Some(&1), "tensor {tensor} was taken");
        }
        for tensor in self.returned {
            assert_eq!(self.received.get(&tensor), None, "tensor {tensor} was returned");
        }
    }
}

#[test]
fn random_orders_lose_and_repeat_nothing() {
    for seed in 0..120 {
        for is_spliced in [false, true] {
            let mut world = World::new(seed, is_spliced);
            (0..2_000).for_each(|_| world.event());
            world.finish();
        }
    }
}
