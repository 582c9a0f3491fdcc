//! The invariants of a node between any two calls; checked by the simulation after every event, and by the tests of nodes.

use super::Node;
use super::context::Context;
#[cfg(feature = "fuzzing")]
use super::peers::{Peer, Peers};

impl Node {
    /// Panics unless every part is consistent with itself and with the others.
    pub fn check_invariants(&self) {
        let Context { pairs, peers, settings, .. } = &self.context;
        pairs.check_invariants(|session| peers.get(session).map(|peer| &peer.address));
        peers.check_invariants();
        self.pushes.check_invariants(peers, settings.session.tensor_bytes_max);
        self.exchange.check_invariants(&self.context);
        self.pulls.check_invariants(peers);
        self.row_requests.check_invariants(&self.context);
        #[cfg(feature = "fuzzing")]
        for peer in peers.iter() {
            let checked = peer.session.check_streams();
            assert_eq!(checked, Ok(()), "pushes on the session with {} would go astray", peer.address);
        }
    }

    /// Checks the streams that `other` pushes here: none has brought more than it was granted or than was sent, and none assumes more
    /// credit than it was given.
    ///
    /// # Errors
    /// A description of the inconsistency.
    #[cfg(feature = "fuzzing")]
    pub fn check_streams_from(&self, other: &Node) -> Result<(), String> {
        let (ours, theirs) = (&self.context.settings, &other.context.settings);
        for here in self.context.peers.iter() {
            let is_other = here.shard == Some(theirs.shard) && theirs.addresses.contains(&here.address);
            if !here.session.has_streams() || !is_other {
                continue;
            }
            let is_end = |there: &&Peer| there.shard == Some(ours.shard) && ours.addresses.contains(&there.address);
            let Some(there) = other.context.peers.iter().find(is_end) else { continue };
            // If one side has started over and the other has not heard of it yet, the two ends do not belong to one session.
            let same_life = (here.remembers && there.remembers)
                && here.incarnation == Some(Peers::incarnation(there, theirs))
                && there.incarnation == Some(Peers::incarnation(here, ours));
            if same_life {
                let checked = here.session.check_streams_from(&there.session);
                checked.map_err(|what| format!("pushed by {}: {what}", here.address))?;
            }
        }
        Ok(())
    }
}
