//! Tables that a task publishes, and writes while others pull their rows. These calls block, but only for the daemon's answer.
#![allow(unsafe_code)]

use std::slice;

use sealane::{Error, Payload, Table, TableOptions, Tensor};

use crate::{
    error::sealane_error,
    fork::Process,
    guard::{Outcome, close, entry, given},
    input::{Options, array, options, sealane_text, text},
    memory::taken,
    meta::meta,
    task::{place, sealane_task, task},
    tensor::sealane_view,
};

/// How a table is published. Set `size` to the struct's `sizeof`; fields that are 0 take their defaults.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct sealane_table_options {
    /// sizeof(sealane_table_options), so that later headers can add fields.
    pub size: usize,
    /// The version that it has first. Default 0.
    pub version: i64,
    /// Not 0: whoever reads a row that is written meanwhile may get half of it (Hogwild), which saves some nanoseconds a row, and the
    /// table may also be pulled as one tensor. Default 0: rows are whole.
    pub torn: u64,
}

// SAFETY: plain numbers of 8 bytes each, the size first.
unsafe impl Options for sealane_table_options {}

/// A table that this task publishes: others pull its rows (sealane_pull_rows), and this process writes them. Usable from any thread.
pub struct sealane_table {
    table: Table,
    process: Process,
}

/// Publishes a table: a tensor of one dimension or more, whose rows are what the first dimension counts. Blocks until all peers can see
/// it. If options is NULL, all options have their defaults.
///
/// The tensor's data is copied, unless it is what sealane_alloc of this task gave: that memory is the table's own from now on, also if
/// this fails, and neither to be used nor freed any more. Needs 16 KiB beside the rows. A table of up to 512 bytes is published anew
/// with each write.
///
/// Fails with SEALANE_CODE_INVALID_ARGUMENT if there are no rows of a fixed size, or the key is longer than 512 bytes;
/// SEALANE_CODE_RESOURCE_EXHAUSTED if the arena has no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_publish_table(
    task: *mut sealane_task,
    key: sealane_text,
    tensor: *const sealane_view,
    options: *const sealane_table_options,
    table: *mut *mut sealane_table,
) -> *mut sealane_error {
    entry(|| {
        let place = place(table, "table")?;
        // SAFETY: as the header asks of C code.
        unsafe {
            let view = given(tensor, "tensor")?;
            // It is taken whatever else is wrong with the call.
            let memory = taken(view.data);
            let task = self::task(task)?;
            let (key, options) = (text(key, "key")?, self::options(options)?);
            let tensor = match memory {
                Some(memory) if memory.len() < view.bytes => {
                    let (has, bytes) = (memory.len(), view.bytes);
                    return Err(sealane_error::invalid(format!("the tensor's data has {has} bytes, not {bytes}")));
                }
                Some(mut memory) => {
                    memory.truncate(view.bytes);
                    Tensor::new(meta(&view.meta)?, memory)?
                }
                None => seen(view)?,
            };
            let options = TableOptions { version: options.version, torn: options.torn != 0 };
            let table = task.task.publish_table(key, tensor, options)?;
            place.write(Box::into_raw(Box::new(sealane_table { table, process: task.process })));
        }
        Ok(())
    })
}

/// Writes rows over those of these numbers; of a row that is named twice, the later one. Whoever pulls a row meanwhile gets it as it was
/// or as it is, but of several rows some as they were.
///
/// `rows` has the table's type, and its shape but for the first dimension, which is `count`. Fails with SEALANE_CODE_INVALID_ARGUMENT,
/// and has written nothing, if it has not, or there is no row of such a number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_table_update(
    table: *mut sealane_table,
    ids: *const u64,
    count: usize,
    rows: *const sealane_view,
) -> *mut sealane_error {
    // SAFETY: as the header asks of C code.
    unsafe { write(table, (ids, count), rows, Table::update) }
}

/// Adds rows to those of these numbers: to a row that is named twice, both. For floats and signed integers of 32 and 64 bits; integers
/// wrap around. Otherwise like sealane_table_update.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_table_add(
    table: *mut sealane_table,
    ids: *const u64,
    count: usize,
    rows: *const sealane_view,
) -> *mut sealane_error {
    // SAFETY: as the header asks of C code.
    unsafe { write(table, (ids, count), rows, Table::add) }
}

/// # Safety
/// As the header asks of C code.
unsafe fn write(
    table: *mut sealane_table,
    (ids, count): (*const u64, usize),
    rows: *const sealane_view,
    write: impl FnOnce(&Table, &[u64], &Tensor) -> Result<(), Error>,
) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as this function's caller promises; the tensor is gone when this returns.
        unsafe {
            let table = opened(table)?;
            Ok(write(&table.table, array(ids, count, "ids")?, &seen(given(rows, "rows")?)?)?)
        }
    })
}

/// The table is of that version from now on, for those who pull with a min_version. Blocks until all peers can see it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_table_set_version(table: *mut sealane_table, version: i64) -> *mut sealane_error {
    // SAFETY: as the header asks of C code.
    entry(|| Ok(unsafe { opened(table) }?.table.set_version(version)?))
}

/// sealane_table_set_version of many tables of a task, in one round trip. After an error, each may have the version or not.
///
/// Fails with SEALANE_CODE_INVALID_ARGUMENT if a table is another task's: then none has it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_set_versions(
    task: *mut sealane_task,
    tables: *const *mut sealane_table,
    count: usize,
    version: i64,
) -> *mut sealane_error {
    entry(|| {
        // SAFETY: as the header asks of C code.
        unsafe {
            let task = self::task(task)?;
            let tables = array(tables, count, "tables")?;
            let tables =
                tables.iter().map(|table| Ok(&opened(table.cast_const())?.table)).collect::<Outcome<Vec<_>>>()?;
            Ok(task.task.set_versions(&tables, version)?)
        }
    })
}

/// Lets go of a table, which stays published as it is until its task is detached or withdraws its key (sealane_withdraw); does nothing
/// with NULL. No other function may be using the table, now or afterwards. To be called even if its task was detached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_table_close(table: *mut sealane_table) {
    // SAFETY: null, or made by `sealane_publish_table` and closed once.
    unsafe { close(table, |table| table.process, drop) };
}

/// # Safety
/// Null, or a table that was not closed.
unsafe fn opened<'a>(table: *const sealane_table) -> Outcome<&'a sealane_table> {
    // SAFETY: as this function's caller promises.
    let table = unsafe { given(table, "table") }?;
    table.process.check().map(|()| table)
}

/// A tensor over memory of C code, without a copy.
///
/// # Errors
/// InvalidArgument if metadata and bytes do not fit.
///
/// # Safety
/// The tensor, and everything that shares its bytes, is dropped before the function that was given the view returns.
pub(crate) unsafe fn seen(view: &sealane_view) -> Outcome<Tensor> {
    // SAFETY: as C code promises of what functions are given.
    let (meta, bytes) = unsafe { (meta(&view.meta)?, array(view.data.cast::<u8>(), view.bytes, "the tensor's data")?) };
    // SAFETY: as this function's caller promises, nobody uses the bytes once they are gone.
    let bytes: &'static [u8] = unsafe { slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
    Ok(Tensor::new(meta, Payload::from(bytes::Bytes::from_static(bytes)))?)
}
