//! A client's recvs in progress, by the client's call numbers. Clients number their calls from 0 and reuse the lowest bits, so most calls
//! have a place of their own, and no number is hashed; calls that share a place are kept in a map. Bounded by [`CLIENT_CALLS_MAX`].

use hashbrown::HashMap;

use crate::limits::CLIENT_CALLS_MAX;
use crate::node::Ticket;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Receiving {
    pub(super) ticket: Option<Ticket>,
    pub(super) peer: u16,
    pub(super) has_destination: bool,
}

#[derive(Clone, Copy)]
struct Place {
    /// `None` if it is free.
    call: Option<u32>,
    receiving: Receiving,
}

const FREE: Place = Place { call: None, receiving: Receiving { ticket: None, peer: 0, has_destination: false } };

#[derive(Default)]
pub(super) struct Receivings {
    /// By the low bits of the call number; as long as the largest of these has required.
    places: Vec<Place>,
    /// Recvs whose place is taken by another.
    others: HashMap<u32, Receiving>,
}

fn place_of(call: u32) -> usize {
    call as usize % CLIENT_CALLS_MAX
}

impl Receivings {
    /// Enters a recv, which has no ticket yet; false if its number is in use.
    #[inline]
    pub(super) fn insert(&mut self, call: u32, peer: u16, has_destination: bool) -> bool {
        let index = place_of(call);
        if index >= self.places.len() {
            self.places.resize((index + 1).next_power_of_two(), FREE);
        }
        let place = &mut self.places[index];
        match place.call {
            Some(other) if other == call => false,
            None if self.others.is_empty() => {
                // Written where it stays: a value put together elsewhere and copied at once waits for all stores before it.
                place.call = Some(call);
                place.receiving.ticket = None;
                place.receiving.peer = peer;
                place.receiving.has_destination = has_destination;
                true
            }
            _ => self.others.insert(call, Receiving { ticket: None, peer, has_destination }).is_none(),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, call: u32) -> Option<&mut Receiving> {
        match self.places.get_mut(place_of(call)) {
            Some(place) if place.call == Some(call) => Some(&mut place.receiving),
            _ => self.others.get_mut(&call),
        }
    }

    #[inline]
    pub(super) fn remove(&mut self, call: u32) -> Option<Receiving> {
        match self.places.get_mut(place_of(call)) {
            Some(place) if place.call == Some(call) => {
                place.call = None;
                Some(place.receiving)
            }
            _ => self.others.remove(&call),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sealane_transport::Handle;

    use super::*;

    fn receiving(peer: u16) -> Receiving {
        Receiving { ticket: None, peer, has_destination: peer.is_multiple_of(2) }
    }

    proptest! {
        #[test]
        fn whatever_numbers_a_client_chooses_each_finds_its_own(
            deeds in proptest::collection::vec((any::<bool>(), 0u32..4, 0u32..3, any::<u16>()), 1..200),
        ) {
            let (mut receivings, mut model) = (Receivings::default(), BTreeMap::new());
            for (inserts, low, high, peer) in deeds {
                let call = high * CLIENT_CALLS_MAX as u32 + low;
                if inserts {
                    let is_new = !model.contains_key(&call);
                    prop_assert_eq!(receivings.insert(call, peer, peer.is_multiple_of(2)), is_new);
                    if !is_new {
                        // The engine disconnects such a client.
                        return Ok(());
                    }
                    prop_assert_eq!(receivings.get_mut(call).copied(), Some(receiving(peer)));
                    let known = Receiving { ticket: Some(Ticket::Local(Handle::NONE)), ..receiving(peer) };
                    *receivings.get_mut(call).unwrap() = known;
                    model.insert(call, known);
                } else {
                    prop_assert_eq!(receivings.remove(call), model.remove(&call));
                }
                for low in 0..4 {
                    for high in 0..3 {
                        let call = high * CLIENT_CALLS_MAX as u32 + low;
                        prop_assert_eq!(receivings.get_mut(call).copied(), model.get(&call).copied());
                    }
                }
            }
        }
    }
}
