//! What one peer may make a shard store: counted per transport address, over all the sessions that it claims.

use sealane_transport::lane::lane;
use sealane_transport::limits::{AHEAD_BYTES_MAX, AHEAD_TENSOR_BYTES};
use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::outbox::Outbox;
use sealane_transport::session::ahead_cost;
use sealane_transport::tensor::{DType, TensorMeta};
use sealane_transport::wire::{
    Ahead, AheadRecordsBuf, Ends, Frame, FrameWriter, Pull, PullFrame, PushFrame, PushOpen, PushWant, Request,
    RowRequest, parse,
};
use sealane_transport::{Keys, PullBuffer};

use super::pushing::{WORKER, accept_at, push_to, taken_from};
use super::*;
use crate::limits::{LATE_PER_TURN, PARKED_GRACE, PROMISE_TIME, REQUEST_DELAY};
use crate::node::{PullRequest, PullWaiter, PushRequest};
use crate::queue::{AcceptOptions, AcceptQueue};

const PEER: &str = "10.0.0.2:7000";
const OTHER: &str = "10.0.0.9:7000";
/// Room for publications, and for as many names that others ask for.
const PUBLISHED_MAX: usize = 16;
const PLAN_KEYS_MAX: usize = 4;
const NAME_BYTES_MAX: usize = 10_000;

fn small_ps() -> NodeSettings {
    let session =
        SessionLimits { plan_keys_max: PLAN_KEYS_MAX, peer_name_bytes_max: NAME_BYTES_MAX, ..SessionLimits::default() };
    NodeSettings { published_tensors_max: PUBLISHED_MAX, links_max: 64, session, ..ps() }
}

/// One link of a peer that sends whatever the test wants.
struct Intruder {
    link: LoopbackLink,
    said: Vec<u8>,
}

impl Receiver for Intruder {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        self.said.extend(bytes);
        Ok(Frames { consumed: bytes.len(), landing: None })
    }

    fn landed(&mut self, _: Landing) {
        unreachable!("nothing is sent")
    }
}

/// Calls node 0 as one of the shards that a peer claims to have.
fn intruder(net: &mut Net, address: &str, (shard, shards): (u16, u16)) -> Intruder {
    let task = if address == PEER { "worker:1" } else { "nowhere:1" };
    let (incarnation, tensor_bytes_max) = (77_000_000, 1 << 20);
    let hello = Hello {
        incarnation,
        tensor_bytes_max,
        shards,
        shard,
        lane: u32::from(shard),
        address: address.into(),
        tasks: vec![task.into()],
        ..Hello::probe()
    };
    let (link, _) = net.call(0, &hello).unwrap();
    Intruder { link, said: Vec::new() }
}

fn id(number: u64) -> Handle {
    Handle::from_bits(1 << 32 | number)
}

impl Intruder {
    /// Sends frames and returns node 0's answers: failures by reason, other frames by kind.
    fn say(&mut self, net: &mut Net, write: impl FnOnce(&mut FrameWriter<'_>)) -> Vec<String> {
        let mut outbox = Outbox::default();
        outbox.stage(write);
        while !outbox.is_empty() {
            self.link.transmit(&mut outbox, usize::MAX, false).unwrap();
            net.rest();
        }
        self.hear()
    }

    fn hear(&mut self) -> Vec<String> {
        let mut ear = Intruder { link: loopback().0, said: std::mem::take(&mut self.said) };
        self.link.receive(&mut ear, usize::MAX).unwrap();
        let (mut words, mut bytes) = (Vec::new(), &ear.said[..]);
        while let Some((frame, length)) = parse(bytes).unwrap() {
            bytes = &bytes[length..];
            match frame {
                Frame::Pull(PullFrame::Failure(failure)) => words.push(failure.reason.to_owned()),
                Frame::Push(PushFrame::Failure(failure)) => words.push(failure.reason.to_owned()),
                Frame::Push(PushFrame::Grant(_)) => words.push("grant".into()),
                Frame::Failure(failure) => words.push(failure.reason.to_owned()),
                Frame::Parked { .. } => words.push("parked".into()),
                _ => {}
            }
        }
        words
    }

    /// Names keys and pulls them.
    fn pull(&mut self, net: &mut Net, number: u64, keys: &[String]) -> Vec<String> {
        self.say(net, |writer| {
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            let (mut first, count) = (0, keys.len() as u32);
            while first < count {
                let rest = keys[first as usize..].iter().copied();
                first += writer.key_set(id(number), (0, 0), (count, first), rest);
            }
            writer.pull(&Pull {
                id: id(number),
                set: id(number),
                min_version: 0,
                timeout_ms: 60_000,
                fail_if_gone: false,
            });
        })
    }

    /// Asks for rows, and reads none of the answers.
    fn ask_for_rows(&mut self, net: &mut Net, number: u64, ids: &[u64]) {
        let mut named = NamedRowsBuf::default();
        named.name("table", ids, |count| count as u32).unwrap();
        let (rows, id) = (named.as_rows(), id(number));
        let request =
            RowRequest { id, min_version: 1, timeout_ms: 60_000, fail_if_gone: false, consumer: 0, producer: 0, rows };
        let mut outbox = Outbox::default();
        outbox.stage(|writer| writer.rows(&request));
        while !outbox.is_empty() {
            self.link.transmit(&mut outbox, usize::MAX, false).unwrap();
            net.rest();
        }
    }

    fn open(&mut self, net: &mut Net, number: u64, queue: &str) -> Vec<String> {
        self.say(net, |writer| writer.push_open(&PushOpen { stream: id(number), first: 0, from: 0, to: 0, queue }))
    }
}

#[test]
fn a_peer_that_sends_more_ahead_than_its_credit_loses_its_link() {
    let mut net = Net::new([small_ps()]);
    let mut peer = intruder(&mut net, PEER, (0, 1));
    let asked = net.recv((0, "ps:1"), "worker:1", "never sent");
    net.pass(REQUEST_DELAY);
    assert!(asked.waits(), "and was asked for: what comes ahead is kept from now on");
    let (bytes, meta) =
        (vec![1; AHEAD_TENSOR_BYTES], TensorMeta::new(DType::U8, &[AHEAD_TENSOR_BYTES as u64]).unwrap());
    let (ends, meta) = (Ends { step: 1, producer: 0, consumer: 0 }, meta.into_wire());
    let mut kept = 0;
    loop {
        let key = format!("{kept:05}");
        let mut records = AheadRecordsBuf::default();
        records.push(&key, &meta, bytes[..].into());
        let mut outbox = Outbox::default();
        outbox.stage(|writer| writer.ahead(&Ahead { first: kept, ends, records: records.records() }));
        peer.link.transmit(&mut outbox, usize::MAX, false).unwrap();
        net.rest();
        let mut ear = Intruder { link: loopback().0, said: Vec::new() };
        if peer.link.receive(&mut ear, usize::MAX).is_err() {
            break;
        }
        kept += 1;
    }
    let cost = ahead_cost(&[0; 5], &meta, &bytes);
    assert_eq!(kept as usize, AHEAD_BYTES_MAX / cost);
    net.nodes[0].check_invariants();
    assert_eq!(
        intruder(&mut net, PEER, (0, 1)).pull(&mut net, 1, &["k".into()]),
        [""; 0],
        "its next link is as good as any"
    );
}

#[test]
fn a_peer_that_opens_and_closes_streams_leaves_nothing_behind() {
    let mut net = Net::new([small_ps()]);
    let mut peer = intruder(&mut net, PEER, (0, 1));
    peer.open(&mut net, 1, "q");
    for number in 2..600 {
        peer.open(&mut net, number, "q");
        peer.say(&mut net, |writer| writer.push_want(&PushWant { stream: id(number), least: 1 << 19, all: 1 << 19 }));
        peer.say(&mut net, |writer| writer.push_close(id(number)));
        net.nodes[0].check_invariants();
    }
    let queue = Arc::new(AcceptQueue::new(AcceptOptions { tensors_max: 4, bytes_max: 99 }, Box::new(|| {})));
    net.nodes[0].open_queue(0, "q", queue).unwrap();
    net.rest();
    assert_eq!(peer.hear(), ["grant"]);
}

fn keys(of: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{of}{number}")).collect()
}

fn publish(net: &mut Net, key: &str) -> Result<(), Error> {
    let task = net.nodes[0].local_task("ps:1").unwrap();
    let result = net.nodes[0].publish(task, key, 1, Tensor::from_elements(&[1], &[1_u8]).unwrap());
    net.nodes[0].check_invariants();
    result
}

fn pull(net: &mut Net, (at, task): (usize, &str), keys: &[String]) -> oneshot::Receiver<Result<PullBuffer, Error>> {
    let pair = net.number(at, task, "ps:1");
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let plan = net.nodes[at].open_plan(pair, Arc::new(Keys::new(&keys).unwrap()));
    pull_plan(net, at, plan, keys.len())
}

fn pull_plan(net: &mut Net, at: usize, plan: Handle, count: usize) -> oneshot::Receiver<Result<PullBuffer, Error>> {
    let (sender, receiver) = oneshot::channel();
    let (deadline, pull_buffer, waiter) = (net.now + SOON, PullBuffer::new(count), PullWaiter::Channel(sender));
    net.nodes[at].pull(
        net.now,
        PullRequest { plan, min_version: 0, deadline, pull_buffer, views: false, fail_if_gone: false, waiter },
    );
    net.rest();
    receiver
}

#[test]
fn a_peer_that_claims_many_shards_names_no_more_keys_than_one_peer_may_and_the_others_go_on() {
    for shards in [4, 40] {
        let mut net = Net::new([small_ps()]);
        let mut links: Vec<_> = (0..shards).map(|shard| intruder(&mut net, PEER, (shard, shards))).collect();
        for (number, link) in links.iter_mut().enumerate() {
            let heard = link.pull(&mut net, 1, &keys(&format!("link {number} "), PLAN_KEYS_MAX));
            match number {
                0 => assert_eq!(heard, [""; 0], "it waits for its tensors"),
                _ => assert!(matches!(&heard[..], [reason] if reason.contains("fusion.plan_keys_max")), "{heard:?}"),
            }
            net.nodes[0].check_invariants();
        }
        // Another peer, a task of this node and publishers here are not affected.
        assert_eq!(intruder(&mut net, OTHER, (0, 1)).pull(&mut net, 1, &keys("other", PLAN_KEYS_MAX)), [""; 0]);
        let local = pull(&mut net, (0, "ps:2"), &["local".into()]);
        (0..PUBLISHED_MAX - 1).for_each(|number| publish(&mut net, &format!("own{number}")).unwrap());
        publish(&mut net, "local").unwrap();
        net.rest();
        assert!(local.try_recv().unwrap().unwrap().get(0).is_ok());
        assert_eq!(limit(&publish(&mut net, "one more").unwrap_err()), "fusion.published_tensors_max");
        // What one session gives up is available to another.
        links[0].say(&mut net, |writer| writer.forget_set(id(1)));
        assert_eq!(links[1].pull(&mut net, 2, &keys("again", PLAN_KEYS_MAX)), [""; 0]);
        links.clear();
        net.rest();
        assert_eq!(intruder(&mut net, PEER, (0, shards)).pull(&mut net, 1, &keys("anew", PLAN_KEYS_MAX)), [""; 0]);
        net.nodes[0].check_invariants();
    }
}

#[test]
fn an_honest_peer_of_four_shards_hears_which_limit_it_has_reached_and_publications_go_on() {
    let shard = |shard| NodeSettings { shard, shards: 4, ..settings(PEER, &["worker:1", "absent:1"]) };
    let mut net = Net::new([small_ps(), shard(0), shard(1), shard(2), shard(3)]);
    let tasks = ["worker:1", "absent:1"];
    let at = |task| 1 + shard_of(lane("ps:1", task), 4);
    assert_ne!(at(tasks[0]), at(tasks[1]), "the names are chosen so");
    let pulls = tasks.map(|task| pull(&mut net, (at(task), task), &keys(task, PLAN_KEYS_MAX)));
    assert!(pulls[0].try_recv().is_err(), "it waits for its tensors");
    let refused = pulls[1].try_recv().unwrap().unwrap();
    let reason = refused.get(0).unwrap_err().to_string();
    assert!(reason.contains("fusion.plan_keys_max is full: the plans of one peer have 4 keys"), "{reason}");
    keys("worker:1", PLAN_KEYS_MAX).iter().for_each(|key| publish(&mut net, key).unwrap());
    net.rest();
    assert!(pulls[0].try_recv().unwrap().unwrap().get(3).is_ok());
}

#[test]
fn a_plan_that_was_refused_is_pulled_when_another_of_its_peer_has_been_closed() {
    let shard = |shard| NodeSettings { shard, shards: 4, ..settings(PEER, &["worker:1", "absent:1"]) };
    let mut net = Net::new([small_ps(), shard(0), shard(1), shard(2), shard(3)]);
    let at = |task| 1 + shard_of(lane("ps:1", task), 4);
    let [(one, plan), (other, refused)] = ["worker:1", "absent:1"].map(|task| {
        let (at, keys) = (at(task), keys(task, PLAN_KEYS_MAX));
        let pair = net.number(at, task, "ps:1");
        (at, net.nodes[at].open_plan(pair, Arc::new(Keys::new(&keys).unwrap())))
    });
    let pulls = [pull_plan(&mut net, one, plan, PLAN_KEYS_MAX), pull_plan(&mut net, other, refused, PLAN_KEYS_MAX)];
    assert!(pulls[0].try_recv().is_err(), "it waits for its tensors");
    assert!(pulls[1].try_recv().unwrap().unwrap().get(0).is_err());
    net.nodes[one].close_plan(plan);
    net.rest();
    let again = pull_plan(&mut net, other, refused, PLAN_KEYS_MAX);
    assert!(again.try_recv().is_err(), "it waits for its tensors");
    keys("absent:1", PLAN_KEYS_MAX).iter().for_each(|key| publish(&mut net, key).unwrap());
    net.rest();
    assert!(again.try_recv().unwrap().unwrap().get(3).is_ok());
}

#[test]
fn a_store_keeps_room_for_plans_of_its_own_node() {
    let mut net = Net::new([NodeSettings { session: SessionLimits::default(), ..small_ps() }]);
    let mut peer = intruder(&mut net, PEER, (0, 1));
    let heard = peer.pull(&mut net, 1, &keys("k", PUBLISHED_MAX));
    assert!(matches!(&heard[..], [reason] if reason.contains("fusion.published_tensors_max")), "{heard:?}");
    assert_eq!(peer.pull(&mut net, 2, &keys("k", PUBLISHED_MAX * 3 / 4)), [""; 0]);
    let local = pull(&mut net, (0, "ps:2"), &["local".into()]);
    assert!(local.try_recv().is_err(), "it waits");
    net.nodes[0].check_invariants();
}

#[test]
fn names_are_counted_by_their_bytes_and_a_refused_one_harms_nothing_else() {
    let mut net = Net::new([small_ps()]);
    let mut links = [0, 1].map(|shard| intruder(&mut net, PEER, (shard, 2)));
    let long = |letter: &str| letter.repeat(4000);
    assert_eq!(links[0].pull(&mut net, 1, &[long("a"), long("b")]), [""; 0]);
    for heard in [links[1].pull(&mut net, 1, &[long("c")]), links[1].open(&mut net, 1, &long("q"))] {
        assert!(matches!(&heard[..], [reason] if reason.contains("fusion.peer_name_bytes_max")), "{heard:?}");
        net.nodes[0].check_invariants();
    }
    let queue = Arc::new(AcceptQueue::new(AcceptOptions { tensors_max: 4, bytes_max: 99 }, Box::new(|| {})));
    net.nodes[0].open_queue(0, "q", queue).unwrap();
    assert_eq!(links[1].open(&mut net, 2, "q"), ["grant"]);
    assert_eq!(links[1].pull(&mut net, 2, &["short".into()]), [""; 0]);
    // Streams outlive their links, and still count.
    drop(links);
    net.rest();
    net.nodes[0].check_invariants();
}

#[test]
fn parked_requests_are_counted_by_peer() {
    let session = SessionLimits { parked_requests_max: 6, ..SessionLimits::default() };
    let mut net = Net::new([NodeSettings { session, ..small_ps() }]);
    let mut links = [0, 1].map(|shard| intruder(&mut net, PEER, (shard, 2)));
    let request = |number: u64| Request {
        id: id(number),
        consumer: 0,
        producer: 0,
        step: number as i64,
        timeout_ms: 60_000,
        if_gone: Default::default(),
        key: "w",
    };
    assert_eq!(
        links[0].say(&mut net, |writer| (0..6).for_each(|number| writer.request(&request(number)))),
        ["parked"; 6]
    );
    let heard = links[1].say(&mut net, |writer| writer.request(&request(7)));
    assert!(matches!(&heard[..], [reason] if reason.contains("fusion.parked_requests_max")), "{heard:?}");
    net.nodes[0].check_invariants();
}

#[test]
fn what_peers_let_wait_too_long_ends_a_few_a_turn() {
    for apart_ms in [0, 1] {
        let mut net = Net::new([small_ps()]);
        let mut peer = intruder(&mut net, PEER, (0, 1));
        let count = 10 * LATE_PER_TURN;
        let mut named = NamedRowsBuf::default();
        named.name("table", &[1], |count| count as u32).unwrap();
        peer.say(&mut net, |writer| {
            for number in 0..count as u64 {
                let (id, timeout_ms) = (id(number), 1000 + apart_ms * number as u32);
                let (consumer, producer, step, if_gone, key) = (0, 0, number as i64, Default::default(), "w");
                writer.request(&Request { id, consumer, producer, step, timeout_ms, if_gone, key });
                let (min_version, fail_if_gone, rows) = (1, false, named.as_rows());
                writer.rows(&RowRequest { id, min_version, timeout_ms, fail_if_gone, consumer, producer, rows });
            }
        });
        let left = |net: &Net| [net.nodes[0].counters().parked as usize, net.nodes[0].row_requests.len()];
        let mut before = left(&net);
        assert_eq!(before, [count; 2]);
        let mut turn = |net: &mut Net| {
            net.nodes[0].turn(net.now);
            net.nodes[0].check_invariants();
            let before = std::mem::replace(&mut before, left(net));
            (left(net), [0, 1].map(|kind| before[kind] - left(net)[kind]))
        };
        net.now += PARKED_GRACE + Duration::from_secs(1);
        if apart_ms > 0 {
            // Each in its own millisecond, and nothing in between.
            for _ in 0..LATE_PER_TURN {
                assert_eq!(turn(&mut net).1, [1, 1]);
                assert_eq!(turn(&mut net).1, [0, 0]);
                assert_eq!(net.nodes[0].next_timeout(), Some(net.now + Duration::from_millis(1)));
                net.now += Duration::from_millis(1);
            }
            // Then many that are late at once.
            net.now += Duration::from_secs(10);
        }
        loop {
            let (left, ended) = turn(&mut net);
            assert!(ended.iter().all(|ended| (1..=LATE_PER_TURN).contains(ended)), "{ended:?} in one turn");
            if left == [0, 0] {
                break;
            }
            let is_due = net.nodes[0].next_timeout().is_some_and(|due| due <= net.now);
            assert!(is_due, "the shard would sleep while some are late: {left:?}");
        }
    }
}

#[test]
fn a_push_into_a_queue_that_is_not_taken_in_ends_with_the_limits_name() {
    let mut net = Net::new([small_ps(), worker()]);
    let queue = Arc::new(AcceptQueue::new(AcceptOptions::default(), Box::new(|| {})));
    net.nodes[0].open_queue(0, "q", queue.clone()).unwrap();
    let push = |net: &mut Net, name: &str| {
        let pair = net.number(1, "worker:1", "ps:1");
        let (sender, receiver) = oneshot::channel();
        let (deadline, waiter) = (net.now + SOON, SendWaiter::Channel(sender));
        let tensors = (0..3).map(|value: u8| Tensor::from_elements(&[1], &[value]).unwrap());
        let tensors = tensors.collect::<Vec<_>>().into_iter();
        net.nodes[1].push(net.now, PushRequest { pair, queue: name, tensors, deadline, waiter });
        net.rest();
        net.nodes[0].check_invariants();
        Sent(receiver)
    };
    let long: Vec<_> = ["a", "b", "c"].iter().map(|letter| push(&mut net, &letter.repeat(4000))).collect();
    assert!(long[0].waits() && long[1].waits(), "nobody accepts from them yet");
    // On every attempt, and over the next link too.
    for _ in 0..2 {
        let reason = push(&mut net, &"c".repeat(4000)).error().to_string();
        assert!(reason.contains("fusion.peer_name_bytes_max"), "{reason}");
        net.lose(1);
        net.pass(Duration::from_secs(1));
    }
    assert!(long[2].error().to_string().contains("fusion.peer_name_bytes_max"));
    push(&mut net, "q").outcome().unwrap();
    let mut items = Vec::new();
    queue.take(9, &mut items).unwrap();
    assert_eq!(items.len(), 3);
}

/// It asks for nearly all memory, and sends nothing.
#[test]
fn who_is_promised_memory_and_does_not_use_it_holds_others_up_for_a_while_only() {
    let mut net = Net::new([ps(), worker()]);
    let queues = ["idle", "busy"].map(|name| accept_at(&mut net, name, 4, 100_000));
    let mut idler = intruder(&mut net, OTHER, (0, 1));
    assert_eq!(idler.open(&mut net, 1, "idle"), ["grant"]);
    let want = |least| PushWant { stream: id(1), least, all: least };
    assert_eq!(idler.say(&mut net, |writer| writer.push_want(&want(900_000))), ["grant"]);
    assert_eq!(net.nodes[0].pushes.promised(), 900_000);
    assert_eq!(idler.say(&mut net, |writer| writer.push_want(&want(800_000))), [""; 0], "it has that");
    let sent = push_to(&mut net, WORKER, "busy", [2], 500_000);
    net.rest();
    assert!(sent.waits() && taken_from(&mut net, ("busy", &queues[1]), 9).is_empty());
    net.pass(PROMISE_TIME);
    assert_eq!(taken_from(&mut net, ("busy", &queues[1]), 9), [2]);
    net.rest();
    sent.outcome().unwrap();
    // However often it asks for everything, it gets room for only one more tensor than it has.
    for _ in 0..8 {
        idler.say(&mut net, |writer| writer.push_want(&want(1 << 60)));
        net.pass(PROMISE_TIME);
        net.pass(PROMISE_TIME);
    }
    // Each session's first stream.
    let first = Handle::from_bits(1 << 32);
    let peers = net.nodes[0].context.peers.iter();
    let credit: Vec<u64> = peers.filter_map(|peer| Some(peer.session.credit(first)?.bytes)).collect();
    let most = 2 * SessionLimits::default().tensor_bytes_max + (16 << 10);
    assert!(credit.len() == 2 && credit.iter().all(|&bytes| bytes <= most), "{credit:?}");
    drop(idler);
    net.rest();
}

#[test]
fn a_peer_that_claims_many_shards_takes_no_more_memory_for_rows_than_one_peer_may() {
    let mut net = Net::new([small_ps()]);
    let task = net.nodes[0].local_task("ps:1").unwrap();
    net.nodes[0].publish(task, "table", 1, Tensor::from_elements(&[2000, 64], &[7_u8; 128_000]).unwrap()).unwrap();
    let mut links: Vec<_> = (0..4).map(|shard| intruder(&mut net, PEER, (shard, 4))).collect();
    let ids: Vec<u64> = (0..2000).collect();
    for link in &mut links {
        (0..2).for_each(|number| link.ask_for_rows(&mut net, number, &ids));
    }
    let held = net.nodes[0].counters().slab_send_bytes as usize;
    assert!(held > 0 && held <= SLAB_BYTES / 4, "{held} of {SLAB_BYTES} bytes");
    // Another peer's rows arrive.
    let mut other = intruder(&mut net, OTHER, (0, 1));
    other.ask_for_rows(&mut net, 1, &ids);
    assert!(net.nodes[0].counters().slab_send_bytes as usize > held);
    drop(links);
    net.pass(Duration::from_secs(600));
}
