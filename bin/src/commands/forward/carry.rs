//! Connections to streams, and streams to connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sealane::{Error, Stream, StreamListener, StreamOptions, Streams};
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};

/// Bytes that are copied at once, each way of each connection.
const COPY_BYTES: usize = 128 << 10;

/// After a connection could not be taken, for want of descriptors or memory, until the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Dials a stream for each connection, without end.
pub(super) async fn carry_out(listener: TcpListener, streams: Streams, to: Arc<str>, name: Arc<str>) {
    loop {
        let (connection, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        break_off(&connection);
        let (dialing, to) = (streams.connect(&to, &name, StreamOptions::default()), to.clone());
        tokio::spawn(async move {
            match dialing.await {
                Ok(stream) => carry(connection, stream).await,
                Err(error) => {
                    tracing::warn!(%from, %to, %error, "a connection was not carried");
                }
            }
        });
    }
}

/// Makes a connection for each stream; why there are no more.
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

/// Copies both ways until both have ended. An end of one way is passed on; what breaks off at one side breaks off at the other.
async fn carry(mut connection: TcpStream, mut stream: Stream) {
    let _ = connection.set_nodelay(true);
    break_off(&connection);
    match tokio::io::copy_bidirectional_with_sizes(&mut connection, &mut stream, COPY_BYTES, COPY_BYTES).await {
        Ok(_) => linger(&connection, None),
        Err(error) => tracing::debug!(%error, peer = stream.peer(), "a carried connection broke off"),
    }
}

/// Has a connection reset when it is dropped, also when this process is killed: who has the other end must not take a part for all.
fn break_off(connection: &TcpStream) {
    linger(connection, Some(Duration::ZERO));
}

fn linger(connection: &TcpStream, time: Option<Duration>) {
    if let Err(error) = SockRef::from(connection).set_linger(time) {
        tracing::warn!(%error, "a connection that broke off ends as if it were complete");
    }
}
