//! The executor for hosts that forbid io_uring: a queue of runnable tasks. When it is empty, the root future sleeps in
//! `epoll_wait`, inside its own poll.
//!
//! So no wake-up can be lost: nothing else runs on this thread between checking the queue and the system call, and other
//! threads ring the mailbox's doorbell, which is in the epoll set.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    future::Future,
    pin::{Pin, pin},
    rc::Rc,
    task::{Context, Waker},
};

/// The tasks that can run, first in, first out; each is in it at most once.
#[derive(Default)]
pub(crate) struct RunQueue {
    ready: RefCell<VecDeque<Rc<Task>>>,
}

/// A task, and whether it is queued.
pub(crate) struct Task {
    /// `None` once it has ended.
    future: RefCell<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    is_queued: Cell<bool>,
    queue: Rc<RunQueue>,
}

impl RunQueue {
    /// Polls the root future and the runnable tasks in turn, until the root future ends. The root future is polled whether it was
    /// woken or not: it sleeps by blocking, see [`Wait`](super::Wait).
    pub(super) fn run(&self, root: impl Future<Output = ()>) {
        let mut root = pin!(root);
        let mut context = Context::from_waker(Waker::noop());
        while root.as_mut().poll(&mut context).is_pending() {
            self.run_round();
        }
        // The tasks left can run no more, and own what they wait for.
        drop(self.ready.take());
    }

    pub(super) fn spawn(self: &Rc<Self>, future: impl Future<Output = ()> + 'static) -> Rc<Task> {
        let task = Rc::new(Task {
            future: RefCell::new(Some(Box::pin(future))),
            is_queued: Cell::new(false),
            queue: Rc::clone(self),
        });
        Task::wake(&task);
        task
    }

    pub(super) fn is_idle(&self) -> bool {
        self.ready.borrow().is_empty()
    }

    /// Polls each task once that can run now; tasks woken meanwhile run in the next round.
    fn run_round(&self) {
        let count = self.ready.borrow().len();
        for _ in 0..count {
            let task = self.ready.borrow_mut().pop_front().expect("only this takes tasks out");
            task.is_queued.set(false);
            task.run();
        }
    }
}

impl Task {
    pub(super) fn wake(this: &Rc<Self>) {
        if !this.is_queued.replace(true) {
            this.queue.ready.borrow_mut().push_back(Rc::clone(this));
        }
    }

    /// Only the queue polls a task, so it is not borrowed here.
    fn run(&self) {
        let mut future = self.future.borrow_mut();
        // A task is woken by its key, see `Tasks`, and never through this context.
        let mut context = Context::from_waker(Waker::noop());
        if future.as_mut().is_some_and(|running| running.as_mut().poll(&mut context).is_ready()) {
            *future = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, task::Poll};

    use super::*;
    use crate::executor::yield_now;

    type Diary = Rc<RefCell<Vec<&'static str>>>;

    fn note(diary: &Diary, entry: &'static str) {
        diary.borrow_mut().push(entry);
    }

    /// A task that writes its name at each of `polls` polls.
    fn writer(diary: &Diary, name: &'static str, polls: usize) -> impl Future<Output = ()> + 'static {
        let (diary, mut left) = (Rc::clone(diary), polls);
        poll_fn(move |_| {
            note(&diary, name);
            left -= 1;
            if left == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    #[test]
    fn every_task_that_can_run_goes_once_between_two_turns_of_the_root() {
        let (queue, diary) = (Rc::<RunQueue>::default(), Diary::default());
        queue.run(async {
            let (a, b) = (queue.spawn(writer(&diary, "a", 2)), queue.spawn(writer(&diary, "b", 3)));
            note(&diary, "root");
            yield_now().await;
            note(&diary, "root");
            Task::wake(&b);
            Task::wake(&a);
            Task::wake(&b);
            assert!(!queue.is_idle());
            yield_now().await;
            note(&diary, "root");
            assert!(queue.is_idle());
            yield_now().await;
            // Waking a task that has ended does nothing.
            Task::wake(&a);
            Task::wake(&b);
            yield_now().await;
        });
        assert_eq!(diary.take(), ["root", "a", "b", "root", "b", "a", "root", "b"]);
    }

    #[test]
    fn a_task_that_is_woken_while_it_runs_has_its_turn_in_the_next_round() {
        let (queue, rounds) = (Rc::<RunQueue>::default(), Rc::new(Cell::new(0)));
        queue.run(async {
            let this = Rc::new(RefCell::new(None::<Rc<Task>>));
            let (inside, counted) = (Rc::clone(&this), Rc::clone(&rounds));
            *this.borrow_mut() = Some(queue.spawn(poll_fn(move |_| {
                counted.set(counted.get() + 1);
                Task::wake(inside.borrow().as_ref().unwrap());
                Poll::Pending
            })));
            for round in 1..=5 {
                yield_now().await;
                assert_eq!(rounds.get(), round);
            }
            this.take();
        });
    }

    #[test]
    fn what_a_task_owns_goes_when_it_ends_or_when_the_root_has_ended() {
        let (queue, owned) = (Rc::<RunQueue>::default(), Rc::new(()));
        let (ends, waits) = (Rc::clone(&owned), Rc::clone(&owned));
        queue.run(async {
            let task = queue.spawn(async move { drop(ends) });
            yield_now().await;
            assert_eq!(Rc::strong_count(&owned), 2);
            // The handle of an ended task holds nothing.
            drop(task);
            drop(queue.spawn(async move {
                let _waits = waits;
                std::future::pending::<()>().await;
            }));
        });
        assert_eq!(Rc::strong_count(&owned), 1);
    }
}
