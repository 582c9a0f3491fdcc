//! The endpoint map: which transport address carries the tensors of which task. Immutable once
//! parsed and shared by `Arc`, so any thread may read it; bounded by `FILE_BYTES_MAX` and `ENTRIES_MAX`.
//!
//! A file holds one `task=transport address` line per task:
//!
//! ```text
//! # ps 0 and ps 1 share a host, so they share its daemon
//! ps0.train:2222=10.0.0.7:7000
//! ps1.train:2223=10.0.0.7:7000
//! worker0.train:2222=[fd00::12]:7000   # IPv6 addresses go in brackets
//! ```
//!
//! Blank lines, `#` comments, surrounding spaces, a byte order mark and CRLF line ends are fine.
//! Any other line is an error that says where it is and how to fix it.

mod address;
mod diagnostic;
mod parse;
mod shared;

pub use address::{HOST_NAME_BYTES_MAX, Host, TaskName, TransportAddress};
pub use diagnostic::{AddressProblem, Diagnostic, EndpointMapError, Problem, Severity};
pub use shared::{Changed, SharedEndpointMap};

use std::collections::BTreeMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use hashbrown::HashMap;

/// Name of the map file in the endpoint map directory.
pub const FILE_NAME: &str = ".endpoint_map";

/// Largest file that is read, in bytes: room for `ENTRIES_MAX` lines of 256 characters, so that a
/// path that names something else by mistake (a core dump, a device) does not fill the memory.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Most tasks that one map may name: far above the largest known jobs (thousands of tasks).
pub const ENTRIES_MAX: usize = 65_536;

const _: () = assert!(ENTRIES_MAX as u64 * 256 <= FILE_BYTES_MAX);

/// Maps every task to its transport address.
///
/// Costs about 200 bytes of memory per task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointMap {
    by_task: HashMap<TaskName, TransportAddress>,
    /// The same pairs by address, sorted: for `iter` and `Display`.
    by_address: BTreeMap<TransportAddress, Vec<TaskName>>,
}

impl EndpointMap {
    /// Parses the text of an endpoint map; `file_name` is only used in errors.
    ///
    /// # Errors
    ///
    /// The first line that cannot be read, with its line, column and fix; or there is no task.
    pub fn parse(text: &str, file_name: &str) -> Result<EndpointMap, EndpointMapError> {
        let outcome = parse::parse(text);
        let first_error = outcome.diagnostics.into_iter().find(|diagnostic| diagnostic.severity() == Severity::Error);
        match first_error {
            Some(diagnostic) => {
                Err(EndpointMapError::Line { file: file_name.to_owned(), diagnostic: Box::new(diagnostic) })
            }
            None => Ok(outcome.map),
        }
    }

    /// Reads and parses the endpoint map file at `path`.
    ///
    /// # Errors
    ///
    /// The file is missing, unreadable, larger than [`FILE_BYTES_MAX`], not UTF-8, has a line
    /// that cannot be read, or names no task.
    pub fn load(path: impl AsRef<Path>) -> Result<EndpointMap, EndpointMapError> {
        let path = path.as_ref();
        let text = EndpointMap::read_text(path)?;
        EndpointMap::parse(&text, &path.display().to_string())
    }

    /// Reads the file at `path` without parsing it, for [`lint`].
    ///
    /// # Errors
    ///
    /// The file is missing, unreadable, larger than [`FILE_BYTES_MAX`] or not UTF-8.
    pub fn read_text(path: impl AsRef<Path>) -> Result<String, EndpointMapError> {
        let path = path.as_ref();
        let file_name = path.display().to_string();
        let unreadable = |error: std::io::Error| match error.kind() {
            ErrorKind::NotFound => EndpointMapError::Missing { file: file_name.clone() },
            _ => EndpointMapError::Read { file: file_name.clone(), error },
        };
        // O_NONBLOCK: a named pipe must not wait for a writer before it is refused.
        let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(unreadable)?;
        if !file.metadata().map_err(unreadable)?.is_file() {
            return Err(unreadable(std::io::Error::other("it is not a regular file")));
        }
        let mut bytes = Vec::new();
        // One byte more than the limit distinguishes "too large" from "exactly full", and does not rely on the length that the
        // file system reports.
        file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(EndpointMapError::TooLarge { file: file_name });
        }
        String::from_utf8(bytes).map_err(|error| {
            let valid = error.utf8_error().valid_up_to();
            EndpointMapError::Line {
                diagnostic: Box::new(parse::not_utf8(&error.as_bytes()[..valid])),
                file: file_name,
            }
        })
    }

    /// Builds a map from pairs, for processes that know their peers without a file.
    ///
    /// # Errors
    ///
    /// A task is given with two transport addresses, or there are more than [`ENTRIES_MAX`] pairs.
    pub fn from_entries(
        entries: impl IntoIterator<Item = (TaskName, TransportAddress)>,
    ) -> Result<EndpointMap, EndpointMapError> {
        let mut map = EndpointMap::default();
        for (task, address) in entries {
            match map.by_task.get(&task) {
                Some(known) if *known == address => continue,
                Some(known) => {
                    return Err(EndpointMapError::Conflict { task, first: known.clone(), second: address });
                }
                None if map.len() == ENTRIES_MAX => return Err(EndpointMapError::TooManyEntries),
                None => map.insert(task, address),
            }
        }
        map.sort();
        Ok(map)
    }

    /// The transport address of `task`; `None` if the map does not name it.
    pub fn resolve(&self, task: &str) -> Option<&TransportAddress> {
        self.by_task.get(task)
    }

    /// The tasks at `address`, in order of name.
    pub fn tasks_at(&self, address: &TransportAddress) -> impl Iterator<Item = &TaskName> {
        self.by_address.get(address).into_iter().flatten()
    }

    /// Every transport address once, in order.
    pub fn addresses(&self) -> impl ExactSizeIterator<Item = &TransportAddress> {
        self.by_address.keys()
    }

    /// Every task with its transport address, in order of address, then of name.
    pub fn iter(&self) -> impl Iterator<Item = (&TaskName, &TransportAddress)> {
        self.by_address.iter().flat_map(|(address, tasks)| tasks.iter().map(move |task| (task, address)))
    }

    /// Number of tasks.
    pub fn len(&self) -> usize {
        self.by_task.len()
    }

    /// True if the map names no task.
    pub fn is_empty(&self) -> bool {
        self.by_task.is_empty()
    }

    /// Adds a task that is not in the map; `sort` must follow once all are added.
    fn insert(&mut self, task: TaskName, address: TransportAddress) {
        self.by_address.entry(address.clone()).or_default().push(task.clone());
        self.by_task.insert(task, address);
    }

    fn sort(&mut self) {
        for tasks in self.by_address.values_mut() {
            tasks.sort_unstable();
        }
    }
}

/// Prints the map in the format that [`EndpointMap::parse`] reads.
impl fmt::Display for EndpointMap {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|(task, address)| writeln!(out, "{task}={address}"))
    }
}

/// All diagnostics of an endpoint map's text, errors and warnings, in line order.
pub fn lint(text: &str) -> Vec<Diagnostic> {
    parse::parse(text).diagnostics
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(text: &str) -> EndpointMap {
        EndpointMap::parse(text, "map").unwrap()
    }

    #[test]
    fn resolves_tasks_and_addresses() {
        let map = map("b:1=h:7\na:1=h:7\nc:1=[::1]:7\n");
        assert_eq!(map.len(), 3);
        assert!(!map.is_empty());
        let address: TransportAddress = "h:7".parse().unwrap();
        assert_eq!(map.resolve("a:1"), Some(&address));
        assert_eq!(map.resolve("d:1"), None);
        let tasks: Vec<_> = map.tasks_at(&address).map(TaskName::as_str).collect();
        assert_eq!(tasks, ["a:1", "b:1"]);
        assert_eq!(map.addresses().len(), 2);
        assert_eq!(map.tasks_at(&"h:8".parse().unwrap()).count(), 0);
    }

    #[test]
    fn from_entries_refuses_a_conflict() {
        let pair = |task: &str, address: &str| (task.parse().unwrap(), address.parse().unwrap());
        let built = EndpointMap::from_entries([pair("a:1", "h:7"), pair("a:1", "h:7")]).unwrap();
        assert_eq!(built, map("a:1=h:7"));
        let error = EndpointMap::from_entries([pair("a:1", "h:7"), pair("a:1", "h:8")]);
        assert_eq!(
            error.unwrap_err().to_string(),
            "task a:1 is given at h:7 and at h:8; give it one transport address"
        );
    }

    #[test]
    fn from_entries_refuses_too_many() {
        let address: TransportAddress = "h:7".parse().unwrap();
        let entries = (0..=ENTRIES_MAX).map(|index| {
            let task: TaskName = format!("t{index}:1").parse().unwrap();
            (task, address.clone())
        });
        let error = EndpointMap::from_entries(entries).unwrap_err();
        assert!(matches!(error, EndpointMapError::TooManyEntries));
    }

    #[test]
    fn load_names_the_file_in_every_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(FILE_NAME);
        let shown = path.display().to_string();
        let missing = EndpointMap::load(&path).unwrap_err().to_string();
        assert!(missing.starts_with(&format!("{shown}: no such file; ")), "{missing}");

        std::fs::write(&path, "a:1=h:7\nb:1=h:0\n").unwrap();
        let port = EndpointMap::load(&path).unwrap_err().to_string();
        assert_eq!(port, format!("{shown}:2:7: the port is 0; write a port from 1 to 65535"));

        std::fs::write(&path, b"a:1=h:7\nb:\xff=h:7\n").unwrap();
        let text = EndpointMap::load(&path).unwrap_err().to_string();
        assert!(text.starts_with(&format!("{shown}:2:3: ")), "{text}");

        let pipe = directory.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let pipe = EndpointMap::load(&pipe).unwrap_err().to_string();
        assert!(pipe.contains("it is not a regular file"), "{pipe}");
        let unreadable = EndpointMap::load(directory.path()).unwrap_err();
        assert!(matches!(unreadable, EndpointMapError::Read { .. }));

        let file = std::fs::File::create(&path).unwrap();
        file.set_len(FILE_BYTES_MAX + 1).unwrap();
        let large = EndpointMap::load(&path).unwrap_err();
        assert!(matches!(large, EndpointMapError::TooLarge { .. }));

        std::fs::write(&path, "a:1=h:7\n").unwrap();
        assert_eq!(EndpointMap::load(&path).unwrap(), map("a:1=h:7"));
    }
}
