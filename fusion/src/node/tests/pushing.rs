//! Pushes into queues: in order, exactly once, and held back where there is no room.

use sealane_transport::limits::MEASURE_QUEUE;

use super::*;
use crate::limits::{PROMISE_LOOK, PROMISE_TIME};
use crate::node::PushRequest;
use crate::queue::{AcceptOptions, AcceptQueue, Accepted};

pub(super) const WORKER: (usize, &str) = (1, "worker:1");
const NEIGHBOUR: (usize, &str) = (0, "ps:2");

/// A queue of ps:1 at node 0, whose owner makes room when it has taken something.
fn accept(net: &mut Net, tensors_max: usize, bytes_max: usize) -> Arc<AcceptQueue> {
    accept_at(net, "q", tensors_max, bytes_max)
}

pub(super) fn accept_at(net: &mut Net, name: &str, tensors_max: usize, bytes_max: usize) -> Arc<AcceptQueue> {
    let queue = Arc::new(AcceptQueue::new(AcceptOptions { tensors_max, bytes_max }, Box::new(|| {})));
    let task = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].open_queue(task, name, queue.clone()).unwrap();
    queue
}

fn push(net: &mut Net, from: (usize, &str), values: impl IntoIterator<Item = u8>, bytes: usize) -> Sent {
    push_to(net, from, "q", values, bytes)
}

pub(super) fn push_to(
    net: &mut Net,
    from: (usize, &str),
    queue: &str,
    values: impl IntoIterator<Item = u8>,
    bytes: usize,
) -> Sent {
    let pair = net.number(from.0, from.1, "ps:1");
    let tensor = |value| Tensor::from_elements(&[bytes as u64], &vec![value; bytes]).unwrap();
    let tensors: Vec<_> = values.into_iter().map(tensor).collect();
    let (sender, receiver) = oneshot::channel();
    let (deadline, waiter) = (net.now + SOON, SendWaiter::Channel(sender));
    let tensors = tensors.into_iter();
    net.nodes[from.0].push(net.now, PushRequest { pair, queue, tensors, deadline, waiter });
    Sent(receiver)
}

/// Takes tensors from the queue, each by its first byte, which makes room again.
fn taken(net: &mut Net, queue: &AcceptQueue, most: usize) -> Vec<u8> {
    taken_from(net, ("q", queue), most)
}

pub(super) fn taken_from(net: &mut Net, (name, queue): (&str, &AcceptQueue), most: usize) -> Vec<u8> {
    let mut items: Vec<Accepted> = Vec::new();
    queue.take(most, &mut items).unwrap();
    net.nodes[0].replenish_named(0, name);
    items.iter().map(|item| item.tensor.bytes()[0]).collect()
}

#[test]
fn pushes_arrive_in_order_with_their_pushers_name() {
    for from in [WORKER, NEIGHBOUR] {
        for bytes in [3, 100, 150_000] {
            let mut net = Net::pair();
            let queue = accept(&mut net, 100, 64 << 20);
            let sent = push(&mut net, from, 1..=5, bytes);
            net.rest();
            let mut items = Vec::new();
            queue.take(9, &mut items).unwrap();
            assert_eq!(items.iter().map(|item| item.tensor.bytes()[0]).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
            assert!(items.iter().all(|item| *item.from == *from.1 && item.tensor.bytes().len() == bytes));
            drop(items);
            net.rest();
            sent.outcome().unwrap();
            net.nothing_is_left();
        }
    }
}

#[test]
fn a_full_queue_holds_its_pushers_back_and_loses_nothing() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let queue = accept(&mut net, 4, 1 << 20);
        let sent = push(&mut net, from, 0..50, 16);
        net.rest();
        let mut all = Vec::new();
        while all.len() < 40 {
            assert!(sent.waits(), "the queue holds four");
            let some = taken(&mut net, &queue, 9);
            // The queue's four, and what the pusher had credit for.
            assert!((1..=6).contains(&some.len()), "{} at once", some.len());
            all.extend(some);
            net.rest();
        }
        while all.len() < 50 {
            all.extend(taken(&mut net, &queue, 9));
            net.rest();
        }
        sent.outcome().unwrap();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
    }
}

#[test]
fn measuring_queue_takes_and_drops_everything() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let sent = push_to(&mut net, from, MEASURE_QUEUE, 0..50, 100_000);
        net.rest();
        sent.outcome().unwrap();
        assert_eq!(net.nodes[0].under_way(), 0);
        assert_eq!(net.nodes[0].receive_slab().in_use_bytes(), 0);
        let task = net.nodes[0].local_task("ps:1").unwrap();
        // A client that detaches does not close the queue, and none can accept from it.
        net.nodes[0].forget_client(task, "gone");
        let queue = Arc::new(AcceptQueue::new(AcceptOptions::default(), Box::new(|| {})));
        net.nodes[0].open_queue(task, MEASURE_QUEUE, queue).unwrap_err();
        let sent = push_to(&mut net, from, MEASURE_QUEUE, [1], 64);
        net.rest();
        sent.outcome().unwrap();
        net.nothing_is_left();
    }
}

#[test]
fn a_tensor_larger_than_the_queue_goes_alone() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let queue = accept(&mut net, 4, 1000);
        let sent = push(&mut net, from, 1..=6, 50_000);
        let mut all = Vec::new();
        while all.len() < 6 {
            net.rest();
            let some = taken(&mut net, &queue, 9);
            assert!((1..=2).contains(&some.len()), "{} at once", some.len());
            all.extend(some);
        }
        net.rest();
        net.rest();
        sent.outcome().unwrap();
    }
}

/// There is memory for three of the ten tensors pushed at once.
#[test]
fn large_tensors_wait_at_their_pushers_until_there_is_memory() {
    let mut net = Net::pair();
    let names: Vec<_> = (0..10).map(|at| format!("q{at}")).collect();
    let queues: Vec<_> = names.iter().map(|name| accept_at(&mut net, name, 4, 100_000)).collect();
    let sent: Vec<_> =
        names.iter().zip(1..).map(|(name, value)| push_to(&mut net, WORKER, name, [value], 300_000)).collect();
    let mut all = Vec::new();
    for _ in 0..10 {
        net.rest();
        let came: Vec<u8> =
            names.iter().zip(&queues).flat_map(|(name, queue)| taken_from(&mut net, (name, queue), 9)).collect();
        assert!(came.len() <= 3, "{} tensors of 300,000 bytes lay in {SLAB_BYTES}", came.len());
        all.extend(came);
        net.pass(PROMISE_LOOK);
    }
    assert_eq!(all, (1..=10).collect::<Vec<_>>(), "in the order of asking");
    sent.into_iter().for_each(|sent| sent.outcome().unwrap());
    assert_eq!(net.nodes[0].pushes.promised(), 0);
    net.nothing_is_left();
}

#[test]
fn a_tensor_for_which_there_is_no_memory_is_refused_in_time() {
    let mut net = Net::pair();
    let held = net.nodes[0].context.memory.receive_slab().allocate(SLAB_BYTES / 2).unwrap();
    let queue = accept(&mut net, 4, 100_000);
    let (waits, never) = (push(&mut net, WORKER, [1], 700_000), push(&mut net, WORKER, [2], 2 * SLAB_BYTES));
    net.rest();
    assert!(taken(&mut net, &queue, 9).is_empty());
    net.pass(PROMISE_TIME);
    assert_eq!(waits.outcome().unwrap_err().code(), Code::ResourceExhausted);
    net.rest();
    assert_eq!(never.outcome().unwrap_err().code(), Code::ResourceExhausted, "at once: it never fits");
    drop(held);
}

#[test]
fn pushes_wait_for_an_acceptor_and_then_for_the_next() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let first = push(&mut net, from, [1], 8);
        net.rest();
        assert!(first.waits());
        let queue = accept(&mut net, 4, 1000);
        net.rest();
        first.outcome().unwrap();
        assert_eq!(taken(&mut net, &queue, 9), [1]);
        let again = Arc::new(AcceptQueue::new(AcceptOptions::default(), Box::new(|| {})));
        assert!(net.nodes[0].open_queue(0, "q", again).unwrap_err().to_string().contains("has an acceptor"));
        net.nodes[0].close_queue(0, "q", &queue);
        let later = push(&mut net, NEIGHBOUR, [2], 8);
        net.rest();
        assert!(later.waits());
        let queue = accept(&mut net, 4, 1000);
        net.rest();
        later.outcome().unwrap();
        assert_eq!(taken(&mut net, &queue, 9), [2]);
    }
}

#[test]
fn what_no_queue_takes_in_time_ends() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let sent = push(&mut net, from, [1, 2], 8);
        net.rest();
        net.pass(SOON);
        let error = sent.error();
        assert_eq!(error.code(), Code::DeadlineExceeded);
        assert!(error.to_string().contains('q'), "{error}");
        let queue = accept(&mut net, 4, 1000);
        net.rest();
        assert!(taken(&mut net, &queue, 9).is_empty());
    }
}

#[test]
fn a_lost_link_loses_nothing_and_doubles_nothing() {
    let mut net = Net::pair();
    let queue = accept(&mut net, 1000, 64 << 20);
    let mut all = Vec::new();
    for round in 0..20 {
        let sent = push(&mut net, WORKER, [round, round + 100], if round % 2 == 0 { 20 } else { 200_000 });
        for _ in 0..round % 5 {
            net.nodes[1].turn(net.now);
            net.nodes[0].turn(net.now);
        }
        net.lose(1);
        net.pass(Duration::from_secs(1));
        sent.outcome().unwrap();
        all.extend(taken(&mut net, &queue, 9));
    }
    let expected: Vec<u8> = (0..20).flat_map(|round| [round, round + 100]).collect();
    assert_eq!(all, expected);
}

#[test]
fn a_peer_that_restarts_leaves_pushes_in_doubt_and_the_next_go_on() {
    let mut net = Net::pair();
    let _queue = accept(&mut net, 4, 1000);
    push(&mut net, WORKER, [1], 8).waits();
    net.rest();
    let doubtful = push(&mut net, WORKER, [2], 8);
    net.nodes[1].turn(net.now);
    net.nodes[0] = node(NodeSettings { incarnation: 5_000_000, ..ps() });
    net.lose(1);
    net.pass(Duration::from_secs(1));
    assert_eq!(doubtful.error().code(), Code::Unavailable);
    let queue = accept(&mut net, 4, 1000);
    let sent = push(&mut net, WORKER, [3], 8);
    net.rest();
    sent.outcome().unwrap();
    assert_eq!(taken(&mut net, &queue, 9), [3]);
}

#[test]
fn a_pusher_that_restarts_gives_its_room_back() {
    let mut net = Net::pair();
    let queue = accept(&mut net, 4, 1000);
    push(&mut net, WORKER, [1], 8).waits();
    net.rest();
    assert_eq!(taken(&mut net, &queue, 9), [1]);
    net.nodes[1] = node(NodeSettings { incarnation: 5_000_000, ..worker() });
    net.lose(0);
    let sent = push(&mut net, WORKER, [5, 6, 7, 8], 8);
    net.pass(Duration::from_secs(1));
    sent.outcome().unwrap();
    assert_eq!(taken(&mut net, &queue, 9), [5, 6, 7, 8]);
}

#[test]
fn the_streams_of_a_task_that_is_gone_end_with_it() {
    let mut net = Net::pair();
    let queue = accept(&mut net, 4, 1000);
    push(&mut net, WORKER, [1], 8).waits();
    net.rest();
    assert_eq!((net.nodes[0].pushes.streams(), taken(&mut net, &queue, 9)), (1, vec![1]));
    let task = net.nodes[1].local_task("worker:1").unwrap();
    net.nodes[1].forget_client(task, "its process is gone");
    net.rest();
    assert_eq!(net.nodes[0].pushes.streams(), 0);
    let sent = push(&mut net, WORKER, [2], 8);
    net.rest();
    sent.outcome().unwrap();
    assert_eq!(taken(&mut net, &queue, 9), [2]);
}

#[test]
fn the_queues_of_a_task_whose_process_is_gone_are_anothers() {
    let mut net = Net::pair();
    let before = accept(&mut net, 4, 1000);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].forget_client(task, "its process is gone");
    let after = accept(&mut net, 4, 1000);
    push(&mut net, WORKER, [1], 8).waits();
    net.rest();
    assert_eq!(taken(&mut net, &after, 9), [1]);
    drop(before);
}

#[test]
fn who_accepts_hears_when_the_node_is_gone() {
    let mut net = Net::pair();
    let queue = accept(&mut net, 4, 1000);
    net.nodes.clear();
    assert!(queue.take(1, &mut Vec::new()).unwrap_err().to_string().contains("stopped"));
}

#[test]
fn pushes_are_few_messages() {
    let mut net = Net::pair();
    let queue = accept(&mut net, 4096, 1 << 20);
    push(&mut net, WORKER, [1], 64).waits();
    net.rest();
    let messages = |net: &Net| net.nodes.iter().map(|node| node.counters().messages_sent).sum::<u64>();
    let before = messages(&net);
    let sent = push(&mut net, WORKER, (0..1000).map(|number| number as u8), 64);
    net.rest();
    sent.outcome().unwrap();
    assert!(messages(&net) - before <= 1000 * 70 / 8192 + 10, "{} messages", messages(&net) - before);
    assert_eq!(taken(&mut net, &queue, 9999).len(), 1001);
}

#[test]
fn what_was_pushed_with_credit_waits_for_the_next_acceptor_as_well() {
    for bytes in [8, 100, 20_000] {
        let mut net = Net::pair();
        let queue = accept(&mut net, 100, 64 << 20);
        let first = push(&mut net, WORKER, [1], bytes);
        net.rest();
        assert_eq!((first.outcome(), taken(&mut net, &queue, 9)), (Ok(()), vec![1]));
        net.rest();
        net.nodes[0].close_queue(0, "q", &queue);
        // There is credit for these, but no acceptor.
        let waiting = push(&mut net, WORKER, 2..=4, bytes);
        net.rest();
        let more = push(&mut net, WORKER, [5], bytes);
        net.rest();
        assert!(waiting.waits() && more.waits());
        assert_eq!(net.nodes[0].counters().slab_receive_bytes, 0, "the pusher keeps them");
        let queue = accept(&mut net, 100, 64 << 20);
        net.rest();
        assert_eq!((waiting.outcome(), more.outcome()), (Ok(()), Ok(())));
        assert_eq!(taken(&mut net, &queue, 9), [2, 3, 4, 5]);
        // The same over a link that is lost meanwhile; pushes past their deadlines end.
        net.nodes[0].close_queue(0, "q", &queue);
        let late = push(&mut net, WORKER, [6], bytes);
        net.pass(SOON);
        assert_eq!(late.error().code(), Code::DeadlineExceeded);
        let last = push(&mut net, WORKER, [7], bytes);
        net.rest();
        net.lose(1);
        net.pass(Duration::from_millis(500));
        assert!(last.waits());
        let queue = accept(&mut net, 100, 64 << 20);
        net.rest();
        // A tensor that the link still held at its deadline may arrive all the same.
        let came = taken(&mut net, &queue, 9);
        assert!(came == [7] || bytes == 20_000 && came == [6, 7], "{came:?}");
        assert_eq!(last.outcome(), Ok(()));
    }
}

#[test]
fn what_a_queue_took_and_nobody_accepted_is_the_next_acceptors() {
    for from in [WORKER, NEIGHBOUR] {
        for bytes in [8, 20_000] {
            let mut net = Net::pair();
            let queue = accept(&mut net, 100, 64 << 20);
            let first = push(&mut net, from, 1..=3, bytes);
            net.rest();
            first.outcome().unwrap();
            // The acceptor is gone, but the node hears of it later: pushes until then are taken all the same.
            queue.close(Error::unavailable("the acceptor", "it is gone"));
            let between = push(&mut net, from, 4..=5, bytes);
            net.rest();
            between.outcome().unwrap();
            net.nodes[0].close_queue(0, "q", &queue);
            let later = push(&mut net, from, 6..=7, bytes);
            net.rest();
            assert!(later.waits());
            drop(queue);
            // The small queue is full with what was left.
            let queue = accept(&mut net, 2, 64 << 20);
            net.rest();
            assert!(later.waits());
            assert_eq!(taken(&mut net, &queue, 9), [1, 2, 3, 4, 5]);
            net.rest();
            later.outcome().unwrap();
            assert_eq!(taken(&mut net, &queue, 9), [6, 7]);
            net.nodes[0].close_queue(0, "q", &queue);
            net.rest();
            net.nothing_is_left();
        }
    }
}

#[test]
fn what_a_queue_took_is_freed_with_its_task_and_with_the_engine() {
    let mut net = Net::pair();
    for stops in [false, true] {
        let queue = accept(&mut net, 100, 64 << 20);
        let sent = push(&mut net, WORKER, 1..=3, 20_000);
        net.rest();
        sent.outcome().unwrap();
        net.nodes[0].close_queue(0, "q", &queue);
        drop(queue);
        assert!(net.nodes[0].counters().slab_receive_bytes > 0);
        match stops {
            false => net.nodes[0].forget_client(0, "its process is gone"),
            true => net.nodes[0].shut_down(net.now, "it is over"),
        }
        assert_eq!(net.nodes[0].counters().slab_receive_bytes, 0);
    }
}

#[test]
fn acceptors_come_and_go_a_thousand_times_and_each_push_is_accepted_once() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let (mut sent, mut all, mut next) = (Vec::new(), Vec::new(), 0_u8);
        let mut queue = accept(&mut net, 3, 64 << 20);
        for round in 0..1000 {
            let values = [next, next.wrapping_add(1)];
            next = next.wrapping_add(2);
            sent.push(push(&mut net, from, values, if round % 11 == 0 { 20_000 } else { 24 }));
            for _ in 0..round % 3 {
                net.nodes[1].turn(net.now);
                net.nodes[0].turn(net.now);
            }
            if round % 2 == 0 {
                all.extend(taken(&mut net, &queue, 5));
            }
            if round % 4 == 1 {
                net.rest();
            }
            net.nodes[0].close_queue(0, "q", &queue);
            if round % 5 == 2 {
                net.rest();
            }
            queue = accept(&mut net, 1 + round % 7, 64 << 20);
        }
        while all.len() < 2000 {
            net.rest();
            let some = taken(&mut net, &queue, 9);
            assert!(!some.is_empty(), "{} of 2000 were accepted", all.len());
            all.extend(some);
        }
        net.rest();
        sent.iter().for_each(|sent| sent.outcome().unwrap());
        assert!(all.iter().copied().eq((0..2000).map(|number| number as u8)), "not each once, in order");
        net.nothing_is_left();
    }
}

/// One step of a drained ps:1 or its pusher; the test tries every order.
#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    /// A turn of one of the two nodes.
    Turn(usize),
    Take,
    /// The daemon checks whether the drain is over.
    Look,
}

/// A drain as the daemon does it, up to the end of the node, with pushers that go on.
struct Drained {
    net: Net,
    queue: Arc<AcceptQueue>,
    pushed: Vec<Sent>,
    taken: Vec<u8>,
    is_deaf: bool,
    is_over: bool,
}

impl Drained {
    fn begin() -> Drained {
        let mut net = Net::pair();
        let queue = accept(&mut net, 3, 1 << 20);
        let pushed = (1..=2).map(|value| push(&mut net, WORKER, [value], 3)).collect();
        net.rest();
        net.nodes[0].drain();
        Drained { net, queue, pushed, taken: Vec::new(), is_deaf: false, is_over: false }
    }

    fn step(&mut self, step: Step) {
        let net = &mut self.net;
        match step {
            Step::Push => {
                let value = self.pushed.len() as u8 + 1;
                self.pushed.push(push(net, WORKER, [value], 3));
            }
            Step::Turn(index) => _ = net.nodes[index].turn(net.now),
            Step::Take => self.taken.append(&mut taken(net, &self.queue, 1)),
            Step::Look if net.nodes[0].under_way() > 0 => {}
            Step::Look if self.is_deaf => {
                net.nodes[0].shut_down(net.now, "it has drained");
                self.is_over = true;
            }
            Step::Look => {
                net.nodes[0].stop_reading();
                self.is_deaf = true;
            }
        }
    }

    fn go_on(&mut self, steps: &[Step]) {
        for step in steps {
            if !self.is_over {
                self.step(*step);
            }
        }
    }
}

#[test]
fn a_drain_loses_no_push_that_its_pusher_knows_to_be_taken() {
    const STEPS: [Step; 5] = [Step::Push, Step::Turn(0), Step::Turn(1), Step::Take, Step::Look];
    const LENGTH: u32 = 5;
    for word in 0..STEPS.len().pow(LENGTH) {
        let steps: Vec<_> = (0..LENGTH).map(|place| STEPS[word / STEPS.len().pow(place) % STEPS.len()]).collect();
        let mut drained = Drained::begin();
        drained.go_on(&steps);
        for _ in 0..20 {
            drained.go_on(&[
                Step::Push,
                Step::Turn(1),
                Step::Look,
                Step::Turn(0),
                Step::Turn(1),
                Step::Look,
                Step::Take,
            ]);
        }
        assert!(drained.is_over, "a pusher that goes on keeps the node from draining: {steps:?}");
        drained.net.rest();
        let known = drained.pushed.iter().filter(|push| matches!(push.0.try_recv(), Ok(Ok(())))).count();
        let taken = drained.taken;
        assert!(taken.len() >= known && known >= 2, "{known} are known to be taken, {taken:?} were: {steps:?}");
    }
}

#[test]
fn pushes_that_a_drain_held_back_go_on_where_the_node_does() {
    for from in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let queue = accept(&mut net, 3, 1 << 20);
        net.nodes[0].drain();
        let sent: Vec<_> = (1..=20).map(|value| push(&mut net, from, [value], 3)).collect();
        net.rest();
        net.nodes[0].stop_reading();
        net.rest();
        net.nodes[0].resume();
        let mut all = Vec::new();
        while all.len() < 20 {
            net.rest();
            let before = all.len();
            all.append(&mut taken(&mut net, &queue, 3));
            assert!(all.len() > before, "{all:?}");
        }
        net.rest();
        sent.iter().for_each(|push| push.outcome().unwrap());
        assert_eq!(all, (1..=20).collect::<Vec<_>>());
        net.nothing_is_left();
    }
}
