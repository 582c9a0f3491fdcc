//! A process's ledger: a line before a call begins and one after it has ended, each written by one system call, so that a killed
//! process loses none. Written by the task's threads, read by the chore at the end.
//!
//! ```text
//! {"Begin":{"call":17,"at":1000250,"until":4000250,"what":{"kind":"Recv","peers":[3],"number":10002,"key":1}}}
//! {"End":{"call":17,"at":1003999,"outcome":{"Got":0}}}
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) enum Kind {
    Send,
    Recv,
    /// A recv that nobody answers: it shows how soon the loss of a peer is reported.
    Stand,
    /// A send that nobody requests: it fills the pools.
    Burst,
    Publish,
    Pull,
    Push,
    Accept,
    /// Rows of the task's table are written, those of two others pulled, and rows pushed to both and accepted.
    WriteRows,
    PullRows,
    PushRows,
    AcceptRows,
    /// A stream is dialed, written to its end, and finished; another that was accepted is read to its end.
    Stream,
    Read,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct What {
    pub(crate) kind: Kind,
    /// The other tasks that take part in it.
    pub(crate) peers: Vec<usize>,
    /// A step, the number of a push or stream, or a version; for a pull, the oldest acceptable version.
    pub(crate) number: i64,
    pub(crate) key: u32,
}

impl What {
    pub(crate) fn new(kind: Kind, peers: &[usize], number: i64) -> What {
        What { kind, peers: peers.to_vec(), number, key: 0 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Outcome {
    Ok,
    /// A recv got the right bytes, from this process of its producer.
    Got(u32),
    /// A pull got the right bytes: a version for each key or owner, or `None` if that failed.
    Pulled(Vec<Option<i64>>),
    /// It was given up.
    Dropped,
    /// The code and the message.
    Failed(String, String),
    /// It got something wrong.
    Wrong(String),
}

impl From<Result<(), Error>> for Outcome {
    fn from(ended: Result<(), Error>) -> Outcome {
        ended.map_or_else(|error| Outcome::failed(&error), |()| Outcome::Ok)
    }
}

impl Outcome {
    pub(crate) fn failed(error: &Error) -> Outcome {
        Outcome::Failed(format!("{:?}", error.code()), error.to_string())
    }

    pub(crate) fn is_failed_with(&self, wanted: Code) -> bool {
        matches!(self, Outcome::Failed(code, _) if *code == format!("{wanted:?}"))
    }
}

/// A push or stream that arrived completely at the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    pub(crate) at: u64,
    pub(crate) kind: Kind,
    pub(crate) from: usize,
    pub(crate) life: u32,
    pub(crate) number: i64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Line {
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
    Arrived(Arrival),
    /// A thread was held up this long by making calls, and could not attend to the others.
    Held {
        from: u64,
        until: u64,
    },
    /// What an engine embedded in the task holds.
    Holds([u64; 5]),
}

/// How much of something may be held at the end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Bound {
    /// Any amount.
    None,
    /// This much more than at first.
    More(u64),
    /// This much, whatever there was at first.
    Most(u64),
}

/// The figures of [`Line::Holds`], and by how much each may have grown at the end of a soak.
pub(crate) const HOLDINGS: [(&str, Bound); 5] = [
    ("slabs in use, B", Bound::More(0)),
    ("pending_sends", Bound::More(0)),
    // One for each peer waits all the time; which of them have asked again after the last fault varies.
    ("parked requests", Bound::More(6)),
    // The key that exists in two versions of four, one on each shard.
    ("published tensors", Bound::More(2)),
    ("links", Bound::More(4)),
];

pub(super) struct Ledger {
    file: File,
    calls: AtomicU64,
}

impl Ledger {
    pub(super) fn create(path: &Path) -> io::Result<Ledger> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Ledger { file, calls: AtomicU64::new(0) })
    }

    /// Records that a call is about to begin, with this timeout.
    pub(super) fn begin(&self, what: What, timeout: Duration) -> u64 {
        let (call, at) = (self.calls.fetch_add(1, Ordering::Relaxed), now_us());
        self.write(&Line::Begin { call, at, until: at + timeout.as_micros() as u64, what });
        call
    }

    pub(super) fn end(&self, call: u64, outcome: impl Into<Outcome>) {
        self.write(&Line::End { call, at: now_us(), outcome: outcome.into() });
    }

    /// Records a call from its beginning to its end.
    pub(super) fn call<Ended: Into<Outcome>>(&self, what: What, timeout: Duration, call: impl FnOnce() -> Ended) {
        let number = self.begin(what, timeout);
        self.end(number, call());
    }

    pub(super) fn write(&self, line: &Line) {
        let mut line = serde_json::to_vec(line).expect("lines are plain data");
        line.push(b'\n');
        // A ledger with missing lines would report false violations.
        (&self.file).write_all(&line).expect("the ledger can be written");
    }
}
