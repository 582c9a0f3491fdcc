//! Wire frames of every kind: what is read and written again must read the same, and no field may exceed its limit.

use sealane_transport::Handle;
use sealane_transport::limits::{
    AHEAD_RELEASES_PER_FRAME, AHEAD_TENSOR_BYTES, FRAME_BODY_BYTES_MAX, KEY_BYTES_MAX, META_BYTES_MAX,
    REASON_BYTES_MAX, RELEASES_PER_FRAME, ROW_IDS_MAX, SET_KEYS_MAX, TABLE_KEY_BYTES_MAX,
};
use sealane_transport::named_rows::OfTable;
use sealane_transport::wire::{
    AheadFrame, AheadRecord, FRAME_HEADER_BYTES, Frame, FrameWriter, PullFrame, PushFrame, WireError, parse, text,
};

use super::assert_says;

/// Reads one frame after the other.
pub(super) fn run(mut input: &[u8]) {
    let mut written = Vec::new();
    loop {
        match parse(input) {
            Ok(None) => return,
            Err(error) => return assert_says(&error),
            Ok(Some((frame, length))) => {
                assert!(length <= FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX);
                assert_eq!(parse(&input[..length - 1]), Ok(None), "a frame is read once all of it is there");
                written.clear();
                match write(&frame, &mut FrameWriter(&mut written)) {
                    Ok(true) => assert_eq!(parse(&written), Ok(Some((frame, written.len())))),
                    Ok(false) => {}
                    Err(error) => assert_says(&error),
                }
                input = &input[length..];
            }
        }
    }
}

/// Writes a frame as a sender does; false if no sender would write it.
fn write(frame: &Frame<'_>, writer: &mut FrameWriter<'_>) -> Result<bool, WireError> {
    match frame {
        Frame::Request(request) => {
            assert!(request.key.len() <= KEY_BYTES_MAX);
            writer.request(request);
        }
        Frame::Requests(requests) => {
            let mut group =
                writer.requests(requests.timeout_ms, (requests.consumer, requests.producer), requests.fail_if_gone);
            for request in requests.iter() {
                let (id, step, key) = request?;
                assert!(key.len() <= KEY_BYTES_MAX);
                group.push(id, step, text("key", key)?);
            }
            group.end();
        }
        Frame::Rows(rows) => {
            let fits = |table: OfTable<'_>| table.key.len() <= TABLE_KEY_BYTES_MAX && table.ids.len() <= ROW_IDS_MAX;
            assert!(rows.rows.iter().all(fits));
            writer.rows(rows);
        }
        Frame::Response(response) => {
            assert!(response.meta.len() <= META_BYTES_MAX);
            writer.response(response);
        }
        Frame::Responses(responses) => {
            let mut group = writer.responses();
            for small in responses.iter() {
                let small = small?;
                assert!(small.meta.len() <= META_BYTES_MAX);
                group.push(small.id, small.token, small.meta, small.payload.into());
            }
            group.end();
        }
        Frame::Failure(failure) => {
            assert!(failure.reason.len() <= REASON_BYTES_MAX);
            writer.failure(failure);
        }
        Frame::Parked { id, attachment } => writer.parked(*id, *attachment),
        Frame::Cancel { id } => writer.cancel(*id),
        Frame::Release(release) => {
            let entries: Vec<(Handle, bool)> = release.entries.iter().collect();
            assert!(entries.len() <= RELEASES_PER_FRAME);
            writer.release(release.sequence, entries.into_iter());
        }
        Frame::Released { sequence } => writer.released(*sequence),
        Frame::Resumed => writer.resumed(),
        Frame::Abort(abort) => {
            assert!(abort.reason.len() <= REASON_BYTES_MAX);
            writer.abort(abort);
        }
        Frame::Ping { nonce } => writer.ping(*nonce),
        Frame::Pong { nonce } => writer.pong(*nonce),
        Frame::GoAway(away) => {
            assert!(away.reason.len() <= REASON_BYTES_MAX);
            writer.go_away(away.reason);
        }
        Frame::Chunk(chunk) => writer.chunk(*chunk),
        Frame::Pull(frame) => return write_pull(frame, writer),
        Frame::Push(frame) => return write_push(frame, writer),
        Frame::Ahead(frame) => return write_ahead(frame, writer),
    }
    Ok(true)
}

fn write_ahead(frame: &AheadFrame<'_>, writer: &mut FrameWriter<'_>) -> Result<bool, WireError> {
    match frame {
        AheadFrame::Tensors(ahead) => {
            for record in ahead.records.iter() {
                let AheadRecord { key, meta, payload } = record?;
                assert!(key.len() <= KEY_BYTES_MAX && payload.len() <= AHEAD_TENSOR_BYTES);
                assert!(meta.is_none_or(|meta| meta.len() <= META_BYTES_MAX));
            }
            writer.ahead(ahead);
        }
        AheadFrame::Release(release) => {
            let ends = release.iter().collect::<Result<Vec<_>, _>>()?;
            assert!(ends.len() <= AHEAD_RELEASES_PER_FRAME);
            writer.ahead_release(release.sequence, ends.into_iter());
        }
        AheadFrame::Revoke { number, ends, key } => writer.ahead_revoke(*number, *ends, key),
        AheadFrame::Held { ends, key } => writer.ahead_held(*ends, key),
    }
    Ok(true)
}

fn write_pull(frame: &PullFrame<'_>, writer: &mut FrameWriter<'_>) -> Result<bool, WireError> {
    match frame {
        PullFrame::KeySet(set) => {
            assert!(set.count as usize <= SET_KEYS_MAX);
            let keys = set.keys().collect::<Result<Vec<&str>, _>>()?;
            assert!(keys.iter().all(|key| key.len() <= KEY_BYTES_MAX));
            let ends = (set.consumer, set.producer);
            let told = writer.key_set(set.id, ends, (set.count, set.first), keys.iter().copied());
            // Our sender leaves room for the fixed part; another sender's full frame may have used that room.
            return Ok(told as usize == keys.len());
        }
        PullFrame::Forget { set } => writer.forget_set(*set),
        PullFrame::Pull(pull) => writer.pull(pull),
        PullFrame::Metas(metas) => {
            let mut group = writer.metas(metas.set);
            for entry in metas.iter() {
                let (index, meta, payload_bytes) = entry?;
                assert!(meta.len() <= META_BYTES_MAX);
                group.push(index, meta, payload_bytes);
            }
            group.end();
        }
        PullFrame::Parts(parts) => {
            if parts.count == 0 && !parts.payload.is_empty() {
                return Ok(false);
            }
            let mut group = writer.parts(parts.id, parts.version, parts.first);
            group.push(parts.count, parts.payload.into());
            group.end();
        }
        PullFrame::Part(part) => writer.part(part),
        PullFrame::Failure(failure) => {
            assert!(failure.reason.len() <= REASON_BYTES_MAX);
            writer.pull_failure(failure);
        }
        PullFrame::Cancel { id } => writer.pull_cancel(*id),
    }
    Ok(true)
}

fn write_push(frame: &PushFrame<'_>, writer: &mut FrameWriter<'_>) -> Result<bool, WireError> {
    match frame {
        PushFrame::Open(open) => {
            assert!(open.queue.len() <= KEY_BYTES_MAX);
            writer.push_open(open);
        }
        PushFrame::Push(push) => {
            assert!(push.meta.len() <= META_BYTES_MAX);
            writer.push(push);
        }
        PushFrame::Pushes(pushes) => {
            // Our sender omits repeated metadata; another sender may have written it.
            let mut group = writer.pushes(pushes.stream, pushes.first);
            let (mut last, mut as_written) = (None, true);
            for entry in pushes.records.iter() {
                let (meta, payload) = entry?;
                as_written &= meta.is_none() || meta != last;
                last = meta.or(last);
                let meta = last.unwrap_or_default();
                assert!(meta.len() <= META_BYTES_MAX);
                group.push(meta, payload.into());
            }
            group.end();
            return Ok(as_written);
        }
        PushFrame::Grant(grant) => writer.push_grant(grant),
        PushFrame::Want(want) => writer.push_want(want),
        PushFrame::Failure(failure) => {
            assert!(failure.reason.len() <= REASON_BYTES_MAX);
            writer.push_failure(failure);
        }
        PushFrame::Close { stream } => writer.push_close(*stream),
    }
    Ok(true)
}

/// Length of the payload that follows a frame.
pub(super) fn payload_behind(frame: &Frame<'_>) -> u64 {
    match frame {
        Frame::Response(response) if response.transfer == 0 => response.payload_bytes,
        Frame::Pull(PullFrame::Part(part)) if part.transfer == 0 => part.payload_bytes,
        Frame::Push(PushFrame::Push(push)) if push.transfer == 0 => push.payload_bytes,
        Frame::Chunk(chunk) => chunk.bytes,
        _ => 0,
    }
}
