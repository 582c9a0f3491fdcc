//! Becoming a task: attached to the host's daemon, or with an engine in this process.

use std::{path::PathBuf, time::Duration};

use pyo3::prelude::*;
use sealane::{Attach, Authentication, EndpointMap, Engine, EngineSettings, Error, Polling, StartError, TlsFiles};
use sealane_runtime::Polling as ShardPolling;

use crate::{errors::OrRaise, task::Task, wait::timeout};

/// Jobs that may wait for a shard of an engine in this process: a batch hands over each of its calls as a job at once.
const MAILBOX_SLOTS: usize = 1 << 16;

/// Seconds that must be given as a number.
fn seconds(value: f64) -> Result<Duration, Error> {
    timeout(Some(value)).map(|duration| duration.unwrap_or(Duration::MAX))
}

/// Attaches this process to the host's daemon, as the task of that name in the endpoint map.
///
/// ``socket`` is the daemon's, unless given ``$XDG_RUNTIME_DIR/sealane.sock`` or ``/run/sealane/sealane.sock``.
/// ``arena_bytes`` is the memory that is shared with it, of which ``Task.empty`` gives, 64 MiB unless given. ``timeout``
/// says how many seconds attaching may take. A thread that waits looks for ``idle_spin`` seconds before it sleeps; with
/// ``math.inf`` it never sleeps.
#[pyfunction]
#[pyo3(signature = (task, *, socket=None, arena_bytes=None, timeout=10.0, idle_spin=50e-6))]
pub(crate) fn attach(
    py: Python<'_>,
    task: &str,
    socket: Option<PathBuf>,
    arena_bytes: Option<u64>,
    timeout: f64,
    idle_spin: f64,
) -> PyResult<Task> {
    let (timeout, idle_spin) = (seconds(timeout).or_raise(py)?, seconds(idle_spin).or_raise(py)?);
    let polling = if idle_spin == Duration::MAX { Polling::Spin } else { Polling::SpinThenSleep { idle_spin } };
    let mut attach = Attach::new(task).timeout(timeout).polling(polling);
    if let Some(socket) = socket {
        attach = attach.socket(socket);
    }
    if let Some(bytes) = arena_bytes {
        attach = attach.arena_bytes(bytes);
    }
    let task = py.detach(|| attach.attach()).or_raise(py)?;
    Ok(Task::new(task, None, idle_spin))
}

/// Starts the engine in this process, for one task of the endpoint map; it listens on that task's transport address.
///
/// ``shards`` are its threads. ``idle_spin`` says how many seconds a thread that has nothing to do looks before it
/// sleeps: 200 microseconds unless given, ``math.inf`` for no sleep. ``request_timeout`` is the deadline in seconds of
/// calls that have none of their own. Peers show that they have the secret in ``secret_file``, or certificates: ``tls`` names
/// the files of this side's certificate, of its key, and of the authorities that are believed. With neither the engine listens
/// where this host alone reaches it, unless ``insecure`` is true.
#[pyfunction]
#[pyo3(signature = (
    endpoint_map, task, *, shards=1, idle_spin=200e-6, request_timeout=600.0, secret_file=None, tls=None, insecure=false
))]
#[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python function")]
pub(crate) fn embedded(
    py: Python<'_>,
    endpoint_map: PathBuf,
    task: &str,
    shards: usize,
    idle_spin: f64,
    request_timeout: f64,
    secret_file: Option<PathBuf>,
    tls: Option<(PathBuf, PathBuf, PathBuf)>,
    insecure: bool,
) -> PyResult<Task> {
    let (idle_spin, request_timeout) = (seconds(idle_spin).or_raise(py)?, seconds(request_timeout).or_raise(py)?);
    let start = || {
        let map = EndpointMap::load(endpoint_map).map_err(|error| Error::invalid(error.to_string()))?;
        let mut settings = EngineSettings::new(map, &[task])?;
        settings.runtime.shards = shards;
        settings.runtime.mailbox_slots = MAILBOX_SLOTS;
        settings.runtime.polling = match idle_spin {
            Duration::ZERO => ShardPolling::Park,
            Duration::MAX => ShardPolling::Spin,
            idle_spin => ShardPolling::SpinThenPark { idle_spin },
        };
        settings.request_timeout = request_timeout;
        settings.authentication = authentication(secret_file, tls)?;
        settings.insecure = insecure;
        let engine = Engine::start(settings).map_err(not_started)?;
        let task = engine.task(task)?;
        Ok((sealane::Task::from(task), engine))
    };
    let (task, engine) = py.detach(start).or_raise(py)?;
    Ok(Task::new(task, Some(engine), idle_spin))
}

fn authentication(
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
