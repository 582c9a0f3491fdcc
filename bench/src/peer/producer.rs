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

/// Takes the job that a parent passed as an argument, and the CPU that it names, on which this thread stays, as do those
/// that it starts. The process ends when its standard input closes or its parent dies.
///
/// # Errors
/// A job that cannot be read, a CPU that cannot be pinned.
pub(crate) fn take_job(job: &str) -> Result<(PeerJob, Option<Pinned>), BenchError> {
    let job: PeerJob = serde_json::from_str(job).map_err(BenchError::dialogue("the job of a producer", job))?;
    end_with_parent()?;
    keep_freed_memory();
    let pinned = job.cpu.map(Pinned::to).transpose()?;
    thread::spawn(end_with_input);
    Ok((job, pinned))
}

/// Tells the parent that the producer can be connected to.
pub(crate) fn announce(ready: impl Into<PeerReady>) -> Result<(), BenchError> {
    let ready = ready.into();
    let line = serde_json::to_string(&ready).expect("ports are numbers");
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).map_err(BenchError::io("say that the producer is ready"))
}

/// A stopped process does not see its input close, but it can be killed.
fn end_with_parent() -> Result<(), BenchError> {
    set_pdeathsig(Signal::SIGKILL).map_err(BenchError::io("ask to be ended with the parent process"))
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
        let error = take_job("{}").expect_err("no job");
        assert!(matches!(error, BenchError::Dialogue { .. }), "{error}");
    }
}
