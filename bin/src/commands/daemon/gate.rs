//! Permissions of local users, and limits on attaching. Pure.

use sealane_transport::job::describe;
use sealane_transport::shm::attach::{Attach, Permission};
use sealane_transport::{Error, JobName};

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
    job: Option<JobName>,
}

/// Why a client may not attach.
#[derive(Debug)]
pub(super) enum Rejection {
    /// It requires another job.
    OtherJob,
    Refused(Error),
}

impl From<Error> for Rejection {
    fn from(error: Error) -> Self {
        Self::Refused(error)
    }
}

impl Gate {
    pub(super) fn new(settings: &Daemon, own_uid: u32) -> Gate {
        Gate {
            own_uid,
            allowed_uids: settings.allowed_uids.value.clone(),
            clients_max: settings.clients_max.value,
            arena_bytes_max: settings.arena_bytes_max.value,
            job: settings.job.value.clone(),
        }
    }

    /// True if users may attach that the kernel would not let connect to a socket of mode 0600.
    pub(super) fn is_open_to_others(&self) -> bool {
        !self.allowed_uids.iter().all(|uid| self.is_owner(*uid))
    }

    /// Checks that a user has a permission.
    ///
    /// # Errors
    /// PermissionDenied.
    pub(super) fn check(&self, uid: u32, permission: Permission) -> Result<(), Error> {
        let own = self.own_uid;
        let (may, reason) = match permission {
            Permission::Attach => (
                self.is_owner(uid) || self.allowed_uids.contains(&uid),
                format!(
                    "user id {uid} may not attach to the daemon of user id {own}; add it to daemon.allowed_uids there"
                ),
            ),
            Permission::Drain => (
                self.is_owner(uid),
                format!("user id {uid} may not drain the daemon of user id {own}; only that user and root may"),
            ),
            // The successor serves with the rights of its own user.
            Permission::TakeOver => (
                uid == own,
                format!("user id {uid} may not take over from the daemon of user id {own}; only that user may"),
            ),
        };
        if may { Ok(()) } else { Err(Error::PermissionDenied { reason: reason.into() }) }
    }

    /// Checks that a user may open another connection while `opening` connections of that user are not attached: other users must
    /// not take all places.
    pub(super) fn may_connect(&self, uid: u32, opening: usize) -> Result<(), Error> {
        self.check(uid, Permission::Attach)?;
        if opening >= OPENING_OF_USER_MAX && !self.is_owner(uid) {
            let reason = format!("{opening} connections of user id {uid} are about to attach");
            return Err(Error::full("daemon connections of one user", reason));
        }
        Ok(())
    }

    /// Whether a process that may make requests may attach as a task, while `attached` clients are attached.
    pub(super) fn may_attach(&self, wish: &Attach, attached: usize) -> Result<(), Rejection> {
        if !wish.job.allows(self.job.as_ref()) {
            return Err(Rejection::OtherJob);
        }
        if attached >= self.clients_max {
            return Err(Error::full("daemon.clients_max", format!("{} attached", counted(attached, "client"))).into());
        }
        let (wanted, limit) = (wish.arena_bytes, self.arena_bytes_max);
        if wanted > limit && !wish.or_less {
            let reason =
                format!("it is {limit} bytes, and the client wants an arena of {wanted}; ask for less, or raise it");
            return Err(Error::full("daemon.arena_bytes_max", reason).into());
        }
        Ok(())
    }

    /// The size of the arena for a client that may attach.
    pub(super) fn arena_bytes(&self, wish: &Attach) -> u64 {
        wish.arena_bytes.min(self.arena_bytes_max)
    }

    /// Checks that a process of user `uid` may take the place of process `pid` of user `holder`, which is attached as a task.
    ///
    /// # Errors
    /// PermissionDenied.
    pub(super) fn may_replace(&self, uid: u32, (pid, holder): (i32, u32), task: &str) -> Result<(), Error> {
        if uid == holder {
            return Ok(());
        }
        let reason = format!(
            "process {pid} of user id {holder} is attached as {task}; only a process of that user may replace it"
        );
        Err(Error::PermissionDenied { reason: reason.into() })
    }

    /// Checks that a daemon of that job may take over from this one.
    ///
    /// # Errors
    /// PermissionDenied.
    pub(super) fn check_successor(&self, job: Option<&JobName>) -> Result<(), Error> {
        if job == self.job.as_ref() {
            return Ok(());
        }
        let (ours, theirs) = (describe(self.job.as_ref()), describe(job));
        let reason = format!("this daemon serves {ours}, and the new one {theirs}; give it the same --job");
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
    use sealane_transport::shm::attach::RequiredJob;

    fn gate(allowed_uids: &[u32]) -> Gate {
        Gate {
            own_uid: 7,
            allowed_uids: allowed_uids.to_vec(),
            clients_max: 2,
            arena_bytes_max: 4096,
            job: Some("a".parse().unwrap()),
        }
    }

    #[test]
    fn permissions_depend_on_the_user() {
        for (uid, attach, drain, take_over) in
            [(7, true, true, true), (0, true, true, false), (8, true, false, false), (9, false, false, false)]
        {
            let permissions =
                [(Permission::Attach, attach), (Permission::Drain, drain), (Permission::TakeOver, take_over)];
            for (permission, may) in permissions {
                assert_eq!(gate(&[8]).check(uid, permission).is_ok(), may, "{uid} {permission:?}");
            }
        }
        let error = gate(&[]).may_connect(8, 0).unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);
        assert!(error.to_string().contains("user id 8 may not attach"), "{error}");
    }

    #[test]
    fn one_user_takes_a_part_of_the_places_only_and_the_daemons_own_may_take_all() {
        for (uid, opening, may) in [(8, OPENING_OF_USER_MAX - 1, true), (8, OPENING_OF_USER_MAX, false), (7, 60, true)]
        {
            assert_eq!(gate(&[8]).may_connect(uid, opening).is_ok(), may, "{uid} {opening}");
        }
        assert_eq!(gate(&[8]).may_connect(8, OPENING_MAX).unwrap_err().code(), Code::ResourceExhausted);
    }

    #[test]
    fn successor_of_another_job_is_refused() {
        let refused = |job: Option<&str>| {
            let job = job.map(|name| name.parse().unwrap());
            gate(&[]).check_successor(job.as_ref()).unwrap_err().to_string()
        };
        let text = "permission denied: this daemon serves job 'a', and the new one job 'b'; give it the same --job";
        assert_eq!(refused(Some("b")), text);
        assert!(refused(None).contains("the new one no named job"), "{}", refused(None));
    }

    #[test]
    fn client_of_another_job_may_not_attach() {
        let named = |name: &str| RequiredJob::Named(name.parse().unwrap());
        for (job, may) in
            [(RequiredJob::Any, true), (RequiredJob::Unnamed, false), (named("a"), true), (named("b"), false)]
        {
            let attached = gate(&[]).may_attach(&Attach { job: job.clone(), ..Attach::new("a:1", 1) }, 0);
            assert_eq!(attached.is_ok(), may, "{job:?}");
            assert!(may || matches!(attached, Err(Rejection::OtherJob)), "{job:?}");
            let unnamed = Gate { job: None, ..gate(&[]) };
            let attached = unnamed.may_attach(&Attach { job: job.clone(), ..Attach::new("a:1", 1) }, 0);
            assert_eq!(attached.is_ok(), job.name().is_none(), "{job:?}");
        }
    }

    #[test]
    fn only_a_process_of_the_same_user_is_replaced() {
        gate(&[8]).may_replace(8, (5, 8), "a:1").unwrap();
        let error = gate(&[8]).may_replace(7, (5, 8), "a:1").unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);
        assert!(error.to_string().contains("process 5 of user id 8 is attached as a:1"), "{error}");
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
            let Err(Rejection::Refused(error)) = gate(&[]).may_attach(&Attach::new("a:1", arena_bytes), attached)
            else {
                panic!("it is refused for its job, or may attach")
            };
            assert_eq!(error.code(), Code::ResourceExhausted);
            error.to_string()
        };
        assert_eq!(of(1, 2), "daemon.clients_max is full: 2 clients attached");
        assert!(of(4097, 0).starts_with("daemon.arena_bytes_max is full: it is 4096 bytes, "), "{}", of(4097, 0));
    }
}
