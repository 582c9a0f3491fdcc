//! Rows of tables that are pulled from their owners.
#![allow(unsafe_code)]

use std::{ffi::c_void, iter::zip, ptr::null_mut};

use sealane::{MissingRows, PulledRows, PullingAllRows, RowsOptions, RowsWanted, UnpulledRows};

use crate::{
    call::{Receiver, ReceiverOfAll, check_place, numbered, sealane_call, sealane_received, sealane_received_all},
    error::sealane_error,
    executor::Executor,
    guard::{Outcome, check, entry, given, unpanicked},
    input::{Options, array, options, sealane_text, timeout},
    lent::{check_destination, destination, lend, lend_while_waiting, sealane_destination},
    sharded::sealane_sharded_table,
    task::{place, sealane_task, task},
    tensor::sealane_tensor,
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
    /// Not 0: rows that their table does not have, or whose owner is gone or does not answer in time, are left out, and
    /// sealane_tensor_missing names them. Default 0: the call fails with the first error.
    pub partial: u64,
    /// Not 0: an owner whose process has left is waited for, since it may come back. Default 0: its rows fail at once with
    /// SEALANE_CODE_UNAVAILABLE; an owner that was never there is waited for.
    pub wait_if_gone: u64,
}

// SAFETY: plain numbers of 8 bytes each, the size first.
unsafe impl Options for sealane_rows_options {}

/// Rows of one table that are to be pulled.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_wanted_rows {
    /// The table.
    pub table: *const sealane_sharded_table,
    /// The rows' numbers. May be NULL if there are none.
    pub ids: *const u64,
    /// How many.
    pub count: usize,
    /// Where to write the rows, exactly as long as they are, and no other table's; memory is NULL if the library is to provide it.
    pub destination: sealane_destination,
}

/// Rows of one owner that did not come.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_missing_rows {
    /// The owner's name; not NUL-terminated. Empty for rows that lie beyond the whole table.
    pub owner: sealane_text,
    /// Their places in what was asked for, in no order.
    pub places: *const u32,
    /// How many.
    pub count: usize,
    /// Why they did not come, the first of them.
    pub error: *const sealane_error,
}

/// A [`sealane_missing_rows`], with the memory that it points to.
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

/// Pulls rows of a table by their numbers, from the memory of those who have published them: no owner's process is woken. Rows may be
/// named in any order, and more than once. `received` is called when all have come, with a tensor of `count` rows, or the pull has
/// failed.
///
/// A table that is not published yet is waited for. A row that is written meanwhile comes as it was or as it is. `destination` may be
/// NULL: then the rows come in the library's memory; else it is exactly as long as they are. `options` and `call` may be NULL. To pull
/// from many tables, use sealane_pull_all_rows.
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
        let receiver = Receiver::new(received, context)?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let wanted = sealane_wanted_rows { table, ids, count, destination: self::destination(destination)? };
            pull_all(task, &[wanted], options, call, move |outcome| receiver.tell(outcome.map(only)))
        }
    })
}

/// sealane_pull_rows that blocks until the rows have come, and needs no other thread. `out` may be NULL; else the rows are written there:
/// `bytes` bytes, exactly as many as they have, which are the caller's again when this returns an error, or else when the tensor is
/// freed. `options` may be NULL. To pull from many tables, use sealane_pull_all_rows_wait.
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
        let destination = sealane_destination { memory: out, bytes, release: None, release_context: null_mut() };
        let wanted = sealane_wanted_rows { table, ids, count, destination };
        // SAFETY: as the header asks of C code.
        unsafe { place.write(only(pull_all_wait(task, &[wanted], options)?).into_raw()) };
        Ok(())
    })
}

/// sealane_pull_rows of many tables in one call, at a fraction of the cost each: what one owner has of all of them is asked for by as few
/// requests as there can be, each of which is answered when all of its tables are published. `received` is called once: when all rows
/// have come, with a tensor for each of `wanted`, in that order; or with the first error, and without tensors.
///
/// `options` are those of all tables; with `partial`, the call fails all the same if no row of one of the tables came, now or in an earlier
/// call with the same sealane_sharded_table. `options` and `call` may be NULL. `count` may be 0: then there are no tensors.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pull_all_rows(
    task: *mut sealane_task,
    wanted: *const sealane_wanted_rows,
    count: usize,
    options: *const sealane_rows_options,
    received: sealane_received_all,
    context: *mut c_void,
    call: *mut *mut sealane_call,
) -> *mut sealane_error {
    entry(|| {
        let receiver = ReceiverOfAll::new(received, context, "received")?;
        // SAFETY: as the header asks of C code.
        unsafe { pull_all(task, array(wanted, count, "wanted")?, options, call, move |outcome| receiver.tell(outcome)) }
    })
}

/// sealane_pull_all_rows that blocks until the rows have come, and needs no other thread. `rows` has a place for a tensor of each of
/// `wanted`, none of which is written if this returns an error; it may be NULL if `count` is 0. `options` may be NULL.
///
/// Memory of a destination is the caller's again when this returns an error, or else when its tensor is freed; its release is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_pull_all_rows_wait(
    task: *mut sealane_task,
    wanted: *const sealane_wanted_rows,
    count: usize,
    options: *const sealane_rows_options,
    rows: *mut *mut sealane_tensor,
) -> *mut sealane_error {
    entry(|| {
        if count > 0 {
            check(rows, "rows")?;
        }
        // SAFETY: as the header asks of C code; there is a place for each tensor.
        unsafe {
            let tensors = pull_all_wait(task, array(wanted, count, "wanted")?, options)?;
            tensors.into_iter().enumerate().for_each(|(index, tensor)| rows.add(index).write(tensor.into_raw()));
        }
        Ok(())
    })
}

/// Starts a pull; `tell` gets its outcome, with a tensor for each table.
///
/// # Safety
/// As the header asks of C code.
unsafe fn pull_all(
    task: *const sealane_task,
    given: &[sealane_wanted_rows],
    options: *const sealane_rows_options,
    call: *mut *mut sealane_call,
    tell: impl FnOnce(Outcome<Vec<sealane_tensor>>) + Send + 'static,
) -> Outcome {
    check_place(call)?;
    // SAFETY: as this function's caller promises.
    unsafe {
        let (task, options) = (self::task(task)?, rows_options(options)?);
        // All of it is checked before any memory is taken over.
        let mut wanted = all_wanted(given)?;
        given.iter().try_for_each(|each| check_destination(&each.destination))?;
        task.ready_for(1, options.timeout, |_| 0)?;
        zip(&mut wanted, given).for_each(|(wanted, given)| wanted.out = lend(task, &given.destination).map(Into::into));
        let pulling = task.task.pull_all_rows(wanted, &options);
        let number = numbered(&task.executor, task.process, call);
        let tell = move |outcome: Outcome<<PullingAllRows as Future>::Output>| tell(outcome.and_then(pulled));
        task.executor.start([Executor::call(number, 0, pulling, tell)]);
    }
    Ok(())
}

/// Pulls, and blocks until the end.
///
/// # Safety
/// As the header asks of C code.
unsafe fn pull_all_wait(
    task: *const sealane_task,
    given: &[sealane_wanted_rows],
    options: *const sealane_rows_options,
) -> Outcome<Vec<sealane_tensor>> {
    // SAFETY: as this function's caller promises.
    unsafe {
        let (task, options) = (self::task(task)?, rows_options(options)?);
        let mut wanted = all_wanted(given)?;
        for (wanted, given) in zip(&mut wanted, given) {
            wanted.out = lend_while_waiting(&given.destination)?.map(Into::into);
        }
        pulled(task.task.pull_all_rows(wanted, &options).wait())
    }
}

/// The wanted rows, without destinations: these are only checked to be no longer than memory in total.
///
/// # Safety
/// As `sealane_wanted_rows` says.
unsafe fn all_wanted(wanted: &[sealane_wanted_rows]) -> Outcome<Vec<RowsWanted<'_>>> {
    let there = wanted.iter().map(|each| each.destination).filter(|destination| !destination.memory.is_null());
    let bytes = there.fold(0, |sum: usize, destination| sum.saturating_add(destination.bytes));
    if isize::try_from(bytes).is_err() {
        return Err(sealane_error::invalid(format!("destinations of {bytes} bytes are too large")));
    }
    let each = |&sealane_wanted_rows { table, ids, count, .. }: &_| {
        // SAFETY: as this function's caller promises.
        unsafe { Ok(RowsWanted { table: &given(table, "table")?.0, ids: array(ids, count, "ids")?, out: None }) }
    };
    wanted.iter().map(each).collect()
}

/// # Safety
/// As for `options`.
unsafe fn rows_options(given: *const sealane_rows_options) -> Outcome<RowsOptions> {
    // SAFETY: as this function's caller promises.
    let sealane_rows_options { min_version, timeout_ms, partial, wait_if_gone, .. } = unsafe { options(given) }?;
    let (timeout, fail_if_gone) = (timeout(timeout_ms)?, wait_if_gone == 0);
    Ok(RowsOptions { min_version, timeout, partial: partial != 0, fail_if_gone })
}

/// Destinations that were not filled are released afterwards, when they are dropped.
fn pulled(outcome: Result<Vec<PulledRows>, UnpulledRows>) -> Outcome<Vec<sealane_tensor>> {
    let pulled = outcome.map_err(|unpulled| unpulled.error)?;
    Ok(pulled.into_iter().map(Into::into).collect())
}

/// The only tensor of a pull from one table.
fn only(mut tensors: Vec<sealane_tensor>) -> sealane_tensor {
    tensors.pop().expect("one table")
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
        // SAFETY: the place was checked.
        unsafe { place.write(sealane_missing_rows { owner, places: places.as_ptr(), count: places.len(), error }) };
        Ok(true)
    });
    told.unwrap_or(false)
}
