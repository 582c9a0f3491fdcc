//! `sealane check --probe`: calls every transport address of the endpoint map and shows who is there, over which path, and how far
//! away. A call is a greeting that starts no session, so a running job does not notice it.

mod calls;

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use sealane_transport::JobName;
use sealane_transport::authentication::Authentication;
use sealane_transport::endpoint_map::{EndpointMap, Host, TaskName, TransportAddress};
use sealane_transport::error::LinkError;
use sealane_transport::job::describe;
use sealane_transport::limits::INTRODUCTION_NAMES_BYTES_MAX;
use sealane_transport::tcp::{DialError, TcpSettings, resolve};
use sealane_transport::wire::{FEATURE_VERBS, Hello, RejectCode, VERSION_MAX, WireError};
use serde::Serialize;

use self::calls::{Answered, Callee, Unanswered, call_all};
use super::verdict::{Finding, Remedy, advice};
use crate::counted;
use crate::local_host::{LOOK_UP_TIME, look_up};
use crate::progress::Bar;

/// The result of calling one transport address.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Probe {
    pub(super) transport_address: String,
    /// It answered as a Sealane peer.
    reachable: bool,
    #[serde(flatten)]
    pub(super) finding: Finding,
    /// `None` if nobody answered.
    #[serde(flatten)]
    peer: Option<Peer>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Peer {
    wire_version: u16,
    /// `loopback`, `verbs` or `tcp`: the link that tensors would take.
    link: &'static str,
    /// The peer's job.
    job: Option<JobName>,
    shards: u16,
    tasks: Vec<String>,
    /// Time until the connection was established: one round trip.
    connect_us: u64,
    /// Time for authentication and the greeting after that.
    greet_us: u64,
}

/// How peers are called, and what this host supports.
#[derive(Debug)]
pub(super) struct Prober<'a> {
    pub(super) tcp: TcpSettings,
    pub(super) authentication: Authentication,
    /// `transport.handshake_timeout_ms`: how long one address of a peer may take.
    pub(super) patience: Duration,
    /// The transport addresses that this host serves.
    pub(super) ours: &'a HashSet<TransportAddress>,
    pub(super) has_verbs: bool,
    /// The job of this host's daemon.
    pub(super) job: Option<&'a JobName>,
    /// True if it would rather have no link than one without verbs.
    pub(super) requires_verbs: bool,
}

impl Prober<'_> {
    /// Calls every transport address of the map, with a progress bar.
    pub(super) fn probe(&self, map: &EndpointMap) -> Vec<Probe> {
        let addresses: Vec<&TransportAddress> = map.addresses().collect();
        let found = addresses_of(&addresses);
        let callees: Vec<Callee<'_>> = addresses.iter().copied().zip(found).collect();
        let bar = Bar::on_stderr(callees.len() as u64, "{bar:32} {pos} of {len} peers");
        let answers = call_all(&callees, self, |over| {
            bar.at(over as u64, "");
        });
        let each = addresses.iter().zip(answers);
        each.map(|(address, answer)| match answer {
            Ok(answered) => self.answered(address, answered, map),
            Err(unanswered) => self.unanswered(address, unanswered),
        })
        .collect()
    }

    fn answered(&self, address: &TransportAddress, answered: Answered, map: &EndpointMap) -> Probe {
        let Answered { welcome, certificate, connected_in, greeted_in } = answered;
        let is_ours = self.ours.contains(address);
        let both_have_verbs = self.has_verbs && welcome.features & FEATURE_VERBS != 0;
        let link = match (is_ours, both_have_verbs) {
            (true, _) => "loopback",
            (false, true) => "verbs",
            (false, false) => "tcp",
        };
        let impostor = certificate.and_then(|certificate| {
            let task = map.tasks_at(address).find(|task| !certificate.speaks_for(task))?;
            Some(format!("its certificate ({}) does not cover task {task}", certificate.names()))
        });
        let times = format!("{} to connect, {} for the handshake", shown(connected_in), shown(greeted_in));
        let (shards, tasks) = (counted(welcome.shards.into(), "shard"), counted(welcome.tasks.len(), "task"));
        let says = format!("{link}, wire version {VERSION_MAX}, {shards}, {tasks}; {times}");
        let finding = if let Some(impostor) = impostor {
            Finding::fails(
                NAME,
                impostor,
                advice("create its certificate with the task's name (sealane keys tls --help)"),
            )
        } else if welcome.job.as_ref() != self.job {
            let (theirs, ours) = (describe(welcome.job.as_ref()), describe(self.job));
            let says = format!("it serves {theirs}, and this host {ours}");
            let remedy =
                advice("start both daemons with the same --job, or give the jobs different addresses in the map");
            Finding::fails(NAME, says, remedy)
        } else if self.requires_verbs && !is_ours && !both_have_verbs {
            let says = "verbs are required (transport.require), and it offers none";
            Finding::fails(NAME, says, advice("run `sealane check` there: it says what is missing"))
        } else if let Some(task) = first_missing(&welcome, map.tasks_at(address)) {
            let says = format!("{says}: it does not serve task {task}, which the map lists there");
            Finding::better(NAME, says, advice("give its daemon this map; it reloads the file when it is replaced"))
        } else {
            Finding::ok(NAME, says)
        };
        let peer = Peer {
            wire_version: VERSION_MAX,
            link,
            job: welcome.job,
            shards: welcome.shards,
            tasks: welcome.tasks,
            connect_us: microseconds(connected_in),
            greet_us: microseconds(greeted_in),
        };
        Probe { transport_address: address.to_string(), reachable: true, finding, peer: Some(peer) }
    }

    fn unanswered(&self, address: &TransportAddress, unanswered: Unanswered) -> Probe {
        let within = self.patience;
        let (host, port) = (&address.host, address.port);
        let reach = || {
            let host = bare(host);
            advice(format!(
                "check that no firewall blocks TCP port {port} of {host}, and the route: `nc -vz {host} {port}`"
            ))
        };
        let finding = match unanswered {
            Unanswered::NoAddress => {
                let says = format!("the name {host} was not resolved within {LOOK_UP_TIME:?}");
                Finding::fails(NAME, says, format!("getent hosts {host}"))
            }
            Unanswered::Late { had_connection: false } => {
                Finding::fails(NAME, format!("no connection within {within:?}"), reach())
            }
            Unanswered::Late { had_connection: true } => {
                let says = format!("it accepted the connection but did not answer within {within:?}");
                Finding::fails(NAME, says, advice("check its daemon: it is stopped, or another program uses its port"))
            }
            Unanswered::Failed(DialError::Link(LinkError::Io { kind: ErrorKind::ConnectionRefused, .. }))
                if self.ours.contains(address) =>
            {
                Finding::better(NAME, "this host's own: no daemon listens there", "sealane daemon")
            }
            Unanswered::Failed(error) => return refused(address, error, reach),
        };
        Probe::of(address, finding)
    }
}

/// Name of every finding here.
const NAME: &str = "peer";

/// A peer that could be reached but did not welcome the probe.
fn refused(address: &TransportAddress, error: DialError, reach: impl Fn() -> Remedy) -> Probe {
    let secrets = || advice("give both hosts the same secret, or certificates of one authority (sealane keys --help)");
    let version = || advice("install the same version of sealane on both hosts");
    let remedy = match &error {
        DialError::Link(LinkError::Io { kind: ErrorKind::ConnectionRefused, .. }) => {
            let remedy =
                advice("start `sealane daemon` there, with this map; if one runs, correct its port in the map");
            return Probe::of(address, Finding::fails(NAME, "nothing listens there (connection refused)", remedy));
        }
        DialError::Link(LinkError::Protocol(WireError::Version { .. })) => version(),
        DialError::Link(LinkError::Protocol(_)) => advice("correct the map: another program uses that port"),
        DialError::Link(_) => reach(),
        DialError::Unauthenticated(_) => secrets(),
        DialError::Rejected(reject) => match reject.code {
            // It does not know the probe, and so found no address in it.
            RejectCode::Refused => {
                let finding = Finding::ok(NAME, "an older version, which does not answer probes");
                return Probe { reachable: true, ..Probe::of(address, finding) };
            }
            RejectCode::Unauthenticated => secrets(),
            RejectCode::Version => version(),
            _ => {
                let remedy = advice("run `sealane stat` there: it shows which limit is reached");
                return Probe::of(address, Finding::better(NAME, error.to_string(), remedy));
            }
        },
    };
    Probe::of(address, Finding::fails(NAME, error.to_string(), remedy))
}

impl Probe {
    /// A peer of which only the finding is known.
    fn of(address: &TransportAddress, finding: Finding) -> Probe {
        Probe { transport_address: address.to_string(), reachable: false, finding, peer: None }
    }
}

/// The socket addresses of every transport address; empty if the name was not resolved in time.
fn addresses_of(addresses: &[&TransportAddress]) -> Vec<Vec<SocketAddr>> {
    let names = addresses.iter().filter(|address| matches!(address.host, Host::Name(_)));
    let looked_up: HashMap<_, _> = look_up(names.map(|address| (*address).clone()).collect(), LOOK_UP_TIME).found;
    let of = |address: &&TransportAddress| match (&address.host, looked_up.get(*address)) {
        (Host::Name(_), Some(found)) => found.iter().map(|ip| SocketAddr::new(*ip, address.port)).collect(),
        (Host::Name(_), None) => Vec::new(),
        // Numeric addresses need no look-up.
        _ => resolve(address).unwrap_or_default(),
    };
    addresses.iter().map(of).collect()
}

/// The first task of the map that the peer does not name although it would if it served it: a long list is cut.
fn first_missing<'a>(welcome: &Hello, mut tasks: impl Iterator<Item = &'a TaskName>) -> Option<&'a TaskName> {
    let bytes: usize = welcome.tasks.iter().map(String::len).sum();
    let is_whole = |next: &TaskName| bytes + next.as_str().len() <= INTRODUCTION_NAMES_BYTES_MAX;
    tasks.find(|task| is_whole(task) && !welcome.tasks.iter().any(|served| served == task.as_str()))
}

/// A host without the brackets of an IPv6 address.
fn bare(host: &Host) -> String {
    host.to_string().trim_start_matches('[').trim_end_matches(']').to_owned()
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Formats a time as `0.12 ms`.
fn shown(time: Duration) -> String {
    format!("{:.2} ms", time.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests;
