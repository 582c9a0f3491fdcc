//! Rows of published tables, gathered here for peers and for tasks of this node, straight from the memory in which the table lies. The
//! publisher is not asked.
//!
//! A request waits while one of its tables is not published or older than requested, while there is no memory for its rows, and while the
//! table's owner is writing a row at each look. Every request has a deadline. Bounded by what a peer may have parked, and by the calls of
//! tasks.
//!
//! How much is copied and looked up in a turn is bounded, whoever asks. The shard does not sleep while there is something to copy; while it
//! waits for memory or locks it may sleep, and retries in turns that run anyway, or a millisecond later.

mod gathering;
#[cfg(any(test, feature = "fuzzing"))]
mod invariants;
mod table_counts;
mod waiting;

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use sealane_runtime::Buffer;
use sealane_transport::gathered_rows;
use sealane_transport::named_rows::{NamedRows, NamedRowsBuf};
use sealane_transport::session::{PeerQuota, PeerRowRequest};
use sealane_transport::shm::table_places;
use sealane_transport::tensor::{Tensor, TensorMeta};
use sealane_transport::{Arena, Error, Handle, Operation, Payload, Unreceived};

use super::Pool;
use super::cells::RecvWaiter;
use super::context::{Context, draining};
use super::outcomes::unheard;
use super::pairs::STRANGER;
use super::pulls::Pulls;
use crate::deadlines::Deadlines;
use crate::limits::{
    COPY_BATCH_BYTES, COPY_BUDGET_BYTES, LATE_PER_TURN, PARKED_GRACE, ROW_REQUESTS_BYTES_MAX, ROW_RETRIES_AT_ONCE,
    ROW_RETRIES_PER_TURN, ROW_RETRIES_SLACK, ROW_RETRY_EVERY, ROW_TABLE_COST_BYTES, ROW_WAITS_MAX, ROW_WAKES_PER_TURN,
};
use crate::metrics::{Operation as Measured, TableCounters, Way};
pub(super) use gathering::Table;
use gathering::{Gathered, Gathering, Memories};
use table_counts::TableCounts;
use waiting::{PeerId, Waiter, Waiting};

/// A request for rows of one task's tables, from a task of this shard.
#[derive(Debug)]
pub struct PullRowsRequest<'a> {
    /// The pair, from [`Node::pair`](super::Node::pair).
    pub pair: u32,
    /// The tables, and the rows of each.
    pub rows: NamedRows<'a>,
    /// The oldest version of each table that is acceptable.
    pub min_version: i64,
    /// When it ends with DeadlineExceeded.
    pub deadline: Instant,
    /// It asks where the tables lie, not for their rows; only for clients.
    pub views: bool,
    /// It fails at once if the tables' task has left.
    pub fail_if_gone: bool,
    /// The waiter, which gets the [rows](gathered_rows) as one tensor.
    pub waiter: RecvWaiter,
}

/// Who wants rows.
enum Requester {
    Peer { session: Handle, id: Handle, is_parked: bool, quota: Rc<PeerQuota> },
    Here { consumer: u16, waiter: RecvWaiter, views: bool },
}

/// A table: its task and key.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Name {
    producer: u16,
    key: Box<str>,
}

/// Which queue a request is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Line {
    /// In neither queue: its table is missing, or has just come.
    None,
    /// The queue of requests that can proceed.
    Copies,
    /// The queue of retries: it has no memory, or its next row was being written.
    Retries,
}

struct RowRequest {
    requester: Requester,
    /// The task that publishes the tables.
    producer: u16,
    rows: NamedRowsBuf,
    min_version: i64,
    since: Instant,
    deadline: Instant,
    fail_if_gone: bool,
    line: Line,
    /// The table that it waits for.
    waits: Option<Name>,
    gathering: Option<Box<Gathering>>,
}

/// The row requests of a node; see the module.
pub(super) struct RowRequests {
    requests: Arena<RowRequest>,
    /// Requests that can proceed.
    queue: VecDeque<Handle>,
    /// Requests to retry, and when at the latest.
    retries: VecDeque<Handle>,
    retry_at: Option<Instant>,
    /// Bytes that may still be copied before the next turn.
    budget: usize,
    /// Requests whose table is missing.
    waiting: Waiting,
    /// How many of them may still wake before the next turn.
    wakes: usize,
    /// Requests of peers, by session and id.
    of_peers: HashMap<(Handle, Handle), Handle>,
    counts: TableCounts,
    /// The deadline of each request that did not end at once.
    deadlines: Deadlines,
    /// Kept to reuse their memory.
    ids: Vec<u64>,
    locks_key: String,
}

impl RowRequests {
    pub(super) fn new() -> Self {
        Self {
            requests: Arena::new(usize::MAX),
            queue: VecDeque::new(),
            retries: VecDeque::new(),
            retry_at: None,
            budget: COPY_BUDGET_BYTES,
            waiting: Waiting::default(),
            wakes: ROW_WAKES_PER_TURN,
            of_peers: HashMap::new(),
            counts: TableCounts::default(),
            deadlines: Deadlines::default(),
            ids: Vec::new(),
            locks_key: String::new(),
        }
    }

    /// Requests that have not ended.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// When [`copy_on`](Self::copy_on) and [`expire`](Self::expire) must be called at the latest.
    #[inline]
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        // Retries exist only while there are requests, each of which has a deadline.
        let earliest = self.deadlines.next()?;
        Some(self.retry_at.map_or(earliest, |retry_at| retry_at.min(earliest)))
    }

    /// True if there is something to gather at once.
    #[inline]
    pub(super) fn is_copying(&self) -> bool {
        !self.queue.is_empty() || self.waiting.has_woken()
    }

    /// A peer requests rows.
    pub(super) fn requested(
        &mut self,
        session: Handle,
        request: PeerRowRequest,
        pulls: &mut Pulls,
        context: &mut Context,
    ) {
        let PeerRowRequest { id, consumer, producer, min_version, timeout_ms, fail_if_gone, rows } = request;
        if consumer == STRANGER {
            let reason = "the requesting task is not in the endpoint map of the producer's host".into();
            let error = Error::NotFound { task: "the requesting task".into(), reason };
            return with_session(session, context, |with| with.refuse(id, &error));
        }
        // Its peer will ask again on the next link.
        let Some(with) = context.peers.session(session).filter(|with| with.is_attached()) else { return };
        let quota = with.quota().clone();
        // A hostile peer may use one id for two requests.
        self.cancelled(session, id, context);
        let (held, more) = (quota.rows.requests.get(), rows.as_rows().as_bytes().len());
        if held + more > ROW_REQUESTS_BYTES_MAX {
            let reason = format!("requests with {held} bytes wait already, at most {ROW_REQUESTS_BYTES_MAX}");
            let error = Error::full("requests for rows that wait", reason);
            return with_session(session, context, |with| with.refuse(id, &error));
        }
        quota.rows.requests.set(held + more);
        let since = context.reporter.clock;
        let deadline = since + Duration::from_millis(timeout_ms.into()) + PARKED_GRACE;
        let requester = Requester::Peer { session, id, is_parked: false, quota };
        let handle = self.enter(requester, (producer, rows), (min_version, fail_if_gone), (since, deadline));
        self.of_peers.insert((session, id), handle);
        self.begin(handle, pulls, context);
    }

    /// A task of this node requests rows of another's table. Returns the request's handle, unless it has ended already.
    pub(super) fn request_here(
        &mut self,
        now: Instant,
        request: PullRowsRequest<'_>,
        (consumer, producer): (u16, u16),
        pulls: &mut Pulls,
        context: &mut Context,
    ) -> Option<Handle> {
        let PullRowsRequest { rows, min_version, deadline, views, fail_if_gone, waiter, .. } = request;
        let requester = Requester::Here { consumer, waiter, views };
        let handle = self.enter(requester, (producer, rows.into()), (min_version, fail_if_gone), (now, deadline));
        self.begin(handle, pulls, context);
        self.requests.get(handle).map(|_| handle)
    }

    fn enter(
        &mut self,
        requester: Requester,
        (producer, rows): (u16, NamedRowsBuf),
        (min_version, fail_if_gone): (i64, bool),
        (since, deadline): (Instant, Instant),
    ) -> Handle {
        let (line, waits, gathering) = (Line::None, None, None);
        let request = RowRequest {
            requester,
            producer,
            rows,
            min_version,
            since,
            deadline,
            fail_if_gone,
            line,
            waits,
            gathering,
        };
        let Ok(handle) = self.requests.insert(request) else { unreachable!("2^32 requests do not fit in memory") };
        handle
    }

    fn remove(&mut self, handle: Handle) -> Option<RowRequest> {
        let request = self.requests.remove(handle)?;
        self.deadlines.remove(handle);
        if let Requester::Peer { session, id, quota, .. } = &request.requester {
            self.of_peers.remove(&(*session, *id));
            less(&quota.rows.requests, request.rows.as_rows().as_bytes().len());
            less(&quota.rows.gathering, request.gathering.as_ref().map_or(0, |gathering| gathering.bytes()));
        }
        if let Some(name) = &request.waits {
            self.waiting.remove(name, request.waiter(handle));
        }
        if self.requests.is_empty() {
            self.retry_at = None;
            self.queue.clear();
            self.retries.clear();
            self.waiting.clear();
        }
        Some(request)
    }

    /// Starts a new request at once, unless this turn's copy budget is spent.
    fn begin(&mut self, handle: Handle, pulls: &mut Pulls, context: &mut Context) {
        match self.budget {
            0 => self.queue(handle, context),
            _ => self.advance(handle, pulls, context),
        }
    }

    /// Continues a request, charged to this turn's budget.
    fn advance(&mut self, handle: Handle, pulls: &mut Pulls, context: &mut Context) {
        let cost = self.copy(handle, COPY_BATCH_BYTES.min(self.budget), pulls, context);
        self.budget = self.budget.saturating_sub(cost.max(1));
    }

    /// Continues a request by about `budget` bytes; returns what it cost.
    fn copy(&mut self, handle: Handle, budget: usize, pulls: &mut Pulls, context: &mut Context) -> usize {
        let Some(request) = self.requests.get_mut(handle) else { return 0 };
        if let Requester::Here { waiter, .. } = &request.requester
            && !context.reporter.outcomes.listens(waiter)
        {
            self.fail(handle, &unheard(), context);
            return 0;
        }
        let mut effort = 0;
        if request.gathering.is_none() {
            effort = request.rows.as_rows().len() * ROW_TABLE_COST_BYTES;
            let tables = match tables_of(request, pulls, &mut self.locks_key) {
                Ok(tables) => tables,
                Err(missing) => {
                    self.wait(handle, missing, context);
                    return effort;
                }
            };
            let for_whom = match &request.requester {
                Requester::Peer { quota, .. } => Memories::Slab { held: quota.rows.held() },
                Requester::Here { views: true, .. } => {
                    self.tell_places(handle, &tables, context);
                    return effort;
                }
                Requester::Here { consumer, .. } => Memories::OfTask(*consumer),
            };
            match Gathering::begin(tables, request.rows.as_rows(), &mut self.ids, for_whom, context) {
                Ok(Some(gathering)) => {
                    if let Requester::Peer { quota, .. } = &request.requester {
                        quota.rows.gathering.set(quota.rows.gathering.get() + gathering.bytes());
                    }
                    request.gathering = Some(Box::new(gathering));
                }
                Ok(None) => {
                    self.retry(handle, context);
                    return effort;
                }
                Err(error) => {
                    self.fail(handle, &error, context);
                    return effort;
                }
            }
        }
        let Some(RowRequest { gathering: Some(gathering), rows, .. }) = self.requests.get_mut(handle) else {
            return effort;
        };
        let (cost, outcome) = gathering.advance(rows.as_rows(), &mut self.ids, budget);
        match outcome {
            Ok(Gathered::All) => self.finish(handle, context),
            Ok(Gathered::Some) => self.queue(handle, context),
            Ok(Gathered::Locked) => self.retry(handle, context),
            Err(error) => self.fail(handle, &error, context),
        }
        effort + cost
    }

    /// The request continues in a later turn.
    fn queue(&mut self, handle: Handle, context: &mut Context) {
        let Some(request) = self.requests.get_mut(handle) else { return };
        request.line = Line::Copies;
        self.queue.push_back(handle);
        self.park(handle, context);
    }

    /// The request is retried in a later turn; the shard does not stay awake for it.
    fn retry(&mut self, handle: Handle, context: &mut Context) {
        let Some(request) = self.requests.get_mut(handle) else { return };
        request.line = Line::Retries;
        if self.retries.len() > 2 * self.requests.len() + ROW_RETRIES_SLACK {
            self.retries.retain(|&other| self.requests.get(other).is_some());
        }
        self.retries.push_back(handle);
        self.retry_at.get_or_insert(context.reporter.clock + ROW_RETRY_EVERY);
        self.park(handle, context);
    }

    /// A table is missing: the request waits for it.
    fn wait(&mut self, handle: Handle, table: Name, context: &mut Context) {
        let Some(request) = self.requests.get_mut(handle) else { return };
        let is_next_ones =
            matches!(request.requester, Requester::Peer { .. } | Requester::Here { waiter: RecvWaiter::Client(_), .. });
        if context.draining && is_next_ones {
            return self.fail(handle, &draining(), context);
        }
        if let Some(gone) = context.gone(request.producer, request.fail_if_gone) {
            return self.fail(handle, &gone, context);
        }
        if !self.waiting.enter(&table, request.waiter(handle)) {
            let reason = format!("{ROW_WAITS_MAX} of one peer wait for '{}'", table.key);
            let error = Error::full("requests of a peer for rows of one table", reason);
            return self.fail(handle, &error, context);
        }
        request.waits = Some(table);
        self.park(handle, context);
    }

    /// The request waits, at most until its deadline; a peer is told so.
    fn park(&mut self, handle: Handle, context: &mut Context) {
        let Some(request) = self.requests.get_mut(handle) else { return };
        if self.deadlines.of(handle).is_none() {
            self.deadlines.enter(handle, request.deadline);
        }
        if let Requester::Peer { session, id, is_parked, .. } = &mut request.requester
            && !std::mem::replace(is_parked, true)
        {
            with_session(*session, context, |with| with.park(*id));
        }
    }

    /// A request has its rows.
    fn finish(&mut self, handle: Handle, context: &mut Context) {
        let Some(RowRequest { requester, producer, rows, since, gathering: Some(gathering), .. }) = self.remove(handle)
        else {
            return;
        };
        for ((key, named), gathered) in rows.as_rows().tables().zip(gathering.counters()) {
            self.count((producer, key), &TableCounters { rows_named: named.into(), ..gathered }, context);
        }
        let buffer = gathering.into_answer();
        let meta = gathered_rows::meta(buffer.len()).expect("it was allocated");
        match requester {
            Requester::Peer { session, id, is_parked, .. } => with_session(session, context, |with| {
                if is_parked {
                    with.unpark();
                }
                // If this is refused, the peer was told.
                let _ = with.respond_gathered(id, meta.into_wire(), buffer.into(), Handle::NONE);
            }),
            Requester::Here { waiter, .. } => answer_here(waiter, since, buffer, context),
        }
    }

    /// Tells a task of this node where tables lie; they stay there until it gives back the answer's memory.
    fn tell_places(&mut self, handle: Handle, tables: &[Table], context: &mut Context) {
        let Some(RowRequest { requester: Requester::Here { consumer, .. }, rows, .. }) = self.requests.get(handle)
        else {
            return;
        };
        let answer = match context.memory.pool(*consumer) {
            Some(pool) => places_of(rows.as_rows(), tables, pool),
            None => Err(Error::Unimplemented { reason: "the task is no client's".into() }),
        };
        let (buffer, viewed) = match answer {
            Ok(answer) => answer,
            Err(error) => return self.fail(handle, &error, context),
        };
        let Some(RowRequest { requester: Requester::Here { waiter, .. }, producer, rows, since, .. }) =
            self.remove(handle)
        else {
            return;
        };
        for ((key, _), (is_viewed, gathered)) in rows.as_rows().tables().zip(viewed) {
            if is_viewed {
                self.count((producer, key), &gathered, context);
            }
        }
        answer_here(waiter, since, buffer, context);
    }

    /// Counts what was gathered of a table.
    fn count(&mut self, (producer, key): (u16, &str), gathered: &TableCounters, context: &mut Context) {
        let counters = &mut context.reporter.counters;
        // Clients report themselves how many rows they read, so the numbers are not trusted.
        counters.rows_served = counters.rows_served.saturating_add(gathered.rows);
        counters.row_bytes_served = counters.row_bytes_served.saturating_add(gathered.bytes);
        let task = context.pairs.task(producer).as_str();
        self.counts.count((producer, task, key), gathered, &context.reporter.metrics);
    }

    /// Ends a request with `error`.
    fn fail(&mut self, handle: Handle, error: &Error, context: &mut Context) {
        match self.remove(handle).map(|request| request.requester) {
            Some(Requester::Peer { session, id, is_parked, .. }) => {
                with_session(session, context, |with| match is_parked {
                    true => with.end_parked(id, error),
                    false => with.refuse(id, error),
                })
            }
            Some(Requester::Here { waiter, .. }) => {
                context.reporter.finish_recv(waiter, Err(Unreceived::from(error.clone())));
            }
            None => {}
        }
    }

    /// True if any request waits for a table.
    #[inline]
    pub(super) fn awaits_tables(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A table of that name may have been published: requests that wait for it continue from the next turn on, a limited number per turn.
    pub(super) fn published(&mut self, producer: u16, key: &str, pulls: &mut Pulls, context: &mut Context) {
        let name = Name { producer, key: key.into() };
        if let Some(version) = pulls.version_of(producer, key) {
            self.waiting.published(name, version);
            self.wake(pulls, context);
        }
    }

    /// Continues requests whose table has come, as many as a turn may wake.
    fn wake(&mut self, pulls: &Pulls, context: &mut Context) {
        while self.wakes > 0
            && let Some(handle) = self.waiting.next_woken(|name| pulls.version_of(name.producer, &name.key))
        {
            let request = self.requests.get_mut(handle).expect("one that waits has not ended");
            let name = request.waits.take().expect("it waits for a table");
            self.waiting.remove(&name, request.waiter(handle));
            self.wakes -= 1;
            self.queue(handle, context);
        }
    }

    /// The requests' part of a turn: continues those that can; returns the bytes copied, or work done.
    #[inline]
    pub(super) fn copy_on(&mut self, now: Instant, pulls: &mut Pulls, context: &mut Context) -> usize {
        (self.budget, self.wakes) = (COPY_BUDGET_BYTES, ROW_WAKES_PER_TURN);
        if self.requests.is_empty() {
            return 0;
        }
        if self.waiting.has_woken() {
            self.wake(pulls, context);
        }
        // Each request at most once.
        for _ in 0..self.queue.len() {
            if self.budget == 0 {
                break;
            }
            let Some(handle) = self.queue.pop_front() else { break };
            if let Some(request) = self.requests.get_mut(handle) {
                request.line = Line::None;
                self.advance(handle, pulls, context);
            }
        }
        let copied = COPY_BUDGET_BYTES - self.budget;
        copied + self.try_again(now, pulls, context)
    }

    /// Retries some of the requests that have waited longest for memory or a lock; returns how many can proceed.
    fn try_again(&mut self, now: Instant, pulls: &mut Pulls, context: &mut Context) -> usize {
        let is_due = self.retry_at.is_some_and(|retry_at| retry_at <= now);
        let mut tries = if is_due { ROW_RETRIES_AT_ONCE } else { ROW_RETRIES_PER_TURN };
        let mut go_on = 0;
        for _ in 0..self.retries.len() {
            if tries == 0 || self.budget == 0 {
                break;
            }
            let Some(handle) = self.retries.pop_front() else { break };
            let Some(request) = self.requests.get_mut(handle) else { continue };
            request.line = Line::None;
            tries -= 1;
            self.advance(handle, pulls, context);
            go_on += usize::from(self.requests.get(handle).is_none_or(|request| request.line != Line::Retries));
        }
        if is_due || self.retries.is_empty() {
            self.retry_at = (!self.retries.is_empty()).then(|| now + ROW_RETRY_EVERY);
        }
        go_on
    }

    /// A peer cancels a request.
    pub(super) fn cancelled(&mut self, session: Handle, id: Handle, context: &mut Context) {
        let Some(&handle) = self.of_peers.get(&(session, id)) else { return };
        if let Some(RowRequest { requester: Requester::Peer { is_parked: true, .. }, .. }) = self.remove(handle) {
            with_session(session, context, |with| with.unpark());
        }
    }

    /// The link of a session is gone: its peer will repeat the requests it still waits for.
    pub(super) fn forget_session(&mut self, session: Handle) {
        let of_session =
            |request: &RowRequest| matches!(request.requester, Requester::Peer { session: of, .. } if of == session);
        for handle in self.requests.select(of_session) {
            self.remove(handle);
        }
    }

    /// Cancels a request of a task of this node, whose waiter then hears nothing; false if it has ended.
    pub(super) fn cancel(&mut self, handle: Handle) -> bool {
        self.remove(handle).is_some()
    }

    /// Ends the requests of a task of this node and, with `tables`, those of its tables.
    pub(super) fn end_of(&mut self, task: Option<u16>, tables: bool, error: &Error, context: &mut Context) {
        if tables {
            self.counts.forget(task);
        }
        let is_of = |request: &RowRequest| {
            let asks = matches!(request.requester, Requester::Here { consumer, .. } if task.is_none_or(|task| task == consumer));
            asks || (tables && task.is_none_or(|task| task == request.producer))
        };
        for handle in self.requests.select(is_of) {
            self.fail(handle, error, context);
        }
    }

    /// The node drains: ends requests that wait for a table that is not published.
    pub(super) fn refuse_waiting(&mut self, context: &mut Context) {
        let mut all: Vec<Handle> = self.waiting.handles().collect();
        // The order of a hash map is arbitrary.
        all.sort_unstable();
        for handle in all {
            self.fail(handle, &draining(), context);
        }
    }

    /// Ends requests past their deadline, as many as a turn may end; if there are more, [`next_deadline`](Self::next_deadline) is already
    /// due.
    pub(super) fn expire(&mut self, now: Instant, context: &mut Context) {
        for _ in 0..LATE_PER_TURN {
            let Some(handle) = self.deadlines.due(now) else { break };
            let request = self.requests.get(handle).expect("a deadline ends with its request");
            let waited = request.deadline.saturating_duration_since(request.since);
            let called =
                request.waits.as_ref().map_or_else(|| request.rows.as_rows().title(), |name| name.key.to_string());
            let task = context.pairs.task(request.producer);
            let missing = match request.waits {
                Some(_) => "nobody has published it, or not this version",
                None => "its rows wait for memory, or are being written or copied",
            };
            let awaited = format!("{task}, a task of this engine: {missing}");
            let error = Error::late(Operation::Pull, request.min_version, called, waited, awaited);
            self.fail(handle, &error, context);
        }
    }
}

impl RowRequest {
    /// The request as an entry in the list of those that wait for a table.
    fn waiter(&self, handle: Handle) -> Waiter {
        let peer = match &self.requester {
            Requester::Peer { quota, .. } => Some(PeerId::of(quota)),
            Requester::Here { .. } => None,
        };
        Waiter { handle, min_version: self.min_version, peer }
    }
}

/// Answers a task of this node, which has waited since `since`.
fn answer_here(waiter: RecvWaiter, since: Instant, answer: Buffer, context: &mut Context) {
    let meta = gathered_rows::meta(answer.len()).expect("it was allocated");
    let reporter = &mut context.reporter;
    reporter.count_received(1, answer.len());
    reporter.record(Measured::Pull, Way::MEMORY, since);
    reporter.finish_recv(waiter, Ok(Tensor::from_parts(meta, answer)));
}

/// Where tables lie, written to memory of the task that keeps the tables in place; and for each table whether the task may read it there,
/// and the counts if it does.
///
/// # Errors
/// InvalidArgument if one is not a table, ResourceExhausted without memory.
fn places_of(
    named: NamedRows<'_>,
    tables: &[Table],
    pool: &dyn Pool,
) -> Result<(Buffer, Vec<(bool, TableCounters)>), Error> {
    let (mut places, mut viewed, mut lent) = (Vec::new(), Vec::new(), Vec::new());
    for ((key, named), Table { meta, payload, locks, .. }) in named.tables().zip(tables) {
        let row_bytes = rows_of(meta, payload.len(), key)?.1 as u64;
        let place = pool.place_of_table(payload, locks.as_ref());
        if place.is_some() {
            lent.extend([Some(payload), locks.as_ref()].into_iter().flatten().map(Payload::share));
        }
        let (rows, rows_named) = (u64::from(named), u64::from(named));
        let bytes = rows.saturating_mul(row_bytes);
        viewed.push((place.is_some(), TableCounters { requests: 1, rows, bytes, rows_named, gather_ns: 0 }));
        places.push((meta, place));
    }
    let answer = table_places::write(places.into_iter());
    let mut buffer = pool.allocate_lending(answer.len(), lent)?;
    buffer.volatile_mut().copy_from(&answer);
    Ok((buffer, viewed))
}

fn less(count: &Cell<usize>, by: usize) {
    count.set(count.get() - by);
}

/// The tables of a request.
///
/// # Errors
/// The name of the first table that is missing or older than requested.
fn tables_of(request: &RowRequest, pulls: &mut Pulls, locks_key: &mut String) -> Result<Vec<Table>, Name> {
    let table = |(key, _): (&str, u32)| {
        let table = pulls.table(request.producer, key, locks_key);
        let missing = || Name { producer: request.producer, key: key.into() };
        table.filter(|table| table.version >= request.min_version).ok_or_else(missing)
    };
    request.rows.as_rows().tables().map(table).collect()
}

/// Calls `say` on a session that still exists, and marks it as having something to send.
fn with_session(session: Handle, context: &mut Context, say: impl FnOnce(&mut super::peers::PeerSession)) {
    if let Some(with) = context.peers.session_mut(session) {
        say(with);
        context.peers.mark_dirty(session);
    }
}

/// The bytes of one row and the number of rows, if a tensor has rows.
///
/// # Errors
/// InvalidArgument if it has none.
fn rows_of(meta: &TensorMeta, bytes: usize, key: &str) -> Result<(u64, usize), Error> {
    let none = |why: &str| Error::invalid(format!("'{key}' is no table: {why}"));
    if meta.is_strings() || meta.is_dead() {
        return Err(none("its elements have no fixed size"));
    }
    let Some(&rows) = meta.shape().first() else { return Err(none("it has no dimensions")) };
    let row_bytes = usize::try_from(rows).ok().and_then(|rows| bytes.checked_div(rows)).unwrap_or(0);
    match row_bytes as u64 * rows == bytes as u64 {
        true => Ok((rows, row_bytes)),
        false => Err(none("its rows do not begin at whole bytes")),
    }
}
