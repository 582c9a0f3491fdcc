//! The links between the engines of a demo as each engine tells of them: of which kind, why, and what they carried.

use serde::Serialize;

use crate::figures::Peer;

/// An engine's link to another engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct PeerLink {
    /// The engine that tells: a task, or a daemon.
    pub(super) engine: String,
    /// The other one; its transport address, until the demo says whose that is.
    pub(super) peer: String,
    /// `tcp` or `verbs`; `none` if none ever stood.
    pub(super) link: String,
    pub(super) reason: String,
    /// Sent to the peer.
    pub(super) tensors: u64,
    /// Frames of the wire sent to the peer, requests and releases included.
    pub(super) messages: u64,
    /// Times that something was written to the link.
    pub(super) writes: u64,
}

impl PeerLink {
    fn of(engine: &str, peer: Peer) -> PeerLink {
        let Peer { peer, link, reason, counters, .. } = peer;
        PeerLink {
            engine: engine.to_owned(),
            peer,
            link: link.unwrap_or_else(|| "none".to_owned()),
            reason,
            tensors: counters.tensors_sent,
            messages: counters.messages_sent,
            writes: counters.writes,
        }
    }

    /// Those of all shards of an engine, one for each peer and kind.
    pub(super) fn of_engine(engine: &str, peers: impl Iterator<Item = Peer>) -> Vec<PeerLink> {
        let mut links: Vec<PeerLink> = Vec::new();
        for link in peers.map(|peer| PeerLink::of(engine, peer)) {
            let is_same = |known: &&mut PeerLink| {
                (&known.peer, &known.link, &known.reason) == (&link.peer, &link.link, &link.reason)
            };
            match links.iter_mut().find(is_same) {
                Some(known) => {
                    known.tensors += link.tensors;
                    known.messages += link.messages;
                    known.writes += link.writes;
                }
                None => links.push(link),
            }
        }
        links
    }
}

/// Tensors a message over all links; none where there were no messages.
pub(super) fn fusion_ratio(links: &[PeerLink]) -> Option<f64> {
    let sum = |of: fn(&PeerLink) -> u64| links.iter().map(of).sum::<u64>();
    let (tensors, messages) = (sum(|link| link.tensors), sum(|link| link.messages));
    (messages > 0).then(|| tensors as f64 / messages as f64)
}

#[cfg(test)]
mod tests {
    use sealane_fusion::metrics::PeerCounters;

    use super::*;

    fn peer(address: &str, link: Option<&str>, counters: PeerCounters) -> Peer {
        Peer {
            peer: address.to_owned(),
            peer_shard: Some(0),
            state: "up".to_owned(),
            link: link.map(str::to_owned),
            reason: "a test says so".to_owned(),
            last_error: String::new(),
            since_unix_ms: 0,
            counters,
        }
    }

    #[test]
    fn shards_with_the_same_path_to_a_peer_are_one_link() {
        let counters = PeerCounters { tensors_sent: 6, messages_sent: 3, writes: 2, ..PeerCounters::default() };
        let peers = [
            peer("h:1", Some("tcp"), counters),
            peer("h:2", None, PeerCounters::default()),
            peer("h:1", Some("tcp"), counters),
            peer("h:1", Some("verbs"), counters),
        ];
        let links = PeerLink::of_engine("worker-daemon", peers.into_iter());
        let shown: Vec<_> = links.iter().map(|link| (link.peer.as_str(), link.link.as_str(), link.tensors)).collect();
        assert_eq!(shown, [("h:1", "tcp", 12), ("h:2", "none", 0), ("h:1", "verbs", 6)]);
        assert_eq!((links[0].messages, links[0].writes), (6, 4));
        assert_eq!(links[0].engine, "worker-daemon");
        assert_eq!(fusion_ratio(&links), Some(2.0));
        assert_eq!(fusion_ratio(&links[1..2]), None, "it carried nothing");
    }
}
