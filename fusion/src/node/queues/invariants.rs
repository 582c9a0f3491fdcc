//! What holds of queues and streams between any two calls of their node; the simulation looks after every event.

use super::{CREDIT_BYTES_MAX, CREDIT_MESSAGES_MAX, Node, QueueName, StreamKey};
use crate::node::peers::{Peer, Peers};

impl Node {
    /// Whether queues, streams and sessions agree with themselves and with each other.
    ///
    /// # Errors
    /// What does not agree with what.
    pub fn check_queues(&self) -> Result<(), String> {
        for peer in self.context.peers.iter() {
            peer.session.check_streams().map_err(|what| format!("the session with {}: {what}", peer.address))?;
        }
        for (handle, queue) in self.queues.iter() {
            let name = &queue.name;
            let places = self.filled_queues.iter().filter(|&&filled| filled == handle).count();
            if places != usize::from(!queue.arrived.is_empty()) {
                let count = queue.arrived.len();
                return Err(format!("{count} tensors came to queue '{name}', which is to be settled {places} times"));
            }
            if let Some(lost) =
                queue.streams.iter().find(|key| self.streams.get(*key).map(|of| of.queue) != Some(handle))
            {
                return Err(format!("queue '{name}' is fed by {lost:?}, which leads elsewhere"));
            }
            if self.queue_names.get(&QueueName(queue.task, name)) != Some(&handle) {
                return Err(format!("queue '{name}' is not found by its name"));
            }
        }
        self.streams.iter().try_for_each(|(key, _)| self.check_stream(key))
    }

    fn check_stream(&self, key: &StreamKey) -> Result<(), String> {
        let stream = &self.streams[key];
        let Some(queue) = self.queues.get(stream.queue) else { return Err(format!("{key:?} leads nowhere")) };
        let listed = queue.streams.iter().filter(|&other| other == key).count();
        let hungry = queue.hungry.iter().filter(|&other| other == key).count();
        if (listed, hungry) != (1, usize::from(stream.hungry)) {
            let flag = stream.hungry;
            return Err(format!(
                "{key:?} feeds '{}' {listed} times and wants credit {hungry} times, its flag says {flag}",
                queue.name
            ));
        }
        let credit = self.context.peers.get(key.0).and_then(|peer| peer.session.credit(key.1));
        let Some(credit) = credit else { return Err(format!("{key:?} has ended in its session")) };
        match credit.messages <= CREDIT_MESSAGES_MAX as u64 && credit.bytes <= CREDIT_BYTES_MAX as u64 {
            true => Ok(()),
            false => Err(format!("{key:?} has {credit:?}")),
        }
    }

    /// Whether the streams that `other` pushes here are where both sides believe them to be: none has brought more than it was
    /// granted or than has left, nor believes in more credit than it was given.
    ///
    /// # Errors
    /// What does not agree with what.
    pub fn check_streams_from(&self, other: &Node) -> Result<(), String> {
        for here in self.context.peers.iter() {
            let theirs = &other.context.settings;
            let is_other = here.shard == Some(theirs.shard) && theirs.addresses.contains(&here.address);
            if !here.session.has_streams() || !is_other {
                continue;
            }
            let is_end = |there: &&Peer| {
                there.shard == Some(self.context.settings.shard)
                    && self.context.settings.addresses.contains(&there.address)
            };
            let Some(there) = other.context.peers.iter().find(is_end) else { continue };
            // Where one side has begun anew and the other has not heard it, they are not of one session.
            let same_life = (here.remembers && there.remembers)
                && here.incarnation == Some(Peers::incarnation(there, &other.context.settings))
                && there.incarnation == Some(Peers::incarnation(here, &self.context.settings));
            if same_life {
                let checked = here.session.check_streams_from(&there.session);
                checked.map_err(|what| format!("pushed by {}: {what}", here.address))?;
            }
        }
        Ok(())
    }
}
