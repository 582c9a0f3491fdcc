//! The path to every transport address of the endpoint map, and why it is that one. Pure.

use std::collections::HashSet;

use sealane_transport::endpoint_map::{EndpointMap, TransportAddress};
use serde::Serialize;

/// The transport addresses that this host serves.
#[derive(Debug)]
pub(super) struct Ours {
    addresses: HashSet<TransportAddress>,
    /// What says so.
    because: &'static str,
}

impl Ours {
    pub(super) fn new(addresses: impl IntoIterator<Item = TransportAddress>, because: &'static str) -> Ours {
        Ours { addresses: addresses.into_iter().collect(), because }
    }
}

/// How the tasks at one transport address are reached.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Path {
    pub(super) transport_address: String,
    pub(super) tasks: Vec<String>,
    /// `loopback` or `tcp`.
    pub(super) link: &'static str,
    pub(super) reason: String,
}

/// One path for every transport address, in the map's order.
pub(super) fn paths(map: &EndpointMap, ours: &Ours) -> Vec<Path> {
    let path = |address: &TransportAddress| {
        let (link, reason) = if ours.addresses.contains(address) {
            let reason = format!("the same transport address as ours: {}", ours.because);
            ("loopback", reason)
        } else {
            ("tcp", "the only network link in this build".to_owned())
        };
        Path {
            transport_address: address.to_string(),
            tasks: map.tasks_at(address).map(ToString::to_string).collect(),
            link,
            reason,
        }
    };
    map.addresses().map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_address_is_loopback_and_all_others_are_tcp() {
        let map = EndpointMap::parse("a:1=h:7\nb:1=h:7\nc:1=h:8\n", "map").unwrap();
        let ours = Ours::new(["h:7".parse().unwrap()], "a test says so");
        let paths = paths(&map, &ours);
        assert_eq!(paths.len(), 2);
        assert_eq!((paths[0].link, paths[0].tasks.len()), ("loopback", 2));
        assert_eq!(paths[0].reason, "the same transport address as ours: a test says so");
        assert_eq!((paths[1].transport_address.as_str(), paths[1].link), ("h:8", "tcp"));
        assert_eq!(paths[1].reason, "the only network link in this build");
    }
}
