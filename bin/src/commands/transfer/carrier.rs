//! What carries the tensors of one transfer: the host's daemon, or an engine in this process. It has one task in either case.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use sealane::{Attach, Buffer, Code, Error, RecvOptions, Task, Tensor};
use sealane_fusion::Engine;

use crate::commands::daemon::socket::listener;
use crate::settings::ClientsSocket;
use crate::{Failure, host};

/// How long a daemon may take to notice that this process has hung up, so that it may attach again.
const REATTACH_TIME: Duration = Duration::from_secs(5);
/// Size of the first attempt for a tensor that does not fit into a client's area: twice the area's default size. A power of two,
/// which an arena can allocate in one piece.
const LARGE_BYTES: usize = 128 << 20;
/// Time between two attempts to attach.
const REATTACH_PAUSE: Duration = Duration::from_millis(2);

/// A daemon that answers at a socket.
#[derive(Clone, Debug)]
pub(super) struct Daemon {
    socket: PathBuf,
    pid: i32,
}

impl fmt::Display for Daemon {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the daemon at {} (pid {})", self.socket.display(), self.pid)
    }
}

/// Why there is no daemon that this process can use, and what to do about it.
#[derive(Debug)]
pub(super) struct NoDaemon {
    pub(super) reason: String,
    pub(super) remedy: &'static str,
}

/// Checks who listens at a socket: connects, and hangs up without sending anything.
pub(super) fn find(shown: &ClientsSocket) -> Result<Daemon, NoDaemon> {
    let pid = listener(&shown.path).map_err(|error| {
        let remedy = match error {
            Errno::EACCES => "run as that user, or add this user's id to daemon.allowed_uids there",
            _ => "start `sealane daemon` there",
        };
        let reason = match error {
            Errno::ENOENT | Errno::ENOTDIR | Errno::ECONNREFUSED => format!("no daemon at {shown}"),
            Errno::EACCES => format!("the daemon at {shown} belongs to another user"),
            Errno::EAGAIN => format!("the daemon at {shown} answers nobody, and too many wait"),
            Errno::EPROTOTYPE => format!("a program that is not a daemon listens on {shown}"),
            error => format!("no daemon can be reached at {shown} ({error})"),
        };
        NoDaemon { reason, remedy }
    })?;
    Ok(Daemon { socket: shown.path.clone(), pid })
}

/// A task of this process, and what carries its tensors.
pub(in crate::commands) struct Carrier {
    /// `None` if it could not be attached again.
    task: Option<Task>,
    through: Through,
    tensor_bytes_max: u64,
}

pub(super) enum Through {
    Daemon(Daemon),
    Engine(Engine),
}

impl Carrier {
    pub(super) fn new(task: Task, through: Through, tensor_bytes_max: u64) -> Carrier {
        Carrier { task: Some(task), through, tensor_bytes_max }
    }

    /// The task.
    ///
    /// # Panics
    /// After [`recv_large`](Self::recv_large) has failed.
    pub(in crate::commands) fn task(&self) -> &Task {
        self.task.as_ref().expect("attached")
    }

    /// Requests again a tensor that did not fit where tensors of unknown length are received, and so is still with its sender.
    ///
    /// # Errors
    /// As for a recv, or there is not enough memory.
    pub(in crate::commands) fn recv_large(&mut self, wanted: &Wanted<'_>) -> Result<Tensor, Error> {
        let available = host::available_bytes().unwrap_or(u64::MAX);
        let room_max = usize::try_from(available.min(self.tensor_bytes_max)).unwrap_or(usize::MAX);
        match &self.through {
            Through::Engine(_) => recv_into_heap(self.task(), wanted, room_max),
            Through::Daemon(daemon) => recv_into_arena(&mut self.task, daemon, wanted, room_max),
        }
    }

    /// Ends it in good order.
    ///
    /// # Errors
    /// The engine ended before its work was done.
    pub(in crate::commands) fn stop(self) -> Result<(), Failure> {
        match self.through {
            Through::Daemon(_) => Ok(()),
            Through::Engine(engine) => {
                engine.stop().map_err(|error| Failure::work(format!("the engine ended early: {error}")))
            }
        }
    }
}

pub(in crate::commands) struct Wanted<'a> {
    pub(in crate::commands) from: &'a str,
    pub(in crate::commands) step: i64,
    pub(in crate::commands) key: &'a str,
    pub(in crate::commands) timeout: Duration,
}

impl Wanted<'_> {
    fn recv(&self, task: &Task, destination: Buffer) -> Result<Tensor, Error> {
        let options = RecvOptions {
            timeout: Some(self.timeout),
            destination: Some(destination.into()),
            ..RecvOptions::default()
        };
        Ok(task.recv_with(self.from, self.step, self.key, options).wait()?)
    }
}

/// Reserves as much memory as the tensor may need; the kernel allocates only the pages that are written.
fn recv_into_heap(task: &Task, wanted: &Wanted<'_>, room: usize) -> Result<Tensor, Error> {
    let full = |error| Error::full("this host's memory", format!("{room} bytes cannot be reserved ({error})"));
    // Allocating zeroed memory ends the process if it fails, so this tries first.
    Vec::<u8>::new().try_reserve_exact(room).map_err(full)?;
    let tensor = wanted.recv(task, Buffer::from_vec(vec![0; room]))?;
    let meta = tensor.meta().clone();
    let mut bytes = tensor.into_buffer().into_vec().unwrap_or_else(|in_slab| in_slab.to_vec());
    bytes.shrink_to_fit();
    Tensor::new(meta, bytes)
}

/// All memory of an arena is allocated when a client attaches: so this attaches with ever larger ones.
fn recv_into_arena(
    task: &mut Option<Task>,
    daemon: &Daemon,
    wanted: &Wanted<'_>,
    room_max: usize,
) -> Result<Tensor, Error> {
    let mut room = LARGE_BYTES;
    loop {
        let name = task.as_ref().expect("attached").name().to_owned();
        // Says goodbye, which frees the name. Received tensors remain valid.
        drop(task.take());
        let wider = task.insert(attach_anew(&name, daemon, room)?);
        match wanted.recv(wider, wider.alloc(room)?) {
            // The destination is too small.
            Err(error) if error.code() == Code::InvalidArgument && room <= room_max / 2 => room *= 2,
            outcome => return outcome,
        }
    }
}

fn attach_anew(name: &str, daemon: &Daemon, arena_bytes: usize) -> Result<Task, Error> {
    let wish = Attach::new(name).socket(&daemon.socket).arena_bytes(arena_bytes as u64);
    let until = Instant::now() + REATTACH_TIME;
    loop {
        match wish.clone().attach() {
            Err(error) if error.code() == Code::Unavailable && Instant::now() < until => {
                std::thread::sleep(REATTACH_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::Path;

    fn at(path: &Path) -> Result<Daemon, NoDaemon> {
        find(&ClientsSocket::at(path))
    }

    fn none(path: &Path) -> String {
        at(path).unwrap_err().reason
    }

    #[test]
    fn what_is_no_daemon_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let shown = path.display();
        assert_eq!(none(&path), format!("no daemon at {shown}"));
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(none(&path), format!("a program that is not a daemon listens on {shown}"));
        drop(listener);
        assert_eq!(none(&path.join("below")), format!("no daemon at {}", path.join("below").display()));
        let long = none(Path::new(&"x".repeat(200)));
        assert!(long.starts_with("no daemon can be reached at xxx"), "{long}");
    }

    #[test]
    fn a_daemon_is_told_with_its_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let _listener = sealane_transport::shm::attach::listen(&path).unwrap();
        let daemon = at(&path).unwrap();
        assert_eq!(daemon.to_string(), format!("the daemon at {} (pid {})", path.display(), std::process::id()));
    }
}
