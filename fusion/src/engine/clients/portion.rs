//! The memory and doorbells that a client shares with every shard, created when it attaches.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use sealane_transport::JobName;
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
    /// Clients of one user may send each other small tensors through memory that they share.
    pub direct_lanes: bool,
    /// The job of the daemon; sent to clients.
    pub job: Option<JobName>,
}

fn duplicate(arena: &OwnedFd) -> Result<OwnedFd, ShmError> {
    let operation = "duplicating an arena's descriptor";
    arena.try_clone().map_err(|source| ShmError::System { operation, source })
}

impl Portion {
    /// Makes both ends: one for [`Engine::admit`](crate::Engine::admit), one to be sent to the client at `socket`. `tasks` are the tasks of
    /// this host, with which it may have lanes. Allocates no page of the arena: its client does that, and is charged for it.
    ///
    /// # Errors
    /// The system is out of memory or descriptors; everything created is freed again.
    pub fn make(
        &self,
        wish: &Attach,
        peer: Credentials,
        socket: &Arc<OwnedFd>,
        tasks: &[TaskName],
    ) -> Result<(ClientEnds, Welcoming), ShmError> {
        // A client that only receives gets one page.
        let arena_bytes = wish.arena_bytes.max(1).next_multiple_of(PAGE_BYTES);
        let area_bytes = self.area_bytes.next_multiple_of(PAGE_BYTES);
        let (arena, arena_fd) = SharedMemory::create("sealane-arena", arena_bytes)?;
        let shared = match self.views {
            true => Some(SharedArena { uid: peer.uid, descriptor: duplicate(&arena_fd)? }),
            false => None,
        };
        let mut shards = Vec::with_capacity(self.shards);
        let mut descriptors = Vec::with_capacity(self.shards);
        for _ in 0..self.shards {
            let (end, segment) = DaemonEnd::create(area_bytes)?;
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
            job: self.job.clone(),
            neighbours: Self::neighbours(&wish.task, tasks),
        };
        let bell = ClientBell::new(Arc::clone(socket));
        let (pid, uid) = (peer.pid, peer.uid);
        let ends = ClientEnds { task: wish.task.clone(), pid, uid, arena, shared, shards, bell };
        Ok((ends, Welcoming::new(welcome, arena_fd, descriptors)))
    }

    /// The tasks with which `task` may have lanes, as many as fit in a welcome.
    fn neighbours(task: &str, tasks: &[TaskName]) -> Vec<String> {
        let mut room = NEIGHBOURS_BYTES_MAX;
        let others = tasks.iter().map(|name| name.as_str()).filter(|name| *name != task);
        let fits = |name: &&str| {
            let bytes = name.len() + JSON_BYTES;
            room.checked_sub(bytes).inspect(|left| room = *left).is_some()
        };
        others.take_while(fits).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    const PORTION: Portion = Portion {
        shards: 1,
        area_bytes: 1 << 20,
        request_timeout: Duration::ZERO,
        tensor_bytes_max: 1 << 20,
        views: true,
        direct_lanes: true,
        job: None,
    };

    #[test]
    fn client_has_all_other_tasks_as_neighbours() {
        let tasks = ["a:1", "b:1"].map(|name| name.parse().unwrap());
        assert_eq!(Portion::neighbours("a:1", &tasks), ["b:1"]);
    }

    #[test]
    fn arena_has_no_pages_until_its_client_writes() {
        let socket = Arc::new(UnixDatagram::unbound().unwrap().into());
        let wish = Attach::new("a:1", 1 << 20);
        let (ends, _welcoming) = PORTION.make(&wish, Credentials { pid: 1, uid: 1 }, &socket, &[]).unwrap();
        let descriptor = ends.shared.unwrap().descriptor;
        let allocated = || File::from(descriptor.try_clone().unwrap()).metadata().unwrap().blocks() * 512;
        assert_eq!(allocated(), 0);
        let clients = SharedMemory::open(&descriptor, ends.arena.len()).unwrap();
        clients.populate().unwrap();
        assert_eq!(allocated(), 1 << 20);
    }
}
