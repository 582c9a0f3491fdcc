//! The daemon's metrics over HTTP, for Prometheus and whoever else reads OpenMetrics, with `/healthz` and `/readyz` for
//! orchestrators. On a thread of its own, which reads what the shards show and never asks them.

mod exposition;
mod families;
mod server;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use tokio::sync::oneshot;

use super::instruments::Instruments;
use crate::Failure;
use crate::settings::{MetricsAddress, Source, Sourced};

/// A socket that listens for readers of metrics, before there are any.
pub(super) struct MetricsListener(TcpListener);

impl MetricsListener {
    /// Listens at the address that the settings name. `None` where they turn it off, and where the address that nobody chose is
    /// in use, as by another daemon of this host: that is said, and the daemon goes on without.
    ///
    /// # Errors
    /// The address that somebody chose cannot be listened on.
    pub(super) fn bind(setting: &Sourced<MetricsAddress>) -> Result<Option<MetricsListener>, Failure> {
        let MetricsAddress::At(address) = setting.value else { return Ok(None) };
        let bound = TcpListener::bind(address).and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
        match bound {
            Ok(listener) => Ok(Some(MetricsListener(listener))),
            Err(error) if setting.source == Source::Default && error.kind() == ErrorKind::AddrInUse => {
                tracing::warn!(%address, "no metrics: the address is in use, as by another daemon; name one with --metrics");
                Ok(None)
            }
            Err(error) => Err(unavailable(address, &error)),
        }
    }

    /// Serves what the instruments show, on a thread of its own.
    ///
    /// # Errors
    /// The system has no thread or no descriptor for it.
    pub(super) fn serve(self, instruments: Instruments) -> Result<Metrics, Failure> {
        let MetricsListener(listener) = self;
        let address = listener.local_addr().map_err(|error| {
            Failure::work(format!("the metrics socket has no address ({error}); start the daemon again"))
        })?;
        let (stop, stopped) = oneshot::channel();
        // Room for the one word that it says.
        let (tell, told) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("sealane-metrics".into())
            .spawn(move || server::run(listener, instruments, stopped, &tell))
            .map_err(|error| unavailable(address, &error))?;
        let metrics = Metrics { stop: Some(stop), thread: Some(thread), address };
        match told.recv() {
            Ok(Ok(())) => Ok(metrics),
            Ok(Err(error)) => Err(unavailable(address, &error)),
            Err(_) => {
                Err(Failure::work(format!("the metrics server at {address} ended as it began; the log says why")))
            }
        }
    }
}

/// A running server; it ends when this is dropped.
pub(super) struct Metrics {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
}

impl Metrics {
    /// Where it serves.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // One that has ended needs no word.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            // Whatever it panicked with was reported when it did.
            let _ = thread.join();
        }
    }
}

fn unavailable(address: SocketAddr, error: &std::io::Error) -> Failure {
    Failure::work(format!(
        "metrics cannot be served at {address} ({error}); name another address with --metrics, or turn them off with --metrics off"
    ))
}

#[cfg(test)]
mod tests;
