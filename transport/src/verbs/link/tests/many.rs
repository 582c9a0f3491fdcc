//! As many links on one port as it has receive buffers for, and one more.

use std::time::Instant;

use super::harness::{LARGE, Manner, NAMES, check_port, links};
use crate::arena::Handle;
use crate::limits::SessionLimits;
use crate::link::Link;
use crate::session::{Event, RequestParams, Roster, Session};
use crate::verbs::VerbsSettings;
use crate::verbs::fake::{Fabric, FakeSettings};
use crate::verbs::link::VerbsLink;
use sealane_runtime::{Buffer, Slab, SlabSettings};
use std::time::Duration;

const LINKS: usize = 256;
const TURNS_MAX: usize = 10_000;

struct End {
    link: VerbsLink,
    session: Session<u32, u32>,
    arrived: usize,
}

impl End {
    fn new(link: VerbsLink, now: Instant) -> Self {
        let mut session = Session::new("peer", 1, SessionLimits::default());
        session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
        Self { link, session, arrived: 0 }
    }

    fn turn(&mut self, now: Instant, slab: &Slab) {
        self.session.outbox().set_traits(self.link.traits());
        self.session.fill(now, false);
        self.link.transmit(self.session.outbox(), usize::MAX, false).expect("a healthy link");
        self.session.collect_written();
        self.link.receive(&mut self.session.inbound(now, slab), usize::MAX).expect("a healthy link");
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Requested(asked) => {
                    let bytes = vec![7; self.session.key(&asked).parse().expect("a size")];
                    let answered = self.session.respond(asked.id, Default::default(), bytes.into(), 0);
                    assert!(answered.is_ok());
                }
                Event::RequestEnded { outcome, .. } => {
                    assert!(outcome.expect("a tensor").buffer.iter().all(|byte| *byte == 7));
                    self.arrived += 1;
                }
                Event::Released { taken, .. } => assert!(taken),
                other => panic!("{other:?}"),
            }
        }
    }
}

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
    let slab = Slab::new(SlabSettings { name: "tensors", bytes: 64 << 20, populate: false }).expect("memory");
    let now = Instant::now();
    let mut ends: Vec<[End; 2]> = Vec::new();
    while ports[0].why_not("peer", now).is_none() {
        ends.push(links([&ports[0], &ports[1]]).map(|link| End::new(link, now)));
    }
    assert_eq!(ends.len(), LINKS);
    let reason = ports[0].why_not("peer", now).expect("it is full");
    assert!(reason.contains("1024 receive buffers") && reason.contains("verbs.queue_depth"), "{reason}");
    assert!(ports[0].state().begin_link().is_err());
    assert_eq!(fabric.queue_pairs(NAMES[0]).len(), LINKS, "the queue pair of the one that was refused is gone");
    for pair in &mut ends {
        for end in pair {
            for (number, size) in [10, LARGE, 20_000].into_iter().enumerate() {
                let destination = (number == 1).then(|| Buffer::from_vec(vec![0; size]));
                let (deadline, key) = (now + Duration::from_secs(60), size.to_string());
                let params =
                    RequestParams { consumer: 0, producer: 0, step: 1, key: &key, deadline, destination, waiter: 0 };
                end.session.request(now, params).expect("accepted");
            }
        }
    }
    let mut told = Vec::new();
    let is_done = |ends: &[[End; 2]]| {
        ends.iter().flatten().all(|end| end.arrived == 3 && end.session.requests() + end.session.unreleased() == 0)
    };
    for _ in 0..TURNS_MAX {
        if is_done(&ends) {
            break;
        }
        for port in &ports {
            port.poll(&mut told);
        }
        ends.iter_mut().flatten().for_each(|end| end.turn(now, &slab));
    }
    assert!(is_done(&ends), "every link carries");
    // One link ends, and another takes its place.
    for mut end in ends.pop().expect("there are some") {
        let landings = end.link.abandon(end.session.outbox());
        end.session.detach(landings);
    }
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
