//! Each kind of call: sends and recvs, of which every tensor is accounted for, publications and pulls, pushes and streams.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use sealane::Code;

use super::Verdict;
use super::books::{Books, Call};
use crate::chaos::history::{History, SETTLE, micros};
use crate::traffic::ledger::{Arrival, Kind, Outcome};

/// How long a pushed tensor may stay in a queue: as long as its task accepts nothing or is stopped, and some more.
const QUEUED: Duration = Duration::from_secs(10);

/// Producer, consumer, step, key.
type Spot = (usize, usize, i64, u32);

/// Sends and recvs by producer, consumer, step and key.
pub(super) struct Meetings<'a> {
    sends: HashMap<Spot, Vec<&'a Call>>,
    recvs: HashMap<Spot, Vec<&'a Call>>,
}

/// Identifies the tensor of a send or recv.
fn spot(call: &Call) -> Spot {
    let (one, other) = (call.task, call.what.peers[0]);
    let (from, to) = if call.what.kind == Kind::Send { (one, other) } else { (other, one) };
    (from, to, call.what.number, call.what.key)
}

impl<'a> Meetings<'a> {
    pub(super) fn of(books: &'a Books) -> Meetings<'a> {
        let all = |kind| {
            let mut calls: HashMap<Spot, Vec<&Call>> = HashMap::new();
            for call in books.calls().filter(|call| call.what.kind == kind) {
                calls.entry(spot(call)).or_default().push(call);
            }
            calls
        };
        Meetings { sends: all(Kind::Send), recvs: all(Kind::Recv) }
    }

    /// Whether the other side made a matching call: it may have skipped the tick, or had no memory for it.
    pub(super) fn has_other_side(&self, call: &Call) -> bool {
        let others = if call.what.kind == Kind::Send { &self.recvs } else { &self.sends };
        let had_memory = |call: &&Call| !call.outcome().is_some_and(|end| end.is_failed_with(Code::ResourceExhausted));
        others.get(&spot(call)).is_some_and(|others| others.iter().any(had_memory))
    }

    pub(super) fn judge(&self, history: &History, verdict: &mut Verdict) {
        let mut deliveries: HashMap<(Spot, u32), &Call> = HashMap::new();
        for (&spot, recvs) in &self.recvs {
            for &call in recvs {
                let Some(&Outcome::Got(life)) = call.outcome() else { continue };
                let send = self.sends.get(&spot).and_then(|sends| sends.iter().find(|send| send.life == life));
                match send {
                    None => verdict.blame("got what nobody sent", call),
                    Some(send) if send.began > call.over() => {
                        verdict.blame(&format!("got what was sent later {send:?}"), call);
                    }
                    Some(_) => {}
                }
                if let Some(earlier) = deliveries.insert((spot, life), call) {
                    verdict.blame(&format!("received twice, before by {earlier:?}"), call);
                }
            }
        }
        for (&spot, sends) in &self.sends {
            let asked = self.recvs.get(&spot).map_or(&[][..], Vec::as_slice);
            for &send in sends {
                let is_calm = || history.is_calm(&send.concerned(), send.began, send.over());
                match (send.outcome(), deliveries.get(&(spot, send.life))) {
                    (Some(Outcome::Ok), None) if !may_be_lost_with_a_consumer(send, asked, history) => {
                        verdict.blame(&format!("sent well, received by nobody; asked: {asked:?};"), send);
                    }
                    (Some(Outcome::Failed(..)), Some(recv)) if is_calm() => {
                        verdict.blame(&format!("failed, and received all the same {recv:?}"), send);
                    }
                    _ => {}
                }
            }
        }
    }
}

/// Whether a delivered tensor can be lost: with the process of the consumer or its daemon, or because either was stopped until the
/// call was given up.
fn may_be_lost_with_a_consumer(send: &Call, asked: &[&Call], history: &History) -> bool {
    let from = asked.iter().map(|recv| recv.began).fold(send.began, u64::min);
    let until = asked.iter().map(|recv| recv.over()).fold(send.over(), u64::max) + micros(SETTLE);
    history.felt(&send.what.peers, from, until).any(|done| done.deed.kills() || done.deed.stops())
}

pub(super) fn pulls(books: &Books, history: &History, verdict: &mut Verdict) {
    let is_publication = |kind| matches!(kind, Kind::Publish | Kind::WriteRows);
    let publications = books.calls().filter(|call| is_publication(call.what.kind));
    let published: HashSet<_> = publications.map(|call| (call.task, call.what.kind, call.what.number)).collect();
    // By consumer, producer and key; for tables, a key that no tensor has.
    let mut newest: HashMap<(usize, usize, usize), i64> = HashMap::new();
    for call in books.calls() {
        let Some(Outcome::Pulled(versions)) = call.outcome() else { continue };
        let is_calm = || history.is_calm(&call.concerned(), call.began, call.over());
        if versions.contains(&None) && call.began >= history.start && is_calm() {
            verdict.blame("nothing was done to them, and not all came", call);
        }
        let is_table = call.what.kind == Kind::PullRows;
        for (index, version) in versions.iter().enumerate() {
            let Some(version) = *version else { continue };
            let (from, key) = if is_table { (call.what.peers[index], usize::MAX) } else { (call.what.peers[0], index) };
            if version < call.what.number {
                verdict.blame("older than it was asked for", call);
            }
            let kind = if is_table { Kind::WriteRows } else { Kind::Publish };
            if !published.contains(&(from, kind, version)) {
                verdict.blame("a version that was never published", call);
            }
            let newest = newest.entry((call.task, from, key)).or_insert(version);
            if version < *newest {
                verdict.blame("a version went back", call);
            }
            *newest = version.max(*newest);
        }
    }
}

/// Pushes and streams: what arrived was sent, and arrived once, pushes in their order; what ended well has arrived.
pub(super) fn arrivals(books: &Books, history: &History, verdict: &mut Verdict) {
    // By the receiving task, the kind, the sender, its process, and number.
    let mut arrived: HashMap<(usize, Kind, usize, u32, i64), u64> = HashMap::new();
    let mut last: HashMap<(usize, Kind, usize, u32), i64> = HashMap::new();
    let name = |kind, from, life, number, to, at| format!("{kind:?} {number} of task{from}.{life} to task{to} at {at}");
    for receiver in &books.lives {
        let to = receiver.task;
        for arrival in &receiver.arrivals {
            let &Arrival { at, kind, from, life, number } = arrival;
            let last = last.insert((to, kind, from, life), number);
            let mut blame =
                |what| verdict.violations.push(format!("{what}: {}", name(kind, from, life, number, to, at)));
            if arrived.insert((to, kind, from, life, number), at).is_some() {
                blame("arrived twice");
            } else if kind == Kind::Push && last.is_some_and(|last| last > number) {
                blame("arrived after a later one");
            }
        }
    }
    for call in books.calls().filter(|call| matches!(call.what.kind, Kind::Push | Kind::Stream)) {
        let to = call.what.peers[0];
        let has_arrived = arrived.remove(&(to, call.what.kind, call.task, call.life, call.what.number)).is_some();
        // The queue that took it may be lost with its process or daemon.
        let may_be_lost =
            || history.felt(&[to], call.began, call.over() + micros(QUEUED)).any(|done| done.deed.kills());
        if call.outcome() == Some(&Outcome::Ok) && !has_arrived && !may_be_lost() {
            verdict.blame("ended well, and never arrived", call);
        }
    }
    for ((to, kind, from, life, number), at) in arrived {
        verdict.violations.push(format!("never sent: {}", name(kind, from, life, number, to, at)));
    }
}

/// Whether the dialer of a stream had given up by the time that it was read, for example because it dialed before the reader's
/// process existed.
pub(super) fn is_given_up(books: &Books, read: &Call) -> bool {
    let dials = books.calls().filter(|dial| dial.what.kind == Kind::Stream && read.what.peers == [dial.task]);
    dials.filter(|dial| dial.what.peers == [read.task]).any(|dial| {
        let has_failed = matches!(dial.outcome(), Some(Outcome::Failed(..)));
        has_failed && dial.over() <= read.over() && read.began <= dial.over() + micros(SETTLE)
    })
}
