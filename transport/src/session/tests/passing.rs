//! Pulls and pushes of large tensors, in chunks: small tensors pass them, and each stream of pushes stays in order.

use std::collections::VecDeque;
use std::sync::Arc;

use super::chunks::{LARGE, limits, written};
use super::*;
use crate::error::{Code, Error};
use crate::limits::{LOOKS_PER_TURN, TRANSFERS_MAX};
use crate::pull_buffer::{Keys, PullBuffer};
use crate::pull_buffer::{Stored, StoredBytes};
use crate::session::{Credit, Event as Told, PullParams, PushParams, Store};
use crate::tensor::{DType, Tensor, TensorMeta};
use crate::wire::PullFrame;

/// Two sessions that pull and push, and the store of the side that is pulled from.
pub(super) struct Both {
    pub(super) here: Session<u32, u32>,
    pub(super) there: Session<u32, u32>,
    pub(super) store: Vec<Entry>,
    pub(super) slab: Slab,
    pub(super) now: Instant,
    landing: Option<Landing>,
    input: Vec<u8>,
}

pub(super) struct Entry {
    version: i64,
    stamp: u64,
    meta: TensorMeta,
    payload: Payload,
}

impl Entry {
    pub(super) fn new(version: i64, stamp: u64, length: usize) -> Self {
        Self::of(version, stamp, Payload::from(pattern(length)).into_shared())
    }

    pub(super) fn of(version: i64, stamp: u64, payload: Payload) -> Self {
        let meta = TensorMeta::new(DType::U8, &[payload.len() as u64]).unwrap();
        Self { version, stamp, meta, payload }
    }
}

impl Store for Vec<Entry> {
    fn look(&self, slot: u32) -> Option<Stored<'_>> {
        let Entry { version, stamp, meta, payload } = self.get(slot as usize)?;
        Some(Stored { version: *version, meta: meta.as_wire(), stamp: *stamp, bytes: StoredBytes::Payload(payload) })
    }
}

impl Both {
    pub(super) fn new() -> Self {
        let session = || {
            let mut session = Session::new("10.0.0.2:7000", 1, limits());
            session.attach(Instant::now(), 1, Roster { numbers: vec![PEER_TASK] }, u64::MAX);
            session
        };
        let slab = Slab::new(SlabSettings { name: "receive", bytes: SLAB_BYTES, populate: false }).unwrap();
        let (here, there, now) = (session(), session(), Instant::now());
        Self { here, there, store: Vec::new(), slab, now, landing: None, input: Vec::new() }
    }

    /// Pulls a set.
    pub(super) fn pull(&mut self, set: Handle, min_version: i64, pull_buffer: PullBuffer, waiter: u32) {
        let deadline = self.now + Duration::from_secs(60);
        let params = PullParams { set, min_version, deadline, fail_if_gone: false, pull_buffer, waiter };
        self.here.pull(self.now, params).map_err(|(error, ..)| error).unwrap();
    }

    pub(super) fn push(&mut self, stream: Handle, payload: Payload, pending: u32) {
        let deadline = self.now + Duration::from_secs(60);
        let meta = TensorMeta::new(DType::U8, &[payload.len() as u64]).unwrap().into_wire();
        let push = PushParams { stream, meta, payload, deadline, pending };
        self.here.push(self.now, push).map_err(|(error, _)| error).unwrap();
    }

    /// Carries everything this side says to the other.
    pub(super) fn forth(&mut self) {
        loop {
            self.here.fill(self.now, false);
            let bytes = written(&mut self.here);
            if bytes.is_empty() {
                return;
            }
            hear(&mut self.there, (&mut self.input, &mut self.landing), &self.slab, self.now, &bytes);
        }
    }

    /// Carries one write of this side to the other.
    pub(super) fn forth_once(&mut self) {
        self.here.fill(self.now, false);
        let bytes = written(&mut self.here);
        hear(&mut self.there, (&mut self.input, &mut self.landing), &self.slab, self.now, &bytes);
    }

    /// The link fails in the middle of what this side says, and is replaced.
    pub(super) fn new_link(&mut self) {
        self.here.detach(None);
        self.there.detach(self.landing.take());
        self.input.clear();
        for session in [&mut self.here, &mut self.there] {
            session.attach(self.now, 2, Roster { numbers: vec![PEER_TASK] }, u64::MAX);
        }
    }

    /// The other side finds the sets named to it; returns the stream that was opened, if any.
    pub(super) fn open_and_find(&mut self) -> Option<Handle> {
        let mut stream = None;
        let mut others = VecDeque::new();
        while let Some(event) = self.there.poll_event() {
            match event {
                Told::Named(named) => {
                    self.there.set_found(named.set, named.serial, (0..named.keys.len() as u32).collect()).unwrap();
                }
                Told::Opened(opened) => stream = Some(opened.stream),
                Told::Forgotten { .. } => {}
                other => others.push_back(other),
            }
        }
        self.there.events = others;
        stream
    }

    /// Carries one write of the other side here.
    pub(super) fn back_once(&mut self) -> bool {
        self.there.fill_from(&self.store, self.now, false);
        let bytes = written(&mut self.there);
        let mut input = (Vec::new(), None);
        hear(&mut self.here, (&mut input.0, &mut input.1), &self.slab, self.now, &bytes);
        assert!(input.0.is_empty() && input.1.is_none(), "writes end with a chunk");
        !bytes.is_empty()
    }

    /// The other side finds the keys of a set, in order.
    fn find_set(&mut self) {
        let Some(Told::Named(named)) = self.there.poll_event() else { panic!("no set was named") };
        self.there.set_found(named.set, named.serial, (0..named.keys.len() as u32).collect()).unwrap();
    }

    pub(super) fn pulled(&mut self) -> Option<(u32, PullBuffer)> {
        match self.here.poll_event()? {
            Told::Pulled { waiter, pull_buffer } => Some((waiter, pull_buffer)),
            other => panic!("not a pull: {other:?}"),
        }
    }
}

fn hear(
    session: &mut Session<u32, u32>,
    (input, landing): (&mut Vec<u8>, &mut Option<Landing>),
    slab: &Slab,
    now: Instant,
    bytes: &[u8],
) {
    let mut inbound = session.inbound(now, slab);
    input.extend_from_slice(bytes);
    loop {
        if let Some(mut filling) = landing.take() {
            let count = filling.take(input);
            input.drain(..count);
            if !filling.is_complete() {
                *landing = Some(filling);
                return;
            }
            inbound.landed(filling);
        }
        let frames = inbound.frames(input).unwrap();
        input.drain(..frames.consumed);
        *landing = frames.landing;
        if landing.is_none() {
            return;
        }
    }
}

#[test]
fn a_pull_of_a_small_tensor_passes_that_of_a_large_one() {
    let mut both = Both::new();
    both.store = vec![Entry::new(1, 1, LARGE), Entry::new(1, 2, 64)];
    for keys in [&["large", "small"][..], &["large"]] {
        let keys = Arc::new(Keys::new(keys).unwrap());
        let set = both.here.add_set(0, PEER_TASK, keys.clone()).unwrap();
        both.pull(set, 1, PullBuffer::new(keys.len()), keys.len() as u32);
        both.forth();
        both.find_set();
    }
    // A tensor of another shape is published and announced while the first is still on its way in its old shape.
    for _ in 0..2 {
        both.back_once();
    }
    both.store[0] = Entry::new(2, 3, LARGE + 7);
    let mut pulled = Vec::new();
    while both.back_once() {
        pulled.extend(std::iter::from_fn(|| both.pulled()));
    }
    assert_eq!(pulled.len(), 2);
    for (_, pull_buffer) in &pulled {
        let tensor = pull_buffer.get(0).unwrap();
        assert_eq!(tensor.bytes(), pattern(tensor.bytes().len()));
        assert_eq!(tensor.meta().shape().iter().product::<u64>(), tensor.bytes().len() as u64);
    }
}

#[test]
fn a_plan_of_tensors_without_bytes_or_that_are_missing_is_looked_at_in_many_turns() {
    const KEYS: usize = 2 * LOOKS_PER_TURN + 10;
    let mut both = Both::new();
    let keys = Arc::new(Keys::new((0..KEYS).map(|key| key.to_string())).unwrap());
    let set = both.here.add_set(0, PEER_TASK, keys).unwrap();
    both.pull(set, 1, PullBuffer::new(KEYS), 1);
    both.forth();
    both.find_set();
    let (mut waits, mut turns) = (Vec::new(), 0);
    while waits.len() < KEYS {
        let before = waits.len();
        assert!(both.there.is_urgent() && !both.there.fill_from(&both.store, both.now, false));
        both.there.take_waits(&mut waits);
        assert!(waits.len() <= before + LOOKS_PER_TURN);
        turns += 1;
    }
    assert_eq!(turns, 3);
    both.store = (0..KEYS).map(|key| Entry::new(1, key as u64 + 1, 0)).collect();
    waits.into_iter().for_each(|wait| both.there.pull_ready(wait.pull, wait.index));
    let mut parts = 0;
    while parts < KEYS {
        both.there.fill_from(&both.store, both.now, false);
        let said = written(&mut both.there);
        let (mut rest, mut together) = (&said[..], 0);
        while let Some((frame, length)) = parse(rest).unwrap() {
            together += if let Frame::Pull(PullFrame::Parts(parts)) = frame { parts.count as usize } else { 0 };
            rest = &rest[length..];
        }
        assert!(together <= LOOKS_PER_TURN, "{together} in one turn");
        parts += together;
        hear(&mut both.here, (&mut both.input, &mut both.landing), &both.slab, both.now, &said);
    }
    let (_, pull_buffer) = both.pulled().unwrap();
    assert_eq!(pull_buffer.came(), (KEYS, 0));
}

#[test]
fn pushes_stay_in_order_in_their_stream_and_other_streams_pass() {
    let mut both = Both::new();
    let streams: Vec<_> =
        (0..6).map(|queue| both.here.stream(0, PEER_TASK, &format!("queue {queue}")).unwrap()).collect();
    // More than may be sent in chunks at the same time, a small one after each, and a stream of small ones.
    for (pending, stream) in (0..).zip(&streams[..5]) {
        both.push(*stream, pattern(LARGE).into(), pending);
        both.push(*stream, pattern(64).into(), pending);
    }
    both.push(streams[5], pattern(64).into(), 5);
    both.forth();
    while let Some(event) = both.there.poll_event() {
        let Told::Opened(opened) = event else { panic!("not a stream: {event:?}") };
        both.there.grant(opened.stream, Credit { messages: 10, bytes: 10 << 20 });
    }
    while both.back_once() {}
    both.forth();
    let mut came: VecDeque<(Handle, u64, Box<Tensor>)> = VecDeque::new();
    while let Some(event) = both.there.poll_event() {
        let Told::Pushed { stream, number, tensor } = event else { panic!("not a push: {event:?}") };
        came.push_back((stream, number, tensor));
    }
    assert_eq!(came.len(), 11);
    assert_eq!(came[0].2.bytes(), pattern(64), "that of the stream of small ones");
    for number in 0..2 {
        let of_number: Vec<_> = came.iter().filter(|(_, found, _)| *found == number).collect();
        assert_eq!(of_number.len(), if number == 0 { 6 } else { 5 });
        let expected = |tensor: &Tensor| tensor.bytes() == pattern(tensor.bytes().len());
        assert!(of_number.iter().all(|(_, _, tensor)| expected(tensor)));
    }
    while both.back_once() {}
    let mut taken = 0;
    while let Some(event) = both.here.poll_event() {
        let Told::PushEnded { count, outcome, .. } = event else { panic!("not an end: {event:?}") };
        assert_eq!(outcome.map_err(|error: Error| error.to_string()), Ok(()));
        taken += count;
    }
    assert_eq!((taken, both.here.requests()), (11, 0));
}

#[test]
fn a_link_lost_between_chunks_has_pulls_and_pushes_begin_again() {
    for writes in 0..8 {
        let mut both = Both::new();
        both.store = vec![Entry::new(1, 1, LARGE), Entry::new(1, 2, LARGE)];
        let keys = Arc::new(Keys::new(["own", "slab"]).unwrap());
        let set = both.here.add_set(0, PEER_TASK, keys).unwrap();
        let mut pull_buffer = PullBuffer::new(2);
        let own = heap(LARGE);
        let address = own.as_ptr();
        pull_buffer.set_destination(0, own);
        both.pull(set, 1, pull_buffer, 0);
        let stream = both.here.stream(0, PEER_TASK, "queue").unwrap();
        (0..2).for_each(|pending| both.push(stream, pattern(LARGE).into(), pending));
        both.forth();
        let opened = both.open_and_find();
        both.there.grant(opened.expect("a stream was opened"), Credit { messages: 10, bytes: 10 << 20 });
        // Chunks of both tensors arrive, and chunks of the first push are sent.
        for _ in 0..writes {
            both.back_once();
            both.forth_once();
        }
        both.new_link();
        let mut tensors = 0;
        let (mut pulls, mut ends) = (0, 0);
        loop {
            both.forth();
            let opened_again = both.open_and_find();
            assert!(opened_again.is_none() || opened_again == opened || writes == 0, "the stream is known");
            while let Some(Told::Pushed { tensor, .. }) = both.there.poll_event() {
                assert_eq!(tensor.bytes(), pattern(LARGE));
                tensors += 1;
            }
            let more = both.back_once();
            while let Some(event) = both.here.poll_event() {
                match event {
                    Told::Pulled { pull_buffer, .. } => {
                        assert!((0..2).all(|index| pull_buffer.get(index).unwrap().bytes() == pattern(LARGE)));
                        assert_eq!(
                            pull_buffer.get(0).unwrap().bytes().as_ptr(),
                            address,
                            "in the consumer's own memory"
                        );
                        pulls += 1;
                    }
                    Told::PushEnded { count, outcome: Ok(()), .. } => ends += count,
                    other => panic!("{other:?}"),
                }
            }
            if !more {
                break;
            }
        }
        assert_eq!((pulls, tensors, ends), (1, 2, 2), "after {writes} writes");
        assert_eq!(both.slab.in_use_bytes(), 0, "what was half there was given up");
    }
}

#[test]
fn a_publisher_that_goes_ends_what_has_not_left_of_its_pulls() {
    let mut both = Both::new();
    let count = 2 * TRANSFERS_MAX;
    both.store = (0..count).map(|_| Entry::new(1, 1, LARGE)).collect();
    let names: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    let set = both.here.add_set(0, PEER_TASK, Arc::new(Keys::new(&names).unwrap())).unwrap();
    for (waiter, min_version) in [(1, 1), (2, 2)] {
        both.pull(set, min_version, PullBuffer::new(count), waiter);
    }
    both.forth();
    both.find_set();
    for _ in 0..3 {
        both.back_once();
    }
    // All of the second push waits by now; the owner ends it.
    let mut waits = Vec::new();
    both.there.take_waits(&mut waits);
    assert_eq!(waits.len(), count);
    let gone = Error::unavailable("ps:1", "its process is gone");
    both.there.refuse_pulls_of(7, &Error::invalid("another task's"));
    both.there.refuse_pulls_of(0, &gone);
    waits.iter().for_each(|wait| both.there.refuse_pull(wait.pull, wait.index, &gone));
    both.store.clear();
    let mut pulled = Vec::new();
    while both.back_once() {
        pulled.extend(std::iter::from_fn(|| both.pulled()));
    }
    let came = |pull_buffer: &PullBuffer| (0..count).filter(|&index| pull_buffer.get(index).is_ok()).count();
    let unavailable = |pull_buffer: &PullBuffer| {
        (0..count).filter_map(|index| pull_buffer.get(index).err()).all(|error| error.code() == Code::Unavailable)
    };
    assert_eq!(pulled.len(), 2, "nobody waits for the next publisher");
    for (waiter, pull_buffer) in &pulled {
        assert!(unavailable(pull_buffer));
        assert_eq!((1..count).contains(&came(pull_buffer)), *waiter == 1, "what had begun to leave arrives whole");
    }
}

/// Otherwise the peer would keep it forever, and it counts against the limit for one peer.
#[test]
fn a_stream_that_ends_around_a_lost_link_ends_at_the_peer() {
    // Before the link is lost, so that the peer does not hear of it; while there is no link; on the next link, which knows nothing of the
    // stream.
    for ends in 0..3 {
        let mut both = Both::new();
        let stream = both.here.stream(0, PEER_TASK, "queue").unwrap();
        both.push(stream, pattern(64).into(), 1);
        both.forth();
        let opened = both.open_and_find().expect("a stream was opened");
        both.there.grant(opened, Credit { messages: 1, bytes: 64 });
        both.back_once();
        both.forth();
        assert!(matches!(both.there.poll_event(), Some(Told::Pushed { .. })));
        both.there.grant(opened, Credit { messages: 1, bytes: 64 });
        both.back_once();

        let error = Error::unavailable("ps:1", "it went");
        let end = |both: &mut Both, now| {
            if now == ends {
                both.here.end_requests_of(0, &error);
            }
        };
        end(&mut both, 0);
        both.here.detach(None);
        both.there.detach(None);
        end(&mut both, 1);
        for session in [&mut both.here, &mut both.there] {
            session.attach(both.now, 2, Roster { numbers: vec![PEER_TASK] }, u64::MAX);
        }
        end(&mut both, 2);
        both.forth();
        let closed = |event| matches!(event, Told::Closed { streams } if streams == [opened]);
        assert!(std::iter::from_fn(|| both.there.poll_event()).any(closed), "it ended at {ends}");
        assert!(both.there.credit(opened).is_none());
    }
}
