//! The rows of a table that this task publishes and writes, in memory that a daemon or an engine reads at the same time. Any thread:
//! a writer holds the table.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sealane_runtime::{Buffer, Rows, STRIPES_MAX, VolatileSlice, VolatileSliceMut};
use sealane_transport::{Payload, limits::LOCKS_SUFFIX};

/// Bytes of the locks of one table: more than a tensor may have that is copied instead of read in place.
pub(crate) const LOCKS_BYTES: usize = STRIPES_MAX * size_of::<u32>();

/// A table that this task publishes.
pub(crate) struct OwnTable {
    pub(crate) key: Box<str>,
    /// The key under which the locks of its rows are published.
    pub(crate) locks_key: Box<str>,
    state: Mutex<TableState>,
}

/// A table's state, for whoever holds it.
pub(crate) struct TableState {
    /// The version that pulls see.
    pub(crate) version: i64,
    /// Nobody can pull it until it gets another version.
    pub(crate) withdrawn: bool,
    pub(crate) memory: TableMemory,
}

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

    /// Held to write the table, give it a version, or move it. Taken before the attachment's turn and lock, never while holding those.
    pub(crate) fn hold(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TableMemory {
    /// Rows of so many bytes each, and the memory of their locks, none of which is taken.
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

    /// Gives each of these rows to `write`, so that no reader takes a half-written row for whole.
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

    /// The same rows in other memory; nobody writes while this runs.
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
