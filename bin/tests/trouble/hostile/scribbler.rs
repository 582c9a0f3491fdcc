//! A reproducible hostile client: it writes anything anywhere, and submits records that look valid but are wrong.

use std::sync::atomic::{AtomicU64, Ordering};

use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::shm::limits::TRUNK_WORDS;
use sealane_transport::shm::{
    AcceptedAt, Completion, KeyList, Moved, NO_TIMEOUT, PayloadAt, ReceivedAt, Span, Submission,
};

use super::{HEADER_BYTES, RING_BYTES};
use crate::fixture::ARENA_BYTES;
use crate::raw::Raw;
use crate::tensors::meta;

/// Call, key and step numbers that it uses: few, so that they collide.
const CALLS: u64 = 6;
const KEYS: [&str; 3] = ["some key", "another", ""];

/// Answers that it reads at a time.
const LOOKS: usize = 8;

/// Chooses what a hostile client does next.
pub struct Scribbler {
    state: u64,
    tokens: Vec<u64>,
}

impl Scribbler {
    pub fn new(seed: u64) -> Scribbler {
        Scribbler { state: seed, tokens: vec![0, 1, u64::MAX] }
    }

    /// The next number, by the generator known as SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// A number that is likely to be an edge case.
    fn number(&mut self) -> u64 {
        match self.below(4) {
            0 => self.below(5),
            1 => u64::MAX - self.below(5),
            2 => 1 << self.below(64),
            _ => self.next(),
        }
    }

    /// Does one thing; most often it then wakes the daemon.
    pub fn do_something_to(&mut self, villain: &mut Raw) {
        match self.below(16) {
            0 => self.scribble(&villain.memory()[..HEADER_BYTES as usize / 8]),
            1 => self.scribble(&villain.memory()[..(HEADER_BYTES + RING_BYTES) as usize / 8]),
            2 => self.scribble(villain.memory()),
            3 => self.scribble(villain.arena_words()),
            4 => self.write_nonsense(villain),
            5 => self.look(villain),
            6 => self.take_back_what_was_written(villain),
            _ => self.submit(villain),
        }
        if self.below(4) > 0 {
            villain.ring();
        }
    }

    fn scribble(&mut self, words: &[AtomicU64]) {
        for _ in 0..self.below(16) {
            let place = self.below(words.len() as u64) as usize;
            words[place].store(self.number(), Ordering::Release);
        }
    }

    /// A complete record without meaning.
    fn write_nonsense(&mut self, villain: &mut Raw) {
        let len = self.below(40);
        let words: Vec<u64> = (0..len).map(|_| self.number()).collect();
        let _ = villain.write_words(self.below(30) as u8, &words);
    }

    /// Reads some answers, and remembers the tokens that it may give back.
    fn look(&mut self, villain: &mut Raw) {
        for _ in 0..LOOKS {
            // The ring may hold what the client itself scribbled there.
            match villain.try_look() {
                Some(
                    Completion::Received {
                        payload: ReceivedAt::Area { token, .. } | ReceivedAt::Lending { token, .. },
                        ..
                    }
                    | Completion::Accepted { payload: AcceptedAt::Area { token, .. }, .. },
                ) => self.tokens.push(token),
                Some(_) => {}
                None => break,
            }
        }
        villain.end.completions.publish();
    }

    /// Moves one of the positions in the header.
    fn take_back_what_was_written(&mut self, villain: &Raw) {
        let memory = villain.memory();
        let word = self.below(80) as usize;
        let moved = memory[word].load(Ordering::Acquire).wrapping_add(self.below(TRUNK_WORDS));
        let moved = moved.wrapping_sub(TRUNK_WORDS / 2);
        memory[word].store(moved, Ordering::Release);
    }

    fn span(&mut self) -> Span {
        match self.below(8) {
            0 => Span { offset: self.number(), len: self.number() },
            1 => Span { offset: ARENA_BYTES - self.below(3), len: self.below(3) },
            _ => Span { offset: self.below(ARENA_BYTES / 2), len: self.below(ARENA_BYTES / 2) },
        }
    }

    /// A token that it was given, or made up.
    fn token(&mut self) -> u64 {
        let place = self.below(self.tokens.len() as u64) as usize;
        self.tokens[place]
    }

    /// The number of a plan, which may or may not be open.
    fn plan(&mut self) -> u32 {
        self.below(3) as u32
    }

    /// A record that may be valid by itself, but matches no other.
    fn submit(&mut self, villain: &mut Raw) {
        let call = self.below(CALLS) as u32;
        let peer = match self.below(32) {
            0 => self.next() as u16,
            _ => self.below(2) as u16,
        };
        let key = KEYS[self.below(KEYS.len() as u64) as usize];
        let step = self.below(3) as i64;
        let timeout_ms = [0, 1, 20, NO_TIMEOUT][self.below(4) as usize];
        let (place, inline) = (self.span(), [self.next() as u8; 64]);
        let is_inline = self.below(2) == 0;
        let tensor = meta(if is_inline { inline.len() } else { place.len as usize % ARENA_BYTES as usize });
        let (no_tensor, mut packed) = (self.next().to_le_bytes(), Vec::new());
        let mut named = NamedRowsBuf::default();
        let tokens: Vec<u64> = (0..self.below(4)).map(|_| self.token()).collect();
        let submission = match self.below(30) {
            0..6 => {
                let meta = if self.below(8) == 0 { &no_tensor[..] } else { tensor.as_wire() };
                let payload = if is_inline { PayloadAt::Inline(&inline) } else { PayloadAt::Arena(place) };
                Submission::Send { call, peer, step, timeout_ms, key, meta, payload }
            }
            6..10 => Submission::Recv {
                call: self.number() as u32,
                peer,
                step,
                timeout_ms,
                key,
                destination: None,
                fused: false,
                fail_if_gone: false,
            },
            10 => {
                // With the metadata of a tensor, of none, or broken metadata.
                let wanted = [&[][..], tensor.as_wire(), &no_tensor][self.below(3) as usize];
                let (destination, fused, fail_if_gone) = (Some((place, wanted)), true, is_inline);
                Submission::Recv { call, peer, step, timeout_ms, key, destination, fused, fail_if_gone }
            }
            11 => Submission::Cancel { call },
            12 => Submission::Abort { step, reason: "for no reason" },
            13 => Submission::Cleanup { step },
            14 => Submission::Free { tokens: &tokens },
            15 | 16 => {
                let payload = if is_inline { PayloadAt::Inline(&inline) } else { PayloadAt::Arena(place) };
                let (version, meta, more) = (step, tensor.as_wire(), self.below(4) == 0);
                Submission::Publish { call, version, key, meta, payload, more }
            }
            17 => Submission::Withdraw { key },
            18 => {
                let plan = self.plan();
                let _ = villain.write(&Submission::OpenPlan { plan, peer, keys: 1 });
                Submission::PlanKeys { plan, keys: KeyList::pack([key].into_iter(), &mut packed).unwrap() }
            }
            19 => {
                let (plan, min_version, views) = (self.plan(), step, is_inline);
                Submission::Pull { call, plan, min_version, timeout_ms, views, fail_if_gone: is_inline }
            }
            20 => Submission::ClosePlan { plan: self.plan() },
            28 => {
                for _ in 0..=self.below(3) {
                    named.name(key, &[self.below(9), self.number()], |_| 2);
                }
                let (rows, views, fail_if_gone) = (named.as_rows(), self.below(2) == 0, is_inline);
                Submission::Rows { call, peer, min_version: step, timeout_ms, rows, views, fail_if_gone }
            }
            21 | 22 => {
                let payload = if is_inline { PayloadAt::Inline(&inline) } else { PayloadAt::Arena(place) };
                Submission::Push { call, peer, timeout_ms, queue: key, meta: tensor.as_wire(), payload }
            }
            23 | 24 => {
                let (queue, bytes_max) = (self.plan(), self.number());
                let tensors_max = [1, 2, self.number() as u32][self.below(3) as usize];
                Submission::OpenQueue { queue, tensors_max, bytes_max, name: key }
            }
            25 => {
                let bytes = [1, 1000, self.number()][self.below(3) as usize];
                Submission::Grant { queue: self.plan(), tensors: self.below(20) as u32, bytes }
            }
            26 => Submission::CloseQueue { queue: self.plan() },
            27 => {
                let moved = Moved { tensors: self.number(), bytes: self.number() };
                Submission::Elsewhere { peer: Some(peer), sent: moved, received: moved }
            }
            _ => Submission::Peer { number: self.below(4) as u16, name: "ps0:2222" },
        };
        let _ = villain.write(&submission);
    }
}
