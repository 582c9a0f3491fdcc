//! The demo's tasks and daemons as their parent sees them. A task is a child process that takes orders and reports; a
//! daemon serves until it is told to stop. One thread for each reads what it says. None outlives this: standard inputs of
//! tasks close, daemons get a signal, and who does not end then is killed. Signals that end a demo are events here: the tasks,
//! which a terminal interrupts as well, leave them to the parent.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::ops::Range;
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;

use super::protocol::{Order, Report};
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

enum Event {
    Report(usize, Report),
    /// What it says ended, and so the process; the last lines, where they were not for reports.
    Closed(usize, VecDeque<String>),
    Signal(Signal),
}

struct Child {
    name: String,
    process: std::process::Child,
    /// `None` once it is told to end, and for a daemon.
    orders: Option<ChildStdin>,
    closed: bool,
    last_words: VecDeque<String>,
}

/// The child processes of a demo: first the tasks, then the daemons.
pub(super) struct Children {
    children: Vec<Child>,
    tasks: usize,
    events: Receiver<Event>,
    /// For those who read what daemons say.
    sender: Sender<Event>,
    /// What they are doing, for errors.
    doing: String,
    order_time: Duration,
    end_time: Duration,
}

impl Children {
    /// Starts a task for each name. Signals that end a program come here from now on.
    ///
    /// # Errors
    /// A process cannot be started; those that were are ended.
    pub(super) fn start(names: &[String], mut command: impl FnMut() -> Command) -> Result<Children, Failure> {
        let (sender, events) = mpsc::channel();
        take_signals(sender.clone())?;
        let mut children = Children {
            children: Vec::new(),
            tasks: names.len(),
            events,
            sender,
            doing: "while it started".to_owned(),
            order_time: ORDER_TIME,
            end_time: END_TIME,
        };
        for (index, name) in names.iter().enumerate() {
            let mut process = spawn(name, command().stdin(Stdio::piped()).stdout(Stdio::piped()))?;
            let orders = process.stdin.take();
            let reports = process.stdout.take().expect("piped above");
            children.add(name, process, orders);
            let sender = children.sender.clone();
            std::thread::spawn(move || read_reports(index, reports, &sender));
        }
        Ok(children)
    }

    /// Starts a daemon and waits until it serves. What it logs is shown with `show`, or if it ends.
    ///
    /// # Errors
    /// The process cannot be started, or a child ended meanwhile; or a signal came.
    pub(super) fn start_daemon(&mut self, name: &str, mut command: Command, show: bool) -> Result<u32, Failure> {
        let index = self.children.len();
        let mut process = spawn(name, command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
        let words = process.stderr.take().expect("piped above");
        self.add(name, process, None);
        let sender = self.sender.clone();
        std::thread::spawn(move || listen_to_daemon(index, words, show, &sender));
        self.reports_of(index..index + 1)?;
        Ok(self.process_id(index))
    }

    fn add(&mut self, name: &str, process: std::process::Child, orders: Option<ChildStdin>) {
        let name = name.to_owned();
        self.children.push(Child { name, process, orders, closed: false, last_words: VecDeque::new() });
    }

    /// The process of a task.
    pub(super) fn process_id(&self, index: usize) -> u32 {
        self.children[index].process.id()
    }

    /// Says what the tasks are doing, for errors: `in step 3`.
    pub(super) fn set_doing(&mut self, doing: String) {
        self.doing = doing;
    }

    /// Gives an order to some tasks and waits for the report of each, in their order.
    ///
    /// # Errors
    /// A task ended, failed, or took too long; or a signal came.
    pub(super) fn ask(&mut self, who: Range<usize>, order: &Order) -> Result<Vec<Report>, Failure> {
        for index in who.clone() {
            self.tell(index, order);
        }
        self.reports_of(who)
    }

    /// As [`ask`](Self::ask), with an order for each task.
    pub(super) fn ask_each(&mut self, orders: &[Order]) -> Result<Vec<Report>, Failure> {
        for (index, order) in orders.iter().enumerate() {
            self.tell(index, order);
        }
        self.reports_of(0..orders.len())
    }

    /// Tells all tasks to finish, then all daemons, and waits until they have.
    ///
    /// # Errors
    /// One did not end well, or a signal came.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        for index in 0..self.tasks {
            self.tell(index, &Order::Finish);
        }
        self.see_end_well(0..self.tasks)?;
        self.stop_daemons();
        self.see_end_well(self.tasks..self.children.len())
    }

    fn see_end_well(&mut self, who: Range<usize>) -> Result<(), Failure> {
        let deadline = Instant::now() + self.order_time;
        while let Some(open) = who.clone().find(|index| !self.children[*index].closed) {
            match self.next(deadline) {
                Ok(Event::Closed(index, _)) if who.contains(&index) => {
                    let status = self.wait(index);
                    if !status.as_ref().is_ok_and(ExitStatus::success) {
                        return Err(self.ended(index, status));
                    }
                }
                Ok(event) => return Err(self.trouble(event)),
                Err(_) => return Err(self.late(open)),
            }
        }
        Ok(())
    }

    fn stop_daemons(&self) {
        for daemon in self.children.iter().skip(self.tasks).filter(|daemon| !daemon.closed) {
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

    fn reports_of(&mut self, who: Range<usize>) -> Result<Vec<Report>, Failure> {
        let deadline = Instant::now() + self.order_time;
        let mut reports: Vec<Option<Report>> = who.clone().map(|_| None).collect();
        while let Some(missing) = reports.iter().position(Option::is_none) {
            match self.next(deadline) {
                Ok(Event::Report(index, report))
                    if who.contains(&index) && !matches!(report, Report::Failed { .. }) =>
                {
                    reports[index - who.start] = Some(report);
                }
                Ok(event) => return Err(self.trouble(event)),
                Err(_) => return Err(self.late(who.start + missing)),
            }
        }
        Ok(reports.into_iter().flatten().collect())
    }

    fn next(&mut self, deadline: Instant) -> Result<Event, RecvTimeoutError> {
        let event = self.events.recv_timeout(deadline.saturating_duration_since(Instant::now()))?;
        let Event::Closed(index, last_words) = event else { return Ok(event) };
        let child = &mut self.children[index];
        (child.closed, child.last_words) = (true, last_words);
        Ok(Event::Closed(index, VecDeque::new()))
    }

    /// What an event that nobody waits for means.
    fn trouble(&mut self, event: Event) -> Failure {
        match event {
            Event::Closed(index, _) => {
                let status = self.wait(index);
                self.ended(index, status)
            }
            Event::Signal(signal) => {
                Failure::work(format!("{signal} was received {}; the demo has stopped its tasks", self.doing))
            }
            Event::Report(index, Report::Failed { reason }) => {
                let deadline = Instant::now() + ROOT_CAUSE_TIME;
                while let Ok(event) = self.next(deadline) {
                    if let Event::Closed(..) | Event::Signal(_) = event {
                        return self.trouble(event);
                    }
                }
                self.failed(index, &reason)
            }
            Event::Report(index, report) => self.failed(index, &format!("it reported {report:?} unasked")),
        }
    }

    fn failed(&self, index: usize, reason: &str) -> Failure {
        Failure::work(format!("{} failed {}: {reason}", self.children[index].name, self.doing))
    }

    fn late(&self, index: usize) -> Failure {
        self.failed(index, &format!("it did not answer within {} s", self.order_time.as_secs()))
    }

    fn ended(&self, index: usize, status: io::Result<ExitStatus>) -> Failure {
        let Child { name, process, last_words, .. } = &self.children[index];
        let how = match status {
            Ok(status) => format!("before its work was done: {status}"),
            Err(error) => format!("for an unknown reason ({error})"),
        };
        let said = match &last_words.iter().map(|line| line.trim()).collect::<Vec<_>>()[..] {
            [] => String::new(),
            lines => format!("; its last output: {}", lines.join(" | ")),
        };
        Failure::work(format!("{name} (process {}) ended {}, {how}{said}", process.id(), self.doing))
    }

    fn wait(&mut self, index: usize) -> io::Result<ExitStatus> {
        self.children[index].process.wait()
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.children {
            child.orders = None;
        }
        self.stop_daemons();
        let deadline = Instant::now() + self.end_time;
        while self.children.iter().any(|child| !child.closed) {
            if self.next(deadline).is_err() {
                break;
            }
        }
        for child in &mut self.children {
            // One that has ended is not harmed; one that cannot be killed is the kernel's.
            let _ = child.process.kill();
            let _ = child.process.wait();
        }
    }
}

fn spawn(name: &str, command: &mut Command) -> Result<std::process::Child, Failure> {
    command.spawn().map_err(|error| Failure::work(format!("{name} cannot be started ({error})")))
}

fn read_reports(index: usize, reports: impl Read, events: &Sender<Event>) {
    for line in BufReader::new(reports).lines().map_while(Result::ok) {
        let garbled = |_| Report::Failed { reason: format!("it wrote an invalid report: {line}") };
        if events.send(Event::Report(index, serde_json::from_str(&line).unwrap_or_else(garbled))).is_err() {
            return;
        }
    }
    // Nobody listens any more where the demo has ended.
    let _ = events.send(Event::Closed(index, VecDeque::new()));
}

fn listen_to_daemon(index: usize, words: impl Read, show: bool, events: &Sender<Event>) {
    let mut last_words = VecDeque::new();
    for line in BufReader::new(words).lines().map_while(Result::ok) {
        if line.starts_with(ANNOUNCEMENT) {
            // Nobody listens any more where the demo has ended; the daemon must not wait for a reader all the same.
            let _ = events.send(Event::Report(index, Report::Serving));
            continue;
        }
        if show {
            write_line(&line);
        }
        if last_words.len() == LAST_WORDS_MAX {
            last_words.pop_front();
        }
        last_words.push_back(line);
    }
    let _ = events.send(Event::Closed(index, last_words));
}

/// From now on, signals that end a program become events. Threads and processes that are started later inherit that
/// they do not see them.
///
/// # Errors
/// The kernel refuses.
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
mod tests;
