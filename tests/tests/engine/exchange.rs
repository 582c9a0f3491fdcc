//! What is moved: any order, size, type and number, in both directions at once.

use sealane_fusion::{DType, Engine, Tensor, TensorMeta, TypeCode};

use crate::fixture::{assert_empty, bytes, carry, listener, map, port, settings, task, tensor, total, two};

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
fn tasks_of_one_engine_may_have_several_transport_addresses() {
    let [one, other, peer] = [listener(), listener(), listener()];
    let ports = [port(&one), port(&other), port(&peer)];
    let mut both = settings(map(&ports), 0, one);
    both.tasks.push(task(1).parse().unwrap());
    both.listeners.push(other);
    let (both, peer) = (Engine::start(both).unwrap(), Engine::start(settings(map(&ports), 2, peer)).unwrap());
    assert_eq!(both.addresses().len(), 2);
    let engines = [&both, &both, &peer];
    for (step, (from, to)) in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)].into_iter().enumerate() {
        carry((engines[from], from), (engines[to], to), step as i64, 100);
    }
    // The peer knows two addresses and has a link to each; on the other side both are links to one peer.
    assert_eq!((total(&both).links, total(&peer).links), (2, 2));
    assert_empty(&both);
}
