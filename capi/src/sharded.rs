//! Tables from the view of tasks that pull and push their rows: a key, and who has which rows.
#![allow(unsafe_code)]

use sealane::{ShardedTable, Sharding};

use crate::{
    error::sealane_error,
    guard::{Outcome, entry, given, unpanicked},
    input::{array, sealane_text, text},
    task::place,
};

/// Value of sharding: consecutive rows go to one owner. With n owners, row i is row i % m of owner i / m, where m is rows / n rounded up.
pub const SEALANE_SHARDING_RANGE: i32 = 1;

/// Value of sharding: row i is row i / n of owner i % n.
pub const SEALANE_SHARDING_MODULO: i32 = 2;

/// Value of sharding: rows are scattered, by a hash that is the same in every release.
pub const SEALANE_SHARDING_HASH: i32 = 3;

/// A table that one task has published, or several, each a part of it under the same key. Usable from any thread and with any task.
pub struct sealane_sharded_table(pub(crate) ShardedTable);

/// Names a table of `rows` rows that `count` owners have: each has published its part under this key, and numbers its rows from 0.
/// `sharding` says who has which row: SEALANE_SHARDING_RANGE, SEALANE_SHARDING_MODULO or SEALANE_SHARDING_HASH. All who use the table
/// must name the same. With one owner, `rows` may be 0: however many it has.
///
/// How large rows are is learnt with the first pull: keep the table. Free it with sealane_sharded_table_free.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_sharded_table_new(
    key: sealane_text,
    owners: *const sealane_text,
    count: usize,
    rows: u64,
    sharding: i32,
    table: *mut *mut sealane_sharded_table,
) -> *mut sealane_error {
    entry(|| {
        let place = place(table, "table")?;
        // SAFETY: as the header asks of C code.
        let (key, owners) = unsafe { (text(key, "key")?, array(owners, count, "owners")?) };
        // SAFETY: as the header asks of C code.
        let owners = owners.iter().map(|owner| unsafe { text(*owner, "owners") }).collect::<Outcome<Vec<_>>>()?;
        let sharding = match sharding {
            SEALANE_SHARDING_RANGE => Sharding::range,
            SEALANE_SHARDING_MODULO => Sharding::modulo,
            SEALANE_SHARDING_HASH => Sharding::hash,
            other => return Err(sealane_error::invalid(format!("sharding: {other} is not valid"))),
        };
        let table = match (&owners[..], rows) {
            ([owner], 0) => ShardedTable::of(owner, key)?,
            _ => ShardedTable::new(key, &owners, sharding(rows, count)?)?,
        };
        // SAFETY: the place was checked.
        unsafe { place.write(Box::into_raw(Box::new(sealane_sharded_table(table)))) };
        Ok(())
    })
}

/// How many rows the owner of that number has, counted from 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_sharded_table_rows_of(
    table: *const sealane_sharded_table,
    owner: usize,
    rows: *mut u64,
) -> *mut sealane_error {
    entry(|| {
        let place = place(rows, "rows")?;
        // SAFETY: as the header asks of C code.
        let rows = rows_of(unsafe { given(table, "table") }?, owner)?;
        // SAFETY: the place was checked.
        unsafe { place.write(rows) };
        Ok(())
    })
}

/// The number in the whole table of row `local` of an owner's part.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_sharded_table_row(
    table: *const sealane_sharded_table,
    owner: usize,
    local: u64,
    row: *mut u64,
) -> *mut sealane_error {
    entry(|| {
        let place = place(row, "row")?;
        // SAFETY: as the header asks of C code.
        let table = unsafe { given(table, "table") }?;
        let rows = rows_of(table, owner)?;
        if local >= rows {
            return Err(sealane_error::invalid(format!("row {local} of owner {owner}, which has {rows}")));
        }
        // SAFETY: the place was checked.
        unsafe { place.write(table.0.sharding().row(owner, local)) };
        Ok(())
    })
}

/// # Errors
/// InvalidArgument if there is no such owner, or the number of rows is unknown.
fn rows_of(table: &sealane_sharded_table, owner: usize) -> Outcome<u64> {
    let (sharding, key) = (table.0.sharding(), table.0.key());
    match (sharding.owners(), sharding.rows()) {
        (owners, _) if owner >= owners => {
            Err(sealane_error::invalid(format!("'{key}' has {owners} owners, and none of number {owner}")))
        }
        (_, None) => Err(sealane_error::invalid(format!("how many rows '{key}' has was not said"))),
        (_, Some(_)) => Ok(sharding.rows_of(owner)),
    }
}

/// Frees a sharded table, which stays published; does nothing with NULL. Calls in progress go on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_sharded_table_free(table: *mut sealane_sharded_table) {
    if !table.is_null() {
        let unpanicked = unpanicked(|| {
            // SAFETY: `sealane_sharded_table_new` made it, and it is freed once.
            drop(unsafe { Box::from_raw(table) });
            Ok(())
        });
        // An error cannot be reported.
        drop(unpanicked);
    }
}
