//! Fault injection: single faults of an adapter, and random faults of the whole fabric.

use super::random::Random;
use crate::verbs::device::{Status, VerbsError, Work};

/// Kinds of requests, as distinguished by faults and counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RequestKind {
    /// A message, inline or not.
    Send,
    /// A write without immediate data.
    Write,
    /// A write with immediate data.
    WriteWithWord,
    Read,
    Bind,
    Invalidate,
    /// A buffer of the shared receive queue that a peer's request takes.
    Receive,
}

impl RequestKind {
    pub const ALL: [RequestKind; 7] =
        [Self::Send, Self::Write, Self::WriteWithWord, Self::Read, Self::Bind, Self::Invalidate, Self::Receive];

    pub(super) fn of(work: &Work) -> Self {
        match work {
            Work::Send(_) | Work::SendInline { .. } => Self::Send,
            Work::Write { word: None, .. } => Self::Write,
            Work::Write { word: Some(_), .. } => Self::WriteWithWord,
            Work::Read { .. } => Self::Read,
            Work::Bind { .. } => Self::Bind,
            Work::Invalidate { .. } => Self::Invalidate,
        }
    }

    /// True if it involves the peer.
    pub(super) fn travels(self) -> bool {
        !matches!(self, Self::Bind | Self::Invalidate)
    }
}

/// A failure of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strike {
    /// Only requests of this kind; `None` for any kind except receive buffers.
    pub kind: Option<RequestKind>,
    /// Its status; not success.
    pub status: Status,
    /// The request does its work, and only its acknowledgement is lost: the peer has what the sender believes failed.
    /// Meaningless for receive buffers.
    pub carried_out: bool,
}

impl Strike {
    fn strikes(&self, kind: RequestKind) -> bool {
        self.kind.map_or(kind != RequestKind::Receive, |only| only == kind)
    }
}

/// Calls that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    Register,
    AllocateWindow,
    Create,
    Connect,
    /// `post`, counted by request.
    Post,
    /// `post_receives`, counted by call.
    PostReceives,
    Arm,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::Register => "fake register",
            Verb::AllocateWindow => "fake allocate window",
            Verb::Create => "fake create queue pair",
            Verb::Connect => "fake connect queue pair",
            Verb::Post => "fake post",
            Verb::PostReceives => "fake post receives",
            Verb::Arm => "fake arm",
        }
    }

    pub(super) fn error(self, reason: impl Into<String>) -> VerbsError {
        VerbsError::new(self.name(), reason)
    }
}

/// A single fault of an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The next matching request that is carried out ends as the strike says.
    Request {
        /// Which requests, and how they end.
        strike: Strike,
        /// How many matching requests to spare first.
        skip: u32,
    },
    /// The next call of this verb fails.
    Verb {
        verb: Verb,
        reason: String,
        /// How many calls to spare first.
        skip: u32,
    },
    /// The adapter's next message breaks off: it has taken a receive buffer of the peer, the rest never comes, and its sender
    /// ends with `RETRIES_EXCEEDED`.
    BreakOff {
        /// How many messages to spare first.
        skip: u32,
    },
    /// The queue pair of this number fails, with an event.
    QueuePair(u32),
    /// The port goes down: what passes through it waits, and ends with `RETRIES_EXCEEDED` if it waits too long.
    PortDown,
    PortUp,
    /// The port has other addresses from now on; a GID of zeros means none.
    Address {
        gid: [u8; 16],
        /// The port's local identifier.
        lid: u16,
    },
    /// All open devices with the adapter's name fail permanently.
    DeviceFailed,
}

/// How often requests fail anywhere on the fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weather {
    /// Which requests, and how they end.
    pub strike: Strike,
    /// How many of a million.
    pub per_million: u32,
}

/// Faults of one adapter that have not occurred yet.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    strikes: Vec<(Strike, u32)>,
    verbs: Vec<(Verb, String, u32)>,
    breaks: Vec<u32>,
}

impl Waiting {
    pub(super) fn strike(&mut self, strike: Strike, skip: u32) {
        assert!(!strike.status.is_success(), "a strike with success");
        self.strikes.push((strike, skip));
    }

    pub(super) fn verb(&mut self, verb: Verb, reason: String, skip: u32) {
        self.verbs.push((verb, reason, skip));
    }

    pub(super) fn break_off(&mut self, skip: u32) {
        self.breaks.push(skip);
    }

    /// True if this message breaks off.
    pub(super) fn breaks_off(&mut self) -> bool {
        due(&mut self.breaks, |skip| Some(skip)).is_some()
    }

    /// The strike for a request of this kind, if any.
    pub(super) fn strikes(&mut self, kind: RequestKind) -> Option<Strike> {
        let hit = due(&mut self.strikes, |(strike, skip)| strike.strikes(kind).then_some(skip))?;
        Some(hit.0)
    }

    /// The error of this call, if it should fail.
    pub(super) fn fails(&mut self, verb: Verb) -> Result<(), VerbsError> {
        match due(&mut self.verbs, |(which, _, skip)| (*which == verb).then_some(skip)) {
            Some((_, reason, _)) => Err(verb.error(reason)),
            None => Ok(()),
        }
    }
}

/// Takes the first matching fault that spares nobody any more; matching ones before it spare one less.
fn due<T>(faults: &mut Vec<T>, mut concerns: impl FnMut(&mut T) -> Option<&mut u32>) -> Option<T> {
    let index = faults.iter_mut().position(|fault| match concerns(fault) {
        Some(0) => true,
        Some(skip) => {
            *skip -= 1;
            false
        }
        None => false,
    })?;
    Some(faults.remove(index))
}

/// The strike of the climate on a request of this kind, if any.
pub(super) fn struck_by(climate: &[Weather], kind: RequestKind, random: &mut Random) -> Option<Strike> {
    let mut concerned = climate.iter().filter(|weather| weather.strike.strikes(kind));
    concerned.find(|weather| random.happens(weather.per_million)).map(|weather| weather.strike)
}
