//! An attachment whose daemon is the test: what it submits lies in a ring, and nobody answers.

use std::{os::unix::net::UnixStream, sync::Arc, time::Duration};

use sealane_transport::{
    Error, TensorMeta,
    shm::{
        ClientEnd, Completion, DaemonEnd, Doorbell, Record, SharedMemory, Submission,
        attach::{Attached, RequiredJob, Welcome},
    },
    tensor::DType,
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

    /// The numbers of the recvs submitted since the last call. Other submissions are dropped.
    pub(super) fn recvs(&mut self) -> Vec<u32> {
        let (mut record, mut recvs) = (Record::new(), Vec::new());
        while self.daemon.submissions.pop(&mut record).unwrap() {
            if let Submission::Recv { call, .. } = Submission::decode(&record).unwrap() {
                recvs.push(call);
            }
        }
        self.daemon.submissions.publish();
        recvs
    }

    /// Delivers a tensor to a recv.
    pub(super) fn delivers(&mut self, call: u32, bytes: &[u8]) {
        let (mut record, meta) = (Record::new(), TensorMeta::new(DType::U8, &[bytes.len() as u64]).unwrap());
        Completion::ArrivedAlone { call, meta: meta.as_wire(), bytes }.encode(&mut record).unwrap();
        self.daemon.completions.push(&record).unwrap();
    }

    /// Ends a cancelled recv.
    pub(super) fn gives_up(&mut self, call: u32) {
        let (mut record, error) = (Record::new(), Error::unavailable("daemon", "the recv was cancelled"));
        Completion::Failed { call, memory_back: true, error }.encode(&mut record).unwrap();
        self.daemon.completions.push(&record).unwrap();
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
