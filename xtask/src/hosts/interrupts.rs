//! Signals that end a chore in good order: they interrupt its waits, and what it has made is then taken down.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

/// A terminal's interrupt, a terminal that goes away, and a plain `kill`.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM];

/// Where the signals arrive.
pub(crate) struct Interrupts(Receiver<Signal>);

impl Interrupts {
    /// From now on the signals are heard here and end nothing by themselves. To be called before any thread starts.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn take() -> Result<Interrupts, String> {
        let ending: SigSet = ENDING.into_iter().collect();
        ending.thread_block().map_err(|error| format!("signals cannot be set up: {error}"))?;
        let (send, signals) = channel();
        thread::spawn(move || {
            while let Ok(signal) = ending.wait() {
                if send.send(signal).is_err() {
                    return;
                }
            }
        });
        Ok(Interrupts(signals))
    }

    /// Waits until then.
    ///
    /// # Errors
    /// A signal came.
    pub(crate) fn sleep_until(&self, until: Instant) -> Result<(), String> {
        self.sleep(until.saturating_duration_since(Instant::now()))
    }

    /// Waits so long.
    ///
    /// # Errors
    /// A signal came.
    pub(crate) fn sleep(&self, time: Duration) -> Result<(), String> {
        match self.0.recv_timeout(time) {
            Ok(signal) => Err(format!("{signal} came")),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err("signals are not heard any more".into()),
        }
    }
}
