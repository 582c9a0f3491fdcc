//! The rows of a table that this task publishes and writes, in memory that a daemon or an engine reads at the same time. Any thread:
//! whoever writes holds the table.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sealane_runtime::{Buffer, Rows, STRIPES_MAX, VolatileSlice, VolatileSliceMut};
use sealane_transport::{Payload, limits::LOCKS_SUFFIX};

/// Bytes of the locks of one table: more than any that would be copied in place of being read where they lie.
pub(crate) const LOCKS_BYTES: usize = STRIPES_MAX * size_of::<u32>();

/// A table that this task publishes.
pub(crate) struct OwnTable {
    pub(crate) key: Box<str>,
    /// Under which the locks of its rows are published.
    pub(crate) locks_key: Box<str>,
    state: Mutex<TableState>,
}

/// A table as whoever holds it finds it, and leaves it.
pub(crate) struct TableState {
    /// That it has for those who pull it.
    pub(crate) version: i64,
    /// Nobody can pull it, until it gets another version.
    pub(crate) withdrawn: bool,
    pub(crate) memory: TableMemory,
}

/// See the module.
pub(crate) struct TableMemory {
    pub(crate) rows: Arc<Buffer>,
    pub(crate) locks: Option<Arc<Buffer>>,
    row_bytes: usize,
}

impl OwnTable {
    pub(crate) fn new(key: &str, version: i64, memory: TableMemory) -> Self {
        let locks_key = format!("{key}{LOCKS_SUFFIX}").into();
        Self { key: key.into(), locks_key, state: Mutex::new(TableState { version, withdrawn: false, memory }) }
    }

    /// Held by whoever writes it, gives it a version, or moves it. Before the attachment's turn and lock, never behind them.
    pub(crate) fn hold(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableMemory {
    /// Rows of so many bytes each, and the memory of their locks, which nobody has taken.
    pub(crate) fn new(rows: Buffer, row_bytes: usize, locks: Option<Buffer>) -> Self {
        let locks = locks.map(|mut locks| {
            locks.fill(0);
            Arc::new(locks)
        });
        Self { rows: Arc::new(rows), locks, row_bytes }
    }

    fn as_rows(&self) -> Rows<'_> {
        let locks = self.locks.as_ref().map_or(VolatileSlice::empty(), |locks| locks.volatile());
        Rows::new(self.rows.volatile(), self.row_bytes, locks)
    }

    /// Lets `write` have each of these rows, so that no reader takes one for whole that is half written.
    ///
    /// # Panics
    /// If there is no such row.
    pub(crate) fn write(&self, ids: &[u64], write: impl FnMut(usize, VolatileSliceMut<'_>)) {
        // SAFETY: both buffers were this table's alone when it was made, and memory of a buffer may be written. Since then they are
        // shared with what publishes them, which copies their bytes as volatile ones: no reference to them is kept.
        unsafe { self.as_rows().write(ids, write) }
    }

    /// All rows as they are now, none of them half written: nobody writes while this runs.
    pub(crate) fn copy(&self, mut to: Buffer) -> Buffer {
        to.volatile_mut().copy_from(self.rows.volatile());
        to
    }

    /// The same rows in other memory, likewise.
    pub(crate) fn moved(&self, rows: Buffer, locks: Option<Buffer>) -> Self {
        Self::new(self.copy(rows), self.row_bytes, locks)
    }

    /// True if these bytes are its rows, or their locks.
    pub(crate) fn is_at(&self, bytes: &Payload) -> bool {
        let at = bytes.volatile().as_ptr();
        let mut parts = [Some(&self.rows), self.locks.as_ref()].into_iter().flatten();
        parts.any(|part| part.volatile().as_ptr() == at && part.len() == bytes.len())
    }
}
