//! Children of the demo, played by shell scripts.

use super::*;

/// Tasks that follow a shell script. Starting them blocks signals of the test's thread, which is its own.
fn start(scripts: &[&str]) -> Children {
    let names: Vec<_> = (0..scripts.len()).map(|index| format!("task{index}")).collect();
    let mut scripts = scripts.iter();
    Children::start(&names, || {
        let mut command = Command::new("sh");
        command.arg("-c").arg(scripts.next().unwrap());
        command
    })
    .unwrap()
}

fn ask(scripts: &[&str]) -> Result<Vec<Report>, String> {
    let mut children = start(scripts);
    children.set_doing("in step 3".to_owned());
    children.ask(0..scripts.len(), &Order::Fill { step: 3 }).map_err(|failure| failure.to_string())
}

const FILLED: &str = "read order; echo '\"Filled\"'; ";
const WAIT: &str = "cat > /dev/null";

#[test]
fn every_task_reports() {
    let script = format!("{FILLED}{WAIT}");
    assert_eq!(ask(&[&script, &script]), Ok(vec![Report::Filled, Report::Filled]));
}

#[test]
fn a_task_that_ends_is_named_with_its_status() {
    let one = ask(&["read order; exit 7", WAIT]).unwrap_err();
    assert!(one.starts_with("task0 (process "), "{one}");
    assert!(one.ends_with(" ended in step 3, before its work was done: exit status: 7"), "{one}");
    let killed = ask(&[WAIT, "kill -9 $$"]).unwrap_err();
    assert!(killed.starts_with("task1 (process "), "{killed}");
    assert!(killed.contains("signal: 9"), "{killed}");
}

#[test]
fn a_failure_is_told_unless_another_task_died_of_itself() {
    let failing = format!("echo '{{\"Failed\":{{\"reason\":\"no luck\"}}}}'; {WAIT}");
    assert_eq!(ask(&[&failing, WAIT]), Err("task0 failed in step 3: no luck".to_owned()));
    let both = ask(&[&failing, "exit 1"]).unwrap_err();
    assert!(both.starts_with("task1 (process "), "{both}");
}

#[test]
fn what_no_task_says_is_a_failure() {
    let garbled = ask(&["echo hello; cat > /dev/null"]).unwrap_err();
    assert_eq!(garbled, "task0 failed in step 3: it wrote an invalid report: hello");
    let mut children = start(&[&format!("{FILLED}echo '\"Filled\"'; {WAIT}"), WAIT]);
    let order = Order::Fill { step: 3 };
    assert_eq!(children.ask(0..1, &order).unwrap(), [Report::Filled]);
    let unasked = children.ask(1..2, &order).unwrap_err().to_string();
    assert_eq!(unasked, "task0 failed while it started: it reported Filled unasked");
}

#[test]
fn finishing_waits_for_a_good_end() {
    start(&["read order", "read order"]).finish().unwrap();
    let failure = start(&["read order", "read order; exit 3"]).finish().unwrap_err().to_string();
    assert!(failure.contains("task1") && failure.ends_with("exit status: 3"), "{failure}");
}

#[test]
fn a_task_that_does_not_answer_in_time_is_named() {
    let mut children = start(&[WAIT]);
    children.order_time = Duration::ZERO;
    let late = children.ask(0..1, &Order::Fill { step: 3 }).unwrap_err().to_string();
    assert_eq!(late, "task0 failed while it started: it did not answer within 0 s");
    let late = children.finish().unwrap_err().to_string();
    assert_eq!(late, "task0 failed while it started: it did not answer within 0 s");
}

#[test]
fn a_task_that_does_not_end_is_killed() {
    let mut children = start(&["exec tail -f /dev/null"]);
    children.end_time = Duration::ZERO;
    let process = children.process_id(0);
    drop(children);
    assert!(!std::path::Path::new(&format!("/proc/{process}")).exists());
}

#[test]
fn a_program_that_is_not_there_cannot_be_started() {
    let failure = Children::start(&["task0".to_owned()], || Command::new("/none/sealane")).err().unwrap();
    assert!(failure.to_string().starts_with("task0 cannot be started ("), "{failure}");
}

/// A daemon that follows a shell script, after it has said a line of its log and announced itself.
fn start_daemon(children: &mut Children, script: &str) -> Result<u32, Failure> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("echo a line of the log >&2; {script}"));
    children.start_daemon("daemon", command, false)
}

fn serving(script: &str) -> String {
    format!("echo '{ANNOUNCEMENT}' >&2; {script}")
}

/// A shell inherits that signals are blocked; some take them all the same. One that does not can see that one waits.
const UNTIL_STOPPED: &str = "while ! grep -q '^ShdPnd:.*4000$' /proc/$$/status; do :; done";

#[test]
fn a_daemon_is_waited_for_and_stopped_after_the_tasks() {
    for (code, well) in [(0, true), (3, false)] {
        let mut children = start(&["read order"]);
        let stopped = format!("trap 'exit {code}' TERM; {}", serving(&format!("{UNTIL_STOPPED}; exit {code}")));
        start_daemon(&mut children, &stopped).unwrap();
        let finished = children.finish();
        assert_eq!(finished.is_ok(), well);
        if let Err(failure) = finished {
            assert!(failure.to_string().starts_with("daemon (process "), "{failure}");
            assert!(failure.to_string().ends_with("exit status: 3; its last output: a line of the log"), "{failure}");
        }
    }
}

#[test]
fn a_daemon_that_ends_is_named_with_its_last_words() {
    let mut children = start(&[WAIT]);
    let failure = start_daemon(&mut children, "for i in 1 2 3; do echo error: $i >&2; done; exit 1").unwrap_err();
    let failure = failure.to_string();
    let expected = "ended while it started, before its work was done: exit status: 1; \
                    its last output: error: 1 | error: 2 | error: 3";
    assert!(failure.starts_with("daemon (process ") && failure.ends_with(expected), "{failure}");
    drop(children);

    let mut children = start(&[WAIT]);
    start_daemon(&mut children, &serving("exit 2")).unwrap();
    let failure = children.ask(0..1, &Order::Fill { step: 3 }).unwrap_err().to_string();
    assert!(failure.ends_with("exit status: 2; its last output: a line of the log"), "{failure}");
}

#[test]
fn a_daemon_that_cannot_be_started_is_named() {
    let failure = start(&[WAIT]).start_daemon("daemon", Command::new("/none/sealane"), false).unwrap_err();
    assert!(failure.to_string().starts_with("daemon cannot be started ("), "{failure}");
}
