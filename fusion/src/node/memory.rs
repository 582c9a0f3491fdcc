//! The memory of a shard: the send slab for producers; for tensors that come without a destination, the pool of the receiving task if it
//! has one, otherwise the receive slab.

use std::rc::Rc;

use sealane_runtime::{Buffer, MemoryKind, Slab};
use sealane_transport::session::ReceiveMemory;
use sealane_transport::shm::table_places::Place;
use sealane_transport::{Error, Payload};

/// A task's own memory for tensors that arrive.
pub trait Pool {
    /// Exactly `len` bytes.
    ///
    /// # Errors
    /// ResourceExhausted, with which the recv ends; the tensor stays with its producer.
    fn allocate(&self, len: usize) -> Result<Buffer, Error>;

    /// Exactly `len` bytes for a tensor of a pull, which lies there until the next one overwrites it.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_to_stay(&self, len: usize) -> Result<Buffer, Error> {
        self.allocate(len)
    }

    /// True if the task may read these published bytes in place instead of copying them. It then reports itself when it is done with them.
    fn shares(&self, _payload: &Payload) -> bool {
        false
    }

    /// Where a published table and its locks lie, if the task may read them in place; `None` by default.
    fn place_of_table(&self, _rows: &Payload, _locks: Option<&Payload>) -> Option<Place> {
        None
    }

    /// Exactly `len` bytes that the task is told of. The payloads `lent` with them stay unchanged until the task gives the bytes back.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    fn allocate_lending(&self, len: usize, _lent: Vec<Payload>) -> Result<Buffer, Error> {
        self.allocate_to_stay(len)
    }

    /// Tensors of up to so many bytes are passed to the task from any memory.
    fn inline_bytes(&self) -> usize;
}

pub(super) struct Memory {
    /// Memory for producers on this shard.
    send: Slab,
    receive: Slab,
    /// By the index of the local task.
    pools: Vec<Option<Rc<dyn Pool>>>,
}

impl Memory {
    pub(super) fn new(send: Slab, receive: Slab) -> Self {
        Self { send, receive, pools: Vec::new() }
    }

    pub(super) fn send_slab(&self) -> &Slab {
        &self.send
    }

    pub(super) fn receive_slab(&self) -> &Slab {
        &self.receive
    }

    pub(super) fn set_pool(&mut self, task: u16, pool: Option<Rc<dyn Pool>>) {
        let task = usize::from(task);
        if self.pools.len() <= task {
            self.pools.resize(task + 1, None);
        }
        self.pools[task] = pool;
    }

    pub(super) fn pool(&self, task: u16) -> Option<&dyn Pool> {
        self.pools.get(usize::from(task))?.as_deref()
    }

    /// True if a task has its own memory for tensors that arrive.
    #[inline]
    pub(super) fn has_pool(&self, task: u16) -> bool {
        self.pool(task).is_some()
    }

    /// True if no client process is attached as `task`, while `asking` is a client's.
    pub(super) fn is_deserted(&self, task: u16, asking: u16) -> bool {
        self.pool(asking).is_some() && self.pool(task).is_none()
    }

    /// Free bytes for tensors that arrive for a task, and the total. For a task with a pool, no limit: the pool refuses by itself, and what
    /// waits in the task's queues is bounded by a share of it.
    pub(super) fn free_for(&self, task: u16) -> (usize, usize) {
        if self.pool(task).is_some() {
            return (usize::MAX, usize::MAX);
        }
        let all = self.receive.capacity_bytes();
        (all - self.receive.in_use_bytes(), all)
    }

    /// See [`Pool::shares`].
    pub(super) fn shares_with(&self, task: u16, payload: &Payload) -> bool {
        self.pool(task).is_some_and(|pool| pool.shares(payload))
    }

    /// True if a tensor of another local task may be passed on without a copy. Not memory that another process can write, nor a device's,
    /// which a task gets only if it brings it, wherever its peer runs.
    pub(super) fn takes_as_is(&self, task: u16, payload: &Payload) -> bool {
        payload.memory() == MemoryKind::Host && self.pool(task).is_none_or(|pool| payload.len() <= pool.inline_bytes())
    }
}

impl ReceiveMemory for Memory {
    fn allocate(&self, consumer: u16, len: usize) -> Result<Buffer, Error> {
        match self.pool(consumer) {
            Some(pool) => pool.allocate(len),
            None => ReceiveMemory::allocate(&self.receive, consumer, len),
        }
    }

    fn allocate_to_stay(&self, consumer: u16, len: usize) -> Result<Buffer, Error> {
        match self.pool(consumer) {
            Some(pool) => pool.allocate_to_stay(len),
            None => ReceiveMemory::allocate_to_stay(&self.receive, consumer, len),
        }
    }
}
