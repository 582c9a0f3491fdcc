//! The daemon's metrics over HTTP, for Prometheus and other readers of OpenMetrics or of the older text format, with `/healthz` and `/readyz` for
//! orchestrators. Runs on its own thread, which reads what the shards publish and never asks them. Bounded in connections and in
//! the time of each; only the path of a request is looked at.

mod classic;
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
use hyper::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use sealane_runtime::WithRemedy;
use tokio::sync::{Semaphore, oneshot};

pub(in crate::commands) use self::exposition::MEDIA_TYPE;
use self::exposition::exposition;
use super::instruments::Instruments;
use crate::Failure;
use crate::figures::State;
use crate::settings::{MetricsAddress, Source, Sourced};

/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// How long a connection may last, including all its requests and the time between them.
const CONNECTION_TIME: Duration = Duration::from_secs(60);
/// How long the head of a request may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after a connection could not be accepted, for example for lack of a descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The name of OpenMetrics among media types.
const OPEN_METRICS: &str = "application/openmetrics-text";

pub(in crate::commands) const TEXT: &str = "text/plain; charset=utf-8";

/// A listening socket for metrics that is not served yet.
pub(super) struct MetricsListener(TcpListener);

impl From<OwnedFd> for MetricsListener {
    /// Takes a socket that another daemon has listened on.
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
    /// Listens at the address in the settings. `None` if they turn it off, or if the default address is in use, for example by
    /// another daemon of this host: that is logged, and the daemon goes on without metrics.
    ///
    /// # Errors
    /// The configured address cannot be listened on.
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

    /// Serves what the instruments show, on its own thread.
    ///
    /// # Errors
    /// The system has no thread or descriptor left.
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
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops the server and returns its socket, in which readers wait from now on.
    pub(super) fn into_listener(mut self) -> MetricsListener {
        self.listener.take().expect("it is taken once")
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        // A server that has ended need not be told.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn unavailable(address: SocketAddr, error: &std::io::Error) -> Failure {
    Failure::work(format!(
        "metrics cannot be served at {address} ({error}); name another address with --metrics, or turn them off with --metrics off"
    ))
}

/// The answer for a path: status, media type and text.
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
                tracing::debug!(error = %WithRemedy(&error), "a metrics connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let answer = service_fn(move |request: Request<_>| {
                let answer = answer(request.method(), request.uri().path(), request.headers(), &pages);
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

fn answer(method: &Method, path: &str, headers: &HeaderMap, pages: impl Fn(&str) -> Page) -> Response<Full<Bytes>> {
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut answer = page((StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET and HEAD are supported\n".into()));
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    page(match pages(path) {
        (status, MEDIA_TYPE, text) if !accepts_open_metrics(headers) => {
            (status, classic::MEDIA_TYPE, classic::from_open_metrics(&text))
        }
        answer => answer,
    })
}

/// True for readers that name OpenMetrics among what they accept, as Prometheus does; others expect the older text format.
fn accepts_open_metrics(headers: &HeaderMap) -> bool {
    headers.get_all(ACCEPT).iter().any(|accepts| accepts.to_str().is_ok_and(|names| names.contains(OPEN_METRICS)))
}

fn path(path: &str, instruments: &Instruments) -> Page {
    match path {
        "/metrics" => match exposition(instruments.figures()) {
            Ok(text) => (StatusCode::OK, MEDIA_TYPE, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("{error}\n")),
        },
        // Alive as long as it does its work, or is about to end in good order.
        "/healthz" => health(instruments, |state| state != State::Failed),
        "/readyz" => health(instruments, |state| state == State::Serving),
        "/" => (StatusCode::OK, TEXT, "A Sealane daemon. See /metrics, /healthz and /readyz.\n".into()),
        _ => (StatusCode::NOT_FOUND, TEXT, "see /metrics, /healthz and /readyz\n".into()),
    }
}

fn health(instruments: &Instruments, is_well: impl Fn(State) -> bool) -> Page {
    judged(instruments.state(), instruments.control_fault(), is_well)
}

/// The answer about a daemon in a state, and with a fault of its control thread if it has one.
fn judged(state: State, fault: Option<String>, is_well: impl Fn(State) -> bool) -> Page {
    let status = if is_well(state) && fault.is_none() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let fault = fault.map_or_else(String::new, |fault| format!("; {fault}"));
    (status, TEXT, format!("{state}{fault}\n"))
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
