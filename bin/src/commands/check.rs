//! `sealane check`: what this host can do and what a daemon on it would do. Only looks: it claims
//! no CPU, changes nothing, calls peers only if asked to; an RDMA device is opened for a moment.

mod cpus;
mod gpus;
mod host;
mod io_uring;
mod kernel;
mod memory;
mod network;
mod paths;
mod probe;
mod rdma;
mod report;
mod security;
mod topology;
mod verbs;
mod verdict;

use std::net::{IpAddr, SocketAddr};

use sealane_transport::endpoint_map::{EndpointMap, EndpointMapError, Severity, TransportAddress, lint};
use sealane_transport::tcp::{TcpSettings, resolve};

use self::cpus::Cpus;
use self::gpus::Gpus;
use self::host::{MemoryLock, Registered, Tcp};
use self::io_uring::IoUring;
use self::kernel::Kernel;
use self::memory::Memory;
use self::network::{Sockets, Traffic};
use self::paths::{Network, Ours, Path};
use self::probe::{Probe, Prober};
use self::rdma::Device;
use self::report::{MapReport, Remark, Report, SettingReport};
use self::security::Security;
use self::topology::{Card, Kind, Topology, Wish, numa};
use self::verbs::Verbs;
use self::verdict::{Finding, Verdict, advice};
use crate::commands::map::unknown_task;
use crate::engine_settings::{authentication, link_wanted, verbs_settings};
use crate::flags::SettingsFlags;
use crate::local_host::{LocalHost, interfaces_of};
use crate::settings::{Require, Runtime, Settings, Source, VERBS_BUILT_IN};
use crate::wording::first_of;
use crate::{Context, Failure};

/// Things that the last sentence names.
const NAMED_MAX: usize = 4;

/// Show what this host supports, what a daemon would do, and the source of every setting
///
/// Each line has a verdict: ok, better (it works, but could work better) or fails (a daemon would not start, or would not reach
/// its peers); the last two come with a remedy. The exit code is 1 if anything fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  sealane check --endpoint-map jobs/.endpoint_map --role ps
  sealane check --probe")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// A task that this host serves; repeatable; without it, the task of TF_CONFIG, or every task
    /// whose transport address is this host's
    #[arg(long, value_name = "ADDR")]
    task: Vec<String>,

    /// Contact every transport address of the endpoint map, and show who answers, over which path and with what round-trip
    /// time. No session starts, so a running job is not affected
    #[arg(long)]
    probe: bool,

    /// Print only JSON
    #[arg(long)]
    json: bool,
}

/// Runs `sealane check`.
///
/// # Errors
///
/// A setting or the endpoint map is wrong, or something will not work; what could be found out is printed all the same.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let settings = context.settings(&args.settings)?;
    let (map, map_failure) = endpoint_map(&settings)?;
    let (ours, ours_failure) = match map.as_ref().map(|map| ours(args, &settings, map)) {
        Some(Ok(ours)) => (ours, None),
        Some(Err(failure)) => (Ours::default(), Some(failure)),
        None => (Ours::default(), None),
    };
    let failure = map_failure.or(ours_failure);
    let scene = Scene { settings: &settings, map: map.as_ref(), ours: &ours, failure: failure.as_ref() };
    let report = scene.report(args.probe)?;
    let text = if args.json { report.json()? } else { report.to_string() };
    context.print(&text)?;
    if let Some(failure) = failure {
        return Err(failure);
    }
    match report.names(Verdict::WillNotWork) {
        none if none.is_empty() => Ok(()),
        names => {
            let names = first_of(&names, NAMED_MAX);
            Err(Failure::work(format!("{names} will not work here; follow the remedy below each of them")))
        }
    }
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
    let bytes = verbs_settings(&settings.verbs).registered_bytes(shards, slab_bytes);
    let is_wanted = VERBS_BUILT_IN && link_wanted(settings).0 != Require::Tcp;
    is_wanted.then_some(Registered { shards, bytes })
}

/// What a report is made of.
struct Scene<'a> {
    settings: &'a Settings,
    map: Option<&'a EndpointMap>,
    ours: &'a Ours,
    /// What is wrong with the map, or with the tasks that it should have.
    failure: Option<&'a Failure>,
}

impl Scene<'_> {
    fn report(&self, is_to_probe: bool) -> Result<Report, Failure> {
        let Scene { settings, map, ours, failure } = self;
        let kernel = Kernel::at("/");
        let shards = settings.runtime.shards_for(map.map_or(0, EndpointMap::len));
        let verbs = Verbs::look(&verbs_settings(&settings.verbs).reached_at(ours.addresses()));
        let paths = self.paths(&verbs);
        let probes = is_to_probe.then(|| self.probes(&verbs)).transpose()?;
        let slabs = [settings.runtime.slab_send_bytes.value, settings.runtime.slab_receive_bytes.value];
        let slabs_bytes = slabs.iter().map(|bytes| *bytes as u64).sum::<u64>().saturating_mul(shards as u64);
        let mut report = Report {
            role: settings.role.value.to_string(),
            role_source: settings.role.source.to_string(),
            shards,
            findings: Vec::new(),
            cpus: Cpus::look(&settings.runtime.claim_directory.value),
            topology: Topology::look(&kernel),
            cards: self.cards(&kernel, &verbs),
            memory: Memory::look(&kernel, slabs_bytes),
            sockets: Sockets::look(&kernel),
            memory_lock: MemoryLock::look(registered(settings, shards)),
            io_uring: IoUring::look(&settings.runtime.executor),
            rdma: Device::look(&kernel),
            verbs,
            gpus: Gpus::look(),
            security: Security::look(settings, ours.addresses()),
            tcp: Tcp::look(&kernel, settings.tcp.wanted_congestion()),
            settings: settings.entries().iter().map(SettingReport::of).collect(),
            endpoint_map: MapReport {
                file: settings.transport.endpoint_map.value.display().to_string(),
                source: settings.transport.endpoint_map.source.to_string(),
                tasks: map.map(EndpointMap::len),
                error: failure.map(ToString::to_string),
                lint: remarks(settings),
            },
            paths,
            probes,
        };
        report.findings = self.findings(&report);
        Ok(report)
    }

    /// What is made of everything, from the ground up.
    fn findings(&self, report: &Report) -> Vec<Finding> {
        let Scene { settings, map, ours, .. } = self;
        let (require, asked) = link_wanted(settings);
        let (free, shards) = (report.cpus.free(), report.shards);
        let wish = Wish {
            free: &free,
            allowed: report.cpus.allowed(),
            shards,
            pin: settings.runtime.pin.value,
            is_polling: settings.runtime.polling.value,
        };
        let ports: Vec<u16> = ours.addresses().map(|address| address.port).collect();
        let peers = map.map_or(0, |map| map.addresses().len()) as u64;
        let buffer = |bytes: usize| (bytes > 0).then_some(bytes as u64);
        let traffic = Traffic {
            receive_buffer_bytes: buffer(settings.tcp.receive_buffer_bytes.value),
            send_buffer_bytes: buffer(settings.tcp.send_buffer_bytes.value),
            links_to_one: (shards as u64).saturating_mul(shards as u64),
            callers: peers.saturating_mul(shards as u64),
            ports: &ports,
        };
        let wanted = settings.tcp.wanted_congestion();
        let mut findings = report.topology.findings(wish);
        findings.push(report.cpus.finding());
        findings.push(numa(&report.cards, &report.topology, &free, shards));
        findings.extend(report.memory.findings());
        findings.push(report.memory_lock.finding(require == Require::Verbs));
        findings.push(report.io_uring.finding());
        findings.push(report.tcp.finding(wanted, nix::unistd::geteuid().is_root()));
        findings.extend(report.sockets.findings(traffic));
        findings.push(rdma::finding(&report.rdma));
        findings.push(report.verbs.finding(require, &asked, !report.rdma.is_empty()));
        findings.push(report.gpus.finding());
        findings.push(report.security.finding());
        findings.push(self.map_finding(&report.endpoint_map));
        findings
    }

    fn map_finding(&self, report: &MapReport) -> Finding {
        const NAME: &str = "endpoint map";
        let MapReport { file, source, error, lint, .. } = report;
        let Some(map) = self.map.filter(|_| error.is_none()) else {
            return match error {
                Some(error) => Finding::fails(NAME, error, format!("sealane map lint {file}")),
                None => Finding::better(
                    NAME,
                    format!("there is no {file}"),
                    advice("make one (sealane map generate --help), or name one with --endpoint-map"),
                ),
            };
        };
        let says = format!("{file} (from {source}): {} tasks at {} addresses", map.len(), map.addresses().len());
        if !lint.is_empty() {
            return Finding::better(
                NAME,
                format!("{says}, {} warnings", lint.len()),
                format!("sealane map lint {file}"),
            );
        }
        if self.ours.addresses().next().is_none() {
            let says = format!("{says}; none of them belongs to this host");
            return Finding::better(NAME, says, advice("name the task that this host serves with --task"));
        }
        Finding::ok(NAME, says)
    }

    fn paths(&self, verbs: &Verbs) -> Vec<Path> {
        let network = Network::of(link_wanted(self.settings), verbs);
        let of_map = self.map.filter(|_| self.failure.is_none());
        of_map.map_or_else(Vec::new, |map| paths::paths(map, self.ours, &network))
    }

    fn probes(&self, verbs: &Verbs) -> Result<Vec<Probe>, Failure> {
        let Scene { settings, map, ours, .. } = self;
        let (require, _) = link_wanted(settings);
        let prober = Prober {
            // A greeting needs none of the settings, of which one may not be had here.
            tcp: TcpSettings::default(),
            authentication: authentication(&settings.security)?,
            patience: settings.transport.handshake_timeout.value,
            ours,
            has_verbs: verbs.device.is_some() && require != Require::Tcp,
            requires_verbs: require == Require::Verbs,
        };
        Ok(map.map_or_else(Vec::new, |map| prober.probe(map)))
    }

    /// The cards that tensors would pass: the RDMA device that would be used, else those that have our addresses.
    fn cards(&self, kernel: &Kernel, verbs: &Verbs) -> Vec<Card> {
        let is_wanted = link_wanted(self.settings).0 != Require::Tcp;
        if let Some(device) = verbs.device.as_ref().filter(|_| is_wanted) {
            return vec![Card::look(kernel, Kind::RdmaDevice, &device.name)];
        }
        let addresses: Vec<IpAddr> = self.ours.addresses().flat_map(ips_of).filter(|ip| !ip.is_loopback()).collect();
        interfaces_of(&addresses).iter().map(|name| Card::look(kernel, Kind::Interface, name)).collect()
    }
}

/// What a transport address of this host resolves to.
fn ips_of(address: &TransportAddress) -> Vec<IpAddr> {
    resolve(address).unwrap_or_default().iter().map(SocketAddr::ip).collect()
}

/// What the lint says; nothing of a file that cannot be read, which has an error of its own.
fn remarks(settings: &Settings) -> Vec<Remark> {
    let text = EndpointMap::read_text(&settings.transport.endpoint_map.value).unwrap_or_default();
    let remark = |diagnostic: sealane_transport::endpoint_map::Diagnostic| Remark {
        line: diagnostic.line,
        column: diagnostic.column,
        is_error: diagnostic.severity() == Severity::Error,
        says: diagnostic.problem.to_string(),
    };
    lint(&text).into_iter().map(remark).collect()
}
