//! Pushes and accepts.

use std::collections::HashMap;

use super::books::{Books, Call};
use super::{Verdict, unprovoked};
use crate::chaos::history::{History, micros};
use crate::traffic::ledger::{Outcome, What};

/// How long what was pushed may lie in a queue: as long as its task is deaf, and stands still, and some.
const QUEUED: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) fn judge(books: &Books, history: &History, verdict: &mut Verdict) {
    // By acceptor, pusher, its process, and number.
    let mut accepted: HashMap<(usize, usize, u32, u64), u64> = HashMap::new();
    let mut last: HashMap<(usize, usize, u32), u64> = HashMap::new();
    for life in &books.lives {
        for item in &life.accepted {
            let stream = (life.task, item.from, item.life);
            let mut blame = |what: &str| {
                let name = format!("push {} of task{}.{}", item.number, item.from, item.life);
                verdict.violations.push(format!("{name} {what}, by task{}.{} at {}", life.task, life.number, item.at));
            };
            if accepted.insert((life.task, item.from, item.life, item.number), item.at).is_some() {
                blame("was accepted twice");
            } else if last.get(&stream).is_some_and(|&last| last > item.number) {
                blame("was accepted after a later one");
            }
            last.insert(stream, item.number);
        }
    }
    for call in books.calls() {
        let What::Push { to, number, .. } = call.what else { continue };
        verdict.violations.extend(unprovoked(call, &[to, call.task], history));
        let is_accepted = accepted.remove(&(to, call.task, call.life, number)).is_some();
        if call.outcome() == Some(&Outcome::Ok) && !is_accepted && !may_be_lost(call, to, history) {
            verdict.violations.push(format!("pushed well, accepted by nobody {call}"));
        }
    }
    for ((to, from, life, number), at) in accepted {
        let what = "was accepted and never pushed";
        verdict.violations.push(format!("push {number} of task{from}.{life} {what}, by task{to} at {at}"));
    }
}

/// Whether the queue that took it was lost with its process or daemon.
fn may_be_lost(push: &Call, to: usize, history: &History) -> bool {
    history.felt(&[to], push.began, push.over() + micros(QUEUED)).any(|done| done.deed.kills())
}
