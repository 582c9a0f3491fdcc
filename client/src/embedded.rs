//! Calls of an embedded engine, with the interface of calls to the daemon: polled first, waited for later. Runs on the callers'
//! threads.

use std::{
    future::Future,
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
use sealane_transport::{Error, Pulled, RecvOutcome, SendOutcome};

use crate::{Attach, limits::SPINS_PER_CLOCK, patience::Patience};

/// A call of an embedded engine.
pub(crate) trait EngineCall: Future<Output = Self::Outcome> + Unpin {
    type Outcome;

    /// Blocks; only before it was polled.
    fn wait(self) -> Self::Outcome;
}

impl EngineCall for sealane_fusion::Sending {
    type Outcome = SendOutcome;

    fn wait(self) -> SendOutcome {
        sealane_fusion::Sending::wait(self)
    }
}

impl EngineCall for sealane_fusion::Receiving {
    type Outcome = RecvOutcome;

    fn wait(self) -> RecvOutcome {
        sealane_fusion::Receiving::wait(self)
    }
}

impl EngineCall for sealane_fusion::Publishing {
    type Outcome = SendOutcome;

    fn wait(self) -> SendOutcome {
        sealane_fusion::Publishing::wait(self)
    }
}

impl EngineCall for sealane_fusion::PullingMany {
    type Outcome = Vec<Result<Pulled, Error>>;

    fn wait(self) -> Self::Outcome {
        sealane_fusion::PullingMany::wait(self)
    }
}

impl EngineCall for sealane_fusion::Begun {
    type Outcome = sealane_fusion::Brought;

    fn wait(self) -> Self::Outcome {
        sealane_fusion::Begun::wait(self)
    }
}

impl EngineCall for sealane_fusion::PlanPulling<'_> {
    type Outcome = Result<(), Error>;

    fn wait(self) -> Self::Outcome {
        sealane_fusion::PlanPulling::wait(self)
    }
}

/// A call, and whether it was polled.
pub(crate) struct Embedded<C> {
    call: C,
    polled: bool,
}

impl<C: EngineCall> Embedded<C> {
    pub(crate) fn new(call: C) -> Self {
        Self { call, polled: false }
    }

    pub(crate) fn wait(mut self) -> C::Outcome {
        if !self.polled {
            return self.call.wait();
        }
        let poll = |context: &mut Context<'_>| self.poll(context);
        wait(&Spinning::Always(Polling::Park), None, poll).expect("there is no limit")
    }

    pub(crate) fn look(&mut self) -> Option<C::Outcome> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<C::Outcome> {
        self.polled = true;
        Pin::new(&mut self.call).poll(context)
    }
}

/// What a thread does before it sleeps.
#[derive(Clone)]
pub(crate) enum Spinning {
    /// It spins for as long as that says.
    Always(Polling),
    /// It spins where that pays.
    Learned(Arc<Mutex<Patience>>),
}

impl Spinning {
    pub(crate) fn learned() -> Self {
        let cpus = thread::available_parallelism().map_or(1, usize::from);
        Self::Learned(Arc::new(Mutex::new(Patience::new(cpus))))
    }

    /// What the wait that begins now begins with.
    fn polling(&self) -> Polling {
        match self {
            Self::Always(polling) => *polling,
            Self::Learned(patience) if lock(patience).may_spin() => Polling::idle(Attach::IDLE_SPIN),
            Self::Learned(_) => Polling::Park,
        }
    }

    /// A wait has spun for so long, with or without an answer.
    fn has_spun(&self, answered: bool, took: Duration) {
        if let Self::Learned(patience) = self {
            lock(patience).has_spun(answered, took);
        }
    }
}

fn lock(patience: &Mutex<Patience>) -> MutexGuard<'_, Patience> {
    patience.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `poll` is ready, at most until then; polls once at least.
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

/// Wakes a thread, which sees that it was woken.
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
