//! The invariants of queues, streams and groups between any two calls of their node.

use sealane_transport::Handle;
use sealane_transport::limits::QUEUE_BYTES_MAX;

use super::Pushes;
use super::queues::{Queue, QueueName, StreamKey, WAITING_SLACK};
use crate::limits::{CREDIT_BYTES_MAX, CREDIT_MESSAGES_MAX};
use crate::node::peers::Peers;

impl Pushes {
    /// Panics unless queues, streams and groups are consistent with each other, and streams with their sessions.
    pub(in crate::node) fn check_invariants(&self, peers: &Peers, tensor_bytes_max: u64) {
        assert_eq!(self.names.len(), self.queues.len(), "a queue that is not found by its name is made a second time");
        for (handle, queue) in self.queues.iter() {
            self.check_queue(handle, queue);
        }
        for key in self.streams.keys() {
            self.check_stream(key, peers, tensor_bytes_max);
        }
        if let Some((key, queue, _)) = &self.last_stream {
            let leads = self.streams.get(key).map(|stream| stream.queue);
            assert_eq!(leads, Some(*queue), "the next tensor of the last stream would go into a wrong queue");
        }
        let promised: u64 = self.queues.iter().map(|(_, queue)| queue.promises.bytes).sum();
        assert_eq!(promised, self.promises.bytes, "the shard would promise more memory than it has, or none for ever");
        for (handle, group) in self.groups.iter() {
            let waiting = self.queues.iter().flat_map(|(_, queue)| &queue.local);
            let here = waiting.filter(|push| push.group == handle).count();
            let left = group.pushes.left();
            assert!(left > 0, "a waiter would wait for ever: its pushes have ended");
            assert!(here <= left, "{here} pushes of a group wait here, and {left} are to end");
        }
    }

    fn check_queue(&self, handle: Handle, queue: &Queue) {
        let name = &queue.name;
        let named = self.names.get(&QueueName(queue.task, name));
        assert_eq!(named, Some(&handle), "pushes into '{name}' would go to another queue of that name");
        let places = self.filled.iter().filter(|&&filled| filled == handle).count();
        let count = queue.arrived.len();
        let is_filled = usize::from(count > 0);
        assert_eq!(places, is_filled, "{count} tensors came to '{name}', which is settled {places} times");
        for key in &queue.streams {
            let leads = self.streams.get(key).map(|stream| stream.queue);
            assert_eq!(leads, Some(handle), "queue '{name}' is fed by {key:?}, which leads elsewhere");
        }
        let promised: u64 = queue.streams.iter().map(|key| self.streams[key].promised).sum();
        assert_eq!(
            promised, queue.promises.bytes,
            "'{name}' would promise more than it has room for, or nothing for ever"
        );
        for waiting in [&queue.hungry, &queue.promises.waiting] {
            // At most what may be left when a stream ends, and one entry for each live stream.
            assert!(
                waiting.len() <= 3 * queue.streams.len() + WAITING_SLACK,
                "what has ended would wait in '{name}' for ever"
            );
        }
        for push in &queue.local {
            assert!(self.groups.get(push.group).is_some(), "nobody would hear how a push into '{name}' ended");
            let ends = self.deadlines.covers(push.deadline);
            assert!(ends, "a push into '{name}' would wait past its deadline");
        }
    }

    fn check_stream(&self, key: &StreamKey, peers: &Peers, tensor_bytes_max: u64) {
        let stream = &self.streams[key];
        let queue = self.queues.get(stream.queue).unwrap_or_else(|| panic!("{key:?} leads nowhere"));
        let name = &queue.name;
        assert!(queue.streams.contains(key), "'{name}' would not ask {key:?} when somebody accepts from it");
        let hungry = queue.hungry.iter().filter(|&other| other == key).count();
        assert_eq!(hungry, usize::from(stream.hungry), "{key:?} of '{name}' would get no credit, or another's");
        let waiting = queue.promises.waiting.iter().filter(|&other| other == key).count();
        assert_eq!(
            waiting,
            usize::from(stream.wants),
            "{key:?} of '{name}' would wait for ever, or have another's turn"
        );
        let credit = peers.session(key.0).and_then(|session| session.credit(key.1));
        let credit = credit.unwrap_or_else(|| panic!("{key:?} has ended in its session, and '{name}' keeps it"));
        // Beyond its share, at most what a whole queue has room for, or one tensor.
        let promised = (QUEUE_BYTES_MAX as u64).max(tensor_bytes_max);
        let (messages, bytes) = (CREDIT_MESSAGES_MAX as u64, CREDIT_BYTES_MAX as u64 + 2 * promised);
        assert!(credit.messages <= messages && credit.bytes <= bytes, "{key:?} may flood '{name}': {credit:?}");
    }
}
