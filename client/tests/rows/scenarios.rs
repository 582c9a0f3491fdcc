//! What tables guarantee between a parameter server and a worker, wherever their engines run.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use sealane::{
    AcceptOptions, Acceptor, Buffer, Code, DType, Keys, RowUpdate, RowsOptions, RowsWanted, SendOptions, ShardedTable,
    Sharding, SumRows, TableOptions, TableRows, Task, Tensor, TensorMeta,
};

macro_rules! all {
    ($run:ident) => {
        $run!(
            rows_come_to_their_places,
            rows_of_a_table_in_parts_come_from_all_owners,
            what_cannot_be_pulled_says_why,
            a_table_that_comes_later_is_waited_for,
            many_tables_get_a_version_together,
            rows_that_are_missing_are_left_out_where_that_is_asked_for,
            more_rows_than_one_request_names_come_together,
            rows_of_many_tables_come_together,
            a_row_that_is_not_there_takes_no_other_along,
            what_was_not_asked_of_an_owner_that_is_late_is_late_too,
            a_written_row_is_seen,
            small_tables_are_seen_as_they_are_written,
            no_row_is_torn_while_it_is_written,
            a_table_is_withdrawn_with_its_locks,
            a_table_is_pulled_whole_only_where_half_a_row_is_welcome,
            pushed_rows_reach_their_owners,
        );
    };
}
pub(crate) use all;

const DIM: u64 = 16;

/// A table in memory of the task, whose row `i` is `row(i), row(i) + 0.01, ...`.
fn table(task: &Task, rows: u64, row: impl Fn(u64) -> f32) -> Tensor {
    let mut memory = task.alloc((rows * DIM * 4) as usize).unwrap();
    for (at, number) in memory.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        *number = (row(at as u64 / DIM) + (at as u64 % DIM) as f32 / 100.).to_ne_bytes();
    }
    Tensor::new(TensorMeta::new(DType::F32, &[rows, DIM]).unwrap(), memory).unwrap()
}

/// The first number of each row.
fn firsts(rows: &Tensor) -> Vec<f32> {
    let numbers = rows.elements::<f32>().unwrap();
    let row = DIM as usize;
    numbers.chunks(row).for_each(|numbers| assert_eq!(numbers[row - 1], numbers[0] + 0.15));
    numbers.chunks(row).map(|numbers| numbers[0]).collect()
}

fn whole(first: u64) -> f32 {
    first as f32
}

/// Repeats a call with growing timeouts until it succeeds: the first may wait for a link, and the machine may be slow.
fn until_there<T>(call: impl FnMut(Duration) -> Option<T>) -> T {
    (0..8).map(|doublings| Duration::from_millis(300 << doublings)).find_map(call).expect("what is there comes")
}

pub fn rows_come_to_their_places(ps: &Task, worker: &Task) {
    ps.publish_table("user", table(ps, 1000, whole), TableOptions::default()).unwrap();
    let users = ShardedTable::of(ps.name(), "user").unwrap();
    let ids = [999, 0, 5, 999, 5, 17];
    let pulled = worker.pull_rows(&users, &ids, &RowsOptions::default()).wait().unwrap();
    // Each row once, or, where this process reads the table itself, as often as it is named.
    assert!([4, 6].contains(&pulled.asked), "{}", pulled.asked);
    assert_eq!((pulled.missing.len(), &pulled.rows.shape()[..]), (0, &[6, DIM][..]));
    assert_eq!(firsts(&pulled.rows), ids.map(|id| id as f32));
    // Into the caller's memory, which comes back.
    let out = worker.alloc(6 * 64).unwrap();
    let at = out.as_ptr();
    let pulled = worker
        .pull_rows_into(RowsWanted { table: &users, ids: &ids, out: Some(out.into()) }, &RowsOptions::default())
        .wait()
        .unwrap();
    assert_eq!((pulled.rows.bytes().as_ptr(), firsts(&pulled.rows)), (at, ids.map(|id| id as f32).to_vec()));
    let none = worker.pull_rows(&users, &[], &RowsOptions::default()).wait().unwrap();
    assert_eq!((&none.rows.shape()[..], none.rows.dtype()), (&[0, DIM][..], DType::F32));
}

pub fn rows_of_a_table_in_parts_come_from_all_owners(ps: &Task, worker: &Task) {
    // The worker owns one part itself.
    for (sharding, key) in
        [(Sharding::range(101, 2), "range"), (Sharding::modulo(101, 2), "modulo"), (Sharding::hash(101, 2), "hash")]
    {
        let sharding = sharding.unwrap();
        for (owner, task) in [ps, worker].into_iter().enumerate() {
            let part = table(task, sharding.rows_of(owner), |local| sharding.row(owner, local) as f32);
            task.publish_table(key, part, TableOptions::default()).unwrap();
        }
        let parts = ShardedTable::new(key, [ps.name(), worker.name()], sharding).unwrap();
        let ids: Vec<u64> = (0..300).map(|at| at * 37 % 101).collect();
        let pulled = worker.pull_rows(&parts, &ids, &RowsOptions::default()).wait().unwrap();
        assert_eq!(firsts(&pulled.rows), ids.iter().map(|&id| id as f32).collect::<Vec<_>>(), "{key}");
        assert!((101..=300).contains(&pulled.asked), "{}", pulled.asked);
    }
}

pub fn what_cannot_be_pulled_says_why(ps: &Task, worker: &Task) {
    ps.publish_table("user", table(ps, 10, whole), TableOptions::default()).unwrap();
    let users = ShardedTable::of(ps.name(), "user").unwrap();
    let refuse = |table: &ShardedTable, ids: &[u64], out: Option<Buffer>| {
        let out = out.map(Into::into);
        worker.pull_rows_into(RowsWanted { table, ids, out }, &RowsOptions::default()).wait().unwrap_err()
    };
    let unreceived = refuse(&users, &[1, 10], None);
    assert_eq!(unreceived.error.code(), Code::InvalidArgument);
    assert!(unreceived.error.to_string().contains("row 10 of 'user', which has 10 rows"), "{unreceived}");
    let unreceived = refuse(&users, &[1], Some(Buffer::from_vec(vec![0; 63])));
    assert_eq!(
        (unreceived.error.code(), unreceived.destination.map(|out| out.len())),
        (Code::InvalidArgument, Some(63))
    );
    let many = vec![0; (1 << 24) + 1];
    assert!(refuse(&users, &many, None).error.to_string().contains("rows of a call"));
    let nobodys = ShardedTable::of("nobody:1", "user").unwrap();
    assert_eq!(refuse(&nobodys, &[1], None).error.code(), Code::NotFound);
    assert_eq!(refuse(&users, &[u64::MAX], None).error.code(), Code::InvalidArgument);
    let pair = |memory: &[f32]| Tensor::from_elements(&[memory.len() as u64], memory).unwrap();
    assert!(ps.publish_table("t", pair(&[]), TableOptions::default()).is_err());
    assert!(ps.publish_table(&"t".repeat(513), pair(&[1.]), TableOptions::default()).is_err());
}

pub fn a_table_that_comes_later_is_waited_for(ps: &Task, worker: &Task) {
    let users = ShardedTable::of(ps.name(), "user").unwrap();
    let timeout = Some(Duration::from_millis(1));
    let late = worker.pull_rows(&users, &[3], &RowsOptions { timeout, ..RowsOptions::default() }).wait().unwrap_err();
    assert_eq!(late.error.code(), Code::DeadlineExceeded);
    let options = |min_version| RowsOptions { min_version, ..RowsOptions::default() };
    let forever = RowsOptions { timeout: Some(Duration::MAX), ..options(3) };
    let (first, third) = (worker.pull_rows(&users, &[3], &options(1)), worker.pull_rows(&users, &[3], &forever));
    let table = ps.publish_table("user", table(ps, 100, whole), TableOptions { version: 1, torn: false }).unwrap();
    assert_eq!(firsts(&first.wait().unwrap().rows), [3.]);
    table.set_version(2).unwrap();
    table.set_version(3).unwrap();
    assert_eq!((firsts(&third.wait().unwrap().rows), table.version()), (vec![3.], 3));
    assert!(table.set_version(1).is_err());
    assert_eq!(table.version(), 3);
}

pub fn many_tables_get_a_version_together(ps: &Task, worker: &Task) {
    let publish = |key, rows, torn| ps.publish_table(key, table(ps, rows, whole), TableOptions { version: 1, torn });
    // With locks, without locks, and small enough to be published again with each write.
    let tables = [("user", 100, false), ("item", 100, true), ("small", 2, false)]
        .map(|(key, rows, torn)| publish(key, rows, torn).unwrap());
    let [users, items, small] = &tables;
    let versions = || [users, items, small].map(|table| table.version());
    let pulling = |min_version| {
        [users, items, small].map(|table| {
            let options = RowsOptions { min_version, timeout: Some(Duration::from_secs(60)), ..RowsOptions::default() };
            worker.pull_rows(&ShardedTable::of(ps.name(), table.key()).unwrap(), &[1], &options)
        })
    };
    let fifth = pulling(5);
    ps.set_versions(&[users, items, small, users], 5).unwrap();
    fifth.into_iter().for_each(|pulling| assert_eq!(firsts(&pulling.wait().unwrap().rows), [1.]));
    assert_eq!(versions(), [5; 3]);
    // A table that is already ahead keeps its version, and holds no other back.
    items.set_version(9).unwrap();
    assert_eq!(ps.set_versions(&[users, items, small], 7).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(versions(), [7, 9, 7]);
    pulling(7).into_iter().for_each(|pulling| assert_eq!(firsts(&pulling.wait().unwrap().rows), [1.]));
    small.update(&[1], &table(ps, 1, |_| 4.)).unwrap();
    items.set_version(10).unwrap();
    assert_eq!(worker.set_versions(&[users], 8).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(versions(), [7, 10, 7]);
    ps.set_versions(&[], 8).unwrap();
    // Calls that name the same tables in a different order do not deadlock.
    thread::scope(|scope| {
        for tables in [[users, small], [small, users]] {
            scope.spawn(move || (0..100).for_each(|_| ps.set_versions(&tables, 11).unwrap()));
        }
    });
}

pub fn rows_that_are_missing_are_left_out_where_that_is_asked_for(ps: &Task, worker: &Task) {
    ps.publish_table("user", table(ps, 50, whole), TableOptions::default()).unwrap();
    // The worker has not published its part.
    let parts = ShardedTable::new("user", [ps.name(), worker.name()], Sharding::modulo(100, 2).unwrap()).unwrap();
    let within = |timeout| RowsOptions { partial: true, timeout: Some(timeout), ..RowsOptions::default() };
    let pulled = until_there(|timeout| {
        let pulled = worker.pull_rows(&parts, &[0, 1, 4, 3], &within(timeout)).wait().ok()?;
        pulled.missing.iter().all(|missing| &*missing.owner == worker.name()).then_some(pulled)
    });
    let [missing] = &pulled.missing[..] else { panic!("{:?}", pulled.missing) };
    let mut places = missing.places.clone();
    places.sort_unstable();
    assert_eq!(
        (&*missing.owner, &places[..], missing.error.code()),
        (worker.name(), &[1, 3][..], Code::DeadlineExceeded)
    );
    let numbers = pulled.rows.elements::<f32>().unwrap();
    assert_eq!([0, 1, 2, 3].map(|row| numbers[row * DIM as usize + 1]), [0.01, 0., 2.01, 0.]);
    // Missing rows keep the row format of an earlier pull; for a table never pulled before, the format is unknown.
    let short = within(Duration::from_millis(300));
    let none = worker.pull_rows(&parts, &[1, 3], &short).wait().unwrap();
    assert_eq!((none.rows.meta().dtype(), &none.rows.shape()[..]), (DType::F32, &[2, DIM][..]));
    assert_eq!(none.missing.iter().map(|missing| missing.places.len()).sum::<usize>(), 2);
    assert!(none.missing.iter().all(|missing| missing.error.code() == Code::DeadlineExceeded));
    let new = ShardedTable::new("user", [ps.name(), worker.name()], parts.sharding().clone()).unwrap();
    for (table, bytes) in [(&new, 128), (&parts, 100)] {
        let out = Some(Buffer::from_vec(vec![0; bytes]).into());
        let none = worker.pull_rows_into(RowsWanted { table, ids: &[1, 3], out }, &short).wait().unwrap_err();
        assert_eq!((none.error.code(), none.destination.map(|out| out.len())), (Code::DeadlineExceeded, Some(bytes)));
    }
    let whole = worker.pull_rows(&parts, &[0, 1], &RowsOptions { partial: false, ..short }).wait();
    assert_eq!(whole.unwrap_err().error.code(), Code::DeadlineExceeded);
}

pub fn more_rows_than_one_request_names_come_together(ps: &Task, worker: &Task) {
    ps.publish_table("user", table(ps, 20_000, whole), TableOptions::default()).unwrap();
    let users = ShardedTable::of(ps.name(), "user").unwrap();
    let ids: Vec<u64> = (0..30_000).map(|at| at * 7919 % 20_000).collect();
    let pulled = worker.pull_rows(&users, &ids, &RowsOptions::default()).wait().unwrap();
    assert!(firsts(&pulled.rows) == ids.iter().map(|&id| id as f32).collect::<Vec<_>>());
    assert!([20_000, 30_000].contains(&pulled.asked), "{}", pulled.asked);
}

pub fn rows_of_many_tables_come_together(ps: &Task, worker: &Task) {
    // Tables of one owner and of two, of different types and row sizes, with many rows and none.
    let wide = Tensor::from_elements(&[3, 2, 2], &(0..12).collect::<Vec<i64>>()).unwrap();
    ps.publish_table("wide", wide, TableOptions::default()).unwrap();
    let sharding = Sharding::hash(1000, 2).unwrap();
    for (owner, task) in [ps, worker].into_iter().enumerate() {
        let part = table(task, sharding.rows_of(owner), |local| sharding.row(owner, local) as f32);
        task.publish_table("user", part, TableOptions::default()).unwrap();
    }
    let wide = ShardedTable::of(ps.name(), "wide").unwrap();
    let users = ShardedTable::new("user", [ps.name(), worker.name()], sharding).unwrap();
    let many: Vec<u64> = (0..5000).map(|at| at * 7 % 1000).collect();
    // In the first round the row size is not known yet.
    for _ in 0..2 {
        let wanted = |table, ids| RowsWanted { table, ids, out: None };
        let all = [wanted(&users, &many[..]), wanted(&wide, &[2, 0]), wanted(&users, &[]), wanted(&users, &[5, 5])];
        let pulled = worker.pull_all_rows(all, &RowsOptions::default()).wait().unwrap();
        let [first, wide, none, twice] = &pulled[..] else { panic!("{} of 4", pulled.len()) };
        assert!(firsts(&first.rows) == many.iter().map(|&id| id as f32).collect::<Vec<_>>());
        assert_eq!(wide.rows.elements::<i64>().unwrap(), [8, 9, 10, 11, 0, 1, 2, 3]);
        assert_eq!((&none.rows.shape()[..], firsts(&twice.rows)), (&[0, DIM][..], vec![5., 5.]));
        let asked: Vec<_> = pulled.iter().map(|pulled| pulled.asked).collect();
        assert!([[1000, 2, 0, 1], [5000, 2, 0, 2]].iter().any(|all| asked == all), "{asked:?}");
    }
    assert!(worker.pull_all_rows([], &RowsOptions::default()).wait().unwrap().is_empty());
    // All destinations come back when one row does not exist.
    let out = || Some(Buffer::from_vec(vec![0; 64]).into());
    let all = [&[5][..], &[1000]].map(|ids| RowsWanted { table: &users, ids, out: out() });
    let unpulled = worker.pull_all_rows(all, &RowsOptions::default()).wait().unwrap_err();
    assert!(unpulled.error.to_string().contains("row 1000 of 'user', which has 1000 rows"), "{}", unpulled.error);
    assert!(unpulled.outs.iter().all(|out| out.as_ref().is_some_and(|out| out.len() == 64)));
}

pub fn a_row_that_is_not_there_takes_no_other_along(ps: &Task, worker: &Task) {
    for (task, rows) in [(ps, 10), (worker, 4)] {
        task.publish_table("user", table(task, rows, whole), TableOptions::default()).unwrap();
    }
    // The worker has fewer rows than its part of the table should have.
    let parts = ShardedTable::new("user", [ps.name(), worker.name()], Sharding::range(20, 2).unwrap()).unwrap();
    let whole = worker.pull_rows(&parts, &[3, 19], &RowsOptions::default()).wait().unwrap_err().error;
    assert!(whole.to_string().contains(&format!("row 19 of 'user' of {}, which has 4 rows", worker.name())), "{whole}");
    let partial = RowsOptions { partial: true, ..RowsOptions::default() };
    let pulled = worker.pull_rows(&parts, &[19, 3, 99, 13, 14, 9], &partial).wait().unwrap();
    let numbers = pulled.rows.elements::<f32>().unwrap();
    assert_eq!([1, 3, 5].map(|row| numbers[row * DIM as usize + 1]), [3.01, 3.01, 9.01]);
    let mut missing: Vec<_> = pulled.missing.iter().map(|missing| (&*missing.owner, missing.places.clone())).collect();
    missing.iter_mut().for_each(|(_, places)| places.sort_unstable());
    assert_eq!(missing, [("", vec![2]), (worker.name(), vec![0, 4])]);
    assert!(pulled.missing.iter().all(|missing| missing.error.code() == Code::InvalidArgument));
    assert!(pulled.missing[0].error.to_string().contains("row 99 of 'user', which has 20 rows"));
}

pub fn what_was_not_asked_of_an_owner_that_is_late_is_late_too(ps: &Task, worker: &Task) {
    // The worker has not published its part, and more of its rows are wanted than may be in flight.
    let rows = 40_000;
    let sharding = Sharding::range(2 * rows, 2).unwrap();
    ps.publish_table("user", table(ps, rows, whole), TableOptions::default()).unwrap();
    let users = ShardedTable::new("user", [worker.name(), ps.name()], sharding).unwrap();
    worker.pull_rows(&users, &[rows], &RowsOptions::default()).wait().unwrap();
    let within = |timeout| RowsOptions { partial: true, timeout: Some(timeout), ..RowsOptions::default() };
    let (all, one) = ((0..=rows).collect::<Vec<u64>>(), [rows]);
    let wanted = |ids| RowsWanted { table: &users, ids, out: None };
    // For another table, not even the format of an empty result is known.
    let short = within(Duration::from_millis(300));
    let other = ShardedTable::of(worker.name(), "user").unwrap();
    let unknown = RowsWanted { table: &other, ids: &[], out: None };
    let unpulled = worker.pull_all_rows([wanted(&all[..]), unknown], &short).wait().unwrap_err();
    assert_eq!((unpulled.error.code(), unpulled.outs.len()), (Code::DeadlineExceeded, 2));
    let pulled = until_there(|timeout| {
        let pulled = worker.pull_all_rows([wanted(&all), wanted(&one)], &within(timeout)).wait().ok()?;
        let mut missing = pulled.iter().flat_map(|pulled| &pulled.missing);
        missing.all(|missing| &*missing.owner == worker.name()).then_some(pulled)
    });
    assert_eq!(pulled[0].missing[0].places.len() as u64, rows);
    assert_eq!((pulled[1].missing.len(), firsts(&pulled[1].rows)), (0, vec![0.]));
}

pub fn a_written_row_is_seen(ps: &Task, worker: &Task) {
    for torn in [false, true] {
        let written = ps.publish_table("user", table(ps, 1000, whole), TableOptions { version: 0, torn }).unwrap();
        let users = ShardedTable::of(ps.name(), "user").unwrap();
        let rows = |firsts: &[f32]| {
            let numbers: Vec<f32> = firsts.iter().flat_map(|first| [*first; DIM as usize]).collect();
            Tensor::from_elements(&[firsts.len() as u64, DIM], &numbers).unwrap()
        };
        written.update(&[7, 8, 7], &rows(&[-1., -2., -3.])).unwrap();
        written.add(&[8, 9, 9], &rows(&[0.5, 100., 1000.])).unwrap();
        let pulled = worker.pull_rows(&users, &[6, 7, 8, 9], &RowsOptions::default()).wait().unwrap();
        let numbers = pulled.rows.elements::<f32>().unwrap();
        assert_eq!([numbers[0], numbers[16], numbers[32], numbers[48]], [6., -3., -1.5, 1109.]);
        let error = written.update(&[1, 1000], &rows(&[0., 0.])).unwrap_err();
        assert!(error.to_string().contains("row 1000 of 'user', which has 1000 rows"), "{error}");
        assert_eq!(written.update(&[1], &rows(&[0., 0.])).unwrap_err().code(), Code::InvalidArgument);
        let integers = Tensor::from_elements(&[1, DIM], &[1_i32; DIM as usize]).unwrap();
        assert_eq!(written.add(&[1], &integers).unwrap_err().code(), Code::InvalidArgument);
    }
}

pub fn small_tables_are_seen_as_they_are_written(ps: &Task, worker: &Task) {
    // Small enough to travel in a message, and small enough to be stored inside a buffer.
    for rows in [100, 3] {
        let numbers: Vec<i32> = (0..rows).collect();
        let tensor = Tensor::from_elements(&[rows as u64], &numbers).unwrap();
        let written = ps.publish_table("count", tensor, TableOptions::default()).unwrap();
        let counts = ShardedTable::of(ps.name(), "count").unwrap();
        written.add(&[2, 2, 0], &Tensor::from_elements(&[3], &[10, 20, i32::MAX]).unwrap()).unwrap();
        written.add(&[0], &Tensor::from_elements(&[1], &[1]).unwrap()).unwrap();
        let pulled = worker.pull_rows(&counts, &[1, 2, 0], &RowsOptions::default()).wait().unwrap();
        assert_eq!(pulled.rows.elements::<i32>().unwrap(), [1, 32, i32::MIN]);
        assert_eq!(pulled.rows.shape()[..], [3]);
    }
}

pub fn no_row_is_torn_while_it_is_written(ps: &Task, worker: &Task) {
    rows_stay_whole(ps, &[worker], |pulls| pulls >= 400);
}

/// Writes a few rows of tables over and over while each of `workers` pulls them, until `is_enough`. The row lengths cover every
/// copy method, and one copy that takes long.
pub fn rows_stay_whole(ps: &Task, workers: &[&Task], is_enough: impl Fn(usize) -> bool + Sync) {
    const ROWS: u64 = 40;
    // The rows that are written: few, so that writers and readers meet.
    const WRITTEN: u64 = 3;
    let tables = [2, 3, 4, 8, 16, 20, 32, 64, 4096].map(|numbers: usize| {
        let mut memory = ps.alloc(ROWS as usize * numbers * 8).unwrap();
        memory.fill(0);
        let meta = TensorMeta::new(DType::I64, &[ROWS, numbers as u64]).unwrap();
        let (key, tensor) = (format!("of {numbers}"), Tensor::new(meta, memory).unwrap());
        (numbers, ps.publish_table(&key, tensor, TableOptions::default()).unwrap())
    });
    let (tables, readers, is_enough) = (&tables, AtomicUsize::new(workers.len()), &is_enough);
    let readers = &readers;
    thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut number = 0_i64;
            while readers.load(Ordering::Acquire) > 0 {
                number += 1;
                for (numbers, table) in tables {
                    let rows = Tensor::from_elements(&[2, *numbers as u64], &vec![number; 2 * numbers]).unwrap();
                    let ids = [number as u64 % WRITTEN, number as u64 / 2 % WRITTEN];
                    let wrote = if number % 2 == 0 { table.update(&ids, &rows) } else { table.add(&ids, &rows) };
                    wrote.unwrap();
                }
            }
            number
        });
        for worker in workers {
            scope.spawn(move || {
                // The writer stops when the last reader ends, even if it fails.
                let _reading = Reading(readers);
                let ids: Vec<u64> = (0..100).map(|at| at * at % ROWS).collect();
                let (mut pulls, mut changes, mut last) = (0, 0, 0);
                let users = tables.each_ref().map(|(_, table)| ShardedTable::of(ps.name(), table.key()).unwrap());
                while !is_enough(pulls) || changes < 2 {
                    let at = pulls % tables.len();
                    // A pull of a row that is constantly written may fail, and is retried.
                    let pulled = match worker.pull_rows(&users[at], &ids, &RowsOptions::default()).wait() {
                        Err(unreceived) if unreceived.error.code() == Code::Aborted => continue,
                        pulled => pulled.unwrap(),
                    };
                    let all = pulled.rows.elements::<i64>().unwrap();
                    for (place, row) in all.chunks(tables[at].0).enumerate() {
                        let torn = row.iter().position(|&number| number != row[0]);
                        let about = || (worker.name(), ids[place], row.len(), &row[..row.len().min(64)]);
                        assert!(torn.is_none(), "a torn row, from {torn:?} on: {:?}", about());
                    }
                    changes += usize::from(at == 0 && std::mem::replace(&mut last, all[0]) != all[0]);
                    pulls += 1;
                }
            });
        }
        assert!(writer.join().unwrap() > 1);
    });
}

struct Reading<'a>(&'a AtomicUsize);

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

pub fn a_table_is_withdrawn_with_its_locks(ps: &Task, worker: &Task) {
    let rows = Tensor::from_elements(&[100, 16], &[7_u8; 1600]).unwrap();
    let table = ps.publish_table("user", rows, TableOptions::default()).unwrap();
    let strings = Tensor::from_strings(&[1, 16], &["a"; 16]).unwrap();
    assert_eq!(table.update(&[1], &strings).unwrap_err().code(), Code::InvalidArgument);
    let pulled = |timeout| {
        let keys = Keys::new(["user", "user\0locks"]).unwrap();
        worker.pull_many_within(ps.name(), keys, 0, timeout).wait().into_iter().map(|pulled| pulled.is_ok())
    };
    assert!(pulled(None).eq([false, true]), "the table itself is pulled by rows");
    table.withdraw().unwrap();
    // The other side hears of it a moment later.
    let deadline = Instant::now() + Duration::from_secs(60);
    while !pulled(Some(Duration::from_millis(50))).eq([false, false]) {
        assert!(Instant::now() < deadline, "it is still there");
    }
}

pub fn a_table_is_pulled_whole_only_where_half_a_row_is_welcome(ps: &Task, worker: &Task) {
    let pull = || worker.pull_many(ps.name(), Keys::new(["user"]).unwrap(), 0).wait().remove(0);
    thread::scope(|scope| {
        // A pull that already waits for the table fails too, and does not wait longer.
        let early = scope.spawn(pull);
        let table = ps.publish_table("user", table(ps, 100, whole), TableOptions::default()).unwrap();
        for refused in [early.join().unwrap(), pull()] {
            let error = refused.unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.to_string().contains("pull its rows by number"), "{error}");
        }
        table.set_version(1).unwrap();
        assert_eq!(pull().unwrap_err().code(), Code::InvalidArgument);
    });
    let torn = ps.publish_table("user", table(ps, 100, whole), TableOptions { version: 2, torn: true }).unwrap();
    assert_eq!(pull().unwrap().version, 2);
    drop(torn);
    // A plain tensor in place of a table is no table.
    let locked = ps.publish_table("user", table(ps, 100, whole), TableOptions { version: 3, torn: false }).unwrap();
    locked.withdraw().unwrap();
    ps.publish("user", 4, table(ps, 100, whole)).wait().unwrap();
    assert_eq!(pull().unwrap().version, 4);
}

pub fn pushed_rows_reach_their_owners(ps: &Task, worker: &Task) {
    let parts = ShardedTable::new("user", [ps.name(), worker.name()], Sharding::modulo(100, 2).unwrap()).unwrap();
    let [even, odd] = [ps, worker].map(|task| task.acceptor("gradients", AcceptOptions::default()));
    let rows = Tensor::from_elements(&[4, 1], &[1., 2., 4., 8_f32]).unwrap();
    let ids = [6, 3, 6, 0];
    let to_push = TableRows { table: &parts, ids: &ids, rows: &rows };
    let pushing = worker.push_rows("gradients", to_push, SumRows::Yes, &SendOptions::default()).unwrap();
    let mut updates = Vec::new();
    for acceptor in [&even, &odd] {
        let accepted = acceptor.accept().wait().unwrap();
        assert_eq!(&*accepted.from, worker.name());
        let [update] = RowUpdate::all_of(accepted).unwrap().try_into().unwrap();
        updates.push((update.ids, update.rows.elements::<f32>().unwrap().to_vec()));
    }
    pushing.wait().unwrap();
    assert_eq!(updates, [(vec![0, 3], vec![8., 5.]), (vec![1], vec![2.])]);
    // Many tables in order: one tensor for each owner.
    let items = ShardedTable::of(ps.name(), "item").unwrap();
    let more = [to_push, TableRows { table: &items, ids: &[5, 5, 1, 0], rows: &rows }, to_push];
    let pushing = worker.push_all_rows("gradients", &more, SumRows::Yes, &SendOptions::default()).unwrap();
    let updates = |acceptor: &Acceptor| RowUpdate::all_of(acceptor.accept().wait().unwrap()).unwrap();
    let came = updates(&even).into_iter().map(|update| (update.table.into_string(), update.ids)).collect::<Vec<_>>();
    let expected = [("user", vec![0, 3]), ("item", vec![0, 1, 5]), ("user", vec![0, 3])];
    assert_eq!(came, expected.map(|(table, ids)| (table.to_owned(), ids)));
    assert_eq!(updates(&odd).into_iter().map(|update| update.ids).collect::<Vec<_>>(), [[1], [1]]);
    pushing.wait().unwrap();
    assert!(even.try_accept(1, &mut Vec::new()).unwrap() == 0, "there is a second tensor");
    // More than a MiB takes further tensors.
    let long = Tensor::from_elements(&[1, 700_000], &[3_u8; 700_000]).unwrap();
    let long = [TableRows { table: &items, ids: &[5], rows: &long }; 3];
    let pushing = worker.push_all_rows("gradients", &long, SumRows::No, &SendOptions::default()).unwrap();
    for _ in 0..3 {
        let [update] = updates(&even).try_into().unwrap();
        assert!(update.ids == [5] && update.rows.bytes() == [3; 700_000]);
    }
    pushing.wait().unwrap();
    let wrong = [to_push, TableRows { table: &parts, ids: &[6, 3, 6, 100], rows: &rows }];
    let refused = worker.push_all_rows("gradients", &wrong, SumRows::Yes, &SendOptions::default()).err().unwrap();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(even.try_accept(1, &mut Vec::new()).unwrap() == 0, "a part of a call that failed was pushed");
    // A tensor that is no update is refused, and nothing else is affected.
    let stray = worker.push(ps.name(), "gradients", Tensor::from_elements(&[1], &[1_u8]).unwrap());
    assert_eq!(RowUpdate::all_of(even.accept().wait().unwrap()).unwrap_err().code(), Code::InvalidArgument);
    stray.wait().unwrap();
}
