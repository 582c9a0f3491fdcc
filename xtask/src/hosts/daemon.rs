//! How a host's daemon is started, and an engine that is embedded in a task: every flag and setting is here.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use sealane::EngineSettings;
use sealane_runtime::{Pin, Polling};

use super::flag;

/// How long silence is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
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

fn settings(patience: Patience) -> Vec<String> {
    let millis = Duration::as_millis;
    let mut settings = vec![
        format!("runtime.shards={SHARDS}"),
        "runtime.pin=false".into(),
        // Who has nothing to do sleeps at once: what sleeps must be woken.
        "runtime.idle_spin_us=0".into(),
        format!("runtime.slab_send_bytes={SLAB_BYTES}"),
        format!("runtime.slab_receive_bytes={SLAB_BYTES}"),
        // A long turn says here only that the machine has other work.
        "runtime.stall_report_ms=0".into(),
        format!("transport.connect_timeout_ms={}", millis(&CONNECT_TIMEOUT)),
        format!("fusion.request_timeout_ms={}", millis(&REQUEST_TIMEOUT)),
        format!("fusion.lease_ms={}", millis(&LEASE)),
        format!("fusion.deposited_tensors_max={DEPOSITED_TENSORS_MAX}"),
        format!("daemon.area_bytes={AREA_BYTES}"),
        format!("daemon.drain_timeout_ms={}", millis(&DRAIN_TIMEOUT)),
    ];
    if patience == Patience::Short {
        settings.push(format!("transport.heartbeat_ms={}", millis(&HEARTBEAT)));
        settings.push(format!("transport.peer_timeout_ms={}", millis(&PEER_TIMEOUT)));
    }
    settings
}

/// The command line of a daemon.
pub(super) fn arguments(
    map: &Path,
    socket: &Path,
    tasks: impl Iterator<Item = String>,
    patience: Patience,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["daemon".into()];
    arguments.extend(flag("--endpoint-map", map));
    arguments.extend(flag("--socket", socket));
    arguments.extend(flag("--metrics", "off"));
    arguments.extend(tasks.flat_map(|task| flag("--task", task)));
    arguments.extend(settings(patience).into_iter().flat_map(|setting| flag("--set", setting)));
    arguments
}

/// The same for an engine without a daemon.
pub(crate) fn embed(settings: &mut EngineSettings, patience: Patience) {
    settings.runtime.shards = SHARDS;
    settings.runtime.pin = Pin::Off;
    settings.runtime.polling = Polling::Park;
    settings.runtime.stall_report = Duration::ZERO;
    (settings.slab_send_bytes, settings.slab_receive_bytes) = (SLAB_BYTES, SLAB_BYTES);
    if patience == Patience::Short {
        (settings.session.heartbeat, settings.session.peer_timeout) = (HEARTBEAT, PEER_TIMEOUT);
    }
    settings.connect_timeout = CONNECT_TIMEOUT;
    (settings.request_timeout, settings.lease) = (REQUEST_TIMEOUT, LEASE);
    settings.deposited_tensors_max = DEPOSITED_TENSORS_MAX;
}
