//! Tables: published and written, with rows pulled and pushed.

use std::{
    ffi::c_void,
    ptr::{null, null_mut},
};

use sealane_c::*;

use crate::fixture::*;

/// Numbers per row.
const DIM: usize = 4;
pub const ANY: sealane_rows_options = sealane_rows_options {
    size: size_of::<sealane_rows_options>(),
    min_version: i64::MIN,
    timeout_ms: 0,
    partial: 0,
    wait_if_gone: 0,
};

/// The rows as the C functions take them. `values` and `dims` must outlive the view.
pub fn view(values: &[f32], dims: &[u64; 2]) -> sealane_view {
    let meta =
        sealane_meta { code: SEALANE_FLOAT, bits: 32, lanes: 1, flags: 0, rank: 2, reserved: 0, dims: dims.as_ptr() };
    sealane_view { meta, data: values.as_ptr().cast(), bytes: size_of_val(values), version: 0 }
}

fn dims(values: &[f32]) -> [u64; 2] {
    [(values.len() / DIM) as u64, DIM as u64]
}

/// The expected values of row `row`: each row encodes its own number.
fn row(row: u64) -> [f32; DIM] {
    [row as f32, row as f32 + 0.25, row as f32 + 0.5, row as f32 + 0.75]
}

fn rows(ids: impl IntoIterator<Item = u64>) -> Vec<f32> {
    ids.into_iter().flat_map(row).collect()
}

/// A published table, closed when dropped.
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

/// A sharded table, freed when dropped.
pub struct Sharded(*mut sealane_sharded_table);

impl Sharded {
    pub fn new(key: &str, owners: &[&str], rows: u64, sharding: i32) -> Sharded {
        let owners: Vec<sealane_text> = owners.iter().map(|owner| text(owner)).collect();
        let mut table = null_mut();
        // SAFETY: everything lives until the function returns.
        ok(unsafe { sealane_sharded_table_new(text(key), owners.as_ptr(), owners.len(), rows, sharding, &mut table) });
        Sharded(table)
    }

    /// The rows of an owner, as row numbers of the whole table.
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

impl Sharded {
    /// Wants these rows in memory of the library.
    fn wanted(&self, ids: &[u64]) -> sealane_wanted_rows {
        sealane_wanted_rows { table: self.0, ids: ids.as_ptr(), count: ids.len(), destination: NOWHERE }
    }

    fn outgoing(&self, ids: &[u64], rows: sealane_view) -> sealane_outgoing_rows {
        sealane_outgoing_rows { table: self.0, ids: ids.as_ptr(), count: ids.len(), rows }
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

fn pull_all(
    task: &Task,
    wanted: &[sealane_wanted_rows],
    options: &sealane_rows_options,
) -> Result<Vec<Held>, *mut sealane_error> {
    let (count, mut tensors) = (wanted.len(), vec![null_mut(); wanted.len()]);
    // SAFETY: everything lives until the function returns, memory of destinations longer.
    let error = unsafe { sealane_pull_all_rows_wait(task.0, wanted.as_ptr(), count, options, tensors.as_mut_ptr()) };
    if error.is_null() {
        Ok(tensors.into_iter().map(Held).collect())
    } else {
        assert!(tensors.iter().all(|tensor| tensor.is_null()), "no place is written after an error");
        Err(error)
    }
}

fn start_pull_all(task: &Task, wanted: &[sealane_wanted_rows], ear: &Ear, call: *mut *mut sealane_call) {
    let (start, count, told) = (wanted.as_ptr(), wanted.len(), Some(accepted as _));
    // SAFETY: everything lives until the function returns, the ear and memory of destinations longer.
    ok(unsafe { sealane_pull_all_rows(task.0, start, count, &ANY, told, ear.context(), call) });
}

/// The missing rows of a pull: owner, places and error code.
fn missing(tensor: &Held) -> Vec<(String, Vec<u32>, sealane_code)> {
    let mut missing = std::mem::MaybeUninit::<sealane_missing_rows>::uninit();
    let of_owner = |index| {
        // SAFETY: what is written is looked at while the tensor lives.
        unsafe {
            let sealane_missing_rows { owner, places, count, error } =
                sealane_tensor_missing(tensor.0, index, missing.as_mut_ptr()).then(|| missing.assume_init())?;
            let owner = std::slice::from_raw_parts(owner.start.cast::<u8>(), owner.bytes);
            let mut places = std::slice::from_raw_parts(places, count).to_vec();
            places.sort_unstable();
            Some((String::from_utf8(owner.to_vec()).unwrap(), places, sealane_error_code(error)))
        }
    };
    let mut all: Vec<_> = (0..).map_while(of_owner).collect();
    all.sort_by(|(owner, ..), (other, ..)| owner.cmp(other));
    all
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
    // Into the caller's memory, with a callback.
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
    // Into the caller's memory, with a blocking wait.
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
    // A pull that cannot be answered is cancelled.
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
    // Three leaked tensors would fill the arena of 4 MiB: none of the attempts below may leak one.
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
}

/// `users` has 300 rows, half of them at each of the two tasks; `items` has rows 1000 to 1009, all at the worker.
fn two_tables(World { ps, worker, .. }: &World) -> ([Sharded; 2], [Published; 3]) {
    let users = Sharded::new("users", &[PS, WORKER], 300, SEALANE_SHARDING_MODULO);
    let [even, odd] = [0, 1].map(|owner| rows(users.rows_of(owner)));
    let values = rows(1000..1010);
    let published = [(ps, "users", &even), (worker, "users", &odd), (worker, "items", &values)];
    let published = published.map(|(task, key, values)| Published::new(task, key, &view(values, &dims(values))));
    ([users, Sharded::new("items", &[WORKER], 0, SEALANE_SHARDING_RANGE)], published)
}

#[test]
fn rows_of_many_tables_are_pulled_in_one_call() {
    let world = world();
    let ([users, items], _published) = two_tables(&world);
    let World { ps, .. } = &world;
    let (of_users, of_items) = ([299, 0, 299], [9, 0]);
    let expected = [rows(of_users), rows([1009, 1000]), Vec::new()];
    let check = |tensors: &[Held], memory: *const u8| {
        let came: Vec<_> = tensors.iter().map(floats).collect();
        assert_eq!(came, expected);
        // SAFETY: there are as many dimensions.
        let shapes: Vec<_> =
            tensors.iter().map(|tensor| unsafe { *tensor.view().meta.dims.cast::<[u64; 2]>() }).collect();
        assert_eq!(shapes, [[3, DIM as u64], [2, DIM as u64], [0, DIM as u64]]);
        assert_eq!(tensors[1].view().data, memory.cast());
    };
    let mut memory = vec![0_u8; 2 * 4 * DIM];
    let (start, bytes) = (memory.as_mut_ptr(), memory.len());
    let into = |destination| {
        [users.wanted(&of_users), sealane_wanted_rows { destination, ..items.wanted(&of_items) }, users.wanted(&[])]
    };
    let unreleased = sealane_destination { memory: start.cast(), bytes, ..NOWHERE };
    for library in [NOWHERE, unreleased] {
        let tensors = pull_all(ps, &into(library), &ANY).unwrap();
        let memory = if library.memory.is_null() { tensors[1].view().data.cast() } else { start.cast_const() };
        check(&tensors, memory);
    }
    // With a callback.
    memory.fill(0);
    let ear = Ear::new();
    let released = ear.destination(&mut memory);
    start_pull_all(ps, &into(released), &ear, null_mut());
    let tensors = ear.ok().tensors;
    check(&tensors, start);
    ear.nothing();
    drop(tensors);
    assert!(ear.told().released);
    // A pull of no tables returns nothing.
    // SAFETY: there is nothing to read or write.
    ok(unsafe { sealane_pull_all_rows_wait(ps.0, null(), 0, null(), null_mut()) });
    start_pull_all(ps, &[], &ear, null_mut());
    assert!(ear.ok().tensors.is_empty());

    // An error in one table ends the call: no such row, memory of the wrong length, a table that was never published.
    let wrong = |wanted: [sealane_wanted_rows; 2], options: &_, code| {
        refused(pull_all(ps, &wanted, options).err().expect("it is refused"), code)
    };
    let message = wrong([users.wanted(&[1]), items.wanted(&[10])], &ANY, sealane_code::InvalidArgument);
    assert!(message.contains("row 10 of 'items', which has 10 rows"), "{message}");
    let short = sealane_wanted_rows { destination: unreleased, ..items.wanted(&[1]) };
    let message = wrong([users.wanted(&[1]), short], &ANY, sealane_code::InvalidArgument);
    assert!(message.contains("the memory has 32 bytes"), "{message}");
    let absent = Sharded::new("absent", &[PS], 0, SEALANE_SHARDING_RANGE);
    let soon = sealane_rows_options { timeout_ms: 1, ..ANY };
    wrong([users.wanted(&[1]), absent.wanted(&[1])], &soon, sealane_code::DeadlineExceeded);
    // A call that cannot be answered is cancelled: the memory comes back, and no tensor arrives.
    let mut call = null_mut();
    let given = sealane_wanted_rows { destination: released, ..items.wanted(&of_items) };
    start_pull_all(ps, &[given, absent.wanted(&[1])], &ear, &mut call);
    // SAFETY: the call is freed once.
    unsafe {
        ok(sealane_call_cancel(call));
        sealane_call_free(call);
    }
    let told = [ear.told(), ear.told()].map(|told| (told.code, told.released, told.tensors.len()));
    let (cancelled, back) = ((sealane_code::Cancelled, false, 0), (sealane_code::Ok, true, 0));
    assert!(told == [cancelled, back] || told == [back, cancelled], "{told:?}");
}

#[test]
fn each_table_of_a_partial_pull_names_what_it_misses() {
    let world = world();
    let ([users, items], _published) = two_tables(&world);
    let third = THIRD.to_str().unwrap();
    let parts = Sharded::new("users", &[PS, third], 300, SEALANE_SHARDING_MODULO);
    let partial = sealane_rows_options { partial: 1, timeout_ms: 200, ..ANY };
    let wanted = [parts.wanted(&[0, 1, 300, 2, 3]), users.wanted(&[7]), items.wanted(&[10, 4])];
    let tensors = pull_all(&world.ps, &wanted, &partial).unwrap();
    let came: Vec<_> = tensors.iter().map(floats).collect();
    let none = [0.; DIM];
    let of_parts = [row(0), none, none, row(2), none].concat();
    assert_eq!(came, [of_parts, row(7).to_vec(), [none, row(1004)].concat()]);
    let [of_parts, of_users, of_items] = &tensors[..] else { panic!("{} tensors", tensors.len()) };
    let [(beyond, at, of_beyond), (owner, places, why)] = &missing(of_parts)[..] else {
        panic!("{:?}", missing(of_parts))
    };
    assert_eq!((&beyond[..], &at[..], *of_beyond), ("", &[2][..], sealane_code::InvalidArgument));
    assert_eq!((&owner[..], &places[..]), (third, &[1, 4][..]));
    assert!(matches!(why, sealane_code::Unavailable | sealane_code::DeadlineExceeded));
    assert_eq!(missing(of_users), []);
    assert_eq!(missing(of_items), [(WORKER.to_owned(), vec![0], sealane_code::InvalidArgument)]);
    // Missing rows keep the row format of an earlier pull; for a table never pulled before, the format is unknown.
    let none = pull_all(&world.ps, &[users.wanted(&[7]), parts.wanted(&[1])], &partial).unwrap();
    assert_eq!((floats(&none[1]).len(), missing(&none[1])[0].1.len()), (DIM, 1));
    let parts = Sharded::new("users", &[PS, third], 300, SEALANE_SHARDING_MODULO);
    let none = pull_all(&world.ps, &[users.wanted(&[7]), parts.wanted(&[1])], &partial);
    let (code, message) = code(none.err().expect("it fails"));
    assert!(matches!(code, sealane_code::Unavailable | sealane_code::DeadlineExceeded), "{message}");
}

/// # Safety
/// The tensor that `rows` is from must be alive.
unsafe fn key_of(rows: &sealane_table_rows) -> &str {
    // SAFETY: as this function's caller promises.
    let key = unsafe { std::slice::from_raw_parts(rows.table.start.cast(), rows.table.bytes) };
    str::from_utf8(key).unwrap()
}

/// A task's queue `gradients`, closed when dropped.
struct Gradients(*mut sealane_acceptor, Ear);

impl Gradients {
    fn of(task: &Task) -> Gradients {
        let mut acceptor = null_mut();
        // SAFETY: everything lives until the function returns.
        ok(unsafe { sealane_acceptor_open(task.0, text("gradients"), null(), &mut acceptor) });
        Gradients(acceptor, Ear::new())
    }

    fn accept(&self) -> Held {
        // SAFETY: the acceptor is open, the ear lives.
        ok(unsafe { sealane_accept(self.0, 1, 0, Some(accepted), self.1.context(), null_mut()) });
        self.1.tensor()
    }
}

impl Drop for Gradients {
    fn drop(&mut self) {
        // SAFETY: it is closed here alone.
        unsafe { sealane_acceptor_close(self.0) };
    }
}

/// The pushed rows of a tensor; their contents live as long as the tensor.
fn pushed_rows(tensor: &Held) -> &[sealane_table_rows] {
    let (mut tables, mut count) = (null(), 0);
    // SAFETY: nobody else uses the tensor; so many are there, as long as it.
    unsafe {
        ok(sealane_pushed_rows(tensor.0, &mut tables, &mut count));
        std::slice::from_raw_parts(tables, count)
    }
}

#[test]
fn rows_of_many_tables_are_pushed_in_one_call() {
    let world = world();
    let ([users, items], [even, odd, all]) = two_tables(&world);
    let World { ps, worker, daemon, .. } = &world;
    let third = attach_with(
        &daemon.socket,
        THIRD.to_str().unwrap(),
        sealane_attach_options { arena_bytes: 4 << 20, backlog_calls_max: 2, ..DEFAULTS },
    );
    let (queues, ear) = ([ps, worker].map(Gradients::of), Ear::new());
    let ones = [1.; 3 * DIM];
    let (three, two) = ([3, DIM as u64], [2, DIM as u64]);
    let push = |pushed: &[sealane_outgoing_rows]| {
        let (start, count, context) = (pushed.as_ptr(), pushed.len(), ear.context());
        // SAFETY: everything lives until the function returns, the ear longer.
        unsafe {
            let queue = text("gradients");
            sealane_push_all_rows(third.0, queue, start, count, true, 0, Some(done), context, null_mut())
        }
    };
    let of_users = users.outgoing(&[5, 4, 5], view(&ones, &three));
    let of_items = items.outgoing(&[7, 1], view(&ones[DIM..], &two));
    // If one row does not exist, nothing is pushed.
    let message = refused(push(&[of_items, users.outgoing(&[4, 300], of_items.rows)]), sealane_code::InvalidArgument);
    assert!(message.contains("300"), "{message}");
    // Nor is anything pushed that needs more calls than the backlog may hold: the three tables have two owners.
    let third_owner = Sharded::new("items", &[THIRD.to_str().unwrap()], 0, SEALANE_SHARDING_RANGE);
    let other = third_owner.outgoing(&[7, 1], of_items.rows);
    let message = refused(push(&[of_users, of_items, other]), sealane_code::ResourceExhausted);
    assert!(message.contains("backlog_calls"), "{message}");
    ok(push(&[]));
    // SAFETY: there is nothing to read.
    ok(unsafe { sealane_push_all_rows(third.0, text("gradients"), null(), 0, true, 0, None, null_mut(), null_mut()) });
    ear.ok();
    ok(push(&[of_users, of_items, of_users]));
    let [to_ps, to_worker] = queues.each_ref().map(Gradients::accept);
    ear.ok();
    ear.nothing();
    // SAFETY: the tensors live.
    let told = |rows: &sealane_table_rows| unsafe {
        (key_of(rows).to_owned(), std::slice::from_raw_parts(rows.ids, rows.count).to_vec())
    };
    let [at_ps, at_worker] =
        [&to_ps, &to_worker].map(|tensor| pushed_rows(tensor).iter().map(told).collect::<Vec<_>>());
    let [even_users, odd_users, some_items] = [("users", vec![2]), ("users", vec![2]), ("items", vec![1, 7])];
    let expected = |all: &[&(&str, Vec<u64>)]| -> Vec<_> {
        all.iter().map(|(key, ids)| ((*key).to_owned(), ids.clone())).collect()
    };
    assert_eq!(at_ps, expected(&[&even_users; 2]));
    assert_eq!(at_worker, expected(&[&odd_users, &some_items, &odd_users]));
    for (table, rows) in
        [(&even, &pushed_rows(&to_ps)[0]), (&odd, &pushed_rows(&to_worker)[0]), (&all, &pushed_rows(&to_worker)[1])]
    {
        // SAFETY: the table is open, and the rows live.
        ok(unsafe { sealane_table_add(table.0, rows.ids, rows.count, &rows.rows) });
    }
    // SAFETY: the tables are open.
    unsafe {
        ok(sealane_set_versions(worker.0, [odd.0, all.0].as_ptr(), 2, 4));
        ok(sealane_set_versions(ps.0, &even.0, 1, 4));
        ok(sealane_set_versions(ps.0, null(), 0, 5));
    }
    let newer = sealane_rows_options { min_version: 4, ..ANY };
    let tensors = pull_all(&third, &[users.wanted(&[4, 5]), items.wanted(&[7, 6])], &newer).unwrap();
    let sums = [(row(4), 1.), (row(5), 2.), (row(1007), 1.), (row(1006), 0.)];
    let sums = sums.map(|(row, more)| row.map(|number| number + more)).concat();
    assert_eq!(tensors.iter().flat_map(floats).collect::<Vec<_>>(), sums);
}

#[test]
fn pushed_rows_are_accepted_and_added() {
    let World { ps, worker, .. } = &world();
    let values = rows(0..100);
    let table = Published::new(ps, "users", &view(&values, &[100, DIM as u64]));
    let users = Sharded::new("users", &[PS], 100, SEALANE_SHARDING_RANGE);
    let (gradients, pushed) = (Gradients::of(ps), Ear::new());
    ok(users.push(worker, &[9, 8, 9], &[1.; 3 * DIM], true, &pushed));
    let tensor = gradients.accept();
    pushed.ok();
    assert_eq!(tensor.from(), Some(WORKER));
    for _ in 0..2 {
        let [sum] = pushed_rows(&tensor) else { panic!("one table") };
        // SAFETY: the table is open; what is shown lives as long as the tensor.
        unsafe {
            assert_eq!((key_of(sum), sum.count), ("users", 2));
            ok(sealane_table_add(table.0, sum.ids, sum.count, &sum.rows));
        }
    }
    let expected = [9, 8].map(|id| row(id).map(|number| number + if id == 9 { 4. } else { 2. }));
    assert_eq!(floats(&users.pull(worker, &[9, 8], &ANY).unwrap()), expected.concat());
    // A tensor that holds no rows is refused and stays as it was.
    let bytes = [5_u8; 100];
    let (dims, ear) = ([100], Ear::new());
    let source = source(&bytes, &dims);
    // SAFETY: everything lives until the function returns, the ear longer.
    ok(unsafe {
        let (to, queue, context) = (text(PS), text("gradients"), ear.context());
        sealane_push(worker.0, to, queue, &source, 1, 0, Some(done), context, null_mut())
    });
    let tensor = gradients.accept();
    ear.ok();
    let (mut tables, mut count) = (null(), 0);
    // SAFETY: nobody else uses the tensor.
    let error = unsafe { sealane_pushed_rows(tensor.0, &mut tables, &mut count) };
    refused(error, sealane_code::InvalidArgument);
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
        let out = (&raw mut number).cast();
        let wait = |table, ids, count, bytes, options: *const _, rows: *mut _| {
            let out = if bytes > 0 { out } else { null_mut() };
            sealane_pull_rows_wait(worker.0, table, ids, count, out, bytes, options, rows)
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
            ("too large", wait(users.0, ids, 1, usize::MAX, null(), &mut tensor)),
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
    // None of these calls has damaged the table.
    assert_eq!(floats(&users.pull(worker, &[0, 99], &ANY).unwrap()), rows([0, 99]));
    // SAFETY: nothing happens.
    unsafe {
        assert!(!sealane_tensor_missing(null(), 0, std::mem::MaybeUninit::uninit().as_mut_ptr()));
        sealane_table_close(null_mut());
        sealane_sharded_table_free(null_mut());
    }
}

#[test]
fn one_table_that_makes_no_sense_has_the_whole_call_refused() {
    let World { ps, .. } = &world();
    let values = rows(0..10);
    let _published = Published::new(ps, "users", &view(&values, &dims(&values)));
    let users = Sharded::new("users", &[PS], 10, SEALANE_SHARDING_RANGE);
    let (ear, mut memory, ids) = (Ear::new(), [0_u8; 4 * DIM], [3]);
    let (destination, context) = (ear.destination(&mut memory), ear.context());
    let one = view(&values[..DIM], &[1, DIM as u64]);
    let (mut tensors, queue) = ([null_mut(); 2], text("gradients"));
    let places = tensors.as_mut_ptr();
    let misaligned = (&raw mut tensors).cast::<*mut sealane_call>().wrapping_byte_add(1);
    let (small, late) = (sealane_rows_options { size: 4, ..ANY }, sealane_rows_options { timeout_ms: -2, ..ANY });
    // Valid on its own, and the first item of the calls below.
    let waiting = users.wanted(&ids);
    let (good, outgoing) = (sealane_wanted_rows { destination, ..waiting }, users.outgoing(&ids, one));
    let lent = |change: &dyn Fn(&mut sealane_destination)| {
        let mut wanted = good;
        change(&mut wanted.destination);
        wanted
    };
    let no_table = [
        ("table", sealane_wanted_rows { table: null(), ..waiting }),
        ("table", sealane_wanted_rows { table: users.0.wrapping_byte_add(1), ..waiting }),
        ("ids", sealane_wanted_rows { ids: null(), ..waiting }),
        ("elements are too many", sealane_wanted_rows { count: usize::MAX / 8, ..waiting }),
    ];
    let no_destination = [
        ("needs a release", lent(&|destination| destination.release = None)),
        ("too large", lent(&|destination| destination.bytes = usize::MAX)),
        ("too large", lent(&|destination| destination.bytes = isize::MAX as usize)),
    ];
    let no_memory = [
        ("release must be NULL", good),
        ("too large", lent(&|given| (given.release, given.bytes) = (None, usize::MAX))),
    ];
    let half = lent(&|given| (given.release, given.bytes) = (None, isize::MAX as usize));
    let no_rows = [
        ("table", sealane_outgoing_rows { table: null(), ..outgoing }),
        ("ids", sealane_outgoing_rows { ids: null(), ..outgoing }),
        ("elements are too many", sealane_outgoing_rows { count: usize::MAX / 8, ..outgoing }),
        ("for 2 numbers", users.outgoing(&[1, 2], one)),
        ("data", users.outgoing(&ids, sealane_view { data: null(), ..one })),
        ("takes 16", users.outgoing(&ids, sealane_view { bytes: 15, ..one })),
        ("row 10 of 'users'", users.outgoing(&[10], one)),
    ];
    // SAFETY: what is no null lives until each function returns, and nothing of it is taken over.
    let cases = unsafe {
        let pull = |task, wanted: *const _, count, options: *const _, received, call| {
            sealane_pull_all_rows(task, wanted, count, options, received, context, call)
        };
        let wait = |task, wanted: *const _, count, options: *const _, rows| {
            sealane_pull_all_rows_wait(task, wanted, count, options, rows)
        };
        let push = |task, queue, pushed: *const _, count, timeout, call| {
            sealane_push_all_rows(task, queue, pushed, count, false, timeout, Some(done), context, call)
        };
        let (told, no_text) = (Some(accepted as _), sealane_text { start: null(), bytes: 1 });
        let mut cases = vec![
            ("task", pull(null_mut(), &good, 1, &ANY, told, null_mut())),
            ("wanted", pull(ps.0, null(), 1, &ANY, told, null_mut())),
            ("elements are too many", pull(ps.0, &good, usize::MAX / 8, &ANY, told, null_mut())),
            ("size", pull(ps.0, &good, 1, &small, told, null_mut())),
            ("timeout", pull(ps.0, &good, 1, &late, told, null_mut())),
            ("callback", pull(ps.0, &good, 1, &ANY, None, null_mut())),
            ("call", pull(ps.0, &good, 1, &ANY, told, misaligned)),
            ("task", wait(null_mut(), &waiting, 1, &ANY, places)),
            ("wanted", wait(ps.0, null(), 1, &ANY, places)),
            ("elements are too many", wait(ps.0, &waiting, usize::MAX / 8, &ANY, places)),
            ("size", wait(ps.0, &waiting, 1, &small, places)),
            ("too large", wait(ps.0, [half; 2].as_ptr(), 2, &ANY, places)),
            ("rows", wait(ps.0, &waiting, 1, &ANY, null_mut())),
            ("rows", wait(ps.0, &waiting, 1, &ANY, misaligned.cast())),
            ("task", push(null_mut(), queue, &outgoing, 1, 0, null_mut())),
            ("queue", push(ps.0, no_text, &outgoing, 1, 0, null_mut())),
            ("pushed", push(ps.0, queue, null(), 1, 0, null_mut())),
            ("elements are too many", push(ps.0, queue, &outgoing, usize::MAX / 8, 0, null_mut())),
            ("timeout", push(ps.0, queue, &outgoing, 1, -2, null_mut())),
            ("call", push(ps.0, queue, &outgoing, 1, 0, misaligned)),
        ];
        for (expected, bad) in no_table.into_iter().chain(no_destination) {
            cases.push((expected, pull(ps.0, [good, bad].as_ptr(), 2, &ANY, told, null_mut())));
        }
        for (expected, bad) in no_table.into_iter().chain(no_memory) {
            cases.push((expected, wait(ps.0, [waiting, bad].as_ptr(), 2, &ANY, places)));
        }
        for (expected, bad) in no_rows {
            cases.push((expected, push(ps.0, queue, [outgoing, bad].as_ptr(), 2, 0, null_mut())));
        }
        cases
    };
    for (expected, error) in cases {
        let message = refused(error, sealane_code::InvalidArgument);
        assert!(message.contains(expected), "{message} should speak of {expected}");
    }
    assert_eq!(tensors, [null_mut(); 2]);
    // After one more complete call, nothing was pushed, reported or released.
    let (gradients, late) = (Gradients::of(ps), Ear::new());
    start_pull_all(ps, &[waiting], &late, null_mut());
    assert_eq!(floats(&late.tensor()), row(3));
    ok(users.push(ps, &[5], &row(5), false, &late));
    let tensor = gradients.accept();
    let [pushed] = pushed_rows(&tensor) else { panic!("one table") };
    // SAFETY: what is shown lives as long as the tensor.
    assert_eq!(unsafe { *pushed.ids }, 5);
    late.ok();
    ear.nothing();
}
