//! The peers: plain sockets in one epoll set, each with a window of requests in flight. Runs on the calling thread.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use nix::sys::epoll::{EpollFlags, EpollTimeout};

use crate::error::BenchError;
use crate::limits::{FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::plan::Plan;
use crate::systems::fanin;
use crate::systems::poller::Poller;

struct Asker {
    socket: TcpStream,
    /// Bytes of requests still to be sent: a socket takes so few at once unless its listener stands still.
    to_ask: usize,
    /// Bytes of a tensor that has not arrived whole.
    arrived_bytes: usize,
    arrived: u64,
}

pub(super) struct Askers {
    poller: Poller,
    askers: Vec<Asker>,
    window: usize,
    size_bytes: usize,
    in_flight: usize,
    /// Those that could not send all.
    blocked: Vec<usize>,
    requests: Vec<u8>,
    inbox: Vec<u8>,
}

impl Askers {
    pub(super) fn new(sockets: Vec<TcpStream>, plan: &Plan) -> Result<Self, BenchError> {
        let poller = Poller::new()?;
        let mut askers = Vec::with_capacity(sockets.len());
        for (place, socket) in sockets.into_iter().enumerate() {
            socket.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
            poller.watch(&socket, place, EpollFlags::EPOLLIN)?;
            askers.push(Asker { socket, to_ask: 0, arrived_bytes: 0, arrived: 0 });
        }
        Ok(Self {
            poller,
            askers,
            window: plan.window,
            size_bytes: plan.size_bytes,
            in_flight: 0,
            blocked: Vec::new(),
            requests: vec![0; plan.window * REQUEST_BYTES],
            inbox: vec![0; FUSED_BYTES_MAX],
        })
    }

    /// Reads once; how many tensors arrived.
    fn hear(&mut self, place: usize, asking: bool) -> Result<u64, BenchError> {
        let asker = &mut self.askers[place];
        let read = match asker.socket.read(&mut self.inbox) {
            Ok(0) => return Err(broken(ErrorKind::UnexpectedEof.into())),
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(broken(error)),
        };
        let bytes = asker.arrived_bytes + read;
        let complete = bytes / self.size_bytes;
        asker.arrived_bytes = bytes % self.size_bytes;
        asker.arrived += complete as u64;
        self.in_flight -= complete;
        if asking {
            self.ask(place, complete)?;
        }
        Ok(complete as u64)
    }

    fn ask(&mut self, place: usize, count: usize) -> Result<(), BenchError> {
        self.in_flight += count;
        self.askers[place].to_ask += count * REQUEST_BYTES;
        self.send(place)
    }

    fn send(&mut self, place: usize) -> Result<(), BenchError> {
        let asker = &mut self.askers[place];
        while asker.to_ask > 0 {
            let write = asker.to_ask.min(self.requests.len());
            match asker.socket.write(&self.requests[..write]) {
                Ok(sent) => asker.to_ask -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.blocked.push(place);
                    return Ok(());
                }
                Err(error) => return Err(broken(error)),
            }
        }
        Ok(())
    }
}

impl fanin::Askers for Askers {
    fn ask_all(&mut self, _now: Instant) -> Result<(), BenchError> {
        (0..self.askers.len()).try_for_each(|place| self.ask(place, self.window))
    }

    fn turn(&mut self, _now: Instant, asking: bool) -> Result<u64, BenchError> {
        let count = self.poller.look(EpollTimeout::ZERO)?;
        for place in std::mem::take(&mut self.blocked) {
            self.send(place)?;
        }
        let mut arrived = 0;
        for number in 0..count {
            arrived += self.hear(self.poller.reported(number).0, asking)?;
        }
        Ok(arrived)
    }

    fn is_quiet(&self) -> bool {
        self.in_flight == 0
    }

    fn take_arrived(&mut self) -> Vec<u64> {
        self.askers.iter_mut().map(|asker| std::mem::take(&mut asker.arrived)).collect()
    }
}

fn broken(error: std::io::Error) -> BenchError {
    BenchError::io("ask a raw listener")(error)
}
