//! Resolves host names for connections, each on a thread of its own, since the resolver blocks. Owned by the shard; bounded by
//! [`LOOKUPS_MAX`].

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use sealane_runtime::{Shard, ShardRef};
use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::error::LinkError;
use sealane_transport::tcp::resolve;
use sealane_transport::wire::Hello;
use sealane_transport::{Arena, Handle};

use crate::limits::LOOKUPS_MAX;

type Addresses = Result<Vec<SocketAddr>, LinkError>;

/// A dial whose host name was resolved.
pub(super) struct Found {
    pub(super) peer: Handle,
    pub(super) hello: Hello,
    pub(super) addresses: Addresses,
}

pub(super) struct Resolver {
    home: ShardRef,
    /// Dials that wait for their addresses. Each lookup is a new entry, so that the result of an old one is not used for a new one.
    under_way: Arena<(Handle, Hello)>,
    /// Where the threads put their results; one entry per thread.
    found: Arc<Mutex<Vec<(Handle, Addresses)>>>,
}

impl Resolver {
    pub(super) fn new(shard: &Shard) -> Self {
        let home = shard.shard_ref(shard.index());
        Self { home, under_way: Arena::new(LOOKUPS_MAX), found: Arc::default() }
    }

    /// Begins to resolve a name for a dial; if that is impossible, returns the reason.
    pub(super) fn begin(&mut self, peer: Handle, address: TransportAddress, hello: Hello) -> Result<(), String> {
        let Ok(look_up) = self.under_way.insert((peer, hello)) else {
            return Err(format!("{LOOKUPS_MAX} host names are being resolved"));
        };
        let (home, found) = (self.home.clone(), self.found.clone());
        let on_its_thread = move || {
            let addresses = resolve(&address);
            found.lock().unwrap_or_else(PoisonError::into_inner).push((look_up, addresses));
            // Only wakes the shard: one whose mailbox is full is awake, and polls after it has run the jobs.
            let _ = home.submit(Box::new(|_| {}));
        };
        if let Err(error) = std::thread::Builder::new().name("sealane-resolve".into()).spawn(on_its_thread) {
            self.under_way.remove(look_up);
            return Err(format!("no thread is available to resolve the name: {error}"));
        }
        Ok(())
    }

    /// Drops the lookups for a dial that is no longer wanted.
    pub(super) fn drop_those_for(&mut self, peer: Handle) {
        for look_up in self.under_way.select(|(of, _)| *of == peer) {
            self.under_way.remove(look_up);
        }
    }

    /// True if no dial waits for its addresses.
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// The results since the last call.
    pub(super) fn take_found(&mut self) -> Vec<Found> {
        if self.is_empty() {
            return Vec::new();
        }
        let found = std::mem::take(&mut *self.found.lock().unwrap_or_else(PoisonError::into_inner));
        let wanted = |(look_up, addresses)| {
            let (peer, hello) = self.under_way.remove(look_up)?;
            Some(Found { peer, hello, addresses })
        };
        found.into_iter().filter_map(wanted).collect()
    }
}

#[cfg(test)]
mod tests {
    use sealane_runtime::{Pin, Runtime, RuntimeSettings};

    use super::*;

    fn on_a_shard(test: impl FnOnce(&Shard) + Send + 'static) {
        let settings = RuntimeSettings { pin: Pin::Off, ..RuntimeSettings::default() };
        let runtime = Runtime::start(settings).unwrap();
        runtime.on_shard(0, async move |shard| test(&shard)).wait().unwrap();
        runtime.stop().unwrap();
    }

    fn hello() -> Hello {
        Hello {
            features: 0,
            incarnation: 1,
            remembers: 0,
            tensor_bytes_max: 1000,
            epoch: 0,
            shards: 1,
            shard: 0,
            lane: 0,
            address: "10.0.0.1:7000".into(),
            job: None,
            tasks: Vec::new(),
        }
    }

    /// Waits until `count` threads have stored their results.
    fn wait_for(resolver: &Resolver, count: usize) {
        while resolver.found.lock().unwrap().len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn what_is_found_while_the_mailbox_is_full_is_not_lost() {
        on_a_shard(|shard| {
            let mut resolver = Resolver::new(shard);
            while resolver.home.submit(Box::new(|_| {})).is_ok() {}
            let peer = Handle::from_bits(7);
            resolver.begin(peer, "localhost:7000".parse().unwrap(), hello()).unwrap();
            wait_for(&resolver, 1);
            let [found] = &resolver.take_found()[..] else { panic!("one name was looked up") };
            assert_eq!((found.peer, &found.hello), (peer, &hello()));
            assert!(resolver.is_empty());
        });
    }

    #[test]
    fn an_old_look_up_is_not_taken_for_a_newer_one() {
        on_a_shard(|shard| {
            let mut resolver = Resolver::new(shard);
            let (peer, other) = (Handle::from_bits(7), Handle::from_bits(8));
            let mut begin = |peer, epoch| {
                resolver.drop_those_for(peer);
                resolver.begin(peer, "localhost:7000".parse().unwrap(), Hello { epoch, ..hello() }).unwrap();
            };
            begin(peer, 1);
            begin(other, 2);
            begin(peer, 3);
            wait_for(&resolver, 3);
            let mut found: Vec<_> = resolver.take_found().iter().map(|found| (found.peer, found.hello.epoch)).collect();
            found.sort();
            assert_eq!(found, [(peer, 3), (other, 2)]);
        });
    }

    #[test]
    fn too_many_look_ups_are_refused_by_number() {
        on_a_shard(|shard| {
            let mut resolver = Resolver::new(shard);
            resolver.under_way = Arena::new(1);
            resolver.begin(Handle::from_bits(7), "localhost:7000".parse().unwrap(), hello()).unwrap();
            let reason = resolver.begin(Handle::from_bits(8), "localhost:7000".parse().unwrap(), hello()).unwrap_err();
            assert!(reason.contains(&LOOKUPS_MAX.to_string()), "{reason}");
        });
    }
}
