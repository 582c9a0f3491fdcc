//! Rows that this process reads itself, in place: of tables that another process of the same user has published with the same daemon. The
//! daemon is asked for their place each time, so that nobody has to tell this process of changes; as long as this process keeps the
//! answer, and the daemon lives, the table stays there.
//!
//! Whenever something is not as expected, the daemon gathers the rows instead.

use std::iter::zip;

use sealane_runtime::{Buffer, Rows};
use sealane_transport::{
    Code, Error, Payload, Tensor,
    named_rows::NamedRowsBuf,
    shm::table_places::{self, Place, TablePlace},
};

use super::{places::Places, shares::Part};
use crate::{
    Receiving,
    attachment::Attachment,
    limits::{ROW_LOOKS_MAX, ROWS_READ_AT_ONCE},
};

/// Rows of one table of a call, all of one owner.
#[derive(Default)]
pub(super) struct Viewed {
    /// The number of the table in the call.
    pub(super) table: usize,
    pub(super) part: Part,
}

/// A request for the places of an owner's tables.
pub(super) struct Asked {
    pub(super) rows: Vec<Viewed>,
    pub(super) receiving: Receiving,
}

/// Rows that are being read.
pub(super) struct Reading {
    pub(super) owner: usize,
    /// The daemon's answer: as long as this is kept, the tables stay in place.
    answer: Tensor,
    pub(super) rows: Vec<Viewed>,
    places: Vec<TablePlace>,
    /// The table being read, and how many of its rows were read.
    table: usize,
    read: usize,
    /// Failed attempts to read a row, which was always being written.
    looks: u32,
    /// An arena that could not be mapped.
    unmapped: Option<u64>,
}

/// Outcome of a step.
pub(super) enum Progress {
    /// Some rows were read.
    Read,
    /// No row: the next one was always being written. Try again later.
    Stuck,
    /// These rows are to be requested; if `always`, so are later ones until there is another daemon.
    Ask { rows: Viewed, always: bool },
    /// All others were read, and stayed valid during the call.
    All,
}

/// Names as many tables of these rows as one request may; `of` gives their keys and numbers of rows. Returns how many.
pub(super) fn name<'k>(rows: &[Viewed], of: impl Fn(&Viewed) -> (&'k str, usize), into: &mut NamedRowsBuf) -> usize {
    let has_room = |&(key, rows): &(&str, usize)| into.name(key, &[], |_| rows as u32).is_some();
    rows.iter().map(of).take_while(has_room).count()
}

impl Reading {
    /// The reading of tables whose places an owner's answer tells.
    ///
    /// # Errors
    /// Unavailable, if the answer is not valid.
    pub(super) fn new(owner: usize, rows: Vec<Viewed>, answer: Tensor) -> Result<Self, Error> {
        let places = table_places::read(answer.bytes(), rows.len());
        let places = places.map_err(|error| Error::unavailable("the daemon", error.to_string()))?;
        Ok(Self { owner, answer, rows, places, table: 0, read: 0, looks: 0, unmapped: None })
    }

    fn memory(&self) -> Option<&Buffer> {
        match self.answer.payload() {
            Payload::Owned(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The table whose rows are read next; `None` once all were read.
    pub(super) fn next(&self) -> Option<usize> {
        self.rows.get(self.table).map(|viewed| viewed.table)
    }

    /// Reads about `budget` bytes of rows of the [next](Self::next) table to their places.
    ///
    /// # Errors
    /// As [`Places::put`].
    pub(super) fn read(
        &mut self,
        attachment: &Attachment,
        (owner, key): (&str, &str),
        to: &mut Places,
        budget: &mut usize,
    ) -> Result<Progress, Error> {
        let TablePlace { meta, place } = &self.places[self.table];
        let Some(Place { arena, rows: at, locks }) = *place else { return Ok(self.leave(true)) };
        let Some(answer) = self.memory() else { return Ok(self.leave(true)) };
        if self.unmapped == Some(arena) {
            return Ok(self.leave(true));
        }
        let memory = match attachment.arena_named_by(answer, arena) {
            Ok(memory) => memory,
            Err(error) if error.code() == Code::NotFound => return Ok(self.leave(false)),
            Err(_) => {
                // Other tables in it are not tried again: that may take a second each time.
                self.unmapped = Some(arena);
                return Ok(self.leave(true));
            }
        };
        let (Ok(bytes), Ok(locks)) = (memory.volatile(at), memory.volatile(locks)) else { return Ok(self.leave(true)) };
        let part = &self.rows[self.table].part;
        let (target, row_bytes) = to.of_table(meta, bytes.len(), (owner, key))?;
        let table = Rows::new(bytes, row_bytes, locks);
        let rows = table.len() as u64;
        if self.read == 0 && part.ids.iter().any(|&id| id >= rows) {
            return Ok(self.leave(false));
        }
        let most = (*budget / row_bytes).clamp(1, ROWS_READ_AT_ONCE);
        let these = self.read..part.ids.len().min(self.read + most);
        let ids = &part.ids[these.clone()];
        let target = target.volatile_mut();
        let read = match part.places() {
            Some(places) => table.gather_to(ids, &places[these.clone()], target),
            None => table.gather(ids, target.range(these.start * row_bytes..these.end * row_bytes)),
        };
        let (copied, is_locked) = read.map_or_else(|copied| (copied, true), |()| (ids.len(), false));
        *budget = budget.saturating_sub(copied * row_bytes);
        self.read += copied;
        if self.read == self.rows[self.table].part.ids.len() {
            (self.table, self.read, self.looks) = (self.table + 1, 0, 0);
            return Ok(Progress::Read);
        }
        self.looks = if copied == 0 { self.looks + 1 } else { 0 };
        // The writer may have been stopped: the daemon can wait for it asleep.
        Ok(match is_locked {
            false => Progress::Read,
            true if self.looks <= ROW_LOOKS_MAX => Progress::Stuck,
            true => self.leave(false),
        })
    }

    /// Leaves the rows of this table to the daemon.
    fn leave(&mut self, always: bool) -> Progress {
        let viewed = std::mem::take(&mut self.rows[self.table]);
        (self.table, self.read, self.looks) = (self.table + 1, 0, 0);
        Progress::Ask { rows: viewed, always }
    }

    /// True if what was read is valid: the daemon that has kept it in place still lives, and so do the owners.
    pub(super) fn holds(&self, attachment: &Attachment) -> bool {
        let read = zip(&self.rows, &self.places).filter(|(viewed, _)| !viewed.part.ids.is_empty());
        let arenas = read.filter_map(|(_, table)| table.place).map(|place| place.arena);
        self.memory().is_some_and(|memory| attachment.is_lent(memory, arenas))
    }
}
