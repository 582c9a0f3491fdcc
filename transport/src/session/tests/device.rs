//! Tensors in device memory: copied through host memory for links that cannot reach it, within the limit on such copies.

use std::sync::Arc;

use super::passing::{Both, Entry};
use super::*;
use crate::error::{Code, Error};
use crate::fake_device::{FakeDevice, bytes_of};
use crate::pull_buffer::{Keys, PullBuffer};
use crate::session::{Credit, Event as Told};

const LARGE: usize = 100_000;

/// Two ends; the answering one may have `copy_bytes` of copies at a time.
fn pair(copy_bytes: usize) -> (Pair, Slab, FakeDevice) {
    let slab = Slab::new(SlabSettings { name: "send", bytes: copy_bytes, populate: false }).unwrap();
    let mut pair = Pair::new();
    pair.answering.session.set_copy_slab(slab.clone());
    (pair, slab, FakeDevice::default())
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
    let ids: Vec<_> = (0..3).map(|waiter| pair.asked("w", waiter)).collect();
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
    let id = pair.asked("w", 1);
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
        both.pull(set, 1, pull_buffer, 0);
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
    let stream = both.here.stream(0, PEER_TASK, "queue").unwrap();
    let lengths = [1, 1000, LARGE, 9000, LARGE, 20, LARGE, 30_000];
    for (number, len) in lengths.into_iter().enumerate() {
        both.push(stream, device.with(&pattern(len)).into(), number as u32);
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
