//! Tables: published, written, and their rows pulled and pushed.

use std::{
    ffi::c_void,
    ptr::{null, null_mut},
};

use sealane_c::*;

use crate::fixture::*;

/// Numbers in a row.
const DIM: usize = 4;
pub const ANY: sealane_rows_options = sealane_rows_options {
    size: size_of::<sealane_rows_options>(),
    min_version: i64::MIN,
    timeout_ms: 0,
    partial: 0,
    wait_if_gone: 0,
};

/// Rows that functions look at.
pub fn view(values: &[f32], dims: &[u64; 2]) -> sealane_view {
    let meta =
        sealane_meta { code: SEALANE_FLOAT, bits: 32, lanes: 1, flags: 0, rank: 2, reserved: 0, dims: dims.as_ptr() };
    sealane_view { meta, data: values.as_ptr().cast(), bytes: size_of_val(values), version: 0 }
}

fn dims(values: &[f32]) -> [u64; 2] {
    [(values.len() / DIM) as u64, DIM as u64]
}

/// Row `row` of a table whose rows say who they are.
fn row(row: u64) -> [f32; DIM] {
    [row as f32, row as f32 + 0.25, row as f32 + 0.5, row as f32 + 0.75]
}

fn rows(ids: impl IntoIterator<Item = u64>) -> Vec<f32> {
    ids.into_iter().flat_map(row).collect()
}

/// A table that is closed once.
struct Published(*mut sealane_table);

impl Published {
    fn new(task: &Task, key: &str, tensor: &sealane_view) -> Published {
        let mut table = null_mut();
        // SAFETY: everything lives until the function returns.
        ok(unsafe { sealane_publish_table(task.0, text(key), tensor, null(), &mut table) });
        Published(table)
    }

    fn update(&self, ids: &[u64], values: &[f32]) -> *mut sealane_error {
        let dims = dims(values);
        // SAFETY: the table is open, the rest lives until the function returns.
        unsafe { sealane_table_update(self.0, ids.as_ptr(), ids.len(), &view(values, &dims)) }
    }

    fn add(&self, ids: &[u64], values: &[f32]) -> *mut sealane_error {
        let dims = dims(values);
        // SAFETY: as above.
        unsafe { sealane_table_add(self.0, ids.as_ptr(), ids.len(), &view(values, &dims)) }
    }

    fn set_version(&self, version: i64) {
        // SAFETY: the table is open.
        ok(unsafe { sealane_table_set_version(self.0, version) });
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sealane_table_close(self.0) };
    }
}

/// A sharded table that is freed once.
pub struct Sharded(*mut sealane_sharded_table);

impl Sharded {
    pub fn new(key: &str, owners: &[&str], rows: u64, sharding: i32) -> Sharded {
        let owners: Vec<sealane_text> = owners.iter().map(|owner| text(owner)).collect();
        let mut table = null_mut();
        // SAFETY: everything lives until the function returns.
        ok(unsafe { sealane_sharded_table_new(text(key), owners.as_ptr(), owners.len(), rows, sharding, &mut table) });
        Sharded(table)
    }

    /// The rows of an owner, by their numbers in the whole table.
    fn rows_of(&self, owner: usize) -> Vec<u64> {
        let (mut rows, mut row) = (0, 0);
        // SAFETY: everything lives until the functions return.
        unsafe {
            ok(sealane_sharded_table_rows_of(self.0, owner, &mut rows));
            let row = |local| {
                ok(sealane_sharded_table_row(self.0, owner, local, &mut row));
                row
            };
            (0..rows).map(row).collect()
        }
    }

    pub fn pull(&self, task: &Task, ids: &[u64], options: &sealane_rows_options) -> Result<Held, *mut sealane_error> {
        let mut tensor = null_mut();
        // SAFETY: everything lives until the function returns.
        let error = unsafe {
            sealane_pull_rows_wait(task.0, self.0, ids.as_ptr(), ids.len(), null_mut(), 0, options, &mut tensor)
        };
        if error.is_null() { Ok(Held(tensor)) } else { Err(error) }
    }

    fn push(&self, task: &Task, ids: &[u64], values: &[f32], sum: bool, ear: &Ear) -> *mut sealane_error {
        let dims = dims(values);
        let (start, count, context) = (ids.as_ptr(), ids.len(), ear.context());
        // SAFETY: everything lives until the function returns, the ear longer.
        unsafe {
            let view = view(values, &dims);
            sealane_push_rows(
                task.0,
                self.0,
                text("gradients"),
                start,
                count,
                &view,
                sum,
                0,
                Some(done),
                context,
                null_mut(),
            )
        }
    }
}

impl Drop for Sharded {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { sealane_sharded_table_free(self.0) };
    }
}

pub fn floats(tensor: &Held) -> Vec<f32> {
    tensor.bytes().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn rows_are_pulled_as_they_are_written() {
    let World { ps, worker, .. } = &world();
    let values = rows(0..1000);
    let table = Published::new(ps, "users", &view(&values, &[1000, DIM as u64]));
    let users = Sharded::new("users", &[PS], 0, SEALANE_SHARDING_MODULO);
    let pulled = users.pull(worker, &[7, 999, 7], &ANY).unwrap();
    assert_eq!(floats(&pulled), rows([7, 999, 7]));
    let view = pulled.view();
    // SAFETY: there are as many dimensions.
    assert_eq!((view.meta.rank, unsafe { *view.meta.dims }), (2, 3));
    // With memory of the caller's, and a callback.
    let (ear, mut memory) = (Ear::new(), vec![0_u8; 2 * 4 * DIM]);
    let (destination, ids) = (ear.destination(&mut memory), [1, 0]);
    let (start, received) = (ids.as_ptr(), Some(received as _));
    // SAFETY: everything lives until the function returns, ear and memory until they are released.
    ok(unsafe {
        sealane_pull_rows(worker.0, users.0, start, 2, &destination, &ANY, received, ear.context(), null_mut())
    });
    let tensor = ear.tensor();
    assert_eq!((floats(&tensor), tensor.view().data), (rows([1, 0]), memory.as_ptr().cast()));
    drop(tensor);
    assert!(ear.told().released);
    // And with memory of the caller's that is waited for.
    let mut tensor = null_mut();
    let out = memory.as_mut_ptr().cast();
    // SAFETY: the memory lives longer than the tensor.
    ok(unsafe { sealane_pull_rows_wait(worker.0, users.0, start, 2, out, memory.len(), &ANY, &mut tensor) });
    assert_eq!(Held(tensor).view().data, memory.as_ptr().cast());
    // SAFETY: everything lives until the function returns.
    let short = unsafe { sealane_pull_rows_wait(worker.0, users.0, start, 2, out, 31, &ANY, &mut tensor) };
    assert!(refused(short, sealane_code::InvalidArgument).contains("31 bytes"));

    ok(table.update(&[3, 999], &rows([33, 34])));
    ok(table.add(&[3, 3], &[1.; 2 * DIM]));
    table.set_version(5);
    let newer = sealane_rows_options { min_version: 5, ..ANY };
    let pulled = users.pull(worker, &[999, 3], &newer).unwrap();
    assert_eq!(floats(&pulled), [row(34), row(33).map(|number| number + 2.)].concat());
    let newest = sealane_rows_options { min_version: 6, timeout_ms: 1, ..ANY };
    refused(users.pull(worker, &[3], &newest).err().unwrap(), sealane_code::DeadlineExceeded);
    let forever = sealane_rows_options { timeout_ms: SEALANE_NO_TIMEOUT, ..ANY };
    assert_eq!(floats(&users.pull(worker, &[1], &forever).unwrap()), row(1));
    let message = refused(users.pull(worker, &[1, 1000], &ANY).err().unwrap(), sealane_code::InvalidArgument);
    assert!(message.contains("1000"), "{message}");
    // A pull that nobody can answer is given up.
    let (ear, mut call) = (Ear::new(), null_mut());
    let absent = Sharded::new("absent", &[PS], 0, SEALANE_SHARDING_MODULO);
    // SAFETY: everything lives until the functions return, the ear longer; the call is freed once.
    unsafe {
        ok(sealane_pull_rows(worker.0, absent.0, start, 2, null(), null(), received, ear.context(), &mut call));
        ok(sealane_call_cancel(call));
        sealane_call_free(call);
    }
    assert_eq!(ear.told().code, sealane_code::Cancelled);
}

#[test]
fn memory_of_the_arena_becomes_the_table_or_is_freed() {
    let World { ps, worker, .. } = &world();
    let (count, dims) = (50_000, [50_000, DIM as u64]);
    let bytes = count * 4 * DIM;
    // Of the arena of 4 MiB nothing is left when three are held; so none of the four below is.
    for attempt in 0..8 {
        let mut memory: *mut c_void = null_mut();
        // SAFETY: the memory has that many bytes until it is handed over.
        let values = unsafe {
            ok(sealane_alloc(ps.0, bytes + 64, &mut memory));
            std::slice::from_raw_parts_mut(memory.cast::<f32>(), count * DIM)
        };
        values.copy_from_slice(&rows(0..count as u64));
        let given = sealane_view { data: memory, ..view(values, &dims) };
        let mut table = null_mut();
        if attempt % 2 == 0 {
            let more = [count as u64 + 10, DIM as u64];
            let wrong = sealane_view { bytes: bytes + 160, meta: view(&[], &more).meta, ..given };
            // SAFETY: everything lives until the function returns.
            let error = unsafe { sealane_publish_table(ps.0, text("items"), &wrong, null(), &mut table) };
            assert!(refused(error, sealane_code::InvalidArgument).contains("800064 bytes, not 800160"));
        } else {
            // SAFETY: everything lives until the functions return; the table is closed once.
            unsafe {
                ok(sealane_publish_table(ps.0, text("items"), &given, null(), &mut table));
                sealane_free(memory);
                let items = Sharded::new("items", &[PS], 0, SEALANE_SHARDING_RANGE);
                assert_eq!(floats(&items.pull(worker, &[49_999, 2], &ANY).unwrap()), rows([49_999, 2]));
                sealane_table_close(table);
                ok(sealane_withdraw(ps.0, text("items")));
            }
        }
    }
}

#[test]
fn rows_go_to_their_owners_and_come_from_all() {
    let World { ps, worker, .. } = &world();
    for sharding in [SEALANE_SHARDING_RANGE, SEALANE_SHARDING_MODULO, SEALANE_SHARDING_HASH] {
        let all = Sharded::new("all", &[PS, WORKER], 301, sharding);
        let tables = [(ps, 0), (worker, 1)].map(|(task, owner)| {
            let values = rows(all.rows_of(owner));
            Published::new(task, "all", &view(&values, &dims(&values)))
        });
        let ids: Vec<u64> = (0..301).rev().collect();
        assert_eq!(floats(&all.pull(worker, &ids, &ANY).unwrap()), rows(ids.iter().copied()));
        drop(tables);
    }
    // Of an owner that is not there, rows are missing.
    let third = THIRD.to_str().unwrap();
    let parts = Sharded::new("all", &[PS, third], 302, SEALANE_SHARDING_MODULO);
    let partial = sealane_rows_options { partial: 1, timeout_ms: 50, ..ANY };
    let pulled = parts.pull(ps, &[0, 1, 3], &partial).unwrap();
    assert_eq!(floats(&pulled)[DIM..], [0.; 2 * DIM]);
    let mut missing = std::mem::MaybeUninit::<sealane_missing_rows>::uninit();
    // SAFETY: what is written is looked at while the tensor lives.
    unsafe {
        assert!(sealane_tensor_missing(pulled.0, 0, missing.as_mut_ptr()));
        let sealane_missing_rows { owner, places, count, error } = missing.assume_init();
        assert_eq!(std::slice::from_raw_parts(owner.start.cast::<u8>(), owner.bytes), third.as_bytes());
        let mut places = std::slice::from_raw_parts(places, count).to_vec();
        places.sort_unstable();
        assert_eq!(places, [1, 2]);
        assert!(matches!(sealane_error_code(error), sealane_code::Unavailable | sealane_code::DeadlineExceeded));
        assert!(!sealane_tensor_missing(pulled.0, 1, missing.as_mut_ptr()));
        assert!(!sealane_tensor_missing(null(), 0, missing.as_mut_ptr()));
    }
}

/// # Safety
/// The tensor that it is from lives.
unsafe fn key_of(rows: &sealane_table_rows) -> &str {
    // SAFETY: as this function's caller promises.
    let key = unsafe { std::slice::from_raw_parts(rows.table.start.cast(), rows.table.bytes) };
    str::from_utf8(key).unwrap()
}

#[test]
fn rows_of_many_tables_come_in_one_tensor() {
    let World { ps, daemon, .. } = &world();
    let values = rows(0..10);
    let [users, items] = ["users", "items"].map(|key| Published::new(ps, key, &view(&values, &dims(&values))));
    let (mut acceptor, taken) = (null_mut(), Ear::new());
    // SAFETY: everything lives until the functions return, the ear longer; the tables are open.
    unsafe {
        ok(sealane_acceptor_open(ps.0, text("gradients"), null(), &mut acceptor));
        ok(sealane_accept(acceptor, 1, 0, Some(accepted), taken.context(), null_mut()));
        let both = [users.0, items.0];
        ok(sealane_set_versions(ps.0, both.as_ptr(), 2, 4));
        ok(sealane_set_versions(ps.0, null(), 0, 5));
    }
    let worker = sealane::Attach::new(THIRD.to_str().unwrap()).socket(&daemon.socket).attach().unwrap();
    let gradients = sealane::Tensor::from_elements(&[2, DIM as u64], &[1_f32; 2 * DIM]).unwrap();
    let [of_users, of_items] = ["users", "items"].map(|key| sealane::ShardedTable::of(PS, key).unwrap());
    let ids = [[3, 5], [7, 1]];
    let all = [(&of_users, &ids[0]), (&of_items, &ids[1])].map(|(table, ids)| sealane::TableRows {
        table,
        ids,
        rows: &gradients,
    });
    let options = sealane::SendOptions::default();
    worker.push_all_rows("gradients", &all, sealane::SumRows::Yes, &options).unwrap().wait().unwrap();
    let tensor = taken.tensor();
    let (mut tables, mut count) = (null(), 0);
    // SAFETY: everything lives until the functions return; what is shown, as long as the tensor.
    unsafe {
        ok(sealane_pushed_rows(tensor.0, &mut tables, &mut count));
        let [first, second] = std::slice::from_raw_parts(tables, count) else { panic!("{count} tables") };
        assert_eq!((key_of(first), key_of(second)), ("users", "items"));
        assert_eq!(std::slice::from_raw_parts(second.ids, second.count), [1, 7]);
        ok(sealane_table_add(users.0, first.ids, first.count, &first.rows));
        ok(sealane_table_add(items.0, second.ids, second.count, &second.rows));
        sealane_acceptor_close(acceptor);
    }
    let pulled = |table, id| {
        let options = sealane::RowsOptions { min_version: 4, ..Default::default() };
        worker.pull_rows(table, &[id], &options).wait().unwrap().rows.elements::<f32>().unwrap()[0]
    };
    assert_eq!((pulled(&of_users, 3), pulled(&of_users, 7), pulled(&of_items, 7)), (4., 7., 8.));
}

#[test]
fn pushed_rows_are_accepted_and_added() {
    let World { ps, worker, .. } = &world();
    let values = rows(0..100);
    let table = Published::new(ps, "users", &view(&values, &[100, DIM as u64]));
    let users = Sharded::new("users", &[PS], 100, SEALANE_SHARDING_HASH);
    let (mut acceptor, taken, pushed) = (null_mut(), Ear::new(), Ear::new());
    // SAFETY: everything lives until the function returns.
    ok(unsafe { sealane_acceptor_open(ps.0, text("gradients"), null(), &mut acceptor) });
    let accept = || {
        // SAFETY: the acceptor is open, the ear lives.
        ok(unsafe { sealane_accept(acceptor, 1, 0, Some(accepted), taken.context(), null_mut()) });
        taken.tensor()
    };
    ok(users.push(worker, &[9, 8, 9], &[1.; 3 * DIM], true, &pushed));
    let tensor = accept();
    pushed.ok();
    assert_eq!(tensor.from(), Some(WORKER));
    let (mut tables, mut count) = (null(), 0);
    for _ in 0..2 {
        // SAFETY: everything lives until the functions return.
        unsafe {
            ok(sealane_pushed_rows(tensor.0, &mut tables, &mut count));
            let [sum] = std::slice::from_raw_parts(tables, count) else { panic!("{count} tables") };
            assert_eq!((key_of(sum), sum.count), ("users", 2));
            ok(sealane_table_add(table.0, sum.ids, sum.count, &sum.rows));
        }
    }
    // The only owner has all rows, in another order.
    let places: Vec<u64> = users.rows_of(0);
    let expected = [9, 8].map(|id| {
        let local = places.iter().position(|&row| row == id).unwrap() as u64;
        row(local).map(|number| number + if id == 9 { 4. } else { 2. })
    });
    assert_eq!(floats(&users.pull(worker, &[9, 8], &ANY).unwrap()), expected.concat());
    // What is no rows is refused, and still what it is.
    let bytes = [5_u8; 100];
    let (dims, ear) = ([100], Ear::new());
    let source = source(&bytes, &dims);
    // SAFETY: everything lives until the function returns, the ear longer.
    ok(unsafe {
        let (to, queue, context) = (text(PS), text("gradients"), ear.context());
        sealane_push(worker.0, to, queue, &source, 1, 0, Some(done), context, null_mut())
    });
    let tensor = accept();
    ear.ok();
    // SAFETY: everything lives until the functions return; the acceptor is closed once.
    unsafe {
        let error = sealane_pushed_rows(tensor.0, &mut tables, &mut count);
        refused(error, sealane_code::InvalidArgument);
        sealane_acceptor_close(acceptor);
    }
    assert_eq!(tensor.bytes(), bytes);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let World { ps, worker, .. } = &world();
    let values = rows(0..100);
    let good = view(&values, &[100, DIM as u64]);
    let table = Published::new(ps, "users", &good);
    let users = Sharded::new("users", &[PS], 100, SEALANE_SHARDING_RANGE);
    let (ear, owner, key) = (Ear::new(), text(PS), text("users"));
    let one = view(&values[..DIM], &[1, DIM as u64]);
    let (mut published, mut sharded, mut tensor, mut number) = (null_mut(), null_mut(), null_mut(), 0);
    let (place, context, long) = (&raw mut number, ear.context(), "t".repeat(513));
    let no_text = sealane_text { start: null(), bytes: 1 };
    let strings = sealane_view { meta: sealane_meta { flags: SEALANE_STRINGS, ..good.meta }, ..good };
    let scalar = sealane_view { meta: sealane_meta { rank: 0, ..good.meta }, bytes: 4, ..good };
    let torn = sealane_table_options { size: 4, version: 0, torn: 0 };
    let (ids, missing) = ([0_u64], [100_u64]);
    let ids = ids.as_ptr();
    // SAFETY: what is no null lives until each function returns.
    let cases = unsafe {
        let publish = |task, key, tensor: *const _, options: *const _, table: *mut _| {
            sealane_publish_table(task, key, tensor, options, table)
        };
        let new = |key, owner: *const _, count, rows, sharding, table: *mut _| {
            sealane_sharded_table_new(key, owner, count, rows, sharding, table)
        };
        let wait = |table, ids, count, bytes, options: *const _, rows: *mut _| {
            sealane_pull_rows_wait(worker.0, table, ids, count, null_mut(), bytes, options, rows)
        };
        let push = |table, queue, rows: *const _, timeout| {
            sealane_push_rows(worker.0, table, queue, ids, 1, rows, false, timeout, Some(done), context, null_mut())
        };
        let pull = |destination: *const _, received| {
            sealane_pull_rows(worker.0, users.0, ids, 1, destination, null(), received, context, null_mut())
        };
        let unreleased = sealane_destination { memory: (&raw mut number).cast(), bytes: 16, ..NOWHERE };
        [
            ("task", publish(null_mut(), key, &good, null(), &mut published)),
            ("key", publish(ps.0, no_text, &good, null(), &mut published)),
            ("513 bytes", publish(ps.0, text(&long), &good, null(), &mut published)),
            ("tensor", publish(ps.0, key, null(), null(), &mut published)),
            ("size", publish(ps.0, key, &good, &torn, &mut published)),
            ("table", publish(ps.0, key, &good, null(), null_mut())),
            ("strings", publish(ps.0, key, &strings, null(), &mut published)),
            ("no rows of a fixed size", publish(ps.0, key, &scalar, null(), &mut published)),
            ("takes 1600", publish(ps.0, key, &sealane_view { bytes: 1599, ..good }, null(), &mut published)),
            ("table", sealane_table_update(null_mut(), ids, 1, &one)),
            ("rows", sealane_table_update(table.0, ids, 1, null())),
            ("ids", sealane_table_add(table.0, null(), 1, &one)),
            ("row 100 of 'users', which has 100 rows", sealane_table_add(table.0, missing.as_ptr(), 1, &one)),
            ("[100, 4] for f32 [1, 4]", sealane_table_add(table.0, ids, 1, &good)),
            ("table", sealane_table_set_version(null_mut(), 1)),
            ("key", new(no_text, &owner, 1, 0, SEALANE_SHARDING_HASH, &mut sharded)),
            ("owners", new(key, null(), 1, 0, SEALANE_SHARDING_HASH, &mut sharded)),
            ("one owner", new(key, null(), 0, 9, SEALANE_SHARDING_HASH, &mut sharded)),
            ("without rows", new(key, [owner; 2].as_ptr(), 2, 0, SEALANE_SHARDING_HASH, &mut sharded)),
            ("sharding: 0", new(key, &owner, 1, 9, 0, &mut sharded)),
            ("table", new(key, &owner, 1, 9, SEALANE_SHARDING_RANGE, null_mut())),
            ("none of number 1", sealane_sharded_table_rows_of(users.0, 1, place)),
            ("table", sealane_sharded_table_rows_of(null(), 0, place)),
            ("rows", sealane_sharded_table_rows_of(users.0, 0, null_mut())),
            ("row 100 of owner 0, which has 100", sealane_sharded_table_row(users.0, 0, 100, place)),
            ("callback", pull(null(), None)),
            ("release", pull(&unreleased, Some(received))),
            ("table", wait(null(), ids, 1, 0, null(), &mut tensor)),
            ("ids", wait(users.0, null(), 1, 0, null(), &mut tensor)),
            ("elements are too many", wait(users.0, ids, usize::MAX / 8, 0, null(), &mut tensor)),
            ("too many", wait(users.0, ids, 1, usize::MAX, null(), &mut tensor)),
            ("timeout", wait(users.0, ids, 1, 0, &sealane_rows_options { timeout_ms: -2, ..ANY }, &mut tensor)),
            ("rows", wait(users.0, ids, 1, 0, null(), null_mut())),
            ("table", push(null(), key, &one, 0)),
            ("queue", push(users.0, no_text, &one, 0)),
            ("rows", push(users.0, key, null(), 0)),
            ("for 1 numbers", push(users.0, key, &good, 0)),
            ("timeout", push(users.0, key, &one, -2)),
            ("tensor", sealane_pushed_rows(null_mut(), &mut null(), &mut 0)),
            ("task", sealane_set_versions(null_mut(), null(), 0, 1)),
            ("tables", sealane_set_versions(ps.0, null(), 1, 1)),
            ("table", sealane_set_versions(ps.0, &null_mut(), 1, 1)),
            ("not one of", sealane_set_versions(worker.0, &table.0, 1, 1)),
        ]
    };
    for (expected, error) in cases {
        let message = refused(error, sealane_code::InvalidArgument);
        assert!(message.contains(expected), "{message} should speak of {expected}");
    }
    assert!(published.is_null() && sharded.is_null() && tensor.is_null());
    ear.nothing();
    // Nothing of it has harmed the table.
    assert_eq!(floats(&users.pull(worker, &[0, 99], &ANY).unwrap()), rows([0, 99]));
    // SAFETY: nothing happens.
    unsafe {
        sealane_table_close(null_mut());
        sealane_sharded_table_free(null_mut());
    }
}
