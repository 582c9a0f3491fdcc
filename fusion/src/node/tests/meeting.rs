//! Sends and recvs that meet.

use std::task::{Poll, Waker};

use super::*;

const PS: (usize, &str) = (0, "ps:1");
const WORKER: (usize, &str) = (1, "worker:1");

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
fn futures_wait_in_cells() {
    let mut net = Net::pair();
    let (there, here) = (net.number(0, "ps:1", "worker:1"), net.number(1, "worker:1", "ps:1"));
    let deadline = net.now + SOON;
    let (sending, receiving) = (net.nodes[0].open_send(), net.nodes[1].open_recv());
    let tensor = Tensor::from_elements(&[1], &[5_u8]).unwrap();
    net.nodes[0].send(there, 1, "w", tensor, deadline, SendWaiter::Cell(sending));
    net.nodes[1].recv(net.now, request(here, "w", deadline, RecvWaiter::Cell(receiving)));
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
    let ticket = net.nodes[1].recv(net.now, request(here, "w", net.now + SOON, RecvWaiter::Cell(cell)));
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
