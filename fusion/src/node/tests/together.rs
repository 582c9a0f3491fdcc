//! Many tensors of a step in one call: sends that end together, and recvs that wait together for tensors sent ahead.

use sealane_transport::limits::KEY_BYTES_MAX;

use std::task::{Poll, Waker};

use super::ahead::{WORKER, met};
use super::*;
use crate::limits::{KEY_LISTS_MAX, POSTED_CALLS_MAX, REQUEST_DELAY, UNEXPECTED_CALLS_MAX};
use crate::node::{BatchWaiter, FusedRequest, ReceivedBatch};

/// The recvs of one call.
struct Many(Handle);

impl Many {
    fn waits(&self, net: &mut Net) -> bool {
        net.nodes[1].poll_batch(self.0, Waker::noop()).is_pending()
    }

    fn outcomes(&self, net: &mut Net) -> Vec<Result<Vec<u8>, Code>> {
        let Poll::Ready(outcomes) = net.nodes[1].poll_batch(self.0, Waker::noop()) else { panic!("one waits") };
        outcomes
            .into_iter()
            .map(|outcome| outcome.map(|tensor| tensor.bytes().to_vec()).map_err(|it| it.error.code()))
            .collect()
    }
}

impl Net {
    fn send_many(&mut self, tensors: &[(&str, &[u8])]) -> Sent {
        self.send_many_of(1, tensors)
    }

    fn send_many_of(&mut self, step: i64, tensors: &[(&str, &[u8])]) -> Sent {
        let pair = self.number(0, "ps:1", "worker:1");
        let tensor = |bytes: &[u8]| Tensor::from_elements(&[bytes.len() as u64], bytes).unwrap();
        let tensors: Vec<_> = tensors.iter().map(|(key, bytes)| (*key, tensor(bytes))).collect();
        let (sender, receiver) = oneshot::channel();
        let (deadline, waiter) = (self.now + SOON, SendWaiter::Channel(sender));
        self.nodes[0].send_many((pair, step), tensors.into_iter(), deadline, waiter);
        Sent(receiver)
    }

    fn recv_many(&mut self, keys: &[&str]) -> Many {
        let (pair, deadline, now) = (self.number(1, "worker:1", "ps:1"), self.now + SOON, self.now);
        let (keys, waiter) = (keys.iter().copied(), BatchWaiter::Future(None));
        Many(self.nodes[1].recv_fused(now, FusedRequest { pair, step: 1, keys, destinations: [], deadline, waiter }))
    }
}

#[test]
fn whatever_the_order_one_message_brings_all_and_one_says_so() {
    for recv_first in [false, true] {
        for sent in [["a", "b", "c"], ["c", "a", "b"], ["b", "c", "a"]] {
            let mut net = met();
            let before = (net.said(0), net.said(1));
            let tensors = sent.map(|key| (key, key.as_bytes()));
            let mut asked = recv_first.then(|| net.recv_many(&["a", "b", "c"]));
            net.rest();
            let sent = net.send_many(&tensors);
            net.rest();
            assert!(recv_first || sent.waits());
            let asked = asked.take().unwrap_or_else(|| net.recv_many(&["a", "b", "c"]));
            net.rest();
            assert_eq!(asked.outcomes(&mut net), ["a", "b", "c"].map(|key| Ok(key.as_bytes().to_vec())));
            assert_eq!(sent.outcome(), Ok(()));
            assert_eq!((net.said(0) - before.0, net.said(1) - before.1), (1, 1));
            net.nothing_is_left();
        }
    }
}

#[test]
fn each_key_is_asked_once_however_it_is_asked() {
    let mut net = met();
    let refused =
        |net: &mut Net, asked: Many| asked.outcomes(net).into_iter().map(|outcome| outcome.err()).collect::<Vec<_>>();
    let first = net.recv_many(&["a", "b"]);
    assert_eq!(net.recv(WORKER, "ps:1", "b").error().code(), Code::InvalidArgument);
    let (single, second) = (net.recv(WORKER, "ps:1", "c"), net.recv_many(&["b", "c"]));
    assert_eq!(refused(&mut net, second), [Some(Code::InvalidArgument); 2]);
    let twice = net.recv_many(&["d", "d"]);
    let sent = net.send_many(&[("a", &[1]), ("b", &[2]), ("c", &[3]), ("d", &[4])]);
    net.rest();
    assert_eq!((first.outcomes(&mut net), single.bytes()), (vec![Ok(vec![1]), Ok(vec![2])], vec![3]));
    assert_eq!(refused(&mut net, twice), [None, Some(Code::InvalidArgument)]);
    assert_eq!(sent.outcome(), Ok(()));
    // A key whose tensor has been received may be asked for again.
    let (again, sent) = (net.recv_many(&["a", "b"]), net.send_many(&[("b", &[5]), ("a", &[6])]));
    net.rest();
    assert_eq!((again.outcomes(&mut net), sent.outcome()), (vec![Ok(vec![6]), Ok(vec![5])], Ok(())));
    net.nothing_is_left();
}

#[test]
fn what_has_come_is_taken_and_what_is_large_is_asked_for() {
    let mut net = met();
    let early = net.send_many(&[("b", &[2])]);
    net.rest();
    let asked = net.recv_many(&["a", "b", "large", "c"]);
    let sent = net.send_many(&[("large", &[7; 5000]), ("c", &[3]), ("a", &[1])]);
    net.rest();
    let expected = [vec![1], vec![2], vec![7; 5000], vec![3]];
    assert_eq!((asked.outcomes(&mut net), early.outcome(), sent.outcome()), (expected.map(Ok).into(), Ok(()), Ok(())));
    // The tensor is now known to be large.
    let before = net.said(1);
    let (asked, sent) = (net.recv_many(&["a", "large"]), net.send_many(&[("a", &[1]), ("large", &[8; 5000])]));
    net.rest();
    assert_eq!((asked.outcomes(&mut net), sent.outcome()), (vec![Ok(vec![1]), Ok(vec![8; 5000])], Ok(())));
    assert!(net.said(1) > before);
    net.nothing_is_left();
}

#[test]
fn they_ask_when_nothing_has_come_for_a_while_and_come_over_the_next_link() {
    let mut net = met();
    let asked = net.recv_many(&["a", "b", "c"]);
    let first = net.send_many(&[("b", &[2])]);
    net.pass(REQUEST_DELAY);
    assert_eq!((first.outcome(), net.nodes[0].counters().parked), (Ok(()), 2));
    net.cut();
    let rest = net.send_many(&[("a", &[1]), ("c", &[3])]);
    net.pass(REQUEST_DELAY);
    net.pass(Duration::from_millis(500));
    assert_eq!((asked.outcomes(&mut net), rest.outcome()), (vec![Ok(vec![1]), Ok(vec![2]), Ok(vec![3])], Ok(())));
    // The same for tensors on their way when the link is cut.
    let sent = net.send_many(&[("a", &[4]), ("b", &[5])]);
    net.nodes[0].turn(net.now);
    net.cut();
    let asked = net.recv_many(&["b", "a"]);
    net.pass(Duration::from_millis(500));
    net.pass(REQUEST_DELAY);
    assert_eq!((asked.outcomes(&mut net), sent.outcome()), (vec![Ok(vec![5]), Ok(vec![4])], Ok(())));
    net.nothing_is_left();
}

#[test]
fn a_recv_asks_in_time_whatever_becomes_of_a_later_call() {
    let mut net = met();
    let first = net.recv(WORKER, "ps:1", "first");
    net.pass(REQUEST_DELAY / 2);
    let _large = net.send_many(&[("large", &[7; 5000])]);
    let asked = net.recv_many(&["small", "large"]);
    net.rest();
    assert_eq!(net.nodes[0].counters().parked, 0, "the large one has come, the others wait without a word");
    net.pass(REQUEST_DELAY / 2);
    assert_eq!((net.nodes[0].counters().parked, first.waits(), asked.waits(&mut net)), (1, true, true));
    net.pass(REQUEST_DELAY / 2);
    assert_eq!(net.nodes[0].counters().parked, 2);
}

#[test]
fn an_abort_ends_those_that_wait_together() {
    let mut net = met();
    let asked = net.recv_many(&["a", "b"]);
    let sent = net.send_many(&[("b", &[2])]);
    net.rest();
    assert_eq!(sent.outcome(), Ok(()));
    let worker = net.nodes[1].local_task("worker:1").unwrap();
    net.nodes[1].abort(worker, 1, "enough");
    net.rest();
    assert_eq!(asked.outcomes(&mut net), [Err(Code::Aborted), Ok(vec![2])]);
}

#[test]
fn a_call_of_sends_ends_with_its_last_and_tells_the_first_error() {
    let mut net = met();
    let asked = net.recv_many(&["a", "c"]);
    let long = "k".repeat(KEY_BYTES_MAX + 1);
    let sent = net.send_many(&[("a", &[1]), ("nobody asks", &[2]), (&long, &[3]), ("a", &[4]), ("c", &[5])]);
    net.rest();
    assert_eq!(asked.outcomes(&mut net), [Ok(vec![1]), Ok(vec![5])]);
    assert!(sent.waits(), "one is left");
    net.pass(SOON);
    assert_eq!(sent.error().code(), Code::InvalidArgument);
    assert_eq!(net.send_many(&[]).outcome(), Ok(()));
    net.nothing_is_left();
}

/// The outcomes of recvs that are read in place, once all have ended.
fn views(net: &mut Net, batch: Handle) -> Option<ReceivedBatch> {
    match net.nodes[1].poll_views(batch, Waker::noop()) {
        Poll::Ready(received) => Some(received),
        Poll::Pending => None,
    }
}

fn bytes(received: &ReceivedBatch) -> Vec<Result<Vec<u8>, Code>> {
    let outcomes = received.iter().map(|outcome| outcome.map(|view| view.bytes.to_vec()));
    outcomes.map(|outcome| outcome.map_err(Error::code)).collect()
}

impl Net {
    fn recv_views(&mut self, keys: &[&str]) -> Handle {
        self.recv_views_of(1, keys)
    }

    fn recv_views_of(&mut self, step: i64, keys: &[&str]) -> Handle {
        let (pair, deadline, now) = (self.number(1, "worker:1", "ps:1"), self.now + SOON, self.now);
        let (keys, waiter) = (keys.iter().copied(), BatchWaiter::Views(None));
        self.nodes[1].recv_fused(now, FusedRequest { pair, step, keys, destinations: [], deadline, waiter })
    }
}

#[test]
fn what_is_read_where_it_lies_is_what_was_sent_however_it_came() {
    let keys = ["a", "b", "c", "large", "d"];
    let large = [9; 5000];
    let sent: [(&str, &[u8]); 5] = [("a", &[1]), ("b", &[]), ("c", &[3, 3]), ("large", &large), ("d", &[4])];
    // In order, out of order, by single calls, and before they are asked for.
    for way in 0..4 {
        let mut net = met();
        let mut asked = (way < 3).then(|| net.recv_views(&keys));
        let mut tensors = sent.to_vec();
        if way == 1 {
            tensors.swap(0, 2);
        }
        let sends: Vec<_> = match way {
            2 => tensors.iter().map(|(key, bytes)| net.send((0, "ps:1"), "worker:1", key, bytes)).collect(),
            _ => vec![net.send_many(&tensors)],
        };
        net.rest();
        let asked = *asked.get_or_insert_with(|| net.recv_views(&keys));
        net.pass(REQUEST_DELAY);
        let received = views(&mut net, asked).expect("all have come");
        assert_eq!(bytes(&received), sent.map(|(_, bytes)| Ok(bytes.to_vec())), "way {way}");
        assert_eq!(received.get(2).unwrap().meta.shape().as_slice(), [2]);
        assert!(sends.iter().all(|sent| sent.outcome() == Ok(())));
        drop(received);
        net.nothing_is_left();
    }
}

#[test]
fn frames_stay_as_they_came_but_for_what_is_large_or_came_before() {
    let keys: Vec<String> = (0..300).map(|number| format!("layer{number}/bias")).collect();
    // Several kinds in several frames, some without bytes.
    let bytes_of = |number: usize| vec![number as u8; if number.is_multiple_of(7) { 0 } else { 40 + number % 3 * 20 }];
    let values: Vec<_> = (0..keys.len()).map(bytes_of).collect();
    let mut tensors: Vec<(&str, &[u8])> =
        keys.iter().map(String::as_str).zip(values.iter().map(Vec::as_slice)).collect();
    tensors.insert(100, ("large", &[9; 5000]));
    let names: Vec<_> = tensors.iter().map(|(key, _)| *key).collect();
    let mut net = met();
    for round in 0..3 {
        let early = (round == 2).then(|| net.send_many(&tensors[7..8]));
        net.rest();
        let asked = net.recv_views(&names);
        let sent = match early.is_some() {
            true => net.send_many(&[&tensors[..7], &tensors[8..]].concat()),
            false => net.send_many(&tensors),
        };
        net.rest();
        net.pass(REQUEST_DELAY);
        let received = views(&mut net, asked).expect("all have come");
        let expected: Vec<_> = tensors.iter().map(|(_, bytes)| Ok(bytes.to_vec())).collect();
        assert_eq!((bytes(&received), sent.outcome()), (expected, Ok(())));
        // In the first round it is not known which tensors are large.
        let (frames, lie) = received.in_frames();
        assert!(round == 0 || frames > 1 && lie == 300, "round {round}: {lie} in {frames}");
    }
    net.nothing_is_left();
}

#[test]
fn views_of_which_some_do_not_come_say_why_and_what_is_given_up_is_left_to_others() {
    let mut net = met();
    let asked = net.recv_views(&["a", "never"]);
    let sent = net.send_many(&[("a", &[1])]);
    net.rest();
    assert!(views(&mut net, asked).is_none() && sent.outcome() == Ok(()));
    net.pass(SOON);
    let received = views(&mut net, asked).expect("its deadline has passed");
    assert_eq!(bytes(&received), [Ok(vec![1]), Err(Code::DeadlineExceeded)]);
    let given_up = net.recv_views(&["a", "b"]);
    net.nodes[1].close_batch(given_up);
    let sent = net.send_many(&[("a", &[2]), ("b", &[3])]);
    net.rest();
    let asked = net.recv_many(&["a", "b"]);
    net.rest();
    assert_eq!((asked.outcomes(&mut net), sent.outcome()), (vec![Ok(vec![2]), Ok(vec![3])], Ok(())));
    let none = net.recv_views(&[]);
    assert!(views(&mut net, none).is_some_and(|received| received.is_empty()));
    net.nothing_is_left();
}

#[test]
fn more_calls_than_wait_together_wait_too() {
    let mut net = met();
    let keys: Vec<_> = (0..POSTED_CALLS_MAX + 2).map(|number| format!("w{number}")).collect();
    let asked: Vec<_> = keys.iter().map(|key| net.recv_many(&[key])).collect();
    assert!(asked.iter().all(|asked| asked.waits(&mut net)));
    let tensors: Vec<(&str, &[u8])> = keys.iter().rev().map(|key| (key.as_str(), key.as_bytes())).collect();
    let sent = net.send_many(&tensors);
    net.rest();
    for (asked, key) in asked.iter().zip(&keys) {
        assert_eq!(asked.outcomes(&mut net), [Ok(key.as_bytes().to_vec())]);
    }
    assert_eq!(sent.outcome(), Ok(()));
    net.nothing_is_left();
}

/// A network where a call has read these keys in place before, so that the next tensors stay in their frames if they come early.
fn expecting(keys: &[&str]) -> Net {
    let mut net = met();
    let asked = net.recv_views(keys);
    let tensors: Vec<(&str, &[u8])> = keys.iter().map(|key| (*key, key.as_bytes())).collect();
    let sent = net.send_many(&tensors);
    net.rest();
    assert!(views(&mut net, asked).is_some() && sent.outcome() == Ok(()));
    net
}

#[test]
fn what_comes_before_its_call_stays_in_its_frames_whatever_its_order_and_is_told_by_one_word() {
    let keys = ["a", "b", "c", "d"];
    for order in [["a", "b", "c", "d"], ["d", "b", "a", "c"], ["b", "c", "d", "a"]] {
        let mut net = expecting(&keys);
        let tensors = order.map(|key| (key, key.as_bytes()));
        let sends = [net.send_many(&tensors[..3]), net.send_many(&tensors[3..])];
        net.rest();
        assert!(sends.iter().all(Sent::waits));
        let before = (net.said(0), net.said(1));
        let count = net.nodes[1].counters().tensors_received;
        let asked = net.recv_views(&keys);
        let received = views(&mut net, asked).expect("all have come");
        assert_eq!(bytes(&received), keys.map(|key| Ok(key.as_bytes().to_vec())));
        assert_eq!(received.in_frames().1, 4);
        assert_eq!(net.nodes[1].counters().tensors_received - count, 4);
        net.rest();
        assert!(sends.iter().all(|sent| sent.outcome() == Ok(())));
        assert_eq!((net.said(0) - before.0, net.said(1) - before.1), (0, 1));
        net.nothing_is_left();
    }
}

#[test]
fn a_call_waits_for_the_rest_of_what_came_before_it() {
    let mut net = expecting(&["a", "b", "c"]);
    let first = net.send_many(&[("b", &[2])]);
    net.rest();
    let asked = net.recv_views(&["a", "b", "c"]);
    assert!(views(&mut net, asked).is_none());
    let rest = net.send_many(&[("a", &[1]), ("c", &[3])]);
    net.rest();
    let received = views(&mut net, asked).expect("all have come");
    assert_eq!(bytes(&received), [Ok(vec![1]), Ok(vec![2]), Ok(vec![3])]);
    assert_eq!((first.outcome(), rest.outcome(), received.in_frames()), (Ok(()), Ok(()), (2, 3)));
    net.nothing_is_left();
}

#[test]
fn what_came_before_its_call_is_there_for_any_other() {
    for way in 0..4 {
        let mut net = expecting(&["a", "b", "c"]);
        let sent = net.send_many(&[("a", &[1]), ("b", &[2]), ("c", &[3])]);
        net.rest();
        let single = (way == 0).then(|| net.recv(WORKER, "ps:1", "b"));
        let keys: &[&str] = match way {
            0 => &["a", "c"],
            1 => &["c", "a", "b"],
            _ => &["a", "b", "c"],
        };
        let received = if way == 3 {
            net.recv_many(keys).outcomes(&mut net)
        } else {
            let asked = net.recv_views(keys);
            bytes(&views(&mut net, asked).expect("all have come"))
        };
        let expected = keys.iter().map(|key| Ok(vec![key.as_bytes()[0] - b'a' + 1])).collect::<Vec<_>>();
        assert_eq!((received, single.map(|it| it.bytes())), (expected, (way == 0).then(|| vec![2])), "way {way}");
        net.rest();
        assert_eq!(sent.outcome(), Ok(()));
        net.nothing_is_left();
    }
}

#[test]
fn what_came_before_its_call_is_given_back_as_if_it_were_kept_one_by_one() {
    // A second tensor with the same key is detected at once.
    let mut net = expecting(&["a", "b"]);
    let first = net.send_many(&[("a", &[1]), ("b", &[2])]);
    net.rest();
    let second = net.send_many(&[("a", &[3])]);
    net.rest();
    assert_eq!((first.waits(), second.error().code()), (true, Code::InvalidArgument));
    let asked = net.recv_views(&["a", "b"]);
    assert_eq!(bytes(&views(&mut net, asked).expect("all have come")), [Ok(vec![1]), Ok(vec![2])]);
    net.rest();
    // Also within one frame.
    let twice = net.send_many(&[("a", &[1]), ("a", &[2]), ("b", &[3]), ("b", &[4])]);
    net.rest();
    let asked = net.recv_views(&["a", "b"]);
    assert_eq!(bytes(&views(&mut net, asked).expect("all have come")), [Ok(vec![1]), Ok(vec![3])]);
    net.rest();
    assert_eq!(twice.error().code(), Code::InvalidArgument);
    // The send ends at its own deadline, and with its step.
    let late = net.send_many(&[("a", &[1]), ("b", &[2])]);
    net.rest();
    net.pass(SOON);
    assert_eq!((first.outcome(), late.error().code()), (Ok(()), Code::DeadlineExceeded));
    net.nothing_is_left();
    let aborted = net.send_many(&[("a", &[1]), ("b", &[2])]);
    net.rest();
    let worker = net.nodes[1].local_task("worker:1").unwrap();
    net.nodes[1].abort(worker, 1, "enough");
    net.rest();
    assert_eq!(aborted.error().code(), Code::Aborted);
    net.nothing_is_left();
}

#[test]
fn what_came_before_its_call_comes_again_over_the_next_link() {
    let mut net = expecting(&["a", "b"]);
    let sent = net.send_many(&[("a", &[1]), ("b", &[2])]);
    net.rest();
    net.cut();
    let asked = net.recv_views(&["a", "b"]);
    net.pass(Duration::from_millis(500));
    net.pass(REQUEST_DELAY);
    let received = views(&mut net, asked).expect("all have come");
    assert_eq!((bytes(&received), sent.outcome()), (vec![Ok(vec![1]), Ok(vec![2])], Ok(())));
    net.nothing_is_left();
}

#[test]
fn calls_of_a_step_that_have_no_key_in_common_do_not_disturb_each_other() {
    let lists = [["a", "b"], ["c", "d"], ["e", "f"]];
    let mut net = met();
    let tensors = ["a", "b", "c", "d", "e", "f"].map(|key| (key, key.as_bytes()));
    let expected = |keys: [&str; 2]| keys.map(|key| Ok(key.as_bytes().to_vec()));
    for round in 0..3 {
        // In the first round one frame holds what all three calls wait for, later what two wait for and one asks for afterwards.
        let waiting = if round == 0 { 3 } else { 2 };
        let mut asked: Vec<_> = lists[..waiting].iter().map(|keys| net.recv_views(keys)).collect();
        let sent = net.send_many(&tensors);
        net.rest();
        asked.extend(lists[waiting..].iter().map(|keys| net.recv_views(keys)));
        for (batch, keys) in asked.into_iter().zip(lists) {
            let received = views(&mut net, batch).expect("all have come");
            assert_eq!((bytes(&received), received.in_frames()), (expected(keys).to_vec(), (1, 2)), "round {round}");
        }
        net.rest();
        assert_eq!(sent.outcome(), Ok(()));
        net.nothing_is_left();
    }
    // A tensor that is in no call's list, and recvs that wait one by one, disturb nothing.
    let _loss = net.send((0, "ps:1"), "worker:1", "loss", &[1]);
    let _sent = net.send_many(&tensors[4..]);
    net.rest();
    let waits = net.recv_views(&lists[0]);
    net.pass(REQUEST_DELAY);
    assert!(views(&mut net, waits).is_none());
    let asked = net.recv_views(&lists[2]);
    let received = views(&mut net, asked).expect("all have come");
    assert_eq!((bytes(&received), received.in_frames()), (expected(lists[2]).to_vec(), (1, 2)));
}

#[test]
fn the_end_of_a_frame_is_kept_with_what_its_beginning_says() {
    let (first, second) = (["a", "b"], ["c", "d"]);
    let mut net = expecting(&second);
    let asked = net.recv_views(&first);
    // All are of one kind, which the frame states once.
    let sent = net.send_many(&[("a", &[1]), ("b", &[2]), ("c", &[3]), ("d", &[4])]);
    net.rest();
    assert_eq!(bytes(&views(&mut net, asked).expect("all have come")), [Ok(vec![1]), Ok(vec![2])]);
    let single = net.recv(WORKER, "ps:1", "d");
    assert_eq!(single.bytes(), [4]);
    let rest = net.recv_many(&["c"]);
    net.rest();
    assert_eq!((rest.outcomes(&mut net), sent.outcome()), (vec![Ok(vec![3])], Ok(())));
    net.nothing_is_left();
}

#[test]
fn what_came_is_there_for_its_call_though_its_keys_were_forgotten_and_more_came_than_is_kept_together() {
    let mut net = expecting(&["a", "b"]);
    let sent = net.send_many(&[("a", &[1]), ("b", &[2])]);
    net.rest();
    let names: Vec<_> = (0..KEY_LISTS_MAX + 1).map(|number| format!("other{number}")).collect();
    for name in &names {
        // Twice, since calls whose keys differ each time are not remembered.
        for _ in 0..2 {
            let given_up = net.recv_views(&[name]);
            net.nodes[1].close_batch(given_up);
        }
    }
    let asked = net.recv_views(&["a", "b"]);
    let received = views(&mut net, asked).expect("all have come");
    assert_eq!((bytes(&received), received.in_frames()), (vec![Ok(vec![1]), Ok(vec![2])], (0, 0)));
    net.rest();
    assert_eq!(sent.outcome(), Ok(()));
    // More early calls, in as many steps, than a shard keeps.
    let mut sends = Vec::new();
    for step in 0..UNEXPECTED_CALLS_MAX as i64 + 2 {
        sends.push(net.send_many_of(step, &[("a", &[1]), ("b", &[2])]));
        net.rest();
    }
    for step in 0..UNEXPECTED_CALLS_MAX as i64 + 2 {
        let asked = net.recv_views_of(step, &["a", "b"]);
        let received = views(&mut net, asked).expect("all have come");
        assert_eq!(
            (bytes(&received), received.in_frames().1),
            (vec![Ok(vec![1]), Ok(vec![2])], if step < UNEXPECTED_CALLS_MAX as i64 { 2 } else { 0 })
        );
    }
    net.rest();
    assert!(sends.iter().all(|sent| sent.outcome() == Ok(())));
    net.nothing_is_left();
}
