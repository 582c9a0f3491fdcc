//! Tasks served by a tokio runtime, beside threads that block and other executors.

use std::{sync::mpsc, thread};

use sealane::{StreamOptions, Streams, Task};
use tokio::runtime::{Builder, Runtime};

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, attached, block_on, bytes, directory, peers, tensor, to, to_as},
};

const EXCHANGES: i64 = 200;
const PATIENT: StreamOptions = StreamOptions { window_bytes: 1 << 20, timeout: Some(LONG), polling: None };

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Sends itself tensors and awaits each.
async fn exchange(task: &Task, key: &str, len: usize) {
    for step in 0..EXCHANGES {
        let receiving = task.recv(TASK, step, key);
        task.send(TASK, step, key, tensor(len, step as u64)).await.unwrap();
        assert_eq!(receiving.await.unwrap().bytes(), bytes(len, step as u64));
    }
}

/// Waits until the awaiting runtime is the one that processes the task's completions.
async fn until_heard(task: &Task) {
    #[cfg(feature = "fuzzing")]
    tokio::time::timeout(LONG, async {
        while !task.is_heard_in_runtime() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("no runtime hears it");
    #[cfg(not(feature = "fuzzing"))]
    let _ = task;
}

#[test]
fn a_runtime_threads_that_block_and_other_executors_have_all_that_comes() {
    let (_directory, _daemon, task) = attached();
    thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = runtime();
            task.drive_on(runtime.handle());
            runtime.block_on(exchange(&task, "of the runtime", 64));
        });
        scope.spawn(|| block_on(exchange(&task, "of an executor", 3000)));
        for key in ["of one thread", "of another"] {
            let task = &task;
            scope.spawn(move || {
                for step in 0..EXCHANGES {
                    let receiving = task.recv(TASK, step, key);
                    task.send(TASK, step, key, tensor(100, step as u64)).wait().unwrap();
                    assert_eq!(receiving.wait().unwrap().bytes(), bytes(100, step as u64));
                }
            });
        }
    });
}

#[test]
fn what_a_runtime_leaves_or_does_not_get_to_is_looked_at_by_others() {
    let (_directory, daemon, task) = attached();
    let first = runtime();
    task.drive_on(first.handle());
    first.block_on(async {
        exchange(&task, "first", 64).await;
        until_heard(&task).await;
    });
    // The runtime is not run any more, then it blocks. Another task ends the calls meanwhile, so none of this task's calls notices.
    let peer = to_as(&daemon, &peers()[0]).attach().unwrap();
    let waits_for = |key: &str| {
        let waiting = task.recv(peer.name(), 1, key);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| block_on(waiting).unwrap());
            peer.send(TASK, 1, key, tensor(64, 1)).wait().unwrap();
            assert_eq!(waiting.join().unwrap().bytes(), bytes(64, 1));
        });
    };
    waits_for("it is not run");
    thread::scope(|scope| {
        let (blocked, is_blocked) = mpsc::channel();
        let (letting_go, let_go) = mpsc::channel();
        let first = &first;
        scope.spawn(move || {
            first.block_on(async {
                blocked.send(()).unwrap();
                let_go.recv().unwrap();
            })
        });
        is_blocked.recv().unwrap();
        waits_for("it is blocked");
        letting_go.send(()).unwrap();
    });
    drop(first);
    // The runtime is gone, and another takes its place.
    block_on(exchange(&task, "none", 64));
    let second = runtime();
    task.drive_on(second.handle());
    second.block_on(async {
        exchange(&task, "second", 64).await;
        until_heard(&task).await;
    });
}

#[test]
fn a_runtime_hears_the_next_daemon_and_the_end_of_its_task() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let (task, runtime) = (to(&daemon).attach().unwrap(), runtime());
    task.drive_on(runtime.handle());
    runtime.block_on(exchange(&task, "before", 64));
    let waiting = task.recv(TASK, EXCHANGES, "never");
    daemon.kill();
    runtime.block_on(waiting).unwrap_err();
    let daemon = Daemon::start(&directory, Settings::default());
    runtime.block_on(async {
        // One call notices that the daemon is gone, and the next attaches to the new one.
        while task.publish("found", 1, tensor(1, 1)).await.is_err() {}
        exchange(&task, "after", 64).await;
        until_heard(&task).await;
    });
    drop(task);
    daemon.until_detached(TASK);
    drop(runtime);
}

#[test]
fn streams_of_a_runtime_go_past_the_daemon() {
    let (directory, peer) = (directory(), peers().swap_remove(0));
    let daemon = Daemon::start(&directory, Settings::default());
    let tasks = [to(&daemon).attach().unwrap(), to_as(&daemon, &peer).attach().unwrap()];
    let listener = Streams::of(&tasks[1]).listen("echo", PATIENT).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            use std::io::{Read, Write};

            let mut stream = listener.accept().wait().unwrap();
            let mut came = vec![0; 100_000];
            while let Ok(count @ 1..) = stream.read(&mut came) {
                stream.write_all(&came[..count]).unwrap();
            }
        });
        let runtime = runtime();
        tasks[0].drive_on(runtime.handle());
        runtime.block_on(async {
            use tokio::io::{AsyncReadExt, AsyncWriteExt};

            let mut stream = Streams::of(&tasks[0]).connect(&peer, "echo", PATIENT).await.unwrap();
            for round in 0..EXCHANGES as usize {
                let sent = bytes(1 + 997 * round, round as u64);
                stream.write_all(&sent).await.unwrap();
                let mut came = vec![0; sent.len()];
                stream.read_exact(&mut came).await.unwrap();
                assert!(came == sent, "round {round}");
            }
            assert!(stream.is_direct(), "it goes by the daemon");
            stream.shutdown().await.unwrap();
        });
    });
}
