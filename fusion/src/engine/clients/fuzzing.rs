//! Clients of one shard without the shard's loop: reads their rings and reports outcomes as the source of clients does. One client for the
//! fuzz targets and the drives, several for the simulation of clients.

use std::cell::Cell;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use sealane_transport::shm::attach::{Attached, VERSION, Welcome};
use sealane_transport::shm::{
    ClientBell, ClientEnd, DaemonEnd, DirectLane, Doorbell, Record, SharedMemory, ShmError, segment_bytes,
};
use sealane_transport::{Arena, Handle};

use super::client::{Client, Who};
use super::memory::Shown;
use super::report::report;
use super::switch::Switch;
use crate::node::{ClientOutcomes, Node};

/// Timeout of calls that give none, in milliseconds.
const TIMEOUT_MS: u64 = 60_000;

/// A node and the client that is attached as one of its tasks.
pub struct Attachment {
    clients: Clients,
    client: Handle,
}

impl Attachment {
    /// Attaches a client as task `task` of `node`; also returns the client's end.
    ///
    /// # Errors
    /// There is no memory, or no descriptor, for it.
    pub fn new(node: Node, task: u16, arena_bytes: u64, area_bytes: u64) -> Result<(Self, Attached), ShmError> {
        let mut clients = Clients::new(node);
        let (client, attached) = clients.attach(task, arena_bytes, area_bytes)?;
        Ok((Self { clients, client }, attached))
    }

    pub fn node(&mut self) -> &mut Node {
        &mut self.clients.node
    }

    pub fn turn(&mut self, now: Instant) {
        self.clients.turn(now);
    }

    pub fn under_way(&self) -> usize {
        self.clients.under_way(self.client)
    }

    /// The client is gone; the node continues without it.
    pub fn dismiss(mut self, reason: &str) -> Node {
        self.clients.dismiss(self.client, reason);
        // Outcomes for a client that has gone are dropped.
        self.clients.node.swap_client_outcomes(&mut self.clients.outcomes);
        self.clients.node
    }
}

thread_local! {
    /// Records that may still be written for clients of this thread.
    static RECORDS_LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// Counts a record; false if the daemon was killed before it.
pub(super) fn may_write() -> bool {
    let left = RECORDS_LEFT.get();
    RECORDS_LEFT.set(left.saturating_sub(1));
    left > 0
}

/// A node and the clients that are attached as its tasks.
pub struct Clients {
    pub node: Node,
    clients: Arena<Client>,
    /// Dismissed clients whose memory the node still used at the time.
    leaving: Vec<Client>,
    /// Number of clients attached so far.
    attached: u64,
    record: Record,
    switch: Switch,
    outcomes: ClientOutcomes,
}

impl Clients {
    pub fn new(node: Node) -> Self {
        let (record, switch, outcomes) = (Record::new(), Switch::default(), ClientOutcomes::default());
        Self { node, clients: Arena::new(usize::MAX), leaving: Vec::new(), attached: 0, record, switch, outcomes }
    }

    /// Attaches a client as task `task`; returns its handle, and its end.
    ///
    /// # Errors
    /// There is no memory, or no descriptor, for it.
    ///
    /// # Panics
    /// If there are 2^32 clients.
    pub fn attach(&mut self, task: u16, arena_bytes: u64, area_bytes: u64) -> Result<(Handle, Attached), ShmError> {
        self.attached += 1;
        let (client, attached) = client(task, self.attached, [arena_bytes, area_bytes])?;
        self.node.set_pool(task, Some(client.pool()));
        self.node.meet_client(task);
        let Ok(handle) = self.clients.insert(client) else { panic!("2^32 clients do not fit in memory") };
        self.clients.get_mut(handle).expect("just inserted").handle = handle;
        Ok((handle, attached))
    }

    /// From now on so many records are written for clients of this thread, and no more: the daemon is killed then.
    pub fn is_killed_after(records: usize) {
        RECORDS_LEFT.set(records);
    }

    pub fn turn(&mut self, now: Instant) {
        self.node.turn(now);
        let Self { node, clients, record, switch, outcomes, .. } = self;
        switch.turn(now, |_| ());
        for (_, client) in clients.iter_mut().filter(|(_, client)| client.has_submissions()) {
            client.read(node, now, record);
        }
        for (_, client) in clients.iter_mut().filter(|(_, client)| client.accepts()) {
            client.hand_out(node, record);
        }
        node.swap_client_outcomes(outcomes);
        report(clients, outcomes, (now, record), &mut None);
        self.leaving.retain(|client| !client.has_let_go());
    }

    /// Connects two clients by lanes of which the shard has the other side. [`Handle::NONE`] stands for a client that has gone.
    pub fn connect(&mut self, clients: [Handle; 2], lanes: [DirectLane; 2], now: Instant) {
        self.switch.connect(clients, lanes, now);
    }

    pub fn under_way(&self, client: Handle) -> usize {
        self.clients.get(client).map_or(0, Client::under_way)
    }

    /// True if nothing more is read from a client: it has said goodbye, or has broken the protocol.
    pub fn is_closed(&self, client: Handle) -> bool {
        self.clients.get(client).is_none_or(Client::is_closed)
    }

    /// True if no tensor lies in the receive area of a client.
    pub fn has_whole_area(&self, client: Handle) -> bool {
        self.clients.get(client).is_none_or(|client| {
            let [_, area] = client.memories();
            client.pool().allocate_to_stay(area.len() as usize).is_ok()
        })
    }

    /// Dismissed clients whose memory is still used.
    pub fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// Ends the lanes of a client whose process has ended, and tells its peers. The source of clients does this when it dismisses the client.
    pub fn end_lanes(&mut self, client: Handle, now: Instant) {
        self.switch.client_gone(client);
        self.switch.turn(now, |_| ());
    }

    /// A client is gone; the node continues without it.
    pub fn dismiss(&mut self, client: Handle, reason: &str) {
        let Some(mut client) = self.clients.remove(client) else { return };
        client.leave(&mut self.node);
        self.node.set_pool(client.task, None);
        self.node.forget_client(client.task, reason);
        if let Some(arena) = client.shown() {
            self.clients.iter_mut().for_each(|(_, other)| other.forget_arena(arena, &mut self.record));
        }
        self.leaving.push(client);
    }
}

/// A client as task `task`, and its end. Others may view its arena by `number`.
fn client(task: u16, number: u64, [arena_bytes, area_bytes]: [u64; 2]) -> Result<(Client, Attached), ShmError> {
    let (arena, theirs) = SharedMemory::create("sealane-arena", arena_bytes)?;
    let theirs = SharedMemory::open(&theirs, arena.len())?;
    let (end, segment) = DaemonEnd::create(area_bytes)?;
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
            job: None,
            neighbours: Vec::new(),
        },
        arena: theirs,
        shards: vec![(ClientEnd::open(&segment, area_bytes)?, doorbell.duplicate()?.into())],
        socket: ear.into(),
    };
    let bell = ClientBell::new(Arc::new(socket.into()));
    let who = Who { task, name: String::new(), pid: 1, shown: Some(Shown { number, uid: 1 }) };
    Ok((Client::new(who, end, doorbell, bell, arena), attached))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sealane_transport::Tensor;
    use sealane_transport::shm::limits::QUEUES_MAX;
    use sealane_transport::shm::{Completion, Submission};

    use super::*;
    use crate::engine::clients::tests::looks;
    use crate::limits::{HANDED_AT_ONCE, HANDED_PER_TURN};
    use crate::node::{self, PushRequest, SendWaiter};

    #[test]
    fn queues_to_which_nothing_comes_are_not_looked_at_and_a_busy_one_leaves_time_for_the_others() {
        let (mut clients, mut record, now) = (Clients::new(node::tests::alone()), Record::new(), Instant::now());
        let (_, mut attached) = clients.attach(0, 1 << 16, 1 << 20).unwrap();
        let (mut end, _) = attached.shards.pop().unwrap();
        for queue in 0..QUEUES_MAX as u32 {
            let name = &format!("q{queue}");
            let open = Submission::OpenQueue { queue, tensors_max: 1000, bytes_max: 1 << 20, name };
            for submission in [open, Submission::Grant { queue, tensors: 1000, bytes: 1 << 20 }] {
                submission.encode(&mut record).unwrap();
                end.submissions.push(&record).unwrap();
            }
            (0..2).for_each(|_| clients.turn(now));
        }
        let mut accepted = |clients: &mut Clients| {
            clients.turn(now);
            let mut counts = [0; 2];
            while end.completions.pop(&mut record).unwrap() {
                let Completion::Accepted { queue, .. } = Completion::decode(&record).unwrap() else {
                    panic!("{record:?}")
                };
                counts[queue as usize] += 1;
            }
            end.completions.publish();
            counts
        };
        let before = looks();
        (0..10).for_each(|_| assert_eq!(accepted(&mut clients), [0, 0]));
        assert_eq!(looks() - before, 0, "looks at idle queues");
        let pair = clients.node.pair(1, "ps:1").unwrap();
        for (queue, count) in [("q0", 300), ("q1", 1)] {
            let tensors = (0..count).map(|_| Tensor::from_elements(&[8], &[1_u8; 8]).unwrap());
            let deadline = now + Duration::from_secs(60);
            let request = PushRequest { pair, queue, tensors, deadline, waiter: SendWaiter::Nobody };
            clients.node.push(now, request);
        }
        let first = accepted(&mut clients);
        assert!(first[1] == 1 && (HANDED_PER_TURN - HANDED_AT_ONCE..300).contains(&first[0]), "{first:?}");
        assert_eq!(accepted(&mut clients), [300 - first[0], 0]);
        let before = looks();
        (0..10).for_each(|_| assert_eq!(accepted(&mut clients), [0, 0]));
        assert_eq!(looks() - before, 0, "looks at idle queues");
    }

    #[test]
    fn a_queue_that_gets_a_closed_ones_number_is_looked_at_once() {
        let (mut clients, mut record, now) = (Clients::new(node::tests::alone()), Record::new(), Instant::now());
        let (_, mut attached) = clients.attach(0, 1 << 16, 1 << 20).unwrap();
        let (mut end, _) = attached.shards.pop().unwrap();
        let open = |name| Submission::OpenQueue { queue: 7, tensors_max: 1000, bytes_max: 1 << 20, name };
        let grant = || Submission::Grant { queue: 7, tensors: 1000, bytes: 1 << 20 };
        for submission in [open("old"), grant(), Submission::CloseQueue { queue: 7 }, open("new"), grant()] {
            submission.encode(&mut record).unwrap();
            end.submissions.push(&record).unwrap();
        }
        let before = looks();
        (0..6).for_each(|_| clients.turn(now));
        assert_eq!(looks() - before, 1);
    }
}
