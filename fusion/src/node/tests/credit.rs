//! A peer that takes nothing holds up the sends to itself, and nobody else's.

use super::*;

const WORKERS: usize = 8;
const TENSORS: usize = 40;
const BYTES: usize = 100_000;

/// A ps, and eight workers at addresses of their own.
fn crowd(in_flight_bytes_max: usize) -> (Net, Vec<String>) {
    let names: Vec<String> = (0..WORKERS).map(|number| format!("worker:{}", number + 1)).collect();
    let mut map = "ps:1=10.0.0.1:7000\n".to_owned();
    names.iter().enumerate().for_each(|(number, name)| map += &format!("{name}=10.0.1.{number}:7000\n"));
    let map = Arc::new(EndpointMap::parse(&map, "test").unwrap());
    let session = SessionLimits { in_flight_bytes_max, ..SessionLimits::default() };
    let ps = NodeSettings { links_max: 16, session, ..settings("10.0.0.1:7000", &["ps:1"]) };
    let workers = names.iter().enumerate().map(|(number, name)| settings(&format!("10.0.1.{number}:7000"), &[name]));
    let slab = |name| Slab::new(SlabSettings { name, bytes: 16 << 20, populate: false }).unwrap();
    let node = |settings| Node::new(settings, map.clone(), slab("send"), slab("receive")).unwrap();
    let nodes = std::iter::once(ps).chain(workers).map(node).collect();
    (Net { nodes, ..Net::new([]) }, names)
}

/// Turns of the ps until the workers that read have all their tensors; `stuck` workers ask and then do nothing.
fn turns_with(stuck: usize) -> usize {
    let (mut net, names) = crowd(4 * BYTES);
    let mut asked = Vec::new();
    let mut sent = Vec::new();
    for (number, name) in names.iter().enumerate() {
        for key in 0..TENSORS {
            let key = key.to_string();
            asked.push((number, net.recv((number + 1, name), "ps:1", &key)));
        }
    }
    net.rest();
    for name in &names {
        for key in 0..TENSORS {
            sent.push(net.send((0, "ps:1"), name, &key.to_string(), &vec![key as u8; BYTES]));
        }
    }
    let reading = WORKERS - stuck;
    for turns in 1.. {
        assert!(turns < 10_000, "those who read get nothing");
        net.nodes[0].turn(net.now);
        for index in 1..=reading {
            net.nodes[index].turn(net.now);
        }
        if asked.iter().all(|(number, asked)| *number >= reading || !asked.waits()) {
            let unreleased = net.nodes[0].under_way();
            assert!(unreleased <= WORKERS * TENSORS, "{unreleased} are unreleased");
            return turns;
        }
    }
    unreachable!()
}

#[test]
fn seven_of_eight_do_not_notice_the_eighth() {
    let (alone, beside) = (turns_with(0), turns_with(1));
    assert!(beside as f64 <= alone as f64 / 0.9, "{beside} turns beside one that is stuck, {alone} without");
}

#[test]
fn a_peer_that_releases_nothing_gets_no_more_than_its_credit() {
    let (mut net, names) = crowd(4 * BYTES);
    let asked: Vec<_> = (0..TENSORS).map(|key| net.recv((1, &names[0]), "ps:1", &key.to_string())).collect();
    net.rest();
    let _sent: Vec<_> =
        (0..TENSORS).map(|key| net.send((0, "ps:1"), &names[0], &key.to_string(), &vec![1; BYTES])).collect();
    // The worker takes no turns, so it releases nothing.
    for _ in 0..100 {
        net.nodes[0].turn(net.now);
    }
    let peers = &mut net.nodes[0].context.peers;
    let all = peers.select(|_| true);
    let pending = |peer| peers.session_mut(peer).map_or(0, |session| session.outbox().pending_bytes());
    let bytes = all.into_iter().map(pending).sum::<usize>();
    assert!(bytes <= 4 * BYTES + 4 * 100, "{bytes} bytes are on their way");
    net.rest();
    assert!(asked.iter().all(|asked| asked.bytes() == vec![1; BYTES]));
}
