//! The acceptor of an attached task: takes tensors delivered by the shards, and waits for more. Runs on the callers' threads.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
    time::{Duration, Instant},
};

use sealane_transport::Error;

use crate::{
    acceptor::{AcceptOptions, Accepted, Accepts},
    attachment::{Attachment, Calls},
    clock::Tick,
    limits::GRACE,
};

pub(crate) struct AttachedAcceptor {
    attachment: Arc<Attachment>,
    /// Identifies it at the attachment.
    number: u32,
    name: Box<str>,
}

/// What an accept waits for.
#[derive(Default)]
pub(crate) struct Watch(Option<Watched>);

struct Watched {
    attachment: Arc<Attachment>,
    number: u32,
    call: u32,
    /// Restarts of daemons, when the watch began.
    restarts: u64,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.attachment.unwatch(self.number, self.call);
    }
}

impl AttachedAcceptor {
    pub(crate) fn new(attachment: &Arc<Attachment>, name: &str, options: AcceptOptions) -> Self {
        let number = attachment.enter_acceptor(name, options);
        // Accepts report why it could not be opened.
        let _ = attachment.open_queue(number);
        Self { attachment: attachment.clone(), number, name: name.into() }
    }

    /// Takes available tensors; waits for a daemon that is being restarted, for at most `timeout`.
    fn take_within(&self, most: usize, into: &mut Vec<Accepted>, timeout: Option<Duration>) -> Result<usize, Error> {
        self.attachment.accept(self.number, most, into, timeout)
    }

    /// Watches for something to take; `None` if there is something now.
    fn watch(&self, deadline: Tick) -> Result<Option<Watched>, Error> {
        let restarts = self.attachment.restarts();
        let call = self.attachment.watch(self.number, deadline)?;
        Ok(call.map(|call| Watched { attachment: self.attachment.clone(), number: self.number, call, restarts }))
    }

    /// A watch ends with an error when its time is over, or when the daemon is gone; a drained one is expected back, or already is.
    fn check(&self, noticed: Result<(), Error>, restarts: u64) -> Result<(), Error> {
        let goes_on = || self.attachment.is_open(self.number) || self.attachment.ended_by_restart(restarts);
        noticed.or_else(|error| if goes_on() { Ok(()) } else { Err(error) })
    }
}

impl Accepts for AttachedAcceptor {
    fn name(&self) -> &str {
        &self.name
    }

    fn take(&self, most: usize, into: &mut Vec<Accepted>) -> Result<usize, Error> {
        self.take_within(most, into, Some(Duration::ZERO))
    }

    fn wait(&self, most: usize, timeout: Option<Duration>, watch: &mut Watch) -> Result<Vec<Accepted>, Error> {
        // A time that the clock cannot hold counts as none.
        let end = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut items = Vec::new();
        loop {
            // Ends an earlier watch without a deadline.
            *watch = Watch::default();
            let left = || end.map(|end| end.saturating_duration_since(Instant::now()));
            if self.take_within(most, &mut items, left())? > 0 || most == 0 {
                return Ok(items);
            }
            let left = left();
            if left == Some(Duration::ZERO) {
                return Ok(items);
            }
            // A call gets some grace beyond its deadline; a watch does not.
            let deadline = left.map_or(Tick::NEVER, |left| Tick::now().after(left).before(GRACE));
            if let Some(watched) = self.watch(deadline)? {
                let noticed = self.attachment.wait(watched.call, Calls::take_sent)?;
                self.check(noticed, watched.restarts)?;
            }
        }
    }

    fn poll(&self, most: usize, watch: &mut Watch, context: &mut Context<'_>) -> Poll<Result<Vec<Accepted>, Error>> {
        let mut items = Vec::new();
        loop {
            if let Watch(Some(watched)) = watch {
                let noticed = ready!(self.attachment.poll(watched.call, Calls::take_sent, context.waker()));
                let restarts = watched.restarts;
                *watch = Watch::default();
                self.check(noticed?, restarts)?;
            }
            ready!(self.attachment.poll_queue(self.number, context.waker()));
            if self.take(most, &mut items)? > 0 || most == 0 {
                return Poll::Ready(Ok(items));
            }
            *watch = Watch(self.watch(Tick::NEVER)?);
        }
    }
}

impl Drop for AttachedAcceptor {
    fn drop(&mut self) {
        self.attachment.close_acceptor(self.number);
    }
}
