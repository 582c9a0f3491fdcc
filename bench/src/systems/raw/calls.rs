//! The listener of the connect baseline: one thread, one epoll set, and for every caller as many bytes in and out as a
//! greeting of Sealane has.

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, RawFd};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use crate::error::BenchError;
use crate::open_files;
use crate::peer::{PeerJob, announce};
use crate::plan::Plan;
use crate::systems::crowd::Manners;
use crate::systems::{sealane, sockets};

/// Sockets that one look at the epoll set reports.
const EVENTS: usize = 512;

/// Callers that say and hear zeros.
#[derive(Clone, Copy, Debug)]
pub(in crate::systems) struct Zeros {
    hello_bytes: usize,
    welcome_bytes: usize,
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

/// Serves callers until the process ends.
pub(in crate::systems) fn serve(job: &PeerJob) -> Result<(), BenchError> {
    open_files::allow_for("--peers", job.plan.peers, 1)?;
    let mut listening = Listening::start(&job.plan)?;
    announce(sockets::port(&listening.listener)?)?;
    loop {
        listening.turn()?;
    }
}

/// A caller, and how many bytes of its greeting are still to come.
struct Answering {
    socket: TcpStream,
    missing: usize,
}

struct Listening {
    listener: TcpListener,
    epoll: Epoll,
    callers: HashMap<RawFd, Answering>,
    manners: Zeros,
}

impl Listening {
    fn start(plan: &Plan) -> Result<Self, BenchError> {
        let listener = sockets::listen_for_many(plan.congestion.as_deref())?;
        listener.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(failed("make an epoll set"))?;
        epoll
            .add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, listener.as_raw_fd() as u64))
            .map_err(failed("watch a listener"))?;
        Ok(Self { listener, epoll, callers: HashMap::new(), manners: Zeros::like_sealane() })
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let count = match self.epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(count) => count,
            Err(Errno::EINTR) => 0,
            Err(errno) => return Err(failed("wait for callers")(errno)),
        };
        for event in &events[..count] {
            let descriptor = event.data() as RawFd;
            if descriptor == self.listener.as_raw_fd() {
                self.accept()?;
            } else if !self.answer(descriptor) {
                // Closing a socket takes it out of the epoll set.
                self.callers.remove(&descriptor);
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
                    let descriptor = socket.as_raw_fd();
                    self.epoll
                        .add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, descriptor as u64))
                        .map_err(failed("watch a caller"))?;
                    self.callers.insert(descriptor, Answering { socket, missing: self.manners.hello_bytes });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(BenchError::io("accept a caller")(error)),
            }
        }
    }

    /// Hears a caller; false if it is gone.
    fn answer(&mut self, descriptor: RawFd) -> bool {
        let Some(caller) = self.callers.get_mut(&descriptor) else { return true };
        let mut bytes = vec![0; self.manners.hello_bytes];
        match caller.socket.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                let was_missing = caller.missing;
                caller.missing = was_missing.saturating_sub(count);
                // A fresh socket takes so few bytes at once.
                was_missing == 0
                    || caller.missing > 0
                    || caller.socket.write_all(&vec![0; self.manners.welcome_bytes]).is_ok()
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> BenchError {
    move |errno| BenchError::io(operation)(errno.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Bench;

    #[test]
    fn a_greeting_in_pieces_is_answered_once_and_whole() {
        let mut listening = Listening::start(&Plan::new(Bench::Connect)).expect("a port is free");
        let port = sockets::port(&listening.listener).expect("bound");
        let mut caller = sockets::connect(port, None).expect("listening");
        let Zeros { hello_bytes, welcome_bytes } = listening.manners;
        caller.write_all(&[0]).expect("connected");
        while listening.callers.values().all(|caller| caller.missing == hello_bytes) {
            listening.turn().expect("it serves");
        }
        caller.write_all(&vec![0; hello_bytes - 1]).expect("connected");
        caller.shutdown(std::net::Shutdown::Write).expect("connected");
        while !listening.callers.is_empty() {
            listening.turn().expect("it serves");
        }
        let mut heard = Vec::new();
        caller.read_to_end(&mut heard).expect("it hangs up");
        assert_eq!(heard.len(), welcome_bytes);
        assert_eq!(listening.manners.welcome(&heard), Ok(Some(welcome_bytes)));
        assert_eq!(listening.manners.welcome(&heard[1..]), Ok(None));
        assert!(listening.manners.answer(b"more", &mut Vec::new()).is_err());
    }
}
