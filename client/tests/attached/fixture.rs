//! What the tests share: attached tasks, and what the tests of embedded engines have too.
//!
//! In most tests the task talks to itself: its requests and their answers cross the rings all the same.

#[path = "../calls/fixture.rs"]
mod shared;

use std::time::Instant;

use sealane::{Attach, Code, Task, Tensor};
use tempfile::TempDir;

pub use self::shared::{block_on, bytes, meta, tensor};
use crate::daemon::{Daemon, LONG, Settings};

/// The task of most tests.
pub const TASK: &str = "worker0.train:2222";

/// The other tasks that a daemon serves.
pub fn peers() -> Vec<String> {
    (0..6).map(|number| format!("ps{number}.train:2222")).collect()
}

impl Default for Settings {
    fn default() -> Self {
        Self { shards: 2, tasks: [vec![TASK.to_owned()], peers()].concat() }
    }
}

pub fn directory() -> TempDir {
    TempDir::new().unwrap()
}

/// How to attach to the daemon: with a small arena, since many tests share the machine.
pub fn to(daemon: &Daemon) -> Attach {
    to_as(daemon, TASK)
}

/// Like [`to`], as another task.
pub fn to_as(daemon: &Daemon, task: &str) -> Attach {
    Attach::new(task).socket(&daemon.socket).arena_bytes(4 << 20).timeout(LONG)
}

/// A daemon and a task that is attached to it.
pub fn attached() -> (TempDir, Daemon, Task) {
    attached_with(|attach| attach)
}

/// Like [`attached`], with changed options.
pub fn attached_with(change: impl FnOnce(Attach) -> Attach) -> (TempDir, Daemon, Task) {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let task = change(to(&daemon)).attach().unwrap();
    (directory, daemon, task)
}

/// Like [`attached`], with a second task of the same daemon before the usual one.
pub fn two_clients() -> (TempDir, Daemon, Task, Task) {
    let (directory, daemon, worker) = attached();
    let ps = to_as(&daemon, &peers()[0]).attach().unwrap();
    (directory, daemon, ps, worker)
}

/// Tensors from one task to another that fill the memory that the other receives into.
pub fn fill_area(one: &Task, other: &Task) -> Vec<Tensor> {
    let mut others = Vec::new();
    for (part, len) in [256 << 10, 16 << 10, 1 << 10].into_iter().enumerate() {
        for number in 0.. {
            let key = format!("{part}/{number}");
            drop(one.send(other.name(), 1, &key, tensor(len, 1)));
            match other.recv(one.name(), 1, &key).wait() {
                Ok(tensor) => others.push(tensor),
                Err(full) => {
                    assert_eq!(full.error.code(), Code::ResourceExhausted, "{}", full.error);
                    break;
                }
            }
        }
    }
    others
}

/// Allocates until that works.
///
/// # Panics
/// If it takes longer than [`LONG`].
pub fn until_there_is_room(task: &Task, len: usize) {
    let deadline = Instant::now() + LONG;
    while let Err(error) = task.alloc(len) {
        assert!(Instant::now() < deadline, "{error}");
        std::thread::yield_now();
    }
}
