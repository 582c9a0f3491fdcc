//! The contract of every kind of link: move bytes for one session, in order, in both directions.
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
use crate::tcp::TcpState;
use crate::wire::WireError;

/// The kind of link, as named in logs, metrics, `sealane check` and bench results. Each kind defines its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkKind(&'static str);

impl LinkKind {
    /// Within one shard, by copy. The reference link.
    pub const LOOPBACK: LinkKind = LinkKind::new("loopback");
    /// A TCP socket: available to all peers.
    pub const TCP: LinkKind = LinkKind::new("tcp");

    /// A kind with this unique name: a word of lower-case letters.
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
    /// Payloads outside the stream of frames, and their destinations, may be in device memory that this has registered: the
    /// link accesses it directly. A session copies any other device memory through host memory.
    pub reacher: Option<Reacher>,
}

impl Traits {
    /// One byte stream, whose descriptor reports all readiness.
    pub const STREAM: Traits = Traits { open: true, aside: false, tells_of_room: false, reacher: None };
}

/// Where bytes are, for a link that moves them by their address.
#[derive(Debug, Clone)]
pub(crate) struct Spot {
    /// A host address; or an address in device memory, for a device that has registered it.
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) memory: MemoryKind,
    /// For device memory: what to register.
    pub(crate) direct: Option<Arc<DmaBuf>>,
}

impl Spot {
    /// The spot of a buffer that a link may write to.
    ///
    /// # Panics
    /// If it is in device memory that is not exported.
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

    /// Why it is of this kind, for a link that negotiated its kind.
    fn reason(&self) -> Option<&str> {
        None
    }

    /// True if it uses TCP where another kind was wanted; [`reason`](Self::reason) says why.
    fn fell_back(&self) -> bool {
        false
    }

    /// For a link that fell back because of this side: whether a new link to the same peer would not fall back now, so that it
    /// is worth giving this one up. `None` for any other link.
    fn can_do_better(&self, _now: Instant) -> Option<bool> {
        None
    }

    /// The state of its TCP connection, as the kernel reports it; `None` if its bytes do not travel over TCP.
    fn tcp_state(&self) -> Option<TcpState> {
        None
    }

    /// Its traits; they may change once, when the link opens.
    fn traits(&self) -> Traits {
        Traits::STREAM
    }

    /// Sets the name under which its owner knows it, for a link that reports events itself.
    fn adopt(&mut self, _name: Handle) {}

    /// Its descriptor is readable or broken: for a link that does not read it on every call.
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

    /// What to wait for when polling ends: readable, and writable while the outbox is not empty. `None` for a link that only
    /// its own shard can make ready.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Closes the link: once this returns, the peer can no longer write to this side's memory. Payloads in flight into landings
    /// are returned; outgoing ones go back through the outbox.
    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing>;
}

/// The receiving side of a session.
pub trait Receiver {
    /// Consumes whole frames at the front of `bytes`. If the last one announces a payload that is only partly in `bytes`, that
    /// part is consumed and the rest must be written to the landing.
    ///
    /// # Errors
    /// The bytes violate the protocol.
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError>;

    /// Completes a landing that has all its bytes before the next frame.
    fn landed(&mut self, landing: Landing);
}

/// What [`Receiver::frames`] consumed.
#[derive(Debug)]
pub struct Frames {
    pub consumed: usize,
    /// Where the next bytes belong, if not to a frame.
    pub landing: Option<Landing>,
}

/// An incoming payload: its destination, how much has arrived, and where the current part ends.
#[derive(Debug)]
pub struct Landing {
    /// The request that it answers.
    pub(crate) request: Handle,
    /// The producer's handle for the tensor.
    pub(crate) token: Handle,
    pub(crate) meta: Meta,
    pub(crate) of: LandingOf,
    pub(crate) place: Place,
    pub(crate) filled: usize,
    /// Where the bytes that come without a frame in between end: the end of a chunk, or of the payload.
    pub(crate) end: usize,
    pub(crate) total: usize,
    /// The transfer in whose chunks it comes; 0 if it comes at once.
    pub(crate) transfer: u16,
    /// The link has closed the place announced for it: the peer can no longer access it.
    pub(crate) is_closed: bool,
}

/// What a payload belongs to.
#[derive(Debug, Clone)]
pub(crate) enum LandingOf {
    /// The tensor of a request.
    Response,
    /// A tensor of a pull, by its number and version, with its metadata.
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
    /// Into host memory first, since the consumer's own memory is a device's that the link cannot write to.
    Bounce(Box<Buffer>),
    /// Nowhere: it is no longer wanted, or there is no room. It is returned to the producer.
    Nowhere,
}

impl Landing {
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

    /// True if it is the same tensor for the same place.
    pub(crate) fn collides_with(&self, other: &Landing) -> bool {
        let is_same = match (&self.of, &other.of) {
            (LandingOf::Response, LandingOf::Response) => true,
            (LandingOf::Part { index: one, .. }, LandingOf::Part { index: other, .. }) => one == other,
            (LandingOf::Push { number: one }, LandingOf::Push { number: other }) => one == other,
            _ => false,
        };
        is_same && self.memory().is_some() && other.memory().is_some() && self.request == other.request
    }

    /// The kind of memory that it goes into; `None` if it is discarded.
    pub fn memory(&self) -> Option<MemoryKind> {
        match &self.place {
            Place::Buffer(buffer) => Some(buffer.memory()),
            Place::Bounce(buffer) => Some(buffer.memory()),
            Place::Nowhere => None,
        }
    }

    /// Bytes still to come before the next frame.
    pub fn missing(&self) -> usize {
        self.end - self.filled
    }

    /// True if all bytes before the next frame have come.
    pub fn is_complete(&self) -> bool {
        self.missing() == 0
    }

    /// The memory for the next bytes; `None` if they are discarded.
    ///
    /// # Panics
    /// If it is device memory, which only a link gets that [has registered it](Traits::reacher).
    pub fn target(&mut self) -> Option<VolatileSliceMut<'_>> {
        match &mut self.place {
            Place::Buffer(buffer) => Some(buffer.volatile_mut().range(self.filled..self.end)),
            Place::Bounce(buffer) => Some(buffer.volatile_mut().range(self.filled..self.end)),
            Place::Nowhere => None,
        }
    }

    /// Where the next bytes go, for a link that moves them by address; `None` if they are discarded.
    pub(crate) fn spot(&mut self) -> Option<Spot> {
        let spot = match &mut self.place {
            Place::Buffer(buffer) => Spot::of(buffer),
            Place::Bounce(buffer) => Spot::of(buffer),
            Place::Nowhere => return None,
        };
        Some(Spot { address: spot.address + self.filled as u64, bytes: self.missing(), ..spot })
    }

    /// Notes that `count` bytes were written to [`target`](Self::target), or discarded.
    ///
    /// # Panics
    /// If that is more than is missing.
    pub fn advance(&mut self, count: usize) {
        assert!(count <= self.missing(), "a link fills no more than is missing");
        self.filled += count;
    }

    /// Copies from the front of `bytes`; returns how many were consumed.
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

    /// Like [`take`](Self::take), also for a destination in device memory, to which the bytes are copied.
    ///
    /// # Errors
    /// The device failed to copy.
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
