//! Two ends that negotiate over a real TCP connection, and one end whose peer is played by the test, which writes the words itself.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::Duration;

use socket2::Socket;

use super::{NegotiatedLink, Record, Said};
use crate::arena::Handle;
use crate::error::LinkError;
use crate::limits::REASON_BYTES_MAX;
use crate::link::{Frames, Landing, Link, LinkKind, Receiver};
use crate::outbox::Outbox;
use crate::provider::Told;
use crate::tcp::{TcpLink, TcpSettings};
use crate::verbs::device::{Endpoint, Post, Work};
use crate::verbs::fake::{Fabric, FakeSettings, Fault, Verb};
use crate::verbs::limits::{FAILURES_MAX, MESSAGE_BYTES, WINDOW_MIN};
use crate::verbs::link::Connected;
use crate::verbs::message::{Part, Writer};
use crate::verbs::port::Port;
use crate::verbs::provider::KIND;
use crate::verbs::settings::VerbsSettings;
use crate::wire::{Frame, WireError, parse, written};

const NAMES: [&str; 2] = ["one", "other"];
/// Turns after which two ends count as stuck; each turn waits for the network where it must.
const TURNS: usize = 100_000;

struct World {
    fabric: Fabric,
    ports: [Rc<Port>; 2],
}

impl World {
    fn new() -> Self {
        Self::retrying_after(Duration::ZERO)
    }

    fn retrying_after(retry_after: Duration) -> Self {
        let fabric = Fabric::new(1);
        let settings = VerbsSettings { queue_depth: 16, retry_after, ..VerbsSettings::default() };
        let ports = NAMES.map(|name| {
            let device = fabric.open(FakeSettings { name: name.into(), ..FakeSettings::default() });
            Port::open(Box::new(device), settings.clone()).expect("deep enough")
        });
        Self { fabric, ports }
    }

    fn fail(&self, side: usize, verb: Verb) {
        assert!(self.fabric.inject(NAMES[side], Fault::Verb { verb, reason: "as the test wants".into(), skip: 0 }));
    }

    fn link(&self, side: usize, socket: Socket, is_required: bool) -> NegotiatedLink {
        NegotiatedLink::new(self.ports[side].clone(), NAMES[1 - side], TcpLink::new(socket, &[]), is_required)
    }

    /// Checks that nothing is left of any link once all are gone.
    fn check(self) {
        assert_eq!(self.fabric.violations(), Vec::<String>::new());
        for (name, port) in NAMES.into_iter().zip(&self.ports) {
            assert_eq!(self.fabric.queue_pairs(name), Vec::<u32>::new());
            let held = port.counters();
            assert_eq!((held.links, held.receives_promised, held.works, held.send_buffers), (0, 0, 0, 0));
        }
    }
}

fn sockets() -> [Socket; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("connect");
    let (other, _) = listener.accept().expect("accept");
    [one, other].map(|stream| {
        let socket = Socket::from(stream);
        TcpSettings::default().apply(&socket).expect("ordinary options");
        socket
    })
}

/// Records the pings that it receives.
#[derive(Default)]
struct Ear(Vec<u64>);

impl Receiver for Ear {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        while let Some((frame, length)) = parse(&bytes[consumed..])? {
            consumed += length;
            match frame {
                Frame::Ping { nonce } => self.0.push(nonce),
                other => panic!("nobody sends {other:?}"),
            }
        }
        Ok(Frames { consumed, landing: None })
    }

    fn landed(&mut self, _landing: Landing) {
        panic!("no payload was sent");
    }
}

/// One end, with what it is to say and what it has received.
struct End {
    link: NegotiatedLink,
    outbox: Outbox,
    ear: Ear,
}

impl End {
    fn new(link: NegotiatedLink) -> Self {
        Self { link, outbox: Outbox::default(), ear: Ear::default() }
    }

    fn transmit(&mut self) -> Result<(), LinkError> {
        self.link.transmit(&mut self.outbox, usize::MAX, false).map(|_| ())
    }

    fn receive(&mut self) -> Result<(), LinkError> {
        self.link.descriptor_ready();
        self.link.receive(&mut self.ear, usize::MAX).map(|_| ())
    }

    fn turn(&mut self, port: &Port) -> Result<(), LinkError> {
        port.poll(&mut Vec::<Told>::new());
        self.transmit()?;
        self.receive()
    }

    fn until(&mut self, port: &Port, done: impl Fn(&Self) -> bool) -> Result<(), LinkError> {
        for _ in 0..TURNS {
            self.turn(port)?;
            if done(self) {
                return Ok(());
            }
            std::thread::yield_now();
        }
        panic!("stuck");
    }
}

/// Lets two ends negotiate; returns each one's result.
fn negotiate(world: &World, ends: &mut [End; 2]) -> [Result<LinkKind, LinkError>; 2] {
    let mut over: [Option<LinkError>; 2] = [None, None];
    for _ in 0..TURNS {
        for side in 0..2 {
            if over[side].is_none() {
                over[side] = ends[side].turn(&world.ports[side]).err();
            }
        }
        if (0..2).all(|side| over[side].is_some() || ends[side].link.traits().open) {
            return [0, 1].map(|side| over[side].take().map_or(Ok(ends[side].link.kind()), Err));
        }
        std::thread::yield_now();
    }
    panic!("they do not agree");
}

/// Each end says something, and the other receives it.
fn talk(world: &World, ends: &mut [End; 2]) {
    for (side, end) in ends.iter_mut().enumerate() {
        end.outbox.stage(|writer| (0..100).for_each(|nonce| writer.ping(nonce + 1000 * side as u64)));
    }
    for _ in 0..TURNS {
        for (end, port) in ends.iter_mut().zip(&world.ports) {
            end.turn(port).expect("a healthy link");
        }
        if ends.iter().all(|end| end.ear.0.len() == 100) {
            let expected = |side: u64| (0..100).map(|nonce| nonce + 1000 * side).collect::<Vec<_>>();
            assert_eq!(ends.each_ref().map(|end| end.ear.0.clone()), [expected(1), expected(0)]);
            return;
        }
        std::thread::yield_now();
    }
    panic!("something was lost");
}

fn ends(world: &World, required: [bool; 2]) -> [End; 2] {
    let [one, other] = sockets();
    [End::new(world.link(0, one, required[0])), End::new(world.link(1, other, required[1]))]
}

#[test]
fn two_that_hear_before_they_speak_agree_too() {
    let world = World::new();
    let [mut one, mut other] = ends(&world, [true, true]);
    other.transmit().expect("healthy");
    while matches!(one.link.state, super::State::Negotiating(ref negotiating) if negotiating.talk.to_say.len() == 1) {
        one.receive().expect("healthy");
    }
    let mut ends = [one, other];
    assert_eq!(negotiate(&world, &mut ends), [Ok(KIND), Ok(KIND)]);
    talk(&world, &mut ends);
}

/// Both sides report why a side cannot use verbs; a side that requires verbs ends its link with that reason.
#[test]
fn a_side_that_cannot_makes_it_tcp() {
    type Breaks = fn(&World, usize);
    let cases: [(Breaks, &str); 4] = [
        (|world, side| world.fail(side, Verb::Create), "as the test wants"),
        (|world, side| world.fail(side, Verb::Connect), "as the test wants"),
        (
            |world, side| {
                assert!(world.fabric.inject(NAMES[side], Fault::PortDown));
                world.ports[side].handle_events(&mut Vec::new());
            },
            "is down",
        ),
        (|world, side| assert!(world.fabric.inject(NAMES[side], Fault::DeviceFailed)), "failed"),
    ];
    for (breaks, reason) in cases {
        for broken in [&[0][..], &[1], &[0, 1]] {
            for required in [[false, false], [true, false], [false, true]] {
                let world = World::new();
                broken.iter().for_each(|&side| breaks(&world, side));
                let mut ends = ends(&world, required);
                let outcome = negotiate(&world, &mut ends);
                for side in 0..2 {
                    let refused = world.ports[side].counters().links_refused;
                    match &outcome[side] {
                        Ok(kind) if !required[side] => assert_eq!((*kind, refused), (LinkKind::TCP, 1)),
                        Err(LinkError::VerbsRequired(why)) if required[side] => {
                            assert!(why.contains(reason), "{why}");
                            let here = broken.contains(&side);
                            let there = broken.contains(&(1 - side));
                            assert!(
                                here && why.contains("this side cannot") || there && why.contains("the peer cannot")
                            );
                            assert_eq!(refused, 1);
                        }
                        // The other side has ended the link.
                        Err(LinkError::Closed | LinkError::Io { .. }) if required[1 - side] => {}
                        other => panic!("{broken:?}, {required:?}, side {side}: {other:?}"),
                    }
                }
                if required == [false, false] {
                    talk(&world, &mut ends);
                }
                drop(ends);
                world.check();
            }
        }
    }
}

#[test]
fn a_port_without_room_says_so() {
    let world = World::new();
    let mut others = Vec::new();
    while world.ports[0].why_not("other", std::time::Instant::now()).is_none() {
        others.push(world.link(0, sockets().into_iter().next().expect("one of two"), false));
    }
    let mut ends = ends(&world, [false, true]);
    let [one, other] = negotiate(&world, &mut ends);
    assert_eq!(one, Ok(LinkKind::TCP));
    let reason = other.expect_err("it is required").to_string();
    assert!(reason.contains("the peer cannot: all 16 receive buffers"), "{reason}");
    drop((others, ends));
    world.check();
}

/// A peer that writes its words itself, and has a queue pair to match.
struct Peer {
    socket: Socket,
    port: Rc<Port>,
    connected: Option<Connected>,
    endpoint: Endpoint,
}

impl Peer {
    fn new(world: &World, socket: Socket) -> Self {
        let port = world.ports[1].clone();
        let (link, queue_pair, endpoint, credits) = port.state().begin_link().expect("room");
        Self { socket, port, connected: Some(Connected { link, queue_pair, credits }), endpoint }
    }

    fn offer(&self) -> Vec<u8> {
        let window = WINDOW_MIN as u16;
        Said::Offer { endpoint: self.endpoint, window, message_bytes: MESSAGE_BYTES as u32 }.to_bytes()
    }

    fn write(&self, bytes: &[u8]) {
        (&self.socket).write_all(bytes).expect("room in the socket");
    }

    /// Turns the other end until its next word comes.
    fn read(&self, end: &mut End, port: &Port) -> Said {
        let mut bytes = Vec::new();
        for _ in 0..TURNS {
            if let Some((said, length)) = Said::parse(&bytes).expect("an honest word") {
                assert_eq!(length, bytes.len(), "one word at a time");
                return said;
            }
            end.turn(port).expect("an honest link");
            let mut byte = [0];
            if (&self.socket).read(&mut byte).is_ok_and(|count| count == 1) {
                bytes.push(byte[0]);
            }
        }
        panic!("no word comes");
    }

    /// Connects to what the other end has offered.
    fn connect(&mut self, said: &Said) {
        let Said::Offer { endpoint, window, .. } = said else { panic!("an offer") };
        let connected = self.connected.as_mut().expect("it stands");
        connected.credits.set_peer_window(u32::from(*window));
        let first_packet = self.endpoint.first_packet;
        let device = &mut self.port.state().device;
        device.connect(connected.queue_pair.id, first_packet, endpoint).expect("connected");
    }

    /// Sends a ping over the queue pair.
    fn ping(&self, nonce: u64) {
        let mut memory = [0; 64];
        let mut writer = Writer::new(&mut memory);
        writer.push(Part::Frames(&ping(nonce)));
        let bytes = writer.finish(0) as u32;
        let work = Work::SendInline { address: memory.as_ptr() as u64, bytes };
        let queue_pair = self.connected.as_ref().expect("it stands").queue_pair.id;
        // SAFETY: inline bytes are copied by the call.
        #[allow(unsafe_code)]
        let posted = unsafe { self.port.state().device.post(queue_pair, &[Post { id: 1, signaled: true, work }]) };
        posted.expect("posted");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if let Some(Connected { link, queue_pair, credits }) = self.connected.take() {
            self.port.state().end_link(link, &queue_pair, &credits, 0);
        }
    }
}

fn against_peer(world: &World) -> (End, Peer) {
    let [one, other] = sockets();
    (End::new(world.link(0, one, false)), Peer::new(world, other))
}

fn ping(nonce: u64) -> Vec<u8> {
    written(|writer| writer.ping(nonce))
}

/// What comes over the queue pair before the last word is read is not lost.
#[test]
fn messages_may_come_before_the_last_word() {
    for byte_by_byte in [false, true] {
        let world = World::new();
        let (mut end, mut peer) = against_peer(&world);
        end.link.adopt(Handle::from_bits(1 << 32));
        let port = world.ports[0].clone();
        let offer = peer.read(&mut end, &port);
        peer.connect(&offer);
        let write = |end: &mut End, peer: &Peer, bytes: &[u8]| {
            let pieces = if byte_by_byte { 1 } else { bytes.len() };
            for piece in bytes.chunks(pieces) {
                peer.write(piece);
                end.turn(&port).expect("an honest peer");
            }
        };
        write(&mut end, &peer, &peer.offer());
        assert!(matches!(peer.read(&mut end, &port), Said::Ready));
        peer.ping(1);
        peer.ping(2);
        for _ in 0..10 {
            end.turn(&port).expect("an honest peer");
        }
        assert!(!end.link.traits().open && end.ear.0.is_empty());
        write(&mut end, &peer, &Said::Ready.to_bytes());
        end.until(&port, |end| end.link.traits().open).expect("an honest peer");
        assert_eq!(end.link.kind(), KIND);
        end.until(&port, |end| end.ear.0.len() == 2).expect("an honest peer");
        assert_eq!(end.ear.0, [1, 2]);
        drop((end, peer));
        world.check();
    }
}

/// Frames right after the last word, in the same segment or split into single bytes.
#[test]
fn frames_behind_a_no_are_not_lost() {
    for byte_by_byte in [false, true] {
        for fails in [None, Some(Verb::Create), Some(Verb::Connect)] {
            let world = World::new();
            fails.into_iter().for_each(|verb| world.fail(0, verb));
            let (mut end, peer) = against_peer(&world);
            let port = world.ports[0].clone();
            let last = match fails {
                // The peer cannot use verbs; or it can, but this side cannot.
                None => Said::No("for no reason".into()).to_bytes(),
                Some(Verb::Create) => peer.offer(),
                Some(_) => [peer.offer(), Said::Ready.to_bytes()].concat(),
            };
            let bytes = [last, ping(1), ping(2)].concat();
            for piece in bytes.chunks(if byte_by_byte { 1 } else { bytes.len() }) {
                peer.write(piece);
                end.turn(&port).expect("an honest peer");
            }
            end.until(&port, |end| end.ear.0.len() == 2).expect("an honest peer");
            assert_eq!((end.link.kind(), &end.ear.0[..]), (LinkKind::TCP, &[1, 2][..]));
            drop((end, peer));
            world.check();
        }
    }
}

#[test]
fn words_that_make_no_sense_end_the_link() {
    let world = World::new();
    let (_, peer) = against_peer(&world);
    let offer = peer.offer();
    let with = |change: fn(&mut Record)| {
        let mut record = <Record as zerocopy::FromBytes>::read_from_bytes(&offer[..]).expect("a record");
        change(&mut record);
        zerocopy::IntoBytes::as_bytes(&record).to_vec()
    };
    let ready = Said::Ready.to_bytes();
    let long = |record: &mut Record| record.reason_bytes = (REASON_BYTES_MAX as u32 + 1).into();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (vec![0; 40], "verbs negotiation message"),
        (vec![0xff; 40], "reason for refusing verbs"),
        (with(|record| record.kind = 4), "verbs negotiation message"),
        (with(long), "reason for refusing verbs"),
        (with(|record| record.window = 2.into()), "window of a verbs link"),
        (with(|record| record.message_bytes = 1023.into()), "message of a verbs link"),
        (ready.clone(), "verbs negotiation message"),
        ([&offer[..], &offer[..]].concat(), "verbs negotiation message"),
        ([&offer[..], &ready[..], b"x"].concat(), "byte after the last message"),
    ];
    for (bytes, what) in cases {
        let world = World::new();
        let (mut end, peer) = against_peer(&world);
        peer.write(&bytes);
        let error = end.until(&world.ports[0], |end| end.link.traits().open).expect_err("no sense");
        assert!(matches!(error, LinkError::Protocol(_)) && error.to_string().contains(what), "{what}: {error}");
        drop((end, peer));
        world.check();
    }
}

/// Numbers from the peer that no device accepts: TCP, with the reason.
#[test]
fn an_offer_that_the_device_does_not_take_is_answered_by_a_no() {
    let world = World::new();
    let (mut end, mut peer) = against_peer(&world);
    peer.endpoint.mtu = 77;
    peer.write(&peer.offer());
    let port = world.ports[0].clone();
    assert!(matches!(peer.read(&mut end, &port), Said::Offer { .. }));
    let Said::No(reason) = peer.read(&mut end, &port) else { panic!("a no") };
    assert!(reason.contains("one: ") && reason.contains("MTU"), "{reason}");
    peer.write(&Said::No("nor can I".into()).to_bytes());
    peer.write(&ping(3));
    end.until(&port, |end| end.ear.0 == [3]).expect("an honest peer");
    assert_eq!(end.link.kind(), LinkKind::TCP);
    drop((end, peer));
    world.check();
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let long = "ä".repeat(REASON_BYTES_MAX);
    for reason in [String::new(), "short".into(), long] {
        let bytes = Said::No(reason.clone()).to_bytes();
        let (Said::No(read), length) = Said::parse(&bytes).expect("sense").expect("all") else { panic!("a no") };
        assert!(reason.starts_with(&read) && read.len() >= reason.len().min(REASON_BYTES_MAX - 1));
        assert_eq!(length, bytes.len());
        for cut in 0..bytes.len() {
            assert!(Said::parse(&bytes[..cut]).expect("sense so far").is_none());
        }
    }
}

/// What precedes the words, such as the welcome, may take its time; verbs begin once the last word is written.
#[test]
fn the_last_word_is_written_before_verbs_begin() {
    let world = World::new();
    let (mut end, mut peer) = against_peer(&world);
    let port = world.ports[0].clone();
    let welcome = 64 << 20;
    end.outbox.stage(|writer| writer.0.extend(std::iter::repeat_n(7, welcome)));
    peer.write(&[peer.offer(), Said::Ready.to_bytes()].concat());
    for _ in 0..1000 {
        end.turn(&port).expect("an honest peer");
    }
    assert!(!end.outbox.is_empty() && !end.link.traits().open, "the socket is full");
    let mut bytes = vec![0; 1 << 20];
    let mut left = welcome;
    while left > 0 {
        let most = bytes.len().min(left);
        left -= (&peer.socket).read(&mut bytes[..most]).unwrap_or(0);
        end.turn(&port).expect("an honest peer");
    }
    let mut words = Vec::new();
    for _ in 0..TURNS {
        let mut byte = [0];
        if (&peer.socket).read(&mut byte).is_ok() {
            words.push(byte[0]);
        } else if words.len() == 2 * size_of::<Record>() {
            break;
        }
        end.turn(&port).expect("an honest peer");
    }
    let (offer, length) = Said::parse(&words).expect("sense").expect("all");
    assert!(matches!(Said::parse(&words[length..]), Ok(Some((Said::Ready, 40)))));
    assert_eq!(end.link.kind(), KIND);
    peer.connect(&offer);
    peer.ping(9);
    end.until(&port, |end| end.ear.0 == [9]).expect("an honest peer");
    drop((end, peer));
    world.check();
}

#[test]
fn a_peer_that_ends_before_they_agree_leaves_nothing_behind() {
    let world = World::new();
    let whole = |peer: &Peer| [peer.offer(), Said::Ready.to_bytes()].concat();
    for cut in [0, 1, 39, 40, 79] {
        let (mut end, peer) = against_peer(&world);
        peer.write(&whole(&peer)[..cut]);
        drop(peer);
        let error = end.until(&world.ports[0], |end| end.link.traits().open).expect_err("it has ended");
        assert!(matches!(error, LinkError::Closed | LinkError::Io { .. }), "{error}");
        assert!(end.link.abandon(&mut end.outbox).is_empty());
        assert!(matches!(end.transmit(), Err(LinkError::Closed)));
        assert_eq!(world.ports[0].counters().links, 0);
    }
    world.check();
}

#[test]
fn a_peer_that_never_answers_is_left_to_tcp() {
    let world = World::retrying_after(Duration::from_secs(30));
    for _ in 0..FAILURES_MAX {
        let [socket, _silent] = sockets();
        let mut link = world.link(0, socket, false);
        link.transmit(&mut Outbox::default(), usize::MAX, false).unwrap();
        assert_eq!(link.abandon(&mut Outbox::default()).len(), 0);
    }
    let mut ends = ends(&world, [false; 2]);
    let outcome = negotiate(&world, &mut ends);
    assert_eq!(outcome, [Ok(LinkKind::TCP), Ok(LinkKind::TCP)]);
    drop(ends);
    world.check();
}
