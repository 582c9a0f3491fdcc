//! What a daemon does before its shards start. `sealane check` does the same and gives everything back, so that any reason for a
//! daemon not to start is found by the code that would refuse.

use std::collections::BTreeSet;
use std::sync::Arc;

use sealane_fusion::{EndpointMap, Engine, EngineSettings, LoopbackAddress, StartError, loopback_addresses};
use sealane_transport::endpoint_map::{SharedEndpointMap, TaskName};
use sealane_transport::shm::SharedMemory;
use tracing::subscriber::{NoSubscriber, with_default};

use super::metrics::MetricsListener;
use super::{socket, tasks};
use crate::engine_settings::{authentication, engine_settings_beside};
use crate::settings::Settings;
use crate::{Failure, locked_memory};

///
/// # Errors
/// It is missing or wrong.
pub(super) fn map(settings: &Settings) -> Result<SharedEndpointMap, Failure> {
    Ok(SharedEndpointMap::load(&settings.transport.endpoint_map.value)?)
}

/// The tasks that a daemon serves: the named ones, or all that belong to this host.
///
/// # Errors
/// There are none, or one that is named is not in the map.
pub(super) fn tasks(map: &EndpointMap, settings: &Settings, named: &[String]) -> Result<Vec<TaskName>, Failure> {
    tasks::served(map, &settings.transport.endpoint_map.value, named)
}

/// Returns the transport addresses of the tasks that do not lead other hosts here.
fn loopback(settings: &Settings, map: &EndpointMap, tasks: &[TaskName]) -> Vec<LoopbackAddress> {
    let addresses: BTreeSet<_> = tasks.iter().filter_map(|task| map.resolve(task.as_str()).cloned()).collect();
    loopback_addresses(map, &addresses.into_iter().collect::<Vec<_>>(), settings.transport.listen.value)
}

/// The engine's settings; `shared` are the CPUs of a daemon that it replaces.
///
/// # Errors
/// A CPU, a file or memory cannot be had.
pub(super) fn engine(
    settings: &Settings,
    map: &EndpointMap,
    tasks: &[TaskName],
    shared: &[usize],
) -> Result<EngineSettings, Failure> {
    let names: Vec<&str> = tasks.iter().map(TaskName::as_str).collect();
    let engine = engine_settings_beside(settings, map.clone(), &names, shared)?;
    locked_memory::check(&engine)?;
    shared_memory()?;
    Ok(engine)
}

/// Makes a page of memory as it is shared with clients, and frees it.
///
/// # Errors
/// The system forbids it: no client could attach.
fn shared_memory() -> Result<(), Failure> {
    SharedMemory::create("sealane-check", 1).map(drop).map_err(|error| {
        Failure::work(format!(
            "no memory can be shared with clients ({error}); allow memfd_create, ftruncate, fcntl and mmap, as in a seccomp profile"
        ))
    })
}

#[derive(Debug)]
pub(crate) struct Rehearsal {
    /// `None` if it cannot be read.
    pub(crate) map: Option<Arc<EndpointMap>>,
    /// Its tasks that are served.
    pub(crate) tasks: Vec<TaskName>,
    /// What is wrong with the map, or with the tasks expected in it.
    pub(crate) map_failure: Option<Failure>,
    pub(crate) security_failure: Option<Failure>,
    /// Transport addresses of this host that do not lead other hosts here.
    pub(crate) loopback: Vec<LoopbackAddress>,
    /// What else keeps a daemon from starting.
    pub(crate) failures: Vec<Failure>,
    /// What it would serve, or who already does.
    pub(crate) outcome: String,
}

/// Does what a daemon with these settings does before its shards start, for the named tasks or for all. Required ports are taken
/// for a moment, unless a daemon already serves: then they are that one's.
pub(crate) fn rehearse(settings: &Settings, named: &[String]) -> Rehearsal {
    // A running daemon would log this; a rehearsal does not.
    with_default(NoSubscriber::new(), || {
        let mut rehearsal = Rehearsal {
            map: None,
            tasks: Vec::new(),
            map_failure: None,
            security_failure: authentication(&settings.security).err(),
            loopback: Vec::new(),
            failures: Vec::new(),
            outcome: String::new(),
        };
        let path = &settings.daemon.socket.value;
        let holder = socket::look(path).unwrap_or_else(|failure| {
            rehearsal.failures.push(failure);
            None
        });
        let served = map(settings).and_then(|map| {
            let map = rehearsal.map.insert(map.snapshot()).clone();
            tasks(&map, settings, named).map(|tasks| (map, tasks))
        });
        match (served, holder) {
            (Err(failure), _) => rehearsal.map_failure = Some(failure),
            (Ok((map, tasks)), holder) => {
                rehearsal.outcome = match holder {
                    Some(holder) => format!("{holder} serves at {}", path.display()),
                    None => {
                        rehearsal.take(settings, &map, &tasks);
                        let served = tasks::by_address(&map, &tasks);
                        format!("would serve {served}; clients attach at {}", path.display())
                    }
                };
                rehearsal.loopback = loopback(settings, &map, &tasks);
                rehearsal.tasks = tasks;
            }
        }
        rehearsal
    })
}

impl Rehearsal {
    /// Takes what no other daemon has, and gives it back.
    fn take(&mut self, settings: &Settings, map: &EndpointMap, tasks: &[TaskName]) {
        self.failures.extend(MetricsListener::bind(&settings.daemon.metrics).err());
        if self.security_failure.is_some() {
            return;
        }
        match engine(settings, map, tasks, &[]).map(|mut engine| Engine::bind(&mut engine).err()) {
            Ok(Some(error @ StartError::Insecure { .. })) => self.security_failure = Some(Failure::work(error)),
            Ok(error) => self.failures.extend(error.map(Failure::work)),
            Err(failure) => self.failures.push(failure),
        }
    }
}
