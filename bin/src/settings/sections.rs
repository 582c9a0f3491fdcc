//! What several settings of a section mean together: values made from several of them, and contradictions. `table.rs` has the
//! sections.

use std::fmt;
use std::path::{Path, PathBuf};

use sealane::Attach;
use sealane_transport::authentication::TlsFiles;
use sealane_transport::endpoint_map;

use super::effective::Effective;
use super::limits::SHARDS_DEFAULT_MAX;
use super::{Daemon, Environment, Runtime, Security, Source, Sourced, Tcp, Transport, Verbs};
use crate::Failure;

impl Runtime {
    /// The number of shards of an engine that serves `tasks` tasks and may use the time of `cpus` CPUs.
    pub fn shards_for(&self, tasks: usize, cpus: usize) -> usize {
        self.shards.value.unwrap_or(tasks.min(cpus).clamp(1, SHARDS_DEFAULT_MAX))
    }
}

/// The kind of links to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Require {
    /// RDMA verbs where this host and the peer have them, else TCP.
    Auto,
    /// TCP, whatever there is.
    Tcp,
    /// RDMA verbs; anything that rules them out is an error.
    Verbs,
}

impl Transport {
    /// The section, checked.
    ///
    /// # Errors
    /// Settings contradict each other.
    pub(super) fn checked(from: &Effective) -> Result<Transport, Failure> {
        let transport = Transport::of(from, endpoint_map_file(from));
        if transport.peer_timeout.value <= transport.heartbeat.value {
            let fix = "make the peer timeout longer than the heartbeat, for example three times";
            return Err(from.contradiction("transport.peer_timeout_ms", "transport.heartbeat_ms", fix));
        }
        Ok(transport)
    }
}

/// A named file wins over a directory named by a source of the same kind or a weaker one.
fn endpoint_map_file(from: &Effective) -> Sourced<PathBuf> {
    let file: Sourced<Option<PathBuf>> = from.get("transport.endpoint_map");
    let directory: Sourced<PathBuf> = from.get("transport.endpoint_map_directory");
    match file.value {
        Some(value) if file.source.rank() >= directory.source.rank() => Sourced { value, source: file.source },
        _ => directory.map(|directory| match directory.as_os_str().to_str() {
            // `.endpoint_map` reads better than `./.endpoint_map` in every message.
            Some(".") => PathBuf::from(endpoint_map::FILE_NAME),
            _ => directory.join(endpoint_map::FILE_NAME),
        }),
    }
}

impl Tcp {
    /// The congestion control to ask for; `None` leaves the kernel's default.
    pub fn wanted_congestion(&self) -> Option<&str> {
        Some(self.congestion.value.as_str()).filter(|name| !name.is_empty())
    }
}

/// Where a client looks for the daemon; as text, it also names the other places if no daemon is found.
#[derive(Debug)]
pub struct ClientsSocket {
    pub path: PathBuf,
    others: Vec<PathBuf>,
}

impl ClientsSocket {
    pub(crate) fn at(path: &Path) -> ClientsSocket {
        ClientsSocket { path: path.to_owned(), others: Vec::new() }
    }
}

impl fmt::Display for ClientsSocket {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(out)?;
        let Some((last, middle)) = self.others.split_last() else { return Ok(()) };
        middle.iter().try_for_each(|other| write!(out, ", {}", other.display()))?;
        write!(out, " or {}", last.display())
    }
}

impl Daemon {
    /// Where a client looks for the daemon: at any default socket if no setting gives one.
    pub fn clients_socket(&self) -> ClientsSocket {
        match self.socket.source {
            Source::Default => match sealane::default_socket() {
                Ok(found) => ClientsSocket::at(&found),
                Err(mut others) => ClientsSocket { path: others.remove(0), others },
            },
            _ => ClientsSocket::at(&self.socket.value),
        }
    }

    /// Options for attaching to the daemon, which also require the job that is set.
    pub(crate) fn for_client(&self, attach: Attach) -> Attach {
        match &self.job.value {
            Some(job) => attach.job(job.clone()),
            None => attach,
        }
    }

    /// The section; if no setting gives the socket, the environment determines its place.
    pub(super) fn placed(from: &Effective, environment: &Environment) -> Result<Daemon, Failure> {
        let Sourced { value, source }: Sourced<Option<PathBuf>> = from.get("daemon.socket");
        let value = match value {
            Some(socket) => socket,
            None => sealane::daemon_socket(environment.get("XDG_RUNTIME_DIR")?.map(Path::new)),
        };
        Ok(Daemon::of(from, Sourced { value, source }))
    }
}

impl Verbs {
    /// The section, checked.
    ///
    /// # Errors
    /// A port is set, but no device.
    pub(super) fn checked(from: &Effective) -> Result<Verbs, Failure> {
        let verbs = Verbs::of(from);
        match (&verbs.device.value, verbs.port.value) {
            (None, Some(_)) => {
                let given = from.given("verbs.port");
                Err(Failure::input(format!("{given} names a port without a device; set RDMA_DEVICE too")))
            }
            _ => Ok(verbs),
        }
    }
}

/// What peers must present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    Anyone,
    /// Proof that they have the secret in this file.
    Secret(PathBuf),
    /// A certificate for their tasks.
    Tls(TlsFiles),
}

impl Peers {
    pub fn files(&self) -> Vec<&Path> {
        match self {
            Peers::Anyone => Vec::new(),
            Peers::Secret(file) => vec![file],
            Peers::Tls(TlsFiles { certificate, key, authorities }) => vec![certificate, key, authorities],
        }
    }
}

impl Security {
    /// True if links must not use RDMA, which would carry in plain text what TLS should encrypt.
    pub fn rules_out_verbs(&self) -> bool {
        matches!(self.peers, Peers::Tls(_)) && !self.plaintext_rdma.value
    }

    pub(super) fn checked(from: &Effective) -> Result<Security, Failure> {
        const FILES: [&str; 3] = ["security.tls_certificate", "security.tls_key", "security.tls_authorities"];
        let secret: Sourced<Option<PathBuf>> = from.get("security.secret_file");
        let files: [Sourced<Option<PathBuf>>; 3] = FILES.map(|name| from.get(name));
        let given = files.iter().position(|file| file.value.is_some());
        let peers = match (secret.value, given, files.map(|file| file.value)) {
            (None, None, _) => Peers::Anyone,
            (Some(file), None, _) => Peers::Secret(file),
            (None, Some(_), [Some(certificate), Some(key), Some(authorities)]) => {
                Peers::Tls(TlsFiles { certificate, key, authorities })
            }
            (Some(_), Some(given), _) => {
                let fix = "give a shared secret or TLS's files, not both";
                return Err(from.contradiction("security.secret_file", FILES[given], fix));
            }
            (None, Some(given), files) => {
                let missing = files.iter().position(Option::is_none).expect("not all three are there");
                let (given, missing) = (from.given(FILES[given]), FILES[missing]);
                return Err(Failure::input(format!(
                    "{given} asks for TLS, which needs {missing} too; set it, or unset the others"
                )));
            }
        };
        let security = Security::of(from, peers);
        if security.insecure.value && security.peers != Peers::Anyone {
            let shown = given.map_or("security.secret_file", |given| FILES[given]);
            let fix = "omit security.insecure: authentication is configured";
            return Err(from.contradiction("security.insecure", shown, fix));
        }
        let require: Sourced<Require> = from.get("transport.require");
        if require.value == Require::Verbs && security.rules_out_verbs() {
            let fix = "RDMA encrypts nothing: set security.plaintext_rdma = true to let tensors travel in plain text, or \
                       transport.require = tcp";
            return Err(from.contradiction("transport.require", "security.tls_certificate", fix));
        }
        Ok(security)
    }
}
