//! Tasks whose process leaves: calls that wait for them end, and so do later calls that ask not to wait for a process that has left.

use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::{Keys, PullBuffer};

use super::*;
use crate::node::{PullRequest, PullRowsRequest, PullWaiter};

/// The node of `ps:1`.
const PRODUCER: u16 = 0;
/// The callers: one over a link, one on the node of `ps:1` itself.
const WORKER: (usize, &str) = (1, "worker:1");
const NEIGHBOUR: (usize, &str) = (0, "ps:2");
const BOTH: [(usize, &str); 2] = [WORKER, NEIGHBOUR];

impl Net {
    fn come(&mut self) {
        self.nodes[0].meet_client(PRODUCER);
    }

    fn leave(&mut self) {
        self.nodes[0].forget_client(PRODUCER, "its process ended");
    }

    /// A recv that fails if the process has left.
    fn recv_or_fail(&mut self, at: (usize, &str), key: &str) -> Asked {
        let pair = self.number(at.0, at.1, "ps:1");
        let (sender, receiver) = oneshot::channel();
        let request = request(pair, key, self.now + SOON, RecvWaiter::Channel(sender));
        let ticket = self.nodes[at.0].recv(self.now, RecvRequest { fail_if_gone: true, ..request });
        Asked { receiver, ticket }
    }
}

fn left() -> Error {
    Error::Left { task: "ps:1".into(), reason: "its process ended".into() }
}

#[test]
fn a_recv_ends_with_its_producer_whether_it_was_asked_before_or_after() {
    for at in BOTH {
        let mut net = Net::pair();
        let waiting = net.recv_or_fail(at, "asked before it came");
        net.rest();
        assert!(waiting.waits(), "either side may start first");
        net.come();
        let (plain, marked) = (net.recv(at, "ps:1", "plain"), net.recv_or_fail(at, "marked"));
        net.pass(crate::limits::REQUEST_DELAY);
        assert!(plain.waits() && marked.waits() && waiting.waits());
        net.leave();
        net.rest();
        for asked in [waiting, plain, marked] {
            assert_eq!(asked.error(), left());
        }
        let (plain, late) = (net.recv(at, "ps:1", "plain"), net.recv_or_fail(at, "marked"));
        net.pass(crate::limits::REQUEST_DELAY);
        assert_eq!(late.error().to_string(), "ps:1 has left (its process ended)");
        assert!(plain.waits(), "it may come back");
        net.come();
        let anew = net.recv_or_fail(at, "marked");
        net.rest();
        assert!(anew.waits(), "it has come back");
        for (key, asked) in [("plain", plain), ("marked", anew)] {
            net.send((0, "ps:1"), at.1, key, &[7]);
            net.rest();
            assert_eq!(asked.bytes(), [7]);
        }
        net.nothing_is_left();
    }
}

#[test]
fn a_recv_for_a_process_that_left_while_the_link_was_lost_does_not_wait_for_the_next() {
    for marked in [false, true] {
        let mut net = Net::pair();
        net.come();
        let asked = if marked { net.recv_or_fail(WORKER, "w") } else { net.recv(WORKER, "ps:1", "w") };
        net.rest();
        net.leave();
        // The notice is on its way, and never arrives.
        net.cut();
        net.come();
        net.pass(Duration::from_secs(1));
        match asked.receiver.try_recv() {
            Ok(ended) => assert!(marked && matches!(ended.unwrap_err().error, Error::Left { .. })),
            Err(_) => assert!(!marked, "it waits for another process than that which it was told of"),
        }
    }
}

#[test]
fn a_task_whose_daemon_drains_has_not_left() {
    let mut net = Net::pair();
    net.come();
    net.rest();
    net.nodes[0].drain();
    net.leave();
    net.nodes[0].resume();
    let asked = net.recv_or_fail(WORKER, "w");
    net.rest();
    assert!(asked.waits(), "it attaches again");
    net.come();
    net.leave();
    net.rest();
    assert_eq!(asked.error(), left(), "now it has");
}

#[test]
fn a_pull_of_what_a_task_has_not_published_that_has_left_ends() {
    for at in BOTH {
        let mut net = Net::pair();
        let pair = net.number(at.0, at.1, "ps:1");
        let plan = net.nodes[at.0].open_plan(pair, Arc::new(Keys::new(["w", "v"]).unwrap()));
        let pull = |net: &mut Net, fail_if_gone| {
            let (sender, receiver) = oneshot::channel();
            let (deadline, waiter) = (net.now + SOON, PullWaiter::Channel(sender));
            let (pull_buffer, views) = (PullBuffer::new(2), false);
            let request = PullRequest { plan, min_version: 0, deadline, pull_buffer, views, fail_if_gone, waiter };
            let handle = net.nodes[at.0].pull(net.now, request);
            net.rest();
            (receiver, handle)
        };
        let (before, _) = pull(&mut net, true);
        assert!(before.try_recv().is_err(), "it was never there");
        net.come();
        net.leave();
        net.rest();
        let gone = |ended: oneshot::Receiver<Result<PullBuffer, Error>>| {
            let pull_buffer = ended.try_recv().expect("it has ended").unwrap();
            (0..2).for_each(|index| assert_eq!(pull_buffer.get(index).err(), Some(left())));
        };
        gone(before);
        gone(pull(&mut net, true).0);
        let (waits, handle) = pull(&mut net, false);
        assert!(waits.try_recv().is_err(), "it may come back");
        net.nodes[at.0].cancel_pull(handle.unwrap());
    }
}

#[test]
fn a_request_for_rows_of_a_task_that_has_left_ends() {
    for at in BOTH {
        let mut net = Net::pair();
        let ask = |net: &mut Net, fail_if_gone| {
            let pair = net.number(at.0, at.1, "ps:1");
            let mut named = NamedRowsBuf::default();
            named.name("user", &[1], |_| 1);
            let (sender, receiver) = oneshot::channel();
            let (deadline, waiter) = (net.now + SOON, RecvWaiter::Channel(sender));
            let request = PullRowsRequest {
                pair,
                rows: named.as_rows(),
                min_version: 0,
                deadline,
                views: false,
                fail_if_gone,
                waiter,
            };
            let ticket = net.nodes[at.0].pull_rows(net.now, request);
            net.rest();
            Asked { receiver, ticket }
        };
        let before = ask(&mut net, true);
        assert!(before.waits(), "it was never there");
        net.come();
        net.leave();
        net.rest();
        assert_eq!(before.error(), left());
        assert_eq!(ask(&mut net, true).error(), left());
        assert!(ask(&mut net, false).waits(), "it may come back");
    }
}

/// Kinds of events after a recv was asked of a task that is there; each advances a node by at most one turn.
const DEEDS: usize = 5;
const LENGTH: usize = 6;

#[test]
fn whatever_happens_in_whatever_order_no_recv_waits_for_the_wrong_process() {
    for mut script in 0..DEEDS.pow(LENGTH as u32) {
        let mut net = Net::pair();
        net.come();
        let asked = net.recv_or_fail(WORKER, "w");
        let (mut is_here, mut has_left, mut was_parked) = (true, false, false);
        let deeds: Vec<usize> = (0..LENGTH)
            .map(|_| {
                let deed = script % DEEDS;
                script /= DEEDS;
                deed
            })
            .collect();
        for (at, deed) in deeds.iter().enumerate() {
            match deed {
                0 if !is_here => {
                    net.come();
                    is_here = true;
                }
                1 if is_here => {
                    net.leave();
                    (is_here, has_left) = (false, true);
                }
                // At most once, since a lost call is repeated only after a pause.
                2 if !deeds[..at].contains(&2) => net.cut(),
                3 => net.rest(),
                4 => {
                    net.nodes.iter_mut().for_each(|node| _ = node.turn(net.now));
                }
                _ => {}
            }
            // The consumer knows which process it waits for.
            was_parked |= *deed == 3 && is_here && !has_left;
        }
        net.pass(Duration::from_secs(1));
        if let Ok(ended) = asked.receiver.try_recv() {
            assert!(has_left, "{deeds:?}: it failed, and nobody has left");
            assert!(matches!(ended.unwrap_err().error, Error::Left { .. }), "{deeds:?}");
            continue;
        }
        assert!(is_here, "{deeds:?}: it waits for who has left");
        assert!(!(was_parked && has_left), "{deeds:?}: it waits for the next process");
        net.leave();
        net.rest();
        assert_eq!(asked.error(), left(), "{deeds:?}");
    }
}
