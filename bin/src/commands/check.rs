//! `sealane check`: what this host can do and what a daemon on it would do. Changes nothing: what a daemon takes at its start
//! (ports, and CPUs if pinning is required) is taken for a moment and given back, unless a daemon already serves here; peers are
//! called only on request; an RDMA device is opened for a moment.

mod cpus;
mod kernel;
mod measured;
mod probe;
mod rdma;
mod report;
mod system;
mod verdict;

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use sealane_fusion::LoopbackAddress;
use sealane_runtime::{allowed_cpus, claimed_cpus, try_io_uring, usable_cpus};
use sealane_transport::endpoint_map::{Diagnostic, EndpointMap, Severity, TransportAddress, lint};
use sealane_transport::tcp::{TcpSettings, resolve};
use serde_json::{Map, Value, json};

use self::cpus::{Topology, Wish};
use self::kernel::Kernel;
use self::probe::Prober;
use self::rdma::{Device, Verbs};
use self::report::{Path, Report, setting_json};
use self::verdict::{Finding, Verdict, advice};
use crate::commands::daemon::{PlacesFlags, Rehearsal, rehearse};
use crate::commands::map::size_of;
use crate::engine_settings::{authentication, link_wanted, verbs_settings};
use crate::flags::SettingsFlags;
use crate::local_host::interfaces_of;
use crate::locked_memory::LockLimit;
use crate::progress::write_line;
use crate::settings::{Require, SHARDS_DEFAULT_MAX, Settings};
use crate::wording::first_of;
use crate::{Context, Failure, counted};

const SCHEMA: &str = "sealane-check/1";
/// Most things that the last sentence names.
const NAMED_MAX: usize = 4;

/// Show what this host supports, what a daemon would do, and the source of every setting
///
/// Each line has a verdict: ok, better (it works, but could work better) or fails (a daemon would not start, or would not reach
/// its peers); the last two come with a remedy. The exit code is 1 if anything fails.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:
  sealane check --endpoint-map jobs/.endpoint_map --role ps
  sealane check --probe
  sealane check --probe --measure")]
pub struct Args {
    #[command(flatten)]
    settings: SettingsFlags,

    /// A task that this host serves; repeatable; without it, the task of TF_CONFIG, or every task
    /// whose transport address is this host's
    #[arg(long, value_name = "ADDR")]
    task: Vec<String>,

    #[command(flatten)]
    places: PlacesFlags,

    /// Show every setting, not only those that differ from their defaults
    #[arg(long = "settings")]
    settings_all: bool,

    /// Contact every transport address of the endpoint map, and show who answers, over which path and with what round-trip
    /// time. No session starts, so a running job is not affected
    #[arg(long)]
    probe: bool,

    /// Also have this host's daemon measure its link to every peer: round trip, rate of sending, and what limits it
    ///
    /// Takes at most ten seconds. A running job continues: bursts use a link for a quarter of the time, and delay its tensors
    /// by some milliseconds. Run it on the other host for the other direction.
    #[arg(long, requires = "probe")]
    measure: bool,

    /// Print only JSON
    #[arg(long)]
    json: bool,
}

/// Runs `sealane check`.
///
/// # Errors
///
/// A setting or the endpoint map is wrong, or something will not work; everything that could be found out is printed all the same.
pub fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let settings = context.settings(&args.settings, args.places.overrides()?)?;
    let rehearsal = rehearse(&settings, &args.task);
    let map = rehearsal.map.as_deref();
    let ours = map.map(|map| ours(args, &settings, map, &rehearsal)).unwrap_or_default();
    let report = Scene { settings: &settings, map, ours: &ours, rehearsal: &rehearsal }.report(args)?;
    context.print(&if args.json { report.json() } else { report.text(args.settings_all) })?;
    let names = report.names(Verdict::WillNotWork);
    if let Some(failure) = rehearsal.map_failure {
        return Err(failure);
    }
    if names.is_empty() {
        return Ok(());
    }
    let names = first_of(&names, NAMED_MAX);
    Err(Failure::work(format!("{names} will not work here; follow the remedy below each of them")))
}

/// The transport addresses that this host serves.
#[derive(Debug, Default)]
struct Ours {
    addresses: HashSet<TransportAddress>,
    /// The setting or rule behind it.
    because: &'static str,
}

/// The transport addresses that this host would serve; a daemon would serve the tasks of `rehearsal`.
fn ours(args: &Args, settings: &Settings, map: &EndpointMap, rehearsal: &Rehearsal) -> Ours {
    let served = rehearsal.tasks.iter().filter_map(|task| map.resolve(task.as_str())).cloned().collect();
    match &settings.tf_config.task {
        _ if !args.task.is_empty() => Ours { addresses: served, because: "--task names a task there" },
        Some(task) => Ours {
            addresses: map.resolve(task).cloned().into_iter().collect(),
            because: "TF_CONFIG names a task there",
        },
        None => Ours { addresses: served, because: "it is an address of this host" },
    }
}

struct Scene<'a> {
    settings: &'a Settings,
    map: Option<&'a EndpointMap>,
    ours: &'a Ours,
    rehearsal: &'a Rehearsal,
}

impl<'a> Scene<'a> {
    /// Checks everything, from the hardware up.
    fn report(&self, args: &Args) -> Result<Report<'a>, Failure> {
        let Scene { settings, map, ours, rehearsal } = *self;
        let Settings { runtime, transport, tcp, daemon, role, .. } = settings;
        let kernel = &Kernel::at("/");
        let (mut findings, mut facts) = (Vec::new(), Map::new());
        let mut note = |name: &str, (finding, fact): (Finding, Value)| {
            facts.insert(name.to_owned(), fact);
            finding
        };
        let shards = runtime.shards_for(rehearsal.tasks.len(), usable_cpus().unwrap_or(SHARDS_DEFAULT_MAX));
        let slabs = [runtime.slab_send_bytes.value, runtime.slab_receive_bytes.value];
        let (require, asked) = link_wanted(settings);
        let verbs_settings = verbs_settings(&settings.verbs).reached_at(ours.addresses.iter());
        let (verbs, rdma) = (Verbs::look(&verbs_settings), Device::look(kernel));

        let allowed = allowed_cpus().unwrap_or_default();
        let directory = &runtime.claim_directory.value;
        let claims = claimed_cpus(directory);
        let claimed = claims.as_deref().unwrap_or_default();
        let is_free = |cpu: &usize| !claimed.iter().any(|(claimed, _)| claimed == cpu);
        let free: Vec<usize> = allowed.iter().copied().filter(is_free).collect();
        let (pin, is_polling) = (runtime.pin.value, runtime.polling.value);
        let topology = Topology::look(kernel);
        findings.extend(topology.findings(Wish { free: &free, allowed: &allowed, shards, pin, is_polling }));
        let held = claimed.iter().map(|(cpu, process)| json!({ "cpu": cpu, "process": process }));
        let of_cpus = json!({ "allowed": allowed, "claimed": held.collect::<Vec<_>>() });
        findings.push(note("cpus", (cpus::claims(&claims, directory), of_cpus)));
        let (class, cards) = self.cards(&verbs);
        let numa = cpus::numa(kernel, (class, &cards), &topology, &free, shards);
        findings.push(note("topology", (numa, json!(topology))));

        let slabs_bytes = slabs.iter().map(|bytes| *bytes as u64).sum::<u64>().saturating_mul(shards as u64);
        let arena_bytes = sealane::ARENA_BYTES.min(daemon.arena_bytes_max.value);
        let client_bytes = daemon.area_bytes.value.saturating_mul(shards as u64).saturating_add(arena_bytes);
        findings.extend([system::memory(kernel, slabs_bytes, client_bytes), system::huge_pages(kernel)]);
        let registered = (require != Require::Tcp).then(|| (shards, verbs_settings.registered_bytes(shards, slabs)));
        let lock = system::memory_lock(LockLimit::look(), registered, require == Require::Verbs);
        findings.push(note("memory_lock", lock));
        findings.push(note("io_uring", system::io_uring(try_io_uring(), &runtime.executor)));

        let is_root = nix::unistd::geteuid().is_root();
        findings.push(system::congestion(kernel, tcp.wanted_congestion(), is_root));
        findings.push(system::buffers(kernel, "receive buffers", "rmem", tcp.receive_buffer_bytes.value));
        findings.push(system::buffers(kernel, "send buffers", "wmem", tcp.send_buffer_bytes.value));
        let (shards_wide, peers) = (shards as u64, map.map_or(0, |map| map.addresses().len()) as u64);
        findings.push(system::backlog(kernel, peers.saturating_mul(shards_wide)));
        let listened: Vec<u16> = ours.addresses.iter().map(|address| address.port).collect();
        // Between two hosts, each shard may connect to each shard of the other.
        findings.push(system::ports(kernel, shards_wide.saturating_mul(shards_wide), &listened));
        findings.push(rdma::finding(&rdma));
        findings.push(note("verbs", (verbs.finding(require, &asked, !rdma.is_empty()), verbs.facts())));
        findings.push(system::gpus(sealane::cuda::devices().map_err(|error| error.to_string())));
        findings.push(system::security(settings, rehearsal.security_failure.as_ref()));

        findings.extend(settings.warnings().map(|(of, says, remedy)| Finding::better(of, says, advice(remedy))));
        findings.extend(settings.empty_variables().map(|says| Finding::ok("variables", says)));
        // An unreadable file has an error of its own, so nothing is said of its contents here.
        let lint = lint(&EndpointMap::read_text(&transport.endpoint_map.value).unwrap_or_default());
        findings.push(note("endpoint_map", self.endpoint_map(&lint)));
        findings.extend(self.reach());
        findings.extend(self.daemon());
        let measured = args.measure.then(|| {
            write_line("measuring the links to all peers, which takes up to ten seconds");
            measured::measure(&daemon.clients_socket())
        });
        let measured = measured.and_then(|measured| measured.map_err(|finding| findings.push(finding)).ok());
        facts.insert("settings".to_owned(), settings.entries().iter().map(setting_json).collect());
        Ok(Report {
            schema: SCHEMA,
            role: role.value.to_string(),
            role_source: role.source.to_string(),
            shards,
            findings,
            rdma,
            facts,
            paths: self.paths(&verbs),
            probes: args.probe.then(|| self.probes(&verbs)).transpose()?,
            measured,
            settings,
            lint,
        })
    }

    /// Whether a daemon would start, unless a finding above already says why not.
    fn daemon(&self) -> Vec<Finding> {
        const NAME: &str = "daemon";
        let Rehearsal { map_failure, failures, outcome, .. } = self.rehearsal;
        if failures.is_empty() && map_failure.is_none() {
            return vec![Finding::ok(NAME, outcome)];
        }
        failures.iter().map(|failure| Finding::refused(NAME, &failure.to_string())).collect()
    }

    /// Whether other hosts can connect to the transport addresses of this host.
    fn reach(&self) -> impl Iterator<Item = Finding> {
        let finding = |address: &LoopbackAddress| Finding::better("reach", address.problem(), advice(address.remedy()));
        self.rehearsal.loopback.iter().map(finding)
    }

    fn endpoint_map(&self, lint: &[Diagnostic]) -> (Finding, Value) {
        const NAME: &str = "endpoint map";
        let setting = &self.settings.transport.endpoint_map;
        let (file, source) = (setting.value.display().to_string(), setting.source.to_string());
        let error = self.rehearsal.map_failure.as_ref().map(ToString::to_string);
        let remark = |diagnostic: &Diagnostic| {
            let is_error = diagnostic.severity() == Severity::Error;
            let says = diagnostic.problem.to_string();
            json!({ "line": diagnostic.line, "column": diagnostic.column, "is_error": is_error, "says": says })
        };
        let remarks: Vec<Value> = lint.iter().map(remark).collect();
        let tasks = self.map.map(EndpointMap::len);
        let finding = match (self.map, &error) {
            (Some(map), None) => {
                let says = format!("{file} (from {source}): {}", size_of(map));
                match lint.len() {
                    0 => Finding::ok(NAME, says),
                    warnings => {
                        let says = format!("{says}, {}", counted(warnings, "warning"));
                        Finding::better(NAME, says, format!("sealane map lint {file}"))
                    }
                }
            }
            (_, error) => Finding::refused(NAME, error.as_deref().unwrap_or_default()),
        };
        (finding, json!({ "file": file, "source": source, "tasks": tasks, "error": error, "lint": remarks }))
    }

    /// One path for every transport address, in the map's order.
    fn paths(&self, verbs: &Verbs) -> Vec<Path> {
        let (link, reason) = verbs.network(link_wanted(self.settings));
        let Some(map) = self.map.filter(|_| self.rehearsal.map_failure.is_none()) else { return Vec::new() };
        let path = |address: &TransportAddress| {
            let (link, reason) = match self.ours.addresses.contains(address) {
                true => ("loopback", format!("the same transport address as ours: {}", self.ours.because)),
                false => (link, reason.clone()),
            };
            let tasks = map.tasks_at(address).map(ToString::to_string).collect();
            Path { transport_address: address.to_string(), tasks, link, reason }
        };
        map.addresses().map(path).collect()
    }

    fn probes(&self, verbs: &Verbs) -> Result<Vec<probe::Probe>, Failure> {
        let (require, _) = link_wanted(self.settings);
        let prober = Prober {
            // The greeting needs none of these settings, some of which may be unavailable here.
            tcp: TcpSettings::default(),
            authentication: authentication(&self.settings.security)?,
            patience: self.settings.transport.handshake_timeout.value,
            ours: &self.ours.addresses,
            job: self.settings.daemon.job.value.as_ref(),
            has_verbs: verbs.opened.is_ok() && require != Require::Tcp,
            requires_verbs: require == Require::Verbs,
        };
        Ok(self.map.map_or_else(Vec::new, |map| prober.probe(map)))
    }

    /// The cards that tensors would pass, after the kernel's class of them: the RDMA device that would be used, else the network
    /// cards with our addresses.
    fn cards(&self, verbs: &Verbs) -> (&'static str, Vec<String>) {
        match &verbs.opened {
            Ok(device) if link_wanted(self.settings).0 != Require::Tcp => ("infiniband", vec![device.device.clone()]),
            _ => {
                let ips = |address: &TransportAddress| resolve(address).unwrap_or_default();
                let addresses = self.ours.addresses.iter().flat_map(ips).map(|address: SocketAddr| address.ip());
                let addresses: Vec<IpAddr> = addresses.filter(|ip| !ip.is_loopback()).collect();
                ("net", interfaces_of(&addresses))
            }
        }
    }
}
