//! Submissions written to a record read the same; records that hold anything else are refused.

use super::{KeyList, NO_TIMEOUT, PayloadAt, Submission};
use crate::named_rows::NamedRows;
use crate::shm::{CallList, CallListBuf, Moved, SmallCall};
use crate::{
    limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX},
    shm::{
        Record, Span,
        attach::VERSION,
        codec::damage,
        limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD, RECORD_WORDS_MAX},
    },
};

fn through(submission: &Submission<'_>) -> Record {
    // Not cleared before, so that words that were not written are noticed.
    let mut record = Record::new();
    record.set(0xff, &[u64::MAX; RECORD_WORDS_MAX]);
    submission.encode(&mut record).unwrap();
    assert_eq!(Submission::decode(&record).as_ref(), Ok(submission));
    record
}

fn send<'a>(key: &'a str, meta: &'a [u8], payload: PayloadAt<'a>) -> Submission<'a> {
    Submission::Send { call: 0x8000_0001, peer: 0xfffe, step: -1, timeout_ms: 1234, key, meta, payload }
}

fn recv(key: &str, destination: Option<Span>) -> Submission<'_> {
    let (step, timeout_ms, fused) = (i64::MIN, NO_TIMEOUT, false);
    let destination = destination.map(|span| (span, &[][..]));
    Submission::Recv { call: u32::MAX, peer: 1, step, timeout_ms, key, destination, fused, fail_if_gone: false }
}

fn pull(timeout_ms: u32, views: bool, fail_if_gone: bool) -> Submission<'static> {
    Submission::Pull { call: u32::MAX, plan: 7, min_version: i64::MIN, timeout_ms, views, fail_if_gone }
}

fn publish<'a>(key: &'a str, meta: &'a [u8], payload: PayloadAt<'a>) -> Submission<'a> {
    Submission::Publish { call: 0x8000_0001, version: -1, key, meta, payload, more: true }
}

fn push<'a>(queue: &'a str, meta: &'a [u8], payload: PayloadAt<'a>) -> Submission<'a> {
    Submission::Push { call: 0x8000_0001, peer: 0xfffe, timeout_ms: 1234, queue, meta, payload }
}

fn many(calls: CallList<'_>, fail_if_gone: bool) -> Submission<'_> {
    Submission::RecvMany { peer: 0xfffe, step: -1, timeout_ms: 5, calls, fail_if_gone }
}

const SPAN: Span = Span { offset: 1 << 40, len: u64::MAX };

/// Passes records of every kind to `look`, one after the other.
fn each(look: &mut dyn FnMut(&Submission<'_>)) {
    let mut packed = Vec::new();
    let keys = KeyList::pack(["w", "", "ключ"].into_iter(), &mut packed).unwrap();
    let rows = NamedRows::parse(&[1, 0, 5, 0, 4, 0, 0, 0, b'w', 2, 5, 0, 0xa7, 2]).unwrap();
    let of_rows = |views, fail_if_gone| Submission::Rows {
        call: 9,
        peer: 3,
        min_version: -2,
        timeout_ms: 5,
        rows,
        views,
        fail_if_gone,
    };
    let mut calls = CallListBuf::default();
    assert!(
        [(1, "w", &[1, 2, 3][..]), (u32::MAX, "ключ", &[]), (0, "", &[9; 24])]
            .into_iter()
            .all(|(call, key, bytes)| { calls.push(SmallCall { call, key, meta: &bytes[..bytes.len() / 3], bytes }) })
    );
    let list = calls.as_list();
    let mut asked = CallListBuf::default();
    assert!(
        [(1, "w"), (u32::MAX, "ключ")]
            .into_iter()
            .all(|(call, key)| { asked.push(SmallCall { call, key, meta: &[], bytes: &[] }) })
    );
    let fused = |destination| {
        let (call, peer, step, timeout_ms, key) = (1, 2, 3, 4, "grad/fc1");
        Submission::Recv { call, peer, step, timeout_ms, key, destination, fused: true, fail_if_gone: true }
    };
    for submission in [
        Submission::Peer { number: u16::MAX, name: "worker7.example:2222" },
        Submission::Peer { number: 0, name: "" },
        send("w", &[1, 2, 3], PayloadAt::Inline(b"abc")),
        send("", &[], PayloadAt::Inline(&[])),
        send("ключ", &[9; 24], PayloadAt::Arena(SPAN)),
        recv("grad/fc1", None),
        recv("grad/fc1", Some(SPAN)),
        fused(None),
        fused(Some((SPAN, &[9; 24][..]))),
        publish("w", &[1, 2, 3], PayloadAt::Inline(b"abc")),
        publish("ключ", &[9; 24], PayloadAt::Arena(SPAN)),
        Submission::Publish {
            call: 1,
            version: i64::MAX,
            key: "",
            meta: &[],
            payload: PayloadAt::Arena(SPAN),
            more: false,
        },
        many(asked.as_list(), false),
        many(CallList::default(), true),
        Submission::SendMany { peer: 9, step: i64::MIN, timeout_ms: NO_TIMEOUT, calls: list },
        Submission::Commit,
        Submission::Withdraw { key: "w" },
        Submission::OpenPlan { plan: u32::MAX, peer: u16::MAX, keys: u32::MAX },
        Submission::PlanKeys { plan: u32::MAX, keys },
        pull(NO_TIMEOUT, false, false),
        pull(5, true, false),
        pull(5, false, true),
        of_rows(false, false),
        of_rows(false, true),
        of_rows(true, false),
        Submission::ClosePlan { plan: u32::MAX },
        Submission::PlanPlace { call: u32::MAX, plan: 7, index: 9, span: SPAN },
        push("grads", &[1, 2, 3], PayloadAt::Inline(b"abc")),
        push("", &[], PayloadAt::Arena(SPAN)),
        Submission::OpenQueue { queue: u32::MAX, tensors_max: 7, bytes_max: u64::MAX, name: "grads" },
        Submission::OpenQueue { queue: 0, tensors_max: u32::MAX, bytes_max: 0, name: "" },
        Submission::Grant { queue: u32::MAX, tensors: u32::MAX, bytes: u64::MAX },
        Submission::CloseQueue { queue: u32::MAX },
        Submission::Cancel { call: 77 },
        Submission::Abort { step: -5, reason: "the loss is not a number" },
        Submission::Cleanup { step: i64::MAX },
        Submission::Free { tokens: &[] },
        Submission::Free { tokens: &[1, u64::MAX] },
        Submission::Elsewhere { peer: Some(u16::MAX), sent: MOVED, received: Moved::default() },
        Submission::Elsewhere { peer: None, sent: Moved::default(), received: MOVED },
        Submission::Direct { peer: 7, sent: MOVED, received: Moved::default() },
        Submission::PublishedAgain { published: MOVED, copied_bytes: u64::MAX, left: Moved::default() },
        Submission::Detach,
    ] {
        look(&submission);
    }
}

const MOVED: Moved = Moved { tensors: u64::MAX, bytes: 7 };

#[test]
fn records_keep_their_layout_of_version_22() {
    let mut lines = include_str!("version_22.txt").lines();
    each(&mut |submission| assert_eq!(through(submission).hex(), lines.next().unwrap(), "{submission:?}"));
    assert_eq!((lines.next(), VERSION), (None, 22));
}

#[test]
fn what_is_common_needs_two_lines() {
    const WORDS_OF_TWO_LINES: usize = 15;
    let key = "k".repeat(96);
    let small = through(&send(&key[..16], &[7; 16], PayloadAt::Inline(&[5; 64])));
    assert_eq!(small.content().len(), WORDS_OF_TWO_LINES);
    assert!(through(&send(&key[..63], &[7; 16], PayloadAt::Arena(SPAN))).content().len() <= WORDS_OF_TWO_LINES);
    assert_eq!(through(&recv(&key, None)).content().len(), WORDS_OF_TWO_LINES);
    assert_eq!(through(&recv(&key[..80], Some(SPAN))).content().len(), WORDS_OF_TWO_LINES);
}

#[test]
fn the_largest_fit_and_one_more_does_not() {
    let (key, name) = ("k".repeat(KEY_BYTES_MAX + 1), "n".repeat(NAME_BYTES_MAX + 1));
    let (meta, inline) = ([1; META_BYTES_MAX + 1], [2; INLINE_BYTES_MAX + 1]);
    let (key_fits, meta_fits, inline_fits) =
        (&key[..KEY_BYTES_MAX], &meta[..META_BYTES_MAX], &inline[..INLINE_BYTES_MAX]);
    through(&send(key_fits, meta_fits, PayloadAt::Inline(inline_fits)));
    through(&send(key_fits, meta_fits, PayloadAt::Arena(SPAN)));
    through(&recv(key_fits, Some(SPAN)));
    through(&publish(key_fits, meta_fits, PayloadAt::Inline(inline_fits)));
    through(&push(key_fits, meta_fits, PayloadAt::Inline(inline_fits)));
    through(&Submission::OpenQueue { queue: 1, tensors_max: 1, bytes_max: 1, name: key_fits });
    let mut packed = Vec::new();
    let keys = KeyList::pack([key_fits].into_iter(), &mut packed).unwrap();
    through(&Submission::PlanKeys { plan: 1, keys });
    through(&Submission::Peer { number: 0, name: &name[..NAME_BYTES_MAX] });
    through(&Submission::Free { tokens: &[1 << 40; NUMBERS_PER_RECORD] });

    let mut record = Record::new();
    for (submission, what) in [
        (send(&key, &[], PayloadAt::Inline(&[])), "key"),
        (send("", &meta, PayloadAt::Arena(SPAN)), "metadata"),
        (send("", &[], PayloadAt::Inline(&inline)), "inline payload"),
        (recv(&key, None), "key"),
        (publish(&key, &[], PayloadAt::Inline(&[])), "key"),
        (Submission::Withdraw { key: &key }, "key"),
        (push(&key, &[], PayloadAt::Inline(&[])), "key"),
        (Submission::OpenQueue { queue: 1, tensors_max: 1, bytes_max: 1, name: &key }, "name"),
        (Submission::Peer { number: 0, name: &name }, "name"),
        (Submission::Free { tokens: &[0; NUMBERS_PER_RECORD + 1] }, "tokens"),
    ] {
        let error = submission.encode(&mut record).unwrap_err();
        assert_eq!((error.what, error.len), (what, error.limit + 1));
        assert!(error.to_string().starts_with(what));
    }
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let reason = "é".repeat(REASON_BYTES_MAX);
    let mut record = Record::new();
    Submission::Abort { step: 1, reason: &format!("a{reason}") }.encode(&mut record).unwrap();
    let Ok(Submission::Abort { step: 1, reason: cut }) = Submission::decode(&record) else { panic!("{record:?}") };
    assert_eq!(cut.len(), REASON_BYTES_MAX - 1);
}

#[test]
fn a_text_of_any_length_ends_where_it_ends() {
    for len in 0..=70 {
        for key in ["k".repeat(len), format!("{}é", "k".repeat(len))] {
            through(&recv(&key, None));
            through(&recv(&key, Some(SPAN)));
            through(&send(&key, &[0xff; 3], PayloadAt::Inline(&[0xff; 5])));
            // The name's last byte is followed by the zeros that pad the content, which do not continue a character.
            let mut record = through(&Submission::Peer { number: 1, name: &key });
            let mut content = record.content().to_vec();
            if key.len() > len {
                content[0] -= 1 << 16;
                content.truncate(1 + (len + 1).div_ceil(8));
                record.set(record.kind(), &content);
                assert_eq!(Submission::decode(&record).unwrap_err().what, "name", "half a character, {len} bytes");
            }
        }
    }
}

#[test]
fn damaged_records_are_refused_or_read_as_something_else() {
    each(&mut |submission| {
        damage(&through(submission), &mut |record| {
            let read = Submission::decode(record).map_err(|malformed| malformed.what)?;
            let mut again = Record::new();
            read.encode(&mut again).unwrap();
            assert_eq!(Submission::decode(&again).as_ref(), Ok(&read));
            Ok(())
        });
    });
    let mut record = Record::new();
    for kind in [0, 27, u8::MAX] {
        record.set(kind, &[0; 4]);
        assert_eq!(Submission::decode(&record).unwrap_err().what, "an unknown kind of submission");
    }
}

#[test]
fn lists_that_do_not_add_up_are_refused() {
    let mut record = Record::new();
    let mut refused = |kind, content: &[u64]| {
        record.set(kind, content);
        Submission::decode(&record).unwrap_err().what
    };
    // A list: the number of calls, the length of all keys and of all data; each call's head; the data; the keys.
    let head = |key: u64, meta: u64, inline: u64| [1 | key << 32 | meta << 48, inline];
    let list = |count: u64, keys: u64, data: u64| count | keys << 16 | data << 32;
    let mut refused_list = |list: u64, head: [u64; 2], rest: &[u64]| {
        let content = [&[0, 0, list, head[0], head[1]], rest].concat();
        let of_sends = refused(25, &content);
        assert_eq!(refused(26, &[&[0], &content[..]].concat()), of_sends);
        of_sends
    };
    assert_eq!(refused_list(list(9, 0, 0), head(0, 0, 0), &[]), "calls");
    assert_eq!(refused_list(list(257, 0, 0), head(0, 0, 0), &[0; 800]), "calls");
    assert_eq!(refused_list(list(1, 0, 99), head(0, 0, 99), &[0; 5]), "data of calls");
    assert_eq!(refused_list(list(1, 99, 0), head(99, 0, 0), &[0; 5]), "keys of calls");
    assert_eq!(refused_list(list(1, 1, 0), head(1, 0, 0xff << 32), &[]), "keys of calls", "no text");
    for (list, head) in [
        (list(1, 2, 0), head(1, 0, 0)),
        (list(1, 1, 0), head(2, 0, 0)),
        (list(1, 0, 3), head(0, 1, 1)),
        (list(1, 0, 2), head(0, 2, 1)),
        (list(0, 1, 0), head(0, 0, 0)),
        (list(1, 4097, 0), head(4097, 0, 0)),
        (list(1, 0, 513), head(0, 0, 513)),
        (list(1, 0, 2113), head(0, 2113, 0)),
    ] {
        assert_eq!(refused_list(list, head, &[0; 520]), "a list of calls");
    }
    // Two keys, where the first one's end splits a character.
    let two = [0, 0, list(2, 2, 0), head(1, 0, 0)[0], 1 << 32, 1 << 0, 0xa9c3];
    assert_eq!(refused(25, &two), "a list of calls");
    let [first, second] = head(0, 1, 0);
    assert_eq!(refused(26, &[0, 0, 0, list(1, 0, 1), first, second]), "data of calls that ask");
    for count in [2, 257, 0xffff] {
        assert_eq!(refused(7, &[count, 0]), "tokens");
    }
    assert!(Submission::decode(&record).unwrap_err().to_string().contains("tokens"));
}
