//! Two sides with a port each on one fabric, a session over each, and links between them that a test can lose and replace.

use std::rc::Rc;
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Slab, SlabSettings};
use socket2::{Domain, Socket, Type};

use crate::Meta;
use crate::arena::Handle;
use crate::error::{Code, LinkError};
use crate::fake_device::{FakeExport, bytes_of};
use crate::limits::SessionLimits;
use crate::link::{Link, Spot};
use crate::payload::Payload;
use crate::provider::Told;
use crate::session::{Event, RequestParams, Roster, Session};
use crate::verbs::device::Endpoint;
use crate::verbs::fake::{Counters, Fabric, FakeSettings, Fault, Verb};
use crate::verbs::limits::MESSAGE_BYTES;
use crate::verbs::link::{Connected, VerbsLink};
use crate::verbs::port::Port;
use crate::verbs::settings::{Registration, Transfer, VerbsSettings};

/// Turns after which a test counts as stuck.
const STUCK_TURNS: usize = 20_000;
pub(super) const NAMES: [&str; 2] = ["one", "other"];
/// A payload that travels beside the frames, in one piece.
pub(super) const LARGE: usize = 100_000;

/// Settings of a test's ports.
#[derive(Clone)]
pub(super) struct Manner {
    pub(super) settings: VerbsSettings,
    pub(super) device: FakeSettings,
}

impl Default for Manner {
    fn default() -> Self {
        let settings = VerbsSettings { queue_depth: 32, retry_after: Duration::ZERO, ..VerbsSettings::default() };
        Self { settings, device: FakeSettings { completion_depth: 256, ..FakeSettings::default() } }
    }
}

impl Manner {
    pub(super) fn with(transfer: Transfer) -> Self {
        let mut manner = Self::default();
        manner.settings.transfer = transfer;
        manner
    }

    pub(super) fn registering_each(mut self) -> Self {
        self.settings.registration = Registration::Dynamic;
        self
    }

    pub(super) fn without_windows(mut self) -> Self {
        self.device.has_windows = false;
        self
    }

    /// The shallowest queues with which a port opens.
    pub(super) fn tiny(mut self) -> Self {
        self.settings.queue_depth = 8;
        self.device = FakeSettings { send_depth: 8, receive_depth: 8, completion_depth: 17, ..self.device };
        self
    }

    pub(super) fn open(&self, fabric: &Fabric, name: &str) -> Rc<Port> {
        let device = fabric.open(FakeSettings { name: name.into(), ..self.device.clone() });
        Port::open(Box::new(device), self.settings.clone()).expect("deep enough")
    }
}

/// Connects two queue pairs of two ports.
pub(super) fn connect(ports: [&Rc<Port>; 2]) -> [(Connected, Endpoint); 2] {
    let mut ends = ports.map(|port| {
        let (link, queue_pair, endpoint, credits) = port.state().begin_link().expect("room for a link");
        (Connected { link, queue_pair, credits }, endpoint)
    });
    let endpoints = [ends[0].1, ends[1].1];
    let windows = [ends[0].0.credits.window(), ends[1].0.credits.window()];
    for (side, (connected, own)) in ends.iter_mut().enumerate() {
        let device = &mut ports[side].state().device;
        device.connect(connected.queue_pair.id, own.first_packet, &endpoints[1 - side]).expect("connected");
        connected.credits.set_peer_window(windows[1 - side]);
    }
    ends
}

pub(super) fn sockets() -> [Socket; 2] {
    let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None).expect("sockets");
    [one, other].map(|socket| {
        socket.set_nonblocking(true).expect("an option");
        socket
    })
}

/// Two connected links.
pub(super) fn links(ports: [&Rc<Port>; 2]) -> [VerbsLink; 2] {
    let [one, other] = connect(ports);
    let [near, far] = sockets();
    let link = |port: &Rc<Port>, name: &str, socket, (connected, _)| {
        VerbsLink::new(port.clone(), name.into(), socket, connected, MESSAGE_BYTES)
    };
    [link(ports[0], NAMES[1], near, one), link(ports[1], NAMES[0], far, other)]
}

/// The bytes of tensor `number`.
pub(super) fn pattern(number: u32, length: usize) -> Vec<u8> {
    (0..length as u32).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ number.wrapping_mul(97)) as u8).collect()
}

/// The memory in which a tensor is wanted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Into {
    /// Memory that the session finds, which is the slab.
    Anywhere,
    /// A vector of the consumer.
    Heap,
    /// A block of the slab.
    Slab,
    /// Exported device memory.
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Arrived { bytes: usize, address: usize },
    Ended(Code),
}

pub(super) struct Side {
    pub(super) port: Rc<Port>,
    pub(super) link: Option<VerbsLink>,
    pub(super) session: Session<u32, u32>,
    pub(super) slab: Slab,
    pub(super) told: Vec<Told>,
    /// Requests of the peer are kept unanswered.
    pub(super) parks: bool,
    /// Tensors are sent from the slab.
    pub(super) sends_from_slab: bool,
    /// Tensors are sent from exported device memory.
    pub(super) sends_from_device: bool,
    /// The exported device memory.
    pub(super) export: Option<FakeExport>,
    pub(super) parked: Vec<(Handle, u32, usize)>,
    pub(super) fates: Vec<(u32, Fate)>,
    /// Tensors that came home, and whether the peer has them.
    pub(super) home: Vec<(u32, bool)>,
}

impl Side {
    pub(super) fn new(port: Rc<Port>) -> Self {
        let slab = Slab::new(SlabSettings { name: "tensors", bytes: 32 << 20, populate: false }).expect("memory");
        port.add_slab(&slab).expect("registered");
        let limits = SessionLimits { window: usize::MAX, ..SessionLimits::default() };
        Self {
            port,
            link: None,
            session: Session::new("peer", 1, limits),
            slab,
            told: Vec::new(),
            parks: false,
            sends_from_slab: false,
            sends_from_device: false,
            export: None,
            parked: Vec::new(),
            fates: Vec::new(),
            home: Vec::new(),
        }
    }

    pub(super) fn poll(&mut self) {
        self.port.poll(&mut self.told);
        self.port.handle_events(&mut self.told);
        self.told.clear();
    }

    pub(super) fn transmit(&mut self, now: Instant) -> Result<(), LinkError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        self.session.outbox().set_traits(link.traits());
        self.session.fill(now, false);
        let sent = link.transmit(self.session.outbox(), usize::MAX, false);
        self.session.collect_written();
        self.handle_events();
        sent.map(|_| ())
    }

    pub(super) fn receive(&mut self, now: Instant) -> Result<usize, LinkError> {
        let Some(link) = &mut self.link else { return Ok(0) };
        let read = link.receive(&mut self.session.inbound(now, &self.slab), usize::MAX);
        self.handle_events();
        read
    }

    pub(super) fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Requested(asked) => {
                    let key = self.session.key(&asked).split_once(' ').expect("a number and a size");
                    let (number, size) = (key.0.parse().expect("a number"), key.1.parse().expect("a size"));
                    if self.parks {
                        self.session.park(asked.id);
                        self.parked.push((asked.id, number, size));
                    } else {
                        self.answer(asked.id, number, size);
                    }
                }
                Event::Cancelled(id) => {
                    if let Some(at) = self.parked.iter().position(|(parked, ..)| *parked == id) {
                        self.parked.swap_remove(at);
                        self.session.unpark();
                    }
                }
                Event::RequestEnded { waiter, outcome } => {
                    let fate = match *outcome {
                        Ok(arrived) => {
                            let (bytes, place) = (arrived.buffer.len(), arrived.buffer.direct());
                            let address =
                                place.map_or_else(|| arrived.buffer.as_ptr() as u64, |(_, address)| address) as usize;
                            assert!(bytes_of(&arrived.buffer) == pattern(waiter, bytes), "tensor {waiter}");
                            Fate::Arrived { bytes, address }
                        }
                        Err(unanswered) => Fate::Ended(unanswered.error.code()),
                    };
                    self.fates.push((waiter, fate));
                }
                Event::Released { pending, taken, .. } => self.home.push((pending, taken)),
                other => panic!("{other:?}"),
            }
        }
    }

    fn answer(&mut self, id: Handle, number: u32, size: usize) {
        let bytes = pattern(number, size);
        let payload = if self.sends_from_slab {
            let mut block = self.slab.allocate(size).expect("room");
            block.copy_from_slice(&bytes);
            Payload::from(block)
        } else if self.sends_from_device && size > 0 {
            Payload::from(self.export.as_ref().and_then(|export| export.with(&bytes)).expect("room"))
        } else {
            Payload::from(bytes)
        };
        assert!(self.session.respond(id, Meta::new(), payload, number).is_ok());
    }

    pub(super) fn answer_parked(&mut self) {
        for (id, number, size) in std::mem::take(&mut self.parked) {
            self.session.unpark();
            self.answer(id, number, size);
        }
    }

    /// Asks for a tensor of `size` bytes; returns the request and the address of its destination.
    pub(super) fn ask(&mut self, now: Instant, number: u32, size: usize, into: Into) -> (Handle, usize) {
        self.ask_with_room(now, number, (size, size), into)
    }

    /// As `ask`, with a destination of `room` bytes.
    pub(super) fn ask_with_room(
        &mut self,
        now: Instant,
        number: u32,
        (size, room): (usize, usize),
        into: Into,
    ) -> (Handle, usize) {
        let mut destination = match into {
            Into::Anywhere => None,
            Into::Heap => Some(Buffer::from_vec(vec![0; room])),
            Into::Slab => Some(self.slab.allocate(room).expect("room")),
            Into::Device => Some(self.export.as_ref().and_then(|export| export.allocate(room)).expect("room")),
        };
        let address = destination.as_mut().map_or(0, |destination| Spot::of(destination).address as usize);
        let (deadline, key) = (now + Duration::from_secs(60), format!("{number} {size}"));
        let params = RequestParams {
            consumer: 0,
            producer: 0,
            step: 1,
            key: &key,
            deadline,
            destination: destination.map(crate::Destination::from),
            waiter: number,
        };
        (self.session.request(now, params).expect("accepted"), address)
    }

    pub(super) fn lose(&mut self) {
        if let Some(mut link) = self.link.take() {
            let landings = link.abandon(self.session.outbox());
            self.session.detach(landings);
            self.parked.clear();
            self.handle_events();
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.session.requests() + self.session.unreleased() == 0
    }
}

pub(super) struct Pair {
    pub(super) fabric: Fabric,
    pub(super) sides: [Side; 2],
    pub(super) now: Instant,
    epoch: u32,
    completion_depth: u32,
}

impl Pair {
    pub(super) fn new(manner: &Manner) -> Self {
        let fabric = Fabric::new(7);
        let sides = NAMES.map(|name| Side::new(manner.open(&fabric, name)));
        let completion_depth = manner.device.completion_depth;
        let mut pair = Self { fabric, sides, now: Instant::now(), epoch: 0, completion_depth };
        pair.connect();
        pair
    }

    pub(super) fn connect(&mut self) {
        self.epoch += 1;
        let links = links([&self.sides[0].port, &self.sides[1].port]);
        for (side, link) in self.sides.iter_mut().zip(links) {
            side.link = Some(link);
            side.session.attach(self.now, self.epoch, Roster { numbers: vec![0] }, u64::MAX);
        }
    }

    pub(super) fn lose(&mut self) {
        self.sides.iter_mut().for_each(Side::lose);
    }

    /// Turns until queue pairs of ended links are gone.
    pub(super) fn drain(&mut self) {
        while self.sides.iter().any(|side| side.port.counters().draining > 0) {
            self.sides.iter_mut().for_each(Side::poll);
        }
    }

    pub(super) fn turn(&mut self, side: usize) -> Result<(), LinkError> {
        let now = self.now;
        let side = &mut self.sides[side];
        side.poll();
        side.transmit(now)?;
        if let Some(link) = &mut side.link {
            link.descriptor_ready();
        }
        side.receive(now).map(|_| ())
    }

    /// Turns both sides until `done`.
    pub(super) fn run(&mut self, mut done: impl FnMut(&mut Self) -> bool) {
        for _ in 0..STUCK_TURNS {
            if done(self) {
                return;
            }
            for side in 0..2 {
                self.turn(side).expect("a healthy link");
            }
        }
        panic!("stuck: {:?}", self.sides.each_ref().map(|side| side.port.counters()));
    }

    /// Turns until all requests and loans have ended, and all work requests whose end is reported are done.
    pub(super) fn settle(&mut self) {
        self.run(|pair| pair.sides.iter().all(Side::is_quiet));
    }

    /// Turns both sides until a link ends; returns the side and the error.
    pub(super) fn run_to_the_end(&mut self) -> (usize, LinkError) {
        for _ in 0..STUCK_TURNS {
            for side in 0..2 {
                if let Err(error) = self.turn(side) {
                    return (side, error);
                }
            }
        }
        panic!("no link ends");
    }

    pub(super) fn fail(&self, side: usize, verb: Verb, skip: u32) {
        assert!(self.fabric.inject(NAMES[side], Fault::Verb { verb, reason: "as the test wants".into(), skip }));
    }

    pub(super) fn counters(&self, side: usize) -> Counters {
        self.fabric.counters_of(NAMES[side])
    }

    /// The fate of a side's request, which must have ended exactly once.
    pub(super) fn fate(&self, side: usize, number: u32) -> &Fate {
        let mut fates = self.sides[side].fates.iter().filter(|(of, _)| *of == number);
        let (_, fate) = fates.next().expect("it has ended");
        assert!(fates.next().is_none(), "request {number} ended twice");
        fate
    }

    /// Ends the links and checks that everything was given back and nothing overran.
    pub(super) fn check(mut self) {
        self.lose();
        self.drain();
        assert_eq!(self.fabric.violations(), Vec::<String>::new());
        for (side, name) in self.sides.iter().zip(NAMES) {
            check_port(&self.fabric, name, &side.port, self.completion_depth);
        }
    }
}

/// Checks that a port keeps nothing of any link, and nothing ever overran.
pub(super) fn check_port(fabric: &Fabric, name: &str, port: &Port, completion_depth: u32) {
    let (counters, held) = (fabric.counters_of(name), port.counters());
    assert_eq!((counters.receiver_not_ready, counters.completion_overruns), (0, 0));
    assert!(counters.completions_worst <= completion_depth.into(), "{counters:?}");
    assert_eq!((counters.queue_pairs, counters.windows, counters.windows_orphaned), (0, 0, 0));
    assert_eq!(counters.regions, held.regions + 1, "beside what stands, the messages' alone");
    assert_eq!((held.links, held.receives_promised, held.works, held.send_buffers), (0, 0, 0, 0));
    assert!(port.state().regions.counts().1 == 0, "no region for one transfer");
}
