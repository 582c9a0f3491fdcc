//! Watches the tasks without which an accept does not wait: for each a recv that is never answered, and fails when the task has left. Runs
//! on the callers' threads; bounded by the tasks that the caller names.

use std::{
    iter::zip,
    pin::Pin,
    sync::atomic::{AtomicI64, Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use sealane_transport::{Code, Error, RecvOptions};

use crate::{Receiving, Task, attachment::at_once};

/// The key of these recvs, under which nobody sends.
const KEY: &str = "sealane.life";

/// The step of the next such recv: only one recv may wait for a key of a step.
static STEP: AtomicI64 = AtomicI64::new(i64::MIN);

#[derive(Default)]
pub(crate) struct Lives {
    tasks: Box<[Box<str>]>,
    /// Pending recvs, in the order of the tasks; none before the first poll, and after this side's daemon was restarted.
    asked: Vec<Receiving>,
    /// Restarts of this side's daemon before the recvs were begun.
    restarts: u64,
}

impl Lives {
    pub(crate) fn of(tasks: impl Iterator<Item = Box<str>>) -> Lives {
        Lives { tasks: tasks.collect(), asked: Vec::new(), restarts: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Ready when one of the tasks has left, or cannot be reached.
    pub(crate) fn poll(&mut self, task: &Task, context: &mut Context<'_>) -> Poll<Error> {
        if self.is_empty() {
            return Poll::Pending;
        }
        if self.asked.is_empty() {
            ready!(task.poll_daemon(context));
            self.restarts = task.restarts();
            self.asked = self.tasks.iter().map(|peer| ask(task, peer)).collect();
        }
        for (peer, life) in zip(&self.tasks, &mut self.asked) {
            while let Poll::Ready(ended) = Pin::new(&mut *life).poll(context) {
                match ended.map_err(Error::from) {
                    // Somebody sends under this key, or the longest possible time has passed.
                    Ok(_) | Err(Error::DeadlineExceeded { .. }) => *life = ask(task, peer),
                    Err(error) if is_own_restart(task, self.restarts, &error) => {
                        self.asked.clear();
                        // The next poll waits for the next daemon.
                        context.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Err(error) => return Poll::Ready(error),
                }
            }
        }
        Poll::Pending
    }
}

/// True if the error says nothing about the peer: this side's daemon was restarted.
fn is_own_restart(task: &Task, restarts: u64, error: &Error) -> bool {
    error.code() == Code::Unavailable && !matches!(error, Error::Left { .. }) && task.ended_by_restart(restarts)
}

fn ask(task: &Task, peer: &str) -> Receiving {
    let step = STEP.fetch_add(1, Ordering::Relaxed);
    let options = RecvOptions { timeout: Some(Duration::MAX), fail_if_gone: true, ..RecvOptions::default() };
    at_once(|| task.recv_with(peer, step, KEY, options))
}
