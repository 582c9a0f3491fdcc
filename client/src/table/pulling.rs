//! Pulls of rows in progress: rows are requested from all their owners at once, and copied to their places as they arrive, or read in
//! place. Each owner has its share of what may be in flight, so that a slow one does not keep others from being asked.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    iter::zip,
    pin::Pin,
    task::{Context, Poll},
    thread,
    time::{Duration, Instant},
};

use sealane_runtime::{Buffer, MemoryKind};
use sealane_transport::{
    Code, Destination, Error, PullOptions, RecvOutcome, Tensor, Unreceived, gathered_rows, named_rows::NamedRowsBuf,
};

use super::{
    asking::{Asked, Owner, Span, Wanted},
    places::Places,
    sharding::ShardedTable,
    shares::{Share, split_what_is_there},
    viewing::{self, Progress, Reading, Viewed},
};
use crate::{Receiving, Task, attachment::together, limits::ROWS_READ_BYTES};

/// How rows are pulled.
#[derive(Debug)]
pub struct RowsOptions {
    /// The oldest version of the tables that will do. Default: any.
    pub min_version: i64,
    /// How long it may take. Default: the daemon's or the engine's `request_timeout`.
    pub timeout: Option<Duration>,
    /// Rows that their table does not have, or whose owner is gone or does not answer in time, are left out and named in
    /// [`PulledRows::missing`]; the others come. The call fails all the same if no row of one of its tables came, now or in an earlier
    /// call with the same [`ShardedTable`] or a clone: nobody knows what its rows look like. Default: it fails with the first error.
    pub partial: bool,
    /// Rows of an owner that has left fail with Unavailable, at once or as soon as it leaves; an owner that was never there is waited for.
    /// Default: true. If false, owners that have left are waited for too, until the deadline, since they may come back.
    pub fail_if_gone: bool,
}

impl Default for RowsOptions {
    fn default() -> Self {
        Self { min_version: i64::MIN, timeout: None, partial: false, fail_if_gone: true }
    }
}

/// Rows of a table that are to be pulled.
#[derive(Debug)]
pub struct RowsWanted<'a> {
    /// The table.
    pub table: &'a ShardedTable,
    /// The numbers of the rows.
    pub ids: &'a [u64],
    /// Memory for the rows, of exactly their size; it is returned with the outcome. A [`Destination::of`] takes only rows that have its
    /// type and shape `[ids, ...]` together: other rows fail with InvalidArgument and are not written there. `None`: heap memory.
    pub out: Option<Destination>,
}

/// Rows that were pulled.
#[derive(Debug)]
pub struct PulledRows {
    /// The rows in the order in which they were named: of shape `[named, ...]`. Missing rows have undefined contents.
    pub rows: Tensor,
    /// Rows that did not come, with `partial`.
    pub missing: Vec<MissingRows>,
    /// Rows that were asked for, or read where they lie; the others were named more than once.
    pub asked: usize,
}

/// Rows of one owner that did not come.
#[derive(Debug)]
pub struct MissingRows {
    /// The owner; empty for rows that lie beyond the whole table.
    pub owner: Box<str>,
    /// Their positions in what was asked for, in no order.
    pub places: Vec<u32>,
    /// Why they did not come: the first reason.
    pub error: Error,
}

/// Rows that were not pulled.
#[derive(Debug)]
pub struct UnpulledRows {
    /// Why.
    pub error: Error,
    /// The memory for the rows of each table: the caller's, or what was allocated for those that came.
    pub outs: Vec<Option<Buffer>>,
}

impl From<UnpulledRows> for Error {
    fn from(unpulled: UnpulledRows) -> Error {
        unpulled.error
    }
}

/// One table of a call.
struct Table {
    table: ShardedTable,
    places: Places,
    missing: Vec<MissingRows>,
    asked: usize,
}

/// A pull of rows of many tables in progress: await it, or [`wait`](Self::wait). Dropping it cancels what has not come.
#[must_use = "dropping it cancels the pull"]
pub struct PullingAllRows {
    task: Task,
    min_version: i64,
    /// The deadline, if the caller has set a timeout; `Some(None)` is never.
    until: Option<Option<Instant>>,
    partial: bool,
    fail_if_gone: bool,
    tables: Vec<Table>,
    owners: Vec<Owner>,
    /// The attachment's link, if rows may be read in place over it.
    link: Option<u64>,
    readings: VecDeque<Reading>,
    /// The error that ended the pull before all rows came.
    failed: Option<Error>,
}

/// As [`PullingAllRows`], of one table.
#[must_use = "dropping it cancels the pull"]
pub struct PullingRows(PullingAllRows);

impl Task {
    /// Pulls rows of a table by their numbers, from the memory in which they were published: no owner's process is woken. Rows may be
    /// named in any order and more than once. A table that is not published yet is waited for.
    ///
    /// The rows of one request are of one version of their owner's part, except rows that the owner [writes](crate::Table) meanwhile:
    /// these are whole, old or new. A request has up to 4,096 rows of a table, and 128 KiB. The size of a row is learnt from the
    /// first one, unless `out` gives it, or `table` or a clone of it was pulled from before: keep it.
    ///
    /// ```no_run
    /// # use sealane::{RowsOptions, ShardedTable, Task};
    /// # let task = Task::attach("worker0.train:2222")?;
    /// let users = ShardedTable::of("ps0.train:2222", "user")?;
    /// let pulled = task.pull_rows(&users, &[7, 9, 7], &RowsOptions::default()).wait()?;
    /// println!("{:?}", pulled.rows.shape());
    /// # Ok::<(), sealane::Error>(())
    /// ```
    pub fn pull_rows(&self, table: &ShardedTable, ids: &[u64], options: &RowsOptions) -> PullingRows {
        self.pull_rows_into(RowsWanted { table, ids, out: None }, options)
    }

    /// [`pull_rows`](Self::pull_rows) into memory of the caller's.
    pub fn pull_rows_into(&self, wanted: RowsWanted<'_>, options: &RowsOptions) -> PullingRows {
        PullingRows(self.pull_all_rows([wanted], options))
    }

    /// [`pull_rows`](Self::pull_rows) of many tables together, at a fraction of the cost each: an owner's rows of all of them are
    /// requested with as few requests as possible. A request is answered when all of its tables are there.
    pub fn pull_all_rows<'w>(
        &self,
        wanted: impl IntoIterator<Item = RowsWanted<'w>>,
        options: &RowsOptions,
    ) -> PullingAllRows {
        let &RowsOptions { min_version, timeout, partial, fail_if_gone } = options;
        let mut pulling = PullingAllRows {
            task: self.for_its_own(),
            min_version,
            until: timeout.map(|timeout| Instant::now().checked_add(timeout)),
            partial,
            fail_if_gone,
            tables: Vec::new(),
            owners: Vec::new(),
            link: self.attachment().and_then(|attachment| attachment.link_number()),
            readings: VecDeque::new(),
            failed: None,
        };
        let mut owners = HashMap::new();
        together(|| {
            for wanted in wanted {
                pulling.add(wanted, &mut owners);
                // Full requests are sent before further tables are looked at.
                (0..pulling.owners.len()).for_each(|owner| pulling.ask(owner, true));
            }
            if pulling.failed.is_some() {
                pulling.owners.clear();
            }
            (0..pulling.owners.len()).for_each(|owner| pulling.locate(owner));
            pulling.ask_all();
        });
        pulling
    }
}

impl PullingAllRows {
    /// Adds a table to the pull. `owners` maps the owners so far to their numbers.
    fn add<'w>(&mut self, RowsWanted { table, ids, out }: RowsWanted<'w>, owners: &mut HashMap<&'w str, usize>) {
        let number = self.tables.len();
        let places = Places::new(out, ids.len(), table.row_bytes());
        self.tables.push(Table { table: table.clone(), places, missing: Vec::new(), asked: 0 });
        let (parts, beyond) = match split_what_is_there(table, ids) {
            Ok((_, Some((_, error)))) if !self.partial => return self.fail(error),
            Ok(split) => split,
            Err(error) => return self.fail(error),
        };
        self.tables[number].missing.extend(beyond.map(|(places, error)| MissingRows {
            owner: "".into(),
            places,
            error,
        }));
        let mut owner_of = |pulling: &mut Self, owner: usize| {
            let name = table.owner(owner);
            let owner = *owners.entry(name).or_insert(pulling.owners.len());
            if owner == pulling.owners.len() {
                pulling.owners.push(Owner::new(name));
            }
            owner
        };
        if parts.is_empty() {
            // Without rows, only the owners know what rows of the table look like.
            let owner = owner_of(self, 0);
            self.want(owner, number, Share::empty());
        }
        for part in parts {
            let owner = owner_of(self, part.owner);
            match self.link.is_some_and(|link| table.may_be_viewed(part.owner, link)) {
                true => {
                    self.tables[number].asked += part.ids.len();
                    self.owners[owner].viewed.push(Viewed { table: number, part });
                }
                false => self.want(owner, number, part.share()),
            }
        }
    }

    /// Queues rows of a table to be requested from an owner.
    fn want(&mut self, owner: usize, table: usize, share: Share) {
        let of_table = &mut self.tables[table];
        of_table.asked += share.rows.len();
        self.owners[owner].wanted.push(Wanted::new(table, of_table.table.key(), share));
    }

    /// Queues rows to be requested that this process cannot read itself; with `always`, later pulls request them too.
    fn want_in_place_of(&mut self, owner: usize, Viewed { table, part }: &Viewed, always: bool) {
        let of_table = &mut self.tables[*table];
        if let Some(link) = self.link.filter(|_| always) {
            of_table.table.is_unviewed(part.owner, link);
        }
        of_table.asked -= part.ids.len();
        self.want(owner, *table, part.share());
    }

    /// Asks an owner where its tables lie that may be read in place.
    fn locate(&mut self, owner: usize) {
        while !self.owners[owner].viewed.is_empty() {
            let (options, tables) = (self.options(), &self.tables);
            let Owner { name, viewed, located, .. } = &mut self.owners[owner];
            let mut named = NamedRowsBuf::default();
            let of = |viewed: &Viewed| (tables[viewed.table].table.key(), viewed.part.ids.len());
            let count = viewing::name(viewed, of, &mut named);
            let rows: Vec<Viewed> = viewed.drain(..count).collect();
            match self.task.ask_places((name, self.min_version), options, named) {
                Some(receiving) => located.push_back(viewing::Asked { rows, receiving }),
                None => rows.iter().for_each(|viewed| self.want_in_place_of(owner, viewed, true)),
            }
        }
    }

    /// Options for further requests, with the time that is left.
    fn options(&self) -> PullOptions {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let timeout = self.until.map(|until| until.map_or(Duration::MAX, left));
        PullOptions { timeout, fail_if_gone: self.fail_if_gone }
    }

    /// Fails the call and cancels its requests.
    fn fail(&mut self, error: Error) {
        self.failed.get_or_insert(error);
        self.owners.iter_mut().for_each(Owner::forget);
        self.readings.clear();
    }

    /// Requests as much from each owner as may be in flight.
    fn ask_all(&mut self) {
        together(|| (0..self.owners.len()).for_each(|owner| self.ask(owner, false)));
    }

    /// Requests as much from one owner as may be in flight; with `full`, only by full requests.
    fn ask(&mut self, owner: usize, full: bool) {
        let (owners, tables) = (self.owners.len(), &self.tables);
        let row_bytes = |table: usize| tables[table].places.row_bytes();
        let requests = self.owners[owner].next_requests(owners, full, row_bytes);
        if requests.is_empty() {
            return;
        }
        let (named, spans): (Vec<_>, Vec<_>) = requests.into_iter().unzip();
        let options = self.options();
        let owner = &mut self.owners[owner];
        // Further requests are spread over the shards.
        let from = (&*owner.name, owner.requests);
        owner.requests += named.len();
        let receivings = self.task.ask_rows((from, self.min_version), options, named);
        owner.asked.extend(zip(spans, receivings).map(|(spans, receiving)| Asked { spans, receiving }));
    }

    /// Blocks until all rows have come, or the pull has failed: at the latest a second after its deadline.
    ///
    /// # Errors
    /// As [`PullingRows::wait`].
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn wait(mut self) -> Result<Vec<PulledRows>, UnpulledRows> {
        let is_of_many = |owner: &Owner| owner.has_more() || !owner.located.is_empty();
        if self.owners.len() > 1 && self.owners.iter().any(is_of_many) {
            // The first owner to answer is asked for more.
            let waiter = self.task.waiter();
            loop {
                if let Some(outcome) = waiter.block_on(&mut self, Duration::MAX) {
                    return outcome;
                }
            }
        }
        for owner in 0..self.owners.len() {
            while let Some(viewing::Asked { rows, receiving }) = self.owners[owner].located.pop_front() {
                self.located(owner, rows, receiving.wait());
            }
            while self.read_on(usize::MAX) {
                thread::yield_now();
            }
        }
        for owner in 0..self.owners.len() {
            while let Some(Asked { spans, receiving }) = self.owners[owner].asked.pop_front() {
                let outcome = receiving.wait();
                self.came(owner, &spans, outcome);
            }
        }
        self.end()
    }

    /// Checks whether the pull has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<Vec<PulledRows>, UnpulledRows>> {
        match self.look(|receiving| receiving.try_outcome().map_or(Poll::Pending, Poll::Ready)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    /// Takes in what has arrived, for each owner in the order of its requests.
    fn look(
        &mut self,
        mut outcome_of: impl FnMut(&mut Receiving) -> Poll<RecvOutcome>,
    ) -> Poll<Result<Vec<PulledRows>, UnpulledRows>> {
        // What arrived may have caused further requests, which are looked at too.
        let mut looking = true;
        while std::mem::take(&mut looking) {
            for owner in 0..self.owners.len() {
                while let Some(asked) = self.owners[owner].located.front_mut()
                    && let Poll::Ready(outcome) = outcome_of(&mut asked.receiving)
                {
                    let viewing::Asked { rows, .. } = self.owners[owner].located.pop_front().expect("just looked at");
                    self.located(owner, rows, outcome);
                    looking = true;
                }
                while let Some(asked) = self.owners[owner].asked.front_mut()
                    && let Poll::Ready(outcome) = outcome_of(&mut asked.receiving)
                {
                    let Asked { spans, .. } = self.owners[owner].asked.pop_front().expect("just looked at");
                    self.came(owner, &spans, outcome);
                    looking = true;
                }
            }
            if !looking && !self.readings.is_empty() {
                looking = !self.read_on(ROWS_READ_BYTES);
            }
        }
        match self.readings.is_empty() && !self.owners.iter().any(Owner::is_asked) {
            true => Poll::Ready(self.end()),
            false => Poll::Pending,
        }
    }

    /// Handles an owner's answer where its tables lie.
    fn located(&mut self, owner: usize, rows: Vec<Viewed>, outcome: RecvOutcome) {
        match outcome.map_err(|unreceived| unreceived.error) {
            Ok(answer) => match Reading::new(owner, rows, answer) {
                Ok(reading) => self.readings.push_back(reading),
                Err(error) => self.fail(error),
            },
            Err(error) if matches!(error.code(), Code::Unimplemented | Code::ResourceExhausted) => {
                self.want_all(owner, &rows, error.code() == Code::Unimplemented);
                self.ask_all();
            }
            Err(error) if self.partial && is_of_one_owner(&error) => {
                for Viewed { table, part } in &rows {
                    note(&mut self.tables[*table].missing, &self.owners[owner].name, &part.all_places(), &error);
                }
            }
            Err(error) => self.fail(error),
        }
    }

    /// Queues all these rows to be requested, since this process cannot read them.
    fn want_all(&mut self, owner: usize, rows: &[Viewed], always: bool) {
        for viewed in rows.iter().filter(|viewed| !viewed.part.ids.is_empty()) {
            self.want_in_place_of(owner, viewed, always);
        }
    }

    /// Reads about `budget` bytes of rows in place; true if there are more.
    fn read_on(&mut self, budget: usize) -> bool {
        let has_more = self.read(budget);
        self.ask_all();
        has_more
    }

    fn read(&mut self, mut budget: usize) -> bool {
        let Some(attachment) = self.task.attachment().cloned() else { return false };
        while let Some(reading) = self.readings.front_mut() {
            let owner = reading.owner;
            let progress = match reading.next() {
                Some(table) => {
                    let Table { table, places, .. } = &mut self.tables[table];
                    reading.read(&attachment, (&self.owners[owner].name, table.key()), places, &mut budget)
                }
                None => Ok(Progress::All),
            };
            match progress {
                Ok(Progress::Read) => {}
                Ok(Progress::Stuck) => return true,
                Ok(Progress::Ask { rows, always }) => self.want_in_place_of(owner, &rows, always),
                Ok(Progress::All) => {
                    let reading = self.readings.pop_front().expect("it was just looked at");
                    match reading.holds(&attachment) {
                        true => self.have_read(&reading.rows),
                        false => self.want_all(owner, &reading.rows, false),
                    }
                }
                Err(error) => self.fail(error),
            }
            if budget == 0 {
                return !self.readings.is_empty();
            }
        }
        false
    }

    /// Remembers what rows look like after these were read in place.
    fn have_read(&self, rows: &[Viewed]) {
        for viewed in rows.iter().filter(|viewed| !viewed.part.ids.is_empty()) {
            let Table { table, places, .. } = &self.tables[viewed.table];
            if let Some(row) = places.row() {
                table.set_row(row);
            }
        }
    }

    /// Takes in the outcome of one request.
    fn came(&mut self, owner: usize, spans: &[Span], outcome: RecvOutcome) {
        let known = self.known();
        spans.iter().for_each(|span| self.owners[owner].wanted[span.wanted].came());
        let (rest, put) = match outcome {
            Ok(answer) => {
                let mut put = 0;
                let outcome = self.put(owner, spans, &answer, &mut put);
                (&spans[put..], outcome)
            }
            Err(unreceived) => (spans, Err(unreceived.error)),
        };
        if put.as_ref().is_err_and(|error| error.code() == Code::ResourceExhausted) {
            let tables = &self.tables;
            if self.owners[owner].probe_alone(rest, |table| tables[table].places.row_bytes()) {
                return self.ask(owner, false);
            }
        }
        for span in spans {
            let Table { table, places, .. } = &self.tables[self.owners[owner].wanted[span.wanted].table];
            match places.row().filter(|_| put.is_ok()) {
                Some(row) => table.set_row(row),
                None => table.doubt_row(),
            }
        }
        match put {
            Ok(()) => {}
            Err(error) if self.partial && is_of_one_owner(&error) => self.miss(owner, rest, &error),
            Err(error) => self.fail(error),
        }
        match known == self.known() {
            true => self.ask(owner, false),
            false => self.ask_all(),
        }
    }

    /// How many tables have a known row size.
    fn known(&self) -> usize {
        self.tables.iter().filter(|table| table.places.row_bytes().is_some()).count()
    }

    /// Copies an owner's answer to its places; `put` counts the spans that were copied.
    ///
    /// # Errors
    /// Unavailable naming the owner, if the answer is invalid; those of [`Places::put`]; InvalidArgument for a row that the table does not
    /// have, unless the call is partial.
    fn put(&mut self, owner: usize, spans: &[Span], answer: &Tensor, put: &mut usize) -> Result<(), Error> {
        let owner = &self.owners[owner];
        let wrong =
            |error: Error| Error::unavailable(&owner.name, format!("it sent something else than rows: {error}"));
        if !matches!(answer.memory(), MemoryKind::Host) {
            return Err(wrong(Error::invalid("they are in the memory of a device")));
        }
        let parts = gathered_rows::read(answer.bytes(), spans.len()).map_err(wrong)?;
        for (&Span { wanted, first, count }, part) in zip(spans, parts) {
            let Wanted { table, share, .. } = &owner.wanted[wanted];
            let Table { table, places, missing, .. } = &mut self.tables[*table];
            let rows = &share.rows[first..first + count];
            let there = rows.partition_point(|&row| row < part.table_rows);
            places.put(share, (first, there), (&part.meta, part.rows), (&owner.name, table.key()))?;
            *put += 1;
            let Some(&beyond) = rows.get(there) else { continue };
            let row = table.sharding().row(share.owner, beyond);
            let has = format!("which has {} rows", part.table_rows);
            let of_all = if table.owners().len() > 1 { format!(" of {}", owner.name) } else { String::new() };
            let error = Error::invalid(format!("row {row} of '{}'{of_all}, {has}", table.key()));
            if !self.partial {
                return Err(error);
            }
            note(missing, &owner.name, share.places_of_all(first + there..first + count), &error);
        }
        Ok(())
    }

    /// Notes rows of a request that an owner did not answer.
    fn miss(&mut self, owner: usize, spans: &[Span], error: &Error) {
        let Owner { name, wanted, .. } = &mut self.owners[owner];
        for &Span { wanted: at, first, count } in spans {
            let Wanted { table, share, .. } = &wanted[at];
            note(&mut self.tables[*table].missing, name, share.places_of_all(first..first + count), error);
        }
        if error.code() == Code::Aborted {
            return;
        }
        // It is not asked for the rest.
        for wanted in wanted {
            if let Some(rest) = wanted.stop() {
                let missing = &mut self.tables[wanted.table].missing;
                note(missing, name, wanted.share.places_of_all(rest), error);
            }
        }
    }

    fn end(&mut self) -> Result<Vec<PulledRows>, UnpulledRows> {
        if self.failed.is_none() {
            self.tables.iter_mut().for_each(Table::presume);
        }
        match self.failed.take().or_else(|| self.tables.iter().find_map(Table::is_unknown)) {
            Some(error) => {
                // The outcome can be taken once.
                self.tables.iter_mut().for_each(|table| table.missing.clear());
                let outs = self.tables.iter_mut().map(|table| table.places.take_memory()).collect();
                Err(UnpulledRows { error, outs })
            }
            None => Ok(self.tables.iter_mut().map(Table::end).collect()),
        }
    }
}

impl Table {
    /// If none of its rows came, assumes that they look as in earlier pulls.
    fn presume(&mut self) {
        if !self.missing.is_empty()
            && self.places.row().is_none()
            && let Some(row) = self.table.row()
        {
            // If that does not fit the caller's memory, it stays unknown.
            let _ = self.places.expect(row, self.table.key());
        }
    }

    /// The error if none of its rows came and nobody knows what they look like.
    fn is_unknown(&self) -> Option<Error> {
        let why = || self.missing.first().expect("the outcome was handed out before").error.clone();
        self.places.row().is_none().then(why)
    }

    fn end(&mut self) -> PulledRows {
        let rows = self.places.take().expect("some rows have come");
        PulledRows { rows, missing: std::mem::take(&mut self.missing), asked: self.asked }
    }
}

/// Notes rows that did not come.
fn note(missing: &mut Vec<MissingRows>, owner: &str, places: &[u32], error: &Error) {
    match missing.iter_mut().find(|missing| *missing.owner == *owner && missing.error.code() == error.code()) {
        Some(missing) => missing.places.extend(places),
        None => missing.push(MissingRows { owner: owner.into(), places: places.into(), error: error.clone() }),
    }
}

/// True if the error says that an owner is gone or slow, and not that the call is wrong.
fn is_of_one_owner(error: &Error) -> bool {
    matches!(error.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Aborted)
}

impl Future for PullingAllRows {
    type Output = Result<Vec<PulledRows>, UnpulledRows>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = self.look(|receiving| Pin::new(receiving).poll(context));
        if outcome.is_pending() && !self.readings.is_empty() {
            // It reads on once others had their turn.
            context.waker().wake_by_ref();
        }
        outcome
    }
}

impl PullingRows {
    /// Blocks until all rows have come, or the pull has failed: at the latest a second after its deadline.
    ///
    /// # Errors
    /// InvalidArgument for a row that is not there, or memory of another length; Unavailable if an owner is gone; and as [`Error`]
    /// says. `out` comes back with each.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn wait(self) -> Result<PulledRows, Unreceived> {
        of_one(self.0.wait())
    }

    /// Checks whether the pull has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    pub fn try_outcome(&mut self) -> Option<Result<PulledRows, Unreceived>> {
        self.0.try_outcome().map(of_one)
    }
}

impl Future for PullingRows {
    type Output = Result<PulledRows, Unreceived>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map(of_one)
    }
}

/// The outcome of a pull of one table.
fn of_one(outcome: Result<Vec<PulledRows>, UnpulledRows>) -> Result<PulledRows, Unreceived> {
    match outcome {
        Ok(mut all) => Ok(all.pop().expect("one table")),
        Err(UnpulledRows { error, mut outs }) => Err(Unreceived { error, destination: outs.pop().flatten() }),
    }
}
