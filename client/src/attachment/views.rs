//! Arenas of other clients, in which their published tensors are viewed: mapped when the daemon first names one, and
//! unmapped when it says that their client has gone and the last view is dropped. Bounded by [`OTHERS_ARENAS_MAX`].

use std::{
    ptr,
    sync::Arc,
    time::{Duration, Instant},
};

use sealane_runtime::Buffer;
use sealane_transport::{
    Error,
    shm::{ClientEar, ReadOnlyMemory},
};

use super::{Attachment, Line, aftermath::Aftermath, link::Segment};
use crate::{attach, limits::OTHERS_ARENAS_MAX};

/// The arenas that one daemon has shared.
#[derive(Default)]
pub(super) struct Arenas {
    mapped: Vec<(u64, ReadOnlyMemory)>,
    /// Number of clients that have gone.
    gone: u64,
}

impl Arenas {
    /// The client of an arena has gone.
    pub(super) fn gone(&mut self, arena: u64, after: &mut Aftermath) {
        self.gone += 1;
        let of_it = self.mapped.extract_if(.., |(number, _)| *number == arena);
        after.arenas.extend(of_it.map(|(_, memory)| memory));
    }
}

impl Attachment {
    /// The arena of that number, as the daemon of link `serial` knows it. It is requested if that was not done, in a conversation
    /// of at most `VIEW_TIMEOUT`.
    ///
    /// # Errors
    /// ResourceExhausted if too many are mapped, NotFound if its client has gone, Unavailable if the daemon has gone, does not
    /// answer, or the system cannot map it.
    pub(super) fn others_arena(&self, serial: u64, arena: u64) -> Result<ReadOnlyMemory, Error> {
        let gone = match &self.lock().line {
            Line::Up(link) if link.serial == serial => {
                if let Some((_, memory)) = link.arenas.mapped.iter().find(|(number, _)| *number == arena) {
                    return Ok(memory.clone());
                }
                if link.arenas.mapped.len() >= OTHERS_ARENAS_MAX {
                    return Err(Error::full("arenas of other clients", format!("{OTHERS_ARENAS_MAX} are mapped")));
                }
                link.arenas.gone
            }
            _ => return Err(Error::unavailable("the daemon", "the daemon that told of the tensor is gone")),
        };
        let memory = attach::map_arena(&self.settings, arena, Instant::now())?;
        if let Line::Up(link) = &mut self.lock().line
            && link.serial == serial
            // The daemon may have reported meanwhile that its client has gone, and it would be kept for ever.
            && link.arenas.gone == gone
            && link.arenas.mapped.iter().all(|(number, _)| *number != arena)
        {
            link.arenas.mapped.push((arena, memory.clone()));
        }
        Ok(memory)
    }

    /// The number of the current link, counted from 1.
    pub(crate) fn link_number(&self) -> Option<u64> {
        match &self.lock().line {
            Line::Up(link) => Some(link.serial + 1),
            Line::Lost(_) | Line::Ended(_) => None,
        }
    }

    /// The arena that a number in the daemon's answer means.
    ///
    /// # Errors
    /// As [`others_arena`](Self::others_arena).
    pub(crate) fn arena_named_by(&self, answer: &Buffer, arena: u64) -> Result<ReadOnlyMemory, Error> {
        let gone = || Error::unavailable("the daemon", "the daemon that told of the table is gone");
        let (serial, _) = self.link_that_lends(answer).ok_or_else(gone)?;
        self.others_arena(serial, arena)
    }

    /// True if the daemon that has lent this memory still lives, and the clients of these arenas as far as it has reported: until then,
    /// nobody else writes what lies there by its word.
    pub(crate) fn is_lent(&self, memory: &Buffer, mut arenas: impl Iterator<Item = u64>) -> bool {
        self.lock().pump();
        let is_there = match &self.lock().line {
            Line::Up(link) => arenas.all(|arena| link.arenas.mapped.iter().any(|(number, _)| *number == arena)),
            Line::Lost(_) | Line::Ended(_) => false,
        };
        is_there && self.link_that_lends(memory).is_some_and(|(_, ear)| !ear.wait_for_end(Duration::ZERO))
    }

    fn link_that_lends(&self, memory: &Buffer) -> Option<(u64, Arc<ClientEar>)> {
        let (lender, _) = memory.lender()?;
        match &self.lock().line {
            Line::Up(link) => {
                let lends = |segment: &Segment| ptr::addr_eq(Arc::as_ptr(&segment.area), Arc::as_ptr(lender));
                link.segments.iter().any(lends).then(|| (link.serial, link.ear.clone()))
            }
            Line::Lost(_) | Line::Ended(_) => None,
        }
    }
}
