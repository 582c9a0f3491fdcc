//! Published tensors: pulled by a plan, over a link and within a node.

use sealane_transport::{Keys, PullBuffer};

use super::*;
use crate::node::{PullRequest, PullWaiter};

/// A plan of a worker at node 1, or of ps:2 at node 0.
struct Plan {
    at: usize,
    plan: Handle,
    pull_buffer: Option<PullBuffer>,
}

fn plan(net: &mut Net, at: (usize, &str), keys: &[&str]) -> Plan {
    let pair = net.number(at.0, at.1, "ps:1");
    let plan = net.nodes[at.0].open_plan(pair, Arc::new(Keys::new(keys).unwrap()));
    Plan { at: at.0, plan, pull_buffer: Some(PullBuffer::new(keys.len())) }
}

impl Plan {
    fn pull(
        &mut self,
        net: &mut Net,
        min_version: i64,
    ) -> (oneshot::Receiver<Result<PullBuffer, Error>>, Option<Handle>) {
        let (sender, receiver) = oneshot::channel();
        let (deadline, pull_buffer) = (net.now + SOON, self.pull_buffer.take().unwrap());
        let request = PullRequest {
            plan: self.plan,
            min_version,
            deadline,
            pull_buffer,
            views: false,
            fail_if_gone: false,
            waiter: PullWaiter::Channel(sender),
        };
        let pull = net.nodes[self.at].pull(net.now, request);
        (receiver, pull)
    }

    /// The results of a pull that needs no waiting.
    fn pulled(&mut self, net: &mut Net, min_version: i64) -> Vec<Result<Vec<u8>, Code>> {
        let (receiver, _) = self.pull(net, min_version);
        net.rest();
        let pull_buffer = receiver.try_recv().expect("the pull has ended").unwrap();
        let bytes = (0..pull_buffer.len()).map(|index| bytes(&pull_buffer, index)).collect();
        self.pull_buffer = Some(pull_buffer);
        bytes
    }
}

fn bytes(pull_buffer: &PullBuffer, index: usize) -> Result<Vec<u8>, Code> {
    pull_buffer.get(index).map(|tensor| tensor.bytes().to_vec()).map_err(|error| error.code())
}

fn publish(net: &mut Net, key: &str, version: i64, bytes: &[u8]) {
    let task = net.nodes[0].local_task("ps:1").unwrap();
    let tensor = Tensor::from_elements(&[bytes.len() as u64], bytes).unwrap();
    net.nodes[0].publish(task, key, version, tensor).unwrap();
}

/// A tensor too long for one frame.
fn large(seed: u8) -> Vec<u8> {
    (0..300_000_usize).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// Each side has two shards: the worker's are nodes 2 and 3.
fn two_shards_a_side() -> Net {
    let shards = |settings: fn() -> NodeSettings| [0, 1].map(|shard| NodeSettings { shard, shards: 2, ..settings() });
    Net::new(shards(ps).into_iter().chain(shards(worker)))
}

/// A plan of one of the worker's shards, whether or not that shard serves the pair.
fn plan_over(net: &mut Net, at: usize, key: &str) -> Plan {
    let node = &mut net.nodes[at];
    let local = node.local_task("worker:1").unwrap();
    let pair = node.pulling_pair(local, "ps:1").unwrap();
    let plan = node.open_plan(pair, Arc::new(Keys::new([key]).unwrap()));
    Plan { at, plan, pull_buffer: Some(PullBuffer::new(1)) }
}

fn publish_on(net: &mut Net, shards: usize, version: i64, bytes: &[u8]) {
    for node in &mut net.nodes[..shards] {
        let (task, tensor) = (node.local_task("ps:1").unwrap(), Tensor::from_elements(&[bytes.len() as u64], bytes));
        node.publish(task, "w", version, tensor.unwrap()).unwrap();
    }
}

#[test]
fn every_shard_pulls_for_a_pair_over_a_link_of_its_own() {
    let mut net = two_shards_a_side();
    publish_on(&mut net, 2, 1, &large(1));
    let mut plans = [2, 3].map(|at| plan_over(&mut net, at, "w"));
    for plan in &mut plans {
        assert!(plan.pulled(&mut net, 1) == [Ok(large(1))]);
    }
    let figures = net.nodes.iter().map(|node| (node.counters().links, node.counters().bytes_received));
    assert_eq!(figures.collect::<Vec<_>>(), [(1, 0), (1, 0), (1, 300_000), (1, 300_000)]);
    // Only pulls go by both shards.
    let owners = [2, 3].map(|at| net.nodes[at].pair(0, "ps:1").is_ok());
    assert!(owners[0] != owners[1], "{owners:?}");
}

#[test]
fn shards_that_pull_for_a_pair_follow_its_publisher_to_fewer_shards() {
    let mut net = two_shards_a_side();
    publish_on(&mut net, 2, 1, &large(1));
    let mut plans = [2, 3].map(|at| plan_over(&mut net, at, "w"));
    let waiting = plans.each_mut().map(|plan| plan.pull(&mut net, 2).0);
    net.rest();
    // The publisher restarts with one shard.
    net.nodes.drain(..2);
    net.nodes.insert(0, node(NodeSettings { incarnation: 2000, ..ps() }));
    net.rest();
    net.pass(Duration::from_secs(1));
    publish_on(&mut net, 1, 2, &large(2));
    net.rest();
    for (plan, waiting) in plans.iter_mut().zip(waiting) {
        let pull_buffer = waiting.try_recv().expect("the pull has ended").unwrap();
        assert!(matches!(bytes(&pull_buffer, 0), Err(Code::Unavailable)), "it was lost with the process");
        (plan.at, plan.pull_buffer) = (plan.at - 1, Some(pull_buffer));
        assert!(plan.pulled(&mut net, 2) == [Ok(large(2))]);
    }
    assert_eq!(net.nodes[0].counters().links, 2);
}

const WORKER: (usize, &str) = (1, "worker:1");
const NEIGHBOUR: (usize, &str) = (0, "ps:2");

#[test]
fn a_plan_brings_every_tensor_again_and_again_into_the_same_memory() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        publish(&mut net, "small", 1, &[1, 2, 3]);
        publish(&mut net, "large", 1, &large(0));
        publish(&mut net, "empty", 1, &[]);
        let mut plan = plan(&mut net, at, &["small", "large", "empty", "small"]);
        let first = plan.pulled(&mut net, 0);
        assert!(first == [Ok(vec![1, 2, 3]), Ok(large(0)), Ok(vec![]), Ok(vec![1, 2, 3])], "{at:?}");
        let place = |plan: &Plan| plan.pull_buffer.as_ref().unwrap().get(1).unwrap().bytes().as_ptr();
        let before = place(&plan);
        publish(&mut net, "small", 2, &[4, 5, 6]);
        publish(&mut net, "large", 3, &large(9));
        let second = plan.pulled(&mut net, 0);
        assert!(second == [Ok(vec![4, 5, 6]), Ok(large(9)), Ok(vec![]), Ok(vec![4, 5, 6])]);
        let pull_buffer = plan.pull_buffer.as_ref().unwrap();
        let versions = (0..4).map(|index| pull_buffer.version(index)).collect::<Vec<_>>();
        assert_eq!((versions, place(&plan)), (vec![2, 3, 1, 2], before));
    }
}

#[test]
fn a_plan_waits_for_the_version_and_takes_what_is_there() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        publish(&mut net, "a", 1, &[1]);
        let mut plan = plan(&mut net, at, &["a", "b", "c"]);
        let (receiver, _) = plan.pull(&mut net, 2);
        net.rest();
        publish(&mut net, "b", 2, &[2]);
        publish(&mut net, "c", 1, &[9]);
        net.rest();
        publish(&mut net, "c", 5, &[3]);
        net.rest();
        assert!(receiver.try_recv().is_err(), "a is too old");
        publish(&mut net, "a", 2, &[1]);
        net.rest();
        let pull_buffer = receiver.try_recv().unwrap().unwrap();
        assert_eq!(
            [0, 1, 2].map(|index| (bytes(&pull_buffer, index).unwrap()[0], pull_buffer.version(index))),
            [(1, 2), (2, 2), (3, 5)]
        );
    }
}

#[test]
fn a_changed_shape_is_nobodys_error() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        publish(&mut net, "w", 1, &[1, 2, 3]);
        let mut plan = plan(&mut net, at, &["w"]);
        plan.pull_buffer.as_mut().unwrap().set_destination(0, Buffer::of_len(4));
        assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![1, 2, 3])]);
        publish(&mut net, "w", 2, &[1; 200]);
        assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![1; 200])]);
        publish(&mut net, "w", 3, &[7]);
        assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![7])]);
    }
}

#[test]
fn what_is_not_there_in_time_fails_alone_and_names_its_key() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        publish(&mut net, "there", 1, &[1]);
        let mut plan = plan(&mut net, at, &["there", "never"]);
        let (receiver, _) = plan.pull(&mut net, 0);
        net.rest();
        net.pass(SOON);
        let pull_buffer = receiver.try_recv().unwrap().unwrap();
        assert_eq!((bytes(&pull_buffer, 0), bytes(&pull_buffer, 1)), (Ok(vec![1]), Err(Code::DeadlineExceeded)));
        assert!(pull_buffer.get(1).unwrap_err().to_string().contains("never"));
        plan.pull_buffer = Some(pull_buffer);
        publish(&mut net, "never", 1, &[2]);
        assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![1]), Ok(vec![2])]);
    }
}

#[test]
fn a_pull_that_is_given_up_gives_its_buffer_back() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let mut plan = plan(&mut net, at, &["w"]);
        let (receiver, pull) = plan.pull(&mut net, 0);
        net.rest();
        plan.pull_buffer = net.nodes[at.0].cancel_pull(pull.unwrap());
        net.rest();
        assert!(plan.pull_buffer.is_some() && matches!(receiver.try_recv(), Err(oneshot::TryRecvError::Disconnected)));
        publish(&mut net, "w", 0, &[5]);
        assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![5])]);
        net.nodes[at.0].close_plan(plan.plan);
        net.rest();
        assert_eq!(plan.pulled(&mut net, 0), [Err(Code::InvalidArgument)]);
    }
}

#[test]
fn a_plan_survives_its_link() {
    let mut net = Net::pair();
    publish(&mut net, "w", 1, &[1]);
    publish(&mut net, "v", 1, &large(3));
    let mut plan = plan(&mut net, WORKER, &["w", "v"]);
    assert!(plan.pulled(&mut net, 0).iter().all(Result::is_ok));
    let (receiver, _) = plan.pull(&mut net, 2);
    net.rest();
    net.lose(1);
    publish(&mut net, "w", 2, &[2]);
    publish(&mut net, "v", 2, &large(4));
    net.pass(Duration::from_secs(1));
    let pull_buffer = receiver.try_recv().unwrap().unwrap();
    assert_eq!((bytes(&pull_buffer, 0), bytes(&pull_buffer, 1)), (Ok(vec![2]), Ok(large(4))));
}

#[test]
fn metadata_goes_once_and_messages_are_few() {
    let mut net = Net::pair();
    let keys: Vec<String> = (0..500).map(|number| format!("layer/{number}/kernel")).collect();
    keys.iter().for_each(|key| publish(&mut net, key, 1, &[3; 64]));
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let mut plan = plan(&mut net, WORKER, &keys);
    let sent = |net: &Net| net.nodes.iter().map(|node| node.counters().messages_sent).sum::<u64>();
    assert!(plan.pulled(&mut net, 0).iter().all(Result::is_ok));
    let before = sent(&net);
    keys.iter().for_each(|key| publish(&mut net, key, 2, &[4; 64]));
    assert!(plan.pulled(&mut net, 2).iter().all(|bytes| *bytes == Ok(vec![4; 64])));
    let messages = sent(&net) - before;
    assert!(messages <= 1 + 500 * 64 / 8192 + 1, "{messages} messages for 500 tensors");
}

#[test]
fn nothing_of_a_plan_that_is_closed_is_kept() {
    let mut net = Net::pair();
    for round in 0..20 {
        let keys: Vec<String> = (0..100).map(|number| format!("round {round} key {number}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut plan = plan(&mut net, WORKER, &keys);
        let (_receiver, pull) = plan.pull(&mut net, 0);
        net.rest();
        net.nodes[1].cancel_pull(pull.unwrap());
        net.nodes[1].close_plan(plan.plan);
        net.rest();
    }
    // The store has room for 1000 keys.
    publish(&mut net, "w", 1, &[1]);
    let mut plan = plan(&mut net, WORKER, &["w"]);
    assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![1])]);
}

#[test]
fn a_store_that_is_full_says_so() {
    let small = NodeSettings { published_tensors_max: 2, ..ps() };
    let mut net = Net::new([small, worker()]);
    for at in [WORKER, NEIGHBOUR] {
        let mut plan = plan(&mut net, at, &["a", "b", "c"]);
        assert_eq!(plan.pulled(&mut net, 0), vec![Err(Code::ResourceExhausted); 3]);
    }
    publish(&mut net, "a", 1, &[1]);
    publish(&mut net, "b", 1, &[1]);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    let tensor = Tensor::from_elements(&[1], &[1_u8]).unwrap();
    let full = net.nodes[0].publish(task, "c", 1, tensor).unwrap_err();
    assert_eq!(limit(&full), "fusion.published_tensors_max");
}

#[test]
fn a_task_whose_process_is_gone_publishes_nothing_any_more() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        publish(&mut net, "w", 1, &[1]);
        let mut plan = plan(&mut net, at, &["w", "late"]);
        let (receiver, _) = plan.pull(&mut net, 0);
        net.rest();
        let task = net.nodes[0].local_task("ps:1").unwrap();
        net.nodes[0].forget_client(task, "its process is gone");
        net.rest();
        let pull_buffer = receiver.try_recv().expect("nobody waits for ever").unwrap();
        assert_eq!((bytes(&pull_buffer, 0), bytes(&pull_buffer, 1)), (Ok(vec![1]), Err(Code::Unavailable)));
        assert_eq!(net.nodes[0].counters().published, 0);
    }
}

#[test]
fn the_plans_of_a_task_whose_process_is_gone_are_closed() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        publish(&mut net, "w", 1, &[1]);
        let mut plan = plan(&mut net, at, &["w"]);
        assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![1])]);
        let task = net.nodes[at.0].local_task(at.1).unwrap();
        net.nodes[at.0].forget_client(task, "its process is gone");
        assert_eq!(plan.pulled(&mut net, 0), [Err(Code::InvalidArgument)]);
    }
}

#[test]
fn a_peer_that_restarts_ends_the_pulls_that_it_was_asked() {
    let mut net = Net::pair();
    let mut plan = plan(&mut net, WORKER, &["w"]);
    let (receiver, _) = plan.pull(&mut net, 0);
    net.rest();
    net.nodes[0] = node(NodeSettings { incarnation: 5_000_000, ..ps() });
    net.lose(1);
    net.pass(Duration::from_secs(1));
    let pull_buffer = receiver.try_recv().unwrap().unwrap();
    assert_eq!(bytes(&pull_buffer, 0), Err(Code::Unavailable));
    plan.pull_buffer = Some(pull_buffer);
    publish(&mut net, "w", 0, &[8]);
    assert_eq!(plan.pulled(&mut net, 0), [Ok(vec![8])]);
}

#[test]
fn a_pull_whose_producer_was_moved_by_the_map_ends() {
    let mut net = Net::pair();
    let mut plan = plan(&mut net, WORKER, &["w"]);
    let (receiver, _) = plan.pull(&mut net, 0);
    net.rest();
    let moved = MAP.replace("ps:1=10.0.0.1:7000", "ps:1=10.0.0.9:7000");
    let map = Arc::new(EndpointMap::parse(&moved, "test").unwrap());
    net.nodes[1].set_map(map, Vec::new()).unwrap();
    plan.pull_buffer = Some(PullBuffer::new(1));
    let (second, _) = plan.pull(&mut net, 0);
    net.rest();
    let pull_buffer = receiver.try_recv().expect("nobody waits for ever").unwrap();
    assert_eq!(bytes(&pull_buffer, 0), Err(Code::Unavailable));
    assert!(second.try_recv().is_err(), "the new host is being called");
}

#[test]
fn a_producer_that_goes_in_the_middle_of_a_pull_ends_what_has_not_begun() {
    for at in [WORKER, NEIGHBOUR] {
        let mut net = Net::pair();
        let keys: Vec<String> = (0..3).map(|number| number.to_string()).collect();
        keys.iter().for_each(|key| publish(&mut net, key, 1, &large(1)));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let mut plan = plan(&mut net, at, &keys);
        // Pulled once so that both sides know it, then again; the producer goes in the middle of that.
        plan.pulled(&mut net, 0);
        let (receiver, _) = plan.pull(&mut net, 0);
        // The request arrives; within a node the answer has already begun.
        net.nodes[1].turn(net.now);
        if at == WORKER {
            net.nodes[0].turn(net.now);
        }
        let task = net.nodes[0].local_task("ps:1").unwrap();
        net.nodes[0].forget_client(task, "its process is gone");
        net.rest();
        let pull_buffer = receiver.try_recv().expect("nobody waits for the next publisher").unwrap();
        let outcomes: Vec<_> = (0..keys.len()).map(|index| bytes(&pull_buffer, index).map(drop)).collect();
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Ok(()) | Err(Code::Unavailable))), "{outcomes:?}");
        assert!(at == WORKER || outcomes.contains(&Err(Code::Unavailable)), "too little for more than a turn");
        plan.pull_buffer = Some(pull_buffer);
        keys.iter().for_each(|key| publish(&mut net, key, 1, &[9]));
        assert!(plan.pulled(&mut net, 0).iter().all(|bytes| *bytes == Ok(vec![9])));
    }
}
