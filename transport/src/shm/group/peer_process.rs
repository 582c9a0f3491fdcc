//! Whether another rank's process is alive. A descriptor of the process tells, whoever else has inherited its files. If the
//! process is not visible from here (another PID namespace), the connection over which the two ranks met tells, as long as
//! no child of it has inherited that. The ranks of many groups are few processes, and each has one descriptor here. Any
//! thread; never blocks.

use std::{
    collections::HashMap,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, PoisonError, Weak},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::socket::{getsockopt, sockopt},
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Processes whose descriptors are open here.
static PROCESSES: Mutex<Option<HashMap<i32, Weak<OwnedFd>>>> = Mutex::new(None);

/// Another rank's process.
#[derive(Debug)]
pub struct PeerProcess {
    descriptor: Option<Arc<OwnedFd>>,
    /// Kept open even if it is not polled: the other side may have nothing else to watch this process by.
    pub(super) connection: OwnedFd,
    pid: i32,
}

impl PeerProcess {
    /// The process at the other end of a connection, which waits for an answer on it.
    pub(super) fn new(connection: OwnedFd) -> PeerProcess {
        let pid = getsockopt(&connection, sockopt::PeerCredentials).map_or(0, |known| known.pid());
        PeerProcess { descriptor: process_descriptor(pid), connection, pid }
    }

    /// The process's number, 0 if it is not visible from here.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The first of these processes that has ended.
    pub fn first_gone<'p>(processes: impl Iterator<Item = (usize, &'p PeerProcess)>) -> Option<usize> {
        let (ranks, mut polled): (Vec<usize>, Vec<PollFd<'_>>) =
            processes.map(|(rank, process)| (rank, PollFd::new(process.as_fd(), PollFlags::POLLIN))).unzip();
        match poll(&mut polled, PollTimeout::ZERO) {
            Ok(1..) => polled.iter().position(|polled| polled.any() == Some(true)).map(|index| ranks[index]),
            // The caller will look again.
            _ => None,
        }
    }
}

impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_deref().unwrap_or(&self.connection).as_fd()
    }
}

fn process_descriptor(process: i32) -> Option<Arc<OwnedFd>> {
    let pid = Pid::from_raw(process)?;
    let mut processes = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let processes = processes.get_or_insert_default();
    processes.retain(|_, descriptor| descriptor.strong_count() > 0);
    if let Some(known) = processes.get(&process).and_then(Weak::upgrade)
        && !has_ended(&known)
    {
        return Some(known);
    }
    // It is alive, since it must answer or waits for an answer; so this is no later process with the same number.
    let opened = Arc::new(pidfd_open(pid, PidfdFlags::empty()).ok()?);
    processes.insert(process, Arc::downgrade(&opened));
    Some(opened)
}

fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}
