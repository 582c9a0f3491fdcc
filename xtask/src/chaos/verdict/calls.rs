//! Each kind of call: sends and recvs, whose every tensor is accounted for, publications and pulls, pushes and accepts.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sealane::Code;

use super::books::{Books, Call};
use super::{Verdict, unprovoked};
use crate::chaos::deeds::{Deed, Victim};
use crate::chaos::history::{History, SETTLE, micros};
use crate::traffic::ledger::{Outcome, What};

/// How long what was pushed may lie in a queue: as long as its task is deaf, and stands still, and some.
const QUEUED: Duration = Duration::from_secs(10);

/// Producer and its process, consumer, step, key.
type Spot = (usize, u32, usize, i64, u32);

pub(super) fn meetings(books: &Books, history: &History, verdict: &mut Verdict) {
    let sends: HashMap<Spot, &Call> = books.calls().filter_map(|call| Some((sent_at(call)?, call))).collect();
    let had_memory = |send: &Call| !send.outcome().is_some_and(|end| end.is_failed_with(Code::ResourceExhausted));
    let sent = sends.iter().filter(|(_, send)| had_memory(send));
    let sent: HashSet<_> = sent.map(|(&(from, _, to, step, key), _)| (from, to, step, key)).collect();
    let mut deliveries: HashMap<Spot, &Call> = HashMap::new();
    let mut asked: HashMap<(usize, usize, i64, u32), Vec<&Call>> = HashMap::new();
    for call in books.calls() {
        let What::Recv { from, step, key, .. } = call.what else { continue };
        asked.entry((from, call.task, step, key)).or_default().push(call);
        if let Some(complaint) = unprovoked(call, &[from, call.task], history) {
            // Its producer may have skipped the tick, or had no memory for it.
            if sent.contains(&(from, call.task, step, key)) {
                verdict.violations.push(complaint);
            }
        }
        let Some(Outcome::Got { life }) = call.outcome() else { continue };
        let mut blame = |what: String| verdict.violations.push(format!("{what} {call}"));
        let spot = (from, *life, call.task, step, key);
        match sends.get(&spot) {
            None => blame("got what nobody sent".into()),
            Some(send) if send.began > call.over() => blame(format!("got what was sent later {send}")),
            Some(_) => {}
        }
        if let Some(earlier) = deliveries.insert(spot, call) {
            blame(format!("received twice, before by {earlier}"));
        }
    }
    for (spot, send) in &sends {
        let (_, _, to, step, key) = *spot;
        let received = deliveries.get(spot);
        // Its consumer may have skipped the tick, or had no memory for it.
        let wanted = asked.get(&(send.task, to, step, key));
        if wanted.is_some_and(|asked| asked.iter().any(|recv| had_memory(recv))) {
            verdict.violations.extend(unprovoked(send, &[send.task, to], history));
        }
        match (send.outcome(), received) {
            (Some(Outcome::Ok), None) => {
                let asked = asked.get(&(send.task, to, step, key)).map_or(&[][..], Vec::as_slice);
                if !may_be_lost_with_a_consumer(send, to, asked, history) {
                    verdict.violations.push(format!("sent well, received by nobody {send}; asked: {}", list(asked)));
                }
            }
            (Some(Outcome::Failed { .. }), Some(recv))
                if history.is_calm(&[send.task, to], send.began, send.over()) =>
            {
                verdict.violations.push(format!("failed, and received all the same {send} {recv}"));
            }
            _ => {}
        }
    }
    let bursts = books.calls().filter(|call| matches!(call.what, What::Burst { .. }));
    for call in bursts.filter(|call| call.outcome() == Some(&Outcome::Ok)) {
        verdict.violations.push(format!("nobody asked, and it was received {call}"));
    }
}

fn sent_at(call: &Call) -> Option<Spot> {
    match call.what {
        What::Send { to, step, key, .. } => Some((call.task, call.life, to, step, key)),
        _ => None,
    }
}

fn list(calls: &[&Call]) -> String {
    calls.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// Whether what was handed over can be lost: with the process of the consumer or its daemon, or since either stood still
/// until the call was given up.
fn may_be_lost_with_a_consumer(send: &Call, to: usize, asked: &[&Call], history: &History) -> bool {
    let from = asked.iter().map(|recv| recv.began).min().unwrap_or(send.began).min(send.began);
    let until = asked.iter().map(|recv| recv.over()).max().unwrap_or(0).max(send.over()) + micros(SETTLE);
    history.felt(&[to], from, until).any(|done| {
        let of_consumer = matches!(done.deed.victim(), Victim::Daemon(_) | Victim::Task(_));
        of_consumer && (done.deed.kills() || done.deed.stops()) && !matches!(done.deed, Deed::Burst { .. })
    })
}

pub(super) fn pulls(books: &Books, history: &History, verdict: &mut Verdict) {
    let published: HashSet<(usize, bool, i64)> = books
        .calls()
        .filter_map(|call| match call.what {
            What::Publish { version } => Some((call.task, false, version)),
            What::Write { version } => Some((call.task, true, version)),
            _ => None,
        })
        .collect();
    // By consumer, producer and key: of tables one that no tensor has.
    let mut newest: HashMap<(usize, usize, usize), i64> = HashMap::new();
    for call in books.calls() {
        let (peers, min) = match call.what {
            What::Publish { .. } | What::Write { .. } => (vec![call.task], i64::MIN),
            What::Pull { from, min } => (vec![from, call.task], min),
            What::PullRows { from: [one, other], min } => (vec![one, other, call.task], min),
            _ => continue,
        };
        verdict.violations.extend(unprovoked(call, &peers, history));
        let Some(Outcome::Pulled(versions)) = call.outcome() else { continue };
        let mut blame = |what: &str| verdict.violations.push(format!("{what} {call}"));
        let is_calm = || history.is_calm(&peers, call.began, call.over());
        if versions.iter().any(Option::is_none) && call.began >= history.start && is_calm() {
            blame("nothing was done to them, and not all came");
        }
        let is_table = matches!(call.what, What::PullRows { .. });
        for (index, version) in versions.iter().enumerate() {
            let Some(version) = *version else { continue };
            let (from, key) = if is_table { (peers[index], usize::MAX) } else { (peers[0], index) };
            if version < min {
                blame("older than it was asked for");
            }
            if !published.contains(&(from, is_table, version)) {
                blame("a version that was never published");
            }
            let newest = newest.entry((call.task, from, key)).or_insert(version);
            if version < *newest {
                blame("a version went back");
            }
            *newest = version.max(*newest);
        }
    }
}

pub(super) fn pushes(books: &Books, history: &History, verdict: &mut Verdict) {
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
        if let What::PushRows { to: [one, other] } = call.what {
            verdict.violations.extend(unprovoked(call, &[one, other, call.task], history));
        }
        let What::Push { to, number, .. } = call.what else { continue };
        verdict.violations.extend(unprovoked(call, &[to, call.task], history));
        let is_accepted = accepted.remove(&(to, call.task, call.life, number)).is_some();
        if call.outcome() == Some(&Outcome::Ok) && !is_accepted && !may_be_lost_with_a_queue(call, to, history) {
            verdict.violations.push(format!("pushed well, accepted by nobody {call}"));
        }
    }
    for ((to, from, life, number), at) in accepted {
        let what = "was accepted and never pushed";
        verdict.violations.push(format!("push {number} of task{from}.{life} {what}, by task{to} at {at}"));
    }
}

/// Whether the queue that took it was lost with its process or daemon.
fn may_be_lost_with_a_queue(push: &Call, to: usize, history: &History) -> bool {
    history.felt(&[to], push.began, push.over() + micros(QUEUED)).any(|done| done.deed.kills())
}
