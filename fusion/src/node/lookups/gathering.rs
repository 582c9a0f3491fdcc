//! Rows that are being gathered: the table, the memory that they go to, and how far they are.

use sealane_runtime::{Buffer, Rows, VolatileSlice};
use sealane_transport::limits::ROWS_BYTES_MAX;
use sealane_transport::row_ids::RowIds;
use sealane_transport::session::ReceiveMemory;
use sealane_transport::tensor::TensorMeta;
use sealane_transport::{Error, Payload};

use super::rows_of;
use crate::limits::{COPY_AT_ONCE_BYTES, GATHERED_SHARE, ROW_TURNS_MAX};
use crate::node::context::Context;

/// A published table, as the store has it.
pub(in crate::node) struct Table {
    pub(in crate::node) version: i64,
    pub(in crate::node) meta: TensorMeta,
    pub(in crate::node) payload: Payload,
    /// The sequence locks of its rows, if it has any.
    pub(in crate::node) locks: Option<Payload>,
}

/// See the module.
pub(super) struct Gathering {
    payload: Payload,
    locks: Option<Payload>,
    /// What the rows look like together.
    meta: TensorMeta,
    row_bytes: usize,
    to: Buffer,
    /// Rows that are there.
    filled: usize,
    rows: usize,
    /// Turns in which the next row was always being written.
    turns: u32,
}

/// Whose memory rows are gathered in.
pub(super) enum Memories {
    /// The send slab, of which the peer holds so many bytes with answers that it has not released or that are being gathered.
    Slab { held: usize },
    /// That of a task of this node.
    OfTask(u16),
}

/// How far rows are.
pub(super) enum Gathered {
    All,
    /// More in a later turn.
    Some,
    /// As `Some`, but the next row was being written: it is tried again later.
    Locked,
}

impl Gathering {
    /// Takes memory for the rows `numbers`, reads these into `ids`, and looks whether the table has them. `None` if there is no memory now,
    /// which costs little.
    ///
    /// # Errors
    /// InvalidArgument, or ResourceExhausted where no waiting helps.
    pub(super) fn begin(
        table: Table,
        numbers: RowIds<'_>,
        ids: &mut Vec<u64>,
        key: &str,
        whose: Memories,
        context: &Context,
    ) -> Result<Option<Self>, Error> {
        let Table { meta, payload, locks, .. } = table;
        if payload.host_bytes().is_none() {
            let reason = format!("'{key}' is in the memory of a device, of which rows cannot be gathered");
            return Err(Error::Unimplemented { reason: reason.into() });
        }
        let rows = numbers.len();
        let (there, row_bytes) = rows_of(&meta, payload.len(), key)?;
        let bytes = rows.saturating_mul(row_bytes);
        if bytes > ROWS_BYTES_MAX {
            let reason = format!("{rows} rows of '{key}' have {bytes} bytes, at most {ROWS_BYTES_MAX}");
            return Err(Error::full("rows of a request", reason));
        }
        let to = match whose {
            Memories::OfTask(consumer) => context.memory.allocate(consumer, bytes)?,
            Memories::Slab { .. } if bytes <= Buffer::OWN_BYTES => Buffer::of_len(bytes),
            Memories::Slab { held } => {
                let slab = context.memory.send_slab();
                // A peer that releases nothing does not take the memory that others are answered from.
                if held > 0 && held + bytes > slab.capacity_bytes() / GATHERED_SHARE {
                    return Ok(None);
                }
                match slab.allocate(bytes) {
                    Ok(memory) => memory,
                    // A larger block may never come together, however long somebody waits.
                    Err(_) if bytes <= slab.capacity_bytes() / 2 => return Ok(None),
                    Err(full) => return Err(Error::full("runtime.slab_send_bytes", full.to_string())),
                }
            }
        };
        numbers.decode(ids);
        if let Some(missing) = ids.iter().find(|&&id| id >= there) {
            return Err(Error::invalid(format!("row {missing} of '{key}', which has {there} rows")));
        }
        let mut shape = meta.shape();
        shape[0] = rows as u64;
        let meta = TensorMeta::new(meta.dtype(), &shape)?;
        let locks = locks.filter(|locks| locks.host_bytes().is_some());
        Ok(Some(Self { payload, locks, meta, row_bytes, to, filled: 0, rows, turns: 0 }))
    }

    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> usize {
        self.to.len()
    }

    /// Copies about `budget` bytes of the rows `ids`, all of them named again; how many that cost, and how far it is.
    ///
    /// # Errors
    /// Aborted: a row was written at each of many looks.
    pub(super) fn advance(&mut self, ids: &[u64], budget: usize, key: &str) -> (usize, Result<Gathered, Error>) {
        if self.row_bytes == 0 || self.filled == self.rows {
            return (0, Ok(Gathered::All));
        }
        let most = (budget / self.row_bytes).max(1);
        let end = self.rows.min(self.filled + most);
        let locks = self.locks.as_ref().map_or(VolatileSlice::empty(), Payload::volatile);
        let table = Rows::new(self.payload.volatile(), self.row_bytes, locks);
        let places = self.filled * self.row_bytes..end * self.row_bytes;
        let (copied, looks) = match table.gather(&ids[self.filled..end], self.to.volatile_mut().range(places)) {
            Ok(()) => {
                self.turns = 0;
                (end - self.filled, 0)
            }
            Err(copied) => {
                // Looks at a row that is being written may copy it each time.
                let looks = self.row_bytes.max(COPY_AT_ONCE_BYTES);
                self.turns = if copied > 0 { 1 } else { self.turns + 1 };
                if self.turns > ROW_TURNS_MAX {
                    let (row, step) = (ids[self.filled], 0);
                    let reason = format!("row {row} of '{key}' was written at each of {ROW_TURNS_MAX} looks");
                    return (looks, Err(Error::Aborted { step, reason: reason.into() }));
                }
                (copied, looks)
            }
        };
        self.filled += copied;
        let gathered = match () {
            () if self.filled == self.rows => Gathered::All,
            () if copied == 0 => Gathered::Locked,
            () => Gathered::Some,
        };
        (copied * self.row_bytes + looks, Ok(gathered))
    }

    /// The rows: how many, and the tensor of them.
    pub(super) fn into_rows(self) -> (u64, TensorMeta, Buffer) {
        (self.rows as u64, self.meta, self.to)
    }
}
