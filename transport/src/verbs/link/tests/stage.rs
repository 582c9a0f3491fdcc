//! An honest side, and a peer that is only a queue pair.

use std::rc::Rc;
use std::time::Instant;

use socket2::Socket;

use super::harness::{Into, LARGE, Manner, NAMES, Side, check_port, connect, sockets};
use crate::arena::Handle;
use crate::error::LinkError;
use crate::if_gone::IfGone;
use crate::link::Link;
use crate::session::Roster;
use crate::verbs::device::{Piece, Post, Remote, Status, Work};
use crate::verbs::fake::Fabric;
use crate::verbs::limits::MESSAGE_BYTES;
use crate::verbs::link::{Connected, VerbsLink};
use crate::verbs::message::{self, Answer, Part, Writer};
use crate::verbs::port::{Arrival, Port};
use crate::verbs::settings::Transfer;
use crate::wire::{Request, Response, written};

pub(super) const WILD: Remote = Remote { address: 0x1000, rkey: 0x1234_5672 };
/// Turns after which everything in flight has arrived.
pub(super) const TURNS: usize = 50;

pub(super) struct Fixture {
    pub(super) fabric: Fabric,
    pub(super) side: Side,
    port: Rc<Port>,
    peer: Option<Connected>,
    pub(super) socket: Socket,
    pub(super) now: Instant,
    posted: u64,
    completion_depth: u32,
}

impl Fixture {
    pub(super) fn new(transfer: Transfer) -> Self {
        Self::with(&Manner::with(transfer))
    }

    pub(super) fn with(manner: &Manner) -> Self {
        let fabric = Fabric::new(5);
        let [here, port] = NAMES.map(|name| manner.open(&fabric, name));
        let [(honest, _), (peer, _)] = connect([&here, &port]);
        let [near, socket] = sockets();
        let mut side = Side::new(here.clone());
        side.link = Some(VerbsLink::new(here, NAMES[1].into(), near, honest, MESSAGE_BYTES));
        let now = Instant::now();
        side.session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
        let completion_depth = manner.device.completion_depth;
        Self { fabric, side, port, peer: Some(peer), socket, now, posted: 0, completion_depth }
    }

    pub(super) fn post(&mut self, work: Work) {
        let peer = self.peer.as_ref().expect("it stands");
        self.posted += 1;
        let post = Post { id: self.posted, signaled: true, work };
        // SAFETY: local memory is that of message buffers, which the port keeps, and which are not used again.
        unsafe { self.port.state().device.post(peer.queue_pair.id, &[post]) }.expect("posted");
    }

    pub(super) fn post_bytes(&mut self, bytes: &[u8], work: impl FnOnce(Piece) -> Work) {
        let piece = {
            let mut state = self.port.state();
            let buffer = state.take_send_buffer().expect("a buffer");
            let mut memory = state.lift_send_buffer(buffer);
            memory[..bytes.len()].copy_from_slice(bytes);
            state.put_down_send_buffer(buffer, memory);
            state.message_piece(buffer, bytes.len())
        };
        self.post(work(piece));
    }

    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.post_bytes(bytes, Work::Send);
    }

    /// The peer sends a message that also grants a little credit.
    pub(super) fn say(&mut self, parts: &[Part<'_>]) {
        self.say_with(3, parts);
    }

    pub(super) fn say_with(&mut self, credits: u16, parts: &[Part<'_>]) {
        let mut memory = vec![0; MESSAGE_BYTES];
        let mut writer = Writer::new(&mut memory);
        parts.iter().for_each(|part| writer.push(*part));
        let bytes = writer.finish(credits);
        self.send(&memory[..bytes]);
    }

    pub(super) fn write(&mut self, to: Remote, bytes: &[u8], word: Option<u32>) {
        self.post_bytes(bytes, |from| Work::Write { from, to, word });
    }

    /// What the honest side has sent since the last call.
    pub(super) fn hear(&mut self) -> Vec<Vec<u8>> {
        self.port.poll(&mut Vec::new());
        let link = self.peer.as_ref().expect("it stands").link;
        let mut state = self.port.state();
        let arrivals: Vec<_> = state.entry(link).arrivals.drain(..).collect();
        let mut heard = Vec::new();
        for arrival in arrivals {
            if let Arrival::Message { buffer, bytes } = arrival {
                let memory = state.lift_receive_buffer(buffer);
                heard.push(memory[..bytes].to_vec());
                state.put_down_receive_buffer(buffer, memory);
                state.refill(buffer);
            }
        }
        state.post_refills().expect("posted");
        heard
    }

    /// Statuses of the peer's completed work requests since the last call.
    pub(super) fn outcomes(&mut self) -> Vec<Status> {
        self.port.poll(&mut Vec::new());
        let link = self.peer.as_ref().expect("it stands").link;
        self.port.state().entry(link).completed.drain(..).map(|(_, status)| status).collect()
    }

    /// Number of arrivals that the honest side has not taken in.
    pub(super) fn kept(&self) -> usize {
        let link = self.side.link.as_ref().expect("it stands").side.link;
        self.side.port.state().entry(link).arrivals.len()
    }

    pub(super) fn turn(&mut self) -> Result<(), LinkError> {
        self.side.poll();
        self.side.transmit(self.now)?;
        if let Some(link) = &mut self.side.link {
            link.descriptor_ready();
        }
        self.side.receive(self.now).map(|_| ())
    }

    pub(super) fn turns(&mut self) {
        for _ in 0..TURNS {
            self.turn().expect("the link stands");
        }
    }

    /// The error that ends the honest link.
    pub(super) fn error(&mut self) -> LinkError {
        (0..TURNS).find_map(|_| self.turn().err()).expect("the link ends")
    }

    /// Checks that the honest link ends with a protocol error that says `what`, and that everything is given back.
    pub(super) fn ends(mut self, what: &str) {
        let error = self.error();
        assert!(matches!(error, LinkError::Protocol(_)) && error.to_string().contains(what), "{what}: {error}");
        self.check();
    }

    /// Lets the honest side ask for a tensor and send the request's frame.
    pub(super) fn asked(&mut self, size: usize, into: Into) -> (Handle, usize) {
        let asked = self.side.ask(self.now, 1, size, into);
        self.turns();
        asked
    }

    /// Checks that the honest side has given everything back.
    pub(super) fn check(mut self) {
        self.side.lose();
        let port = self.side.port.clone();
        check_port(&self.fabric, NAMES[0], &port, self.completion_depth);
        self.side.session.reset(&crate::Error::invalid("the peer is hostile"));
        self.side.handle_events();
        assert_eq!(self.side.slab.in_use_bytes(), 0);
        let Connected { link, queue_pair, credits } = self.peer.take().expect("it stands");
        self.port.state().end_link(link, &queue_pair, &credits, 0);
        assert_eq!(self.fabric.violations(), Vec::<String>::new());
    }
}

/// The frame of a request for a tensor of [`LARGE`] bytes, and its id.
pub(super) fn request(number: u64) -> (Handle, Vec<u8>) {
    let (id, key) = (Handle::from_bits(1 << 32 | number), format!("1 {LARGE}"));
    let (consumer, producer, if_gone) = (0, 0, IfGone::Waits);
    let request = Request { id, step: 1, timeout_ms: 1000, consumer, producer, if_gone, key: &key };
    (id, written(|writer| writer.request(&request)))
}

/// The frame of an answer whose payload travels beside it.
pub(super) fn response(id: Handle, payload_bytes: usize) -> Vec<u8> {
    let (token, payload_bytes) = (Handle::from_bits(1 << 32), payload_bytes as u64);
    written(|writer| writer.response(&Response { id, token, payload_bytes, transfer: 0, meta: b"" }))
}

/// The last place that the honest side has named, and the transfer that it belongs to, if any.
pub(super) fn place_in(messages: &[Vec<u8>]) -> (Option<u16>, Remote) {
    let mut found = None;
    for message in messages {
        let (_, mut parts) = message::open(message).expect("an honest message");
        while let Some(part) = parts.next().expect("an honest message") {
            match part {
                Part::Place { place, .. } => found = Some((None, place)),
                Part::Clear { transfer, answer: Answer::Write(place) } => found = Some((Some(transfer), place)),
                _ => {}
            }
        }
    }
    found.expect("a place")
}
