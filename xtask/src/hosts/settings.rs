//! The settings of daemons, and of engines that are embedded in a task, and what they show each other.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::command::run;

/// What peers show each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Shown {
    /// That they have the run's secret.
    Secret,
    /// Certificates for their tasks; all is encrypted.
    Tls,
    /// Nothing: everybody who reaches a host may talk.
    Nothing,
}

/// How all hosts of a run behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manner {
    /// Silence is believed for the default, longer than all troubles: links outlive their cables. Else for less than most of them last:
    /// links are given up and made again.
    pub(crate) is_patient: bool,
    pub(crate) shown: Shown,
}

/// Silence is found out soon, where it is not left to the defaults.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(1000);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(2000);

/// Makes secret and certificates for the endpoint map of a run, in its folder, by `sealane keys`.
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
    /// The settings of a daemon at that address, or of an engine, by name, in a run whose files are in `folder`.
    pub(crate) fn settings(self, folder: &Path, address: SocketAddr) -> Vec<(&'static str, String)> {
        let millis = |time: Duration| time.as_millis().to_string();
        let path = |path: &str| folder.join(path).display().to_string();
        // Memory of a shard for tensors that have no client's: several of the largest, as a tick may bring more than one from
        // peers to whom nothing was done.
        let slab = (24 << 20).to_string();
        let mut settings = vec![
            // Two shards, so that pairs of tasks meet on different ones.
            ("runtime.shards", "2".to_owned()),
            ("runtime.pin", "false".to_owned()),
            // Who has nothing to do sleeps at once: what sleeps must be woken.
            ("runtime.idle_spin_us", "0".to_owned()),
            ("runtime.slab_send_bytes", slab.clone()),
            ("runtime.slab_receive_bytes", slab),
            // A long turn says here only that the machine has other work.
            ("runtime.stall_report_ms", "0".to_owned()),
            ("transport.connect_timeout_ms", millis(CONNECT_TIMEOUT)),
            // Longer than any call's own deadline.
            ("fusion.request_timeout_ms", "10000".to_owned()),
            // Longer than any trouble lasts: what is lent stays lent meanwhile.
            ("fusion.lease_ms", "20000".to_owned()),
            // So few that a burst reaches it.
            ("fusion.pending_sends_max", "1500".to_owned()),
            // Memory of a client for what it receives without a destination, for each shard.
            ("daemon.area_bytes", (16 << 20).to_string()),
            // Shorter than what is in flight may take, so that draining ends both ways.
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
