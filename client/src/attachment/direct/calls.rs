//! Sends and recvs in progress over a channel, as their handles see them.
//!
//! A call may move to the daemon: a recv whose tensor is large, or a send whose consumer has left. Its handle is then told the call's number
//! there, and continues as that call.

use std::{
    sync::Arc,
    task::{Poll, Waker},
};

use sealane_transport::{
    Error, RecvOutcome, SendOutcome, Tensor, Unreceived,
    channel::{Recv, Why},
};

use super::{
    super::Attachment,
    channel::{Channel, Inner, SendEnd},
};
use crate::clock::Tick;

/// How a call over a channel ended.
pub(crate) enum Ended<T> {
    Here(T),
    /// It is this call at the daemon from now on.
    Moved(u32),
}

/// What was taken of a call over a channel.
pub(crate) type Taken<C> = Ended<Result<<C as OverChannel>::Value, <C as OverChannel>::Error>>;

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
    type Value;
    type Error: From<Error>;
    /// How such a call ended, from which its outcome is made.
    type End;

    /// How the call ended, if it has.
    fn end(&self, inner: &mut Inner) -> Option<Ended<Self::End>>;

    /// Takes the outcome of a call that has [ended](Self::end) here; the caller then notes that it [was](Self::was_told) told.
    fn take(&self, inner: &mut Inner, end: Self::End) -> Result<Self::Value, Self::Error>;

    /// The call is the daemon's; the caller then notes that its outcome [was](Self::was_told) told.
    fn leave(&self, inner: &mut Inner);

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

    /// [`take`](Self::take), if the call has ended.
    #[inline]
    fn take_if_ended(&self, inner: &mut Inner) -> Option<Taken<Self>> {
        Some(match self.end(inner)? {
            Ended::Here(end) => Ended::Here(self.take(inner, end)),
            Ended::Moved(call) => {
                self.leave(inner);
                Ended::Moved(call)
            }
        })
    }

    /// Takes in what has arrived, and takes the outcome if the call has ended.
    #[inline]
    fn look(&mut self) -> Option<Taken<Self>> {
        let channel = self.channel();
        let mut inner = channel.lock();
        if channel.has_record() {
            channel.drain(&mut inner);
        }
        let taken = self.take_if_ended(&mut inner);
        channel.finish(inner);
        channel.attend();
        if taken.is_some() {
            self.was_told();
        }
        taken
    }

    /// [`look`](Self::look), in a process that may be forked: a child's outcome is InvalidArgument.
    fn try_outcome(&mut self) -> Option<Taken<Self>> {
        match self.check_fork() {
            Ok(()) => self.look(),
            Err(error) => Some(Ended::Here(Err(error.into()))),
        }
    }

    /// # Errors
    /// InvalidArgument in a forked child, Unavailable if the attachment is gone there.
    #[inline]
    fn check_fork(&self) -> Result<(), Error> {
        if self.channel().is_forked() { self.owner()?.check_fork() } else { Ok(()) }
    }

    /// Waits for the end of the call; `moved` waits for a call at the daemon.
    ///
    /// # Errors
    /// The call's; InvalidArgument in a forked child, Unavailable if the attachment is gone.
    #[inline]
    fn wait(
        &mut self,
        moved: impl FnOnce(&Attachment, u32) -> Result<Self::Value, Self::Error>,
    ) -> Result<Self::Value, Self::Error> {
        self.check_fork()?;
        loop {
            let channel = self.channel();
            let mut inner = channel.lock();
            if channel.has_record() {
                channel.drain(&mut inner);
            }
            match self.end(&mut inner) {
                // Made where it is returned: a tensor is long.
                Some(Ended::Here(end)) => {
                    let outcome = self.take(&mut inner, end);
                    channel.finish(inner);
                    channel.settle_debts();
                    self.was_told();
                    return outcome;
                }
                Some(Ended::Moved(call)) => {
                    self.leave(&mut inner);
                    channel.finish(inner);
                    self.was_told();
                    return moved(&*self.owner()?, call);
                }
                None => {
                    channel.finish(inner);
                    channel.attend();
                }
            }
            self.owner()?.wait_over_channel(self);
        }
    }

    /// The outcome, or has `waker` woken when the call has ended. `is_awaited` unless somebody polls for it anyway.
    fn poll(&mut self, waker: &Waker, is_awaited: bool) -> Poll<Taken<Self>> {
        if let Some(taken) = self.try_outcome() {
            return Poll::Ready(taken);
        }
        let channel = self.channel();
        let mut inner = channel.lock();
        let before = self.wake_at_end(&mut inner, waker, is_awaited);
        let taken = self.take_if_ended(&mut inner);
        channel.watches(&inner);
        channel.finish(inner);
        if taken.is_some() {
            self.was_told();
        }
        // Dropping a waker may run code of its owner.
        drop(before);
        if let Some(taken) = taken {
            return Poll::Ready(taken);
        }
        let watched = self.owner().and_then(|owner| owner.watch_channel(self.deadline(), is_awaited));
        match watched {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Ended::Here(Err(error.into()))),
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
        inner.end_of_send(self.handle).is_some()
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
    type Value = ();
    type Error = Error;
    type End = SendEnd;

    #[inline]
    fn end(&self, inner: &mut Inner) -> Option<Ended<SendEnd>> {
        inner.end_of_send(self.handle)
    }

    #[inline]
    fn take(&self, inner: &mut Inner, end: SendEnd) -> SendOutcome {
        inner.take_sent(self.handle, end, (&self.channel.peer, self.timeout_ms))
    }

    fn leave(&self, inner: &mut Inner) {
        inner.redirected.remove(&self.handle);
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
    type Value = Tensor;
    type Error = Unreceived;
    /// Why it failed, if it did.
    type End = Option<Why>;

    #[inline]
    fn end(&self, inner: &mut Inner) -> Option<Ended<Option<Why>>> {
        match inner.half.recv(self.slot) {
            Recv::Waiting => None,
            Recv::Done => Some(Ended::Here(None)),
            Recv::Failed(why) => Some(Ended::Here(Some(why))),
            Recv::Moved(call) => Some(Ended::Moved(call)),
        }
    }

    #[inline]
    fn take(&self, inner: &mut Inner, failed: Option<Why>) -> RecvOutcome {
        match failed {
            None => inner.received(self.slot),
            Some(why) => Err(inner.unreceived(self.slot, why, (&self.channel.peer, self.timeout_ms))),
        }
    }

    fn leave(&self, inner: &mut Inner) {
        inner.half.free(self.slot);
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
        self.channel.attend();
        // The caller's memory may run code when it is dropped.
        drop(data);
        if let (Some(call), Some(attachment)) = (moved, self.channel.attachment()) {
            attachment.forsake(call, true);
        }
    }
}
