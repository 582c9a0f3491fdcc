//! A full resource is reported with its limit and a remedy, and works again afterwards.

use std::time::Duration;

use sealane::{Attach, Buffer, Code, Error, Receiving, RecvOptions, SendOptions, Sending};

use crate::{
    daemon::{Daemon, Settings},
    fixture::{TASK, attached, bytes, directory, peers, tensor, to, to_as, until_there_is_room},
};

fn limit(error: &Error) -> &str {
    match error {
        Error::ResourceExhausted { limit, .. } => limit,
        other => panic!("{other}"),
    }
}

#[test]
fn a_full_arena_says_how_much_is_free_and_how_to_raise_it() {
    let (_directory, _daemon, task) = attached();
    let half = task.alloc(2 << 20).unwrap();
    let error = task.alloc(3 << 20).unwrap_err();
    assert_eq!(limit(&error), "client arena_bytes");
    let text = error.to_string();
    for part in
        ["3145728 bytes were wanted", "2097152 of the arena's 4194304 are free", "arena_bytes of attach() in Python"]
    {
        assert!(text.contains(part), "{text}");
    }
    // Calls that would have to copy into the arena fail in the same way, and return their memory.
    let error = task.send(TASK, 1, "key", tensor(3 << 20, 1)).wait().unwrap_err();
    assert_eq!(limit(&error), "client arena_bytes");
    let unreceived = task.recv_into(TASK, 1, "key", Buffer::from_vec(vec![0; 3 << 20])).wait().unwrap_err();
    assert_eq!(limit(&unreceived.error), "client arena_bytes");
    assert_eq!(unreceived.destination.unwrap().len(), 3 << 20);
    drop(half);
    let _full = task.alloc(4 << 20).unwrap();
    // What travels in the ring needs no arena.
    let sending = task.send(TASK, 1, "small", tensor(512, 7));
    assert_eq!(task.recv(TASK, 1, "small").wait().unwrap().bytes(), bytes(512, 7));
    sending.wait().unwrap();
    assert_eq!(limit(&task.send(TASK, 1, "large", tensor(513, 7)).wait().unwrap_err()), "client arena_bytes");
}

#[test]
fn a_first_model_fits_where_nobody_said_how_much() {
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings::default());
    let task = Attach::new(TASK).socket(&daemon.socket).attach().unwrap();
    // An embedding, beside what is sent and received.
    let _embedding = task.alloc(400_000_000).unwrap();
    let sending = task.send(TASK, 1, "60 MB", tensor(60_000_000, 3));
    let place = task.alloc(60_000_000).unwrap();
    assert_eq!(task.recv_into(TASK, 1, "60 MB", place).wait().unwrap().bytes(), bytes(60_000_000, 3));
    sending.wait().unwrap();
    let text = task.alloc(1 << 40).unwrap_err().to_string();
    let part = "the arena has 536870912 bytes: attach with a larger arena (arena_bytes of attach() in Python";
    assert!(text.contains(part), "{text}");
}

#[test]
fn in_a_batch_only_those_without_room_fail() {
    let (_directory, _daemon, task) = attached();
    let lens = [64, 3 << 20, 64, 2 << 20, 64];
    let tensors = lens.iter().enumerate().map(|(key, len)| (key.to_string(), tensor(*len, key as u64)));
    let mut failed = Vec::new();
    for (key, mut sending) in task.send_all(TASK, 1, tensors).into_iter().enumerate() {
        match sending.try_outcome() {
            Some(outcome) => {
                assert_eq!(limit(&outcome.unwrap_err()), "client arena_bytes");
                failed.push(key);
            }
            None => {
                assert_eq!(task.recv(TASK, 1, &key.to_string()).wait().unwrap().bytes(), bytes(lens[key], key as u64))
            }
        }
    }
    assert_eq!(failed, [3]);

    let _most = task.alloc(3 << 20).unwrap();
    let destinations = [(2 << 20), 1000].map(|len| {
        (
            "key",
            RecvOptions {
                destination: Some(Buffer::from_vec(vec![0; len]).into()),
                timeout: None,
                ..RecvOptions::default()
            },
        )
    });
    let mut receivings = task.recv_all(TASK, 2, destinations);
    let refused = receivings[0].try_outcome().unwrap().unwrap_err();
    assert_eq!(limit(&refused.error), "client arena_bytes");
    assert_eq!(refused.destination.unwrap().len(), 2 << 20);
    assert!(receivings[1].try_outcome().is_none());
}

#[test]
fn memory_comes_back_to_one_who_only_sends() {
    let (_directory, daemon, task) = attached();
    let peer = &peers()[0];
    let receiver = to_as(&daemon, peer).attach().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..50).for_each(|step| drop(receiver.recv(TASK, step, "key").wait().unwrap())));
        for step in 0..50 {
            until_there_is_room(&task, 1 << 20);
            let mut sending = task.send(peer, step, "key", tensor(1 << 20, 1));
            assert!(sending.try_outcome().is_none_or(|outcome| outcome.is_ok()));
        }
    });
}

#[test]
fn a_ring_that_nobody_reads_is_full_and_then_is_not() {
    let (_directory, daemon, task) = attached();
    let held = daemon.hold();
    let timeout = Some(Duration::from_millis(300));
    let mut refused = None;
    let mut under_way = Vec::new();
    for key in 0..5000 {
        let mut sending = task.send_with(TASK, 1, &key.to_string(), tensor(64, 1), SendOptions { timeout });
        match sending.try_outcome() {
            Some(outcome) => {
                refused = Some(outcome.unwrap_err());
                break;
            }
            None => under_way.push(sending),
        }
    }
    assert_eq!(limit(&refused.expect("a ring has a size")), "submission ring");
    drop(held);
    for sending in under_way {
        // Its timeout starts when it is read.
        assert_eq!(sending.wait().unwrap_err().code(), Code::DeadlineExceeded);
    }
    drop(task.send(TASK, 2, "key", tensor(64, 1)));
    task.recv(TASK, 2, "key").wait().unwrap();
}

#[test]
fn keys_names_and_tensors_that_are_too_long_are_refused() {
    let (_directory, _daemon, task) = attached();
    let long = "k".repeat(5000);
    let error = task.recv(TASK, 1, &long).wait().unwrap_err().error;
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.to_string().contains("key of length 5000"), "{error}");
    assert_eq!(task.send(TASK, 1, &long, tensor(10, 1)).wait().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(task.send(&long, 1, "key", tensor(10, 1)).wait().unwrap_err().code(), Code::InvalidArgument);
    let destination = task.alloc(10).unwrap();
    let unreceived = task.recv_into(&long, 1, "key", destination).wait().unwrap_err();
    assert_eq!(unreceived.error.code(), Code::InvalidArgument);
    assert_eq!(unreceived.destination.unwrap().len(), 10);
    let error = task.send(TASK, 1, "key", tensor((64 << 20) + 1, 1)).wait().unwrap_err();
    assert_eq!(limit(&error), "transport.tensor_bytes_max");
    // None of these calls has left anything behind.
    task.alloc(4 << 20).unwrap();
}

#[test]
fn a_recv_that_is_dropped_is_given_up() {
    let (_directory, daemon, task) = attached();
    let receiving = task.recv_into(TASK, 1, "key", task.alloc(4 << 20).unwrap());
    daemon.until_under_way(1);
    drop(receiving);
    daemon.until_under_way(0);
    // The next recv gets the tensor.
    let sending = task.send(TASK, 1, "key", tensor(64, 1));
    assert_eq!(task.recv(TASK, 1, "key").wait().unwrap().bytes(), bytes(64, 1));
    sending.wait().unwrap();
    task.alloc(4 << 20).expect("its memory came back");
}

#[test]
fn an_outcome_that_nobody_asks_for_gives_its_memory_back_when_its_step_is_over() {
    let (_directory, _daemon, task) = attached();
    for step in 0..20 {
        // Together they fill the receive area four times over.
        let sending = task.send(TASK, step, "key", tensor(1 << 20, 1));
        let receiving = task.recv(TASK, step, "key");
        sending.wait().unwrap();
        drop(receiving);
        task.cleanup(step).unwrap();
    }
}

#[test]
fn the_last_clone_says_goodbye() {
    let (_directory, daemon, task) = attached();
    let clone = task.clone();
    let receiving = task.recv(TASK, 1, "key");
    let awaited = task.recv(TASK, 2, "key");
    let waiting = std::thread::spawn(|| receiving.wait().unwrap_err().error);
    let awaiting = std::thread::spawn(|| crate::fixture::block_on(awaited).unwrap_err().error);
    daemon.until_under_way(2);
    drop(task);
    assert_eq!(daemon.under_way(), 2);
    drop(clone);
    daemon.until_detached(TASK);
    for ended in [waiting, awaiting] {
        let error = ended.join().unwrap();
        assert_eq!(error.code(), Code::Unavailable);
        assert!(error.to_string().contains("dropped"), "{error}");
    }
}

#[test]
fn list_of_too_many_calls_is_refused_as_a_whole() {
    // As many as one shard keeps of a task.
    const MOST: usize = 16_384;
    let directory = directory();
    let daemon = Daemon::start(&directory, Settings { shards: 1, ..Settings::default() });
    let task = to(&daemon).attach().unwrap();
    let wanted = |count: usize| (0..count).map(|key| (key.to_string(), RecvOptions::default()));
    let tensors = |count: usize| (0..count).map(|key| (key.to_string(), tensor(8, 1)));
    let is_refused = |error: &Error| {
        error.code() == Code::ResourceExhausted && error.to_string().contains("none of the list was begun")
    };
    let waiting: Vec<_> = (0..100).map(|key| task.recv(TASK, 1, &format!("waiting {key}"))).collect();
    for count in [MOST + 1, MOST - 99] {
        let refused = Sending::wait_all(task.send_all(TASK, 2, tensors(count)));
        assert!(refused.len() == count && refused.iter().all(|sent| sent.as_ref().is_err_and(is_refused)));
        let refused = Receiving::wait_all(task.recv_all(TASK, 2, wanted(count)));
        assert!(
            refused.len() == count && refused.iter().all(|got| got.as_ref().is_err_and(|got| is_refused(&got.error)))
        );
        let pushed = task.push_all(TASK, "queue", tensors(count).map(|(_, tensor)| tensor).collect::<Vec<_>>()).wait();
        assert!(is_refused(&pushed.unwrap_err()));
    }
    let options = RecvOptions { timeout: Some(Duration::from_millis(1)), ..RecvOptions::default() };
    assert_eq!(task.recv_with(TASK, 2, "0", options).wait().unwrap_err().error.code(), Code::DeadlineExceeded);
    // What fits goes.
    let receivings = task.recv_all(TASK, 3, wanted((MOST - 100) / 2));
    let sendings = task.send_all(TASK, 3, tensors((MOST - 100) / 2));
    assert!(Receiving::wait_all(receivings).iter().all(|received| received.is_ok()));
    assert!(Sending::wait_all(sendings).iter().all(|sent| sent.is_ok()));
    drop(waiting);
}
