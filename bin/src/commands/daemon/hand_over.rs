//! The daemon's side of handing over to the next one: it shows what it has, drains once the next one is prepared, sends its
//! sockets, and stops once they have been taken. If the next one fails before that, it serves again.

use std::net::TcpListener;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::shm::attach::{self, Bequest, Estate};
use sealane_transport::{Error, JobName};

use super::connections::Stage;
use super::control::Control;
use super::metrics::MetricsListener;
use super::service_manager;

/// How long the next daemon may take to confirm that it has the sockets: it has nothing else to do then.
const TAKING_TIME: Duration = Duration::from_secs(5);

/// The daemon that replaces this one.
#[derive(Debug)]
pub(super) struct Heir {
    number: u64,
    pid: i32,
    /// What it was sent; `None` while this daemon drains.
    sent: Option<Sent>,
    /// When this daemon was told to stop meanwhile: it does so if the other one fails.
    pub(super) stop_asked: Option<Instant>,
    /// True if this daemon was told to reread its files meanwhile, or they have changed.
    pub(super) reload_asked: bool,
}

/// Sockets that the next daemon has not yet confirmed.
#[derive(Debug)]
struct Sent {
    listeners: Vec<(TransportAddress, TcpListener)>,
    until: Instant,
}

impl Control {
    /// Tells the next daemon, of `job`, what this one has.
    pub(super) fn show_estate(&mut self, now: Instant, number: u64, job: Option<&JobName>) -> Result<(), Error> {
        let connection = self.connections.get_mut(number).expect("it asks");
        self.gate.check_successor(job)?;
        if self.drain.is_some() {
            return Err(Error::unavailable("this daemon", "it is draining; start the next one once it has exited"));
        }
        let failed = |error: &dyn std::fmt::Display| Error::full("memory of this host", error.to_string());
        let claims = self.engine.cpu_claims();
        let locks = claims.iter().map(|claim| claim.duplicate()).collect::<Result<Vec<_>, _>>();
        let estate = Estate {
            pid: std::process::id(),
            release: env!("CARGO_PKG_VERSION").into(),
            drain_timeout_ms: self.drain_timeout.as_millis() as u64,
            listeners: self.engine.listening().iter().map(|(address, at)| (address.to_string(), *at)).collect(),
            metrics: self.metrics.as_ref().map(super::metrics::Metrics::address),
            cpus: claims.iter().map(|claim| claim.cpu()).collect(),
        };
        let locks = locks.map_err(|error| failed(&error))?;
        attach::show_estate(&connection.socket, &estate, &locks).map_err(|error| failed(&error))?;
        (connection.stage, connection.since) = (Stage::Preparing, now);
        tracing::info!(pid = connection.peer.pid, "another daemon prepares to take over");
        Ok(())
    }

    /// Called when the next daemon is prepared.
    pub(super) fn begin_hand_over(&mut self, now: Instant, number: u64) -> Result<(), Error> {
        if let Some(Heir { pid, .. }) = &self.heir {
            return Err(Error::unavailable("this daemon", format!("process {pid} takes over from it already")));
        }
        if self.drain.is_some() {
            return Err(Error::unavailable("this daemon", "it is draining; start the next one once it has exited"));
        }
        let connection = self.connections.get_mut(number).expect("it asks");
        if !matches!(connection.stage, Stage::Preparing) {
            return Err(Error::invalid("hand_over must follow take_over on the same connection"));
        }
        let pid = connection.peer.pid;
        (connection.stage, connection.since) = (Stage::Inheriting, now);
        self.heir = Some(Heir { number, pid, sent: None, stop_asked: None, reload_asked: false });
        self.begin_drain(now, &format!("process {pid}, which takes over"));
        Ok(())
    }

    /// True if this connection is that of the daemon that takes over.
    pub(super) fn is_heir(&self, number: u64) -> bool {
        self.heir.as_ref().is_some_and(|heir| heir.number == number)
    }

    /// Called when the drain is over: sends the sockets to the next daemon. False if there is none.
    pub(super) fn hand_over(&mut self, now: Instant) -> bool {
        let Some(heir) = &mut self.heir else { return false };
        let number = heir.number;
        let listeners = self.engine.yield_listeners().unwrap_or_default();
        let sent = heir.sent.insert(Sent { listeners, until: now + TAKING_TIME });
        self.metrics_listener = self.metrics.take().map(super::metrics::Metrics::into_listener);
        let bequest = Bequest {
            listeners: sent.listeners.iter().map(|(address, socket)| (address.to_string(), socket.as_fd())).collect(),
            metrics: self.metrics_listener.as_ref().map(MetricsListener::as_fd),
            client_socket: self.socket.as_fd(),
            lock: self.socket.lock(),
        };
        let connection = self.connections.get_mut(number).expect("without it there is no heir");
        if let Err(error) = attach::bequeath(&connection.socket, &bequest) {
            self.hang_up(number, &error.to_string());
        }
        true
    }

    /// Time limit for the next daemon to take what it was sent.
    pub(super) fn taking_until(&self) -> Option<Instant> {
        self.heir.as_ref()?.sent.as_ref().map(|sent| sent.until)
    }

    /// Called when the next daemon has the sockets. True if they are its own from now on.
    pub(super) fn let_go(&mut self, number: u64) -> bool {
        let Some(Heir { sent: Some(_), pid, .. }) = self.heir.as_ref().filter(|heir| heir.number == number) else {
            self.refuse(number, &Error::invalid("nothing was handed over yet"));
            return false;
        };
        let pid = *pid;
        let connection = self.connections.get_mut(number).expect("it asks");
        if let Err(error) = attach::let_go(&connection.socket) {
            self.hang_up(number, &error.to_string());
            return false;
        }
        tracing::info!(pid, "another daemon has taken over");
        self.socket.give_away();
        service_manager::is_now(pid);
        true
    }

    /// Called when the next daemon has failed before taking over: serves again.
    pub(super) fn serve_again(&mut self, reason: &str) {
        let Some(Heir { pid, sent, stop_asked, reload_asked, .. }) = self.heir.take() else { return };
        self.drain = None;
        self.instruments.serves();
        if let Err(error) = self.engine.resume(sent.map(|sent| sent.listeners).unwrap_or_default()) {
            tracing::error!(%error, "the engine cannot go on");
        }
        if let Some(listener) = self.metrics_listener.take() {
            match listener.serve(self.instruments.clone()) {
                Ok(metrics) => self.metrics = Some(metrics),
                Err(error) => tracing::error!(%error, "metrics are not served any more"),
            }
        }
        tracing::warn!(
            pid,
            reason,
            "the daemon that was to take over has failed: this one serves on, its clients attach again"
        );
        service_manager::ready(&self.status());
        if reload_asked {
            self.reload(Instant::now());
        }
        if stop_asked.is_some() {
            self.begin_drain(Instant::now(), "somebody, while another daemon was to take over");
        }
    }
}
