//! Each promise, broken by a ledger that was written for it.

use super::books::{Books, Life};
use super::times::{CLOSED_TOLD, RECONNECTED, SILENT_TOLD};
use super::*;
use crate::chaos::deeds::{Deed, Victim};
use crate::hosts::{Cut, TASKS};
use crate::traffic::ledger::{Arrival, Line, What};

const SECOND: u64 = 1_000_000;

/// What was done, in seconds.
fn history(deeds: &[(Deed, u64, u64)]) -> History {
    let mut history = History::new(false, 0);
    for &(deed, began, ended) in deeds {
        let place = history.begin(deed, began * SECOND);
        history.done[place].ended = ended * SECOND;
    }
    history
}

fn deed(harm: Harm, victim: Victim) -> Deed {
    Deed { harm, victim }
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

fn send() -> What {
    What::new(Kind::Send, &[RECEIVER], 7)
}

fn recv() -> What {
    What::new(Kind::Recv, &[SENDER], 7)
}

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
    Outcome::Failed(format!("{code:?}"), "a test says so".into())
}

fn arrived(kind: Kind, from: usize, number: i64) -> Line {
    Line::Arrived(Arrival { at: BEGAN, kind, from, life: 0, number })
}

fn sent() -> Vec<Line> {
    ended(0, send(), Outcome::Ok)
}

/// The tensor of that process of the sender.
fn received(call: u64, life: u32) -> Vec<Line> {
    ended(call, recv(), Outcome::Got(life))
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
    let killed = [(deed(Harm::Kill, Victim::Daemon(0)), 19, 21), (deed(Harm::Kill, Victim::Task(RECEIVER)), 20, 21)];
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
    let (sent, unheard) = (sent(), until(BEGAN + 3 * SECOND + 100, 0, recv(), failed(Code::DeadlineExceeded)));
    let ledgers = [(SENDER, 0, false, &sent[..]), (RECEIVER, 0, false, &unheard)];
    let cut = [(Deed::cut(1, Cut::Throttled(1)), 19, 24)];
    fails("received by nobody", &ledgers, &cut);
    // With a daemon that stood still, or a process that was killed, it may be.
    passes(&ledgers, &[(deed(Harm::Stop, Victim::Daemon(1)), 19, 24)]);
    let ledgers = [(SENDER, 0, false, &sent[..]), (RECEIVER, 0, true, &[begun(0, recv())])];
    passes(&ledgers, &[(deed(Harm::Kill, Victim::Task(RECEIVER)), 21, 22)]);
}

#[test]
fn a_send_fails_and_is_received_all_the_same() {
    let (unsent, received) = (ended(0, send(), failed(Code::Unavailable)), received(0, 0));
    let ledgers = [(SENDER, 0, false, &unsent[..]), (RECEIVER, 0, false, &received)];
    let violations = judge(&books(&ledgers), &history(&[])).violations;
    assert!(violations.iter().any(|what| what.contains("received all the same")), "{violations:?}");
    passes(&ledgers, &[(deed(Harm::Kill, Victim::Daemon(0)), 20, 21)]);
}

#[test]
fn a_call_fails_for_no_reason() {
    let publish = |code| ended(0, What::new(Kind::Publish, &[], 3), failed(code));
    let gone = publish(Code::Unavailable);
    fails("nothing was done", &[(0, 0, false, &gone)], &[]);
    fails("nothing was done", &[(0, 0, false, &gone)], &[(deed(Harm::Kill, Victim::Daemon(1)), 19, 21)]);
    passes(&[(0, 0, false, &gone)], &[(deed(Harm::Kill, Victim::Daemon(0)), 19, 21)]);
    let wrong = publish(Code::InvalidArgument);
    fails("nothing explains", &[(0, 0, false, &wrong)], &[(deed(Harm::Kill, Victim::Daemon(0)), 19, 21)]);
    let aborted = publish(Code::Aborted);
    fails("nothing explains", &[(0, 0, false, &aborted)], &[(deed(Harm::Kill, Victim::Daemon(0)), 19, 21)]);
    passes(&[(0, 0, false, &aborted)], &[(deed(Harm::Drain, Victim::Daemon(0)), 19, 21)]);
}

#[test]
fn a_pool_is_full_for_no_reason() {
    let full = ended(0, What::new(Kind::Publish, &[], 3), failed(Code::ResourceExhausted));
    fails("nothing was done", &[(0, 0, false, &full)], &[]);
    passes(&[(0, 0, false, &full)], &[(deed(Harm::Kill, Victim::Daemon(1)), 14, 15)]);
}

#[test]
fn bytes_are_wrong() {
    let wrong = ended(0, recv(), Outcome::Wrong("63 bytes instead of 64".into()));
    fails("wrong bytes", &[(RECEIVER, 0, false, &wrong)], &[(deed(Harm::Kill, Victim::Daemon(1)), 19, 21)]);
}

#[test]
fn a_call_ends_late_or_never() {
    let late = until(28 * SECOND, 0, recv(), failed(Code::DeadlineExceeded));
    fails("after its deadline", &[(RECEIVER, 0, false, &late)], &[(deed(Harm::Stop, Victim::Daemon(1)), 19, 28)]);
    passes(&[(RECEIVER, 0, false, &late)], &[(deed(Harm::Stop, Victim::Task(RECEIVER)), 22, 27)]);
    let embedded = TASKS - 1;
    let lent = until(30 * SECOND, 0, send(), failed(Code::DeadlineExceeded));
    let deaf = [(Deed::cut(1, Cut::Throttled(1)), 19, 29)];
    for task in [embedded, 0] {
        fails("after its deadline", &[(task, 0, false, &lent)], &deaf);
    }
    fails(
        "never ended",
        &[(RECEIVER, 0, false, &[begun(0, recv())])],
        &[(deed(Harm::Stop, Victim::Daemon(1)), 19, 28)],
    );
}

#[test]
fn versions_are_never_older() {
    let publish = |call, at, version| {
        let what = What::new(Kind::Publish, &[], version);
        [Line::Begin { call, at, until: at, what }, Line::End { call, at: at + 1, outcome: Outcome::Ok }]
    };
    let published = [publish(0, 1, 3), publish(1, 3, 4)].concat();
    let pull = |call, min, versions: &[Option<i64>]| {
        ended(call, What::new(Kind::Pull, &[0], min), Outcome::Pulled(versions.to_vec()))
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
    let push = |number: i64| ended(number as u64, What::new(Kind::Push, &[2], number), Outcome::Ok);
    let pushed = [push(0), push(1)].concat();
    let accepted = |numbers: &[i64]| {
        let lines = numbers.iter().map(|&number| arrived(Kind::Push, 0, number));
        lines.collect::<Vec<_>>()
    };
    let killed = [(deed(Harm::Kill, Victim::Task(2)), 21, 22)];
    passes(&[(0, 0, false, &pushed), (2, 0, false, &accepted(&[0, 1]))], &[]);
    fails("after a later one", &[(0, 0, false, &pushed), (2, 0, false, &accepted(&[1, 0]))], &killed);
    fails("arrived twice", &[(0, 0, false, &pushed), (2, 0, false, &accepted(&[0, 1, 1]))], &killed);
    let first = accepted(&[0]);
    fails("never sent", &[(2, 0, false, &first)], &killed);
    let one = [(0, 0, false, &pushed[..]), (2, 0, false, &first)];
    fails("never arrived", &one, &[]);
    fails(
        "never arrived",
        &one,
        &[(deed(Harm::Stop, Victim::Task(2)), 19, 24), (Deed::cut(1, Cut::Throttled(1)), 19, 24)],
    );
    passes(&one, &killed);
}

#[test]
fn what_nobody_asks_for_is_not_received() {
    fails("nobody asked", &[(0, 0, false, &ended(0, What::new(Kind::Burst, &[2], 0), Outcome::Ok))], &[]);
}

#[test]
fn a_cable_that_is_back_carries_tensors() {
    let cut = (Deed::cut(1, Cut::Silent), 10, 15);
    // From host 0 to host 1, and from host 1 to host 2.
    let push = |to, at| {
        let what = What::new(Kind::Push, &[to], 0);
        [Line::Begin { call: 0, at, until: at + SECOND, what }, Line::End { call: 0, at, outcome: Outcome::Ok }]
    };
    let accepted = |from| [arrived(Kind::Push, from, 0)];
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
        let begin = Line::Begin { call: 0, at: 5 * SECOND, until: 65 * SECOND, what: What::new(Kind::Stand, &[2], 0) };
        [begin, Line::End { call: 0, at, outcome: failed(code) }]
    };
    let killed = [(deed(Harm::Kill, Victim::Daemon(1)), 10, 12)];
    let soon = stood(10_050_000, Code::Unavailable);
    let verdict = judge(&books(&[(0, 0, false, &soon)]), &history(&killed));
    assert_eq!((verdict.violations, &verdict.times[CLOSED_TOLD]), (vec![], &vec![50_000]));
    fails("heard", &[(0, 0, false, &stood(12_000_000, Code::Unavailable))], &killed);
    fails("heard", &[(0, 0, false, &stood(10_050_000, Code::DeadlineExceeded))], &killed);
    let silent = [(Deed::cut(1, Cut::Silent), 10, 16)];
    let told = judge(&books(&[(0, 0, false, &stood(13_100_000, Code::Unavailable))]), &history(&silent));
    assert_eq!(told.times[SILENT_TOLD], [3_100_000]);
}

#[test]
fn a_stream_that_was_finished_was_read_whole_and_no_reader_waits_for_ever() {
    let stream = || What::new(Kind::Stream, &[RECEIVER], 7);
    let finished = ended(0, stream(), Outcome::Ok);
    let streamed = arrived(Kind::Stream, SENDER, 7);
    let read = [ended(0, What::new(Kind::Read, &[SENDER], 0), Outcome::Ok), vec![streamed.clone()]].concat();
    passes(&[(SENDER, 0, false, &finished), (RECEIVER, 0, false, &read)], &[]);
    fails("never arrived", &[(SENDER, 0, false, &finished)], &[]);
    passes(&[(SENDER, 0, false, &finished)], &[(deed(Harm::Kill, Victim::Task(RECEIVER)), 21, 22)]);
    fails("never sent", &[(RECEIVER, 0, false, &read)], &[]);
    let twice = [read, vec![streamed]].concat();
    fails("arrived twice", &[(SENDER, 0, false, &finished), (RECEIVER, 0, false, &twice)], &[]);
    let waited = ended(0, What::new(Kind::Read, &[SENDER], 0), failed(Code::DeadlineExceeded));
    fails("told of no end", &[(RECEIVER, 0, false, &waited)], &[(deed(Harm::Kill, Victim::Task(SENDER)), 19, 21)]);
    let reset = ended(0, What::new(Kind::Read, &[SENDER], 0), failed(Code::Unavailable));
    fails("nothing was done", &[(RECEIVER, 0, false, &reset)], &[]);
    let given_up = ended(0, stream(), failed(Code::DeadlineExceeded));
    // Whoever gave it up is asked why, and not the reader.
    fails("kind: Stream", &[(RECEIVER, 0, false, &reset), (SENDER, 0, false, &given_up)], &[]);
}
