//! Sends and recvs that meet.

use std::task::{Poll, Waker};

use super::*;
use sealane_transport::tensor::DType;

const PS: (usize, &str) = (0, "ps:1");
const WORKER: (usize, &str) = (1, "worker:1");

#[test]
fn a_recv_waits_for_its_send() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert!(asked.waits());
    assert_eq!(net.nodes[0].counters().parked, 1);
    let sent = net.send(PS, "worker:1", "w", &[1, 2, 3]);
    net.rest();
    assert_eq!(asked.bytes(), [1, 2, 3]);
    assert_eq!(sent.outcome(), Ok(()));
    net.nothing_is_left();
}

#[test]
fn a_send_waits_for_its_recv() {
    let mut net = Net::pair();
    let sent = net.send(PS, "worker:1", "w", &[7; 50_000]);
    net.rest();
    assert!(sent.waits());
    assert_eq!(net.nodes[0].counters().pending_sends, 1);
    assert_eq!(net.nodes[0].counters().links, 0, "only who asks needs a connection");
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!(asked.bytes(), [7; 50_000]);
    assert_eq!(sent.outcome(), Ok(()));
    net.nothing_is_left();
}

#[test]
fn what_was_moved_is_counted_on_both_sides() {
    let mut net = Net::pair();
    let sizes = [0, 10, 20_000];
    for size in sizes {
        let key = size.to_string();
        let asked = net.recv(WORKER, "ps:1", &key);
        let sent = net.send(PS, "worker:1", &key, &vec![1; size]);
        net.rest();
        assert_eq!((asked.bytes().len(), sent.outcome()), (size, Ok(())));
    }
    let (ps, worker) = (net.nodes[0].counters(), net.nodes[1].counters());
    assert_eq!((ps.tensors_sent, ps.bytes_sent, ps.tensors_received), (3, 20_010, 0));
    assert_eq!((worker.tensors_received, worker.bytes_received, worker.tensors_sent), (3, 20_010, 0));
    assert_eq!((ps.links, worker.links, ps.links_lost, worker.sessions_reset), (1, 1, 0, 0));
    assert!(ps.writes > 0 && worker.writes > 0);
}

#[test]
fn steps_keys_and_tasks_keep_apart() {
    let mut net = Net::pair();
    let of_one = net.send((0, "ps:1"), "worker:1", "w", &[1]);
    let of_two = net.send((0, "ps:2"), "worker:1", "w", &[2]);
    let of_key = net.send((0, "ps:1"), "worker:1", "v", &[3]);
    let from_two = net.recv(WORKER, "ps:2", "w");
    let of_v = net.recv(WORKER, "ps:1", "v");
    net.rest();
    assert_eq!((from_two.bytes(), of_v.bytes()), (vec![2], vec![3]));
    assert!(of_one.waits());
    assert_eq!((of_two.outcome(), of_key.outcome()), (Ok(()), Ok(())));
}

#[test]
fn a_tensor_lands_in_the_memory_that_the_recv_brought() {
    let mut net = Net::pair();
    let memory = Buffer::from_vec(vec![0; 30_000]);
    let at = memory.as_ptr();
    let asked = net.recv_into(WORKER, "ps:1", "w", Some(memory));
    net.send(PS, "worker:1", "w", &[9; 20_000]);
    net.rest();
    let tensor = asked.outcome().unwrap();
    assert_eq!((tensor.bytes().as_ptr(), tensor.bytes()), (at, &[9; 20_000][..]));
    assert_eq!(net.nodes[1].counters().slab_receive_bytes, 0);
}

#[test]
fn a_dead_tensor_arrives_dead() {
    let mut net = Net::pair();
    let pair = net.number(0, "ps:1", "worker:1");
    let deadline = net.now + SOON;
    net.nodes[0].send(pair, 1, "w", Tensor::dead(DType::F32), deadline, SendWaiter::Nobody);
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let tensor = asked.outcome().unwrap();
    assert!(tensor.meta().is_dead() && tensor.bytes().is_empty());
}

#[test]
fn both_ways_of_leaving_bring_everything() {
    for (fuse, writes) in [(Fuse::Turn, 2..10), (Fuse::Off, 20..60)] {
        let mut net = Net::new([NodeSettings { fuse, ..ps() }, NodeSettings { fuse, ..worker() }]);
        let keys: Vec<_> = (0..20).map(|key| key.to_string()).collect();
        let sent: Vec<_> = keys.iter().map(|key| net.send(PS, "worker:1", key, key.as_bytes())).collect();
        let asked: Vec<_> = keys.iter().map(|key| net.recv(WORKER, "ps:1", key)).collect();
        net.rest();
        for ((key, sent), asked) in keys.iter().zip(sent).zip(asked) {
            assert_eq!((asked.bytes(), sent.outcome()), (key.clone().into_bytes(), Ok(())));
        }
        let count = net.nodes[0].counters().writes;
        assert!(writes.contains(&count), "{fuse:?}: {count} writes");
    }
}

#[test]
fn tasks_of_one_engine_meet_without_a_network() {
    let mut net = Net::new([ps()]);
    for (producer, consumer) in [("ps:1", "ps:2"), ("ps:2", "ps:1"), ("ps:1", "ps:1")] {
        let asked = net.recv((0, consumer), producer, "w");
        let sent = net.send((0, producer), consumer, "w", &[4; 100_000]);
        // The node's own report is the only sign that it wants a turn.
        while net.nodes[0].has_work() {
            net.nodes[0].turn(net.now);
        }
        assert_eq!((asked.bytes(), sent.outcome()), (vec![4; 100_000], Ok(())), "{producer} to {consumer}");
    }
    assert_eq!(net.nodes[0].counters().links, 0);
    net.nothing_is_left();
}

#[test]
fn an_engine_that_was_idle_for_long_still_reaches_itself() {
    let mut net = Net::new([ps()]);
    let first = net.recv((0, "ps:1"), "ps:2", "never sent");
    net.rest();
    net.pass(Duration::from_secs(3600));
    assert_eq!(first.error().code(), Code::DeadlineExceeded);
    let asked = net.recv((0, "ps:1"), "ps:2", "w");
    net.send((0, "ps:2"), "ps:1", "w", &[1]);
    net.rest();
    assert_eq!(asked.bytes(), [1]);
    assert_eq!(net.nodes[0].counters().links_lost, 0);
}

#[test]
fn futures_wait_in_cells() {
    let mut net = Net::pair();
    let (there, here) = (net.number(0, "ps:1", "worker:1"), net.number(1, "worker:1", "ps:1"));
    let deadline = net.now + SOON;
    let (sending, receiving) = (net.nodes[0].open_send(), net.nodes[1].open_recv());
    let tensor = Tensor::from_elements(&[1], &[5_u8]).unwrap();
    net.nodes[0].send(there, 1, "w", tensor, deadline, SendWaiter::Cell(sending));
    let waiter = RecvWaiter::Cell(receiving);
    let request = RecvRequest {
        pair: here,
        step: 1,
        key: "w",
        deadline,
        destination: None,
        waiter,
        fused: false,
        fail_if_gone: false,
    };
    net.nodes[1].recv(net.now, request);
    let waker = Waker::noop();
    assert!(net.nodes[0].poll_send(sending, waker).is_pending());
    assert!(net.nodes[1].poll_recv(receiving, waker).is_pending());
    net.rest();
    let mut wakers = Vec::new();
    net.nodes.iter_mut().for_each(|node| node.take_wakers(&mut wakers));
    assert_eq!(wakers.len(), 2);
    assert!(matches!(net.nodes[0].poll_send(sending, waker), Poll::Ready(Ok(()))));
    let Poll::Ready(Ok(tensor)) = net.nodes[1].poll_recv(receiving, waker) else { panic!("the tensor is there") };
    assert_eq!(tensor.bytes(), [5]);
}

#[test]
fn a_future_that_is_dropped_gives_its_recv_up() {
    let mut net = Net::pair();
    let here = net.number(1, "worker:1", "ps:1");
    let cell = net.nodes[1].open_recv();
    let (deadline, waiter) = (net.now + SOON, RecvWaiter::Cell(cell));
    let request = RecvRequest {
        pair: here,
        step: 1,
        key: "w",
        deadline,
        destination: None,
        waiter,
        fused: false,
        fail_if_gone: false,
    };
    let ticket = net.nodes[1].recv(net.now, request);
    net.rest();
    net.nodes[1].close_recv(cell, ticket);
    net.rest();
    assert_eq!(net.nodes[0].counters().parked, 0);
    let sent = net.send(PS, "worker:1", "w", &[1]);
    net.rest();
    assert!(sent.waits(), "nobody asks");
    let sending = net.nodes[0].open_send();
    net.nodes[0].close_send(sending);
}
