//! The session alone: bytes in, bytes out, time as an argument. No socket, no clock, no thread.

mod ahead;
mod alive;
mod answering;
mod asking;
mod chunks;
mod device;
mod hostile;
mod passing;
mod resuming;
mod rows;

use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Slab, SlabSettings};

use super::{Arrived, PeerRequest, RequestParams, Roster, Session};
use crate::Meta;
use crate::arena::Handle;
use crate::call::Unreceived;
use crate::limits::SessionLimits;
use crate::link::{Landing, Receiver};
use crate::named_rows::OfTable;
use crate::payload::Payload;
use crate::wire::{Frame, WireError, parse, text, written as frames};

/// The owner's number for the only task at the other end.
const PEER_TASK: u32 = 7;
/// Receive slab of an end: enough for a few tensors.
const SLAB_BYTES: usize = 4 << 20;

/// What an end's owner sees; as the session's events, without boxes. Waiters are numbers, pending sends are names.
#[derive(Debug)]
enum Event {
    Requested(PeerRequest),
    RowsRequested(Box<super::PeerRowRequest>),
    Cancelled(Handle),
    RequestEnded { waiter: u32, outcome: Result<Arrived, Unreceived> },
    Released { pending: &'static str, tensor: (Meta, Payload), taken: bool },
}

impl From<super::Event<u32, &'static str>> for Event {
    fn from(event: super::Event<u32, &'static str>) -> Event {
        use super::Event as Told;
        match event {
            Told::Requested(asked) => Event::Requested(asked),
            Told::RowsRequested(asked) => Event::RowsRequested(asked),
            Told::Cancelled(id) => Event::Cancelled(id),
            Told::RequestEnded { waiter, outcome } => Event::RequestEnded { waiter, outcome: *outcome },
            Told::Released { pending, tensor, taken } => Event::Released { pending, tensor: *tensor, taken },
            other => panic!("nobody aborts, pulls or pushes: {other:?}"),
        }
    }
}

/// A session, with the state that its owner and its link would keep.
struct End {
    session: Session<u32, &'static str>,
    slab: Slab,
    now: Instant,
    limits: SessionLimits,
    /// Bytes of an incomplete frame.
    input: Vec<u8>,
    landing: Option<Landing>,
}

impl End {
    fn new() -> Self {
        Self::with(SessionLimits::default())
    }

    fn with(limits: SessionLimits) -> Self {
        let slab = Slab::new(SlabSettings { name: "receive", bytes: SLAB_BYTES, populate: false }).unwrap();
        let mut end = Self {
            session: Session::new("10.0.0.2:7000", 1, limits.clone()),
            slab,
            now: Instant::now(),
            limits,
            input: Vec::new(),
            landing: None,
        };
        end.attach();
        end
    }

    /// Attaches a link with the next epoch.
    fn attach(&mut self) {
        let epoch = self.session.epoch() + 1;
        let roster = Roster { numbers: vec![PEER_TASK] };
        self.session.attach(self.now, epoch, roster, self.limits.tensor_bytes_max);
    }

    fn lose_link(&mut self) {
        self.session.detach(self.landing.take());
        self.input.clear();
    }

    fn wanting<'a>(&self, key: &'a str, waiter: u32) -> RequestParams<'a, u32> {
        let deadline = self.now + Duration::from_secs(60);
        RequestParams { consumer: 0, producer: PEER_TASK, step: 1, key, deadline, destination: None, waiter }
    }

    fn ask(&mut self, key: &str, waiter: u32) -> Handle {
        let params = self.wanting(key, waiter);
        self.session.request(self.now, params).expect("accepted")
    }

    fn answer(&mut self, id: Handle, bytes: impl Into<Payload>, pending: &'static str) {
        let meta = Meta::from_slice(pending.as_bytes());
        assert!(self.session.respond(id, meta, bytes.into(), pending).is_ok());
    }

    /// Everything that the session has to send, as if the link had taken it.
    fn speak(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        loop {
            self.session.fill(self.now, false);
            let outbox = self.session.outbox();
            if outbox.is_empty() {
                return bytes;
            }
            let mut slices = [sealane_runtime::VolatileSlice::empty(); 8];
            let count = outbox.gather(&mut slices);
            let before = bytes.len();
            slices[..count].iter().for_each(|slice| slice.append_to(&mut bytes));
            outbox.advance(bytes.len() - before);
            self.session.collect_written();
        }
    }

    /// Receives bytes as a link does, in pieces of any size.
    fn hear(&mut self, bytes: &[u8]) -> Result<(), WireError> {
        let mut inbound = self.session.inbound(self.now, &self.slab);
        self.input.extend_from_slice(bytes);
        loop {
            if let Some(landing) = &mut self.landing {
                let count = landing.take(&self.input);
                self.input.drain(..count);
                if !landing.is_complete() {
                    return Ok(());
                }
                inbound.landed(self.landing.take().expect("just looked at"));
            }
            let frames = inbound.frames(&self.input)?;
            self.input.drain(..frames.consumed);
            self.landing = frames.landing;
            if self.landing.is_none() {
                self.session.heard(self.now);
                return Ok(());
            }
        }
    }

    fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.session.poll_event()).map(Event::from).collect()
    }

    /// The peer's requests that came, with their keys; there must be no other events.
    fn asked(&mut self) -> Vec<(PeerRequest, String)> {
        let mut asked = Vec::new();
        while let Some(event) = self.session.poll_event().map(Event::from) {
            let Event::Requested(request) = event else { panic!("not a request: {event:?}") };
            let key = self.session.key(&request).to_owned();
            asked.push((request, key));
        }
        asked
    }

    fn asked_one(&mut self) -> Handle {
        let asked = self.asked();
        assert_eq!(asked.len(), 1);
        asked[0].0.id
    }

    /// Answers that came: waiter, and bytes or the error's text.
    fn answers(&mut self) -> Vec<(u32, Result<Vec<u8>, String>)> {
        let answered = |event: Event| match event {
            Event::RequestEnded { waiter, outcome } => {
                (waiter, outcome.map(|arrived| arrived.buffer.to_vec()).map_err(|why| why.error.to_string()))
            }
            other => panic!("not an outcome: {other:?}"),
        };
        self.events().into_iter().map(answered).collect()
    }

    /// Releases that came: the pending send, bytes, and whether it was taken.
    fn released(&mut self) -> Vec<(&'static str, usize, bool)> {
        let released = |event: Event| match event {
            Event::Released { pending, tensor: (meta, payload), taken } => {
                assert_eq!(&meta[..], pending.as_bytes(), "the metadata comes back too");
                (pending, payload.len(), taken)
            }
            other => panic!("not a release: {other:?}"),
        };
        self.events().into_iter().map(released).collect()
    }
}

/// Two ends connected by a wire.
struct Pair {
    asking: End,
    answering: End,
}

impl Pair {
    fn new() -> Self {
        Self { asking: End::new(), answering: End::new() }
    }

    /// Carries everything said, until both sides have nothing more to say.
    fn talk(&mut self) {
        loop {
            let (forth, back) = (self.asking.speak(), self.answering.speak());
            if forth.is_empty() && back.is_empty() {
                return;
            }
            self.answering.hear(&forth).unwrap();
            self.asking.hear(&back).unwrap();
        }
    }

    /// Asks for a tensor; returns the request as the other end knows it.
    fn asked(&mut self, key: &str, waiter: u32) -> Handle {
        self.asking.ask(key, waiter);
        self.talk();
        self.answering.asked_one()
    }

    /// The link fails and is replaced.
    fn new_link(&mut self) {
        self.asking.lose_link();
        self.answering.lose_link();
        self.asking.attach();
        self.answering.attach();
    }

    fn nothing_is_left(&mut self) {
        assert_eq!((self.asking.session.requests(), self.answering.session.unreleased()), (0, 0));
        assert_eq!(self.asking.slab.in_use_bytes(), 0);
        assert!(self.asking.session.poll_event().is_none() && self.answering.session.poll_event().is_none());
        assert!(!self.asking.session.has_output() && !self.answering.session.has_output());
    }
}

/// Frames as text, one item each, however they are grouped into frames: `request w0`, `response 5`, `release 0+2`.
fn words(mut bytes: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    while let Some((frame, length)) = parse(bytes).unwrap() {
        let mut skip = length;
        words.push(match frame {
            Frame::Requests(requests) => {
                words.extend(
                    requests.iter().map(|request| format!("request {}", text("key", request.unwrap().2).unwrap())),
                );
                bytes = &bytes[skip..];
                continue;
            }
            Frame::Responses(responses) => {
                words.extend(responses.iter().map(|small| format!("response {}", small.unwrap().payload.len())));
                bytes = &bytes[skip..];
                continue;
            }
            Frame::Pull(frame) => format!("{frame:?}"),
            Frame::Push(frame) => format!("{frame:?}"),
            Frame::Ahead(frame) => format!("{frame:?}"),
            Frame::Request(request) => format!("request {}", request.key),
            Frame::Rows(rows) => {
                let of_table = |table: OfTable<'_>| format!("rows {} of {}", table.ids.len(), table.key);
                rows.rows.iter().map(of_table).collect::<Vec<_>>().join(", ")
            }
            Frame::Response(response) => {
                skip += if response.transfer == 0 { response.payload_bytes as usize } else { 0 };
                format!("response {}", response.payload_bytes)
            }
            Frame::Chunk(chunk) => {
                skip += chunk.bytes as usize;
                format!("chunk {} of {}", chunk.bytes, chunk.transfer)
            }
            Frame::Failure(failure) => format!("failure {}", failure.code),
            Frame::Release(release) => format!("release {}+{}", release.sequence, release.entries.iter().count()),
            Frame::Released { sequence } => format!("released {sequence}"),
            Frame::Abort(abort) => format!("abort {}", abort.step),
            Frame::Ping { .. } => "ping".into(),
            Frame::Pong { .. } => "pong".into(),
            Frame::GoAway(_) => "go away".into(),
            Frame::Resumed => "resumed".into(),
            Frame::Parked { .. } => "parked".into(),
            Frame::Cancel { .. } => "cancel".into(),
        });
        bytes = &bytes[skip..];
    }
    assert!(bytes.is_empty(), "a session says whole frames");
    words
}

/// Bytes that differ by position.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 % 251) as u8).collect()
}

fn heap(length: usize) -> Buffer {
    Buffer::from_vec(vec![0; length])
}
