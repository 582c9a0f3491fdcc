//! Tasks of a shard: spawned, woken from any thread, and, when the shard stops, dropped on their own. Not bounded
//! here: a caller that spawns for each request must bound the requests.
//!
//! A task sees a waker of ours, never the executor's. Otherwise a wake-up from another thread would wait until the executor next
//! looks at its rings, which it rarely does while the shard spins; so wake-ups go through the shard's mailbox, which every turn
//! checks.

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use crate::{
    error::{RuntimeError, panic_message},
    executor,
    mailbox::ShardRef,
    shard::Shard,
};

/// Waits for a task of the same shard. Dropping it lets the task run on.
#[must_use = "awaiting it is the way to learn of a panic; drop it to let the task run on"]
pub struct TaskHandle<T>(Rc<RefCell<Outcome<T>>>);

struct Outcome<T> {
    result: Option<Result<T, RuntimeError>>,
    waker: Option<Waker>,
}

impl<T> TaskHandle<T> {
    /// A handle, and the function that delivers the result to it.
    pub(crate) fn new() -> (Self, impl FnOnce(Result<T, RuntimeError>)) {
        let outcome = Rc::new(RefCell::new(Outcome { result: None, waker: None }));
        let handle = Self(Rc::clone(&outcome));
        let finish = move |result| {
            let waker = {
                let mut outcome = outcome.borrow_mut();
                outcome.result = Some(result);
                outcome.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        (handle, finish)
    }

    /// Whether the task has ended and its result has not been taken yet.
    pub fn is_finished(&self) -> bool {
        self.0.borrow().result.is_some()
    }
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, RuntimeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.0.borrow_mut();
        if let Some(result) = outcome.result.take() {
            return Poll::Ready(result);
        }
        let replaced = outcome.waker.replace(context.waker().clone());
        drop(outcome);
        // Not dropped while the outcome is borrowed: a waker may be foreign code.
        drop(replaced);
        Poll::Pending
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskHandle(finished: {})", self.is_finished())
    }
}

/// The live tasks of a shard: used to wake each, and to end them when the shard stops.
#[derive(Default)]
pub(crate) struct Tasks {
    entries: RefCell<Vec<Entry>>,
    free: RefCell<Vec<u32>>,
    live: Cell<usize>,
    ending: Cell<bool>,
}

#[derive(Default)]
struct Entry {
    /// How often this place was reused; identifies wake-ups that are too late.
    generation: u32,
    /// `None` once the task has ended.
    waker: Option<Arc<TaskWaker>>,
    /// The task as the executor knows it, from right after its start to its end.
    task: Option<executor::Task>,
}

/// Names a task of one shard: its place and the place's generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskKey {
    place: u32,
    generation: u32,
}

/// Wakes a task, from any thread.
struct TaskWaker {
    shard: ShardRef,
    key: TaskKey,
    /// True while a wake-up is on its way in the mailbox, so that no second one is sent.
    posted: AtomicBool,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let here = Shard::with_current(|shard| {
            let is_ours = shard.mailbox().is(&self.shard);
            if is_ours {
                shard.0.tasks.wake(self.key);
            }
            is_ours
        });
        // POSTED: AcqRel on both sides. If this finds a wake-up in flight, then the shard's swap in `wake_posted`
        // comes later and brings what was done before this to the task's next poll.
        if here != Some(true) && !self.posted.swap(true, Ordering::AcqRel) {
            self.shard.0.wake(self.key);
        }
    }
}

impl Tasks {
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Makes every task end at its next poll, which it triggers; tasks spawned from now on end without running.
    pub(crate) fn end_all(&self) {
        self.ending.set(true);
        for entry in &*self.entries.borrow() {
            if let Some(task) = &entry.task {
                task.wake();
            }
        }
    }

    /// Wakes a task, unless it has ended. This only queues the task, so the borrow is safe.
    fn wake(&self, key: TaskKey) {
        if let Some(entry) = self.entries.borrow().get(key.place as usize)
            && entry.generation == key.generation
            && let Some(task) = &entry.task
        {
            task.wake();
        }
    }

    /// Wakes a task on behalf of another thread.
    pub(crate) fn wake_posted(&self, key: TaskKey) {
        if let Some(entry) = self.entries.borrow().get(key.place as usize)
            && entry.generation == key.generation
            && let Some(waker) = &entry.waker
        {
            // POSTED: see `TaskWaker`.
            waker.posted.swap(false, Ordering::AcqRel);
        }
        self.wake(key);
    }

    fn enter(&self, shard: ShardRef) -> (TaskKey, Waker) {
        let mut entries = self.entries.borrow_mut();
        let place = self.free.borrow_mut().pop().unwrap_or_else(|| {
            entries.push(Entry::default());
            (entries.len() - 1) as u32
        });
        let entry = &mut entries[place as usize];
        let key = TaskKey { place, generation: entry.generation };
        let waker = Arc::new(TaskWaker { shard, key, posted: AtomicBool::new(false) });
        entry.waker = Some(Arc::clone(&waker));
        self.live.set(self.live.get() + 1);
        (key, waker.into())
    }

    /// Records the executor's task, which has not run yet.
    fn started(&self, key: TaskKey, task: executor::Task) {
        self.entries.borrow_mut()[key.place as usize].task = Some(task);
    }

    fn leave(&self, key: TaskKey) {
        let entry = {
            let entry = &mut self.entries.borrow_mut()[key.place as usize];
            let next = Entry { generation: entry.generation.wrapping_add(1), ..Entry::default() };
            std::mem::replace(entry, next)
        };
        drop(entry);
        self.free.borrow_mut().push(key.place);
        self.live.set(self.live.get() - 1);
    }
}

/// Hands a future to the executor. A panic ends only this task, and so does the end of the shard; `finish` always gets the result.
pub(crate) fn spawn<T: 'static>(
    shard: &Shard,
    future: impl Future<Output = T> + 'static,
    finish: impl FnOnce(Result<T, RuntimeError>) + 'static,
) {
    let (key, waker) = shard.0.tasks.enter(shard.mailbox().clone());
    let mut future = Some(Box::pin(future));
    let here = shard.clone();
    let run = async move {
        let shard = here;
        let result = poll_fn(|_| {
            // Anything a task does may be work for a source, and a shard with a runnable task is not idle.
            shard.notify();
            if shard.0.tasks.ending.get() {
                return Poll::Ready(Err(RuntimeError::ShardGone { shard: shard.index() }));
            }
            let running = future.as_mut().expect("it is taken only when the task has ended");
            let mut context = Context::from_waker(&waker);
            match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(&mut context))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
                Err(panic) => {
                    let message = panic_message(&*panic);
                    tracing::error!(shard = shard.index(), message, "a task panicked");
                    Poll::Ready(Err(RuntimeError::TaskPanicked { message }))
                }
            }
        })
        .await;
        // Drop what the task owns before its result is visible.
        let future = future.take();
        contain(&shard, "dropping a task", || drop(future));
        shard.0.tasks.leave(key);
        contain(&shard, "a task's result", || finish(result));
    };
    let task = shard.0.executor.spawn(run);
    shard.0.tasks.started(key, task);
}

/// Runs foreign code; a panic is logged and ends only that code.
pub(crate) fn contain<T>(shard: &Shard, what: &'static str, f: impl FnOnce() -> T) -> Option<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(value) => Some(value),
        Err(panic) => {
            let message = panic_message(&*panic);
            tracing::error!(shard = shard.index(), message, "{what} panicked");
            None
        }
    }
}
