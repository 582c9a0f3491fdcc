//! When a direction of a stream moves to a ring of a direct lane, and how its writer gets the ring back. Bounded by the rings of a lane.

use sealane_transport::Error;

use super::{
    super::frame::{parse_place, place_to_bytes},
    Connection, Hub, Key, Kind, State, connection_of,
};
use crate::{attachment::RingReader, limits::STREAM_RING_WINDOW_MIN};

impl Hub {
    /// Moves writes to a ring, if there is one and everything written before has been sent.
    pub(super) fn write_by_ring(&self, state: &mut State, key: &Key, bytes: usize) {
        let connection = connection_of(state, key);
        let Connection { outgoing, direct, .. } = &*connection;
        if !connection.is_next() || outgoing.window < STREAM_RING_WINDOW_MIN || direct.are_written() {
            return;
        }
        if let Some(ring) = self.task.ring_to(&key.peer, bytes) {
            let (from, place) = (outgoing.sent, place_to_bytes(ring.place()));
            direct.write_by_ring(ring);
            self.push(state, key, Kind::Ring(from), &place);
        }
    }

    /// Moves reads to a ring: what the other end writes from now on comes by it.
    pub(super) fn goes_on_by_ring(&self, state: &mut State, key: &Key, from: u64, place: &[u8]) {
        let State { connections, wakers, .. } = state;
        let Some(connection) = connections.get_mut(key) else { return };
        if connection.direct.is_read_at(place) {
            // Something before it was refused, and everything behind that is pushed again.
            return;
        }
        let taken_up = match connection.incoming.goes_on_directly(from) {
            Ok(true) => {
                connection.ring_ahead = None;
                match self.ring_of(&key.peer, place).map(|ring| connection.direct.read_from_ring(ring, place)) {
                    Some(true) => Ok(()),
                    Some(false) => Err("it writes to two rings"),
                    None => Err("its bytes come by a direct lane that this process does not have"),
                }
            }
            Ok(false) if connection.end.is_left() => {
                // Gives the ring back to its writer.
                drop(self.ring_of(&key.peer, place));
                Ok(())
            }
            // It is announced again, unless the stream ends before.
            Ok(false) => {
                connection.ring_ahead = Some(place.into());
                Ok(())
            }
            Err(reason) => Err(reason),
        };
        wakers.extend(connection.reader.take());
        if let Err(reason) = taken_up {
            self.fail(state, key, &Error::unavailable(&key.peer, reason));
        }
    }

    pub(super) fn ring_of(&self, peer: &str, place: &[u8]) -> Option<RingReader> {
        self.task.ring_from(peer, parse_place(place)?)
    }

    /// The stream is gone: gives a ring that was announced and never read back to its writer. The announcement need not come again.
    pub(super) fn give_back_ring(&self, connection: &Connection, peer: &str) {
        if let Some(place) = &connection.ring_ahead {
            drop(self.ring_of(peer, place));
        }
    }
}
