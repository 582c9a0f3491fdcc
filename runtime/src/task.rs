//! Tasks of a shard: spawned, awaited and, when the shard stops, dropped on its own thread. Not bounded here:
//! whoever spawns for each request bounds the requests.

use std::{
    cell::{Cell, RefCell},
    fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, Waker},
};

use crate::error::{RuntimeError, panic_message};

/// Waits for a task of the same shard. Dropping it lets the task run on.
#[must_use = "awaiting it is the way to learn of a panic; drop it to let the task run on"]
pub struct TaskHandle<T>(Rc<RefCell<Outcome<T>>>);

struct Outcome<T> {
    result: Option<Result<T, RuntimeError>>,
    waker: Option<Waker>,
}

impl<T> Future for TaskHandle<T> {
    type Output = Result<T, RuntimeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.0.borrow_mut();
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let replaced = outcome.waker.replace(context.waker().clone());
                drop(outcome);
                drop(replaced);
                Poll::Pending
            }
        }
    }
}

impl<T> TaskHandle<T> {
    /// Whether the task has ended and its result was not taken yet.
    pub fn is_finished(&self) -> bool {
        self.0.borrow().result.is_some()
    }
}

impl<T> fmt::Debug for TaskHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskHandle(finished: {})", self.is_finished())
    }
}

/// The live tasks of a shard, so that it can end them when it stops.
#[derive(Default)]
pub(crate) struct Tasks {
    entries: RefCell<Vec<Option<Waker>>>,
    free: RefCell<Vec<usize>>,
    live: Cell<usize>,
    ending: Cell<bool>,
}

impl Tasks {
    pub(crate) fn live(&self) -> usize {
        self.live.get()
    }

    /// Makes every task end at its next poll, which this asks for; tasks spawned from now on end unrun.
    pub(crate) fn end_all(&self) {
        self.ending.set(true);
        let wakers: Vec<_> = self.entries.borrow().iter().flatten().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    fn enter(&self) -> usize {
        self.live.set(self.live.get() + 1);
        self.free.borrow_mut().pop().unwrap_or_else(|| {
            let mut entries = self.entries.borrow_mut();
            entries.push(None);
            entries.len() - 1
        })
    }

    fn leave(&self, entry: usize) {
        let waker = self.entries.borrow_mut()[entry].take();
        drop(waker);
        self.free.borrow_mut().push(entry);
        self.live.set(self.live.get() - 1);
    }

    /// Keeps the waker of a task that waits. An executor gives a task one waker for life, so one copy is enough.
    fn remember(&self, entry: usize, waker: &Waker) {
        let place = &mut self.entries.borrow_mut()[entry];
        if place.is_none() {
            *place = Some(waker.clone());
        }
    }
}

/// Wraps a future for the executor: a panic ends the task alone, and so does the end of the shard.
pub(crate) fn prepare<T: 'static>(
    tasks: Rc<Tasks>,
    shard: usize,
    future: impl Future<Output = T> + 'static,
) -> (impl Future<Output = ()> + 'static, TaskHandle<T>) {
    let outcome = Rc::new(RefCell::new(Outcome { result: None, waker: None }));
    let handle = TaskHandle(Rc::clone(&outcome));
    let entry = tasks.enter();
    let mut future = Some(Box::pin(future));
    let run = async move {
        let result = poll_fn(|context| {
            if tasks.ending.get() {
                return Poll::Ready(Err(RuntimeError::ShardGone { shard }));
            }
            tasks.remember(entry, context.waker());
            let running = future.as_mut().expect("it is taken only when the task has ended");
            match catch_unwind(AssertUnwindSafe(|| running.as_mut().poll(context))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
                Err(panic) => {
                    let message = panic_message(&*panic);
                    tracing::error!(shard, message, "a task panicked");
                    Poll::Ready(Err(RuntimeError::TaskPanicked { message }))
                }
            }
        })
        .await;
        // What the task owns goes before its result is seen.
        let future = future.take();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(future))) {
            let message = panic_message(&*panic);
            tracing::error!(shard, message, "a task panicked while it was dropped");
        }
        tasks.leave(entry);
        let waker = {
            let mut outcome = outcome.borrow_mut();
            outcome.result = Some(result);
            outcome.waker.take()
        };
        // The last one to hold the outcome drops the result, which may run foreign code: that is caught as well.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(outcome))) {
            let message = panic_message(&*panic);
            tracing::error!(shard, message, "a task's result panicked while it was dropped");
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    };
    (run, handle)
}
