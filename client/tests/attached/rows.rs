//! Tables between two clients of one daemon.

#[path = "../rows/scenarios.rs"]
mod scenarios;

use std::time::{Duration, Instant};

use sealane::{Code, DType, RowsOptions, ShardedTable, Sharding, Table, TableOptions, Task, Tensor, TensorMeta};

use sealane_fusion::Portion;
use sealane_transport::limits::LOCKS_SUFFIX;
use tempfile::TempDir;

use crate::{
    daemon::{Daemon, PORTION, Settings},
    fixture::{directory, peers, to, to_as, two_clients, until_there_is_room},
};

/// A daemon whose clients read each other's tables directly, or else have the daemon gather the rows.
fn start(directory: &TempDir, views: bool) -> Daemon {
    Daemon::start_as(directory, Settings::default(), Portion { views, ..PORTION }, |_| {})
}

macro_rules! between_clients {
    ($($scenario:ident),* $(,)?) => {
        $(#[test]
        fn $scenario() {
            for views in [true, false] {
                let directory = directory();
                let daemon = start(&directory, views);
                let (ps, worker) = (to_as(&daemon, &peers()[0]).attach().unwrap(), to(&daemon).attach().unwrap());
                scenarios::$scenario(&ps, &worker);
            }
        })*
    };
}

scenarios::all!(between_clients);

#[test]
#[ignore = "takes a minute: `.ci/run nightly` runs it"]
fn rows_stay_whole_for_a_minute() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let [ps, other] = [0, 1].map(|peer| to_as(&daemon, &peers()[peer]).attach().unwrap());
    let worker = to(&daemon).attach().unwrap();
    let start = Instant::now();
    // The owner itself pulls too.
    scenarios::rows_stay_whole(&ps, &[&worker, &other, &ps], |_| start.elapsed() > Duration::from_secs(60));
}

#[test]
fn a_task_detaches_although_its_table_is_there() {
    let (_directory, daemon, ps, worker) = two_clients();
    let rows = ps.alloc(64_000).unwrap();
    let tensor = Tensor::new(TensorMeta::new(DType::U8, &[1000, 64]).unwrap(), rows).unwrap();
    let table = ps.publish_table("user", tensor, TableOptions::default()).unwrap();
    let users = ShardedTable::of(ps.name(), "user").unwrap();
    worker.pull_rows(&users, &[7], &RowsOptions::default()).wait().unwrap();
    drop(ps);
    // Its place is free again, and nothing that it published is left.
    daemon.until_detached(&peers()[0]);
    let options = RowsOptions { timeout: Some(Duration::from_millis(100)), ..RowsOptions::default() };
    assert!(worker.pull_rows(&users, &[7], &options).wait().is_err());
    drop(table);
}

/// Bytes of each row below.
const PAGE: u64 = 4096;

/// A table whose rows are filled with the lowest bits of their row numbers.
fn pages(task: &Task, rows: u64) -> Tensor {
    let mut memory = task.alloc((rows * PAGE) as usize).unwrap();
    memory.chunks_mut(PAGE as usize).enumerate().for_each(|(row, page)| page.fill(row as u8));
    Tensor::new(TensorMeta::new(DType::U8, &[rows, PAGE]).unwrap(), memory).unwrap()
}

fn are_pages(rows: &[u8], first: usize) -> bool {
    rows.chunks(PAGE as usize).zip(first..).all(|(page, row)| page.iter().all(|&byte| byte == row as u8))
}

#[test]
fn more_rows_come_than_the_arena_holds() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let ps = to_as(&daemon, &peers()[0]).arena_bytes(48 << 20).attach().unwrap();
    let worker = to(&daemon).arena_bytes(16 << 20).attach().unwrap();
    ps.publish_table("page", pages(&ps, 8192), TableOptions::default()).unwrap();
    let table = ShardedTable::of(ps.name(), "page").unwrap();
    let ids: Vec<u64> = (0..8192).collect();
    // Once with an unknown row size, and once with the size known from the first pull.
    for _ in 0..2 {
        let pulled = worker.pull_rows(&table, &ids, &RowsOptions::default()).wait().unwrap();
        assert!(are_pages(pulled.rows.bytes(), 0));
    }
}

#[test]
fn an_owner_that_does_not_answer_keeps_no_row_of_another_back() {
    // If a table lacks rows, its rows are requested from the daemon even where the table could be read directly.
    for (views, lacks) in [(true, 0), (false, 0), (true, 1)] {
        let directory = directory();
        let daemon = start(&directory, views);
        let ps = to_as(&daemon, &peers()[0]).arena_bytes(16 << 20).attach().unwrap();
        let worker = to(&daemon).arena_bytes(16 << 20).attach().unwrap();
        // More than may be in flight to one owner; the first owner never publishes its part.
        let rows = 1536;
        ps.publish_table("page", pages(&ps, rows - lacks), TableOptions::default()).unwrap();
        let sharding = Sharding::range(2 * rows, 2).unwrap();
        let table = ShardedTable::new("page", [worker.name(), ps.name()], sharding).unwrap();
        let ids: Vec<u64> = (0..2 * rows).collect();
        let options = RowsOptions { partial: true, timeout: Some(Duration::from_secs(1)), ..RowsOptions::default() };
        let mut pulled = worker.pull_rows(&table, &ids, &options).wait().unwrap();
        pulled.missing.sort_by_key(|missing| missing.owner != worker.name().into());
        let mut places = pulled.missing[0].places.clone();
        assert_eq!(pulled.missing[0].error.code(), Code::DeadlineExceeded);
        places.sort_unstable();
        assert!(places.into_iter().eq(0..rows as u32));
        let others: Vec<u32> = pulled.missing[1..].iter().flat_map(|missing| missing.places.clone()).collect();
        assert_eq!(others, (2 * rows - lacks..2 * rows).map(|place| place as u32).collect::<Vec<_>>());
        let there = (rows * PAGE) as usize..((2 * rows - lacks) * PAGE) as usize;
        assert!(are_pages(&pulled.rows.bytes()[there], 0));
    }
}

/// A daemon, a ps that has published a table of 1000 pages filled with their row numbers, and a worker.
fn with_pages(views: bool) -> (TempDir, Daemon, Task, Task, Table, ShardedTable) {
    let directory = directory();
    let daemon = start(&directory, views);
    let ps = to_as(&daemon, &peers()[0]).arena_bytes(12 << 20).attach().unwrap();
    let worker = to(&daemon).attach().unwrap();
    let published = ps.publish_table("page", pages(&ps, 1000), TableOptions::default()).unwrap();
    let table = ShardedTable::of(ps.name(), "page").unwrap();
    (directory, daemon, ps, worker, published, table)
}

fn page(of: u8) -> Tensor {
    Tensor::from_elements(&[1, PAGE], &[of; PAGE as usize]).unwrap()
}

/// The table's rows gathered by the daemon or read by clients, their bytes, and the daemon's time for gathering.
fn counted(daemon: &Daemon) -> (u64, u64, u64) {
    let tables = daemon.engine.figures().into_iter().flat_map(|shard| shard.tables);
    tables.fold((0, 0, 0), |(rows, bytes, ns), table| {
        (rows + table.counters.rows, bytes + table.counters.bytes, ns + table.counters.gather_ns)
    })
}

#[test]
fn the_requests_of_a_large_pull_are_shared_out_among_the_shards() {
    let (_directory, daemon, _ps, worker, _published, table) = with_pages(false);
    assert_eq!(daemon.engine.shards(), 2);
    let rows_of_shards = || -> Vec<u64> {
        let shards = daemon.engine.figures().into_iter();
        shards.map(|shard| shard.tables.iter().map(|table| table.counters.rows).sum()).collect()
    };
    worker.pull_rows(&table, &[7], &RowsOptions::default()).wait().unwrap();
    daemon.until("a small pull is of the shard that serves the pair", |_| rows_of_shards().iter().sum::<u64>() == 1);
    assert!(rows_of_shards().contains(&0));
    let ids: Vec<u64> = (0..1000).collect();
    let pulled = worker.pull_rows(&table, &ids, &RowsOptions::default()).wait().unwrap();
    assert!(are_pages(pulled.rows.bytes(), 0));
    daemon.until("all was gathered", |_| rows_of_shards().iter().sum::<u64>() == 1001);
    let rows = rows_of_shards();
    assert!(rows.iter().all(|&rows| rows > 400), "{rows:?} of 1001");
}

#[test]
fn a_client_reads_rows_where_they_lie_and_the_daemon_counts_them() {
    let (_directory, daemon, _ps, worker, _published, table) = with_pages(true);
    let ids: Vec<u64> = (0..1000).rev().collect();
    // More than one poll can read.
    let mut pulling = worker.pull_rows(&table, &ids, &RowsOptions::default());
    let mut polls = 0;
    let pulled = loop {
        polls += 1;
        match pulling.try_outcome() {
            Some(outcome) => break outcome.unwrap(),
            None => std::thread::yield_now(),
        }
    };
    assert!(pulled.rows.bytes().chunks(PAGE as usize).zip(&ids).all(|(page, &id)| page[0] == id as u8));
    assert!(polls > 3, "{polls} polls for 4 MiB");
    assert_eq!(counted(&daemon), (1000, 1000 * PAGE, 0), "the daemon has gathered nothing");
    // The client keeps no view of the table.
    daemon.until("the table is nobody's to read", |daemon| daemon.sum(|counters| counters.views) == 0);
}

#[test]
fn a_table_stays_while_a_client_reads_it() {
    let (_directory, daemon, ps, worker, published, table) = with_pages(true);
    // The arena has room for both tables, but not for a third.
    let other = ps.publish_table("other", pages(&ps, 1000), TableOptions::default()).unwrap();
    let pulling = worker.pull_rows(&table, &[3, 4], &RowsOptions::default());
    daemon.until("the worker knows where it is", |daemon| daemon.sum(|counters| counters.views) == 2);
    for withdrawn in [published, other] {
        withdrawn.withdraw().unwrap();
    }
    let bytes = 1000 * PAGE as usize;
    until_there_is_room(&ps, bytes);
    let others = ps.alloc(bytes).unwrap();
    assert!(ps.alloc(bytes).is_err(), "the memory of the first is free while it is read");
    assert!(are_pages(pulling.wait().unwrap().rows.bytes(), 3));
    until_there_is_room(&ps, bytes);
    drop(others);
    let late = RowsOptions { timeout: Some(Duration::from_millis(50)), ..RowsOptions::default() };
    let error = worker.pull_rows(&table, &[3], &late).wait().unwrap_err().error;
    assert_eq!(error.code(), Code::DeadlineExceeded);
}

#[test]
fn a_pull_that_is_dropped_keeps_no_table() {
    let (_directory, daemon, _ps, worker, _published, table) = with_pages(true);
    let pulling = worker.pull_rows(&table, &[3, 4], &RowsOptions::default());
    daemon.until("the worker knows where it is", |daemon| daemon.sum(|counters| counters.views) == 2);
    drop(pulling);
    daemon.until("the table is nobody's to read", |daemon| daemon.sum(|counters| counters.views) == 0);
}

#[test]
fn what_was_read_where_a_daemon_had_it_that_is_gone_is_asked_for_again() {
    let (directory, daemon, _ps, worker, published, table) = with_pages(true);
    let ids: Vec<u64> = (0..1000).collect();
    let mut pulling = worker.pull_rows(&table, &ids, &RowsOptions::default());
    daemon.until("the worker knows where it is", |daemon| daemon.sum(|counters| counters.views) == 2);
    assert!(pulling.try_outcome().is_none(), "it reads the first MiB");
    daemon.kill();
    // The table moves to the next daemon, and its former memory can no longer be relied on.
    let daemon = start(&directory, true);
    let other = to_as(&daemon, &peers()[1]).attach().unwrap();
    other.pull_rows(&table, &[1], &RowsOptions::default()).wait().unwrap();
    published.update(&[3], &page(77)).unwrap();
    let rows = std::iter::repeat_with(|| pulling.try_outcome()).find_map(|outcome| outcome).unwrap().unwrap().rows;
    let firsts: Vec<u8> = rows.bytes().chunks(PAGE as usize).map(|page| page[0]).collect();
    assert_eq!(firsts[2..5], [2, 77, 4]);
}

#[test]
fn a_row_that_is_always_being_written_is_left_to_the_daemon() {
    for width in [1, PAGE] {
        leave_a_row_to_the_daemon(width);
    }
}

fn leave_a_row_to_the_daemon(width: u64) {
    let directory = directory();
    let daemon = start(&directory, true);
    let ps = to_as(&daemon, &peers()[0]).arena_bytes(16 << 20).attach().unwrap();
    let worker = to(&daemon).attach().unwrap();
    // Published by hand, with the lock of row 5 as a writer leaves it that is stopped while it writes.
    let mut locks = ps.alloc(4096 * 4).unwrap();
    locks.fill(0);
    locks[5 * 4] = 1;
    let locks = Tensor::new(TensorMeta::new(DType::U32, &[4096]).unwrap(), locks).unwrap();
    let mut rows = ps.alloc(1000 * width as usize).unwrap();
    rows.chunks_mut(width as usize).zip(0..).for_each(|(row, number)| row.fill(number as u8));
    let rows = Tensor::new(TensorMeta::new(DType::U8, &[1000, width]).unwrap(), rows).unwrap();
    ps.publish_many(1, [(format!("page{LOCKS_SUFFIX}"), locks), ("page".to_owned(), rows)]).wait().unwrap();
    let table = ShardedTable::of(ps.name(), "page").unwrap();
    let pulled = worker.pull_rows(&table, &[4, 6], &RowsOptions::default()).wait().unwrap();
    assert_eq!((pulled.rows.bytes()[0], counted(&daemon)), (4, (2, 2 * width, 0)));
    let error = worker.pull_rows(&table, &[4, 5, 6], &RowsOptions::default()).wait().unwrap_err().error;
    assert!(error.to_string().contains("row 5 of 'page' was written at each"), "{error}");
}
