//! The shard's timers: a heap of deadlines, checked once a turn against the turn's clock; one entry for each pending sleep.

use std::{
    cell::RefCell,
    cmp::Reverse,
    collections::BinaryHeap,
    task::{Poll, Waker},
    time::Instant,
};

use crate::limits::TIMER_COMPACT_MIN;

/// Names a timer; stale once the timer was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    index: usize,
    generation: u64,
}

#[derive(Default)]
pub(crate) struct Timers(RefCell<State>);

#[derive(Default)]
struct State {
    heap: BinaryHeap<Reverse<(Instant, TimerId)>>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    /// Heap entries whose timer was cancelled.
    stale: usize,
}

#[derive(Default)]
struct Slot {
    generation: u64,
    /// `None` once fired.
    waker: Option<Waker>,
}

impl State {
    fn is_live(slots: &[Slot], id: TimerId) -> bool {
        slots[id.index].generation == id.generation
    }
}

impl Timers {
    pub(crate) fn add(&self, deadline: Instant, waker: Waker) -> TimerId {
        let state = &mut *self.0.borrow_mut();
        let index = state.free.pop().unwrap_or_else(|| {
            state.slots.push(Slot::default());
            state.slots.len() - 1
        });
        let slot = &mut state.slots[index];
        slot.waker = Some(waker);
        let id = TimerId { index, generation: slot.generation };
        state.heap.push(Reverse((deadline, id)));
        id
    }

    /// Whether the timer has fired; if not, `waker` replaces its waker.
    pub(crate) fn poll(&self, id: TimerId, waker: &Waker) -> Poll<()> {
        match &mut self.0.borrow_mut().slots[id.index].waker {
            Some(old) => {
                old.clone_from(waker);
                Poll::Pending
            }
            None => Poll::Ready(()),
        }
    }

    /// Ends a timer, fired or not; its name is stale from now on.
    pub(crate) fn remove(&self, id: TimerId) {
        let waker = {
            let state = &mut *self.0.borrow_mut();
            let slot = &mut state.slots[id.index];
            debug_assert_eq!(slot.generation, id.generation);
            slot.generation += 1;
            let waker = slot.waker.take();
            state.free.push(id.index);
            if waker.is_some() {
                state.stale += 1;
                if state.heap.len() > TIMER_COMPACT_MIN && state.stale * 2 > state.heap.len() {
                    let slots = &state.slots;
                    state.heap.retain(|Reverse((_, id))| State::is_live(slots, *id));
                    state.stale = 0;
                }
            }
            waker
        };
        // A waker's drop may run a task's destructor, which may come back here.
        drop(waker);
    }

    /// Fires up to `budget` timers that are due, and returns how many.
    pub(crate) fn fire(&self, now: Instant, budget: usize) -> usize {
        let mut fired = 0;
        while fired < budget {
            let Some(waker) = self.next_due(now) else {
                break;
            };
            // Not called while the state is borrowed: a waker is foreign code.
            waker.wake();
            fired += 1;
        }
        fired
    }

    fn next_due(&self, now: Instant) -> Option<Waker> {
        let state = &mut *self.0.borrow_mut();
        while let Some(Reverse((deadline, id))) = state.heap.peek() {
            let (due, id) = (*deadline <= now, *id);
            let live = State::is_live(&state.slots, id);
            if live && !due {
                return None;
            }
            state.heap.pop();
            if live {
                return state.slots[id.index].waker.take();
            }
            state.stale -= 1;
        }
        None
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let state = &mut *self.0.borrow_mut();
        while let Some(Reverse((deadline, id))) = state.heap.peek() {
            if State::is_live(&state.slots, *id) {
                return Some(*deadline);
            }
            state.heap.pop();
            state.stale -= 1;
        }
        None
    }

    #[cfg(test)]
    fn heap_len(&self) -> usize {
        self.0.borrow().heap.len()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        task::Wake,
        time::Duration,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn counter() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        (Arc::clone(&count), Waker::from(count))
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timers_fire_in_order_when_due_and_not_before() {
        let (timers, start) = (Timers::default(), Instant::now());
        let (late, late_waker) = counter();
        let (early, early_waker) = counter();
        let late_id = timers.add(start + 2 * MS, late_waker.clone());
        let early_id = timers.add(start + MS, early_waker.clone());
        assert_eq!(timers.next_deadline(), Some(start + MS));
        assert_eq!(timers.fire(start, 10), 0);
        assert_eq!(timers.fire(start + MS, 10), 1);
        assert_eq!((early.0.load(Ordering::Relaxed), late.0.load(Ordering::Relaxed)), (1, 0));
        assert_eq!(timers.poll(early_id, &early_waker), Poll::Ready(()));
        assert_eq!(timers.poll(late_id, &late_waker), Poll::Pending);
        assert_eq!(timers.fire(start + 9 * MS, 10), 1);
        assert_eq!(timers.next_deadline(), None);
    }

    #[test]
    fn the_budget_bounds_what_fires_in_one_turn() {
        let (timers, start) = (Timers::default(), Instant::now());
        for _ in 0..5 {
            timers.add(start, Waker::noop().clone());
        }
        assert_eq!([3, 3, 3].map(|budget| timers.fire(start, budget)), [3, 2, 0]);
    }

    #[test]
    fn a_moved_sleep_wakes_its_new_task() {
        let (timers, start) = (Timers::default(), Instant::now());
        let (first, first_waker) = counter();
        let (second, second_waker) = counter();
        let id = timers.add(start, first_waker);
        assert_eq!(timers.poll(id, &second_waker), Poll::Pending);
        timers.fire(start, 1);
        assert_eq!((first.0.load(Ordering::Relaxed), second.0.load(Ordering::Relaxed)), (0, 1));
    }

    #[test]
    fn cancelled_timers_do_not_pile_up() {
        let (timers, start) = (Timers::default(), Instant::now());
        let kept = timers.add(start + 1000 * MS, Waker::noop().clone());
        for _ in 0..100_000 {
            let id = timers.add(start + 500 * MS, Waker::noop().clone());
            timers.remove(id);
        }
        assert!(timers.heap_len() <= 2 * TIMER_COMPACT_MIN, "{} entries", timers.heap_len());
        assert_eq!(timers.next_deadline(), Some(start + 1000 * MS));
        timers.remove(kept);
        assert_eq!(timers.next_deadline(), None);
        assert_eq!(timers.fire(start + 2000 * MS, 10), 0);
    }

    #[test]
    fn a_fired_timer_that_is_removed_leaves_nothing_stale() {
        let (timers, start) = (Timers::default(), Instant::now());
        let id = timers.add(start, Waker::noop().clone());
        timers.fire(start, 1);
        timers.remove(id);
        let again = timers.add(start + MS, Waker::noop().clone());
        assert_ne!(again, id);
        assert_eq!(timers.next_deadline(), Some(start + MS));
    }
}
