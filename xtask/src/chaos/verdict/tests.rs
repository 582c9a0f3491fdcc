//! Each promise, broken by a ledger that was written for it.

use super::books::{Books, Life};
use super::times::{CLOSED_TOLD, RECONNECTED, SILENT_TOLD};
use super::*;
use crate::chaos::deeds::Deed;
use crate::hosts::{Cut, Patience, TASKS};
use crate::traffic::ledger::Line;

const SECOND: u64 = 1_000_000;

/// What was done, in seconds.
fn history(deeds: &[(Deed, u64, u64)]) -> History {
    let mut history = History::new(Patience::Short, 0);
    for (index, &(deed, began, ended)) in deeds.iter().enumerate() {
        history.begin(index, deed, began * SECOND);
        history.end(index, ended * SECOND);
    }
    history
}

/// The ledger of a process: its task, its number, whether another followed, and the lines.
type Ledger<'a> = (usize, u32, bool, &'a [Line]);

fn books(ledgers: &[Ledger<'_>]) -> Books {
    let read = |&(task, number, killed, lines): &Ledger<'_>| {
        let mut life = Life::new(task, number, !killed);
        lines.iter().for_each(|line| life.add(line.clone()).unwrap());
        life
    };
    Books { lives: ledgers.iter().map(read).collect() }
}

#[track_caller]
fn passes(ledgers: &[Ledger<'_>], deeds: &[(Deed, u64, u64)]) {
    assert_eq!(judge(&books(ledgers), &history(deeds)).violations, Vec::<String>::new());
}

#[track_caller]
fn fails(why: &str, ledgers: &[Ledger<'_>], deeds: &[(Deed, u64, u64)]) {
    let violations = judge(&books(ledgers), &history(deeds)).violations;
    assert!(violations.len() == 1 && violations[0].contains(why), "{violations:#?}");
}

/// Tasks of different hosts.
const SENDER: usize = 0;
const RECEIVER: usize = 2;

/// When the calls of most tests begin, and end.
const BEGAN: u64 = 20 * SECOND;
const ENDED: u64 = BEGAN + SECOND / 10;

const SEND: What = What::Send { to: RECEIVER, step: 7, key: 0, bytes: 64 };
const RECV: What = What::Recv { from: SENDER, step: 7, key: 0, bytes: 64 };

/// A call that has three seconds and does not end.
fn begun(call: u64, what: What) -> Line {
    Line::Begin { call, at: BEGAN, until: BEGAN + 3 * SECOND, what }
}

/// The same, which ends at that time.
fn until(at: u64, call: u64, what: What, outcome: Outcome) -> Vec<Line> {
    vec![begun(call, what), Line::End { call, at, outcome }]
}

fn ended(call: u64, what: What, outcome: Outcome) -> Vec<Line> {
    until(ENDED, call, what, outcome)
}

fn failed(code: Code) -> Outcome {
    Outcome::Failed { code: format!("{code:?}"), reason: "a test says so".into() }
}

fn sent() -> Vec<Line> {
    ended(0, SEND, Outcome::Ok)
}

/// The tensor of that process of the sender.
fn received(call: u64, life: u32) -> Vec<Line> {
    ended(call, RECV, Outcome::Got { life })
}

#[test]
fn a_tensor_is_sent_and_received() {
    passes(&[(SENDER, 0, false, &sent()), (RECEIVER, 0, false, &received(0, 0))], &[]);
}

#[test]
fn a_tensor_is_received_twice() {
    let (sent, once, again) = (sent(), received(0, 0), received(1, 0));
    let both = [once.clone(), again.clone()].concat();
    fails("received twice", &[(SENDER, 0, false, &sent), (RECEIVER, 0, false, &both)], &[]);
    // Nothing that is done excuses it.
    let killed = [(Deed::KillDaemon(0), 19, 21), (Deed::KillTask(RECEIVER), 20, 21)];
    let ledgers = [(SENDER, 0, false, &sent[..]), (RECEIVER, 0, true, &once), (RECEIVER, 1, false, &again)];
    fails("received twice", &ledgers, &killed);
}

#[test]
fn a_tensor_comes_that_nobody_sent() {
    fails("nobody sent", &[(RECEIVER, 0, false, &received(0, 0))], &[]);
    let ledgers = [(SENDER, 0, false, &sent()[..]), (RECEIVER, 0, false, &received(0, 1))];
    let violations = judge(&books(&ledgers), &history(&[])).violations;
    assert!(violations.iter().any(|what| what.contains("nobody sent")), "{violations:?}");
}

#[test]
fn a_tensor_is_lost() {
    let (sent, unheard) = (sent(), until(BEGAN + 3 * SECOND + 100, 0, RECV, failed(Code::DeadlineExceeded)));
    let ledgers = [(SENDER, 0, false, &sent[..]), (RECEIVER, 0, false, &unheard)];
    let cut = [(Deed::Cut(1, Cut::Throttled(1)), 19, 24)];
    fails("received by nobody", &ledgers, &cut);
    // With a daemon that stood still, or a process that was killed, it may be.
    passes(&ledgers, &[(Deed::StopDaemon(1), 19, 24)]);
    let ledgers = [(SENDER, 0, false, &sent[..]), (RECEIVER, 0, true, &[begun(0, RECV)])];
    passes(&ledgers, &[(Deed::KillTask(RECEIVER), 21, 22)]);
}

#[test]
fn a_send_fails_and_is_received_all_the_same() {
    let (unsent, received) = (ended(0, SEND, failed(Code::Unavailable)), received(0, 0));
    let ledgers = [(SENDER, 0, false, &unsent[..]), (RECEIVER, 0, false, &received)];
    let violations = judge(&books(&ledgers), &history(&[])).violations;
    assert!(violations.iter().any(|what| what.contains("received all the same")), "{violations:?}");
    passes(&ledgers, &[(Deed::KillDaemon(0), 20, 21)]);
}

#[test]
fn a_call_fails_for_no_reason() {
    let publish = |code| ended(0, What::Publish { version: 3 }, failed(code));
    let gone = publish(Code::Unavailable);
    fails("nothing was done", &[(0, 0, false, &gone)], &[]);
    fails("nothing was done", &[(0, 0, false, &gone)], &[(Deed::KillDaemon(1), 19, 21)]);
    passes(&[(0, 0, false, &gone)], &[(Deed::KillDaemon(0), 19, 21)]);
    let wrong = publish(Code::InvalidArgument);
    fails("nothing explains", &[(0, 0, false, &wrong)], &[(Deed::KillDaemon(0), 19, 21)]);
    let aborted = publish(Code::Aborted);
    fails("nothing explains", &[(0, 0, false, &aborted)], &[(Deed::KillDaemon(0), 19, 21)]);
    passes(&[(0, 0, false, &aborted)], &[(Deed::DrainDaemon(0), 19, 21)]);
}

#[test]
fn a_pool_is_full_for_no_reason() {
    let full = ended(0, What::Publish { version: 3 }, failed(Code::ResourceExhausted));
    fails("nothing was done", &[(0, 0, false, &full)], &[]);
    passes(&[(0, 0, false, &full)], &[(Deed::KillDaemon(1), 14, 15)]);
}

#[test]
fn bytes_are_wrong() {
    let wrong = ended(0, RECV, Outcome::Wrong("63 bytes instead of 64".into()));
    fails("wrong bytes", &[(RECEIVER, 0, false, &wrong)], &[(Deed::KillDaemon(1), 19, 21)]);
}

#[test]
fn a_call_ends_late_or_never() {
    let late = until(28 * SECOND, 0, RECV, failed(Code::DeadlineExceeded));
    fails("after its deadline", &[(RECEIVER, 0, false, &late)], &[(Deed::StopDaemon(1), 19, 28)]);
    passes(&[(RECEIVER, 0, false, &late)], &[(Deed::StopTask(RECEIVER), 22, 27)]);
    let embedded = TASKS - 1;
    let lent = until(30 * SECOND, 0, SEND, failed(Code::DeadlineExceeded));
    let deaf = [(Deed::Cut(1, Cut::Throttled(1)), 19, 29)];
    for task in [embedded, 0] {
        fails("after its deadline", &[(task, 0, false, &lent)], &deaf);
    }
    fails("never ended", &[(RECEIVER, 0, false, &[begun(0, RECV)])], &[(Deed::StopDaemon(1), 19, 28)]);
}

#[test]
fn versions_are_never_older() {
    let publish = |call, at, version| {
        let what = What::Publish { version };
        [Line::Begin { call, at, until: at, what }, Line::End { call, at: at + 1, outcome: Outcome::Ok }]
    };
    let published = [publish(0, 1, 3), publish(1, 3, 4)].concat();
    let pull = |call, min, versions: &[Option<i64>]| {
        ended(call, What::Pull { from: 0, min }, Outcome::Pulled(versions.to_vec()))
    };
    let ledgers =
        |min, versions: [Option<i64>; 2]| [pull(0, -9, &[Some(4), Some(4)]), pull(1, min, &versions)].concat();
    let passed = ledgers(4, [Some(4), Some(4)]);
    passes(&[(0, 0, false, &published), (2, 0, false, &passed)], &[]);
    for (why, min, versions) in [
        ("went back", 3, [Some(4), Some(3)]),
        ("never published", 4, [Some(5), Some(4)]),
        ("not all came", 4, [Some(4), None]),
    ] {
        fails(why, &[(0, 0, false, &published), (2, 0, false, &ledgers(min, versions))], &[]);
    }
    let older = [&published[..], &publish(2, 5, 6)].concat();
    let first = pull(0, 6, &[Some(4), Some(6)]);
    fails("older than it was asked", &[(0, 0, false, &older), (2, 0, false, &first)], &[]);
}

#[test]
fn pushes_are_accepted_once_and_in_order() {
    let push = |number| ended(number, What::Push { to: 2, number, bytes: 64 }, Outcome::Ok);
    let pushed = [push(0), push(1)].concat();
    let accepted = |numbers: &[u64]| {
        let lines = numbers.iter().map(|&number| Line::Accepted { at: BEGAN, from: 0, life: 0, number });
        lines.collect::<Vec<_>>()
    };
    let killed = [(Deed::KillTask(2), 21, 22)];
    passes(&[(0, 0, false, &pushed), (2, 0, false, &accepted(&[0, 1]))], &[]);
    fails("after a later one", &[(0, 0, false, &pushed), (2, 0, false, &accepted(&[1, 0]))], &killed);
    fails("twice", &[(0, 0, false, &pushed), (2, 0, false, &accepted(&[0, 1, 1]))], &killed);
    let first = accepted(&[0]);
    fails("never pushed", &[(2, 0, false, &first)], &killed);
    let one = [(0, 0, false, &pushed[..]), (2, 0, false, &first)];
    fails("accepted by nobody", &one, &[]);
    fails("accepted by nobody", &one, &[(Deed::StopTask(2), 19, 24), (Deed::Cut(1, Cut::Throttled(1)), 19, 24)]);
    passes(&one, &killed);
}

#[test]
fn what_nobody_asks_for_is_not_received() {
    fails("nobody asked", &[(0, 0, false, &ended(0, What::Burst { to: 2, bytes: 64 }, Outcome::Ok))], &[]);
}

#[test]
fn a_cable_that_is_back_carries_tensors() {
    let cut = (Deed::Cut(1, Cut::Silent), 10, 15);
    // From host 0 to host 1, and from host 1 to host 2.
    let push = |to, at| {
        let what = What::Push { to, number: 0, bytes: 64 };
        [Line::Begin { call: 0, at, until: at + SECOND, what }, Line::End { call: 0, at, outcome: Outcome::Ok }]
    };
    let accepted = |from| [Line::Accepted { at: 1, from, life: 0, number: 0 }];
    let ledgers = |first, second| {
        let (one, two) = (push(2, first), push(4, second));
        let (of_first, of_second) = (accepted(0), accepted(3));
        let ledgers: [Ledger<'_>; 4] =
            [(0, 0, false, &one), (3, 0, false, &two), (2, 0, false, &of_first), (4, 0, false, &of_second)];
        judge(&books(&ledgers), &history(&[cut]))
    };
    let good = ledgers(15_700_000, 15_100_000);
    assert_eq!((good.violations, &good.times[RECONNECTED]), (vec![], &vec![700_000, 100_000]));
    let bad = ledgers(15_700_000, 18_000_000);
    assert!(
        bad.violations.len() == 1 && bad.violations[0].contains("host1 and host2 met again"),
        "{:?}",
        bad.violations
    );
}

#[test]
fn whoever_waits_is_told_of_a_loss() {
    let stood = |at, code| {
        let begin = Line::Begin { call: 0, at: 5 * SECOND, until: 65 * SECOND, what: What::Stand { from: 2 } };
        [begin, Line::End { call: 0, at, outcome: failed(code) }]
    };
    let killed = [(Deed::KillDaemon(1), 10, 12)];
    let soon = stood(10_050_000, Code::Unavailable);
    let verdict = judge(&books(&[(0, 0, false, &soon)]), &history(&killed));
    assert_eq!((verdict.violations, &verdict.times[CLOSED_TOLD]), (vec![], &vec![50_000]));
    fails("heard", &[(0, 0, false, &stood(12_000_000, Code::Unavailable))], &killed);
    fails("heard", &[(0, 0, false, &stood(10_050_000, Code::DeadlineExceeded))], &killed);
    let silent = [(Deed::Cut(1, Cut::Silent), 10, 16)];
    let told = judge(&books(&[(0, 0, false, &stood(13_100_000, Code::Unavailable))]), &history(&silent));
    assert_eq!(told.times[SILENT_TOLD], [3_100_000]);
}
