//! How a [`Client`] is measured, whatever carries the tensors: it requests, takes what came, and requests again. All loops of
//! latency, rate, bandwidth, fan-in and steps are here; a client only makes single requests.
//!
//! The loops are async, for systems that are measured on their own executor; the others wait within their calls, and go through
//! [`measure_now`].

use std::time::{Duration, Instant};
use std::{hint, thread};

use futures_util::FutureExt;

use crate::error::BenchError;
use crate::figures::{Metric, Sample};
use crate::limits::FILL;
use crate::plan::{Bench, Plan};
use crate::stopwatch::{Tally, Times};
use crate::system::Client;

/// Measures one round of the plan's bench, for `length` after its warm-up.
pub(super) async fn measure(client: &mut impl Client, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    match plan.bench {
        Bench::Latency => round_trips(client, plan, length).await,
        Bench::Fuse => steps(client, plan, length).await,
        Bench::FanIn => throughput(client, plan, plan.window * plan.peers, length).await,
        _ => throughput(client, plan, plan.window, length).await,
    }
}

/// Like [`measure`], for a client that waits within its calls.
pub(crate) fn measure_now(client: &mut impl Client, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    measure(client, plan, length).now_or_never().expect("it waits within its calls")
}

async fn round_trips(client: &mut impl Client, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let mut times = Times::start(Instant::now(), length);
    loop {
        let (asked, answered) = client.exchange(plan).await?;
        if times.completed(asked, answered) {
            return Ok(times.round_trips());
        }
    }
}

/// Keeps a window of requests in flight: each answer is followed by a new request at once.
async fn throughput(
    client: &mut impl Client,
    plan: &Plan,
    window: usize,
    length: Duration,
) -> Result<Sample, BenchError> {
    let mut tally = Tally::start(Instant::now(), length);
    client.ask(window)?;
    let mut left = if client.is_one_way() { 0 } else { window };
    let mut over = false;
    while !over || left > 0 {
        let count = client.take().await?;
        over |= tally.completed(count as u64, client.now());
        if over {
            left = left.saturating_sub(count);
        } else {
            client.ask(count)?;
        }
    }
    client.end().await?;
    Ok(tally.sample(plan))
}

/// Makes step after step; a window of small tensors that are requested together also counts as a step.
pub(super) async fn steps(client: &mut impl Client, plan: &Plan, length: Duration) -> Result<Sample, BenchError> {
    let before = client.moved().await?;
    let mut times = Times::start(Instant::now(), length);
    loop {
        client.prepare()?;
        let began = Instant::now();
        client.step().await?;
        if times.completed(began, Instant::now()) {
            break;
        }
    }
    if plan.bench != Bench::Fuse {
        return Ok(times.tensors_per_second(plan.window));
    }
    let moved = client.moved().await?.zip(before).map(|(after, before)| after.since(before).messages);
    Ok(times.steps(plan, moved))
}

/// The slowest peer's tensors relative to an equal share, given how many arrived at each of many peers.
pub(super) fn slowest_share(arrived: &[u64]) -> (Metric, f64) {
    let (fewest, total) = (arrived.iter().min().copied().unwrap_or_default(), arrived.iter().sum::<u64>());
    (Metric::SlowestShare, fewest as f64 * arrived.len() as f64 / total.max(1) as f64)
}

/// Lets the gap pass in the same way as the run waits for everything else: spinning, or asleep.
pub(crate) fn pass_gap(idle: Duration, polling: bool) {
    if !polling {
        return thread::sleep(idle);
    }
    let end = Instant::now() + idle;
    while Instant::now() < end {
        hint::spin_loop();
    }
}

/// Checks the memory that the last step of a round has filled, and that was empty before its first.
pub(super) fn check_arrival<'t>(
    system: &'static str,
    tensors: impl Iterator<Item = &'t [u8]>,
) -> Result<(), BenchError> {
    let wrong = tensors.enumerate().find(|(_, bytes)| bytes.iter().any(|byte| *byte != FILL));
    wrong.map_or(Ok(()), |(tensor, _)| Err(other_bytes(system, tensor)))
}

/// The error that a step's tensor arrived with other bytes than were sent.
pub(super) fn other_bytes(system: &'static str, tensor: usize) -> BenchError {
    BenchError::failed(system, "deliver what was sent")(format!("tensor {tensor} has other bytes"))
}

pub(super) fn check_length(system: &'static str, expected: usize, received: usize) -> Result<(), BenchError> {
    if received == expected {
        return Ok(());
    }
    Err(BenchError::failed(system, "send what was asked for")(format!("{received} bytes came for {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_was_not_filled_is_named() {
        let (full, short) = ([FILL; 3], [FILL, FILL, 0]);
        check_arrival("raw", [&full[..], &[]].into_iter()).expect("all of it is");
        let error = check_arrival("raw", [&full[..], &short].into_iter()).expect_err("the last byte is missing");
        assert!(error.to_string().ends_with("tensor 1 has other bytes"), "{error}");
    }
}
