//! The errors of calls over a channel.

use std::time::Duration;

use sealane_transport::{Error, Late, Operation, channel::Why, shm::NO_TIMEOUT};

/// The error of a send that the channel did not take.
#[cold]
pub(super) fn unsent(peer: &str, why: Why, (step, key): (i64, &str)) -> Error {
    match why {
        Why::Duplicate => duplicate(peer, step, key),
        _ => Error::full("direct channel", format!("too many tensors for {peer} wait until it receives others")),
    }
}

/// The error of a recv for which there is no slot.
#[cold]
pub(super) fn too_many(_why: Why) -> Error {
    Error::full("direct channel", "too many recvs and unexpected tensors: wait for some, or clean up their steps")
}

fn duplicate(peer: &str, step: i64, key: &str) -> Error {
    Error::invalid(format!("a tensor of key '{key}' of step {step} already waits at {peer}"))
}

fn aborted(step: i64, reason: Option<&str>) -> Error {
    Error::Aborted { step, reason: reason.unwrap_or("the step was cleaned up").into() }
}

fn waited(timeout_ms: u32) -> Duration {
    if timeout_ms == NO_TIMEOUT { Duration::MAX } else { Duration::from_millis(timeout_ms.into()) }
}

fn text(key: &[u8]) -> Box<str> {
    String::from_utf8_lossy(key).into()
}

/// The error of a send whose tensor was returned.
#[cold]
pub(super) fn returned(
    peer: &str,
    why: Why,
    (step, key): (i64, &[u8]),
    timeout_ms: u32,
    reason: Option<&str>,
) -> Error {
    match why {
        Why::Duplicate => duplicate(peer, step, &text(key)),
        Why::Aborted => aborted(step, reason),
        Why::Revoked | Why::Late => {
            let awaited = format!("{peer} is attached to the same daemon, and did not receive it");
            Error::late(Operation::Send, step, text(key), waited(timeout_ms), awaited)
        }
        Why::Silent => {
            let awaited = format!("the process of {peer} does not answer").into();
            let (key, waited) = (text(key), waited(timeout_ms));
            Late { operation: Operation::Send, step, key, waited, delivery_unknown: true, awaited }.into()
        }
        _ => Error::full("direct channel", format!("{peer} has no room for more unexpected tensors")),
    }
}

/// The error of a recv that has failed.
#[cold]
pub(super) fn unreceived(
    peer: &str,
    why: Why,
    (step, key): (i64, &[u8]),
    timeout_ms: u32,
    reason: Option<&str>,
) -> Error {
    match why {
        Why::Aborted => aborted(step, reason),
        Why::Late => {
            let awaited = format!("{peer} is attached to the same daemon, and did not send it");
            Error::late(Operation::Recv, step, text(key), waited(timeout_ms), awaited)
        }
        Why::Gone => Error::Left { task: peer.into(), reason: "its process is gone".into() },
        _ => Error::unavailable(peer, "the direct channel to it has ended"),
    }
}
