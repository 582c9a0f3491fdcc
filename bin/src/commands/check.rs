//! `sealane check`: what this host can do and what a daemon on it would do. Only looks: it claims
//! no CPU, calls no peer, changes nothing; an RDMA device is opened for a moment.

mod cpus;
mod host;
mod io_uring;
mod paths;
mod rdma;
mod report;
mod security;
mod verbs;

use sealane_transport::endpoint_map::{EndpointMap, EndpointMapError};

use self::cpus::Cpus;
use self::host::{MemoryLock, Registered, Tcp};
use self::io_uring::IoUring;
use self::paths::{Network, Ours, Path};
use self::rdma::Device;
use self::report::{MapReport, Report, SettingReport};
use self::security::Security;
use self::verbs::Verbs;
use crate::cli::SettingsFlags;
use crate::commands::map::unknown_task;
use crate::engine_settings::verbs_settings;
use crate::local_host::LocalHost;
use crate::locked_memory::registered_bytes;
use crate::rdma_devices::DEVICES;
use crate::settings::{Require, Runtime, Settings, Source, VERBS_BUILT_IN};
use crate::{Context, Failure};

/// Show what this host can do and would do, and where every setting comes from
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  sealane check --endpoint-map jobs/.endpoint_map --role ps")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// A task that this host serves; repeatable; without it, the task of TF_CONFIG, or every task
    /// whose transport address is this host's
    #[arg(long, value_name = "ADDR")]
    task: Vec<String>,

    /// Print JSON alone
    #[arg(long)]
    json: bool,
}

/// Runs `sealane check`.
///
/// # Errors
///
/// A setting or the endpoint map is wrong; what could be found out is printed all the same.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let settings = context.settings(&args.settings)?;
    let (map, map_failure) = endpoint_map(&settings)?;
    let verbs = Verbs::look(&verbs_settings(&settings.verbs));
    let network = Network::of(&settings.transport, &verbs);
    let (ours, ours_failure) = match map.as_ref().map(|map| ours(args, &settings, map)) {
        Some(Ok(ours)) => (ours, None),
        Some(Err(failure)) => (Ours::default(), Some(failure)),
        None => (Ours::default(), None),
    };
    let of_map = map.as_ref().filter(|_| ours_failure.is_none());
    let paths = of_map.map_or_else(Vec::new, |map| paths::paths(map, &ours, &network));
    let security = Security::look(&settings, ours.addresses());
    let failure = map_failure.or(ours_failure);
    let report = report(&settings, map.as_ref(), verbs, (paths, security), failure.as_ref());
    let text = if args.json { report.json()? } else { report.to_string() };
    context.print(&text)?;
    failure.map_or(Ok(()), Err)
}

/// The endpoint map, or why there is none. One that nobody asked for may be missing.
fn endpoint_map(settings: &Settings) -> Result<(Option<EndpointMap>, Option<Failure>), Failure> {
    let file = &settings.transport.endpoint_map;
    match EndpointMap::load(&file.value) {
        Ok(map) => Ok((Some(map), None)),
        Err(EndpointMapError::Missing { .. }) if file.source == Source::Default => Ok((None, None)),
        Err(error) => Ok((None, Some(error.into()))),
    }
}

/// Which transport addresses this host would serve.
fn ours(args: &Args, settings: &Settings, map: &EndpointMap) -> Result<Ours, Failure> {
    let named = |tasks: &[String], by: &'static str| {
        let mut addresses = Vec::new();
        for task in tasks {
            let address = map.resolve(task).ok_or_else(|| {
                let file = &settings.transport.endpoint_map.value;
                Failure::input(unknown_task(map, file, task))
            })?;
            addresses.push(address.clone());
        }
        Ok(Ours::new(addresses, by))
    };
    if !args.task.is_empty() {
        return named(&args.task, "--task names a task there");
    }
    if let Some(task) = &settings.tf_config.task {
        return named(std::slice::from_ref(task), "TF_CONFIG names a task there");
    }
    let addresses = LocalHost::look().of_these(map.addresses());
    Ok(Ours::new(addresses, "it is an address of this host"))
}

/// What so many shards register with an RDMA device, if they would use one.
fn registered(settings: &Settings, shards: usize) -> Option<Registered> {
    let Runtime { slab_send_bytes, slab_receive_bytes, .. } = &settings.runtime;
    let slab_bytes = [slab_send_bytes.value, slab_receive_bytes.value];
    let bytes = registered_bytes(shards, slab_bytes, &verbs_settings(&settings.verbs));
    let is_wanted = VERBS_BUILT_IN && settings.transport.require.value != Require::Tcp;
    is_wanted.then_some(Registered { shards, bytes })
}

fn report(
    settings: &Settings,
    map: Option<&EndpointMap>,
    verbs: Verbs,
    (paths, security): (Vec<Path>, Security),
    failure: Option<&Failure>,
) -> Report {
    let tasks = map.map_or(0, EndpointMap::len);
    let shards = settings.runtime.shards_for(tasks);
    Report {
        role: settings.role.value.to_string(),
        role_source: settings.role.source.to_string(),
        shards,
        cpus: Cpus::look(&settings.runtime.claim_directory.value),
        memory_lock: MemoryLock::look(registered(settings, shards)),
        io_uring: IoUring::look(&settings.runtime.executor),
        rdma: Device::look(DEVICES),
        verbs,
        security,
        tcp: Tcp::look(settings.tcp.congestion.value.as_deref()),
        settings: settings.entries().iter().map(SettingReport::of).collect(),
        endpoint_map: MapReport {
            file: settings.transport.endpoint_map.value.display().to_string(),
            source: settings.transport.endpoint_map.source.to_string(),
            tasks: map.map(EndpointMap::len),
            error: failure.map(ToString::to_string),
        },
        paths,
    }
}
