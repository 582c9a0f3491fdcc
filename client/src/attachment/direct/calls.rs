//! Sends and recvs in progress over a channel, as their handles see them.
//!
//! A call may move to the daemon: a recv whose tensor is large, or a send whose consumer has left. Its handle is then told the call's number
//! there, and continues as that call.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use sealane_transport::{
    Error, RecvOutcome, SendOutcome,
    channel::{Recv, Sent},
};

use super::{
    super::Attachment,
    channel::{Channel, Inner},
};
use crate::clock::Tick;

/// How a call over a channel ended.
pub(crate) enum Ended<T> {
    Here(T),
    /// It is this call at the daemon from now on.
    Moved(u32),
}

/// A call over a channel, as a waiting thread sees it.
pub(crate) trait Awaited {
    fn channel(&self) -> &Arc<Channel>;
    fn deadline(&self) -> Tick;
    fn has_ended(&self, inner: &mut Inner) -> bool;
    /// Wakes `waker` when the call ends; returns the waker that it replaces.
    fn wake_at_end(&self, inner: &mut Inner, waker: &Waker, is_watched: bool) -> Option<Waker>;
    fn wake_nobody(&self, inner: &mut Inner);
}

/// A call over a channel, as its handle sees it.
pub(crate) trait OverChannel: Awaited + Sized {
    type Outcome;

    /// Takes the outcome, if the call has ended; the caller then notes that it [was](Self::was_told) told.
    fn take(&self, inner: &mut Inner) -> Option<Ended<Self::Outcome>>;

    /// The outcome was taken.
    fn was_told(&mut self);

    /// The attachment that made the call.
    ///
    /// # Errors
    /// Unavailable if it is gone.
    fn owner(&self) -> Result<Arc<Attachment>, Error> {
        let gone = || Error::unavailable(&self.channel().peer, "the task that made the call was dropped");
        self.channel().attachment().ok_or_else(gone)
    }

    /// Takes in what has arrived, and takes the outcome if the call has ended.
    #[inline]
    fn look(&mut self) -> Option<Ended<Self::Outcome>> {
        let channel = self.channel();
        let mut inner = channel.lock();
        if channel.has_record() {
            channel.drain(&mut inner);
        }
        let taken = self.take(&mut inner);
        channel.finish(inner);
        if taken.is_some() {
            self.was_told();
        }
        self.channel().settle_debts();
        taken
    }

    /// [`look`](Self::look), in a process that may be forked.
    ///
    /// # Errors
    /// InvalidArgument in a forked child.
    fn try_outcome(&mut self) -> Result<Option<Ended<Self::Outcome>>, Error> {
        if self.channel().is_forked() {
            self.owner()?.check_fork()?;
        }
        Ok(self.look())
    }

    /// Waits for the end of the call.
    ///
    /// # Errors
    /// InvalidArgument in a forked child, Unavailable if the attachment is gone.
    #[inline]
    fn wait(&mut self) -> Result<Ended<Self::Outcome>, Error> {
        if self.channel().is_forked() {
            self.owner()?.check_fork()?;
        }
        loop {
            if let Some(ended) = self.look() {
                return Ok(ended);
            }
            self.owner()?.wait_over_channel(self);
        }
    }

    /// The outcome, or has `waker` woken when the call has ended. `is_awaited` unless somebody polls for it anyway.
    fn poll(&mut self, waker: &Waker, is_awaited: bool) -> Poll<Result<Ended<Self::Outcome>, Error>> {
        match self.try_outcome() {
            Err(error) => return Poll::Ready(Err(error)),
            Ok(Some(ended)) => return Poll::Ready(Ok(ended)),
            Ok(None) => {}
        }
        let channel = self.channel();
        let mut inner = channel.lock();
        let before = self.wake_at_end(&mut inner, waker, is_awaited);
        let taken = self.take(&mut inner);
        channel.watches(&inner);
        channel.finish(inner);
        if taken.is_some() {
            self.was_told();
        }
        // Dropping a waker may run code of its owner.
        drop(before);
        if let Some(taken) = taken {
            return Poll::Ready(Ok(taken));
        }
        let watched = self.owner().and_then(|owner| owner.watch_channel(self.deadline(), is_awaited));
        match watched {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// A send over a channel. If it is dropped, the send continues.
pub(crate) struct ChannelSend {
    channel: Arc<Channel>,
    handle: u64,
    timeout_ms: u32,
    deadline: Tick,
    /// The outcome was taken.
    is_told: bool,
}

impl ChannelSend {
    #[inline]
    pub(super) fn new(channel: Arc<Channel>, handle: u64, (timeout_ms, deadline): (u32, Tick)) -> ChannelSend {
        ChannelSend { channel, handle, timeout_ms, deadline, is_told: false }
    }
}

impl Awaited for ChannelSend {
    #[inline]
    fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    fn deadline(&self) -> Tick {
        self.deadline
    }

    fn has_ended(&self, inner: &mut Inner) -> bool {
        inner.half.sent(self.handle) != Sent::Open
            || inner.half.has_ended() && (inner.end.is_some() || inner.redirected.contains_key(&self.handle))
    }

    fn wake_at_end(&self, inner: &mut Inner, waker: &Waker, is_watched: bool) -> Option<Waker> {
        // The consumer may have posted its recv and do something else.
        self.channel.poke();
        inner.half.wait_for_send(self.handle, waker.clone(), is_watched)
    }

    fn wake_nobody(&self, inner: &mut Inner) {
        inner.half.wait_for_send_no_more(self.handle);
    }
}

impl OverChannel for ChannelSend {
    type Outcome = SendOutcome;

    #[inline]
    fn take(&self, inner: &mut Inner) -> Option<Ended<SendOutcome>> {
        inner.take_sent(self.handle, (&self.channel.peer, self.timeout_ms))
    }

    #[inline]
    fn was_told(&mut self) {
        self.is_told = true;
    }
}

impl Drop for ChannelSend {
    #[inline]
    fn drop(&mut self) {
        if !self.is_told && !self.channel.is_forked() {
            self.forget();
        }
    }
}

impl ChannelSend {
    /// Nobody asks for the outcome any more.
    fn forget(&mut self) {
        let mut inner = self.channel.lock();
        inner.half.forget_send(self.handle);
        let moved = inner.redirected.remove(&self.handle);
        self.channel.finish(inner);
        if let (Some(Ok(call)), Some(attachment)) = (moved, self.channel.attachment()) {
            attachment.forsake(call, false);
        }
    }
}

/// A recv over a channel. Dropping it gives the recv up.
pub(crate) struct ChannelRecv {
    channel: Arc<Channel>,
    slot: u32,
    timeout_ms: u32,
    deadline: Tick,
    /// The outcome was taken, and the slot may be another recv's.
    is_told: bool,
}

impl ChannelRecv {
    #[inline]
    pub(super) fn new(channel: Arc<Channel>, slot: u32, (timeout_ms, deadline): (u32, Tick)) -> ChannelRecv {
        ChannelRecv { channel, slot, timeout_ms, deadline, is_told: false }
    }
}

impl Awaited for ChannelRecv {
    #[inline]
    fn channel(&self) -> &Arc<Channel> {
        &self.channel
    }

    fn deadline(&self) -> Tick {
        self.deadline
    }

    fn has_ended(&self, inner: &mut Inner) -> bool {
        inner.half.recv(self.slot) != Recv::Waiting
    }

    fn wake_at_end(&self, inner: &mut Inner, waker: &Waker, is_watched: bool) -> Option<Waker> {
        inner.half.wait_for_recv(self.slot, waker.clone(), is_watched)
    }

    fn wake_nobody(&self, inner: &mut Inner) {
        // Nobody else's code runs when it is dropped: it is a waker of this library.
        inner.half.wait_for_recv_no_more(self.slot);
    }
}

impl OverChannel for ChannelRecv {
    type Outcome = RecvOutcome;

    #[inline]
    fn take(&self, inner: &mut Inner) -> Option<Ended<RecvOutcome>> {
        inner.take_received(self.slot, (&self.channel.peer, self.timeout_ms))
    }

    #[inline]
    fn was_told(&mut self) {
        self.is_told = true;
    }
}

impl Drop for ChannelRecv {
    #[inline]
    fn drop(&mut self) {
        if !self.is_told && !self.channel.is_forked() {
            self.cancel();
        }
    }
}

impl ChannelRecv {
    /// The caller gives the recv up. A tensor that arrived for it is the next recv's.
    fn cancel(&mut self) {
        let mut inner = self.channel.lock();
        let moved = match inner.half.recv(self.slot) {
            Recv::Moved(call) => Some(call),
            _ => None,
        };
        inner.refused.remove(&self.slot);
        let data = inner.half.take_data(self.slot);
        inner.half.cancel(self.slot);
        self.channel.watches(&inner);
        self.channel.finish(inner);
        self.channel.settle_debts();
        // The caller's memory may run code when it is dropped.
        drop(data);
        if let (Some(call), Some(attachment)) = (moved, self.channel.attachment()) {
            attachment.forsake(call, true);
        }
    }
}
