//! One end of the conversation: a session, its memory, and the records of an owner that keeps every rule.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_runtime::{Buffer, Slab};
use sealane_transport::limits::{AHEAD_TENSOR_BYTES, KEY_BYTES_MAX, TABLE_KEY_BYTES_MAX};
use sealane_transport::link::{Landing, Receiver};
use sealane_transport::pull_buffer::{Stored, StoredBytes};
use sealane_transport::session::{
    AheadParams, Credit, Event, PullParams, PushParams, ReceiveMemory, RequestOptions, RequestParams, Roster, Session,
    Store, Wait,
};
use sealane_transport::shm::limits::INLINE_BYTES_MAX;
use sealane_transport::wire::WireError;
use sealane_transport::{Error, Handle, Keys, Meta, Payload, PullBuffer, SessionLimits, Tensor};

use super::{STEPS, TASKS};
use crate::fuzz::forge::{KEYS, vector};
use crate::fuzz::script::Script;

/// Most requests, pulls and pushes of one end, each; also what a peer may have parked or unreleased.
const CALLS_MAX: usize = 12;
/// Largest tensor that an end accepts.
pub(super) const TENSOR_BYTES_MAX: u64 = 96 * 1024;
/// Chunk size for larger tensors, in bytes.
const CHUNK_BYTES: usize = 12 * 1024;
/// Sizes of tensors: no bytes, in a group, in a message, beside a frame, in chunks.
const SIZES: [usize; 6] = [0, 5, 600, 9_000, 20_000, 50_000];
/// The credit that a stream is granted at a time.
const CREDIT: Credit = Credit { messages: 2, bytes: 30_000 };

/// Limits of both ends, small enough to be reached.
pub(super) fn limits() -> SessionLimits {
    SessionLimits {
        window: 4,
        queued_requests_max: CALLS_MAX,
        parked_requests_max: CALLS_MAX,
        chunk_bytes: CHUNK_BYTES,
        in_flight_bytes_max: 64 * 1024,
        tensor_bytes_max: TENSOR_BYTES_MAX,
        ..SessionLimits::default()
    }
}

/// The slab; it refuses sizes that no tensor can need.
struct Checked<'a>(&'a Slab);

impl ReceiveMemory for Checked<'_> {
    fn allocate(&self, consumer: u16, len: usize) -> Result<Buffer, Error> {
        assert!(usize::from(consumer) < TASKS && len as u64 <= TENSOR_BYTES_MAX, "{len} bytes for task {consumer}");
        ReceiveMemory::allocate(self.0, consumer, len)
    }
}

/// Published tensors, one per key. Tensors that travel within a frame lie side by side in `packed`, in slot order.
#[derive(Default)]
struct Published {
    tensors: [Option<Entry>; KEYS.len()],
    packed: Vec<u8>,
}

struct Entry {
    version: i64,
    meta: Meta,
    payload: Payload,
    stamp: u64,
    /// Where its bytes are in `packed`, if they are there.
    place: Option<Range<usize>>,
}

impl Published {
    fn put(&mut self, slot: usize, version: i64, bytes: usize) {
        let payload = Payload::from(vec![9; bytes]).into_shared();
        // The same size always has the same metadata and length.
        let (meta, stamp) = (vector(bytes as u64), bytes as u64 + 1);
        self.tensors[slot] = Some(Entry { version, meta, payload, stamp, place: None });
        self.packed.clear();
        for Entry { payload, place, .. } in self.tensors.iter_mut().flatten() {
            let start = self.packed.len();
            *place = (payload.len() <= INLINE_BYTES_MAX).then(|| {
                payload.volatile().append_to(&mut self.packed);
                start..self.packed.len()
            });
        }
    }

    fn get(&self, slot: u32) -> Option<&Entry> {
        self.tensors.get(slot as usize)?.as_ref()
    }
}

impl Store for Published {
    fn look(&self, slot: u32) -> Option<Stored<'_>> {
        let Entry { version, meta, payload, stamp, place } = self.get(slot)?;
        let bytes = match place {
            Some(place) => StoredBytes::Packed(&self.packed[place.clone()]),
            None => StoredBytes::Payload(payload),
        };
        Some(Stored { version: *version, meta, stamp: *stamp, bytes })
    }

    fn run(&self, slots: &[u32], version: i64, stamps: &[u64], bytes_max: usize) -> (usize, &[u8]) {
        let (mut count, mut run) = (0, 0..0);
        for (&slot, &stamp) in slots.iter().zip(stamps) {
            let of_version = |it: &&Entry| it.version == version && it.stamp == stamp;
            let Some(place) = self.get(slot).filter(of_version).and_then(|it| it.place.clone()) else { break };
            let start = if count == 0 { place.start } else { run.start };
            if (count > 0 && place.start != run.end) || place.end - start > bytes_max {
                break;
            }
            (count, run) = (count + 1, start..place.end);
        }
        (count, &self.packed[run])
    }
}

/// Calls of one kind, by number: how many outcomes each still waits for.
#[derive(Default)]
struct Calls(Vec<u32>);

impl Calls {
    fn begin(&mut self) -> u32 {
        self.begin_many(1)
    }

    fn begin_many(&mut self, count: u32) -> u32 {
        self.0.push(count);
        self.0.len() as u32 - 1
    }

    fn end(&mut self, number: u32) {
        self.end_many(number, 1);
    }

    fn end_many(&mut self, number: u32, count: u32) {
        let left = &mut self.0[number as usize];
        *left = left.checked_sub(count).unwrap_or_else(|| panic!("call {number} ends twice"));
    }

    fn all_have_ended(&self) -> bool {
        self.0.iter().all(|left| *left == 0)
    }
}

pub(super) struct End<'s> {
    pub(super) session: Session<u32, u32>,
    slab: &'s Slab,
    /// Bytes of an incomplete frame.
    input: Vec<u8>,
    landing: Option<Landing>,
    recvs: Calls,
    pulls: Calls,
    /// Tensors sent and pushed.
    pending_sends: Calls,
    /// The peer's requests that wait for their tensors.
    parked: Vec<Handle>,
    sets: Vec<(Handle, usize)>,
    streams: Vec<Handle>,
    /// Numbers of tensors sent ahead.
    ahead: Vec<u64>,
    /// Streams that the peer has opened.
    opened: Vec<Handle>,
    waits: Vec<Wait>,
    published: Published,
}

impl<'s> End<'s> {
    pub(super) fn new(slab: &'s Slab) -> Self {
        Self {
            session: Session::new("10.0.0.2:7000", TASKS as u16, limits()),
            slab,
            input: Vec::new(),
            landing: None,
            recvs: Calls::default(),
            pulls: Calls::default(),
            pending_sends: Calls::default(),
            parked: Vec::new(),
            sets: Vec::new(),
            streams: Vec::new(),
            ahead: Vec::new(),
            opened: Vec::new(),
            waits: Vec::new(),
            published: Published::default(),
        }
    }

    pub(super) fn attach(&mut self, now: Instant, epoch: u32) {
        let roster = Roster { numbers: (0..TASKS as u32).collect() };
        self.session.attach(now, epoch, roster, TENSOR_BYTES_MAX);
    }

    pub(super) fn detach(&mut self) {
        if self.session.is_attached() {
            self.session.detach(self.landing.take());
        }
        self.input.clear();
        self.parked.clear();
    }

    /// Appends everything that the session has to send, as if a link had taken it.
    pub(super) fn speak(&mut self, now: Instant, one_message: bool, into: &mut Vec<u8>) {
        self.session.fill_from(&self.published, now, one_message);
        loop {
            let outbox = self.session.outbox();
            let mut slices = [sealane_runtime::VolatileSlice::empty(); 8];
            let count = outbox.gather(&mut slices);
            let before = into.len();
            slices[..count].iter().for_each(|slice| slice.append_to(into));
            if into.len() == before {
                break;
            }
            outbox.advance(into.len() - before);
        }
        self.session.collect_written();
        self.session.take_waits(&mut self.waits);
    }

    /// Receives bytes as a link does.
    pub(super) fn hear(&mut self, now: Instant, bytes: &[u8]) -> Result<(), WireError> {
        let memory = Checked(self.slab);
        let mut inbound = self.session.inbound(now, &memory);
        self.input.extend_from_slice(bytes);
        let mut heard = 0;
        let outcome = loop {
            if let Some(landing) = &mut self.landing {
                heard += landing.take(&self.input[heard..]);
                if !landing.is_complete() {
                    break Ok(());
                }
                inbound.landed(self.landing.take().expect("just looked at"));
            }
            match inbound.frames(&self.input[heard..]) {
                Err(error) => break Err(error),
                Ok(frames) => {
                    heard += frames.consumed;
                    self.landing = frames.landing;
                    if self.landing.is_none() {
                        break Ok(());
                    }
                }
            }
        };
        self.input.drain(..heard);
        self.session.heard(now);
        outcome
    }

    /// Checks that the limits hold, whatever was received.
    pub(super) fn check(&self) {
        assert!(self.session.requests() <= 3 * CALLS_MAX);
        assert!(self.session.unreleased() <= CALLS_MAX + self.ahead.len());
        assert!(self.parked.len() <= CALLS_MAX);
    }

    /// Does one thing that an owner may do at any time.
    pub(super) fn act(&mut self, now: Instant, script: &mut Script<'_>) {
        let deadline = now + Duration::from_millis(u64::from(script.byte()) + 1);
        let (consumer, peer_task) = (script.below(TASKS) as u16, script.below(TASKS) as u32);
        match script.below(16) {
            0..=2 => {
                let destination = script.yes().then(|| Buffer::from_vec(vec![0; script.one_of(&SIZES)]).into());
                let (step, key, waiter) = (script.below(STEPS) as i64, script.one_of(&KEYS), self.recvs.begin());
                let params = RequestParams { consumer, producer: peer_task, step, key, deadline, destination, waiter };
                let options = RequestOptions { fused: script.yes(), fail_if_gone: script.yes() };
                let asked = self.session.request_as(now, params, options);
                if let Err((unanswered, waiter)) = asked {
                    assert!(!unanswered.error.to_string().is_empty());
                    self.recvs.end(waiter);
                }
            }
            3 => {
                let handle = Handle::from_bits(1 << 32 | script.below(CALLS_MAX) as u64);
                if let Some((waiter, _)) = self.session.cancel(handle) {
                    self.recvs.end(waiter);
                }
            }
            4 => {
                if let Some(id) = self.parked.pop() {
                    if script.yes() {
                        self.session.unpark();
                        self.answer(id, script.one_of(&SIZES));
                    } else {
                        self.session.end_parked(id, &Error::invalid("it was aborted"));
                    }
                }
            }
            5 => {
                let (first, count) = (script.below(KEYS.len()), script.below(KEYS.len() + 1));
                let keys = Keys::new((0..count).map(|number| KEYS[(first + number) % KEYS.len()])).expect("few");
                if let Ok(set) = self.session.add_set(consumer, peer_task, Arc::new(keys)) {
                    self.sets.push((set, count));
                }
            }
            6 | 7 => self.pull(now, deadline, script),
            8 => {
                if !self.sets.is_empty() {
                    let (set, _) = self.sets.swap_remove(script.below(self.sets.len()));
                    // The set's pulls end without an outcome: the owner gives them up first.
                    self.cancel_pulls();
                    self.session.forget_set(set);
                }
            }
            9 => self.publish(script),
            10 => {
                if let Ok(stream) = self.session.stream(consumer, peer_task, script.one_of(&KEYS)) {
                    self.streams.push(stream);
                }
            }
            call @ (11 | 12) => {
                if !self.streams.is_empty() {
                    let (stream, bytes) = (script.one_of(&self.streams), script.one_of(&SIZES));
                    let (count, together) = if call == 11 { (1, false) } else { (1 + script.below(4), true) };
                    let tensor = |_| Tensor::from_wire(&vector(bytes as u64), Buffer::from_vec(vec![7; bytes]));
                    let mut tensors = (0..count).map(tensor).map(|tensor| tensor.expect("a vector of bytes"));
                    let pending = self.pending_sends.begin_many(count as u32);
                    loop {
                        let next = match together {
                            true => self.session.push_together(now, (stream, deadline, &pending), &mut tensors),
                            false => tensors.next(),
                        };
                        let Some((meta, payload)) = next.map(Tensor::into_parts) else { break };
                        let push = PushParams { stream, meta: meta.into_wire(), payload, deadline, pending };
                        if let Err((_, pending)) = self.session.push(now, push) {
                            self.pending_sends.end(pending);
                        }
                    }
                }
            }
            13 => {
                if !self.opened.is_empty() {
                    self.session.grant(script.one_of(&self.opened), CREDIT);
                }
            }
            14 => self.session.abort(script.below(STEPS) as i64, consumer, "over"),
            _ => match script.byte() {
                0 => self.session.go_away("enough"),
                1..128 => {
                    let (step, key, bytes) = (script.below(STEPS) as i64, script.one_of(&KEYS), script.one_of(&SIZES));
                    let (meta, payload, pending) = (vector(bytes as u64), vec![7; bytes], self.pending_sends.begin());
                    let sending = self.session.send_ahead((consumer, peer_task), step, script.yes());
                    match sending.filter(|sending| sending.has_room(key.len() + meta.len(), bytes)) {
                        Some(mut sending) => {
                            self.ahead.push(sending.next());
                            sending.add(AheadParams { key, meta: &meta, payload: (&payload[..]).into(), pending });
                        }
                        None => self.pending_sends.end(pending),
                    }
                }
                _ => {
                    if !self.ahead.is_empty() {
                        self.session.revoke_ahead(script.one_of(&self.ahead));
                    }
                }
            },
        }
    }

    fn pull(&mut self, now: Instant, deadline: Instant, script: &mut Script<'_>) {
        if self.sets.is_empty() {
            return;
        }
        let (set, count) = script.one_of(&self.sets);
        let mut pull_buffer = PullBuffer::new(count);
        if count > 0 && script.yes() {
            pull_buffer.set_destination(script.below(count), Buffer::from_vec(vec![0; script.one_of(&SIZES)]));
        }
        let (min_version, waiter) = (script.below(STEPS) as i64, self.pulls.begin());
        if let Err((_, _, waiter)) =
            self.session.pull(now, PullParams { set, min_version, deadline, fail_if_gone: false, pull_buffer, waiter })
        {
            self.pulls.end(waiter);
        }
    }

    fn cancel_pulls(&mut self) {
        for index in 0..CALLS_MAX as u64 {
            for generation in 1..=self.pulls.0.len() as u64 {
                if let Some((waiter, _)) = self.session.cancel_pull(Handle::from_bits(generation << 32 | index)) {
                    self.pulls.end(waiter);
                }
            }
        }
    }

    fn publish(&mut self, script: &mut Script<'_>) {
        let (slot, version, bytes) = (script.below(KEYS.len()), script.below(STEPS) as i64, script.one_of(&SIZES));
        self.published.put(slot, version, bytes);
        let waits = std::mem::take(&mut self.waits);
        for wait in waits {
            if wait.slot as usize != slot || version < wait.min_version {
                self.waits.push(wait);
            } else if self.session.is_serving(wait.pull) {
                self.session.pull_ready(wait.pull, wait.index);
            }
        }
    }

    fn answer(&mut self, id: Handle, bytes: usize) {
        let pending = self.pending_sends.begin();
        if let Err((_, _, pending)) = self.session.respond(id, vector(bytes as u64), vec![5; bytes].into(), pending) {
            self.pending_sends.end(pending);
        }
    }

    /// Handles everything that the session reports.
    pub(super) fn settle(&mut self, script: &mut Script<'_>) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::Requested(asked) => {
                    assert!(usize::from(asked.producer) < TASKS && self.session.key(&asked).len() <= KEY_BYTES_MAX);
                    match script.below(4) {
                        0 => self.session.refuse(asked.id, &Error::invalid("not here")),
                        1 => {
                            self.session.park_for(asked.id, script.byte().into());
                            self.parked.push(asked.id);
                        }
                        _ => self.answer(asked.id, script.one_of(&SIZES)),
                    }
                }
                Event::RowsRequested(asked) => {
                    let rows = asked.rows.as_rows();
                    assert!(usize::from(asked.producer) < TASKS);
                    assert!(rows.iter().all(|table| table.key.len() <= TABLE_KEY_BYTES_MAX));
                    match script.below(4) {
                        0 => self.session.refuse(asked.id, &Error::invalid("not here")),
                        1 => {
                            self.session.park_for(asked.id, script.byte().into());
                            self.parked.push(asked.id);
                        }
                        _ => self.answer(asked.id, rows.iter().map(|table| table.ids.len()).sum()),
                    }
                }
                Event::Cancelled(id) => {
                    if let Some(at) = self.parked.iter().position(|parked| *parked == id) {
                        self.parked.swap_remove(at);
                        self.session.unpark();
                    }
                }
                Event::RequestEnded { waiter, outcome } => {
                    self.recvs.end(waiter);
                    match *outcome {
                        Ok(arrived) => assert!(arrived.buffer.len() as u64 <= TENSOR_BYTES_MAX),
                        Err(unanswered) => assert!(!unanswered.error.to_string().is_empty()),
                    }
                }
                Event::Released { pending, .. } | Event::TakenAhead { pending, .. } => self.pending_sends.end(pending),
                Event::BackFromAhead(back) => {
                    assert!(back.key.len() <= KEY_BYTES_MAX && back.buffer.len() <= AHEAD_TENSOR_BYTES);
                    self.pending_sends.end(back.pending);
                }
                Event::Pulled { waiter, pull_buffer } => {
                    self.pulls.end(waiter);
                    assert!(pull_buffer.is_complete());
                }
                Event::Named(named) => {
                    let slot = |key: &str| KEYS.iter().position(|known| *known == key).unwrap_or(0) as u32;
                    if script.below(8) == 0 {
                        self.session.refuse_set(named.set, named.serial, Error::invalid("no plans today"));
                    } else {
                        let slots = named.keys.iter().map(|key| slot(key)).collect();
                        let _ = self.session.set_found(named.set, named.serial, slots);
                    }
                }
                Event::Forgotten { .. } => {}
                Event::PushEnded { pending, count, .. } => {
                    assert_ne!(count, 0, "nobody is told of nothing");
                    self.pending_sends.end_many(pending, count);
                }
                Event::Opened(opened) => {
                    if !self.opened.contains(&opened.stream) {
                        self.opened.push(opened.stream);
                    }
                    self.session.grant(opened.stream, CREDIT);
                }
                Event::Wanting { stream } => {
                    if let Some(wanted) = self.session.wanted(stream)
                        && script.below(4) > 0
                    {
                        self.session.grant(stream, Credit { messages: 0, bytes: wanted.least });
                    }
                }
                Event::Pushed { stream, number, tensor } => {
                    assert!(tensor.bytes().len() as u64 <= TENSOR_BYTES_MAX);
                    if script.below(8) == 0 {
                        self.session.refuse_push(stream, number, &Error::invalid("unwanted"));
                    }
                }
                Event::Closed { streams } => self.opened.retain(|stream| !streams.contains(stream)),
                Event::Aborted { step, .. } => {
                    let error = Error::Aborted { step, reason: "the peer's step".into() };
                    (0..TASKS as u16).for_each(|task| self.session.end_requests(step, task, None, &error));
                }
            }
        }
    }

    /// The peer is gone for good: everything must end, and nothing may be kept.
    pub(super) fn finish(mut self, script: &mut Script<'_>) {
        let error = Error::unavailable("10.0.0.2:7000", "it is gone");
        self.detach();
        self.session.reset(&error);
        self.session.end_all_requests(&error);
        self.settle(script);
        assert!(self.recvs.all_have_ended(), "a recv stands");
        assert!(self.pulls.all_have_ended(), "a pull stands");
        assert!(self.pending_sends.all_have_ended(), "a send or a push stands");
        assert_eq!((self.session.requests(), self.session.unreleased()), (0, 0));
    }
}
