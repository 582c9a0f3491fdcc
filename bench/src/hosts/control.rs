//! The connection that carries orders to the producers' host, and its answers: authenticated by both sides, then messages of a
//! length (4 bytes, little-endian) and JSON. Each order has one answer.
//!
//! Threads: one at a time. Limits: `MESSAGE_BYTES_MAX`, and a deadline for each message.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use std::{fmt, io};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane_cli::machine::Machine;
use sealane_transport::authentication::Authentication;
use sealane_transport::tcp::{CalledPipe, CallingPipe, OPENING_BYTES, Pipe, Progress};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, Socket};

use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::peer::{Hosts, PeerJob};
use crate::process::Counter;

/// Longest message: a job with the largest step.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// What both sides say first; another release says something else.
const VERSION: &str = concat!("sealane-bench ", env!("CARGO_PKG_VERSION"));
const BUSY: &str = "busy";

/// What the consumer's host requests. Producers have the numbers that it gives them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    Machine,
    Start {
        peer: u32,
        job: Box<PeerJob>,
    },
    Resume {
        peer: u32,
    },
    Rest {
        peer: u32,
    },
    Count {
        peer: u32,
        counter: Counter,
    },
    /// Asks whether the producer has ended, and why.
    Blame {
        peer: u32,
    },
    End {
        peer: u32,
    },
    /// Requests all values of the ranks' store.
    Values,
    /// Writes a value to the ranks' store.
    Write {
        name: String,
        value: Vec<u8>,
    },
}

/// What the producers' host answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Answer {
    Machine(Machine),
    Started {
        process_id: u32,
        ports: Vec<u16>,
    },
    Done,
    Counted(u64),
    Values(Vec<(String, Vec<u8>)>),
    /// The order was refused, or failed.
    Failed {
        reason: String,
    },
}

/// One end of the connection.
pub(crate) struct Control {
    pipe: Pipe,
    other: SocketAddr,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("other", &self.other).finish_non_exhaustive()
    }
}

impl Control {
    /// Connects to the host that serves.
    ///
    /// # Errors
    /// Nobody answers before `until`; the other side is not authenticated, is of another release, or serves another consumer.
    pub(crate) fn call(other: SocketAddr, authentication: &Authentication, until: Instant) -> Result<Self, BenchError> {
        let failed =
            |reason: &dyn fmt::Display| BenchError::failed("serve", "accept this host")(format!("{other}: {reason}"));
        let mut calling =
            CallingPipe::start(other, opening(VERSION), authentication).map_err(|error| failed(&error))?;
        let (pipe, answer) = loop {
            match calling.poll().map_err(|error| failed(&error))? {
                Progress::Done(done) => break done,
                Progress::Pending(pending) => calling = pending,
            }
            let flags = if calling.wants_write() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
            wait(&calling, flags, until).map_err(|_| {
                failed(&format!("no answer in {CONNECT_LIMIT:?}; is `sealane bench serve` running there?"))
            })?;
        };
        match said(&answer) {
            VERSION => Ok(Self { pipe, other }),
            BUSY => Err(failed(&"it serves another consumer: try again when that has finished")),
            version => Err(failed(&format!("it is {version:?}, this is {VERSION:?}: use one release on both hosts"))),
        }
    }

    /// Accepts a consumer's host. Until `serves` returns true nothing is done for it; false answers that another one is served.
    ///
    /// # Errors
    /// As [`call`](Self::call), or another one is served.
    pub(crate) fn accept(
        socket: Socket,
        authentication: &Authentication,
        until: Instant,
        serves: impl FnOnce() -> bool,
    ) -> Result<Self, BenchError> {
        let other = socket.peer_addr().ok().and_then(|address| address.as_socket());
        let other =
            other.ok_or_else(|| BenchError::io("accept a consumer")(io::Error::from(io::ErrorKind::NotConnected)))?;
        let failed =
            |reason: &dyn fmt::Display| BenchError::failed("serve", "accept a consumer")(format!("{other}: {reason}"));
        let mut called = CalledPipe::new(socket, authentication).map_err(|error| failed(&error))?;
        let (caller, opening_of_caller) = loop {
            match called.poll().map_err(|error| failed(&error))? {
                Progress::Done(done) => break done,
                Progress::Pending(pending) => called = pending,
            }
            wait(&called, PollFlags::POLLIN, until).map_err(|_| failed(&"it has not said in time what it is"))?;
        };
        let version = said(&opening_of_caller);
        let is_served = version == VERSION && serves();
        let answer = if version == VERSION && !is_served { BUSY } else { VERSION };
        let pipe = caller.answer(&opening(answer)).map_err(|error| failed(&error))?;
        match is_served {
            true => Ok(Self { pipe, other }),
            false if version == VERSION => Err(failed(&"another consumer is served")),
            false => Err(failed(&format!("it is {version:?}, this is {VERSION:?}"))),
        }
    }

    /// The other side's address.
    pub(crate) fn other(&self) -> SocketAddr {
        self.other
    }

    /// Returns the addresses of both hosts on this connection. This side is the consumer's.
    ///
    /// # Errors
    /// The connection has ended.
    pub(crate) fn hosts(&self) -> Result<Hosts, BenchError> {
        let here = SockRef::from(&self.pipe).local_addr().ok().and_then(|address| address.as_socket());
        let here = here.ok_or_else(|| self.lost("the connection has ended"))?;
        Ok(Hosts { consumer: here.ip().to_canonical(), producer: self.other.ip().to_canonical() })
    }

    /// Sends an order, and waits for its answer.
    ///
    /// # Errors
    /// The order failed there, or no answer comes within `limit`.
    pub(crate) fn ask(&mut self, order: &Order, limit: Duration) -> Result<Answer, BenchError> {
        let until = Instant::now() + limit;
        self.send(order, until)?;
        match self.receive(until)? {
            Answer::Failed { reason } => Err(BenchError::OtherHost { host: self.other, reason }),
            answer => Ok(answer),
        }
    }

    /// The error that an answer does not belong to its order.
    pub(crate) fn confused(&self) -> BenchError {
        self.lost("it has sent something else than an answer")
    }

    pub(super) fn send(&mut self, message: &impl Serialize, until: Instant) -> Result<(), BenchError> {
        let json = serde_json::to_vec(message).expect("messages have only named fields and finite numbers");
        let mut rest = &[&(json.len() as u32).to_le_bytes()[..], &json].concat()[..];
        if json.len() > MESSAGE_BYTES_MAX {
            let reason = format!("it has {} bytes of {MESSAGE_BYTES_MAX}: measure fewer tensors", json.len());
            return Err(BenchError::failed("the measurement", "be described to the other host")(reason));
        }
        while !rest.is_empty() {
            match self.pipe.write([rest, &[]]).map_err(|error| self.lost(error))? {
                0 => wait(&self.pipe, PollFlags::POLLOUT, until).map_err(|error| self.lost(error))?,
                written => rest = &rest[written..],
            }
        }
        Ok(())
    }

    pub(super) fn receive<T: DeserializeOwned>(&mut self, until: Instant) -> Result<T, BenchError> {
        let mut length = [0; 4];
        self.read_exact(&mut length, until)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MESSAGE_BYTES_MAX {
            return Err(self.confused());
        }
        let mut json = vec![0; length];
        self.read_exact(&mut json, until)?;
        serde_json::from_slice(&json).map_err(|error| self.lost(error))
    }

    fn read_exact(&mut self, mut into: &mut [u8], until: Instant) -> Result<(), BenchError> {
        while !into.is_empty() {
            match self.pipe.read(into).map_err(|error| self.lost(error))? {
                0 => wait(&self.pipe, PollFlags::POLLIN, until).map_err(|error| self.lost(error))?,
                read => into = &mut into[read..],
            }
        }
        Ok(())
    }

    fn lost(&self, error: impl fmt::Display) -> BenchError {
        BenchError::OtherHost { host: self.other, reason: error.to_string() }
    }
}

fn opening(text: &str) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

/// What an opening says; other programs' bytes are shown as they are.
fn said(opening: &[u8; OPENING_BYTES]) -> &str {
    let length = opening.iter().position(|byte| *byte == 0).unwrap_or(OPENING_BYTES);
    str::from_utf8(&opening[..length]).unwrap_or("another program")
}

/// Waits until a connection can proceed.
fn wait(connection: &impl AsFd, flags: PollFlags, until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    // Rounded up: a wait of 0 ms would be a spin.
    let left = PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
    match poll(&mut [PollFd::new(connection.as_fd(), flags)], left) {
        Ok(0) if Instant::now() >= until => Err(io::ErrorKind::TimedOut.into()),
        Ok(_) | Err(nix::errno::Errno::EINTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
