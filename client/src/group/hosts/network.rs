//! Connections to and from the ranks of other hosts, and what is known of their state. Any thread; never blocks, except where it says so.
//!
//! A connection carries bytes from the rank that made it to the one that it called. In the other direction it carries one *notice*: that
//! the called rank has left, or has ended the group, and why. So a sender hears of the receiver's end whatever it is sending, and
//! two ranks never make one connection at the same time. Collectives and messages have connections of their own, since a message that
//! nobody receives blocks those behind it.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::AsFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
};
use sealane_transport::{
    Error, LinkError,
    authentication::Authentication,
    shm::group::REASON_BYTES,
    tcp::{CalledPipe, CallingPipe, DialError, OPENING_BYTES, Pipe, Progress, TcpSettings, listen},
};

use super::{
    address::{Reach, own_addresses},
    layout::Layout,
    outbox::Outbox,
};
use crate::{
    group::limits::{GROUP_ATTEMPT, GROUP_CALLED_MAX, GROUP_LOOK, GROUP_OPENING, GROUP_RETRY},
    group::mail::deadline,
};

const MAGIC: [u8; 8] = *b"SEALANEG";

/// What a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::group) enum Purpose {
    Collectives = 0,
    Messages = 1,
}

/// An open connection, shared by its users.
pub(in crate::group) type Shared = Arc<Mutex<Pipe>>;

pub(in crate::group) fn lock(pipe: &Shared) -> MutexGuard<'_, Pipe> {
    pipe.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(in crate::group) struct Network {
    pub(in crate::group) layout: Layout,
    /// What waits to be sent in collectives.
    pub(in crate::group) outbox: Outbox,
    authentication: Authentication,
    token: u128,
    /// How to reach each rank.
    reaches: Vec<Reach>,
    /// One for each purpose: a thread sleeps by the connections that it waits for.
    events: [Epoll; 2],
    state: Mutex<State>,
}

/// The socket that other ranks call.
pub(in crate::group) struct Listener {
    socket: socket2::Socket,
    pub(in crate::group) reach: Reach,
}

#[derive(Default)]
struct State {
    /// `None` once this rank has ended.
    listener: Option<socket2::Socket>,
    /// Callers that have not said who they are.
    called: Vec<Called>,
    /// The error of the last accept, if it failed because no descriptors are left.
    no_room: Option<LinkError>,
    /// Connections by which others send to this rank.
    incoming: HashMap<(usize, Purpose), Shared>,
    outgoing: Vec<Outgoing>,
    /// The number of the address that has answered, by host.
    answered: HashMap<usize, usize>,
    /// Ranks that are gone, and how.
    gone: HashMap<usize, Gone>,
    /// This rank has told the others that it has ended.
    has_told: bool,
}

/// Why a rank is gone.
#[derive(Clone)]
struct Gone {
    /// It has said so.
    has_left: bool,
    reason: Box<str>,
}

/// A caller that has not said which rank it is.
struct Called {
    pipe: CalledPipe,
    /// The time that it has left, and when this was updated: while nobody looks, no time passes for it.
    left: Duration,
    looked: Instant,
}

/// A connection that this rank has made, on which notices come.
struct Outgoing {
    rank: usize,
    pipe: Shared,
    notice: Vec<u8>,
    is_over: bool,
}

/// A connection that this rank is making.
pub(in crate::group) struct Dialing {
    rank: usize,
    purpose: Purpose,
    /// The address being tried: its number, and since when.
    at: usize,
    since: Instant,
    pipe: Option<CallingPipe>,
    /// Why the last try failed.
    failure: Option<LinkError>,
    /// Ranks are still meeting: one that refuses may listen later.
    is_meeting: bool,
}

/// A connection to a rank, possibly still being made.
pub(in crate::group) enum Connection {
    Dialing(Box<Dialing>),
    Open(Shared),
}

impl Connection {
    pub(in crate::group) fn begin(network: &Network, rank: usize, purpose: Purpose) -> Connection {
        Connection::Dialing(Box::new(network.dial(rank, purpose)))
    }

    /// The connection, once it is open.
    ///
    /// # Errors
    /// As [`Network::advance`].
    pub(in crate::group) fn open(&mut self, network: &Network) -> Result<Option<Shared>, LinkError> {
        if let Connection::Dialing(dialing) = self {
            let Some(pipe) = network.advance(dialing)? else { return Ok(None) };
            *self = Connection::Open(pipe);
        }
        match self {
            Connection::Open(pipe) => Ok(Some(pipe.clone())),
            Connection::Dialing(_) => Ok(None),
        }
    }
}

/// What a rank is told of another's end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::group) enum Notice {
    Left = 1,
    Failed = 2,
}

impl Listener {
    /// Listens at the address of an interface, or at an address, or at all addresses of this host.
    pub(in crate::group) fn new(interface: Option<&str>, token: u128) -> Result<Listener, Error> {
        let addresses = own_addresses(interface)?;
        let open = |ip: IpAddr| listen(SocketAddr::new(ip, 0), &TcpSettings::default());
        let socket = match (interface, &addresses[..]) {
            (Some(_), [only, ..]) => open(*only),
            // For both address families, if the host has both.
            _ => open(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| open([0, 0, 0, 0].into())),
        };
        let socket = socket.map_err(unusable)?;
        let port = socket.local_addr().ok().and_then(|address| address.as_socket());
        let port = port.ok_or_else(|| Error::unavailable("a listening socket", "it has no address"))?.port();
        let sockets = addresses.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        Ok(Listener { socket, reach: Reach::new(token, sockets) })
    }
}

fn unusable(error: LinkError) -> Error {
    Error::unavailable("connections to other hosts", error.to_string())
}

fn opening(token: u128, rank: usize, purpose: Purpose) -> [u8; OPENING_BYTES] {
    let mut bytes = [0; OPENING_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&(rank as u64).to_le_bytes());
    bytes[16] = purpose as u8;
    bytes[32..48].copy_from_slice(&token.to_le_bytes());
    bytes
}

impl Network {
    pub(in crate::group) fn new(
        layout: Layout,
        listener: Listener,
        reaches: Vec<Reach>,
        authentication: Authentication,
    ) -> Result<Network, Error> {
        let epoll = || {
            let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
            epoll.add(&listener.socket, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0))?;
            Ok(epoll)
        };
        let failed = |errno: nix::Error| unusable(LinkError::io("epoll", &errno.into()));
        let events = [epoll().map_err(failed)?, epoll().map_err(failed)?];
        let Listener { socket, reach } = listener;
        let state = Mutex::new(State { listener: Some(socket), ..State::default() });
        Ok(Network { layout, outbox: Outbox::new(), authentication, token: reach.token, reaches, events, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, what: &impl AsFd, purpose: Purpose) -> Result<(), LinkError> {
        let all = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT | EpollFlags::EPOLLRDHUP | EpollFlags::EPOLLET;
        let added = self.events[purpose as usize].add(what.as_fd(), EpollEvent::new(all, 0));
        added.map_err(|errno| LinkError::io("epoll_ctl", &errno.into()))
    }

    /// Sleeps until something happens on connections of a purpose, or somebody calls, at most `limit`. What has happened since the caller's
    /// last look counts.
    pub(in crate::group) fn wait(&self, purpose: Purpose, limit: Duration) {
        let mut events = [EpollEvent::empty(); 16];
        let limit = EpollTimeout::try_from(limit.max(Duration::from_millis(1))).unwrap_or(EpollTimeout::MAX);
        // Whatever the outcome, all are looked at.
        let _ = self.events[purpose as usize].wait(&mut events, limit);
    }

    /// Connects counterparts with each other. **Blocks** until all have met, at most `limit`, while `check` passes.
    ///
    /// # Errors
    /// Unavailable, naming the first rank that cannot be reached, does not call, or has gone; the error of `check`.
    pub(in crate::group) fn meet(&self, limit: Duration, check: impl Fn() -> Result<(), Error>) -> Result<(), Error> {
        let until = deadline(Some(limit));
        let mut partners: Vec<usize> = self.layout.counterparts().chain(self.layout.counterpart_of()).collect();
        partners.sort_unstable();
        partners.dedup();
        let dial = |rank: &usize| Dialing { is_meeting: true, ..self.dial(*rank, Purpose::Collectives) };
        let mut dialing: Vec<Dialing> = partners.iter().map(dial).collect();
        let mut open = HashMap::new();
        loop {
            self.accept();
            if let Some(error) = self.state().no_room.take() {
                return Err(unusable(error));
            }
            for mut one in std::mem::take(&mut dialing) {
                match self.advance(&mut one) {
                    Ok(Some(pipe)) => drop(open.insert(one.rank, pipe)),
                    Ok(None) => dialing.push(one),
                    Err(_) => return Err(self.unreached(&one)),
                }
            }
            let missing = partners.iter().find(|rank| self.incoming(**rank, Purpose::Collectives).is_none());
            if dialing.is_empty() && missing.is_none() {
                self.outbox.add(open);
                return Ok(());
            }
            check()?;
            // One that has met everybody may have left already.
            let is_lost = |rank: &&usize| self.state().gone.get(*rank).is_some_and(|gone| !gone.has_left);
            if let Some(error) = partners.iter().find(is_lost).and_then(|rank| self.has_gone(*rank)) {
                return Err(error);
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Err(match (dialing.first(), missing) {
                    (Some(one), _) => self.unreached(one),
                    (None, rank) => {
                        let rank = rank.copied().unwrap_or_default();
                        let reason = "it has not called this rank: a firewall may stop it, or it is late";
                        Error::unavailable(&format!("rank {rank}"), reason)
                    }
                });
            }
            self.wait(Purpose::Collectives, GROUP_LOOK);
        }
    }

    /// The error for a rank that was not reached.
    pub(in crate::group) fn unreached(&self, one: &Dialing) -> Error {
        let sockets: Vec<String> = self.reaches[one.rank].sockets.iter().map(ToString::to_string).collect();
        let why = one.failure.as_ref().map_or("it does not answer".into(), ToString::to_string);
        let reason = format!("it cannot be reached at {}: {why}", sockets.join(", "));
        Error::unavailable(&format!("rank {}", one.rank), reason)
    }

    /// Begins to connect to a rank.
    pub(in crate::group) fn dial(&self, rank: usize, purpose: Purpose) -> Dialing {
        let at = self.state().answered.get(&self.layout.host_of(rank)).copied().unwrap_or(0);
        let mut one =
            Dialing { rank, purpose, at, since: Instant::now(), pipe: None, failure: None, is_meeting: false };
        self.try_next(&mut one, 0);
        one
    }

    fn try_next(&self, one: &mut Dialing, ahead: usize) {
        let Reach { token, sockets, .. } = &self.reaches[one.rank];
        one.at = (one.at + ahead) % sockets.len().max(1);
        one.since = Instant::now();
        let Some(address) = sockets.get(one.at) else { return };
        let begun =
            CallingPipe::start(*address, opening(*token, self.layout.rank(), one.purpose), &self.authentication);
        let watched = begun.and_then(|pipe| self.watch(&pipe, one.purpose).map(|()| pipe));
        match watched {
            Ok(pipe) => one.pipe = Some(pipe),
            Err(error) => one.failure = Some(error),
        }
    }

    /// Continues a dial; returns the connection once it is open.
    ///
    /// # Errors
    /// The rank is not reached at the address where another one of its host was: it is gone.
    pub(in crate::group) fn advance(&self, one: &mut Dialing) -> Result<Option<Shared>, LinkError> {
        // An address where another rank of the host has answered is right for all: a busy rank answers later.
        let is_known = self.state().answered.get(&self.layout.host_of(one.rank)) == Some(&one.at);
        let failure = match one.pipe.take().map(CallingPipe::poll) {
            Some(Ok(Progress::Done((pipe, answer)))) => {
                if answer == opening(self.token, one.rank, one.purpose) {
                    return Ok(Some(self.opened(one, pipe)));
                }
                LinkError::io("handshake", &io::Error::other("somebody else answers there"))
            }
            Some(Ok(Progress::Pending(pipe))) if is_known || one.since.elapsed() < GROUP_ATTEMPT => {
                one.pipe = Some(pipe);
                return Ok(None);
            }
            Some(Ok(Progress::Pending(_))) => LinkError::io("connect", &io::ErrorKind::TimedOut.into()),
            Some(Err(DialError::Link(error))) => error,
            // The rank answers, and refuses.
            Some(Err(error)) => LinkError::io("handshake", &io::Error::other(error.to_string())),
            None => match &one.failure {
                // Nobody listens there any more.
                Some(failure @ LinkError::Io { kind: io::ErrorKind::ConnectionRefused, .. })
                    if is_known && !one.is_meeting =>
                {
                    return Err(failure.clone());
                }
                _ if one.since.elapsed() < GROUP_RETRY => return Ok(None),
                _ => {
                    self.try_next(one, usize::from(!is_known));
                    return Ok(None);
                }
            },
        };
        one.failure = Some(failure);
        Ok(None)
    }

    fn opened(&self, one: &Dialing, pipe: Pipe) -> Shared {
        let pipe = Arc::new(Mutex::new(pipe));
        let mut state = self.state();
        state.answered.insert(self.layout.host_of(one.rank), one.at);
        state.outgoing.push(Outgoing { rank: one.rank, pipe: pipe.clone(), notice: Vec::new(), is_over: false });
        pipe
    }

    /// The connection by which a rank sends, once it has called.
    pub(in crate::group) fn incoming(&self, rank: usize, purpose: Purpose) -> Option<Shared> {
        self.state().incoming.get(&(rank, purpose)).cloned()
    }

    /// Accepts callers.
    pub(in crate::group) fn accept(&self) {
        let mut state = self.state();
        let State { listener, called: waiting, no_room, .. } = &mut *state;
        while waiting.len() < GROUP_CALLED_MAX
            && let Some(accepted) = listener.as_ref().map(socket2::Socket::accept)
        {
            let socket = match accepted {
                Ok((socket, _)) => socket,
                Err(error) => {
                    let is_full =
                        [Errno::EMFILE, Errno::ENFILE].contains(&Errno::from_raw(error.raw_os_error().unwrap_or(0)));
                    *no_room = is_full.then(|| LinkError::io("accept", &error));
                    break;
                }
            };
            let called = CalledPipe::new(socket, &self.authentication);
            let watched = called.and_then(|pipe| {
                self.watch(&pipe, Purpose::Collectives)?;
                self.watch(&pipe, Purpose::Messages)?;
                Ok(pipe)
            });
            let looked = Instant::now();
            waiting.extend(watched.ok().map(|pipe| Called { pipe, left: GROUP_OPENING, looked }));
        }
        for Called { pipe, left, looked } in std::mem::take(&mut state.called) {
            match pipe.poll() {
                Ok(Progress::Pending(pipe)) => {
                    let left = left.saturating_sub(looked.elapsed().min(2 * GROUP_LOOK));
                    // Strangers that say nothing are dropped.
                    if !left.is_zero() {
                        state.called.push(Called { pipe, left, looked: Instant::now() });
                    }
                }
                Ok(Progress::Done((caller, said))) => {
                    let Some((rank, purpose)) = self.caller(&said) else { continue };
                    let answer = opening(self.reaches[rank].token, self.layout.rank(), purpose);
                    let Ok(pipe) = caller.answer(&answer) else { continue };
                    // Waiters for the other purpose need not wake for it; if that fails, it was not watched there.
                    let _ = self.events[1 - purpose as usize].delete(&pipe);
                    // A rank that calls again has given up its first try.
                    state.incoming.insert((rank, purpose), Arc::new(Mutex::new(pipe)));
                }
                Err(_) => {}
            }
        }
    }

    /// Who has called: a rank of this group on another host, or nobody.
    fn caller(&self, said: &[u8; OPENING_BYTES]) -> Option<(usize, Purpose)> {
        let rank = usize::try_from(u64::from_le_bytes(said[8..16].try_into().ok()?)).ok()?;
        let purpose = [Purpose::Collectives, Purpose::Messages].into_iter().find(|known| *known as u8 == said[16])?;
        let is_far = rank < self.layout.size() && self.layout.local(rank).is_none();
        (is_far && *said == opening(self.token, rank, purpose)).then_some((rank, purpose))
    }

    /// Forgets a connection that has ended before anything came by it.
    pub(in crate::group) fn forget(&self, rank: usize, purpose: Purpose, pipe: &Shared) {
        let mut state = self.state();
        if state.incoming.get(&(rank, purpose)).is_some_and(|known| Arc::ptr_eq(known, pipe)) {
            state.incoming.remove(&(rank, purpose));
        }
    }

    /// Tells all who send to this rank that it has ended.
    pub(in crate::group) fn tell(&self, notice: Notice, reason: &str) {
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(REASON_BYTES)];
        let mut told = vec![notice as u8];
        told.extend((reason.len() as u16).to_le_bytes());
        told.extend(reason);
        let mut state = self.state();
        if std::mem::replace(&mut state.has_told, true) {
            return;
        }
        for pipe in state.incoming.values() {
            // Only an answer was written there before, so there is room; a rank that misses the notice sees the connection end.
            let _ = lock(pipe).write([&told, &[]]);
        }
        // Nothing more is sent or heard; callers are refused.
        state.outgoing.drain(..).for_each(|one| lock(&one.pipe).end());
        state.called.clear();
        if let Some(listener) = state.listener.take() {
            // This also ends the socket that a forked child has. If it fails, it has ended already.
            let _ = listener.shutdown(std::net::Shutdown::Both);
        }
        drop(state);
        self.outbox.close();
    }

    /// Reads the notices that have come.
    ///
    /// # Errors
    /// The first rank that has ended the group, and why.
    pub(in crate::group) fn look(&self) -> Result<(), Error> {
        let mut state = self.state();
        let State { outgoing, gone, .. } = &mut *state;
        for one in outgoing.iter_mut().filter(|one| !one.is_over) {
            // A thread that holds it looks itself.
            let pipe = one.pipe.clone();
            let mut pipe = match pipe.try_lock() {
                Ok(pipe) => pipe,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => continue,
            };
            if let Some((notice, reason)) = one.hear(&mut pipe) {
                one.is_over = true;
                match notice {
                    Some(Notice::Failed) => {
                        let reason = format!("it has ended the group: {reason}");
                        return Err(Error::unavailable(&format!("rank {}", one.rank), reason));
                    }
                    // Another connection of that rank may have ended before.
                    Some(Notice::Left) => drop(gone.insert(one.rank, Gone::left())),
                    None => {
                        gone.entry(one.rank).or_insert(Gone { has_left: false, reason: reason.into() });
                    }
                }
            }
        }
        Ok(())
    }

    /// A connection with a rank has ended.
    pub(in crate::group) fn has_ended(&self, rank: usize, error: &LinkError) {
        let lost = || Gone { has_left: false, reason: ended(error).into() };
        self.state().gone.entry(rank).or_insert_with(lost);
    }

    /// The error of a call that needs a rank which is gone.
    pub(in crate::group) fn has_gone(&self, rank: usize) -> Option<Error> {
        let Gone { reason, .. } = self.state().gone.get(&rank).cloned()?;
        Some(Error::Left { task: format!("rank {rank}").into(), reason })
    }
}

impl Gone {
    fn left() -> Gone {
        Gone { has_left: true, reason: "it has left the group".into() }
    }
}

fn ended(error: &LinkError) -> String {
    match error {
        LinkError::Closed => "its process has ended".into(),
        error => format!("its process has ended, or its host is not reached any more: {error}"),
    }
}

impl Outgoing {
    /// The notice with its reason, or why there will be none.
    fn hear(&mut self, pipe: &mut Pipe) -> Option<(Option<Notice>, String)> {
        let mut bytes = [0; REASON_BYTES + 3];
        loop {
            match pipe.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.notice.extend(&bytes[..count]),
                Err(error) => return Some((None, ended(&error))),
            }
            if let [kind, low, high, reason @ ..] = &self.notice[..] {
                let len = usize::from(u16::from_le_bytes([*low, *high])).min(REASON_BYTES);
                if let Some(reason) = reason.get(..len) {
                    let notice = if *kind == Notice::Left as u8 { Notice::Left } else { Notice::Failed };
                    let reason = String::from_utf8_lossy(reason);
                    return Some((Some(notice), reason.chars().filter(|letter| !letter.is_control()).collect()));
                }
            }
        }
    }
}
