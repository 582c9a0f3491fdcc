//! Tells clients how their calls have ended: one order for all shards, and for the simulation.

use std::time::Instant;

use sealane_transport::shm::Record;
use sealane_transport::{Arena, Handle};

use super::client::Client;
use crate::limits::FEW_OUTCOMES;
use crate::node::{ClientCall, ClientOutcome, ClientOutcomes};

/// Reports the outcomes of calls to their clients, and returns to how many something was said. `served` is the client whose turn it is.
///
/// **A sender hears that its tensor was received only after its receiver was told of it**, as far as the receiver's ring has room: whoever
/// hears of a release may rely on it even if the daemon is killed a moment later. So all arrivals are written before any release.
pub(super) fn report(
    clients: &mut Arena<Client>,
    outcomes: &mut ClientOutcomes,
    (now, record): (Instant, &mut Record),
    served: &mut Option<Handle>,
) -> usize {
    let few = outcomes.len() <= FEW_OUTCOMES;
    while let Some((ClientCall { client: handle, call }, outcome)) = outcomes.take_next() {
        *served = Some(handle);
        // A client that is gone needs no answer.
        if let Some(client) = clients.get_mut(handle) {
            client.answer(call, outcome, few, record);
        }
        *outcome = ClientOutcome::Returned;
    }
    while let Some(ClientCall { client: handle, call }) = outcomes.sent.pop_front() {
        *served = Some(handle);
        if let Some(client) = clients.get_mut(handle) {
            client.sent(call);
        }
    }
    for (handle, client) in clients.iter_mut() {
        *served = Some(handle);
        client.tell_arrived(record);
    }
    let mut told = 0;
    for (handle, client) in clients.iter_mut().filter(|(_, client)| client.has_news()) {
        *served = Some(handle);
        told += usize::from(client.flush(now, record));
    }
    told
}
