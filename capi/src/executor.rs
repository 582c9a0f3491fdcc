//! One thread per task, which polls its calls and runs callbacks. Started by the first call, so a task without calls has none.
//!
//! Wakers add a call's number to a list and wake the thread, which takes the whole list, and polls calls and runs callbacks without
//! holding a lock. So no callback runs within the function that started its call, within a waker, or on a thread of the engine, and
//! callbacks of one task never overlap. The list is bounded by the calls in flight, each of which is in it at most twice, by the
//! number of calls that C code cancels while a callback runs, and by the lent memory.

use std::{
    collections::{BTreeSet, HashMap},
    future::Future,
    pin::Pin,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    error::{sealane_code, sealane_error},
    guard::{Outcome, unpanicked},
};

/// The thread's state that tasks, calls and lent memory share.
#[derive(Default)]
pub(crate) struct Executor {
    state: Mutex<State>,
    news: Condvar,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    news: Vec<News>,
    numbers: u64,
    thread: Option<JoinHandle<()>>,
    /// True if no more calls are accepted.
    stopping: bool,
    /// True if the callbacks of all calls have run.
    ended: bool,
    /// Lent memory that has not been returned.
    lent: usize,
}

enum News {
    Start(Call),
    Wake(u64),
    /// Give up this call.
    GiveUp(u64, sealane_error),
    /// Give up all calls of this group.
    GiveUpGroup(u64, sealane_error),
    Release(Box<dyn FnOnce() + Send>),
}

pub(crate) struct Call {
    number: u64,
    group: u64,
    deadline: Option<Instant>,
    running: Box<dyn Running>,
}

impl Call {
    /// Like this call, but given up with DeadlineExceeded if it has not ended in time. A time that no clock can hold means no
    /// limit.
    pub(crate) fn within(self, timeout: Option<Duration>) -> Call {
        Call { deadline: timeout.and_then(|timeout| Instant::now().checked_add(timeout)), ..self }
    }
}

trait Running: Send {
    /// True once it has ended.
    fn poll(&mut self, context: &mut Context<'_>) -> bool;

    /// Runs the callback: with the outcome, or with `instead` if the call has not ended.
    fn tell(self: Box<Self>, instead: sealane_error);
}

struct Awaited<F: Future, T> {
    /// `None` once it has ended.
    future: Option<Pin<Box<F>>>,
    outcome: Option<Outcome<F::Output>>,
    tell: T,
}

impl<F, T> Running for Awaited<F, T>
where
    F: Future<Output: Send> + Send,
    T: FnOnce(Outcome<F::Output>) + Send,
{
    fn poll(&mut self, context: &mut Context<'_>) -> bool {
        let Some(future) = &mut self.future else { return true };
        match unpanicked(|| Ok(future.as_mut().poll(context))) {
            Ok(Poll::Pending) => return false,
            Ok(Poll::Ready(outcome)) => self.outcome = Some(Ok(outcome)),
            Err(error) => self.outcome = Some(Err(error)),
        }
        self.future = None;
        true
    }

    fn tell(self: Box<Self>, instead: sealane_error) {
        let Self { future, outcome, tell } = *self;
        let given_up = unpanicked(|| {
            drop(future);
            Ok(())
        });
        let told = unpanicked(|| {
            tell(outcome.unwrap_or(Err(instead)));
            Ok(())
        });
        // Neither is known to panic; if one does, the thread goes on.
        drop((given_up, told));
    }
}

impl Executor {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that calls can be accepted.
    ///
    /// # Errors
    /// InvalidArgument if the task was detached, ResourceExhausted if the thread cannot be started.
    pub(crate) fn ready(self: &Arc<Self>) -> Outcome {
        let mut state = self.lock();
        if state.stopping {
            return Err(sealane_error::invalid("the task was detached"));
        }
        if state.thread.is_none() {
            let executor = self.clone();
            let started = thread::Builder::new().name("sealane-calls".into()).spawn(move || executor.run());
            state.thread = Some(started.map_err(|error| {
                let reason = format!("a thread that calls back cannot be started: {error}");
                sealane_error::new(sealane_code::ResourceExhausted, reason)
            })?);
        }
        Ok(())
    }

    /// A number that no call or group has had before.
    pub(crate) fn number(&self) -> u64 {
        let mut state = self.lock();
        state.numbers += 1;
        state.numbers
    }

    /// A call with this `number` in this `group` (0: none), and `tell` to receive its outcome.
    pub(crate) fn call<F, T>(number: u64, group: u64, future: F, tell: T) -> Call
    where
        F: Future<Output: Send> + Send + 'static,
        T: FnOnce(Outcome<F::Output>) + Send + 'static,
    {
        let running = Awaited { future: Some(Box::pin(future)), outcome: None, tell };
        Call { number, group, deadline: None, running: Box::new(running) }
    }

    /// Takes over calls; each one's callback runs once. To be called after [`ready`](Self::ready).
    pub(crate) fn start(&self, calls: impl IntoIterator<Item = Call>) {
        let mut state = self.lock();
        state.news.extend(calls.into_iter().map(News::Start));
        self.news.notify_one();
    }

    /// Gives up a call, unless it has ended.
    pub(crate) fn give_up(&self, number: u64, error: sealane_error) {
        self.tell(News::GiveUp(number, error));
    }

    /// Gives up all calls of a group that have not ended.
    pub(crate) fn give_up_group(&self, group: u64, error: sealane_error) {
        self.tell(News::GiveUpGroup(group, error));
    }

    fn tell(&self, news: News) {
        let mut state = self.lock();
        // Once ended, no call is left that the news could be about.
        if !state.ended || matches!(news, News::Release(_)) {
            state.news.push(news);
            self.news.notify_one();
        }
    }

    /// Records that memory is lent, and will be released.
    pub(crate) fn lend(&self) {
        self.lock().lent += 1;
    }

    /// Has the thread run `release`. To be called after [`lend`](Self::lend).
    pub(crate) fn release(&self, release: Box<dyn FnOnce() + Send>) {
        self.tell(News::Release(release));
    }

    /// Ends all calls, and waits until their callbacks have run, unless this is called from a callback.
    pub(crate) fn stop(&self) {
        let mut state = self.lock();
        state.stopping = true;
        self.news.notify_one();
        let Some(thread) = &state.thread else {
            state.ended = true;
            return;
        };
        if thread.thread().id() != thread::current().id() {
            drop(self.ended.wait_while(state, |state| !state.ended));
        }
    }

    /// Waits for the thread after [`stop`](Self::stop), unless this is called from a callback, or memory is still lent: then the
    /// thread stays until that is released.
    pub(crate) fn join(&self) {
        let mut state = self.lock();
        let is_over = state.ended && state.lent == 0;
        let thread = state.thread.take();
        drop(state);
        if let Some(thread) = thread.filter(|thread| is_over && thread.thread().id() != thread::current().id()) {
            // The thread catches the panics of everything that it runs.
            let _ = thread.join();
        }
    }

    fn run(self: &Arc<Self>) {
        let mut calls = Calls::default();
        let mut news = Vec::new();
        while let Some(stopping) = self.wait(&mut news, calls.entries.is_empty(), calls.next_deadline()) {
            let mut released = 0;
            let now = Instant::now();
            let late = calls.deadlines.iter().take_while(|(deadline, _)| *deadline <= now);
            news.extend(late.map(|(_, number)| News::GiveUp(*number, sealane_error::late())));
            for each in news.drain(..) {
                released += usize::from(matches!(each, News::Release(_)));
                self.hear(each, &mut calls);
            }
            if stopping {
                calls.deadlines.clear();
                for (_, entry) in calls.entries.drain() {
                    entry.end(sealane_error::cancelled("the task was detached"));
                }
            }
            self.lock().lent -= released;
        }
    }

    /// Waits for news, or until `until`, and takes them; returns whether the task is being detached, or `None` if nothing can come
    /// any more.
    fn wait(&self, news: &mut Vec<News>, without_calls: bool, until: Option<Instant>) -> Option<bool> {
        let mut state = self.lock();
        while state.news.is_empty() {
            if state.stopping {
                if !without_calls {
                    break;
                }
                state.ended = true;
                self.ended.notify_all();
                if state.lent == 0 {
                    return None;
                }
            }
            state = match until.map(|until| until.saturating_duration_since(Instant::now())) {
                None => self.news.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => break,
                Some(left) => self.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
        std::mem::swap(news, &mut state.news);
        Some(state.stopping)
    }

    fn hear(self: &Arc<Self>, news: News, calls: &mut Calls) {
        match news {
            News::Start(Call { number, group, deadline, running }) => {
                let wakeup = Arc::new(Wakeup { number, executor: self.clone(), told: AtomicBool::new(false) });
                calls.insert(number, Entry { group, deadline, running, wakeup });
                calls.look(number);
            }
            News::Wake(number) => calls.look(number),
            News::GiveUp(number, error) => {
                // If it has ended by now, its outcome is delivered.
                calls.look(number);
                if let Some(entry) = calls.remove(number) {
                    entry.end(error);
                }
            }
            News::GiveUpGroup(group, error) => {
                let of_group = calls.entries.iter().filter(|(_, entry)| entry.group == group);
                let given_up: Vec<u64> = of_group.map(|(number, _)| *number).collect();
                for number in given_up {
                    if let Some(entry) = calls.remove(number) {
                        entry.end(error.clone());
                    }
                }
            }
            News::Release(release) => drop(unpanicked(|| {
                release();
                Ok(())
            })),
        }
    }
}

/// Calls that have not ended, and the deadlines of those that have one.
#[derive(Default)]
struct Calls {
    entries: HashMap<u64, Entry>,
    deadlines: BTreeSet<(Instant, u64)>,
}

impl Calls {
    fn insert(&mut self, number: u64, entry: Entry) {
        self.deadlines.extend(entry.deadline.map(|deadline| (deadline, number)));
        self.entries.insert(number, entry);
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        if let Some(deadline) = entry.deadline {
            self.deadlines.remove(&(deadline, number));
        }
        Some(entry)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Checks whether a call has ended, and runs its callback if so.
    fn look(&mut self, number: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        // Before the poll: anything that happens from now on is reported again.
        entry.wakeup.told.store(false, Ordering::SeqCst);
        let waker = Waker::from(entry.wakeup.clone());
        if entry.running.poll(&mut Context::from_waker(&waker))
            && let Some(ended) = self.remove(number)
        {
            ended.end(sealane_error::internal());
        }
    }
}

struct Entry {
    group: u64,
    deadline: Option<Instant>,
    running: Box<dyn Running>,
    wakeup: Arc<Wakeup>,
}

impl Entry {
    fn end(self, instead: sealane_error) {
        self.running.tell(instead);
    }
}

struct Wakeup {
    number: u64,
    executor: Arc<Executor>,
    /// True while the call is in the list.
    told: AtomicBool,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.told.swap(true, Ordering::SeqCst) {
            self.executor.tell(News::Wake(self.number));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::{pending, poll_fn, ready},
        sync::mpsc::{Receiver, Sender, channel},
    };

    use super::*;
    use crate::error::sealane_error_code;

    const LONG: Duration = Duration::from_secs(60);

    fn code<T>(outcome: &Outcome<T>) -> sealane_code {
        // SAFETY: null, or an error that lives.
        #[allow(unsafe_code, reason = "it is what C code calls")]
        unsafe {
            sealane_error_code(outcome.as_ref().err().map_or(std::ptr::null(), std::ptr::from_ref))
        }
    }

    fn start(
        executor: &Arc<Executor>,
        group: u64,
        future: impl Future<Output = u32> + Send + 'static,
    ) -> (u64, Receiver<(sealane_code, Option<u32>)>) {
        let (told, ended): (Sender<_>, _) = channel();
        executor.ready().unwrap();
        let number = executor.number();
        let tell = move |outcome: Outcome<u32>| told.send((code(&outcome), outcome.ok())).unwrap();
        executor.start([Executor::call(number, group, future, tell)]);
        (number, ended)
    }

    #[test]
    fn calls_end_once_whatever_their_futures_do() {
        let executor = Arc::<Executor>::default();
        let group = executor.number();
        let mut looks = 0;
        let busy = poll_fn(move |context| {
            looks += 1;
            context.waker().wake_by_ref();
            if looks == 1000 { Poll::Ready(looks) } else { Poll::Pending }
        });
        let cases = [
            (start(&executor, 0, ready(7)).1, (sealane_code::Ok, Some(7))),
            (start(&executor, 0, busy).1, (sealane_code::Ok, Some(1000))),
            (start(&executor, 0, async { panic!("on purpose") }).1, (sealane_code::Internal, None)),
        ];
        for (ended, expected) in cases {
            assert_eq!(ended.recv_timeout(LONG), Ok(expected));
            assert!(ended.recv_timeout(LONG).is_err(), "it is told once, and dropped");
        }
        let (number, alone) = start(&executor, 0, pending());
        let of_group = [start(&executor, group, pending()).1, start(&executor, group, pending()).1];
        let (_, left) = start(&executor, 0, pending());
        executor.give_up(number, sealane_error::cancelled("alone"));
        assert_eq!(alone.recv_timeout(LONG), Ok((sealane_code::Cancelled, None)));
        executor.give_up_group(group, sealane_error::cancelled("together"));
        for ended in of_group {
            assert_eq!(ended.recv_timeout(LONG), Ok((sealane_code::Cancelled, None)));
        }
        executor.stop();
        assert_eq!(left.try_recv(), Ok((sealane_code::Cancelled, None)), "before it has stopped");
        executor.join();
        assert_eq!(code(&executor.ready()), sealane_code::InvalidArgument);
        assert_eq!(Arc::strong_count(&executor), 1, "the thread has gone");
    }

    #[test]
    fn a_call_with_a_deadline_ends_then_or_before() {
        let executor = Arc::<Executor>::default();
        executor.ready().unwrap();
        let (told, ended) = channel();
        let start = |number, timeout, future: std::pin::Pin<Box<dyn Future<Output = u32> + Send>>| {
            let told = told.clone();
            let tell = move |outcome: Outcome<u32>| told.send((number, code(&outcome))).unwrap();
            executor.start([Executor::call(number, 0, future, tell).within(timeout)]);
        };
        let begun = Instant::now();
        let late = Duration::from_millis(20);
        start(1, None, Box::pin(pending()));
        start(2, Some(Duration::MAX), Box::pin(pending()));
        start(3, Some(late), Box::pin(pending()));
        start(4, Some(late), Box::pin(ready(7)));
        start(5, Some(Duration::ZERO), Box::pin(ready(7)));
        let mut all: Vec<_> = (0..3).map(|_| ended.recv_timeout(LONG).unwrap()).collect();
        all.sort_by_key(|(number, _)| *number);
        assert_eq!(all, [(3, sealane_code::DeadlineExceeded), (4, sealane_code::Ok), (5, sealane_code::Ok)]);
        assert!(begun.elapsed() >= late);
        executor.stop();
        assert_eq!([(); 2].map(|()| ended.recv_timeout(LONG).unwrap().1), [sealane_code::Cancelled; 2]);
        assert!(ended.try_recv().is_err());
        executor.join();
    }

    #[test]
    fn calls_that_have_ended_leave_no_deadline() {
        let executor = Arc::<Executor>::default();
        let mut calls = Calls::default();
        let start = |calls: &mut Calls, future: Pin<Box<dyn Future<Output = ()> + Send>>| {
            let number = executor.number();
            let call = Executor::call(number, 7, future, |_| {}).within(Some(LONG));
            executor.hear(News::Start(call), calls);
            number
        };
        for _ in 0..100 {
            start(&mut calls, Box::pin(ready(())));
        }
        assert_eq!((calls.entries.len(), calls.deadlines.len()), (0, 0), "they have ended");
        let numbers = [(); 3].map(|()| start(&mut calls, Box::pin(pending())));
        assert_eq!((calls.entries.len(), calls.deadlines.len()), (3, 3));
        executor.hear(News::GiveUp(numbers[0], sealane_error::late()), &mut calls);
        assert_eq!((calls.entries.len(), calls.deadlines.len()), (2, 2));
        executor.hear(News::GiveUpGroup(7, sealane_error::late()), &mut calls);
        assert_eq!((calls.entries.len(), calls.next_deadline()), (0, None));
    }

    #[test]
    fn the_thread_stays_for_memory_that_is_lent() {
        let executor = Arc::<Executor>::default();
        executor.ready().unwrap();
        executor.lend();
        executor.stop();
        executor.join();
        let (told, released) = channel();
        executor.release(Box::new(move || told.send(()).unwrap()));
        assert_eq!(released.recv_timeout(LONG), Ok(()));
    }

    #[test]
    fn what_never_had_a_call_has_no_thread() {
        let executor = Arc::<Executor>::default();
        executor.stop();
        executor.join();
        assert_eq!(Arc::strong_count(&executor), 1);
    }
}
