//! The raw consumer over verbs: one round of each measurement, on the calling thread.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use sealane_transport::verbs::device::Remote;

use super::areas::{tensors_a_send, writes_outstanding};
use super::end::End;
use crate::error::BenchError;
use crate::limits::{FILL, REQUEST_BYTES};
use crate::plan::{Bench, Plan};
use crate::sample::{Sample, record_round_trip, round_trip_histogram};
use crate::step_tally::StepTally;
use crate::stopwatch::{RoundClock, Tally};
use crate::systems::gap::pass;
use crate::systems::raw::{NAME, explained};

/// A request, and a write with a word.
const MESSAGES_A_STEP: f64 = 2.0;

/// See the module.
pub(super) struct Consumer {
    end: End,
    /// Where the producer's bytes are.
    theirs: Remote,
    /// Slots of what has come, to be posted again; kept to reuse its memory.
    taken: Vec<usize>,
}

impl Consumer {
    pub(super) fn new(end: End, theirs: Remote) -> Self {
        Self { end, theirs, taken: Vec::new() }
    }

    /// One round, after which nothing is in flight.
    pub(super) fn round(&mut self, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
        let sample = match plan.bench {
            Bench::Latency => self.round_trips(plan, length).map_err(explained)?,
            Bench::Rate => self.rate(plan, length).map_err(explained)?,
            Bench::Bandwidth => {
                let (sample, last) = self.bandwidth(plan, length).map_err(explained)?;
                if !self.has_arrived(plan, last).map_err(explained)? {
                    return Err(BenchError::WrongBytes { system: NAME, tensor: last });
                }
                sample
            }
            Bench::Fuse => {
                let place = self.end.areas().place();
                self.end.fill(place..place + self.end.areas().place_bytes, 0);
                let sample = self.steps(plan, length).map_err(explained)?;
                self.check_step(plan)?;
                sample
            }
            none => none.is_measured_elsewhere(),
        };
        Ok(sample)
    }

    fn round_trips(&mut self, plan: &Plan, length: Duration) -> io::Result<Sample> {
        let mut histogram = round_trip_histogram();
        let clock = RoundClock::start(Instant::now(), length);
        loop {
            if let Some(idle) = plan.idle() {
                pass(idle, plan.polling);
            }
            let asked = Instant::now();
            self.ask_one()?;
            let answered = Instant::now();
            if clock.counts(asked) {
                record_round_trip(&mut histogram, answered - asked);
                if clock.is_over(answered) {
                    return Ok(Sample::round_trips(histogram));
                }
            }
        }
    }

    /// Sends a request, and gives the buffer of the last answer back meanwhile.
    #[inline]
    pub(super) fn ask(&mut self) -> io::Result<()> {
        self.end.send(REQUEST_BYTES);
        self.end.flush()?;
        self.taken.drain(..).for_each(|slot| self.end.receive(slot));
        self.end.flush_receives()
    }

    /// Sends a request and waits for its answer.
    #[inline]
    fn ask_one(&mut self) -> io::Result<()> {
        self.ask()?;
        while self.taken.is_empty() {
            self.taken.extend(self.end.wait()?.iter().map(|arrival| arrival.slot));
        }
        Ok(())
    }

    /// A window of requests in flight, in a few SENDs or one each; what is answered is asked again at once.
    fn rate(&mut self, plan: &Plan, length: Duration) -> io::Result<Sample> {
        let at_once = tensors_a_send(plan);
        // Requests that are to be sent, by the SEND.
        let mut to_ask: VecDeque<usize> = VecDeque::new();
        let mut left = plan.window;
        while left > 0 {
            to_ask.push_back(left.min(at_once));
            left -= left.min(at_once);
        }
        let mut in_flight = 0;
        let mut over = false;
        let mut tally = Tally::start(Instant::now(), length);
        loop {
            while !over
                && self.end.room() > 0
                && let Some(requests) = to_ask.pop_front()
            {
                self.end.send(requests * REQUEST_BYTES);
                in_flight += requests;
            }
            self.end.flush()?;
            if over && in_flight == 0 {
                return Ok(tally.sample(plan));
            }
            let mut complete = 0;
            for arrival in self.end.wait()? {
                let tensors = arrival.bytes / plan.size_bytes;
                to_ask.push_back(tensors);
                complete += tensors;
                self.taken.push(arrival.slot);
            }
            self.taken.drain(..).for_each(|slot| self.end.receive(slot));
            self.end.flush_receives()?;
            in_flight -= complete;
            over |= tally.completed(complete as u64, Instant::now());
        }
    }

    /// Tensors into the producer's memory, which has a place for each of a window; the place of the last one, too.
    fn bandwidth(&mut self, plan: &Plan, length: Duration) -> io::Result<(Sample, usize)> {
        let places = writes_outstanding(plan);
        let piece_max = self.end.write_bytes_max();
        // The requests that end a tensor.
        let mut ends: VecDeque<u64> = VecDeque::new();
        let (mut place, mut written) = (0, 0);
        let mut over = false;
        let mut tally = Tally::start(Instant::now(), length);
        loop {
            while (!over || written > 0) && ends.len() < places && self.end.room() > 0 {
                let piece = (plan.size_bytes - written).min(piece_max);
                let offset = (place * plan.size_bytes + written) as u64;
                let to = Remote { address: self.theirs.address + offset, rkey: self.theirs.rkey };
                self.end.write(written..written + piece, to, None, written + piece == plan.size_bytes);
                written += piece;
                if written == plan.size_bytes {
                    ends.push_back(self.end.progress().0);
                    (place, written) = ((place + 1) % places, 0);
                }
            }
            self.end.flush()?;
            if over && ends.is_empty() && written == 0 {
                let last = (place + places - 1) % places;
                return Ok((tally.sample(plan), last));
            }
            self.end.wait()?;
            let done = self.end.progress().1;
            let before = ends.len();
            while ends.pop_front_if(|end| *end <= done).is_some() {}
            over |= tally.completed((before - ends.len()) as u64, Instant::now());
        }
    }

    /// Reads the last byte of a place back.
    fn has_arrived(&mut self, plan: &Plan, place: usize) -> io::Result<bool> {
        let offset = (place + 1) * plan.size_bytes - 1;
        let from = Remote { address: self.theirs.address + offset as u64, rkey: self.theirs.rkey };
        self.end.read(from, 1);
        self.end.flush()?;
        while self.end.progress().0 > self.end.progress().1 {
            self.end.wait()?;
        }
        let own = self.end.areas().place();
        Ok(self.end.is_all(own..own + 1, FILL))
    }

    /// One request a step, answered by all its bytes in their place.
    fn steps(&mut self, plan: &Plan, length: Duration) -> io::Result<Sample> {
        let mut tally = StepTally::start(Instant::now(), length);
        loop {
            let began = Instant::now();
            self.ask_one()?;
            if tally.completed(began, Instant::now()) {
                return Ok(tally.sample(plan, Some(MESSAGES_A_STEP)));
            }
        }
    }

    fn check_step(&self, plan: &Plan) -> Result<(), BenchError> {
        let mut start = self.end.areas().place();
        for (tensor, bytes) in plan.step.iter().enumerate() {
            if !self.end.is_all(start..start + bytes, FILL) {
                return Err(BenchError::WrongBytes { system: NAME, tensor });
            }
            start += bytes;
        }
        Ok(())
    }
}
