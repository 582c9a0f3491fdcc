//! gRPC over streams, with tonic: a channel's connector, and a server's connections.

use std::{
    fmt, io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use hyper_util::rt::TokioIo;
use sealane_transport::{Code, Error};
use tokio::time::{Sleep, sleep};
use tonic::{
    codegen::{BoxFuture, Service},
    transport::{Uri, server::Connected},
};

use super::{Stream, StreamListener, StreamOptions, Streams};
use crate::limits::ACCEPT_PAUSE;

impl Streams {
    /// Connects a tonic channel to the service that `peer` serves under this name, and reconnects whenever its stream is lost. The
    /// endpoint's address is only what requests name as their host.
    ///
    /// ```no_run
    /// # async fn call(task: sealane::Task) -> Result<(), Box<dyn std::error::Error>> {
    /// use sealane::{StreamOptions, Streams};
    /// use tonic::transport::Endpoint;
    ///
    /// let connector = Streams::of(&task).connector("ps0.train:2222", "health", StreamOptions::default());
    /// let channel = Endpoint::from_static("http://ps0").connect_with_connector_lazy(connector);
    /// # drop(channel);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connector(&self, peer: &str, name: &str, options: StreamOptions) -> Connector {
        Connector { streams: self.clone(), peer: peer.into(), name: name.into(), options }
    }
}

impl StreamListener {
    /// Accepted streams, as connections for tonic's `Server::serve_with_incoming`; they continue after a restart of the daemon.
    /// Services find a [`StreamPeer`] in their requests' extensions.
    pub fn incoming(self) -> Incoming {
        Incoming { listener: self, pause: None }
    }
}

/// Dials a stream for each connection of a tonic channel. From [`Streams::connector`].
#[derive(Clone)]
pub struct Connector {
    streams: Streams,
    peer: Arc<str>,
    name: Arc<str>,
    options: StreamOptions,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = Error;
    type Future = BoxFuture<TokioIo<Stream>, Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        self.streams.0.drive_here();
        let dialing = self.streams.connect(&self.peer, &self.name, self.options);
        Box::pin(async move { dialing.await.map(TokioIo::new) })
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connector(to {} at {})", self.name, self.peer)
    }
}

/// Accepted streams, until the listener fails other than by the loss of its daemon. From [`StreamListener::incoming`].
pub struct Incoming {
    listener: StreamListener,
    /// Until when not to ask, since there was no daemon.
    pause: Option<Pin<Box<Sleep>>>,
}

impl futures_util::Stream for Incoming {
    type Item = io::Result<Stream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.listener.hub.drive_here();
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok(stream) => return Poll::Ready(Some(Ok(stream))),
                Err(error) if error.code() == Code::Unavailable => self.pause = Some(Box::pin(sleep(ACCEPT_PAUSE))),
                // Nothing comes any more.
                Err(_) => return Poll::Ready(None),
            }
        }
    }
}

/// The task that has dialed the stream of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamPeer(pub Arc<str>);

impl Connected for Stream {
    type ConnectInfo = StreamPeer;

    fn connect_info(&self) -> StreamPeer {
        StreamPeer(self.key.peer.clone())
    }
}
