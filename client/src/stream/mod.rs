//! Streams of bytes between two tasks, over whatever link they have.
//!
//! [`Streams`] is a task's side of all of them; [`Stream`] its end of one.

mod asynchronous;
mod blocking;
mod connection;
mod direct;
mod end;
#[cfg(feature = "fuzzing")]
pub mod far_end;
mod figures;
mod frame;
#[cfg(feature = "tonic")]
mod grpc;
mod hub;
mod memory;
mod socket;
mod switch;
mod untold;

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use sealane_runtime::Polling;
use sealane_transport::Error;

use crate::{
    Task,
    in_process::Spinning,
    limits::{STREAM_WINDOW_BYTES, STREAM_WINDOW_BYTES_MAX},
};
use blocking::block_on;
use direct::{Direct, Waits};
pub use figures::StreamFigures;
#[cfg(feature = "tonic")]
pub use grpc::{Connector, Incoming, StreamPeer};
use hub::{Hub, Key};

/// The streams of a task: its side of every stream that it dials or accepts. Cheap to clone. One per task: the streams of a
/// second fail with InvalidArgument.
///
/// A stream is ordered, reliable and flow-controlled, and survives the loss of its link: no byte is lost or comes twice. A
/// stream that nobody reads holds up itself alone. It ends with Unavailable when the other process does.
///
/// Streams are pushes into a queue of their own. A write is copied once, into the arena; a read once, out of the memory that
/// it arrived in. A stream that has carried some bytes bypasses the daemon. Between two processes of one host and user it uses memory
/// that they share: a write is copied there, and a read out of it. Between two hosts it uses a TCP connection of its own, which the
/// daemons make and hand to the two processes; if that breaks, the stream goes on through the daemons, and then over another. Under TLS,
/// or over RDMA, streams go through the daemons.
///
/// ```no_run
/// use std::io::{Read, Write};
/// use sealane::{StreamOptions, Streams, Task};
///
/// // One process answers whoever dials.
/// let streams = Streams::of(&Task::attach("ps0.train:2222")?);
/// let listener = streams.listen("upper", StreamOptions::default())?;
/// let (mut stream, mut text) = (listener.accept().wait()?, String::new());
/// stream.read_to_string(&mut text)?;
/// stream.write_all(text.to_uppercase().as_bytes())?;
/// stream.finish().wait()?;
///
/// // Another dials.
/// let streams = Streams::of(&Task::attach("worker0.train:2222")?);
/// let mut stream = streams.connect("ps0.train:2222", "upper", StreamOptions::default()).wait()?;
/// stream.write_all(b"text")?;
/// stream.finish().wait()?;
/// let mut text = String::new();
/// stream.read_to_string(&mut text)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Streams(Arc<Hub>);

/// Options of a stream, for the end that sets them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamOptions {
    /// Bytes that may arrive before they are read; the other end's writes wait when there are as many. Default 1 MiB, at most
    /// 1 GiB. A stream that bypasses the daemon has 256 KiB instead, or what the two kernels buffer, behind what came before;
    /// with a window below 128 KiB it goes through the daemon.
    pub window_bytes: u64,
    /// How long a call may block: a read, write or flush of `std::io`, or a `wait`. It then fails with DeadlineExceeded, and may be
    /// repeated, except a dial, which is given up. Default none. Futures and polls are left to their executor's timeouts.
    pub timeout: Option<Duration>,
    /// How a thread polls before it sleeps, in a read that waits for bytes on the stream's own connection. Default none: as set for the
    /// task, or else it learns whether spinning pays.
    pub polling: Option<Polling>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { window_bytes: STREAM_WINDOW_BYTES, timeout: None, polling: None }
    }
}

impl StreamOptions {
    fn check(self) -> Result<(), Error> {
        if (1..=STREAM_WINDOW_BYTES_MAX).contains(&self.window_bytes) {
            return Ok(());
        }
        let window = self.window_bytes;
        Err(Error::invalid(format!("a window of {window} bytes: it has 1 to {STREAM_WINDOW_BYTES_MAX}")))
    }
}

impl Streams {
    /// The streams of a task.
    pub fn of(task: &Task) -> Streams {
        Streams(Hub::new(task))
    }

    /// Accepts streams that any peer dials under this name, until the listener is dropped.
    ///
    /// # Errors
    /// InvalidArgument if the name has a listener, or for options out of range.
    pub fn listen(&self, name: &str, options: StreamOptions) -> Result<StreamListener, Error> {
        options.check()?;
        self.0.listen(name, options)?;
        Ok(StreamListener { hub: self.0.clone(), name: name.into(), options, is_closed: AtomicBool::new(false) })
    }

    /// Dials the listener of that name at `peer`.
    ///
    /// It fails with NotFound if the peer has streams and nobody listens by that name, or is not in the endpoint map; with
    /// DeadlineExceeded after one to two of the engine's request timeouts if the peer does not answer; with ResourceExhausted if its
    /// listener has too many to accept.
    pub fn connect(&self, peer: &str, name: &str, options: StreamOptions) -> Connecting {
        let dial = Dial { hub: self.0.clone(), peer: peer.into(), name: name.into(), options, stream: None };
        Connecting(options.check().map(|()| dial).and_then(|mut dial| {
            // While a daemon is being restarted, it is dialed later.
            dial.begin(&Context::from_waker(Waker::noop()))?;
            Ok(dial)
        }))
    }
}

impl Streams {
    /// What the task's streams have carried since this was made, by peer; of more than 1,024 peers the rest together, as
    /// `others`.
    pub fn figures(&self) -> Vec<(Arc<str>, StreamFigures)> {
        self.0.unless_forked(|state| state.figures()).unwrap_or_default()
    }
}

/// Streams to accept. From [`Streams::listen`].
pub struct StreamListener {
    hub: Arc<Hub>,
    name: Box<str>,
    options: StreamOptions,
    is_closed: AtomicBool,
}

impl StreamListener {
    /// The next stream.
    pub fn accept(&self) -> AcceptingStream<'_> {
        AcceptingStream(self)
    }

    /// The next stream, as a future's poll.
    ///
    /// # Errors
    /// Unavailable if the daemon is gone; later streams come through the next daemon. InvalidArgument once it is closed.
    pub fn poll_accept(&self, context: &mut Context<'_>) -> Poll<Result<Stream, Error>> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Poll::Ready(Err(Error::invalid(format!("the listener of '{}' was closed", self.name))));
        }
        let accepted = self.hub.poll_accept(&self.name, context);
        accepted.map_ok(|key| Stream::new(key, &self.hub, self.options))
    }
}

impl StreamListener {
    /// Stops accepting; accepts in progress end with an error. Streams that wait to be accepted are reset, and the
    /// name is free.
    pub fn close(&self) {
        if !self.is_closed.swap(true, Ordering::SeqCst) {
            self.hub.stop_listening(&self.name);
        }
    }
}

impl Drop for StreamListener {
    fn drop(&mut self) {
        self.close();
    }
}

/// An accept of a stream: await it, or [`wait`](Self::wait).
#[must_use = "await it to get the stream"]
pub struct AcceptingStream<'a>(&'a StreamListener);

impl AcceptingStream<'_> {
    /// Blocks until there is a stream.
    ///
    /// # Errors
    /// As [`StreamListener::poll_accept`]; DeadlineExceeded after [`StreamOptions::timeout`].
    pub fn wait(self) -> Result<Stream, Error> {
        block_on(&self.0.hub, self.0.options.timeout, |context| self.0.poll_accept(context))
    }
}

impl Future for AcceptingStream<'_> {
    type Output = Result<Stream, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_accept(context)
    }
}

/// A stream that is being dialed: await it, or [`wait`](Self::wait). Dropping it gives it up.
#[must_use = "await it to get the stream"]
pub struct Connecting(Result<Dial, Error>);

struct Dial {
    hub: Arc<Hub>,
    peer: Box<str>,
    name: Box<str>,
    options: StreamOptions,
    /// Dialed, and not yet handed out.
    stream: Option<Stream>,
}

impl Dial {
    /// Dials, unless that is done or a daemon is being restarted.
    fn begin(&mut self, context: &Context<'_>) -> Result<(), Error> {
        if self.stream.is_none() && self.hub.poll_daemon(context).is_ready() {
            let key = self.hub.dial(&self.peer, &self.name, self.options)?;
            self.stream = Some(Stream::new(key, &self.hub, self.options));
        }
        Ok(())
    }
}

impl Connecting {
    /// Blocks until the other end has it.
    ///
    /// # Errors
    /// As [`Streams::connect`] says.
    pub fn wait(mut self) -> Result<Stream, Error> {
        let dial = self.0.as_ref().map_err(Error::clone)?;
        let (hub, timeout) = (dial.hub.clone(), dial.options.timeout);
        block_on(&hub, timeout, |context| Pin::new(&mut self).poll(context))
    }
}

impl Future for Connecting {
    type Output = Result<Stream, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let dial = self.0.as_mut().map_err(|error| error.clone())?;
        dial.begin(context)?;
        let Some(dialed) = &dial.stream else { return Poll::Pending };
        ready!(dial.hub.poll_open(&dialed.key, context))?;
        let stream = dial.stream.take().expect("just looked at");
        self.0 = Err(Error::invalid("the stream was handed out before"));
        Poll::Ready(Ok(stream))
    }
}

/// A stream of bytes between two tasks, which one thread or task may read while another writes. Dropped before it is
/// [finished](Self::finish), it is reset: the other end is told, so that it does not take a part for all.
///
/// It has the traits of `std::io` (which block), of `futures_io`, and of tokio with the feature `tokio`. A write that has
/// returned has been taken over, not delivered: `flush` waits until it has left this process's hands, `finish` until the other
/// process has all of it.
pub struct Stream {
    key: Key,
    hub: Arc<Hub>,
    direct: Arc<Direct>,
    timeout: Option<Duration>,
    spinning: Spinning,
}

impl Stream {
    fn new(key: Key, hub: &Arc<Hub>, StreamOptions { timeout, polling, .. }: StreamOptions) -> Stream {
        let spinning = polling.map_or_else(|| hub.waiter().spinning(), Spinning::Always);
        Stream { direct: hub.direct_of(&key), key, hub: hub.clone(), timeout, spinning }
    }

    /// The task at the other end.
    pub fn peer(&self) -> &str {
        &self.key.peer
    }

    /// True if writes bypass the daemon: over memory that the two processes share, or a connection of their own. That is so once
    /// a stream has carried some bytes, where one of the two is possible.
    pub fn is_direct(&self) -> bool {
        self.hub.check_fork().is_ok() && self.direct.are_written()
    }

    /// Reads into `into` and returns how many bytes: 0 when the other end has finished (or `into` is empty).
    ///
    /// # Errors
    /// Unavailable if the other end was reset, or its process has ended.
    pub fn poll_read(&self, into: &mut [u8], context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        self.poll_read_as(into, context, Waits::Waker)
    }

    fn poll_read_as(&self, into: &mut [u8], context: &mut Context<'_>, waits: Waits) -> Poll<Result<usize, Error>> {
        self.hub.check_fork()?;
        match self.direct.read(into) {
            Ok(count) if count > 0 => Poll::Ready(Ok(count)),
            // The hub knows more, and says why.
            Ok(_) | Err(_) => self.hub.poll_read(&self.key, into, context, waits),
        }
    }

    /// Takes over bytes to be sent and returns how many: at least one unless there are none.
    ///
    /// # Errors
    /// Those of [`poll_read`](Self::poll_read); InvalidArgument after [`finish`](Self::finish).
    pub fn poll_write(&self, bytes: &[u8], context: &mut Context<'_>) -> Poll<Result<usize, Error>> {
        self.poll_write_as(bytes, context, Waits::Waker)
    }

    fn poll_write_as(&self, bytes: &[u8], context: &mut Context<'_>, waits: Waits) -> Poll<Result<usize, Error>> {
        self.hub.check_fork()?;
        match self.direct.write(bytes) {
            Ok(count) if count > 0 => Poll::Ready(Ok(count)),
            Ok(_) | Err(_) => self.hub.poll_write(&self.key, bytes, context, waits),
        }
    }

    /// Breaks the stream's own connection, to test the recovery.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn break_off(&self) {
        self.direct.break_off();
        self.hub.unless_forked(|state| state.asks_at_once(&self.key));
    }

    /// Ready when what was written has been pushed.
    ///
    /// # Errors
    /// Those of [`poll_read`](Self::poll_read).
    pub fn poll_flush(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.hub.poll_flush(&self.key, context)
    }

    /// Declares the end of writing; ready when the other process says that it has received everything.
    ///
    /// # Errors
    /// Those of [`poll_read`](Self::poll_read).
    pub fn poll_finish(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.hub.poll_finish(&self.key, context)
    }

    /// Declares the end of writing. The other end reads to the end, and may still write.
    pub fn finish(&self) -> Finishing<'_> {
        Finishing(self)
    }

    /// Ends the stream at both ends at once; the other end is told the reason. What came before can still be read, at both ends.
    pub fn reset(&self, reason: &str) {
        self.hub.unless_forked(|state| self.hub.end(state, &self.key, reason));
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.hub.unless_forked(|state| self.hub.forget(state, &self.key, "it was dropped unfinished"));
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({} with {})", self.key.stream, self.key.peer)
    }
}

/// The end of what is written: await it, or [`wait`](Self::wait).
#[must_use = "await it to know that the other process has all"]
pub struct Finishing<'a>(&'a Stream);

impl Finishing<'_> {
    /// Blocks until the other process says that it has taken in all that was written.
    ///
    /// # Errors
    /// Those of [`Stream::poll_read`]; DeadlineExceeded after [`StreamOptions::timeout`].
    pub fn wait(self) -> Result<(), Error> {
        block_on(&self.0.hub, self.0.timeout, |context| self.0.poll_finish(context))
    }
}

impl Future for Finishing<'_> {
    type Output = Result<(), Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.poll_finish(context)
    }
}
