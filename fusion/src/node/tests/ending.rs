//! Sends and recvs that end without meeting: deadlines, duplicates, limits, steps that end.

use super::super::{ClientCall, ClientOutcome, ClientOutcomes};
use super::*;
use crate::limits::REQUEST_DELAY;
use crate::metrics::Operation;

const PS: (usize, &str) = (0, "ps:1");
const WORKER: (usize, &str) = (1, "worker:1");

/// Too large to be sent ahead of its request.
const LARGE: usize = sealane_transport::limits::AHEAD_TENSOR_BYTES + 1;

#[test]
fn a_recv_ends_at_its_deadline_and_the_producer_forgets_it() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(SOON - Duration::from_millis(1));
    assert!(asked.waits());
    net.pass(Duration::from_millis(1));
    let error = asked.error();
    assert_eq!(error.code(), Code::DeadlineExceeded);
    let whom = "ps:1 at 10.0.0.1:7000: connected, but nobody there has sent it";
    assert_eq!(error.to_string(), format!("recv of step 1 key 'w' waited 5s and its deadline passed: {whom}"));
    net.nothing_is_left();
}

#[test]
fn a_send_ends_at_its_deadline() {
    let mut net = Net::pair();
    let sent = net.send(PS, "worker:1", "w", &[1]);
    assert_eq!(net.nodes[0].next_timeout(), Some(net.now + SOON));
    net.pass(SOON);
    let whom = "worker:1 at 10.0.0.2:7000: not connected, and nobody there has asked for it";
    let error = sent.error();
    let Error::DeadlineExceeded(late) = &error else { panic!("{error}") };
    assert_eq!((late.operation, late.step, &*late.awaited), (Operation::Send, 1, whom));
    net.nothing_is_left();
}

/// A tensor that `ps:1` has sent, and that `worker:1` has not read by the send's deadline.
fn late(net: &mut Net, waiter: SendWaiter) -> Asked {
    let (warm, asked) = (net.send(PS, "worker:1", "warm", &[1]), net.recv(WORKER, "ps:1", "warm"));
    net.rest();
    assert_eq!((asked.bytes(), warm.outcome()), (vec![1], Ok(())));
    let (pair, deadline) = (net.number(0, "ps:1", "worker:1"), net.now + SOON);
    let large = Tensor::from_elements(&[LARGE as u64], &[7_u8; LARGE]).unwrap();
    net.nodes[0].send(pair, 1, "w", large, deadline, waiter);
    net.pass(SOON / 2);
    let asked = net.recv(WORKER, "ps:1", "w");
    net.nodes[1].turn(net.now);
    for _ in 0..2 {
        net.nodes[0].turn(net.now);
    }
    net.now = deadline;
    net.nodes[0].turn(net.now);
    asked
}

#[test]
fn a_send_on_its_way_at_its_deadline_ends_then_and_its_books_are_settled_later() {
    for given_up in [false, true] {
        let mut net = Net::pair();
        let (sender, sent) = oneshot::channel();
        let asked = late(&mut net, SendWaiter::Channel(sender));
        let sent = Sent(sent);
        let error = sent.error();
        let Error::DeadlineExceeded(late) = &error else { panic!("{error}") };
        assert_eq!((late.operation, late.delivery_unknown), (Operation::Send, true));
        assert!(error.to_string().contains("delivery unknown"), "{error}");
        assert_eq!(net.nodes[0].counters().pending_sends, 1, "the engine has it until it is released");
        if given_up {
            net.nodes[1].cancel(asked.ticket.unwrap());
            net.rest();
            let (anew, next) = (net.send(PS, "worker:1", "w", &[8]), net.recv(WORKER, "ps:1", "w"));
            net.rest();
            assert_eq!((next.bytes(), anew.outcome()), (vec![8], Ok(())), "what came back is nobody's");
        } else {
            net.rest();
            assert_eq!(asked.bytes(), [7; LARGE]);
        }
        net.rest();
        net.nothing_is_left();
    }
}

#[test]
fn a_client_hears_at_the_deadline_of_its_send_and_later_that_its_memory_is_back() {
    let call = ClientCall { client: Handle::from_bits(1 << 32), call: Handle::from_bits(7) };
    let mut net = Net::pair();
    let asked = late(&mut net, SendWaiter::Client(call));
    let mut outcomes = ClientOutcomes::default();
    net.nodes[0].swap_client_outcomes(&mut outcomes);
    let Some((told, ClientOutcome::Late(error))) = outcomes.take_next() else { panic!("it is late") };
    assert_eq!((told, error.code()), (call, Code::DeadlineExceeded));
    assert!(outcomes.take_next().is_none());
    net.rest();
    assert_eq!(asked.bytes(), [7; LARGE]);
    net.nodes[0].swap_client_outcomes(&mut outcomes);
    assert_eq!(outcomes.len(), 1);
    assert!(matches!(outcomes.take_next(), Some((told, ClientOutcome::Returned)) if told == call));
}

#[test]
fn a_recv_may_be_given_up_and_asked_anew_at_once() {
    let mut net = Net::pair();
    let first = net.recv(WORKER, "ps:1", "w");
    net.rest();
    net.nodes[1].cancel(first.ticket.unwrap());
    let second = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert!(second.waits(), "the request must not overtake the cancel");
    net.send(PS, "worker:1", "w", &[3]);
    net.rest();
    assert_eq!(second.bytes(), [3]);
    net.nodes[1].cancel(second.ticket.unwrap());
    net.nothing_is_left();
}

#[test]
fn a_tensor_that_is_given_up_on_its_way_waits_again() {
    let mut net = Net::pair();
    let given_up = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let sent = net.send(PS, "worker:1", "w", &[8; 50_000]);
    // The producer has written it; the consumer has not read it.
    net.nodes[0].turn(net.now);
    net.nodes[1].cancel(given_up.ticket.unwrap());
    net.rest();
    assert!(sent.waits());
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(REQUEST_DELAY);
    assert_eq!((asked.bytes(), sent.outcome()), (vec![8; 50_000], Ok(())));
}

#[test]
fn a_tensor_that_comes_back_to_a_step_that_was_cleaned_up_does_not_wait_again() {
    let mut net = Net::pair();
    let given_up = net.recv(WORKER, "ps:1", "w");
    net.rest();
    let sent = net.send(PS, "worker:1", "w", &[8; 50_000]);
    net.nodes[0].turn(net.now);
    net.nodes[1].cancel(given_up.ticket.unwrap());
    net.nodes[0].cleanup(0, 1);
    net.rest();
    assert_eq!(sent.error(), Error::Aborted { step: 1, reason: "the step was cleaned up".into() });
    let (anew, asked) = (net.send(PS, "worker:1", "w", &[9]), net.recv(WORKER, "ps:1", "w"));
    net.rest();
    assert_eq!((asked.bytes(), anew.outcome()), (vec![9], Ok(())));
}

#[test]
fn a_consumer_that_aborts_ends_the_step_on_both_sides() {
    let mut net = Net::pair();
    let (waiting, sent) = (net.recv(WORKER, "ps:1", "w"), net.send(PS, "worker:1", "other", &[1]));
    net.rest();
    net.nodes[1].abort(0, 1, "loss is NaN");
    let aborted = Error::Aborted { step: 1, reason: "loss is NaN".into() };
    assert_eq!(waiting.error(), aborted);
    net.rest();
    assert_eq!(sent.error(), aborted);
    assert_eq!(net.recv(WORKER, "ps:1", "late").error(), aborted);
    assert_eq!(net.send(PS, "worker:1", "late", &[1]).error(), aborted);
    net.nothing_is_left();
}

#[test]
fn a_producer_that_aborts_ends_the_step_on_both_sides_until_both_clean_up() {
    let mut net = Net::pair();
    let (waiting, elsewhere) = (net.recv(WORKER, "ps:1", "w"), net.recv(WORKER, "ps:2", "w"));
    net.rest();
    net.nodes[0].abort(0, 1, "preempted");
    net.rest();
    let aborted = Error::Aborted { step: 1, reason: "preempted".into() };
    assert_eq!(waiting.error(), aborted);
    assert!(elsewhere.waits(), "the other ps goes on");
    assert_eq!(net.send(PS, "worker:1", "w", &[1]).error(), aborted);
    net.nodes[0].cleanup(0, 1);
    net.nodes[1].cleanup(0, 1);
    net.rest();
    assert!(elsewhere.waits(), "cleaning up ends what a task was asked, not what it asks");
    let (sent, asked) = (net.send(PS, "worker:1", "w", &[1]), net.recv(WORKER, "ps:1", "w"));
    net.rest();
    assert_eq!((asked.bytes(), sent.outcome()), (vec![1], Ok(())));
}

#[test]
fn a_recv_that_comes_after_the_abort_of_its_producer_hears_of_it() {
    let mut net = Net::pair();
    net.nodes[0].abort(0, 1, "preempted");
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!(asked.error(), Error::Aborted { step: 1, reason: "preempted".into() });
}

#[test]
fn cleanup_frees_what_is_left_of_a_step() {
    let mut net = Net::pair();
    let (sent, parked) = (net.send(PS, "worker:1", "w", &[1]), net.recv(WORKER, "ps:1", "v"));
    net.rest();
    net.nodes[0].cleanup(0, 2);
    assert!(sent.waits() && parked.waits(), "another step");
    net.nodes[0].cleanup(0, 1);
    net.rest();
    for error in [sent.error(), parked.error()] {
        assert_eq!(error, Error::Aborted { step: 1, reason: "the step was cleaned up".into() });
    }
    net.nothing_is_left();
}

#[test]
fn a_key_may_not_be_too_long() {
    let mut net = Net::pair();
    let key = "k".repeat(4097);
    let expected = "the key has 4097 bytes, at most 4096 are accepted";
    assert_eq!(net.send(PS, "worker:1", &key, &[1]).error().to_string(), expected);
    assert_eq!(net.recv(WORKER, "ps:1", &key).error().to_string(), expected);
}

#[test]
fn a_tensor_for_whom_nobody_listens_any_more_goes_back() {
    let mut net = Net::pair();
    for bytes in [100, 50_000] {
        // The caller on another thread is gone, and the shard does not know it.
        let hung_up = net.recv(WORKER, "ps:1", "w");
        net.rest();
        drop(hung_up.receiver);
        let sent = net.send(PS, "worker:1", "w", &vec![8; bytes]);
        net.rest();
        assert!(sent.waits());
        let asked = net.recv(WORKER, "ps:1", "w");
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![8; bytes], Ok(())));
    }
    net.nothing_is_left();
}

#[test]
fn a_request_that_its_consumer_never_takes_back_is_forgotten_after_its_deadline() {
    let mut net = Net::pair();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!(net.nodes[0].counters().parked, 1);
    // The consumer only pings: time passes for the producer alone.
    net.now += SOON + Duration::from_millis(900);
    net.nodes[0].turn(net.now);
    assert_eq!(net.nodes[0].counters().parked, 1, "the consumer's own word comes first");
    net.now += Duration::from_millis(100);
    net.nodes[0].turn(net.now);
    assert_eq!(net.nodes[0].counters().parked, 0);
    net.rest();
    assert!(asked.outcome().is_err());
    // Its place is free again.
    let (sent, again) = (net.send(PS, "worker:1", "w", &[4]), net.recv(WORKER, "ps:1", "w"));
    net.rest();
    assert_eq!((again.bytes(), sent.outcome()), (vec![4], Ok(())));
}
