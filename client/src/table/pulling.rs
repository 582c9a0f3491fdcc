//! Rows that are being pulled: asked of all their owners at once, and put to their places as they come. Each owner has its part of
//! what may be in flight, so that one that is slow keeps no other from being asked.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use sealane_runtime::Buffer;
use sealane_transport::{
    Code, Error, RecvOutcome, Tensor, Unreceived,
    limits::ROW_IDS_MAX,
    row_ids::{self, RowIds},
};

use super::{
    places::Places,
    sharding::ShardedTable,
    shares::{Share, split},
};
use crate::{
    Receiving, Task,
    limits::{ROW_REQUESTS_MAX, ROWS_IN_FLIGHT_BYTES, ROWS_REQUEST_BYTES},
};

/// How rows are pulled.
#[derive(Debug)]
pub struct RowsOptions {
    /// The oldest version of the table that will do. Default: any.
    pub min_version: i64,
    /// How long it may take. Default: the daemon's or the engine's `request_timeout`.
    pub timeout: Option<Duration>,
    /// Memory for the rows, exactly as long as they are; it comes back with the outcome. Default: memory of the heap.
    pub out: Option<Buffer>,
    /// Rows whose owner is gone, or does not answer in time, are left out and named in [`PulledRows::missing`]; the others come.
    /// Default: the call fails with the first error.
    pub partial: bool,
}

impl Default for RowsOptions {
    fn default() -> Self {
        Self { min_version: i64::MIN, timeout: None, out: None, partial: false }
    }
}

/// Rows that were pulled.
#[derive(Debug)]
pub struct PulledRows {
    /// The rows in the order in which they were named: of shape `[named, ...]`. Those that are missing are as `out` was, or zeros.
    pub rows: Tensor,
    /// Rows that did not come, with `partial`.
    pub missing: Vec<MissingRows>,
    /// Rows that were asked for; the others were named more than once.
    pub asked: usize,
}

/// Rows of one owner that did not come.
#[derive(Debug)]
pub struct MissingRows {
    /// The owner.
    pub owner: Box<str>,
    /// Their places in what was asked for, in no order.
    pub places: Vec<u32>,
    /// Why they did not come, the first of them.
    pub error: Error,
}

/// A request for rows of one owner.
struct Asked {
    /// The number of its first row in the share, and how many it has.
    first: usize,
    count: usize,
    receiving: Receiving,
}

/// The rows of one owner, and how far they are.
struct Part {
    share: Share,
    /// The number in the share of the first row that was not asked for; `None` if all were.
    next: Option<usize>,
    /// In the order of their rows.
    asked: VecDeque<Asked>,
}

/// What is in flight of one owner at most.
struct Most {
    requests: usize,
    /// Of one request.
    rows: usize,
    /// Of all of them, but for one request, which is always allowed.
    in_flight: usize,
}

/// A pull of rows in progress: await it, or [`wait`](Self::wait). Dropping it cancels what has not come.
#[must_use = "dropping it cancels the pull"]
pub struct PullingRows {
    task: Task,
    table: ShardedTable,
    min_version: i64,
    /// When it is late, or that it never is, if the caller has said so.
    until: Option<Option<Instant>>,
    partial: bool,
    parts: Vec<Part>,
    places: Places,
    missing: Vec<MissingRows>,
    /// It ended before it began.
    failed: Option<Error>,
}

impl Task {
    /// Pulls rows of a table by their numbers, from the memory of whoever has published them: no owner's process is woken. Rows may be
    /// named in any order and more than once. A table that is not published yet is waited for.
    ///
    /// The rows of one request are of one version of their owner's part, but for rows that the owner [writes](crate::Table) meanwhile:
    /// these are whole, old or new. A request has up to 4,096 rows of one owner, and 512 KiB. How large rows are is learnt from the
    /// first one, unless `out` says it, or `table` or a clone of it was pulled from before: keep it.
    ///
    /// ```no_run
    /// # use sealane::{RowsOptions, ShardedTable, Task};
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let users = ShardedTable::of("ps0.train:2222", "user")?;
    /// let pulled = task.pull_rows(&users, &[7, 9, 7], RowsOptions::default()).wait()?;
    /// println!("{:?}", pulled.rows.shape());
    /// # Ok::<(), sealane::Error>(())
    /// ```
    pub fn pull_rows(&self, table: &ShardedTable, ids: &[u64], options: RowsOptions) -> PullingRows {
        let RowsOptions { min_version, timeout, out, partial } = options;
        let (mut shares, failed) = match split(table, ids) {
            Ok(shares) => (shares, None),
            Err(error) => (Vec::new(), Some(error)),
        };
        if shares.is_empty() && failed.is_none() {
            // What no rows look like is known by their owners alone.
            shares.push(Share::empty());
        }
        let mut pulling = PullingRows {
            task: self.for_its_own(),
            table: table.clone(),
            min_version,
            until: timeout.map(|timeout| Instant::now().checked_add(timeout)),
            partial,
            parts: shares.into_iter().map(|share| Part { share, next: Some(0), asked: VecDeque::new() }).collect(),
            places: Places::new(out, ids.len(), table.row_bytes()),
            missing: Vec::new(),
            failed,
        };
        pulling.ask_all();
        pulling
    }
}

impl PullingRows {
    /// Asks each owner for as much as may be in flight.
    fn ask_all(&mut self) {
        (0..self.parts.len()).for_each(|part| self.ask(part));
    }

    /// Asks one owner.
    fn ask(&mut self, part: usize) {
        let most = Most::of(self.places.row_bytes(), self.parts.len());
        let part = &mut self.parts[part];
        let (mut encoded, mut spans) = (Vec::new(), Vec::new());
        let mut in_flight = part.asked.iter().map(|asked| asked.count).sum::<usize>();
        while let Some(first) = part.next
            && part.asked.len() + spans.len() < most.requests
            && (in_flight == 0 || in_flight + most.rows <= most.in_flight)
        {
            let rest = &part.share.rows[first..];
            let mut bytes = Vec::new();
            let count = row_ids::encode(&rest[..rest.len().min(most.rows)], &mut bytes);
            part.next = (count < rest.len()).then_some(first + count);
            in_flight += count;
            spans.push((first, count));
            encoded.push(bytes);
        }
        if spans.is_empty() {
            return;
        }
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let timeout = self.until.map(|until| until.map_or(Duration::MAX, left));
        let wanted = encoded.iter().map(|bytes| RowIds::parse(bytes).expect("just encoded"));
        let (owner, key) = (self.table.owner(part.share.owner), self.table.key());
        let receivings = self.task.ask_rows((owner, key, self.min_version), timeout, wanted);
        let asked = |((first, count), receiving)| Asked { first, count, receiving };
        part.asked.extend(spans.into_iter().zip(receivings).map(asked));
    }

    /// Blocks until all rows have come, or the pull has failed: at the latest a second after its deadline.
    ///
    /// # Errors
    /// InvalidArgument for a row that is not there, or memory of another length; Unavailable if an owner is gone; and as [`Error`]
    /// says. `out` comes back with each.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn wait(mut self) -> Result<PulledRows, Unreceived> {
        if self.parts.len() > 1 && self.parts.iter().any(|part| part.next.is_some()) {
            // Whichever owner answers is to be asked for more.
            let waiter = self.task.waiter();
            loop {
                if let Some(outcome) = waiter.block_on(&mut self, Duration::MAX) {
                    return outcome;
                }
            }
        }
        for part in 0..self.parts.len() {
            while let Some(Asked { first, count, receiving }) = self.parts[part].asked.pop_front() {
                let outcome = receiving.wait();
                self.came(part, (first, count), outcome);
            }
        }
        self.end()
    }

    /// Checks whether the pull has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<PulledRows, Unreceived>> {
        match self.look(|receiving| receiving.try_outcome().map_or(Poll::Pending, Poll::Ready)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Takes in what has come, of each owner in the order in which it was asked for.
    fn look(
        &mut self,
        mut outcome_of: impl FnMut(&mut Receiving) -> Poll<RecvOutcome>,
    ) -> Poll<Result<PulledRows, Unreceived>> {
        // What came may have had others asked for more, which is to be looked at too.
        let mut looking = true;
        while std::mem::take(&mut looking) {
            for part in 0..self.parts.len() {
                while let Some(Asked { first, count, receiving }) = self.parts[part].asked.front_mut()
                    && let Poll::Ready(outcome) = outcome_of(receiving)
                {
                    let at = (*first, *count);
                    self.parts[part].asked.pop_front();
                    self.came(part, at, outcome);
                    looking = true;
                }
            }
        }
        match self.parts.iter().all(|part| part.asked.is_empty()) {
            true => Poll::Ready(self.end()),
            false => Poll::Pending,
        }
    }

    /// Takes the outcome of one request in.
    fn came(&mut self, at: usize, (first, count): (usize, usize), outcome: RecvOutcome) {
        let (part, known) = (&mut self.parts[at], self.places.row_bytes());
        let owner = self.table.owner(part.share.owner);
        let put = outcome
            .map_err(|unreceived| unreceived.error)
            .and_then(|rows| self.places.put(&part.share, (first, count), &rows, (owner, self.table.key())));
        // After an error the size of rows is learnt anew: it may be the reason.
        self.table.set_row_bytes(self.places.row_bytes().filter(|_| put.is_ok()));
        match put {
            Ok(()) => {}
            Err(error) if self.partial && is_of_one_owner(&error) => {
                let mut missing: Vec<usize> = (first..first + count).collect();
                if error.code() != Code::Aborted {
                    // It is not asked for the rest.
                    missing.extend(part.next.take().map_or(0..0, |next| next..part.share.rows.len()));
                }
                let places = missing.into_iter().flat_map(|index| part.share.places_of(index)).copied();
                match self.missing.iter_mut().find(|missing| *missing.owner == *owner) {
                    Some(missing) => missing.places.extend(places),
                    None => self.missing.push(MissingRows { owner: owner.into(), places: places.collect(), error }),
                }
            }
            Err(error) => {
                self.failed.get_or_insert(error);
                // The others are cancelled.
                for part in &mut self.parts {
                    part.next = None;
                    part.asked.clear();
                }
            }
        }
        match known == self.places.row_bytes() {
            true => self.ask(at),
            false => self.ask_all(),
        }
    }

    fn end(&mut self) -> Result<PulledRows, Unreceived> {
        if let Some(error) = self.failed.take() {
            return Err(Unreceived { error, destination: self.places.take_memory() });
        }
        let Some(rows) = self.places.take() else {
            // None of them has come, and nobody knows what they look like.
            let error = self.missing.pop().map(|missing| missing.error).expect("the outcome was handed out before");
            return Err(Unreceived { error, destination: self.places.take_memory() });
        };
        let asked = self.parts.iter().map(|part| part.share.rows.len()).sum();
        Ok(PulledRows { rows: rows?, missing: std::mem::take(&mut self.missing), asked })
    }
}

impl Most {
    /// With rows of so many bytes, of so many owners. Until that is known, one row of each is asked for.
    fn of(row_bytes: Option<usize>, owners: usize) -> Self {
        let Some(row_bytes) = row_bytes else { return Self { requests: 1, rows: 1, in_flight: 1 } };
        let bytes = ROWS_IN_FLIGHT_BYTES / owners;
        let rows = (ROWS_REQUEST_BYTES.min(bytes) / row_bytes.max(1)).clamp(1, ROW_IDS_MAX);
        Self { requests: (ROW_REQUESTS_MAX / owners).max(1), rows, in_flight: bytes / row_bytes.max(1) }
    }
}

/// The error says that an owner is gone or slow, and not that the call is wrong.
fn is_of_one_owner(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Aborted)
}

impl Future for PullingRows {
    type Output = Result<PulledRows, Unreceived>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.look(|receiving| Pin::new(receiving).poll(context))
    }
}
