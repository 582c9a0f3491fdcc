//! Rows that are being gathered: the tables, the destination memory, and the progress.

use std::iter::zip;
use std::ops::Range;
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Rows, VolatileSlice};
use sealane_transport::gathered_rows::{self, Part, Place};
use sealane_transport::limits::ROWS_BYTES_MAX;
use sealane_transport::named_rows::{NamedRows, OfTable};
use sealane_transport::session::ReceiveMemory;
use sealane_transport::tensor::TensorMeta;
use sealane_transport::{Error, Payload};

use super::rows_of;
use crate::limits::{COPY_AT_ONCE_BYTES, GATHERED_SHARE, ROW_TURNS_MAX};
use crate::metrics::TableCounters;
use crate::node::context::Context;

/// A published table, as the store has it.
pub(in crate::node) struct Table {
    pub(in crate::node) version: i64,
    pub(in crate::node) meta: TensorMeta,
    pub(in crate::node) payload: Payload,
    /// The sequence locks of its rows, if it has any.
    pub(in crate::node) locks: Option<Payload>,
}

/// The rows of one table.
struct OfOne {
    payload: Payload,
    locks: Option<Payload>,
    row_bytes: usize,
    /// The number of its named rows that exist, and the range of their numbers in `ids`.
    rows: usize,
    ids: Range<usize>,
    part: Part<Place>,
    took: Duration,
}

/// The gathering of one request's rows; see the module.
pub(super) struct Gathering {
    tables: Vec<OfOne>,
    /// The numbers of the rows of all tables. Dropped while it waits for a lock, and then decoded again.
    ids: Vec<u64>,
    to: Buffer,
    /// The table being read, and how many of its rows were copied.
    table: usize,
    filled: usize,
    /// Consecutive turns in which the next row was being written.
    turns: u32,
}

/// The memory in which rows are gathered.
pub(super) enum Memories {
    /// The send slab, of which the peer already holds `held` bytes with answers that are unreleased or being gathered.
    Slab { held: usize },
    /// The memory of a task of this node.
    OfTask(u16),
}

/// How far the gathering has come.
pub(super) enum Gathered {
    All,
    /// There is more to copy, in a later turn.
    Some,
    /// Like `Some`, but the next row was being written: retry later.
    Locked,
}

impl Gathering {
    /// Allocates memory for rows of `tables`, one for each table in `named`. `None` if there is no memory now.
    ///
    /// # Errors
    /// InvalidArgument if one is not a table, or ResourceExhausted if waiting would not help.
    pub(super) fn begin(
        tables: Vec<Table>,
        named: NamedRows<'_>,
        spare: &mut Vec<u64>,
        whose: Memories,
        context: &Context,
    ) -> Result<Option<Self>, Error> {
        spare.clear();
        let each = zip(tables, named.iter()).map(|(table, named)| OfOne::new(table, named, spare));
        let mut tables = each.collect::<Result<Vec<_>, _>>()?;
        let heads = gathered_rows::heads(tables.iter().map(|table| &table.part));
        let bytes = gathered_rows::lay_out(tables.iter_mut().map(|table| &mut table.part), heads);
        let of_rows = tables.iter().try_fold(0_usize, |sum, table| sum.checked_add(table.part.rows.len()));
        let Some(bytes) = bytes.filter(|_| of_rows.is_some_and(|bytes| bytes <= ROWS_BYTES_MAX)) else {
            let reason = format!("the rows of '{}' have more than {ROWS_BYTES_MAX} bytes", named.title());
            return Err(Error::full("rows of a request", reason));
        };
        let mut to = match whose {
            Memories::OfTask(consumer) => context.memory.allocate(consumer, bytes)?,
            Memories::Slab { .. } if bytes <= Buffer::OWN_BYTES => Buffer::of_len(bytes),
            Memories::Slab { held } => {
                let slab = context.memory.send_slab();
                // A peer that releases nothing must not take all the memory for answers to others.
                let most = slab.capacity_bytes() / GATHERED_SHARE;
                if bytes > most {
                    let reason =
                        format!("the rows of '{}' need {bytes} bytes, at most {most} for one peer", named.title());
                    return Err(Error::full("runtime.slab_send_bytes", reason));
                }
                if held + bytes > most {
                    return Ok(None);
                }
                match slab.allocate(bytes) {
                    Ok(memory) => memory,
                    Err(_) => return Ok(None),
                }
            }
        };
        gathered_rows::write_heads(tables.iter().map(|table| &table.part), |at, head| {
            to.volatile_mut().range(at..at + head.len()).copy_from(head);
        });
        Ok(Some(Self { tables, ids: std::mem::take(spare), to, table: 0, filled: 0, turns: 0 }))
    }

    /// Bytes of the answer.
    pub(super) fn bytes(&self) -> usize {
        self.to.len()
    }

    /// Copies about `budget` bytes of the rows `named`; returns the cost, and how far it has come. `spare` is memory to reuse for row
    /// numbers.
    ///
    /// # Errors
    /// Aborted if a row was being written at each of many looks.
    pub(super) fn advance(
        &mut self,
        named: NamedRows<'_>,
        spare: &mut Vec<u64>,
        budget: usize,
    ) -> (usize, Result<Gathered, Error>) {
        if self.ids.is_empty() {
            self.ids = std::mem::take(spare);
            self.ids.clear();
            for (table, named) in zip(&self.tables, named.iter()) {
                decode(named, table.part.table_rows, &mut self.ids);
            }
        }
        let (mut cost, mut outcome) = (0, Ok(Gathered::All));
        for (key, _) in named.tables().skip(self.table) {
            if cost > 0 && cost >= budget {
                return (cost, Ok(Gathered::Some));
            }
            let began = Instant::now();
            let (copied, how) = self.advance_table(key, budget - cost);
            cost += copied;
            self.tables[self.table].took += began.elapsed();
            match how {
                Ok(Gathered::All) => (self.table, self.filled) = (self.table + 1, 0),
                Ok(Gathered::Some) => return (cost, how),
                other => {
                    outcome = other;
                    break;
                }
            }
        }
        // Not a swap: `spare` may hold the numbers of another request, which found no memory.
        *spare = std::mem::take(&mut self.ids);
        (cost, outcome)
    }

    /// Copies rows of one table.
    fn advance_table(&mut self, key: &str, budget: usize) -> (usize, Result<Gathered, Error>) {
        let Self { tables, ids, to, table, filled, turns } = self;
        let OfOne { payload, locks, row_bytes, rows, ids: of_table, part, .. } = &tables[*table];
        let ids = &ids[of_table.clone()];
        if *row_bytes == 0 || *filled == *rows {
            return (0, Ok(Gathered::All));
        }
        let most = (budget / row_bytes).max(1);
        let end = *rows.min(&(*filled + most));
        let locks = locks.as_ref().map_or(VolatileSlice::empty(), Payload::volatile);
        let table = Rows::new(payload.volatile(), *row_bytes, locks);
        let places = part.rows.start + *filled * row_bytes..part.rows.start + end * row_bytes;
        let (copied, looks) = match table.gather(&ids[*filled..end], to.volatile_mut().range(places)) {
            Ok(()) => {
                *turns = 0;
                (end - *filled, 0)
            }
            Err(copied) => {
                // Each look at a row that is being written may copy the whole row.
                let looks = (*row_bytes).max(COPY_AT_ONCE_BYTES);
                *turns = if copied > 0 { 1 } else { *turns + 1 };
                if *turns > ROW_TURNS_MAX {
                    let (row, step) = (ids[*filled], 0);
                    let reason = format!("row {row} of '{key}' was written at each of {ROW_TURNS_MAX} looks");
                    return (looks, Err(Error::Aborted { step, reason: reason.into() }));
                }
                (copied, looks)
            }
        };
        *filled += copied;
        let gathered = match () {
            () if *filled == *rows => Gathered::All,
            () if copied == 0 => Gathered::Locked,
            () => Gathered::Some,
        };
        (copied * row_bytes + looks, Ok(gathered))
    }

    /// Counters of what was gathered, by table.
    pub(super) fn counters(&self) -> impl Iterator<Item = TableCounters> {
        self.tables.iter().map(|table| TableCounters {
            requests: 1,
            rows: table.rows as u64,
            bytes: table.part.rows.len() as u64,
            rows_named: 0,
            gather_ns: table.took.as_nanos() as u64,
        })
    }

    pub(super) fn into_answer(self) -> Buffer {
        self.to
    }
}

impl OfOne {
    /// # Errors
    /// InvalidArgument if it is not a table, or Unimplemented if it is in the memory of a device.
    fn new(table: Table, named: OfTable<'_>, ids: &mut Vec<u64>) -> Result<Self, Error> {
        let (Table { meta, payload, locks, .. }, key) = (table, named.key);
        if payload.host_bytes().is_none() {
            let reason = format!("'{key}' is in the memory of a device, of which rows cannot be gathered");
            return Err(Error::Unimplemented { reason: reason.into() });
        }
        let (there, row_bytes) = rows_of(&meta, payload.len(), key)?;
        let ids = decode(named, there, ids);
        let rows = ids.len();
        let mut shape = meta.shape();
        shape[0] = rows as u64;
        let part = Part::new(there, TensorMeta::new(meta.dtype(), &shape)?, rows.saturating_mul(row_bytes));
        let locks = locks.filter(|locks| locks.host_bytes().is_some());
        Ok(Self { payload, locks, row_bytes, rows, ids, part, took: Duration::ZERO })
    }
}

/// Appends to `ids` the numbers of those named rows that exist in a table of `there` rows; returns their range.
fn decode(named: OfTable<'_>, there: u64, ids: &mut Vec<u64>) -> Range<usize> {
    let start = ids.len();
    named.ids.decode(ids);
    if ids[start..].iter().any(|&id| id >= there) {
        let mut end = start;
        for at in start..ids.len() {
            ids[end] = ids[at];
            end += usize::from(ids[at] < there);
        }
        ids.truncate(end);
    }
    start..ids.len()
}
