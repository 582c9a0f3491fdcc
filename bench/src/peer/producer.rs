//! The producer's process from the inside: it does one job and ends with its parent.

use std::io::{self, Read, Write};
use std::process;
use std::thread;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use super::{PeerJob, PeerReady};
use crate::allocator::keep_freed_memory;
use crate::error::BenchError;
use crate::machine::Pinned;
use crate::systems;

/// Runs the producer of the job that a parent passed as an argument. Returns when the consumer
/// closed its connection; the process also ends when its standard input closes or its parent dies.
///
/// # Errors
/// A job that cannot be read, a CPU that cannot be pinned, a socket that fails.
pub fn serve_peer(job: &str) -> Result<(), BenchError> {
    let job: PeerJob = serde_json::from_str(job).map_err(|source| BenchError::Dialogue {
        what: "the job of a producer",
        text: job.to_owned(),
        source,
    })?;
    end_with_parent()?;
    keep_freed_memory();
    // Pinned until the process ends, and before any thread starts that should inherit it.
    let _pinned = job.cpu.map(Pinned::to).transpose()?;
    thread::spawn(end_with_input);
    systems::serve(&job)
}

/// Tells the parent that the producer can be connected to.
pub(crate) fn announce(ready: impl Into<PeerReady>) -> Result<(), BenchError> {
    let ready = ready.into();
    let line = serde_json::to_string(&ready).map_err(|source| BenchError::Dialogue {
        what: "what a producer says",
        text: format!("{ready:?}"),
        source,
    })?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(BenchError::io("say that the producer is ready"))
}

/// A stopped process does not see its input close, but it can be killed.
fn end_with_parent() -> Result<(), BenchError> {
    set_pdeathsig(Signal::SIGKILL).map_err(|e| BenchError::io("ask to be ended with the parent process")(e.into()))
}

fn end_with_input() {
    let mut ignored = [0; 64];
    let mut input = io::stdin().lock();
    while let Ok(1..) = input.read(&mut ignored) {}
    process::exit(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_that_cannot_be_read_is_an_error() {
        let error = serve_peer("{}").expect_err("no job");
        assert!(matches!(error, BenchError::Dialogue { .. }), "{error}");
    }
}
