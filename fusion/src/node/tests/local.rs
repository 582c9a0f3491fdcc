//! Tasks of one node, which meet without a session, and tasks used by client processes.

use std::rc::Rc;

use super::*;
use crate::limits::REQUEST_DELAY;
use crate::metrics::Operation;
use crate::node::{ClientCall, ClientOutcome, ClientOutcomes, Pool};

const ONE: (usize, &str) = (0, "ps:1");
const OTHER: (usize, &str) = (0, "ps:2");
/// More than is copied in one turn.
const LARGE: usize = 3 << 20;

fn alone() -> Net {
    Net::new([ps()])
}

fn destination(len: usize) -> Option<Buffer> {
    Some(Buffer::from_vec(vec![0xee; len]))
}

#[test]
fn either_may_come_first_and_nobody_is_called() {
    let mut net = alone();
    let asked = net.recv(OTHER, "ps:1", "first");
    assert!(asked.waits());
    let sent = net.send(ONE, "ps:2", "first", &[1, 2, 3]);
    assert_eq!((asked.bytes(), sent.outcome()), (vec![1, 2, 3], Ok(())));
    let sent = net.send(ONE, "ps:2", "second", &[4]);
    assert!(sent.waits());
    assert_eq!(net.recv(OTHER, "ps:1", "second").bytes(), [4]);
    assert_eq!(sent.outcome(), Ok(()));
    let own = net.recv(ONE, "ps:1", "own");
    let sent = net.send(ONE, "ps:1", "own", &[5]);
    assert_eq!((own.bytes(), sent.outcome()), (vec![5], Ok(())), "a task may send to itself");
    assert!(net.nodes[0].poll_order().is_none());
    net.nothing_is_left();
}

#[test]
fn calls_that_end_in_one_turn_are_among_the_latencies_when_they_are_shown() {
    let mut net = alone();
    net.send(ONE, "ps:2", "first", &[1]);
    net.recv(OTHER, "ps:1", "first").bytes();
    let asked = net.recv(OTHER, "ps:1", "second");
    net.send(ONE, "ps:2", "second", &[1]);
    asked.bytes();
    net.nodes[0].show();
    let counted = |operation: Operation| {
        let figures = net.nodes[0].metrics().latencies.figures();
        let of = figures.iter().filter(|one| (one.operation, one.way) == (operation, "memory"));
        of.map(|one| one.nanoseconds.count()).sum::<u64>()
    };
    // Also the send whose recv waited already.
    assert_eq!((counted(Operation::Recv), counted(Operation::Send)), (2, 2));
}

#[test]
fn memory_changes_hands_unless_the_consumer_brought_its_own() {
    let mut net = alone();
    let bytes = vec![7; LARGE];
    let tensor = Tensor::from_elements(&[LARGE as u64], &bytes).unwrap();
    let address = tensor.bytes().as_ptr();
    let pair = net.number(0, "ps:1", "ps:2");
    let deadline = net.now + SOON;
    net.nodes[0].send(pair, 1, "w", tensor, deadline, SendWaiter::Nobody);
    let received = net.recv(OTHER, "ps:1", "w").outcome().unwrap();
    assert_eq!(received.bytes().as_ptr(), address, "no byte was copied");

    let sent = net.send(ONE, "ps:2", "v", &bytes);
    let asked = net.recv_into(OTHER, "ps:1", "v", destination(LARGE + 5));
    assert!(asked.waits() && sent.waits(), "a large copy takes several turns");
    assert!(net.nodes[0].has_work() && net.nodes[0].under_way() > 0);
    net.rest();
    let received = asked.outcome().unwrap();
    assert_eq!((received.bytes(), sent.outcome()), (bytes.as_slice(), Ok(())));
    assert!(received.into_buffer().into_vec().is_ok());
    net.nothing_is_left();
}

#[test]
fn what_cannot_be_taken_stays_with_its_producer() {
    let mut net = alone();
    let sent = net.send(ONE, "ps:2", "w", &[3; 10]);
    let asked = net.recv_into(OTHER, "ps:1", "w", destination(9));
    let unreceived = asked.outcome().unwrap_err();
    assert!(unreceived.error.to_string().contains("has 9 bytes, the tensor needs 10"), "{}", unreceived.error);
    assert_eq!(unreceived.destination.unwrap().len(), 9);
    assert!(sent.waits());
    assert_eq!(net.recv_into(OTHER, "ps:1", "w", destination(10)).bytes(), [3; 10]);

    let session = SessionLimits { tensor_bytes_max: 100, ..SessionLimits::default() };
    let mut strict = Net::new([NodeSettings { session, ..ps() }]);
    let sent = strict.send(ONE, "ps:2", "w", &[3; 101]);
    assert_eq!(limit(&strict.recv(OTHER, "ps:1", "w").error()), "transport.tensor_bytes_max");
    assert!(sent.waits());
}

#[test]
fn a_recv_given_up_or_late_while_its_tensor_is_copied_returns_it() {
    let mut net = alone();
    let bytes = vec![9; LARGE];
    let sent = net.send(ONE, "ps:2", "w", &bytes);
    let asked = net.recv_into(OTHER, "ps:1", "w", destination(LARGE));
    let now = net.now;
    net.nodes[0].turn(now);
    assert!(net.nodes[0].cancel(asked.ticket.unwrap()));
    net.rest();
    assert!(sent.waits(), "it is with its producer again");

    // The same for a recv that was there before its tensor.
    let asked = net.recv_into(OTHER, "ps:1", "u", destination(LARGE));
    let early = net.send(ONE, "ps:2", "u", &bytes);
    net.nodes[0].turn(now);
    assert!(net.nodes[0].cancel(asked.ticket.unwrap()));
    net.rest();
    assert!(early.waits(), "so is this one");
    assert_eq!(net.recv(OTHER, "ps:1", "u").bytes(), bytes);

    let asked = net.recv_into(OTHER, "ps:1", "w", destination(LARGE));
    let ticket = asked.ticket.unwrap();
    let (sender, late) = oneshot::channel();
    let pair = net.number(0, "ps:2", "ps:1");
    net.nodes[0].recv(now, request(pair, "v", now, RecvWaiter::Channel(sender)));
    net.rest();
    assert_eq!(asked.bytes(), bytes);
    assert!(!net.nodes[0].cancel(ticket), "it has ended");
    let error = late.try_recv().unwrap().unwrap_err().error;
    assert!(error.to_string().contains("recv of step 1 key 'v'"), "{error}");
    net.nothing_is_left();
}

#[test]
fn an_abort_and_a_cleanup_reach_the_other_task() {
    for (who, whose) in [(0, "consumer"), (1, "producer")] {
        let mut net = alone();
        let asked = net.recv(OTHER, "ps:1", "never sent");
        let kept = net.send(ONE, "ps:2", "never asked for", &[1]);
        // ps:2 receives and ps:1 sends.
        let local = [1, 0][who];
        net.nodes[0].abort(local, 1, "NaN");
        for error in [asked.error(), kept.error()] {
            assert_eq!(error.to_string(), "step 1 was aborted: NaN", "aborted by the {whose}");
        }
        assert_eq!(net.recv(OTHER, "ps:1", "late").error().code(), sealane_transport::Code::Aborted);
        assert_eq!(net.send(ONE, "ps:2", "late", &[1]).error().code(), sealane_transport::Code::Aborted);
        (0..2).for_each(|local| net.nodes[0].cleanup(local, 1));
        let sent = net.send(ONE, "ps:2", "again", &[1]);
        assert_eq!((net.recv(OTHER, "ps:1", "again").bytes(), sent.outcome()), (vec![1], Ok(())));
        net.nothing_is_left();
    }
}

#[test]
fn a_task_at_this_address_that_is_not_served_is_not_found() {
    let mut net = Net::new([settings("10.0.0.1:7000", &["ps:1"])]);
    let error = net.recv(ONE, "ps:2", "w").error();
    assert!(error.to_string().contains("10.0.0.1:7000 belongs to this engine, which does not serve it"), "{error}");
    let more = vec![("ps:2".parse().unwrap(), 0)];
    net.nodes[0].set_map(map(), more).unwrap();
    let asked = net.recv(ONE, "ps:2", "w");
    let sent = net.send(OTHER, "ps:1", "w", &[1]);
    assert_eq!((asked.bytes(), sent.outcome()), (vec![1], Ok(())), "once it is, it is found");
}

#[test]
fn a_recv_follows_its_producer_to_this_very_node() {
    for is_cancelled in [false, true] {
        let mut net = Net::new([settings("10.0.0.1:7000", &["ps:1"])]);
        let elsewhere = MAP.replace("ps:2=10.0.0.1", "ps:2=10.0.0.9");
        let elsewhere =
            Arc::new(EndpointMap::parse(&elsewhere.replace("nowhere:1=10.0.0.9:7000\n", ""), "elsewhere").unwrap());
        net.nodes[0].set_map(elsewhere, Vec::new()).unwrap();
        let pair = net.number(0, "ps:1", "ps:2");
        let cell = net.nodes[0].open_recv();
        let ticket = net.nodes[0].recv(net.now, request(pair, "w", net.now + SOON, RecvWaiter::Cell(cell)));
        net.rest();
        let here = MAP.replace("nowhere:1=10.0.0.9:7000\n", "");
        let more = vec![("ps:2".parse().unwrap(), 0)];
        net.nodes[0].set_map(Arc::new(EndpointMap::parse(&here, "here").unwrap()), more).unwrap();
        net.nodes[0].set_map(map(), Vec::new()).unwrap();
        net.rest();
        if is_cancelled {
            net.nodes[0].close_recv(cell, ticket);
            let sent = net.send(OTHER, "ps:1", "w", &[1]);
            net.rest();
            assert!(sent.waits(), "nobody asks any more");
            continue;
        }
        let sent = net.send(OTHER, "ps:1", "w", &[1]);
        net.rest();
        assert_eq!(sent.outcome(), Ok(()));
        let std::task::Poll::Ready(Ok(tensor)) = net.nodes[0].poll_recv(cell, std::task::Waker::noop()) else {
            panic!("it has come")
        };
        assert_eq!(&tensor.into_buffer()[..], [1]);
    }
}

#[test]
fn peers_learn_of_new_tasks() {
    let mut net = Net::new([settings("10.0.0.1:7000", &["ps:1"]), worker()]);
    let first = net.recv(WORKER, "ps:1", "w");
    net.rest();
    assert_eq!(net.recv(WORKER, "ps:2", "w").error().code(), sealane_transport::Code::NotFound);
    net.nodes[0].set_map(map(), vec![("ps:2".parse().unwrap(), 0)]).unwrap();
    net.pass(SOON / 10);
    let asked = net.recv(WORKER, "ps:2", "w");
    let sent = net.send(OTHER, "worker:1", "w", &[1]);
    net.rest();
    assert_eq!((asked.bytes(), sent.outcome()), (vec![1], Ok(())));
    assert!(first.waits(), "what stood before stands still");
}

/// The worker in the tests with a peer.
const WORKER: (usize, &str) = (1, "worker:1");

fn call(number: u64) -> ClientCall {
    ClientCall { client: Handle::from_bits(7), call: Handle::from_bits(number) }
}

fn outcomes(net: &mut Net) -> Vec<(u64, Result<Option<Tensor>, Error>)> {
    let mut outcomes = ClientOutcomes::default();
    net.nodes[0].swap_client_outcomes(&mut outcomes);
    let mut told: Vec<_> = outcomes.sent.drain(..).map(|ClientCall { call, .. }| (call.to_bits(), Ok(None))).collect();
    while let Some((ClientCall { call, .. }, outcome)) = outcomes.take_next() {
        let outcome = match std::mem::replace(outcome, ClientOutcome::Returned) {
            ClientOutcome::Unsent(error) => Err(error),
            ClientOutcome::Received(outcome) => outcome.map(Some).map_err(Error::from),
            ClientOutcome::Pulled(_) => panic!("nobody pulls"),
            ClientOutcome::Late(_) | ClientOutcome::Returned => panic!("nothing is late"),
        };
        told.push((call.to_bits(), outcome));
    }
    told
}

fn client_send(net: &mut Net, number: u64, key: &str) {
    let pair = net.number(0, "ps:1", "worker:1");
    let tensor = Tensor::from_elements(&[1], &[1_u8]).unwrap();
    let deadline = net.now + SOON;
    net.nodes[0].send(pair, 1, key, tensor, deadline, SendWaiter::Client(call(number)));
}

fn client_recv(net: &mut Net, number: u64, from: &str, key: &str) {
    let pair = net.number(0, "ps:1", from);
    net.nodes[0].recv(net.now, request(pair, key, net.now + SOON, RecvWaiter::Client(call(number))));
}

#[test]
fn a_client_that_is_gone_takes_its_calls_along_and_tells_who_waits_for_it() {
    let mut net = Net::pair();
    client_send(&mut net, 1, "kept");
    client_recv(&mut net, 2, "worker:1", "asked of a peer");
    client_recv(&mut net, 3, "ps:2", "asked next door");
    let remote = net.recv(WORKER, "ps:1", "never sent");
    let local = net.recv(OTHER, "ps:1", "never sent");
    net.rest();
    net.nodes[0].forget_client(0, "its process 42 is gone");
    net.rest();
    for asked in [remote, local] {
        let error = asked.error().to_string();
        assert!(error.contains("its process 42 is gone"), "{error}");
    }
    let mut ended: Vec<_> =
        outcomes(&mut net).into_iter().map(|(number, outcome)| (number, outcome.is_err())).collect();
    ended.sort();
    assert_eq!(ended, [(1, true), (2, true), (3, true)]);
    net.nothing_is_left();
}

#[test]
fn draining_lets_what_is_under_way_finish_and_nothing_else_begin() {
    let mut net = Net::pair();
    client_send(&mut net, 1, "pending");
    client_recv(&mut net, 2, "worker:1", "asked");
    let parked = net.recv(WORKER, "ps:1", "never sent");
    net.rest();
    net.nodes[0].drain();
    net.rest();
    assert!(parked.error().to_string().contains("draining"));
    client_send(&mut net, 3, "too late");
    client_recv(&mut net, 4, "worker:1", "too late");
    let refused = net.recv(WORKER, "ps:1", "too late");
    net.pass(REQUEST_DELAY);
    assert!(refused.error().to_string().contains("draining"));
    let fetched = net.recv(WORKER, "ps:1", "pending");
    let _sent = net.send(WORKER, "ps:1", "asked", &[5]);
    net.pass(REQUEST_DELAY);
    assert_eq!(fetched.bytes(), [1]);
    let mut ended: Vec<_> = outcomes(&mut net).into_iter().map(|(number, outcome)| (number, outcome.is_ok())).collect();
    ended.sort();
    assert_eq!(ended, [(1, true), (2, true), (3, false), (4, false)]);
    assert_eq!(net.nodes[0].under_way(), 0);
}

/// A task's own memory, with room for a few tensors.
struct Own(Slab);

impl Pool for Own {
    fn allocate(&self, len: usize) -> Result<Buffer, Error> {
        self.0.allocate(len).map_err(|full| Error::full("a pool", full.to_string()))
    }

    fn inline_bytes(&self) -> usize {
        64
    }
}

#[test]
fn a_pool_takes_what_arrives_and_says_when_it_is_full() {
    let mut net = Net::pair();
    let slab = Slab::new(SlabSettings { name: "own", bytes: 1 << 20, populate: false }).unwrap();
    net.nodes[0].set_pool(1, Some(Rc::new(Own(slab.clone()))));
    for from in [ONE, WORKER] {
        let sent = net.send(from, "ps:2", "w", &[1; 1000]);
        let asked = net.recv(OTHER, from.1, "w");
        net.rest();
        let tensor = asked.outcome().unwrap();
        assert!(slab.in_use_bytes() >= 1000, "from {}", from.1);
        assert_eq!((tensor.bytes(), sent.outcome()), (&[1; 1000][..], Ok(())));
        drop(tensor);
        assert_eq!(slab.in_use_bytes(), 0);

        let sent = net.send(from, "ps:2", "v", &vec![1; (1 << 20) + 1]);
        let asked = net.recv(OTHER, from.1, "v");
        net.rest();
        assert_eq!((limit(&asked.error()), sent.waits()), ("a pool", true), "from {}", from.1);
    }
    let sent = net.send(ONE, "ps:2", "small", &[1; 64]);
    let tensor = net.recv(OTHER, "ps:1", "small").outcome().unwrap();
    assert_eq!((slab.in_use_bytes(), sent.outcome(), tensor.bytes().len()), (0, Ok(()), 64));
    net.nodes[0].set_pool(1, None);
    assert_eq!(net.nodes[0].receive_slab().in_use_bytes(), 0);
}

#[test]
fn a_tensor_for_whom_nobody_listens_any_more_waits_for_the_next() {
    let mut net = alone();
    for bytes in [10, LARGE] {
        let hung_up = net.recv_into(OTHER, "ps:1", "w", destination(bytes));
        drop(hung_up.receiver);
        let sent = net.send(ONE, "ps:2", "w", &vec![7; bytes]);
        net.rest();
        assert!(sent.waits());
        let asked = net.recv_into(OTHER, "ps:1", "w", destination(bytes));
        drop(asked.receiver);
        let asked = if bytes == LARGE {
            net.rest();
            assert!(sent.waits(), "given up while it was copied");
            net.recv(OTHER, "ps:1", "w")
        } else {
            // A small tensor is copied at once, so it arrived before its caller hung up.
            assert_eq!(sent.outcome(), Ok(()));
            continue;
        };
        assert_eq!((asked.bytes(), sent.outcome()), (vec![7; bytes], Ok(())));
    }
    net.nothing_is_left();
}
