//! What the ranks of a group tell each other through their store.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use sealane_transport::Error;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::group::limits::GROUP_ADDRESSES_MAX;

/// Version of everything that ranks of a group exchange, in memory too. All must have the same.
const VERSION: u32 = 2;

/// Prefixes of the names of interfaces whose addresses other hosts rarely reach.
const UNLIKELY: [&str; 8] = ["br-", "cni", "docker", "flannel", "podman", "veth", "virbr", "vmnet"];

/// Where a rank runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::group) struct Place {
    version: u32,
    /// Equal for ranks that share memory.
    pub(in crate::group) host: String,
    /// The name of its socket for ranks of its host.
    pub(in crate::group) name: String,
}

impl Place {
    pub(in crate::group) fn new(host: String, name: String) -> Place {
        Place { version: VERSION, host, name }
    }
}

/// How ranks of other hosts reach this rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::group) struct Reach {
    version: u32,
    /// Known only to those who have the store.
    pub(in crate::group) token: u128,
    /// Addresses where it listens; the first that answers is used.
    pub(in crate::group) sockets: Vec<SocketAddr>,
}

impl Reach {
    pub(in crate::group) fn new(token: u128, sockets: Vec<SocketAddr>) -> Reach {
        Reach { version: VERSION, token, sockets }
    }
}

pub(in crate::group) fn encode(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("strings and numbers are JSON")
}

/// # Errors
/// Unavailable, naming the rank, if it has another version or says something else.
pub(in crate::group) fn decode<T: DeserializeOwned>(rank: usize, text: &[u8]) -> Result<T, Error> {
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let refuse = |reason: String| Error::unavailable(&format!("rank {rank}"), reason);
    let malformed = |error: serde_json::Error| refuse(format!("its address is none of Sealane's: {error}"));
    // First only the version: the rest may look different in another.
    let Versioned { version } = serde_json::from_slice(text).map_err(malformed)?;
    if version != VERSION {
        return Err(refuse(format!(
            "it speaks version {version} of Sealane's groups, this process {VERSION}: install the same release for both"
        )));
    }
    serde_json::from_slice(text).map_err(malformed)
}

/// The addresses of this host by which others may reach it, likely ones first; only those of an interface if one is named. Loopback only if
/// there is nothing else.
///
/// # Errors
/// InvalidArgument if there is no such interface, or it has no address.
pub(in crate::group) fn own_addresses(interface: Option<&str>) -> Result<Vec<IpAddr>, Error> {
    if let Some(address) = interface.and_then(|name| name.parse().ok()) {
        return Ok(vec![address]);
    }
    let listed = getifaddrs().map_err(|errno| Error::unavailable("this host's addresses", errno.to_string()))?;
    let mut found: Vec<(bool, IpAddr)> = Vec::new();
    for entry in listed.filter(|entry| entry.flags.contains(InterfaceFlags::IFF_UP)) {
        let address = entry.address.and_then(|address| {
            let v4 = address.as_sockaddr_in().map(|address| IpAddr::V4(address.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|address| IpAddr::V6(address.ip())))
        });
        let is_meant =
            interface.map_or(!entry.flags.contains(InterfaceFlags::IFF_LOOPBACK), |name| name == entry.interface_name);
        // A link-local address means nothing without the interface.
        if let Some(address) = address.filter(|address| is_meant && !is_of_a_link(address)) {
            found.push((UNLIKELY.iter().any(|beginning| entry.interface_name.starts_with(beginning)), address));
        }
    }
    if let (Some(name), true) = (interface, found.is_empty()) {
        return Err(Error::invalid(format!("this host has no interface {name} with an address")));
    }
    found.sort_by_key(|(is_unlikely, address)| (*is_unlikely, address.is_ipv6()));
    found.truncate(if interface.is_some() { 1 } else { GROUP_ADDRESSES_MAX });
    match found.is_empty() {
        true => Ok(vec![Ipv4Addr::LOCALHOST.into()]),
        false => Ok(found.into_iter().map(|(_, address)| address).collect()),
    }
}

fn is_of_a_link(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local() || *address == Ipv6Addr::UNSPECIFIED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_another_version_or_says_something_else_is_named() {
        let place = Place::new("moon".into(), "x".into());
        assert_eq!(decode::<Place>(1, &encode(&place)).unwrap(), place);
        let refused = |text: &str| decode::<Place>(1, text.as_bytes()).unwrap_err().to_string();
        assert!(refused("{}").contains("rank 1 is unavailable: its address is none of Sealane's"));
        assert!(refused(r#"{"version":99,"more":[]}"#).contains("it speaks version 99"));
        let reach = Reach::new(u128::MAX, vec!["[::1]:5".parse().unwrap()]);
        assert_eq!(decode::<Reach>(1, &encode(&reach)).unwrap(), reach);
    }

    #[test]
    fn an_address_an_interface_or_all_are_found() {
        assert_eq!(own_addresses(Some("10.1.2.3")).unwrap(), ["10.1.2.3".parse::<IpAddr>().unwrap()]);
        assert_eq!(own_addresses(Some("lo")).unwrap().len(), 1);
        assert!(own_addresses(Some("nothing0")).unwrap_err().to_string().contains("nothing0"));
        assert!(!own_addresses(None).unwrap().is_empty());
    }
}
