//! Every full resource is a typed error that names its limit, reported to that caller alone; the rest goes on.

use std::sync::mpsc;
use std::time::Duration;

use sealane_fusion::{Code, Error, RecvOptions, SendOptions};

use crate::fixture::{assert_empty, bytes, engines, task, tensor};

fn assert_full(error: &Error, limit: &str) {
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.to_string().contains(limit), "'{error}' does not name {limit}");
}

#[test]
fn a_full_receive_slab_refuses_and_the_tensor_can_be_asked_for_again() {
    let engines = engines(2, |_, settings| settings.slab_receive_bytes = 1 << 20);
    let (ps_task, worker_task) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let sending: Vec<_> = (0..2).map(|key| ps_task.send(&task(1), 1, &key.to_string(), tensor(700_000, key))).collect();
    let first = worker_task.recv(&task(0), 1, "0").wait().unwrap();
    let error = worker_task.recv(&task(0), 1, "1").wait().unwrap_err().error;
    assert_full(&error, "slab_receive_bytes");
    // A recv into the caller's own memory needs no slab; and the slab has room again once the first tensor is dropped.
    drop(first);
    assert_eq!(worker_task.recv(&task(0), 1, "1").wait().unwrap().bytes(), bytes(700_000, 1));
    sending.into_iter().for_each(|sending| sending.wait().unwrap());
    engines.iter().for_each(assert_empty);
}

#[test]
fn requests_and_pending_sends_past_their_limits_are_refused_by_name() {
    let engines = engines(2, |_, settings| {
        settings.session.queued_requests_max = 3;
        settings.pending_sends_max = 2;
    });
    let (ps_task, worker_task) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let waiting: Vec<_> = (0..3).map(|key| worker_task.recv(&task(0), 1, &key.to_string())).collect();
    let error = worker_task.recv(&task(0), 1, "3").wait().unwrap_err().error;
    assert_full(&error, "queued_requests_max");
    let kept: Vec<_> = (10..12).map(|key| ps_task.send(&task(1), 1, &key.to_string(), tensor(10, 0))).collect();
    let error = ps_task.send(&task(1), 1, "12", tensor(10, 0)).wait().unwrap_err();
    assert_full(&error, "pending_sends_max");
    ps_task.abort(1, "done").unwrap();
    for waiting in waiting {
        assert_eq!(waiting.wait().unwrap_err().error.code(), Code::Aborted);
    }
    for kept in kept {
        assert_eq!(kept.wait().unwrap_err().code(), Code::Aborted);
    }
    engines.iter().for_each(assert_empty);
}

#[test]
fn a_full_mailbox_is_said_to_the_caller_and_holds_nobody_up() {
    let engines = engines(2, |_, settings| settings.runtime.mailbox_slots = 4);
    let (hold, held) = mpsc::channel::<()>();
    let (ready, is_ready) = mpsc::channel();
    let busy = engines[0].on_shard(0, async move |_| {
        ready.send(()).unwrap();
        // A task that blocks its shard: the case that the mailbox's limit is for.
        let _ = held.recv();
    });
    is_ready.recv().unwrap();
    let ps_task = engines[0].task(&task(0)).unwrap();
    let sends: Vec<_> = (0..6).map(|key| ps_task.send(&task(1), 1, &key.to_string(), tensor(10, key))).collect();
    drop(hold);
    busy.wait().unwrap();
    let worker_task = engines[1].task(&task(1)).unwrap();
    for (key, sending) in sends.into_iter().enumerate() {
        if key < 4 {
            assert_eq!(worker_task.recv(&task(0), 1, &key.to_string()).wait().unwrap().bytes(), bytes(10, key as u64));
            sending.wait().unwrap();
        } else {
            assert_full(&sending.wait().unwrap_err(), "mailbox_slots");
        }
    }
    engines.iter().for_each(assert_empty);
}

#[test]
fn a_timeout_may_be_without_limit() {
    let engines = engines(2, |_, settings| {
        settings.handshake_timeout = Duration::MAX;
        settings.connect_timeout = Duration::MAX;
        settings.lease = Duration::MAX;
    });
    let timeout = Some(Duration::MAX);
    let (ps_task, worker_task) = (engines[0].task(&task(0)).unwrap(), engines[1].task(&task(1)).unwrap());
    let receiving =
        worker_task.recv_with(&task(0), 1, "w", RecvOptions { timeout, destination: None, ..RecvOptions::default() });
    ps_task.send_with(&task(1), 1, "w", tensor(10, 1), SendOptions { timeout }).wait().unwrap();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(10, 1));

    let producing = engines[0].on_shard(0, async move |shard| {
        let pair = shard.task(&task(0))?.pair(&task(1))?;
        pair.send_with(2, "w", tensor(10, 2), SendOptions { timeout }).await
    });
    let consuming = engines[1].on_shard(0, async move |shard| {
        let pair = shard.task(&task(1))?.pair(&task(0))?;
        let tensor = pair.recv_with(2, "w", RecvOptions { timeout, destination: None, ..RecvOptions::default() }).await;
        tensor.map(|tensor| tensor.bytes().to_vec()).map_err(Error::from)
    });
    assert_eq!(consuming.wait().unwrap(), Ok(bytes(10, 2)));
    producing.wait().unwrap().unwrap();
    engines.iter().for_each(assert_empty);
}
