//! The invariants of sessions between any two calls of their node.

use sealane_transport::Handle;
use sealane_transport::session::Charges;

use super::{Connection, Peer, Peers};

impl Peers {
    /// Panics unless sessions are found by their keys, lists and flags agree, and links and quotas add up.
    pub(in crate::node) fn check_invariants(&self) {
        let links = self.arena.iter().filter(|(_, peer)| peer.link.is_some()).count();
        assert_eq!(self.links, links, "transport.links_max would bound something else than links");
        assert_eq!(self.sessions.len(), self.arena.len(), "a session that is not found is made a second time");
        for (key, &handle) in &self.sessions {
            let with = self.arena.get(handle).map(|peer| (peer.via, &peer.address, peer.shard));
            assert_eq!(with, Some((key.via, &key.address, key.shard)), "requests would go to another peer");
        }
        let scheduled = self.schedule.entries();
        for (handle, peer) in self.arena.iter() {
            self.check_lists(handle, peer);
            let attached = peer.connection == Connection::Attached;
            assert_eq!(attached, peer.link.is_some(), "{} would be called beside its link, or never", peer.address);
            assert!(
                peer.life <= self.lives,
                "the next life of the session with {} would be a former one",
                peer.address
            );
            if let Some(time) = peer.scheduled {
                let is_entered = scheduled.contains(&(time, handle));
                assert!(is_entered, "nobody would look at the session with {} any more", peer.address);
            }
        }
        self.check_quotas();
    }

    fn check_lists(&self, handle: Handle, peer: &Peer) {
        let count = |list: &[Handle]| list.iter().filter(|&&listed| listed == handle).count();
        let (lists, address) = (&self.lists, &peer.address);
        assert_eq!(count(&lists.dirty), usize::from(peer.in_dirty), "{address} is written to twice a turn, or never");
        assert_eq!(count(&lists.hot), usize::from(peer.in_hot), "{address} is read twice a turn, or never");
        assert_eq!(
            count(&lists.unshown),
            usize::from(peer.is_touched),
            "the figures of {address} would stay as they are"
        );
        let is_tried = count(&lists.blocked) > 0;
        assert_eq!(count(&lists.blocked), usize::from(peer.in_blocked), "{address} is tried twice a turn, or never");
        assert!(is_tried || !peer.blocked || peer.stuck, "nobody would try the link with {address} again");
        assert!(!peer.stuck || peer.blocked, "room is waited for on the link with {address}, which has it");
    }

    /// Panics unless each peer's quota equals the sum of its sessions' charges.
    pub(in crate::node) fn check_quotas(&self) {
        let mut peers: Vec<_> = self.iter().collect();
        peers.sort_by_key(|peer| peer.address.to_string());
        for sessions in peers.chunk_by(|one, other| one.address == other.address) {
            let mut charges = Charges::default();
            for peer in sessions {
                charges.iter_mut().zip(peer.session.check_charges()).for_each(|(all, more)| *all += more);
            }
            assert_eq!(sessions[0].session.quota().used(), charges, "what {} has here", sessions[0].address);
        }
    }
}
