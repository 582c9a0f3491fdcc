//! The RDMA devices of this host with their ports and GIDs, as sysfs shows them. Bounded by
//! `GIDS_MAX` for each port.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::verdict::{Finding, advice};

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
    /// The devices below `root`, by name; none where there is no such directory.
    pub(super) fn look(root: impl AsRef<Path>) -> Vec<Device> {
        let device = |path: PathBuf| Device { name: name(&path), ports: ports(&path.join("ports")) };
        let mut devices: Vec<_> = children(root.as_ref()).map(device).collect();
        devices.sort_by(|a, b| a.name.cmp(&b.name));
        devices
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

fn ports(directory: &Path) -> Vec<Port> {
    let port = |path: PathBuf| {
        // sysfs writes "4: ACTIVE".
        let state = text(&path.join("state"));
        let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word);
        Some(Port {
            number: name(&path).parse().ok()?,
            state: state.to_owned(),
            link_layer: text(&path.join("link_layer")),
            gids: gids(&path),
        })
    };
    let mut ports: Vec<_> = children(directory).filter_map(port).collect();
    ports.sort_by_key(|port| port.number);
    ports
}

fn gids(port: &Path) -> Vec<Gid> {
    let gid = |index: usize| {
        let at = |directory: &str| text(&port.join(directory).join(index.to_string()));
        let gid = at("gids");
        let used = gid.bytes().any(|byte| byte != b'0' && byte != b':');
        used.then(|| Gid { index, gid, kind: at("gid_attrs/types"), network_device: at("gid_attrs/ndevs") })
    };
    let count = children(&port.join("gids")).take(GIDS_MAX).count();
    (0..count).filter_map(gid).collect()
}

fn children(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).ok().into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

fn name(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// A sysfs attribute without its line end; empty where the kernel has nothing to say.
fn text(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Remedy;
    use super::*;

    #[test]
    fn reads_devices_ports_and_used_gids() {
        let root = tempfile::tempdir().unwrap();
        let port = root.path().join("mlx5_0/ports/1");
        for (file, text) in [
            ("state", "4: ACTIVE\n"),
            ("link_layer", "Ethernet\n"),
            ("gids/0", "fe80:0000:0000:0000:0000:0000:0000:0001\n"),
            ("gids/1", "0000:0000:0000:0000:0000:0000:0000:0000\n"),
            ("gid_attrs/types/0", "RoCE v2\n"),
            ("gid_attrs/ndevs/0", "eth0\n"),
        ] {
            let path = port.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(root.path().join("a0/ports/x")).unwrap();
        let devices = Device::look(root.path());
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

        fs::write(root.path().join("mlx5_0/ports/1/state"), "1: DOWN\n").unwrap();
        let down = finding(&Device::look(root.path()));
        assert_eq!(down.remedy.as_ref().map(Remedy::text), Some("sudo ip link set eth0 up"));
        fs::remove_file(root.path().join("mlx5_0/ports/1/gids/0")).unwrap();
        let down = finding(&Device::look(root.path()));
        assert!(down.remedy.unwrap().text().starts_with("start the subnet manager"));
    }

    #[test]
    fn a_host_without_rdma_has_no_devices() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(Device::look(root.path().join("none")), []);
        assert_eq!(finding(&[]).says, "none");
    }
}
