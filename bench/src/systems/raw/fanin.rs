//! Many bare connections to one thread that answers requests: the work of a fan-in without anything around it. Both sides
//! poll an epoll set. The peers are in the calling thread, each with a window of requests in flight; the listener answers every
//! request as soon as it is read, and all that one read brought by one write. Of `connect`, a request is a hello and its answer a
//! welcome, with as many bytes as Sealane's.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Instant;

use nix::sys::epoll::{EpollFlags, EpollTimeout};

use super::channel::NAME;
use crate::error::BenchError;
use crate::limits::{FILL, FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Plan};
use crate::process;
use crate::system::System;
use crate::systems::crowd::Manners;
use crate::systems::sockets::{self, Poller};
use crate::systems::{fanin, sealane};

/// A listener whose peers all want small tensors.
pub(in crate::systems) fn start(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--peers", plan.peers, 1)?;
    System::with_peer(job, program, |peer| {
        let connect = |_| sockets::connect(peer.ready().port, plan.congestion.as_deref());
        let connections = (0..plan.peers).map(connect).collect::<Result<Vec<_>, _>>()?;
        let congestion = sockets::congestion(&connections[0])?;
        Ok(fanin::system(NAME, plan.peers, congestion, None, Askers::new(connections, plan)?))
    })
}

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

/// Serves peers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    process::allow_open_files("--peers", job.plan.peers, 1)?;
    let mut answering = Answering::start(&job.plan)?;
    announce(sockets::port(&answering.listener)?)?;
    loop {
        answering.turn()?;
    }
}

struct Asking {
    socket: TcpStream,
    /// Bytes of a request that has not come whole.
    asked_bytes: usize,
    /// Bytes of answers still to be sent.
    owed_bytes: usize,
}

struct Answering {
    listener: TcpListener,
    poller: Poller,
    /// While nobody wants anything: a listener that is called sleeps, one that is asked without end looks again.
    wait: EpollTimeout,
    /// By descriptor.
    asking: Vec<Option<Asking>>,
    request_bytes: usize,
    answer_bytes: usize,
    /// Those whose socket took less than there was.
    blocked: Vec<usize>,
    inbox: Vec<u8>,
    answers: Vec<u8>,
}

impl Answering {
    fn start(plan: &Plan) -> Result<Self, BenchError> {
        let (request_bytes, answer_bytes, wait) = match plan.bench {
            Bench::Connect => {
                let Zeros { hello_bytes, welcome_bytes } = Zeros::like_sealane();
                (hello_bytes, welcome_bytes, EpollTimeout::NONE)
            }
            _ => (REQUEST_BYTES, plan.size_bytes, EpollTimeout::ZERO),
        };
        let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
        listener.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
        let poller = Poller::new()?;
        poller.watch(&listener, listener.as_raw_fd() as usize, EpollFlags::EPOLLIN)?;
        let at_once = (FUSED_BYTES_MAX / answer_bytes).max(1);
        Ok(Self {
            listener,
            poller,
            wait,
            asking: Vec::new(),
            request_bytes,
            answer_bytes,
            blocked: Vec::new(),
            inbox: vec![0; FUSED_BYTES_MAX],
            answers: vec![FILL; at_once * answer_bytes],
        })
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        let wait = if self.blocked.is_empty() { self.wait } else { EpollTimeout::ZERO };
        let count = self.poller.look(wait)?;
        for place in std::mem::take(&mut self.blocked) {
            self.send(place);
        }
        for number in 0..count {
            match self.poller.reported(number) {
                (place, _) if place == self.listener.as_raw_fd() as usize => self.accept()?,
                (place, _) => self.hear(place),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), BenchError> {
        loop {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
                    socket.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
                    let place = socket.as_raw_fd() as usize;
                    self.poller.watch(&socket, place, EpollFlags::EPOLLIN)?;
                    if place >= self.asking.len() {
                        self.asking.resize_with(place + 1, || None);
                    }
                    self.asking[place] = Some(Asking { socket, asked_bytes: 0, owed_bytes: 0 });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(BenchError::io("accept a peer")(error)),
            }
        }
    }

    fn hear(&mut self, place: usize) {
        let Some(asking) = &mut self.asking[place] else { return };
        match asking.socket.read(&mut self.inbox) {
            Ok(read @ 1..) => {
                let bytes = asking.asked_bytes + read;
                asking.asked_bytes = bytes % self.request_bytes;
                asking.owed_bytes += bytes / self.request_bytes * self.answer_bytes;
                self.send(place);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            // Closing a socket takes it out of the epoll set.
            Ok(_) | Err(_) => self.asking[place] = None,
        }
    }

    fn send(&mut self, place: usize) {
        let Some(asking) = &mut self.asking[place] else { return };
        while asking.owed_bytes > 0 {
            let write = asking.owed_bytes.min(self.answers.len());
            match asking.socket.write(&self.answers[..write]) {
                Ok(sent) => asking.owed_bytes -= sent,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return self.blocked.push(place),
                Err(_) => {
                    self.asking[place] = None;
                    return;
                }
            }
        }
    }
}

/// Callers that say and hear zeros.
#[derive(Clone, Copy, Debug)]
pub(in crate::systems) struct Zeros {
    pub(super) hello_bytes: usize,
    pub(super) welcome_bytes: usize,
}

impl Zeros {
    /// As many as Sealane's greetings have.
    pub(in crate::systems) fn like_sealane() -> Self {
        let (hello_bytes, welcome_bytes) = sealane::greeting_bytes();
        Self { hello_bytes, welcome_bytes }
    }
}

impl Manners for Zeros {
    fn greeting(self, _caller: usize, _visit: u64) -> Vec<u8> {
        vec![0; self.hello_bytes]
    }

    fn welcome(self, heard: &[u8]) -> Result<Option<usize>, String> {
        Ok((heard.len() >= self.welcome_bytes).then_some(self.welcome_bytes))
    }

    fn answer(self, heard: &[u8], _answers: &mut Vec<u8>) -> Result<usize, String> {
        if heard.is_empty() { Ok(0) } else { Err(format!("it said {} bytes too many", heard.len())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::systems::crowd::Manners;

    #[test]
    fn a_greeting_in_pieces_is_answered_once_and_whole() {
        let mut answering = Answering::start(&Plan::new(Bench::Connect)).expect("a port is free");
        let port = sockets::port(&answering.listener).expect("bound");
        let mut caller = sockets::connect(port, None).expect("listening");
        let zeros = Zeros::like_sealane();
        caller.write_all(&[0]).expect("connected");
        while answering.asking.iter().flatten().all(|asking| asking.asked_bytes == 0) {
            answering.turn().expect("it serves");
        }
        caller.write_all(&vec![0; zeros.hello_bytes - 1]).expect("connected");
        caller.shutdown(std::net::Shutdown::Write).expect("connected");
        while answering.asking.iter().flatten().next().is_some() {
            answering.turn().expect("it serves");
        }
        let mut heard = Vec::new();
        caller.read_to_end(&mut heard).expect("it hangs up");
        assert_eq!(heard.len(), zeros.welcome_bytes);
        assert_eq!(zeros.welcome(&heard), Ok(Some(zeros.welcome_bytes)));
        assert_eq!(zeros.welcome(&heard[1..]), Ok(None));
        assert!(zeros.answer(b"more", &mut Vec::new()).is_err());
    }
}
