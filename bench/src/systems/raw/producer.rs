//! The raw producer: a state machine that answers requests or streams tensors, one bounded turn at
//! a time, over any channel. What the bytes say is the same for all tensors, so that it need not
//! know where in one a write ended.

use std::io;

use super::channel::Channel;
use super::pieces::Pieces;
use crate::limits::{FILL, FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::plan::{Bench, Fuse, Plan};

/// First byte of a streamed tensor: more follow.
pub(super) const MORE: u8 = 0;
/// First byte of a streamed tensor: it is the last of the round.
pub(super) const LAST: u8 = 1;
/// Asks the producer to stream until [`STOP`].
pub(super) const GO: [u8; 1] = [2];
/// Asks the producer to end the stream with one last tensor.
pub(super) const STOP: [u8; 1] = [3];

/// The producer of any raw measurement.
#[derive(Debug)]
pub(in crate::systems) enum RawProducer {
    /// For latency and rate.
    Answers(Answers),
    /// For bandwidth.
    Streams(Streams),
    /// For fuse.
    Steps(Steps),
}

impl RawProducer {
    pub(in crate::systems) fn new(plan: &Plan) -> Self {
        match plan.bench {
            Bench::Latency | Bench::Rate => Self::Answers(Answers::new(plan)),
            Bench::Bandwidth => Self::Streams(Streams::new(plan.size_bytes)),
            Bench::Fuse => Self::Steps(Steps::new(&plan.step)),
            none => none.is_measured_elsewhere(),
        }
    }

    /// Takes what came in and sends what is owed, as far as the channel lets it.
    pub(in crate::systems) fn turn(&mut self, channel: &mut impl Channel) -> io::Result<()> {
        match self {
            Self::Answers(answers) => answers.turn(channel),
            Self::Streams(streams) => streams.turn(channel),
            Self::Steps(steps) => steps.turn(channel),
        }
    }
}

/// Answers each request of `REQUEST_BYTES` with a tensor.
#[derive(Debug)]
pub(in crate::systems) struct Answers {
    size: usize,
    fuse: Fuse,
    /// Where requests land.
    inbox: Box<[u8]>,
    /// As many whole tensors as one fused write may carry, at least one.
    tensors: Box<[u8]>,
    /// Bytes of requests that came in and are not answered yet; less than a whole one may remain.
    asked_bytes: usize,
    /// Bytes of tensors still to be sent.
    owed_bytes: usize,
}

impl Answers {
    fn new(plan: &Plan) -> Self {
        let at_once = (FUSED_BYTES_MAX / plan.size_bytes).max(1);
        Self {
            size: plan.size_bytes,
            fuse: plan.fuse,
            inbox: vec![0; FUSED_BYTES_MAX].into_boxed_slice(),
            tensors: vec![FILL; at_once * plan.size_bytes].into_boxed_slice(),
            asked_bytes: 0,
            owed_bytes: 0,
        }
    }

    fn turn(&mut self, channel: &mut impl Channel) -> io::Result<()> {
        self.asked_bytes += channel.receive(&mut self.inbox)?;
        self.owed_bytes += self.asked_bytes / REQUEST_BYTES * self.size;
        self.asked_bytes %= REQUEST_BYTES;
        while self.owed_bytes > 0 {
            let write = match self.fuse {
                // What is left of the tensor that the last write may have cut.
                Fuse::Off => (self.owed_bytes - 1) % self.size + 1,
                Fuse::Turn | Fuse::Receive | Fuse::ReceiveWaitAll | Fuse::Plan | Fuse::Push => {
                    self.owed_bytes.min(self.tensors.len())
                }
            };
            let sent = channel.send(&self.tensors[..write])?;
            if sent == 0 {
                break;
            }
            self.owed_bytes -= sent;
        }
        Ok(())
    }
}

/// Streams tensors from [`GO`] to [`STOP`] as fast as the channel, which must not block, takes them.
#[derive(Debug)]
pub(in crate::systems) struct Streams {
    tensor: Box<[u8]>,
    /// Bytes of the current tensor that are sent; `None` outside a round.
    sent: Option<usize>,
}

impl Streams {
    fn new(size: usize) -> Self {
        Self { tensor: vec![FILL; size].into_boxed_slice(), sent: None }
    }

    fn turn(&mut self, channel: &mut impl Channel) -> io::Result<()> {
        let mut word = [0; 1];
        let Some(sent) = self.sent else {
            if channel.receive(&mut word)? == 1 && word == GO {
                self.tensor[0] = MORE;
                self.sent = Some(0);
            }
            return Ok(());
        };
        if sent == 0 && channel.receive(&mut word)? == 1 && word == STOP {
            self.tensor[0] = LAST;
        }
        let sent = sent + channel.send(&self.tensor[sent..])?;
        self.sent = match (sent == self.tensor.len(), self.tensor[0]) {
            (false, _) => Some(sent),
            (true, LAST) => None,
            (true, _) => Some(0),
        };
        Ok(())
    }
}

/// Answers each request of `REQUEST_BYTES`, of which there is one at a time, with all tensors of a step.
#[derive(Debug)]
pub(in crate::systems) struct Steps {
    pieces: Pieces,
    request: [u8; REQUEST_BYTES],
    /// Bytes of the request that came in.
    asked_bytes: usize,
}

impl Steps {
    fn new(sizes: &[usize]) -> Self {
        Self { pieces: Pieces::new(sizes, FILL), request: [0; REQUEST_BYTES], asked_bytes: 0 }
    }

    fn turn(&mut self, channel: &mut impl Channel) -> io::Result<()> {
        if self.asked_bytes < REQUEST_BYTES {
            self.asked_bytes += channel.receive(&mut self.request[self.asked_bytes..])?;
            if self.asked_bytes < REQUEST_BYTES {
                return Ok(());
            }
            self.pieces.gather();
        }
        let sent = channel.send_vectored(&self.pieces.left_to_send())?;
        self.pieces.advance(sent);
        if self.pieces.is_done() {
            self.asked_bytes = 0;
        }
        Ok(())
    }
}
