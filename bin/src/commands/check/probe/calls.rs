//! Calls many peers at once, with the transport's own greeting. Bounded by [`CALLS_MAX`] threads, and by a time limit for each
//! address of a peer.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use sealane_transport::authentication::Certificate;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::error::LinkError;
use sealane_transport::tcp::{Dial, DialError, Progress};
use sealane_transport::wire::Hello;

use super::Prober;

/// Calls in progress at once: for a map of thousands of hosts that are all silent, each batch of this size takes some seconds; and
/// the threads and descriptors stay below any limit of a process.
const CALLS_MAX: usize = 256;

/// Whom to call, and where.
pub(super) type Callee<'a> = (&'a TransportAddress, Vec<SocketAddr>);

#[derive(Debug)]
pub(super) struct Answered {
    pub(super) welcome: Hello,
    pub(super) certificate: Option<Certificate>,
    /// Time until the connection was established: one round trip.
    pub(super) connected_in: Duration,
    /// Time from then until the welcome.
    pub(super) greeted_in: Duration,
}

#[derive(Debug)]
pub(super) enum Unanswered {
    /// The name of the host has no address.
    NoAddress,
    Late {
        had_connection: bool,
    },
    Failed(DialError),
}

/// Calls everyone, a limited number at once, and returns the answers in the same order. `told` is given the number of calls that
/// are over.
pub(super) fn call_all(
    callees: &[Callee<'_>],
    prober: &Prober<'_>,
    told: impl Fn(usize),
) -> Vec<Result<Answered, Unanswered>> {
    let mut answers = Vec::new();
    for some in callees.chunks(CALLS_MAX) {
        std::thread::scope(|scope| {
            let calls: Vec<_> = some.iter().map(|callee| scope.spawn(|| call(callee, prober))).collect();
            for call in calls {
                answers.push(call.join().expect("a call reports what goes wrong"));
                told(answers.len());
            }
        });
    }
    answers
}

/// Calls the addresses of a peer in turn.
fn call((called, found): &Callee<'_>, prober: &Prober<'_>) -> Result<Answered, Unanswered> {
    let mut failed = Unanswered::NoAddress;
    for address in found {
        match call_at(*address, called, prober) {
            // Another address of the same peer may be the right one, but a peer that refuses has been found.
            Err(
                error @ (Unanswered::Late { .. }
                | Unanswered::Failed(DialError::Link(LinkError::Io { .. } | LinkError::Closed))),
            ) => failed = error,
            answer => return answer,
        }
    }
    Err(failed)
}

fn call_at(at: SocketAddr, called: &TransportAddress, prober: &Prober<'_>) -> Result<Answered, Unanswered> {
    let begun = Instant::now();
    let mut dial = Dial::start(at, (called, Hello::probe()), &prober.tcp, &prober.authentication)
        .map_err(|error| Unanswered::Failed(error.into()))?;
    let mut connected = None;
    loop {
        dial.block(prober.patience.saturating_sub(begun.elapsed()));
        match dial.poll().map_err(Unanswered::Failed)? {
            Progress::Pending(pending) => {
                dial = pending;
                if begun.elapsed() >= prober.patience {
                    return Err(Unanswered::Late { had_connection: dial.is_connected() });
                }
                connected = connected.or_else(|| dial.is_connected().then(Instant::now));
            }
            Progress::Done(dialed) => {
                let now = Instant::now();
                let connected = connected.unwrap_or(now);
                return Ok(Answered {
                    welcome: dialed.welcome,
                    certificate: dialed.certificate,
                    connected_in: connected - begun,
                    greeted_in: now - connected,
                });
            }
        }
    }
}
