//! The connections at the daemon's socket, by stage: asking, being welcomed, attached, waiting for the end, or taking over. Bounded
//! by [`OPENING_MAX`] and `daemon.clients_max`.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane_fusion::ClientId;
use sealane_transport::shm::attach::{Credentials, Welcoming};

/// Most connections that are not attached. A client sends its request at once and is attached within a millisecond; more wait in
/// the kernel's queue.
pub(super) const OPENING_MAX: usize = 64;

/// How long a connection may take to send its request, and then to read its welcome: a live process needs far less.
const OPENING_TIME: Duration = Duration::from_secs(5);

/// How long a daemon that hands over waits for processes that have connected but not sent a request: they do so at once, unless
/// something is wrong with them.
const ASKING_TIME: Duration = Duration::from_millis(100);

/// How long a daemon may prepare to take over: populating memory takes a second for a few GiB.
const PREPARING_TIME: Duration = Duration::from_secs(600);

/// Like [`OPENING_TIME`], while all places are taken and others wait behind them.
const OPENING_TIME_IN_A_CROWD: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Client {
    pub(super) id: ClientId,
    pub(super) task: String,
    /// Readable once the process is gone, unlike the socket, which a child that inherited it may keep open. `None` if the kernel
    /// reports no process, for example if it is in another container.
    pub(super) process: Option<OwnedFd>,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// Its request has not arrived.
    Asking,
    /// Its welcome is being sent, with its memory.
    Welcoming(Client, Welcoming),
    /// It is a client, and sends nothing more on its socket.
    Attached(Client),
    /// It asked the daemon to end, and waits for that.
    AwaitingEnd,
    /// It is a daemon that prepares to replace this one.
    Preparing,
    /// It is a prepared daemon: it waits for what this one hands over, or has to confirm that it has it.
    Inheriting,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) peer: Credentials,
    /// When it reached its stage.
    pub(super) since: Instant,
    pub(super) stage: Stage,
}

/// All connections, by numbers that are never reused: an event of a closed one finds none.
#[derive(Debug, Default)]
pub(super) struct Connections {
    by_number: HashMap<u64, Connection>,
    next_number: u64,
}

impl Connections {
    /// Adds a connection that has not sent its request yet.
    pub(super) fn add(&mut self, now: Instant, socket: OwnedFd, peer: Credentials) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        let connection = Connection { socket: Arc::new(socket), peer, since: now, stage: Stage::Asking };
        self.by_number.insert(number, connection);
        number
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Connection> {
        self.by_number.get_mut(&number)
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Connection> {
        self.by_number.remove(&number)
    }

    /// The client that is attached as `task`, or whose welcome is being sent: its connection's number, its process and user.
    pub(super) fn holder(&self, task: &str) -> Option<(u64, Credentials)> {
        let is_holder = |connection: &Connection| matches!(&connection.stage, Stage::Welcoming(client, _) | Stage::Attached(client) if client.task == task);
        let found = self.by_number.iter().find(|(_, connection)| is_holder(connection));
        found.map(|(number, connection)| (*number, connection.peer))
    }

    /// Number of clients, including those whose welcome is being sent.
    pub(super) fn clients(&self) -> usize {
        let is_client =
            |connection: &&Connection| matches!(connection.stage, Stage::Welcoming(..) | Stage::Attached(_));
        self.by_number.values().filter(is_client).count()
    }

    /// Connections of a user that are not attached.
    pub(super) fn opening_of(&self, uid: u32) -> usize {
        let is_theirs =
            |connection: &&Connection| connection.peer.uid == uid && !matches!(connection.stage, Stage::Attached(_));
        self.by_number.values().filter(is_theirs).count()
    }

    /// True if no more connections may be accepted for now.
    pub(super) fn is_crowded(&self) -> bool {
        self.by_number.values().filter(|connection| !matches!(connection.stage, Stage::Attached(_))).count()
            >= OPENING_MAX
    }

    /// True if a recent connection has not sent its request yet.
    pub(super) fn are_about_to_ask(&self, now: Instant) -> bool {
        let is_about_to = |one: &Connection| {
            matches!(one.stage, Stage::Asking | Stage::Welcoming(..)) && now < one.since + ASKING_TIME
        };
        self.by_number.values().any(is_about_to)
    }

    /// Connections whose time is over and whose process has done nothing that the daemon could handle now: a request that the
    /// daemon was too busy to read is not overdue.
    pub(super) fn overdue(&self, now: Instant) -> Vec<u64> {
        let time = self.opening_time();
        let over = |connection: &Connection| {
            until(connection, time).is_some_and(|until| until <= now) && !can_proceed(connection)
        };
        self.by_number.iter().filter(|(_, connection)| over(connection)).map(|(number, _)| *number).collect()
    }

    pub(super) fn next_overdue(&self) -> Option<Instant> {
        let time = self.opening_time();
        self.by_number.values().filter_map(|connection| until(connection, time)).min()
    }

    fn opening_time(&self) -> Duration {
        if self.is_crowded() { OPENING_TIME_IN_A_CROWD } else { OPENING_TIME }
    }
}

/// Whether the process of a connection has sent a message, or has made room for the rest of its welcome.
fn can_proceed(connection: &Connection) -> bool {
    let wanted = match connection.stage {
        Stage::Welcoming(..) => PollFlags::POLLOUT,
        _ => PollFlags::POLLIN,
    };
    let mut polled = [PollFd::new(connection.socket.as_fd(), wanted)];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

fn until(connection: &Connection, time: Duration) -> Option<Instant> {
    match connection.stage {
        Stage::Asking | Stage::Welcoming(..) => Some(connection.since + time),
        Stage::Preparing => Some(connection.since + PREPARING_TIME),
        // Handing over has its own time limit for the last of these.
        Stage::Attached(_) | Stage::AwaitingEnd | Stage::Inheriting => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{MsgFlags, recv};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixDatagram;

    fn add(connections: &mut Connections, now: Instant) -> u64 {
        connections.add(now, UnixDatagram::unbound().unwrap().into(), Credentials { pid: 1, uid: 2 })
    }

    #[test]
    fn a_connection_has_its_time_to_ask_and_less_in_a_crowd() {
        let (mut connections, now) = (Connections::default(), Instant::now());
        assert_eq!(connections.next_overdue(), None);
        let first = add(&mut connections, now);
        assert_eq!(connections.next_overdue(), Some(now + OPENING_TIME));
        assert!(connections.overdue(now + OPENING_TIME_IN_A_CROWD).is_empty());
        assert_eq!(connections.overdue(now + OPENING_TIME), [first]);
        for _ in 1..OPENING_MAX {
            assert!(!connections.is_crowded());
            add(&mut connections, now);
        }
        assert!(connections.is_crowded());
        assert_eq!(connections.overdue(now + OPENING_TIME_IN_A_CROWD).len(), OPENING_MAX);
        connections.remove(first).unwrap();
        assert!(!connections.is_crowded() && connections.get_mut(first).is_none());
        assert_eq!(connections.clients(), 0);
    }

    #[test]
    fn unread_request_is_not_overdue() {
        let (mut connections, now) = (Connections::default(), Instant::now());
        let (ours, theirs) = UnixDatagram::pair().unwrap();
        let number = connections.add(now, ours.into(), Credentials { pid: 1, uid: 2 });
        theirs.send(b"request").unwrap();
        assert!(connections.overdue(now + 2 * OPENING_TIME).is_empty());
        let socket = connections.get_mut(number).unwrap().socket.clone();
        recv(socket.as_raw_fd(), &mut [0; 8], MsgFlags::MSG_DONTWAIT).unwrap();
        assert_eq!(connections.overdue(now + 2 * OPENING_TIME), [number]);
    }

    #[test]
    fn whoever_awaits_the_end_may_wait_for_it() {
        let (mut connections, now) = (Connections::default(), Instant::now());
        let number = add(&mut connections, now);
        connections.get_mut(number).unwrap().stage = Stage::AwaitingEnd;
        assert_eq!(connections.next_overdue(), None);
        assert_eq!((connections.clients(), connections.opening_of(2), connections.opening_of(3)), (0, 1, 0));
        assert_ne!(add(&mut connections, now), number);
    }
}
