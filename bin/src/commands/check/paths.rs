//! The path to every transport address of the endpoint map, and why it is that one. Pure.

use std::collections::HashSet;

use sealane_transport::endpoint_map::{EndpointMap, TransportAddress};
use serde::Serialize;

use super::verbs::Verbs;
use crate::engine_settings::NOT_BUILT_IN;
use crate::settings::Require;

/// The transport addresses that this host serves.
#[derive(Debug, Default)]
pub(super) struct Ours {
    addresses: HashSet<TransportAddress>,
    /// What says so.
    because: &'static str,
}

impl Ours {
    /// The transport addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &TransportAddress> {
        self.addresses.iter()
    }

    /// True if this host serves it.
    pub(super) fn has(&self, address: &TransportAddress) -> bool {
        self.addresses.contains(address)
    }

    pub(super) fn new(addresses: impl IntoIterator<Item = TransportAddress>, because: &'static str) -> Ours {
        Ours { addresses: addresses.into_iter().collect(), because }
    }
}

/// How the tasks at one transport address are reached.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Path {
    pub(super) transport_address: String,
    pub(super) tasks: Vec<String>,
    /// `loopback`, `verbs`, `tcp`, or `none` where what is required cannot be had.
    pub(super) link: &'static str,
    pub(super) reason: String,
}

/// What joins this host to others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Network {
    link: &'static str,
    reason: String,
}

impl Network {
    /// What the settings ask for and this host can do.
    pub(super) fn of((require, asked): (Require, String), verbs: &Verbs) -> Network {
        let (link, reason) = match (require, &verbs.device) {
            (Require::Tcp, _) => ("tcp", asked),
            (Require::Auto, None) if !verbs.built_in => ("tcp", NOT_BUILT_IN.to_owned()),
            (Require::Auto, None) => ("tcp", format!("no verbs here: {}", verbs.reason)),
            (Require::Auto, Some(_)) => ("verbs", format!("if the peer has them too, else tcp; {}", verbs.reason)),
            (Require::Verbs, Some(_)) => ("verbs", format!("{asked}; {}", verbs.reason)),
            (Require::Verbs, None) => ("none", format!("{asked}, but {}", verbs.reason)),
        };
        Network { link, reason }
    }
}

/// One path for every transport address, in the map's order.
pub(super) fn paths(map: &EndpointMap, ours: &Ours, network: &Network) -> Vec<Path> {
    let path = |address: &TransportAddress| {
        let (link, reason) = if ours.has(address) {
            let reason = format!("the same transport address as ours: {}", ours.because);
            ("loopback", reason)
        } else {
            (network.link, network.reason.clone())
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
    use super::super::verbs::tests::{found, missing};
    use super::*;
    use crate::engine_settings::link_wanted;
    use crate::settings::{Peers, Settings};
    use sealane_fusion::TlsFiles;
    use sealane_transport::verbs::PLAINTEXT_REFUSED;

    #[test]
    fn our_own_address_is_loopback_and_all_others_are_the_networks() {
        let map = EndpointMap::parse("a:1=h:7\nb:1=h:7\nc:1=h:8\n", "map").unwrap();
        let ours = Ours::new(["h:7".parse().unwrap()], "a test says so");
        let paths = paths(&map, &ours, &Network { link: "verbs", reason: "a test wants them".to_owned() });
        assert_eq!(paths.len(), 2);
        assert_eq!((paths[0].link, paths[0].tasks.len()), ("loopback", 2));
        assert_eq!(paths[0].reason, "the same transport address as ours: a test says so");
        assert_eq!((paths[1].transport_address.as_str(), paths[1].link), ("h:8", "verbs"));
        assert_eq!(paths[1].reason, "a test wants them");
    }

    #[test]
    fn the_network_is_what_is_asked_for_and_can_be_had() {
        let mut settings = Settings::of::<&str, &str>([]).unwrap();
        let mut without = missing();
        without.built_in = false;
        let reasons = [
            (Require::Tcp, found(), "tcp", "transport.require is tcp (default)"),
            (Require::Auto, without, "tcp", "this build has no RDMA verbs (feature verbs)"),
            (
                Require::Auto,
                missing(),
                "tcp",
                "no verbs here: ibv_get_device_list: libibverbs.so.1 could not be loaded",
            ),
            (
                Require::Auto,
                found(),
                "verbs",
                "if the peer has them too, else tcp; device rxe0 (the first with an active port)",
            ),
            (
                Require::Verbs,
                found(),
                "verbs",
                "transport.require is verbs (default); device rxe0 (the first with an active port)",
            ),
            (
                Require::Verbs,
                missing(),
                "none",
                "transport.require is verbs (default), but ibv_get_device_list: libibverbs.so.1 could not be loaded",
            ),
        ];
        for (require, verbs, link, reason) in reasons {
            settings.transport.require.value = require;
            assert_eq!(Network::of(link_wanted(&settings), &verbs), Network { link, reason: reason.to_owned() });
        }
        let [certificate, key, authorities] = ["c", "k", "a"].map(Into::into);
        settings.security.peers = Peers::Tls(TlsFiles { certificate, key, authorities });
        settings.transport.require.value = Require::Auto;
        let refused = Network::of(link_wanted(&settings), &found());
        assert_eq!(refused, Network { link: "tcp", reason: PLAINTEXT_REFUSED.to_owned() });
        settings.security.plaintext_rdma.value = true;
        assert_eq!(Network::of(link_wanted(&settings), &found()).link, "verbs");
    }
}
