//! The listener of the baselines with many peers: one thread and one epoll set, in which every request is answered as soon
//! as it is read, and all that one read brought by one write. Of `connect`, a request is a hello and its answer a welcome.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::sys::epoll::{EpollFlags, EpollTimeout};

use super::zeros::Zeros;
use crate::error::BenchError;
use crate::limits::{FILL, FUSED_BYTES_MAX, REQUEST_BYTES};
use crate::open_files;
use crate::peer::{PeerJob, announce};
use crate::plan::{Bench, Plan};
use crate::systems::poller::Poller;
use crate::systems::sockets;

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
