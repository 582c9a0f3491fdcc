//! The end of a step, of which every shard and every channel is notified. Runs on the callers' threads.

use std::sync::PoisonError;

use sealane_transport::{Error, shm::Submission};

use super::{Attachment, Held, State, submit::WHILE_IT_READS};
use crate::clock::Tick;

impl Attachment {
    /// Tells every shard that a step is aborted.
    pub(crate) fn abort(&self, step: i64, reason: &str) -> Result<(), Error> {
        self.end_step(step, reason, &Submission::Abort { step, reason })
    }

    /// Tells every shard to free what is left of a step.
    pub(crate) fn cleanup(&self, step: i64) -> Result<(), Error> {
        self.end_step(step, "it was cleaned up", &Submission::Cleanup { step })
    }

    /// Ends a step: drops what came in it for recvs that were given up, and does not send what waits for the arena.
    fn end_step(&self, step: i64, reason: &str, told: &Submission<'_>) -> Result<(), Error> {
        self.check_fork()?;
        // Ends of steps go out one after the other, to all: what another thread begins when the daemon reports a step's end
        // comes behind what channels are told of it.
        let _in_turn = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        let mut held = self.lock();
        held.pump();
        let State { calls, aftermath, .. } = &mut *held;
        calls.forget_step(step, aftermath);
        if held.has_unplaced() {
            held.end_unplaced(step, reason);
        }
        drop(held);
        let aborted = matches!(told, Submission::Abort { .. });
        // The daemon is notified before the peers with channels.
        match self.up(Tick::now(), None) {
            Ok(mut held) => {
                let outcome = held.tell_all(told);
                held.end_direct(step, reason, aborted);
                outcome
            }
            Err(error) => {
                self.lock().end_direct(step, reason, aborted);
                Err(error)
            }
        }
    }
}

impl Held<'_> {
    /// Tells every shard of the link.
    pub(super) fn tell_all(&mut self, submission: &Submission<'_>) -> Result<(), Error> {
        let segments = self.link().segments();
        let told = (0..segments)
            .try_for_each(|segment| self.submit(WHILE_IT_READS, |link| link.submit(segment, submission)).map(drop));
        self.submitted(segments.into());
        told
    }
}
