//! What holds of a node between any two calls; the simulation looks after every event, and so do the tests of nodes.

use super::Node;
use super::context::Context;
#[cfg(feature = "fuzzing")]
use super::peers::{Peer, Peers};

impl Node {
    /// Panics unless every part agrees with itself and with the others.
    pub fn check_invariants(&self) {
        let Context { pairs, peers, settings, .. } = &self.context;
        pairs.check_invariants(|session| peers.get(session).map(|peer| &peer.address));
        peers.check_invariants();
        self.pushes.check_invariants(peers, settings.session.tensor_bytes_max);
        self.exchange.check_invariants(&self.context);
        self.pulls.check_invariants(peers);
        self.lookups.check_invariants(&self.context);
        #[cfg(feature = "fuzzing")]
        for peer in peers.iter() {
            let checked = peer.session.check_streams();
            assert_eq!(checked, Ok(()), "pushes on the session with {} would go astray", peer.address);
        }
    }

    /// Whether the streams that `other` pushes here are where both sides believe them to be: none has brought more than it was
    /// granted or than has left, nor believes in more credit than it was given.
    ///
    /// # Errors
    /// What does not agree with what.
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
            // Where one side has begun anew and the other has not heard it, they are not of one session.
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
