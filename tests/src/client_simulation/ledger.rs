//! Every send and recv of a run: what was asked, how it ended, and which send's tensor each recv got. Events are numbered to tell their
//! order.

use std::collections::BTreeSet;

use sealane::{Buffer, Code, DType, Receiving, Sending, Tensor, TensorMeta};

/// Keys in use for each step and pair of tasks.
pub(super) const KEYS: usize = 4;

/// Where a send and a recv meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Spot {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) step: i64,
    pub(super) key: usize,
}

impl Spot {
    pub(super) fn key(&self) -> &'static str {
        // So long that it hardly fits anywhere.
        const LONG: &str = "a/layer/with/a/name/that/goes/on/and/on/until/it/takes/more/than/one/slot/of/a/ring/kernel";
        ["w", "bias", "", LONG][self.key]
    }

    pub(super) fn is_of(&self, seat: usize) -> bool {
        self.from == seat || self.to == seat
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Ok,
    Failed(Code),
    /// Nobody can tell: its deadline passed while its tensor was on its way, or it was given up.
    Unknown,
}

/// What sends and recvs have in common.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) spot: Spot,
    pub(super) began: u64,
    /// Its deadline, in milliseconds of the run.
    pub(super) due: u64,
    /// The `life` of the sender's and the receiver's seats when it was made.
    pub(super) lives: [u32; 2],
    pub(super) ended: Option<(u64, End)>,
}

pub(super) struct Send {
    pub(super) call: Call,
    pub(super) bytes: usize,
    /// When it was delivered, and to which recv.
    pub(super) delivered: Option<(u64, usize)>,
    /// `None` once it has ended, or if its caller does not wait for it.
    pub(super) sending: Option<Sending>,
}

pub(super) struct Recv {
    pub(super) call: Call,
    pub(super) fails_if_gone: bool,
    /// Its destination may be too small for the tensor.
    pub(super) is_narrow: bool,
    pub(super) receiving: Option<Receiving>,
}

struct Ended {
    event: u64,
    seat: usize,
    step: i64,
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) events: u64,
    pub(super) sends: Vec<Send>,
    pub(super) recvs: Vec<Recv>,
    pub(super) open_sends: Vec<usize>,
    pub(super) open_recvs: Vec<usize>,
    ended: Vec<Ended>,
    /// Event and seat of each client that has died.
    deaths: Vec<(u64, usize)>,
    /// Spots where a recv was given up: the tensor it may have got goes to another recv, whatever was sent after it.
    pub(super) given_up: BTreeSet<Spot>,
}

impl Ledger {
    pub(super) fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    pub(super) fn has_ended(&mut self, seat: usize, step: i64) {
        let event = self.event();
        self.ended.push(Ended { event, seat, step });
    }

    pub(super) fn has_died(&mut self, seat: usize) {
        let event = self.event();
        self.deaths.push((event, seat));
    }

    /// True if one of the two tasks of a spot has ended its step at event `since` or later.
    pub(super) fn step_ended(&self, spot: Spot, since: u64) -> bool {
        self.ended.iter().any(|ended| ended.event >= since && ended.step == spot.step && spot.is_of(ended.seat))
    }

    /// True if one of the two tasks has died at event `since` or later.
    pub(super) fn one_died(&self, spot: Spot, since: u64) -> bool {
        self.deaths.iter().any(|(event, seat)| *event >= since && spot.is_of(*seat))
    }

    /// Describes an open call of a task, for an error message.
    pub(super) fn open_of(&self, seat: usize) -> Option<String> {
        let send = self.open_sends.iter().find(|send| self.sends[**send].call.spot.from == seat);
        let recv = self.open_recvs.iter().find(|recv| self.recvs[**recv].call.spot.to == seat);
        send.map(|send| format!("send {send}")).or_else(|| recv.map(|recv| format!("recv {recv}")))
    }

    /// True if another call of the same kind was open in the same spot while this one was.
    pub(super) fn overlaps<'c>(&self, call: &Call, mut others: impl Iterator<Item = &'c Call>) -> bool {
        others.any(|other| {
            other.spot == call.spot
                && other.began != call.began
                && other.ended.is_none_or(|(ended, _)| ended >= call.began)
        })
    }
}

/// Writes the number of a send into its tensor's bytes; a tensor without bytes has it in its shape.
pub(super) fn fill(number: usize, memory: &mut [u8]) {
    for (index, byte) in memory.iter_mut().enumerate() {
        *byte = (number * 31 + index * 7 + index / 251) as u8;
    }
    if let Some(start) = memory.first_chunk_mut::<8>() {
        *start = (number as u64).to_le_bytes();
    }
}

pub(super) fn meta(number: usize, bytes: usize) -> TensorMeta {
    let whole = [bytes as u64];
    let halves = [2, bytes as u64 / 2];
    let none = [0, number as u64];
    let shape: &[u64] = match bytes {
        0 => &none,
        bytes if bytes.is_multiple_of(2) && number.is_multiple_of(2) => &halves,
        _ => &whole,
    };
    TensorMeta::new(DType::U8, shape).expect("a shape")
}

/// The number of the send that a tensor comes from.
pub(super) fn number_of(tensor: &Tensor) -> Option<usize> {
    match tensor.bytes() {
        [] => tensor.shape().get(1).map(|number| *number as usize),
        bytes => bytes.first_chunk::<8>().map(|start| u64::from_le_bytes(*start) as usize),
    }
}

/// True if a tensor is exactly what was sent.
pub(super) fn is_whole(number: usize, bytes: usize, tensor: &Tensor) -> bool {
    let mut wanted = vec![0; bytes];
    fill(number, &mut wanted);
    tensor.bytes() == wanted && tensor.meta() == &meta(number, bytes)
}

pub(super) fn tensor(number: usize, mut memory: Buffer) -> Tensor {
    let bytes = memory.len();
    fill(number, &mut memory);
    Tensor::new(meta(number, bytes), memory).expect("its shape has so many bytes")
}
