//! Both ends of the bare operation, as state machines over any channel. All tensors have the same contents, so that it does not
//! matter where in a tensor a write ended.

use std::io;

use super::channel::{Channel, NAME, Patience, explained, send_all};
use super::pieces::Pieces;
use crate::error::BenchError;
use crate::limits::{FILL, FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::plan::{Bench, Fuse, Plan};
use crate::system::Client;
use crate::systems::client::check_arrival;
use crate::systems::training::Moved;

/// What one end sends and receives: messages of one size each way. All connections of that end share it.
#[derive(Debug)]
pub(super) struct Words {
    /// As many whole messages as one write may carry, but at least one.
    said: Box<[u8]>,
    said_bytes: usize,
    heard: Box<[u8]>,
    heard_bytes: usize,
    /// Whether a write may carry more than the rest of one message.
    fused: bool,
}

impl Words {
    pub(super) fn new(said_bytes: usize, heard_bytes: usize, fuse: Fuse) -> Self {
        let at_once = (FUSED_BYTES_MAX / said_bytes).max(1);
        Self {
            said: vec![FILL; at_once * said_bytes].into(),
            said_bytes,
            heard: vec![0; FUSED_BYTES_MAX.max(heard_bytes)].into(),
            heard_bytes,
            fused: fuse != Fuse::Off,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Bytes still to be sent.
    pub(super) owed: usize,
    /// Bytes of a message that has not arrived completely.
    pub(super) came: usize,
}

impl Flow {
    pub(super) fn owe(&mut self, words: &Words, count: usize) {
        self.owed += count * words.said_bytes;
    }

    /// Sends what is owed, as far as the channel takes it; returns the number of bytes.
    pub(super) fn send(&mut self, words: &Words, channel: &mut impl Channel) -> io::Result<usize> {
        let before = self.owed;
        while self.owed > 0 {
            let write =
                if words.fused { self.owed.min(words.said.len()) } else { (self.owed - 1) % words.said_bytes + 1 };
            // Writes from the end of the buffer, so that all of a large message is read from memory.
            match channel.send(&words.said[words.said.len() - write..])? {
                0 => break,
                sent => self.owed -= sent,
            }
        }
        Ok(before - self.owed)
    }

    /// Receives once; returns the number of bytes, and of messages completed by them.
    pub(super) fn receive(&mut self, words: &mut Words, channel: &mut impl Channel) -> io::Result<(usize, usize)> {
        let received = channel.receive(&mut words.heard[self.came..])?;
        let came = self.came + received;
        self.came = came % words.heard_bytes;
        Ok((received, came / words.heard_bytes))
    }
}

/// The producer of any raw measurement: takes what arrived and sends what is owed, in bounded turns.
#[derive(Debug)]
pub(super) enum RawProducer {
    /// Answers each request with a tensor.
    Answers(Flow, Words),
    /// For fuse: answers each request, made one at a time, with all tensors of a step. Counts the request's bytes so far.
    Steps(usize, Pieces),
}

impl RawProducer {
    pub(super) fn new(plan: &Plan) -> Self {
        match plan.bench {
            Bench::Fuse => Self::Steps(0, Pieces::new(&plan.step, FILL)),
            _ => Self::Answers(Flow::default(), Words::new(plan.size_bytes, REQUEST_BYTES, plan.fuse)),
        }
    }

    pub(super) fn turn(&mut self, channel: &mut impl Channel) -> io::Result<()> {
        match self {
            Self::Answers(flow, words) => {
                let (_, asked) = flow.receive(words, channel)?;
                flow.owe(words, asked);
                flow.send(words, channel).map(drop)
            }
            Self::Steps(asked, pieces) => {
                if *asked < REQUEST_BYTES {
                    *asked += channel.receive(&mut [0; REQUEST_BYTES][*asked..])?;
                    if *asked < REQUEST_BYTES {
                        return Ok(());
                    }
                    pieces.gather();
                }
                let sent = channel.send_vectored(&pieces.left_to_send())?;
                pieces.advance(sent);
                if pieces.is_done() {
                    *asked = 0;
                }
                Ok(())
            }
        }
    }
}

/// A request and an answer.
const MESSAGES_A_STEP: u64 = 2;

/// The consumer of any raw measurement.
pub(super) struct RawConsumer<C> {
    channel: C,
    flow: Flow,
    words: Words,
    /// For steps: where their tensors go.
    pieces: Pieces,
    messages: u64,
}

impl<C: Channel> RawConsumer<C> {
    pub(super) fn new(channel: C, plan: &Plan) -> Self {
        Self {
            channel,
            flow: Flow::default(),
            words: Words::new(REQUEST_BYTES, plan.size_bytes, plan.fuse),
            pieces: Pieces::new(&plan.step, 0),
            messages: 0,
        }
    }

    fn take_answers(&mut self) -> io::Result<usize> {
        let mut patience = Patience::default();
        loop {
            let sent = self.flow.send(&self.words, &mut self.channel)?;
            let (received, complete) = self.flow.receive(&mut self.words, &mut self.channel)?;
            if complete > 0 {
                return Ok(complete);
            }
            patience.passed(&mut self.channel, sent + received)?;
        }
    }

    fn take_step(&mut self) -> io::Result<()> {
        send_all(&mut self.channel, &[0; REQUEST_BYTES])?;
        self.pieces.rewind();
        let mut patience = Patience::default();
        while !self.pieces.is_done() {
            let received = self.channel.receive_vectored(&mut self.pieces.left_to_fill())?;
            self.pieces.advance(received);
            patience.passed(&mut self.channel, received)?;
        }
        self.pieces.scatter();
        Ok(())
    }
}

impl<C: Channel> Client for RawConsumer<C> {
    fn resume(&mut self) {
        self.channel.resume();
    }

    fn rest(&mut self) {
        self.channel.rest();
    }

    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        self.flow.owe(&self.words, count);
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        self.take_answers().map_err(explained)
    }

    async fn step(&mut self) -> Result<(), BenchError> {
        self.messages += MESSAGES_A_STEP;
        self.take_step().map_err(explained)
    }

    async fn moved(&mut self) -> Result<Option<Moved>, BenchError> {
        Ok(Moved::messages(self.messages))
    }

    fn check(&self) -> Result<(), BenchError> {
        check_arrival(NAME, self.pieces.tensors())
    }
}
