//! The reference link: two ends in one shard. Frames are handed over together with their memory; payloads, and what does
//! not fit, are copied.
//!
//! Bounded by [`LOOPBACK_BYTES`] per direction, as a socket is by its buffers.

use std::cell::RefCell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

use sealane_runtime::VolatileSlice;

use crate::error::LinkError;
use crate::limits::FRAME_BODY_BYTES_MAX;
use crate::link::{Landing, Link, LinkKind, Receiver};
use crate::outbox::Outbox;
use crate::wire::FRAME_HEADER_BYTES;

/// Most bytes in flight in one direction.
pub const LOOPBACK_BYTES: usize = 1 << 20;

const _: () = assert!(LOOPBACK_BYTES >= FRAME_BODY_BYTES_MAX + FRAME_HEADER_BYTES);

#[derive(Default)]
struct Pipe {
    bytes: Vec<u8>,
    /// How many of `bytes` were read.
    read: usize,
    closed: bool,
}

impl Pipe {
    fn unread(&self) -> &[u8] {
        &self.bytes[self.read..]
    }

    fn consume(&mut self, count: usize) {
        self.read += count;
        if self.read == self.bytes.len() || self.read >= LOOPBACK_BYTES {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
    }
}

/// One end of a loopback; dropping it closes the other.
pub struct LoopbackLink {
    outgoing: Rc<RefCell<Pipe>>,
    incoming: Rc<RefCell<Pipe>>,
    landing: Option<Landing>,
}

/// Two connected ends.
pub fn loopback() -> (LoopbackLink, LoopbackLink) {
    let (one, other) = (Rc::<RefCell<Pipe>>::default(), Rc::<RefCell<Pipe>>::default());
    (
        LoopbackLink { outgoing: one.clone(), incoming: other.clone(), landing: None },
        LoopbackLink { outgoing: other, incoming: one, landing: None },
    )
}

impl Link for LoopbackLink {
    fn kind(&self) -> LinkKind {
        LinkKind::LOOPBACK
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, _more_follows: bool) -> Result<usize, LinkError> {
        let mut pipe = self.outgoing.borrow_mut();
        if pipe.closed {
            return Err(LinkError::Closed);
        }
        let mut total = 0;
        let room = budget.min(LOOPBACK_BYTES - pipe.unread().len());
        if pipe.bytes.is_empty() {
            total = outbox.swap_frames(&mut pipe.bytes, room);
        }
        while !outbox.is_empty() && total < room {
            let mut slices = [VolatileSlice::empty()];
            outbox.gather_within(&mut slices, room - total);
            let count = slices[0].len();
            slices[0].append_to(&mut pipe.bytes);
            outbox.advance(count);
            total += count;
        }
        Ok(total)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        let mut pipe = self.incoming.borrow_mut();
        let mut total = 0;
        while !pipe.unread().is_empty() && total < budget {
            let ready = pipe.unread();
            if let Some(landing) = &mut self.landing {
                let count = landing.take(&ready[..ready.len().min(budget - total)]);
                pipe.consume(count);
                total += count;
                if landing.is_complete() {
                    receiver.landed(self.landing.take().expect("just looked at"));
                }
                continue;
            }
            let room = (budget - total).max(FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX);
            let frames = receiver.frames(&ready[..ready.len().min(room)])?;
            pipe.consume(frames.consumed);
            total += frames.consumed;
            self.landing = frames.landing;
            if frames.consumed == 0 {
                break;
            }
        }
        if total == 0 && pipe.closed { Err(LinkError::Closed) } else { Ok(total) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn abandon(&mut self, _outbox: &mut Outbox) -> Vec<Landing> {
        self.landing.take().into_iter().collect()
    }
}

impl Drop for LoopbackLink {
    fn drop(&mut self) {
        self.outgoing.borrow_mut().closed = true;
        self.incoming.borrow_mut().closed = true;
    }
}
