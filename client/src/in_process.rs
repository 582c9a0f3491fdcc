//! A task whose engine is in this process, as the rest of this crate sees it, and how a thread waits for its calls. Runs on the
//! callers' threads.

use std::{
    future::Future,
    os::fd::OwnedFd,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use sealane_runtime::Polling;
use sealane_transport::{
    Error, Keys, PullOptions, RecvOptions, RecvOutcome, SendOptions, SendOutcome, Tensor, named_rows::NamedRowsBuf,
};

use crate::{
    Attach,
    acceptor::{AcceptOptions, Accepts},
    limits::SPINS_PER_CLOCK,
    patience::Patience,
    plan::Pulls,
};

/// A call in progress. The lock is never contended: only the call's holder polls it, but what holds it may be shared by many threads.
pub(crate) struct Call<T>(Box<Mutex<Polled<T>>>);

type Polled<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<T> Call<T> {
    #[cfg(feature = "embedded")]
    pub(crate) fn of(future: impl Future<Output = T> + Send + 'static) -> Call<T> {
        Call(Box::new(Mutex::new(Box::pin(future))))
    }
}

impl<T> Future for Call<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut().poll(context)
    }
}

/// The calls of such a task; each is documented at [`Task`](crate::Task).
pub(crate) trait InProcess: Send + Sync {
    fn name(&self) -> &str;
    fn shards(&self) -> usize;
    /// Bytes of one shard for received tensors.
    fn receive_bytes(&self) -> usize;
    fn send(&self, to: &str, step: i64, key: &str, tensor: Tensor, options: SendOptions) -> Call<SendOutcome>;
    fn recv(&self, from: &str, step: i64, key: &str, options: RecvOptions) -> Call<RecvOutcome>;
    fn recv_all(
        &self,
        from: &str,
        step: i64,
        wanted: &mut dyn Iterator<Item = (&str, RecvOptions)>,
    ) -> Vec<Call<RecvOutcome>>;
    fn push_many(&self, to: &str, queue: &str, tensors: Vec<Tensor>, options: &SendOptions) -> Call<SendOutcome>;
    fn acceptor(&self, queue: &str, options: AcceptOptions) -> Box<dyn Accepts>;
    fn publish_many(&self, version: i64, tensors: Vec<(String, Tensor)>) -> Call<SendOutcome>;
    fn withdraw(&self, key: &str) -> Result<(), Error>;
    /// A plan that is pulled over the shard `stripe` places after the one that serves the pair.
    fn plan(&self, from: &str, stripe: usize, keys: Keys) -> Box<dyn Pulls>;
    /// The first request goes over the shard `stripe` places after that one, each further request over the next.
    fn pull_rows(
        &self,
        from: (&str, usize),
        min_version: i64,
        options: PullOptions,
        wanted: Vec<NamedRowsBuf>,
    ) -> Vec<Call<RecvOutcome>>;
    /// Blocks until there is a connection for a stream with `peer`: a new one, or that of `number`, which the peer has.
    fn stream_connection(&self, peer: &str, number: Option<u64>) -> Result<(u64, OwnedFd), Error>;
    fn abort(&self, step: i64, reason: &str) -> Result<(), Error>;
    fn cleanup(&self, step: i64) -> Result<(), Error>;
}

/// Waits for the end of a call.
pub(crate) fn end_of<F: Future + Unpin>(mut call: F) -> F::Output {
    let poll = |context: &mut Context<'_>| Pin::new(&mut call).poll(context);
    wait(&Spinning::Always(Polling::Park), None, poll).expect("there is no limit")
}

/// The outcome of a call that has ended.
pub(crate) fn look<F: Future + Unpin>(call: &mut F) -> Option<F::Output> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => Some(outcome),
        Poll::Pending => None,
    }
}

/// How a thread spins before it sleeps.
#[derive(Clone)]
pub(crate) enum Spinning {
    /// For as long as the policy says.
    Always(Polling),
    /// If it has paid so far.
    Learned(Arc<Mutex<Patience>>),
}

impl Spinning {
    pub(crate) fn learned() -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Self::Learned(Arc::new(Mutex::new(Patience::new(cpus))))
    }

    /// The policy for the wait that begins now.
    pub(crate) fn polling(&self) -> Polling {
        match self {
            Self::Always(polling) => *polling,
            Self::Learned(patience) if lock(patience).may_spin() => Polling::idle(Attach::IDLE_SPIN),
            Self::Learned(_) => Polling::Park,
        }
    }

    /// Notes that a wait has spun for so long, with or without an answer.
    pub(crate) fn has_spun(&self, answered: bool, took: Duration) {
        if let Self::Learned(patience) = self {
            lock(patience).has_spun(answered, took);
        }
    }
}

fn lock(patience: &Mutex<Patience>) -> MutexGuard<'_, Patience> {
    patience.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `poll` is ready, at most until then; polls at least once.
pub(crate) fn wait<T>(
    spinning: &Spinning,
    until: Option<Instant>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<T>,
) -> Option<T> {
    let woken = Arc::new(Woken { woken: AtomicBool::new(false), thread: thread::current() });
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    if let Poll::Ready(value) = poll(&mut context) {
        return Some(value);
    }
    let began = Instant::now();
    let mut polling = spinning.polling();
    loop {
        while !woken.woken.swap(false, Ordering::Acquire) {
            let now = Instant::now();
            if until.is_some_and(|until| now >= until) {
                return None;
            }
            let spins = match polling {
                Polling::Spin => true,
                Polling::SpinThenPark { idle_spin } => now.saturating_duration_since(began) < idle_spin,
                Polling::Park => false,
            };
            if !spins && polling != Polling::Park {
                polling = Polling::Park;
                spinning.has_spun(false, now.saturating_duration_since(began));
            }
            match until {
                _ if spins => (0..SPINS_PER_CLOCK).for_each(|_| std::hint::spin_loop()),
                Some(until) => thread::park_timeout(until - now),
                None => thread::park(),
            }
        }
        if let Poll::Ready(value) = poll(&mut context) {
            if polling != Polling::Park {
                spinning.has_spun(true, began.elapsed());
            }
            return Some(value);
        }
    }
}

/// Wakes a thread, and records that it was woken.
struct Woken {
    woken: AtomicBool,
    thread: Thread,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.thread.unpark();
    }
}
