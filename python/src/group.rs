//! Groups of processes, for ``sealane.Group`` and PyTorch's backend. Collectives run without the GIL: in the caller's thread if
//! that waits for them anyway and none is in progress, else in threads of the group, in order.

use std::{
    cell::Cell,
    collections::VecDeque,
    mem,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use pyo3::{exceptions::PyException, prelude::*, types::PyBytes};
use sealane::{DType, Error, GroupOptions, Message, ReduceOp, Store, is_interrupted};

use crate::{
    connect::authentication,
    dtype,
    errors::{OrRaise, exception, invalid},
    fork::Generation,
    memory::{Raw, apart},
    wait::{SIGNALS_EVERY, blocking, raise},
};

type Outcome = Result<usize, Error>;
type Run = Box<dyn FnOnce(&sealane::Group) -> Result<(), Error> + Send>;

/// How long the interpreter waits at its end for running callbacks.
const CALLBACKS_END: Duration = Duration::from_secs(10);

/// Time between two checks whether they have ended.
const CALLBACKS_LOOK: Duration = Duration::from_millis(1);

/// Running callbacks: their number; whether new ones are forbidden; and, in the upper half, their process, since a forked child has
/// none of these threads. Without a lock, which a child might find held forever.
static UNDER_WAY: AtomicU64 = AtomicU64::new(0);
const CLOSED: u64 = 1 << 31;

/// A running callback of a process, until it is dropped.
struct Calling(u64);

impl Calling {
    fn begin() -> Option<Calling> {
        let process = u64::from(std::process::id());
        let one_more = |now: u64| {
            let here = if now >> 32 == process { now & u64::from(u32::MAX) } else { now & CLOSED };
            (here & CLOSED == 0).then_some(process << 32 | (here + 1))
        };
        let begun = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        begun.ok().map(|_| Calling(process))
    }
}

impl Drop for Calling {
    fn drop(&mut self) {
        // A callback that began before a fork is not counted in the child.
        let one_less = |now: u64| are_under_way(now, self.0).then(|| now - 1);
        let _ = UNDER_WAY.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less);
    }
}

fn are_under_way(now: u64, process: u64) -> bool {
    now >> 32 == process && now & (CLOSED - 1) > 0
}

thread_local! {
    /// True while this thread runs a callback.
    static CALLS_BACK: Cell<bool> = const { Cell::new(false) };
}

/// What a thread of the group runs, and who is notified.
struct Job {
    run: Run,
    ending: Arc<Ending>,
    /// True if a callback has made this call, and may wait for it.
    is_nested: bool,
}

/// A store in Python: ``set(key, bytes)`` and ``get(key, seconds)``.
struct InPython(Py<PyAny>);

impl Store for InPython {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), Error> {
        let set = |py: Python<'_>| self.0.call_method1(py, "set", (key, PyBytes::new(py, value))).map(drop);
        Python::attach(|py| set(py).map_err(|error| store_error(py, error)))
    }

    fn get(&self, key: &str, limit: Duration) -> Result<Vec<u8>, Error> {
        let get = |py: Python<'_>| self.0.call_method1(py, "get", (key, limit.as_secs_f64()))?.extract::<Vec<u8>>(py);
        Python::attach(|py| get(py).map_err(|error| store_error(py, error)))
    }
}

/// The error of a call of the store; an exception that is no error, such as KeyboardInterrupt, is raised as it is.
fn store_error(py: Python<'_>, error: PyErr) -> Error {
    let told = Error::unavailable("the store", error.to_string());
    if !error.is_instance_of::<PyException>(py) {
        raise(error);
    }
    told
}

/// Called when the interpreter is about to end. It ends other threads where they take its lock, also within C++ code, for which that is the
/// end of the process: so callbacks under way are waited for, for a while.
#[pyfunction]
pub(crate) fn end_callbacks(py: Python<'_>) -> PyResult<()> {
    blocking(py, || {
        UNDER_WAY.fetch_or(CLOSED, Ordering::SeqCst);
        let (own, until) = (u64::from(std::process::id()), Instant::now() + CALLBACKS_END);
        while are_under_way(UNDER_WAY.load(Ordering::SeqCst), own) && Instant::now() < until && !is_interrupted() {
            thread::sleep(CALLBACKS_LOOK);
        }
        Ok(())
    })
}

/// One rank of a group; ``sealane.Group`` and ``sealane.torch`` call it with addresses of memory.
#[pyclass(frozen, module = "sealane._sealane")]
pub(crate) struct Group {
    /// The error of later calls once this rank has left or has aborted the group.
    inner: Mutex<Result<Arc<sealane::Group>, Error>>,
    /// Collectives that have not ended, of the group's threads or of callers'.
    pending: Arc<AtomicUsize>,
    queue: Mutex<Option<mpsc::Sender<Job>>>,
    made: Generation,
}

/// The threads of a group. One runs what is queued, in order, and one runs callbacks, in the same order. A callback may make
/// another call and wait for it: such a call's own callback runs on the thread that has run the call, and there is always another
/// thread to run the next call.
struct Threads {
    group: Arc<sealane::Group>,
    jobs: Mutex<mpsc::Receiver<Job>>,
    /// Threads that wait for their turn.
    idle: AtomicUsize,
    pending: Arc<AtomicUsize>,
    /// Callbacks to run, with the outcomes to pass.
    to_call: Mutex<VecDeque<(Vec<Py<PyAny>>, Outcome)>>,
    calling: Mutex<()>,
}

impl Threads {
    fn start(threads: &Arc<Threads>) -> std::io::Result<()> {
        // Counted from now on, so that one need does not start two threads.
        threads.idle.fetch_add(1, Ordering::SeqCst);
        let own = threads.clone();
        let started = thread::Builder::new().name("sealane-group".into()).spawn(move || own.serve());
        if started.is_err() {
            threads.idle.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(drop)
    }

    fn serve(self: Arc<Threads>) {
        loop {
            let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
            let next = jobs.recv();
            self.idle.fetch_sub(1, Ordering::SeqCst);
            // The group was left, and everything is done.
            let Ok(Job { run, ending, is_nested }) = next else { return };
            let outcome = guarded(|| run(&self.group)).map(|()| self.group.rank());
            self.pending.fetch_sub(1, Ordering::SeqCst);
            let callbacks = ending.end(outcome.clone());
            if is_nested {
                drop(jobs);
                self.call_back(callbacks, &outcome);
            } else {
                self.to_call().push_back((callbacks, outcome));
                drop(jobs);
                self.call_back_in_order();
            }
            self.idle.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn to_call(&self) -> MutexGuard<'_, VecDeque<(Vec<Py<PyAny>>, Outcome)>> {
        self.to_call.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs pending callbacks, unless another thread does.
    fn call_back_in_order(self: &Arc<Threads>) {
        // If another thread runs callbacks, it sees what was added here after it has released the lock.
        while !self.to_call().is_empty() {
            let _calling = match self.calling.try_lock() {
                Ok(calling) => calling,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return,
            };
            while let Some((callbacks, outcome)) = { self.to_call().pop_front() } {
                self.call_back(callbacks, &outcome);
            }
        }
    }

    fn call_back(self: &Arc<Threads>, callbacks: Vec<Py<PyAny>>, outcome: &Outcome) {
        if callbacks.is_empty() {
            return;
        }
        if self.idle.load(Ordering::SeqCst) == 0 {
            // If none can be started, a callback must not wait for the next call.
            let _ = Threads::start(self);
        }
        CALLS_BACK.set(true);
        call_back(callbacks, outcome);
        CALLS_BACK.set(false);
    }
}

/// Turns a panic into an error, which ends only the call.
fn guarded(run: impl FnOnce() -> Result<(), Error>) -> Result<(), Error> {
    panic::catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err(Error::unavailable("the group", "a call has panicked: see the standard error stream")))
}

/// A call that goes on.
#[pyclass(frozen, module = "sealane._sealane")]
pub(crate) struct GroupCall {
    kind: CallKind,
    made: Generation,
}

enum CallKind {
    Collective(Arc<Ending>),
    Message(Message),
}

/// What happens when a collective ends.
#[derive(Default)]
struct Ending {
    state: Mutex<(Option<Outcome>, Vec<Py<PyAny>>)>,
    ended: Condvar,
}

impl Ending {
    /// Waits for the outcome.
    ///
    /// # Errors
    /// The error of the call, or TimedOut if `limit` has passed or a signal interrupts this thread.
    fn wait(&self, limit: Option<Duration>) -> Outcome {
        let until = limit.and_then(|limit| Instant::now().checked_add(limit));
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &state.0 {
                return outcome.clone();
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                let limit = limit.unwrap_or_default();
                let reason = format!("the wait has Timed out after {limit:?}, and the call goes on");
                return Err(Error::TimedOut { reason: reason.into() });
            }
            let slice = left.unwrap_or(SIGNALS_EVERY).min(SIGNALS_EVERY);
            state = self.ended.wait_timeout(state, slice).unwrap_or_else(PoisonError::into_inner).0;
            // The end of the call takes the lock, and signal handlers may wait for that.
            drop(state);
            if is_interrupted() {
                return Err(Error::TimedOut { reason: "a signal interrupted the wait, and the call goes on".into() });
            }
            state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Notifies waiting threads; returns the callbacks to run.
    fn end(&self, outcome: Outcome) -> Vec<Py<PyAny>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = Some(outcome);
        let callbacks = mem::take(&mut state.1);
        drop(state);
        self.ended.notify_all();
        callbacks
    }
}

/// Calls each with the error, or with None. Exceptions are printed, since nobody else could receive them.
fn call_back(callbacks: Vec<Py<PyAny>>, outcome: &Outcome) {
    if callbacks.is_empty() {
        return;
    }
    let Some(_calling) = Calling::begin() else { return };
    Python::attach(|py| {
        for callback in callbacks {
            let error = outcome.as_ref().err().map(|error| exception(py, error).into_value(py));
            if let Err(raised) = callback.call1(py, (error,)) {
                raised.print(py);
            }
        }
    });
}

fn seconds(timeout: Option<f64>) -> Option<Duration> {
    // An invalid time, or one longer than any process lives, means no limit.
    timeout.and_then(|timeout| Duration::try_from_secs_f64(timeout).ok())
}

fn operation(py: Python<'_>, op: &str) -> PyResult<ReduceOp> {
    let names = ["sum", "product", "min", "max", "average", "and", "or", "xor"];
    let found = names.iter().position(|name| *name == op).map(|index| ReduceOp::ALL[index]);
    found.ok_or_else(|| invalid(py, format!("there is no reduction '{op}', only {}", names.join(", "))))
}

fn element(py: Python<'_>, name: &str) -> PyResult<DType> {
    dtype::by_name(name).ok_or_else(|| invalid(py, format!("elements of type {name} are not reduced")))
}

fn ranges(py: Python<'_>, parts: Vec<usize>) -> PyResult<Vec<Range<usize>>> {
    let mut end = 0_usize;
    let place = |len: usize| {
        let start = end;
        end = end.checked_add(len)?;
        Some(start..end)
    };
    let places: Option<Vec<Range<usize>>> = parts.into_iter().map(place).collect();
    places.ok_or_else(|| invalid(py, "parts of so many bytes are in no memory"))
}

impl Group {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<sealane::Group>> {
        check_fork(self.made).or_raise(py)?;
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone().or_raise(py)
    }

    /// Runs a collective; returns the call if it is still in progress.
    fn run(
        &self,
        py: Python<'_>,
        wait: bool,
        run: impl FnOnce(&sealane::Group) -> Result<(), Error> + Send + 'static,
    ) -> PyResult<Option<GroupCall>> {
        let group = self.get(py)?;
        let is_alone = self.pending.fetch_add(1, Ordering::SeqCst) == 0;
        if wait && is_alone {
            let outcome = blocking(py, || guarded(|| run(&group)));
            self.pending.fetch_sub(1, Ordering::SeqCst);
            return outcome.map(|()| None);
        }
        let ending = Arc::new(Ending::default());
        let job = Job { run: Box::new(run), ending: ending.clone(), is_nested: CALLS_BACK.get() };
        if let Err(reason) = self.enqueue(group, job) {
            self.pending.fetch_sub(1, Ordering::SeqCst);
            return Err(invalid(py, reason));
        }
        Ok(Some(GroupCall { kind: CallKind::Collective(ending), made: self.made }))
    }

    fn enqueue(&self, group: Arc<sealane::Group>, job: Job) -> Result<(), String> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_none() {
            let (sender, jobs) = mpsc::channel();
            let (jobs, pending) = (Mutex::new(jobs), self.pending.clone());
            let (idle, to_call, calling) = Default::default();
            let threads = Arc::new(Threads { group, jobs, idle, pending, to_call, calling });
            Threads::start(&threads).map_err(|error| format!("no thread could be started: {error}"))?;
            *queue = Some(sender);
        }
        // The threads end when this sender is dropped.
        let sent = queue.as_ref().map(|queue| queue.send(job));
        sent.and_then(Result::ok).ok_or_else(|| "the group's threads are gone".into())
    }

    fn message(&self, message: Message) -> GroupCall {
        GroupCall { kind: CallKind::Message(message), made: self.made }
    }
}

/// # Errors
/// InvalidArgument in a forked child.
fn check_fork(made: Generation) -> Result<(), Error> {
    match made.is_over() {
        true => Err(Error::invalid(
            "this process was forked after its parent joined the group: make a group of its own in the child",
        )),
        false => Ok(()),
    }
}

#[pymethods]
impl Group {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "as many as the call has in Python")]
    #[pyo3(signature = (store, rank, size, timeout, *, interface=None, host=None, secret_file=None, tls=None))]
    fn new(
        py: Python<'_>,
        store: Py<PyAny>,
        rank: usize,
        size: usize,
        timeout: f64,
        interface: Option<String>,
        host: Option<String>,
        secret_file: Option<PathBuf>,
        tls: Option<(PathBuf, PathBuf, PathBuf)>,
    ) -> PyResult<Group> {
        let limit = seconds(Some(timeout)).unwrap_or(Duration::MAX);
        let authentication = authentication(secret_file, tls).or_raise(py)?;
        let options = GroupOptions { limit, interface, host, authentication };
        let inner = blocking(py, || sealane::Group::new(&InPython(store), rank, size, &options))?;
        Ok(Group {
            inner: Mutex::new(Ok(Arc::new(inner))),
            pending: Arc::default(),
            queue: Mutex::default(),
            made: Generation::now(),
        })
    }

    /// How many hosts the ranks are on.
    fn hosts(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get(py)?.hosts())
    }

    /// Raises why the group is over, if it is.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.get(py)?.error().map_or(Ok(()), Err).or_raise(py)
    }

    /// Ends the group for all ranks, and returns this rank's descriptors and memory once calls of other threads have ended. Later calls
    /// raise the error of the group.
    fn abort(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let group = self.get(py)?;
        py.detach(move || group.abort(reason));
        self.leave(py);
        Ok(())
    }

    /// Leaves the group, which others see once what is queued here has ended. May be called twice; does nothing in a forked child.
    fn leave(&self, py: Python<'_>) {
        if self.made.is_over() {
            return;
        }
        py.detach(|| {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let error = match &*inner {
                Ok(group) => group.error().unwrap_or_else(|| Error::invalid("this rank has left the group")),
                Err(_) => return,
            };
            let group = mem::replace(&mut *inner, Err(error));
            drop(inner);
            drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
            drop(group);
        });
    }

    fn barrier(&self, py: Python<'_>, timeout: Option<f64>, wait: bool) -> PyResult<Option<GroupCall>> {
        let timeout = seconds(timeout);
        self.run(py, wait, move |group| group.barrier(timeout))
    }

    fn broadcast(
        &self,
        py: Python<'_>,
        mut data: Raw,
        root: usize,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let timeout = seconds(timeout);
        self.run(py, wait, move |group| group.broadcast(data.as_mut(), root, timeout))
    }

    #[expect(clippy::too_many_arguments, reason = "as many as the call has in Python")]
    #[pyo3(signature = (data, dtype, op, root, timeout, wait))]
    fn reduce(
        &self,
        py: Python<'_>,
        mut data: Raw,
        dtype: &str,
        op: &str,
        root: Option<usize>,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let (dtype, op, timeout) = (element(py, dtype)?, operation(py, op)?, seconds(timeout));
        self.run(py, wait, move |group| match root {
            Some(root) => group.reduce(data.as_mut(), dtype, op, root, timeout),
            None => group.all_reduce(data.as_mut(), dtype, op, timeout),
        })
    }

    #[expect(clippy::too_many_arguments, reason = "as many as the call has in Python")]
    fn reduce_scatter(
        &self,
        py: Python<'_>,
        given: Raw,
        mut into: Raw,
        dtype: &str,
        op: &str,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let (dtype, op, timeout) = (element(py, dtype)?, operation(py, op)?, seconds(timeout));
        self.run(py, wait, move |group| {
            apart(&given, &mut into, |given, into| group.reduce_scatter(given, into, dtype, op, timeout))
        })
    }

    fn all_gather(
        &self,
        py: Python<'_>,
        part: Raw,
        mut whole: Raw,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let timeout = seconds(timeout);
        self.run(py, wait, move |group| {
            let (len, size) = (part.as_ref().len(), whole.as_ref().len());
            if len.checked_mul(group.size()) != Some(size) {
                return Err(Error::invalid(format!("{size} bytes are not a part of {len} bytes for each rank")));
            }
            part.copy_to(&mut whole, group.rank() * len);
            group.all_gather(whole.as_mut(), timeout)
        })
    }

    #[pyo3(signature = (part, whole, root, timeout, wait))]
    fn gather(
        &self,
        py: Python<'_>,
        part: Raw,
        mut whole: Option<Raw>,
        root: usize,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let timeout = seconds(timeout);
        self.run(py, wait, move |group| match &mut whole {
            Some(whole) => apart(&part, whole, |part, whole| group.gather(part, Some(whole), root, timeout)),
            None => group.gather(part.as_ref(), None, root, timeout),
        })
    }

    #[pyo3(signature = (whole, part, root, timeout, wait))]
    fn scatter(
        &self,
        py: Python<'_>,
        whole: Option<Raw>,
        mut part: Raw,
        root: usize,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let timeout = seconds(timeout);
        self.run(py, wait, move |group| match &whole {
            Some(whole) => apart(whole, &mut part, |whole, part| group.scatter(Some(whole), part, root, timeout)),
            None => group.scatter(None, part.as_mut(), root, timeout),
        })
    }

    fn all_to_all(
        &self,
        py: Python<'_>,
        given: Raw,
        mut into: Raw,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let timeout = seconds(timeout);
        self.run(py, wait, move |group| apart(&given, &mut into, |given, into| group.all_to_all(given, into, timeout)))
    }

    /// Of parts of so many bytes each, which follow each other.
    #[expect(clippy::too_many_arguments, reason = "as many as the call has in Python")]
    fn all_to_all_uneven(
        &self,
        py: Python<'_>,
        given: Raw,
        given_parts: Vec<usize>,
        mut into: Raw,
        into_parts: Vec<usize>,
        timeout: Option<f64>,
        wait: bool,
    ) -> PyResult<Option<GroupCall>> {
        let (given_parts, into_parts, timeout) = (ranges(py, given_parts)?, ranges(py, into_parts)?, seconds(timeout));
        self.run(py, wait, move |group| {
            apart(&given, &mut into, |given, into| {
                group.all_to_all_uneven(given, &given_parts, into, &into_parts, timeout)
            })
        })
    }

    fn send(&self, py: Python<'_>, data: Raw, to: usize, tag: i64) -> PyResult<GroupCall> {
        let group = self.get(py)?;
        let message = blocking(py, || group.send(data, to, tag))?;
        Ok(self.message(message))
    }

    #[pyo3(signature = (data, source, tag))]
    fn recv(&self, py: Python<'_>, data: Raw, source: Option<usize>, tag: i64) -> PyResult<GroupCall> {
        let group = self.get(py)?;
        let message = blocking(py, || group.recv(data, source, tag))?;
        Ok(self.message(message))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.made.is_over() {
            Python::attach(|py| self.leave(py));
        }
    }
}

#[pymethods]
impl GroupCall {
    /// Waits for its end; the rank that sent a message. Raises DeadlineExceeded after ``timeout`` seconds.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<usize> {
        check_fork(self.made).or_raise(py)?;
        let limit = seconds(timeout);
        blocking(py, || match &self.kind {
            CallKind::Message(message) => message.wait_on(limit),
            CallKind::Collective(ending) => ending.wait(limit),
        })
    }

    /// None while it goes on; then whether it succeeded.
    fn succeeded(&self, py: Python<'_>) -> Option<bool> {
        self.outcome(py).map(|outcome| outcome.is_ok())
    }

    /// Its error, if it has failed.
    fn error(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        let error = self.outcome(py)?.err()?;
        Some(exception(py, &error).into_value(py).into_any())
    }

    /// Calls ``callback`` with its error, or with None, when it ends: in any thread.
    fn then(&self, py: Python<'_>, callback: Py<PyAny>) {
        match &self.kind {
            CallKind::Message(message) => {
                py.detach(|| message.then(move |outcome| call_back(vec![callback], outcome)));
            }
            CallKind::Collective(ending) => {
                let mut state = ending.state.lock().unwrap_or_else(PoisonError::into_inner);
                let Some(outcome) = state.0.clone() else { return state.1.push(callback) };
                drop(state);
                call_back(vec![callback], &outcome);
            }
        }
    }
}

impl GroupCall {
    fn outcome(&self, py: Python<'_>) -> Option<Outcome> {
        match &self.kind {
            CallKind::Message(message) => py.detach(|| message.outcome()),
            CallKind::Collective(ending) => ending.state.lock().unwrap_or_else(PoisonError::into_inner).0.clone(),
        }
    }
}
