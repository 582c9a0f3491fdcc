//! The contract of every kind of link: move bytes for one session, in order, both ways.
//!
//! The session makes all decisions (what to send, what a frame means, where a tensor goes); a link only moves bytes, and is
//! called once per batch, not once per message. One conformance suite (`tests/`) checks all links, with
//! [`loopback`](crate::loopback) as the reference.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use std::sync::Arc;

use sealane_runtime::{Buffer, DeviceError, DmaBuf, MemoryKind, Reacher, VolatileSliceMut};

use crate::arena::Handle;
use crate::error::LinkError;
use crate::outbox::Outbox;
use crate::payload::Meta;
use crate::pull_buffer::Known;
use crate::wire::WireError;

/// The kind of link, as named in logs, metrics, `sealane check` and bench results. Each kind defines its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkKind(&'static str);

impl LinkKind {
    /// Within one shard, by copy. The reference.
    pub const LOOPBACK: LinkKind = LinkKind::new("loopback");
    /// A TCP socket: what all peers have.
    pub const TCP: LinkKind = LinkKind::new("tcp");

    /// A kind with this name, which no other has: a word of lower-case letters.
    pub const fn new(name: &'static str) -> Self {
        LinkKind(name)
    }

    /// The name used in results and logs.
    pub fn name(self) -> &'static str {
        self.0
    }
}

/// Properties of a link that its owner must know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// False while both sides still negotiate the kind of link: the outbox is written, but nothing may be added yet.
    pub open: bool,
    /// Large payloads travel outside the stream of frames, each into its own destination and at its own time.
    pub aside: bool,
    /// The link reports itself when it can take more; its descriptor must not be watched for writing.
    pub tells_of_room: bool,
    /// Payloads outside the stream of frames may be in the memory of a device that this has registered, and so may their
    /// destinations: the link reads and writes it itself. Any other such memory a session copies through the host's.
    pub reacher: Option<Reacher>,
}

impl Traits {
    /// One byte stream, whose descriptor reports all readiness.
    pub const STREAM: Traits = Traits { open: true, aside: false, tells_of_room: false, reacher: None };
}

/// Where bytes lie, for a link that moves them by their address.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    /// Of the host; or that of a device's memory, for whoever has registered it.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) memory: MemoryKind,
    /// What is registered of a device's memory.
    pub(crate) direct: Option<Arc<DmaBuf>>,
}

impl Spot {
    /// That of a buffer that a link may write.
    ///
    /// # Panics
    /// If it is in the memory of a device that is not exported.
    pub(crate) fn of(buffer: &mut Buffer) -> Self {
        let (bytes, memory) = (buffer.len(), buffer.memory());
        match buffer.direct() {
            Some((region, address)) => Self { address, bytes, memory, direct: Some(region.clone()) },
            None => Self { address: buffer.volatile_mut().as_mut_ptr() as u64, bytes, memory, direct: None },
        }
    }
}

/// One shard's connection to one peer shard.
pub trait Link {
    /// What carries the bytes.
    fn kind(&self) -> LinkKind;

    /// Why it is of its kind, for a link that negotiated it.
    fn reason(&self) -> Option<&str> {
        None
    }

    /// True if it uses TCP where another kind was wanted, and [`reason`](Self::reason) says why.
    fn fell_back(&self) -> bool {
        false
    }

    /// For a link that fell back because of this side: whether one to the same peer would not do so now, and is worth giving this
    /// one up. `None` for any other link.
    fn can_do_better(&self, _now: Instant) -> Option<bool> {
        None
    }

    /// What its owner must know; may change once, when the link opens.
    fn traits(&self) -> Traits {
        Traits::STREAM
    }

    /// Sets the name under which its owner knows it, for a link that reports events itself.
    fn adopt(&mut self, _name: Handle) {}

    /// Its descriptor was found readable, or broken: for a link that does not read it at every call.
    fn descriptor_ready(&mut self) {}

    /// Writes from the front of the outbox until it is empty, `budget` bytes are written or the link takes no more. Completed
    /// payloads go back through the outbox. Returns the bytes taken, never more than the budget; if they are fewer and the
    /// outbox is not empty, wait for the link to be writable. With `more_follows`, another call comes in the same turn: the
    /// link may delay sending until then.
    ///
    /// # Errors
    /// The link is dead; the outbox keeps what was not written.
    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError>;

    /// Reads what is available, at most about `budget` bytes, and passes it to the receiver. Returns the number of bytes; 0
    /// means that there were none.
    ///
    /// # Errors
    /// The link is dead, or the receiver rejected the bytes.
    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError>;

    /// What to wait for when polling ends: readable, and writable while the outbox is not empty. `None` for a link
    /// that only its own shard can make ready.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Closes the link: once this returns, the peer can no longer write to this side's memory. Payloads in flight into landings
    /// are returned, outgoing ones go back through the outbox.
    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing>;
}

/// The receiving side of a session.
pub trait Receiver {
    /// Takes whole frames off the front of `bytes`. If the last one announces a payload that is only partly in `bytes`, that
    /// part is taken and the rest must be written to the landing.
    ///
    /// # Errors
    /// The bytes violate the protocol.
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError>;

    /// Completes a landing that has all bytes before the next frame.
    fn landed(&mut self, landing: Landing);
}

/// What [`Receiver::frames`] took.
#[derive(Debug)]
pub struct Frames {
    /// Bytes taken.
    pub consumed: usize,
    /// Where the next bytes belong, if not to a frame.
    pub landing: Option<Landing>,
}

/// An incoming payload: its destination, how much has arrived, and where the current part ends.
#[derive(Debug)]
pub struct Landing {
    /// The request that it answers.
    pub(crate) request: Handle,
    /// The producer's handle of it.
    pub(crate) token: Handle,
    pub(crate) meta: Meta,
    pub(crate) of: LandingOf,
    pub(crate) place: Place,
    pub(crate) filled: usize,
    /// Where the bytes that come without a frame between them end: those of a chunk, or of all.
    pub(crate) end: usize,
    pub(crate) total: usize,
    /// The transfer in whose chunks it comes; 0 if it comes at once.
    pub(crate) transfer: u16,
    /// The link has closed the place that was announced for it: the peer reaches it no more.
    pub(crate) is_closed: bool,
}

/// What a payload belongs to.
#[derive(Debug, Clone)]
pub(crate) enum LandingOf {
    /// The tensor that a request asked for.
    Response,
    /// A tensor of a pull, by its number, its version, and what it looks like.
    Part { index: u32, version: i64, known: Known },
    /// A tensor of a pull that nobody waits for any more.
    GivenUp,
    /// A push, by its number in its stream.
    Push { number: u64 },
}

/// Where a payload goes.
#[derive(Debug)]
pub(crate) enum Place {
    /// Into memory: the consumer's own or the slab's.
    Buffer(Buffer),
    /// Into host memory first, since the consumer's own is a device's, which the link cannot write.
    Bounce(Box<Buffer>),
    /// Nowhere: it is no longer wanted, or there is no room. It goes back to the producer.
    Nowhere,
}

impl Landing {
    /// Nothing of it has come.
    pub(crate) fn new(
        (request, token): (Handle, Handle),
        (of, meta): (LandingOf, Meta),
        place: Place,
        (payload_bytes, transfer): (u64, u16),
    ) -> Self {
        let total = payload_bytes as usize;
        let end = if transfer == 0 { total } else { 0 };
        Self { request, token, meta, of, place, filled: 0, end, total, transfer, is_closed: false }
    }

    /// True if it is the same tensor that goes to the same place.
    pub(crate) fn collides_with(&self, other: &Landing) -> bool {
        let is_same = match (&self.of, &other.of) {
            (LandingOf::Response, LandingOf::Response) => true,
            (LandingOf::Part { index: one, .. }, LandingOf::Part { index: other, .. }) => one == other,
            (LandingOf::Push { number: one }, LandingOf::Push { number: other }) => one == other,
            _ => false,
        };
        is_same && self.memory().is_some() && other.memory().is_some() && self.request == other.request
    }

    /// What kind of memory it goes into; `None` if it is to be discarded.
    pub fn memory(&self) -> Option<MemoryKind> {
        match &self.place {
            Place::Buffer(buffer) => Some(buffer.memory()),
            Place::Bounce(buffer) => Some(buffer.memory()),
            Place::Nowhere => None,
        }
    }

    /// Bytes that are still to come before the next frame.
    pub fn missing(&self) -> usize {
        self.end - self.filled
    }

    /// True if all bytes before the next frame are there.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// The memory for the next bytes; `None` if they are to be discarded.
    ///
    /// # Panics
    /// If it is a device's, which only a link gets that [has registered it](Traits::reacher).
    pub fn target(&mut self) -> Option<VolatileSliceMut<'_>> {
        match &mut self.place {
            Place::Buffer(buffer) => Some(buffer.volatile_mut().range(self.filled..self.end)),
            Place::Bounce(buffer) => Some(buffer.volatile_mut().range(self.filled..self.end)),
            Place::Nowhere => None,
        }
    }

    /// Where the next bytes go, for a link that moves them by address; `None` if they are to be discarded.
    pub(crate) fn spot(&mut self) -> Option<Spot> {
        let spot = match &mut self.place {
            Place::Buffer(buffer) => Spot::of(buffer),
            Place::Bounce(buffer) => Spot::of(buffer),
            Place::Nowhere => return None,
        };
        Some(Spot { address: spot.address + self.filled as u64, bytes: self.missing(), ..spot })
    }

    /// Notes that `count` bytes were written to [`target`](Self::target), or thrown away.
    ///
    /// # Panics
    /// If that is more than is missing.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.missing(), "a link fills no more than is missing");
        self.filled += count;
    }

    /// Copies from the front of `bytes`; how many were taken.
    pub fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.missing());
        if count > 0
            && let Some(target) = self.target()
        {
            target.range(0..count).copy_from(&bytes[..count]);
        }
        self.advance(count);
        count
    }

    /// The same where they may belong into the memory of a device, to which they are copied.
    ///
    /// # Errors
    /// The device could not.
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Result<usize, DeviceError> {
        let count = bytes.len().min(self.missing());
        match &mut self.place {
            Place::Buffer(buffer) if buffer.device().is_some() => {
                buffer.write(self.filled, bytes[..count].into())?;
                self.advance(count);
                Ok(count)
            }
            _ => Ok(self.take(bytes)),
        }
    }
}
