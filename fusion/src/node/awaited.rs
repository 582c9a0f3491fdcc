//! What calls whose deadline has passed have waited for, in words: the task, its address, and the state of the connection.

use std::time::Instant;

use super::context::Context;

impl Context {
    /// What a call of a pair has waited for: its other task, which has not done `missing`.
    pub(super) fn awaited(&self, now: Instant, pair: u32, missing: &str) -> String {
        let Self { pairs, peers, memory, .. } = self;
        let known = &pairs[pair];
        let name = pairs.peer_name(known.peer);
        if let Some(mirror) = known.mirror {
            return match memory.is_deserted(pairs[mirror].local, known.local) {
                true => format!("{name}: no process is attached as this task"),
                false => format!("{name}, a task of this engine: {missing}"),
            };
        }
        // If this side has never made a request, the peer may have.
        let session = known.session.or(known.requested_here);
        let standing = session.and_then(|session| peers.get(session)).map(|peer| peer.standing(now));
        let standing = standing.as_deref().unwrap_or("not connected");
        format!("{name} at {}: {standing}, and {missing}", pairs.peer_address(known.peer))
    }
}
