//! The settings of daemons and of engines embedded in a task, and their credentials.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::command::run;

/// What peers present to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shown {
    /// Proof that they have the run's secret.
    Secret,
    /// Certificates for their tasks; everything is encrypted.
    Tls,
    /// Nothing: everyone who reaches a host may communicate.
    Nothing,
}

/// How all hosts of a run are configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manner {
    /// True if the time-out for silence is the default, longer than all faults: links survive failing cables. Otherwise it is
    /// shorter than most of them: links are given up and made again.
    pub(crate) is_patient: bool,
    pub(crate) shown: Shown,
}

/// Heartbeat with which silence is noticed soon, if it is not the default.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(1000);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(2000);

/// Makes the secret and certificates for the endpoint map of a run, in its directory, with `sealane keys`.
pub(super) fn make_keys(program: &Path, folder: &Path) -> Result<(), String> {
    let keys = || {
        let mut keys = Command::new(program);
        keys.current_dir(folder).arg("keys");
        keys
    };
    run(keys().args(["secret", "secret"]))?;
    run(keys().args(["tls", "keys", "--endpoint-map", "endpoint_map"]))
}

impl Manner {
    /// The settings of a daemon or an engine at that address, by name, for a run whose files are in `folder`.
    pub(crate) fn settings(self, folder: &Path, address: SocketAddr) -> Vec<(&'static str, String)> {
        let millis = |time: Duration| time.as_millis().to_string();
        let path = |path: &str| folder.join(path).display().to_string();
        // Memory of a shard for tensors without a client's memory: several of the largest, as a tick may bring more than one from
        // peers without faults.
        let slab = (24 << 20).to_string();
        let mut settings = vec![
            // Two shards, so that pairs of tasks are on different ones.
            ("runtime.shards", "2".to_owned()),
            ("runtime.pin", "false".to_owned()),
            // Idle threads sleep at once, to test that they are woken.
            ("runtime.idle_spin_us", "0".to_owned()),
            ("runtime.slab_send_bytes", slab.clone()),
            ("runtime.slab_receive_bytes", slab),
            // A long turn only means here that the machine has other work.
            ("runtime.stall_report_ms", "0".to_owned()),
            ("transport.connect_timeout_ms", millis(CONNECT_TIMEOUT)),
            // Longer than any call's own deadline.
            ("fusion.request_timeout_ms", "10000".to_owned()),
            // Longer than any fault lasts: lent memory stays lent meanwhile.
            ("fusion.lease_ms", "20000".to_owned()),
            // So few that a burst reaches the limit.
            ("fusion.pending_sends_max", "1500".to_owned()),
            // Memory of a client for tensors received without a destination, for each shard.
            ("daemon.area_bytes", (16 << 20).to_string()),
            // Shorter than calls in flight may take, so that draining ends in both ways.
            ("daemon.drain_timeout_ms", "500".to_owned()),
        ];
        if !self.is_patient {
            settings.push(("transport.heartbeat_ms", millis(HEARTBEAT)));
            settings.push(("transport.peer_timeout_ms", millis(PEER_TIMEOUT)));
        }
        let own = format!("keys/{}", address.to_string().replace(':', "_"));
        match self.shown {
            Shown::Secret => settings.push(("security.secret_file", path("secret"))),
            Shown::Nothing => settings.push(("security.insecure", "true".to_owned())),
            Shown::Tls => settings.extend([
                ("security.tls_certificate", path(&format!("{own}/certificate.pem"))),
                ("security.tls_key", path(&format!("{own}/key.pem"))),
                ("security.tls_authorities", path("keys/authorities.pem")),
            ]),
        }
        settings
    }
}
