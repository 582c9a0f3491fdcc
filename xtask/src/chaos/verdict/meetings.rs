//! Sends and recvs: every tensor is accounted for.

use std::collections::{HashMap, HashSet};

use sealane::Code;

use super::books::{Books, Call};
use super::{Verdict, unprovoked};
use crate::chaos::deeds::{Deed, Victim};
use crate::chaos::history::{History, SETTLE, micros};
use crate::traffic::ledger::{Outcome, What};

/// Producer and its process, consumer, step, key.
type Spot = (usize, u32, usize, i64, u32);

pub(super) fn judge(books: &Books, history: &History, verdict: &mut Verdict) {
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
                if !may_be_lost(send, to, asked, history) {
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
fn may_be_lost(send: &Call, to: usize, asked: &[&Call], history: &History) -> bool {
    let from = asked.iter().map(|recv| recv.began).min().unwrap_or(send.began).min(send.began);
    let until = asked.iter().map(|recv| recv.over()).max().unwrap_or(0).max(send.over()) + micros(SETTLE);
    history.felt(&[to], from, until).any(|done| {
        let of_consumer = matches!(done.deed.victim(), Victim::Daemon(_) | Victim::Task(_));
        of_consumer && (done.deed.kills() || done.deed.stops()) && !matches!(done.deed, Deed::Burst { .. })
    })
}
