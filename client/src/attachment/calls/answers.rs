//! The daemon's answers to calls, each checked against the table.

use std::iter::once;

use sealane_runtime::{Buffer, copy_bytes};
use sealane_transport::{Error, Tensor, Unreceived};

use super::super::{
    aftermath::Aftermath,
    memory::{Memory, Substitute},
};
use super::{
    Calls, INDEX_MASK,
    slot::{Caller, Daemon, Direction, Slot},
};

/// What the daemon did that no correct daemon does.
pub(in crate::attachment) type Fault = &'static str;

pub(super) const NOT_UNDER_WAY: Fault = "it answered a call that is not in flight";

/// Where a tensor arrived.
pub(in crate::attachment) enum Arrived<'a> {
    Inline(&'a [u8]),
    Destination(u64),
    Area(Buffer),
}

impl Calls {
    /// A send was released by its consumer, or a publication or push needs no memory.
    #[inline]
    pub(in crate::attachment) fn sent(&mut self, segment: u16, call: u32, after: &mut Aftermath) -> Result<(), Fault> {
        match self.answered(segment, call, Daemon::Working)?.direction {
            Direction::Publish => {
                self.published.push((call, false));
                self.done(call, after);
            }
            Direction::Send | Direction::Push => self.done(call, after),
            Direction::Recv | Direction::Pull | Direction::Watch => return Err("it released a recv"),
        }
        Ok(())
    }

    /// A pull has ended.
    pub(in crate::attachment) fn pulled(
        &mut self,
        segment: u16,
        call: u32,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        match self.answered(segment, call, Daemon::Working)?.direction {
            Direction::Pull => self.done(call, after),
            _ => return Err("it ended a pull that does not exist"),
        }
        Ok(())
    }

    /// A tensor was published or pushed; its memory comes back later.
    pub(in crate::attachment) fn published(
        &mut self,
        segment: u16,
        call: u32,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let slot = self.answered(segment, call, Daemon::Working)?;
        if !matches!(slot.direction, Direction::Publish | Direction::Push) {
            return Err("it reported as published a call that is neither a publish nor a push");
        }
        slot.daemon = Daemon::Holding;
        if slot.direction == Direction::Publish {
            self.published.push((call, false));
        }
        self.end(call, after);
        Ok(())
    }

    /// The daemon is done with a call that has succeeded.
    #[inline]
    fn done(&mut self, call: u32, after: &mut Aftermath) {
        if let Some(slot) = self.own_slot(call) {
            slot.daemon = Daemon::Done;
            slot.spend(after);
        }
        self.end(call, after);
        self.release(call);
    }

    /// A tensor arrived.
    #[inline]
    pub(in crate::attachment) fn received(
        &mut self,
        segment: u16,
        call: u32,
        meta: &[u8],
        arrived: Arrived<'_>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        if let Arrived::Inline(bytes) = arrived
            && !self.has_slot(call)
            && let Some((batch, at)) = self.batches.get_mut(call)
        {
            batch.end((segment, Direction::Recv), (at, 1), &mut self.watched, after)?;
            let lengths = once((meta.len() as u16, bytes.len() as u16));
            batch.arrivals.add(at, [meta, bytes], lengths);
            return Ok(());
        }
        if self.answered(segment, call, Daemon::Working)?.direction != Direction::Recv {
            return Err("it answered a send with a tensor");
        }
        self.arrived(call, meta, arrived, after)
    }

    /// The tensor of a recv in flight has arrived, from the daemon or over a lane.
    #[inline]
    pub(super) fn arrived(
        &mut self,
        call: u32,
        meta: &[u8],
        arrived: Arrived<'_>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        match arrived {
            Arrived::Inline(bytes) if self.arrived_small(call, meta, bytes, after) => Ok(()),
            arrived => self.arrived_otherwise(call, meta, arrived, after),
        }
    }

    /// What is usual: a small tensor of a caller who waits and has brought no memory. False if it is not that.
    #[inline]
    fn arrived_small(&mut self, call: u32, meta: &[u8], bytes: &[u8], after: &mut Aftermath) -> bool {
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        let is_usual = slot.caller == Caller::Waiting
            && matches!(slot.memory, Memory::Nothing)
            && (slot.tensor.is_none() && slot.failure.is_none());
        let Some(Ok(tensor)) = is_usual.then(|| self.kinds.tensor(meta, Buffer::copy_of(bytes))) else { return false };
        (slot.tensor, slot.daemon, slot.copies) = (Some(tensor), Daemon::Done, false);
        self.end(call, after);
        true
    }

    fn arrived_otherwise(
        &mut self,
        call: u32,
        meta: &[u8],
        arrived: Arrived<'_>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        let waiting = slot.caller == Caller::Waiting;
        if slot.tensor.is_some() {
            match waiting {
                true => return self.arrived_second(call, meta, arrived, after),
                false => self.unset_aside(call, after),
            }
        }
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        if waiting {
            // Of a recv that was given up.
            slot.failure = None;
        }
        if slot.memory.is_elsewhere() {
            return self.received_elsewhere(call, meta, arrived, after);
        }
        slot.copies = match &slot.memory {
            Memory::Destination(_) => true,
            Memory::Substitute(_) => matches!(arrived, Arrived::Inline(_)),
            Memory::Nothing | Memory::Source(_) => false,
        };
        let data = match (std::mem::take(&mut slot.memory), arrived) {
            // Allocates only if somebody wants the tensor.
            (Memory::Nothing, Arrived::Inline(bytes)) if waiting || slot.keeps => Buffer::copy_of(bytes),
            (Memory::Nothing, Arrived::Inline(_)) => Buffer::default(),
            (Memory::Nothing, Arrived::Area(buffer)) => buffer,
            (Memory::Destination(destination), Arrived::Destination(len)) => shorten(destination.into_memory(), len)?,
            (Memory::Substitute(mut substitute), Arrived::Destination(len)) => {
                let landed = shorten(std::mem::take(&mut substitute.landing), len)?;
                slot.memory = Memory::Substitute(substitute);
                landed
            }
            // The bytes are in the ring anyway, usually none at all.
            (Memory::Destination(destination), Arrived::Inline(bytes)) => filled(destination.into_memory(), bytes)?,
            (Memory::Substitute(substitute), Arrived::Inline(bytes)) => {
                let Substitute { landing, destination } = *substitute;
                after.spent.push(Memory::Destination(landing.into()));
                filled(destination.into_memory(), bytes)?
            }
            (memory, _) => {
                after.spent.push(memory);
                return Err("a tensor did not arrive where it was requested");
            }
        };
        slot.daemon = Daemon::Done;
        if waiting {
            match self.kinds.tensor(meta, data) {
                Ok(tensor) => slot.tensor = Some(tensor),
                // Metadata that describes no tensor ends the call.
                Err(error) => {
                    let destination = slot.memory_back(after);
                    slot.failure = Some(Box::new(Unreceived { error, destination }));
                }
            }
        } else if slot.keeps {
            slot.spend(after);
            // If the metadata describes no tensor, nobody gets it.
            if let Ok(tensor) = Tensor::from_wire(meta, data) {
                self.keep(call, tensor, after);
            }
        } else {
            after.spent.push(Memory::Destination(data.into()));
            slot.spend(after);
        }
        self.end(call, after);
        self.release(call);
        Ok(())
    }

    /// A tensor arrived for a recv for which another is set aside. The latter's sender may have heard that it was received before this one
    /// was sent: the recv gets it, and the next recv of the key gets this one, which is copied out of the destination.
    #[cold]
    fn arrived_second(
        &mut self,
        call: u32,
        meta: &[u8],
        arrived: Arrived<'_>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let memory = &self.slots[(call & INDEX_MASK) as usize].memory;
        let data = match arrived {
            Arrived::Inline(bytes) => Some(Buffer::copy_of(bytes)),
            Arrived::Area(buffer) if memory.lent().is_none() => Some(buffer),
            Arrived::Area(_) => None,
            Arrived::Destination(len) => {
                let landed = memory.lent().zip(usize::try_from(len).ok()).and_then(|(lent, len)| lent.get(..len));
                landed.map(Buffer::copy_of)
            }
        };
        let data = data.ok_or("a tensor did not arrive where it was requested")?;
        self.end_with_set_aside(call, after);
        // If the metadata describes no tensor, nobody gets it.
        if let Ok(tensor) = Tensor::from_wire(meta, data) {
            self.pass_on(call, tensor, after);
        }
        Ok(())
    }

    /// A tensor arrived for a destination that the daemon does not know, since there was no room for one that it can reach. The
    /// caller's thread copies it there; if it is too long, the next recv gets it.
    #[cold]
    fn received_elsewhere(
        &mut self,
        call: u32,
        meta: &[u8],
        arrived: Arrived<'_>,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let data = match arrived {
            Arrived::Inline(bytes) => Buffer::copy_of(bytes),
            Arrived::Area(buffer) => buffer,
            Arrived::Destination(_) => return Err("a tensor did not arrive where it was requested"),
        };
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        (slot.daemon, slot.copies) = (Daemon::Done, false);
        let waiting = slot.caller == Caller::Waiting;
        let checked = slot.memory.check(meta, data.len());
        match Tensor::from_wire(meta, data) {
            Ok(tensor) if waiting && checked.is_ok() => slot.tensor = Some(tensor),
            Ok(tensor) => {
                let destination = slot.memory_back(after);
                if let (true, Err(error)) = (waiting, checked) {
                    slot.failure = Some(Box::new(Unreceived { error, destination }));
                }
                self.keep(call, tensor, after);
            }
            Err(error) => {
                let destination = slot.memory_back(after);
                if waiting {
                    slot.failure = Some(Box::new(Unreceived { error, destination }));
                }
            }
        }
        self.end(call, after);
        self.release(call);
        Ok(())
    }

    /// A call ended without its tensor.
    pub(in crate::attachment) fn failed(
        &mut self,
        segment: u16,
        call: u32,
        memory_back: bool,
        error: Error,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let slot = self.answered(segment, call, Daemon::Working)?;
        if slot.direction == Direction::Publish {
            self.published.push((call, true));
        }
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        if slot.caller == Caller::Waiting && slot.tensor.is_some() {
            match memory_back {
                true => self.end_with_set_aside(call, after),
                false => slot.daemon = Daemon::Holding,
            }
            return Ok(());
        }
        slot.fail(memory_back, || error, after);
        self.end(call, after);
        self.unset_aside(call, after);
        self.release(call);
        Ok(())
    }

    /// The daemon does not use the memory of a failed call any more.
    pub(in crate::attachment) fn returned(
        &mut self,
        segment: u16,
        call: u32,
        after: &mut Aftermath,
    ) -> Result<(), Fault> {
        let slot = self.answered(segment, call, Daemon::Holding)?;
        if slot.caller == Caller::Waiting {
            self.end_with_set_aside(call, after);
            return Ok(());
        }
        slot.daemon = Daemon::Done;
        slot.spend(after);
        self.release(call);
        Ok(())
    }

    /// The daemon has given up a recv for which a tensor was set aside, and its memory is back: the caller's thread copies the
    /// tensor to where it is wanted.
    pub(super) fn end_with_set_aside(&mut self, call: u32, after: &mut Aftermath) {
        let slot = &mut self.slots[(call & INDEX_MASK) as usize];
        let destination = slot.memory_back(after);
        slot.memory = destination.map_or(Memory::Nothing, |destination| Substitute::of_a_tensor(destination.into()));
        (slot.daemon, slot.copies, slot.failure) = (slot.daemon.ended(), false, None);
        self.end(call, after);
    }

    #[inline]
    fn answered(&mut self, segment: u16, call: u32, state: Daemon) -> Result<&mut Slot, Fault> {
        let slot = self.slot(call).ok_or(NOT_UNDER_WAY)?;
        if slot.daemon == state && slot.segment == segment { Ok(slot) } else { Err(NOT_UNDER_WAY) }
    }
}

fn shorten(mut destination: Buffer, len: u64) -> Result<Buffer, Fault> {
    if len > destination.len() as u64 {
        return Err("a tensor is longer than its destination");
    }
    destination.truncate(len as usize);
    Ok(destination)
}

fn filled(destination: Buffer, bytes: &[u8]) -> Result<Buffer, Fault> {
    let mut destination = shorten(destination, bytes.len() as u64)?;
    copy_bytes(&mut destination, bytes);
    Ok(destination)
}
