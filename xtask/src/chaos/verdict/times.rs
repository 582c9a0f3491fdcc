//! When calls end, and how soon the loss and the return of a peer are noticed.

use std::time::Duration;

use super::Verdict;
use super::books::{Books, Call, Life};
use crate::chaos::deeds::{Harm, Victim};
use crate::chaos::history::{Done, History, micros, overlap};
use crate::hosts::{CONNECT_TIMEOUT, Cut, HEARTBEAT, HOSTS, PEER_TIMEOUT, TASKS, host_of};
use crate::traffic::ATTACH_TIMEOUT;
use crate::traffic::ledger::{Kind, Outcome};

/// How much longer than its deadline a call may take: a client ends it a second later if its daemon does not answer
/// (`client/src/lib.rs`), and may wait as long for room in the ring before it begins.
const GRACE: Duration = Duration::from_secs(2);

/// What a busy machine adds to any measured time.
const BUSY: Duration = Duration::from_millis(1500);

/// How soon a restored cable carries tensors again.
const RECONNECT: Duration = Duration::from_secs(1);

/// What is measured.
pub(super) const RECONNECTED: &str = "a cable is back until the first tensor";
pub(super) const CLOSED_TOLD: &str = "a daemon is killed until its peers' waiters are told";
const CLIENT_TOLD: &str = "a client is killed until those are told";
pub(super) const SILENT_TOLD: &str = "a peer is silent until those are told";
const LATE: &str = "calls that ended after their deadline: how much";

pub(super) fn judge(books: &Books, history: &History, verdict: &mut Verdict) {
    for life in &books.lives {
        life.calls.iter().for_each(|call| deadline(call, life, history, verdict));
    }
    for done in &history.done {
        if let (Harm::Cut(Cut::Pulled | Cut::Silent | Cut::OneWay), Victim::Cable(host)) =
            (done.deed.harm, done.deed.victim)
        {
            returned(host, done, books, history, verdict);
        }
        told(done, books, history, verdict);
    }
}

fn deadline(call: &Call, life: &Life, history: &History, verdict: &mut Verdict) {
    let Some((at, _)) = &call.end else {
        if life.finished {
            verdict.blame("never ended", call);
        }
        return;
    };
    let (from, until) = (call.began, *at);
    let held: u64 = life.held.iter().map(|&held| overlap(held, (from, until))).sum();
    let excused = history.standstill(call.task, from, until) + held;
    let late = at.saturating_sub(call.until).saturating_sub(excused);
    // A publication has no deadline, and an accept that ends at its own has just found nothing.
    let has_none = matches!(call.what.kind, Kind::Publish | Kind::WriteRows | Kind::Accept | Kind::AcceptRows);
    if late > 0 && !has_none {
        verdict.times.entry(LATE).or_default().push(late);
    }
    if late > micros(GRACE + ATTACH_TIMEOUT + BUSY) {
        verdict.blame(&format!("ended {:.3} s after its deadline", late as f64 / 1e6), call);
    }
}

/// How soon traffic between a host and the others shows that its cable is back.
fn returned(host: usize, cut: &Done, books: &Books, history: &History, verdict: &mut Verdict) {
    let allowed = micros(RECONNECT + BUSY);
    let on = |host| (0..TASKS).filter(move |&task| host_of(task) == host);
    for other in (0..HOSTS).filter(|&other| other != host) {
        let both: Vec<usize> = on(host).chain(on(other)).collect();
        let others = history.felt(&both, cut.ended, cut.ended + allowed).filter(|done| done.began != cut.began);
        if others.count() > 0 {
            continue;
        }
        let first = books.calls().filter_map(|call| passed(call, cut.ended, host, other)).min();
        let took = first.map(|first| first - cut.ended);
        if took.is_none_or(|took| took > allowed) {
            let when = took.map_or("never".into(), |took| format!("{:.3} s later", took as f64 / 1e6));
            let back = history.seconds(cut.ended);
            let what = format!("the cable was back at {back:.3} s, host{host} and host{other} met again {when}");
            verdict.violations.push(what);
        }
        verdict.times.entry(RECONNECTED).or_default().extend(took);
    }
}

/// When a call showed that tensors pass between two hosts, after that time.
fn passed(call: &Call, after: u64, one: usize, two: usize) -> Option<u64> {
    let has_passed = match (call.what.kind, call.outcome()?) {
        (Kind::Recv, outcome) => matches!(outcome, Outcome::Got(_)),
        (Kind::Pull, outcome) => matches!(outcome, Outcome::Pulled(_)),
        (kind, outcome) => matches!(kind, Kind::Push | Kind::Send) && *outcome == Outcome::Ok,
    };
    let hosts = (host_of(call.task), host_of(*call.what.peers.first()?));
    let at = call.over();
    (has_passed && at > after && (hosts == (one, two) || hosts == (two, one))).then_some(at)
}

/// How soon the tasks that waited for a peer learned of its loss.
fn told(done: &Done, books: &Books, history: &History, verdict: &mut Verdict) {
    let (bound, measured) = match (done.deed.harm, done.deed.victim) {
        (Harm::Kill, Victim::Daemon(_)) => (HEARTBEAT, CLOSED_TOLD),
        (Harm::Kill, Victim::Task(_)) => (HEARTBEAT, CLIENT_TOLD),
        (Harm::Cut(Cut::Silent | Cut::OneWay), _) | (Harm::Stop, Victim::Daemon(_)) if !history.is_patient => {
            (PEER_TIMEOUT + HEARTBEAT + CONNECT_TIMEOUT, SILENT_TOLD)
        }
        _ => return,
    };
    let allowed = micros(bound + BUSY);
    if done.ended - done.began < allowed && !done.deed.kills() {
        // It was over before anybody had to notice.
        return;
    }
    let lost = |task: usize| match done.deed.victim {
        Victim::Task(victim) => task == victim,
        _ => History::reaches(done.deed, task),
    };
    let waits = |call: &&Call| call.what.kind == Kind::Stand && lost(call.what.peers[0]) && !lost(call.task);
    for call in books.calls().filter(waits) {
        let stood = call.began < done.began && call.over() > done.began;
        let both = call.concerned();
        let others = history.felt(&both, done.began, done.began + allowed).filter(|other| other.began != done.began);
        // A call that began a moment before may not have reached the peer yet.
        if !stood || done.began - call.began < micros(HEARTBEAT) || others.count() > 0 || call.end.is_none() {
            continue;
        }
        let took = call.over() - done.began;
        if took > allowed || !call.outcome().is_some_and(|end| end.is_failed_with(sealane::Code::Unavailable)) {
            let (deed, seconds) = (done.deed, took as f64 / 1e6);
            verdict.blame(&format!("heard {seconds:.3} s after '{deed}', at most {allowed} us are allowed"), call);
        }
        verdict.times.entry(measured).or_default().push(took);
    }
}
