//! Frames made up by a hostile peer: every kind, with numbers that may well exist.

use sealane_transport::if_gone::IfGone;
use sealane_transport::limits::TRANSFERS_MAX;
use sealane_transport::named_rows::NamedRowsBuf;
use sealane_transport::wire::{
    Abort, Chunk, Failure, FrameWriter, GoAway, Part, Pull, PullFailure, Push, PushFailure, PushGrant, PushOpen,
    PushWant, Request, Response, RowRequest,
};
use sealane_transport::{Handle, Meta};

use super::script::Script;

/// Keys and queue names that both sides use.
pub(super) const KEYS: [&str; 4] = ["w0", "w1", "dense/kernel", ""];

/// Number of frame kinds that [`forge`] knows.
pub(super) const KINDS: usize = 31;
/// Most entries of a frame that has several.
const ENTRIES_MAX: usize = 5;
/// Longest made-up payload, metadata or text, in bytes.
const FIELD_BYTES_MAX: usize = 300;

/// Metadata of a vector of `bytes` bytes.
pub(super) fn vector(bytes: u64) -> Meta {
    let mut meta = Meta::from_slice(&[1, 8, 1, 0, 0, 1, 0, 0]);
    meta.extend_from_slice(&bytes.to_le_bytes());
    meta
}

/// A handle, most often one of the first that an arena gives out.
fn handle(script: &mut Script<'_>) -> Handle {
    let of = |index: u8, generation: u8| Handle::from_bits(u64::from(generation) << 32 | u64::from(index));
    match script.byte() {
        near @ 0..=159 => of(near & 3, (near >> 2 & 1) + 1),
        far @ 160..=223 => of(far & 15, (far >> 4 & 3) + 1),
        _ => Handle::from_bits(script.number()),
    }
}

/// A transfer number: none, one of the first, or past the limit.
fn transfer(script: &mut Script<'_>) -> u16 {
    script.one_of(&[0, 0, 0, 1, 1, 1, 2, TRANSFERS_MAX as u16, TRANSFERS_MAX as u16 + 1])
}

/// Text of a key, a reason or a queue's name.
fn text<'a>(script: &mut Script<'a>) -> &'a str {
    match script.below(KEYS.len() + 1) {
        known if known < KEYS.len() => KEYS[known],
        _ => std::str::from_utf8(script.bytes(FIELD_BYTES_MAX)).unwrap_or("no text"),
    }
}

/// Length of a payload: one that tensors have, or any.
fn payload_bytes(script: &mut Script<'_>) -> u64 {
    if script.yes() { script.one_of(&[0, 5, 600, 9_000, 12_288, 20_000, 50_000, 96 * 1024]) } else { script.number() }
}

/// Metadata: of a vector of that length, or any bytes.
fn meta(script: &mut Script<'_>, payload_bytes: u64) -> Meta {
    if script.below(4) == 0 { Meta::from_slice(script.bytes(FIELD_BYTES_MAX)) } else { vector(payload_bytes) }
}

/// Writes a frame of kind `kind` (below [`KINDS`]) to `out`, most often with the payload that follows such a frame.
pub(super) fn forge(kind: usize, script: &mut Script<'_>, out: &mut Vec<u8>) {
    let writer = &mut FrameWriter(out);
    match kind {
        0 => {
            let (id, step, timeout_ms) = (handle(script), script.number() as i64, script.byte().into());
            let (consumer, producer) = (script.below(3) as u16, script.below(3) as u16);
            let if_gone = match script.below(3) {
                0 => IfGone::Fails { attachment: script.byte().into() },
                _ => IfGone::Waits,
            };
            writer.request(&Request { id, step, timeout_ms, consumer, producer, if_gone, key: text(script) });
        }
        1 => {
            let (id, token, payload_bytes) = (handle(script), handle(script), payload_bytes(script));
            let (transfer, meta) = (transfer(script), meta(script, payload_bytes));
            writer.response(&Response { id, token, payload_bytes, transfer, meta: &meta });
        }
        2 => writer.failure(&Failure { id: handle(script), code: script.byte(), reason: text(script) }),
        3 => writer.parked(handle(script), script.byte().into()),
        4 => writer.cancel(handle(script)),
        5 => {
            let sequence = script.number();
            let entries: Vec<_> = (0..script.below(ENTRIES_MAX)).map(|_| (handle(script), script.yes())).collect();
            writer.release(sequence, entries.into_iter());
        }
        6 => writer.released(script.number()),
        7 => writer.resumed(),
        8 => {
            let (step, task) = (script.number() as i64, script.below(3) as u16);
            writer.abort(&Abort { step, task, reason: text(script) });
        }
        9 => writer.ping(script.number()),
        10 => writer.pong(script.number()),
        11 => writer.go_away(GoAway { reason: text(script) }.reason),
        12 => {
            let (timeout_ms, ends) = (script.byte().into(), (script.below(3) as u16, script.below(3) as u16));
            let mut group = writer.requests(timeout_ms, ends, script.yes());
            for _ in 0..script.below(ENTRIES_MAX) {
                group.push(handle(script), script.number() as i64, text(script));
            }
            group.end();
        }
        13 => {
            let mut group = writer.responses();
            for _ in 0..script.below(ENTRIES_MAX) {
                let (id, token, payload) = (handle(script), handle(script), script.bytes(FIELD_BYTES_MAX));
                let meta = meta(script, payload.len() as u64);
                group.push(id, token, &meta, payload.into());
            }
            group.end();
        }
        14 => {
            let (id, ends) = (handle(script), (script.below(3) as u16, script.below(3) as u16));
            let count = (script.number() as u32, script.number() as u32);
            let keys: Vec<&str> = (0..script.below(ENTRIES_MAX)).map(|_| text(script)).collect();
            writer.key_set(id, ends, count, keys.into_iter());
        }
        15 => writer.forget_set(handle(script)),
        16 => {
            let (id, set, min_version) = (handle(script), handle(script), script.number() as i64);
            let (timeout_ms, fail_if_gone) = (script.byte().into(), script.yes());
            writer.pull(&Pull { id, set, min_version, timeout_ms, fail_if_gone });
        }
        17 => {
            let mut group = writer.metas(handle(script));
            for _ in 0..script.below(ENTRIES_MAX) {
                let (index, payload_bytes) = (script.number() as u32, payload_bytes(script));
                group.push(index, &meta(script, payload_bytes), payload_bytes);
            }
            group.end();
        }
        18 => {
            let mut group = writer.parts(handle(script), script.number() as i64, script.number() as u32);
            for _ in 0..script.below(ENTRIES_MAX) {
                group.push(1, script.bytes(FIELD_BYTES_MAX).into());
            }
            group.end();
        }
        19 => {
            let (id, version, payload_bytes) = (handle(script), script.number() as i64, payload_bytes(script));
            let (transfer, index) = (transfer(script), script.number() as u32);
            writer.part(&Part { id, version, payload_bytes, transfer, index });
        }
        20 => {
            let (id, code, index) = (handle(script), script.byte(), script.number() as u32);
            writer.pull_failure(&PullFailure { id, code, index, reason: text(script) });
        }
        21 => writer.pull_cancel(handle(script)),
        22 => {
            let (stream, first) = (handle(script), script.number());
            let (from, to) = (script.below(3) as u16, script.below(3) as u16);
            writer.push_open(&PushOpen { stream, first, from, to, queue: text(script) });
        }
        23 => {
            let (stream, number, payload_bytes) = (handle(script), script.number(), payload_bytes(script));
            let (transfer, meta) = (transfer(script), meta(script, payload_bytes));
            writer.push(&Push { stream, number, payload_bytes, transfer, meta: &meta });
        }
        24 => {
            let mut group = writer.pushes(handle(script), script.number());
            for _ in 0..script.below(ENTRIES_MAX) {
                let payload = script.bytes(FIELD_BYTES_MAX);
                group.push(&meta(script, payload.len() as u64), payload.into());
            }
            group.end();
        }
        25 => {
            let (stream, taken, messages) = (handle(script), script.number(), script.number());
            writer.push_grant(&PushGrant { stream, taken, messages, bytes: script.number() });
        }
        26 => {
            let (stream, code, number) = (handle(script), script.byte(), script.number());
            writer.push_failure(&PushFailure { stream, code, number, reason: text(script) });
        }
        27 => writer.push_close(handle(script)),
        28 => {
            let (stream, least) = (handle(script), script.number());
            writer.push_want(&PushWant { stream, least, all: script.number().max(least) });
        }
        29 => {
            let (id, min_version, timeout_ms) = (handle(script), script.number() as i64, script.byte().into());
            let (consumer, producer) = (script.below(3) as u16, script.below(3) as u16);
            let mut named = NamedRowsBuf::default();
            for _ in 0..=script.below(3) {
                let numbers: Vec<u64> = (0..script.below(ENTRIES_MAX)).map(|_| script.number()).collect();
                named.name(text(script), &numbers, |count| count as u32);
            }
            let (rows, fail_if_gone) = (named.as_rows(), script.yes());
            writer.rows(&RowRequest { id, min_version, timeout_ms, consumer, producer, fail_if_gone, rows });
        }
        _ => writer.chunk(Chunk { transfer: transfer(script), bytes: payload_bytes(script) }),
    }
}

/// One frame of each kind.
pub(super) fn seeds() -> Vec<Vec<u8>> {
    let decisions: Vec<u8> = (1..60).collect();
    let one = |kind| {
        let mut bytes = Vec::new();
        forge(kind, &mut Script::new(&decisions), &mut bytes);
        bytes
    };
    (0..KINDS).map(one).collect()
}
