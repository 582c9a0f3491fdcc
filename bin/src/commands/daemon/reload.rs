//! The endpoint map and the secret or certificates of a running daemon: reread on request or when a file changes, as a whole or not
//! at all.
//!
//! Threads: a thread of its own rereads them, because a file system or a name server may not answer; the control thread never
//! waits for it. Limits: one such thread at a time; after [`REREAD_TIME`] the log reports it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sealane_fusion::{Engine, LoopbackAddress, loopback_addresses};
use sealane_transport::endpoint_map::{EndpointMap, SharedEndpointMap};

use super::instruments::Instruments;
use super::tasks::{Growth, list};
use super::watch::{Unwatched, Watch};
use crate::engine_settings::authentication;
use crate::local_host::LocalHost;
use crate::settings::{Peers, Security};

/// How long rereading may take before the log reports it: files are read in milliseconds, and looking up names of new hosts takes
/// at most three seconds.
const REREAD_TIME: Duration = Duration::from_secs(5);

/// What is reread, and where the new contents are used.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) map: MapInUse,
    pub(super) security: Security,
    /// `None` if the system has no watches left: then files are reread only on a signal.
    pub(super) watch: Option<Arc<Watch>>,
    pub(super) engine: Engine,
    pub(super) instruments: Instruments,
}

impl Files {
    fn reread(&self) {
        self.watch.iter().flat_map(|watch| watch.renew()).for_each(Unwatched::warn);
        self.map.reload(&self.engine);
        reload_credentials(&self.security, &self.engine, &self.instruments);
    }
}

/// A thread that rereads the files. Its descriptor becomes readable when the thread has finished.
pub(super) struct Rereading {
    finished: UnixStream,
    /// When the log reports that the files have not been read; `None` once it has.
    pub(super) overdue_at: Option<Instant>,
    /// True if the files may have changed after the thread has read them.
    pub(super) again: bool,
}

impl Rereading {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no descriptor or thread left.
    pub(super) fn begin(now: Instant, files: Files) -> io::Result<Rereading> {
        let (finished, held) = UnixStream::pair()?;
        let reread = move || {
            // Closed when the thread ends, also by a panic.
            let _held = held;
            files.reread();
        };
        thread::Builder::new().name("sealane-files".into()).spawn(reread)?;
        Ok(Rereading { finished, overdue_at: Some(now + REREAD_TIME), again: false })
    }

    /// Returns true once, and logs an error, if the thread has not finished in time.
    pub(super) fn is_newly_overdue(&mut self, now: Instant) -> bool {
        let is_overdue = self.overdue_at.take_if(|at| *at <= now).is_some();
        if is_overdue {
            tracing::error!(
                after = ?REREAD_TIME,
                "the endpoint map and credentials are not read yet, and the previous ones stay in use; does their file system respond?"
            );
        }
        is_overdue
    }
}

impl AsFd for Rereading {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.finished.as_fd()
    }
}

/// The map, and how the daemon applies a new one.
#[derive(Clone, Debug)]
pub(super) struct MapInUse {
    map: SharedEndpointMap,
    /// False if the tasks to serve were named one by one: then a new map adds none.
    grows: bool,
}

impl MapInUse {
    pub(super) fn new(map: SharedEndpointMap, grows: bool) -> MapInUse {
        MapInUse { map, grows }
    }

    pub(super) fn snapshot(&self) -> Arc<EndpointMap> {
        self.map.snapshot()
    }

    /// Rereads the file and gives it to the engine. A wrong file is logged, and the old map stays.
    fn reload(&self, engine: &Engine) {
        let changed = match self.map.reload() {
            Ok(changed) if changed.is_empty() => return tracing::debug!("the endpoint map is unchanged"),
            Ok(changed) => changed,
            Err(error) => return tracing::error!(%error, "the previous endpoint map stays in use"),
        };
        let map = self.map.snapshot();
        let fresh = [changed.added.as_slice(), &changed.moved].concat();
        let mut growth = Growth::of(&map, &fresh, &engine.tasks(), engine.addresses());
        if !self.grows {
            growth = Growth { gone: growth.gone, ..Growth::default() };
        }
        warn_of_loopback(engine, &map);
        match engine.set_map(map, &growth.more) {
            Ok(()) => tracing::info!(%changed, more = list(&growth.more, "none"), "the endpoint map was reloaded"),
            Err(error) => return tracing::error!(%error, "the engine rejects the new endpoint map"),
        }
        warn(&growth);
    }
}

/// Rereads the credential files and gives their contents to the engine. Wrong files are logged and counted, and the old credentials
/// stay in use.
fn reload_credentials(security: &Security, engine: &Engine, instruments: &Instruments) {
    if security.peers == Peers::Anyone {
        return;
    }
    let taken = authentication(security).map_err(|failure| failure.to_string()).and_then(|new| {
        if new.is_same(&engine.authentication()) {
            return Ok(false);
        }
        engine.set_authentication(new).map(|()| true).map_err(|error| error.to_string())
    });
    match taken {
        Ok(false) => tracing::debug!("the credentials are unchanged"),
        Ok(true) => {
            instruments.credentials_taken();
            let shown = engine.authentication().name();
            tracing::info!(shown, "the credentials were reloaded: new links use them");
        }
        Err(error) => {
            instruments.credentials_refused();
            tracing::error!(error, "the previous credentials stay in use");
        }
    }
}

/// Warns of loopback addresses at which the daemon listens, if the new map has other hosts.
fn warn_of_loopback(engine: &Engine, map: &EndpointMap) {
    let listening = engine.listening().into_iter().filter(|(_, at)| at.ip().to_canonical().is_loopback());
    let addresses: Vec<_> = listening.map(|(address, _)| address).collect();
    for LoopbackAddress { address, ip } in loopback_addresses(map, &addresses, None) {
        tracing::warn!(%address, %ip, "other hosts of the new map cannot connect to this address; restart the daemon");
    }
}

/// Warns of changes in a new map that a running daemon cannot apply.
fn warn(growth: &Growth) {
    if !growth.gone.is_empty() {
        let tasks = list(&growth.gone, "none");
        tracing::warn!(tasks, "tasks that the new map does not list here are served until the daemon restarts");
    }
    if growth.new_addresses.is_empty() {
        return;
    }
    let here = LocalHost::look().of_these(&growth.new_addresses);
    if !here.is_empty() {
        let addresses = list(&here, "none");
        tracing::warn!(
            addresses,
            "the new map has more transport addresses of this host; restart the daemon to listen there"
        );
    }
}
