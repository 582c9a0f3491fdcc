//! The io_uring executor: glommio, used only in this directory. Per shard, three small rings and one extra, sleeping thread.
//!
//! glommio's preemption tick is off. With a 1 ms tick, glommio 0.9 could find the tick due before its first look at the task
//! queue, take the queue for empty, and sleep with a runnable task in it: parked shards hung in one test run of four on a busy
//! machine. Nothing here needs the tick, because turns look at timers and descriptors themselves.
//!
//! The hot path does not use glommio's sockets: a task that spins on a non-blocking socket and yields takes 6.7 to 7.1 µs per
//! 64 B round trip, glommio's `TcpStream` 45 µs.

mod probe;
mod wait;

use std::{
    cell::OnceCell,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    rc::Rc,
    task::Waker,
    time::Duration,
};

use glommio::{LocalExecutor, LocalExecutorBuilder, Placement, TaskQueueHandle};
use nix::sys::resource::{Resource, getrlimit};

pub(crate) use self::wait::ReadinessWait;
use crate::error::{RuntimeError, panic_message};

/// Entries in each of the executor's io_uring rings. A shard has about three operations in flight there (the
/// wait for the epoll set, the executor's own timer and wake-up), because its sockets are not driven by it.
const RING_DEPTH: usize = 32;

/// The executor's registered memory for file reads, which a shard does not use; 64 KiB is the least it takes,
/// and small enough for many shards in the usual 8 MiB of locked memory.
const IO_BYTES: usize = 64 * 1024;

/// The limit of locked memory below which the executor does not start.
const LOCKED_BYTES_MIN: u64 = 512 * 1024;

/// How often the executor leaves its runnable tasks to look at its own rings: in effect never.
///
/// The shard needs nothing from the rings while it has runnable tasks: its turns look at its epoll set, its timers
/// and its mailbox themselves. And the tick is dangerous: if it falls due between being set and the first look at
/// the task queue (a thread that loses its CPU for that long is enough), glommio 0.9 takes the queue for empty and
/// sleeps with a runnable task in it. With a tick of 1 ms the tests that put shards to sleep hung in one run of
/// four on a busy 2-core machine.
const TICK: Duration = Duration::from_secs(365 * 24 * 3600);

/// Whether this process can use io_uring as [`ExecutorChoice::Auto`](crate::ExecutorChoice::Auto) would; creates the rings that
/// a shard needs, and closes them again.
///
/// # Errors
/// [`RuntimeError::IoUring`], with the reason.
pub fn try_io_uring() -> Result<(), RuntimeError> {
    probe()?;
    Executor::make().map(drop)
}

/// Whether the kernel lets this process make rings at all, and lock the memory that the executor needs.
///
/// # Errors
/// [`RuntimeError::IoUring`], with the reason.
pub(super) fn probe() -> Result<(), RuntimeError> {
    probe::io_uring().map_err(|reason| RuntimeError::IoUring { reason })?;
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((limit, _)) if limit < LOCKED_BYTES_MIN => {
            let (limit, wanted) = (limit / 1024, LOCKED_BYTES_MIN / 1024);
            let reason = format!(
                "{limit} KiB of memory may be locked, but its executor needs {wanted} KiB; raise the limit (ulimit -l)"
            );
            Err(RuntimeError::IoUring { reason })
        }
        _ => Ok(()),
    }
}

pub(crate) struct Executor(LocalExecutor);

impl Executor {
    /// Makes the executor of the calling thread, where the probe has found that rings can be made.
    pub(super) fn make() -> Result<Self, RuntimeError> {
        let builder = LocalExecutorBuilder::new(Placement::Unbound)
            .ring_depth(RING_DEPTH)
            .io_memory(IO_BYTES)
            .preempt_timer(TICK);
        // If the kernel lacks an operation that the executor needs, it panics instead of returning an error.
        let reason = match catch_unwind(AssertUnwindSafe(|| builder.make())) {
            Ok(Ok(executor)) => return Ok(Self(executor)),
            Ok(Err(error)) => error.to_string(),
            Err(panic) => panic_message(&*panic),
        };
        Err(RuntimeError::IoUring { reason })
    }

    pub(super) fn run(self, root: impl Future<Output = ()>) {
        self.0.run(root);
    }
}

/// What wakes a task: the executor's waker, known from the task's first poll on. Until then the first poll is still to come, and
/// the task need not be woken. An executor gives a task one waker for life.
pub(crate) struct Task(Rc<OnceCell<Waker>>);

impl Task {
    pub(super) fn wake(&self) {
        if let Some(waker) = self.0.get() {
            waker.wake_by_ref();
        }
    }
}

pub(super) fn spawn(future: impl Future<Output = ()> + 'static) -> Task {
    let task = Task(Rc::default());
    let waker = Rc::clone(&task.0);
    let run = async move {
        let mut future = pin!(future);
        poll_fn(|context| {
            waker.get_or_init(|| context.waker().clone());
            future.as_mut().poll(context)
        })
        .await;
    };
    // Not `spawn_local`, which would run the task at once, while the caller still holds borrows.
    glommio::spawn_local_into(run, TaskQueueHandle::default())
        .expect("the executor's own queue is always there, and a shard's handle lives on its thread")
        .detach();
    task
}
