//! Carries connections over streams, and streams over connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealane::{Error, Stream, StreamListener, StreamOptions, Streams};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::entrance::Entrance;

/// Bytes that are copied at once, in each direction of each connection.
const COPY_BYTES: usize = 512 << 10;

/// Pause after a connection could not be accepted for lack of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Dials a stream for each connection, without end.
pub(super) async fn carry_out(entrance: Entrance, streams: Streams, to: Arc<str>, name: Arc<str>) {
    loop {
        let accepted = match &entrance {
            Entrance::Tcp(listener) => {
                let accepted = listener.accept().await;
                accepted.map(|(connection, from)| carry_one(connection, from.to_string(), &streams, &to, &name))
            }
            Entrance::Unix(listener) => {
                let accepted = listener.accept().await;
                accepted.map(|(connection, _)| carry_one(connection, "this host".to_owned(), &streams, &to, &name))
            }
        };
        if let Err(error) = accepted {
            tracing::warn!(%error, "a connection could not be taken");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

fn carry_one(connection: impl Connection, from: String, streams: &Streams, to: &Arc<str>, name: &str) {
    connection.break_off();
    let (dialing, to) = (streams.connect(to, name, StreamOptions::default()), to.clone());
    tokio::spawn(async move {
        match dialing.await {
            Ok(stream) => carry(connection, stream).await,
            Err(error) => {
                tracing::warn!(%from, %to, %error, "a connection was not carried");
            }
        }
    });
}

/// Makes a connection for each stream; returns why there are no more.
pub(super) async fn carry_in(listener: &StreamListener, target: SocketAddr) -> Error {
    loop {
        let stream = match listener.accept().await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        tokio::spawn(async move {
            match TcpStream::connect(target).await {
                Ok(connection) => carry(connection, stream).await,
                Err(error) => {
                    tracing::warn!(%target, %error, from = stream.peer(), "a connection could not be made");
                    stream.reset(&format!("{target}: {error}"));
                }
            }
        });
    }
}

/// Copies both ways until both have ended. The end of one direction is passed on; if one side breaks off, so does the other.
async fn carry(mut connection: impl Connection, mut stream: Stream) {
    connection.break_off();
    match tokio::io::copy_bidirectional_with_sizes(&mut connection, &mut stream, COPY_BYTES, COPY_BYTES).await {
        Ok(_) => connection.complete(),
        Err(error) => tracing::debug!(%error, peer = stream.peer(), "a carried connection broke off"),
    }
}

/// A local connection that is carried.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    /// Makes it reset when dropped, also when this process is killed: the other end must not take a part for the whole.
    fn break_off(&self);
    /// It has ended in good order: it must no longer be reset.
    fn complete(&self);
}

impl Connection for TcpStream {
    fn break_off(&self) {
        let _ = self.set_nodelay(true);
        linger(self, Some(Duration::ZERO));
    }

    fn complete(&self) {
        linger(self, None);
    }
}

/// The kernel cannot reset these: one that breaks off ends as if it were complete.
impl Connection for UnixStream {
    fn break_off(&self) {}

    fn complete(&self) {}
}

fn linger(connection: &TcpStream, time: Option<Duration>) {
    if let Err(error) = SockRef::from(connection).set_linger(time) {
        tracing::warn!(%error, "a connection that broke off ends as if it were complete");
    }
}
