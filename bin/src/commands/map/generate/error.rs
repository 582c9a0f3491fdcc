//! What can be wrong with what a map is generated from: each says where, what, and what to write.

use std::path::PathBuf;

use sealane_transport::endpoint_map::{AddressProblem, ENTRIES_MAX, TransportAddress};
use thiserror::Error;

use super::SOURCE_BYTES_MAX;

/// Why no map can be made.
#[derive(Debug, Error)]
pub(super) enum GenerateError {
    /// What the source reads is not there.
    #[error("{variable} is not set; run this where {setter} sets it, or give {flag}")]
    NotSet { variable: &'static str, setter: &'static str, flag: &'static str },
    /// A flag that the source needs is not there.
    #[error("--from {source_name} needs {flag}; add it")]
    NoFlag { source_name: &'static str, flag: &'static str },
    /// A flag that the source does not read.
    #[error("--from {source_name} does not read {flag}; leave it out")]
    FlagUnused { source_name: &'static str, flag: &'static str },
    /// A file cannot be read.
    #[error("{}: cannot be read ({error}); name a readable text file", .path.display())]
    File { path: PathBuf, error: std::io::Error },
    /// A file is too large to be what it should be.
    #[error("{}: larger than {SOURCE_BYTES_MAX} bytes; name another file", .path.display())]
    FileTooLarge { path: PathBuf },
    /// Not JSON, or not the JSON of a cluster.
    #[error("{origin}: {problem}; write TensorFlow's JSON there, as in {{\"cluster\":{{\"ps\":[\"host:2222\"]}}}}")]
    TfConfig { origin: String, problem: String },
    /// Not an address of a task.
    #[error("{place}: {problem}")]
    Address { place: String, problem: AddressProblem },
    /// A list of hosts as Slurm writes it that cannot be read.
    #[error("{origin}={text:?}: {problem}; write hosts as Slurm does, as in node[01-03,07],login1")]
    HostList { origin: &'static str, text: String, problem: String },
    /// Numbers of tasks as Slurm writes them that cannot be read.
    #[error("{origin}={text:?} cannot be read; write numbers of tasks as Slurm does, as in 2(x3),1")]
    TaskCounts { origin: &'static str, text: String },
    /// Numbers of tasks that do not fit the hosts.
    #[error("{origin}={text:?} gives tasks for {counted} hosts, but there are {hosts}; give one number for each")]
    CountsDiffer { origin: &'static str, text: String, counted: usize, hosts: usize },
    /// A line of a hostfile that cannot be read.
    #[error("{file}:{line}: {problem}; write a host and its tasks, as in `node1 slots=2`, `node1:2` or `node1`")]
    HostLine { file: String, line: usize, problem: String },
    /// A number of parameter servers that cannot be read.
    #[error("--ps {text:?} is not a number of tasks; write how many of the tasks are ps")]
    PsCount { text: String },
    /// More parameter servers than tasks.
    #[error("--ps {ps} is more than the number of tasks ({tasks}); write at most that many")]
    TooManyPs { ps: usize, tasks: usize },
    /// A StatefulSet that cannot be read.
    #[error("{flag} {text:?} cannot be read; write a StatefulSet's name and replicas, as in ps:2")]
    Replicas { flag: &'static str, text: String },
    /// Not a name of an object of Kubernetes.
    #[error("{origin} {text:?} is not a name in Kubernetes; write at most 63 of a-z, 0-9 and `-`, not `-` at an end")]
    ObjectName { origin: &'static str, text: String },
    /// No namespace.
    #[error("there is no namespace; give --namespace, or run this in a pod")]
    NoNamespace,
    /// No tasks.
    #[error("{origin} names no task; write at least one")]
    NoTasks { origin: String },
    /// More tasks than a map may have.
    #[error("there are more than {ENTRIES_MAX} tasks; give at most that many")]
    TooManyTasks,
    /// Two tasks at one address.
    #[error("{first} and {second} are both at {address}; give every task its own address")]
    Twice { first: String, second: String, address: TransportAddress },
    /// More tasks on a host than ports.
    #[error("{host} has too few ports for {tasks} tasks from port {port} upwards; start lower")]
    PortsEnd { host: String, tasks: usize, port: u16 },
    /// A task's own port would be the transport's.
    #[error("{address} is both the transport address and the address of {task}; choose another --port")]
    PortTaken { address: TransportAddress, task: String },
}
