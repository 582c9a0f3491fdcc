//! A process's ledger: a line before a call begins and one after it has ended, each written by one system call, so that
//! who is killed takes nothing of it along. Written by the task's threads, read by the chore when all is over.
//!
//! ```text
//! {"Begin":{"call":17,"at":1000250,"until":4000250,"what":{"Recv":{"from":3,"step":10002,"key":1,"bytes":65536}}}}
//! {"End":{"call":17,"at":1003999,"outcome":{"Got":{"life":0}}}}
//! ```

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use sealane::{Code, Error};
use serde::{Deserialize, Serialize};

/// The clock of all processes of this machine, in microseconds.
pub(crate) fn now_us() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("Linux has that clock");
    now.tv_sec() as u64 * 1_000_000 + now.tv_nsec() as u64 / 1000
}

/// What was called.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Rows of the task's table.
    Write {
        version: i64,
    },
    /// Rows of the tables of two tasks.
    PullRows {
        from: [usize; 2],
        min: i64,
    },
    PushRows {
        to: [usize; 2],
    },
    AcceptRows,
}

/// How a call ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Ok,
    /// A recv got the right bytes, of this process of its producer.
    Got {
        life: u32,
    },
    /// A pull got the right bytes: a version for each key or owner, or none where it failed.
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

impl From<Result<(), Error>> for Outcome {
    fn from(ended: Result<(), Error>) -> Outcome {
        ended.map_or_else(|error| Outcome::failed(&error), |()| Outcome::Ok)
    }
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Holdings {
    pub(crate) slab_bytes: u64,
    pub(crate) deposits: u64,
    pub(crate) parked: u64,
    pub(crate) published: u64,
    pub(crate) links: u64,
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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

    pub(super) fn end(&self, call: u64, outcome: impl Into<Outcome>) {
        self.write(&Line::End { call, at: now_us(), outcome: outcome.into() });
    }

    pub(super) fn attached(&self) {
        self.write(&Line::Attached { at: now_us() });
    }

    pub(super) fn write(&self, line: &Line) {
        let mut line = serde_json::to_vec(line).expect("lines are plain data");
        line.push(b'\n');
        // A ledger that cannot be written would accuse the innocent.
        (&self.file).write_all(&line).expect("the ledger can be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_tells_its_code() {
        let failed = Outcome::failed(&Error::unavailable("ps0:2222", "it is gone"));
        assert!(failed.is_failed_with(Code::Unavailable) && !failed.is_failed_with(Code::Aborted));
        assert!(!Outcome::Ok.is_failed_with(Code::Unavailable));
    }
}
