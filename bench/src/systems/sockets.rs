//! TCP sockets as every system of a run gets them: no Nagle, the run's congestion control. Many of them in one thread share an
//! epoll set.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, SockRef, Socket, Type};
use tempfile::TempDir;

use crate::error::BenchError;
use crate::limits::CONNECT_LIMIT;
use crate::peer::Hosts;

/// Callers that the kernel keeps until they are accepted: the same as for an engine's listener.
const BACKLOG: i32 = 4_096;

/// A listener on a port of `ip` that the system chooses; what it accepts inherits the congestion control.
pub(super) fn listen(ip: IpAddr, congestion: Option<&str>) -> Result<TcpListener, BenchError> {
    let any_port = SocketAddr::new(ip, 0);
    let socket = socket(any_port, congestion)?;
    socket
        .bind(&any_port.into())
        .and_then(|()| socket.listen(BACKLOG))
        .map_err(BenchError::io(format!("listen on {ip}")))?;
    Ok(socket.into())
}

pub(super) fn port(listener: &TcpListener) -> Result<u16, BenchError> {
    let address = listener.local_addr().map_err(BenchError::io("ask for a listener's port"))?;
    Ok(address.port())
}

/// Waits for the consumer; the wait ends with the process when the parent goes away. Callers from other hosts are dropped.
pub(super) fn accept(listener: &TcpListener, hosts: Hosts) -> Result<TcpStream, BenchError> {
    let stream = loop {
        let (stream, caller) = listener.accept().map_err(BenchError::io("accept the consumer"))?;
        if caller.ip().to_canonical() == hosts.consumer {
            break stream;
        }
    };
    stream.set_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
    Ok(stream)
}

pub(super) fn connect(address: SocketAddr, congestion: Option<&str>) -> Result<TcpStream, BenchError> {
    let socket = socket(address, congestion)?;
    socket
        .connect_timeout(&address.into(), CONNECT_LIMIT)
        .map_err(BenchError::io(format!("connect to the producer at {address}")))?;
    socket.set_tcp_nodelay(true).map_err(BenchError::io("set TCP_NODELAY"))?;
    Ok(socket.into())
}

/// Checks that the kernel offers a congestion control, before any system is set up with it.
pub(super) fn check_congestion(name: &str) -> Result<(), BenchError> {
    socket(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Some(name)).map(drop)
}

/// The congestion control that a socket actually has.
pub(super) fn congestion(stream: &TcpStream) -> Result<String, BenchError> {
    let name =
        SockRef::from(stream).tcp_congestion().map_err(BenchError::io("ask for a socket's congestion control"))?;
    // The kernel pads the name with zeros.
    let length = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..length]).into_owned())
}

fn socket(address: SocketAddr, congestion: Option<&str>) -> Result<Socket, BenchError> {
    let socket =
        Socket::new(Domain::for_address(address), Type::STREAM, None).map_err(BenchError::io("open a TCP socket"))?;
    if let Some(name) = congestion {
        socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
            let accepted = format!("one of /proc/sys/net/ipv4/tcp_allowed_congestion_control ({error})");
            BenchError::setting("--congestion", name, accepted)
        })?;
    }
    Ok(socket)
}

/// Most sockets reported at once.
const EVENTS: usize = 512;

/// A wait of at most `limit`, in the whole milliseconds of an epoll set: rounded up, since a wait of 0 ms would be a spin.
pub(super) fn at_most(limit: Duration) -> EpollTimeout {
    EpollTimeout::from(u16::try_from(limit.as_millis() + 1).unwrap_or(u16::MAX))
}

/// An epoll set for many sockets in one thread: only those that can proceed are worked on. Bounded by the sockets that are watched.
pub(super) struct Poller {
    epoll: Epoll,
    events: Box<[EpollEvent]>,
}

impl Poller {
    pub(super) fn new() -> Result<Self, BenchError> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(BenchError::io("make an epoll set"))?;
        Ok(Self { epoll, events: vec![EpollEvent::empty(); EVENTS].into() })
    }

    /// Watches a socket, which is reported by its place. Closing it ends the watch.
    pub(super) fn watch(&self, socket: impl AsFd, place: usize, interest: EpollFlags) -> Result<(), BenchError> {
        let event = EpollEvent::new(interest, place as u64);
        self.epoll.add(socket, event).map_err(BenchError::io("watch a socket"))
    }

    /// Changes the interest in a watched socket.
    pub(super) fn watch_for(&self, socket: impl AsFd, place: usize, interest: EpollFlags) -> Result<(), BenchError> {
        let mut event = EpollEvent::new(interest, place as u64);
        self.epoll.modify(socket, &mut event).map_err(BenchError::io("watch a socket"))
    }

    /// Looks at all sockets; returns how many can proceed, 0 if the wait timed out.
    pub(super) fn look(&mut self, wait: EpollTimeout) -> Result<usize, BenchError> {
        match self.epoll.wait(&mut self.events, wait) {
            Err(Errno::EINTR) => Ok(0),
            looked => looked.map_err(BenchError::io("wait for sockets")),
        }
    }

    /// The place of the `number`th socket reported by the last look, and what it is ready for.
    pub(super) fn reported(&self, number: usize) -> (usize, EpollFlags) {
        (self.events[number].data() as usize, self.events[number].events())
    }
}

/// Short, since the path of a Unix socket has at most 107 bytes.
const SOCKET_NAME: &str = "s";

/// A path for a Unix socket. Dropping this removes the socket; connections stay open.
#[derive(Debug)]
pub(super) struct Meeting(TempDir);

impl Meeting {
    /// In a new directory that only this user may enter.
    pub(super) fn arrange() -> Result<Self, BenchError> {
        let directory = tempfile::Builder::new().prefix("sealane-bench-").tempdir();
        directory.map(Self).map_err(BenchError::io("make a directory for a socket"))
    }

    /// Where the producer listens.
    pub(super) fn socket(&self) -> PathBuf {
        self.0.path().join(SOCKET_NAME)
    }
}
