//! Creating a task: attached to the host's daemon, or with an embedded engine.

use std::{path::PathBuf, time::Duration};

use pyo3::prelude::*;
use sealane::{
    Attach, Authentication, BadJobName, EndpointMap, Engine, EngineSettings, Error, JobName, Polling, StartError,
    TlsFiles, Waiter, environment_job,
};

use crate::{
    errors::OrRaise,
    task::Task,
    wait::{blocking, timeout},
};

fn job_name(text: &str) -> Result<JobName, Error> {
    text.parse().map_err(|error: BadJobName| Error::invalid(error.to_string()))
}

/// Seconds, or the library's default where none are given.
fn seconds(value: Option<f64>, default: Duration) -> Result<Duration, Error> {
    match value {
        Some(_) => timeout(value).map(|duration| duration.unwrap_or(Duration::MAX)),
        None => Ok(default),
    }
}

/// Attaches this process to the host's daemon, as the task of that name in the endpoint map.
///
/// ``socket`` is the daemon's; unless given, the first ``sealane.sock`` at which one listens, of those in ``$XDG_RUNTIME_DIR``,
/// ``/tmp/sealane-UID`` (this user's alone), ``/run/user/UID`` and ``/run/sealane``.
/// ``arena_bytes`` is the memory that is shared with it, in which tensors are sent and of which ``Task.empty`` gives; 512 MiB unless
/// given, or less where the daemon grants less. It is allocated on first use, but for the first 64 MiB. ``timeout`` says how many seconds attaching may take, 5 unless given. A thread that waits looks for ``idle_spin`` seconds before it
/// sleeps, ``math.inf`` for no sleep. Unless given it looks for 50 microseconds where that pays, and sleeps at once where it does not:
/// where answers take longer, or other threads want the CPU.
///
/// ``job`` is the name of the job that this process belongs to; a daemon of another job refuses the process. Unless given it is
/// ``$SEALANE_JOB``, if set and not empty, and otherwise the daemon's job. With ``replace=True``, a process of the same user that is
/// attached as the task is detached: its calls raise ``sealane.Unavailable``, and it does not attach again by itself. Without it, attaching
/// raises ``sealane.Unavailable`` while another process is attached as the task.
#[pyfunction]
#[pyo3(signature = (task, *, socket=None, arena_bytes=None, timeout=None, idle_spin=None, job=None, replace=false))]
#[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python function")]
pub(crate) fn attach(
    py: Python<'_>,
    task: &str,
    socket: Option<PathBuf>,
    arena_bytes: Option<u64>,
    timeout: Option<f64>,
    idle_spin: Option<f64>,
    job: Option<&str>,
    replace: bool,
) -> PyResult<Task> {
    let mut attach = Attach::new(task).replace(replace);
    if let Some(job) = job {
        attach = attach.job(job_name(job).or_raise(py)?);
    }
    if idle_spin.is_some() {
        attach = attach.polling(Polling::idle(seconds(idle_spin, Duration::MAX).or_raise(py)?));
    }
    if timeout.is_some() {
        attach = attach.timeout(seconds(timeout, Duration::MAX).or_raise(py)?);
    }
    if let Some(socket) = socket {
        attach = attach.socket(socket);
    }
    if let Some(bytes) = arena_bytes {
        attach = attach.arena_bytes(bytes);
    }
    let task = blocking(py, || attach.attach())?;
    let waiter = task.waiter();
    Ok(Task::new(task, None, waiter))
}

/// Starts the engine in this process, for one task of the endpoint map; it listens on that task's transport address.
///
/// ``shards`` are its threads, one unless given. ``idle_spin`` says how many seconds a thread that has nothing to do looks
/// before it sleeps: 200 microseconds unless given, ``math.inf`` for no sleep. ``request_timeout`` is the deadline in seconds
/// of calls that have none of their own, 600 unless given. Peers show that they have the secret in ``secret_file``, or certificates: ``tls`` names
/// the files of this side's certificate, of its key, and of the authorities that are believed. With neither the engine listens
/// where this host alone reaches it, unless ``insecure`` is true. ``job`` is the name of the job, which its peers must share: unless
/// given ``$SEALANE_JOB``, if set and not empty.
#[pyfunction]
#[pyo3(signature = (
    endpoint_map, task, *, shards=None, idle_spin=None, request_timeout=None, secret_file=None, tls=None, insecure=false,
    job=None
))]
#[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python function")]
pub(crate) fn embedded(
    py: Python<'_>,
    endpoint_map: PathBuf,
    task: &str,
    shards: Option<usize>,
    idle_spin: Option<f64>,
    request_timeout: Option<f64>,
    secret_file: Option<PathBuf>,
    tls: Option<(PathBuf, PathBuf, PathBuf)>,
    insecure: bool,
    job: Option<&str>,
) -> PyResult<Task> {
    let idle_spin = seconds(idle_spin, Polling::IDLE_SPIN).or_raise(py)?;
    let request_timeout = seconds(request_timeout, EngineSettings::REQUEST_TIMEOUT).or_raise(py)?;
    let start = || {
        let map = EndpointMap::load(endpoint_map).map_err(|error| Error::invalid(error.to_string()))?;
        let mut settings = EngineSettings::new(map, &[task])?;
        settings.runtime.shards = shards.unwrap_or(settings.runtime.shards);
        settings.runtime.polling = Polling::idle(idle_spin);
        settings.request_timeout = request_timeout;
        settings.authentication = authentication(secret_file, tls)?;
        settings.insecure = insecure;
        settings.job = match job {
            Some(job) => Some(job_name(job)?),
            None => environment_job()?,
        };
        let engine = Engine::start(settings).map_err(not_started)?;
        let task = engine.task(task)?;
        Ok((sealane::Task::from(task), engine))
    };
    let (task, engine) = blocking(py, start)?;
    Ok(Task::new(task, Some(engine), Waiter::embedded(Polling::idle(idle_spin))))
}

pub(crate) fn authentication(
    secret_file: Option<PathBuf>,
    tls: Option<(PathBuf, PathBuf, PathBuf)>,
) -> Result<Authentication, Error> {
    let authentication = match (secret_file, tls) {
        (None, None) => Ok(Authentication::default()),
        (Some(file), None) => Authentication::secret(&file),
        (None, Some((certificate, key, authorities))) => {
            Authentication::tls(&TlsFiles { certificate, key, authorities })
        }
        (Some(_), Some(_)) => return Err(Error::invalid("give secret_file or tls, not both")),
    };
    authentication.map_err(|error| Error::invalid(error.to_string()))
}

fn not_started(error: StartError) -> Error {
    match error {
        StartError::Settings(reason) => Error::invalid(reason),
        insecure @ StartError::Insecure { .. } => Error::invalid(insecure.to_string()),
        other => Error::unavailable("the engine", other.to_string()),
    }
}
