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
    /// The file and its lines.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Call { task, life, number, began, until, what, end } = self;
        let begin = Line::Begin { call: *number, at: *began, until: *until, what: what.clone() };
        write!(out, "[task{task}.{life}: {begin}")?;
        match end {
            Some((at, outcome)) => {
                write!(out, " / {}]", Line::End { call: *number, at: *at, outcome: outcome.clone() })
            }
            None => out.write_str(" / no end]"),
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
}

impl Life {
    /// Reads a ledger. The last line of a process that was killed may be cut off.
    pub(super) fn read(&mut self, text: &str) -> Result<(), String> {
        let mut open = HashMap::new();
        let mut lines = text.lines().peekable();
        while let Some(text) = lines.next() {
            let is_last = lines.peek().is_none();
            match text.parse() {
                Ok(Line::Attached { at }) => self.attached = Some(at),
                Ok(Line::Begin { call, at, until, what }) => {
                    open.insert(call, self.calls.len());
                    let (task, life) = (self.task, self.number);
                    self.calls.push(Call { task, life, number: call, began: at, until, what, end: None });
                }
                Ok(Line::End { call, at, outcome }) => match open.remove(&call) {
                    Some(place) => self.calls[place].end = Some((at, outcome)),
                    None => return Err(format!("call {call} ended twice, or never began")),
                },
                Ok(Line::Accepted { at, from, life, number }) => {
                    self.accepted.push(Accepted { at, from, life, number });
                }
                Ok(Line::Held { from, until }) => self.held.push((from, until)),
                Ok(Line::Holds { at, holdings }) => self.holdings.push((at, holdings)),
                Err(()) if is_last && !self.finished => {}
                Err(()) => return Err(format!("not a line of a ledger: {text}")),
            }
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
                let mut life = Life { task, number, finished: number + 1 == count, ..Life::default() };
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

    #[test]
    fn a_ledger_is_read_up_to_where_its_process_was_killed() {
        let mut life = Life { task: 3, ..Life::default() };
        let text = "A 5\nB 0 10 20 send 1 2 3 4\nB 1 11 21 accept\nG 12 2 0 7\nE 1 13 took 1\nH 1 2\nE 0 1";
        life.read(text).unwrap();
        assert_eq!((life.attached, life.calls.len(), life.held.len()), (Some(5), 2, 1));
        assert_eq!(life.calls[0].outcome(), None);
        assert_eq!(life.calls[1].outcome(), Some(&Outcome::Took(1)));
        assert_eq!(life.accepted, [Accepted { at: 12, from: 2, life: 0, number: 7 }]);
        assert_eq!(life.calls[0].to_string(), "[task3.0: B 0 10 20 send 1 2 3 4 / no end]");
    }

    #[test]
    fn one_that_was_not_killed_is_whole() {
        let mut life = Life { finished: true, ..Life::default() };
        assert!(life.read("A 5\nB 0 1").is_err());
        assert!(Life::default().read("E 0 1 ok\nA 5").is_err());
    }
}
