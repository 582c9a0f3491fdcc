//! Chooses device, port and GID, with the reason, from a list of what is available; does not access any device.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::verbs::VerbsSettings;
use crate::verbs::device::VerbsError;

const STEP: &str = "choice of the RDMA device";

/// An RDMA device of this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSummary {
    /// Its name, `mlx5_0`.
    pub name: String,
    /// Its ports; none if it could not be opened.
    pub ports: Vec<PortSummary>,
    /// Why it could not be opened.
    pub problem: Option<String>,
    /// Addresses of its network interfaces.
    pub networks: Vec<IpAddr>,
}

/// A port of an RDMA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortSummary {
    /// Its number, from 1.
    pub number: u8,
    pub state: PortState,
    /// True if its link is Ethernet (RoCE), false if InfiniBand.
    pub ethernet: bool,
    /// Its local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The current path MTU of its link, in bytes.
    pub mtu: u16,
    /// Most bytes of one message.
    pub message_bytes_max: u32,
    pub gids: Vec<GidSummary>,
}

/// State of a port; the names are those of the InfiniBand specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// There is no link.
    Down,
    /// There is a link, which waits for the subnet manager.
    Initialize,
    /// Configured, not yet active.
    Armed,
    /// Usable.
    Active,
}

impl PortState {
    pub(super) fn from_verbs(state: u32) -> Self {
        match state {
            2 => Self::Initialize,
            3 => Self::Armed,
            // 5 is "active, deferred": active, with a link that is being recovered.
            4 | 5 => Self::Active,
            _ => Self::Down,
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Down => "down",
            Self::Initialize => "initializing",
            Self::Armed => "armed",
            Self::Active => "active",
        })
    }
}

/// An address of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidSummary {
    /// Its index in the port's table.
    pub index: u8,
    /// The address.
    pub gid: [u8; 16],
    pub kind: GidKind,
}

impl GidSummary {
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.gid).to_ipv4_mapped()
    }

    fn address(&self) -> IpAddr {
        Ipv6Addr::from(self.gid).to_canonical()
    }

    fn is_link_local(&self) -> bool {
        Ipv6Addr::from(self.gid).is_unicast_link_local()
    }
}

impl fmt::Display for GidSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GID {} {} ({})", self.index, Ipv6Addr::from(self.gid), self.kind)
    }
}

/// The format of packets that use a GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    InfiniBand,
    /// RoCE v1: on Ethernet, not routable.
    RoceV1,
    /// RoCE v2: in UDP.
    RoceV2,
    /// A kind that this program does not know.
    Other(u32),
}

impl GidKind {
    pub(super) fn from_verbs(kind: u32) -> Self {
        match kind {
            0 => Self::InfiniBand,
            1 => Self::RoceV1,
            2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::RoceV1 => f.write_str("RoCE v1"),
            Self::RoceV2 => f.write_str("RoCE v2"),
            Self::Other(kind) => write!(f, "type {kind}"),
        }
    }
}

/// The chosen device, port and GID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The device's index in the list.
    pub device: usize,
    pub port: u8,
    pub ethernet: bool,
    pub lid: u16,
    pub gid: GidSummary,
    pub mtu: u16,
    pub message_bytes_max: u32,
    /// Why this device and port were chosen, human-readable.
    pub why: Why,
    /// The whole choice, human-readable.
    pub sentence: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Why {
    device: String,
    port: &'static str,
}

/// Chooses as documented at [`VerbsSettings`].
///
/// # Errors
/// Nothing fits; the reason lists what is available.
pub(super) fn choose(devices: &[DeviceSummary], settings: &VerbsSettings) -> Result<Choice, VerbsError> {
    if devices.is_empty() {
        return Err(VerbsError::new(
            STEP,
            "this host has no RDMA device: load the driver of its adapter (`ibv_devices` lists what the system sees); in a \
             container, pass /dev/infiniband into it",
        ));
    }
    let (device, port, why_device) = match &settings.device {
        Some(name) => {
            let device = devices.iter().position(|device| &device.name == name).ok_or_else(|| {
                let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
                VerbsError::new(STEP, format!("there is no device `{name}`; there is {}", names.join(", ")))
            })?;
            let port = active_port(&devices[device], settings.port).ok_or_else(|| none_active(devices, settings))?;
            (device, port, "as set".to_owned())
        }
        None => {
            let found = devices.iter().enumerate();
            let found = found.filter_map(|(at, device)| Some((at, active_port(device, settings.port)?)));
            let found: Vec<_> = found.collect();
            let &(first, port) = found.first().ok_or_else(|| none_active(devices, settings))?;
            let near =
                found.iter().find_map(|&(at, port)| Some((at, port, carried(&devices[at], port, &settings.near)?)));
            match near {
                // If there is only one, nothing was chosen.
                Some((at, port, address)) if found.len() > 1 => {
                    (at, port, format!("its network has the transport address {address}"))
                }
                _ => (first, port, "the first with an active port".to_owned()),
            }
        }
    };
    let why_port = if settings.port.is_some() { "as set" } else { "the first active one" };
    let why = Why { device: why_device, port: why_port };
    let (gid, why_gid) = choose_gid(port, settings)?;
    let (mtu, sentence) = describe((&devices[device].name, port, &why), (gid, why_gid), settings)?;
    let PortSummary { number, ethernet, lid, message_bytes_max, .. } = *port;
    Ok(Choice { device, port: number, ethernet, lid, gid, mtu, message_bytes_max, why, sentence })
}

/// The GID and the path MTU of a port that may have changed, and a sentence that says so. Keeps the `present` GID if the
/// port still has it and the settings name none.
///
/// # Errors
/// It has none.
pub(super) fn choose_again(
    (name, port, why): (&str, &PortSummary, &Why),
    present: [u8; 16],
    settings: &VerbsSettings,
) -> Result<(GidSummary, u16, String), VerbsError> {
    let is_routable = |gid: &&GidSummary| gid.gid == present && !matches!(gid.kind, GidKind::RoceV1);
    let stays = port.gids.iter().find(is_routable).filter(|_| settings.gid_index.is_none());
    let (gid, why_gid) = stays.map_or_else(|| choose_gid(port, settings), |gid| Ok((*gid, "as before")))?;
    let (mtu, sentence) = describe((name, port, why), (gid, why_gid), settings)?;
    Ok((gid, mtu, sentence))
}

/// The path MTU, and a description of the whole choice.
fn describe(
    (name, port, why): (&str, &PortSummary, &Why),
    (gid, why_gid): (GidSummary, &str),
    settings: &VerbsSettings,
) -> Result<(u16, String), VerbsError> {
    let (mtu, why_mtu) = choose_mtu(port, settings.mtu)?;
    let Why { device: why_device, port: why_port } = why;
    let sentence = format!(
        "device {name} ({why_device}), port {} ({why_port}), {gid}, {why_gid}, path MTU {mtu} ({why_mtu})",
        port.number
    );
    Ok((mtu, sentence))
}

/// The first of these addresses that the port's network has.
fn carried(device: &DeviceSummary, port: &PortSummary, near: &[IpAddr]) -> Option<IpAddr> {
    let has =
        |address: &&IpAddr| device.networks.contains(address) || port.gids.iter().any(|gid| gid.address() == **address);
    near.iter().find(has).copied()
}

fn active_port(device: &DeviceSummary, wanted: Option<u8>) -> Option<&PortSummary> {
    let mut ports = device.ports.iter();
    ports.find(|port| port.state == PortState::Active && wanted.is_none_or(|wanted| port.number == wanted))
}

fn none_active(devices: &[DeviceSummary], settings: &VerbsSettings) -> VerbsError {
    let asked = devices.iter().filter(|device| settings.device.as_ref().is_none_or(|name| &device.name == name));
    let seen: Vec<String> = asked
        .flat_map(|device| {
            let problem = device.problem.iter().map(|problem| format!("{}: {problem}", device.name));
            let ports = device.ports.iter().map(|port| format!("{} port {}: {}", device.name, port.number, port.state));
            problem.chain(ports)
        })
        .collect();
    let wanted = settings.port.map(|port| format!(" with number {port}")).unwrap_or_default();
    VerbsError::new(
        STEP,
        format!(
            "no port{wanted} is active ({}): bring its link up (on Ethernet, the network interface), or name another device",
            seen.join("; ")
        ),
    )
}

/// The GID and why it was chosen.
fn choose_gid(port: &PortSummary, settings: &VerbsSettings) -> Result<(GidSummary, &'static str), VerbsError> {
    if let Some(index) = settings.gid_index {
        let found = port.gids.iter().find(|gid| gid.index == index);
        return found.map(|gid| (*gid, "as set")).ok_or_else(|| {
            let gids: Vec<String> = port.gids.iter().map(ToString::to_string).collect();
            VerbsError::new(STEP, format!("port {} has no GID {index}; it has {}", port.number, gids.join(", ")))
        });
    }
    let routable = || port.gids.iter().filter(|gid| gid.kind == GidKind::RoceV2);
    if let Some(gid) = routable().find(|gid| settings.near.contains(&gid.address())) {
        return Ok((*gid, "the RoCE v2 one of the transport address"));
    }
    if let Some(gid) = routable().find(|gid| gid.ipv4().is_some()) {
        return Ok((*gid, "the first RoCE v2 one of an IPv4 address"));
    }
    // A link-local address reaches only this network segment.
    if let Some(gid) = routable().find(|gid| !gid.is_link_local()).or_else(|| routable().next()) {
        return Ok((*gid, "RoCE v2, because none has an IPv4 address"));
    }
    port.gids.first().map(|gid| (*gid, "the first")).ok_or_else(|| {
        let reason = format!("port {} has no GID: give its network interface an address", port.number);
        VerbsError::new(STEP, reason)
    })
}

fn choose_mtu(port: &PortSummary, wanted: Option<u16>) -> Result<(u16, &'static str), VerbsError> {
    let Some(mtu) = wanted else { return Ok((port.mtu, "the port's")) };
    if mtu_to_verbs(mtu).is_none() {
        return Err(VerbsError::new(STEP, format!("a path MTU is 256, 512, 1024, 2048 or 4096 bytes, not {mtu}")));
    }
    if mtu > port.mtu {
        let reason = format!("the path MTU is set to {mtu}, and the link of port {} has {}", port.number, port.mtu);
        return Err(VerbsError::new(STEP, reason));
    }
    Ok((mtu, "as set"))
}

/// The number in `ibv_mtu` for an MTU in bytes.
pub(super) fn mtu_to_verbs(bytes: u16) -> Option<u32> {
    match bytes {
        256 => Some(1),
        512 => Some(2),
        1024 => Some(3),
        2048 => Some(4),
        4096 => Some(5),
        _ => None,
    }
}

/// The MTU in bytes for a number in `ibv_mtu`; the smallest for an unknown one.
pub(super) fn mtu_from_verbs(mtu: u32) -> u16 {
    match mtu {
        2 => 512,
        3 => 1024,
        4 => 2048,
        5 => 4096,
        _ => 256,
    }
}

/// Rejects settings that no device supports.
///
/// # Errors
/// Which setting, and its allowed values.
pub(super) fn check(settings: &VerbsSettings) -> Result<(), VerbsError> {
    let limits = [
        ("the acknowledgement timeout", settings.timeout, 31),
        ("the retry count", settings.retry_count, 7),
        ("the service level", settings.service_level, 15),
    ];
    for (what, value, most) in limits {
        if value > most {
            return Err(VerbsError::new(STEP, format!("{what} is set to {value}; it is at most {most}")));
        }
    }
    if settings.queue_depth == 0 {
        return Err(VerbsError::new(STEP, "the queue depth is set to 0; at least one buffer is needed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u8, address: &str, kind: GidKind) -> GidSummary {
        GidSummary { index, gid: address.parse::<Ipv6Addr>().unwrap().octets(), kind }
    }

    fn port(number: u8, state: PortState) -> PortSummary {
        let gids = vec![
            gid(0, "fe80::1", GidKind::RoceV1),
            gid(1, "fe80::1", GidKind::RoceV2),
            gid(2, "::ffff:10.9.0.1", GidKind::RoceV1),
            gid(3, "::ffff:10.9.0.1", GidKind::RoceV2),
        ];
        PortSummary { number, state, ethernet: true, lid: 0, mtu: 1024, message_bytes_max: 1 << 23, gids }
    }

    fn device(name: &str, ports: Vec<PortSummary>) -> DeviceSummary {
        DeviceSummary { name: name.into(), ports, problem: None, networks: Vec::new() }
    }

    fn two_devices() -> Vec<DeviceSummary> {
        vec![
            device("mlx5_0", vec![port(1, PortState::Down)]),
            device("mlx5_1", vec![port(1, PortState::Initialize), port(2, PortState::Active)]),
        ]
    }

    fn reason(devices: &[DeviceSummary], settings: &VerbsSettings) -> String {
        choose(devices, settings).unwrap_err().to_string()
    }

    #[test]
    fn the_first_device_with_an_active_port_is_chosen() {
        let chosen = choose(&two_devices(), &VerbsSettings::default()).unwrap();
        assert_eq!((chosen.device, chosen.port, chosen.gid.index, chosen.mtu), (1, 2, 3, 1024));
        assert_eq!(
            chosen.sentence,
            "device mlx5_1 (the first with an active port), port 2 (the first active one), \
             GID 3 ::ffff:10.9.0.1 (RoCE v2), the first RoCE v2 one of an IPv4 address, path MTU 1024 (the port's)"
        );
    }

    #[test]
    fn what_is_set_is_taken() {
        let settings = VerbsSettings {
            device: Some("mlx5_1".into()),
            port: Some(2),
            gid_index: Some(1),
            mtu: Some(512),
            ..VerbsSettings::default()
        };
        let chosen = choose(&two_devices(), &settings).unwrap();
        assert_eq!((chosen.device, chosen.port, chosen.gid.index, chosen.mtu), (1, 2, 1, 512));
    }

    #[test]
    fn without_ipv4_a_global_address_goes_before_a_link_local_one() {
        let mut port = port(1, PortState::Active);
        port.gids.truncate(2);
        let defaults = VerbsSettings::default();
        assert_eq!(choose_gid(&port, &defaults).unwrap().0.index, 1);
        port.gids.push(gid(4, "2001:db8::1", GidKind::RoceV2));
        assert_eq!(choose_gid(&port, &defaults).unwrap().0.index, 4);
        port.gids = vec![gid(0, "fe80::2", GidKind::InfiniBand), gid(1, "fe80::3", GidKind::InfiniBand)];
        assert_eq!(choose_gid(&port, &defaults).unwrap().0.index, 0);
        port.gids.clear();
        assert!(choose_gid(&port, &defaults).unwrap_err().reason.contains("no GID"));
    }

    #[test]
    fn of_several_devices_the_one_of_the_transport_addresss_network_is_chosen() {
        let rail = |address: &str| {
            let mut port = port(1, PortState::Active);
            port.gids = vec![gid(0, "fe80::1", GidKind::RoceV2), gid(3, address, GidKind::RoceV2)];
            vec![port]
        };
        let mut devices = vec![
            device("mlx5_0", rail("::ffff:10.9.0.1")),
            device("mlx5_1", rail("::ffff:10.9.1.1")),
            device("mlx5_2", rail("::ffff:10.9.2.1")),
        ];
        devices[2].networks.push("10.9.3.1".parse().unwrap());
        let near = |addresses: &[&str]| VerbsSettings {
            near: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            ..VerbsSettings::default()
        };
        let chosen = |addresses| choose(&devices, &near(addresses)).unwrap();
        assert_eq!(chosen(&["10.9.1.1"]).device, 1);
        assert!(chosen(&["10.9.1.1"]).sentence.contains("mlx5_1 (its network has the transport address 10.9.1.1)"));
        assert!(chosen(&["10.9.1.1"]).sentence.contains("the RoCE v2 one of the transport address"));
        assert_eq!((chosen(&["10.9.3.1"]).device, chosen(&["10.9.3.1"]).gid.index), (2, 3));
        for elsewhere in [&[] as &[&str], &["127.0.0.1"]] {
            assert!(chosen(elsewhere).sentence.starts_with("device mlx5_0 (the first with an active port)"));
        }
        // A configured device is used all the same.
        let set = VerbsSettings { device: Some("mlx5_0".into()), ..near(&["10.9.1.1"]) };
        assert_eq!(choose(&devices, &set).unwrap().device, 0);
    }

    #[test]
    fn a_gid_stays_while_the_port_has_it() {
        let settings = VerbsSettings::default();
        let chosen = choose(&two_devices(), &settings).unwrap();
        let mut port = port(2, PortState::Active);
        port.gids[3].index = 7;
        port.gids.insert(0, gid(9, "::ffff:10.9.0.9", GidKind::RoceV2));
        let again = |port: &PortSummary, settings: &VerbsSettings| {
            choose_again(("mlx5_1", port, &chosen.why), chosen.gid.gid, settings)
        };
        port.mtu = 512;
        let (gid, mtu, sentence) = again(&port, &settings).unwrap();
        assert_eq!((gid.index, gid.gid, mtu), (7, chosen.gid.gid, 512));
        assert!(sentence.starts_with("device mlx5_1 (the first with an active port)"), "{sentence}");
        assert_eq!(again(&port, &VerbsSettings { gid_index: Some(9), ..settings.clone() }).unwrap().0.index, 9);
        port.gids.retain(|gid| gid.index != 7);
        assert_eq!(again(&port, &settings).unwrap().0.index, 9);
        port.gids.clear();
        assert!(again(&port, &settings).is_err());
    }

    #[test]
    fn what_does_not_fit_is_named_with_what_there_is() {
        let defaults = VerbsSettings::default();
        assert!(reason(&[], &defaults).contains("no RDMA device"));
        let named = |name: &str| VerbsSettings { device: Some(name.into()), ..VerbsSettings::default() };
        assert!(reason(&two_devices(), &named("mlx5_7")).contains("there is mlx5_0, mlx5_1"));
        assert!(reason(&two_devices(), &named("mlx5_0")).contains("(mlx5_0 port 1: down)"));
        let settings = VerbsSettings { port: Some(3), ..VerbsSettings::default() };
        assert!(reason(&two_devices(), &settings).contains("no port with number 3"));
        let settings = VerbsSettings { gid_index: Some(9), ..VerbsSettings::default() };
        assert!(reason(&two_devices(), &settings).contains("no GID 9; it has GID 0"));
        for (mtu, said) in [(1000, "not 1000"), (4096, "has 1024")] {
            let settings = VerbsSettings { mtu: Some(mtu), ..VerbsSettings::default() };
            assert!(reason(&two_devices(), &settings).contains(said));
        }
        let mut closed = device("mlx5_0", Vec::new());
        closed.problem = Some("Permission denied".into());
        assert!(reason(&[closed], &defaults).contains("mlx5_0: Permission denied"));
    }

    #[test]
    fn settings_that_no_device_takes_are_refused() {
        assert!(check(&VerbsSettings::default()).is_ok());
        let bad = [
            VerbsSettings { timeout: 32, ..VerbsSettings::default() },
            VerbsSettings { retry_count: 8, ..VerbsSettings::default() },
            VerbsSettings { service_level: 16, ..VerbsSettings::default() },
            VerbsSettings { queue_depth: 0, ..VerbsSettings::default() },
        ];
        for settings in bad {
            assert!(check(&settings).is_err(), "{settings:?}");
        }
    }

    #[test]
    fn mtus_go_both_ways() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            assert_eq!(mtu_from_verbs(mtu_to_verbs(bytes).unwrap()), bytes);
        }
        assert_eq!(mtu_to_verbs(1500), None);
        assert_eq!(mtu_from_verbs(77), 256);
    }

    #[test]
    fn numbers_of_the_library_are_read() {
        assert_eq!([0, 1, 2, 3, 4, 5, 9].map(PortState::from_verbs), {
            use PortState::*;
            [Down, Down, Initialize, Armed, Active, Active, Down]
        });
        assert_eq!(GidKind::from_verbs(2), GidKind::RoceV2);
        assert_eq!(GidKind::from_verbs(7).to_string(), "type 7");
    }
}
