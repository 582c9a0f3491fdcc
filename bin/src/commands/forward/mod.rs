//! `sealane forward`: carries the TCP connections of programs that cannot be changed over Sealane's links, from one task to another.

mod carry;
mod figures;
mod job;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use sealane::{Attach, EndpointMap, StreamOptions, Streams};
use tokio::net::TcpListener;

use super::daemon::{allow_many_descriptors, metrics::serve, socket_override};
use crate::flags::SettingsFlags;
use crate::settings::TF_CONFIG;
use crate::{Context, Failure};

/// Carry the TCP connections of other programs to another task
///
/// With --listen and --to, connections to that address are carried to the forwarder of that task; with --map, those to a local port
/// for each other task. With --target, those that other forwarders carry here are made to that address. Runs until it is ended.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane forward --task ps0:2222 --target 127.0.0.1:50051\n  \
    sealane forward --task worker0:2222 --listen 127.0.0.1:50051 --to ps0:2222\n  \
    sealane forward --task worker0:2222 --target 127.0.0.1:2222 --map")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// The task to attach as, as the endpoint map names it
    #[arg(long, value_name = "TASK")]
    task: String,

    /// Take connections here; port 0 for any free one, which is printed
    #[arg(long, value_name = "ADDRESS", requires = "to", required_unless_present_any = ["target", "map"])]
    listen: Option<SocketAddr>,

    /// Carry them to the forwarder of this task
    #[arg(long, value_name = "TASK", requires = "listen")]
    to: Option<String>,

    /// Take connections for every other task of the endpoint map, each at a free port of this host, and print TF_CONFIG with those
    /// addresses; without TF_CONFIG, the tasks and the addresses
    #[arg(long, conflicts_with = "listen")]
    map: bool,

    /// Make connections to this address for others' forwarders
    #[arg(long, value_name = "ADDRESS")]
    target: Option<SocketAddr>,

    /// Tells this forwarding from others between the same tasks
    #[arg(long, value_name = "NAME", default_value = "forward")]
    name: String,

    /// Serve figures of what is carried, by peer, over HTTP here, at /metrics; port 0 for any free one, which is printed
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,

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
    let routes = routes(args, &settings.transport.endpoint_map.value)?;
    allow_many_descriptors();
    let task = Attach::new(&args.task).socket(&settings.daemon.socket.value).attach().map_err(Failure::work)?;
    let streams = Streams::of(&task);
    let name: Arc<str> = args.name.as_str().into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::work(format!("no thread can serve connections ({error})")))?;
    runtime.block_on(async {
        let incoming = args.target.map(|_| streams.listen(&name, StreamOptions::default()));
        let incoming = incoming.transpose().map_err(Failure::work)?;
        let mut metrics = String::new();
        if let Some(address) = args.metrics {
            let shown = streams.clone();
            let (listener, address) = listen(address, "no metrics can be served", "--metrics").await?;
            tokio::spawn(serve(listener, move |path| figures::page(path, &shown)));
            metrics = format!("metrics at http://{address}/metrics\n");
        }
        let mut addresses = BTreeMap::new();
        for (address, to) in routes {
            let (listener, address) =
                listen(address, &format!("no connections to {to} can be taken"), "--listen").await?;
            tokio::spawn(carry::carry_out(listener, streams.clone(), to.as_str().into(), name.clone()));
            addresses.insert(to, address);
        }
        // Everything is there when somebody reads that it is.
        if args.map {
            let config = context.environment().get(TF_CONFIG)?;
            context.print(&job::rewritten(config, &args.task, &addresses)?)?;
        } else {
            for (to, address) in addresses {
                context.print(&format!("connections to {address} are carried to {to}\n"))?;
            }
            context.print(&metrics)?;
        }
        let (Some(incoming), Some(target)) = (incoming, args.target) else { return std::future::pending().await };
        if !args.map {
            context.print(&format!("connections that are carried to {} are made to {target}\n", args.task))?;
        }
        Err(Failure::work(carry::carry_in(&incoming, target).await))
    })
}

/// Where connections are taken, and to whom they are carried.
fn routes(args: &Args, map: &std::path::Path) -> Result<Vec<(SocketAddr, String)>, Failure> {
    if !args.map {
        return Ok(args.listen.zip(args.to.clone()).into_iter().collect());
    }
    let map = EndpointMap::load(map)?;
    let others = map.iter().map(|(task, _)| task.to_string()).filter(|task| *task != args.task);
    Ok(others.map(|task| (SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), task)).collect())
}

async fn listen(address: SocketAddr, what: &str, flag: &str) -> Result<(TcpListener, SocketAddr), Failure> {
    let bound = TcpListener::bind(address).await.and_then(|listener| {
        let address = listener.local_addr()?;
        Ok((listener, address))
    });
    let what_to_do = match address.port() {
        0 => "free some ports of this host, or name fewer tasks with --listen and --to".to_owned(),
        _ => format!("choose another {flag}"),
    };
    bound.map_err(|error| Failure::work(format!("{what} at {address} ({error}); {what_to_do}")))
}
