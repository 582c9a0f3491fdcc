//! Rows of tables that are pushed to their owners, and read there.
#![allow(unsafe_code)]

use std::{collections::HashSet, ffi::c_void, iter::zip};

use bytes::Bytes;
use sealane::{Accepted, DType, Payload, RowUpdate, SendOptions, Shape, SumRows, TableRows, Tensor};

use crate::{
    call::{Done, check_place, ending, sealane_call, sealane_done},
    error::sealane_error,
    guard::{Outcome, check, entry, given},
    input::{array, sealane_text, text, timeout},
    sharded::sealane_sharded_table,
    table::seen,
    task::{place, sealane_task, task},
    tensor::{sealane_tensor, sealane_view, view},
};

/// Rows of one table that are to be pushed. Read before the function returns.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_outgoing_rows {
    /// The table.
    pub table: *const sealane_sharded_table,
    /// The rows' numbers. May be NULL if there are none.
    pub ids: *const u64,
    /// How many.
    pub count: usize,
    /// A tensor with one row for each number.
    pub rows: sealane_view,
}

/// Rows of one table that were pushed.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_table_rows {
    /// The table's key; not NUL-terminated.
    pub table: sealane_text,
    /// The rows' numbers in the part of the task that accepts them.
    pub ids: *const u64,
    /// How many.
    pub count: usize,
    /// The rows.
    pub rows: sealane_view,
}

/// Pushed rows in the form that C code gets.
pub(crate) struct Pushed {
    /// Points into the other fields.
    shown: Vec<sealane_table_rows>,
    _updates: Vec<RowUpdate>,
    _dims: Vec<Shape>,
}

// SAFETY: it points only to memory that it owns and that nobody writes.
unsafe impl Send for Pushed {}
// SAFETY: as above.
unsafe impl Sync for Pushed {}

/// Pushes rows to the owners of a table, into the queue of that name of each, whose acceptor finds them with sealane_pushed_rows.
/// `rows` is a tensor with one row for each of `ids`, and read before this returns. `done`, which may be NULL, is called once, when all
/// queues have taken their part, or with the first error: other owners have then taken theirs.
///
/// With `sum`, rows of the same number are added up, and pushed once: of 32-bit and 64-bit floats. `timeout_ms` says how long a full
/// queue is waited for: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL. To push rows of
/// many tables, use sealane_push_all_rows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_push_rows(
    task: *mut sealane_task,
    table: *const sealane_sharded_table,
    queue: sealane_text,
    ids: *const u64,
    count: usize,
    rows: *const sealane_view,
    sum: bool,
    timeout_ms: i64,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as the header asks of C code.
    entry(|| unsafe {
        let pushed = sealane_outgoing_rows { table, ids, count, rows: *given(rows, "rows")? };
        push_all(task, queue, &[pushed], sum, timeout_ms, (done, context, call))
    })
}

/// sealane_push_rows of many tables in one call, at a fraction of the cost each: what goes to one owner goes together, about a MiB at a
/// time, and the tables in the order of `pushed`. `done` is called once for all. If this returns an error, nothing was pushed. `count` may
/// be 0: then nothing is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_push_all_rows(
    task: *mut sealane_task,
    queue: sealane_text,
    pushed: *const sealane_outgoing_rows,
    count: usize,
    sum: bool,
    timeout_ms: i64,
    done: sealane_done,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    // SAFETY: as the header asks of C code.
    entry(|| unsafe { push_all(task, queue, array(pushed, count, "pushed")?, sum, timeout_ms, (done, context, call)) })
}

/// # Safety
/// As the header asks of C code.
unsafe fn push_all(
    task: *const sealane_task,
    queue: sealane_text,
    pushed: &[sealane_outgoing_rows],
    sum: bool,
    timeout_ms: i64,
    (done, context, call): (sealane_done, *mut c_void, *mut *mut sealane_call),
) -> Outcome {
    check_place(call)?;
    let options = SendOptions { timeout: timeout(timeout_ms)? };
    let sum = if sum { SumRows::Yes } else { SumRows::No };
    // SAFETY: as this function's caller promises; a copy of the rows is pushed.
    unsafe {
        let (task, queue) = (self::task(task)?, text(queue, "queue")?);
        let tensors = pushed.iter().map(|each| seen(&each.rows)).collect::<Outcome<Vec<_>>>()?;
        let rows = zip(pushed, &tensors).map(|(&sealane_outgoing_rows { table, ids, count, .. }, rows)| {
            Ok(TableRows { table: &given(table, "table")?.0, ids: array(ids, count, "ids")?, rows })
        });
        let rows = rows.collect::<Outcome<Vec<_>>>()?;
        let owners: HashSet<&str> = rows.iter().flat_map(|rows| rows.table.owners()).collect();
        task.ready_for(owners.len(), options.timeout, |_| 0)?;
        let pushing = task.task.push_all_rows(queue, &rows, sum, &options)?;
        task.executor.start(ending(task, pushing, Done::new(done, context), call));
    }
    Ok(())
}

/// The rows of an accepted tensor that were pushed by sealane_push_rows or sealane_push_all_rows: into `tables` goes an array with a
/// place for each table, in the order in which they were pushed, and into `count` how many. sealane_table_add and sealane_table_update
/// take numbers and rows as they are. Valid until the tensor is freed, whose own view is not to be used any more. No other function may
/// be using the tensor at this time.
///
/// Fails with SEALANE_CODE_INVALID_ARGUMENT if something else was pushed. Numbers and rows may come from anybody: look at them before
/// you use them for anything but these two functions, which do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pushed_rows(
    tensor: *mut sealane_tensor,
    tables: *mut *const sealane_table_rows,
    count: *mut usize,
) -> *mut sealane_error {
    entry(|| {
        let (tables, count) = (place(tables, "tables")?, place(count, "count")?);
        check(tensor, "tensor")?;
        // SAFETY: it is not null, and nobody else uses it, as the header asks of C code.
        let tensor = unsafe { &mut *tensor };
        let pushed = match &mut tensor.pushed {
            Some(pushed) => pushed,
            none => none.insert(Box::new(pushed(&mut tensor.tensor)?)),
        };
        // SAFETY: the places were checked.
        unsafe {
            tables.write(pushed.shown.as_ptr());
            count.write(pushed.shown.len());
        }
        Ok(())
    })
}

/// Reads pushed rows without copying them; the tensor keeps the bytes.
fn pushed(tensor: &mut Tensor) -> Outcome<Pushed> {
    let (meta, payload) = std::mem::replace(tensor, Tensor::dead(DType::U8)).into_parts();
    let bytes = match payload {
        Payload::Owned(buffer) => Bytes::from_owner(buffer),
        Payload::Bytes(bytes) => bytes,
        Payload::Shared(shared) => Bytes::copy_from_slice(&shared),
    };
    *tensor = Tensor::from_parts(meta, bytes);
    let updates = RowUpdate::all_of(Accepted { from: "".into(), tensor: tensor.share() })?;
    let dims: Vec<Shape> = updates.iter().map(|update| update.rows.shape()).collect();
    let shown = updates.iter().zip(&dims).map(|(RowUpdate { table, ids, rows }, dims)| sealane_table_rows {
        table: sealane_text { start: table.as_ptr().cast(), bytes: table.len() },
        ids: ids.as_ptr(),
        count: ids.len(),
        rows: view(rows, dims, 0),
    });
    Ok(Pushed { shown: shown.collect(), _updates: updates, _dims: dims })
}
