//! The raw consumer: one round of each measurement over any channel. Runs on the calling thread.

use std::io;
use std::time::{Duration, Instant};

use super::channel::{Channel, Patience, receive_exact, send_all};
use super::pieces::Pieces;
use super::producer::{GO, LAST, STOP};
use crate::limits::{FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::plan::{Fuse, Plan};
use crate::sample::Sample;
use crate::stopwatch::{StepTally, Tally};
use crate::systems;

/// A request and an answer.
const MESSAGES_A_STEP: f64 = 2.0;

/// One request at a time, each answered by a whole tensor.
pub(super) fn round_trips(channel: &mut impl Channel, plan: &Plan, length: Duration) -> io::Result<Sample> {
    let request = [0; REQUEST_BYTES];
    let mut tensor = vec![0; plan.size_bytes];
    systems::round_trips(plan, length, || {
        send_all(channel, &request)?;
        receive_exact(channel, &mut tensor)
    })
}

/// A window of requests in flight; what is answered is asked again at once.
pub(super) fn rate(channel: &mut impl Channel, plan: &Plan, length: Duration) -> io::Result<Sample> {
    let requests = vec![0; FUSED_BYTES_MAX];
    let mut inbox = vec![0; FUSED_BYTES_MAX.max(plan.size_bytes)];
    // Bytes of requests that may still be sent; all of them when nothing is in flight.
    let all_askable = plan.window * REQUEST_BYTES;
    let mut askable = all_askable;
    // Bytes of a tensor that has not arrived whole.
    let mut arrived = 0;
    let mut over = false;
    let mut patience = Patience::default();
    let mut tally = Tally::start(Instant::now(), length);
    loop {
        let mut moved = 0;
        // After the end only a request that was cut by a full socket is completed.
        let mut to_ask = if over { askable % REQUEST_BYTES } else { askable };
        while to_ask > 0 {
            let write = match plan.fuse {
                Fuse::Off => (to_ask - 1) % REQUEST_BYTES + 1,
                Fuse::Turn | Fuse::Receive | Fuse::ReceiveWaitAll | Fuse::Plan | Fuse::Push => {
                    to_ask.min(requests.len())
                }
            };
            let sent = channel.send(&requests[..write])?;
            if sent == 0 {
                break;
            }
            to_ask -= sent;
            askable -= sent;
            moved += sent;
        }
        let received = channel.receive(&mut inbox)?;
        moved += received;
        arrived += received;
        let complete = arrived / plan.size_bytes;
        arrived %= plan.size_bytes;
        askable += complete * REQUEST_BYTES;
        over |= tally.completed(complete as u64, Instant::now());
        if over && askable == all_askable {
            return Ok(tally.sample(plan));
        }
        patience.passed(channel, moved)?;
    }
}

/// Tensors one after another into the consumer's own buffer.
pub(super) fn bandwidth(channel: &mut impl Channel, plan: &Plan, length: Duration) -> io::Result<Sample> {
    let mut tensor = vec![0; plan.size_bytes];
    let mut tally = Tally::start(Instant::now(), length);
    send_all(channel, &GO)?;
    loop {
        receive_exact(channel, &mut tensor)?;
        if tally.completed(1, Instant::now()) {
            break;
        }
    }
    send_all(channel, &STOP)?;
    while tensor[0] != LAST {
        receive_exact(channel, &mut tensor)?;
    }
    Ok(tally.sample(plan))
}

/// One request a step, answered by all its tensors at once, each of which goes to its own buffer.
pub(super) fn steps(
    channel: &mut impl Channel,
    plan: &Plan,
    pieces: &mut Pieces,
    length: Duration,
) -> io::Result<Sample> {
    let request = [0; REQUEST_BYTES];
    let mut tally = StepTally::start(Instant::now(), length);
    loop {
        let began = Instant::now();
        send_all(channel, &request)?;
        pieces.rewind();
        let mut patience = Patience::default();
        while !pieces.is_done() {
            let received = channel.receive_vectored(&mut pieces.left_to_fill())?;
            pieces.advance(received);
            patience.passed(channel, received)?;
        }
        pieces.scatter();
        if tally.completed(began, Instant::now()) {
            return Ok(tally.sample(plan, Some(MESSAGES_A_STEP)));
        }
    }
}
