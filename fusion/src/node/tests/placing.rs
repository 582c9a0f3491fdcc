//! Shards: which one serves a pair, and what happens to requests that reach another one.

use super::*;

/// One of several shards of an engine.
fn shard(settings: NodeSettings, shard: u16, shards: u16) -> NodeSettings {
    NodeSettings { shard, shards, ..settings }
}

/// A worker at 0, and a ps with two shards at 1 and 2; ps:1 and ps:2 are served by different ones.
fn two_shards() -> Net {
    let net = Net::new([worker(), shard(ps(), 0, 2), shard(ps(), 1, 2)]);
    assert_ne!(seat("ps:1", 2), seat("ps:2", 2), "the names are chosen so");
    net
}

/// The node in [`two_shards`] that serves the pair of a ps and the worker.
fn seat(task: &str, shards: usize) -> usize {
    1 + shard_of(sealane_transport::lane::lane(task, "worker:1"), shards)
}

fn recv(net: &mut Net, from: &str) -> Asked {
    net.recv((0, "worker:1"), from, "w")
}

fn send(net: &mut Net, from: &str, shards: usize, byte: u8) -> Sent {
    net.send((seat(from, shards), from), "worker:1", "w", &[byte])
}

#[test]
fn a_pair_of_another_shard_is_refused_by_its_number() {
    let mut net = two_shards();
    let (right, wrong) = (seat("ps:1", 2), 3 - seat("ps:1", 2));
    assert!(net.nodes[right].pair(0, "worker:1").is_ok());
    let error = net.nodes[wrong].pair(0, "worker:1").unwrap_err();
    let expected = format!("the pair with worker:1 is served by shard {}, this is shard {}", right - 1, wrong - 1);
    assert_eq!(error.to_string(), expected);
}

#[test]
fn requests_for_another_shard_move_when_the_peer_says_how_many_it_has() {
    let mut net = two_shards();
    let (one, two) = (recv(&mut net, "ps:1"), recv(&mut net, "ps:2"));
    net.rest();
    assert_eq!(net.nodes[0].counters().links, 2);
    let sent = [send(&mut net, "ps:1", 2, 1), send(&mut net, "ps:2", 2, 2)];
    net.rest();
    assert_eq!((one.bytes(), two.bytes()), (vec![1], vec![2]));
    assert!(sent.iter().all(|sent| sent.outcome().is_ok()));
}

#[test]
fn a_request_that_moved_can_be_given_up_by_its_ticket() {
    let mut net = two_shards();
    let asked = [recv(&mut net, "ps:1"), recv(&mut net, "ps:2")];
    net.rest();
    for asked in &asked {
        net.nodes[0].cancel(asked.ticket.unwrap());
    }
    net.rest();
    let sent = [send(&mut net, "ps:1", 2, 1), send(&mut net, "ps:2", 2, 2)];
    net.rest();
    assert!(sent.iter().all(Sent::waits), "nobody asks any more");
}

#[test]
fn a_caller_tells_how_many_shards_it_has() {
    let mut net = two_shards();
    let (one, two) = (recv(&mut net, "ps:1"), recv(&mut net, "ps:2"));
    let (peer, own) = net.dialing(0);
    // The worker wants to call the shard of ps:1; the shard of ps:2 calls first, and its call is lost.
    let calling = seat("ps:2", 2);
    let wanted = net.recv((calling, "ps:2"), "worker:1", "g");
    let (caller, hello) = net.dialing(calling);
    drop(net.call(0, &hello).unwrap());
    net.fail(calling, caller, DialFailureKind::Transient, "lost");
    let (link, welcome) = net.call(seat("ps:1", 2), &own).unwrap();
    net.nodes[0].dialed(net.now, peer, Box::new(link), &welcome);
    net.rest();
    net.pass(Duration::from_secs(1));
    for (task, byte) in [("ps:1", 1), ("ps:2", 2)] {
        send(&mut net, task, 2, byte);
    }
    net.send((0, "worker:1"), "ps:2", "g", &[3]);
    net.rest();
    assert_eq!((one.bytes(), two.bytes(), wanted.bytes()), (vec![1], vec![2], vec![3]));
}

#[test]
fn a_peer_that_restarts_with_fewer_shards_is_found_out_by_calling_it() {
    let mut net = two_shards();
    let asked = [recv(&mut net, "ps:1"), recv(&mut net, "ps:2")];
    net.rest();
    net.nodes.truncate(1);
    net.nodes.push(node(NodeSettings { incarnation: 2000, ..ps() }));
    net.rest();
    net.pass(Duration::from_secs(1));
    assert!(asked.iter().all(|asked| asked.error().code() == Code::Unavailable));
    let again = [recv(&mut net, "ps:1"), recv(&mut net, "ps:2")];
    for (task, byte) in [("ps:1", 1), ("ps:2", 2)] {
        send(&mut net, task, 1, byte);
    }
    net.rest();
    assert_eq!(again.map(|asked| asked.bytes()), [[1], [2]]);
    assert_eq!(net.nodes[0].counters().links, 1);
}

#[test]
fn a_peer_that_restarts_with_more_shards_is_found_out_by_its_call() {
    let mut net = Net::new([worker(), ps()]);
    let asked = recv(&mut net, "ps:1");
    net.rest();
    net.nodes.truncate(1);
    net.nodes.extend([0, 1].map(|index| node(NodeSettings { incarnation: 2000, ..shard(ps(), index, 2) })));
    let wanted = net.recv((seat("ps:2", 2), "ps:2"), "worker:1", "g");
    net.send((0, "worker:1"), "ps:2", "g", &[3]);
    net.rest();
    assert_eq!(wanted.bytes(), [3]);
    assert_eq!(asked.error().code(), Code::Unavailable);
    let again = [recv(&mut net, "ps:1"), recv(&mut net, "ps:2")];
    for (task, byte) in [("ps:1", 1), ("ps:2", 2)] {
        send(&mut net, task, 2, byte);
    }
    net.rest();
    assert_eq!(again.map(|asked| asked.bytes()), [[1], [2]]);
}

#[test]
fn a_greeting_that_came_to_the_wrong_shard_or_names_no_address_is_refused() {
    let mut net = two_shards();
    let _asked = recv(&mut net, "ps:1");
    let (_, hello) = net.dialing(0);
    let wrong = 3 - seat("ps:1", 2);
    let Err((code, reason)) = net.call(wrong, &hello) else { panic!("the lane is another shard's") };
    assert_eq!((code, &*reason), (RejectCode::Refused, "the connection reached a shard that does not serve its lane"));
    let nameless = Hello { address: "somewhere".into(), ..hello };
    let Err((code, reason)) = net.call(seat("ps:1", 2), &nameless) else { panic!("no address") };
    assert_eq!((code, &*reason), (RejectCode::Refused, "'somewhere' is not a transport address"));
}

#[test]
fn an_answer_from_the_wrong_shard_ends_the_requests() {
    let mut net = two_shards();
    let first = recv(&mut net, "ps:1");
    net.rest();
    let second = recv(&mut net, "ps:2");
    let (peer, hello) = net.dialing(0);
    let (link, welcome) = net.call(seat("ps:2", 2), &hello).unwrap();
    let liar = Hello { shard: 1 - welcome.shard, ..welcome };
    net.nodes[0].dialed(net.now, peer, Box::new(link), &liar);
    let error = second.error();
    assert!(error.to_string().contains("answered from a shard that does not serve the lane"), "{error}");
    assert!(first.waits());
}

#[test]
fn more_tasks_than_a_greeting_names_are_too_many() {
    let tasks = (0..4097).map(|task| (format!("task{task}:1").parse().unwrap(), 0)).collect();
    let slab = || Slab::new(SlabSettings { name: "send", bytes: 4096, populate: false }).unwrap();
    let error = Node::new(NodeSettings { tasks, ..ps() }, map(), slab(), slab()).err().unwrap();
    assert_eq!(error.to_string(), "4097 tasks on one engine, at most 4096 are possible");
}
