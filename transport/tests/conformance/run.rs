//! Two sessions that ask each other for tensors over links that come and go as a seed chooses, checked at every step.
//!
//! Every requested tensor arrives once and identical, or its waiter hears why not; every lent tensor comes home once, as taken exactly if
//! it arrived. This holds for all kinds of memory at both ends, including that of a device whose copies fail now and then. Time is virtual.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sealane_runtime::{Buffer, MemoryKind, Reach, Slab, SlabSettings};
use sealane_transport::error::{Code, Error};
use sealane_transport::fake_device::{Copies, FakeDevice, FakeExport, bytes_of};
use sealane_transport::limits::INLINE_PAYLOAD_BYTES;
use sealane_transport::session::{Event, PeerRequest, RequestParams, Roster, Session};
use sealane_transport::{Handle, Link, Meta, Payload, SessionLimits};

use crate::ends::{Make, wait};
use crate::foreign::foreign;
use crate::verbs::{end_run, register};

/// Runs of each test, each with its own seed.
const SEEDS: u64 = 12;
/// Steps of a run before it is brought to an end.
const STEPS: usize = 1_000;
/// Most steps to bring a run to its end.
const LAST_STEPS: usize = 200_000;
/// Sizes around the limit for copied payloads and around that of a single read.
const SIZES: [usize; 10] = [0, 1, 64, 1000, 8191, 8192, 8193, 65_537, 200_000, 700_000];
const RECEIVE_BUDGET: usize = 256 * 1024;
/// Timeout of a request that must get its tensor.
const FOREVER: Duration = Duration::from_millis(1 << 30);

pub fn sessions_settle_everything(make: Make) {
    for seed in 0..SEEDS {
        let outcome = catch_unwind(AssertUnwindSafe(|| Run::new(make, seed).finish()));
        let outcome = outcome.and_then(|()| catch_unwind(end_run));
        if let Err(panic) = outcome {
            eprintln!("the failing run has seed {seed}");
            resume_unwind(panic);
        }
    }
}

/// The memory that a tensor is in at either end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Memory {
    Own,
    Foreign,
    Device,
    /// Device memory that is exported for RDMA devices.
    Exported,
}

/// Size of the exported memory, in bytes.
const EXPORTED: usize = 64 << 20;
/// Turns after which an RDMA device in memory has registered the exported memory.
const REGISTERING_TURNS: usize = 1_000;

/// Tensors move from and to exported memory: without a copy once the link has registered it, except in frames; before that, and over links
/// that cannot register it, with one copy at each end that is in exported memory.
pub fn exported_memory_is_reached_once_it_is_registered(make: Make) {
    let mut run = Run::new(make, 0);
    for is_first in [true, false] {
        for (source, into) in
            [(Memory::Exported, Memory::Exported), (Memory::Exported, Memory::Own), (Memory::Own, Memory::Exported)]
        {
            for (number, length) in SIZES.into_iter().enumerate().skip(1) {
                let (before, side) = (run.device.copies(), number % 2);
                let bytes = run.memory_of(source, contents(run.sides[side].asked.len() as u32, length));
                let destination = run.memory_of(into, vec![0; length]);
                run.ask_for(side, (bytes, Manner::Answers), Some(destination), FOREVER);
                run.settle();
                assert_eq!(run.sides[side].asked.last(), Some(&Fate::Arrived), "{length} bytes {source:?} {into:?}");
                if is_first {
                    continue;
                }
                let is_copied = !run.is_reached() || length <= INLINE_PAYLOAD_BYTES;
                let [out, back] = [source, into].map(|memory| u64::from(memory == Memory::Exported));
                let (to_host, from_host) = if is_copied { (out + back, back) } else { (back, 0) };
                let wanted = Copies { to_host: before.to_host + to_host, from_host: before.from_host + from_host };
                assert_eq!(run.device.copies(), wanted, "{length} bytes {source:?} {into:?}");
            }
        }
        for _ in 0..REGISTERING_TURNS {
            run.turn();
        }
        let [one, _] = run.links.as_ref().expect("they stand");
        assert_eq!(run.is_reached(), one.traits().reacher.is_some() && !crate::verbs::is_real());
    }
    assert_eq!(run.epoch, 1, "no link was lost");
    run.check();
}

/// Tensors of every size move from and to device memory, with one copy at each end that is in device memory; a copy that fails ends its
/// request and nothing else.
pub fn device_memory_is_copied_at_each_end(make: Make) {
    let mut run = Run::new(make, 0);
    let ways = [(Memory::Device, None), (Memory::Device, Some(Memory::Own)), (Memory::Foreign, Some(Memory::Device))];
    for (source, destination) in ways.into_iter().chain([(Memory::Device, Some(Memory::Device))]) {
        for (number, length) in SIZES.into_iter().enumerate() {
            let (before, side) = (run.device.copies(), number % 2);
            let bytes = run.memory_of(source, contents(run.sides[side].asked.len() as u32, length));
            let into = destination.map(|kind| run.memory_of(kind, vec![0; length + 1]));
            run.ask_for(side, (bytes, Manner::Answers), into, FOREVER);
            run.settle();
            assert_eq!(run.sides[side].asked.last(), Some(&Fate::Arrived), "{length} bytes {source:?} {destination:?}");
            let (out, into) = (u64::from(source == Memory::Device), u64::from(destination == Some(Memory::Device)));
            // The check reads what is in device memory with one more copy.
            let wanted = Copies { to_host: before.to_host + out + into, from_host: before.from_host + into };
            assert_eq!(run.device.copies(), wanted, "{length} bytes {source:?} {destination:?}");
        }
    }
    for (number, length) in SIZES.into_iter().enumerate() {
        for passing in 0..2 {
            // The copy to the host fails, or the copy into the device after it.
            let side = number % 2;
            let bytes = run.memory_of(Memory::Device, contents(run.sides[side].asked.len() as u32, length));
            let into = run.memory_of(Memory::Device, vec![0; length]);
            run.device.fail_after(passing, 1);
            run.ask_for(side, (bytes, Manner::Answers), Some(into), FOREVER);
            run.settle();
            assert_eq!(run.sides[side].asked.last(), Some(&Fate::Ended(Code::Unavailable)), "{length} bytes");
        }
    }
    assert_eq!(run.epoch, 1, "no link was lost");
    run.copies_fail = true;
    run.check();
}

/// How the producer of a key behaves when asked: the same way every time.
#[derive(Clone, Copy, PartialEq)]
enum Manner {
    Answers,
    Parks,
    Refuses,
}

/// A tensor that exists once: at home, or lent to the session.
struct Kept {
    manner: Manner,
    at_home: Option<Payload>,
    taken: bool,
}

#[derive(Debug, PartialEq)]
enum Fate {
    Waits(Handle),
    Arrived,
    Ended(Code),
    Cancelled,
}

struct Side {
    session: Session<u32, u32>,
    slab: Slab,
    /// Slab to which tensors in device memory are copied to be sent.
    copies: Slab,
    /// The memory in which each tensor that this side asks for is wanted.
    wanted_in: Vec<MemoryKind>,
    /// Requests of this side, by number; the key is the number as text.
    asked: Vec<Fate>,
    /// Tensors that the other side may ask for.
    kept: HashMap<u32, Kept>,
    parked: Vec<(Handle, u32)>,
    answered: usize,
}

struct Run {
    make: Make,
    random: SmallRng,
    now: Instant,
    links: Option<crate::ends::Ends>,
    sides: [Side; 2],
    epoch: u32,
    device: FakeDevice,
    export: FakeExport,
    /// Copies of the device may fail.
    copies_fail: bool,
}

pub(crate) fn contents(number: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ number.wrapping_mul(97)) as u8).collect()
}

impl Side {
    fn new(limits: SessionLimits) -> Self {
        let slab = |name, bytes| Slab::new(SlabSettings { name, bytes, populate: false }).unwrap();
        // So little memory to send from that some tensors have to wait for it.
        let (slab, copies) = (slab("receive", 16 << 20), slab("send", 2 << 20));
        let mut session = Session::new("the other", 1, limits);
        session.set_copy_slab(copies.clone());
        let (wanted_in, asked, kept, parked) = (Vec::new(), Vec::new(), HashMap::new(), Vec::new());
        Self { session, slab, copies, wanted_in, asked, kept, parked, answered: 0 }
    }

    fn lose(&mut self, link: &mut dyn Link) {
        let landings = link.abandon(self.session.outbox());
        self.session.detach(landings);
        self.parked.clear();
    }

    /// Writes, then reads; false if the link is dead.
    fn turn(&mut self, now: Instant, link: &mut dyn Link, one_message: bool, moved: &mut usize) -> bool {
        let traits = link.traits();
        self.session.outbox().set_traits(traits);
        if traits.open {
            self.session.fill(now, one_message);
        }
        let sent = link.transmit(self.session.outbox(), usize::MAX, false);
        self.session.collect_written();
        let read = link.receive(&mut self.session.inbound(now, &self.slab), RECEIVE_BUDGET);
        if let Ok(count @ 1..) = read {
            self.session.heard(now);
            *moved += count;
        }
        *moved += sent.as_ref().unwrap_or(&0);
        self.handle_events();
        sent.is_ok() && read.is_ok()
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Requested(asked) => self.serve(&asked),
                Event::Cancelled(id) => {
                    if let Some(at) = self.parked.iter().position(|(parked, _)| *parked == id) {
                        self.parked.swap_remove(at);
                        self.session.unpark();
                    }
                }
                Event::RequestEnded { waiter, outcome } => {
                    let fate = &mut self.asked[waiter as usize];
                    assert!(matches!(fate, Fate::Waits(_)), "request {waiter} ended twice: {fate:?}");
                    *fate = match *outcome {
                        Ok(arrived) => {
                            let length = arrived.buffer.len();
                            assert_eq!(arrived.meta[..], (length as u64).to_le_bytes());
                            assert_eq!(arrived.buffer.memory(), self.wanted_in[waiter as usize]);
                            let is_identical = bytes_of(&arrived.buffer) == contents(waiter, length);
                            assert!(is_identical, "tensor {waiter} is not identical");
                            Fate::Arrived
                        }
                        Err(unanswered) => Fate::Ended(unanswered.error.code()),
                    };
                }
                Event::Released { pending, tensor, taken } => {
                    let kept = self.kept.get_mut(&pending).expect("lent");
                    assert!(kept.at_home.is_none() && !kept.taken, "tensor {pending} came home twice");
                    kept.taken = taken;
                    kept.at_home = Some(tensor.1);
                }
                other => panic!("nobody aborts, pulls or pushes: {other:?}"),
            }
        }
    }

    fn serve(&mut self, asked: &PeerRequest) {
        let number = self.session.key(asked).parse().expect("keys are numbers");
        let kept = &self.kept[&number];
        assert!(kept.at_home.is_some() && !kept.taken, "tensor {number} was asked for while it was lent or taken");
        match kept.manner {
            Manner::Answers => self.answer(asked.id, number),
            Manner::Parks => {
                self.session.park(asked.id);
                self.parked.push((asked.id, number));
            }
            Manner::Refuses => self.session.refuse(asked.id, &Error::invalid("never")),
        }
    }

    fn answer(&mut self, id: Handle, number: u32) {
        let payload = self.kept.get_mut(&number).and_then(|kept| kept.at_home.take()).expect("at home");
        let meta = Meta::from_slice(&(payload.len() as u64).to_le_bytes());
        assert!(self.session.respond(id, meta, payload, number).is_ok());
        self.answered += 1;
    }

    fn answer_parked(&mut self, at: usize) {
        let (id, number) = self.parked.swap_remove(at);
        self.session.unpark();
        self.answer(id, number);
    }
}

impl Run {
    fn new(make: Make, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut limits = || SessionLimits {
            window: random.random_range(1..60),
            chunk_bytes: if random.random_bool(0.7) { random.random_range(1_000..100_000) } else { 1 << 20 },
            heartbeat: Duration::from_millis(50),
            peer_timeout: Duration::from_millis(200),
            ..SessionLimits::default()
        };
        let sides = [Side::new(limits()), Side::new(limits())];
        let device = FakeDevice::default();
        let export = device.export(EXPORTED);
        Self { make, random, now: Instant::now(), links: None, sides, epoch: 0, device, export, copies_fail: false }
    }

    /// True if both links have registered the exported memory.
    fn is_reached(&self) -> bool {
        let reachers = self.links.iter().flatten().map(|link| link.traits().reacher);
        let mut reach = reachers.map(|reacher| reacher.map(|reacher| self.export.region().reach(reacher)));
        reach.all(|reach| reach == Some(Reach::Yes))
    }

    /// Memory of the process, a client, or a device.
    fn memory(&mut self, bytes: Vec<u8>) -> Buffer {
        // In a transfer that has to copy, for want of a window or of a client's registration, a copy that fails ends the link.
        let exported = if self.copies_fail { Memory::Device } else { Memory::Exported };
        let kinds = [Memory::Own, Memory::Own, Memory::Foreign, Memory::Device, exported];
        let kind = kinds[self.random.random_range(0..kinds.len())];
        self.memory_of(kind, bytes)
    }

    fn memory_of(&self, kind: Memory, bytes: Vec<u8>) -> Buffer {
        match kind {
            Memory::Own => Buffer::from_vec(bytes),
            Memory::Foreign => foreign(bytes),
            Memory::Exported if let Some(buffer) = self.export.with(&bytes) => buffer,
            Memory::Device | Memory::Exported => self.device.with(&bytes),
        }
    }

    fn ask(&mut self, side: usize, patience: Duration) {
        let length = SIZES[self.random.random_range(0..SIZES.len())];
        let manner = match self.random.random_range(0..10) {
            0..6 => Manner::Answers,
            6..9 => Manner::Parks,
            _ => Manner::Refuses,
        };
        let number = self.sides[side].asked.len() as u32;
        let bytes = self.memory(contents(number, length));
        let room = length + self.random.random_range(0..2);
        let brings = self.random.random_bool(0.5);
        let destination = brings.then(|| self.memory(vec![0; room]));
        self.ask_for(side, (bytes, manner), destination, patience);
    }

    fn ask_for(&mut self, side: usize, (bytes, manner): (Buffer, Manner), into: Option<Buffer>, patience: Duration) {
        let number = self.sides[side].asked.len() as u32;
        let kept = Kept { manner, at_home: Some(bytes.into()), taken: false };
        self.sides[1 - side].kept.insert(number, kept);
        let wanted_in = into.as_ref().map_or(MemoryKind::Host, Buffer::memory);
        self.sides[side].wanted_in.push(wanted_in);
        let destination = into;
        let (deadline, key) = (self.now + patience, number.to_string());
        let params = RequestParams {
            consumer: 0,
            producer: 0,
            step: 1,
            key: &key,
            deadline,
            destination: destination.map(Into::into),
            waiter: number,
        };
        let handle = self.sides[side].session.request(self.now, params).expect("few enough");
        self.sides[side].asked.push(Fate::Waits(handle));
    }

    fn cancel_one(&mut self, side: usize) {
        let side = &mut self.sides[side];
        let at = self.random.random_range(0..side.asked.len().max(1));
        if let Some(Fate::Waits(handle)) = side.asked.get(at) {
            assert_eq!(side.session.cancel(*handle).expect("it waits").0 as usize, at);
            side.asked[at] = Fate::Cancelled;
        }
    }

    fn lose_links(&mut self) {
        if let Some(mut links) = self.links.take() {
            for (side, link) in self.sides.iter_mut().zip(&mut links) {
                side.lose(&mut **link);
                side.handle_events();
            }
        }
    }

    fn connect(&mut self, seed: u64) {
        if self.links.is_some() {
            return;
        }
        self.epoch += 1;
        self.links = Some((self.make)(seed));
        for (number, side) in self.sides.iter_mut().enumerate() {
            register(number, &side.slab);
            register(number, &side.copies);
            side.session.attach(self.now, self.epoch, Roster { numbers: vec![0] }, u64::MAX);
        }
    }

    /// One turn of both sides; true if anything moved.
    fn turn(&mut self) -> bool {
        let mut moved = 0;
        let mut stands = true;
        if let Some(links) = &mut self.links {
            for (side, link) in self.sides.iter_mut().zip(links) {
                stands &= side.turn(self.now, &mut **link, self.random.random_bool(0.3), &mut moved);
            }
        }
        for side in &mut self.sides {
            stands &= side.session.handle_timeout(self.now).is_ok();
            side.handle_events();
        }
        if !stands {
            self.lose_links();
        }
        moved > 0
    }

    fn step(&mut self) {
        let side = self.random.random_range(0..2);
        match self.random.random_range(0..100) {
            0..40 => {
                let patience = if self.random.random_bool(0.1) { Duration::from_millis(30) } else { FOREVER };
                self.ask(side, patience);
            }
            40..44 => self.cancel_one(side),
            44..52 => {
                let parked = self.sides[side].parked.len();
                if parked > 0 {
                    let at = self.random.random_range(0..parked);
                    self.sides[side].answer_parked(at);
                }
            }
            52..53 => self.lose_links(),
            53..58 => {
                let seed = self.random.random();
                self.connect(seed);
            }
            58..62 => self.now += Duration::from_millis(self.random.random_range(1..40)),
            _ => _ = self.turn(),
        }
    }

    /// Runs, lets everything end over links without faults, and checks that nothing is left.
    fn finish(mut self) {
        if self.random.random_bool(0.5) {
            self.copies_fail = true;
            self.device.fail_each(self.random.random_range(10..50));
        }
        for _ in 0..STEPS {
            self.step();
        }
        self.lose_links();
        self.settle();
        self.check();
    }

    /// Lets everything end over links without faults.
    fn settle(&mut self) {
        let mut steps = 0;
        while self.sides.iter().any(|side| side.session.requests() + side.session.unreleased() > 0) {
            steps += 1;
            assert!(steps < LAST_STEPS, "the run does not end: {}", self.standing());
            self.connect(0);
            for side in &mut self.sides {
                while !side.parked.is_empty() {
                    side.answer_parked(0);
                }
            }
            if !self.turn()
                && let Some([one, other]) = &self.links
            {
                let writing = |side: &mut Side| !side.session.outbox().is_empty();
                let [first, second] = &mut self.sides;
                wait(&[(&**one, writing(first)), (&**other, writing(second))]);
            }
        }
    }

    fn standing(&self) -> String {
        let side =
            |side: &Side| format!("{} requests, {} unreleased", side.session.requests(), side.session.unreleased());
        format!("{} and {}", side(&self.sides[0]), side(&self.sides[1]))
    }

    fn check(&self) {
        for (index, side) in self.sides.iter().enumerate() {
            let other = &self.sides[1 - index];
            assert_eq!(side.slab.in_use_bytes(), 0, "every block of the receive slab came back");
            assert_eq!(side.copies.in_use_bytes(), 0, "every copy of a device's memory was dropped");
            for (number, fate) in side.asked.iter().enumerate() {
                let kept = &other.kept[&(number as u32)];
                assert!(kept.at_home.is_some(), "tensor {number} came home");
                assert_eq!(kept.taken, *fate == Fate::Arrived, "tensor {number}: {fate:?}");
                let refused = *fate == Fate::Ended(Code::InvalidArgument);
                assert!(!refused || kept.manner == Manner::Refuses, "tensor {number} was refused");
                let mut ended = matches!(fate, Fate::Ended(Code::InvalidArgument | Code::DeadlineExceeded));
                let of_device = |kind| matches!(kind, MemoryKind::Device(_));
                let source = kept.at_home.as_ref().map_or(MemoryKind::Host, Payload::memory);
                if self.copies_fail && (of_device(source) || of_device(side.wanted_in[number])) {
                    ended |= *fate == Fate::Ended(Code::Unavailable);
                }
                assert!(ended || matches!(fate, Fate::Arrived | Fate::Cancelled), "tensor {number}: {fate:?}");
            }
            let arrived = side.asked.iter().filter(|fate| **fate == Fate::Arrived).count();
            assert!(arrived * 3 > side.asked.len(), "{arrived} of {} tensors arrived", side.asked.len());
            assert!(other.answered >= arrived);
        }
        let at_home = self.sides.iter().flat_map(|side| side.kept.values()).filter_map(|kept| kept.at_home.as_ref());
        let on_device: usize = at_home.filter(|payload| payload.device().is_some()).map(Payload::len).sum();
        assert_eq!(self.device.in_use_bytes(), on_device, "every destination was given back or dropped");
    }
}
