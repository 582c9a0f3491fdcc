//! The daemon's side of attaching: single non-blocking steps, on the thread that watches the sockets.

use std::{
    fs::File,
    iter::once,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::Path,
};

use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        socket::{
            AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, getsockopt, recv, socket, sockopt,
        },
        stat::{Mode, fchmod},
    },
};

use super::{Answer, HAND_OVER_VERSION, Request, VERSION, Versioned, Welcome, encode};
use crate::{
    error::Error,
    job::JobName,
    shm::{
        bell::{ClientBell, ClientEar},
        descriptors,
        direct::{LaneKeeper, Side},
        error::ShmError,
        limits::{LISTEN_BACKLOG, MESSAGE_BYTES_MAX},
        mapping::seal_for_readers,
    },
};

/// Why a request cannot be served. The daemon disconnects, after an optional [`refuse`] if the client still listens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The client has closed its socket.
    #[error("the client closed the connection")]
    HungUp,
    /// The request is longer than any valid one.
    #[error("a request of {bytes} bytes, at most {MESSAGE_BYTES_MAX} are possible")]
    TooLong { bytes: usize },
    #[error("a malformed request: {0}")]
    Malformed(String),
    /// Client and daemon are of different versions.
    #[error(
        "the client speaks version {theirs} of the attach protocol, this daemon {VERSION}; use the same release \
         for both"
    )]
    Version { theirs: u32 },
    /// The daemon that should take over uses another version of the hand-over.
    #[error(
        "the new daemon speaks version {theirs} of the hand-over, this one {HAND_OVER_VERSION}; stop this one with `sealane drain`, \
         then start the new one"
    )]
    HandOverVersion {
        /// The new daemon's version.
        theirs: u32,
    },
    /// The socket failed.
    #[error(transparent)]
    Shm(#[from] ShmError),
}

/// The credentials of a socket's other end, as the kernel recorded them when the client connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    pub pid: i32,
    pub uid: u32,
}

/// Listens at `path`; from the first moment on, only this user may connect.
///
/// A path left over by a killed daemon is not removed: only the caller knows whether a daemon is alive.
///
/// # Errors
/// [`ShmError::InUse`] if the path exists; [`ShmError::System`], also for a path that is too long (107 bytes).
pub fn listen(path: &Path) -> Result<OwnedFd, ShmError> {
    let address = UnixAddr::new(path).map_err(ShmError::system("naming the daemon's socket"))?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
        .map_err(ShmError::system("making the daemon's socket"))?;
    // The file that bind creates gets the socket's mode.
    fchmod(&listener, Mode::S_IRUSR | Mode::S_IWUSR).map_err(ShmError::system("restricting the daemon's socket"))?;
    match bind(listener.as_raw_fd(), &address) {
        Err(Errno::EADDRINUSE) => return Err(ShmError::InUse { path: path.into() }),
        answer => answer.map_err(ShmError::system("binding the daemon's socket"))?,
    }
    listen_again(&listener)?;
    Ok(listener)
}

/// Continues to listen on a socket on which another daemon has listened: from now on clients see this process as its owner.
///
/// # Errors
/// [`ShmError::System`] if it is not a socket that can listen.
pub fn listen_again(listener: &OwnedFd) -> Result<(), ShmError> {
    let backlog = Backlog::new(LISTEN_BACKLOG).expect("a constant that is possible");
    nix::sys::socket::listen(listener, backlog).map_err(ShmError::system("listening for clients"))
}

/// Accepts the next client, if one has connected.
///
/// # Errors
/// [`ShmError::System`], for example if no descriptor is left; the client then keeps waiting.
pub fn accept(listener: &OwnedFd) -> Result<Option<OwnedFd>, ShmError> {
    match descriptors::accept(listener) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => Ok(None),
        Err(errno) => Err(ShmError::system("accepting a client")(errno)),
    }
}

/// Returns who connected.
///
/// # Errors
/// [`ShmError::System`] if this is not a connected Unix socket.
pub fn credentials(socket: &OwnedFd) -> Result<Credentials, ShmError> {
    let known = getsockopt(socket, sockopt::PeerCredentials).map_err(ShmError::system("asking who a client is"))?;
    Ok(Credentials { pid: known.pid(), uid: known.uid() })
}

/// The request of a client, if it has come. Descriptors sent with it are never opened here.
///
/// # Errors
/// [`RequestError`]; the conversation is over then.
pub fn read_request(socket: &OwnedFd) -> Result<Option<Request>, RequestError> {
    let mut buffer = vec![0; MESSAGE_BYTES_MAX];
    // MSG_TRUNC: returns the message's length, not what fit.
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
    let len = match recv(socket.as_raw_fd(), &mut buffer, flags) {
        Ok(0) | Err(Errno::ECONNRESET) => return Err(RequestError::HungUp),
        Ok(len) => len,
        Err(Errno::EAGAIN | Errno::EINTR) => return Ok(None),
        Err(errno) => return Err(ShmError::system("reading a client's request")(errno).into()),
    };
    let message = buffer.get(..len).ok_or(RequestError::TooLong { bytes: len })?;
    parse_request(message).map(Some)
}

/// Parses a request, which may hold anything.
pub(super) fn parse_request(message: &[u8]) -> Result<Request, RequestError> {
    let malformed = |error: serde_json::Error| RequestError::Malformed(error.to_string());
    // First only the version: the rest of another version's request may look different.
    let versioned: Versioned = serde_json::from_slice(message).map_err(malformed)?;
    let (theirs, ours) = (versioned.version, versioned.expected());
    if theirs != ours {
        let is_attach = ours == VERSION;
        return Err(if is_attach {
            RequestError::Version { theirs }
        } else {
            RequestError::HandOverVersion { theirs }
        });
    }
    serde_json::from_slice(message).map_err(malformed)
}

/// The descriptors of one shard for a client.
#[derive(Debug)]
pub struct ShardDescriptors {
    pub segment: OwnedFd,
    pub doorbell: OwnedFd,
}

/// A welcome on its way to a client. Holds the descriptors until they have been sent.
#[derive(Debug)]
pub struct Welcoming {
    welcome: Vec<u8>,
    arena: Option<OwnedFd>,
    shards: std::iter::Enumerate<std::vec::IntoIter<ShardDescriptors>>,
    /// A shard whose message did not fit into the socket yet.
    waiting: Option<(usize, ShardDescriptors)>,
}

impl Welcoming {
    /// Begins a welcome; `shards` has one entry for each shard that `welcome` announces, in the same order.
    pub fn new(welcome: Welcome, arena: OwnedFd, shards: Vec<ShardDescriptors>) -> Self {
        debug_assert_eq!(welcome.shards as usize, shards.len());
        let welcome = encode(&Answer::Welcome(welcome));
        Self { welcome, arena: Some(arena), shards: shards.into_iter().enumerate(), waiting: None }
    }

    /// Sends what the socket accepts now. True once all is sent; false if it must be called again when the socket is writable.
    ///
    /// # Errors
    /// [`ShmError::System`] if the client is gone, or descriptors cannot be sent.
    pub fn step(&mut self, socket: &OwnedFd) -> Result<bool, ShmError> {
        if let Some(arena) = &self.arena {
            if !sent(descriptors::send(socket, &self.welcome, &[arena.as_raw_fd()]))? {
                return Ok(false);
            }
            self.arena = None;
        }
        while let Some((index, shard)) = self.waiting.take().or_else(|| self.shards.next()) {
            let message = encode(&Answer::Shard { index: index as u32 });
            let descriptors = [shard.segment.as_raw_fd(), shard.doorbell.as_raw_fd()];
            if !sent(descriptors::send(socket, &message, &descriptors))? {
                self.waiting = Some((index, shard));
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Tells a client why it is refused; the daemon disconnects afterwards.
///
/// # Errors
/// [`ShmError::System`] if the client is gone or does not read.
pub fn refuse(socket: &OwnedFd, error: &Error) -> Result<(), ShmError> {
    answer(socket, &Answer::Refused(error.into()))
}

/// Tells a client that this daemon serves `job`, and not the one that the client requires; the daemon disconnects afterwards.
///
/// # Errors
/// [`ShmError::System`] if the client is gone or does not read.
pub fn refuse_for_job(socket: &OwnedFd, job: Option<&JobName>) -> Result<(), ShmError> {
    answer(socket, &Answer::OtherJob { job: job.cloned() })
}

/// Tells a client that the daemon has begun to drain.
///
/// # Errors
/// [`ShmError::System`] if the client is gone or does not read.
pub fn draining(socket: &OwnedFd) -> Result<(), ShmError> {
    answer(socket, &Answer::Draining)
}

/// Sends a client the arena of another client, `bytes` long. From then on it is read-only for all but those who have mapped
/// it already.
///
/// # Errors
/// [`ShmError::System`] if the kernel cannot make it read-only, or the client is gone or does not read.
pub fn show_arena(socket: &OwnedFd, arena: &OwnedFd, bytes: u64) -> Result<(), ShmError> {
    seal_for_readers(arena)?;
    let message = encode(&Answer::Arena { bytes });
    descriptors::send(socket, &message, &[arena.as_raw_fd()]).map_err(ShmError::system("answering a client"))
}

/// Gives a client its end of a lane; if the two clients share it, with its own ear and the other client's bell.
///
/// # Errors
/// [`ShmError::System`] if the client is gone or does not read.
pub fn give_lane(
    socket: &OwnedFd,
    lane: &LaneKeeper,
    side: Side,
    bells: Option<(&ClientEar, &ClientBell)>,
) -> Result<(), ShmError> {
    let message = encode(&Answer::Lane { first: side == Side::First });
    let bells = bells.into_iter().flat_map(|(ear, bell)| [ear.as_fd(), bell.as_fd()]);
    let descriptors: Vec<_> = once(lane.as_fd()).chain(bells).map(|fd| fd.as_raw_fd()).collect();
    descriptors::send(socket, &message, &descriptors).map_err(ShmError::system("answering a client"))
}

/// Gives a client a connection and its number.
///
/// # Errors
/// [`ShmError::System`] if the client is gone or does not read.
pub fn give_connection(socket: &OwnedFd, number: u64, connection: &OwnedFd) -> Result<(), ShmError> {
    let message = encode(&Answer::Connection { number });
    descriptors::send(socket, &message, &[connection.as_raw_fd()]).map_err(ShmError::system("answering a client"))
}

/// Sends a client the daemon's figures in a separate memory segment, since they may exceed a message.
///
/// # Errors
/// [`ShmError::System`] if there is no memory or descriptor for them, or the client is gone or does not read.
pub fn show_figures(socket: &OwnedFd, figures: &[u8]) -> Result<(), ShmError> {
    let memory = memory_with(figures)?;
    let message = encode(&Answer::Figures { bytes: figures.len() as u64 });
    descriptors::send(socket, &message, &[memory.as_raw_fd()]).map_err(ShmError::system("answering a client"))
}

/// Memory that holds a text, which may be longer than a message.
pub(super) fn memory_with(text: &[u8]) -> Result<File, ShmError> {
    let memory = memfd_create(c"sealane-text", MFdFlags::MFD_CLOEXEC);
    let memory = File::from(memory.map_err(ShmError::system("making memory for an answer"))?);
    let failed = |source| ShmError::System { operation: "writing an answer", source };
    memory.write_all_at(text, 0).map_err(failed)?;
    Ok(memory)
}

fn answer(socket: &OwnedFd, answer: &Answer) -> Result<(), ShmError> {
    descriptors::send(socket, &encode(answer), &[]).map_err(ShmError::system("answering a client"))
}

/// Whether a message was sent; a full socket is not an error.
fn sent(answer: Result<(), Errno>) -> Result<bool, ShmError> {
    match answer {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
        Err(errno) => Err(ShmError::system("sending a client its memory")(errno)),
    }
}
