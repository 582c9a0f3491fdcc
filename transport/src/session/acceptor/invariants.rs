//! What must hold of streams between any two calls of their session, on the accepting side.

use super::super::pusher::Pusher;
use super::Acceptor;

impl Acceptor {
    /// # Errors
    /// The inconsistency.
    pub(in crate::session) fn check(&self) -> Result<(), String> {
        let Some(streams) = &self.streams else { return Ok(()) };
        for (handle, stream) in streams.iter() {
            if stream.next > stream.granted_messages {
                let granted = stream.granted_messages;
                return Err(format!("{} pushes came on stream {handle:?}, {granted} were granted", stream.next));
            }
            let places = self.news.iter().filter(|&&told| told == handle).count();
            if places != usize::from(stream.news) {
                return Err(format!("stream {handle:?} has news {places} times, its flag says {}", stream.news));
            }
            if stream.refused_told > stream.refused.len() || self.ids.get(&stream.id) != Some(&handle) {
                return Err(format!("stream {handle:?} is not found by the peer's handle, or told what it was not"));
            }
        }
        match self.ids.len() == streams.len() {
            true => Ok(()),
            false => Err(format!("{} streams have {} names", streams.len(), self.ids.len())),
        }
    }

    pub(in crate::session) fn has_streams(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Checks that every stream agrees with its other side.
    ///
    /// # Errors
    /// The disagreement.
    pub(in crate::session) fn check_with<D: PartialEq + Clone>(&self, pusher: &Pusher<D>) -> Result<(), String> {
        for (_, stream) in self.streams.iter().flat_map(|streams| streams.iter()) {
            let (come, granted) = ((stream.next, stream.bytes), (stream.granted_messages, stream.granted_bytes));
            pusher
                .check_accepted(stream.id, come, granted)
                .map_err(|what| format!("stream {:?}: {what}", stream.id))?;
        }
        Ok(())
    }
}
