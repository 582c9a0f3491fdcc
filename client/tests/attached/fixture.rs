//! What the tests share: an attached task, tensors that cannot be mistaken for each other, an executor for one future.
//!
//! In most tests the task talks to itself: its requests and their answers cross the rings all the same.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
    time::Instant,
};

use sealane::{Attach, DType, Task, Tensor, TensorMeta};
use tempfile::TempDir;

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
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let task = to(&daemon).attach().unwrap();
    (directory, daemon, task)
}

pub fn bytes(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(31) ^ seed ^ (at >> 8)) as u8).collect()
}

pub fn meta(len: usize) -> TensorMeta {
    TensorMeta::new(DType::U8, &[len as u64]).unwrap()
}

/// A tensor of `len` bytes that differs for each seed.
pub fn tensor(len: usize, seed: u64) -> Tensor {
    Tensor::new(meta(len), bytes(len, seed)).unwrap()
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

/// Polls a future to its end on this thread.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}
