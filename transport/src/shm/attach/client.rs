//! The client's side of attaching: blocks the calling thread, until its deadline at most.

use std::{
    fs::File,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        socket::{self as unix, AddressFamily, SockFlag, SockType, UnixAddr, setsockopt, socket, sockopt},
        time::{TimeSpec, TimeVal, TimeValLike},
    },
};

use super::{Answer, Attach, Request, VERSION, Welcome, encode};
use crate::{
    error::Error,
    interrupt::{is_interrupted, sleep_limit},
    job::{JobName, describe},
    shm::{
        bell::{ClientBell, ClientEar, Doorbell},
        descriptors::{self, Message},
        direct::{DirectLane, Side},
        error::ShmError,
        limits::{FIGURES_BYTES_MAX, MEMORY_BYTES_MAX, MESSAGE_BYTES_MAX, PATIENCE_MAX, SHARDS_MAX},
        mapping::{ReadOnlyMemory, SharedMemory},
        segment::{ClientEnd, segment_bytes},
    },
};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// Nothing listens at the path, or this user may not connect.
    #[error("no daemon can be reached at {}: {source}", path.display())]
    Connect { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Refused(Error),
    /// The daemon serves `job`, and not the one that was required.
    #[error("the daemon serves {}", describe(job.as_ref()))]
    OtherJob { job: Option<JobName> },
    #[error("the daemon did not answer in time")]
    TimedOut,
    /// The daemon closed the socket without an answer.
    #[error("the daemon closed the connection")]
    HungUp,
    /// The daemon's answer is invalid; most likely it is a different release.
    #[error("the daemon's answer is invalid: {0}")]
    Answer(String),
    /// What the daemon sent is unusable.
    #[error(transparent)]
    Shm(#[from] ShmError),
}

impl AttachError {
    pub(super) fn answer(problem: impl Into<String>) -> Self {
        Self::Answer(problem.into())
    }
}

/// The resources of an attached client. Dropping the socket detaches.
#[derive(Debug)]
pub struct Attached {
    pub welcome: Welcome,
    /// The memory from which the client allocates.
    pub arena: SharedMemory,
    pub shards: Vec<(ClientEnd, Doorbell)>,
    /// The socket on which the daemon rings: for a [`ClientEar`](crate::shm::ClientEar).
    pub socket: OwnedFd,
}

/// Attaches to the daemon that listens at `path`. With `populate` the first pages of the arena are allocated: see
/// [`SharedMemory::populate`].
///
/// # Errors
/// [`AttachError`].
pub fn attach(path: &Path, wish: &Attach, populate: bool, deadline: Instant) -> Result<Attached, AttachError> {
    let mut talk = Conversation::begin(path, &Request::Attach(wish.clone()), deadline)?;
    let (answer, mut arena) = talk.next()?;
    let welcome = match answer {
        Answer::Welcome(welcome) => welcome,
        Answer::Refused(refused) => return Err(refusal(refused)),
        Answer::OtherJob { job } => return Err(AttachError::OtherJob { job }),
        _ => return Err(AttachError::answer("it is not a welcome")),
    };
    let (Some(arena), None) = (arena.pop(), arena.pop()) else {
        return Err(AttachError::answer("a welcome comes with one descriptor"));
    };
    let arena = SharedMemory::open(&arena, welcome.arena_bytes)?;
    let mut shards = Vec::new();
    for expected in 0..welcome.shards {
        let (answer, mut descriptors) = talk.next()?;
        if answer != (Answer::Shard { index: expected }) {
            return Err(AttachError::answer(format!("shard {expected} should follow")));
        }
        let (Some(doorbell), Some(segment), None) = (descriptors.pop(), descriptors.pop(), descriptors.pop()) else {
            return Err(AttachError::answer("a shard comes with two descriptors"));
        };
        shards.push((ClientEnd::open(&segment, welcome.area_bytes)?, doorbell.into()));
    }
    if populate {
        // The daemon limits the time of a welcome, which has been read by now.
        arena.populate()?;
    }
    Ok(Attached { welcome, arena, shards, socket: talk.socket })
}

/// Asks the daemon at `path` to drain; returns once it has begun, not when it has finished.
///
/// # Errors
/// [`AttachError`].
pub fn drain(path: &Path, deadline: Instant) -> Result<(), AttachError> {
    let mut talk = Conversation::begin(path, &Request::Drain { version: VERSION }, deadline)?;
    match talk.next()?.0 {
        Answer::Draining => Ok(()),
        Answer::Refused(refused) => Err(refusal(refused)),
        _ => Err(AttachError::answer("it does not say that it drains")),
    }
}

/// Asks the daemon at `path` for the arena of another client, which the daemon has named to this process, and maps it
/// read-only.
///
/// # Errors
/// [`AttachError`].
pub fn map_arena(path: &Path, arena: u64, deadline: Instant) -> Result<ReadOnlyMemory, AttachError> {
    let mut talk = Conversation::begin(path, &Request::Arena { version: VERSION, arena }, deadline)?;
    let (answer, mut memory) = talk.next()?;
    let bytes = match answer {
        Answer::Arena { bytes } if bytes <= MEMORY_BYTES_MAX => bytes,
        Answer::Refused(refused) => return Err(refusal(refused)),
        _ => return Err(AttachError::answer("it shows no arena")),
    };
    let (Some(memory), None) = (memory.pop(), memory.pop()) else {
        return Err(AttachError::answer("an arena comes with one descriptor"));
    };
    Ok(ReadOnlyMemory::open(&memory, bytes)?)
}

/// A client's end of a lane.
#[derive(Debug)]
pub struct GivenLane {
    pub lane: DirectLane,
    /// How the two clients wake each other; `None` if the other side of the lane belongs to the shard that serves the pair.
    pub bells: Option<LaneBells>,
}

/// How two clients that share a lane wake each other.
#[derive(Debug)]
pub struct LaneBells {
    /// The ear for other clients that wake this one; all lanes of a client share it.
    pub ear: ClientEar,
    /// Wakes the other client.
    pub bell: ClientBell,
}

/// Asks the daemon at `path` for the lane between this process, attached as `task`, and the client attached as
/// `peer`.
///
/// # Errors
/// [`AttachError`].
pub fn lane(path: &Path, task: &str, peer: &str, deadline: Instant) -> Result<GivenLane, AttachError> {
    let request = Request::Lane { version: VERSION, task: task.into(), peer: peer.into() };
    let mut talk = Conversation::begin(path, &request, deadline)?;
    let (answer, descriptors) = talk.next()?;
    let first = match answer {
        Answer::Lane { first } => first,
        Answer::Refused(refused) => return Err(refusal(refused)),
        _ => return Err(AttachError::answer("it gives no lane")),
    };
    let side = if first { Side::First } else { Side::Second };
    let mut descriptors = descriptors.into_iter();
    let (memory, bells, rest) = (descriptors.next(), descriptors.next().zip(descriptors.next()), descriptors.next());
    let (Some(memory), None) = (memory, rest) else {
        return Err(AttachError::answer("a lane comes with one descriptor or three"));
    };
    let bells = bells
        .map(|(ear, bell)| LaneBells { ear: ClientEar::among_clients(ear), bell: ClientBell::new(Arc::new(bell)) });
    Ok(GivenLane { lane: DirectLane::open(&memory, side)?, bells })
}

/// Asks the daemon at `path` to connect to the host of `peer`, for one stream between that task and this process, attached
/// as `task`. Returns the connected socket, and the number with which the other task asks its daemon for the other end.
///
/// # Errors
/// [`AttachError`].
pub fn connect(path: &Path, task: &str, peer: &str, deadline: Instant) -> Result<(u64, OwnedFd), AttachError> {
    ask_for_connection(path, &Request::Connect { version: VERSION, task: task.into(), peer: peer.into() }, deadline)
}

/// Asks the daemon at `path` for the connection with this number, which the daemon of `peer` has made for a stream with
/// this process, attached as `task`.
///
/// # Errors
/// [`AttachError`].
pub fn connection(
    path: &Path,
    (task, peer): (&str, &str),
    number: u64,
    deadline: Instant,
) -> Result<OwnedFd, AttachError> {
    let request = Request::Connection { version: VERSION, task: task.into(), peer: peer.into(), number };
    match ask_for_connection(path, &request, deadline)? {
        (given, socket) if given == number => Ok(socket),
        _ => Err(AttachError::answer("it gives another connection")),
    }
}

fn ask_for_connection(path: &Path, request: &Request, deadline: Instant) -> Result<(u64, OwnedFd), AttachError> {
    let mut talk = Conversation::begin(path, request, deadline)?;
    let (answer, mut descriptors) = talk.next()?;
    match (answer, descriptors.pop(), descriptors.pop()) {
        (Answer::Connection { number }, Some(socket), None) => Ok((number, socket)),
        (Answer::Refused(refused), ..) => Err(refusal(refused)),
        _ => Err(AttachError::answer("it gives no connection")),
    }
}

/// Asks the daemon at `path` for its figures, as JSON.
///
/// # Errors
/// [`AttachError`].
pub fn show(path: &Path, deadline: Instant) -> Result<Vec<u8>, AttachError> {
    ask_for_figures(path, &Request::Show { version: VERSION }, deadline)
}

/// Asks the daemon at `path` to measure the links to its peers; returns the results, as JSON. A daemon of an older release refuses the
/// request.
///
/// # Errors
/// [`AttachError`].
pub fn measure(path: &Path, deadline: Instant) -> Result<Vec<u8>, AttachError> {
    ask_for_figures(path, &Request::Measure { version: VERSION }, deadline)
}

fn ask_for_figures(path: &Path, request: &Request, deadline: Instant) -> Result<Vec<u8>, AttachError> {
    let mut talk = Conversation::begin(path, request, deadline)?;
    let (answer, memory) = talk.next()?;
    match answer {
        Answer::Figures { bytes } => read_text(memory, bytes, FIGURES_BYTES_MAX),
        Answer::Refused(refused) => Err(refusal(refused)),
        _ => Err(AttachError::answer("it shows no figures")),
    }
}

/// Reads the text in the memory that came with an answer.
pub(super) fn read_text(mut memory: Vec<OwnedFd>, bytes: u64, bytes_max: u64) -> Result<Vec<u8>, AttachError> {
    if bytes > bytes_max {
        return Err(AttachError::answer(format!("{bytes} bytes of text, at most {bytes_max} are read")));
    }
    let (Some(memory), None) = (memory.pop(), memory.pop()) else {
        return Err(AttachError::answer("a text comes with one descriptor"));
    };
    let mut text = vec![0; bytes as usize];
    let read = File::from(memory).read_exact_at(&mut text, 0);
    read.map_err(|error| AttachError::answer(format!("its text cannot be read ({error})")))?;
    Ok(text)
}

pub(super) fn refusal(refused: super::Refused) -> AttachError {
    match refused.into_error() {
        Ok(error) => AttachError::Refused(error),
        Err(malformed) => AttachError::answer(malformed.to_string()),
    }
}

/// Checks that the numbers in a welcome are usable.
fn checked(welcome: Welcome) -> Result<Welcome, AttachError> {
    let Welcome { version, shards, arena_bytes, segment_bytes: announced, area_bytes, .. } = welcome;
    if version != VERSION {
        return Err(AttachError::answer(format!("it speaks version {version}, this client {VERSION}")));
    }
    if shards == 0 || shards as usize > SHARDS_MAX {
        return Err(AttachError::answer(format!("{shards} shards, 1 to {SHARDS_MAX} are possible")));
    }
    if arena_bytes.max(area_bytes) > MEMORY_BYTES_MAX || announced != segment_bytes(area_bytes) {
        return Err(AttachError::answer(format!(
            "an arena of {arena_bytes} bytes, segments of {announced}, areas of {area_bytes}"
        )));
    }
    Ok(welcome)
}

/// Parses an answer, and checks that its numbers are usable.
pub(super) fn parse_answer(message: &[u8]) -> Result<Answer, AttachError> {
    match serde_json::from_slice(message).map_err(|error| AttachError::answer(error.to_string()))? {
        Answer::Welcome(welcome) => checked(welcome).map(Answer::Welcome),
        answer => Ok(answer),
    }
}

/// A request that was sent, and the answers to it.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) socket: OwnedFd,
    pub(super) deadline: Instant,
    buffer: Vec<u8>,
}

impl Conversation {
    pub(super) fn begin(path: &Path, request: &Request, deadline: Instant) -> Result<Self, AttachError> {
        let unreachable = |errno: Errno| AttachError::Connect { path: path.into(), source: errno.into() };
        let address = UnixAddr::new(path).map_err(unreachable)?;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)
            .map_err(ShmError::system("making a socket"))?;
        // A daemon with many callers makes the next one wait, and only this option limits the wait. Zero would mean forever.
        let patience = deadline.saturating_duration_since(Instant::now());
        let patience = TimeVal::milliseconds(patience.clamp(Duration::from_millis(1), PATIENCE_MAX).as_millis() as i64);
        setsockopt(&socket, sockopt::SendTimeout, &patience).map_err(ShmError::system("bounding a wait"))?;
        match unix::connect(socket.as_raw_fd(), &address) {
            Err(Errno::EAGAIN) => return Err(AttachError::TimedOut),
            answer => answer.map_err(unreachable)?,
        }
        let talk = Self { socket, deadline, buffer: vec![0; MESSAGE_BYTES_MAX] };
        talk.ask(request)?;
        Ok(talk)
    }

    pub(super) fn ask(&self, request: &Request) -> Result<(), AttachError> {
        match descriptors::send(&self.socket, &encode(request), &[]) {
            // The daemon may have said why before it closed.
            Ok(_) | Err(Errno::EPIPE | Errno::ECONNRESET) => Ok(()),
            Err(errno) => Err(ShmError::system("asking the daemon")(errno).into()),
        }
    }

    pub(super) fn next(&mut self) -> Result<(Answer, Vec<OwnedFd>), AttachError> {
        let mut was_reset = false;
        let Message { len, cut, descriptors } = loop {
            match descriptors::receive(&self.socket, &mut self.buffer) {
                Ok(message) => break message,
                Err(Errno::EAGAIN) => self.wait()?,
                Err(Errno::EINTR) => {}
                // The daemon closed without reading the request: what it sent before can still be read after this error.
                Err(Errno::ECONNRESET) if !was_reset => was_reset = true,
                Err(Errno::ECONNRESET) => return Err(AttachError::HungUp),
                Err(errno) => return Err(ShmError::system("hearing the daemon")(errno).into()),
            }
        };
        if len == 0 {
            return Err(AttachError::HungUp);
        }
        if cut {
            return Err(AttachError::answer("it is too long, or has too many descriptors"));
        }
        Ok((parse_answer(&self.buffer[..len])?, descriptors))
    }

    fn wait(&self) -> Result<(), AttachError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || is_interrupted() {
            return Err(AttachError::TimedOut);
        }
        let mut polled = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, Some(TimeSpec::from_duration(sleep_limit(left))), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(ShmError::system("waiting for the daemon")(errno).into()),
        }
    }
}
