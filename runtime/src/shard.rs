//! A shard seen from its own thread: the handle that tasks and sources hold. It cannot leave that thread.

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::Future,
    os::fd::BorrowedFd,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crate::{
    error::RuntimeError,
    executor::{Spawner, yield_now},
    limits::SLEEP_MAX,
    mailbox::ShardRef,
    readiness::{EpollSet, Interest},
    source::{Source, SourceChanges, SourceId},
    task::{self, TaskHandle, Tasks},
    timers::{TimerId, Timers},
};

thread_local! {
    static CURRENT: RefCell<Option<Shard>> = const { RefCell::new(None) };
}

/// The shard that this code runs on. Cloning is cheap; it stays on its thread:
///
/// ```compile_fail
/// fn send<T: Send>() {}
/// send::<sealane_runtime::Shard>();
/// ```
#[derive(Clone)]
pub struct Shard(pub(crate) Rc<State>);

/// State that the handles of a shard share with its reactor.
pub(crate) struct State {
    pub(crate) index: usize,
    pub(crate) cpu: Option<usize>,
    pub(crate) peers: Arc<[ShardRef]>,
    pub(crate) now: Cell<Instant>,
    /// When `set_up` last ended.
    pub(crate) set_up_until: Cell<Instant>,
    /// True if something was queued for the reactor since it last looked.
    pub(crate) notified: Cell<bool>,
    /// True while the reactor sleeps, so that `notify` must wake it.
    pub(crate) parked: Cell<bool>,
    pub(crate) reactor: RefCell<Option<Waker>>,
    pub(crate) executor: Spawner,
    pub(crate) epoll: EpollSet,
    pub(crate) timers: Timers,
    pub(crate) sources: SourceChanges,
    pub(crate) tasks: Tasks,
}

impl Shard {
    pub(crate) fn new(
        index: usize,
        cpu: Option<usize>,
        peers: Arc<[ShardRef]>,
        executor: Spawner,
    ) -> Result<Self, RuntimeError> {
        Ok(Self(Rc::new(State {
            index,
            cpu,
            peers,
            now: Cell::new(Instant::now()),
            set_up_until: Cell::new(Instant::now()),
            notified: Cell::new(false),
            parked: Cell::new(false),
            reactor: RefCell::default(),
            executor,
            epoll: EpollSet::new()?,
            timers: Timers::default(),
            sources: SourceChanges::default(),
            tasks: Tasks::default(),
        })))
    }

    /// The shard whose thread this is called on, if any.
    pub fn current() -> Option<Self> {
        Self::with_current(Self::clone)
    }

    /// Calls `f` with the current thread's shard, if any.
    pub(crate) fn with_current<T>(f: impl FnOnce(&Self) -> T) -> Option<T> {
        // A thread that ends may drop wakers after this thread-local is gone.
        CURRENT.try_with(|current| current.borrow().as_ref().map(f)).ok().flatten()
    }

    pub(crate) fn set_current(shard: Option<Self>) {
        let previous = CURRENT.with(|current| current.replace(shard));
        drop(previous);
    }

    /// The shard's number, from 0.
    pub fn index(&self) -> usize {
        self.0.index
    }

    /// The CPU that the shard is pinned to.
    pub fn cpu(&self) -> Option<usize> {
        self.0.cpu
    }

    pub fn shards(&self) -> usize {
        self.0.peers.len()
    }

    /// The time, read once a turn; it stands still within one.
    #[inline]
    pub fn now(&self) -> Instant {
        self.0.now.get()
    }

    /// A handle to a shard of the same runtime, this one included, for any thread.
    ///
    /// # Panics
    /// Where there is no shard of that number.
    pub fn shard_ref(&self, index: usize) -> ShardRef {
        self.0.peers[index].clone()
    }

    /// Runs what the shard needs before it can serve anyone, such as populating memory or opening a device. It is never reported as
    /// a stall, however long it takes.
    pub fn set_up<T>(&self, f: impl FnOnce() -> T) -> T {
        let result = f();
        self.0.set_up_until.set(Instant::now());
        result
    }

    /// Starts a task on this shard. It runs after the caller gives way, never inside this call.
    ///
    /// A panic of the task ends the task alone, and its handle reports it. When the shard stops, the task is
    /// dropped wherever it waits.
    pub fn spawn<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> TaskHandle<T> {
        let (handle, finish) = TaskHandle::new();
        task::spawn(self, future, finish);
        handle
    }

    /// Waits for at least `duration`, or a hundred years if that is less.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        // The turn's clock may be a whole turn behind, and the sleep would be too short by as much.
        self.sleep_until(Instant::now() + duration.min(SLEEP_MAX))
    }

    /// Waits until `deadline`; returns at once if that has passed.
    pub fn sleep_until(&self, deadline: Instant) -> Sleep {
        Sleep { shard: self.clone(), deadline, timer: None }
    }

    /// Lets every other runnable task and one turn of the sources go first.
    ///
    /// A shard with a task that yields is busy: it does not sleep.
    pub async fn yield_now(&self) {
        yield_now().await;
    }

    /// Says that work was queued on a source: the sources are polled once more before the shard sleeps.
    ///
    /// Whenever a task runs, this happens by itself. About a nanosecond while the shard is awake.
    #[inline]
    pub fn notify(&self) {
        self.0.notified.set(true);
        if self.0.parked.get() {
            self.wake_reactor();
        }
    }

    #[cold]
    fn wake_reactor(&self) {
        self.0.parked.set(false);
        let waker = self.0.reactor.borrow().clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Adds a source; it is polled from the next turn on.
    pub fn add_source(&self, source: impl Source + 'static) -> SourceId {
        let id = self.0.sources.add(Box::new(source));
        self.notify();
        id
    }

    /// Removes and drops a source, at the latest at the start of the next turn; until then it may be called once more. Does nothing
    /// if the source is already gone. Its descriptors are not closed.
    pub fn remove_source(&self, source: SourceId) {
        self.0.sources.remove(source);
        self.notify();
    }

    /// Watches a descriptor in the shard's epoll set: `source` hears what happens to it, under `token`.
    ///
    /// Closing the descriptor ends the watch, unless it was duplicated; then call [`unwatch`](Self::unwatch) first.
    ///
    /// # Errors
    /// [`RuntimeError::System`] if the kernel refuses, for example because the descriptor is already watched.
    pub fn watch(
        &self,
        source: SourceId,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> Result<(), RuntimeError> {
        self.0.epoll.watch(source, fd, token, interest)
    }

    /// Changes source, token and interest of a watched descriptor; an edge-triggered one is looked at afresh.
    ///
    /// # Errors
    /// [`RuntimeError::System`] where the descriptor is not watched.
    pub fn rewatch(
        &self,
        source: SourceId,
        fd: BorrowedFd<'_>,
        token: u64,
        interest: Interest,
    ) -> Result<(), RuntimeError> {
        self.0.epoll.rewatch(source, fd, token, interest)
    }

    /// Ends the watch of a descriptor.
    ///
    /// # Errors
    /// [`RuntimeError::System`] where the descriptor is not watched.
    pub fn unwatch(&self, fd: BorrowedFd<'_>) -> Result<(), RuntimeError> {
        self.0.epoll.unwatch(fd)
    }

    /// Whether the shard was asked to stop. It stops after the turn, so a task that sees this has little time left.
    pub fn stopping(&self) -> bool {
        self.mailbox().0.stop_asked()
    }

    /// Asks every shard of the runtime to stop, as [`Runtime::stop`](crate::Runtime::stop) does, without waiting.
    pub fn request_stop(&self) {
        self.0.peers.iter().for_each(|shard| shard.0.stop());
    }

    pub(crate) fn mailbox(&self) -> &ShardRef {
        &self.0.peers[self.0.index]
    }
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shard").field("index", &self.0.index).field("cpu", &self.0.cpu).finish_non_exhaustive()
    }
}

/// Waits for a point in time, see [`Shard::sleep`]. Dropping it cancels the timer.
#[derive(Debug)]
#[must_use = "a sleep does nothing unless awaited"]
pub struct Sleep {
    shard: Shard,
    deadline: Instant,
    timer: Option<TimerId>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { shard, deadline, timer } = self.get_mut();
        match timer {
            Some(timer) => shard.0.timers.poll(*timer, context.waker()),
            None if *deadline <= shard.now() => Poll::Ready(()),
            None => {
                *timer = Some(shard.0.timers.add(*deadline, context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            self.shard.0.timers.remove(timer);
        }
    }
}
