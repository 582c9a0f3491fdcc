//! After warm-up a call allocates only what it returns; this counts the allocations of each thread.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use sealane::{Keys, Polling, Tensor};

use crate::{
    daemon::{Daemon, Settings},
    fixture::{TASK, attached_with, directory, meta, to},
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // Fails in a thread that is ending, which has nothing left to count.
    let _ = ALLOCATIONS.try_with(|allocations| allocations.set(allocations.get() + 1));
}

// SAFETY: every call is the system allocator's, with the arguments that came in; counting touches no memory of theirs.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are passed on unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's obligations are passed on unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's obligations are passed on unchanged.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread in `rounds` runs of `round`, after as many to warm up.
fn allocations(rounds: i64, mut round: impl FnMut(i64)) -> u64 {
    (0..rounds).for_each(&mut round);
    let before = ALLOCATIONS.get();
    (rounds..2 * rounds).for_each(round);
    ALLOCATIONS.get() - before
}

#[test]
fn calls_allocate_nothing_but_tensors_that_travel_in_the_ring() {
    const ROUNDS: i64 = 500;
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    // Parking would allocate a waker.
    let task = to(&daemon).polling(Polling::Spin).attach().unwrap();
    let exchange = |step, tensor, destination| {
        let sending = task.send(TASK, step, "key", tensor);
        let receiving = match destination {
            Some(destination) => task.recv_into(TASK, step, "key", destination),
            None => task.recv(TASK, step, "key"),
        };
        let arrived = receiving.wait().unwrap();
        sending.wait().unwrap();
        arrived
    };
    let of_arena = |len| Tensor::new(meta(len), task.alloc(len).unwrap()).unwrap();

    let large = allocations(ROUNDS, |step| drop(exchange(step, of_arena(10_000), None)));
    assert_eq!(large, 0, "from the arena to the receive area");
    let mut destination = Some(task.alloc(10_000).unwrap());
    let in_place = allocations(ROUNDS, |step| {
        destination = Some(exchange(step, of_arena(10_000), destination.take()).into_buffer());
    });
    assert_eq!(in_place, 0, "from the arena to the arena");
    let small = allocations(ROUNDS, |step| drop(exchange(step, of_arena(64), None)));
    assert_eq!(small, 0, "a small tensor is held by its buffer");
    let inline = allocations(ROUNDS, |step| drop(exchange(step, of_arena(65), None)));
    assert_eq!(inline, ROUNDS as u64, "one that travels in the ring and is not as small has memory of its own");
}

#[test]
fn pulls_of_a_plan_allocate_nothing() {
    const ROUNDS: i64 = 500;
    let (_directory, _daemon, task) = attached_with(|attach| attach.polling(Polling::Spin));
    let keys: Vec<String> = (0..100).map(|at| format!("key {at}")).collect();
    let tensor = |len| Tensor::new(meta(len), vec![7; len]).unwrap();
    task.publish_many(1, keys.iter().enumerate().map(|(at, key)| (key, tensor(at * 20)))).wait().unwrap();
    let mut plan = task.plan(TASK, Keys::new(&keys).unwrap());
    let pulls = allocations(ROUNDS, |_| plan.pull(1).wait().unwrap());
    assert_eq!(pulls, 0);
    assert_eq!(plan.get(99).unwrap().bytes().len(), 99 * 20);
}
