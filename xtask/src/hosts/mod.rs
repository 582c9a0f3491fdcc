//! Hosts made of network namespaces: each with an address on a bridge of their own, one `sealane daemon`, and the tasks that
//! it serves, every one a process. The main thread starts, harms and ends them; nothing of it outlives the chore, whose
//! process number is in every name.

mod daemon;
mod interrupts;
mod keys;
mod network;
mod process;

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

pub(crate) use daemon::{CONNECT_TIMEOUT, HEARTBEAT, PEER_TIMEOUT, Patience};
pub(crate) use interrupts::Interrupts;
pub(crate) use keys::Shown;
pub(crate) use network::{Cut, Network};
pub(crate) use process::Process;

use crate::build::{Build, build};
use crate::traffic::{self, Order, Role};

/// The program under test. Unoptimised, which builds in a fraction of the time and checks its own assertions: when
/// something fails decides what is found here, not how fast it goes.
const SEALANE: Build = Build { package: "sealane-cli", kind: "bin", target: "sealane", release: false, verbs: false };

/// The port of daemons; engines that are embedded in a task have the next one.
const PORT: u16 = 7000;

/// How long processes that were told to finish may take: the longest deadline of their calls, and some.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// What stands where. Tasks are numbered over all hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) hosts: usize,
    /// Tasks that each host's daemon serves.
    pub(crate) attached_per_host: usize,
}

impl Layout {
    /// All tasks: those of the daemons, and one at last that has its engine in its own process, beside the first daemon.
    pub(crate) fn tasks(self) -> usize {
        self.hosts * self.attached_per_host + 1
    }

    pub(crate) fn host_of(self, task: usize) -> usize {
        if self.is_embedded(task) { 0 } else { task / self.attached_per_host }
    }

    pub(crate) fn is_embedded(self, task: usize) -> bool {
        task + 1 == self.tasks()
    }

    fn endpoint_map(self) -> String {
        let line = |task| format!("{}={}\n", traffic::name(task), self.address(task));
        (0..self.tasks()).map(line).collect()
    }

    /// Where the engine of a task is reached.
    fn address(self, task: usize) -> SocketAddr {
        let port = PORT + u16::from(self.is_embedded(task));
        (network::address(self.host_of(task)), port).into()
    }
}

/// How all hosts of a run behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manner {
    pub(crate) patience: Patience,
    pub(crate) shown: Shown,
}

impl Manner {
    /// The settings of a daemon at that address, or of an engine, in a run whose files are in `folder`.
    pub(crate) fn settings(self, folder: &Path, address: SocketAddr) -> Vec<(&'static str, String)> {
        let mut settings = daemon::settings(self.patience);
        settings.extend(keys::settings(self.shown, folder, address));
        settings
    }
}

struct Task {
    process: Option<Process>,
    /// Its processes so far: the present one's number is one less.
    lives: u32,
}

/// See the module. Dropped, it ends everything.
pub(crate) struct Hosts {
    layout: Layout,
    manner: Manner,
    program: PathBuf,
    folder: PathBuf,
    daemons: Vec<Option<Process>>,
    daemon_lives: Vec<u32>,
    tasks: Vec<Task>,
    // Last: a namespace is free when nobody is in it.
    pub(crate) network: Network,
}

impl Hosts {
    /// Builds the program, makes the network, and starts all daemons and tasks. `folder` takes sockets, logs and ledgers.
    ///
    /// # Errors
    /// The program does not build, or this is not root on a kernel with network namespaces.
    pub(crate) fn start(layout: Layout, manner: Manner, folder: &Path) -> Result<Hosts, String> {
        let program = build(&SEALANE)?;
        let failed = |error| format!("{}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        fs::write(folder.join("endpoint_map"), layout.endpoint_map()).map_err(failed)?;
        keys::make(&program, folder)?;
        let network = Network::new(layout.hosts)?;
        let mut hosts = Hosts {
            layout,
            manner,
            program,
            folder: folder.to_path_buf(),
            daemons: (0..layout.hosts).map(|_| None).collect(),
            daemon_lives: vec![0; layout.hosts],
            tasks: (0..layout.tasks()).map(|_| Task { process: None, lives: 0 }).collect(),
            network,
        };
        (0..layout.hosts).try_for_each(|host| hosts.start_daemon(host))?;
        (0..layout.tasks()).try_for_each(|task| hosts.start_task(task))?;
        Ok(hosts)
    }

    /// Starts the daemon of a host that has none.
    pub(crate) fn start_daemon(&mut self, host: usize) -> Result<(), String> {
        let tasks = (0..self.layout.tasks())
            .filter(|&task| self.layout.host_of(task) == host && !self.layout.is_embedded(task))
            .map(traffic::name);
        let settings = self.manner.settings(&self.folder, (network::address(host), PORT).into());
        let arguments = daemon::arguments(&self.map(), &self.socket(host), tasks, settings);
        let log = self.folder.join(format!("daemon{host}.{}.log", self.daemon_lives[host]));
        self.daemon_lives[host] += 1;
        let namespace = self.network.namespace(host);
        // One that still drains holds the lock of its socket.
        self.daemons[host] = None;
        self.daemons[host] = Some(Process::start(&namespace, &self.program, &arguments, &log)?);
        Ok(())
    }

    /// Starts a process of a task that has none.
    pub(crate) fn start_task(&mut self, task: usize) -> Result<(), String> {
        let life = self.tasks[task].lives;
        self.tasks[task].lives += 1;
        let host = self.layout.host_of(task);
        let is_embedded = self.layout.is_embedded(task);
        let role = Role {
            task,
            tasks: self.layout.tasks(),
            life,
            manner: self.manner,
            address: self.layout.address(task),
            ledger: self.ledger(task, life),
            socket: (!is_embedded).then(|| self.socket(host)),
            map: is_embedded.then(|| self.map()),
        };
        let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let log = self.folder.join(format!("task{task}.{life}.log"));
        let namespace = self.network.namespace(host);
        self.tasks[task].process = Some(Process::start(&namespace, &own, &role.arguments(), &log)?);
        Ok(())
    }

    fn socket(&self, host: usize) -> PathBuf {
        self.folder.join(format!("host{host}.sock"))
    }

    fn map(&self) -> PathBuf {
        self.folder.join("endpoint_map")
    }

    /// Where a process of a task writes what it does.
    pub(crate) fn ledger(&self, task: usize, life: u32) -> PathBuf {
        self.folder.join(format!("task{task}.{life}.ledger"))
    }

    pub(crate) fn patience(&self) -> Patience {
        self.manner.patience
    }

    /// How many processes a task has had.
    pub(crate) fn lives(&self, task: usize) -> u32 {
        self.tasks[task].lives
    }

    pub(crate) fn daemon(&mut self, host: usize) -> Option<&mut Process> {
        self.daemons[host].as_mut()
    }

    pub(crate) fn task(&mut self, task: usize) -> Option<&mut Process> {
        self.tasks[task].process.as_mut()
    }

    pub(crate) fn kill_daemon(&mut self, host: usize) {
        self.daemons[host] = None;
    }

    pub(crate) fn kill_task(&mut self, task: usize) {
        self.tasks[task].process = None;
    }

    /// A process that ended although nobody had it ended.
    pub(crate) fn fallen(&mut self) -> Option<String> {
        let daemons = self.daemons.iter_mut().enumerate().map(|(host, slot)| (format!("daemon{host}"), slot));
        let tasks = self.tasks.iter_mut().enumerate().map(|(task, slot)| (format!("task{task}"), &mut slot.process));
        daemons.chain(tasks).find_map(|(name, slot)| {
            let ended = slot.as_mut()?.ended()?;
            Some(format!("{name} ended by itself: {ended}; its log is {name}.*.log"))
        })
    }

    /// Tells the tasks to finish and waits until they have.
    ///
    /// # Errors
    /// One does not end, or fails.
    pub(crate) fn finish(&mut self, order: Order) -> Result<(), String> {
        for task in self.tasks.iter_mut().filter_map(|task| task.process.as_mut()) {
            task.order(order);
        }
        let until = Instant::now() + FINISH_WITHIN;
        for (number, task) in self.tasks.iter_mut().enumerate() {
            let Some(mut process) = task.process.take() else { continue };
            let Some(status) = process.wait_until(until) else {
                return Err(format!("task{number} was told to finish and did not within {FINISH_WITHIN:?}"));
            };
            if !status.success() {
                return Err(format!("task{number} ended with {status}; its log is task{number}.*.log"));
            }
        }
        Ok(())
    }
}

/// A flag with its value.
fn flag(name: &str, value: impl Into<OsString>) -> [OsString; 2] {
    [name.into(), value.into()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_a_host_and_a_line_in_the_map() {
        let layout = Layout { hosts: 2, attached_per_host: 2 };
        assert_eq!((0..layout.tasks()).map(|task| layout.host_of(task)).collect::<Vec<_>>(), [0, 0, 1, 1, 0]);
        let map = layout.endpoint_map();
        assert_eq!(map.lines().count(), 5);
        assert!(map.ends_with(":7001\n") && map.starts_with("task0:2222="), "{map}");
    }
}
