//! The result of a job on a shard, for its submitter: a future on another shard, a future of any other executor, or a blocked
//! thread.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use crate::{error::RuntimeError, shard::Shard};

/// Waits for the result of [`Runtime::on_shard`](crate::Runtime::on_shard). Dropping it lets the task run on.
#[must_use = "the task runs on without it, but its result and its panic are lost"]
pub struct JoinHandle<T>(Arc<Exchange<T>>);

struct Exchange<T> {
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    result: Option<Result<T, RuntimeError>>,
    waker: Option<Waker>,
}

impl<T> Exchange<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shard's end of a [`JoinHandle`]; dropped without a result, it reports that the shard is gone.
pub(crate) struct JoinSender<T> {
    exchange: Arc<Exchange<T>>,
    shard: usize,
    sent: bool,
}

pub(crate) fn join_pair<T>(shard: usize) -> (JoinSender<T>, JoinHandle<T>) {
    let exchange =
        Arc::new(Exchange { state: Mutex::new(State { result: None, waker: None }), arrived: Condvar::new() });
    let sender = JoinSender { exchange: Arc::clone(&exchange), shard, sent: false };
    (sender, JoinHandle(exchange))
}

impl<T> JoinSender<T> {
    pub(crate) fn send(mut self, result: Result<T, RuntimeError>) {
        self.put(result);
    }

    fn put(&mut self, result: Result<T, RuntimeError>) {
        self.sent = true;
        let waker = {
            let mut state = self.exchange.lock();
            // The first result counts, see `settle`.
            state.result.get_or_insert(result);
            state.waker.take()
        };
        self.exchange.arrived.notify_all();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for JoinSender<T> {
    fn drop(&mut self) {
        if !self.sent {
            self.put(Err(RuntimeError::ShardGone { shard: self.shard }));
        }
    }
}

impl<T> JoinHandle<T> {
    /// Sets the result before the job that would have set it is dropped.
    pub(crate) fn settle(&self, error: RuntimeError) {
        self.0.lock().result.get_or_insert(Err(error));
    }

    /// Blocks until the result is available.
    ///
    /// # Errors
    /// [`RuntimeError::TaskPanicked`], [`RuntimeError::ShardGone`] if the shard stopped first, or [`RuntimeError::MailboxFull`]
    /// if the job could not be submitted.
    ///
    /// # Panics
    /// On a shard's thread, which must not block; await the handle there.
    pub fn wait(self) -> Result<T, RuntimeError> {
        assert!(Shard::current().is_none(), "a shard's thread must not block; await the handle");
        let mut state = self.0.lock();
        loop {
            if let Some(result) = state.result.take() {
                return result;
            }
            state = self.0.arrived.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = Result<T, RuntimeError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        if let Some(result) = state.result.take() {
            return Poll::Ready(result);
        }
        let replaced = state.waker.replace(context.waker().clone());
        drop(state);
        // Not under the lock: a waker may be foreign code.
        drop(replaced);
        Poll::Pending
    }
}

impl<T> fmt::Debug for JoinHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinHandle(finished: {})", self.0.lock().result.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_reaches_a_blocked_thread() {
        let (sender, handle) = join_pair(0);
        let thread = std::thread::spawn(move || handle.wait());
        sender.send(Ok(5));
        assert_eq!(thread.join().unwrap().unwrap(), 5);
    }

    #[test]
    fn a_sender_that_goes_says_that_the_shard_is_gone() {
        let (sender, handle) = join_pair::<()>(4);
        drop(sender);
        assert!(matches!(handle.wait(), Err(RuntimeError::ShardGone { shard: 4 })));
    }

    #[test]
    fn a_poll_before_the_result_is_woken_by_it() {
        let (sender, mut handle) = join_pair(0);
        let mut context = Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut handle).poll(&mut context).is_pending());
        assert_eq!(format!("{handle:?}"), "JoinHandle(finished: false)");
        sender.send(Ok("done"));
        let Poll::Ready(Ok("done")) = Pin::new(&mut handle).poll(&mut context) else {
            panic!("the result is there");
        };
    }
}
