//! The tasks of a job, and the endpoint map that names them. Pure; bounded by `ENTRIES_MAX` tasks.

use std::collections::HashMap;
use std::fmt::Write;

use sealane_transport::endpoint_map::{AddressProblem, ENTRIES_MAX, Host, TaskName, TransportAddress};

use crate::{Failure, counted};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// `ps`, `worker`, or another name of a job in the framework.
    role: String,
    index: u64,
    task: TaskName,
    /// The task's name, split into host and port.
    address: TransportAddress,
}

/// Which port the transport uses on a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ports {
    /// The port of the host's daemon, or of its first engine.
    pub(super) first: u16,
    /// False: one daemon serves all tasks of a host, so they share its port. True: each task has its own engine and port.
    pub(super) is_each: bool,
}

/// The tasks of a job, in the order in which they are written to the map.
#[derive(Debug, Default)]
pub(super) struct Job {
    members: Vec<Member>,
}

impl Job {
    /// Adds a task; `place` says where its address was found.
    pub(super) fn add(
        &mut self,
        role: &str,
        index: u64,
        task: &str,
        place: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if self.members.len() == ENTRIES_MAX {
            return Err(too_many_tasks());
        }
        let wrong = |problem: AddressProblem| Failure::input(format!("{}: {problem}", place()));
        let address: TransportAddress = task.parse().map_err(wrong)?;
        let task = task.parse().expect("every address is a task's name");
        self.members.push(Member { role: role.to_owned(), index, task, address });
        Ok(())
    }

    /// Adds the tasks of many hosts, host by host, as Slurm and MPI number them by default: the first `ps` are parameter servers,
    /// all others workers. Their ports count up from `port` on each host.
    pub(super) fn place(hosts: &[(Host, usize)], ps: usize, port: u16) -> Result<Job, Failure> {
        let total = hosts.iter().fold(0, |sum: usize, (_, tasks)| sum.saturating_add(*tasks));
        if total > ENTRIES_MAX {
            return Err(too_many_tasks());
        }
        if ps > total {
            return Err(Failure::input(format!(
                "--ps {ps} is more than the number of tasks ({total}); write at most that many"
            )));
        }
        let mut job = Job::default();
        for (host, tasks) in hosts {
            for local in 0..*tasks {
                let port = port_after(host, port, local, *tasks)?;
                let rank = job.members.len();
                let (role, index) = if rank < ps { ("ps", rank) } else { ("worker", rank - ps) };
                job.add(role, index as u64, &format!("{host}:{port}"), || host.to_string())?;
            }
        }
        Ok(job)
    }

    /// The text of the map; `made_by` says how it was made, in lines that already are comments.
    pub(super) fn map(&self, made_by: &str, ports: Ports) -> Result<String, Failure> {
        let mut at: HashMap<&TransportAddress, &Member> = HashMap::new();
        for member in &self.members {
            if let Some(first) = at.insert(&member.address, member) {
                let (first, second, address) = (first.shown(), member.shown(), &member.address);
                return Err(Failure::input(format!(
                    "{first} and {second} are both at {address}; give every task its own address"
                )));
            }
        }
        let mut of_host: HashMap<&Host, usize> = HashMap::new();
        let mut lines = String::new();
        for member in &self.members {
            let host = &member.address.host;
            let before = of_host.entry(host).or_default();
            let port = if ports.is_each { port_after(host, ports.first, *before, *before + 1)? } else { ports.first };
            let address = TransportAddress { host: host.clone(), port };
            *before += 1;
            if let Some(taken) = at.get(&address) {
                let task = taken.shown();
                return Err(Failure::input(format!(
                    "{address} is both the transport address and the address of {task}; choose another --port"
                )));
            }
            writeln!(lines, "{}={address}  # {}", member.task, member.shown()).expect("a String takes all");
        }
        let (tasks, hosts) = (self.members.len(), of_host.len());
        Ok(format!("{made_by}# {}, {}\n{lines}", counted(tasks, "task"), counted(hosts, "host")))
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }
}

/// The port `before` places after the first, on a host with that many tasks.
fn port_after(host: &Host, first: u16, before: usize, tasks: usize) -> Result<u16, Failure> {
    u16::try_from(before).ok().and_then(|before| first.checked_add(before)).ok_or_else(|| {
        Failure::input(format!("{host} has too few ports for {tasks} tasks from port {first} upwards; start lower"))
    })
}

/// The error that there are more tasks than a map may have.
pub(super) fn too_many_tasks() -> Failure {
    Failure::input(format!("there are more than {ENTRIES_MAX} tasks; give at most that many"))
}

impl Member {
    /// `ps 0`: the framework's name for it.
    fn shown(&self) -> String {
        format!("{} {}", self.role, self.index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAEMON: Ports = Ports { first: 7000, is_each: false };

    fn hosts(hosts: &[(&str, usize)]) -> Vec<(Host, usize)> {
        hosts.iter().map(|(host, tasks)| (Host::parse(host).unwrap(), *tasks)).collect()
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let place = |list: &[(&str, usize)], ps, port| Job::place(&hosts(list), ps, port).unwrap_err().to_string();
        assert_eq!(place(&[("a", 2)], 3, 2222), "--ps 3 is more than the number of tasks (2); write at most that many");
        assert!(place(&[("a", 2)], 0, u16::MAX).starts_with("a has too few ports for 2 tasks"));
        assert!(place(&[("a", usize::MAX), ("b", 1)], 0, 1).starts_with("there are more than 65536 tasks"));
        assert!(place(&[("a", ENTRIES_MAX)], 0, 1).starts_with("a has too few ports"));
    }

    #[test]
    fn no_two_tasks_and_no_transport_share_an_address() {
        let mut job = Job::default();
        for (role, task) in [("chief", "A:2222"), ("worker", "a:2222")] {
            job.add(role, 0, task, String::new).unwrap();
        }
        let twice = job.map("", DAEMON).unwrap_err().to_string();
        assert_eq!(twice, "chief 0 and worker 0 are both at a:2222; give every task its own address");
        let job = Job::place(&hosts(&[("a", 2)]), 0, 6999).unwrap();
        let taken = job.map("", DAEMON).unwrap_err().to_string();
        assert_eq!(taken, "a:7000 is both the transport address and the address of worker 1; choose another --port");
    }

    #[test]
    fn a_wrong_address_is_said_with_its_place() {
        let error = Job::default().add("ps", 0, "a", || "here".to_owned()).unwrap_err();
        assert_eq!(error.to_string(), "here: there is no port; write it after the host, as in host:2222");
    }
}
