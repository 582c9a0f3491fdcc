//! Tensors there and back, from and to every kind of memory.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use sealane::{Buffer, Code, Polling, RecvOptions, Task, Tensor};

use crate::{
    daemon::LONG,
    fixture::{TASK, attached, attached_with, block_on, bytes, meta, peers, tensor, until_there_is_room},
};

#[test]
fn a_recv_may_come_first_and_peers_are_told_apart() {
    let (_directory, daemon, task) = attached();
    let receivings: Vec<_> = peers().iter().map(|peer| task.recv(peer, 1, "key")).collect();
    for (seed, peer) in peers().iter().enumerate() {
        daemon.engine.task(peer).unwrap().send(TASK, 1, "key", tensor(64, seed as u64)).wait().unwrap();
    }
    for (seed, receiving) in receivings.into_iter().enumerate() {
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(64, seed as u64));
    }
}

#[test]
fn memory_of_the_arena_is_sent_from_where_it_is() {
    let (_directory, _daemon, task) = attached();
    let mut memory = task.alloc(10_000).unwrap();
    memory.copy_from_slice(&bytes(10_000, 1));
    assert_eq!(memory.as_ptr() as usize % 64, 0);
    // Leaves no room for a copy.
    let mut rest = Vec::new();
    for len in [1 << 16, 64] {
        rest.extend(std::iter::from_fn(|| task.alloc(len).ok()));
    }
    let sending = task.send(TASK, 1, "owned", Tensor::new(meta(10_000), memory).unwrap());
    assert_eq!(task.recv(TASK, 1, "owned").wait().unwrap().bytes(), bytes(10_000, 1));
    sending.wait().unwrap();

    // Shared bytes and a part of them, as a binding for another language makes of arena memory.
    let mut memory = task.alloc(10_000).unwrap();
    memory.copy_from_slice(&bytes(10_000, 2));
    let shared = Bytes::from_owner(memory);
    let sending = task.send(TASK, 1, "shared", Tensor::new(meta(4000), shared.slice(1000..5000)).unwrap());
    assert_eq!(task.recv(TASK, 1, "shared").wait().unwrap().bytes(), &bytes(10_000, 2)[1000..5000]);
    sending.wait().unwrap();
}

#[test]
fn a_payload_is_kept_until_its_consumer_has_it() {
    let (_directory, _daemon, task) = attached();
    let whole = task.alloc(4 << 20).unwrap();
    let sending = task.send(TASK, 1, "key", Tensor::new(meta(4 << 20), whole).unwrap());
    assert_eq!(task.alloc(1).unwrap_err().code(), Code::ResourceExhausted);
    drop(sending);
    assert_eq!(task.alloc(1).unwrap_err().code(), Code::ResourceExhausted, "the send goes on");
    let landed = task.recv_into(TASK, 1, "key", Buffer::from_vec(Vec::new())).wait().unwrap_err();
    assert_eq!(landed.error.code(), Code::InvalidArgument);
    assert_eq!(task.alloc(1).unwrap_err().code(), Code::ResourceExhausted, "it is for the next recv");
    task.recv(TASK, 1, "key").wait().unwrap();
    // Its release is reported after the tensor.
    until_there_is_room(&task, 4 << 20);
}

#[test]
fn calls_can_be_awaited() {
    let (_directory, _daemon, task) = attached();
    for polling in [Polling::default(), Polling::Spin, Polling::Park] {
        let (_directory, _daemon, task) = attached_with(|attach| attach.polling(polling));
        let keys: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        block_on(async {
            let receivings = join_all(keys.iter().map(|key| task.recv(TASK, 1, key)));
            let sendings = join_all(keys.iter().map(|key| task.send(TASK, 1, key, tensor(1000, 5))));
            let (received, sent) = futures_util::future::join(receivings, sendings).await;
            assert!(received.into_iter().all(|tensor| tensor.unwrap().bytes() == bytes(1000, 5)));
            assert!(sent.into_iter().all(|sent| sent.is_ok()));
        });
    }
    // One at a time, so that the driver goes idle in between.
    for step in 0..100 {
        let receiving = task.recv(TASK, step, "key");
        drop(task.send(TASK, step, "key", tensor(10, 5)));
        assert_eq!(block_on(receiving).unwrap().bytes(), bytes(10, 5));
    }
}

#[test]
#[should_panic(expected = "handed out before")]
fn an_outcome_is_handed_out_once() {
    let (_directory, _daemon, task) = attached();
    let mut sending = task.send(TASK, 1, &"long".repeat(10_000), tensor(10, 1));
    assert!(sending.try_outcome().unwrap().is_err());
    let _ = sending.wait();
}

#[test]
fn steps_are_aborted_and_cleaned_up_on_every_shard() {
    let (_directory, daemon, task) = attached();
    let shards: HashSet<_> = peers().iter().map(|peer| daemon.engine.shard_of(TASK, peer)).collect();
    assert_eq!(shards.len(), 2);
    let of_all = |step| -> Vec<_> { peers().iter().map(|peer| task.recv(peer, step, "key")).collect() };
    let receivings = of_all(5);
    let sendings: Vec<_> = peers().iter().map(|peer| task.send(peer, 6, "key", tensor(10, 1))).collect();
    task.abort(5, "a worker was lost").unwrap();
    for receiving in receivings.into_iter().chain(of_all(5)) {
        let error = receiving.wait().unwrap_err().error;
        assert_eq!(error.to_string(), "step 5 was aborted: a worker was lost");
    }
    task.cleanup(6).unwrap();
    for sending in sendings {
        assert_eq!(sending.wait().unwrap_err().code(), Code::Aborted);
    }
}

/// Provides memory for a tensor of so many bytes, or none.
type Brings = fn(&Task, usize) -> Option<Buffer>;

const MEMORIES: [Brings; 3] =
    [|_, _| None, |task, len| Some(task.alloc(len).unwrap()), |_, len| Some(Buffer::from_vec(vec![0; len]))];

#[test]
fn a_tensor_that_came_for_a_recv_that_was_given_up_is_the_next_ones() {
    let (_directory, _daemon, task) = attached();
    let lands = MEMORIES.iter().flat_map(|first| MEMORIES.iter().map(move |then| (first, then)));
    let cases = [10, 10_000].into_iter().flat_map(|len| lands.clone().map(move |lands| (len, lands)));
    for (case, (len, (first, then))) in cases.enumerate() {
        // The tensor is taken from the ring before the recv is dropped, before the next recv is made, or after that.
        for order in 0..3 {
            let (step, seed) = (case as i64, case as u64 * 3 + order);
            let ask = |brings: &Brings| {
                let (timeout, destination) = (Some(LONG / 6), brings(&task, len).map(Into::into));
                task.recv_with(TASK, step, "key", RecvOptions { timeout, destination, ..RecvOptions::default() })
            };
            let given_up = ask(first);
            let sending = task.send(TASK, step, "key", tensor(len, seed));
            let next = match order {
                0 => {
                    sending.wait().unwrap();
                    drop(given_up);
                    ask(then)
                }
                1 => {
                    drop(given_up);
                    sending.wait().unwrap();
                    ask(then)
                }
                _ => {
                    drop((given_up, sending));
                    ask(then)
                }
            };
            let next = next.wait().unwrap_or_else(|late| panic!("{len} bytes, order {order}: {}", late.error));
            assert_eq!(next.bytes(), bytes(len, seed), "{len} bytes, order {order}");
        }
    }
    until_there_is_room(&task, 4 << 20);
}

#[test]
fn what_came_for_a_recv_that_was_given_up_waits_for_room_and_ends_with_its_step() {
    let (_directory, _daemon, task) = attached();
    let soon = || RecvOptions { timeout: Some(Duration::from_millis(20)), destination: None, ..RecvOptions::default() };
    for (abort, code) in [(false, Code::DeadlineExceeded), (true, Code::Aborted)] {
        let given_up = task.recv(TASK, 1, "key");
        task.send(TASK, 1, "key", tensor(10, 1)).wait().unwrap();
        drop(given_up);
        let small = task.recv_into(TASK, 1, "key", Buffer::from_vec(vec![0; 9])).wait().unwrap_err();
        assert_eq!((small.error.code(), small.destination.map(|small| small.len())), (Code::InvalidArgument, Some(9)));
        assert_eq!(task.recv(TASK, 1, "key").wait().unwrap().bytes(), bytes(10, 1));
        let given_up = task.recv(TASK, 1, "key");
        task.send(TASK, 1, "key", tensor(10, 2)).wait().unwrap();
        drop(given_up);
        if abort { task.abort(1, "enough") } else { task.cleanup(1) }.unwrap();
        let late = task.recv_with(TASK, 1, "key", soon()).wait().unwrap_err().error;
        assert_eq!(late.code(), code, "{late}");
    }
}
