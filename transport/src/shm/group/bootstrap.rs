//! How the ranks of a group on one host meet. Each listens; all learn the names of each other's sockets some other way
//! (through a store that they share); and each pair exchanges the descriptors of its segments over a connection, which the
//! later rank makes. Runs on the caller's thread, until a deadline.
//!
//! The names are of Linux's abstract sockets: a killed process leaves no file behind, and another network namespace counts
//! as another host. Any user of the host can list these names and connect, but only processes of the same user are heard.
//!
//! Limits: a turn accepts [`GROUP_ACCEPTS_PER_TURN`] connections, so that a flood of connections cannot keep it from ending; at most
//! [`GROUP_CALLERS_MAX`] connections that have not said which rank they are stay open.

use std::{
    collections::VecDeque,
    fs,
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    time::{Duration, Instant},
};

use super::{
    PeerProcess, RANKS_MAX,
    memory::{OthersSegment, OwnSegment},
};
use crate::{
    interrupt::{is_interrupted, sleep_limit},
    shm::{
        descriptors,
        error::ShmError,
        limits::{GROUP_ACCEPTS_PER_TURN, GROUP_CALLERS_MAX},
    },
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket, sockopt,
    },
    unistd::getuid,
};

/// Longest wait before looking again whether others have come.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// How soon to retry what the kernel had no room for.
const RETRY: Duration = Duration::from_millis(1);

/// A rank of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbour {
    /// Its number in the group, for error messages.
    pub rank: usize,
    /// The name of its socket.
    pub name: String,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// This process lacks something that joining needs.
    #[error(transparent)]
    System(#[from] ShmError),
    /// The name of a rank's socket is not valid.
    #[error("rank {rank} gives a socket's name that is none: {reason}")]
    Malformed { rank: usize, reason: String },
    /// A rank's process is of another user.
    #[error("rank {rank} is a process of another user")]
    Stranger { rank: usize },
    /// A rank left before the group was complete.
    #[error("rank {rank} left before the group was complete")]
    Left { rank: usize },
    #[error("rank {rank} did not join within {waited:?}")]
    Late {
        /// The first rank that did not come.
        rank: usize,
        waited: Duration,
    },
    /// A signal interrupted this thread.
    #[error("a signal interrupted the wait for rank {rank}")]
    Interrupted {
        /// The first rank that has not come.
        rank: usize,
    },
    /// More ranks than may be on one host.
    #[error("a group has at most {RANKS_MAX} ranks on a host, and {0} are on this one")]
    Crowded(usize),
}

/// A rank that has not met the others yet.
#[derive(Debug)]
pub struct Bootstrap {
    name: String,
    listener: OwnedFd,
}

/// A rank that has met all others.
#[derive(Debug)]
pub struct Joined {
    pub segment: OwnSegment,
    /// The others' segments by rank; `None` in its own place.
    pub others: Vec<Option<(OthersSegment, PeerProcess)>>,
}

impl Bootstrap {
    /// Starts to listen.
    ///
    /// # Errors
    /// [`JoinError::System`] if no descriptors are left.
    pub fn new() -> Result<Bootstrap, JoinError> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(ShmError::system("making a group's socket"))?;
        let name = format!("sealane-group-{:032x}", u128::from_ne_bytes(random_bytes()?));
        let place = UnixAddr::new_abstract(name.as_bytes()).map_err(ShmError::system("naming a group's socket"))?;
        bind(listener.as_raw_fd(), &place).map_err(ShmError::system("naming a group's socket"))?;
        listen(&listener, Backlog::MAXCONN).map_err(ShmError::system("listening for a group's ranks"))?;
        Ok(Bootstrap { name, listener })
    }

    /// The name of its socket, which the others need.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Meets the others of this host, among which this one has index `own`. All must call this.
    ///
    /// # Errors
    /// [`JoinError`]; also before Linux 5.1.
    ///
    /// # Panics
    /// If `own` is out of range.
    pub fn join(self, own: usize, neighbours: &[Neighbour], limit: Duration) -> Result<Joined, JoinError> {
        assert!(own < neighbours.len(), "{own} is one of {}", neighbours.len());
        if neighbours.len() > RANKS_MAX {
            return Err(JoinError::Crowded(neighbours.len()));
        }
        let (segment, descriptor) = OwnSegment::create(neighbours.len())?;
        let mut meeting = Meeting {
            own,
            descriptor,
            listener: self.listener,
            ranks: neighbours.iter().map(|neighbour| neighbour.rank).collect(),
            uncalled: neighbours.iter().map(|neighbour| neighbour.name.clone()).enumerate().take(own).collect(),
            unsaid: Vec::new(),
            called: Vec::new(),
            callers: VecDeque::new(),
            others: neighbours.iter().map(|_| None).collect(),
        };
        match meeting.meet(limit) {
            Ok(()) => Ok(Joined { segment, others: meeting.others }),
            Err(error) => {
                // Some ranks may already have met all others.
                segment.words.fail(&format!("it has not met all ranks: {error}"));
                Err(error)
            }
        }
    }
}

/// The state of meeting the other ranks.
struct Meeting {
    own: usize,
    descriptor: OwnedFd,
    listener: OwnedFd,
    /// Their numbers in the group.
    ranks: Vec<usize>,
    /// Earlier ranks that this one has not connected to yet, with their sockets' names.
    uncalled: Vec<(usize, String)>,
    /// Ranks that were not told yet who this is, with their segment if they have already sent it.
    unsaid: Vec<(usize, PeerProcess, Option<OthersSegment>)>,
    /// Earlier ranks that have not answered yet.
    called: Vec<(usize, PeerProcess)>,
    /// Connections that have not said yet which rank they are.
    callers: VecDeque<OwnedFd>,
    others: Vec<Option<(OthersSegment, PeerProcess)>>,
}

impl Meeting {
    fn meet(&mut self, limit: Duration) -> Result<(), JoinError> {
        let started = Instant::now();
        loop {
            self.call()?;
            self.accept()?;
            self.hear_callers()?;
            self.say()?;
            self.hear_called()?;
            let is_missing = |rank: &usize| *rank != self.own && self.others[*rank].is_none();
            let Some(rank) = (0..self.others.len()).find(is_missing) else { return Ok(()) };
            let waited = started.elapsed();
            if is_interrupted() {
                return Err(JoinError::Interrupted { rank: self.ranks[rank] });
            }
            if waited >= limit {
                return Err(JoinError::Late { rank: self.ranks[rank], waited: limit });
            }
            self.wait(sleep_limit((limit - waited).min(LOOK_MAX)));
        }
    }

    fn wait(&self, limit: Duration) {
        // What the kernel had no room for is retried soon.
        let limit = if self.uncalled.is_empty() && self.unsaid.is_empty() { limit } else { limit.min(RETRY) };
        let called = self.called.iter().map(|(_, process)| &process.connection);
        let all = [&self.listener].into_iter().chain(&self.callers).chain(called);
        let mut polled: Vec<PollFd<'_>> = all.map(|each| PollFd::new(each.as_fd(), PollFlags::POLLIN)).collect();
        // Whatever the result, all are checked next.
        let _ = poll(&mut polled, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
    }

    /// Connects to earlier ranks, whose backlogs may be full for a moment.
    fn call(&mut self) -> Result<(), JoinError> {
        for (rank, name) in std::mem::take(&mut self.uncalled) {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
                .map_err(ShmError::system("making a group's socket"))?;
            let malformed = |errno: Errno| JoinError::Malformed { rank: self.ranks[rank], reason: errno.to_string() };
            let place = UnixAddr::new_abstract(name.as_bytes()).map_err(malformed)?;
            match connect(connection.as_raw_fd(), &place) {
                Ok(()) if is_of_this_user(&connection) => self.unsaid.push((rank, PeerProcess::new(connection), None)),
                Ok(()) => return Err(JoinError::Stranger { rank: self.ranks[rank] }),
                Err(Errno::EAGAIN | Errno::EINTR) => self.uncalled.push((rank, name)),
                // A rank that published its name listens, or is gone.
                Err(_) => return Err(self.left(rank)),
            }
        }
        Ok(())
    }

    /// Accepts connections, and closes those from processes of other users.
    fn accept(&mut self) -> Result<(), JoinError> {
        for _ in 0..GROUP_ACCEPTS_PER_TURN {
            match descriptors::accept(&self.listener) {
                Ok(connection) if is_of_this_user(&connection) => self.callers.push_back(connection),
                Ok(_) | Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(Errno::EAGAIN) => break,
                Err(errno) => return Err(ShmError::system("accepting a group's ranks")(errno).into()),
            }
        }
        // A rank speaks as soon as it has connected, so the oldest silent connections are not ranks.
        let excess = self.callers.len().saturating_sub(GROUP_CALLERS_MAX);
        self.callers.drain(..excess);
        Ok(())
    }

    /// Hears from later ranks who they are. A connection that says anything else is a stranger's, and is closed.
    fn hear_callers(&mut self) -> Result<(), JoinError> {
        for connection in std::mem::take(&mut self.callers) {
            match hear(&connection)? {
                Heard::Nothing => self.callers.push_back(connection),
                Heard::Rank(rank, descriptor)
                    if rank > self.own
                        && self.others.get(rank).is_some_and(Option::is_none)
                        && self.unsaid.iter().all(|(known, ..)| *known != rank) =>
                {
                    let segment = OthersSegment::open(&descriptor, self.others.len())?;
                    self.unsaid.push((rank, PeerProcess::new(connection), Some(segment)));
                }
                Heard::Rank(..) | Heard::Gone => {}
            }
        }
        Ok(())
    }

    /// Says who this is, and sends its segment. The kernel limits the descriptors in flight, over all processes of a user.
    fn say(&mut self) -> Result<(), JoinError> {
        let name = (self.own as u32).to_ne_bytes();
        for (rank, process, segment) in std::mem::take(&mut self.unsaid) {
            match descriptors::send(&process.connection, &name, &[self.descriptor.as_raw_fd()]) {
                Err(Errno::ETOOMANYREFS | Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => {
                    self.unsaid.push((rank, process, segment));
                }
                Err(_) => return Err(self.left(rank)),
                Ok(()) => match segment {
                    Some(segment) => self.others[rank] = Some((segment, process)),
                    None => self.called.push((rank, process)),
                },
            }
        }
        Ok(())
    }

    /// Hears the answers of earlier ranks.
    fn hear_called(&mut self) -> Result<(), JoinError> {
        for (rank, process) in std::mem::take(&mut self.called) {
            match hear(&process.connection)? {
                Heard::Nothing => self.called.push((rank, process)),
                Heard::Rank(said, descriptor) if said == rank => {
                    let segment = OthersSegment::open(&descriptor, self.others.len())?;
                    self.others[rank] = Some((segment, process));
                }
                Heard::Rank(..) | Heard::Gone => return Err(self.left(rank)),
            }
        }
        Ok(())
    }

    fn left(&self, rank: usize) -> JoinError {
        JoinError::Left { rank: self.ranks[rank] }
    }
}

enum Heard {
    Nothing,
    Rank(usize, OwnedFd),
    /// It is gone, or sent something that no rank sends.
    Gone,
}

/// # Errors
/// [`JoinError::System`] if this process has no room for the descriptor.
fn hear(connection: &OwnedFd) -> Result<Heard, JoinError> {
    let mut rank = [0; 4];
    Ok(match descriptors::receive(connection, &mut rank) {
        Err(Errno::EAGAIN | Errno::EINTR) => Heard::Nothing,
        Ok(mut message) if message.len == rank.len() && !message.cut && message.descriptors.len() == 1 => {
            Heard::Rank(u32::from_ne_bytes(rank) as usize, message.descriptors.remove(0))
        }
        Err(Errno::EMFILE) => return Err(ShmError::system("receiving a rank's memory")(Errno::EMFILE).into()),
        Ok(_) | Err(_) => Heard::Gone,
    })
}

fn is_of_this_user(connection: &OwnedFd) -> bool {
    getsockopt(connection, sockopt::PeerCredentials).is_ok_and(|known| known.uid() == getuid().as_raw())
}

/// 16 bytes from the system's random source.
///
/// # Errors
/// [`ShmError::System`] if there is none.
pub fn random_bytes() -> Result<[u8; 16], ShmError> {
    let mut bytes = [0; 16];
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|source| ShmError::System { operation: "reading random bytes", source })
}

/// A string that is equal for processes that can share memory, as far as can be known.
pub fn host() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
    format!("{}/{network}/{}", boot.trim(), getuid())
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    use super::{super::Word, *};

    fn ranks(size: usize) -> (Vec<Bootstrap>, Vec<Neighbour>) {
        let ranks: Vec<Bootstrap> = (0..size).map(|_| Bootstrap::new().unwrap()).collect();
        let neighbour = |(rank, met): (usize, &Bootstrap)| Neighbour { rank: 10 + rank, name: met.name().to_owned() };
        let neighbours = ranks.iter().enumerate().map(neighbour).collect();
        (ranks, neighbours)
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn every_rank_reads_what_the_others_write_and_cannot_change_it() {
        let (ranks, neighbours) = ranks(5);
        thread::scope(|scope| {
            for (rank, bootstrap) in ranks.into_iter().enumerate() {
                let neighbours = &neighbours;
                scope.spawn(move || {
                    let Joined { segment, others } = bootstrap.join(rank, neighbours, LIMIT).unwrap();
                    segment.words.store(Word::State, 100 + rank as u32);
                    for (other, met) in others.iter().enumerate() {
                        assert_eq!(met.is_none(), other == rank);
                        let Some((other_segment, process)) = met else { continue };
                        while other_segment.words.load(Word::State) != 100 + other as u32 {
                            thread::yield_now();
                        }
                        assert_eq!(process.pid(), std::process::id() as i32);
                    }
                });
            }
        });
        let (mut segment, descriptor) = OwnSegment::create(2).unwrap();
        segment.slots.slot(super::super::Stage::Given, 1).fill(1);
        assert!(crate::shm::SharedMemory::open(&descriptor, 1 << 20).is_err(), "nobody may write it");
    }

    #[test]
    fn a_rank_that_does_not_come_is_named_by_its_number_in_the_group() {
        let (mut ranks, neighbours) = ranks(3);
        let late = ranks.pop().unwrap();
        let first = ranks.remove(0);
        let error = first.join(0, &neighbours, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, JoinError::Late { rank: 11, .. }), "{error}");
        drop(late);
        // Nobody has seen its segment; a rank that had met it would be told.
        let error = ranks.remove(0).join(1, &neighbours, LIMIT).unwrap_err();
        assert!(matches!(error, JoinError::Left { rank: 10 }), "{error}");
    }

    #[test]
    fn join_ends_at_its_limit_while_others_connect() {
        let (mut ranks, neighbours) = ranks(2);
        let (over, stuck) = (AtomicBool::new(false), Instant::now() + LIMIT);
        // Connects and hangs up; returns whether the join ended first.
        let connect_again_and_again = || {
            let place = UnixAddr::new_abstract(neighbours[0].name.as_bytes()).unwrap();
            while !over.load(Ordering::Relaxed) {
                if Instant::now() > stuck {
                    return false;
                }
                let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
                let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
                let _ = connect(stranger.as_raw_fd(), &place);
            }
            true
        };
        thread::scope(|scope| {
            let strangers: Vec<_> = (0..4).map(|_| scope.spawn(connect_again_and_again)).collect();
            let error = ranks.remove(0).join(0, &neighbours, Duration::from_millis(50)).unwrap_err();
            over.store(true, Ordering::Relaxed);
            assert!(matches!(error, JoinError::Late { rank: 11, .. }), "{error}");
            assert!(strangers.into_iter().all(|stranger| stranger.join().unwrap()), "it waited for the strangers' end");
        });
    }

    #[test]
    fn a_name_that_is_none_and_ranks_without_end_are_refused() {
        let (mut all, mut neighbours) = ranks(2);
        neighbours[0].name = "x".repeat(200);
        let error = all.remove(1).join(1, &neighbours, LIMIT).unwrap_err();
        assert!(matches!(error, JoinError::Malformed { rank: 10, .. }), "{error}");
        let crowd = vec![neighbours[1].clone(); RANKS_MAX + 1];
        assert!(matches!(all.remove(0).join(0, &crowd, LIMIT), Err(JoinError::Crowded(257))));
    }

    #[test]
    fn a_stranger_is_sent_away_and_the_ranks_meet() {
        let (ranks, neighbours) = ranks(2);
        let place = UnixAddr::new_abstract(neighbours[0].name.as_bytes()).unwrap();
        let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(stranger.as_raw_fd(), &place).unwrap();
        descriptors::send(&stranger, &9_u32.to_ne_bytes(), &[stranger.as_raw_fd()]).unwrap();
        thread::scope(|scope| {
            for (rank, bootstrap) in ranks.into_iter().enumerate() {
                let neighbours = &neighbours;
                scope.spawn(move || bootstrap.join(rank, neighbours, LIMIT).unwrap());
            }
        });
    }
}
