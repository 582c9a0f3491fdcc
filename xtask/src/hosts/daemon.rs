//! How a host's daemon is started: every flag is here, and every setting, which an engine has too that is embedded in a task.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use super::flag;

/// How long silence is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) enum Patience {
    /// Shorter than most troubles: links are given up and made again.
    Short,
    /// The default, longer than all: links outlive their cables.
    Long,
}

/// Two shards, so that pairs of tasks meet on different ones.
const SHARDS: usize = 2;

/// Memory of a shard for tensors that have no client's: several of the largest, as a tick may bring more than one from
/// peers to whom nothing was done.
const SLAB_BYTES: usize = 24 << 20;

/// Silence is found out soon, where it is not left to the defaults.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);
pub(crate) const PEER_TIMEOUT: Duration = Duration::from_millis(1000);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(2000);

/// Longer than any trouble lasts: what is lent stays lent meanwhile.
const LEASE: Duration = Duration::from_secs(20);

/// Longer than any call's own deadline.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// So few that a burst reaches it.
const DEPOSITED_TENSORS_MAX: usize = 1500;

/// Memory of a client for what it receives without a destination, for each shard.
const AREA_BYTES: usize = 16 << 20;

/// Shorter than what is in flight may take, so that draining ends both ways.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

/// The settings of daemons and of embedded engines, by name.
pub(super) fn settings(patience: Patience) -> Vec<(&'static str, String)> {
    let millis = |time: Duration| time.as_millis().to_string();
    let mut settings = vec![
        ("runtime.shards", SHARDS.to_string()),
        ("runtime.pin", "false".into()),
        // Who has nothing to do sleeps at once: what sleeps must be woken.
        ("runtime.idle_spin_us", "0".into()),
        ("runtime.slab_send_bytes", SLAB_BYTES.to_string()),
        ("runtime.slab_receive_bytes", SLAB_BYTES.to_string()),
        // A long turn says here only that the machine has other work.
        ("runtime.stall_report_ms", "0".into()),
        ("transport.connect_timeout_ms", millis(CONNECT_TIMEOUT)),
        ("fusion.request_timeout_ms", millis(REQUEST_TIMEOUT)),
        ("fusion.lease_ms", millis(LEASE)),
        ("fusion.deposited_tensors_max", DEPOSITED_TENSORS_MAX.to_string()),
        ("daemon.area_bytes", AREA_BYTES.to_string()),
        ("daemon.drain_timeout_ms", millis(DRAIN_TIMEOUT)),
    ];
    if patience == Patience::Short {
        settings.push(("transport.heartbeat_ms", millis(HEARTBEAT)));
        settings.push(("transport.peer_timeout_ms", millis(PEER_TIMEOUT)));
    }
    settings
}

/// The command line of a daemon.
pub(super) fn arguments(
    map: &Path,
    socket: &Path,
    tasks: impl Iterator<Item = String>,
    settings: Vec<(&'static str, String)>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["daemon".into()];
    arguments.extend(flag("--endpoint-map", map));
    arguments.extend(flag("--socket", socket));
    arguments.extend(flag("--metrics", "off"));
    arguments.extend(tasks.flat_map(|task| flag("--task", task)));
    arguments.extend(settings.into_iter().flat_map(|(name, value)| flag("--set", format!("{name}={value}"))));
    arguments
}
