//! Tables that move to another daemon: no write is lost, and no row is seen half written.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use sealane::{Code, DType, RowsOptions, ShardedTable, Slicing, Table, TableOptions, Task, Tensor, TensorMeta};

use crate::{
    daemon::{Daemon, Settings},
    fixture::{directory, peers, tensor, to_as},
};

/// A table of words, all of them 0.
fn words(task: &Task, rows: u64, in_row: u64) -> Table {
    let mut memory = task.alloc((rows * in_row * 8) as usize).unwrap();
    memory.fill(0);
    let tensor = Tensor::new(TensorMeta::new(DType::I64, &[rows, in_row]).unwrap(), memory).unwrap();
    task.publish_table("words", tensor, TableOptions::default()).unwrap()
}

/// A row whose words all have the same value.
fn row(in_row: u64, value: i64) -> Tensor {
    Tensor::from_elements(&[1, in_row], &vec![value; in_row as usize]).unwrap()
}

/// The words of one row, once the table is there.
fn pulled(worker: &Task, owner: &str, id: u64) -> Vec<i64> {
    let table = ShardedTable::of(owner, "words").unwrap();
    let pulled = worker.pull_rows(&table, &[id], &RowsOptions::default()).wait().unwrap();
    pulled.rows.bytes().as_chunks().0.iter().map(|word| i64::from_ne_bytes(*word)).collect()
}

fn attach(daemon: &Daemon, peer: usize, arena_bytes: u64) -> Task {
    to_as(daemon, &peers()[peer]).arena_bytes(arena_bytes).attach().unwrap()
}

#[test]
fn nothing_that_is_written_while_tensors_are_published_again_is_lost() {
    const TENSORS: usize = 20_000;
    let directory = directory();
    let mut daemon = Daemon::start(&directory, Settings::default());
    let ps = attach(&daemon, 0, 1 << 20);
    let table = words(&ps, 16, 16);
    ps.publish_many(1, (0..TENSORS).map(|number| (format!("t{number}"), tensor(100, 1)))).wait().unwrap();
    for restart in 0..20 {
        daemon.kill();
        daemon = Daemon::start(&directory, Settings::default());
        // Some tensors have been published again, and most are still on their way.
        daemon.until("it begins", |daemon| daemon.sum(|counters| counters.tensors_sent) > 0);
        table.update(&[3], &row(16, restart)).unwrap();
        daemon.until("it is published again", |daemon| {
            daemon.sum(|counters| counters.tensors_published_again) >= TENSORS as u64
        });
        let worker = attach(&daemon, 1, 1 << 20);
        assert_eq!(pulled(&worker, ps.name(), 3), [restart; 16], "restart {restart}");
        // And what is written after that.
        table.add(&[3], &row(16, 100)).unwrap();
        assert_eq!(pulled(&worker, ps.name(), 3), [restart + 100; 16], "restart {restart}");
        drop(worker);
        daemon.until_detached(&peers()[1]);
    }
}

#[test]
fn a_table_of_most_of_its_arena_is_written_after_restarts() {
    let directory = directory();
    let mut daemon = Daemon::start(&directory, Settings::default());
    let ps = attach(&daemon, 0, 4 << 20);
    let table = words(&ps, 40, 8192);
    for round in 1..=3 {
        daemon.kill();
        table.add(&[5], &row(8192, 1)).unwrap();
        // No daemon can be told of a version; the table comes back with it all the same.
        assert_eq!(table.set_version(2 * round).unwrap_err().code(), Code::Unavailable);
        daemon = Daemon::start(&directory, Settings::default());
        table.add(&[5], &row(8192, 1)).unwrap();
        let worker = attach(&daemon, 1, 1 << 20);
        assert_eq!((pulled(&worker, ps.name(), 5), table.version()), (vec![4 * round - 2; 8192], 2 * round));
        table.add(&[5], &row(8192, 1)).unwrap();
        table.set_version(2 * round + 1).unwrap();
        table.add(&[5], &row(8192, 1)).unwrap();
        assert_eq!(pulled(&worker, ps.name(), 5), [4 * round; 8192]);
        drop(worker);
        daemon.until_detached(&peers()[1]);
    }
}

#[test]
fn a_table_without_room_in_the_next_arena_is_written_and_there_once_there_is() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let ps = attach(&daemon, 0, 4 << 20);
    let table = words(&ps, 40, 8192);
    daemon.kill();
    let held = daemon_without_room(&directory, &ps);
    let (daemon, memory) = held;
    table.add(&[5], &row(8192, 7)).unwrap();
    assert_eq!(table.set_version(1).unwrap_err().code(), Code::ResourceExhausted);
    drop(memory);
    table.add(&[5], &row(8192, 1)).unwrap();
    let worker = attach(&daemon, 1, 1 << 20);
    assert_eq!(pulled(&worker, ps.name(), 5), [8; 8192]);
    table.set_version(2).unwrap();
}

/// A daemon whose arena the program has mostly filled before the table is there.
fn daemon_without_room(directory: &tempfile::TempDir, ps: &Task) -> (Daemon, sealane::Buffer) {
    // What filled the arena was published, so its room is usually taken again first; then another daemon is tried.
    let deadline = std::time::Instant::now() + crate::daemon::LONG;
    loop {
        let daemon = Daemon::start(directory, Settings::default());
        loop {
            assert!(std::time::Instant::now() < deadline);
            match ps.alloc(3 << 20) {
                Ok(memory) => return (daemon, memory),
                Err(error) if error.code() == Code::ResourceExhausted => break,
                Err(_) => thread::yield_now(),
            }
        }
        daemon.kill();
    }
}

#[test]
fn no_row_is_torn_after_a_restart() {
    const IN_ROW: u64 = 1 << 17;
    let directory = directory();
    let mut daemon = Daemon::start(&directory, Settings::default());
    let ps = attach(&daemon, 0, 8 << 20);
    let table = words(&ps, 2, IN_ROW);
    let done = &AtomicBool::new(false);
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let daemon = thread::scope(|scope| {
        let _done = Done(done);
        scope.spawn(|| {
            let rows = [1, 2, 3, 4].map(|value| row(IN_ROW, value));
            while !done.load(Ordering::Relaxed) {
                rows.iter().for_each(|row| table.update(&[1], row).unwrap());
            }
        });
        for round in 0..20 {
            daemon.kill();
            daemon = Daemon::start(&directory, Settings::default());
            let worker = attach(&daemon, 1, 1 << 20);
            let users = ShardedTable::of(ps.name(), "words").unwrap();
            let options = || RowsOptions { timeout: Some(Duration::from_secs(20)), ..RowsOptions::default() };
            for look in 0..4 {
                match worker.pull_rows(&users, &[1], &options()).wait() {
                    Ok(pulled) => {
                        let words = pulled.rows.bytes().as_chunks::<8>().0;
                        assert!(words.iter().all(|word| *word == words[0]), "restart {round}, look {look}: a torn row");
                    }
                    // The pull of a row that is constantly being written.
                    Err(failed) => {
                        assert_eq!(failed.error.code(), Code::Aborted, "restart {round}, look {look}: {}", failed.error)
                    }
                }
            }
            drop(worker);
            daemon.until_detached(&peers()[1]);
        }
        daemon
    });
    // No lock is left in the state of a write in progress.
    let worker = attach(&daemon, 1, 1 << 20);
    table.update(&[0], &row(IN_ROW, 9)).unwrap();
    assert_eq!(pulled(&worker, ps.name(), 0)[..2], [9, 9]);
}

#[test]
fn a_table_that_is_withdrawn_stays_away_whatever_is_written() {
    let directory = directory();
    for in_row in [1, 1000] {
        let daemon = Daemon::start(&directory, Settings::default());
        let ps = attach(&daemon, 0, 4 << 20);
        let table = words(&ps, 8, in_row);
        table.withdraw().unwrap();
        table.update(&[1], &row(in_row, 1)).unwrap();
        daemon.kill();
        let daemon = Daemon::start(&directory, Settings::default());
        table.update(&[2], &row(in_row, 2)).unwrap();
        ps.publish("another", 1, tensor(10, 1)).wait().unwrap();
        let worker = attach(&daemon, 1, 1 << 20);
        let options = RowsOptions { timeout: Some(Duration::from_millis(50)), ..RowsOptions::default() };
        let users = ShardedTable::of(ps.name(), "words").unwrap();
        let error = worker.pull_rows(&users, &[1], &options).wait().unwrap_err();
        assert_eq!(error.error.code(), Code::DeadlineExceeded, "{in_row} words in a row: {}", error.error);
        // Setting a version publishes the table again, with everything written.
        table.set_version(3).unwrap();
        assert_eq!((pulled(&worker, ps.name(), 1)[0], pulled(&worker, ps.name(), 2)[0]), (1, 2));
        drop((table, ps, worker));
        daemon.kill();
    }
}

#[test]
fn what_is_withdrawn_while_there_is_no_daemon_leaves_nothing_to_the_next() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let ps = attach(&daemon, 0, 4 << 20);
    let table = words(&ps, 8, 1000);
    let whole = tensor(4000, 1);
    let slicing = Slicing::even(whole.meta().clone(), [ps.name(); 4]).unwrap();
    ps.publish_slices("sliced", 1, &slicing, whole).unwrap().wait().unwrap();
    daemon.kill();
    while ps.withdraw("what is not there").is_ok() {
        thread::yield_now();
    }
    assert_eq!(table.withdraw().unwrap_err().code(), Code::Unavailable);
    assert_eq!(ps.withdraw_slices("sliced", &slicing).unwrap_err().code(), Code::Unavailable);
    let daemon = Daemon::start(&directory, Settings::default());
    // The table's key is free again, and published without the table's locks.
    while ps.publish("words", 1, tensor(1000, 1)).wait().is_err() {
        thread::yield_now();
    }
    let worker = attach(&daemon, 1, 1 << 20);
    assert_eq!(worker.pull(ps.name(), "words", 1).wait().unwrap().tensor.bytes(), tensor(1000, 1).bytes());
    assert_eq!(daemon.sum(|counters| counters.tensors_published_again), 0);
}
