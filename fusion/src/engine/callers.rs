//! What the callers of each host may cost before they have shown who they are: greetings under way, and failures to
//! authenticate. Belongs to the shard that listens; bounded by [`HOSTS_MAX`].

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Failures to authenticate that a host has free; then one every [`FAILURE_EVERY`].
const FAILURES_FREE: u32 = 16;
/// What a checked signature costs is a few hundred microseconds at most: a host costs no more than a thousandth of a core.
const FAILURE_EVERY: Duration = Duration::from_secs(1);
/// A host's failures are logged once in so long, with their number.
const LOG_EVERY: Duration = Duration::from_secs(60);
/// Hosts that are remembered.
const HOSTS_MAX: usize = 4096;

/// See the module.
pub(super) struct Callers {
    hosts: HashMap<IpAddr, Host>,
    greetings_per_host_max: usize,
}

#[derive(Default)]
struct Host {
    greetings: usize,
    /// Failures that count now; one is forgiven every [`FAILURE_EVERY`].
    failures: u32,
    /// Since when the next one waits to be forgiven.
    forgiving: Option<Instant>,
    logged: Option<Instant>,
    /// Failures since then.
    unlogged: u64,
}

impl Host {
    fn forgive(&mut self, now: Instant) {
        let Some(since) = self.forgiving else { return };
        let forgiven = now.saturating_duration_since(since).as_nanos() / FAILURE_EVERY.as_nanos();
        let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
        self.failures = self.failures.saturating_sub(forgiven);
        self.forgiving = (self.failures > 0).then(|| since + FAILURE_EVERY * forgiven);
    }

    fn is_forgettable(&self) -> bool {
        self.greetings == 0 && self.failures == 0
    }
}

impl Callers {
    pub(super) fn new(greetings_per_host_max: usize) -> Self {
        Self { hosts: HashMap::new(), greetings_per_host_max }
    }

    /// Whether a caller may begin its greeting; if so, [`ended`](Self::ended) is to follow.
    ///
    /// # Errors
    /// Why it may not.
    pub(super) fn begin(&mut self, now: Instant, from: IpAddr) -> Result<(), &'static str> {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&from) {
            self.hosts.values_mut().for_each(|host| host.forgive(now));
            self.hosts.retain(|_, host| !host.is_forgettable());
            if self.hosts.len() >= HOSTS_MAX {
                return Err("too many hosts have failed to authenticate of late");
            }
        }
        let host = self.hosts.entry(from).or_default();
        host.forgive(now);
        if host.failures >= FAILURES_FREE {
            return Err("its host has failed to authenticate too often of late");
        }
        if host.greetings >= self.greetings_per_host_max {
            return Err("its host has too many greetings under way");
        }
        host.greetings += 1;
        Ok(())
    }

    /// A greeting that had begun is over.
    pub(super) fn ended(&mut self, from: IpAddr) {
        let Some(host) = self.hosts.get_mut(&from) else { return };
        host.greetings = host.greetings.saturating_sub(1);
        if host.is_forgettable() && host.logged.is_none() {
            self.hosts.remove(&from);
        }
    }

    /// A caller did not show that it may talk. The failures of its host to be logged now, if it is time.
    pub(super) fn failed(&mut self, now: Instant, from: IpAddr) -> Option<u64> {
        let host = self.hosts.get_mut(&from)?;
        host.forgive(now);
        host.failures += 1;
        host.forgiving.get_or_insert(now);
        host.unlogged += 1;
        if host.logged.is_some_and(|logged| now.saturating_duration_since(logged) < LOG_EVERY) {
            return None;
        }
        host.logged = Some(now);
        Some(std::mem::take(&mut host.unlogged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    const MOST: usize = 256;
    const FRIEND: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));

    #[test]
    fn a_host_has_a_share_of_the_greetings() {
        let (mut callers, now) = (Callers::new(MOST), Instant::now());
        for _ in 0..MOST {
            callers.begin(now, STRANGER).unwrap();
        }
        assert!(callers.begin(now, STRANGER).unwrap_err().contains("under way"));
        callers.begin(now, FRIEND).unwrap();
        callers.ended(STRANGER);
        callers.begin(now, STRANGER).unwrap();
    }

    #[test]
    fn failures_hold_their_host_up_and_are_forgiven_one_by_one() {
        let (mut callers, mut now) = (Callers::new(MOST), Instant::now());
        for _ in 0..FAILURES_FREE {
            callers.begin(now, STRANGER).unwrap();
            callers.failed(now, STRANGER);
            callers.ended(STRANGER);
        }
        assert!(callers.begin(now, STRANGER).unwrap_err().contains("too often"));
        callers.begin(now, FRIEND).unwrap();
        for _ in 0..3 {
            now += FAILURE_EVERY;
            callers.begin(now, STRANGER).unwrap();
            callers.failed(now, STRANGER);
            callers.ended(STRANGER);
            assert!(callers.begin(now, STRANGER).is_err(), "one a period");
        }
        now += FAILURE_EVERY * (FAILURES_FREE + 1);
        for _ in 0..FAILURES_FREE {
            callers.begin(now, STRANGER).unwrap();
            callers.failed(now, STRANGER);
            callers.ended(STRANGER);
        }
        assert!(callers.begin(now, STRANGER).is_err(), "no more are free than at first");
    }

    #[test]
    fn failures_are_logged_once_a_while_with_their_number() {
        let (mut callers, now) = (Callers::new(MOST), Instant::now());
        callers.begin(now, STRANGER).unwrap();
        assert_eq!(callers.failed(now, STRANGER), Some(1));
        assert_eq!(callers.failed(now, STRANGER), None);
        assert_eq!(callers.failed(now + LOG_EVERY / 2, STRANGER), None);
        assert_eq!(callers.failed(now + LOG_EVERY, STRANGER), Some(3));
    }

    #[test]
    fn no_more_hosts_are_remembered_than_the_limit_and_those_without_failures_go_first() {
        let (mut callers, now) = (Callers::new(MOST), Instant::now());
        let host = |number: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
        for number in 0..HOSTS_MAX as u32 {
            callers.begin(now, host(number)).unwrap();
            callers.failed(now, host(number));
            callers.ended(host(number));
        }
        assert!(callers.begin(now, STRANGER).unwrap_err().contains("too many hosts"));
        callers.begin(now + FAILURE_EVERY, STRANGER).unwrap();
        assert!(callers.hosts.len() <= HOSTS_MAX);
    }
}
