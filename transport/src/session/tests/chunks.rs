//! Large tensors travel in chunks: other frames pass them, and a link may end between any two chunks.

use super::*;
use crate::limits::{ANSWER_TRANSFERS_MAX, CHUNKS_AHEAD, TRANSFERS_MAX};
use crate::wire::{Chunk, Response};

pub(super) const CHUNK: usize = 10_000;
/// A little more than ten chunks.
pub(super) const LARGE: usize = 10 * CHUNK + 1;

pub(super) fn limits() -> SessionLimits {
    SessionLimits { chunk_bytes: CHUNK, ..SessionLimits::default() }
}

fn pair() -> Pair {
    Pair { asking: End::with(limits()), answering: End::with(limits()) }
}

/// Takes what the outbox holds, as if the link had written it.
pub(super) fn written<W, D: PartialEq + Clone>(session: &mut Session<W, D>) -> Vec<u8> {
    let outbox = session.outbox();
    let mut slices = [sealane_runtime::VolatileSlice::empty(); 16];
    let count = outbox.gather(&mut slices);
    let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
    outbox.advance(bytes.len());
    session.collect_written();
    bytes
}

impl End {
    /// The bytes of one write.
    fn write(&mut self) -> Vec<u8> {
        self.session.fill(self.now, false);
        written(&mut self.session)
    }
}

/// Requests with these names, received and not answered yet.
fn asked(pair: &mut Pair, names: &[&'static str]) -> Vec<Handle> {
    for (number, name) in names.iter().enumerate() {
        pair.asking.ask(name, number as u32);
    }
    pair.talk();
    pair.answering.asked().into_iter().map(|(asked, _)| asked.id).collect()
}

#[test]
fn a_small_tensor_a_ping_and_a_request_pass_a_large_one() {
    let mut pair = pair();
    let ids = asked(&mut pair, &["large", "small"]);
    pair.answering.answer(ids[0], pattern(LARGE), "large");
    let mut bytes = pair.answering.write();
    pair.answering.answer(ids[1], pattern(64), "small");
    pair.answering.hear(&frames(|w| w.ping(1))).unwrap();
    pair.answering.ask("back", 9);
    bytes.extend(pair.answering.write());
    let chunk = "chunk 10000 of 1";
    assert_eq!(words(&bytes), ["response 100001", chunk, chunk, "pong", chunk, chunk, "response 64", "request back"]);
    pair.asking.hear(&bytes).unwrap();
    let heard = pair.asking.events();
    assert!(matches!(heard[..], [Event::RequestEnded { waiter: 1, .. }, Event::Requested(_)]), "{heard:?}");
}

#[test]
fn a_payload_of_a_chunk_travels_as_one_and_a_byte_more_does_not() {
    for (length, expected) in
        [(CHUNK, vec!["response 10000"]), (CHUNK + 1, vec!["response 10001", "chunk 10000 of 1", "chunk 1 of 1"])]
    {
        let mut pair = pair();
        let ids = asked(&mut pair, &["w"]);
        pair.answering.answer(ids[0], pattern(length), "w");
        let bytes = pair.answering.speak();
        assert_eq!(words(&bytes), expected);
        pair.asking.hear(&bytes).unwrap();
        assert_eq!(pair.asking.answers(), [(0, Ok(pattern(length)))]);
    }
}

#[test]
fn chunks_of_several_take_turns_and_the_rest_waits_its_own() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let mut pair = pair();
    let ids = asked(&mut pair, &names);
    for (id, name) in ids.iter().zip(names) {
        pair.answering.answer(*id, pattern(2 * CHUNK), name);
    }
    let bytes = pair.answering.speak();
    let said = words(&bytes);
    let begun = |said: &[String]| said.iter().filter(|word| word.starts_with("response")).count();
    // The first tensor has its chunks ahead in the outbox when the others begin.
    let together = CHUNKS_AHEAD + ANSWER_TRANSFERS_MAX;
    assert_eq!((begun(&said[..together]), begun(&said[..together + 2])), (ANSWER_TRANSFERS_MAX, ANSWER_TRANSFERS_MAX));
    let chunks = said.iter().filter(|word| word.starts_with("chunk")).skip(CHUNKS_AHEAD).take(ANSWER_TRANSFERS_MAX - 1);
    let expected: Vec<_> = (2..=ANSWER_TRANSFERS_MAX).map(|number| format!("chunk 10000 of {number}")).collect();
    assert_eq!(chunks.collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
    pair.asking.hear(&bytes).unwrap();
    assert_eq!(pair.asking.answers().len(), names.len());
    pair.talk();
    assert_eq!(pair.answering.released().len(), names.len());
    pair.nothing_is_left();
}

#[test]
fn a_link_lost_between_chunks_of_two_tensors_gives_both_their_memory_back() {
    // In the first frame, after it, and between and within chunks of both tensors.
    for heard in [10, 40, 80, 5_000, 10_060, 10_100, 25_000, 4 * CHUNK] {
        let mut pair = pair();
        let own = heap(LARGE);
        let address = own.as_ptr();
        let params = RequestParams { destination: Some(own.into()), ..pair.asking.wanting("own", 0) };
        pair.asking.session.request(pair.asking.now, params).unwrap();
        let ids = {
            pair.asking.ask("slab", 1);
            pair.talk();
            pair.answering.asked().into_iter().map(|(asked, _)| asked.id).collect::<Vec<_>>()
        };
        pair.answering.answer(ids[0], pattern(LARGE), "own");
        pair.answering.answer(ids[1], pattern(LARGE), "slab");
        let bytes = pair.answering.speak();
        pair.asking.hear(&bytes[..heard]).unwrap();
        pair.new_link();
        assert_eq!(pair.asking.slab.in_use_bytes(), 0, "after {heard} bytes");
        pair.talk();
        let mut arrived = 0;
        for event in pair.asking.events() {
            let Event::RequestEnded { waiter, outcome: Ok(tensor) } = event else { panic!("not a tensor: {event:?}") };
            assert_eq!(tensor.buffer[..], pattern(LARGE));
            assert!(waiter != 0 || tensor.buffer.as_ptr() == address, "in the consumer's own memory");
            arrived += 1;
        }
        assert_eq!((arrived, pair.answering.released().len()), (2, 2));
        pair.nothing_is_left();
    }
}

#[test]
fn a_request_given_up_between_chunks_is_read_to_its_end_and_returned() {
    for expires in [false, true] {
        let mut pair = pair();
        let params =
            RequestParams { deadline: pair.asking.now + Duration::from_secs(2), ..pair.asking.wanting("w", 1) };
        let id = pair.asking.session.request(pair.asking.now, params).unwrap();
        pair.talk();
        let asked = pair.answering.asked_one();
        pair.answering.answer(asked, pattern(LARGE), "w");
        let first = pair.answering.write();
        pair.asking.hear(&first).unwrap();
        if expires {
            pair.asking.now += Duration::from_secs(3);
            pair.asking.session.handle_timeout(pair.asking.now).unwrap();
            assert!(matches!(&pair.asking.answers()[..], [(1, Err(_))]));
        } else {
            assert!(pair.asking.session.cancel(id).is_some());
        }
        pair.talk();
        assert!(matches!(&pair.answering.events()[..], [Event::Cancelled(_), Event::Released { taken: false, .. }]));
        pair.nothing_is_left();
    }
}

#[test]
fn a_farewell_waits_for_the_last_chunk_and_the_end_of_asking_does_not() {
    let mut pair = pair();
    let ids = asked(&mut pair, &["w"]);
    pair.new_link();
    pair.asking.session.fill(pair.asking.now, false);
    let again = written(&mut pair.asking.session);
    pair.answering.hear(&again).unwrap();
    let ids = pair.answering.asked().into_iter().map(|(asked, _)| asked.id).chain(ids).collect::<Vec<_>>();
    pair.answering.answer(ids[0], pattern(LARGE), "w");
    pair.answering.session.go_away("done");
    let said = words(&pair.answering.speak());
    assert_eq!(said.last().map(String::as_str), Some("go away"));
    let resumed = said.iter().position(|word| word == "resumed").expect("it is said");
    assert!(resumed < said.len() - 5, "{said:?}");
}

#[test]
fn chunks_that_cannot_be_end_the_link_and_are_named() {
    let transfer = |transfer, payload_bytes, number: u64| Response {
        id: Handle::from_bits(8 << 32 | number),
        token: Handle::from_bits(1 << 32 | number),
        payload_bytes,
        transfer,
        meta: &[],
    };
    let begin = |number: u16| frames(|w| w.response(&transfer(number, 20, u64::from(number))));
    let chunk = |transfer, bytes| frames(|w| w.chunk(Chunk { transfer, bytes }));
    let past = TRANSFERS_MAX as u16 + 1;
    let cases = [
        (chunk(1, 10), "transfer of a chunk is 1"),
        (chunk(0, 10), "transfer of a chunk is 0"),
        ([begin(1), chunk(2, 10)].concat(), "transfer of a chunk is 2"),
        ([begin(1), chunk(1, 0)].concat(), "length of a chunk is 0"),
        ([begin(1), chunk(1, 21)].concat(), "length of a chunk is 21"),
        ([begin(1), chunk(1, u64::MAX)].concat(), "length of a chunk is 18446744073709551615"),
        ([begin(1), chunk(1, 15), vec![0; 15], chunk(1, 6)].concat(), "length of a chunk is 6"),
        ([begin(1), chunk(1, 20), vec![0; 20], chunk(1, 1)].concat(), "transfer of a chunk is 1"),
        ([begin(1), begin(1)].concat(), "transfer that begins is 1"),
        (begin(past), "transfer that begins is 9"),
        (frames(|w| w.response(&transfer(3, 0, 3))), "length of a payload in chunks is 0"),
    ];
    for (bytes, message) in cases {
        assert_eq!(End::new().hear(&bytes).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_tensor_sent_twice_at_once_ends_the_link_and_the_consumers_memory_stays() {
    let mut asking = End::with(limits());
    let own = heap(20);
    let address = own.as_ptr();
    let params = RequestParams { destination: Some(own.into()), ..asking.wanting("w", 1) };
    let id = asking.session.request(asking.now, params).unwrap();
    let token = |number: u64| Handle::from_bits(1 << 32 | number);
    let begin = |transfer: u16| Response { id, token: token(transfer.into()), payload_bytes: 20, transfer, meta: &[] };
    asking.hear(&frames(|w| w.response(&begin(1)))).unwrap();
    let error = asking.hear(&frames(|w| w.response(&begin(2)))).unwrap_err();
    assert!(error.to_string().starts_with("handle of a tensor that is on its way already"), "{error}");
    asking.lose_link();
    assert_eq!(asking.slab.in_use_bytes(), 0);
    asking.attach();
    asking.speak();
    asking.hear(&frames(|w| w.response(&Response { transfer: 0, ..begin(0) }))).unwrap();
    asking.hear(&pattern(20)).unwrap();
    let events = asking.events();
    let [Event::RequestEnded { outcome: Ok(arrived), .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!(arrived.buffer.as_ptr(), address);
}
