//! `sealane forward`: carries the TCP connections of programs that cannot be changed over Sealane's links, from one task to another.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sealane::{Attach, Error, Stream, StreamListener, StreamOptions, Streams};
use tokio::net::{TcpListener, TcpStream};

use super::daemon::socket_override;
use crate::flags::SettingsFlags;
use crate::{Context, Failure};

/// Bytes that are copied at once, each way of each connection.
const COPY_BYTES: usize = 128 << 10;

/// After a connection could not be taken, for want of descriptors or memory, until the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Carry the TCP connections of other programs to another task
///
/// With --listen and --to, connections to that address are carried to the forwarder of that task. With --target, those that other
/// forwarders carry here are made to that address. Both may be given. Runs until it is ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane forward --task ps0:2222 --target 127.0.0.1:50051\n  \
    sealane forward --task worker0:2222 --listen 127.0.0.1:50051 --to ps0:2222")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// The task to attach as, as the endpoint map names it
    #[arg(long, value_name = "TASK")]
    task: String,

    /// Take connections here; port 0 for any free one, which is printed
    #[arg(long, value_name = "ADDRESS", requires = "to", required_unless_present = "target")]
    listen: Option<SocketAddr>,

    /// Carry them to the forwarder of this task
    #[arg(long, value_name = "TASK", requires = "listen")]
    to: Option<String>,

    /// Make connections to this address for others' forwarders
    #[arg(long, value_name = "ADDRESS")]
    target: Option<SocketAddr>,

    /// Tells this forwarding from others between the same tasks
    #[arg(long, value_name = "NAME", default_value = "forward")]
    name: String,

    /// The socket of the daemon to attach to [default: this host's daemon]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Runs `sealane forward`.
///
/// # Errors
///
/// A setting or address is wrong, there is no daemon, or it has gone.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let settings = context.settings_with(&args.settings, socket_override(args.socket.as_ref())?)?;
    let task = Attach::new(&args.task).socket(&settings.daemon.socket.value).attach().map_err(Failure::work)?;
    let streams = Streams::of(&task);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::work(format!("no thread can serve connections ({error})")))?;
    runtime.block_on(async {
        let outward = async {
            let (Some(address), Some(to)) = (args.listen, args.to.as_deref()) else {
                return std::future::pending().await;
            };
            let listener = TcpListener::bind(address).await;
            let listener =
                listener.map_err(|error| Failure::work(format!("{address}: {error}; choose another --listen")))?;
            let address = listener.local_addr().unwrap_or(address);
            context.print(&format!("connections to {address} are carried to {to}\n"))?;
            Err(carry_out(&listener, &streams, to.into(), &args.name).await)
        };
        let inward = async {
            let Some(target) = args.target else { return std::future::pending().await };
            let listener = streams.listen(&args.name, StreamOptions::default()).map_err(Failure::work)?;
            context.print(&format!("connections that are carried to {} are made to {target}\n", args.task))?;
            Err(Failure::work(carry_in(&listener, target).await))
        };
        tokio::select! {
            ended = outward => ended,
            ended = inward => ended,
        }
    })
}

/// Dials a stream for each connection.
async fn carry_out(listener: &TcpListener, streams: &Streams, to: Arc<str>, name: &str) -> Failure {
    loop {
        let (connection, from) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "a connection could not be taken");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (dialing, to) = (streams.connect(&to, name, StreamOptions::default()), to.clone());
        tokio::spawn(async move {
            match dialing.await {
                Ok(stream) => carry(connection, stream).await,
                Err(error) => {
                    tracing::warn!(%from, %to, %error, "a connection was not carried");
                    break_off(&connection);
                }
            }
        });
    }
}

/// Makes a connection for each stream; why there are no more.
async fn carry_in(listener: &StreamListener, target: SocketAddr) -> Error {
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
    if let Err(error) =
        tokio::io::copy_bidirectional_with_sizes(&mut connection, &mut stream, COPY_BYTES, COPY_BYTES).await
    {
        tracing::debug!(%error, peer = stream.peer(), "a carried connection broke off");
        break_off(&connection);
    }
}

/// Has a connection reset when it is dropped: who has the other end must not take a part for all.
fn break_off(connection: &TcpStream) {
    if let Err(error) = connection.set_zero_linger() {
        tracing::warn!(%error, "a connection that broke off ends as if it were complete");
    }
}
