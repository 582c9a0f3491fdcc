//! An attachment whose daemon is the test: what it submits lies in a ring, and nobody answers.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use sealane_transport::shm::{
    ClientEnd, DaemonEnd, Doorbell, Record, SharedMemory, Submission,
    attach::{Attached, RequiredJob, Welcome},
};

use super::Attachment;
use crate::{
    attach::{Backlog, Settings},
    clock::Tick,
};

/// Size of the arena, and of the receive area.
pub(super) const AREA_BYTES: u64 = 4 << 20;

pub(super) struct Rig {
    pub(super) attachment: Arc<Attachment>,
    pub(super) daemon: DaemonEnd,
    _socket: UnixStream,
}

impl Rig {
    pub(super) fn new(task: &str) -> Rig {
        Rig::with_backlog(task, None)
    }

    /// One whose calls wait in this process for room, if a backlog is given.
    pub(super) fn with_backlog(task: &str, backlog: Option<Backlog>) -> Rig {
        let (daemon, segment) = DaemonEnd::create(AREA_BYTES).unwrap();
        let (socket, other) = UnixStream::pair().unwrap();
        let welcome = Welcome {
            version: 0,
            shards: 1,
            arena_bytes: AREA_BYTES,
            segment_bytes: AREA_BYTES,
            area_bytes: AREA_BYTES,
            request_timeout_ms: 60_000,
            tensor_bytes_max: AREA_BYTES,
            daemon_pid: 0,
            job: None,
            neighbours: Vec::new(),
        };
        let shards = vec![(ClientEnd::open(&segment, AREA_BYTES).unwrap(), Doorbell::create().unwrap())];
        let arena = SharedMemory::create("test", AREA_BYTES).unwrap().0;
        let settings = Settings {
            task: task.into(),
            socket: "nowhere".into(),
            other_sockets: Vec::new(),
            job: RequiredJob::Any,
            replace: false,
            arena_bytes: None,
            timeout: Duration::ZERO,
            restart_timeout: Duration::ZERO,
            polling: None,
            backlog,
        };
        let attached = Attached { welcome, arena, shards, socket: socket.into() };
        let attachment = Attachment::over(settings, (attached, "test".into()), Tick::NEVER).unwrap();
        Rig { attachment, daemon, _socket: other }
    }

    /// The keys of the sends and recvs that the daemon was told of since the last call, and freed blocks.
    pub(super) fn told(&mut self) -> Vec<String> {
        let (mut record, mut told) = (Record::new(), Vec::new());
        while self.daemon.submissions.pop(&mut record).unwrap() {
            told.extend(match Submission::decode(&record).unwrap() {
                Submission::Send { key, .. } => Some(format!("send {key}")),
                Submission::Recv { key, .. } => Some(format!("recv {key}")),
                Submission::Free { tokens } => Some(format!("free {tokens:?}")),
                _ => None,
            });
        }
        self.daemon.submissions.publish();
        told
    }

    /// Returns how many calls the daemon was told to cancel since the last call. Drops all other submissions.
    pub(super) fn cancelled(&mut self) -> usize {
        let (mut record, mut cancelled) = (Record::new(), 0);
        while self.daemon.submissions.pop(&mut record).unwrap() {
            cancelled += usize::from(matches!(Submission::decode(&record).unwrap(), Submission::Cancel { .. }));
        }
        self.daemon.submissions.publish();
        cancelled
    }
}
