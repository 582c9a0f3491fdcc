//! The daemon's instruments, read by `sealane stat` and by scrapers of its metrics. No shard is stopped or woken for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use sealane_fusion::Engine;
use sealane_transport::JobName;

use crate::figures::{Credentials, Figures, SCHEMA, State, days_left, unix_ms};

/// Clones show the same daemon.
#[derive(Clone)]
pub(super) struct Instruments {
    engine: Engine,
    job: Option<JobName>,
    began: Instant,
    drains: Arc<AtomicBool>,
    credentials: Arc<CredentialCounts>,
}

/// How often new credential files were taken or refused since the start.
#[derive(Default)]
struct CredentialCounts {
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Instruments {
    pub(super) fn new(engine: Engine, job: Option<JobName>) -> Self {
        Self { engine, job, began: Instant::now(), drains: Arc::default(), credentials: Arc::default() }
    }

    pub(super) fn drains(&self) {
        self.drains.store(true, Ordering::Relaxed);
    }

    pub(super) fn serves(&self) {
        self.drains.store(false, Ordering::Relaxed);
    }

    pub(super) fn credentials_taken(&self) {
        self.credentials.taken.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn credentials_refused(&self) {
        self.credentials.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn credentials(&self) -> Credentials {
        let authentication = self.engine.authentication();
        Credentials {
            shown: authentication.name().into(),
            days_left: authentication.ends().map(days_left),
            taken: self.credentials.taken.load(Ordering::Relaxed),
            refused: self.credentials.refused.load(Ordering::Relaxed),
        }
    }

    pub(super) fn state(&self) -> State {
        match (self.engine.has_stopped(), self.drains.load(Ordering::Relaxed)) {
            (true, _) => State::Failed,
            (false, true) => State::Draining,
            (false, false) => State::Serving,
        }
    }

    pub(super) fn figures(&self) -> Figures {
        Figures {
            schema: SCHEMA.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            taken_unix_ms: unix_ms(SystemTime::now()),
            uptime_ms: self.began.elapsed().as_millis() as u64,
            state: self.state(),
            job: self.job.clone().map(String::from),
            executor: self.engine.executor().to_string(),
            addresses: self.engine.addresses().iter().map(ToString::to_string).collect(),
            tasks: self.engine.tasks().iter().map(ToString::to_string).collect(),
            credentials: self.credentials(),
            direct_lanes: self.engine.direct_lanes(),
            shards: self.engine.figures().into_iter().map(Into::into).collect(),
        }
    }
}
