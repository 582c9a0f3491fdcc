//! Runs a shard's tasks and lets its thread sleep: one of two executors, chosen when the runtime starts. Both run on the shard's
//! thread; neither bounds the number of tasks.
//!
//! The reactor is the root future. It takes turns and yields between them, and every runnable task runs once before its next
//! turn. When idle, it waits for the shard's epoll set, which contains everything that can wake the shard: sockets, the
//! mailbox's doorbell, the alarm. Tasks are woken only on their own thread; other threads go through the mailbox.
//!
//! `runtime.executor` chooses; `auto` probes the kernel once at startup, and logs the reason if it chooses epoll (Docker's
//! default seccomp profile, `kernel.io_uring_disabled`, less than 512 KiB of lockable memory). A 64 B round trip between two
//! pinned shards takes the same time on both while they spin (`sealane bench latency --executor`, medians of 14 interleaved
//! rounds: 7.96 µs on io_uring, 7.94 µs on epoll). When shards sleep in between, epoll is faster (`--polling off`, 9 rounds:
//! 61 µs against 77 µs): a sleep is one system call there and about ten on io_uring, the way glommio uses it. io_uring
//! stays the default because the other figures were measured on it.

mod epoll;
mod io_uring;

use std::{
    fmt,
    future::{Future, poll_fn},
    io,
    rc::Rc,
    task::{Context, Poll},
};

pub use self::io_uring::try_io_uring;
use crate::{error::RuntimeError, readiness::EpollSet};

/// Which executor to use for a runtime's shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorChoice {
    /// io_uring if available, else epoll. The choice and its reason are logged at startup.
    #[default]
    Auto,
    /// io_uring; the runtime does not start without it.
    IoUring,
    Epoll,
}

/// Which executor a runtime's shards run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExecutorKind {
    /// glommio, whose threads sleep in `io_uring_enter`.
    IoUring,
    /// The runtime's own, whose threads sleep in `epoll_wait`.
    Epoll,
}

impl ExecutorKind {
    /// Checks, once and before threads are started, that the kernel allows this kind.
    ///
    /// # Errors
    /// [`RuntimeError::IoUring`] if it does not.
    pub(crate) fn probe(self) -> Result<(), RuntimeError> {
        match self {
            Self::IoUring => io_uring::probe(),
            Self::Epoll => Ok(()),
        }
    }
}

impl fmt::Display for ExecutorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

/// The executor of the calling thread, not running yet.
pub(crate) enum Executor {
    IoUring(io_uring::Executor),
    Epoll(Rc<epoll::RunQueue>),
}

impl Executor {
    /// Makes an executor of a kind that was probed.
    ///
    /// # Errors
    /// [`RuntimeError::IoUring`] where that cannot be used.
    pub(crate) fn make(kind: ExecutorKind) -> Result<Self, RuntimeError> {
        match kind {
            ExecutorKind::IoUring => io_uring::Executor::make().map(Self::IoUring),
            ExecutorKind::Epoll => Ok(Self::Epoll(Rc::default())),
        }
    }

    pub(crate) fn spawner(&self) -> Spawner {
        match self {
            Self::IoUring(_) => Spawner::IoUring,
            Self::Epoll(queue) => Spawner::Epoll(Rc::clone(queue)),
        }
    }

    pub(crate) fn wait(&self) -> Wait {
        match self {
            Self::IoUring(_) => Wait::IoUring(io_uring::ReadinessWait::default()),
            Self::Epoll(queue) => Wait::Epoll(Rc::clone(queue)),
        }
    }

    pub(crate) fn run(self, root: impl Future<Output = ()>) {
        match self {
            Self::IoUring(executor) => executor.run(root),
            Self::Epoll(queue) => queue.run(root),
        }
    }
}

pub(crate) enum Spawner {
    IoUring,
    Epoll(Rc<epoll::RunQueue>),
}

impl Spawner {
    /// Starts a task, which does not run inside this call and must handle its own panics.
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + 'static) -> Task {
        match self {
            Self::IoUring => Task::IoUring(io_uring::spawn(future)),
            Self::Epoll(queue) => Task::Epoll(queue.spawn(future)),
        }
    }
}

pub(crate) enum Task {
    IoUring(io_uring::Task),
    Epoll(Rc<epoll::Task>),
}

impl Task {
    /// Has the task polled once more, unless it has ended. Does not poll it inside this call.
    pub(crate) fn wake(&self) {
        match self {
            Self::IoUring(task) => task.wake(),
            Self::Epoll(task) => epoll::Task::wake(task),
        }
    }
}

pub(crate) enum Wait {
    IoUring(io_uring::ReadinessWait),
    Epoll(Rc<epoll::RunQueue>),
}

impl Wait {
    /// Ready when the epoll set has something to report, which the next look at it then finds; it may be ready once without a
    /// reason. Must be given the same set each time. Tasks run while it is pending.
    ///
    /// # Errors
    /// Where the kernel refuses the wait.
    pub(crate) fn poll(&mut self, set: &EpollSet, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::IoUring(wait) => wait.poll(set, context),
            Self::Epoll(queue) if queue.is_idle() => Poll::Ready(set.sleep()),
            Self::Epoll(_) => Poll::Pending,
        }
    }
}

/// Yields once to everything that can run; callable from any task.
pub(crate) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
