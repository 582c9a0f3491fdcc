//! Tensors in device memory: copied through host memory for links that cannot reach it, within the limit on such copies.

use std::sync::Arc;

use sealane_runtime::{Reach, Reacher};

use super::passing::{Both, Entry};
use super::*;
use crate::error::{Code, Error};
use crate::fake_device::{Copies, FakeDevice, bytes_of};
use crate::limits::INLINE_PAYLOAD_BYTES;
use crate::link::{Place, Traits};
use crate::outbox::Aside;
use crate::pull_buffer::{Keys, PullBuffer};
use crate::session::{Credit, Event as Told, PullParams, PushParams};
use crate::tensor::{DType, TensorMeta};

const LARGE: usize = 100_000;

/// Two ends; the answering one may have `copy_bytes` of copies at a time.
fn pair(copy_bytes: usize) -> (Pair, Slab, FakeDevice) {
    let slab = Slab::new(SlabSettings { name: "send", bytes: copy_bytes, populate: false }).unwrap();
    let mut pair = Pair::new();
    pair.answering.session.set_copy_slab(slab.clone());
    (pair, slab, FakeDevice::default())
}

/// Asks for a tensor and returns once the other end has the request.
fn ask_into(pair: &mut Pair, waiter: u32, destination: Option<Buffer>) -> Handle {
    let params = RequestParams { destination, ..pair.asking.wanting("w", waiter) };
    pair.asking.session.request(pair.asking.now, params).expect("accepted");
    pair.talk();
    pair.answering.asked_one()
}

/// The one answer that came.
fn outcome(pair: &mut Pair) -> Result<Arrived, Unreceived> {
    match pair.asking.events().pop() {
        Some(Event::RequestEnded { outcome, .. }) => outcome,
        other => panic!("not an outcome: {other:?}"),
    }
}

#[test]
fn what_waits_for_memory_leaves_when_there_is_some() {
    // Room for one copy, but not for two.
    let (mut pair, slab, device) = pair(LARGE * 3 / 2);
    let ids: Vec<_> = (0..3).map(|waiter| ask_into(&mut pair, waiter, None)).collect();
    for id in ids {
        pair.answering.answer(id, device.with(&pattern(LARGE)), "w");
    }
    let session = &mut pair.answering.session;
    session.fill(pair.answering.now, false);
    assert_eq!(device.copies().to_host, 1, "there is no room for another");
    assert!(!session.is_urgent() && session.unreleased() == 3, "nothing can be done before the link is");
    pair.talk();
    assert_eq!(pair.asking.answers().len(), 3);
    assert_eq!(pair.answering.released(), [("w", LARGE, true); 3]);
    assert_eq!((slab.in_use_bytes(), device.in_use_bytes(), device.copies().to_host), (0, 0, 3));
    pair.nothing_is_left();
}

#[test]
fn a_tensor_for_which_there_is_never_memory_is_refused_by_the_setting() {
    let (mut pair, _, device) = pair(4096);
    let id = ask_into(&mut pair, 1, None);
    pair.answering.answer(id, device.with(&pattern(LARGE)), "w");
    pair.talk();
    let Err(Unreceived { error, .. }) = outcome(&mut pair) else { panic!("there is no room for it") };
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.to_string().contains("runtime.slab_send_bytes"), "{error}");
    let Some(Event::Released { tensor, taken: false, .. }) = pair.answering.events().pop() else {
        panic!("it is back")
    };
    assert_eq!(tensor.1.device().map(|memory| memory.size()), Some(LARGE), "as it was");
    pair.nothing_is_left();
}

#[test]
fn a_copy_that_fails_ends_its_request_alone() {
    for bytes in [1, 1000, LARGE] {
        let (mut pair, slab, device) = pair(1 << 20);
        let ids: Vec<_> = (0..3).map(|waiter| ask_into(&mut pair, waiter, None)).collect();
        device.fail_after(1, 1);
        for id in ids {
            pair.answering.answer(id, device.with(&pattern(bytes)), "w");
        }
        pair.talk();
        let answers = pair.asking.answers();
        assert_eq!(answers.iter().filter(|(_, answer)| *answer == Ok(pattern(bytes))).count(), 2);
        let failed: Vec<_> = answers.into_iter().filter_map(|(_, answer)| answer.err()).collect();
        assert!(matches!(&failed[..], [why] if why.contains("as the test wants")), "{failed:?}");
        let released = pair.answering.released();
        assert_eq!(released.iter().filter(|(_, _, taken)| *taken).count(), 2);
        assert_eq!((released.len(), slab.in_use_bytes()), (3, 0));
        pair.nothing_is_left();
    }
}

#[test]
fn a_destination_comes_back_with_whatever_ends_its_recv() {
    for bytes in [1000, LARGE] {
        let (mut pair, _, device) = pair(1 << 20);
        // The copy into device memory fails.
        let id = ask_into(&mut pair, 1, Some(device.allocate(LARGE)));
        device.fail_after(0, 1);
        pair.answering.answer(id, pattern(bytes), "w");
        pair.talk();
        let Err(Unreceived { error, destination: Some(place) }) = outcome(&mut pair) else { panic!("it cannot land") };
        assert_eq!((error.code(), place.len()), (Code::Unavailable, LARGE));
        assert_eq!(pair.answering.released(), [("w", bytes, false)], "the producer has it back");
        // Given up while the tensor arrives.
        let params = RequestParams { destination: Some(place), ..pair.asking.wanting("w", 2) };
        let request = pair.asking.session.request(pair.asking.now, params).unwrap();
        pair.talk();
        let id = pair.answering.asked_one();
        pair.answering.answer(id, pattern(bytes), "w");
        let said = pair.answering.speak();
        pair.asking.hear(&said[..said.len() / 2]).unwrap();
        let (_, place) = pair.asking.session.cancel(request).expect("it waits");
        assert_eq!(place.map(|place| place.len()), Some(LARGE), "nothing was written there");
        pair.asking.hear(&said[said.len() / 2..]).unwrap();
        pair.talk();
        let told = pair.answering.events();
        assert!(
            matches!(told[..], [Event::Released { taken: false, .. }, Event::Cancelled(_)]),
            "whoever asks next gets it: {told:?}"
        );
        assert_eq!(device.in_use_bytes(), 0);
        pair.nothing_is_left();
    }
}

#[test]
fn a_link_lost_on_the_way_takes_neither_memory_along() {
    for heard in [0, 1000, 50_000, LARGE] {
        let (mut pair, slab, device) = pair(1 << 20);
        let id = ask_into(&mut pair, 1, Some(device.allocate(LARGE + 1)));
        pair.answering.answer(id, device.with(&pattern(LARGE)), "w");
        let said = pair.answering.speak();
        pair.asking.hear(&said[..heard]).unwrap();
        pair.new_link();
        assert_eq!((pair.asking.slab.in_use_bytes(), slab.in_use_bytes()), (0, 0));
        assert_eq!(device.in_use_bytes(), 2 * LARGE + 1);
        pair.talk();
        let arrived = outcome(&mut pair).expect("it was sent again");
        assert!(arrived.buffer.device().is_some() && bytes_of(&arrived.buffer) == pattern(LARGE));
        assert_eq!(pair.answering.released(), [("w", LARGE, true)]);
        pair.nothing_is_left();
    }
}

#[test]
fn a_link_gets_device_memory_that_it_reaches_as_it_is() {
    let device = FakeDevice::default();
    let export = device.export(1 << 20);
    let reacher = Reacher::new();
    assert_eq!(export.region().reach(reacher), Reach::New);
    export.region().set_reached(reacher);
    let mut pair = Pair::new();
    let traits = Traits { aside: true, reacher: Some(reacher), ..Traits::STREAM };
    for bytes in [INLINE_PAYLOAD_BYTES, INLINE_PAYLOAD_BYTES + 1] {
        for end in [&mut pair.asking, &mut pair.answering] {
            end.session.outbox().set_traits(traits);
        }
        let id = ask_into(&mut pair, 1, export.allocate(bytes));
        pair.answering.answer(id, export.with(&pattern(bytes)).unwrap(), "w");
        let before = device.copies();
        pair.answering.session.fill(pair.answering.now, false);
        let outbox = pair.answering.session.outbox();
        let mut frames = [sealane_runtime::VolatileSlice::empty(); 1];
        outbox.gather_within(&mut frames, usize::MAX);
        let said = frames[0].to_vec();
        outbox.advance(said.len());
        let aside = outbox.take_aside();
        let mut inbound = pair.asking.session.inbound(pair.asking.now, &pair.asking.slab);
        let taken = inbound.frames(&said).unwrap();
        if bytes <= INLINE_PAYLOAD_BYTES {
            assert!(aside.is_none() && taken.landing.is_none(), "it is in its frame");
            let copies = Copies { to_host: before.to_host + 1, from_host: before.from_host + 1 };
            assert_eq!(device.copies(), copies);
        } else {
            let Some(Aside { owner, payload, .. }) = aside else { panic!("it is beside the frames") };
            let mut landing = taken.landing.expect("it has not come yet");
            let kinds = (Some(payload.memory()), landing.memory());
            assert_eq!(kinds.0, kinds.1);
            assert!(payload.host_bytes().is_none() && device.copies() == before, "nothing was copied");
            // Done here as such a link would do it.
            let Place::Buffer(place) = &mut landing.place else { panic!("the consumer's own") };
            payload.copy_to(place, 0..bytes).unwrap();
            landing.advance(bytes);
            landing.is_closed = true;
            inbound.landed(landing);
            pair.answering.session.outbox().give_back(owner, payload);
            pair.answering.session.collect_written();
        }
        let arrived = outcome(&mut pair).expect("a tensor");
        assert!(arrived.buffer.device().is_some() && bytes_of(&arrived.buffer) == pattern(bytes));
        pair.talk();
        assert_eq!(pair.answering.released(), [("w", bytes, true)]);
    }
    pair.nothing_is_left();
}

#[test]
fn a_pull_buffer_in_device_memory_is_written_through_the_host() {
    let device = FakeDevice::default();
    let keys = Arc::new(Keys::new(["large", "small", "fails"]).unwrap());
    let mut both = Both::new();
    let slab = Slab::new(SlabSettings { name: "send", bytes: 1 << 20, populate: false }).unwrap();
    both.there.set_copy_slab(slab.clone());
    let set = both.here.add_set(0, PEER_TASK, keys).unwrap();
    let on_device = |len| Payload::from(device.with(&pattern(len))).into_shared();
    both.store = vec![Entry::of(1, 1, on_device(LARGE)), Entry::new(1, 2, 1000), Entry::of(1, 3, on_device(50_000))];
    let mut pull_buffer = PullBuffer::new(3);
    let lengths = [LARGE, 1000, 50_000];
    lengths.iter().enumerate().for_each(|(index, len)| pull_buffer.set_destination(index, device.allocate(*len + 1)));
    for round in 0..3_u64 {
        let deadline = both.now + Duration::from_secs(60);
        let params = PullParams { set, min_version: 1, deadline, fail_if_gone: false, pull_buffer, waiter: 0 };
        both.here.pull(both.now, params).map_err(|_| ()).unwrap();
        both.forth();
        both.open_and_find();
        // In the second round the last copy into device memory fails, and no link is lost because of it.
        let copies = 5;
        if round == 1 {
            device.fail_after(copies - 1, 1);
        }
        while both.back_once() {}
        let (_, pulled) = both.pulled().expect("all have come or failed");
        for (index, len) in lengths.into_iter().enumerate() {
            match pulled.get(index) {
                Ok(tensor) => {
                    let Payload::Owned(buffer) = tensor.payload() else { panic!("its own memory") };
                    assert!(buffer.device().is_some() && bytes_of(buffer) == pattern(len), "{len} bytes");
                }
                Err(error) => {
                    assert_eq!((round, error.code()), (1, Code::Unavailable), "{error}");
                }
            }
        }
        assert_eq!(pulled.first_error().is_some(), round == 1);
        assert_eq!((slab.in_use_bytes(), both.slab.in_use_bytes()), (0, 0));
        assert_eq!(device.in_use_bytes(), LARGE + 50_000 + lengths.iter().map(|len| len + 1).sum::<usize>());
        pull_buffer = pulled;
    }
}

#[test]
fn pushes_leave_in_order_whatever_copies_fail() {
    let device = FakeDevice::default();
    let mut both = Both::new();
    let slab = Slab::new(SlabSettings { name: "send", bytes: 256 << 10, populate: false }).unwrap();
    both.here.set_copy_slab(slab.clone());
    let deadline = both.now + Duration::from_secs(60);
    let stream = both.here.stream(0, PEER_TASK, "queue").unwrap();
    let lengths = [1, 1000, LARGE, 9000, LARGE, 20, LARGE, 30_000];
    for (number, len) in lengths.into_iter().enumerate() {
        let meta = Meta::from_slice(TensorMeta::new(DType::U8, &[len as u64]).unwrap().as_wire());
        let payload = device.with(&pattern(len)).into();
        let push = PushParams { stream, meta, payload, deadline, pending: number as u32 };
        both.here.push(both.now, push).map_err(|(error, _)| error).unwrap();
    }
    both.forth();
    let opened = both.open_and_find().expect("a stream was opened");
    both.there.grant(opened, Credit { messages: 100, bytes: 10 << 20 });
    // Only the third copy fails.
    device.fail_after(2, 1);
    let (mut came, mut ended, mut rounds) = (Vec::new(), Vec::new(), 0);
    while both.here.requests() > 0 {
        rounds += 1;
        assert!(rounds < 1000, "the pushes do not end");
        both.back_once();
        if rounds == 3 {
            // What was sent and not taken is sent again, without another copy.
            both.new_link();
            both.forth();
            both.open_and_find();
        }
        both.forth_once();
        while let Some(event) = both.there.poll_event() {
            if let Told::Pushed { tensor, .. } = event {
                assert_eq!(tensor.bytes(), pattern(tensor.len()));
                came.push(tensor.len());
            }
        }
        while let Some(Told::PushEnded { pending, outcome, .. }) = both.here.poll_event() {
            ended.push((pending, outcome.map_err(|error: Error| error.code())));
        }
    }
    assert_eq!(came, [1, 1000, 9000, LARGE, 20, LARGE, 30_000]);
    let failed: Vec<_> = ended.iter().filter(|(_, outcome)| outcome.is_err()).collect();
    assert_eq!((failed, ended.len()), (vec![&(2, Err(Code::Unavailable))], lengths.len()));
    assert_eq!((device.copies().to_host, device.in_use_bytes(), slab.in_use_bytes()), (7, 0, 0));
}
