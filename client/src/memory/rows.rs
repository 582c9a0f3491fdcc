//! The rows of a table that this task publishes and writes, in memory that a daemon or an engine reads at the same time. Any thread:
//! the caller sees to it that one writes at a time.
#![allow(unsafe_code)]

use std::sync::Arc;

use sealane_runtime::{Buffer, Rows, STRIPES_MAX, VolatileSlice, VolatileSliceMut};

/// Bytes of the locks of one table: more than any that would be copied in place of being read where they lie.
pub(crate) const LOCKS_BYTES: usize = STRIPES_MAX * size_of::<u32>();

/// See the module.
pub(crate) struct TableMemory {
    pub(crate) rows: Arc<Buffer>,
    pub(crate) locks: Option<Arc<Buffer>>,
    row_bytes: usize,
}

impl TableMemory {
    /// Rows of so many bytes each, and the memory of their locks.
    pub(crate) fn new(rows: Buffer, row_bytes: usize, locks: Option<Buffer>) -> Self {
        Self { rows: Arc::new(rows), locks: locks.map(Arc::new), row_bytes }
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
}
