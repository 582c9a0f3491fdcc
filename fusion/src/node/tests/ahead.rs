//! Small tensors that are sent ahead of their requests, and recvs that wait for them without asking.

use sealane_transport::LinkError;
use sealane_transport::limits::AHEAD_BYTES_MAX;

use super::super::{ClientCall, ClientOutcome, ClientOutcomes};
use super::*;
use crate::limits::{REQUEST_DELAY, REVOKE_TIME};

pub(super) const PS: (usize, &str) = (0, "ps:1");
pub(super) const WORKER: (usize, &str) = (1, "worker:1");

/// Nodes that have exchanged a tensor on their link, so that later tensors are sent ahead.
pub(super) fn met() -> Net {
    let mut net = Net::pair();
    for _ in 0..2 {
        let (sent, asked) = (net.send(PS, "worker:1", "warm", &[1]), net.recv(WORKER, "ps:1", "warm"));
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![1], Ok(())));
    }
    net
}

impl Net {
    /// Messages that a node has sent.
    pub(super) fn said(&self, index: usize) -> u64 {
        self.nodes[index].context.peers.iter().map(|peer| peer.session.sent().messages).sum()
    }

    /// One node loses its links, and the others hear of it.
    pub(super) fn lose(&mut self, index: usize) {
        for peer in self.nodes[index].context.peers.select(|peer| peer.has_link()) {
            self.nodes[index].lose(self.now, peer, &LinkError::Closed);
        }
    }

    pub(super) fn cut(&mut self) {
        (0..self.nodes.len()).for_each(|index| self.lose(index));
    }
}

#[test]
fn one_message_brings_a_tensor_and_one_says_so_whoever_comes_first() {
    for recv_first in [false, true] {
        let mut net = met();
        let before = (net.said(0), net.said(1));
        let mut asked = recv_first.then(|| net.recv(WORKER, "ps:1", "w"));
        net.rest();
        assert_eq!((net.said(0), net.said(1)), before, "a recv waits without a word");
        let sent = net.send(PS, "worker:1", "w", &[7]);
        net.rest();
        assert!(recv_first || sent.waits());
        let asked = asked.take().unwrap_or_else(|| net.recv(WORKER, "ps:1", "w"));
        net.rest();
        assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())));
        assert_eq!((net.said(0) - before.0, net.said(1) - before.1), (1, 1));
        net.nothing_is_left();
    }
}

#[test]
fn many_tensors_share_a_message_and_keep_their_bytes() {
    let mut net = met();
    let keys: Vec<_> = (0..100_u8).map(|number| format!("w{number}")).collect();
    let asked: Vec<_> = keys.iter().step_by(2).map(|key| net.recv(WORKER, "ps:1", key)).collect();
    let before = net.said(0);
    let sent: Vec<_> =
        (0..100).map(|number| net.send(PS, "worker:1", &keys[number], &vec![number as u8; number])).collect();
    net.rest();
    assert!(net.said(0) - before < 5, "they have two bytes to a hundred");
    let rest: Vec<_> = keys.iter().skip(1).step_by(2).map(|key| net.recv(WORKER, "ps:1", key)).collect();
    net.rest();
    for (number, asked) in (0..100).step_by(2).zip(asked).chain((1..100).step_by(2).zip(rest)) {
        assert_eq!(asked.bytes(), vec![number as u8; number]);
    }
    assert!(sent.iter().all(|sent| sent.outcome() == Ok(())));
    net.nothing_is_left();
}

#[test]
fn a_recv_asks_when_nothing_has_come_for_a_while_and_whichever_comes_first_is_taken() {
    let mut net = met();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(REQUEST_DELAY);
    assert_eq!(net.nodes[0].counters().parked, 1);
    // The tensor answers the request, or was sent ahead while the request was on its way.
    let crossing = net.recv(WORKER, "ps:1", "v");
    net.now += REQUEST_DELAY;
    let sends = (net.send(PS, "worker:1", "w", &[7]), net.send(PS, "worker:1", "v", &[8]));
    net.rest();
    assert_eq!((asked.bytes(), crossing.bytes()), (vec![7], vec![8]));
    assert_eq!((sends.0.outcome(), sends.1.outcome()), (Ok(()), Ok(())));
    net.nothing_is_left();
}

#[test]
fn a_tensor_that_is_too_large_has_its_recv_ask_at_once() {
    let mut net = met();
    let asked = net.recv(WORKER, "ps:1", "w");
    let sent = net.send(PS, "worker:1", "w", &[7; 5000]);
    net.rest();
    assert_eq!((asked.bytes(), sent.outcome()), (vec![7; 5000], Ok(())));
    let (sent, asked) = (net.send(PS, "worker:1", "v", &[7; 5000]), {
        net.rest();
        net.recv(WORKER, "ps:1", "v")
    });
    net.rest();
    assert_eq!((asked.bytes(), sent.outcome()), (vec![7; 5000], Ok(())));
    net.nothing_is_left();
}

#[test]
fn what_is_sent_again_behind_an_abort_is_not_for_a_recv_that_the_abort_ends() {
    let mut net = met();
    let old = net.recv(WORKER, "ps:1", "w");
    net.rest();
    // Everything leaves at once: the step ends and is retried.
    let local = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].abort(local, 1, "enough");
    net.nodes[0].cleanup(local, 1);
    let sent = net.send(PS, "worker:1", "w", &[8]);
    net.rest();
    assert_eq!(old.error().code(), Code::Aborted);
    assert!(sent.waits(), "nobody has it");
    let local = net.nodes[1].local_task("worker:1").unwrap();
    net.nodes[1].cleanup(local, 1);
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(REQUEST_DELAY);
    assert_eq!((asked.bytes(), sent.outcome()), (vec![8], Ok(())));
    net.nothing_is_left();
}

#[test]
fn past_the_credit_tensors_wait_for_their_requests() {
    let mut net = met();
    let count = AHEAD_BYTES_MAX / 4096 + 10;
    let sent: Vec<_> =
        (0..count).map(|number| net.send(PS, "worker:1", &format!("w{number}"), &[number as u8; 4096])).collect();
    net.rest();
    let asked: Vec<_> = (0..count).map(|number| net.recv(WORKER, "ps:1", &format!("w{number}"))).collect();
    net.rest();
    assert!(asked.last().unwrap().waits(), "it has not been asked for");
    net.pass(REQUEST_DELAY);
    for (number, asked) in asked.iter().enumerate() {
        assert_eq!(asked.bytes(), [number as u8; 4096]);
    }
    assert!(sent.iter().all(|sent| sent.outcome() == Ok(())));
    net.nothing_is_left();
}

#[test]
fn a_send_that_nobody_wants_comes_back_at_its_deadline() {
    let mut net = met();
    let sent = net.send(PS, "worker:1", "w", &[7]);
    net.pass(SOON - Duration::from_millis(1));
    assert!(sent.waits());
    net.pass(Duration::from_millis(1));
    let error = sent.error();
    let whom = "worker:1 at 10.0.0.2:7000: connected, and nobody there has asked for it";
    assert_eq!(error.to_string(), format!("send of step 1 key 'w' waited 5s and its deadline passed: {whom}"));
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(REQUEST_DELAY);
    assert!(asked.waits(), "it is no more");
    assert!(net.send(PS, "worker:1", "w", &[8]).waits());
    net.rest();
    assert_eq!(asked.bytes(), [8]);
    net.nothing_is_left();
}

#[test]
fn who_cannot_hear_what_became_of_a_send_is_told_so() {
    let call = ClientCall { client: Handle::from_bits(1 << 32), call: Handle::from_bits(7) };
    let mut net = met();
    let (pair, deadline) = (net.number(0, "ps:1", "worker:1"), net.now + SOON);
    let tensor = Tensor::from_elements(&[1], &[7_u8]).unwrap();
    net.nodes[0].send(pair, 1, "w", tensor, deadline, SendWaiter::Client(call));
    net.rest();
    // The peer makes no progress.
    for time in [SOON - REVOKE_TIME, REVOKE_TIME] {
        assert!(!net.nodes[0].has_client_outcomes());
        net.now += time;
        net.nodes[0].turn(net.now);
    }
    let mut outcomes = ClientOutcomes::default();
    net.nodes[0].swap_client_outcomes(&mut outcomes);
    let Some((_, ClientOutcome::Late(error))) = outcomes.take_next() else { panic!("it is late") };
    assert!(error.to_string().contains("delivery unknown") && error.to_string().contains("'w'"), "{error}");
    assert!(outcomes.take_next().is_none());
    net.rest();
    net.nodes[0].swap_client_outcomes(&mut outcomes);
    assert_eq!(outcomes.len(), 1);
    assert!(matches!(outcomes.take_next(), Some((_, ClientOutcome::Returned))));
    net.nothing_is_left();
}

#[test]
fn one_send_meets_one_recv() {
    let mut net = met();
    let first = net.send(PS, "worker:1", "w", &[1]);
    let second = net.send(PS, "worker:1", "w", &[2]);
    net.rest();
    assert_eq!(second.error().code(), Code::InvalidArgument);
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!((asked.bytes(), first.outcome()), (vec![1], Ok(())));
    let (waiting, refused) = (net.recv(WORKER, "ps:1", "w"), net.recv(WORKER, "ps:1", "w"));
    assert_eq!(refused.error().code(), Code::InvalidArgument);
    assert!(waiting.waits());
}

#[test]
fn a_recv_that_is_given_up_leaves_its_tensor_to_the_next() {
    let mut net = met();
    let given_up = net.recv(WORKER, "ps:1", "w");
    assert!(net.nodes[1].cancel(given_up.ticket.unwrap()));
    let sent = net.send(PS, "worker:1", "w", &[7]);
    net.rest();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())));
    net.nothing_is_left();
}

#[test]
fn a_lost_link_loses_nothing_and_doubles_nothing() {
    // The link is lost before the frame leaves, before it is read, while the tensor is kept, or before its release arrives.
    for turns in 0..4 {
        for recv_first in [false, true] {
            let mut net = met();
            let asked = recv_first.then(|| net.recv(WORKER, "ps:1", "w"));
            let sent = net.send(PS, "worker:1", "w", &[7]);
            (0..turns).for_each(|turn| _ = net.nodes[turn % 2].turn(net.now));
            net.cut();
            let asked = asked.unwrap_or_else(|| net.recv(WORKER, "ps:1", "w"));
            net.pass(REQUEST_DELAY);
            net.pass(Duration::from_secs(1));
            assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())), "{turns} {recv_first}");
            let again = net.recv(WORKER, "ps:1", "w");
            net.pass(REQUEST_DELAY);
            assert!(again.waits(), "it came once: {turns} {recv_first}");
        }
    }
}

#[test]
fn a_step_that_ends_on_either_side_frees_what_was_sent_ahead() {
    for by_sender in [false, true] {
        for cleaned in [false, true] {
            let mut net = met();
            let sent = net.send(PS, "worker:1", "w", &[7]);
            net.rest();
            let (index, task) = if by_sender { (0, "ps:1") } else { (1, "worker:1") };
            let local = net.nodes[index].local_task(task).unwrap();
            if cleaned {
                net.nodes[index].cleanup(local, 1);
            } else {
                net.nodes[index].abort(local, 1, "enough");
            }
            net.rest();
            let asked = net.recv(WORKER, "ps:1", "w");
            net.pass(REQUEST_DELAY);
            match (by_sender, cleaned) {
                (false, true) => assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())), "it was sent"),
                (true, true) => {
                    assert_eq!(sent.error().code(), Code::Aborted);
                    let anew = net.send(PS, "worker:1", "w", &[8]);
                    net.rest();
                    assert_eq!((asked.bytes(), anew.outcome()), (vec![8], Ok(())));
                }
                (_, false) => {
                    assert_eq!((sent.error().code(), asked.error().code()), (Code::Aborted, Code::Aborted));
                }
            }
            net.nothing_is_left();
        }
    }
}

#[test]
fn what_a_process_has_sent_goes_with_it() {
    let mut net = met();
    let local = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].meet_client(local);
    let (kept, unsent) = (net.send(PS, "worker:1", "w", &[7]), {
        net.rest();
        net.send(PS, "worker:1", "v", &[7])
    });
    net.nodes[0].forget_client(local, "its process ended");
    net.nodes[0].meet_client(local);
    let anew = [net.send(PS, "worker:1", "w", &[8]), net.send(PS, "worker:1", "v", &[8])];
    net.rest();
    assert!([kept, unsent].iter().all(|sent| sent.outcome().is_err()));
    for (key, sent) in ["w", "v"].iter().zip(anew) {
        let asked = net.recv(WORKER, "ps:1", key);
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![8], Ok(())));
    }
    net.nothing_is_left();
}

#[test]
fn what_came_for_a_process_waits_with_its_sender_for_the_next() {
    let mut net = met();
    let local = net.nodes[1].local_task("worker:1").unwrap();
    net.nodes[1].meet_client(local);
    let sent = net.send(PS, "worker:1", "w", &[7]);
    let waiting = net.recv(WORKER, "ps:1", "v");
    net.rest();
    net.nodes[1].forget_client(local, "its process ended");
    assert!(waiting.outcome().is_err());
    net.nodes[1].meet_client(local);
    net.rest();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(REQUEST_DELAY);
    assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())));
    net.nothing_is_left();
}

#[test]
fn draining_takes_back_what_nobody_has_taken() {
    let mut net = met();
    let sent = net.send(PS, "worker:1", "w", &[7]);
    net.rest();
    assert_eq!(net.nodes[0].under_way(), 1);
    net.nodes[0].drain();
    net.rest();
    assert_eq!((net.nodes[0].under_way(), sent.waits()), (0, true));
    let asked = net.recv(WORKER, "ps:1", "w");
    net.pass(REQUEST_DELAY);
    assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())));
}

#[test]
fn memory_that_is_too_short_comes_back_and_so_does_the_tensor() {
    for recv_first in [false, true] {
        let mut net = met();
        let short = || Some(Buffer::from_vec(vec![0; 9]));
        let asked = recv_first.then(|| net.recv_into(WORKER, "ps:1", "w", short()));
        let sent = net.send(PS, "worker:1", "w", &[6; 10]);
        net.rest();
        let asked = asked.unwrap_or_else(|| net.recv_into(WORKER, "ps:1", "w", short()));
        net.rest();
        let unreceived = asked.outcome().unwrap_err();
        assert_eq!(unreceived.error.to_string(), "the destination has 9 bytes, the tensor needs 10");
        assert_eq!((unreceived.destination.unwrap().len(), sent.waits()), (9, true));
        let asked = net.recv(WORKER, "ps:1", "w");
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![6; 10], Ok(())));
    }
}

#[test]
fn an_engine_that_stops_tells_all_who_wait() {
    let mut net = met();
    let sent = net.send(PS, "worker:1", "w", &[7]);
    net.rest();
    net.nodes[0].shut_down(net.now, "the test is over");
    assert!(sent.waits(), "the peer may have taken it: who waits for it hears that the engine has stopped");
    let mut net = met();
    let sent = net.send(PS, "worker:1", "w", &[7]);
    net.nodes[0].shut_down(net.now, "the test is over");
    assert_eq!(sent.error().code(), Code::Aborted, "it has never left");
    let mut net = met();
    let asked = net.recv(WORKER, "ps:1", "w");
    net.nodes[1].shut_down(net.now, "the test is over");
    assert_eq!(asked.error().code(), Code::Unavailable);
}

#[test]
fn a_peer_that_ends_a_step_leaves_a_recv_its_memory() {
    let mut net = met();
    let asked = net.recv_into(WORKER, "ps:1", "w", Some(Buffer::from_vec(vec![0; 9000])));
    // The tensor is large, so the recv asks at once; the end of the step crosses that request.
    let local = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].abort(local, 1, "enough");
    net.nodes[0].turn(net.now);
    net.nodes[1].turn(net.now);
    let unreceived = asked.outcome().unwrap_err();
    assert_eq!(unreceived.error.code(), Code::Aborted);
    assert_eq!(unreceived.destination.map(|memory| memory.len()), Some(9000));
}

/// A ps, a worker, and the node that the worker's task moves to.
fn moving() -> Net {
    let mut net = Net::new([ps(), worker(), settings("10.0.0.3:7000", &["worker:1"])]);
    for _ in 0..2 {
        let (sent, asked) = (net.send(PS, "worker:1", "warm", &[1]), net.recv(WORKER, "ps:1", "warm"));
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![1], Ok(())));
    }
    net
}

const NEXT: (usize, &str) = (2, "worker:1");

impl Net {
    /// Moves the worker's task to the third node; its former process stays connected.
    fn move_worker(&mut self) {
        let moved = MAP.replace("worker:1=10.0.0.2", "worker:1=10.0.0.3");
        let moved = Arc::new(EndpointMap::parse(&moved, "moved").unwrap());
        [0, 2].iter().for_each(|&index| self.nodes[index].set_map(moved.clone(), Vec::new()).unwrap());
        self.rest();
        assert_eq!(self.nodes[0].counters().links, 1, "the former process is still there");
    }
}

#[test]
fn a_task_that_moves_gets_its_tensors_where_it_is_now() {
    let mut net = moving();
    let before = net.send(PS, "worker:1", "before", &[6]);
    net.rest();
    net.move_worker();
    let after = net.send(PS, "worker:1", "after", &[7]);
    net.rest();
    for (key, sent, byte) in [("before", before, 6), ("after", after, 7)] {
        let asked = net.recv(NEXT, "ps:1", key);
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![byte], Ok(())), "{key}");
    }
}

#[test]
fn a_recv_takes_nothing_from_where_its_sender_was_before() {
    let mut net = moving();
    for _ in 0..2 {
        let (sent, asked) = (net.send(WORKER, "ps:1", "warm", &[1]), net.recv(PS, "worker:1", "warm"));
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![1], Ok(())));
    }
    let kept = net.send(WORKER, "ps:1", "w", &[6]);
    net.rest();
    net.move_worker();
    let late = net.send(WORKER, "ps:1", "w2", &[6]);
    net.rest();
    for key in ["w", "w2"] {
        let sent = net.send(NEXT, "ps:1", key, &[7]);
        let asked = net.recv(PS, "worker:1", key);
        net.pass(REQUEST_DELAY);
        assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())), "{key}");
    }
    assert!(kept.waits() && late.waits(), "nobody asks them any more");
}

#[test]
fn a_send_whose_frame_has_not_left_hears_at_once_though_the_link_takes_nothing() {
    let mut net = met();
    let sent = net.send(PS, "worker:1", "w", &[7]);
    let local = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].cleanup(local, 1);
    // No bytes leave, as when the link is full.
    let peers = net.nodes[0].context.peers.select(|peer| peer.has_link());
    peers.into_iter().for_each(|peer| net.nodes[0].context.peers.get_mut(peer).unwrap().block());
    net.nodes[0].turn(net.now);
    assert_eq!(sent.error().code(), Code::Aborted);
}

/// A pair whose recvs have asked in vain after [`REQUEST_DELAY`] so often that they now wait longer.
fn patient() -> Net {
    let mut net = met();
    for round in 0.. {
        let key = format!("patient {round}");
        let before = (net.said(0), net.said(1));
        let asked = net.recv(WORKER, "ps:1", &key);
        (0..11).for_each(|_| net.pass(REQUEST_DELAY));
        let sent = net.send(PS, "worker:1", &key, &[7]);
        net.rest();
        assert_eq!((asked.bytes(), sent.outcome()), (vec![7], Ok(())));
        if (net.said(0) - before.0, net.said(1) - before.1) == (1, 1) {
            assert!(round > 2, "it has asked at first");
            return net;
        }
        assert!(round < 10, "it asks for what nobody has sent, step after step");
    }
    unreachable!()
}

#[test]
fn recvs_that_ask_in_vain_wait_longer_the_next_time() {
    let mut net = patient();
    // A recv that waits even longer still asks in the end.
    let asked = net.recv(WORKER, "ps:1", "late");
    let before = net.said(1);
    net.pass(10 * REQUEST_DELAY);
    assert_eq!(net.said(1), before);
    net.pass(100 * REQUEST_DELAY);
    assert!(net.said(1) > before);
    let sent = net.send(PS, "worker:1", "late", &[8]);
    net.rest();
    assert_eq!((asked.bytes(), sent.outcome()), (vec![8], Ok(())));
    net.nothing_is_left();
}

#[test]
fn what_is_kept_for_want_of_credit_is_asked_for_at_once_however_long_recvs_wait() {
    for recv_first in [true, false] {
        let mut net = patient();
        let keys: Vec<_> = (0..2 * AHEAD_BYTES_MAX / 4000).map(|number| number.to_string()).collect();
        let to = || Some(Buffer::from_vec(vec![0; 4000]));
        let recv = |net: &mut Net| keys.iter().map(|key| net.recv_into(WORKER, "ps:1", key, to())).collect::<Vec<_>>();
        let mut asked = recv_first.then(|| recv(&mut net));
        let sent: Vec<_> = keys.iter().map(|key| net.send(PS, "worker:1", key, &[9; 4000])).collect();
        net.rest();
        let asked = asked.take().unwrap_or_else(|| recv(&mut net));
        net.rest();
        // Tensors that arrive after the notice have the shortest time.
        net.pass(REQUEST_DELAY);
        for (asked, sent) in asked.iter().zip(&sent) {
            assert_eq!((asked.bytes(), sent.outcome()), (vec![9; 4000], Ok(())));
        }
        net.nothing_is_left();
    }
}
