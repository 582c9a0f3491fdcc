//! Which tasks of the endpoint map this daemon serves, at its start and after a change of the map. Pure, except for the look-ups of
//! [`LocalHost`].

use std::collections::BTreeMap;
use std::path::Path;

use sealane_transport::Error;
use sealane_transport::endpoint_map::{EndpointMap, TaskName, TransportAddress};

use crate::Failure;
use crate::commands::map::unknown_task;
use crate::local_host::LocalHost;
use crate::wording::first_of;

/// Most names of tasks or addresses shown in one message.
const SHOWN_MAX: usize = 8;

/// The tasks to serve: the named ones, or all whose transport address is this host's.
///
/// # Errors
/// A named one is not in the map, or no address is this host's.
pub(super) fn served(map: &EndpointMap, file: &Path, named: &[String]) -> Result<Vec<TaskName>, Failure> {
    if named.is_empty() {
        let host = LocalHost::look();
        return at_host(map, file, &host);
    }
    let find = |task: &String| {
        let found = map.iter().find(|(known, _)| known.as_str() == task);
        found.map(|(task, _)| task.clone()).ok_or_else(|| Failure::input(unknown_task(map, file, task)))
    };
    named.iter().map(find).collect()
}

fn at_host(map: &EndpointMap, file: &Path, host: &LocalHost) -> Result<Vec<TaskName>, Failure> {
    let addresses = host.of_these(map.addresses());
    if addresses.is_empty() {
        return Err(Failure::input(format!(
            "no task of {} has a transport address of this host: the map has {}, this host is {host}; \
             name the tasks to serve with --task",
            file.display(),
            list(map.addresses(), "none"),
        )));
    }
    Ok(addresses.iter().flat_map(|address| map.tasks_at(address)).cloned().collect())
}

/// Checks whether a process may attach as `task`, before memory is allocated for it.
///
/// # Errors
/// NotFound if it is not served here, Unavailable if it is `taken` by another process.
pub(super) fn must_be_free(task: &str, served: &[TaskName], taken: Option<i32>) -> Result<(), Error> {
    if !served.iter().any(|known| known.as_str() == task) {
        let reason = format!(
            "this daemon serves {}; is it the right daemon, and is its endpoint map current?",
            list(served, "none")
        );
        return Err(Error::NotFound { task: task.into(), reason: reason.into() });
    }
    match taken {
        None => Ok(()),
        Some(pid) => Err(Error::unavailable(
            task,
            format!(
                "process {pid} is already attached as this task, and only one process may be; if it is left over, end it, \
                 or attach with replace=True"
            ),
        )),
    }
}

/// What a changed map means for a running daemon.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Growth {
    /// Tasks to serve from now on.
    pub(super) more: Vec<TaskName>,
    /// Served tasks that the new map lacks or places elsewhere.
    pub(super) gone: Vec<TaskName>,
    /// New transport addresses that the daemon does not listen on; some may be this host's.
    pub(super) new_addresses: Vec<TransportAddress>,
}

impl Growth {
    /// Compares what is served at `addresses` with a new map, in which the tasks `fresh` are new or have moved.
    pub(super) fn of(
        map: &EndpointMap,
        fresh: &[TaskName],
        tasks: &[TaskName],
        addresses: &[TransportAddress],
    ) -> Growth {
        let mut growth = Growth::default();
        let at_ours = addresses.iter().flat_map(|address| map.tasks_at(address));
        growth.more.extend(at_ours.filter(|task| !tasks.contains(task)).cloned());
        let is_ours = |task: &TaskName| map.resolve(task.as_str()).is_some_and(|address| addresses.contains(address));
        growth.gone.extend(tasks.iter().filter(|task| !is_ours(task)).cloned());
        for address in fresh.iter().filter_map(|task| map.resolve(task.as_str())) {
            if !addresses.contains(address) && !growth.new_addresses.contains(address) {
                growth.new_addresses.push(address.clone());
            }
        }
        growth
    }
}

/// The tasks by transport address: `a:1, b:1 at h:7; c:1 at h:8`.
pub(super) fn by_address(map: &EndpointMap, tasks: &[TaskName]) -> String {
    let mut groups: BTreeMap<&TransportAddress, Vec<&TaskName>> = BTreeMap::new();
    for task in tasks {
        if let Some(address) = map.resolve(task.as_str()) {
            groups.entry(address).or_default().push(task);
        }
    }
    let group =
        |(address, tasks): (&TransportAddress, &Vec<&TaskName>)| format!("{} at {address}", list(tasks, "no task"));
    groups.iter().map(|(address, tasks)| group((address, tasks))).collect::<Vec<_>>().join("; ")
}

/// The first few, or `none` if there are none.
pub(super) fn list<T: ToString>(all: impl IntoIterator<Item = T>, none: &str) -> String {
    match &all.into_iter().collect::<Vec<T>>()[..] {
        [] => none.to_owned(),
        all => first_of(all, SHOWN_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> EndpointMap {
        EndpointMap::parse(text, "map").unwrap()
    }

    fn names(tasks: &[TaskName]) -> Vec<&str> {
        tasks.iter().map(TaskName::as_str).collect()
    }

    #[test]
    fn without_names_this_hosts_tasks_are_served() {
        let map = map("a:1=192.0.2.1:7\nb:1=127.0.0.1:7\nc:1=localhost:8\n");
        assert_eq!(names(&served(&map, Path::new("map"), &[]).unwrap()), ["b:1", "c:1"]);
        assert_eq!(names(&served(&map, Path::new("map"), &["a:1".into()]).unwrap()), ["a:1"]);
    }

    #[test]
    fn what_cannot_be_served_is_said_with_what_to_do() {
        let unknown = served(&map("a:1=h:7"), Path::new("map"), &["b:1".into()]).unwrap_err().to_string();
        assert!(unknown.starts_with("task b:1 is not in map; "), "{unknown}");
        let foreign = served(&map("a:1=192.0.2.1:7"), Path::new("map"), &[]).unwrap_err().to_string();
        let begin =
            "no task of map has a transport address of this host: the map has 192.0.2.1:7, this host is localhost";
        assert!(foreign.starts_with(begin), "{foreign}");
        assert!(foreign.ends_with("; name the tasks to serve with --task"), "{foreign}");
    }

    #[test]
    fn a_task_must_be_served_and_free() {
        let served = ["a:1".parse().unwrap()];
        must_be_free("a:1", &served, None).unwrap();
        let unknown = must_be_free("b:1", &served, None).unwrap_err().to_string();
        assert!(unknown.starts_with("task b:1 is not known: this daemon serves a:1; "), "{unknown}");
        let taken = must_be_free("a:1", &served, Some(7)).unwrap_err().to_string();
        assert_eq!(
            taken,
            "a:1 is unavailable: process 7 is already attached as this task, and only one process may be; \
                    if it is left over, end it, or attach with replace=True"
        );
    }

    #[test]
    fn a_new_map_adds_tasks_where_the_daemon_listens() {
        let served: Vec<TaskName> = ["a:1", "b:1", "c:1"].map(|task| task.parse().unwrap()).into();
        let fresh: Vec<TaskName> = ["b:1", "d:1", "e:1", "f:1"].map(|task| task.parse().unwrap()).into();
        let addresses = ["h:7".parse().unwrap()];
        let growth = Growth::of(&map("a:1=h:7\nb:1=h:8\nd:1=h:7\ne:1=h:9\nf:1=h:8\n"), &fresh, &served, &addresses);
        assert_eq!(names(&growth.more), ["d:1"]);
        assert_eq!(names(&growth.gone), ["b:1", "c:1"]);
        assert_eq!(list(&growth.new_addresses, ""), "h:8, h:9");
        let same = map("a:1=h:7\nb:1=h:7\nc:1=h:7\n");
        assert_eq!(Growth::of(&same, &[], &served, &addresses), Growth::default());
    }

    #[test]
    fn lists_are_grouped_and_short() {
        let map = map("b:1=h:8\na:1=h:7\nc:1=h:7\n");
        let tasks: Vec<TaskName> = map.iter().map(|(task, _)| task.clone()).collect();
        assert_eq!(by_address(&map, &tasks), "a:1, c:1 at h:7; b:1 at h:8");
        assert_eq!(list(0..10, ""), "0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
    }
}
