//! Many bare connections to one thread that answers requests: the work of a fan-in and nothing else. Both sides poll an epoll set.
//! The peers are in the calling thread, each with a window of requests in flight; the listener answers every request as soon as it
//! is read, and everything that came by one read by one write. For `connect`, a request is a hello and its answer a welcome, with
//! as many bytes as Sealane's.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::os::fd::AsRawFd;
use std::sync::LazyLock;

use nix::sys::epoll::{EpollFlags, EpollTimeout};

use super::channel::{NAME, Patience, TcpChannel, explained};
use super::producer::{Flow, Words};
use crate::error::BenchError;
use crate::figures::Metric;
use crate::limits::REQUEST_BYTES;
use crate::peer::{PeerJob, PeerProgram, announce};
use crate::plan::{Bench, Fuse};
use crate::process;
use crate::system::{Client, System};
use crate::systems::client::slowest_share;
use crate::systems::crowd::Manners;
use crate::systems::sealane;
use crate::systems::sockets::{self, Poller};

/// A listener whose peers all request small tensors.
pub(in crate::systems) fn fan_in(job: &PeerJob, program: &PeerProgram) -> Result<System, BenchError> {
    let plan = &job.plan;
    process::allow_open_files("--peers", plan.peers, 1)?;
    System::with_peer(job, program, |peer| {
        let poller = Poller::new()?;
        let mut congestion = String::new();
        let mut connect = |place| {
            let socket = sockets::connect(peer.address(), plan.congestion.as_deref())?;
            congestion = sockets::congestion(&socket)?;
            poller.watch(&socket, place, EpollFlags::EPOLLIN)?;
            Ok(Asker { channel: TcpChannel::new(socket, true, None)?, flow: Flow::default(), arrived: 0 })
        };
        let askers = (0..plan.peers).map(&mut connect).collect::<Result<_, BenchError>>()?;
        let words = Words::new(REQUEST_BYTES, plan.size_bytes, Fuse::Turn);
        let askers = Askers { poller, askers, words, blocked: Vec::new(), came: Vec::new() };
        Ok(System::new(NAME, format!("{} peers", plan.peers), plan, askers).with_congestion(congestion))
    })
}

struct Asker {
    channel: TcpChannel,
    flow: Flow,
    arrived: u64,
}

struct Askers {
    poller: Poller,
    askers: Vec<Asker>,
    words: Words,
    /// Peers that could not send everything.
    blocked: Vec<usize>,
    /// Peers at which tensors arrived in the last look, and how many.
    came: Vec<(usize, usize)>,
}

impl Askers {
    fn send(&mut self, place: usize, more: usize) -> Result<(), BenchError> {
        let Asker { channel, flow, .. } = &mut self.askers[place];
        flow.owe(&self.words, more);
        flow.send(&self.words, channel).map_err(explained)?;
        if flow.owed > 0 {
            self.blocked.push(place);
        }
        Ok(())
    }

    /// Looks once at all sockets, without waiting; returns how many tensors came.
    fn look(&mut self) -> Result<usize, BenchError> {
        let count = self.poller.look(EpollTimeout::ZERO)?;
        for place in std::mem::take(&mut self.blocked) {
            self.send(place, 0)?;
        }
        self.came.clear();
        for number in 0..count {
            let (place, _) = self.poller.reported(number);
            let Asker { channel, flow, .. } = &mut self.askers[place];
            let (_, complete) = flow.receive(&mut self.words, channel).map_err(explained)?;
            self.came.push((place, complete));
        }
        Ok(self.came.iter().map(|(_, complete)| complete).sum())
    }
}

impl Client for Askers {
    fn ask(&mut self, count: usize) -> Result<(), BenchError> {
        let came = std::mem::take(&mut self.came);
        if came.is_empty() {
            let each = count / self.askers.len();
            return (0..self.askers.len()).try_for_each(|place| self.send(place, each));
        }
        for (place, complete) in came {
            self.askers[place].arrived += complete as u64;
            self.send(place, complete)?;
        }
        Ok(())
    }

    async fn take(&mut self) -> Result<usize, BenchError> {
        let mut patience = Patience::default();
        loop {
            match self.look()? {
                0 => patience.idle_pass().map_err(explained)?,
                count => return Ok(count),
            }
        }
    }

    async fn end(&mut self) -> Result<(), BenchError> {
        self.came.clear();
        Ok(())
    }

    fn further(&mut self) -> Vec<(Metric, f64)> {
        let arrived: Vec<u64> = self.askers.iter_mut().map(|asker| std::mem::take(&mut asker.arrived)).collect();
        vec![slowest_share(&arrived)]
    }
}

/// Serves peers until the process ends.
pub(in crate::systems) fn serve_many(job: &PeerJob) -> Result<(), BenchError> {
    process::allow_open_files("--peers", job.plan.peers, 1)?;
    let mut answering = Answering::start(job)?;
    announce(&[sockets::port(&answering.listener)?])?;
    loop {
        answering.turn()?;
    }
}

struct Answering {
    listener: TcpListener,
    poller: Poller,
    /// Wait while nothing is requested: a listener that is called sleeps, one that gets requests all the time looks again.
    wait: EpollTimeout,
    /// By descriptor.
    peers: Vec<Option<(TcpChannel, Flow)>>,
    words: Words,
    /// Peers whose socket took less than there was.
    blocked: Vec<usize>,
}

impl Answering {
    fn start(job: &PeerJob) -> Result<Self, BenchError> {
        let plan = &job.plan;
        let (words, wait) = if plan.bench == Bench::Connect {
            let (hello_bytes, welcome_bytes) = *GREETING_BYTES;
            (Words::new(welcome_bytes, hello_bytes, Fuse::Turn), EpollTimeout::NONE)
        } else {
            (Words::new(plan.size_bytes, REQUEST_BYTES, Fuse::Turn), EpollTimeout::ZERO)
        };
        let listener = sockets::listen(job.hosts.producer, plan.congestion.as_deref())?;
        listener.set_nonblocking(true).map_err(BenchError::io("set O_NONBLOCK"))?;
        let poller = Poller::new()?;
        poller.watch(&listener, listener.as_raw_fd() as usize, EpollFlags::EPOLLIN)?;
        Ok(Self { listener, poller, wait, peers: Vec::new(), words, blocked: Vec::new() })
    }

    fn turn(&mut self) -> Result<(), BenchError> {
        let wait = if self.blocked.is_empty() { self.wait } else { EpollTimeout::ZERO };
        let count = self.poller.look(wait)?;
        for place in std::mem::take(&mut self.blocked) {
            self.serve(place, false);
        }
        for number in 0..count {
            match self.poller.reported(number) {
                (place, _) if place == self.listener.as_raw_fd() as usize => self.accept()?,
                (place, _) => self.serve(place, true),
            }
        }
        Ok(())
    }

    fn accept(&mut self) -> Result<(), BenchError> {
        loop {
            let socket = match self.listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(BenchError::io("accept a peer")(error)),
            };
            socket.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
            let place = socket.as_raw_fd() as usize;
            self.poller.watch(&socket, place, EpollFlags::EPOLLIN)?;
            if place >= self.peers.len() {
                self.peers.resize_with(place + 1, || None);
            }
            self.peers[place] = Some((TcpChannel::new(socket, true, None)?, Flow::default()));
        }
    }

    /// Reads once, and answers; drops a peer that fails.
    fn serve(&mut self, place: usize, read: bool) {
        let Some((channel, flow)) = &mut self.peers[place] else { return };
        let mut turn = || {
            if read {
                let (_, asked) = flow.receive(&mut self.words, channel)?;
                flow.owe(&self.words, asked);
            }
            flow.send(&self.words, channel)
        };
        match turn() {
            Ok(_) if flow.owed > 0 => self.blocked.push(place),
            Ok(_) => {}
            // Closing a socket removes it from the epoll set.
            Err(_) => self.peers[place] = None,
        }
    }
}

/// Bytes of a hello and of a welcome: as many as in Sealane's greetings.
static GREETING_BYTES: LazyLock<(usize, usize)> = LazyLock::new(sealane::greeting_bytes);

/// Callers that send and receive only zeros.
pub(in crate::systems) const ZEROS: Manners = Manners {
    greeting: |_, _| vec![0; GREETING_BYTES.0],
    welcome: |heard| Ok((heard.len() >= GREETING_BYTES.1).then_some(GREETING_BYTES.1)),
};
