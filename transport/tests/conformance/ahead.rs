//! Two sessions that send small tensors ahead of their requests, over links that come and go as a seed chooses. Each tensor ends exactly
//! once: taken by the receiving side, or back at the sending side.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use sealane_runtime::{Buffer, Slab, SlabSettings, VolatileSlice};
use sealane_transport::session::{
    AheadParams, CameAhead, CameTogether, Event, KeyOf, PeerRequest, Roster, Session, Sink, TakenTogether, Untaken,
};
use sealane_transport::wire::{Fate, WireError};
use sealane_transport::{Handle, Payload, SessionLimits, Tensor};

use crate::ends::{Ends, Make, wait};
use crate::run::contents;
use crate::verbs::{end_run, register};

const SEEDS: u64 = 6;
const STEPS: usize = 600;
const LAST_STEPS: usize = 100_000;
/// Most tensors sent in one go; more than fit in a frame.
const TOGETHER_MAX: u32 = 40;
const RECEIVE_BUDGET: usize = 256 * 1024;

pub fn what_is_sent_ahead_ends_once(make: Make) {
    for seed in 0..SEEDS {
        Run::new(make, seed).finish();
        end_run();
    }
}

/// Length of a tensor: some have no bytes, some as many as may be sent ahead.
fn length(tensor: u32) -> usize {
    [0, 8, 64, 1000, 4096][tensor as usize % 5]
}

/// What has come to a side, and how the tensors that it sent have ended.
#[derive(Default)]
struct Ended {
    /// Number, cost and tensor of those that wait for a recv.
    kept: Vec<(u64, usize, u32)>,
    taken: HashSet<u32>,
    /// By tensor that it sent: true if it was taken.
    ended: HashMap<u32, bool>,
}

impl Ended {
    fn came(&mut self, key: &[u8], payload: &[u8]) -> u32 {
        let tensor = std::str::from_utf8(key).unwrap().parse().unwrap();
        assert!(payload == contents(tensor, length(tensor)), "tensor {tensor} is not identical");
        tensor
    }

    fn end(&mut self, tensor: u32, taken: bool) {
        assert_eq!(self.ended.insert(tensor, taken), None, "tensor {tensor} has ended twice");
    }

    fn take(&mut self, tensor: u32) {
        assert!(self.taken.insert(tensor), "tensor {tensor} was taken twice");
    }
}

impl Sink<u32, u32> for Ended {
    fn requested(&mut self, _: &mut Session<u32, u32>, _: &PeerRequest, _: &[u8]) -> Result<(), WireError> {
        unreachable!("nobody asks")
    }

    fn arrived(&mut self, _: u32, _: Instant, _: &[u8], _: Buffer) -> bool {
        unreachable!("nobody asks")
    }

    fn taken(&mut self, _: u32, _: Payload) {
        unreachable!("nobody asks")
    }

    fn pushed(&mut self, _: Handle, _: Tensor) -> Result<(), Untaken> {
        unreachable!("nobody pushes")
    }

    fn came_ahead(&mut self, _: &mut Session<u32, u32>, came: &CameAhead<'_>) -> Result<Option<Fate>, WireError> {
        let tensor = self.came(came.key, came.payload);
        Ok(match tensor % 4 {
            0 => Some(Fate::Returned),
            1 => {
                self.take(tensor);
                Some(Fate::Taken)
            }
            _ => {
                self.kept.push((came.number, came.cost(), tensor));
                None
            }
        })
    }

    fn looks_at_frames(&self) -> bool {
        true
    }

    fn came_together(&mut self, frame: &CameTogether<'_>) -> TakenTogether {
        // Half of the tensors at once in some frames, otherwise each by itself.
        let count = if frame.first.is_multiple_of(3) { frame.records.iter().count() / 2 } else { 0 };
        for record in frame.records.iter().take(count) {
            let record = record.unwrap();
            let tensor = self.came(record.key, record.payload);
            self.take(tensor);
        }
        TakenTogether { count: count as u32, is_all: false, kept: None }
    }

    fn revoked(&mut self, number: u64, _: KeyOf<'_>) -> Option<usize> {
        let at = self.kept.iter().position(|(kept, ..)| *kept == number)?;
        Some(self.kept.swap_remove(at).1)
    }

    fn taken_ahead(&mut self, tensor: u32, count: u32) {
        assert_eq!(count, 1, "each is a pending send of its own");
        self.end(tensor, true);
    }
}

struct Side {
    session: Session<u32, u32>,
    slab: Slab,
    ends: Ended,
    /// Tensors that this side has sent.
    sent: HashSet<u32>,
    /// Number of a sent tensor, to be revoked.
    last: Option<u64>,
}

struct Run {
    make: Make,
    random: SmallRng,
    now: Instant,
    links: Option<Ends>,
    sides: [Side; 2],
    epoch: u32,
    /// The next tensor number, shared by both sides.
    next: u32,
}

impl Side {
    fn new() -> Self {
        let slab = Slab::new(SlabSettings { name: "receive", bytes: 1 << 20, populate: false }).unwrap();
        let session = Session::new("the other", 1, SessionLimits::default());
        Self { session, slab, ends: Ended::default(), sent: HashSet::new(), last: None }
    }

    /// Sends `count` tensors, or as many as there is credit for.
    fn send(&mut self, next: &mut u32, count: u32, alone: bool) {
        let Some(mut sending) = self.session.send_ahead((0, 0), 1, alone) else { return };
        for _ in 0..count {
            let (tensor, key, meta) = (*next, next.to_string(), [7; 9]);
            let bytes = contents(tensor, length(tensor));
            if !sending.has_room(key.len() + meta.len(), bytes.len()) {
                return;
            }
            (self.last, *next) = (Some(sending.next()), tensor + 1);
            assert!(self.sent.insert(tensor));
            sending.add(AheadParams {
                key: &key,
                meta: &meta,
                payload: VolatileSlice::from(&bytes[..]),
                pending: tensor,
            });
        }
    }

    /// A recv takes the tensor that has waited longest, or it is returned.
    fn release(&mut self, taken: bool) {
        if self.ends.kept.is_empty() {
            return;
        }
        let (number, cost, tensor) = self.ends.kept.remove(0);
        if taken {
            self.ends.take(tensor);
        }
        self.session.release_ahead((number, 1), cost, if taken { Fate::Taken } else { Fate::Returned });
    }

    fn turn(&mut self, now: Instant, link: &mut dyn sealane_transport::Link, moved: &mut usize) -> bool {
        let traits = link.traits();
        self.session.outbox().set_traits(traits);
        if traits.open {
            self.session.fill(now, false);
        }
        let sent = link.transmit(self.session.outbox(), usize::MAX, false);
        self.session.collect_written();
        let read = link.receive(&mut self.session.inbound_to(now, &self.slab, &mut self.ends), RECEIVE_BUDGET);
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
                Event::TakenAhead { pending, .. } => self.ends.end(pending, true),
                Event::BackFromAhead(back) => {
                    assert_eq!((&*back.key, &back.meta[..]), (&*back.pending.to_string(), &[7; 9][..]));
                    assert!(back.buffer[..] == contents(back.pending, length(back.pending)), "back, and another");
                    self.ends.end(back.pending, false);
                }
                other => panic!("nobody asks, pulls or pushes: {other:?}"),
            }
        }
    }
}

impl Run {
    fn new(make: Make, seed: u64) -> Self {
        let (random, sides) = (SmallRng::seed_from_u64(seed), [Side::new(), Side::new()]);
        Self { make, random, now: Instant::now(), links: None, sides, epoch: 0, next: 0 }
    }

    fn connect(&mut self, seed: u64) {
        if self.links.is_some() {
            return;
        }
        self.epoch += 1;
        self.links = Some((self.make)(seed));
        for (number, side) in self.sides.iter_mut().enumerate() {
            register(number, &side.slab);
            side.session.attach(self.now, self.epoch, Roster { numbers: vec![0] }, u64::MAX);
        }
    }

    fn lose_links(&mut self) {
        for (side, link) in self.sides.iter_mut().zip(self.links.take().into_iter().flatten()) {
            let landings = { link }.abandon(side.session.outbox());
            side.session.detach(landings);
            side.ends.kept.clear();
            side.handle_events();
        }
    }

    /// One turn of both sides; true if anything moved.
    fn turn(&mut self) -> bool {
        let (mut moved, mut stands) = (0, true);
        for (side, link) in self.sides.iter_mut().zip(self.links.iter_mut().flatten()) {
            stands &= side.turn(self.now, &mut **link, &mut moved);
        }
        if !stands {
            self.lose_links();
        }
        moved > 0
    }

    fn step(&mut self) {
        let side = &mut self.sides[self.random.random_range(0..2)];
        match self.random.random_range(0..100) {
            0..25 => {
                let (count, alone) = (self.random.random_range(1..TOGETHER_MAX), self.random.random_bool(0.2));
                side.send(&mut self.next, count, alone);
            }
            25..45 => side.release(self.random.random_bool(0.7)),
            45..50 => side.last.take().into_iter().for_each(|number| side.session.revoke_ahead(number)),
            50..51 => self.lose_links(),
            51..56 => {
                let seed = self.random.random();
                self.connect(seed);
            }
            56..58 => self.now += Duration::from_millis(1),
            _ => _ = self.turn(),
        }
        self.sides.iter_mut().for_each(Side::handle_events);
    }

    fn finish(mut self) {
        (0..STEPS).for_each(|_| self.step());
        self.lose_links();
        let mut steps = 0;
        while self.sides.iter().any(|side| side.ends.ended.len() < side.sent.len()) {
            steps += 1;
            assert!(steps < LAST_STEPS, "the run does not end");
            self.connect(0);
            self.sides.iter_mut().for_each(|side| side.release(true));
            if !self.turn()
                && let Some([one, other]) = &self.links
            {
                let [first, second] = &mut self.sides;
                let writing = |side: &mut Side| !side.session.outbox().is_empty();
                wait(&[(&**one, writing(first)), (&**other, writing(second))]);
            }
        }
        for (index, side) in self.sides.iter().enumerate() {
            let other = &self.sides[1 - index].ends;
            let taken: HashSet<u32> =
                side.ends.ended.iter().filter(|(_, taken)| **taken).map(|(tensor, _)| *tensor).collect();
            assert_eq!(taken, other.taken, "what one side says was taken is what the other has taken");
            assert!(taken.len() > 50 && taken.len() < side.sent.len(), "{} of {}", taken.len(), side.sent.len());
            side.session.check_ahead(0).unwrap();
        }
    }
}
