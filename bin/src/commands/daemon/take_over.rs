//! `sealane daemon --take-over`: replaces the daemon that serves at the socket. Everything slow is done while that one still
//! serves: the shards start and populate their memory. Only then is it asked to drain and hand over its sockets. Blocks the main
//! thread, at most until each step's deadline; if the other daemon fails meanwhile, this one starts without it.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::geteuid;
use sealane_fusion::{Engine, EngineSettings, Prepared};
use sealane_runtime::CpuClaim;
use sealane_transport::JobName;
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::shm::attach::{AttachError, Estate, Inheritance, Shown, Successor};

use super::metrics::MetricsListener;
use super::signals::{Signals, Wish};
use super::socket::{Claim, ClientSocket, Inherited};
use crate::Failure;
use crate::settings::{MetricsAddress, Settings};

/// How long the other daemon may take to show what it has: it does so at once, unless it hangs.
const SHOWING_TIME: Duration = Duration::from_secs(5);

/// How much longer than its drain the other daemon may take to hand over.
const HAND_OVER_TIME: Duration = Duration::from_secs(10);

/// How long to wait for the lock of a daemon that has hung up: the kernel releases it when its process is gone.
const LOCK_TIME: Duration = Duration::from_secs(2);

/// Time between two attempts to take that lock.
const LOCK_LOOK: Duration = Duration::from_millis(10);

pub(super) struct Serving {
    pub(super) engine: Engine,
    pub(super) socket: ClientSocket,
    pub(super) metrics: Option<MetricsListener>,
}

/// The daemon that this one replaces. If dropped before [`take_over`](Self::take_over), it serves on.
pub(super) struct Predecessor {
    successor: Successor,
    estate: Estate,
    locks: Vec<OwnedFd>,
    socket: PathBuf,
}

impl Predecessor {
    /// The daemon that serves `job` at the path, or the right to serve there if none does.
    ///
    /// # Errors
    /// The daemon that serves there does not hand over to this one, or the path cannot be used.
    pub(super) fn find(path: &Path, job: Option<&JobName>) -> Result<Result<Predecessor, Claim>, Failure> {
        let until = Instant::now() + SHOWING_TIME;
        let announced = loop {
            if let Ok(claim) = Claim::take_if_free(path)? {
                tracing::info!(socket = %path.display(), "no daemon serves here, so there is none to take over from");
                return Ok(Err(claim));
            }
            match Successor::announce(path, job.cloned(), until) {
                // It is starting, or about to end.
                Err(AttachError::Connect { .. } | AttachError::HungUp) if Instant::now() < until => {
                    std::thread::sleep(LOCK_LOOK);
                }
                announced => break announced,
            }
        };
        let (successor, shown) = announced.map_err(|error| {
            Failure::work(format!(
                "the daemon at {} does not hand over ({error}), and serves on; stop it with `sealane drain`, then start this one",
                path.display()
            ))
        })?;
        let Shown { estate, predecessor, locks } = shown;
        let (own, other) = (geteuid().as_raw(), predecessor.uid);
        if own != other {
            return Err(Failure::work(format!(
                "the daemon at {} is user id {other}'s, and this one is user id {own}'s: start this one as that user",
                path.display()
            )));
        }
        tracing::info!(process = estate.pid, release = estate.release, "this daemon prepares to take over");
        Ok(Ok(Predecessor { successor, estate, locks, socket: path.to_owned() }))
    }

    pub(super) fn cpus(&self) -> &[usize] {
        &self.estate.cpus
    }

    /// Sets up an engine next to the other daemon's.
    ///
    /// # Errors
    /// The engine cannot start; the other daemon serves on.
    pub(super) fn prepare(&mut self, settings: EngineSettings) -> Result<Prepared, Failure> {
        let directory = settings.runtime.claim_directory.clone();
        let locks = self.estate.cpus.iter().zip(self.locks.drain(..));
        let shared = locks.filter_map(|(&cpu, lock)| match CpuClaim::share(&directory, cpu, lock) {
            Ok(claim) => Some(claim),
            Err(error) => {
                tracing::warn!(%error, cpu, "a CPU of the other daemon cannot be taken over");
                None
            }
        });
        let shared = shared.collect();
        let inherits = self.estate.listeners.iter().filter_map(|(address, at)| Some((address.parse().ok()?, *at)));
        let inherits: Vec<(TransportAddress, SocketAddr)> = inherits.collect();
        Engine::prepare(settings, shared, &inherits).map_err(Failure::work)
    }

    /// Listens for metrics, unless the other daemon serves them at that address: then it hands over that socket.
    ///
    /// # Errors
    /// The configured address cannot be listened on.
    pub(super) fn bind_metrics(&self, settings: &Settings) -> Result<Option<MetricsListener>, Failure> {
        let setting = &settings.daemon.metrics;
        match (&setting.value, self.estate.metrics) {
            (MetricsAddress::At(wanted), Some(at)) if *wanted == at => Ok(None),
            _ => MetricsListener::bind(setting),
        }
    }

    /// Has the other daemon hand over, then serves; without its sockets, if it fails on the way.
    ///
    /// # Errors
    /// The other daemon refuses and serves on, or a signal asks to stop, or what was handed over cannot be used.
    pub(super) fn take_over(
        mut self,
        prepared: Prepared,
        metrics: Option<MetricsListener>,
        (settings, signals, open_to_others): (&Settings, &Signals, bool),
    ) -> Result<Serving, Failure> {
        match self.inherit(signals) {
            Ok(HandedOver { socket, listeners, metrics: handed }) => {
                let socket = socket.own(open_to_others)?;
                let engine = prepared.open(listeners).map_err(Failure::work)?;
                let handed = handed.filter(|_| settings.daemon.metrics.value != MetricsAddress::Off);
                let metrics = metrics.or(handed.map(MetricsListener::from));
                Ok(Serving { engine, socket, metrics })
            }
            Err(Trouble::Serves(failure)) => Err(failure),
            Err(Trouble::HungUp(error)) => {
                // Its connection ends here, and so does this process's share of its locks.
                let Predecessor { socket: path, estate, .. } = self;
                let claim = claim_from(&path, &error)?;
                tracing::warn!(%error, process = estate.pid, "the daemon that was to hand over has ended: this one starts without it");
                let metrics = match metrics {
                    Some(metrics) => Some(metrics),
                    None => MetricsListener::bind(&settings.daemon.metrics)?,
                };
                let engine = prepared.open(Vec::new()).map_err(Failure::work)?;
                Ok(Serving { engine, socket: claim.listen(open_to_others)?, metrics })
            }
        }
    }

    fn inherit(&mut self, signals: &Signals) -> Result<HandedOver, Trouble> {
        let trouble = |error: AttachError| match error {
            AttachError::Refused(error) => {
                let socket = self.socket.display();
                Trouble::Serves(Failure::work(format!(
                    "the daemon at {socket} does not hand over ({error}), and serves on"
                )))
            }
            error => Trouble::HungUp(error),
        };
        go_on(signals)?;
        let drain = Duration::from_millis(self.estate.drain_timeout_ms);
        let inherited = self.successor.inherit(Instant::now() + drain + HAND_OVER_TIME).map_err(trouble)?;
        let Inheritance { listeners, metrics, client_socket, lock } = inherited;
        let socket = Inherited::check(&self.socket, client_socket, lock).map_err(Trouble::Serves)?;
        let listeners =
            listeners.into_iter().filter_map(|(address, socket)| Some((address.parse().ok()?, socket.into())));
        let listeners = listeners.collect();
        go_on(signals)?;
        self.successor.taken(Instant::now() + HAND_OVER_TIME).map_err(trouble)?;
        Ok(HandedOver { socket, listeners, metrics })
    }
}

struct HandedOver {
    socket: Inherited,
    listeners: Vec<(TransportAddress, TcpListener)>,
    metrics: Option<OwnedFd>,
}

/// Why nothing was handed over.
enum Trouble {
    /// The other daemon serves on.
    Serves(Failure),
    /// Unknown whether the other daemon serves on.
    HungUp(AttachError),
}

/// A stop signal that arrives meanwhile ends this daemon before it serves.
fn go_on(signals: &Signals) -> Result<(), Trouble> {
    match signals.next() {
        Some(Wish::Stop) => {
            Err(Trouble::Serves(Failure::work("stopped by a signal before it took over; the other daemon serves on")))
        }
        // The files are read again once this daemon serves.
        Some(Wish::Reload | Wish::Replace) | None => Ok(()),
    }
}

/// Takes the path over from a daemon that has hung up, once its process is gone.
fn claim_from(path: &Path, error: &AttachError) -> Result<Claim, Failure> {
    let until = Instant::now() + LOCK_TIME;
    loop {
        if let Ok(claim) = Claim::take_if_free(path)? {
            return Ok(claim);
        }
        if Instant::now() >= until {
            return Err(Failure::work(format!(
                "the daemon at {} did not hand over ({error}); it serves on, or another one that took over; its log says why",
                path.display()
            )));
        }
        std::thread::sleep(LOCK_LOOK);
    }
}
