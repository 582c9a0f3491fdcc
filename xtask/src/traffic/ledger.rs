//! A process's ledger: a line before a call begins and one after it has ended, each written by one system call, so that
//! who is killed takes nothing of it along. Written by the task's threads, read by the chore when all is over.
//!
//! ```text
//! B 17 1000250 4000250 recv 3 10002 1 65536     call 17 began, with a deadline: it asked task 3 for key 1 of step 10002
//! E 17 1003999 got 0                            it ended: the tensor of task 3's first process
//! ```

use std::fmt::{self, Display, Write as _};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::str::{FromStr, SplitAsciiWhitespace};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use sealane::{Code, Error};

/// The clock of all processes of this machine, in microseconds.
pub(crate) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has that clock");
    now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1000
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Send {
        to: usize,
        step: i64,
        key: u32,
        bytes: usize,
    },
    Recv {
        from: usize,
        step: i64,
        key: u32,
        bytes: usize,
    },
    /// A recv of what nobody sends: it shows how soon the loss of a peer is told.
    Stand {
        from: usize,
    },
    /// A send that nobody asks for: it fills the pools.
    Burst {
        to: usize,
        bytes: usize,
    },
    Publish {
        version: i64,
    },
    Pull {
        from: usize,
        min: i64,
    },
    Push {
        to: usize,
        number: u64,
        bytes: usize,
    },
    Accept,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// A recv got the right bytes, of this process of its producer.
    Got {
        life: u32,
    },
    /// A pull got the right bytes: a version for each key, or none where it failed.
    Pulled(Vec<Option<i64>>),
    /// An accept took so many.
    Took(usize),
    /// It was given up.
    Dropped,
    Failed {
        code: String,
        reason: String,
    },
    /// It got something else than it should.
    Wrong(String),
}

impl Outcome {
    pub(crate) fn failed(error: &Error) -> Outcome {
        Outcome::Failed { code: format!("{:?}", error.code()), reason: error.to_string() }
    }

    pub(crate) fn is_failed_with(&self, wanted: Code) -> bool {
        matches!(self, Outcome::Failed { code, .. } if *code == format!("{wanted:?}"))
    }
}

/// What an engine that is embedded in the task holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) slab_bytes: u64,
    pub(crate) deposits: u64,
    pub(crate) parked: u64,
    pub(crate) published: u64,
    pub(crate) links: u64,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Attached {
        at: u64,
    },
    Begin {
        call: u64,
        at: u64,
        until: u64,
        what: What,
    },
    End {
        call: u64,
        at: u64,
        outcome: Outcome,
    },
    /// A tensor came out of the task's queue.
    Accepted {
        at: u64,
        from: usize,
        life: u32,
        number: u64,
    },
    /// A thread was held up so long by making calls, and could not look after the others.
    Held {
        from: u64,
        until: u64,
    },
    Holds {
        at: u64,
        holdings: Holdings,
    },
}

/// See the module.
pub(super) struct Ledger {
    file: File,
    calls: AtomicU64,
}

impl Ledger {
    pub(super) fn create(path: &Path) -> io::Result<Ledger> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Ledger { file, calls: AtomicU64::new(0) })
    }

    /// A call is about to begin, and has so long.
    pub(super) fn begin(&self, what: What, timeout: Duration) -> u64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let at = now_us();
        self.write(&Line::Begin { call, at, until: at + timeout.as_micros() as u64, what });
        call
    }

    pub(super) fn end(&self, call: u64, outcome: Outcome) {
        self.write(&Line::End { call, at: now_us(), outcome });
    }

    pub(super) fn attached(&self) {
        self.write(&Line::Attached { at: now_us() });
    }

    pub(super) fn write(&self, line: &Line) {
        // A ledger that cannot be written would accuse the innocent.
        (&self.file).write_all(format!("{line}\n").as_bytes()).expect("the ledger can be written");
    }
}

impl Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Line::Attached { at } => write!(out, "A {at}"),
            Line::Begin { call, at, until, what } => write!(out, "B {call} {at} {until} {what}"),
            Line::End { call, at, outcome } => write!(out, "E {call} {at} {outcome}"),
            Line::Accepted { at, from, life, number } => write!(out, "G {at} {from} {life} {number}"),
            Line::Held { from, until } => write!(out, "H {from} {until}"),
            Line::Holds { at, holdings } => {
                let Holdings { slab_bytes, deposits, parked, published, links } = holdings;
                write!(out, "C {at} {slab_bytes} {deposits} {parked} {published} {links}")
            }
        }
    }
}

impl Display for What {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            What::Send { to, step, key, bytes } => write!(out, "send {to} {step} {key} {bytes}"),
            What::Recv { from, step, key, bytes } => write!(out, "recv {from} {step} {key} {bytes}"),
            What::Stand { from } => write!(out, "stand {from}"),
            What::Burst { to, bytes } => write!(out, "burst {to} {bytes}"),
            What::Publish { version } => write!(out, "publish {version}"),
            What::Pull { from, min } => write!(out, "pull {from} {min}"),
            What::Push { to, number, bytes } => write!(out, "push {to} {number} {bytes}"),
            What::Accept => out.write_str("accept"),
        }
    }
}

impl Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Ok => out.write_str("ok"),
            Outcome::Got { life } => write!(out, "got {life}"),
            Outcome::Pulled(versions) => {
                out.write_str("pulled")?;
                versions.iter().try_for_each(|version| match version {
                    Some(version) => write!(out, " {version}"),
                    None => out.write_str(" -"),
                })
            }
            Outcome::Took(count) => write!(out, "took {count}"),
            Outcome::Dropped => out.write_str("dropped"),
            Outcome::Failed { code, reason } => write!(out, "failed {code} {}", one_line(reason)),
            Outcome::Wrong(how) => write!(out, "wrong {}", one_line(how)),
        }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().fold(String::new(), |mut line, word| {
        let space = if line.is_empty() { "" } else { " " };
        let _ = write!(line, "{space}{word}");
        line
    })
}

impl FromStr for Line {
    type Err = ();

    /// Reads a line; one that was cut off is none.
    fn from_str(line: &str) -> Result<Line, ()> {
        let mut words = line.split_ascii_whitespace();
        let words = &mut words;
        let read = match words.next().ok_or(())? {
            "A" => Line::Attached { at: next(words)? },
            "B" => Line::Begin { call: next(words)?, at: next(words)?, until: next(words)?, what: what(words)? },
            "E" => Line::End { call: next(words)?, at: next(words)?, outcome: outcome(words)? },
            "G" => Line::Accepted { at: next(words)?, from: next(words)?, life: next(words)?, number: next(words)? },
            "H" => Line::Held { from: next(words)?, until: next(words)? },
            "C" => Line::Holds {
                at: next(words)?,
                holdings: Holdings {
                    slab_bytes: next(words)?,
                    deposits: next(words)?,
                    parked: next(words)?,
                    published: next(words)?,
                    links: next(words)?,
                },
            },
            _ => return Err(()),
        };
        Ok(read)
    }
}

fn next<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>) -> Result<T, ()> {
    words.next().and_then(|word| word.parse().ok()).ok_or(())
}

fn what(words: &mut SplitAsciiWhitespace<'_>) -> Result<What, ()> {
    Ok(match words.next().ok_or(())? {
        "send" => What::Send { to: next(words)?, step: next(words)?, key: next(words)?, bytes: next(words)? },
        "recv" => What::Recv { from: next(words)?, step: next(words)?, key: next(words)?, bytes: next(words)? },
        "stand" => What::Stand { from: next(words)? },
        "burst" => What::Burst { to: next(words)?, bytes: next(words)? },
        "publish" => What::Publish { version: next(words)? },
        "pull" => What::Pull { from: next(words)?, min: next(words)? },
        "push" => What::Push { to: next(words)?, number: next(words)?, bytes: next(words)? },
        "accept" => What::Accept,
        _ => return Err(()),
    })
}

fn outcome(words: &mut SplitAsciiWhitespace<'_>) -> Result<Outcome, ()> {
    let rest = |words: &mut SplitAsciiWhitespace<'_>| words.collect::<Vec<_>>().join(" ");
    Ok(match words.next().ok_or(())? {
        "ok" => Outcome::Ok,
        "got" => Outcome::Got { life: next(words)? },
        "pulled" => {
            let version = |word: &str| if word == "-" { Ok(None) } else { word.parse().map(Some).map_err(drop) };
            Outcome::Pulled(words.map(version).collect::<Result<_, ()>>()?)
        }
        "took" => Outcome::Took(next(words)?),
        "dropped" => Outcome::Dropped,
        "failed" => Outcome::Failed { code: next(words)?, reason: rest(words) },
        "wrong" => Outcome::Wrong(rest(words)),
        _ => return Err(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_as_they_were_written() {
        let whats = [
            What::Send { to: 1, step: -2, key: 3, bytes: 4 },
            What::Recv { from: 1, step: 2, key: 3, bytes: 0 },
            What::Stand { from: 5 },
            What::Burst { to: 5, bytes: 6 },
            What::Publish { version: 7 },
            What::Pull { from: 1, min: -1 },
            What::Push { to: 1, number: 2, bytes: 3 },
            What::Accept,
        ];
        let begun = whats.into_iter().map(|what| Line::Begin { call: 9, at: 1, until: 2, what });
        let failed = Outcome::Failed { code: "Unavailable".into(), reason: "it is gone".into() };
        assert!(failed.is_failed_with(Code::Unavailable) && !failed.is_failed_with(Code::Aborted));
        let outcomes = [
            Outcome::Ok,
            Outcome::Got { life: 2 },
            Outcome::Pulled(vec![Some(4), None, Some(-5)]),
            Outcome::Took(3),
            Outcome::Dropped,
            failed,
            Outcome::Wrong("5 bytes instead of 6".into()),
        ];
        let ended = outcomes.into_iter().map(|outcome| Line::End { call: 9, at: 8, outcome });
        let others = [
            Line::Attached { at: 1 },
            Line::Accepted { at: 1, from: 2, life: 3, number: 4 },
            Line::Held { from: 1, until: 2 },
            Line::Holds { at: 1, holdings: Holdings { slab_bytes: 2, deposits: 3, parked: 4, published: 5, links: 6 } },
        ];
        for line in begun.chain(ended).chain(others) {
            assert_eq!(line.to_string().parse::<Line>().as_ref(), Ok(&line));
        }
    }

    #[test]
    fn a_line_that_was_cut_off_is_none() {
        for line in ["", "B", "B 1 2 3", "B 1 2 3 send 4", "E 1 2 got", "X 1", "E 1 x ok"] {
            assert_eq!(line.parse::<Line>(), Err(()), "{line}");
        }
    }

    #[test]
    fn a_reason_of_several_lines_becomes_one() {
        let outcome = Outcome::Failed { code: "Unavailable".into(), reason: "one\n two".into() };
        assert_eq!(outcome.to_string(), "failed Unavailable one two");
    }
}
