//! Memory that a call lends to the daemon until it ends.

use sealane_runtime::Buffer;
use sealane_transport::{Destination, Error, Payload, Room};

/// The memory of one call.
#[derive(Debug, Default)]
pub(super) enum Memory {
    /// None: small bytes travel in the ring, and tensors without a destination arrive in the receive area.
    #[default]
    Nothing,
    /// A tensor in the arena, which the daemon reads.
    Source(Payload),
    /// The caller's destination in the arena, which the daemon writes.
    Destination(Destination),
    /// A block of the arena that the daemon writes, in place of a destination that it cannot reach.
    Substitute(Box<Substitute>),
}

/// A block in place of a destination.
#[derive(Debug)]
pub(super) struct Substitute {
    /// Where the daemon writes.
    pub(super) landing: Buffer,
    /// Where the caller wants it.
    pub(super) destination: Destination,
}

impl Substitute {
    /// For a destination without a block: its call has the tensor, or will have it.
    pub(super) fn of_a_tensor(destination: Destination) -> Memory {
        Memory::Substitute(Box::new(Substitute { landing: Buffer::default(), destination }))
    }
}

impl Memory {
    /// The bytes that the daemon is lent.
    pub(super) fn lent(&self) -> Option<&[u8]> {
        match self {
            Memory::Nothing => None,
            Memory::Source(payload) => Some(payload.as_ref()),
            Memory::Destination(buffer) => Some(buffer),
            Memory::Substitute(substitute) if substitute.landing.is_empty() => None,
            Memory::Substitute(substitute) => Some(&substitute.landing),
        }
    }

    /// True for a destination without a block in its place: its tensor arrives elsewhere first.
    #[inline]
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self, Memory::Substitute(substitute) if substitute.landing.is_empty())
    }

    /// After the daemon has released it: the caller's destination, and the rest, which the caller does not need.
    pub(super) fn into_destination(self) -> (Option<Destination>, Memory) {
        match self {
            Memory::Destination(buffer) => (Some(buffer), Memory::Nothing),
            other => other.apart(),
        }
    }

    /// While the daemon still uses it: the caller's destination if the daemon cannot reach it, and what the daemon can reach.
    pub(super) fn apart(self) -> (Option<Destination>, Memory) {
        match self {
            Memory::Substitute(substitute) if substitute.landing.is_empty() => {
                (Some(substitute.destination), Memory::Nothing)
            }
            Memory::Substitute(substitute) => {
                let Substitute { landing, destination } = *substitute;
                (Some(destination), Memory::Destination(landing.into()))
            }
            other => (None, other),
        }
    }

    /// The caller's destination, if there is one.
    pub(super) fn destination(&self) -> Option<&Destination> {
        match self {
            Memory::Nothing | Memory::Source(_) => None,
            Memory::Destination(destination) => Some(destination),
            Memory::Substitute(substitute) => Some(&substitute.destination),
        }
    }

    /// The tensors that fit the caller's destination, if there is one.
    pub(super) fn room(&self) -> Option<Room> {
        self.destination().map(Destination::room)
    }

    /// Checks whether a tensor, with its metadata in wire form, fits the caller's destination, if there is one.
    ///
    /// # Errors
    /// InvalidArgument.
    pub(super) fn check(&self, meta: &[u8], bytes: usize) -> Result<(), Error> {
        self.destination().map_or(Ok(()), |destination| destination.check(meta, bytes as u64))
    }

    /// The substitute, if it is one.
    pub(super) fn into_substitute(self) -> Option<Box<Substitute>> {
        match self {
            Memory::Substitute(substitute) => Some(substitute),
            _ => None,
        }
    }
}
