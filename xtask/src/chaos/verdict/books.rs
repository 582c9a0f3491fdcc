//! The ledgers of all processes, as one.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;

use crate::traffic::ledger::{Holdings, Line, Outcome, What};

/// A call of a process.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) task: usize,
    pub(crate) life: u32,
    pub(crate) number: u64,
    pub(crate) began: u64,
    /// Its deadline.
    pub(crate) until: u64,
    pub(crate) what: What,
    /// When it ended, and how; `None` if its process ended first.
    pub(crate) end: Option<(u64, Outcome)>,
}

impl Call {
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.end.as_ref().map(|(_, outcome)| outcome)
    }

    /// When it ended, or could have at the latest.
    pub(crate) fn over(&self) -> u64 {
        self.end.as_ref().map_or(self.until, |(at, _)| *at)
    }
}

impl fmt::Display for Call {
    /// As its ledger has it.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { task, life, number, began, until, what, end } = self;
        write!(out, "[task{task}.{life}: call {number} from {began} to {until}, {what:?}: ")?;
        match end {
            Some((at, outcome)) => write!(out, "at {at} {outcome:?}]"),
            None => out.write_str("no end]"),
        }
    }
}

/// A tensor that came out of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accepted {
    pub(crate) at: u64,
    pub(crate) from: usize,
    pub(crate) life: u32,
    pub(crate) number: u64,
}

/// What one process did.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) task: usize,
    pub(crate) number: u32,
    /// It was told to finish, and not killed.
    pub(crate) finished: bool,
    pub(crate) attached: Option<u64>,
    pub(crate) calls: Vec<Call>,
    pub(crate) accepted: Vec<Accepted>,
    pub(crate) held: Vec<(u64, u64)>,
    pub(crate) holdings: Vec<(u64, Holdings)>,
    /// The places of the calls that have not ended, by number.
    open: HashMap<u64, usize>,
}

impl Life {
    /// One that has done nothing yet.
    pub(super) fn new(task: usize, number: u32, finished: bool) -> Life {
        Life { task, number, finished, ..Life::default() }
    }

    /// Reads a ledger. The last line of a process that was killed may be cut off.
    fn read(&mut self, text: &str) -> Result<(), String> {
        let mut lines = text.lines().peekable();
        while let Some(text) = lines.next() {
            match serde_json::from_str(text) {
                Ok(line) => self.add(line)?,
                Err(_) if lines.peek().is_none() && !self.finished => {}
                Err(error) => return Err(format!("not a line of a ledger ({error}): {text}")),
            }
        }
        Ok(())
    }

    /// Adds a line.
    ///
    /// # Errors
    /// It ends a call that is not in flight.
    pub(super) fn add(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Attached { at } => self.attached = Some(at),
            Line::Begin { call, at, until, what } => {
                self.open.insert(call, self.calls.len());
                let (task, life) = (self.task, self.number);
                self.calls.push(Call { task, life, number: call, began: at, until, what, end: None });
            }
            Line::End { call, at, outcome } => match self.open.remove(&call) {
                Some(place) => self.calls[place].end = Some((at, outcome)),
                None => return Err(format!("call {call} ended twice, or never began")),
            },
            Line::Accepted { at, from, life, number } => self.accepted.push(Accepted { at, from, life, number }),
            Line::Held { from, until } => self.held.push((from, until)),
            Line::Holds { at, holdings } => self.holdings.push((at, holdings)),
        }
        Ok(())
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Books {
    /// By task, each in the order of its processes.
    pub(crate) lives: Vec<Life>,
}

impl Books {
    /// Reads the ledgers of so many processes of each task; all but the last were killed.
    ///
    /// # Errors
    /// One is missing or unreadable.
    pub(crate) fn read(lives: &[u32], path: impl Fn(usize, u32) -> PathBuf) -> Result<Books, String> {
        let mut books = Books::default();
        for (task, &count) in lives.iter().enumerate() {
            for number in 0..count {
                let path = path(task, number);
                let mut life = Life::new(task, number, number + 1 == count);
                // One that was killed at once may not have begun.
                let text = fs::read(&path).unwrap_or_default();
                let read = life.read(&String::from_utf8_lossy(&text));
                read.map_err(|error| format!("{}: {error}", path.display()))?;
                books.lives.push(life);
            }
        }
        Ok(books)
    }

    /// All calls; those of a task in the order of their beginning.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.lives.iter().flat_map(|life| &life.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(lines: &[Line]) -> String {
        lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect()
    }

    #[test]
    fn a_ledger_is_read_up_to_where_its_process_was_killed() {
        let mut life = Life::new(3, 0, false);
        let push = What::Push { to: 1, number: 2, bytes: 3 };
        let text = lines(&[
            Line::Attached { at: 5 },
            Line::Begin { call: 0, at: 10, until: 20, what: push },
            Line::Begin { call: 1, at: 11, until: 21, what: What::Accept },
            Line::Accepted { at: 12, from: 2, life: 0, number: 7 },
            Line::End { call: 1, at: 13, outcome: Outcome::Took(1) },
            Line::Held { from: 1, until: 2 },
            Line::End { call: 0, at: 14, outcome: Outcome::Ok },
        ]);
        life.read(&text[..text.len() - 2]).unwrap();
        assert_eq!((life.attached, life.calls.len(), life.held.len()), (Some(5), 2, 1));
        assert_eq!(life.calls[0].outcome(), None);
        assert_eq!(life.calls[1].outcome(), Some(&Outcome::Took(1)));
        assert_eq!(life.accepted, [Accepted { at: 12, from: 2, life: 0, number: 7 }]);
        let shown = "[task3.0: call 0 from 10 to 20, Push { to: 1, number: 2, bytes: 3 }: no end]";
        assert_eq!(life.calls[0].to_string(), shown);
    }

    #[test]
    fn one_that_was_not_killed_is_whole() {
        let mut life = Life::new(0, 0, true);
        let text = lines(&[Line::Attached { at: 5 }, Line::Held { from: 1, until: 2 }]);
        assert!(life.read(&text[..text.len() - 2]).is_err());
        let unbegun = lines(&[Line::End { call: 0, at: 1, outcome: Outcome::Ok }, Line::Attached { at: 5 }]);
        assert!(Life::default().read(&unbegun).unwrap_err().contains("never began"));
        assert!(Life::default().read(&format!("no line\n{text}")).is_err());
    }
}
