//! Signals that end a demo. The parent takes them on a thread of its own and ends its tasks in order; the tasks,
//! which a terminal interrupts as well, leave that to the parent.

use std::sync::mpsc::Sender;

use nix::sys::signal::{SigSet, Signal};

use crate::Failure;

/// What ends a program in good order: a terminal's interrupt, a terminal that goes away, and a plain `kill`.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGHUP, Signal::SIGTERM];

/// From now on, signals that end a program become events. Threads and processes that are started later inherit that
/// they do not see them.
///
/// # Errors
/// The kernel refuses.
pub(super) fn become_events<T: Send + 'static>(
    events: Sender<T>,
    event: impl Fn(Signal) -> T + Send + 'static,
) -> Result<(), Failure> {
    let ending: SigSet = ENDING.into_iter().collect();
    ending.thread_block().map_err(refused)?;
    std::thread::spawn(move || {
        while let Ok(signal) = ending.wait() {
            if events.send(event(signal)).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// In a task: only what is sent to it alone ends it.
///
/// # Errors
/// The kernel refuses.
pub(super) fn leave_to_parent() -> Result<(), Failure> {
    let of_terminal: SigSet = [Signal::SIGINT, Signal::SIGHUP].into_iter().collect();
    let of_kill: SigSet = [Signal::SIGTERM].into_iter().collect();
    of_terminal.thread_block().and_then(|()| of_kill.thread_unblock()).map_err(refused)
}

fn refused(error: nix::errno::Errno) -> Failure {
    Failure::work(format!("signals cannot be set up ({error})"))
}
