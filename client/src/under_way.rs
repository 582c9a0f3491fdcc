//! Calls in progress: can be waited for, awaited or polled, by any thread and any executor.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use sealane_transport::{Error, RecvOutcome, SendOutcome, Unreceived};

use crate::{
    attachment::{
        Attachment, Awaited, Begun, Calls, Channel, ChannelRecv, ChannelSend, Ended, OverChannel, Received, Take,
        TakeSome,
    },
    in_process::{Call, end_of, look},
    limits::CALLS_MAX,
};

/// How sends and recvs differ.
trait Kind {
    type Error: From<Error>;
    type Value;
    /// Whether dropping a call cancels it.
    const CANCELLED_BY_DROP: bool;

    /// Such a call over a channel.
    type Over: OverChannel<Value = Self::Value, Error = Self::Error>;

    /// What the table returns, and how to take it.
    type Taken;
    const TAKE: Take<Self::Taken>;
    const TAKE_SOME: TakeSome<Outcome<Self>>;

    fn outcome(taken: Self::Taken) -> Outcome<Self>;
}

type Outcome<K> = Result<<K as Kind>::Value, <K as Kind>::Error>;

struct Send;

impl Kind for Send {
    type Error = Error;
    type Value = ();
    const CANCELLED_BY_DROP: bool = false;
    type Over = ChannelSend;
    type Taken = SendOutcome;
    const TAKE: Take<SendOutcome> = Calls::take_sent;
    const TAKE_SOME: TakeSome<SendOutcome> = Calls::take_all_sent;

    #[inline]
    fn outcome(taken: SendOutcome) -> SendOutcome {
        taken
    }
}

struct Recv;

impl Kind for Recv {
    type Error = Unreceived;
    type Value = sealane_transport::Tensor;
    const CANCELLED_BY_DROP: bool = true;
    type Over = ChannelRecv;
    type Taken = Received;
    const TAKE: Take<Received> = Calls::take_received;
    const TAKE_SOME: TakeSome<RecvOutcome> = Calls::take_all_received;

    #[inline]
    fn outcome(taken: Received) -> RecvOutcome {
        taken.finish()
    }
}

struct UnderWay<K: Kind>(CallState<K>);

enum CallState<K: Kind> {
    /// A call in the attachment's table.
    Daemon {
        attachment: Arc<Attachment>,
        call: u32,
    },
    OverChannel(K::Over),
    InProcess(Call<Outcome<K>>),
    /// Not submitted, or ended; `None` once the outcome was taken. Boxed, since a call is moved often and fails seldom.
    Ended(Option<Box<K::Error>>),
}

/// How a call at the daemon is polled.
type PollBy<T> = fn(&Attachment, u32, Take<T>, &Waker) -> Poll<Result<T, Error>>;

const TOLD: &str = "the outcome was handed out before";

impl<K: Kind> UnderWay<K> {
    #[inline(always)]
    fn of(attachment: &Arc<Attachment>, begun: Result<Begun<K::Over>, K::Error>) -> Self {
        match begun {
            Ok(Begun::OverChannel(call)) => Self(CallState::OverChannel(call)),
            Ok(Begun::AtDaemon(call)) => Self(CallState::Daemon { attachment: attachment.clone(), call }),
            Err(error) => Self(CallState::Ended(Some(Box::new(error)))),
        }
    }

    #[inline]
    fn wait(mut self) -> Outcome<K> {
        // It stays where it is: it would be moved twice.
        if let CallState::OverChannel(call) = &mut self.0 {
            return call.wait(|attachment, moved| K::outcome(attachment.wait(moved, K::TAKE)?));
        }
        match std::mem::replace(&mut self.0, CallState::Ended(None)) {
            CallState::Daemon { attachment, call } => K::outcome(attachment.wait(call, K::TAKE)?),
            CallState::InProcess(call) => end_of(call),
            CallState::Ended(error) => Err(*error.expect(TOLD)),
            CallState::OverChannel(_) => unreachable!("it was waited for above"),
        }
    }

    /// Waits for all; for those of one attachment, the lock is taken once for all that have ended.
    fn wait_all(calls: Vec<Self>) -> Vec<Outcome<K>> {
        let mut outcomes = Vec::with_capacity(calls.len());
        let are_at_daemon = matches!(calls.first(), Some(Self(CallState::Daemon { .. })));
        let (mut of, mut numbers) =
            (None::<Arc<Attachment>>, Vec::with_capacity(if are_at_daemon { calls.len() } else { 0 }));
        let mut calls = calls.into_iter();
        while let Some(mut call) = calls.next() {
            match std::mem::replace(&mut call.0, CallState::Ended(None)) {
                CallState::OverChannel(over) => {
                    Self::wait_at(of.take(), &mut numbers, &mut outcomes);
                    let channel = over.channel().clone();
                    outcomes.push(Self(CallState::OverChannel(over)).wait());
                    Self::take_over_channel(&channel, &mut calls, &mut outcomes);
                }
                CallState::Daemon { attachment, call } => {
                    if of.as_ref().is_some_and(|of| !Arc::ptr_eq(of, &attachment)) {
                        Self::wait_at(of.take(), &mut numbers, &mut outcomes);
                    }
                    of.get_or_insert(attachment);
                    numbers.push(call);
                }
                other => {
                    Self::wait_at(of.take(), &mut numbers, &mut outcomes);
                    outcomes.push(UnderWay(other).wait());
                }
            }
        }
        Self::wait_at(of, &mut numbers, &mut outcomes);
        outcomes
    }

    /// Takes the outcomes of the first of these calls as far as they are over one channel and have ended, with its lock taken once.
    fn take_over_channel(channel: &Arc<Channel>, calls: &mut std::vec::IntoIter<Self>, outcomes: &mut Vec<Outcome<K>>) {
        channel.take_all(|inner| {
            let first = calls.as_mut_slice().first_mut();
            let Some(CallState::OverChannel(over)) = first.map(|call| &mut call.0) else { return false };
            if !Arc::ptr_eq(over.channel(), channel) {
                return false;
            }
            // A call that has moved to the daemon is waited for on its own.
            let Some(Ended::Here(end)) = over.end(inner) else { return false };
            outcomes.push(over.take(inner, end));
            over.was_told();
            calls.next();
            true
        });
    }

    /// Waits for calls of one attachment. In a forked child nothing is taken, and nothing given up.
    fn wait_at(attachment: Option<Arc<Attachment>>, calls: &mut Vec<u32>, outcomes: &mut Vec<Outcome<K>>) {
        let Some(attachment) = attachment else { return };
        let left = Left { attachment: &attachment, calls, cancel: K::CANCELLED_BY_DROP };
        if let Err(error) = attachment.wait_all(calls, K::TAKE_SOME, (K::TAKE, K::outcome), outcomes) {
            outcomes.extend(calls.iter().map(|_| Err(error.clone().into())));
        }
        drop(left);
        calls.clear();
    }

    #[inline]
    fn try_outcome(&mut self) -> Option<Outcome<K>> {
        let outcome = match &mut self.0 {
            CallState::Daemon { attachment, call } => match attachment.look(*call, K::TAKE).transpose()? {
                Ok(taken) => K::outcome(taken),
                Err(error) => Err(error.into()),
            },
            CallState::OverChannel(over) => match over.try_outcome()? {
                Ended::Here(outcome) => outcome,
                Ended::Moved(call) => {
                    return self.moves(call).map_or_else(|error| Some(Err(error)), |()| self.try_outcome());
                }
            },
            CallState::InProcess(call) => look(call)?,
            CallState::Ended(error) => Err(*error.take().expect(TOLD)),
        };
        self.0 = CallState::Ended(None);
        Some(outcome)
    }

    /// Continues a call over a channel as a call at the daemon.
    fn moves(&mut self, call: u32) -> Result<(), K::Error> {
        let CallState::OverChannel(over) = &self.0 else { return Ok(()) };
        let attachment = over.owner()?;
        self.0 = CallState::Daemon { attachment, call };
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Outcome<K>> {
        self.poll_by(Attachment::poll, context)
    }

    fn poll_by(&mut self, poll: PollBy<K::Taken>, context: &mut Context<'_>) -> Poll<Outcome<K>> {
        let outcome = match &mut self.0 {
            CallState::Daemon { attachment, call } => {
                match std::task::ready!(poll(attachment, *call, K::TAKE, context.waker())) {
                    Ok(taken) => K::outcome(taken),
                    Err(error) => Err(error.into()),
                }
            }
            CallState::OverChannel(over) => match std::task::ready!(over.poll(context.waker(), true)) {
                Ended::Here(outcome) => outcome,
                Ended::Moved(call) => match self.moves(call) {
                    Ok(()) => return self.poll_by(poll, context),
                    Err(error) => Err(error),
                },
            },
            CallState::InProcess(call) => std::task::ready!(Pin::new(call).poll(context)),
            CallState::Ended(error) => Err(*error.take().expect(TOLD)),
        };
        self.0 = CallState::Ended(None);
        Poll::Ready(outcome)
    }
}

impl<K: Kind> Drop for UnderWay<K> {
    #[inline]
    fn drop(&mut self) {
        if let CallState::Daemon { attachment, call } = &self.0 {
            attachment.forsake(*call, K::CANCELLED_BY_DROP);
        }
    }
}

/// Calls that are waited for. If that panics, in others' wakers, those not told are given up, as handles would be.
struct Left<'a> {
    attachment: &'a Attachment,
    calls: &'a [u32],
    cancel: bool,
}

impl Drop for Left<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.calls.iter().for_each(|call| self.attachment.forsake(*call, self.cancel));
        }
    }
}

/// Collects the handles of calls that are made together.
pub(crate) struct Handles<'a, H> {
    attachment: &'a Arc<Attachment>,
    handles: Vec<H>,
}

impl<'a, H: Handle> Handles<'a, H> {
    /// For so many calls, or about as many.
    pub(crate) fn new(attachment: &'a Arc<Attachment>, count: usize) -> Self {
        // No more are in flight, whatever the caller's iterator says.
        Handles { attachment, handles: Vec::with_capacity(count.min(CALLS_MAX)) }
    }

    /// Adds a call at the daemon.
    #[inline]
    pub(crate) fn add(&mut self, submitted: Result<u32, H::Error>) {
        self.add_begun(submitted.map(Begun::AtDaemon));
    }

    #[inline]
    pub(crate) fn add_begun(&mut self, begun: Result<Begun<H::Over>, H::Error>) {
        // Apart, so that each is written where it stays.
        match begun {
            Ok(call) => self.handles.push(H::of(self.attachment, Ok(call))),
            Err(error) => self.add_refused(error),
        }
    }

    #[cold]
    #[inline(never)]
    fn add_refused(&mut self, error: H::Error) {
        self.handles.push(H::of(self.attachment, Err(error)));
    }

    pub(crate) fn into_vec(self) -> Vec<H> {
        self.handles
    }
}

/// A handle of a call.
pub(crate) trait Handle: Sized {
    type Error;
    type Over;

    fn of(attachment: &Arc<Attachment>, begun: Result<Begun<Self::Over>, Self::Error>) -> Self;
}

impl Handle for Sending {
    type Error = Error;
    type Over = ChannelSend;

    #[inline(always)]
    fn of(attachment: &Arc<Attachment>, begun: Result<Begun<ChannelSend>, Error>) -> Sending {
        Sending(UnderWay::of(attachment, begun))
    }
}

impl Handle for Receiving {
    type Error = Unreceived;
    type Over = ChannelRecv;

    #[inline(always)]
    fn of(attachment: &Arc<Attachment>, begun: Result<Begun<ChannelRecv>, Unreceived>) -> Receiving {
        Receiving(UnderWay::of(attachment, begun))
    }
}

/// A send in progress: await it, or [`wait`](Self::wait). If it is dropped, the send continues.
#[must_use = "await it to know that the tensor arrived, or drop it explicitly"]
pub struct Sending(UnderWay<Send>);

impl Sending {
    /// Blocks until the consumer has the tensor, or the send has failed: at its deadline, and a second after that if the daemon
    /// hangs.
    ///
    /// # Errors
    /// As [`Error`] says; DeadlineExceeded if nobody requested the tensor in time, or if it was still in transit then: `delivery_unknown`
    /// says which. A tensor in transit may arrive, and its memory is returned when its consumer has released it.
    ///
    /// # Panics
    /// If the outcome was already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    #[inline]
    pub fn wait(self) -> SendOutcome {
        self.0.wait()
    }

    /// [`wait`](Self::wait) for many, in order, at a fraction of the cost each.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_all(sendings: impl IntoIterator<Item = Sending>) -> Vec<SendOutcome> {
        UnderWay::wait_all(sendings.into_iter().map(|sending| sending.0).collect())
    }

    /// Checks whether the send has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    #[inline]
    pub fn try_outcome(&mut self) -> Option<SendOutcome> {
        self.0.try_outcome()
    }

    /// Polls for a caller that does not wait: the waker is woken at once only if the send fails.
    pub(crate) fn poll_aside(&mut self, context: &mut Context<'_>) -> Poll<SendOutcome> {
        self.0.poll_by(Attachment::poll_aside, context)
    }
}

impl Future for Sending {
    type Output = SendOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<SendOutcome> {
        self.0.poll(context)
    }
}

/// A recv in progress: await it, or [`wait`](Self::wait). Dropping it cancels the recv, here and at the producer: a tensor that
/// was not sent yet stays there, and one in transit is returned. A tensor that the daemon has already put into this process's
/// ring counts as received, and is kept for the next recv of the same key until its step is cleaned up or the task is closed.
/// (With an embedded engine, a tensor that was just handed over is lost with the recv.) If the recv brought memory that does
/// not belong to the task alone, such as a Python array, dropping it waits until the daemon no longer uses it, at most a
/// second.
#[must_use = "dropping it cancels the recv"]
pub struct Receiving(UnderWay<Recv>);

impl Receiving {
    /// Blocks until the tensor has arrived, or the recv has failed: at the latest a second after its deadline, whatever the
    /// daemon does.
    ///
    /// # Errors
    /// As [`Error`] says; [`Unreceived`] returns the destination if possible.
    ///
    /// # Panics
    /// If the outcome was already taken, by [`try_outcome`](Self::try_outcome) or by awaiting.
    #[inline]
    pub fn wait(self) -> RecvOutcome {
        self.0.wait()
    }

    /// [`wait`](Self::wait) for many, in order, at a fraction of the cost each.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    pub fn wait_all(receivings: impl IntoIterator<Item = Receiving>) -> Vec<RecvOutcome> {
        UnderWay::wait_all(receivings.into_iter().map(|receiving| receiving.0).collect())
    }

    /// Checks whether the recv has ended, without waiting; `None` while it has not. The outcome can be taken once.
    ///
    /// # Panics
    /// If the outcome was already taken.
    #[inline]
    pub fn try_outcome(&mut self) -> Option<RecvOutcome> {
        self.0.try_outcome()
    }
}

impl Future for Receiving {
    type Output = RecvOutcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<RecvOutcome> {
        self.0.poll(context)
    }
}

impl From<Call<SendOutcome>> for Sending {
    fn from(call: Call<SendOutcome>) -> Sending {
        Sending(UnderWay(CallState::InProcess(call)))
    }
}

impl From<Call<RecvOutcome>> for Receiving {
    fn from(call: Call<RecvOutcome>) -> Receiving {
        Receiving(UnderWay(CallState::InProcess(call)))
    }
}
