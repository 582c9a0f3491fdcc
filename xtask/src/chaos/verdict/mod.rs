//! The verdict: what was promised to the tasks (README, "What happens when ..."), and whether the ledgers show it.
//!
//! - **Every call ends**, by its deadline and a bound, unless its process was killed; with an outcome, or an error of a kind
//!   that what was done explains. (`times`)
//! - **Sends and recvs** (`calls::Meetings`): a recv gets the bytes of the very send, and no send is received twice, whatever
//!   happens. A send that ended well was received, unless the receiving process or its daemon was killed or stood still
//!   meanwhile: what lay in the ring of a process that is gone, or came for a call that was given up, is lost with it.
//!   A send that failed was not received, unless something was done to one of the two: then nobody can know.
//! - **Pulls** (`calls::pulls`) bring whole versions that were published, at least the one that was asked for, and never an older one
//!   than before.
//! - **Rows** (`calls::pulls`) are whole, of a version that was written, at least the one that was asked for, and never older than before.
//! - **Pushes and streams** (`calls::arrivals`) arrive once, pushes in their order and streams whole. One that ended well has
//!   arrived, unless the accepting process or its daemon was killed afterwards: its queue is theirs. No reader waits for a stream
//!   whose other end has gone.
//! - **Where nothing is done, nothing fails**: calls between tasks to whom nothing was done for a while all go well, so
//!   everything has healed.
//! - **In time** (`times`): waiters hear of a peer that is gone within a heartbeat, of one that is silent within what the
//!   settings say, and a cable that is put right carries tensors again within a second.

pub(crate) mod books;
mod calls;
mod times;

use std::collections::BTreeMap;

use sealane::Code;

use self::books::{Books, Call};
use self::calls::{Meetings, is_given_up};
use super::deeds::Harm;
use super::history::{Done, History, micros};
use crate::hosts::TASKS;
use crate::traffic::TIMEOUT_MAX;
use crate::traffic::ledger::{Kind, Outcome};

#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    /// The measured times, in microseconds.
    pub(crate) times: BTreeMap<&'static str, Vec<u64>>,
}

impl Verdict {
    fn blame(&mut self, what: &str, call: &Call) {
        self.violations.push(format!("{what} {call:?}"));
    }
}

pub(crate) fn judge(books: &Books, history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    let meetings = Meetings::of(books);
    times::judge(books, history, &mut verdict);
    for call in books.calls() {
        kind(call, history, &mut verdict);
        let has_to_succeed = match call.what.kind {
            Kind::Send | Kind::Recv => meetings.has_other_side(call),
            Kind::Read => !is_given_up(books, call),
            Kind::Stand | Kind::Burst | Kind::Accept | Kind::AcceptRows => false,
            Kind::Publish | Kind::Pull | Kind::Push | Kind::WriteRows | Kind::PullRows | Kind::PushRows => true,
            Kind::Stream => true,
        };
        if has_to_succeed && is_unprovoked(call, history) {
            verdict.blame("nothing was done to those, and it failed", call);
        }
    }
    meetings.judge(history, &mut verdict);
    calls::pulls(books, history, &mut verdict);
    calls::arrivals(books, history, &mut verdict);
    verdict
}

/// Errors that none of the injected faults explains, and wrong bytes.
fn kind(call: &Call, history: &History, verdict: &mut Verdict) {
    let Some(outcome) = call.outcome() else { return };
    if matches!(outcome, Outcome::Wrong(_)) {
        verdict.blame("wrong bytes", call);
    }
    if call.what.kind == Kind::Burst && *outcome == Outcome::Ok {
        verdict.blame("nobody asked, and it was received", call);
    }
    let felt = |tasks: &[usize], by: &dyn Fn(&Done) -> bool| history.felt(tasks, call.began, call.over()).any(by);
    let is_drained = || felt(&[call.task], &|done| done.deed.harm == Harm::Drain);
    // A process that is stopped in the middle of a row leaves it half written.
    let is_half_written = || {
        let ends = |done: &Done| done.deed.stops() || done.deed.kills();
        call.what.kind == Kind::PullRows && felt(&call.what.peers, &ends)
    };
    // A new process attaches first, and listens for streams a moment later: see `is_unprovoked`.
    let is_early = call.what.kind == Kind::Stream && outcome.is_failed_with(Code::NotFound);
    let unexplained = [Code::InvalidArgument, Code::NotFound, Code::PermissionDenied, Code::Unimplemented];
    let is_unexplained = !is_early && unexplained.iter().any(|&code| outcome.is_failed_with(code));
    if is_unexplained || outcome.is_failed_with(Code::Aborted) && !is_drained() && !is_half_written() {
        verdict.blame("an error that nothing explains", call);
    }
    let has_waited = call.what.kind == Kind::Read && outcome.is_failed_with(Code::DeadlineExceeded);
    if has_waited && history.standstill(call.task, call.began, call.over()) == 0 {
        verdict.blame("a reader was told of no end", call);
    }
}

/// Whether a call failed although no fault affected it. A pool may fill up because of any fault: what is meant for a process that
/// is gone fills it, until its deadline.
fn is_unprovoked(call: &Call, history: &History) -> bool {
    let Some(outcome @ Outcome::Failed(..)) = call.outcome() else { return false };
    let (concerned, from) = match outcome.is_failed_with(Code::ResourceExhausted) {
        true => ((0..TASKS).collect(), call.began.saturating_sub(micros(TIMEOUT_MAX))),
        false => (call.concerned(), call.began),
    };
    history.is_calm(&concerned, from, call.over()) && call.began >= history.start
}

/// How calls ended, by kind and outcome.
pub(crate) fn outcomes(books: &Books) -> BTreeMap<Kind, BTreeMap<&str, usize>> {
    let mut counts: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for call in books.calls() {
        let outcome = match call.outcome() {
            Some(Outcome::Pulled(versions)) if versions.contains(&None) => "in part",
            Some(Outcome::Ok | Outcome::Got(_) | Outcome::Pulled(_)) => "ok",
            Some(Outcome::Dropped) => "given up",
            Some(Outcome::Failed(code, _)) => code,
            Some(Outcome::Wrong(_)) => "WRONG",
            None => "killed",
        };
        *counts.entry(call.what.kind).or_default().entry(outcome).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
