//! Rows of tables: pulled from their owners, and pushed to them.
#![allow(unsafe_code)]

use std::{ffi::c_void, ptr::NonNull, sync::Arc};

use bytes::Bytes;
use sealane::{
    Accepted, Buffer, DType, MissingRows, Payload, PulledRows, PullingRows, RowUpdate, RowsOptions, RowsWanted,
    SendOptions, Shape, SumRows, TableRows, Tensor, Unreceived,
};
use sealane_runtime::Lender;

use crate::{
    call::{Done, Receiver, check_place, ending, numbered, sealane_call, sealane_done, sealane_received},
    error::sealane_error,
    executor::Executor,
    guard::{Outcome, check, entry, given, unpanicked},
    input::{Options, array, options, sealane_text, text, timeout},
    lent::{check_destination, lend, sealane_destination},
    sharded::sealane_sharded_table,
    table::seen,
    task::{place, sealane_task, task},
    tensor::{sealane_tensor, sealane_view, view},
};

/// How rows are pulled. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_rows_options {
    /// sizeof(sealane_rows_options), so that later headers can add fields.
    pub size: usize,
    /// The oldest version of the table that will do; INT64_MIN for any. Default 0, which tables have first.
    pub min_version: i64,
    /// How many milliseconds to wait, or SEALANE_NO_TIMEOUT. Default: that of the daemon or the engine.
    pub timeout_ms: i64,
    /// Not 0: rows whose owner is gone, or does not answer in time, are left out, and sealane_tensor_missing names them. Default 0: the
    /// call fails with the first error.
    pub partial: u64,
    /// Not 0: an owner whose process has left is waited for, since it may come back. Default 0: its rows fail at once with
    /// SEALANE_CODE_UNAVAILABLE; an owner that was never there is waited for.
    pub wait_if_gone: u64,
}

// SAFETY: plain numbers of 8 bytes each, the size first.
unsafe impl Options for sealane_rows_options {}

/// Rows of one owner that did not come.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_missing_rows {
    /// The owner's name; not NUL-terminated.
    pub owner: sealane_text,
    /// Their places in what was asked for, in no order.
    pub places: *const u32,
    /// How many.
    pub count: usize,
    /// Why they did not come, the first of them.
    pub error: *const sealane_error,
}

/// The same, with what the tensor keeps for it.
pub(crate) struct Missing {
    owner: Box<str>,
    places: Vec<u32>,
    error: sealane_error,
}

impl From<MissingRows> for Missing {
    fn from(MissingRows { owner, places, error }: MissingRows) -> Self {
        Self { owner, places, error: error.into() }
    }
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

/// Rows that were pushed, as they are shown.
pub(crate) struct Pushed {
    /// Points into the others.
    shown: Vec<sealane_table_rows>,
    _updates: Vec<RowUpdate>,
    _dims: Vec<Shape>,
}

// SAFETY: it points to nothing but what it has and nobody writes.
unsafe impl Send for Pushed {}
// SAFETY: as above.
unsafe impl Sync for Pushed {}

/// Pulls rows of a table by their numbers, from the memory of those who have published them: no owner's process is woken. Rows may be
/// named in any order, and more than once. `received` is called when all have come, with a tensor of `count` rows, or the pull has
/// failed.
///
/// A table that is not published yet is waited for. A row that is written meanwhile comes as it was or as it is. `destination` may be
/// NULL: then the rows come in the library's memory; else it is exactly as long as they are. `options` and `call` may be NULL. To pull
/// from many tables, start all pulls, then wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pull_rows(
    task: *mut sealane_task,
    table: *const sealane_sharded_table,
    ids: *const u64,
    count: usize,
    destination: *const sealane_destination,
    options: *const sealane_rows_options,
    received: sealane_received,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        check_place(call)?;
        let receiver = Receiver::new(received, context)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (table, ids, options) = (given(table, "table")?, array(ids, count, "ids")?, wanted(options)?);
            if !destination.is_null() {
                check(destination, "destination")?;
                check_destination(&*destination)?;
            }
            task.ready_for(1, options.timeout, |_| 0)?;
            let out = destination.as_ref().and_then(|destination| lend(task, destination));
            let pulling = task.task.pull_rows_into(RowsWanted { table: &table.0, ids, out }, &options);
            let number = numbered(&task.executor, task.process, call);
            let tell = move |outcome: Outcome<<PullingRows as Future>::Output>| receiver.tell(outcome.and_then(pulled));
            task.executor.start([Executor::call(number, 0, pulling, tell)]);
        }
        Ok(())
    })
}

/// sealane_pull_rows that blocks until the rows have come, and needs no other thread. `out` may be NULL; else the rows are written there:
/// `bytes` bytes, exactly as many as they have, which are the caller's again when this returns an error, or else when the tensor is
/// freed. `options` may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pull_rows_wait(
    task: *mut sealane_task,
    table: *const sealane_sharded_table,
    ids: *const u64,
    count: usize,
    out: *mut c_void,
    bytes: usize,
    options: *const sealane_rows_options,
    rows: *mut *mut sealane_tensor,
) -> *mut sealane_error {
    entry(|| {
        let place = place(rows, "rows")?;
        if isize::try_from(bytes).is_err() {
            return Err(sealane_error::invalid(format!("out: {bytes} bytes are too many")));
        }
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let (table, ids, options) = (given(table, "table")?, array(ids, count, "ids")?, wanted(options)?);
            let out = NonNull::new(out.cast::<u8>());
            let out = out.map(|out| Buffer::lent(out, bytes, 0, Arc::new(Kept)));
            let wanted = RowsWanted { table: &table.0, ids, out };
            place.write(pulled(task.task.pull_rows_into(wanted, &options).wait())?.into_raw());
        }
        Ok(())
    })
}

/// Lends memory that its owner keeps an eye on.
struct Kept;

impl Lender for Kept {
    fn give_back(&self, _token: u64) {}
}

/// # Safety
/// As for `options`.
unsafe fn wanted(given: *const sealane_rows_options) -> Outcome<RowsOptions> {
    // SAFETY: as this function's caller promises.
    let sealane_rows_options { min_version, timeout_ms, partial, wait_if_gone, .. } = unsafe { options(given) }?;
    let (timeout, fail_if_gone) = (timeout(timeout_ms)?, wait_if_gone == 0);
    Ok(RowsOptions { min_version, timeout, partial: partial != 0, fail_if_gone })
}

/// A destination that was not filled is released after this, which drops it.
fn pulled(outcome: Result<PulledRows, Unreceived>) -> Outcome<sealane_tensor> {
    outcome.map(Into::into).map_err(|unreceived| unreceived.error.into())
}

/// Rows that a partial pull left out: those of the `index`th owner of which some are missing, counted from 0, into `missing`. False if
/// there are no more such owners. What it points to is valid until the tensor is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_tensor_missing(
    tensor: *const sealane_tensor,
    index: usize,
    missing: *mut sealane_missing_rows,
) -> bool {
    let told = unpanicked(|| {
        let place = place(missing, "missing")?;
        // SAFETY: null, or a tensor of this library that was not freed.
        let tensor = unsafe { given(tensor, "tensor") }?;
        let Some(Missing { owner, places, error }) = tensor.missing.get(index) else { return Ok(false) };
        let owner = sealane_text { start: owner.as_ptr().cast(), bytes: owner.len() };
        // SAFETY: there is a place.
        unsafe { place.write(sealane_missing_rows { owner, places: places.as_ptr(), count: places.len(), error }) };
        Ok(true)
    });
    told.unwrap_or(false)
}

/// Pushes rows to the owners of a table, into the queue of that name of each, whose acceptor finds them with sealane_pushed_rows.
/// `rows` is a tensor with one row for each of `ids`, and read before this returns. `done`, which may be NULL, is called once, when all
/// queues have taken their part, or with the first error: other owners have then taken theirs.
///
/// With `sum`, rows of the same number are added up, and pushed once: of 32-bit and 64-bit floats. `timeout_ms` says how long a full
/// queue is waited for: 0 is the default of the daemon or the engine, SEALANE_NO_TIMEOUT no limit. `call` may be NULL.
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
    entry(|| {
        check_place(call)?;
        let options = SendOptions { timeout: timeout(timeout_ms)? };
        let sum = if sum { SumRows::Yes } else { SumRows::No };
        // SAFETY: as the header asks of C code; what is pushed is a copy of the rows.
        unsafe {
            let task = self::task(task)?;
            let (table, queue, ids) = (&given(table, "table")?.0, text(queue, "queue")?, array(ids, count, "ids")?);
            let rows = seen(given(rows, "rows")?)?;
            task.ready_for(table.owners().len(), options.timeout, |_| 0)?;
            let pushing = task.task.push_rows(queue, TableRows { table, ids, rows: &rows }, sum, &options)?;
            task.executor.start(ending(task, pushing, Done::new(done, context), call));
        }
        Ok(())
    })
}

/// The rows of an accepted tensor that were pushed by sealane_push_rows, or by others for many tables at once: into `tables` goes an array
/// with a place for each table, in the order in which they were pushed, and into `count` how many. sealane_table_add and
/// sealane_table_update take numbers and rows as they are. Valid until the tensor is freed, whose own view is not to be used any more. No
/// other function may be using the tensor at this time.
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
        // SAFETY: there are places.
        unsafe {
            tables.write(pushed.shown.as_ptr());
            count.write(pushed.shown.len());
        }
        Ok(())
    })
}

/// Reads what was pushed, without a copy of the rows; the tensor keeps the bytes.
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
