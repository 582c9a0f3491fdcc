//! A worker's side of the wire without the engine around it: a session, as an engine has one, over a socket of its own.

use std::net::TcpStream;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use sealane_fusion::{Buffer, Error};
use sealane_transport::session::{ReceiveMemory, Roster, Session};
use sealane_transport::tcp::TcpLink;
use sealane_transport::{Link, SessionLimits};

use super::engine::NAME;
use crate::error::BenchError;

/// What the greetings agree on for a session's first link.
const FIRST_EPOCH: u32 = 1;

/// The worker among the tasks of its greeting.
pub(super) const THE_ONE: u16 = 0;

/// Every tensor goes to memory that came with its request.
struct NoMemory;

impl ReceiveMemory for NoMemory {
    fn allocate(&self, _consumer: u16, len: usize) -> Result<Buffer, Error> {
        Err(Error::InvalidArgument { reason: format!("{len} bytes came without a request's memory").into() })
    }
}

/// See the module. Requests are told apart by numbers.
pub(super) struct Wire {
    pub(super) session: Session<usize, ()>,
    link: TcpLink,
}

impl Wire {
    /// Takes over a socket that has greeted an engine of so many tasks, with what was read behind its welcome.
    pub(super) fn new((socket, read_ahead): (TcpStream, Vec<u8>), tasks: u32, limits: &SessionLimits) -> Self {
        let mut session = Session::new(NAME, 1, limits.clone());
        let roster = Roster { numbers: (0..tasks).collect() };
        session.attach(Instant::now(), FIRST_EPOCH, roster, limits.tensor_bytes_max);
        Self { session, link: TcpLink::new(socket.into(), &read_ahead) }
    }

    /// The socket, to be watched.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.link.descriptor().expect("a TCP link has a socket")
    }

    /// Reads once, so many bytes at most.
    pub(super) fn receive(&mut self, now: Instant, bytes: usize) -> Result<(), BenchError> {
        let mut inbound = self.session.inbound(now, &NoMemory);
        self.link.receive(&mut inbound, bytes).map_err(broken)?;
        self.session.heard(now);
        Ok(())
    }

    /// Writes what there is to say, one write a message or as few as can be; false if the socket took less than all.
    pub(super) fn transmit(&mut self, now: Instant, a_write_each: bool) -> Result<bool, BenchError> {
        while self.session.has_output() {
            self.session.fill(now, a_write_each);
            self.link.transmit(self.session.outbox(), usize::MAX, false).map_err(broken)?;
            self.session.collect_written();
            if !self.session.outbox().is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A session that did not do what a worker asks of it.
pub(super) fn broken(reason: impl ToString) -> BenchError {
    BenchError::sealane("serve its workers")(reason)
}
