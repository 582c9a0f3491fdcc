//! How the ranks of a group on one host meet: each makes its segment and listens, all learn each other's addresses by some other way (a
//! store that they share), and each pair exchanges descriptors by a connection, which the later rank makes. On the thread of the caller,
//! until a deadline.
//!
//! Addresses are names of Linux's abstract sockets: there is no file that a killed process leaves behind, and what is in another network
//! namespace counts as another host. Only processes of the same user are let in.

use std::{
    fs,
    io::Read,
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::fs::MetadataExt,
    },
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, socket, sockopt,
    },
    unistd::getuid,
};
use serde::{Deserialize, Serialize};

use super::{
    GROUP_VERSION, PeerProcess, RANKS_MAX,
    memory::{OthersSegment, OwnSegment},
};
use crate::shm::{descriptors, error::ShmError};

/// How often it is looked whether others have come, if none comes.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// How often it is tried again what the kernel had no room for.
const RETRY: Duration = Duration::from_millis(1);

/// Where a rank is met, and what it speaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Address {
    version: u32,
    /// Equal for ranks that can share memory.
    host: String,
    name: String,
}

/// Why the ranks did not meet.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// This process cannot do what it takes.
    #[error(transparent)]
    System(#[from] ShmError),
    /// The address of a rank cannot be read.
    #[error("rank {rank} gives an address that is none of Sealane's: {reason}")]
    Malformed {
        /// The rank.
        rank: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A rank has another version of Sealane.
    #[error(
        "rank {rank} speaks version {theirs} of Sealane's groups, this process {GROUP_VERSION}: install the same release for both"
    )]
    Version {
        /// The rank.
        rank: usize,
        /// Its version.
        theirs: u32,
    },
    /// A rank is on another host, or in another network namespace, or of another user.
    #[error("rank {rank} is on another host, in another network namespace, or of another user")]
    Elsewhere {
        /// The rank.
        rank: usize,
    },
    /// A rank went before the group was complete.
    #[error("rank {rank} left before the group was complete")]
    Left {
        /// The rank.
        rank: usize,
    },
    /// A rank did not come.
    #[error("rank {rank} did not join within {waited:?}")]
    Late {
        /// The first of them.
        rank: usize,
        /// How long it was waited for.
        waited: Duration,
    },
    /// There may be no group of so many.
    #[error("a group has 1 to {RANKS_MAX} ranks on a host, and this is rank {rank} of {size}")]
    Size {
        /// This one.
        rank: usize,
        /// How many there are to be.
        size: usize,
    },
}

/// A rank that has not met the others yet.
#[derive(Debug)]
pub struct Bootstrap {
    rank: usize,
    size: usize,
    address: String,
    segment: OwnSegment,
    descriptor: OwnedFd,
    listener: OwnedFd,
}

/// A rank that has met all others.
#[derive(Debug)]
pub struct Joined {
    /// Its own segment.
    pub segment: OwnSegment,
    /// The others' by rank, `None` in its own place.
    pub others: Vec<Option<(OthersSegment, PeerProcess)>>,
}

impl Bootstrap {
    /// A rank of a group of `size`, all on this host.
    ///
    /// # Errors
    /// [`JoinError::Size`]; [`JoinError::System`] without descriptors or memory, and before Linux 5.1.
    pub fn new(rank: usize, size: usize) -> Result<Bootstrap, JoinError> {
        if rank >= size || size > RANKS_MAX {
            return Err(JoinError::Size { rank, size });
        }
        let (segment, descriptor) = OwnSegment::create(size)?;
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
            .map_err(ShmError::system("making a group's socket"))?;
        let name = format!("sealane-group-{:032x}", u128::from_ne_bytes(random()?));
        let place = UnixAddr::new_abstract(name.as_bytes()).map_err(ShmError::system("naming a group's socket"))?;
        bind(listener.as_raw_fd(), &place).map_err(ShmError::system("naming a group's socket"))?;
        let backlog = Backlog::new(size as i32).unwrap_or(Backlog::MAXCONN);
        listen(&listener, backlog).map_err(ShmError::system("listening for a group's ranks"))?;
        let address = Address { version: GROUP_VERSION, host: host(), name };
        let address = serde_json::to_string(&address).expect("strings and a number are JSON");
        Ok(Bootstrap { rank, size, address, segment, descriptor, listener })
    }

    /// What the others must know of this one: text of some 150 bytes.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Meets the others, whose addresses are given by rank. All must do so.
    ///
    /// # Errors
    /// [`JoinError`].
    pub fn join(self, addresses: &[impl AsRef<[u8]>], limit: Duration) -> Result<Joined, JoinError> {
        let known = addresses.iter().enumerate().map(|(rank, text)| read_address(rank, text.as_ref()));
        let known: Vec<Address> = known.collect::<Result<_, _>>()?;
        if known.len() != self.size {
            return Err(JoinError::Size { rank: self.rank, size: known.len() });
        }
        if let Some(rank) = known.iter().position(|address| address.host != known[self.rank].host) {
            return Err(JoinError::Elsewhere { rank });
        }
        let uncalled = known.into_iter().enumerate().take(self.rank).collect();
        let mut meeting = Meeting {
            rank: self.rank,
            descriptor: self.descriptor,
            listener: self.listener,
            uncalled,
            unsaid: Vec::new(),
            called: Vec::new(),
            callers: Vec::new(),
            others: (0..self.size).map(|_| None).collect(),
        };
        match meeting.meet(limit) {
            Ok(()) => Ok(Joined { segment: self.segment, others: meeting.others }),
            Err(error) => {
                // Some may have met all.
                self.segment.words.fail(&format!("it has not met all ranks: {error}"));
                Err(error)
            }
        }
    }
}

/// Ranks on their way to meet this one.
struct Meeting {
    rank: usize,
    descriptor: OwnedFd,
    listener: OwnedFd,
    /// Earlier ranks that this one has not connected to.
    uncalled: Vec<(usize, Address)>,
    /// Ranks that have not been told who this is, and the segment of those who have said it.
    unsaid: Vec<(usize, PeerProcess, Option<OthersSegment>)>,
    /// Earlier ranks that have not answered.
    called: Vec<(usize, PeerProcess)>,
    /// Who has connected, and not said who it is.
    callers: Vec<OwnedFd>,
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
            let Some(rank) = (0..self.others.len()).find(|rank| *rank != self.rank && self.others[*rank].is_none())
            else {
                return Ok(());
            };
            let waited = started.elapsed();
            if waited >= limit {
                return Err(JoinError::Late { rank, waited: limit });
            }
            self.wait((limit - waited).min(LOOK_MAX));
        }
    }

    fn wait(&self, limit: Duration) {
        // What the kernel has had no room for is tried again soon.
        let limit = if self.uncalled.is_empty() && self.unsaid.is_empty() { limit } else { limit.min(RETRY) };
        let called = self.called.iter().map(|(_, process)| &process.connection);
        let all = [&self.listener].into_iter().chain(&self.callers).chain(called);
        let mut polled: Vec<PollFd<'_>> = all.map(|each| PollFd::new(each.as_fd(), PollFlags::POLLIN)).collect();
        // Whatever comes of it, all are looked at.
        let _ = poll(&mut polled, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
    }

    /// Connects to earlier ranks, whose queues may be full for a moment.
    fn call(&mut self) -> Result<(), JoinError> {
        for (rank, address) in std::mem::take(&mut self.uncalled) {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let connection = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
                .map_err(ShmError::system("making a group's socket"))?;
            let malformed = |errno: Errno| JoinError::Malformed { rank, reason: errno.to_string() };
            let place = UnixAddr::new_abstract(address.name.as_bytes()).map_err(malformed)?;
            match connect(connection.as_raw_fd(), &place) {
                Ok(()) if is_of_this_user(&connection) => self.unsaid.push((rank, PeerProcess::new(connection), None)),
                Ok(()) => return Err(JoinError::Elsewhere { rank }),
                Err(Errno::EAGAIN | Errno::EINTR) => self.uncalled.push((rank, address)),
                // Whoever has an address listens, or is gone.
                Err(_) => return Err(JoinError::Left { rank }),
            }
        }
        Ok(())
    }

    /// Takes in whoever connects, of this user.
    fn accept(&mut self) -> Result<(), JoinError> {
        loop {
            match descriptors::accept(&self.listener) {
                Ok(connection) if is_of_this_user(&connection) => self.callers.push(connection),
                Ok(_) | Err(Errno::ECONNABORTED | Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                Err(errno) => return Err(ShmError::system("accepting a group's ranks")(errno).into()),
            }
        }
    }

    /// Later ranks say who they are. Who says something else is a stranger, and is sent away.
    fn hear_callers(&mut self) -> Result<(), JoinError> {
        for connection in std::mem::take(&mut self.callers) {
            match hear(&connection) {
                Heard::Nothing => self.callers.push(connection),
                Heard::Rank(rank, descriptor)
                    if rank > self.rank
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

    /// Says who this is, and gives its segment. The kernel has room for so many descriptors under way, of all processes of a user.
    fn say(&mut self) -> Result<(), JoinError> {
        let name = (self.rank as u32).to_ne_bytes();
        for (rank, process, segment) in std::mem::take(&mut self.unsaid) {
            match descriptors::send(&process.connection, &name, &[self.descriptor.as_raw_fd()]) {
                Err(Errno::ETOOMANYREFS | Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => {
                    self.unsaid.push((rank, process, segment));
                }
                Err(_) => return Err(JoinError::Left { rank }),
                Ok(()) => match segment {
                    Some(segment) => self.others[rank] = Some((segment, process)),
                    None => self.called.push((rank, process)),
                },
            }
        }
        Ok(())
    }

    /// Earlier ranks answer.
    fn hear_called(&mut self) -> Result<(), JoinError> {
        for (rank, process) in std::mem::take(&mut self.called) {
            match hear(&process.connection) {
                Heard::Nothing => self.called.push((rank, process)),
                Heard::Rank(said, descriptor) if said == rank => {
                    let segment = OthersSegment::open(&descriptor, self.others.len())?;
                    self.others[rank] = Some((segment, process));
                }
                Heard::Rank(..) | Heard::Gone => return Err(JoinError::Left { rank }),
            }
        }
        Ok(())
    }
}

enum Heard {
    Nothing,
    Rank(usize, OwnedFd),
    /// It has gone, or says what no rank says.
    Gone,
}

fn hear(connection: &OwnedFd) -> Heard {
    let mut rank = [0; 4];
    match descriptors::receive(connection, &mut rank) {
        Err(Errno::EAGAIN | Errno::EINTR) => Heard::Nothing,
        Ok(mut message) if message.len == rank.len() && !message.cut && message.descriptors.len() == 1 => {
            Heard::Rank(u32::from_ne_bytes(rank) as usize, message.descriptors.remove(0))
        }
        Ok(_) | Err(_) => Heard::Gone,
    }
}

fn is_of_this_user(connection: &OwnedFd) -> bool {
    getsockopt(connection, sockopt::PeerCredentials).is_ok_and(|known| known.uid() == getuid().as_raw())
}

fn read_address(rank: usize, text: &[u8]) -> Result<Address, JoinError> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let malformed = |error: serde_json::Error| JoinError::Malformed { rank, reason: error.to_string() };
    // First the version alone: the rest may look different in another.
    let Versioned { version } = serde_json::from_slice(text).map_err(malformed)?;
    if version != GROUP_VERSION {
        return Err(JoinError::Version { rank, theirs: version });
    }
    serde_json::from_slice(text).map_err(malformed)
}

/// Of the system's randomness.
fn random() -> Result<[u8; 16], ShmError> {
    let mut bytes = [0; 16];
    let read = fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|source| ShmError::System { operation: "naming a group's socket", source })
}

/// What is equal for processes that can share memory, as far as that can be known.
fn host() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let network = fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
    format!("{}/{network}/{}", boot.trim(), getuid())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::{super::Word, *};

    fn ranks(size: usize) -> (Vec<Bootstrap>, Vec<String>) {
        let ranks: Vec<Bootstrap> = (0..size).map(|rank| Bootstrap::new(rank, size).unwrap()).collect();
        let addresses = ranks.iter().map(|seat| seat.address().to_owned()).collect();
        (ranks, addresses)
    }

    const LIMIT: Duration = Duration::from_secs(30);

    #[test]
    fn every_rank_reads_what_the_others_write_and_cannot_change_it() {
        let (ranks, addresses) = ranks(5);
        thread::scope(|scope| {
            for seat in ranks {
                let addresses = &addresses;
                scope.spawn(move || {
                    let (rank, Joined { segment, others }) = (seat.rank, seat.join(addresses, LIMIT).unwrap());
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
        assert!(crate::shm::SharedMemory::open(&descriptor, 1 << 20, false).is_err(), "nobody may write it");
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let (mut ranks, addresses) = ranks(3);
        let late = ranks.pop().unwrap();
        let first = ranks.remove(0);
        let error = first.join(&addresses, Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, JoinError::Late { rank: 1, .. }), "{error}");
        drop(late);
        // Its segment was seen by nobody; whoever had met it would hear from it.
        let error = ranks.remove(0).join(&addresses, LIMIT).unwrap_err();
        assert!(matches!(error, JoinError::Left { rank: 0 }), "{error}");
    }

    #[test]
    fn ranks_of_other_versions_and_hosts_are_named() {
        let (mut ranks, mut addresses) = ranks(2);
        let mut join = |text: String| {
            addresses[1] = text;
            let seat = ranks.pop().unwrap();
            ranks.push(Bootstrap::new(0, 2).unwrap());
            Bootstrap { rank: 0, ..seat }.join(&addresses, LIMIT).unwrap_err().to_string()
        };
        assert!(join("{}".into()).starts_with("rank 1 gives an address that is none of Sealane's"));
        assert!(join(r#"{"version":99,"more":[]}"#.into()).contains("rank 1 speaks version 99"));
        assert!(join(r#"{"version":1,"host":"moon","name":"x"}"#.into()).contains("rank 1 is on another host"));
        assert!(matches!(Bootstrap::new(2, 2), Err(JoinError::Size { rank: 2, size: 2 })));
    }

    #[test]
    fn a_stranger_is_sent_away_and_the_ranks_meet() {
        let (ranks, addresses) = ranks(2);
        let name = read_address(0, addresses[0].as_bytes()).unwrap().name;
        let place = UnixAddr::new_abstract(name.as_bytes()).unwrap();
        let stranger = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(stranger.as_raw_fd(), &place).unwrap();
        descriptors::send(&stranger, &9_u32.to_ne_bytes(), &[stranger.as_raw_fd()]).unwrap();
        thread::scope(|scope| {
            for seat in ranks {
                let addresses = &addresses;
                scope.spawn(move || seat.join(addresses, LIMIT).unwrap());
            }
        });
    }
}
