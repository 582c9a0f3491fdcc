//! Accepts that do not wait for tasks that have left.

use std::time::Duration;

use sealane::{AcceptOptions, Error};

use crate::fixture::{TASK, attached, block_on, bytes, peers, tensor, to_as};

/// A wait that should find that nothing comes.
const SHORT: Duration = Duration::from_millis(50);

#[test]
fn what_a_task_pushed_is_accepted_before_the_word_that_it_has_left() {
    let (_directory, daemon, task) = attached();
    let [first, second] = [0, 1].map(|at| peers()[at].clone());
    let narrow = AcceptOptions { tensors_max: 2, ..AcceptOptions::default() };
    let acceptor = task.acceptor("grads", narrow);
    for round in 0..3 {
        // The name of a dropped task is free a little later.
        [&first, &second].into_iter().for_each(|left| daemon.until_detached(left));
        let accept = || acceptor.accept().fail_if_gone([&first, &second]);
        let (one, other) = (to_as(&daemon, &first).attach().unwrap(), to_as(&daemon, &second).attach().unwrap());
        assert!(accept().wait_within(SHORT).unwrap().is_none(), "both are there");
        let pushed = [one.push(TASK, "grads", tensor(100, round)), one.push(TASK, "grads", tensor(1000, round))];
        pushed.into_iter().for_each(|pushing| pushing.wait().unwrap());
        drop(one);
        for len in [100, 1000] {
            // From a blocking thread, and from an executor.
            let accepted = if len == 100 { accept().wait() } else { block_on(accept()) };
            assert_eq!(accepted.unwrap().tensor.bytes(), bytes(len, round));
        }
        for error in [accept().wait().unwrap_err(), block_on(accept()).unwrap_err()] {
            assert!(matches!(&error, Error::Left { task, .. } if **task == *first), "{error}");
        }
        // The queue is unchanged for the tasks that are there.
        other.push(TASK, "grads", tensor(7, round)).wait().unwrap();
        assert_eq!(accept().wait().unwrap().tensor.bytes(), bytes(7, round));
        assert!(acceptor.accept().fail_if_gone([&second]).wait_within(SHORT).unwrap().is_none());
    }
}
