//! Ends over RDMA verbs, settled on over a real TCP connection as between two daemons: on fake devices, or on the machine's own device if
//! `SEALANE_TEST_RDMA` is set (as in the RDMA lab) and the test needs no special device.
//!
//! Each run of a test has a fabric, with a port for each end, in thread-local state; [`end_run`] ends it and checks that everything was
//! given back and nothing overran.

use std::cell::{Cell, RefCell};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane_runtime::Slab;
use sealane_transport::error::LinkError;
use sealane_transport::fault::FaultLink;
use sealane_transport::link::{Frames, Landing, Receiver, Traits};
use sealane_transport::outbox::Outbox;
use sealane_transport::provider::Told;
use sealane_transport::tcp::TcpSettings;
use sealane_transport::verbs::device::Status;
use sealane_transport::verbs::fake::{Fabric, FakeSettings, RequestKind, Strike, Weather};
use sealane_transport::verbs::{Depths, KIND, NegotiatedLink, Port, Registration, Transfer, VerbsSettings};
use sealane_transport::wire::WireError;
use sealane_transport::{Handle, Link, LinkKind};

use crate::ends::{Ends, FAILING, SLOW, connected};

/// Most turns until two ends settle, with all delays.
const SETTLING_TURNS: usize = 10_000;
/// Set if the tests are to use the machine's own device.
const REAL: &str = "SEALANE_TEST_RDMA";
/// How long a single wait for a real device takes, in milliseconds: a link may also have become able to go on without a notice from the
/// device, so that waiting calls look again. Tests that count their calls give up after 20 s and more.
const MOMENT_MS: u16 = 2;
/// How often a packet is resent: as often as possible, except that Soft-RoCE takes 7 for "forever".
const RETRIES: u8 = 6;
/// Names of the devices, which are on two hosts.
const HOSTS: [&str; 2] = ["one", "other"];

pub fn is_real() -> bool {
    std::env::var_os(REAL).is_some()
}

/// Settings of both ends.
#[derive(Clone)]
pub struct Manner {
    transfer: Transfer,
    registration: Registration,
    queue_depth: u32,
    /// `None` if a real device will do.
    device: Option<FakeSettings>,
    climate: Vec<Weather>,
}

/// A fake device without special settings.
fn ordinary() -> FakeSettings {
    FakeSettings { receive_depth: 64, completion_depth: 256, ..FakeSettings::default() }
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            transfer: Transfer::Write,
            registration: Registration::Static,
            queue_depth: 64,
            device: None,
            climate: Vec::new(),
        }
    }
}

impl Manner {
    pub fn reading(mut self) -> Self {
        self.transfer = Transfer::Read;
        self
    }

    pub fn registering_each(mut self) -> Self {
        self.registration = Registration::Dynamic;
        self
    }

    /// Receive buffers for 256 links, the default of the settings.
    pub fn crowded(mut self) -> Self {
        let Depths { completions, sends } = Depths::of(&VerbsSettings::default());
        self.queue_depth = VerbsSettings::default().queue_depth;
        self.device = (!is_real()).then(|| FakeSettings {
            receive_depth: self.queue_depth,
            completion_depth: completions,
            send_depth: sends,
            ..FakeSettings::default()
        });
        self
    }

    pub fn without_windows(mut self) -> Self {
        self.device.get_or_insert_with(ordinary).has_windows = false;
        self
    }

    /// About the shallowest queues that a port opens with, and receive buffers for two links.
    pub fn tiny(mut self) -> Self {
        self.queue_depth = 8;
        self.device = Some(FakeSettings {
            send_depth: 8,
            receive_depth: 8,
            completion_depth: 20,
            inline_bytes: 0,
            delay_polls_max: 3,
            ..self.device.unwrap_or_else(ordinary)
        });
        self
    }

    pub fn slow(mut self) -> Self {
        self.device.get_or_insert_with(ordinary).delay_polls_max = 6;
        self
    }

    /// About one request of any kind in a hundred fails, and half of these are carried out all the same.
    pub fn failing(mut self) -> Self {
        let strikes = [Status::RETRIES_EXCEEDED, Status::REMOTE_OPERATION, Status::LOCAL_OPERATION, Status::FATAL];
        let strike = |(status, carried_out)| Strike { kind: None, status, carried_out };
        let strikes = strikes.into_iter().zip([false, true, false, true]).map(strike);
        let receive = Strike { kind: Some(RequestKind::Receive), status: Status::LOCAL_PROTECTION, carried_out: false };
        self.climate = strikes.chain([receive]).map(|strike| Weather { strike, per_million: 3_000 }).collect();
        self.device.get_or_insert_with(ordinary).delay_polls_max = 4;
        self
    }
}

struct World {
    /// The fabric of the fake devices, and the entries of their completion queues; `None` on a real device.
    fabric: Option<(Fabric, u32)>,
    ports: [Rc<Port>; 2],
    /// Requests fail at random.
    fails: bool,
    /// Side and start address of registered slabs.
    slabs: Vec<(usize, usize)>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// How many links have failed in the runs of a test in which they may fail.
    static FAILED: Cell<Option<u64>> = const { Cell::new(None) };
}

impl World {
    fn new(manner: &Manner, seed: u64) -> Self {
        let settings = VerbsSettings {
            queue_depth: manner.queue_depth,
            transfer: manner.transfer,
            registration: manner.registration,
            retry_count: RETRIES,
            // Links are verbs again right after a failure, however often they fail.
            retry_after: Duration::ZERO,
            ..VerbsSettings::default()
        };
        let is_real = manner.device.is_none() && is_real();
        let fake = (!is_real).then(|| (Fabric::new(seed), manner.device.clone().unwrap_or_else(ordinary)));
        let ports = HOSTS.map(|name| {
            let device = match &fake {
                Some((fabric, device)) => Box::new(fabric.open(FakeSettings { name: name.into(), ..device.clone() })),
                None => sealane_transport::verbs::open(&settings).expect("the machine has a device"),
            };
            Port::open(device, settings.clone()).expect("deep enough")
        });
        let fabric = fake.map(|(fabric, device)| (fabric, device.completion_depth));
        Self { fabric, ports, fails: !manner.climate.is_empty(), slabs: Vec::new() }
    }

    fn set_climate(&self, climate: &[Weather]) {
        if let Some((fabric, _)) = &self.fabric {
            fabric.set_climate(climate);
        }
    }

    fn check(self) {
        let Self { fabric, ports, fails, .. } = self;
        for port in &ports {
            while port.counters().draining > 0 {
                port.poll(&mut Vec::new());
            }
            let held = port.counters();
            assert_eq!((held.links, held.receives_promised, held.works, held.send_buffers), (0, 0, 0, 0));
            assert!(held.links_begun > 0 && held.links_refused == 0, "{held:?}");
        }
        let failed = ports.each_ref().map(|port| port.counters().links_failed);
        if fails {
            FAILED.set(Some(FAILED.get().unwrap_or(0) + failed[0] + failed[1]));
        } else {
            assert_eq!(failed, [0, 0], "nothing goes wrong here");
        }
        let Some((fabric, completion_depth)) = fabric else { return };
        for (name, port) in HOSTS.into_iter().zip(&ports) {
            let counters = fabric.counters_of(name);
            assert_eq!((counters.receiver_not_ready, counters.completion_overruns), (0, 0));
            let worst = counters.completions_worst;
            assert!(worst <= completion_depth.into(), "{worst} completions in {completion_depth} entries");
            assert_eq!((counters.queue_pairs, counters.windows, counters.windows_orphaned), (0, 0, 0));
            assert_eq!(counters.regions, port.counters().regions + 1, "beside what stands, the messages' alone");
        }
        drop(ports);
        assert_eq!(fabric.violations(), Vec::<String>::new());
    }
}

/// Registers memory of a side with its device.
pub fn register(side: usize, slab: &Slab) {
    WORLD.with_borrow_mut(|world| {
        let Some(world) = world else { return };
        let place = (side, slab.region().0 as usize);
        if !world.slabs.contains(&place) {
            world.slabs.push(place);
            world.ports[side].add_slab(slab).expect("registered");
        }
    });
}

/// Ends a run whose links are dropped.
pub fn end_run() {
    if let Some(world) = WORLD.take() {
        world.check();
    }
}

/// Ends a test; if links were to fail, some must have.
pub fn end_test() {
    end_run();
    assert_ne!(FAILED.take(), Some(0), "no link has failed");
}

/// A pair of ends that have settled on verbs, with the faults of the climate unless `seed` is 0.
pub fn pair(manner: &Manner, seed: u64) -> [Polled; 2] {
    WORLD.with_borrow_mut(|world| {
        let world = world.get_or_insert_with(|| World::new(manner, seed));
        world.set_climate(&[]);
        let mut number = 0;
        let mut ends = connected(&TcpSettings::default()).map(|tcp| {
            let (port, peer) = (world.ports[number].clone(), HOSTS[1 - number]);
            number += 1;
            let mut link = NegotiatedLink::new(port.clone(), peer, tcp, true);
            link.adopt(Handle::from_bits(1 << 32));
            Polled { link, port, told: Vec::new(), is_real: world.fabric.is_none() }
        });
        settle(&mut ends);
        if seed != 0 {
            world.set_climate(&manner.climate);
        }
        ends
    })
}

fn settle(ends: &mut [Polled; 2]) {
    let mut outboxes = [Outbox::default(), Outbox::default()];
    for _ in 0..SETTLING_TURNS {
        for (end, outbox) in ends.iter_mut().zip(&mut outboxes) {
            end.transmit(outbox, usize::MAX, false).expect("both have verbs");
            end.receive(&mut Deaf, usize::MAX).expect("both have verbs");
        }
        if ends.iter().all(|end| end.traits().open) {
            assert!(ends.iter().all(|end| end.kind() == KIND && end.traits().aside));
            return;
        }
    }
    panic!("they do not settle");
}

/// Receives nothing: nothing is said before both ends are open.
struct Deaf;

impl Receiver for Deaf {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        panic!("{} bytes of frames", bytes.len());
    }

    fn landed(&mut self, _landing: Landing) {
        panic!("a payload");
    }
}

pub fn boxed(ends: [Polled; 2]) -> Ends {
    ends.map(|end| Box::new(end) as Box<dyn Link>)
}

/// Wraps ends so that calls may move nothing; also with resets and silence if `failing`. No faults if `seed` is 0.
pub fn faulty(ends: [Polled; 2], failing: bool, mut seed: u64) -> Ends {
    let faults = match (failing, seed) {
        (_, 0) => Default::default(),
        (true, _) => FAILING,
        (false, _) => SLOW,
    };
    ends.map(|end| {
        seed = seed.wrapping_add(1);
        Box::new(FaultLink::new(Box::new(end), faults, seed)) as Box<dyn Link>
    })
}

/// Waits a moment for a real device, or until one of the links' descriptors is readable. False without a real device: fake devices move
/// when they are polled.
pub fn wait(descriptors: &[BorrowedFd<'_>]) -> bool {
    WORLD.with_borrow(|world| {
        let Some(World { ports: [one, other], fabric: None, .. }) = world else { return false };
        let mut told = Vec::new();
        if one.arm(&mut told) && other.arm(&mut told) {
            one.with_descriptors(|[of_one, _]| {
                other.with_descriptors(|[of_other, _]| {
                    let all = descriptors.iter().chain([&of_one, &of_other]);
                    let mut watched: Vec<_> = all.map(|one| PollFd::new(*one, PollFlags::POLLIN)).collect();
                    poll(&mut watched, PollTimeout::from(MOMENT_MS)).expect("poll");
                });
            });
        }
        one.disarm();
        other.disarm();
        true
    })
}

/// A link that polls its port at every call, in place of a shard.
pub struct Polled {
    link: NegotiatedLink,
    port: Rc<Port>,
    told: Vec<Told>,
    is_real: bool,
}

impl Polled {
    fn poll(&mut self) {
        self.told.clear();
        self.port.poll(&mut self.told);
        self.link.descriptor_ready();
    }
}

impl Link for Polled {
    fn kind(&self) -> LinkKind {
        self.link.kind()
    }

    fn traits(&self) -> Traits {
        self.link.traits()
    }

    fn transmit(&mut self, outbox: &mut Outbox, budget: usize, more_follows: bool) -> Result<usize, LinkError> {
        self.poll();
        self.link.transmit(outbox, budget, more_follows)
    }

    fn receive(&mut self, receiver: &mut dyn Receiver, budget: usize) -> Result<usize, LinkError> {
        self.poll();
        self.link.receive(receiver, budget)
    }

    /// `None` on fake devices, where there is nothing to wait for: the fabric moves when it is polled.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        if self.is_real { self.link.descriptor() } else { None }
    }

    fn abandon(&mut self, outbox: &mut Outbox) -> Vec<Landing> {
        self.link.abandon(outbox)
    }
}
