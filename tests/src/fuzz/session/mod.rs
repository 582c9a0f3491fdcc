//! A conversation between two sessions whose owners both keep the rules, over a wire that does not: bytes are cut anywhere, altered,
//! dropped and made up. Either end must go on, or end the link with an error that says why; limits hold at all times, every call ends
//! exactly once, and no memory stays taken.

mod end;

use std::time::{Duration, Instant};

use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::wire::{FRAME_HEADER_BYTES, parse};

use super::assert_says;
use super::forge::{KINDS, forge};
use super::frames::payload_behind;
use super::script::Script;
use end::End;

/// Tasks of each end.
const TASKS: usize = 2;
/// Steps that owners use.
const STEPS: usize = 3;
/// Receive memory of both ends: enough for a few of the largest tensors.
const SLAB_BYTES: usize = 1 << 20;
/// Most bytes made up at once.
const NOISE_BYTES_MAX: usize = 64;
/// Bytes at the front of a frame that matter most: its header and the numbers after it.
const BENT_BYTES: usize = FRAME_HEADER_BYTES + 20;
/// Most bytes that a wire holds; more are lost.
const WIRE_BYTES_MAX: usize = 1 << 20;

thread_local! {
    /// Made once: mapping its memory takes longer than most conversations.
    static SLAB: Slab = Slab::new(SlabSettings { name: "receive", bytes: SLAB_BYTES, populate: false }).expect("a megabyte");
}

/// The two ends, and the bytes on their way to each.
struct Conversation<'s> {
    ends: [End<'s>; 2],
    wires: [Vec<u8>; 2],
    now: Instant,
    epoch: u32,
}

/// Runs the script in the input, word by word.
pub(super) fn run(input: &[u8]) {
    SLAB.with(|slab| {
        let mut script = Script::new(input);
        let mut talk = Conversation {
            ends: [End::new(slab), End::new(slab)],
            wires: [Vec::new(), Vec::new()],
            now: Instant::now(),
            epoch: 0,
        };
        talk.attach();
        while !script.is_over() {
            talk.go_on(&mut script);
        }
        let Conversation { ends, .. } = talk;
        ends.into_iter().for_each(|end| end.finish(&mut script));
        assert_eq!(slab.in_use_bytes(), 0, "memory of tensors stays taken");
    });
}

impl Conversation<'_> {
    fn attach(&mut self) {
        self.epoch += 1;
        self.ends.iter_mut().for_each(|end| end.attach(self.now, self.epoch));
    }

    /// The link breaks and is replaced.
    fn anew(&mut self, script: &mut Script<'_>) {
        for end in &mut self.ends {
            end.detach();
            end.settle(script);
        }
        self.wires.iter_mut().for_each(Vec::clear);
        self.attach();
    }

    /// Carries out one word of the script.
    fn go_on(&mut self, script: &mut Script<'_>) {
        let word = script.byte();
        let (side, word) = (usize::from(word & 1), word >> 1);
        match word {
            0..=47 => self.ends[side].act(self.now, script),
            48..=63 => self.speak(side, script.byte() == 0),
            64..=79 => {
                let count = self.wires[side].len();
                self.hear(side, count, script);
            }
            80..=87 => {
                let count = script.below(1 << 16).min(self.wires[side].len());
                self.hear(side, count, script);
            }
            88..=116 => forge(usize::from(word - 88) % KINDS, script, &mut self.wires[side]),
            117 => self.wires[side].extend_from_slice(script.bytes(NOISE_BYTES_MAX)),
            118 => {
                let zeros = script.below(1 << 16);
                let length = self.wires[side].len() + zeros;
                self.wires[side].resize(length, 0);
            }
            119 | 120 => bend(&mut self.wires[side], script),
            121 => {
                let wire = &mut self.wires[side];
                let (at, with) = (script.below(1 << 16), script.byte());
                if let Some(byte) = wire.get_mut(at) {
                    *byte ^= with;
                }
            }
            122 => {
                let wire = &mut self.wires[side];
                let start = script.below(1 << 16).min(wire.len());
                let end = (start + script.below(1 << 16)).min(wire.len());
                wire.drain(start..end);
            }
            123 | 124 => self.wait(script),
            125 => self.anew(script),
            126 => {
                let (speaks, hears) = (side, 1 - side);
                self.speak(speaks, false);
                let count = self.wires[hears].len();
                self.hear(hears, count, script);
            }
            _ => self.restart(side, script),
        }
        self.wires[side].truncate(WIRE_BYTES_MAX);
        self.ends.iter().for_each(End::check);
    }

    fn speak(&mut self, side: usize, one_message: bool) {
        let [first, second] = &mut self.ends;
        let (end, wire) = if side == 0 { (first, &mut self.wires[1]) } else { (second, &mut self.wires[0]) };
        end.speak(self.now, one_message, wire);
    }

    fn hear(&mut self, side: usize, count: usize, script: &mut Script<'_>) {
        if !self.ends[side].session.can_receive() {
            return;
        }
        let heard = self.ends[side].hear(self.now, &self.wires[side][..count]);
        self.wires[side].drain(..count);
        self.ends[side].settle(script);
        if let Err(error) = heard {
            assert_says(&error);
            self.anew(script);
        }
    }

    /// Lets time pass: from an instant to longer than any timeout.
    fn wait(&mut self, script: &mut Script<'_>) {
        self.now += Duration::from_millis(script.one_of(&[1, 50, 1_000, 30_000]));
        let silent = self.ends.each_mut().map(|end| {
            let silent = end.session.handle_timeout(self.now);
            end.settle(script);
            silent
        });
        for error in silent.into_iter().filter_map(Result::err) {
            assert_says(&error);
            self.anew(script);
        }
    }

    /// One end learns that the other has restarted, and the other that it was forgotten.
    fn restart(&mut self, side: usize, script: &mut Script<'_>) {
        for end in &mut self.ends {
            end.detach();
        }
        let error = sealane_transport::Error::unavailable("10.0.0.2:7000", "it was restarted");
        self.ends[side].session.reset(&error);
        self.ends[1 - side].session.start_anew();
        self.epoch = 0;
        self.anew(script);
    }
}

/// Alters one byte near the front of a complete frame on the wire, if the wire begins with one.
fn bend(wire: &mut [u8], script: &mut Script<'_>) {
    let (mut starts, mut at) = (Vec::new(), 0);
    while let Some((frame, length)) = wire.get(at..).and_then(|rest| parse(rest).ok().flatten()) {
        starts.push(at);
        at = at.saturating_add(length).saturating_add(payload_behind(&frame) as usize);
    }
    if !starts.is_empty() {
        let (start, offset, with) = (script.one_of(&starts), script.below(BENT_BYTES), script.byte());
        if let Some(byte) = wire.get_mut(start + offset) {
            *byte ^= with;
        }
    }
}

/// Conversations that end well.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    /// Script words for one end.
    const ACT: u8 = 0;
    const TURN: u8 = 126 << 1;
    let act = |side: u8, deadline: u8, what: u8, more: &[u8]| [&[ACT | side, deadline, 0, 1, what][..], more].concat();
    // A turn of one end, with decisions for the other end, and a turn of the other end.
    let turns = |decisions: &[u8]| [&[TURN][..], decisions, &[TURN | 1]].concat();
    let asks = |more: &[u8]| act(0, 200, 0, more);
    let pulls = [act(0, 9, 5, &[0, 3]), act(1, 0, 9, &[0, 1, 2]), act(1, 0, 9, &[1, 1, 5]), act(0, 9, 6, &[0, 0, 1])];
    let pushes = [act(0, 0, 10, &[1]), act(0, 99, 11, &[0, 1]), act(0, 99, 12, &[0, 5])];
    vec![
        [asks(&[0, 1, 0, 1]), turns(&[2, 1]), vec![TURN, TURN | 1]].concat(),
        [asks(&[1, 4, 2, 2, 0]), asks(&[0, 1, 1, 0]), turns(&[2, 5, 1]), act(1, 9, 4, &[1, 5]), turns(&[])].concat(),
        [pulls.concat(), turns(&[1, 0]), turns(&[]), act(1, 0, 9, &[2, 2, 4]), turns(&[]), turns(&[])].concat(),
        [pushes.concat(), turns(&[]), turns(&[1, 1]), vec![TURN, TURN | 1], vec![125 << 1, 0], turns(&[])].concat(),
        [asks(&[0, 0, 0, 0]), vec![TURN, 0, 123 << 1, 2, 127 << 1, TURN, TURN | 1]].concat(),
    ]
}
