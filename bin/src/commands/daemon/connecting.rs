//! Connections to other hosts for the streams of clients: each is made on its own thread, since it takes round trips; that thread
//! also answers the client. Bounded by [`CONNECTING_MAX`].

use std::sync::atomic::{AtomicUsize, Ordering};

use sealane_fusion::Engine;
use sealane_transport::Error;
use sealane_transport::shm::attach;

use super::connections::Connection;

/// Connections being made at once: a client asks for one after a stream has carried some bytes, and asks again after a pause.
const CONNECTING_MAX: usize = 32;

static CONNECTING: AtomicUsize = AtomicUsize::new(0);

/// The right to make one of these connections.
pub(super) struct Place(());

impl Place {
    pub(super) fn take() -> Option<Place> {
        let more = |now| (now < CONNECTING_MAX).then_some(now + 1);
        CONNECTING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| Place(()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        CONNECTING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Makes a connection between the two tasks, and answers the client on its connection `asking`, which is then closed.
pub(super) fn answer(engine: Engine, asking: Connection, (task, peer): (String, String), place: Place) {
    let connect = move || {
        let _place = place;
        let answered = match engine.connect_for_stream(&task, &peer) {
            Ok((number, socket)) => attach::give_connection(&asking.socket, number, &socket),
            Err(error) => refuse(&asking, &task, &peer, &error),
        };
        if let Err(error) = answered {
            tracing::debug!(%error, task, peer, "a client does not wait for its connection any more");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("sealane-connect".into()).spawn(connect) {
        tracing::warn!(%error, "no thread is available to make a connection for a stream");
    }
}

fn refuse(asking: &Connection, task: &str, peer: &str, error: &Error) -> Result<(), sealane_transport::shm::ShmError> {
    tracing::debug!(%error, task, peer, "no connection is made for a stream");
    attach::refuse(&asking.socket, error)
}
