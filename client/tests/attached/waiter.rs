//! Threads that wait for futures with a [`Waiter`](sealane::Waiter).

use std::{
    future::{pending, poll_fn},
    pin::{Pin, pin},
    sync::mpsc,
    task::{Poll, Waker},
    thread,
    time::Duration,
};

use sealane::{Polling, Waiter};

use crate::fixture::{TASK, attached, attached_with, block_on, bytes, tensor};

/// Waits with a time limit, as often as it takes.
fn wait<F: Future + Unpin>(waiter: &Waiter, mut future: F) -> F::Output {
    loop {
        if let Some(output) = waiter.block_on(&mut future, Duration::from_millis(3)) {
            return output;
        }
    }
}

#[test]
fn a_wait_that_is_over_leaves_the_future_as_it_was() {
    let (_directory, _daemon, task) = attached();
    let waiter = task.waiter();
    let mut receiving = task.recv(TASK, 1, "key");
    for timeout in [Duration::ZERO, Duration::from_millis(1)] {
        assert!(waiter.block_on(&mut receiving, timeout).is_none());
    }
    drop(task.send(TASK, 1, "key", tensor(64, 7)));
    assert_eq!(wait(&waiter, receiving).unwrap().bytes(), bytes(64, 7));
    assert_eq!(waiter.block_on(async { 5 }, Duration::ZERO), Some(5), "it polls once at least");
}

#[test]
fn what_others_wait_for_is_the_drivers_when_nobody_attends_to_it() {
    for polling in [Polling::Park, Polling::default(), Polling::Spin] {
        let (_directory, _daemon, task) = attached_with(|attach| attach.polling(polling));
        thread::scope(|scope| {
            let (attending, attends) = mpsc::channel();
            let mine = task.recv(TASK, 1, "mine");
            let waiter = task.waiter();
            let attendant = scope.spawn(move || {
                let mut mine = pin!(mine);
                let poll = poll_fn(|context| {
                    // By its first poll, this thread is the one that polls the rings.
                    let _ = attending.send(());
                    mine.as_mut().poll(context)
                });
                waiter.block_on(poll, Duration::MAX).unwrap().unwrap()
            });
            attends.recv().unwrap();
            let (polling, polled) = mpsc::channel();
            let mut theirs = task.recv(TASK, 1, "theirs");
            let other = scope.spawn(move || {
                block_on(poll_fn(|context| {
                    let looked = Pin::new(&mut theirs).poll(context);
                    let _ = polling.send(());
                    looked
                }))
                .unwrap()
            });
            polled.recv().unwrap();
            drop(task.send(TASK, 1, "mine", tensor(64, 1)));
            assert_eq!(attendant.join().unwrap().bytes(), bytes(64, 1));
            drop(task.send(TASK, 1, "theirs", tensor(64, 2)));
            assert_eq!(other.join().unwrap().bytes(), bytes(64, 2));
        });
    }
}

#[test]
fn a_future_that_is_woken_by_another_thread_ends() {
    for polling in [Polling::Park, Polling::default(), Polling::Spin] {
        let (_directory, _daemon, task) = attached_with(|attach| attach.polling(polling));
        let (giving, given) = mpsc::channel::<Waker>();
        let other = thread::spawn(move || given.recv().unwrap().wake());
        let mut polled = false;
        let woken = poll_fn(|context| {
            let _ = giving.send(context.waker().clone());
            if std::mem::replace(&mut polled, true) { Poll::Ready(()) } else { Poll::Pending }
        });
        assert_eq!(task.waiter().block_on(woken, Duration::MAX), Some(()));
        other.join().unwrap();
    }
}

#[test]
fn a_wait_ends_when_its_task_is_closed() {
    let (_directory, _daemon, task) = attached();
    let (waiter, receiving) = (task.waiter(), task.recv(TASK, 1, "never sent"));
    drop(task);
    assert!(wait(&waiter, receiving).is_err());
    assert!(waiter.block_on(pending::<()>(), Duration::from_millis(1)).is_none());
}
