//! The listener's process: one thread and one epoll set, in which every request is answered as soon as it is read, and all
//! that one read brought by one write.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::BenchError;
use crate::limits::{FILL, FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::open_files;
use crate::peer::{PeerJob, announce};
use crate::plan::Plan;
use crate::systems::sockets;

/// Sockets that one look at the epoll set reports.
const EVENTS: usize = 512;

/// What the listener's own events say, whose place is that of no peer.
const LISTENER: u64 = u64::MAX;

/// Serves peers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    open_files::allow_for("--peers", job.plan.peers, 1)?;
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
    /// Bytes of tensors still to be sent.
    owed_bytes: usize,
}

struct Answering {
    listener: TcpListener,
    epoll: Epoll,
    /// `None` where one has gone.
    asking: Vec<Option<Asking>>,
    size_bytes: usize,
    /// Those whose socket took less than there was.
    blocked: Vec<usize>,
    inbox: Vec<u8>,
    tensors: Vec<u8>,
}

impl Answering {
    fn start(plan: &Plan) -> Result<Self, BenchError> {
        let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
        listener.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("make an epoll set"))?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, LISTENER);
        epoll.add(&listener, event).map_err(failed("watch a listener"))?;
        let at_once = (FUSED_BYTES_MAX / plan.size_bytes).max(1);
        Ok(Self {
            listener,
            epoll,
            asking: Vec::new(),
            size_bytes: plan.size_bytes,
            blocked: Vec::new(),
            inbox: vec![0; FUSED_BYTES_MAX],
            tensors: vec![FILL; at_once * plan.size_bytes],
        })
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, EpollTimeout::ZERO) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(failed("look at the peers' sockets")(errno)),
        };
        for place in std::mem::take(&mut self.blocked) {
            self.send(place);
        }
        for event in &events[..count] {
            match event.data() {
                LISTENER => self.accept()?,
                place => self.hear(place as usize),
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
                    let event = EpollEvent::new(EpollFlags::EPOLLIN, self.asking.len() as u64);
                    self.epoll.add(&socket, event).map_err(failed("watch a peer"))?;
                    self.asking.push(Some(Asking { socket, asked_bytes: 0, owed_bytes: 0 }));
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
                asking.asked_bytes = bytes % REQUEST_BYTES;
                asking.owed_bytes += bytes / REQUEST_BYTES * self.size_bytes;
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
            let write = asking.owed_bytes.min(self.tensors.len());
            match asking.socket.write(&self.tensors[..write]) {
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

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::io(operation)(errno.into())
}
