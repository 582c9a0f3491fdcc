//! Calls whose tensors go over direct lanes. A send is known to the lane alone; a recv waits here, and the daemon is asked if none comes.

use sealane_runtime::Buffer;
use sealane_transport::{Error, Room, Tensor, Unreceived};

use super::super::aftermath::Aftermath;
use super::super::memory::Memory;
use super::{
    Arrived, Awaited, Calls, Matching, Name,
    slot::{Caller, Daemon, Direction, Slot},
};
use crate::{clock::Tick, limits::CALL_INDEX_BITS};

/// For a send that was taken back.
const NO_LANE: (u16, u16) = (u16::MAX, 0);

/// How a recv waits that a lane may serve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::attachment) enum Wish {
    /// Only here: the daemon does not know of it.
    Quiet,
    /// The daemon is asked when its ring has room.
    Queued,
    /// The daemon was asked.
    Asked,
}

/// What has the name of a tensor that has come over a lane.
pub(in crate::attachment) enum Waiting {
    Nothing,
    /// A tensor, or a hint of one, in that entry of the lane.
    Tensor {
        entry: u16,
    },
    /// A recv; `None` if it does not wait any more.
    Recv(Option<Wanted>),
}

/// A recv that waits, and the tensors that fit its destination.
pub(in crate::attachment) struct Wanted {
    pub(in crate::attachment) call: u32,
    pub(in crate::attachment) wish: Wish,
    pub(in crate::attachment) room: Option<Room>,
}

impl Calls {
    #[inline]
    pub(in crate::attachment) fn matching(&mut self) -> &mut Matching {
        &mut self.matching
    }

    /// Enters a send that was made over a lane. There is [room](Self::have_room_for) for it.
    #[inline]
    pub(in crate::attachment) fn enter_sent(&mut self, sent_by: (u16, u16), deadline: Tick) -> u32 {
        let (call, slot) = self.occupy(Direction::Send, 0, deadline).expect("the caller has looked");
        (slot.daemon, slot.sent_by) = (Daemon::Bypassed, sent_by);
        call
    }

    /// Enters a recv of which the daemon is not told; there is room for it, likewise. If it waits for a tensor of a lane, it is found by
    /// its name, which nothing else has.
    #[inline]
    pub(in crate::attachment) fn enter_recv(
        &mut self,
        name: Option<Name>,
        place: (&str, i64, &str),
        memory: &mut Memory,
        (deadline, borrowed): (Tick, bool),
    ) -> u32 {
        let (call, slot) = self.occupy(Direction::Recv, 0, deadline).expect("the caller has looked");
        slot.note(place, borrowed);
        slot.lend(memory);
        (slot.daemon, slot.name) = (Daemon::Untold, name);
        if let Some(name) = name {
            self.matching.insert_new(name, Awaited::Recv(call));
        }
        call
    }

    /// The lane and the entry of a send, if a lane decides about it.
    pub(in crate::attachment) fn sent_by(&mut self, call: u32) -> Option<(u16, u16)> {
        self.own_slot(call).filter(|slot| slot.daemon == Daemon::Bypassed).map(|slot| slot.sent_by)
    }

    /// Ends a send over a lane, successfully if there is no error.
    #[inline]
    pub(in crate::attachment) fn end_sent(&mut self, call: u32, error: Option<Error>, after: &mut Aftermath) {
        let Some(slot) = self.own_slot(call).filter(|slot| slot.daemon == Daemon::Bypassed) else { return };
        slot.daemon = Daemon::Done;
        if let (Some(error), Caller::Waiting) = (error, slot.caller) {
            slot.failure = Some(Box::new(Unreceived { error, destination: None }));
        }
        self.end(call, after);
        self.release(call);
    }

    /// Notes that a send was taken back: it is not a lane's any more, and not yet the daemon's.
    pub(in crate::attachment) fn is_back(&mut self, call: u32) {
        if let Some(slot) = self.own_slot(call) {
            slot.sent_by = NO_LANE;
        }
    }

    /// Notes that the daemon carries out a send that was taken back.
    pub(in crate::attachment) fn redirect(&mut self, call: u32, segment: u16) {
        if let Some(slot) = self.own_slot(call).filter(|slot| slot.daemon == Daemon::Bypassed) {
            (slot.daemon, slot.segment) = (Daemon::Working, segment);
        }
    }

    /// Lets a lane find a recv by its name, unless something else has that name.
    #[inline]
    pub(in crate::attachment) fn give_name(&mut self, call: u32, name: Name) {
        self.forget_name(call);
        if self.matching.insert(name, Awaited::Recv(call))
            && let Some(slot) = self.own_slot(call)
        {
            slot.name = Some(name);
        }
    }

    /// Makes a call unknown to lanes.
    #[inline]
    pub(in crate::attachment) fn forget_name(&mut self, call: u32) {
        if let Some(name) = self.own_slot(call).and_then(|slot| slot.name.take()) {
            self.matching.remove(name, Awaited::Recv(call));
        }
    }

    /// What has a name for which a tensor has come. A recv has it no longer.
    #[inline]
    pub(in crate::attachment) fn take_waiting(&mut self, name: Name, place: (&str, i64, &str)) -> Waiting {
        match self.matching.take_recv(name) {
            None => Waiting::Nothing,
            Some(Awaited::Tensor { entry, .. }) => Waiting::Tensor { entry },
            Some(Awaited::Recv(call)) => Waiting::Recv(self.own_slot(call).and_then(|slot| {
                slot.name = None;
                slot.wanted(call, place)
            })),
        }
    }

    /// What a recv of that peer, step and key waits for; `None` if it does not wait any more.
    #[inline]
    pub(in crate::attachment) fn wanted(&mut self, call: u32, place: (&str, i64, &str)) -> Option<Wanted> {
        self.own_slot(call)?.wanted(call, place)
    }

    /// Gives a recv that waits a tensor from a lane, for which its destination has room.
    #[inline]
    pub(in crate::attachment) fn hand_over(
        &mut self,
        (call, wish): (u32, Wish),
        meta: &[u8],
        bytes: &[u8],
        after: &mut Aftermath,
    ) {
        if wish == Wish::Asked {
            return self.set_aside(call, meta, bytes, after);
        }
        let received = self.arrived(call, meta, Arrived::Inline(bytes), after);
        debug_assert!(received.is_ok(), "{received:?}");
        if wish == Wish::Queued
            && let Some(slot) = self.own_slot(call)
        {
            slot.daemon = Daemon::Dropped;
        }
    }

    /// Sets aside a tensor from a lane for a recv that the daemon was asked for: the recv gets it when the daemon has given it up. Another
    /// tensor that the daemon already sends is the next recv's.
    fn set_aside(&mut self, call: u32, meta: &[u8], bytes: &[u8], after: &mut Aftermath) {
        self.forget_name(call);
        let Some(slot) = self.own_slot(call).filter(|slot| slot.daemon == Daemon::Working) else { return };
        let segment = slot.segment;
        match Tensor::from_wire(meta, Buffer::copy_of(bytes)) {
            Ok(tensor) => slot.tensor = Some(tensor),
            Err(error) => self.overdue(call, error, after),
        }
        self.to_cancel.push((segment, call));
    }

    /// Ends a recv whose sender has gone; if the daemon was asked for it, once the daemon has given it up.
    pub(in crate::attachment) fn give_up(&mut self, call: u32, error: Error, after: &mut Aftermath) {
        let Some(slot) = self.own_slot(call) else { return };
        match slot.daemon {
            Daemon::Untold | Daemon::Queued => self.end_untold(call, error, after),
            Daemon::Working => {
                slot.failure = Some(Box::new(Unreceived { error, destination: None }));
                let segment = slot.segment;
                self.forget_name(call);
                self.to_cancel.push((segment, call));
            }
            _ => {}
        }
    }

    /// Fails a recv whose destination the arrived tensor does not fit. The tensor waits for the next recv.
    pub(in crate::attachment) fn refuse(&mut self, call: u32, misfit: Error, after: &mut Aftermath) {
        let Some(slot) = self.own_slot(call) else { return };
        let asked = (slot.segment, slot.daemon == Daemon::Working);
        self.overdue(call, misfit, after);
        if let (segment, true) = asked {
            self.to_cancel.push((segment, call));
        }
    }

    /// Notes that the daemon was asked for a recv that waited here, or is when the ring has room.
    pub(in crate::attachment) fn is_asked(&mut self, call: u32, segment: u16, told: bool) {
        if let Some(slot) = self.own_slot(call) {
            (slot.segment, slot.daemon) = (segment, if told { Daemon::Working } else { Daemon::Queued });
        }
    }

    /// What a waiting recv asks the daemon for: peer, step and key, its deadline, and its memory.
    pub(in crate::attachment) fn wants(&mut self, call: u32) -> Option<(&str, i64, &str, Tick, &Memory)> {
        let slot = self.own_slot(call).filter(|slot| slot.daemon == Daemon::Untold)?;
        Some((slot.place.peer(), slot.place.step(), slot.place.key(), slot.deadline, &slot.memory))
    }

    /// Recvs in flight from a peer, with steps and keys: a lane may serve them from now on.
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

impl Slot {
    #[inline]
    fn wanted(&self, call: u32, (peer, step, key): (&str, i64, &str)) -> Option<Wanted> {
        let wish = match self.daemon {
            Daemon::Untold => Wish::Quiet,
            Daemon::Queued => Wish::Queued,
            Daemon::Working => Wish::Asked,
            _ => return None,
        };
        if self.caller != Caller::Waiting || self.tensor.is_some() {
            return None;
        }
        debug_assert_eq!(self.place.peer(), peer, "another lane's recv has this name");
        let is_meant = self.place.step() == step && self.place.key() == key;
        is_meant.then(|| Wanted { call, wish, room: self.memory.room() })
    }
}
