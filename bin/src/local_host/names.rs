//! Looks many host names up at once, on threads of its own; bounded by [`THREADS`] and the time that is given.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use sealane_transport::endpoint_map::TransportAddress;
use sealane_transport::tcp::resolve;

/// Names that are looked up at the same time. A look-up mostly waits, and a name server serves a few clients at once.
const THREADS: usize = 16;

/// What the look-ups found.
#[derive(Debug, Default)]
pub(crate) struct LookedUp {
    /// The addresses of each name that has some; under the transport address that was asked for.
    pub(crate) found: HashMap<TransportAddress, Vec<IpAddr>>,
    /// Those that have none, or none that was found in time.
    pub(crate) unknown: Vec<TransportAddress>,
}

/// Looks up the hosts of `wanted`, for at most `time`. A look-up cannot be interrupted: one that takes longer ends on its
/// own thread, unheard.
pub(crate) fn look_up(wanted: Vec<TransportAddress>, time: Duration) -> LookedUp {
    let until = Instant::now() + time;
    let (tell, told) = channel();
    let threads = wanted.len().min(THREADS);
    let mut unknown = wanted.clone();
    let queue = Arc::new(Mutex::new(wanted));
    for _ in 0..threads {
        let (queue, tell) = (queue.clone(), tell.clone());
        let take = move || queue.lock().unwrap_or_else(PoisonError::into_inner).pop();
        std::thread::spawn(move || {
            while let Some(address) = take().filter(|_| Instant::now() < until) {
                let found = resolve(&address).unwrap_or_default();
                if tell.send((address, found)).is_err() {
                    return;
                }
            }
        });
    }
    drop(tell);
    let mut looked_up = LookedUp::default();
    loop {
        match told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok((address, found)) if !found.is_empty() => {
                looked_up.found.insert(address, found.iter().map(SocketAddr::ip).collect());
            }
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    unknown.retain(|address| !looked_up.found.contains_key(address));
    looked_up.unknown = unknown;
    looked_up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_addresses_is_found_and_all_else_is_said_to_be_unknown() {
        // Numbers need no name server, also such as only `inet_aton` reads; a name that ends in `.invalid` never exists
        // (RFC 6761).
        let wanted: Vec<TransportAddress> =
            ["0x7f000001:1", "127.0.0.1:2", "sealane.invalid:3"].iter().map(|text| text.parse().unwrap()).collect();
        let looked_up = look_up(wanted.clone(), Duration::from_secs(60));
        assert!(looked_up.found[&wanted[0]].iter().all(IpAddr::is_loopback));
        assert_eq!(looked_up.found[&wanted[1]], ["127.0.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(looked_up.unknown, wanted[2..]);
    }

    #[test]
    fn without_time_all_are_unknown() {
        let wanted: Vec<TransportAddress> = vec!["sealane.invalid:1".parse().unwrap()];
        assert_eq!(look_up(wanted.clone(), Duration::ZERO).unknown, wanted);
        assert!(look_up(Vec::new(), Duration::from_secs(60)).unknown.is_empty());
    }
}
