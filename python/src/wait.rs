//! Calls of any kind, and batches of them, that can be looked at and polled. Runs on the callers' threads; bounded by the calls'
//! own deadlines.

use std::{
    cell::RefCell,
    convert::identity,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
    vec,
};

use pyo3::prelude::*;
use sealane::{
    Error, Publishing, Pulled, PullingMany, Pushing, Receiving, RecvOutcome, Sending, Tensor, interruptible,
};

use crate::errors::OrRaise;

/// How often a waiting thread lets Python's signal handlers run: often enough for control-C to feel immediate.
pub(crate) const SIGNALS_EVERY: Duration = Duration::from_millis(100);

thread_local! {
    /// The exception of a signal handler, or of Python code that a call of this thread has called, which ends the call.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Runs a call that may block, without the GIL. On the main thread, signal handlers run while it waits.
///
/// # Errors
/// The exception of a signal handler or that was [raised](raise) in the call; else the error of the call.
pub(crate) fn blocking<T: Send>(py: Python<'_>, call: impl FnOnce() -> Result<T, Error> + Send) -> PyResult<T> {
    // A signal handler may have made this call while another one of its thread waits.
    let outer = RAISED.take();
    let outcome = py.detach(|| interruptible(signal_handler_raises, call));
    if let Some(raised) = RAISED.replace(outer) {
        return Err(raised);
    }
    if outcome.is_err() {
        // A control-C may also end the peer: then the interrupt matters, not the call's error.
        py.check_signals()?;
    }
    outcome.or_raise(py)
}

/// Makes this thread's call of [`blocking`] raise an exception.
pub(crate) fn raise(exception: PyErr) {
    RAISED.set(Some(exception));
}

/// Runs pending signal handlers; returns true if one raises.
fn signal_handler_raises() -> bool {
    // Python runs signal handlers only on the main thread.
    on_main_thread() && Python::attach(|py| py.check_signals()).map_err(raise).is_err()
}

pub(crate) fn on_main_thread() -> bool {
    nix::unistd::gettid() == nix::unistd::getpid()
}

/// A call in flight, or several as one.
pub(crate) trait UnderWay: Send + Unpin {
    type Value: Send;

    /// The outcome, if available. It is returned once.
    fn look(&mut self) -> Option<Result<Self::Value, Error>>;

    /// Like a future's `poll`.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Self::Value, Error>>;
}

/// Implements the trait for calls of the crate `sealane`: the value, and how it is made from the outcome.
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

/// The attempt to start a call: the call, or its error.
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

/// A call whose value is not needed.
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

/// Calls that end together: with all outcomes if partial results are wanted, else with the first error if there is one.
pub(crate) struct All<C: UnderWay> {
    current: Option<C>,
    rest: vec::IntoIter<C>,
    partial: bool,
    outcomes: Vec<Result<C::Value, Error>>,
}

impl<C: UnderWay> All<C> {
    pub(crate) fn new(calls: Vec<C>, partial: bool) -> Self {
        let outcomes = Vec::with_capacity(calls.len());
        let mut rest = calls.into_iter();
        Self { current: rest.next(), rest, partial, outcomes }
    }

    fn proceed(
        &mut self,
        mut ask: impl FnMut(&mut C) -> Poll<Result<C::Value, Error>>,
    ) -> Poll<Result<Outcomes<C>, Error>> {
        while let Some(call) = &mut self.current {
            match std::task::ready!(ask(call)) {
                Err(error) if !self.partial => return Poll::Ready(Err(error)),
                outcome => self.outcomes.push(outcome),
            }
            self.current = self.rest.next();
        }
        Poll::Ready(Ok(std::mem::take(&mut self.outcomes)))
    }
}

type Outcomes<C> = Vec<Result<<C as UnderWay>::Value, Error>>;

impl<C: UnderWay> UnderWay for All<C>
where
    C::Value: Unpin,
{
    type Value = Outcomes<C>;

    fn look(&mut self) -> Option<Result<Outcomes<C>, Error>> {
        match self.proceed(|call| call.look().map_or(Poll::Pending, Poll::Ready)) {
            Poll::Ready(outcome) => Some(outcome),
            Poll::Pending => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Outcomes<C>, Error>> {
        self.proceed(|call| call.poll(context))
    }
}

/// Seconds from Python: `None` for the default, infinity for no limit.
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
