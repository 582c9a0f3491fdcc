//! As many links on one port as it has receive buffers for, and one more.

use std::time::Instant;

use super::harness::{Fate, Into, LARGE, Manner, NAMES, Side, check_port, links};
use crate::arena::Handle;
use crate::link::Link;
use crate::session::Roster;
use crate::verbs::VerbsSettings;
use crate::verbs::fake::{Fabric, FakeSettings};

const LINKS: usize = 256;
const TURNS_MAX: usize = 10_000;

/// 256 links with the default depths: all of them stand, all work at the same time, and the next one is refused with a reason.
#[test]
fn a_port_has_256_links_and_refuses_the_next_with_its_reason() {
    let settings = VerbsSettings::default();
    let depths = crate::verbs::Depths::of(&settings);
    let device = FakeSettings {
        completion_depth: depths.completions,
        send_depth: depths.sends,
        delay_polls_max: 2,
        ..FakeSettings::default()
    };
    let manner = Manner { settings, device };
    let fabric = Fabric::new(3);
    let ports = NAMES.map(|name| manner.open(&fabric, name));
    let now = Instant::now();
    let mut ends: Vec<[Side; 2]> = Vec::new();
    while ports[0].why_not("peer", now).is_none() {
        let links = links([&ports[0], &ports[1]]);
        let mut sides = ports.each_ref().map(|port| Side::new(port.clone()));
        for (side, link) in sides.iter_mut().zip(links) {
            side.link = Some(link);
            side.session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
        }
        ends.push(sides);
    }
    assert_eq!(ends.len(), LINKS);
    let reason = ports[0].why_not("peer", now).expect("it is full");
    assert!(reason.contains("1024 receive buffers") && reason.contains("verbs.queue_depth"), "{reason}");
    assert!(ports[0].state().begin_link().is_err());
    assert_eq!(fabric.queue_pairs(NAMES[0]).len(), LINKS, "the queue pair of the one that was refused is gone");
    for side in ends.iter_mut().flatten() {
        for (number, size, into) in [(0, 10, Into::Anywhere), (1, LARGE, Into::Heap), (2, 20_000, Into::Anywhere)] {
            side.ask(now, number, size, into);
        }
    }
    let is_done = |ends: &[[Side; 2]]| {
        let arrived = |side: &Side| side.fates.iter().filter(|(_, fate)| matches!(fate, Fate::Arrived { .. })).count();
        ends.iter().flatten().all(|side| arrived(side) == 3 && side.is_quiet())
    };
    let mut told = Vec::new();
    for _ in 0..TURNS_MAX {
        if is_done(&ends) {
            break;
        }
        for port in &ports {
            port.poll(&mut told);
        }
        for side in ends.iter_mut().flatten() {
            side.transmit(now).expect("a healthy link");
            side.receive(now).expect("a healthy link");
        }
    }
    assert!(is_done(&ends), "every link carries");
    // One link ends, and another takes its place.
    ends.pop().expect("there are some").iter_mut().for_each(Side::lose);
    assert_eq!(ports[0].why_not("peer", now), None);
    drop(ends);
    assert_eq!(fabric.violations(), Vec::<String>::new());
    for (port, name) in ports.iter().zip(NAMES) {
        check_port(&fabric, name, port, manner.device.completion_depth);
    }
}

/// Two shards of one host share only the adapter: each has 32 buffers of its own.
#[test]
fn ports_of_one_adapter_do_not_share_their_buffers() {
    let manner = Manner::default();
    let fabric = Fabric::new(4);
    let shards = [(); 3].map(|()| manner.open(&fabric, NAMES[0]));
    let peer = manner.open(&fabric, NAMES[1]);
    let mut ends = Vec::new();
    for shard in &shards {
        ends.push(links([shard, &peer]));
    }
    assert_eq!(shards.each_ref().map(|shard| shard.counters().links), [1, 1, 1]);
    assert_eq!(peer.counters().links, 3);
    for [one, _] in &mut ends {
        one.adopt(Handle::from_bits(1));
    }
    drop(ends);
    assert_eq!((peer.counters().links, peer.counters().receives_promised), (0, 0));
}
