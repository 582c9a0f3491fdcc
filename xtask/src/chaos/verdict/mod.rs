//! The verdict: what was promised to the tasks (README, "What happens when ..."), and whether the ledgers show it.
//!
//! - **Every call ends**, by its deadline and a bound, unless its process was killed; with an outcome, or an error of a kind
//!   that what was done explains. (`times`)
//! - **Sends and recvs** (`calls::meetings`): a recv gets the bytes of the very send, and no send is received twice, whatever
//!   happens. A send that ended well was received, unless the receiving process or its daemon was killed or stood still
//!   meanwhile: what lay in the ring of a process that is gone, or came for a call that was given up, is lost with it.
//!   A send that failed was not received, unless something was done to one of the two: then nobody can know.
//! - **Pulls** (`calls::pulls`) bring whole versions that were published, at least the one that was asked for, and never an older one
//!   than before.
//! - **Rows** (`calls::pulls`) are whole, of a version that was written, at least the one that was asked for, and never older than before.
//! - **Pushes** (`calls::pushes`) are accepted in their order, each once. One that ended well was accepted, unless the acceptor
//!   or its daemon was killed afterwards: its queue is theirs.
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
use super::deeds::Deed;
use super::history::{Done, History, micros};
use crate::hosts::TASKS;
use crate::traffic::TIMEOUT_MAX;
use crate::traffic::ledger::{Outcome, What};

/// What a run came to.
#[derive(Default)]
pub(crate) struct Verdict {
    pub(crate) violations: Vec<String>,
    /// How long what was measured took, in microseconds.
    pub(crate) times: BTreeMap<&'static str, Vec<u64>>,
}

pub(crate) fn judge(books: &Books, history: &History) -> Verdict {
    let mut verdict = Verdict::default();
    times::judge(books, history, &mut verdict);
    kinds(books, history, &mut verdict);
    calls::meetings(books, history, &mut verdict);
    calls::pulls(books, history, &mut verdict);
    calls::pushes(books, history, &mut verdict);
    verdict
}

/// Errors that nothing which is done here explains, and wrong bytes.
fn kinds(books: &Books, history: &History, verdict: &mut Verdict) {
    let unexplained = [Code::InvalidArgument, Code::NotFound, Code::PermissionDenied, Code::Unimplemented];
    for call in books.calls() {
        let Some(outcome) = call.outcome() else { continue };
        if matches!(outcome, Outcome::Wrong(_)) {
            verdict.violations.push(format!("wrong bytes {call}"));
        }
        let drained = |done: &Done| matches!(done.deed, Deed::DrainDaemon(_));
        let is_drained = || history.felt(&[call.task], call.began, call.over()).any(drained);
        // Whoever is stopped in the middle of a row leaves it half written.
        let is_half_written = || match call.what {
            What::PullRows { from, .. } => {
                let ends = |done: &Done| done.deed.stops() || done.deed.kills();
                history.felt(&from, call.began, call.over()).any(ends)
            }
            _ => false,
        };
        let is_unexplained = unexplained.iter().any(|&code| outcome.is_failed_with(code));
        if is_unexplained || outcome.is_failed_with(Code::Aborted) && !is_drained() && !is_half_written() {
            verdict.violations.push(format!("an error that nothing explains {call}"));
        }
    }
}

/// Calls that were made where nothing was done, and failed all the same. A pool is full for whatever is done to anybody: what
/// is meant for one that is gone fills it, until its deadline.
fn unprovoked(call: &Call, peers: &[usize], history: &History) -> Option<String> {
    let outcome = call.outcome().filter(|outcome| matches!(outcome, Outcome::Failed { .. }))?;
    let everybody: Vec<usize> = (0..TASKS).collect();
    let (concerned, from) = match outcome.is_failed_with(Code::ResourceExhausted) {
        true => (&everybody[..], call.began.saturating_sub(micros(TIMEOUT_MAX))),
        false => (peers, call.began),
    };
    let is_calm = history.is_calm(concerned, from, call.over()) && call.began >= history.start;
    is_calm.then(|| format!("nothing was done to those two, and it failed {call}"))
}

/// How calls ended, by kind and outcome.
pub(crate) fn outcomes(books: &Books) -> BTreeMap<&'static str, BTreeMap<String, usize>> {
    let mut counts: BTreeMap<_, BTreeMap<_, _>> = BTreeMap::new();
    for call in books.calls() {
        let kind = match call.what {
            What::Send { .. } => "send",
            What::Recv { .. } => "recv",
            What::Stand { .. } => "recv of nothing",
            What::Burst { .. } => "send to nobody",
            What::Publish { .. } => "publish",
            What::Pull { .. } => "pull",
            What::Push { .. } => "push",
            What::Accept => "accept",
            What::Write { .. } => "write rows",
            What::PullRows { .. } => "pull rows",
            What::PushRows { .. } => "push rows",
            What::AcceptRows => "accept rows",
        };
        let outcome = match call.outcome() {
            Some(Outcome::Ok | Outcome::Got { .. } | Outcome::Took(_)) => "ok".to_string(),
            Some(Outcome::Pulled(versions)) if versions.iter().all(Option::is_some) => "ok".to_string(),
            Some(Outcome::Pulled(_)) => "in part".to_string(),
            Some(Outcome::Dropped) => "given up".to_string(),
            Some(Outcome::Failed { code, .. }) => code.clone(),
            Some(Outcome::Wrong(_)) => "WRONG".to_string(),
            None => "killed".to_string(),
        };
        *counts.entry(kind).or_default().entry(outcome).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests;
