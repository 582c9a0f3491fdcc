//! What a link does with bytes: moves all of them, once, in order, and returns every payload to its owner.

use std::time::Instant;

use bytes::Bytes;
use sealane_runtime::{Slab, SlabSettings};
use sealane_transport::error::LinkError;
use sealane_transport::limits::{OUTBOX_PAYLOADS, RELEASES_PER_FRAME};
use sealane_transport::link::{Frames, Landing, Receiver};
use sealane_transport::outbox::{Outbox, Owner};
use sealane_transport::session::{Event, RequestParams, Roster, Session};
use sealane_transport::wire::{Frame, Response, WireError, parse};
use sealane_transport::{Handle, Link, Payload, SessionLimits};

use crate::ends::{Ends, Make, wait};

/// Budget of a receive where it does not matter.
const BUDGET: usize = 1 << 20;
/// Calls without progress after which a link that is always ready counts as stuck.
const STUCK_CALLS: usize = 10_000;
/// Largest read of frames that may exceed a link's budget.
const READ_BYTES: usize = 64 * 1024;

/// Records the numbers of pings, and accepts nothing else.
#[derive(Default)]
struct Ear {
    pings: Vec<u64>,
}

impl Receiver for Ear {
    fn frames(&mut self, bytes: &[u8]) -> Result<Frames, WireError> {
        let mut consumed = 0;
        while let Some((frame, length)) = parse(&bytes[consumed..])? {
            consumed += length;
            match frame {
                Frame::Ping { nonce } => self.pings.push(nonce),
                Frame::Release(release) => self.pings.extend(release.entries.iter().map(|(token, _)| token.to_bits())),
                other => panic!("this test sends no {other:?}"),
            }
        }
        Ok(Frames { consumed, landing: None })
    }

    fn landed(&mut self, _landing: Landing) {
        panic!("no payload was sent");
    }
}

/// A session that has asked for tensors, and the tensors that arrived.
struct Wanting {
    session: Session<usize, ()>,
    slab: Slab,
    ids: Vec<Handle>,
    arrived: Vec<(usize, Vec<u8>)>,
}

impl Wanting {
    fn new(count: usize) -> Self {
        Self::with_room(count, 16 << 20)
    }

    fn with_room(count: usize, bytes: usize) -> Self {
        let slab = Slab::new(SlabSettings { name: "receive", bytes, populate: false }).unwrap();
        let limits = SessionLimits { window: usize::MAX, ..SessionLimits::default() };
        let now = Instant::now();
        let mut session = Session::new("peer", 1, limits);
        session.attach(now, 1, Roster { numbers: vec![0] }, u64::MAX);
        let params = |waiter| {
            let deadline = now + std::time::Duration::from_secs(3600);
            let params =
                RequestParams { consumer: 0, producer: 0, step: 1, key: "w", deadline, destination: None, waiter };
            session.request(now, params).expect("accepted")
        };
        let ids = (0..count).map(params).collect();
        Self { session, slab, ids, arrived: Vec::new() }
    }

    fn receive(&mut self, link: &mut dyn Link, budget: usize) -> Result<usize, LinkError> {
        let result = link.receive(&mut self.session.inbound(Instant::now(), &self.slab), budget);
        while let Some(event) = self.session.poll_event() {
            let Event::RequestEnded { waiter, outcome } = event else { panic!("{event:?}") };
            self.arrived.push((waiter, outcome.expect("a tensor").buffer.to_vec()));
        }
        result
    }

    /// Tensors arrive in the order of their frames, except that large ones may be overtaken on links that move them beside the frames.
    fn check_order(&mut self, link: &dyn Link) {
        if link.traits().aside {
            self.arrived.sort_by_key(|(waiter, _)| *waiter);
        }
    }

    /// Puts the answer to one of the requests into an outbox.
    fn answer(&self, outbox: &mut Outbox, number: usize, payload: impl Into<Payload>) -> Option<Payload> {
        let (payload, token) = (payload.into(), token(number));
        let payload_bytes = payload.len() as u64;
        let response = Response { id: self.ids[number], token, payload_bytes, transfer: 0, meta: b"meta" };
        outbox.stage(|writer| writer.response(&response));
        outbox.push(Owner::Response(token), payload)
    }
}

fn token(number: usize) -> Handle {
    Handle::from_bits(1 << 32 | number as u64)
}

fn pattern(number: usize, length: usize) -> Vec<u8> {
    (0..length).map(|at| (at.wrapping_mul(31) ^ at >> 8 ^ number) as u8).collect()
}

/// Transmits, and lets a link that moves payloads beside the frames receive: it must learn where its messages have their place.
fn send(link: &mut dyn Link, outbox: &mut Outbox) -> usize {
    let sent = link.transmit(outbox, usize::MAX, false).expect("a healthy link");
    if link.traits().aside {
        link.receive(&mut Ear::default(), BUDGET).expect("a healthy link");
    }
    sent
}

/// Sends an outbox from one end and receives at the other until `done`.
fn carry(ends: &mut Ends, outbox: &mut Outbox, mut receive: impl FnMut(&mut dyn Link) -> (usize, bool)) {
    let [from, to] = ends;
    let mut calls = 0;
    loop {
        let sent = send(&mut **from, outbox);
        let (read, done) = receive(&mut **to);
        if done {
            return;
        }
        calls = if sent + read > 0 { 0 } else { calls + 1 };
        assert!(calls < STUCK_CALLS, "the link is stuck");
        if calls > 0 {
            wait(&[(&**from, !outbox.is_empty()), (&**to, false)]);
        }
    }
}

fn carry_to(wanting: &mut Wanting, ends: &mut Ends, outbox: &mut Outbox, count: usize) {
    carry(ends, outbox, |link| {
        let read = wanting.receive(link, BUDGET).expect("a healthy link");
        (read, wanting.arrived.len() == count)
    });
}

pub fn order_is_kept_and_bytes_are_identical(make: Make) {
    let mut ends = make(1);
    let mut outbox = Outbox::default();
    let mut expected = Vec::new();
    for number in 0..20_000_u64 {
        // Frames of different sizes, so that reads end within frames.
        let entries = (0..number % 7).map(|entry| number * 10 + entry);
        expected.push(number);
        expected.extend(entries.clone());
        outbox.stage(|writer| {
            writer.ping(number);
            let entries: Vec<_> = entries.map(|bits| (Handle::from_bits(bits), true)).collect();
            writer.release(0, entries.into_iter());
        });
    }
    let mut ear = Ear::default();
    carry(&mut ends, &mut outbox, |link| {
        let read = link.receive(&mut ear, BUDGET).expect("a healthy link");
        (read, ear.pings.len() >= expected.len())
    });
    assert!(ear.pings == expected);
    assert!(outbox.is_empty() && outbox.pending_bytes() == 0);
}

pub fn what_was_held_back_leaves_with_the_next_write(make: Make) {
    let mut ends = make(12);
    let mut outbox = Outbox::default();
    let mut ear = Ear::default();
    for nonce in 0..1000 {
        outbox.stage(|writer| writer.ping(nonce));
        ends[0].transmit(&mut outbox, usize::MAX, nonce % 10 != 9).expect("a healthy link");
    }
    outbox.stage(|writer| writer.ping(1000));
    carry(&mut ends, &mut outbox, |link| {
        let read = link.receive(&mut ear, BUDGET).expect("a healthy link");
        (read, ear.pings.len() == 1001)
    });
    assert!(ear.pings == (0..=1000).collect::<Vec<_>>());
}

pub fn payloads_of_every_size_arrive_whole(make: Make) {
    let sizes =
        [0, 1, 2, 63, 64, 4095, 8191, 8192, 8193, 65_535, 65_536, 65_537, 1 << 20, 5 << 20, 0, 3, (1 << 16) + 40];
    let mut ends = make(2);
    let mut wanting = Wanting::new(sizes.len());
    let mut outbox = Outbox::default();
    for (number, size) in sizes.into_iter().enumerate() {
        wanting.answer(&mut outbox, number, pattern(number, size));
    }
    carry_to(&mut wanting, &mut ends, &mut outbox, sizes.len());
    wanting.check_order(&*ends[1]);
    for (number, (waiter, bytes)) in wanting.arrived.iter().enumerate() {
        assert_eq!(*waiter, number, "in order");
        assert!(*bytes == pattern(number, sizes[number]), "tensor {number} of {} bytes", sizes[number]);
    }
    assert_eq!(wanting.slab.in_use_bytes(), 0);
}

pub fn both_directions_at_once(make: Make) {
    const COUNT: usize = 30;
    let mut ends = make(3);
    let mut sides = [Wanting::new(COUNT), Wanting::new(COUNT)];
    let mut outboxes = [Outbox::default(), Outbox::default()];
    for number in 0..COUNT {
        for (side, outbox) in outboxes.iter_mut().enumerate() {
            sides[1 - side].answer(outbox, number, pattern(number + side, 40_000 * (number % 4) + number));
        }
    }
    let mut calls = 0;
    while sides.iter().any(|side| side.arrived.len() < COUNT) {
        let mut moved = 0;
        for side in 0..2 {
            moved += ends[side].transmit(&mut outboxes[side], usize::MAX, false).expect("a healthy link");
            moved += sides[side].receive(&mut *ends[side], BUDGET).expect("a healthy link");
        }
        calls = if moved > 0 { 0 } else { calls + 1 };
        assert!(calls < STUCK_CALLS, "the link is stuck");
        if calls > 0 {
            wait(&[0, 1].map(|side| (&*ends[side], !outboxes[side].is_empty())));
        }
    }
    for (side, wanting) in sides.iter_mut().enumerate() {
        wanting.check_order(&*ends[side]);
        for (number, (waiter, bytes)) in wanting.arrived.iter().enumerate() {
            let expected = pattern(number + 1 - side, 40_000 * (number % 4) + number);
            assert!((*waiter, bytes) == (number, &expected), "tensor {number} at side {side}");
        }
    }
}

/// Every link moves a small payload and a large one, all at the same time.
pub fn as_many_links_as_a_port_has_carry(make: Make) {
    const LINKS: usize = 256;
    const SIZES: [usize; 2] = [64, 64 << 10];
    let mut all: Vec<_> = (0..LINKS)
        .map(|link| {
            let (ends, wanting, mut outbox) = (make(0), Wanting::with_room(SIZES.len(), 1 << 20), Outbox::default());
            for (number, size) in SIZES.into_iter().enumerate() {
                wanting.answer(&mut outbox, number, pattern(link + number, size));
            }
            (ends, wanting, outbox)
        })
        .collect();
    let mut calls = 0;
    while all.iter().any(|(_, wanting, _)| wanting.arrived.len() < SIZES.len()) {
        let mut moved = 0;
        for ([from, to], wanting, outbox) in &mut all {
            moved += send(&mut **from, outbox);
            moved += wanting.receive(&mut **to, BUDGET).expect("a healthy link");
        }
        calls = if moved > 0 { 0 } else { calls + 1 };
        assert!(calls < STUCK_CALLS, "the links are stuck");
        if calls > 0 {
            // A port has the completions of all its links.
            let ([from, to], ..) = &all[0];
            wait(&[(&**from, false), (&**to, false)]);
        }
    }
    for (link, (ends, wanting, _)) in all.iter_mut().enumerate() {
        wanting.check_order(&*ends[1]);
        for (number, size) in SIZES.into_iter().enumerate() {
            assert!(
                wanting.arrived[number] == (number, pattern(link + number, size)),
                "tensor {number} of link {link}"
            );
        }
    }
}

pub fn a_full_pipe_holds_the_rest_back_until_it_is_read(make: Make) {
    const COUNT: usize = 48;
    let shared = Bytes::from(pattern(0, 1 << 20));
    let mut ends = make(4);
    let mut wanting = Wanting::new(COUNT);
    let mut outbox = Outbox::default();
    for number in 0..COUNT {
        assert!(wanting.answer(&mut outbox, number, shared.clone()).is_none());
    }
    let all = outbox.pending_bytes();
    // Nobody reads, so that the pipe takes some and then no more.
    let (mut taken, mut refusals) = (0, 0);
    while refusals < 50 {
        let count = ends[0].transmit(&mut outbox, usize::MAX, false).expect("a full pipe is no error");
        (taken, refusals) = if count > 0 { (taken + count, 0) } else { (taken, refusals + 1) };
    }
    assert!(0 < taken && taken < all, "{taken} of {all} bytes were taken");
    assert_eq!(outbox.pending_bytes(), all - taken);
    carry_to(&mut wanting, &mut ends, &mut outbox, COUNT);
    assert!(wanting.arrived.iter().all(|(_, bytes)| *bytes == shared));
}

pub fn closing_is_noticed_after_the_last_byte(make: Make) {
    let [mut from, mut to] = make(5);
    let mut outbox = Outbox::default();
    outbox.stage(|writer| (0..100).for_each(|nonce| writer.ping(nonce)));
    while !outbox.is_empty() {
        send(&mut *from, &mut outbox);
    }
    drop(from);
    let mut ear = Ear::default();
    let error = loop {
        match to.receive(&mut ear, BUDGET) {
            Ok(0) => wait(&[(&*to, false)]),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, LinkError::Closed);
    assert_eq!(ear.pings, (0..100).collect::<Vec<_>>());
}

pub fn writing_to_a_closed_end_fails(make: Make) {
    let [mut from, to] = make(6);
    drop(to);
    let mut outbox = Outbox::default();
    let error = loop {
        outbox.stage(|writer| writer.ping(1));
        match from.transmit(&mut outbox, usize::MAX, false) {
            Ok(_) => wait(&[(&*from, true)]),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(error, LinkError::Closed | LinkError::Verbs(_) | LinkError::Io { operation: "write", .. }),
        "{error}"
    );
    assert!(!outbox.is_empty(), "what was not written stays");
}

pub fn payloads_come_back_exactly_once(make: Make) {
    const COUNT: usize = OUTBOX_PAYLOADS;
    let mut ends = make(7);
    let mut wanting = Wanting::new(COUNT);
    let mut outbox = Outbox::default();
    let mut addresses = Vec::new();
    for number in 0..COUNT {
        let bytes = pattern(number, 9_000 + number);
        addresses.push(bytes.as_ptr() as usize);
        assert!(wanting.answer(&mut outbox, number, bytes).is_none());
    }
    assert!(outbox.is_full() && outbox.returned().is_empty());
    carry_to(&mut wanting, &mut ends, &mut outbox, COUNT);
    // A link that moves payloads beside the frames learns that the last ones have ended when they are acknowledged.
    for _ in 0..STUCK_CALLS {
        if outbox.returned().len() == COUNT {
            break;
        }
        let sent = send(&mut *ends[0], &mut outbox);
        if sent + wanting.receive(&mut *ends[1], BUDGET).expect("a healthy link") == 0 {
            wait(&[(&*ends[0], false), (&*ends[1], false)]);
        }
    }
    let mut returned = std::mem::take(outbox.returned());
    returned.sort_by_key(|(owner, _)| *owner);
    assert_eq!(returned.len(), COUNT);
    for (number, (found, payload)) in returned.iter().enumerate() {
        assert_eq!(*found, Owner::Response(token(number)));
        assert_eq!(payload.as_ref().as_ptr() as usize, addresses[number], "the same memory");
    }
}

pub fn payloads_come_back_exactly_once_after_a_death(make: Make) {
    const COUNT: usize = 16;
    let [mut from, to] = make(8);
    let wanting = Wanting::new(COUNT);
    let mut outbox = Outbox::default();
    for number in 0..COUNT {
        wanting.answer(&mut outbox, number, pattern(number, 1 << 20));
    }
    from.transmit(&mut outbox, usize::MAX, false).expect("a healthy link");
    drop(to);
    while from.transmit(&mut outbox, usize::MAX, false).is_ok() && !outbox.is_empty() {
        wait(&[(&*from, true)]);
    }
    from.abandon(&mut outbox);
    outbox.clear();
    assert!(outbox.is_empty() && outbox.pending_bytes() == 0 && !outbox.is_full());
    let mut tokens: Vec<_> = outbox.returned().drain(..).map(|(token, payload)| (token, payload.len())).collect();
    tokens.sort();
    assert_eq!(tokens, (0..COUNT).map(|number| (Owner::Response(token(number)), 1 << 20)).collect::<Vec<_>>());
}

pub fn a_landing_under_way_is_given_up_whole(make: Make) {
    let [mut from, mut to] = make(9);
    let mut wanting = Wanting::new(1);
    // The frame and part of the payload, then the end.
    let mut whole = Outbox::default();
    wanting.answer(&mut whole, 0, pattern(0, 5 << 20));
    let mut slices = [sealane_runtime::VolatileSlice::empty(); 2];
    assert_eq!(whole.gather(&mut slices), 2);
    let mut outbox = Outbox::default();
    outbox.stage(|writer| {
        slices[0].append_to(writer.0);
        slices[1].first(100_000).append_to(writer.0);
    });
    while !outbox.is_empty() {
        send(&mut *from, &mut outbox);
        wanting.receive(&mut *to, BUDGET).expect("a healthy link");
    }
    drop(from);
    while wanting.receive(&mut *to, BUDGET).is_ok() {
        wait(&[(&*to, false)]);
    }
    let mut landings = to.abandon(&mut Outbox::default());
    let landing = landings.pop().expect("a payload was under way");
    assert_eq!(landing.missing(), (5 << 20) - 100_000);
    assert!(landings.is_empty() && to.abandon(&mut Outbox::default()).is_empty(), "given up once");
    assert!(wanting.slab.in_use_bytes() > 0);
    wanting.session.detach(Some(landing));
    assert_eq!((wanting.slab.in_use_bytes(), wanting.session.requests()), (0, 1), "it is asked again");
}

pub fn one_receive_keeps_to_its_budget(make: Make) {
    const BUDGETS: [usize; 3] = [1, 100_000, 300_000];
    for budget in BUDGETS {
        let mut ends = make(10);
        let mut outbox = Outbox::default();
        let entries = RELEASES_PER_FRAME as u64;
        for frame in 0..100 {
            let entries: Vec<_> =
                (0..entries).map(|entry| (Handle::from_bits(frame * entries + entry), true)).collect();
            outbox.stage(|writer| writer.release(0, entries.into_iter()));
        }
        let mut ear = Ear::default();
        carry(&mut ends, &mut outbox, |link| {
            let read = link.receive(&mut ear, budget).expect("a healthy link");
            assert!(read < budget + READ_BYTES + 1, "{read} bytes for a budget of {budget}");
            (read, ear.pings.len() == 100 * RELEASES_PER_FRAME)
        });
        assert!(ear.pings == (0..100 * entries).collect::<Vec<_>>());
    }
}

pub fn one_transmit_keeps_to_its_budget(make: Make) {
    const COUNT: usize = 12;
    for budget in [1000, 8192, 100_000] {
        let [mut from, mut to] = make(13);
        let mut wanting = Wanting::new(COUNT);
        let mut outbox = Outbox::default();
        // Some are in the staged bytes, some are payloads of their own.
        let size = |number: usize| 3_000 + 10_000 * (number % 3);
        for number in 0..COUNT {
            wanting.answer(&mut outbox, number, pattern(number, size(number)));
        }
        while wanting.arrived.len() < COUNT {
            let pending = outbox.pending_bytes();
            let sent = from.transmit(&mut outbox, budget, false).expect("a healthy link");
            assert!(sent <= budget, "{sent} bytes for a budget of {budget}");
            assert_eq!(outbox.pending_bytes(), pending - sent, "the rest is still there");
            if wanting.receive(&mut *to, BUDGET).expect("a healthy link") == 0 && sent == 0 {
                wait(&[(&*from, !outbox.is_empty()), (&*to, false)]);
            }
        }
        assert!(wanting.arrived.iter().all(|(waiter, bytes)| *bytes == pattern(*waiter, size(*waiter))));
    }
}

pub fn bad_bytes_are_a_protocol_error(make: Make) {
    let [mut from, mut to] = make(11);
    let mut outbox = Outbox::default();
    outbox.stage(|writer| {
        writer.ping(1);
        writer.0.extend_from_slice(&[200; 16]);
    });
    while !outbox.is_empty() {
        from.transmit(&mut outbox, usize::MAX, false).expect("a healthy link");
    }
    let mut ear = Ear::default();
    let error = loop {
        match to.receive(&mut ear, BUDGET) {
            Ok(0) => wait(&[(&*to, false)]),
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LinkError::Protocol(WireError::TooLong { what: "frame body", .. })), "{error}");
    assert_eq!(ear.pings, [1]);
}
