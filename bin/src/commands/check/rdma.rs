//! The RDMA devices of this host with their ports and GIDs, as sysfs shows them. Bounded by
//! `GIDS_MAX` for each port.

use serde::Serialize;

use super::kernel::Kernel;
use super::verdict::{Finding, advice};

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "sys/class/infiniband";
/// Most GIDs that are looked at: the table of a port with many VLANs, not all that hardware has.
const GIDS_MAX: usize = 256;

/// An RDMA device.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Device {
    pub(super) name: String,
    pub(super) ports: Vec<Port>,
}

/// A port of a device.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Port {
    pub(super) number: u32,
    /// `ACTIVE`, `DOWN` and so on.
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
    /// `RoCE v2`, `IB/RoCE v1`; empty where the kernel does not say.
    pub(super) kind: String,
    /// The network device; empty on InfiniBand.
    pub(super) network_device: String,
}

impl Device {
    /// The devices, by name; none where the kernel has no directory of them.
    pub(super) fn look(kernel: &Kernel) -> Vec<Device> {
        let device = |name: String| Device { ports: ports(kernel, &format!("{DEVICES}/{name}/ports")), name };
        kernel.names(DEVICES).into_iter().map(device).collect()
    }
}

/// What is to be said of the devices.
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::kernel::laid_out;
    use super::*;

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
}
