//! One client of one shard without the shard's loop, for the fuzz targets: reads the client's ring and reports outcomes as the
//! source of clients does.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use sealane_transport::Handle;
use sealane_transport::shm::attach::{Attached, VERSION, Welcome};
use sealane_transport::shm::{
    ClientBell, ClientEnd, DaemonEnd, Doorbell, Record, SharedMemory, ShmError, segment_bytes,
};

use super::client::{Client, Who};
use super::memory::Shown;
use crate::node::{ClientCall, ClientOutcome, Node};

/// What calls have that say nothing else, in milliseconds.
const TIMEOUT_MS: u64 = 60_000;
/// The node's name for the client's calls.
const CLIENT: Handle = Handle::NONE;

/// A node and the client that is attached as one of its tasks.
pub struct Attachment {
    /// The node.
    pub node: Node,
    client: Client,
    record: Record,
    outcomes: VecDeque<(ClientCall, ClientOutcome)>,
}

impl Attachment {
    /// Attaches a client as the task number `task` of `node`; also, what the client gets.
    ///
    /// # Errors
    /// There is no memory, or no descriptor, for it.
    pub fn new(mut node: Node, task: u16, arena_bytes: u64, area_bytes: u64) -> Result<(Self, Attached), ShmError> {
        let (arena, theirs) = SharedMemory::create("sealane-arena", arena_bytes, false)?;
        let theirs = SharedMemory::open(&theirs, arena.len(), false)?;
        let (end, segment) = DaemonEnd::create(area_bytes, false)?;
        let area_bytes = end.area().len();
        let doorbell = Doorbell::create()?;
        let made = UnixStream::pair();
        let (socket, ear) = made.map_err(|source| ShmError::System { operation: "making a socket", source })?;
        let attached = Attached {
            welcome: Welcome {
                version: VERSION,
                shards: 1,
                arena_bytes: arena.len(),
                segment_bytes: segment_bytes(area_bytes),
                area_bytes,
                request_timeout_ms: TIMEOUT_MS,
                tensor_bytes_max: arena_bytes,
                daemon_pid: std::process::id(),
                neighbours: Vec::new(),
            },
            arena: theirs,
            shards: vec![(ClientEnd::open(&segment, area_bytes, false)?, doorbell.duplicate()?.into())],
            socket: ear.into(),
        };
        let bell = ClientBell::new(Arc::new(socket.into()));
        let who = Who { task, name: String::new(), pid: 1, shown: Some(Shown { number: 1, uid: 1 }) };
        let mut client = Client::new(who, end, doorbell, bell, arena);
        client.handle = CLIENT;
        node.set_pool(task, Some(client.pool()));
        Ok((Self { node, client, record: Record::new(), outcomes: VecDeque::new() }, attached))
    }

    /// One turn of the shard.
    pub fn turn(&mut self, now: Instant) {
        self.node.turn(now);
        let Self { node, client, record, outcomes, .. } = self;
        if client.has_submissions() {
            client.read(node, now, record);
        }
        if client.accepts() {
            client.hand_out(node, record);
        }
        node.swap_client_outcomes(outcomes);
        for (ClientCall { call, .. }, outcome) in outcomes.drain(..) {
            client.answer(call, outcome, record);
        }
        if client.has_news() {
            client.flush(now, record);
        }
    }

    /// Calls of the client that have not ended.
    pub fn under_way(&self) -> usize {
        self.client.under_way()
    }

    /// The client is gone; the node continues without it.
    pub fn dismiss(self, reason: &str) -> Node {
        let Self { mut node, mut client, mut outcomes, .. } = self;
        client.leave(&mut node);
        node.set_pool(client.task, None);
        node.forget_client(client.task, reason);
        // Of a client that is gone, nobody hears.
        node.swap_client_outcomes(&mut outcomes);
        node
    }
}
