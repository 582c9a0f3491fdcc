//! Recvs at the daemon that a tensor of a channel may serve: the channel has *adopted* their names.

use sealane_runtime::Buffer;
use sealane_transport::{Destination, Error, Tensor, Unreceived};

use super::super::aftermath::Aftermath;
use super::super::memory::Memory;
use super::super::unclaimed::Place;
use super::{
    Arrived, Calls, INDEX_MASK,
    slot::{Caller, Daemon, Direction, Slot},
};
use crate::limits::CALL_INDEX_BITS;

/// The name of a call in a channel: the channel's lane, and its slot there.
pub(super) type Adopted = (u32, u32);

impl Calls {
    /// Notes that a channel has adopted a recv, which it leaves at once if that has its outcome.
    pub(in crate::attachment) fn adopt(&mut self, call: u32, lane: u32, slot: u32) {
        let waits = |slot: &&mut Slot| {
            slot.caller == Caller::Waiting && slot.daemon.is_open() && slot.tensor.is_none() && slot.failure.is_none()
        };
        match self.own_slot(call).filter(waits) {
            Some(at) => at.adopted = Some((lane, slot)),
            None => self.left.push((lane, slot, call, false)),
        }
    }

    /// Notes that a recv which a channel has adopted is not to be found there any more.
    #[inline]
    pub(super) fn leave(&mut self, call: u32) {
        if let Some(slot) = self.own_slot(call)
            && let Some((lane, at)) = slot.adopted.take()
        {
            self.left.push((lane, at, call, false));
        }
    }

    /// The channel has ended.
    pub(in crate::attachment) fn disown(&mut self, call: u32) {
        if let Some(slot) = self.own_slot(call) {
            slot.adopted = None;
        }
    }

    /// An adopted recv that has ended: lane, slot and call, and whether its tensor came from the daemon.
    #[inline]
    pub(in crate::attachment) fn take_left(&mut self) -> Option<(u32, u32, u32, bool)> {
        self.left.pop()
    }

    /// Gives a recv the tensor of the channel that has adopted it; false if the recv has ended, or its destination does not fit the tensor,
    /// which fails the recv. Either way the channel has adopted it no more.
    pub(in crate::attachment) fn serve(&mut self, call: u32, meta: &[u8], bytes: &[u8], after: &mut Aftermath) -> bool {
        let Some(slot) = self.own_slot(call) else { return false };
        slot.adopted = None;
        if slot.caller != Caller::Waiting || slot.tensor.is_some() || !slot.daemon.is_open() {
            return false;
        }
        if let Err(misfit) = slot.memory.check(meta, bytes.len()) {
            // The destination goes back to the caller, so the daemon must have given it up.
            self.give_up(call, misfit, after);
            return false;
        }
        match slot.daemon {
            Daemon::Working => self.set_aside(call, meta, bytes, after),
            _ => {
                let arrived = self.arrived(call, meta, Arrived::Inline(bytes), after);
                debug_assert!(arrived.is_ok(), "{arrived:?}");
                if let Some(slot) = self.own_slot(call) {
                    slot.daemon = Daemon::Dropped;
                }
            }
        }
        true
    }

    /// Sets aside a tensor for a recv that the daemon was asked for: the recv gets it when the daemon has given it up. Another
    /// tensor that the daemon already sends is the next recv's.
    fn set_aside(&mut self, call: u32, meta: &[u8], bytes: &[u8], after: &mut Aftermath) {
        let Some(slot) = self.own_slot(call) else { return };
        let segment = slot.segment;
        match Tensor::from_wire(meta, Buffer::copy_of(bytes)) {
            Ok(tensor) => slot.tensor = Some(tensor),
            Err(error) => self.overdue(call, error, after),
        }
        self.to_cancel.push((segment, call));
    }

    /// Ends a recv whose sender has gone, or whose tensor does not fit. A recv at the daemon ends when the daemon gives it up.
    pub(in crate::attachment) fn give_up(&mut self, call: u32, error: Error, after: &mut Aftermath) {
        let Some(slot) = self.own_slot(call) else { return };
        match slot.daemon {
            Daemon::Queued => self.end_untold(call, error, after),
            Daemon::Working if slot.caller == Caller::Waiting && slot.tensor.is_none() => {
                slot.failure = Some(Box::new(Unreceived { error, destination: None }));
                let segment = slot.segment;
                self.to_cancel.push((segment, call));
            }
            _ => {}
        }
    }

    /// Passes a tensor to a recv of its name that waits, or keeps it for the next.
    pub(in crate::attachment) fn keep_given_up(
        &mut self,
        (peer, step, key): (&str, i64, &str),
        tensor: Tensor,
        after: &mut Aftermath,
    ) {
        let mut place = Place::default();
        place.set(peer, step, key);
        self.pass_to_next(place, None, tensor, after);
    }

    /// True while the daemon may still have the tensor of a send.
    pub(in crate::attachment) fn is_at_daemon(&self, call: u32) -> bool {
        match self.slots.get((call & INDEX_MASK) as usize) {
            Some(slot) if slot.generation == call >> CALL_INDEX_BITS => slot.daemon.is_open(),
            _ => self.batches.is_open(call),
        }
    }

    /// Whether a call's destination fulfils `is`; false if it has none.
    pub(in crate::attachment) fn lends_destination(&mut self, call: u32, is: impl Fn(&Destination) -> bool) -> bool {
        let slot = self.own_slot(call);
        slot.is_some_and(|slot| matches!(&slot.memory, Memory::Destination(destination) if is(destination)))
    }

    /// Recvs in progress from a peer, with steps and keys: a channel may serve them from now on.
    pub(in crate::attachment) fn recvs_from(&mut self, peer: &str) -> Vec<(u32, i64, Box<str>)> {
        self.take_recvs_apart(peer, None);
        let is_meant = |slot: &Slot| {
            slot.daemon.is_open()
                && (slot.caller, slot.direction) == (Caller::Waiting, Direction::Recv)
                && (slot.tensor.is_none() && slot.failure.is_none() && slot.keeps)
                && slot.place.peer() == peer
        };
        let meant = self.slots.iter().enumerate().filter(|(_, slot)| is_meant(slot));
        let number = |(index, slot): (usize, &Slot)| {
            (slot.generation << CALL_INDEX_BITS | index as u32, slot.place.step(), slot.place.key().into())
        };
        meant.map(number).collect()
    }
}
