//! The raw producer over verbs: answers requests, a SEND for each, or a WRITE of a step's bytes. Its own thread's, one
//! bounded turn at a time.

use std::collections::VecDeque;
use std::io;

use sealane_transport::verbs::device::Remote;

use super::end::End;
use crate::limits::REQUEST_BYTES;
use crate::plan::{Bench, Plan};

/// See the module.
pub(super) struct Producer {
    end: End,
    answers: Answers,
    /// Answers that wait for room in the send queue.
    owed: VecDeque<usize>,
    arrived: Vec<(usize, usize)>,
}

enum Answers {
    /// As many tensors of so many bytes as there were requests.
    Tensors(usize),
    /// All bytes of a step, into the consumer's memory.
    Step { left: usize, to: Remote },
}

impl Producer {
    pub(super) fn new(plan: &Plan, end: End, to: Remote) -> Self {
        let answers = match plan.bench {
            Bench::Fuse => Answers::Step { left: 0, to },
            _ => Answers::Tensors(plan.size_bytes),
        };
        Self { end, answers, owed: VecDeque::new(), arrived: Vec::new() }
    }

    /// Waits for requests, or for room to answer former ones, and answers what it can.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        self.arrived.clear();
        self.arrived.extend(self.end.wait()?.iter().map(|arrival| (arrival.slot, arrival.bytes)));
        self.owed.extend(self.arrived.iter().map(|(_, bytes)| bytes / REQUEST_BYTES));
        // One answer may leave first, since there is one more receive buffer than the window needs.
        let at_once = self.arrived.len() == 1;
        if at_once {
            self.answer()?;
        }
        self.arrived.iter().for_each(|(slot, _)| self.end.receive(*slot));
        self.end.flush_receives()?;
        if !at_once {
            self.answer()?;
        }
        Ok(())
    }

    fn answer(&mut self) -> io::Result<()> {
        match &mut self.answers {
            Answers::Tensors(size_bytes) => {
                while self.end.room() > 0
                    && let Some(tensors) = self.owed.pop_front()
                {
                    self.end.send(tensors * *size_bytes);
                }
            }
            Answers::Step { left, to } => {
                let whole = self.end.areas().out_bytes;
                if *left == 0 && self.owed.pop_front().is_some() {
                    *left = whole;
                }
                while *left > 0 && self.end.room() > 0 {
                    let start = whole - *left;
                    let piece = (*left).min(self.end.write_bytes_max());
                    *left -= piece;
                    let to = Remote { address: to.address + start as u64, rkey: to.rkey };
                    let is_last = *left == 0;
                    self.end.write(start..start + piece, to, is_last.then_some(0), true);
                }
            }
        }
        self.end.flush()
    }
}
