//! The demo's tasks and daemons as their parent sees them. One thread for each reads what it says. None outlives this: standard
//! inputs of tasks close, daemons get a signal, and who does not end then is killed. Signals that end a demo are events here: the
//! tasks, which a terminal interrupts as well, leave them to the parent.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::task::Order;
use crate::Failure;
use crate::commands::daemon::ANNOUNCEMENT;
use crate::progress::write_line;

/// How long a task may take for one order: longer than its own requests wait, so that it can say what went wrong.
const ORDER_TIME: Duration = Duration::from_secs(120);
/// A task that dies takes its peers' transfers with it, and they may report that first: this long its own end is
/// waited for, as the better reason.
const ROOT_CAUSE_TIME: Duration = Duration::from_millis(500);
/// How long children may take to end once they are told to.
const END_TIME: Duration = Duration::from_secs(5);
/// Lines of a daemon that are kept, to be shown should it end: an error and what led to it.
const LAST_WORDS_MAX: usize = 3;
/// What ends a program in good order: a terminal's interrupt, a terminal that goes away, and a plain `kill`.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM];
/// What a task answers that has nothing to tell; a daemon that serves counts as one.
const DONE: &str = r#"{"Ok":null}"#;

enum Event {
    /// A child wrote a line.
    Said(usize, String),
    /// What it says ended, and so the process.
    Closed(usize),
    Signal(Signal),
}

struct Child {
    name: String,
    process: std::process::Child,
    /// `None` once it is told to end, and for a daemon.
    orders: Option<ChildStdin>,
    is_closed: bool,
    last_words: VecDeque<String>,
}

/// The child processes of a demo: first the tasks, then the daemons.
pub(super) struct Children {
    /// What they are doing, for errors: `in step 3`.
    pub(super) doing: String,
    children: Vec<Child>,
    tasks: usize,
    events: Receiver<Event>,
    sender: Sender<Event>,
    /// Whether what daemons log is shown.
    shows_log: bool,
    order_time: Duration,
    end_time: Duration,
}

impl Children {
    /// Starts a task for each name. Signals that end a program come here from now on.
    ///
    /// # Errors
    /// A process cannot be started; those that were are ended.
    pub(super) fn start(
        names: &[String],
        shows_log: bool,
        command: impl Fn(usize) -> Command,
    ) -> Result<Children, Failure> {
        let (sender, events) = mpsc::channel();
        take_signals(sender.clone())?;
        let (doing, children, tasks) = ("while it started".to_owned(), Vec::new(), names.len());
        let (order_time, end_time) = (ORDER_TIME, END_TIME);
        let mut all = Children { doing, children, tasks, events, sender, shows_log, order_time, end_time };
        for (index, name) in names.iter().enumerate() {
            all.spawn(name, command(index).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        }
        Ok(all)
    }

    /// Starts a daemon and waits until it serves.
    ///
    /// # Errors
    /// The process cannot be started, or a child ended meanwhile; or a signal came.
    pub(super) fn start_daemon(&mut self, name: &str, mut command: Command) -> Result<u32, Failure> {
        let index = self.children.len();
        self.spawn(name, command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        self.wait_for(index..index + 1, false)?;
        Ok(self.process_id(index))
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<(), Failure> {
        let started = command.spawn();
        let mut process = started.map_err(|error| Failure::work(format!("{name} cannot be started ({error})")))?;
        let (index, events) = (self.children.len(), self.sender.clone());
        if let Some(log) = process.stderr.take() {
            std::thread::spawn(move || read(index, log, &events));
        } else if let Some(answers) = process.stdout.take() {
            std::thread::spawn(move || read(index, answers, &events));
        }
        let (name, orders, last_words) = (name.to_owned(), process.stdin.take(), VecDeque::new());
        self.children.push(Child { name, process, orders, is_closed: false, last_words });
        Ok(())
    }

    /// The process of a child.
    pub(super) fn process_id(&self, index: usize) -> u32 {
        self.children[index].process.id()
    }

    /// Gives an order to some tasks and waits for the answer of each, in their order.
    ///
    /// # Errors
    /// A task ended, failed, or took too long; or a signal came.
    pub(super) fn ask<T: DeserializeOwned>(
        &mut self,
        who: Range<usize>,
        order: impl Fn(usize) -> Order,
    ) -> Result<Vec<T>, Failure> {
        who.clone().for_each(|index| self.tell(index, &order(index)));
        let unread = |error| Failure::work(format!("a task gave a wrong answer ({error}); run the demo again"));
        self.wait_for(who, false)?.into_iter().map(|answer| serde_json::from_value(answer).map_err(unread)).collect()
    }

    /// Tells all tasks to finish, then all daemons, and waits until they have.
    ///
    /// # Errors
    /// One did not end well, or a signal came.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        (0..self.tasks).for_each(|index| self.tell(index, &Order::Finish));
        self.wait_for(0..self.tasks, true)?;
        self.stop_daemons();
        self.wait_for(self.tasks..self.children.len(), true).map(|_| ())
    }

    fn stop_daemons(&self) {
        for daemon in self.children.iter().skip(self.tasks).filter(|daemon| !daemon.is_closed) {
            // One that has ended since is still ours, and no other process has its number.
            let _ = kill(Pid::from_raw(daemon.process.id() as i32), Signal::SIGTERM);
        }
    }

    /// A task that is gone does not read its orders; its end is an event of its own.
    fn tell(&mut self, index: usize, order: &Order) {
        let mut line = serde_json::to_vec(order).expect("orders are plain data");
        line.push(b'\n');
        if let Some(orders) = &mut self.children[index].orders {
            let _ = orders.write_all(&line);
        }
    }

    /// Waits until each has answered, or has ended well. Gives the answers.
    fn wait_for(&mut self, who: Range<usize>, is_end: bool) -> Result<Vec<Value>, Failure> {
        let deadline = Instant::now() + self.order_time;
        let mut answers = vec![None; who.len()];
        while let Some(missing) = answers.iter().position(Option::is_none) {
            let event = self.next(deadline);
            let event = event.ok_or_else(|| {
                let reason = format!("it did not answer within {} s", self.order_time.as_secs());
                self.failed(who.start + missing, &reason)
            })?;
            let (index, answer) = match &event {
                Event::Said(index, line) if !is_end => {
                    (*index, serde_json::from_str::<Result<Value, String>>(line).ok().and_then(Result::ok))
                }
                Event::Closed(index) if is_end && self.has_ended_well(*index) => (*index, Some(Value::Null)),
                _ => return Err(self.trouble(event)),
            };
            match answers.get_mut(index.wrapping_sub(who.start)) {
                Some(missing @ None) if answer.is_some() => *missing = answer,
                _ => return Err(self.trouble(event)),
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }

    fn has_ended_well(&mut self, index: usize) -> bool {
        self.children[index].process.wait().is_ok_and(|status| status.success())
    }

    /// The next event, if there is one until then. What a daemon logs is none.
    fn next(&mut self, deadline: Instant) -> Option<Event> {
        loop {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()? {
                Event::Said(index, line) if index >= self.tasks => {
                    if line.starts_with(ANNOUNCEMENT) {
                        return Some(Event::Said(index, DONE.to_owned()));
                    }
                    if self.shows_log {
                        write_line(&line);
                    }
                    let words = &mut self.children[index].last_words;
                    words.push_back(line.trim().to_owned());
                    words.drain(..words.len().saturating_sub(LAST_WORDS_MAX));
                }
                Event::Closed(index) => {
                    self.children[index].is_closed = true;
                    return Some(Event::Closed(index));
                }
                event => return Some(event),
            }
        }
    }

    /// What an event that nobody waits for means.
    fn trouble(&mut self, event: Event) -> Failure {
        match event {
            Event::Closed(index) => self.ended(index),
            Event::Signal(signal) => {
                Failure::work(format!("{signal} was received {}; the demo has stopped its tasks", self.doing))
            }
            Event::Said(index, line) => match serde_json::from_str::<Result<(), String>>(&line) {
                Ok(Err(reason)) => {
                    let deadline = Instant::now() + ROOT_CAUSE_TIME;
                    while let Some(event) = self.next(deadline) {
                        if let Event::Closed(..) | Event::Signal(_) = event {
                            return self.trouble(event);
                        }
                    }
                    self.failed(index, &reason)
                }
                _ => self.failed(index, &format!("it answered {line} when something else was expected")),
            },
        }
    }

    fn failed(&self, index: usize, reason: &str) -> Failure {
        Failure::work(format!("{} failed {}: {reason}", self.children[index].name, self.doing))
    }

    fn ended(&mut self, index: usize) -> Failure {
        let Child { name, process, last_words, .. } = &mut self.children[index];
        let how = match process.wait() {
            Ok(status) => format!("before its work was done: {status}"),
            Err(error) => format!("for an unknown reason ({error})"),
        };
        let said = match &last_words.make_contiguous()[..] {
            [] => String::new(),
            lines => format!("; its last output: {}", lines.join(" | ")),
        };
        Failure::work(format!("{name} (process {}) ended {}, {how}{said}", process.id(), self.doing))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        self.children.iter_mut().for_each(|child| child.orders = None);
        self.stop_daemons();
        let deadline = Instant::now() + self.end_time;
        while self.children.iter().any(|child| !child.is_closed) && self.next(deadline).is_some() {}
        for child in &mut self.children {
            // One that has ended is not harmed; one that cannot be killed is the kernel's.
            let _ = child.process.kill();
            let _ = child.process.wait();
        }
    }
}

fn read(index: usize, said: impl Read, events: &Sender<Event>) {
    // A child must not wait for a reader, even if nobody listens any more because the demo has ended.
    for line in BufReader::new(said).lines().map_while(Result::ok) {
        let _ = events.send(Event::Said(index, line));
    }
    let _ = events.send(Event::Closed(index));
}

/// From now on, signals that end a program become events. Threads and processes that are started later inherit that
/// they do not see them.
fn take_signals(events: Sender<Event>) -> Result<(), Failure> {
    let ending: SigSet = ENDING.into_iter().collect();
    ending.thread_block().map_err(|error| Failure::work(format!("signals cannot be set up ({error})")))?;
    std::thread::spawn(move || {
        while let Ok(signal) = ending.wait() {
            if events.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tasks that follow a shell script. Starting them blocks signals of the test's thread, which is its own.
    fn start(scripts: &[&str]) -> Children {
        let names: Vec<_> = (0..scripts.len()).map(|index| format!("task{index}")).collect();
        let command = |index: usize| {
            let mut command = Command::new("sh");
            command.arg("-c").arg(scripts[index]);
            command
        };
        let mut children = Children::start(&names, false, command).unwrap();
        children.doing = "in step 3".to_owned();
        children
    }

    fn ask(scripts: &[&str]) -> Result<Vec<u32>, String> {
        start(scripts).ask(0..scripts.len(), |_| Order::Fill(3)).map_err(|failure| failure.to_string())
    }

    const WAIT: &str = "cat > /dev/null";
    const FAIL: &str = "echo '{\"Err\":\"no luck\"}'; cat > /dev/null";

    #[test]
    fn every_task_answers_or_is_named() {
        let ok = "read order; echo '{\"Ok\":7}'; cat > /dev/null";
        assert_eq!(ask(&[ok, ok]), Ok(vec![7, 7]));
        let cases: [(&[&str], &str, &str); 5] = [
            (&["read order; exit 7", WAIT], "task0 (", " ended in step 3, before its work was done: exit status: 7"),
            (&[WAIT, "kill -9 $$"], "task1 (process ", "signal: 9 (SIGKILL)"),
            (&[FAIL, WAIT], "task0 failed in step 3: no luck", ""),
            (&["echo hello; cat"], "task0 failed in step 3: it answered hello when something else was expected", ""),
            // A task that dies is the reason why another one fails.
            (&[FAIL, "exit 1"], "task1 (process ", "exit status: 1"),
        ];
        for (scripts, begins, ends) in cases {
            let failure = ask(scripts).unwrap_err();
            assert!(failure.starts_with(begins) && failure.ends_with(ends), "{failure}");
        }
        let failure = Children::start(&["task0".to_owned()], false, |_| Command::new("/none/sealane")).err().unwrap();
        assert!(failure.to_string().starts_with("task0 cannot be started ("), "{failure}");
    }

    #[test]
    fn finishing_waits_for_a_good_end_and_not_for_ever() {
        start(&["read order", "read order"]).finish().unwrap();
        let failure = start(&["read order", "read order; exit 3"]).finish().unwrap_err().to_string();
        assert!(failure.contains("task1") && failure.ends_with("exit status: 3"), "{failure}");
        let mut children = start(&["exec tail -f /dev/null"]);
        (children.order_time, children.end_time) = (Duration::ZERO, Duration::ZERO);
        let process = children.process_id(0);
        let late = children.finish().unwrap_err().to_string();
        assert_eq!(late, "task0 failed in step 3: it did not answer within 0 s");
        assert!(!std::path::Path::new(&format!("/proc/{process}")).exists(), "it was killed");
    }

    /// A daemon that follows a shell script, after it has said a line of its log.
    fn start_daemon(children: &mut Children, script: &str) -> Result<u32, String> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("echo a line of the log >&2; {script}"));
        children.start_daemon("daemon", command).map_err(|failure| failure.to_string())
    }

    #[test]
    fn a_daemon_is_waited_for_and_stopped_after_the_tasks() {
        // A shell inherits that signals are blocked; some take them all the same. One that does not can see that one waits.
        let until_stopped = "while ! grep -q '^ShdPnd:.*4000$' /proc/$$/status; do :; done";
        for code in [0, 3] {
            let mut children = start(&["read order"]);
            let script = format!("trap 'exit {code}' TERM; echo '{ANNOUNCEMENT}' >&2; {until_stopped}; exit {code}");
            start_daemon(&mut children, &script).unwrap();
            let finished = children.finish().map_err(|failure| failure.to_string());
            assert_eq!(finished.is_ok(), code == 0);
            let named = |text: String| text.ends_with("exit status: 3; its last output: a line of the log");
            assert!(finished.err().is_none_or(named));
        }
    }
}
