//! Completions written to a record read the same; records that hold anything else are refused.

use std::time::Duration;

use super::{AcceptedAt, Completion, ReceivedAt};
use crate::{
    error::{Error, Late, Operation},
    limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX},
    shm::{
        CallList, CallListBuf, Record, SmallCall, Span,
        attach::VERSION,
        codec::damage,
        limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD, RECORD_WORDS_MAX},
    },
};

fn through(completion: &Completion<'_>) -> Record {
    let mut record = Record::new();
    record.set(0xff, &[u64::MAX; RECORD_WORDS_MAX]);
    completion.encode(&mut record).unwrap();
    assert_eq!(Completion::decode(&record).as_ref(), Ok(completion));
    record
}

fn received(meta: &[u8], payload: ReceivedAt) -> Completion<'_> {
    Completion::Received { call: u32::MAX, meta, payload }
}

fn accepted<'a>(from: &'a str, meta: &'a [u8], payload: AcceptedAt<'a>) -> Completion<'a> {
    Completion::Accepted { queue: u32::MAX, from, meta, payload }
}

fn errors() -> Vec<Error> {
    let (task, reason) = ("worker:1".into(), "of a reason");
    vec![
        Error::NotFound { task, reason: reason.into() },
        Error::unavailable("10.0.0.1:7000", reason),
        Error::Left { task: "worker:1".into(), reason: reason.into() },
        Error::from(Late {
            operation: Operation::Recv,
            step: -9,
            key: "grad/fc1".into(),
            waited: Duration::new(u64::MAX, 999_999_999),
            delivery_unknown: true,
            awaited: reason.into(),
        }),
        Error::late(Operation::Send, 9, "", Duration::from_millis(1), ""),
        Error::late(Operation::Push, 0, "q", Duration::ZERO, reason),
        Error::TimedOut { reason: reason.into() },
        Error::Aborted { step: i64::MIN, reason: reason.into() },
        Error::full("limits.pending_sends_max", reason),
        Error::invalid("ungültig"),
        Error::PermissionDenied { reason: reason.into() },
        Error::Unimplemented { reason: reason.into() },
    ]
}

/// Passes records of every kind to `look`, one after the other.
fn each(look: &mut dyn FnMut(&Completion<'_>)) {
    let (plan, index, calls) = (u32::MAX, 7, &[0x8000_0001, 2, 3]);
    let (span, token) = (Span { offset: 1 << 50, len: 3 }, u64::MAX);
    let (inline, destination) = (AcceptedAt::Inline(b"abc"), ReceivedAt::Destination { len: u64::MAX });
    let area = AcceptedAt::Area { span, token };
    let mut arrived = CallListBuf::default();
    let small = SmallCall { call: u32::MAX, key: "", meta: b"of it", bytes: b"abc" };
    assert!(arrived.push(small) && arrived.push(SmallCall { call: 3, meta: &[], bytes: &[], ..small }));
    for completion in [
        Completion::Sent { calls },
        Completion::Sent { calls: &[] },
        Completion::Returned { calls },
        Completion::Published { calls },
        Completion::ArrivedAlone { call: u32::MAX, meta: b"of it", bytes: b"abc" },
        Completion::Arrived { calls: arrived.as_list() },
        Completion::Arrived { calls: CallList::default() },
        received(b"of it", destination),
        received(b"of it", ReceivedAt::Area { span, token }),
        received(b"of it", ReceivedAt::Lending { span, token }),
        Completion::Board { plan, span, token },
        Completion::Placed { plan, index, meta: b"of it", span, token },
        Completion::Reshaped { plan, index, meta: b"of it" },
        Completion::Viewed { plan, index, meta: b"of it", arena: u64::MAX - 1, span, token },
        Completion::ArenaGone { arena: u64::MAX - 1 },
        Completion::Pulled { call: u32::MAX },
        Completion::Draining,
        Completion::QueueClosed { queue: u32::MAX },
        accepted("worker:17", b"of it", inline),
        accepted("worker:17", b"of it", area),
        accepted("", &[], area),
    ] {
        look(&completion);
    }
    for error in errors() {
        look(&Completion::Failed { call: 3, memory_back: false, error: error.clone() });
        look(&Completion::Failed { call: 3, memory_back: true, error: error.clone() });
        look(&Completion::Unopened { queue: u32::MAX, error: error.clone() });
        look(&Completion::Missed { plan: 3, index: u32::MAX, error });
    }
}

#[test]
fn every_kind_comes_out_as_it_went_in() {
    each(&mut |completion| drop(through(completion)));
    let calls: Vec<u32> = (0..NUMBERS_PER_RECORD as u32).map(|call| call << 20).collect();
    through(&Completion::Published { calls: &calls });
    let (span, token, meta) = (Span { offset: 1 << 50, len: 3 }, u64::MAX, &[1; META_BYTES_MAX]);
    through(&received(meta, ReceivedAt::Area { span, token }));
    for payload in [AcceptedAt::Inline(&[3; INLINE_BYTES_MAX]), AcceptedAt::Area { span, token }] {
        through(&accepted(&"n".repeat(NAME_BYTES_MAX), meta, payload));
    }
    through(&Completion::Placed { plan: 1, index: 2, meta, span, token });
    through(&Completion::Viewed { plan: 1, index: 2, meta, arena: u64::MAX, span, token });
    through(&Completion::Reshaped { plan: 1, index: 2, meta });
    let subject = "k".repeat(KEY_BYTES_MAX);
    through(&Completion::Missed { plan: 3, index: u32::MAX, error: Error::unavailable(&subject, "of a reason") });
}

#[test]
fn records_keep_their_layout_of_version_22() {
    let mut lines = include_str!("version_22.txt").lines();
    each(&mut |completion| assert_eq!(through(completion).hex(), lines.next().unwrap(), "{completion:?}"));
    assert_eq!((lines.next(), VERSION), (None, 22));
}

#[test]
fn small_tensor_needs_two_lines() {
    const WORDS_OF_TWO_LINES: usize = 15;
    let (span, token) = (Span { offset: 1 << 30, len: 64 }, 1 << 32);
    let placed = Completion::Placed { plan: 1, index: 2, meta: &[1; 32], span, token };
    assert!(through(&placed).content().len() <= WORDS_OF_TWO_LINES);
    let mut arrived = CallListBuf::default();
    assert!(arrived.push(SmallCall { call: 1, key: "", meta: &[1; 16], bytes: &[2; 64] }));
    assert!(through(&Completion::Arrived { calls: arrived.as_list() }).content().len() <= WORDS_OF_TWO_LINES);
    let accepted = accepted("worker17.train.local:222", &[1; 16], AcceptedAt::Inline(&[2; 64]));
    assert!(through(&accepted).content().len() <= WORDS_OF_TWO_LINES);
}

#[test]
fn a_long_reason_is_cut_and_an_unnumbered_operation_is_a_call() {
    let mut record = Record::new();
    let mut arrives = |error| {
        Completion::Failed { call: 0, memory_back: true, error }.encode(&mut record).unwrap();
        match Completion::decode(&record) {
            Ok(Completion::Failed { error, .. }) => error,
            other => panic!("{other:?}"),
        }
    };
    let long = "é".repeat(REASON_BYTES_MAX);
    assert_eq!(arrives(Error::invalid(long.clone())), Error::invalid(&long[..REASON_BYTES_MAX]));
}

#[test]
fn what_is_too_long_is_not_encoded() {
    let mut record = Record::new();
    let (key, name) = ("k".repeat(KEY_BYTES_MAX + 1), "n".repeat(NAME_BYTES_MAX + 1));
    for (completion, what) in [
        (received(&[0; META_BYTES_MAX + 1], ReceivedAt::Destination { len: 0 }), "metadata"),
        (Completion::ArrivedAlone { call: 0, meta: &[], bytes: &[0; INLINE_BYTES_MAX + 1] }, "inline payload"),
        (Completion::Sent { calls: &[0; NUMBERS_PER_RECORD + 1] }, "calls"),
        (Completion::Returned { calls: &[0; NUMBERS_PER_RECORD + 1] }, "calls"),
        (Completion::Failed { call: 0, memory_back: true, error: Error::unavailable(&key, "") }, "subject"),
        (Completion::Missed { plan: 0, index: 0, error: Error::unavailable(&key, "") }, "subject"),
        (Completion::Reshaped { plan: 0, index: 0, meta: &[0; META_BYTES_MAX + 1] }, "metadata"),
        (accepted("", &[0; META_BYTES_MAX + 1], AcceptedAt::Inline(&[])), "metadata"),
        (accepted("", &[], AcceptedAt::Inline(&[0; INLINE_BYTES_MAX + 1])), "inline payload"),
        (accepted(&name, &[], AcceptedAt::Inline(&[])), "name"),
        (Completion::Unopened { queue: 0, error: Error::unavailable(&key, "") }, "subject"),
    ] {
        assert_eq!(completion.encode(&mut record).unwrap_err().what, what);
    }
}

#[test]
fn damaged_records_are_refused_or_read_as_something_else() {
    each(&mut |completion| {
        damage(&through(completion), &mut |record| {
            let read = Completion::decode(record).map_err(|malformed| malformed.what)?;
            let mut again = Record::new();
            read.encode(&mut again).unwrap();
            assert_eq!(Completion::decode(&again).as_ref(), Ok(&read));
            Ok(())
        });
    });
    let mut record = Record::new();
    let mut refused = |kind, content: &[u64]| {
        record.set(kind, content);
        Completion::decode(&record).unwrap_err().what
    };
    for kind in [0, 19, u8::MAX] {
        assert_eq!(refused(kind, &[0; 4]), "an unknown kind of completion");
    }
    assert_eq!(refused(17, &[0, 1 | 1 << 16, 1 << 32 | 7, b'k' as u64]), "a list of calls");
    assert_eq!(refused(17, &[0, 1 | 1 << 16, 1 << 32 | 7, (b'k' as u64) << 32]), "keys of calls that are known");
    assert_eq!(refused(1, &[257, 0]), "calls");
    assert_eq!(refused(3, &[0; 5]), "an unknown error code");
    assert_eq!(refused(3, &[0, 0, 0, 1_000_000_000, 4]), "nanoseconds");
    assert_eq!(refused(3, &[0, 0, 0, 9 << 32, 4]), "subject");
    assert_eq!(refused(3, &[0, 0, 0, 9 << 48, 4]), "reason");
    assert_eq!(refused(3, &[2 << 32, 0, 0, 0, 4]), "neither true nor false");
}
