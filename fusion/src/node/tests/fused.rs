//! Fused receives: asked for together, each tensor with its own outcome.

use std::task::{Context, Poll, Waker};

use super::*;
use crate::node::{BatchWaiter, FusedRequest};

const KEYS: [&str; 4] = ["a", "b", "c", "d"];

const WORKER: (usize, &str) = (1, "worker:1");

fn ask(net: &mut Net, at: (usize, &str), keys: &[&str], destinations: Vec<Buffer>) -> Handle {
    let pair = net.number(at.0, at.1, "ps:1");
    let (deadline, waiter) = (net.now + SOON, BatchWaiter::Future(None));
    let keys = keys.iter().copied();
    net.nodes[at.0].recv_fused(net.now, FusedRequest { pair, step: 1, keys, destinations, deadline, waiter })
}

/// The outcomes of a fused receive, once all have ended.
fn come(net: &mut Net, node: usize, batch: Handle) -> Option<Vec<RecvOutcome>> {
    match net.nodes[node].poll_batch(batch, Waker::noop()) {
        Poll::Ready(outcomes) => Some(outcomes),
        Poll::Pending => None,
    }
}

#[test]
fn all_come_in_the_order_of_their_keys_whatever_order_they_were_sent_in() {
    let mut net = Net::pair();
    let sent: Vec<_> = ["d", "b"].map(|key| net.send((0, "ps:1"), "worker:1", key, key.as_bytes())).into();
    let asked = ask(&mut net, WORKER, &KEYS, Vec::new());
    net.rest();
    assert!(come(&mut net, 1, asked).is_none(), "two are missing");
    let more: Vec<_> = ["a", "c"].map(|key| net.send((0, "ps:1"), "worker:1", key, key.as_bytes())).into();
    net.rest();
    let tensors: Vec<_> = come(&mut net, 1, asked).unwrap().into_iter().map(|outcome| outcome.unwrap()).collect();
    assert_eq!(tensors.iter().map(|tensor| tensor.bytes()).collect::<Vec<_>>(), KEYS.map(str::as_bytes));
    drop(tensors);
    net.rest();
    sent.iter().chain(&more).for_each(|sent| sent.outcome().unwrap());
    net.nothing_is_left();
}

#[test]
fn they_do_not_wait_for_the_window_and_share_messages() {
    let narrow = SessionLimits { window: 1, ..SessionLimits::default() };
    let mut net = Net::new([ps(), NodeSettings { session: narrow, ..worker() }]);
    let keys: Vec<String> = (0..100).map(|number| format!("key/{number}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    keys.iter().for_each(|key| drop(net.send((0, "ps:1"), "worker:1", key, &[7; 16])));
    let asked = ask(&mut net, WORKER, &keys, Vec::new());
    net.rest();
    assert!(come(&mut net, 1, asked).unwrap().into_iter().all(|outcome| outcome.is_ok()));
    let messages: u64 = net.nodes.iter().map(|node| node.counters().messages_sent).sum();
    assert!(messages < 20, "{messages} messages for 100 tensors");
}

#[test]
fn what_is_late_fails_alone() {
    let mut net = Net::pair();
    let _sent = net.send((0, "ps:1"), "worker:1", "a", &[1]);
    let asked = ask(&mut net, WORKER, &["a", "never"], vec![Buffer::of_len(4), Buffer::of_len(4)]);
    net.rest();
    net.pass(SOON);
    let outcomes = come(&mut net, 1, asked).unwrap();
    assert_eq!(outcomes[0].as_ref().unwrap().bytes(), [1]);
    let late = outcomes[1].as_ref().unwrap_err();
    assert_eq!(
        (late.error.code(), late.destination.as_ref().map(|memory| memory.len())),
        (Code::DeadlineExceeded, Some(4))
    );
}

#[test]
fn a_future_takes_them_as_they_come_and_gives_up_the_rest() {
    let mut net = Net::pair();
    let batch = ask(&mut net, WORKER, &KEYS, Vec::new());
    let context = Context::from_waker(Waker::noop());
    let next = |net: &mut Net| net.nodes[1].poll_next_of(batch, context.waker());
    assert!(next(&mut net).is_pending());
    let sent = net.send((0, "ps:1"), "worker:1", "c", &[3]);
    net.rest();
    let Poll::Ready(Some((2, Ok(tensor)))) = next(&mut net) else { panic!("the third has come") };
    assert_eq!(tensor.bytes(), [3]);
    drop(tensor);
    net.nodes[1].close_batch(batch);
    net.rest();
    sent.outcome().unwrap();
    net.nothing_is_left();
}

#[test]
fn tasks_of_one_node_meet_in_batches_too() {
    let mut net = Net::new([ps(), worker()]);
    let asked = ask(&mut net, (0, "ps:2"), &KEYS, Vec::new());
    let sent: Vec<_> = KEYS.map(|key| net.send((0, "ps:1"), "ps:2", key, key.as_bytes())).into();
    net.rest();
    assert!(come(&mut net, 0, asked).unwrap().into_iter().all(|outcome| outcome.is_ok()));
    sent.iter().for_each(|sent| sent.outcome().unwrap());
}

#[test]
fn one_that_is_given_up_gives_back_what_comes() {
    let mut net = Net::pair();
    let asked = ask(&mut net, WORKER, &["a", "b"], Vec::new());
    let _first = net.send((0, "ps:1"), "worker:1", "a", &[1; 1000]);
    net.rest();
    assert!(net.nodes[1].counters().slab_receive_bytes > 0, "the first has come, and waits for the other");
    net.nodes[1].close_batch(asked);
    let sent = net.send((0, "ps:1"), "worker:1", "b", &[2; 1000]);
    net.rest();
    assert!(sent.waits());
    assert_eq!(net.nodes[1].counters().slab_receive_bytes, 0);
    let again = net.recv(WORKER, "ps:1", "b");
    net.pass(crate::limits::REQUEST_DELAY);
    assert_eq!((again.bytes(), sent.outcome()), (vec![2; 1000], Ok(())));
}
