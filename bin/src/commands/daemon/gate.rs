//! Who may attach, with what, and who may end the daemon. Pure.

use sealane_transport::Error;
use sealane_transport::shm::attach::Attach;

use super::connections::OPENING_MAX;
use crate::counted;
use crate::settings::Daemon;

/// The superuser: it can read the daemon's memory and stop it in any case.
const ROOT: u32 = 0;

/// Most unattached connections of one user other than the daemon's own: a quarter of all.
const OPENING_OF_USER_MAX: usize = OPENING_MAX / 4;

/// What the settings say about clients.
#[derive(Clone, Debug)]
pub(super) struct Gate {
    own_uid: u32,
    allowed_uids: Vec<u32>,
    clients_max: usize,
    arena_bytes_max: u64,
}

impl Gate {
    pub(super) fn new(settings: &Daemon, own_uid: u32) -> Gate {
        Gate {
            own_uid,
            allowed_uids: settings.allowed_uids.value.clone(),
            clients_max: settings.clients_max.value,
            arena_bytes_max: settings.arena_bytes_max.value,
        }
    }

    /// True if users may attach that the kernel would not let connect to a socket of mode 0600.
    pub(super) fn is_open_to_others(&self) -> bool {
        !self.allowed_uids.iter().all(|uid| self.is_owner(*uid))
    }

    /// Whether a process of that user may make a request, while `opening` connections of that user wait: processes of others must
    /// not take all places.
    pub(super) fn may_ask(&self, uid: u32, opening: usize) -> Result<(), Error> {
        if self.is_owner(uid) {
            return Ok(());
        }
        if !self.allowed_uids.contains(&uid) {
            let own = self.own_uid;
            let reason = format!(
                "user id {uid} may not attach to the daemon of user id {own}; add it to daemon.allowed_uids there"
            );
            return Err(Error::PermissionDenied { reason: reason.into() });
        }
        if opening >= OPENING_OF_USER_MAX {
            let reason = format!("{opening} connections of user id {uid} are about to attach");
            return Err(Error::full("daemon connections of one user", reason));
        }
        Ok(())
    }

    /// Whether a process that may make requests may attach as a task, while `attached` clients are attached.
    pub(super) fn may_attach(&self, wish: &Attach, attached: usize) -> Result<(), Error> {
        if attached >= self.clients_max {
            return Err(Error::full("daemon.clients_max", format!("{} attached", counted(attached, "client"))));
        }
        let (wanted, limit) = (wish.arena_bytes, self.arena_bytes_max);
        if wanted > limit && !wish.or_less {
            let reason =
                format!("it is {limit} bytes, and the client wants an arena of {wanted}; ask for less, or raise it");
            return Err(Error::full("daemon.arena_bytes_max", reason));
        }
        Ok(())
    }

    /// The size of the arena for a client that may attach.
    pub(super) fn arena_bytes(&self, wish: &Attach) -> u64 {
        wish.arena_bytes.min(self.arena_bytes_max)
    }

    /// Whether a process of that user may end the daemon. Permission to attach is not enough.
    pub(super) fn may_drain(&self, uid: u32) -> Result<(), Error> {
        if self.is_owner(uid) {
            return Ok(());
        }
        let own = self.own_uid;
        let reason = format!("user id {uid} may not drain the daemon of user id {own}; only that user and root may");
        Err(Error::PermissionDenied { reason: reason.into() })
    }

    /// Whether a process of that user may replace the daemon: it will serve with that user's rights.
    pub(super) fn may_take_over(&self, uid: u32) -> Result<(), Error> {
        if uid == self.own_uid {
            return Ok(());
        }
        let own = self.own_uid;
        let reason = format!("user id {uid} may not take over from the daemon of user id {own}; only that user may");
        Err(Error::PermissionDenied { reason: reason.into() })
    }

    fn is_owner(&self, uid: u32) -> bool {
        uid == self.own_uid || uid == ROOT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sealane_transport::Code;

    fn gate(allowed_uids: &[u32]) -> Gate {
        Gate { own_uid: 7, allowed_uids: allowed_uids.to_vec(), clients_max: 2, arena_bytes_max: 4096 }
    }

    #[test]
    fn its_own_user_and_root_and_those_who_are_allowed_may_attach() {
        for (uid, may) in [(7, true), (0, true), (8, true), (9, false)] {
            assert_eq!(gate(&[8]).may_ask(uid, 0).is_ok(), may, "{uid}");
        }
        let error = gate(&[]).may_ask(8, 0).unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);
        assert!(error.to_string().contains("user id 8 may not attach"), "{error}");
    }

    #[test]
    fn one_user_takes_a_part_of_the_places_only_and_the_daemons_own_may_take_all() {
        for (uid, opening, may) in [(8, OPENING_OF_USER_MAX - 1, true), (8, OPENING_OF_USER_MAX, false), (7, 60, true)]
        {
            assert_eq!(gate(&[8]).may_ask(uid, opening).is_ok(), may, "{uid} {opening}");
        }
        assert_eq!(gate(&[8]).may_ask(8, OPENING_MAX).unwrap_err().code(), Code::ResourceExhausted);
    }

    #[test]
    fn only_its_own_user_and_root_may_drain() {
        for (uid, may) in [(7, true), (0, true), (8, false)] {
            assert_eq!(gate(&[8]).may_drain(uid).is_ok(), may, "{uid}");
        }
    }

    #[test]
    fn only_its_own_user_may_take_over() {
        for (uid, may) in [(7, true), (0, false), (8, false)] {
            assert_eq!(gate(&[8]).may_take_over(uid).is_ok(), may, "{uid}");
        }
    }

    #[test]
    fn the_kernel_keeps_others_out_unless_some_are_allowed() {
        for (allowed, open) in [(&[][..], false), (&[0, 7], false), (&[7, 8], true)] {
            assert_eq!(gate(allowed).is_open_to_others(), open, "{allowed:?}");
        }
    }

    #[test]
    fn who_does_not_say_how_large_its_arena_is_gets_what_there_is() {
        let any = Attach { or_less: true, ..Attach::new("a:1", 1 << 30) };
        gate(&[]).may_attach(&any, 0).unwrap();
        assert_eq!(gate(&[]).arena_bytes(&any), 4096);
        assert_eq!(gate(&[]).arena_bytes(&Attach::new("a:1", 100)), 100);
    }

    #[test]
    fn a_limit_that_is_reached_is_named() {
        let of = |arena_bytes, attached| {
            let error = gate(&[]).may_attach(&Attach::new("a:1", arena_bytes), attached).unwrap_err();
            assert_eq!(error.code(), Code::ResourceExhausted);
            error.to_string()
        };
        assert_eq!(of(1, 2), "daemon.clients_max is full: 2 clients attached");
        assert!(of(4097, 0).starts_with("daemon.arena_bytes_max is full: it is 4096 bytes, "), "{}", of(4097, 0));
    }
}
