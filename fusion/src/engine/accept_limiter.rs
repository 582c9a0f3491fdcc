//! Limits on unauthenticated callers, per host: handshakes in progress, aborted handshakes, and authentication failures. Owned by
//! the shard that listens; bounded by [`CALLER_HOSTS_MAX`].

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use crate::limits::{
    CALLER_BREAK_EVERY, CALLER_BREAKS_FREE, CALLER_FAILURE_EVERY, CALLER_FAILURES_FREE, CALLER_HOSTS_MAX,
    CALLER_LOG_EVERY,
};

/// The host that an address counts as: an IPv4 address, or the /64 of an IPv6 address, since a host may have any number of addresses in it.
pub(super) fn host_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

pub(super) struct AcceptLimiter {
    hosts: HashMap<IpAddr, Host>,
    greetings_per_host_max: usize,
    /// Callers must authenticate, so a failed handshake counts.
    are_asked: bool,
}

struct Host {
    greetings: usize,
    /// Failures to authenticate.
    failures: Tally,
    /// Aborted handshakes.
    breaks: Tally,
}

impl Host {
    fn new() -> Self {
        Self {
            greetings: 0,
            failures: Tally::new(CALLER_FAILURES_FREE, CALLER_FAILURE_EVERY),
            breaks: Tally::new(CALLER_BREAKS_FREE, CALLER_BREAK_EVERY),
        }
    }

    fn forgive(&mut self, now: Instant) {
        self.failures.forgive(now);
        self.breaks.forgive(now);
    }

    fn is_forgettable(&self) -> bool {
        self.greetings == 0 && self.failures.count == 0 && self.breaks.count == 0
    }

    fn is_logged(&self) -> bool {
        self.failures.logged.is_some() || self.breaks.logged.is_some()
    }
}

/// A leaky bucket: events of one kind from one host.
pub(super) struct Tally {
    free: u32,
    /// Leak interval.
    every: Duration,
    count: u32,
    /// Start of the current interval; none while the bucket is empty.
    forgiving: Option<Instant>,
    logged: Option<Instant>,
    /// Events since the last log line.
    unlogged: u64,
}

impl Tally {
    /// A tally that only limits log lines.
    pub(super) fn of_log() -> Self {
        Self::new(0, CALLER_FAILURE_EVERY)
    }

    fn new(free: u32, every: Duration) -> Self {
        Self { free, every, count: 0, forgiving: None, logged: None, unlogged: 0 }
    }

    fn is_used_up(&self) -> bool {
        self.count >= self.free
    }

    fn forgive(&mut self, now: Instant) {
        let Some(since) = self.forgiving else { return };
        let forgiven = now.saturating_duration_since(since).as_nanos() / self.every.as_nanos();
        let forgiven = u32::try_from(forgiven).unwrap_or(u32::MAX);
        self.count = self.count.saturating_sub(forgiven);
        self.forgiving = (self.count > 0).then(|| since + self.every * forgiven);
    }

    /// Counts one event. Returns how many are to be logged, if it is time.
    pub(super) fn add(&mut self, now: Instant) -> Option<u64> {
        self.forgive(now);
        self.count = self.count.saturating_add(1);
        self.forgiving.get_or_insert(now);
        self.unlogged += 1;
        if self.logged.is_some_and(|logged| now.saturating_duration_since(logged) < CALLER_LOG_EVERY) {
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

impl AcceptLimiter {
    /// `are_asked`: callers must authenticate.
    pub(super) fn new(greetings_per_host_max: usize, are_asked: bool) -> Self {
        Self { hosts: HashMap::new(), greetings_per_host_max, are_asked }
    }

    /// Checks whether a caller may begin its handshake; if so, [`ended`](Self::ended) must follow.
    ///
    /// # Errors
    /// The reason why it may not.
    pub(super) fn begin(&mut self, now: Instant, from: IpAddr) -> Result<(), &'static str> {
        if self.hosts.len() >= CALLER_HOSTS_MAX && !self.hosts.contains_key(&from) {
            self.hosts.values_mut().for_each(|host| host.forgive(now));
            self.hosts.retain(|_, host| !host.is_forgettable());
            if self.hosts.len() >= CALLER_HOSTS_MAX {
                return Err("too many hosts have failed to authenticate recently");
            }
        }
        let host = self.hosts.entry(from).or_insert_with(Host::new);
        host.forgive(now);
        if host.failures.is_used_up() {
            return Err("its host has failed to authenticate too often recently");
        }
        if self.are_asked && host.breaks.is_used_up() {
            return Err("its host has aborted too many handshakes recently");
        }
        if host.greetings >= self.greetings_per_host_max {
            return Err("its host has too many handshakes in progress");
        }
        host.greetings += 1;
        Ok(())
    }

    /// A handshake that had begun has ended.
    pub(super) fn ended(&mut self, from: IpAddr) {
        let Some(host) = self.hosts.get_mut(&from) else { return };
        host.greetings = host.greetings.saturating_sub(1);
        if host.is_forgettable() && !host.is_logged() {
            self.hosts.remove(&from);
        }
    }

    /// A caller failed to authenticate. Returns how many failures of its host are to be logged, if it is time.
    pub(super) fn failed(&mut self, now: Instant, from: IpAddr) -> Option<u64> {
        self.hosts.get_mut(&from)?.failures.add(now)
    }

    /// A caller's handshake failed before the caller had introduced itself. Returns how many such callers of its host are to be logged, if
    /// it is time.
    pub(super) fn broke_off(&mut self, now: Instant, from: IpAddr) -> Option<u64> {
        self.hosts.get_mut(&from)?.breaks.add(now)
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
    fn the_addresses_of_one_ipv6_network_are_one_host() {
        let host = |text: &str| host_of(text.parse().unwrap());
        assert_eq!(host("2001:db8:0:7::1"), host("2001:db8:0:7:ffff::2"));
        assert_ne!(host("2001:db8:0:7::1"), host("2001:db8:0:8::1"));
        assert_eq!(host("::ffff:192.0.2.1"), STRANGER);
        assert_ne!(STRANGER, FRIEND);
        assert_eq!(host_of(FRIEND), FRIEND);
    }

    #[test]
    fn a_host_has_a_share_of_the_greetings() {
        let (mut limiter, now) = (AcceptLimiter::new(MOST, true), Instant::now());
        for _ in 0..MOST {
            limiter.begin(now, STRANGER).unwrap();
        }
        assert!(limiter.begin(now, STRANGER).unwrap_err().contains("in progress"));
        limiter.begin(now, FRIEND).unwrap();
        limiter.ended(STRANGER);
        limiter.begin(now, STRANGER).unwrap();
    }

    #[test]
    fn failures_hold_their_host_up_and_are_forgiven_one_by_one() {
        let (mut limiter, mut now) = (AcceptLimiter::new(MOST, true), Instant::now());
        for _ in 0..CALLER_FAILURES_FREE {
            limiter.begin(now, STRANGER).unwrap();
            limiter.failed(now, STRANGER);
            limiter.ended(STRANGER);
        }
        assert!(limiter.begin(now, STRANGER).unwrap_err().contains("too often"));
        limiter.begin(now, FRIEND).unwrap();
        for _ in 0..3 {
            now += CALLER_FAILURE_EVERY;
            limiter.begin(now, STRANGER).unwrap();
            limiter.failed(now, STRANGER);
            limiter.ended(STRANGER);
            assert!(limiter.begin(now, STRANGER).is_err(), "one a period");
        }
        now += CALLER_FAILURE_EVERY * (CALLER_FAILURES_FREE + 1);
        for _ in 0..CALLER_FAILURES_FREE {
            limiter.begin(now, STRANGER).unwrap();
            limiter.failed(now, STRANGER);
            limiter.ended(STRANGER);
        }
        assert!(limiter.begin(now, STRANGER).is_err(), "no more are free than at first");
    }

    #[test]
    fn failures_are_logged_once_a_while_with_their_number() {
        let (mut limiter, now) = (AcceptLimiter::new(MOST, true), Instant::now());
        limiter.begin(now, STRANGER).unwrap();
        assert_eq!(limiter.failed(now, STRANGER), Some(1));
        assert_eq!(limiter.failed(now, STRANGER), None);
        assert_eq!(limiter.failed(now + CALLER_LOG_EVERY / 2, STRANGER), None);
        assert_eq!(limiter.failed(now + CALLER_LOG_EVERY, STRANGER), Some(3));
    }

    #[test]
    fn greetings_that_are_broken_off_hold_their_host_up_only_where_they_cost_something() {
        let now = Instant::now();
        for are_asked in [true, false] {
            let mut limiter = AcceptLimiter::new(MOST, are_asked);
            for count in 0..CALLER_BREAKS_FREE {
                limiter.begin(now, STRANGER).unwrap();
                let logged = limiter.broke_off(now, STRANGER);
                assert_eq!(logged, (count == 0).then_some(1), "one line a while");
                limiter.ended(STRANGER);
            }
            assert_eq!(limiter.begin(now, STRANGER).is_err(), are_asked);
            limiter.begin(now, FRIEND).unwrap();
            limiter.begin(now + CALLER_BREAK_EVERY, STRANGER).unwrap();
        }
    }

    #[test]
    fn no_more_hosts_are_remembered_than_the_limit_and_those_without_failures_go_first() {
        let (mut limiter, now) = (AcceptLimiter::new(MOST, true), Instant::now());
        let host = |number: u32| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + number));
        for number in 0..CALLER_HOSTS_MAX as u32 {
            limiter.begin(now, host(number)).unwrap();
            limiter.failed(now, host(number));
            limiter.ended(host(number));
        }
        assert!(limiter.begin(now, STRANGER).unwrap_err().contains("too many hosts"));
        limiter.begin(now + CALLER_FAILURE_EVERY, STRANGER).unwrap();
        assert!(limiter.hosts.len() <= CALLER_HOSTS_MAX);
    }
}
