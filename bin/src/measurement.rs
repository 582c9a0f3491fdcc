//! Results of measuring the links to a daemon's peers, as the daemon sends them to `sealane check --measure`. Plain data.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use sealane_fusion::Measured;
use sealane_transport::tcp::TcpState;
use serde::{Deserialize, Serialize};

use crate::local_host::interfaces_of;

/// The schema that this program writes and reads.
pub(crate) const SCHEMA: &str = "sealane-measure/1";

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurements {
    /// [`SCHEMA`].
    pub(crate) schema: String,
    /// One for each transport address of the endpoint map, except the daemon's own, in the map's order.
    pub(crate) peers: Vec<Measurement>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) transport_address: String,
    /// The task there that was measured.
    pub(crate) task: String,
    /// `None` if the link was not measured.
    pub(crate) figures: Option<Figures>,
    /// Why the link was not measured.
    pub(crate) problem: Option<String>,
}

/// Figures of the link to one peer, seen from this host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// `tcp`, `verbs` or another kind.
    pub(crate) link: String,
    pub(crate) rtt_p50_us: f64,
    pub(crate) rtt_p99_us: f64,
    pub(crate) round_trips: usize,
    /// Median of the bursts' rates, from this host to the peer.
    pub(crate) sent_gigabytes_per_s: f64,
    pub(crate) bursts: usize,
    /// Share of the bursts' time in which the sending shard was busy.
    pub(crate) shard_busy_percent: f64,
    /// `None` if the link is not TCP.
    #[serde(flatten)]
    pub(crate) tcp: Option<Tcp>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tcp {
    pub(crate) mtu_bytes: u32,
    pub(crate) congestion: String,
    /// Share of the bursts' time in which bytes were waiting or in flight.
    pub(crate) tcp_busy_percent: f64,
    /// Share of that time in which the peer's receive window stopped the sender.
    pub(crate) receive_window_percent: f64,
    /// Share of that time in which this host's send buffer was full.
    pub(crate) send_buffer_percent: f64,
    /// Share of the bytes that were sent again.
    pub(crate) resent_percent: f64,
    /// The interface with the connection's address; `None` if there is none.
    pub(crate) interface: Option<String>,
    /// Speed of that interface; `None` if the kernel does not know it.
    pub(crate) interface_gigabytes_per_s: Option<f64>,
    /// The peer is on this host.
    pub(crate) is_same_host: bool,
}

impl From<Measured> for Figures {
    fn from(measured: Measured) -> Figures {
        let Measured { link, round_trips, rates, busy_share, burst_time, tcp } = measured;
        let microseconds = |percent: usize| round_trips[(round_trips.len() - 1) * percent / 100].as_secs_f64() * 1e6;
        Figures {
            link: link.name().to_owned(),
            rtt_p50_us: microseconds(50),
            rtt_p99_us: microseconds(99),
            round_trips: round_trips.len(),
            sent_gigabytes_per_s: rates[(rates.len() - 1) / 2] / 1e9,
            bursts: rates.len(),
            shard_busy_percent: busy_share * 100.0,
            tcp: tcp.map(|state| Tcp::new(state, burst_time)),
        }
    }
}

impl Tcp {
    fn new(TcpState { local, peer, congestion, mtu_bytes, counts, .. }: TcpState, burst_time: Duration) -> Tcp {
        let percent = |part: f64, whole: f64| if whole > 0.0 { (part / whole * 100.0).min(100.0) } else { 0.0 };
        let busy = counts.busy.as_secs_f64();
        let interface = interfaces_of(&[local.ip()]).into_iter().next();
        Tcp {
            mtu_bytes,
            congestion,
            tcp_busy_percent: percent(busy, burst_time.as_secs_f64()),
            receive_window_percent: percent(counts.receive_window_limited.as_secs_f64(), busy),
            send_buffer_percent: percent(counts.send_buffer_limited.as_secs_f64(), busy),
            resent_percent: percent(counts.resent_bytes as f64, counts.sent_bytes as f64),
            interface_gigabytes_per_s: interface.as_deref().and_then(|name| speed_of(Path::new("/"), name)),
            interface,
            is_same_host: is_of_this_host(peer.ip()),
        }
    }
}

fn is_of_this_host(address: IpAddr) -> bool {
    address.is_loopback() || !interfaces_of(&[address]).is_empty()
}

/// Returns the speed of a network interface in 10^9 bytes per second; `root` contains `sys`. Virtual interfaces have none: what the
/// kernel reports for a veth pair, for example, is a constant.
fn speed_of(root: &Path, interface: &str) -> Option<f64> {
    let directory = root.join("sys/class/net").join(interface);
    let is_lower = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("lower_");
    let has_lower = || fs::read_dir(&directory).ok()?.flatten().any(is_lower).then_some(());
    if !directory.join("device").exists() {
        // A bond or a VLAN has the speed of the interfaces below it.
        has_lower()?;
    }
    let megabits: f64 = fs::read_to_string(directory.join("speed")).ok()?.trim().parse().ok()?;
    (megabits > 0.0).then_some(megabits / 8e3)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn speed_is_known_of_hardware_interfaces() {
        let root = tempfile::tempdir().unwrap();
        for (interface, below, speed, expected) in [
            ("eth0", Some("device"), "10000\n", Some(1.25)),
            ("bond0", Some("lower_eth0"), "200000\n", Some(25.0)),
            ("veth0", None, "10000\n", None),
            ("virtio0", Some("device"), "-1\n", None),
            ("down0", Some("device"), "", None),
        ] {
            let directory = root.path().join("sys/class/net").join(interface);
            fs::create_dir_all(&directory).unwrap();
            below.iter().for_each(|below| fs::create_dir(directory.join(below)).unwrap());
            fs::write(directory.join("speed"), speed).unwrap();
            assert_eq!(speed_of(root.path(), interface), expected, "{interface}");
        }
        assert_eq!(speed_of(root.path(), "none"), None);
    }

    #[test]
    fn peer_at_a_loopback_address_is_on_this_host() {
        assert!(is_of_this_host("127.0.0.9".parse().unwrap()));
        // An address that is reserved for documentation.
        assert!(!is_of_this_host("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn figures_are_a_median_and_percentiles() {
        let ms = Duration::from_millis;
        let measured = Measured {
            link: sealane_transport::LinkKind::TCP,
            round_trips: (1..=101).map(ms).collect(),
            rates: vec![1e9, 2e9, 9e9],
            busy_share: 0.5,
            burst_time: ms(20),
            tcp: None,
        };
        let figures = Figures::from(measured);
        assert_eq!((figures.rtt_p50_us, figures.rtt_p99_us), (51_000.0, 100_000.0));
        assert_eq!((figures.sent_gigabytes_per_s, figures.shard_busy_percent), (2.0, 50.0));
        let json = serde_json::to_string(&figures).unwrap();
        assert_eq!(serde_json::from_str::<Figures>(&json).unwrap(), figures);
    }
}
