//! Steps of one client of a shard, which sends to itself: records into the client's ring, the shard's turns, and records out of it.

use std::time::Instant;

use sealane_fusion::fuzzing::Attachment;
use sealane_fusion::{DType, Fuse, TensorMeta};
use sealane_transport::shm::{Completion, NO_TIMEOUT, PayloadAt, Record, Submission};

use super::keys;
use crate::two_nodes::{PS, node};

const MEMORY_BYTES: u64 = 1 << 20;
/// The client's number of its peer.
const PEER: u16 = 0;
/// Turns of one step at most.
const TURNS_MAX: usize = 1_000;

/// Sends and receives all tensors of a step at once; each is short enough to travel in the rings.
pub(super) fn exchanges(tensors: usize, steps: i64) -> Result<(), String> {
    let said = |error: &dyn std::fmt::Display| error.to_string();
    let made = Attachment::new(node(PS, "ps:1", Fuse::Turn)?, 0, MEMORY_BYTES, MEMORY_BYTES);
    let (mut shard, mut end) = made.map_err(|error| said(&error))?;
    let (keys, now, mut record) = (keys(tensors), Instant::now(), Record::new());
    let meta = TensorMeta::new(DType::U8, &[64]).map_err(|error| said(&error))?;
    let (peer, timeout_ms, payload) = (PEER, NO_TIMEOUT, PayloadAt::Inline(&[7; 64]));
    Submission::Peer { number: PEER, name: "ps:1" }.encode(&mut record).map_err(|error| said(&error))?;
    end.submissions.push(&record).map_err(|error| said(&error))?;
    for step in 0..steps {
        for (number, key) in keys.iter().enumerate() {
            let call = 2 * number as u32;
            let send = Submission::Send { call, peer, step, timeout_ms, key, meta: meta.as_wire(), payload };
            let (call, destination, fused) = (call + 1, None, false);
            let recv = Submission::Recv { call, peer, step, timeout_ms, key, destination, fused };
            for submission in [send, recv] {
                submission.encode(&mut record).map_err(|error| said(&error))?;
                end.submissions.push(&record).map_err(|error| said(&error))?;
            }
        }
        let mut ended = 0;
        for _ in 0..TURNS_MAX {
            if ended == 2 * tensors {
                break;
            }
            shard.turn(now);
            while end.completions.pop(&mut record).map_err(|error| said(&error))? {
                match Completion::decode(&record).map_err(|error| said(&error))? {
                    Completion::Sent { calls } => ended += calls.len(),
                    Completion::Received { .. } => ended += 1,
                    other => return Err(format!("{other:?}")),
                }
            }
            end.completions.publish();
        }
        if ended != 2 * tensors {
            return Err(format!("{ended} of {} calls ended in step {step}", 2 * tensors));
        }
    }
    Ok(())
}
