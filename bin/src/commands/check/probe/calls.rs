//! Calls many peers at once from one thread, each with the transport's own greeting. Bounded by [`CALLS_MAX`] connections, and
//! for each address of a peer by the time that is given.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane_transport::authentication::{Authentication, Certificate};
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::error::LinkError;
use sealane_transport::tcp::{Dial, DialError, Progress, TcpSettings};
use sealane_transport::wire::Hello;

/// Calls in progress at once: a map of thousands of hosts, all of which are silent, takes some seconds for each so many; and
/// the descriptors are fewer than any limit of a process.
const CALLS_MAX: usize = 256;

/// How to call.
#[derive(Debug)]
pub(super) struct Manner<'a> {
    pub(super) tcp: &'a TcpSettings,
    pub(super) authentication: &'a Authentication,
    /// How long one address of a peer may take.
    pub(super) patience: Duration,
}

/// Whom to call.
#[derive(Debug)]
pub(super) struct Callee<'a> {
    pub(super) address: &'a TransportAddress,
    pub(super) found: Vec<SocketAddr>,
}

/// A peer that answered.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) welcome: Hello,
    pub(super) certificate: Option<Certificate>,
    /// Until the connection stood, which is one round trip.
    pub(super) connected_in: Duration,
    /// From then until the welcome.
    pub(super) greeted_in: Duration,
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// The name of the host leads nowhere.
    NoAddress,
    /// Nothing came in time.
    Late {
        /// A connection stood.
        had_connection: bool,
    },
    Failed(DialError),
}

/// A call in flight.
struct Calling {
    callee: usize,
    /// `None` only while it is polled.
    dial: Option<Dial>,
    more: VecDeque<SocketAddr>,
    begun: Instant,
    connected: Option<Instant>,
}

/// Calls everyone, and gives the answers in the same order. `told` hears how many calls are over.
pub(super) fn call_all(
    callees: &[Callee<'_>],
    manner: &Manner<'_>,
    mut told: impl FnMut(usize),
) -> Vec<Result<Answered, Unanswered>> {
    let mut answers: Vec<Option<Result<Answered, Unanswered>>> = callees.iter().map(|_| None).collect();
    let mut waiting: VecDeque<usize> = (0..callees.len()).collect();
    let mut calls: Vec<Calling> = Vec::new();
    let mut over = 0;
    while over < callees.len() {
        while calls.len() < CALLS_MAX
            && let Some(callee) = waiting.pop_front()
        {
            let found = callees[callee].found.iter().copied().collect();
            match begin(callee, callees, found, manner, Unanswered::NoAddress) {
                Ok(call) => calls.push(call),
                Err(failed) => answers[callee] = Some(Err(failed)),
            }
        }
        wait(&calls, manner.patience);
        let mut going_on = Vec::new();
        for call in calls.drain(..) {
            let callee = call.callee;
            match step(call, callees, manner) {
                Step::GoesOn(call) => going_on.push(call),
                Step::Over(answer) => answers[callee] = Some(answer),
            }
        }
        calls = going_on;
        let so_far = answers.iter().filter(|answer| answer.is_some()).count();
        if so_far > over {
            over = so_far;
            told(over);
        }
    }
    answers.into_iter().map(|answer| answer.expect("every call is over")).collect()
}

/// Calls the next address that lets itself be called; `failed` is what the former came to.
fn begin(
    callee: usize,
    callees: &[Callee<'_>],
    mut more: VecDeque<SocketAddr>,
    manner: &Manner<'_>,
    mut failed: Unanswered,
) -> Result<Calling, Unanswered> {
    while let Some(address) = more.pop_front() {
        let begun = Instant::now();
        let called = (callees[callee].address, Hello::probe());
        match Dial::start(address, called, manner.tcp, manner.authentication) {
            Ok(dial) => return Ok(Calling { callee, dial: Some(dial), more, begun, connected: None }),
            Err(error) => failed = Unanswered::Failed(error.into()),
        }
    }
    Err(failed)
}

/// Waits until one of the calls may go on, or is late.
fn wait(calls: &[Calling], patience: Duration) {
    let dials = calls.iter().filter_map(|call| call.dial.as_ref());
    let mut descriptors: Vec<PollFd<'_>> = dials
        .map(|dial| {
            let writable = if dial.wants_write() { PollFlags::POLLOUT } else { PollFlags::empty() };
            PollFd::new(dial.descriptor(), PollFlags::POLLIN | writable)
        })
        .collect();
    if descriptors.is_empty() {
        return;
    }
    let now = Instant::now();
    let first = calls.iter().map(|call| (call.begun + patience).saturating_duration_since(now)).min();
    // A millisecond more, so that what is late is found to be late.
    let timeout = first.unwrap_or_default() + Duration::from_millis(1);
    // Interrupted or not: whoever may go on does.
    let _ = poll(&mut descriptors, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
}

enum Step {
    GoesOn(Calling),
    Over(Result<Answered, Unanswered>),
}

fn step(mut call: Calling, callees: &[Callee<'_>], manner: &Manner<'_>) -> Step {
    let dial = call.dial.take().expect("polled by nobody else");
    let had_connection = dial.is_connected();
    let failed = match dial.poll() {
        Ok(Progress::Pending(dial)) => {
            if !had_connection && dial.is_connected() {
                call.connected = Some(Instant::now());
            }
            let is_late = call.begun.elapsed() >= manner.patience;
            if !is_late {
                call.dial = Some(dial);
                return Step::GoesOn(call);
            }
            Unanswered::Late { had_connection: dial.is_connected() }
        }
        Ok(Progress::Done(dialed)) => {
            let now = Instant::now();
            let connected = call.connected.unwrap_or(now);
            return Step::Over(Ok(Answered {
                welcome: dialed.welcome,
                certificate: dialed.certificate,
                connected_in: connected - call.begun,
                greeted_in: now - connected,
            }));
        }
        // Another address of the same peer may be the right one; who says no has been found.
        Err(error @ DialError::Link(LinkError::Io { .. } | LinkError::Closed)) => Unanswered::Failed(error),
        Err(error) => return Step::Over(Err(Unanswered::Failed(error))),
    };
    match begin(call.callee, callees, call.more, manner, failed) {
        Ok(call) => Step::GoesOn(call),
        Err(failed) => Step::Over(Err(failed)),
    }
}
