//! Waiting without the GIL, for calls of any kind and batches of them, interruptible by control-C. Runs on the callers'
//! threads; bounded by the calls' own deadlines.

use std::{
    convert::identity,
    future::{Future, poll_fn},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use pyo3::prelude::*;
use sealane::{
    Error, PlanPulling, Publishing, Pulled, PullingMany, Pushing, Receiving, RecvOutcome, Sending, Tensor, Waiter,
};

use crate::errors::OrRaise;

/// How often a thread that waits lets Python's signal handlers run: soon enough for control-C to feel immediate.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

/// A call in flight, or several as one.
pub(crate) trait UnderWay: Send + Unpin {
    type Value: Send;

    /// The outcome, if it is there. It is handed out once.
    fn look(&mut self) -> Option<Result<Self::Value, Error>>;

    /// As a future's `poll`.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Self::Value, Error>>;
}

/// Calls of the crate `sealane`: what they bring, and how that comes of their outcome.
macro_rules! under_way {
    ($call:ty, $value:ty, $result:expr) => {
        impl UnderWay for $call {
            type Value = $value;

            fn look(&mut self) -> Option<Result<$value, Error>> {
                self.try_outcome().map($result)
            }

            fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<$value, Error>> {
                Future::poll(Pin::new(self), context).map($result)
            }
        }
    };
}

under_way!(Sending, (), identity);
under_way!(Receiving, Tensor, tensor);
under_way!(Publishing, (), identity);
under_way!(Pushing, (), identity);
under_way!(PullingMany, Vec<Result<Pulled, Error>>, Ok);
// The errors of a plan's pull are looked at one by one.
under_way!(PlanPulling<'_>, Result<(), Error>, Ok);

fn tensor(outcome: RecvOutcome) -> Result<Tensor, Error> {
    outcome.map_err(Error::from)
}

impl<C: UnderWay + ?Sized> UnderWay for Box<C> {
    type Value = C::Value;

    fn look(&mut self) -> Option<Result<C::Value, Error>> {
        (**self).look()
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<C::Value, Error>> {
        (**self).poll(context)
    }
}

/// A call whose failure is a value too: among others that go on.
pub(crate) struct Settled<C>(pub(crate) C);

impl<C: UnderWay> UnderWay for Settled<C> {
    type Value = Result<C::Value, Error>;

    fn look(&mut self) -> Option<Result<Self::Value, Error>> {
        self.0.look().map(Ok)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Self::Value, Error>> {
        self.0.poll(context).map(Ok)
    }
}

/// What may have become a call, or else its error.
pub(crate) struct Begun<C>(pub(crate) Result<C, Error>);

impl<C: UnderWay> UnderWay for Begun<C> {
    type Value = C::Value;

    fn look(&mut self) -> Option<Result<C::Value, Error>> {
        match &mut self.0 {
            Ok(call) => call.look(),
            Err(error) => Some(Err(error.clone())),
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<C::Value, Error>> {
        match &mut self.0 {
            Ok(call) => call.poll(context),
            Err(error) => Poll::Ready(Err(error.clone())),
        }
    }
}

/// A call whose value is of no use to anybody.
pub(crate) struct Valueless<C>(pub(crate) C);

impl<C: UnderWay> UnderWay for Valueless<C> {
    type Value = ();

    fn look(&mut self) -> Option<Result<(), Error>> {
        self.0.look().map(|outcome| outcome.map(drop))
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll(context).map(|outcome| outcome.map(drop))
    }
}

/// Calls that end together: with the values of all, or with the first error.
pub(crate) struct All<C: UnderWay> {
    current: Option<C>,
    rest: vec::IntoIter<C>,
    values: Vec<C::Value>,
}

impl<C: UnderWay> All<C> {
    pub(crate) fn new(calls: Vec<C>) -> Self {
        let values = Vec::with_capacity(calls.len());
        let mut rest = calls.into_iter();
        Self { current: rest.next(), rest, values }
    }

    fn proceed(
        &mut self,
        mut ask: impl FnMut(&mut C) -> Poll<Result<C::Value, Error>>,
    ) -> Poll<Result<Vec<C::Value>, Error>> {
        while let Some(call) = &mut self.current {
            self.values.push(std::task::ready!(ask(call))?);
            self.current = self.rest.next();
        }
        Poll::Ready(Ok(std::mem::take(&mut self.values)))
    }
}

impl<C: UnderWay> UnderWay for All<C>
where
    C::Value: Unpin,
{
    type Value = Vec<C::Value>;

    fn look(&mut self) -> Option<Result<Vec<C::Value>, Error>> {
        match self.proceed(|call| call.look().map_or(Poll::Pending, Poll::Ready)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Vec<C::Value>, Error>> {
        self.proceed(|call| call.poll(context))
    }
}

/// Submits, and waits for the outcome.
///
/// # Errors
/// The call's, and what a signal handler raises: KeyboardInterrupt, most often. Then the call is dropped.
pub(crate) fn outcome<C: UnderWay>(
    py: Python<'_>,
    waiter: &Waiter,
    submit: impl FnOnce() -> Result<C, Error> + Send,
) -> PyResult<C::Value> {
    // Python runs signal handlers on the main thread alone.
    let slice = if on_main_thread() { SIGNALS_EVERY } else { Duration::MAX };
    let mut call = None;
    let mut ended = py.detach(|| match submit() {
        Ok(submitted) => wait(waiter, call.insert(submitted), slice),
        Err(error) => Some(Err(error)),
    });
    let outcome = loop {
        match (ended, &mut call) {
            (None, Some(call)) => {
                if let Err(raised) = py.check_signals() {
                    break Err(raised);
                }
                ended = py.detach(|| wait(waiter, call, slice));
            }
            (ended, _) => {
                let ended = ended.expect("what was not submitted has failed");
                // It may have waited for room, and no handler has run meanwhile.
                let handled = if ended.is_err() { py.check_signals() } else { Ok(()) };
                break handled.and_then(|()| ended.or_raise(py));
            }
        }
    };
    if outcome.is_err() {
        // What is given up may wait for its memory.
        py.detach(|| drop(call));
    }
    outcome
}

/// The outcome, if it comes in time.
fn wait<C: UnderWay>(waiter: &Waiter, call: &mut C, slice: Duration) -> Option<Result<C::Value, Error>> {
    waiter.block_on(poll_fn(|context| call.poll(context)), slice)
}

fn on_main_thread() -> bool {
    nix::unistd::gettid() == nix::unistd::getpid()
}

/// Seconds as Python says them: `None` for the default, infinity for no limit.
///
/// # Errors
/// InvalidArgument if they are negative or not a number.
pub(crate) fn timeout(seconds: Option<f64>) -> Result<Option<Duration>, Error> {
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(Error::invalid(format!("a timeout must be a number of seconds, 0 or more, not {seconds}")));
    }
    Ok(Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
}
