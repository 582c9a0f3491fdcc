//! The producer's process as the consumer's process sees it, on this host or on another.

mod here;
mod there;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::BenchError;
use crate::plan::{Keys, Plan, SystemName};
use crate::process::{Counter, Process};

use here::Program;
pub(crate) use here::{LocalPeer, announce, take_job, until_ended};
pub(crate) use there::OtherHost;
use there::RemotePeer;

/// How producers are started: as processes on this host, or by `sealane bench serve` on another.
#[derive(Clone, Debug)]
pub struct PeerProgram(Place);

#[derive(Clone, Debug)]
enum Place {
    Here(Program),
    There(Rc<OtherHost>),
}

impl PeerProgram {
    /// A program on this host. Its arguments make it call [`serve_peer`](crate::serve_peer) with the argument after them.
    pub fn new(program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self(Place::Here(Program { program: program.into(), arguments }))
    }

    /// The running executable, even if its file was replaced meanwhile.
    pub fn this(arguments: &[&str]) -> Self {
        Self::new("/proc/self/exe", arguments)
    }

    pub(crate) fn on(host: Rc<OtherHost>) -> Self {
        Self(Place::There(host))
    }

    /// The other host, if producers run there.
    pub(crate) fn other_host(&self) -> Option<&OtherHost> {
        match &self.0 {
            Place::Here(_) => None,
            Place::There(host) => Some(host),
        }
    }
}

/// The addresses at which the two sides reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hosts {
    pub consumer: IpAddr,
    pub producer: IpAddr,
}

/// Both sides on this host.
impl Default for Hosts {
    fn default() -> Self {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self { consumer: here, producer: here }
    }
}

/// The job of a producer, as JSON in one argument.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerJob {
    pub system: SystemName,
    pub plan: Plan,
    /// The CPU that it pins itself to.
    pub cpu: Option<usize>,
    pub hosts: Hosts,
    /// The port that the consumer listens on, for a system whose consumer listens.
    pub consumer_port: Option<u16>,
    /// Where both sides meet if they have no port: a Unix socket at which the producer listens, or shared memory. With a plan's
    /// `daemon`, the socket of this side's daemon, if that is not where clients find it.
    pub meeting_place: Option<PathBuf>,
    /// What both sides present to each other.
    pub keys: Option<Keys>,
}

impl PeerJob {
    pub(crate) fn meeting_place(&self) -> Result<&Path, BenchError> {
        let absent = || BenchError::io("find the consumer: the job names no place")(io::ErrorKind::NotFound);
        self.meeting_place.as_deref().ok_or_else(absent)
    }
}

/// A running producer process. Dropping it ends the process.
#[derive(Debug)]
pub struct Peer(Side);

#[derive(Debug)]
enum Side {
    Here(LocalPeer),
    There(RemotePeer),
}

impl Peer {
    /// Starts a producer and waits until it is ready.
    ///
    /// A process on this host is killed with the calling thread, so start it on one that outlives the run.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] carries what it wrote to standard error; the other host refuses the job, or does not answer.
    pub fn start(program: &PeerProgram, job: &PeerJob) -> Result<Self, BenchError> {
        Ok(Self(match &program.0 {
            Place::Here(program) => Side::Here(LocalPeer::start(program, job)?),
            Place::There(host) => Side::There(RemotePeer::start(host, job)?),
        }))
    }

    /// The TCP ports that it listens on: one, or one for each parameter server; none if the link has none.
    pub(crate) fn ports(&self) -> &[u16] {
        match &self.0 {
            Side::Here(peer) => peer.ports(),
            Side::There(peer) => peer.ports(),
        }
    }

    /// The addresses of its ports.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        let ip = match &self.0 {
            Side::Here(_) => Hosts::default().producer,
            Side::There(peer) => peer.hosts().producer,
        };
        self.ports().iter().map(|&port| SocketAddr::new(ip, port)).collect()
    }

    /// The address of its only listener.
    ///
    /// # Panics
    /// It has none.
    pub(crate) fn address(&self) -> SocketAddr {
        self.addresses()[0]
    }

    /// Its process id on its host.
    pub fn process_id(&self) -> u32 {
        match &self.0 {
            Side::Here(peer) => peer.process_id(),
            Side::There(peer) => peer.process_id(),
        }
    }

    /// Reads what its host's kernel counts of the process.
    ///
    /// # Errors
    /// The process has ended.
    pub(crate) fn meter(&self) -> Result<Meter, BenchError> {
        Ok(match &self.0 {
            Side::Here(peer) => Meter::Here(Process::new(peer.process_id())?),
            Side::There(peer) => Meter::There(peer.share()),
        })
    }

    /// Lets the producer run.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when it is gone.
    pub fn resume(&mut self) -> Result<(), BenchError> {
        match &mut self.0 {
            Side::Here(peer) => peer.resume(),
            Side::There(peer) => peer.resume(),
        }
    }

    /// Stops the producer until it is resumed.
    ///
    /// # Errors
    /// [`BenchError::PeerDied`] when it is gone.
    pub fn rest(&mut self) -> Result<(), BenchError> {
        match &mut self.0 {
            Side::Here(peer) => peer.rest(),
            Side::There(peer) => peer.rest(),
        }
    }

    /// How the producer ended, if it has, or does in a moment.
    pub(crate) fn death(&mut self) -> Option<BenchError> {
        match &mut self.0 {
            Side::Here(peer) => peer.death(),
            Side::There(peer) => peer.death(),
        }
    }

    /// The reason of a failed round: the producer's end, if it ended, else the failure itself.
    pub fn blame(&mut self, failure: BenchError) -> BenchError {
        self.death().unwrap_or(failure)
    }
}

/// Reads what the kernel counts of a process, here or on another host.
#[derive(Debug)]
pub(crate) enum Meter {
    Here(Process),
    There(Rc<there::Number>),
}

impl Meter {
    /// The calling process.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub(crate) fn of_this_process() -> Result<Self, BenchError> {
        Process::new(std::process::id()).map(Self::Here)
    }

    pub(crate) fn read(&self, counter: Counter) -> Result<u64, BenchError> {
        match self {
            Self::Here(process) => process.read(counter),
            Self::There(number) => number.read(counter),
        }
    }

    /// User and system time of all its threads since it started.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn cpu_time(&self) -> Result<Duration, BenchError> {
        self.read(Counter::CpuNanoseconds).map(Duration::from_nanos)
    }

    /// Bytes of memory that it holds, including shared ones.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn resident_bytes(&self) -> Result<u64, BenchError> {
        self.read(Counter::ResidentBytes)
    }

    /// Number of files that it has open.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn open_files(&self) -> Result<u64, BenchError> {
        self.read(Counter::OpenFiles)
    }
}

/// Growth of a process's resident memory since this was made.
#[derive(Debug)]
pub(crate) struct Growth {
    meter: Meter,
    before_bytes: u64,
}

impl Growth {
    /// Starts with the current memory of a producer.
    ///
    /// # Errors
    /// [`BenchError::Io`] when it is gone.
    pub(crate) fn of(peer: &Peer) -> Result<Self, BenchError> {
        let meter = peer.meter()?;
        Ok(Self { before_bytes: meter.resident_bytes()?, meter })
    }

    /// Growth divided by `count`.
    ///
    /// # Errors
    /// [`BenchError::Io`] when the process is gone.
    pub(crate) fn bytes_each(&self, count: usize) -> Result<f64, BenchError> {
        Ok((self.meter.resident_bytes()? as f64 - self.before_bytes as f64) / count as f64)
    }
}
