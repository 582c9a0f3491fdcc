//! The demo's tasks as their parent sees them: child processes that take orders and report. One thread for each reads
//! its reports. None outlives this: their standard inputs close, and who does not end then is killed.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::Range;
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::interrupts;
use super::protocol::{Order, Report};
use crate::Failure;

/// How long a task may take for one order: longer than its own requests wait, so that it can say what went wrong.
const ORDER_TIME: Duration = Duration::from_secs(120);
/// A task that dies takes its peers' transfers with it, and they may report that first: this long its own end is
/// waited for, as the better reason.
const ROOT_CAUSE_TIME: Duration = Duration::from_millis(500);
/// How long tasks may take to end once their standard input is closed.
const END_TIME: Duration = Duration::from_secs(5);

enum Event {
    Report(usize, Report),
    /// Something else was on standard output.
    Garbled(usize, String),
    /// Standard output ended, and so the process.
    Closed(usize),
    Signal(Signal),
}

struct Child {
    name: String,
    process: std::process::Child,
    /// `None` once it is told to end.
    orders: Option<ChildStdin>,
    closed: bool,
}

/// The child processes of a demo.
pub(super) struct Children {
    children: Vec<Child>,
    events: Receiver<Event>,
    /// What they are doing, for errors.
    doing: String,
    order_time: Duration,
    end_time: Duration,
}

impl Children {
    /// Starts a process for each name. Signals that end a program come here from now on.
    ///
    /// # Errors
    /// A process cannot be started; those that were are ended.
    pub(super) fn start(names: &[String], mut command: impl FnMut() -> Command) -> Result<Children, Failure> {
        let (sender, events) = mpsc::channel();
        interrupts::become_events(sender.clone(), Event::Signal)?;
        let mut children = Children {
            children: Vec::new(),
            events,
            doing: "while it started".to_owned(),
            order_time: ORDER_TIME,
            end_time: END_TIME,
        };
        for (index, name) in names.iter().enumerate() {
            let process = command().stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
            let mut process = process.map_err(|error| Failure::work(format!("{name} cannot be started ({error})")))?;
            let orders = process.stdin.take();
            let reports = process.stdout.take().expect("piped above");
            children.children.push(Child { name: name.clone(), process, orders, closed: false });
            let sender = sender.clone();
            std::thread::spawn(move || read_reports(index, reports, &sender));
        }
        Ok(children)
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

    /// Tells all tasks to finish, and waits until they have.
    ///
    /// # Errors
    /// A task did not end well, or a signal came.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        for index in 0..self.children.len() {
            self.tell(index, &Order::Finish);
        }
        let deadline = Instant::now() + self.order_time;
        while let Some(open) = self.children.iter().position(|child| !child.closed) {
            match self.next(deadline) {
                Ok(Event::Closed(index)) => {
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
        if let Event::Closed(index) = event {
            self.children[index].closed = true;
        }
        Ok(event)
    }

    /// What an event that nobody waits for means.
    fn trouble(&mut self, event: Event) -> Failure {
        match event {
            Event::Closed(index) => {
                let status = self.wait(index);
                self.ended(index, status)
            }
            Event::Signal(signal) => {
                Failure::work(format!("{signal} came {}; the demo has ended its tasks", self.doing))
            }
            Event::Garbled(index, line) => self.failed(index, &format!("it reported what no task says: {line}")),
            Event::Report(index, Report::Failed { reason }) => {
                let deadline = Instant::now() + ROOT_CAUSE_TIME;
                while let Ok(event) = self.next(deadline) {
                    if let Event::Closed(_) | Event::Signal(_) = event {
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
        let Child { name, process, .. } = &self.children[index];
        let (id, doing) = (process.id(), &self.doing);
        match status {
            Ok(status) => {
                Failure::work(format!("{name} (process {id}) ended {doing}, before its work was done: {status}"))
            }
            Err(error) => Failure::work(format!("{name} (process {id}) ended {doing}, nobody knows how ({error})")),
        }
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

fn read_reports(index: usize, reports: ChildStdout, events: &Sender<Event>) {
    for line in BufReader::new(reports).lines().map_while(Result::ok) {
        let event = match serde_json::from_str(&line) {
            Ok(report) => Event::Report(index, report),
            Err(_) => Event::Garbled(index, line),
        };
        if events.send(event).is_err() {
            return;
        }
    }
    // Nobody listens any more where the demo has ended.
    let _ = events.send(Event::Closed(index));
}

#[cfg(test)]
mod tests {
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
        assert_eq!(garbled, "task0 failed in step 3: it reported what no task says: hello");
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
}
