//! Connections between tasks of two hosts, each for one stream: the engines make and authenticate them, and pass the sockets to the tasks.
//! The caller's task gets its end at once; the called engine keeps the other until the called task asks for it, having learned of it
//! through the stream. For any thread; bounded by [`STREAM_CONNECTIONS_MAX`] and [`STREAM_CONNECTION_WAITS`].

use std::collections::{HashMap, hash_map::Entry};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use sealane_transport::Error;
use sealane_transport::shm::attach::Credentials;
use sealane_transport::tcp::{Call, DialError, call};
use sealane_transport::wire::{Hello, RejectCode};
use socket2::Socket;

use super::shard::ShardEngine;
use super::{Engine, stopped};
use crate::limits::{STREAM_CONNECTION_WAITS, STREAM_CONNECTIONS_MAX, STREAM_SEND_BUFFER_BYTES};

/// The called task, the calling task, and the random number that the caller chose.
type Name = (Box<str>, Box<str>, u64);

/// Connections that other engines have made and no task here has claimed yet.
#[derive(Debug, Default)]
pub(super) struct StreamConnections(Mutex<HashMap<Name, (Socket, Instant)>>);

impl StreamConnections {
    fn lock(&self) -> MutexGuard<'_, HashMap<Name, (Socket, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes connections that were not claimed in time.
    pub(super) fn expire(&self, now: Instant) {
        self.lock().retain(|_, (_, until)| *until > now);
    }

    /// When the next connection is closed.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.lock().values().map(|(_, until)| *until).min()
    }

    /// Keeps a connection for its task, until the task claims it.
    fn keep(&self, name: Name, now: Instant, welcome: impl FnOnce() -> Option<Socket>) -> Result<(), &'static str> {
        let mut waiting = self.lock();
        if waiting.len() >= STREAM_CONNECTIONS_MAX {
            return Err("too many connections for streams wait for their tasks");
        }
        match waiting.entry(name) {
            Entry::Occupied(_) => Err("a connection of that number waits already"),
            Entry::Vacant(place) => {
                if let Some(socket) = welcome() {
                    place.insert((socket, now + STREAM_CONNECTION_WAITS));
                }
                Ok(())
            }
        }
    }

    fn take(&self, task: &str, peer: &str, number: u64) -> Option<OwnedFd> {
        let (socket, _) = self.lock().remove(&(task.into(), peer.into(), number))?;
        Some(socket.into())
    }
}

/// Sets the size of a socket's send buffer, unless the settings do: its task must keep as much, so the size has to be known.
fn with_buffer(socket: &Socket, set: usize) {
    if set == 0
        && let Err(error) = socket.set_send_buffer_size(STREAM_SEND_BUFFER_BYTES)
    {
        tracing::warn!(%error, "the connection of a stream keeps its own send buffer");
    }
}

impl ShardEngine {
    /// Accepts a caller that wants a connection for a stream, and keeps the connection for its task.
    pub(super) fn keep_for_streams(&self, caller: Call, via: u16) {
        let Some((from, to, number)) = caller.hello.streams() else {
            return caller.reject(RejectCode::Refused, "it names no two tasks");
        };
        let refusal = if self.authentication.borrow().is_encrypted() {
            Some("streams are encrypted by the engine here")
        } else if self.borrow_node(|node| node.local_task(to).is_err()) {
            Some("the task is not served here")
        } else {
            None
        };
        if let Some(reason) = refusal {
            return caller.reject(RejectCode::Refused, reason);
        }
        let introduction = self.borrow_node(|node| node.introduction(via));
        let (name, mut caller) = ((to.into(), from.into(), number), Some(caller));
        let welcome = || match caller.take()?.hand_over(introduction) {
            Ok(socket) => {
                with_buffer(&socket, self.settings.tcp.send_buffer_bytes);
                Some(socket)
            }
            Err(error) => {
                tracing::debug!(%error, "a caller that wanted a connection for streams has gone");
                None
            }
        };
        let kept = self.stream_connections.keep(name, self.shard.now(), welcome);
        self.close_unclaimed_at.set(self.stream_connections.next_timeout());
        if let (Err(reason), Some(caller)) = (kept, caller) {
            caller.reject(RejectCode::Full, reason);
        }
    }
}

impl ShardEngine {
    /// Closes stream connections that were not claimed in time, on the shard that accepts callers.
    #[inline]
    pub(super) fn close_unclaimed(&self, now: Instant) {
        if self.close_unclaimed_at.get().is_some_and(|at| at <= now) {
            self.stream_connections.expire(now);
            self.close_unclaimed_at.set(self.stream_connections.next_timeout());
        }
    }
}

impl Engine {
    /// Makes a connection for one stream from `task`, of this engine, to a task of another engine: returns the socket, and the number by
    /// which the other task claims its end. **Blocks** for a round trip or two, at most for the handshake timeout for each address of the
    /// peer.
    ///
    /// # Errors
    /// NotFound if `peer` is not in the endpoint map; PermissionDenied if streams go through the engine, because they are encrypted, there
    /// are better links than TCP, or both tasks are of this engine; Unavailable if the peer cannot be reached or makes no such connection.
    pub fn connect_for_stream(&self, task: &str, peer: &str) -> Result<(u64, OwnedFd), Error> {
        let by_engine = |reason: &str| Err(Error::PermissionDenied { reason: reason.into() });
        let authentication = self.0.authentication.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if authentication.is_encrypted() {
            return by_engine("streams are encrypted by the engine");
        }
        let name = peer.to_owned();
        let asked = self.0.runtime.shard(0).run_always(async move |_| {
            let engine = ShardEngine::current().expect("set up at start");
            let has_other_links = engine.interfaces().next().is_some();
            engine.borrow_node(|node| {
                (has_other_links, node.local_task(&name).is_ok(), node.map().resolve(&name).cloned())
            })
        });
        let address = match asked.wait().map_err(|error| stopped(&error))? {
            (true, ..) => return by_engine("streams go by a better link than TCP"),
            (_, true, _) => return by_engine("both tasks are of this engine"),
            (.., address) => address,
        };
        let not_there = || Error::NotFound { task: peer.into(), reason: "it is not in the endpoint map".into() };
        let address = address.ok_or_else(not_there)?;
        // Random, so that it cannot be guessed: the number entitles a task to the socket.
        let number = RandomState::new().hash_one((task, peer, Instant::now()));
        let settings = &self.0.settings;
        let hello = Hello { job: settings.job.clone(), ..Hello::for_streams(task, peer, number) };
        let called = call((&address, &hello), &settings.tcp, &authentication, settings.handshake_timeout);
        let made = called.and_then(|dialed| dialed.link.into_socket().map_err(DialError::from));
        let socket = made.map_err(|error| Error::unavailable(peer, error.to_string()))?;
        with_buffer(&socket, settings.tcp.send_buffer_bytes);
        Ok((number, socket.into()))
    }

    /// The connection with that number which the engine of `peer` has made for a stream with `task`.
    ///
    /// # Errors
    /// NotFound if there is none, or it was closed or taken already.
    pub fn stream_connection(&self, task: &str, peer: &str, number: u64) -> Result<OwnedFd, Error> {
        let taken = self.0.stream_connections.take(task, peer, number);
        taken.ok_or_else(|| Error::NotFound {
            task: peer.into(),
            reason: "it has made no connection of that number for a stream, or nobody has asked for it in time".into(),
        })
    }

    /// Checks that the asking process is the one attached as `task`.
    ///
    /// # Errors
    /// NotFound if no process is attached, PermissionDenied if it is another one.
    pub fn check_attached(&self, task: &str, asker: Credentials) -> Result<(), Error> {
        self.0.attached.lock().unwrap_or_else(PoisonError::into_inner).check(task, asker)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use socket2::{Domain, Type};

    use super::*;

    fn socket() -> Option<Socket> {
        Some(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap())
    }

    #[test]
    fn a_connection_is_given_once_to_the_task_that_names_it_in_time() {
        let (connections, now) = (StreamConnections::default(), Instant::now());
        let name = |number| (Box::from("ps0"), Box::from("worker0"), number);
        connections.keep(name(7), now, socket).unwrap();
        assert!(connections.keep(name(7), now, || panic!("it is not welcomed")).is_err());
        assert!(connections.take("ps0", "worker1", 7).is_none() && connections.take("ps1", "worker0", 7).is_none());
        assert!(connections.take("ps0", "worker0", 7).is_some() && connections.take("ps0", "worker0", 7).is_none());
        connections.keep(name(8), now, socket).unwrap();
        connections.keep(name(9), now, || None).unwrap();
        assert_eq!(connections.next_timeout(), Some(now + STREAM_CONNECTION_WAITS));
        connections.expire(now + STREAM_CONNECTION_WAITS - Duration::from_nanos(1));
        assert_eq!(connections.lock().len(), 1);
        connections.expire(now + STREAM_CONNECTION_WAITS);
        assert_eq!(connections.next_timeout(), None);
        for number in 0..STREAM_CONNECTIONS_MAX as u64 {
            connections.keep(name(number), now, socket).unwrap();
        }
        assert!(connections.keep(name(u64::MAX), now, || panic!("there is no room")).is_err());
    }
}
