//! Tensors there and back, from and to every kind of memory.

use std::{collections::HashSet, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use sealane::{Buffer, Code, Polling, RecvOptions, SendOptions, Task, Tensor};

use crate::{
    daemon::{Daemon, LONG, Settings},
    fixture::{TASK, attached, block_on, bytes, directory, meta, peers, tensor, to, until_there_is_room},
};

#[test]
fn tensors_of_all_sizes_arrive_as_they_were_sent() {
    let (_directory, _daemon, task) = attached();
    assert_eq!(task.name(), TASK);
    for (step, len) in [0, 1, 64, 511, 512, 513, 4096, 100_000, 1 << 20].into_iter().enumerate() {
        let step = step as i64 - 3;
        let sending = task.send(TASK, step, "key", tensor(len, 7));
        let arrived = task.recv(TASK, step, "key").wait().unwrap();
        assert_eq!(arrived.meta(), &meta(len));
        assert_eq!(arrived.bytes(), bytes(len, 7), "{len} bytes");
        sending.wait().unwrap();
    }
    let _full = task.alloc(4 << 20).unwrap();
    let sending = task.send(TASK, 1, "small", tensor(512, 7));
    assert_eq!(task.recv(TASK, 1, "small").wait().unwrap().bytes(), bytes(512, 7), "it needs no arena");
    sending.wait().unwrap();
    assert_eq!(task.send(TASK, 1, "large", tensor(513, 7)).wait().unwrap_err().code(), Code::ResourceExhausted);
}

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
fn where_the_arena_lies_is_told() {
    let (_directory, _daemon, task) = attached();
    let arena = task.arena_range().unwrap().unwrap();
    assert_eq!(arena.end.addr() - arena.start.addr(), 4 << 20);
    let memory = task.alloc(1000).unwrap().as_ptr_range();
    assert!(arena.start <= memory.start && memory.end <= arena.end);
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
fn a_destination_comes_back_with_the_tensor() {
    let (_directory, _daemon, task) = attached();
    for len in [0, 64, 10_000] {
        // In the arena.
        let memory = task.alloc(20_000).unwrap();
        let place = memory.as_ptr();
        let receiving = task.recv_into(TASK, 1, "arena", memory);
        task.send(TASK, 1, "arena", tensor(len, 3)).wait().unwrap();
        let arrived = receiving.wait().unwrap();
        assert_eq!(arrived.bytes(), bytes(len, 3));
        assert_eq!(arrived.into_buffer().as_ptr(), place);

        // On the heap.
        let memory = Buffer::from_vec(vec![0; 20_000]);
        let place = memory.as_ptr();
        let receiving = task.recv_into(TASK, 1, "heap", memory);
        task.send(TASK, 1, "heap", tensor(len, 4)).wait().unwrap();
        let arrived = receiving.wait().unwrap();
        assert_eq!(arrived.bytes(), bytes(len, 4));
        assert_eq!(arrived.into_buffer().as_ptr(), place);
    }
    task.alloc(4 << 20).expect("no block of the arena is left behind");
}

#[test]
fn a_destination_that_is_too_small_comes_back_with_the_error() {
    let (_directory, _daemon, task) = attached();
    for memory in [task.alloc(100).unwrap(), Buffer::from_vec(vec![0; 100])] {
        let place = memory.as_ptr();
        let receiving = task.recv_into(TASK, 1, "key", memory);
        let sending = task.send(TASK, 1, "key", tensor(101, 3));
        let unreceived = receiving.wait().unwrap_err();
        assert_eq!(unreceived.error.to_string(), "the destination has 100 bytes, the tensor needs 101");
        assert_eq!(unreceived.destination.unwrap().as_ptr(), place);
        assert_eq!(task.recv(TASK, 1, "key").wait().unwrap().bytes(), bytes(101, 3), "the next recv has the tensor");
        sending.wait().unwrap();
    }
}

#[test]
fn what_was_received_can_be_sent_again() {
    let (_directory, _daemon, task) = attached();
    let mut tensor = tensor(50_000, 9);
    for step in 0..10 {
        let sending = task.send(TASK, step, "key", tensor);
        tensor = task.recv(TASK, step, "key").wait().unwrap();
        sending.wait().unwrap();
    }
    assert_eq!(tensor.bytes(), bytes(50_000, 9));
}

#[test]
fn blocks_of_the_receive_area_go_back() {
    let (_directory, _daemon, task) = attached();
    // Together they fill the area five times over.
    for step in 0..200 {
        let sending = task.send(TASK, step, "key", tensor(100_000, step as u64));
        assert_eq!(task.recv(TASK, step, "key").wait().unwrap().bytes(), bytes(100_000, step as u64));
        sending.wait().unwrap();
    }
}

#[test]
fn tensors_of_a_batch_come_each_for_itself() {
    let (_directory, _daemon, task) = attached();
    let keys: Vec<String> = (0..3000).map(|number| format!("tensor/{number}")).collect();
    let len = |index: usize| if index.is_multiple_of(100) { 5000 } else { 64 };
    let receivings = task.recv_all(TASK, 1, keys.iter().map(|key| (key, RecvOptions::default())));
    let tensors = keys.iter().enumerate().map(|(index, key)| (key, tensor(len(index), index as u64)));
    let sendings = task.send_all(TASK, 1, tensors);
    assert_eq!((receivings.len(), sendings.len()), (3000, 3000));
    for (index, receiving) in receivings.into_iter().enumerate() {
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(len(index), index as u64));
    }
    for sending in sendings {
        sending.wait().unwrap();
    }
}

#[test]
fn calls_can_be_awaited() {
    let (_directory, _daemon, task) = attached();
    for polling in [Polling::default(), Polling::Spin, Polling::Park] {
        let directory = directory();
        let daemon = Daemon::start(&directory, Settings::default());
        let task = to(&daemon).polling(polling).attach().unwrap();
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
fn a_call_can_be_looked_at_and_then_waited_for() {
    let (_directory, daemon, task) = attached();
    let mut receiving = task.recv(TASK, 1, "key");
    daemon.until_under_way(1);
    assert!(receiving.try_outcome().is_none());
    let mut sending = task.send(TASK, 1, "key", tensor(10, 1));
    let outcome = loop {
        if let Some(outcome) = sending.try_outcome() {
            break outcome;
        }
        std::thread::yield_now();
    };
    outcome.unwrap();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, 1));
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
fn every_polling_moves_tensors() {
    for polling in [Polling::Spin, Polling::Park] {
        let directory = directory();
        let daemon = Daemon::start(&directory, Settings::default());
        let task = to(&daemon).polling(polling).attach().unwrap();
        for step in 0..300 {
            drop(task.send(TASK, step, "key", tensor(64, step as u64)));
            assert_eq!(task.recv(TASK, step, "key").wait().unwrap().bytes(), bytes(64, step as u64));
        }
    }
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

#[test]
fn deadlines_are_the_daemons_to_keep() {
    let (_directory, _daemon, task) = attached();
    let timeout = Some(Duration::from_millis(1));
    let recv = task.recv_with(TASK, 5, "late", RecvOptions { timeout, destination: None, ..RecvOptions::default() });
    let send = task.send_with(TASK, 6, "late", tensor(10, 1), SendOptions { timeout });
    let error = recv.wait().unwrap_err().error;
    assert!(error.to_string().starts_with("recv of step 5 key 'late' waited"), "{error}");
    assert_eq!(send.wait().unwrap_err().code(), Code::DeadlineExceeded);
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
                let (timeout, destination) = (Some(LONG / 6), brings(&task, len));
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
