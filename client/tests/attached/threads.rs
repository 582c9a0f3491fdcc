//! Many threads and futures on one attachment.

use std::time::Duration;

use sealane::{Polling, RecvOptions};

use crate::fixture::{TASK, attached, attached_with, block_on, bytes, peers, tensor};

/// Threads that send and receive at once, some blocking, some awaiting.
fn crowd(polling: Polling, threads: u64, rounds: i64) {
    let (_directory, daemon, task) = attached_with(|attach| attach.polling(polling));
    std::thread::scope(|scope| {
        for (thread, peer) in (0..threads).zip(peers()) {
            let task = task.clone();
            let echo = daemon.engine.task(&peer).unwrap();
            scope.spawn(move || {
                for step in 0..rounds {
                    let tensor = echo.recv(TASK, step, "key").wait().unwrap();
                    echo.send(TASK, step, "key", tensor).wait().unwrap();
                }
            });
            scope.spawn(move || {
                for step in 0..rounds {
                    let len = [64, 2000, 20_000][(step % 3) as usize];
                    let sending = task.send(&peer, step, "key", tensor(len, thread));
                    let receiving = task.recv(&peer, step, "key");
                    let arrived = match thread % 3 {
                        0 => receiving.wait(),
                        1 => block_on(receiving),
                        _ => task.waiter().block_on(receiving, Duration::MAX).unwrap(),
                    };
                    assert_eq!(arrived.unwrap().bytes(), bytes(len, thread));
                    if thread.is_multiple_of(2) { block_on(sending).unwrap() } else { sending.wait().unwrap() }
                }
            });
        }
    });
    drop(task);
    daemon.until_detached(TASK);
}

#[test]
fn threads_have_their_tensors_however_they_wait() {
    for (polling, threads, rounds) in [(Polling::default(), 6, 100), (Polling::Park, 6, 100), (Polling::Spin, 3, 30)] {
        crowd(polling, threads, rounds);
    }
}

#[test]
fn whoever_listens_hands_over_to_those_who_still_wait() {
    let (_directory, _daemon, task) = attached_with(|attach| attach.polling(Polling::Park));
    for round in 0..20 {
        let waiting: Vec<_> = (0..4)
            .map(|number| {
                let receiving = task.recv(TASK, round, &number.to_string());
                std::thread::spawn(move || receiving.wait().unwrap())
            })
            .collect();
        // In an order unrelated to the receivers. Nobody waits for the sends.
        for number in [2, 0, 3, 1] {
            drop(task.send(TASK, round, &number.to_string(), tensor(64, number)));
        }
        for (number, waiting) in waiting.into_iter().enumerate() {
            assert_eq!(waiting.join().unwrap().bytes(), bytes(64, number as u64));
        }
    }
}

#[test]
fn a_tensor_may_be_dropped_by_any_thread_at_any_time() {
    let (_directory, daemon, task) = attached();
    let (arrived, to_drop) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || to_drop.into_iter().for_each(drop::<sealane::Tensor>));
        for step in 0..50 {
            let keys: Vec<String> = (0..20).map(|key| key.to_string()).collect();
            let sendings = task.send_all(TASK, step, keys.iter().map(|key| (key, tensor(5000, 1))));
            for receiving in task.recv_all(TASK, step, keys.iter().map(|key| (key, RecvOptions::default()))) {
                // The area holds only a few steps, so a slow dropper may leave it full.
                match receiving.wait() {
                    Ok(tensor) => arrived.send(tensor).unwrap(),
                    Err(unreceived) => assert!(unreceived.to_string().contains("area"), "{unreceived}"),
                }
            }
            drop(sendings);
        }
        drop(arrived);
    });
    drop(task);
    daemon.until_detached(TASK);
}
