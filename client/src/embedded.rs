//! Calls of an embedded engine, with the interface of calls to the daemon: polled first, waited for later. Runs on the callers'
//! threads.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use sealane_transport::{Error, Pulled, RecvOutcome, SendOutcome};

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
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        loop {
            if let Poll::Ready(outcome) = self.poll(&mut context) {
                return outcome;
            }
            std::thread::park();
        }
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

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
