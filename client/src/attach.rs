//! Attaching to the host's daemon: options, the default socket, and errors if the daemon cannot be reached.

use std::{
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use sealane_runtime::Polling;
use sealane_transport::{
    Error, JobName,
    interrupt::is_interrupted,
    job::describe,
    shm::{
        ReadOnlyMemory,
        attach::{self as conversation, AttachError, Attached, GivenLane, RequiredJob},
    },
};

use crate::{
    Task,
    attachment::Attachment,
    default_socket::{default_sockets, first_served, foreign_socket},
    limits::{
        ARENA_BYTES, ATTACH_RETRY_INTERVAL, ATTACH_TIMEOUT, BACKLOG_BYTES, BACKLOG_CALLS, LANE_TIMEOUT, NO_LIMIT,
        RESTART_TIMEOUT, RESTART_TIMEOUT_MAX, SOCKET_TIMEOUT, VIEW_TIMEOUT,
    },
};

#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) task: Box<str>,
    pub(crate) socket: PathBuf,
    /// Where a daemon may listen instead, if the caller named no socket.
    pub(crate) other_sockets: Vec<PathBuf>,
    pub(crate) job: RequiredJob,
    /// True if the daemon is to detach another process of this user that is attached as the task.
    pub(crate) replace: bool,
    /// `None`: the default, or as much as the daemon grants.
    pub(crate) arena_bytes: Option<u64>,
    pub(crate) timeout: Duration,
    pub(crate) restart_timeout: Duration,
    /// `None` if the client is to find out.
    pub(crate) polling: Option<Polling>,
    pub(crate) backlog: Option<Backlog>,
}

impl Settings {
    /// True if calls do not wait for a daemon either: if it is gone, the client attaches again in the background.
    pub(crate) fn attaches_in_background(&self) -> bool {
        self.backlog.is_some() && self.restart_timeout.is_zero()
    }
}

/// How much may wait in this process for a slow daemon, or for room in the arena; see [`Attach::backlog`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backlog {
    /// Calls. Default 262,144.
    pub calls_max: usize,
    /// Their bytes: records, and tensors to be copied into the arena. Default 256 MiB.
    pub bytes_max: u64,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { calls_max: BACKLOG_CALLS, bytes_max: BACKLOG_BYTES }
    }
}

/// Options for attaching, if the defaults of [`Task::attach`] do not fit.
///
/// ```no_run
/// # use std::time::Duration;
/// let task = sealane::Attach::new("worker0.train:2222")
///     .socket("/run/user/1000/sealane.sock")
///     .arena_bytes(1 << 30)
///     .timeout(Duration::from_secs(1))
///     .attach()?;
/// # Ok::<(), sealane::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `attach`"]
pub struct Attach(Settings);

impl Attach {
    /// How long a waiting thread spins by default: an answer from the same host arrives within microseconds, and waking a
    /// thread takes tens of them.
    pub const IDLE_SPIN: Duration = Duration::from_micros(50);

    /// The defaults for a task, named as in the endpoint map.
    pub fn new(task: &str) -> Attach {
        let mut others = default_sockets();
        let socket = others.remove(0);
        Attach(Settings {
            task: task.into(),
            socket,
            other_sockets: others,
            job: RequiredJob::Any,
            replace: false,
            arena_bytes: None,
            timeout: ATTACH_TIMEOUT,
            restart_timeout: RESTART_TIMEOUT,
            polling: None,
            backlog: None,
        })
    }

    /// The daemon's socket. Default [`default_socket`](crate::default_socket).
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Attach {
        self.0.socket = path.into();
        self.0.other_sockets.clear();
        self
    }

    /// The job that this process belongs to: a daemon of another job, or of none, refuses it. Default `SEALANE_JOB`, if that variable is
    /// set and not empty; otherwise the job of the daemon that is found.
    ///
    /// A task that is attached belongs to its daemon's job from then on, and attaches again only to a daemon of that job.
    pub fn job(mut self, job: JobName) -> Attach {
        self.0.job = RequiredJob::Named(job);
        self
    }

    /// If another process of the same user is attached as the task, the daemon detaches it and logs its pid. Its calls end with
    /// Unavailable, and it does not attach again by itself. Default false: attaching fails with Unavailable.
    ///
    /// Applies to this call only, and not to attaching again after a restart of the daemon.
    pub fn replace(mut self, replace: bool) -> Attach {
        self.0.replace = replace;
        self
    }

    /// Memory for tensors to send, and for destinations of received ones. Default 512 MiB, or less where the daemon grants less
    /// (`daemon.arena_bytes_max`); a client that asks for more than that is refused. The first 8 MiB are allocated when the client
    /// attaches, the rest on first use. Allocated memory is not returned before the client detaches.
    pub fn arena_bytes(mut self, bytes: u64) -> Attach {
        self.0.arena_bytes = Some(bytes);
        self
    }

    /// How long attaching may take, now and after a restart of the daemon. Default 5 s.
    pub fn timeout(mut self, timeout: Duration) -> Attach {
        self.0.timeout = timeout;
        self
    }

    /// How long to wait for the next daemon after one has drained, counted from its exit: calls made in the meantime wait in the
    /// calling thread, at most for this long and never past their deadline. Zero: they fail immediately. Default 30 s, at most a
    /// day. A daemon that died is not waited for.
    pub fn restart_timeout(mut self, timeout: Duration) -> Attach {
        self.0.restart_timeout = timeout.min(RESTART_TIMEOUT_MAX);
        self
    }

    /// How threads wait for the daemon. Default: spin for [`IDLE_SPIN`](Self::IDLE_SPIN), then sleep; but sleep at once where
    /// spinning does not pay: on one CPU, where answers take longer, or other threads want the CPU.
    pub fn polling(mut self, polling: Polling) -> Attach {
        self.0.polling = Some(polling);
        self
    }

    /// Starting a call never waits: calls for which the rings have no room, and tensors for which the arena has none, wait in this
    /// process and continue by themselves, in order; beyond `backlog` they end immediately with ResourceExhausted. (Pushes stay in
    /// order. Sends and recvs that need no room in the arena may overtake those that do.) A recv whose destination has no room in the
    /// arena is copied there on arrival. Publications without room in the arena fail.
    ///
    /// With a [`restart_timeout`](Self::restart_timeout) of zero, calls do not wait for a drained or dead daemon either: they fail
    /// immediately with Unavailable while a thread attaches again.
    ///
    /// Default: nothing waits here; the calling thread waits for room in a ring, at most a second, and an arena without room is an
    /// error.
    pub fn backlog(mut self, backlog: Backlog) -> Attach {
        self.0.backlog = Some(backlog);
        self
    }

    /// Attaches.
    ///
    /// # Errors
    /// Unavailable if no daemon listens at the socket or it does not answer in time; PermissionDenied if the socket belongs to
    /// another user, or the daemon serves another job; InvalidArgument if `SEALANE_JOB` is no [`JobName`]; the daemon's error if it
    /// refuses: the task is not in its endpoint map (NotFound), is already attached by a
    /// process that the error names, or this user is not allowed.
    pub fn attach(mut self) -> Result<Task, Error> {
        // Decided once: attaching again must find this daemon's successor, and not another daemon.
        if !self.0.other_sockets.is_empty() {
            let all = std::iter::once(self.0.socket.clone()).chain(self.0.other_sockets.clone()).collect();
            if let Ok(found) = first_served(all) {
                (self.0.socket, self.0.other_sockets) = (found, Vec::new());
            }
        }
        if self.0.job == RequiredJob::Any {
            self.0.job = environment_job()?.map_or(RequiredJob::Any, RequiredJob::Named);
        }
        Attachment::new(self.0).map(Task::of)
    }

    /// Attaches to what the caller has made in place of a daemon, without checking whether it lives: for the drives in `tests/`, which
    /// must do the same at any speed.
    ///
    /// # Errors
    /// Unavailable if the system gives no page, or no eventfd.
    #[cfg(feature = "fuzzing")]
    #[doc(hidden)]
    pub fn attach_to(self, attached: Attached) -> Result<Task, Error> {
        self.over(attached).map(Task::of)
    }

    #[cfg(feature = "fuzzing")]
    pub(crate) fn over(self, attached: Attached) -> Result<std::sync::Arc<Attachment>, Error> {
        Attachment::over(self.0, (attached, "the drive".into()), crate::clock::Tick::NEVER)
    }
}

/// The job's name in `SEALANE_JOB`: `None` if the variable is unset or empty.
///
/// # Errors
/// InvalidArgument if it is no name of a job.
pub fn environment_job() -> Result<Option<JobName>, Error> {
    match std::env::var_os("SEALANE_JOB") {
        Some(name) if !name.is_empty() => {
            let parsed = name.to_string_lossy().parse::<JobName>();
            parsed.map(Some).map_err(|error| Error::invalid(format!("SEALANE_JOB: {error}")))
        }
        _ => Ok(None),
    }
}

/// Attaches to the daemon; returns what it gives, and its name for errors. A closed connection is tried again until the timeout of
/// the settings. With `populate` the first pages of the arena are allocated now, which spares their first users a fault each.
pub(crate) fn connect(settings: &Settings, populate: bool) -> Result<(Attached, Box<str>), AttachError> {
    let wish = conversation::Attach {
        or_less: settings.arena_bytes.is_none(),
        job: settings.job.clone(),
        replace: settings.replace,
        ..conversation::Attach::new(&*settings.task, settings.arena_bytes.unwrap_or(ARENA_BYTES))
    };
    let deadline = deadline(Instant::now(), settings.timeout);
    let attached = loop {
        match conversation::attach(&settings.socket, &wish, populate, deadline) {
            Err(AttachError::HungUp) if Instant::now() + ATTACH_RETRY_INTERVAL < deadline && !is_interrupted() => {
                thread::sleep(ATTACH_RETRY_INTERVAL);
            }
            outcome => break outcome?,
        }
    };
    let daemon = format!("{} (pid {})", name(&settings.socket), attached.welcome.daemon_pid);
    Ok((attached, daemon.into()))
}

/// Maps the arena of another client that the daemon has named.
pub(crate) fn map_arena(settings: &Settings, arena: u64, now: Instant) -> Result<ReadOnlyMemory, Error> {
    let mapped = conversation::map_arena(&settings.socket, arena, now + VIEW_TIMEOUT);
    mapped.map_err(|error| told(settings, error))
}

/// Asks the daemon for the lane to the process that is attached as `peer`.
pub(crate) fn lane(settings: &Settings, peer: &str, now: Instant) -> Result<GivenLane, Error> {
    let given = conversation::lane(&settings.socket, &settings.task, peer, now + LANE_TIMEOUT);
    given.map_err(|error| told(settings, error))
}

/// Asks for a connection for a stream with `peer`: a new one, or the one of that number.
pub(crate) fn stream_connection(
    settings: &Settings,
    peer: &str,
    number: Option<u64>,
    now: Instant,
) -> Result<(u64, OwnedFd), Error> {
    let (path, task, until) = (&settings.socket, &settings.task, now + SOCKET_TIMEOUT);
    let given = match number {
        None => conversation::connect(path, task, peer, until),
        Some(number) => conversation::connection(path, (task, peer), number, until).map(|socket| (number, socket)),
    };
    given.map_err(|error| told(settings, error))
}

/// The end of a wait. A time that the clock cannot hold is as good as none, here as elsewhere.
fn deadline(now: Instant, timeout: Duration) -> Instant {
    now.checked_add(timeout).unwrap_or_else(|| now + NO_LIMIT)
}

fn name(socket: &Path) -> String {
    format!("the daemon at {}", socket.display())
}

/// The error for the caller, with what to do about it.
pub(crate) fn told(settings: &Settings, error: AttachError) -> Error {
    let unavailable = |reason: String| Error::unavailable(&name(&settings.socket), reason);
    match error {
        AttachError::Refused(error) => error,
        AttachError::OtherJob { job } => {
            let (daemon, theirs, ours) =
                (name(&settings.socket), describe(job.as_ref()), describe(settings.job.name()));
            Error::PermissionDenied {
                reason: format!(
                    "{daemon} serves {theirs}, and this process belongs to {ours}: give both the same name (SEALANE_JOB, \
                     `sealane daemon --job`), or each job a socket of its own"
                )
                .into(),
            }
        }
        AttachError::Connect { source, .. } => match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                let others: Vec<_> = settings.other_sockets.iter().map(|path| path.display().to_string()).collect();
                let others =
                    if others.is_empty() { String::new() } else { format!(", and none is at {}", others.join(" or ")) };
                unavailable(format!("{source}{others}; is the daemon running? start `sealane daemon`"))
            }
            io::ErrorKind::PermissionDenied => {
                Error::PermissionDenied { reason: foreign_socket(settings.socket.display()).into() }
            }
            _ => unavailable(source.to_string()),
        },
        AttachError::TimedOut => unavailable(format!("it did not answer within {:?}", settings.timeout)),
        other => unavailable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_that_no_clock_can_hold_is_no_limit() {
        let now = Instant::now();
        assert_eq!(deadline(now, Duration::from_secs(7)), now + Duration::from_secs(7));
        for endless in [Duration::MAX, Duration::from_secs(u64::MAX)] {
            assert!(deadline(now, endless) >= now + NO_LIMIT);
        }
    }

    #[test]
    fn where_no_socket_is_named_and_no_daemon_is_both_are() {
        let directory = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| directory.path().join(name));
        let mut attach = Attach::new("a:1");
        (attach.0.socket, attach.0.other_sockets) = (one.clone(), vec![other.clone()]);
        let told = attach.clone().attach().unwrap_err().to_string();
        assert!(told.contains(one.to_str().unwrap()) && told.contains(other.to_str().unwrap()), "{told}");
        let told = attach.socket(&one).attach().unwrap_err().to_string();
        assert!(!told.contains(other.to_str().unwrap()), "{told}");
    }
}
