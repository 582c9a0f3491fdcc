//! Each promise, broken by a ledger that was written for it.

use super::books::{Books, Life};
use super::*;
use crate::chaos::LAYOUT;
use crate::chaos::deeds::Deed;
use crate::hosts::{Cut, Patience};

const SECOND: u64 = 1_000_000;

/// What was done, in seconds.
fn history(deeds: &[(Deed, u64, u64)]) -> History {
    let mut history = History::new(LAYOUT, Patience::Short, 0);
    for (index, &(deed, began, ended)) in deeds.iter().enumerate() {
        history.begin(index, deed, began * SECOND);
        history.end(index, ended * SECOND);
    }
    history
}

/// Ledgers of processes, each a task, its process, whether another followed, and the lines.
fn books(ledgers: &[(usize, u32, bool, &str)]) -> Books {
    let read = |&(task, number, killed, text): &(usize, u32, bool, &str)| {
        let mut life = Life { task, number, finished: !killed, ..Life::default() };
        life.read(text).unwrap();
        life
    };
    Books { lives: ledgers.iter().map(read).collect() }
}

#[track_caller]
fn passes(ledgers: &[(usize, u32, bool, &str)], deeds: &[(Deed, u64, u64)]) {
    assert_eq!(judge(&books(ledgers), &history(deeds)).violations, Vec::<String>::new());
}

#[track_caller]
fn fails(why: &str, ledgers: &[(usize, u32, bool, &str)], deeds: &[(Deed, u64, u64)]) {
    let violations = judge(&books(ledgers), &history(deeds)).violations;
    assert!(violations.len() == 1 && violations[0].contains(why), "{violations:#?}");
}

/// Tasks of different hosts.
const SENDER: usize = 0;
const RECEIVER: usize = 2;

const SEND: &str = "B 0 20000000 23000000 send 2 7 0 64\nE 0 20100000 ok\n";
const RECV: &str = "B 0 20000000 23000000 recv 0 7 0 64\nE 0 20100000 got 0\n";

#[test]
fn a_tensor_is_sent_and_received() {
    passes(&[(SENDER, 0, false, SEND), (RECEIVER, 0, false, RECV)], &[]);
}

#[test]
fn a_tensor_is_received_twice() {
    let again = RECV.replace("B 0", "B 1").replace("E 0", "E 1");
    fails("received twice", &[(SENDER, 0, false, SEND), (RECEIVER, 0, false, &format!("{RECV}{again}"))], &[]);
    // Nothing that is done excuses it.
    let killed = [(Deed::KillDaemon(0), 19, 21), (Deed::KillTask(RECEIVER), 20, 21)];
    fails(
        "received twice",
        &[(SENDER, 0, false, SEND), (RECEIVER, 0, true, RECV), (RECEIVER, 1, false, &again)],
        &killed,
    );
}

#[test]
fn a_tensor_comes_that_nobody_sent() {
    fails("nobody sent", &[(RECEIVER, 0, false, RECV)], &[]);
    let other_process = RECV.replace("got 0", "got 1");
    let ledgers = [(SENDER, 0, false, SEND), (RECEIVER, 0, false, other_process.as_str())];
    let violations = judge(&books(&ledgers), &history(&[])).violations;
    assert!(violations.iter().any(|what| what.contains("nobody sent")), "{violations:?}");
}

#[test]
fn a_tensor_is_lost() {
    let unheard = "B 0 20000000 23000000 recv 0 7 0 64\nE 0 23000100 failed DeadlineExceeded late\n";
    let ledgers = [(SENDER, 0, false, SEND), (RECEIVER, 0, false, unheard)];
    let cut = [(Deed::Cut(1, Cut::Throttled(1)), 19, 24)];
    fails("received by nobody", &ledgers, &cut);
    // With a daemon that stood still, or a process that was killed, it may be.
    passes(&ledgers, &[(Deed::StopDaemon(1), 19, 24)]);
    let unended = "B 0 20000000 23000000 recv 0 7 0 64\n";
    passes(&[(SENDER, 0, false, SEND), (RECEIVER, 0, true, unended)], &[(Deed::KillTask(RECEIVER), 21, 22)]);
}

#[test]
fn a_send_fails_and_is_received_all_the_same() {
    let failed = "B 0 20000000 23000000 send 2 7 0 64\nE 0 20100000 failed Unavailable gone\n";
    let ledgers = [(SENDER, 0, false, failed), (RECEIVER, 0, false, RECV)];
    let violations = judge(&books(&ledgers), &history(&[])).violations;
    assert!(violations.iter().any(|what| what.contains("received all the same")), "{violations:?}");
    passes(&ledgers, &[(Deed::KillDaemon(0), 20, 21)]);
}

#[test]
fn a_call_fails_for_no_reason() {
    let publish = "B 0 20000000 20000000 publish 3\nE 0 20100000 failed Unavailable gone\n";
    fails("nothing was done", &[(0, 0, false, publish)], &[]);
    fails("nothing was done", &[(0, 0, false, publish)], &[(Deed::KillDaemon(1), 19, 21)]);
    passes(&[(0, 0, false, publish)], &[(Deed::KillDaemon(0), 19, 21)]);
    let wrong = publish.replace("Unavailable", "InvalidArgument");
    fails("nothing explains", &[(0, 0, false, &wrong)], &[(Deed::KillDaemon(0), 19, 21)]);
    let aborted = publish.replace("Unavailable", "Aborted");
    fails("nothing explains", &[(0, 0, false, &aborted)], &[(Deed::KillDaemon(0), 19, 21)]);
    passes(&[(0, 0, false, &aborted)], &[(Deed::DrainDaemon(0), 19, 21)]);
}

#[test]
fn a_pool_is_full_for_no_reason() {
    let full = "B 0 20000000 20000000 publish 3\nE 0 20100000 failed ResourceExhausted full\n";
    fails("nothing was done", &[(0, 0, false, full)], &[]);
    passes(&[(0, 0, false, full)], &[(Deed::KillDaemon(1), 14, 15)]);
}

#[test]
fn bytes_are_wrong() {
    let wrong = "B 0 20000000 23000000 recv 0 7 0 64\nE 0 20100000 wrong 63 bytes instead of 64\n";
    fails("wrong bytes", &[(RECEIVER, 0, false, wrong)], &[(Deed::KillDaemon(1), 19, 21)]);
}

#[test]
fn a_call_ends_late_or_never() {
    let late = "B 0 20000000 23000000 recv 0 7 0 64\nE 0 28000000 failed DeadlineExceeded late\n";
    fails("after its deadline", &[(RECEIVER, 0, false, late)], &[(Deed::StopDaemon(1), 19, 28)]);
    passes(&[(RECEIVER, 0, false, late)], &[(Deed::StopTask(RECEIVER), 22, 27)]);
    let embedded = LAYOUT.tasks() - 1;
    let lent = "B 0 20000000 23000000 send 2 7 0 64\nE 0 30000000 failed DeadlineExceeded late\n";
    let deaf = [(Deed::Cut(1, Cut::Throttled(1)), 19, 29)];
    for task in [embedded, 0] {
        fails("after its deadline", &[(task, 0, false, lent)], &deaf);
    }
    let never = "B 0 20000000 23000000 recv 0 7 0 64\n";
    fails("never ended", &[(RECEIVER, 0, false, never)], &[(Deed::StopDaemon(1), 19, 28)]);
}

#[test]
fn versions_are_never_older() {
    let published = "B 0 1 1 publish 3\nE 0 2 ok\nB 1 3 3 publish 4\nE 1 4 ok\n";
    let pulled = |min, versions: &str| {
        format!(
            "B 0 20000000 24000000 pull 0 -9\nE 0 20100000 pulled 4 4\nB 1 20200000 24000000 pull 0 {min}\nE 1 20300000 pulled {versions}\n"
        )
    };
    passes(&[(0, 0, false, published), (2, 0, false, &pulled(4, "4 4"))], &[]);
    fails("went back", &[(0, 0, false, published), (2, 0, false, &pulled(3, "4 3"))], &[]);
    fails("never published", &[(0, 0, false, published), (2, 0, false, &pulled(4, "5 4"))], &[]);
    fails("not all came", &[(0, 0, false, published), (2, 0, false, &pulled(4, "4 -"))], &[]);
    let older = format!("{published}B 2 5 5 publish 6\nE 2 6 ok\n");
    let first = "B 0 20000000 24000000 pull 0 6\nE 0 20100000 pulled 4 6\n";
    fails("older than it was asked", &[(0, 0, false, &older), (2, 0, false, first)], &[]);
}

#[test]
fn pushes_are_accepted_once_and_in_order() {
    let pushed =
        "B 0 20000000 24000000 push 2 0 64\nE 0 20100000 ok\nB 1 20000001 24000000 push 2 1 64\nE 1 20100000 ok\n";
    let killed = [(Deed::KillTask(2), 21, 22)];
    passes(&[(0, 0, false, pushed), (2, 0, false, "G 20050000 0 0 0\nG 20060000 0 0 1\n")], &[]);
    fails(
        "after a later one",
        &[(0, 0, false, pushed), (2, 0, false, "G 20050000 0 0 1\nG 20060000 0 0 0\n")],
        &killed,
    );
    let twice = "G 20050000 0 0 0\nG 20060000 0 0 1\nG 20070000 0 0 1\n";
    fails("twice", &[(0, 0, false, pushed), (2, 0, false, twice)], &killed);
    fails("never pushed", &[(2, 0, false, "G 20050000 0 0 0\n")], &killed);
    let one = [(0, 0, false, pushed), (2, 0, false, "G 20050000 0 0 0\n")];
    fails("accepted by nobody", &one, &[]);
    fails("accepted by nobody", &one, &[(Deed::StopTask(2), 19, 24), (Deed::Cut(1, Cut::Throttled(1)), 19, 24)]);
    passes(&one, &killed);
}

#[test]
fn what_nobody_asks_for_is_not_received() {
    fails("nobody asked", &[(0, 0, false, "B 0 20000000 22000000 burst 2 64\nE 0 20100000 ok\n")], &[]);
}

#[test]
fn a_cable_that_is_back_carries_tensors() {
    let cut = (Deed::Cut(1, Cut::Silent), 10, 15);
    // From host 0 to host 1, and from host 1 to host 2.
    let push = |to: usize, at: u64| format!("B 0 {at} {} push {to} 0 64\nE 0 {at} ok\n", at + SECOND);
    let ledgers = |first: u64, second: u64| {
        let (one, two) = (push(2, first), push(4, second));
        let ledgers =
            [(0, 0, false, &*one), (3, 0, false, &*two), (2, 0, false, "G 1 0 0 0\n"), (4, 0, false, "G 1 3 0 0\n")];
        judge(&books(&ledgers), &history(&[cut]))
    };
    let good = ledgers(15_700_000, 15_100_000);
    assert_eq!((good.violations, good.reconnected), (vec![], vec![700_000, 100_000]));
    let bad = ledgers(15_700_000, 18_000_000);
    assert!(
        bad.violations.len() == 1 && bad.violations[0].contains("host1 and host2 met again"),
        "{:?}",
        bad.violations
    );
}

#[test]
fn whoever_waits_is_told_of_a_loss() {
    let stood = |at: u64, end: &str| format!("B 0 5000000 65000000 stand 2\nE 0 {at} {end}\n");
    let killed = [(Deed::KillDaemon(1), 10, 12)];
    let soon = stood(10_050_000, "failed Unavailable gone");
    let verdict = judge(&books(&[(0, 0, false, &soon)]), &history(&killed));
    assert_eq!((verdict.violations, verdict.closed_told), (vec![], vec![50_000]));
    fails("heard", &[(0, 0, false, &stood(12_000_000, "failed Unavailable gone"))], &killed);
    fails("heard", &[(0, 0, false, &stood(10_050_000, "failed DeadlineExceeded late"))], &killed);
    let silent = [(Deed::Cut(1, Cut::Silent), 10, 16)];
    let told = judge(&books(&[(0, 0, false, &stood(13_100_000, "failed Unavailable gone"))]), &history(&silent));
    assert_eq!(told.silent_told, vec![3_100_000]);
}
