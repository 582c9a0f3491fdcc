//! `sealane forward`: carries unmodified programs' TCP connections over Sealane's links, from one task to another.

mod carry;
mod entrance;
mod figures;
mod job;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use sealane::{Attach, EndpointMap, StreamOptions, Streams};

use super::daemon::{allow_many_descriptors, metrics::serve, socket_override};
use crate::flags::SettingsFlags;
use crate::settings::{Source, TF_CONFIG};
use crate::{Context, Failure};
use entrance::{Address, Entrance, FileMode, listen};

/// Carry TCP connections of unmodified programs to another task
///
/// With --listen and --to, accepts connections at a local address and carries them to that task's forwarder. With --map, does so
/// for every other task of the endpoint map. With --target, connects to that address for each connection that another forwarder
/// carries here. Runs until it is stopped.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("ways").args(["listen", "map", "target"]).required(true).multiple(true))]
#[command(after_help = "Example:\n  sealane forward --task ps0:2222 --target 127.0.0.1:50051\n  \
    sealane forward --task worker0:2222 --listen 127.0.0.1:50051 --to ps0:2222\n  \
    sealane forward --task worker0:2222 --target 127.0.0.1:2222 --map")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// Attach as this task of the endpoint map
    #[arg(long, value_name = "TASK")]
    task: String,

    /// Accept connections here: IP:PORT, with port 0 for a free one, which is printed; or unix:PATH
    #[arg(long, value_name = "ADDRESS", requires = "to")]
    listen: Option<Address>,

    /// The mode of the socket of --listen unix:PATH: who may connect [default: 0600, this user]
    #[arg(long, value_name = "MODE", requires = "listen")]
    listen_mode: Option<FileMode>,

    /// Carry accepted connections to this task's forwarder
    #[arg(long, value_name = "TASK", requires = "listen")]
    to: Option<String>,

    /// Accept connections for every other task of the endpoint map, each at a free local port, and print TF_CONFIG with these
    /// addresses; without TF_CONFIG, print the tasks and their addresses
    #[arg(long, conflicts_with = "listen")]
    map: bool,

    /// Connect here for each connection that another forwarder carries to this task
    #[arg(long, value_name = "ADDRESS")]
    target: Option<SocketAddr>,

    /// Name that both forwarders use; separates several forwardings between the same tasks
    #[arg(long, value_name = "NAME", default_value = "forward")]
    name: String,

    /// Serve connection and byte counts per peer over HTTP here, at /metrics; port 0 picks a free port and prints it
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,

    /// The daemon's socket [default: this host's daemon]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Runs `sealane forward`.
///
/// # Errors
///
/// A setting or address is wrong, there is no daemon, or it has ended.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let settings = context.settings(&args.settings, socket_override(args.socket.as_ref())?)?;
    let routes = routes(args, &settings.transport.endpoint_map.value)?;
    allow_many_descriptors();
    let attach = match settings.daemon.socket.source {
        Source::Default => Attach::new(&args.task),
        _ => Attach::new(&args.task).socket(&settings.daemon.socket.value),
    };
    let task = settings.daemon.for_client(attach).attach().map_err(Failure::work)?;
    let streams = Streams::of(&task);
    let name: Arc<str> = args.name.as_str().into();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::work(format!("no thread can serve connections ({error})")))?;
    task.drive_on(runtime.handle());
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
            let mode = args.listen_mode.unwrap_or(FileMode::OWNER);
            let (entrance, address) = Entrance::open(address, mode, &to).await?;
            tokio::spawn(carry::carry_out(entrance, streams.clone(), to.as_str().into(), name.clone()));
            addresses.insert(to, address.to_string());
        }
        // Printed only when everything is ready to use.
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

/// Where connections are accepted, and to which task each is carried.
fn routes(args: &Args, map: &std::path::Path) -> Result<Vec<(Address, String)>, Failure> {
    if !args.map {
        return Ok(args.listen.clone().zip(args.to.clone()).into_iter().collect());
    }
    let map = EndpointMap::load(map)?;
    let others = map.iter().map(|(task, _)| task.to_string()).filter(|task| *task != args.task);
    Ok(others.map(|task| (Address::Tcp((Ipv4Addr::LOCALHOST, 0).into()), task)).collect())
}
