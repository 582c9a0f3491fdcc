//! The ledgers of all processes, combined.

use std::fs;
use std::path::PathBuf;

use crate::traffic::ledger::{Arrival, Line, Outcome, What};

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) task: usize,
    pub(crate) life: u32,
    number: u64,
    pub(crate) began: u64,
    /// Its deadline.
    pub(crate) until: u64,
    pub(crate) what: What,
    /// When it ended, and how; `None` if its process ended before.
    pub(crate) end: Option<(u64, Outcome)>,
}

impl Call {
    pub(crate) fn outcome(&self) -> Option<&Outcome> {
        self.end.as_ref().map(|(_, outcome)| outcome)
    }

    /// When it ended, or its latest possible end.
    pub(crate) fn over(&self) -> u64 {
        self.end.as_ref().map_or(self.until, |(at, _)| *at)
    }

    /// Its task and all others that take part in it.
    pub(crate) fn concerned(&self) -> Vec<usize> {
        [&self.what.peers[..], &[self.task]].concat()
    }
}

/// What one process did.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) task: usize,
    pub(crate) number: u32,
    /// True if it was told to finish, and not killed.
    pub(crate) finished: bool,
    pub(crate) calls: Vec<Call>,
    pub(crate) arrivals: Vec<Arrival>,
    pub(crate) held: Vec<(u64, u64)>,
}

impl Life {
    /// For a process that has done nothing yet.
    pub(super) fn new(task: usize, number: u32, finished: bool) -> Life {
        Life { task, number, finished, ..Life::default() }
    }

    /// Reads a ledger. The last line of a process that was killed may be cut off.
    fn read(&mut self, text: &str) -> Result<(), String> {
        let (whole, rest) = text.rsplit_once('\n').unwrap_or(("", text));
        if self.finished && !rest.is_empty() {
            return Err(format!("a line is cut off: {rest}"));
        }
        whole.lines().try_for_each(|line| {
            let read = serde_json::from_str(line).map_err(|error| format!("not a line of a ledger ({error}): {line}"));
            self.add(read?)
        })
    }

    pub(super) fn add(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Begin { call, at, until, what } => {
                let (task, life) = (self.task, self.number);
                self.calls.push(Call { task, life, number: call, began: at, until, what, end: None });
            }
            Line::End { call, at, outcome } => {
                let mut open = self.calls.iter_mut().rev().filter(|open| open.end.is_none());
                let ended = open.find(|open| open.number == call);
                ended.ok_or_else(|| format!("call {call} ended twice, or never began"))?.end = Some((at, outcome));
            }
            Line::Arrived(arrival) => self.arrivals.push(arrival),
            Line::Held { from, until } => self.held.push((from, until)),
            Line::Holds(_) => {}
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Books {
    /// By task, each in the order of its processes.
    pub(crate) lives: Vec<Life>,
}

impl Books {
    /// Reads the ledgers of `lives` processes of each task; all but the last were killed.
    pub(crate) fn read(lives: &[u32], path: impl Fn(usize, u32) -> PathBuf) -> Result<Books, String> {
        let mut books = Books::default();
        for (task, &count) in lives.iter().enumerate() {
            for number in 0..count {
                let path = path(task, number);
                let mut life = Life::new(task, number, number + 1 == count);
                // A process that was killed at once may not have created it.
                let text = fs::read(&path).unwrap_or_default();
                let read = life.read(&String::from_utf8_lossy(&text));
                read.map_err(|error| format!("{}: {error}", path.display()))?;
                books.lives.push(life);
            }
        }
        Ok(books)
    }

    /// All calls; those of a task in the order in which they began.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.lives.iter().flat_map(|life| &life.calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic::ledger::Kind;

    #[test]
    fn a_ledger_is_read_up_to_where_its_process_was_killed() {
        let arrival = Arrival { at: 12, kind: Kind::Push, from: 2, life: 0, number: 7 };
        let lines = [
            Line::Begin { call: 0, at: 10, until: 20, what: What::new(Kind::Push, &[1], 2) },
            Line::Begin { call: 1, at: 11, until: 21, what: What::new(Kind::Accept, &[], 0) },
            Line::Arrived(arrival),
            Line::End { call: 1, at: 13, outcome: Outcome::Ok },
            Line::End { call: 0, at: 14, outcome: Outcome::Ok },
        ];
        let text: String = lines.iter().map(|line| serde_json::to_string(line).unwrap() + "\n").collect();
        let cut = &text[..text.len() - 2];
        let mut life = Life::new(3, 0, false);
        life.read(cut).unwrap();
        assert_eq!((life.calls.len(), life.arrivals), (2, vec![arrival]));
        assert_eq!(life.calls[0].outcome(), None);
        assert_eq!(life.calls[1].outcome(), Some(&Outcome::Ok));
        // One that was not killed is whole.
        assert!(Life::new(3, 0, true).read(cut).is_err() && Life::new(3, 0, true).read(&text).is_ok());
        assert!(Life::default().read(&format!("no line\n{text}")).is_err());
        let unbegun = format!("{}\n", text.lines().last().unwrap());
        assert!(Life::default().read(&unbegun).unwrap_err().contains("never began"));
    }
}
