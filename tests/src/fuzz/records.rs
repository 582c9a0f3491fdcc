//! Records in the rings between a client and the daemon: submissions, which the daemon reads, and completions, which the client reads. A
//! record may hold anything.

use sealane_transport::limits::{KEY_BYTES_MAX, META_BYTES_MAX, NAME_BYTES_MAX, REASON_BYTES_MAX};
use sealane_transport::named_rows::NamedRows;
use sealane_transport::shm::limits::{INLINE_BYTES_MAX, NUMBERS_PER_RECORD, RECORD_WORDS_MAX};
use sealane_transport::shm::{
    AcceptedAt, CallList, CallListBuf, Completion, KeyList, Moved, NO_TIMEOUT, PayloadAt, ReceivedAt, Record,
    SmallCall, Span, Submission,
};
use sealane_transport::{Error, Late, Operation, TensorMeta, tensor::DType};

use super::assert_says;

/// Makes the record that an input stands for: kind and words, the last one padded with zeros.
pub(super) fn fill(record: &mut Record, input: &[u8]) {
    let [kind, content @ ..] = input else { return record.set(0, &[]) };
    let mut words = [0; RECORD_WORDS_MAX];
    let mut count = 0;
    for (word, bytes) in words.iter_mut().zip(content.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
        count += 1;
    }
    record.set(*kind, &words[..count]);
}

/// Reads an input as a submission.
pub(super) fn run_submission(input: &[u8]) {
    let mut record = Record::new();
    fill(&mut record, input);
    check_submission(&record);
}

/// Reads an input as a completion.
pub(super) fn run_completion(input: &[u8]) {
    let mut record = Record::new();
    fill(&mut record, input);
    check_completion(&record);
}

/// Reads a submission; it must be within the limits, and read the same once written again.
pub(super) fn check_submission(record: &Record) {
    let submission = match Submission::decode(record) {
        Err(malformed) => return assert_says(&malformed),
        Ok(submission) => submission,
    };
    let fits = |payload: &PayloadAt<'_>| match payload {
        PayloadAt::Inline(bytes) => bytes.len() <= INLINE_BYTES_MAX,
        PayloadAt::Arena(_) => true,
    };
    match &submission {
        Submission::Send { key, meta, payload, .. }
        | Submission::Publish { key, meta, payload, .. }
        | Submission::Push { queue: key, meta, payload, .. } => {
            assert!(key.len() <= KEY_BYTES_MAX && meta.len() <= META_BYTES_MAX && fits(payload));
        }
        Submission::SendMany { calls, .. } | Submission::RecvMany { calls, .. } => check_calls(*calls),
        Submission::Peer { name, .. } => assert!(name.len() <= NAME_BYTES_MAX),
        Submission::Free { tokens } => assert!(tokens.len() <= NUMBERS_PER_RECORD),
        Submission::Abort { reason, .. } => assert!(reason.len() <= REASON_BYTES_MAX),
        Submission::PlanKeys { keys, .. } => assert!(keys.iter().all(|key| key.len() <= KEY_BYTES_MAX)),
        _ => {}
    }
    let mut again = Record::new();
    submission.encode(&mut again).expect("what was read is within the limits");
    assert_eq!(Submission::decode(&again), Ok(submission));
}

/// Checks that every call of a list is within the limits.
fn check_calls(calls: CallList<'_>) {
    assert!(calls.len() <= NUMBERS_PER_RECORD);
    for SmallCall { key, meta, bytes, .. } in calls.iter() {
        assert!(key.len() <= KEY_BYTES_MAX && meta.len() <= META_BYTES_MAX && bytes.len() <= INLINE_BYTES_MAX);
    }
}

/// Reads a completion; it must be within the limits, and read the same once written again.
pub(super) fn check_completion(record: &Record) {
    let completion = match Completion::decode(record) {
        Err(malformed) => return assert_says(&malformed),
        Ok(completion) => completion,
    };
    match &completion {
        Completion::Received { meta, .. } => assert!(meta.len() <= META_BYTES_MAX),
        Completion::Accepted { meta, payload, .. } => {
            assert!(meta.len() <= META_BYTES_MAX);
            assert!(!matches!(payload, AcceptedAt::Inline(bytes) if bytes.len() > INLINE_BYTES_MAX));
        }
        Completion::Arrived { calls } => check_calls(*calls),
        Completion::ArrivedAlone { meta, bytes, .. } => {
            assert!(meta.len() <= META_BYTES_MAX && bytes.len() <= INLINE_BYTES_MAX);
        }
        Completion::Sent { calls } | Completion::Returned { calls } | Completion::Published { calls } => {
            assert!(calls.len() <= NUMBERS_PER_RECORD);
        }
        Completion::Failed { error, .. } | Completion::Missed { error, .. } | Completion::Unopened { error, .. } => {
            assert!(!format!("{error} {error:?}").is_empty());
        }
        _ => {}
    }
    let mut again = Record::new();
    completion.encode(&mut again).expect("what was read is within the limits");
    assert_eq!(Completion::decode(&again), Ok(completion));
}

/// The input that stands for a record.
fn input_of(record: &Record) -> Vec<u8> {
    let words = record.content().iter().flat_map(|word| word.to_le_bytes());
    std::iter::once(record.kind()).chain(words).collect()
}

/// A list of two small calls.
fn list(key: &str, meta: &[u8], bytes: &[u8]) -> CallListBuf {
    let mut calls = CallListBuf::default();
    let small = SmallCall { call: 1, key, meta, bytes };
    assert!(calls.push(small) && calls.push(SmallCall { call: 2, ..small }));
    calls
}

const MOVED: Moved = Moved { tensors: 3, bytes: 1 << 20 };

pub(super) fn submission_seeds() -> Vec<Vec<u8>> {
    let meta = TensorMeta::new(DType::F32, &[2]).expect("a shape");
    let (meta, key, span) = (meta.as_wire(), "dense/kernel", Span { offset: 4096, len: 8 });
    let (inline, arena) = (PayloadAt::Inline(&[7; 8]), PayloadAt::Arena(span));
    let rows = NamedRows::parse(&[1, 0, 5, 0, 4, 0, 0, 0, b't', 2, 5, 0, 0xa7, 2]).expect("three rows");
    let (calls, asked) = (list("dense/kernel", meta, &[7; 8]), list("dense/kernel", &[], &[]));
    let mut packed = Vec::new();
    let keys = KeyList::pack(["w0", "w1"].into_iter(), &mut packed).expect("two keys fit");
    let submissions = [
        Submission::Peer { number: 3, name: "ps0:2222" },
        Submission::Send { call: 1, peer: 0, step: -1, timeout_ms: NO_TIMEOUT, key, meta, payload: inline },
        Submission::Send { call: 1, peer: 0, step: 2, timeout_ms: 5, key, meta, payload: arena },
        Submission::Recv {
            call: 2,
            peer: 1,
            step: 3,
            timeout_ms: 9,
            key,
            destination: Some((span, meta)),
            fused: true,
            fail_if_gone: false,
        },
        Submission::Recv {
            call: 2,
            peer: 1,
            step: 3,
            timeout_ms: 9,
            key,
            destination: None,
            fused: false,
            fail_if_gone: true,
        },
        Submission::SendMany { peer: 0, step: 3, timeout_ms: 9, calls: calls.as_list() },
        Submission::RecvMany { peer: 0, step: 3, timeout_ms: 9, calls: asked.as_list(), fail_if_gone: true },
        Submission::Cancel { call: 5 },
        Submission::Abort { step: 4, reason: "over" },
        Submission::Cleanup { step: 4 },
        Submission::Free { tokens: &[1, 2, 1 << 40] },
        Submission::Detach,
        Submission::Publish { call: 6, version: 7, key, meta, payload: inline, more: true },
        Submission::Commit,
        Submission::Withdraw { key },
        Submission::OpenPlan { plan: 1, peer: 0, keys: 2 },
        Submission::PlanKeys { plan: 1, keys },
        Submission::Pull { call: 8, plan: 1, min_version: 7, timeout_ms: 100, views: false, fail_if_gone: false },
        Submission::Pull { call: 8, plan: 1, min_version: 7, timeout_ms: 100, views: true, fail_if_gone: true },
        Submission::Rows { call: 3, peer: 1, min_version: 2, timeout_ms: 100, rows, views: false, fail_if_gone: true },
        Submission::ClosePlan { plan: 1 },
        Submission::PlanPlace { call: 9, plan: 1, index: 1, span },
        Submission::Push { call: 9, peer: 0, timeout_ms: 1, queue: "gradients", meta, payload: arena },
        Submission::OpenQueue { queue: 1, tensors_max: 8, bytes_max: 1 << 20, name: "gradients" },
        Submission::Grant { queue: 1, tensors: 4, bytes: 1 << 16 },
        Submission::CloseQueue { queue: 1 },
        Submission::Elsewhere { peer: Some(1), sent: MOVED, received: MOVED },
        Submission::Elsewhere { peer: None, sent: MOVED, received: MOVED },
        Submission::PublishedAgain { published: MOVED, copied_bytes: 7, left: MOVED },
    ];
    let mut record = Record::new();
    let seed = |submission: Submission<'_>| {
        submission.encode(&mut record).expect("within the limits");
        input_of(&record)
    };
    submissions.into_iter().map(seed).collect()
}

pub(super) fn completion_seeds() -> Vec<Vec<u8>> {
    let meta = TensorMeta::new(DType::F32, &[2]).expect("a shape");
    let (meta, span) = (meta.as_wire(), Span { offset: 4096, len: 8 });
    let error = Error::unavailable("10.0.0.2:7000", "it disconnected");
    let late = Late {
        operation: Operation::Recv,
        step: 3,
        key: "w0".into(),
        waited: std::time::Duration::from_millis(1500),
        delivery_unknown: true,
        awaited: "10.0.0.2:7000: connection refused".into(),
    };
    let inline = AcceptedAt::Inline(&[7; 8]);
    let calls = list("", meta, &[7; 8]);
    let completions = [
        Completion::Sent { calls: &[1, 2, 3] },
        Completion::ArrivedAlone { call: 1, meta, bytes: &[7; 8] },
        Completion::Arrived { calls: calls.as_list() },
        Completion::Received { call: 1, meta, payload: ReceivedAt::Destination { len: 8 } },
        Completion::Received { call: 1, meta, payload: ReceivedAt::Area { span, token: 9 } },
        Completion::Failed { call: 2, memory_back: true, error: error.clone() },
        Completion::Failed { call: 2, memory_back: false, error: late.into() },
        Completion::Returned { calls: &[4] },
        Completion::Published { calls: &[] },
        Completion::Board { plan: 1, span, token: 5 },
        Completion::Placed { plan: 1, index: 0, meta, span, token: 6 },
        Completion::Viewed { plan: 1, index: 0, meta, arena: 1 << 60, span, token: 6 },
        Completion::ArenaGone { arena: 1 << 60 },
        Completion::Reshaped { plan: 1, index: 1, meta },
        Completion::Missed { plan: 1, index: 1, error: error.clone() },
        Completion::Pulled { call: 3 },
        Completion::Accepted { queue: 1, from: "worker0:2222", meta, payload: inline },
        Completion::Unopened { queue: 1, error },
        Completion::QueueClosed { queue: 1 },
    ];
    let mut record = Record::new();
    let seed = |completion: Completion<'_>| {
        completion.encode(&mut record).expect("within the limits");
        input_of(&record)
    };
    completions.into_iter().map(seed).collect()
}
