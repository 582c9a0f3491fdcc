//! What is moved: any order, size, type and number, in both directions at once.

use sealane_fusion::{Buffer, Code, DType, Engine, Tensor, TensorMeta, TypeCode};

use crate::fixture::{assert_empty, bytes, engines, listener, map, port, settings, task, tensor, total, two, until};

#[test]
fn a_send_and_its_recv_meet_in_either_order() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let sending = ps_task.send(&task(1), 1, "first", tensor(100, 1));
    assert_eq!(worker_task.recv(&task(0), 1, "first").wait().unwrap().bytes(), bytes(100, 1));
    sending.wait().unwrap();
    let receiving = worker_task.recv(&task(0), 1, "second");
    until(&ps, "the request arrives", |counters| counters.parked == 1);
    ps_task.send(&task(1), 1, "second", tensor(100, 2)).wait().unwrap();
    assert_eq!(receiving.wait().unwrap().bytes(), bytes(100, 2));
    assert_empty(&ps);
    assert_empty(&worker);
}

#[test]
fn every_size_arrives_whole_with_and_without_a_destination() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    for (step, len) in
        [0, 1, 63, 64, 8191, 8192, 8193, 65_535, 65_536, 65_537, 1 << 20, 5_000_001].into_iter().enumerate()
    {
        let step = step as i64;
        let sent =
            [ps_task.send(&task(1), step, "slab", tensor(len, 7)), ps_task.send(&task(1), step, "own", tensor(len, 8))];
        let in_slab = worker_task.recv(&task(0), step, "slab").wait().unwrap();
        let own = Buffer::from_vec(vec![0; len + 3]);
        let in_own = worker_task.recv_into(&task(0), step, "own", own).wait().unwrap();
        assert!(in_slab.bytes() == bytes(len, 7) && in_own.bytes() == bytes(len, 8), "{len} bytes differ");
        sent.into_iter().for_each(|sending| sending.wait().unwrap());
    }
    assert_empty(&worker);
}

#[test]
fn types_shapes_dead_tensors_and_strings_keep_what_they_are() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let of = |dtype: DType, shape: &[u64], len: usize| {
        Tensor::new(TensorMeta::new(dtype, shape).unwrap(), bytes(len, 3)).unwrap()
    };
    let deep = vec![1_u64; 254];
    let tensors = [
        ("scalar", of(DType::F64, &[], 8)),
        ("deep", of(DType::BF16, &deep, 2)),
        ("int4", of(DType::scalar(TypeCode::Int, 4), &[5], 3)),
        ("lanes", of(DType { code: TypeCode::Float, bits: 32, lanes: 4 }, &[2], 32)),
        ("empty", of(DType::C128, &[3, 0, 7], 0)),
        ("dead", Tensor::dead(DType::I64)),
        ("strings", Tensor::from_strings(&[2], &["a", "bc"]).unwrap()),
    ];
    for (key, tensor) in tensors {
        let (meta, copy) = (tensor.meta().clone(), tensor.bytes().to_vec());
        let sending = ps_task.send(&task(1), 0, key, tensor);
        let arrived = worker_task.recv(&task(0), 0, key).wait().unwrap();
        assert_eq!((arrived.meta(), arrived.bytes()), (&meta, &copy[..]), "{key}");
        sending.wait().unwrap();
    }
}

#[test]
fn more_requests_than_the_window_are_answered_in_any_order() {
    let engines = engines(2, |_, settings| settings.session.window = 4);
    let (ps, worker) = (&engines[0], &engines[1]);
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let receiving: Vec<_> = (0..200).map(|key| worker_task.recv(&task(0), 1, &key.to_string())).collect();
    // The first requests wait for the last tensors: if they counted against a window, it would never move.
    let sending: Vec<_> =
        (0..200).rev().map(|key| ps_task.send(&task(1), 1, &key.to_string(), tensor(10 + key, key as u64))).collect();
    for (key, receiving) in receiving.into_iter().enumerate() {
        assert_eq!(receiving.wait().unwrap().bytes(), bytes(10 + key, key as u64));
    }
    sending.into_iter().for_each(|sending| sending.wait().unwrap());
    assert_empty(ps);
}

#[test]
fn two_sides_that_call_at_once_settle_on_one_link() {
    for round in 0..20 {
        let (one, other) = two();
        let (one_task, other_task) = (one.task(&task(0)).unwrap(), other.task(&task(1)).unwrap());
        let here = one_task.recv(&task(1), round, "there to here");
        let there = other_task.recv(&task(0), round, "here to there");
        let sending = [
            one_task.send(&task(1), round, "here to there", tensor(1000, 1)),
            other_task.send(&task(0), round, "there to here", tensor(1000, 2)),
        ];
        assert_eq!(here.wait().unwrap().bytes(), bytes(1000, 2));
        assert_eq!(there.wait().unwrap().bytes(), bytes(1000, 1));
        sending.into_iter().for_each(|sending| sending.wait().unwrap());
        assert_eq!((total(&one).links, total(&other).links), (1, 1));
    }
}

#[test]
fn two_tasks_of_one_engine_meet_without_a_link() {
    let listener = crate::fixture::listener();
    let port = crate::fixture::port(&listener);
    let mut settings = crate::fixture::settings(crate::fixture::map(&[port, port]), 0, listener);
    settings.tasks.push(task(1).parse().unwrap());
    let engine = sealane_fusion::Engine::start(settings).unwrap();
    let (one, other) = (engine.task(&task(0)).unwrap(), engine.task(&task(1)).unwrap());
    for (from, to) in [(&one, &other), (&other, &one)] {
        for len in [5, 3_000_000] {
            let early = to.recv(from.name(), len as i64, "early");
            let sending = ["w", "early"].map(|key| from.send(to.name(), len as i64, key, tensor(len, 9)));
            for receiving in [to.recv(from.name(), len as i64, "w"), early] {
                assert_eq!(receiving.wait().unwrap().bytes(), bytes(len, 9));
            }
            sending.into_iter().for_each(|sending| sending.wait().unwrap());
        }
    }
    let counters = crate::fixture::total(&engine);
    assert_eq!((counters.tensors_sent, counters.tensors_received), (8, 8));
    assert_empty(&engine);
}

#[test]
fn tasks_of_one_engine_may_have_several_transport_addresses() {
    let [one, other, peer] = [listener(), listener(), listener()];
    let ports = [port(&one), port(&other), port(&peer)];
    let mut both = settings(map(&ports), 0, one);
    both.tasks.push(task(1).parse().unwrap());
    both.listeners.push(other);
    let (both, peer) = (Engine::start(both).unwrap(), Engine::start(settings(map(&ports), 2, peer)).unwrap());
    assert_eq!(both.addresses().len(), 2);
    let tasks = [both.task(&task(0)).unwrap(), both.task(&task(1)).unwrap(), peer.task(&task(2)).unwrap()];
    for (step, (from, to)) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)].into_iter().enumerate() {
        let sending = tasks[from].send(&task(to), step as i64, "w", tensor(100, step as u64));
        let arrived = tasks[to].recv(&task(from), step as i64, "w").wait().unwrap();
        assert_eq!(arrived.bytes(), bytes(100, step as u64), "{from} to {to}");
        sending.wait().unwrap();
    }
    // The peer knows two addresses and has a link to each; on the other side both are links to one peer.
    assert_eq!((total(&both).links, total(&peer).links), (2, 2));
    assert_empty(&both);
}

#[test]
fn an_abort_ends_both_sides_and_a_cleanup_frees_the_step() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let waiting = worker_task.recv(&task(0), 5, "never sent");
    let kept = ps_task.send(&task(1), 5, "never asked for", tensor(10, 0));
    until(&ps, "the request arrives", |counters| counters.parked == 1 && counters.pending_sends == 1);
    worker_task.abort(5, "the loss is NaN").unwrap();
    let error = waiting.wait().unwrap_err().error;
    assert_eq!((error.code(), error.to_string().contains("the loss is NaN")), (Code::Aborted, true));
    let error = kept.wait().unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("the loss is NaN")), (Code::Aborted, true));
    let late = worker_task.recv(&task(0), 5, "late").wait().unwrap_err().error;
    assert_eq!(late.code(), Code::Aborted);
    // Other steps go on, and the step number may be used again after a cleanup on both sides.
    worker_task.cleanup(5).unwrap();
    ps_task.cleanup(5).unwrap();
    for step in [4, 5] {
        let sending = ps_task.send(&task(1), step, "w", tensor(10, 4));
        assert_eq!(worker_task.recv(&task(0), step, "w").wait().unwrap().bytes(), bytes(10, 4));
        sending.wait().unwrap();
    }
    assert_empty(&ps);
}

#[test]
fn one_send_meets_one_recv() {
    let (ps, worker) = two();
    let (ps_task, worker_task) = (ps.task(&task(0)).unwrap(), worker.task(&task(1)).unwrap());
    let first = ps_task.send(&task(1), 1, "w", tensor(10, 1));
    let second = ps_task.send(&task(1), 1, "w", tensor(10, 2)).wait().unwrap_err();
    assert_eq!(second.code(), Code::InvalidArgument, "{second}");
    assert_eq!(worker_task.recv(&task(0), 1, "w").wait().unwrap().bytes(), bytes(10, 1));
    first.wait().unwrap();
    let _waits = worker_task.recv(&task(0), 2, "w");
    until(&ps, "the request arrives", |counters| counters.parked == 1);
    let second = worker_task.recv(&task(0), 2, "w").wait().unwrap_err().error;
    assert_eq!(second.code(), Code::InvalidArgument, "{second}");
}
