//! Calls of other threads that nobody waits for any more: both sides give them up, and no tensor is lost.

use std::task::{Context, Waker};

use sealane_fusion::{Engine, RecvOptions, Task};

use crate::fixture::{assert_empty, bytes, task, tensor, two, until};

fn tasks(engines: [&Engine; 2]) -> [Task; 2] {
    [engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap()]
}

#[test]
fn a_recv_that_is_dropped_is_given_up_on_both_sides_and_its_tensor_is_anothers() {
    let (ps, worker) = two();
    let [ps_task, worker_task] = tasks([&ps, &worker]);
    let mut polled = Box::pin(worker_task.recv(&task(0), 1, "polled"));
    assert!(polled.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let first = worker_task.recv(&task(0), 1, "w");
    let each = worker_task.recv_all(&task(0), 1, ["c", "d"].map(|key| (key, RecvOptions::default())));
    until(&ps, "the requests arrive", |counters| counters.parked == 4);
    drop((polled, first, each));
    until(&ps, "the requests are withdrawn", |counters| counters.parked == 0);
    let sending = ps_task.send(&task(1), 1, "w", tensor(100, 1));
    assert_eq!(worker_task.recv(&task(0), 1, "w").wait().unwrap().bytes(), bytes(100, 1));
    sending.wait().unwrap();
    assert_empty(&ps);
    assert_empty(&worker);
}

#[test]
fn whenever_a_recv_is_dropped_its_tensor_arrives_or_can_be_received_again() {
    let (ps, worker) = two();
    let [ps_task, worker_task] = tasks([&ps, &worker]);
    for step in 0..200 {
        let sending = ps_task.send(&task(1), step, "w", tensor(20_000, 3));
        let dropped = worker_task.recv(&task(0), step, "w");
        (0..step * 20).for_each(|_| std::hint::spin_loop());
        drop(dropped);
        // Either the dropped recv got the tensor, and it is released and gone; or this one gets it.
        let again = worker_task.recv(&task(0), step, "w");
        sending.wait().unwrap();
        drop(again);
    }
    assert_empty(&ps);
    assert_empty(&worker);
}
