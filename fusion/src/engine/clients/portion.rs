//! The memory and doorbells that a client shares with every shard, created when it attaches.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sealane_transport::endpoint_map::TaskName;
use sealane_transport::shm::attach::{Attach, Credentials, ShardDescriptors, VERSION, Welcome, Welcoming};
use sealane_transport::shm::limits::MESSAGE_BYTES_MAX;
use sealane_transport::shm::{ClientBell, DaemonEnd, Doorbell, SharedMemory, ShmError, segment_bytes};

use super::{ClientEnds, SharedArena};

/// Bytes of a welcome that may name tasks: half of what a message may have.
const NEIGHBOURS_BYTES_MAX: usize = MESSAGE_BYTES_MAX / 2;

/// What each name costs there in addition: quotes and a comma.
const JSON_BYTES: usize = 3;

/// Shared memory is allocated in whole pages.
const PAGE_BYTES: u64 = 4096;

/// The resources of every client of an engine.
#[derive(Clone, Debug)]
pub struct Portion {
    /// Number of shards that it shares memory with.
    pub shards: usize,
    /// Memory for received tensors, per shard.
    pub area_bytes: u64,
    /// The default timeout of calls.
    pub request_timeout: Duration,
    pub tensor_bytes_max: u64,
    /// Clients of one user may view each other's published tensors in the arenas.
    pub views: bool,
    /// Clients of one user may send each other small tensors through a lane of their own.
    pub direct_lanes: bool,
}

/// Arenas made before their clients attach: those of an engine that another one replaces, and whose clients it expects.
#[derive(Debug, Default)]
pub struct SpareArenas(Vec<(SharedMemory, OwnedFd)>);

impl SpareArenas {
    /// Makes arenas of these sizes, in bytes, as reported by [`Engine::arenas`](crate::Engine::arenas) of another engine. If memory is
    /// short it makes fewer: clients then wait until theirs is made.
    pub fn make(bytes: impl IntoIterator<Item = u64>) -> SpareArenas {
        SpareArenas(bytes.into_iter().map_while(|bytes| arena(bytes).ok()).collect())
    }

    fn take(&mut self, bytes: u64) -> Option<(SharedMemory, OwnedFd)> {
        let place = self.0.iter().position(|(arena, _)| arena.len() == bytes)?;
        Some(self.0.swap_remove(place))
    }
}

fn arena(bytes: u64) -> Result<(SharedMemory, OwnedFd), ShmError> {
    SharedMemory::create("sealane-arena", bytes, true)
}

fn duplicate(arena: &OwnedFd) -> Result<OwnedFd, ShmError> {
    let operation = "duplicating an arena's descriptor";
    arena.try_clone().map_err(|source| ShmError::System { operation, source })
}

impl Portion {
    /// Makes both ends: one for [`Engine::admit`](crate::Engine::admit), one to be sent to the client at `socket`. `tasks` are the tasks of
    /// this host, with which it may have direct lanes.
    ///
    /// # Errors
    /// The system is out of memory or descriptors; everything created is freed again.
    pub fn make(
        &self,
        wish: &Attach,
        peer: Credentials,
        socket: &Arc<OwnedFd>,
        spares: &mut SpareArenas,
        tasks: &[TaskName],
    ) -> Result<(ClientEnds, Welcoming), ShmError> {
        // An empty arena cannot be allocated: a client that only receives gets one page.
        let arena_bytes = wish.arena_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let area_bytes = self.area_bytes.next_multiple_of(PAGE_BYTES);
        let (arena, arena_fd) = spares.take(arena_bytes).map_or_else(|| arena(arena_bytes), Ok)?;
        let shared = match self.views {
            true => Some(SharedArena { uid: peer.uid, descriptor: duplicate(&arena_fd)? }),
            false => None,
        };
        let mut shards = Vec::with_capacity(self.shards);
        let mut descriptors = Vec::with_capacity(self.shards);
        for _ in 0..self.shards {
            let (end, segment) = DaemonEnd::create(area_bytes, false)?;
            let doorbell = Doorbell::create()?;
            descriptors.push(ShardDescriptors { segment, doorbell: doorbell.duplicate()? });
            shards.push((end, doorbell));
        }
        let welcome = Welcome {
            version: VERSION,
            shards: self.shards as u32,
            arena_bytes,
            segment_bytes: segment_bytes(area_bytes),
            area_bytes,
            request_timeout_ms: u64::try_from(self.request_timeout.as_millis()).unwrap_or(u64::MAX),
            tensor_bytes_max: self.tensor_bytes_max,
            daemon_pid: std::process::id(),
            neighbours: self.neighbours(&wish.task, tasks),
        };
        let bell = ClientBell::new(Arc::clone(socket));
        let (pid, uid) = (peer.pid, peer.uid);
        let ends = ClientEnds { task: wish.task.clone(), pid, uid, arena, shared, shards, bell };
        Ok((ends, Welcoming::new(welcome, arena_fd, descriptors)))
    }

    /// The tasks with which `task` may have direct lanes, as many as fit in a welcome.
    fn neighbours(&self, task: &str, tasks: &[TaskName]) -> Vec<String> {
        let mut room = if self.direct_lanes { NEIGHBOURS_BYTES_MAX } else { 0 };
        let others = tasks.iter().map(|name| name.as_str()).filter(|name| *name != task);
        let fits = |name: &&str| {
            let bytes = name.len() + JSON_BYTES;
            room.checked_sub(bytes).inspect(|left| room = *left).is_some()
        };
        others.take_while(fits).map(str::to_owned).collect()
    }
}
