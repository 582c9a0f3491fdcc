//! Where the bytes of a call lie: small ones travel in the ring, the rest is in the arena, or is copied there. Runs on the callers' threads,
//! mostly before the lock is taken.

use std::{sync::Arc, time::Duration};

use sealane_runtime::{Buffer, MemoryKind, copy_bytes};
use sealane_transport::{
    Code, Destination, Error, Tensor, Unreceived,
    shm::{Span, limits::INLINE_BYTES_MAX},
};

use super::{
    Attachment, Held, Line,
    memory::{Memory, Substitute},
    submit::down,
};
use crate::{clock::Tick, memory::Arena};

impl Attachment {
    /// Makes sure that a tensor is small, or lies in the arena; false if it must wait for room there.
    #[inline]
    pub(super) fn place(
        &self,
        tensor: &mut Option<Tensor>,
        now: Tick,
        timeout: Option<Duration>,
    ) -> Result<bool, Error> {
        match tensor.take_if(|tensor| !is_inline(tensor)) {
            Some(tensor) if is_of_device(&tensor) => Err(on_device()),
            Some(large) => {
                let (placed, is_placed) = self.place_large(large, now, timeout)?;
                *tensor = Some(placed);
                Ok(is_placed)
            }
            None => Ok(true),
        }
    }

    fn place_large(&self, tensor: Tensor, now: Tick, timeout: Option<Duration>) -> Result<(Tensor, bool), Error> {
        let (arena, limit, is_behind) = {
            let held = self.up(now, timeout)?;
            (held.link().arena.clone(), held.link().tensor_bytes_max, held.has_unplaced())
        };
        let len = tensor.bytes().len();
        if len as u64 > limit {
            return Err(too_large(len as u64, limit));
        }
        if arena.span_of(tensor.bytes()).is_some() {
            return Ok((tensor, true));
        }
        // First come, first served.
        let room = if is_behind { None } else { self.room_in_arena(len)? };
        let Some(mut copy) = room else { return Ok((tensor, false)) };
        copy_bytes(&mut copy, tensor.bytes());
        Ok((Tensor::new(tensor.into_parts().0, copy)?, true))
    }

    /// Memory from the arena; `None` if it is full and the tensor waits for it elsewhere.
    fn room_in_arena(&self, len: usize) -> Result<Option<Buffer>, Error> {
        match self.allocate(len) {
            Err(error) if error.code() == Code::ResourceExhausted && self.settings.backlog.is_some() => Ok(None),
            allocated => allocated.map(Some),
        }
    }

    /// What the daemon is lent for a destination: the destination itself if it lies in the arena, else a block in its place.
    #[inline]
    pub(super) fn destination(
        &self,
        destination: Option<Destination>,
        arena: impl FnOnce() -> Result<Arc<Arena>, Error>,
    ) -> Result<Memory, Unreceived> {
        let Some(destination) = destination else { return Ok(Memory::Nothing) };
        if is_on_device(destination.memory()) {
            return Err(Unreceived::returning(on_device(), Some(destination)));
        }
        match self.landing(&destination, arena) {
            Ok(None) => Ok(Memory::Destination(destination)),
            Ok(Some(landing)) => Ok(Memory::Substitute(Box::new(Substitute { landing, destination }))),
            Err(error) => Err(Unreceived::returning(error, Some(destination))),
        }
    }

    fn landing(
        &self,
        destination: &Destination,
        arena: impl FnOnce() -> Result<Arc<Arena>, Error>,
    ) -> Result<Option<Buffer>, Error> {
        if destination.is_empty() || arena()?.span_of(destination).is_some() {
            return Ok(None);
        }
        // Without a block, it is filled by a copy from wherever the tensor arrives.
        Ok(Some(self.room_in_arena(destination.len())?.unwrap_or_default()))
    }
}

impl Held<'_> {
    /// True if the tensor is small, or lies in the arena of this link.
    #[inline]
    pub(super) fn reaches(&self, tensor: Option<&Tensor>) -> bool {
        tensor.is_none_or(|tensor| is_small(tensor) || self.link().arena.span_of(tensor.bytes()).is_some())
    }

    /// Where memory that was allocated before the lock was taken lies in the arena; `None` without memory.
    #[inline]
    pub(super) fn span(&self, memory: &Memory) -> Result<Option<Span>, Error> {
        match (memory.lent(), &self.line) {
            (None, _) => Ok(None),
            (Some([]), _) => Ok(Some(Span::default())),
            (Some(bytes), Line::Up(link)) => link.arena.span_of(bytes).map(Some).ok_or_else(|| {
                Error::unavailable(&link.daemon, "it was lost and reattached while the call was in transit")
            }),
            (Some(_), line) => Err(down(line)),
        }
    }
}

pub(super) fn too_large(len: u64, limit: u64) -> Error {
    let reason = format!("the tensor has {len} bytes, the daemon carries at most {limit}");
    Error::full("transport.tensor_bytes_max", reason)
}

#[inline]
pub(super) fn is_small(tensor: &Tensor) -> bool {
    tensor.len() <= INLINE_BYTES_MAX
}

/// True if its bytes travel in a ring.
#[inline]
pub(super) fn is_inline(tensor: &Tensor) -> bool {
    is_small(tensor) && !is_of_device(tensor)
}

pub(super) fn is_of_device(tensor: &Tensor) -> bool {
    is_on_device(tensor.memory())
}

fn is_on_device(memory: MemoryKind) -> bool {
    matches!(memory, MemoryKind::Device(_))
}

pub(super) fn on_device() -> Error {
    Error::Unimplemented { reason: "an attached client's tensors are in host memory: copy this one there first".into() }
}
