//! The daemon's metrics over HTTP, for Prometheus and whoever else reads OpenMetrics, with `/healthz` and `/readyz` for
//! orchestrators. On a thread of its own, which reads what the shards show and never asks them. Bounded in connections and in the
//! time that each may take; what is in a request besides its path is not looked at.

mod exposition;
mod families;

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::{Semaphore, oneshot};

pub(in crate::commands) use self::exposition::MEDIA_TYPE;
use self::exposition::exposition;
use super::instruments::Instruments;
use crate::Failure;
use crate::figures::State;
use crate::settings::{MetricsAddress, Source, Sourced};

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last, with all its requests and the time between them.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// How long the head of a request may take to come.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after a connection could not be accepted, as for want of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub(in crate::commands) const TEXT: &str = "text/plain; charset=utf-8";

/// A socket that listens for readers of metrics, before there are any.
pub(super) struct MetricsListener(TcpListener);

impl From<OwnedFd> for MetricsListener {
    /// Of a socket that another daemon has listened at.
    fn from(socket: OwnedFd) -> MetricsListener {
        MetricsListener(socket.into())
    }
}

impl AsFd for MetricsListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

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
        let failed = |error: std::io::Error| unavailable(address, &error);
        let kept = listener.try_clone().map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let listener = runtime.block_on(async { tokio::net::TcpListener::from_std(listener) }).map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let served = async move {
            tokio::select! {
                () = serve(listener, move |path| self::path(path, &instruments)) => {}
                _ = stopped => {}
            }
        };
        let thread = std::thread::Builder::new().name("sealane-metrics".into());
        let thread = thread.spawn(move || runtime.block_on(served)).map_err(failed)?;
        Ok(Metrics { stop: Some(stop), thread: Some(thread), address, listener: Some(MetricsListener(kept)) })
    }
}

/// A running server; it ends when this is dropped.
pub(super) struct Metrics {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    address: SocketAddr,
    listener: Option<MetricsListener>,
}

impl Metrics {
    /// Where it serves.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops; its socket, in which readers wait from now on.
    pub(super) fn into_listener(mut self) -> MetricsListener {
        self.listener.take().expect("it is taken once")
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

/// What there is at a path: status, media type and text.
pub(in crate::commands) type Page = (StatusCode, &'static str, String);

/// Answers requests for pages, without end.
pub(in crate::commands) async fn serve(
    listener: tokio::net::TcpListener,
    pages: impl Fn(&str) -> Page + Clone + Send + 'static,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let socket = match listener.accept().await {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::debug!(%error, "a metrics connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<_>| {
                let answer = answer(request.method(), request.uri().path(), &pages);
                async { Ok::<_, Infallible>(answer) }
            });
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_TIME)
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(socket), answer);
            if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_TIME, connection).await {
                tracing::debug!(%error, "a metrics connection was lost");
            }
            drop(place);
        });
    }
}

/// What a request gets.
fn answer(method: &Method, path: &str, pages: impl Fn(&str) -> Page) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut answer = page((StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are supported\n".into()));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    page(pages(path))
}

/// The daemon's pages.
fn path(path: &str, instruments: &Instruments) -> Page {
    match path {
        "/metrics" => match exposition(instruments.figures()) {
            Ok(text) => (StatusCode::OK, MEDIA_TYPE, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        // Alive as long as it does what it is for, or is about to end in good order.
        "/healthz" => state(instruments.state(), |state| state != State::Failed),
        "/readyz" => state(instruments.state(), |state| state == State::Serving),
        "/" => (StatusCode::OK, TEXT, "A Sealane daemon. See /metrics, /healthz and /readyz.\n".into()),
        _ => (StatusCode::NOT_FOUND, TEXT, "see /metrics, /healthz and /readyz\n".into()),
    }
}

fn state(state: State, is_well: impl Fn(State) -> bool) -> Page {
    let status = if is_well(state) { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, TEXT, format!("{state}\n"))
}

fn page((status, media_type, text): Page) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

#[cfg(test)]
mod tests;
