//! The daemon's instruments, read by `sealane stat` and by scrapers of its metrics. No shard is stopped or woken for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

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
    control: Arc<ControlTurns>,
}

/// How long the control thread may go without a turn before the daemon counts as unhealthy. It turns at least once per second; a
/// single turn may wait a few seconds for a successor or a service manager.
const CONTROL_STALL: Duration = Duration::from_secs(10);

/// When the control thread last turned.
struct ControlTurns {
    began: Instant,
    /// Milliseconds after `began`; `u64::MAX` once the control thread has ended.
    last_ms: AtomicU64,
}

impl ControlTurns {
    fn new(began: Instant) -> ControlTurns {
        ControlTurns { began, last_ms: AtomicU64::new(0) }
    }

    fn record(&self, now: Instant) {
        self.last_ms.store(now.saturating_duration_since(self.began).as_millis() as u64, Ordering::Relaxed);
    }

    fn end(&self) {
        self.last_ms.store(u64::MAX, Ordering::Relaxed);
    }

    /// Returns how long the control thread has not turned, if that is too long.
    fn stalled(&self, now: Instant) -> Option<Duration> {
        let now_ms = now.saturating_duration_since(self.began).as_millis() as u64;
        let since = Duration::from_millis(now_ms.saturating_sub(self.last_ms.load(Ordering::Relaxed)));
        (since >= CONTROL_STALL).then_some(since)
    }
}

/// How often new credential files were taken or refused since the start.
#[derive(Default)]
struct CredentialCounts {
    taken: AtomicU64,
    refused: AtomicU64,
}

impl Instruments {
    pub(super) fn new(engine: Engine, job: Option<JobName>) -> Self {
        let began = Instant::now();
        let control = Arc::new(ControlTurns::new(began));
        Self { engine, job, began, drains: Arc::default(), credentials: Arc::default(), control }
    }

    /// Records a turn of the control thread.
    pub(super) fn control_turns(&self) {
        self.control.record(Instant::now());
    }

    /// Records the last turn of the control thread.
    pub(super) fn control_ends(&self) {
        self.control.end();
    }

    /// Returns why the control thread cannot serve, if it cannot.
    pub(super) fn control_fault(&self) -> Option<String> {
        self.control.stalled(Instant::now()).map(|since| {
            format!(
                "the control thread has not turned for {} s: clients cannot attach, and signals have no effect",
                since.as_secs()
            )
        })
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
            direct_lanes: self.engine.lanes(true),
            shards: self.engine.figures().into_iter().map(Into::into).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_thread_is_stalled_without_turns_until_its_end() {
        let began = Instant::now();
        let control = ControlTurns::new(began);
        assert_eq!(control.stalled(began + CONTROL_STALL - Duration::from_millis(1)), None);
        assert_eq!(control.stalled(began + CONTROL_STALL), Some(CONTROL_STALL));
        control.record(began + CONTROL_STALL);
        assert_eq!(control.stalled(began + CONTROL_STALL), None);
        assert_eq!(control.stalled(began + 3 * CONTROL_STALL), Some(2 * CONTROL_STALL));
        control.end();
        assert_eq!(control.stalled(began + 3 * CONTROL_STALL), None);
    }
}
