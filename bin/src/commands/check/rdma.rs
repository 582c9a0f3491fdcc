//! The RDMA devices of this host with their ports and GIDs, as sysfs shows them, bounded by `GIDS_MAX` for each port; whether an
//! engine of this program could use one; and which link joins this host to others.

use std::net::Ipv6Addr;

use sealane_transport::verbs::device::Attributes;
use sealane_transport::verbs::{self, VerbsSettings};
use serde::Serialize;
use serde_json::{Value, json};

use super::kernel::Kernel;
use super::verdict::{Finding, advice};
use crate::settings::Require;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "sys/class/infiniband";
/// Most GIDs that are read: enough for a port with many VLANs, less than the hardware's whole table.
const GIDS_MAX: usize = 256;

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) ports: Vec<Port>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Port {
    pub(super) number: u32,
    /// Such as `ACTIVE` or `DOWN`.
    pub(super) state: String,
    /// `Ethernet` or `InfiniBand`.
    pub(super) link_layer: String,
    pub(super) gids: Vec<Gid>,
}

/// One used entry of a port's GID table.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Gid {
    pub(super) index: usize,
    pub(super) gid: String,
    /// `RoCE v2`, `IB/RoCE v1`; empty if the kernel does not say.
    pub(super) kind: String,
    /// The network device; empty on InfiniBand.
    pub(super) network_device: String,
}

impl Device {
    /// The devices, by name; none if the kernel has no directory of them.
    pub(super) fn look(kernel: &Kernel) -> Vec<Device> {
        let device = |name: String| Device { ports: ports(kernel, &format!("{DEVICES}/{name}/ports")), name };
        kernel.names(DEVICES).into_iter().map(device).collect()
    }
}

pub(super) fn finding(devices: &[Device]) -> Finding {
    const NAME: &str = "RDMA devices";
    if devices.is_empty() {
        return Finding::ok(NAME, "none");
    }
    let port = |device: &Device, port: &Port| {
        let Port { number, state, link_layer, gids } = port;
        format!("{} port {number}: {state}, {link_layer}, {} GIDs", device.name, gids.len())
    };
    let ports = devices.iter().flat_map(|device| device.ports.iter().map(move |one| port(device, one)));
    let says = ports.collect::<Vec<_>>().join("; ");
    let is_active = |port: &Port| port.state == "ACTIVE";
    if devices.iter().any(|device| device.ports.iter().any(is_active)) {
        return Finding::ok(NAME, says);
    }
    let interface = devices.iter().flat_map(|device| &device.ports).flat_map(|port| &port.gids);
    let interface = interface.map(|gid| gid.network_device.as_str()).find(|name| !name.is_empty());
    let remedy = interface.map_or_else(
        || advice("start the subnet manager, or plug the cable in; `rdma link show` shows the ports"),
        |name| format!("sudo ip link set {name} up").into(),
    );
    Finding::better(NAME, format!("{says}: no port is active"), remedy)
}

fn ports(kernel: &Kernel, directory: &str) -> Vec<Port> {
    let port = |name: String| {
        let text = |file: &str| kernel.text(format!("{directory}/{name}/{file}")).unwrap_or_default();
        // sysfs writes "4: ACTIVE".
        let state = text("state");
        let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word);
        let gid = |index: usize| {
            let gid = text(&format!("gids/{index}"));
            let used = gid.bytes().any(|byte| byte != b'0' && byte != b':');
            let (kind, network_device) = (format!("gid_attrs/types/{index}"), format!("gid_attrs/ndevs/{index}"));
            used.then(|| Gid { index, gid, kind: text(&kind), network_device: text(&network_device) })
        };
        let gids = kernel.names(format!("{directory}/{name}/gids")).len().min(GIDS_MAX);
        Some(Port {
            number: name.parse().ok()?,
            state: state.to_owned(),
            link_layer: text("link_layer"),
            gids: (0..gids).filter_map(gid).collect(),
        })
    };
    let mut ports: Vec<_> = kernel.names(directory).into_iter().filter_map(port).collect();
    ports.sort_by_key(|port| port.number);
    ports
}

/// What an engine finds if it tries to use RDMA verbs.
#[derive(Debug)]
pub(super) struct Verbs {
    /// Whether libibverbs could be loaded.
    library: bool,
    /// The device that it would use, or why none and what to do about it.
    pub(super) opened: Result<Attributes, String>,
}

impl Verbs {
    /// Opens the device that the settings name or imply, as a shard would, and closes it again.
    pub(super) fn look(settings: &VerbsSettings) -> Verbs {
        let library = !verbs::ibverbs::devices().is_err_and(|error| error.reason.starts_with("libibverbs"));
        let opened = verbs::open(settings).map(|device| device.attributes().clone());
        Verbs { library, opened: opened.map_err(|error| error.to_string()) }
    }

    /// Why that device was chosen, or why none was.
    fn reason(&self) -> &str {
        self.opened.as_ref().map_or_else(|reason| reason, |device| &device.chosen)
    }

    /// As JSON, for scripts. Every build has verbs.
    pub(super) fn facts(&self) -> Value {
        let device = self.opened.as_ref().ok().map(|device| {
            json!({
                "name": device.device, "port": device.port, "gid_index": device.gid_index,
                "gid": Ipv6Addr::from(device.gid).to_string(), "mtu_bytes": device.mtu,
                "device_memory_copied": device.direct.as_ref().err(),
            })
        });
        json!({ "built_in": true, "library": self.library, "device": device, "reason": self.reason() })
    }

    /// The finding about verbs. `asked` is the value of `transport.require`; `has_device` is true if the kernel has a device.
    pub(super) fn finding(&self, require: Require, asked: &str, has_device: bool) -> Finding {
        const NAME: &str = "verbs";
        let reason = match &self.opened {
            Ok(Attributes { device, port, gid_index, gid, mtu, chosen, direct, .. }) => {
                let gid = Ipv6Addr::from(*gid);
                let mut path = format!("{device} port {port}, GID {gid_index} ({gid}), MTU {mtu}");
                if let Err(reason) = direct {
                    path += &format!(", devices' memory is copied ({reason})");
                }
                return match require {
                    Require::Tcp => Finding::ok(NAME, format!("not used: {asked}; available: {path}")),
                    _ => Finding::ok(NAME, format!("{path}; {chosen}")),
                };
            }
            Err(reason) => reason,
        };
        let remedy = match (self.library, has_device) {
            (false, _) => "sudo apt-get install libibverbs1 ibverbs-providers",
            (true, false) => "sudo modprobe mlx5_ib  # or your card's driver",
            (true, true) => "rdma link show",
        };
        match (require, has_device) {
            (Require::Verbs, _) => Finding::fails(NAME, format!("{asked}, but {reason}"), remedy),
            (Require::Auto, true) => Finding::better(NAME, format!("not available: {reason}"), remedy),
            (Require::Auto, false) => {
                Finding::ok(NAME, format!("not available: {reason}; links between hosts use TCP"))
            }
            (Require::Tcp, _) => Finding::ok(NAME, format!("not used: {asked}")),
        }
    }

    /// The link that joins this host to others, `none` if the required one is not available, and the reason.
    pub(super) fn network(&self, (require, asked): (Require, String)) -> (&'static str, String) {
        let reason = self.reason();
        match (require, &self.opened) {
            (Require::Tcp, _) => ("tcp", asked),
            (Require::Auto, Err(_)) => ("tcp", format!("no verbs here: {reason}")),
            (Require::Auto, Ok(_)) => ("verbs", format!("if the peer has them too, else tcp; {reason}")),
            (Require::Verbs, Ok(_)) => ("verbs", format!("{asked}; {reason}")),
            (Require::Verbs, Err(_)) => ("none", format!("{asked}, but {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use sealane_fusion::TlsFiles;
    use sealane_transport::verbs::PLAINTEXT_REFUSED;

    use super::super::kernel::laid_out;
    use super::super::verdict::Verdict::{CouldBeBetter, Ok as Fine, WillNotWork};
    use super::*;
    use crate::engine_settings::link_wanted;
    use crate::settings::{Peers, Settings};

    #[test]
    fn reads_devices_ports_and_used_gids() {
        let (root, kernel) = laid_out(&[
            ("sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE"),
            ("sys/class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet"),
            ("sys/class/infiniband/mlx5_0/ports/1/gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001"),
            ("sys/class/infiniband/mlx5_0/ports/1/gids/1", "0000:0000:0000:0000:0000:0000:0000:0000"),
            ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/0", "RoCE v2"),
            ("sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0"),
            ("sys/class/infiniband/a0/ports/x/state", "4: ACTIVE"),
        ]);
        let devices = Device::look(&kernel);
        assert_eq!(devices.len(), 2);
        assert_eq!((devices[0].name.as_str(), devices[0].ports.len()), ("a0", 0));
        let port = &devices[1].ports[0];
        assert_eq!((port.number, port.state.as_str()), (1, "ACTIVE"));
        assert_eq!(port.link_layer, "Ethernet");
        let [gid] = &port.gids[..] else {
            panic!("{:?}", port.gids);
        };
        assert_eq!((gid.index, gid.kind.as_str()), (0, "RoCE v2"));
        assert_eq!(gid.network_device, "eth0");
        let says = "mlx5_0 port 1: ACTIVE, Ethernet, 1 GIDs";
        assert_eq!(finding(&devices), Finding::ok("RDMA devices", says));

        let port = root.path().join("sys/class/infiniband/mlx5_0/ports/1");
        fs::write(port.join("state"), "1: DOWN\n").unwrap();
        let down = finding(&Device::look(&kernel));
        assert_eq!(down.remedy(), "sudo ip link set eth0 up");
        fs::remove_file(port.join("gids/0")).unwrap();
        let down = finding(&Device::look(&kernel));
        assert!(down.remedy().starts_with("start the subnet manager"));
    }

    #[test]
    fn a_host_without_rdma_has_no_devices() {
        let (_directory, kernel) = laid_out(&[]);
        assert_eq!(Device::look(&kernel), []);
        assert_eq!(finding(&[]).says, "none");
    }

    const CHOSEN: &str = "device rxe0 (the first with an active port)";
    const MISSING: &str = "ibv_get_device_list: libibverbs.so.1 could not be loaded";

    fn found() -> Verbs {
        let attributes = Attributes {
            device: "rxe0".to_owned(),
            port: 1,
            gid_index: 1,
            gid: std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets(),
            lid: 0,
            mtu: 1024,
            reads: 16,
            has_windows: true,
            work_bytes_max: 1 << 30,
            send_depth: 128,
            receive_depth: 1024,
            completion_depth: 5120,
            chosen: CHOSEN.to_owned(),
            direct: Err("ibv_reg_dmabuf_mr: not supported".to_owned()),
        };
        Verbs { library: true, opened: Ok(attributes) }
    }

    fn missing() -> Verbs {
        Verbs { library: false, opened: Err(MISSING.to_owned()) }
    }

    #[test]
    fn what_was_chosen_or_is_missing_is_told_with_the_reason() {
        let device = &found().facts()["device"];
        assert_eq!((&device["name"], &device["gid"]), (&"rxe0".into(), &"::ffff:10.9.0.1".into()));
        assert_eq!(missing().facts()["device"], Value::Null);
        let path = "rxe0 port 1, GID 1 (::ffff:10.9.0.1), MTU 1024, devices' memory is copied (ibv_reg_dmabuf_mr: not supported)";
        let install = "sudo apt-get install libibverbs1 ibverbs-providers";
        for (verbs, require, has_device, verdict, says, remedy) in [
            (found(), Require::Auto, true, Fine, format!("{path}; {CHOSEN}"), ""),
            (found(), Require::Tcp, true, Fine, format!("not used: it is so; available: {path}"), ""),
            (missing(), Require::Auto, true, CouldBeBetter, format!("not available: {MISSING}"), install),
            (missing(), Require::Verbs, false, WillNotWork, format!("it is so, but {MISSING}"), install),
            (missing(), Require::Tcp, true, Fine, "not used: it is so".to_owned(), ""),
            (
                missing(),
                Require::Auto,
                false,
                Fine,
                format!("not available: {MISSING}; links between hosts use TCP"),
                "",
            ),
        ] {
            let finding = verbs.finding(require, "it is so", has_device);
            assert_eq!((finding.verdict, finding.says.as_str(), finding.remedy()), (verdict, says.as_str(), remedy));
        }
        let here = Verbs::look(&VerbsSettings::default());
        assert!(here.library || here.reason().contains("libibverbs"), "{here:?}");
    }

    #[test]
    fn the_network_is_what_is_asked_for_and_can_be_had() {
        let mut settings = Settings::of::<&str, &str>([]).unwrap();
        let verbs_required = "transport.require is verbs (default)";
        for (require, verbs, link, reason) in [
            (Require::Tcp, found(), "tcp", "transport.require is tcp (default)".to_owned()),
            (Require::Auto, missing(), "tcp", format!("no verbs here: {MISSING}")),
            (Require::Auto, found(), "verbs", format!("if the peer has them too, else tcp; {CHOSEN}")),
            (Require::Verbs, found(), "verbs", format!("{verbs_required}; {CHOSEN}")),
            (Require::Verbs, missing(), "none", format!("{verbs_required}, but {MISSING}")),
        ] {
            settings.transport.require.value = require;
            assert_eq!(verbs.network(link_wanted(&settings)), (link, reason));
        }
        let [certificate, key, authorities] = ["c", "k", "a"].map(Into::into);
        settings.security.peers = Peers::Tls(TlsFiles { certificate, key, authorities });
        settings.transport.require.value = Require::Auto;
        assert_eq!(found().network(link_wanted(&settings)), ("tcp", PLAINTEXT_REFUSED.to_owned()));
        settings.security.plaintext_rdma.value = true;
        assert_eq!(found().network(link_wanted(&settings)).0, "verbs");
    }
}
