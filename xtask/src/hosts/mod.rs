//! Hosts made of network namespaces: each with an address on a bridge of their own, one `sealane daemon`, and the tasks that
//! it serves, every one a process. The main thread starts, harms and ends them; nothing of it outlives the chore.

mod network;
mod process;
mod settings;

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use network::{Cut, Network};
pub(crate) use process::Process;
pub(crate) use settings::{CONNECT_TIMEOUT, HEARTBEAT, Manner, PEER_TIMEOUT, Patience, Shown};

use crate::build::{Build, build};
use crate::traffic::{self, Order, Role};

/// The program under test. Unoptimised, which builds in a fraction of the time and checks its own assertions: when
/// something fails decides what is found here, not how fast it goes.
const SEALANE: Build = Build { package: "sealane-cli", kind: "bin", target: "sealane", release: false, verbs: false };

/// The port of daemons; engines that are embedded in a task have the next one.
const PORT: u16 = 7000;

/// How long processes that were told to finish may take: the longest deadline of their calls, and some.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// Three hosts, so that there is somebody to notice what two do to each other.
pub(crate) const HOSTS: usize = 3;

/// Tasks that each host's daemon serves: two, so that some share a daemon.
const ATTACHED_PER_HOST: usize = 2;

/// All tasks, numbered over all hosts: those of the daemons, and one at last that has its engine in its own process, beside the
/// first daemon.
pub(crate) const TASKS: usize = HOSTS * ATTACHED_PER_HOST + 1;

pub(crate) fn is_embedded(task: usize) -> bool {
    task + 1 == TASKS
}

pub(crate) fn host_of(task: usize) -> usize {
    if is_embedded(task) { 0 } else { task / ATTACHED_PER_HOST }
}

/// Where the engine of a task is reached.
pub(crate) fn address(task: usize) -> SocketAddr {
    (network::address(host_of(task)), PORT + u16::from(is_embedded(task))).into()
}

fn endpoint_map() -> String {
    (0..TASKS).map(|task| format!("{}={}\n", traffic::name(task), address(task))).collect()
}

/// A daemon or a task: its process, if it has one, and how many it has had.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) process: Option<Process>,
    pub(crate) lives: u32,
}

impl Slot {
    /// Gives its process an order, if it has one.
    pub(crate) fn order(&mut self, order: Order) {
        if let Some(process) = &mut self.process {
            process.order(order);
        }
    }
}

/// Where a process of a task writes what it does, in the folder of its run.
pub(crate) fn ledger(folder: &Path, task: usize, life: u32) -> PathBuf {
    folder.join(format!("task{task}.{life}.ledger"))
}

/// Where the daemon of a host is reached.
pub(crate) fn socket(folder: &Path, host: usize) -> PathBuf {
    folder.join(format!("host{host}.sock"))
}

/// The map of all tasks.
pub(crate) fn map(folder: &Path) -> PathBuf {
    folder.join("endpoint_map")
}

/// See the module. Dropped, it ends everything.
pub(crate) struct Hosts {
    pub(crate) manner: Manner,
    pub(crate) folder: PathBuf,
    program: PathBuf,
    pub(crate) daemons: Vec<Slot>,
    pub(crate) tasks: Vec<Slot>,
    // Last: a namespace is free when nobody is in it.
    pub(crate) network: Network,
}

impl Hosts {
    /// Builds the program, makes the network, and starts all daemons and tasks. `folder` takes sockets, logs and ledgers.
    ///
    /// # Errors
    /// The program does not build, or this is not root on a kernel with network namespaces.
    pub(crate) fn start(manner: Manner, folder: &Path) -> Result<Hosts, String> {
        let program = build(&SEALANE)?;
        let failed = |error| format!("{}: {error}", folder.display());
        fs::create_dir_all(folder).map_err(failed)?;
        fs::write(map(folder), endpoint_map()).map_err(failed)?;
        settings::make_keys(&program, folder)?;
        let network = Network::new(HOSTS)?;
        let mut hosts = Hosts {
            manner,
            program,
            folder: folder.to_path_buf(),
            daemons: (0..HOSTS).map(|_| Slot::default()).collect(),
            tasks: (0..TASKS).map(|_| Slot::default()).collect(),
            network,
        };
        (0..HOSTS).try_for_each(|host| hosts.start_daemon(host))?;
        (0..TASKS).try_for_each(|task| hosts.start_task(task))?;
        Ok(hosts)
    }

    /// Starts the daemon of a host that has none.
    pub(crate) fn start_daemon(&mut self, host: usize) -> Result<(), String> {
        let mut arguments: Vec<OsString> = ["daemon", "--metrics", "off"].map(OsString::from).into();
        let mut flag = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        flag("--endpoint-map", map(&self.folder).into());
        flag("--socket", socket(&self.folder, host).into());
        for task in 0..TASKS {
            if host_of(task) == host && !is_embedded(task) {
                flag("--task", traffic::name(task).into());
            }
        }
        for (name, value) in self.manner.settings(&self.folder, (network::address(host), PORT).into()) {
            flag("--set", format!("{name}={value}").into());
        }
        let slot = &mut self.daemons[host];
        let log = self.folder.join(format!("daemon{host}.{}.log", slot.lives));
        slot.lives += 1;
        // One that still drains holds the lock of its socket.
        slot.process = None;
        slot.process = Some(Process::start(&network::namespace(host), &self.program, &arguments, &log)?);
        Ok(())
    }

    /// Starts a process of a task that has none.
    pub(crate) fn start_task(&mut self, task: usize) -> Result<(), String> {
        let life = self.tasks[task].lives;
        let role = Role { task, life, manner: self.manner, folder: self.folder.clone() };
        let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
        let log = self.folder.join(format!("task{task}.{life}.log"));
        let process = Process::start(&network::namespace(host_of(task)), &own, &role.arguments(), &log)?;
        self.tasks[task] = Slot { process: Some(process), lives: life + 1 };
        Ok(())
    }

    /// A process that ended although nobody had it ended.
    pub(crate) fn fallen(&mut self) -> Option<String> {
        let name = |what: &'static str| move |(number, slot)| (format!("{what}{number}"), slot);
        let daemons = self.daemons.iter_mut().enumerate().map(name("daemon"));
        let tasks = self.tasks.iter_mut().enumerate().map(name("task"));
        daemons.chain(tasks).find_map(|(name, slot): (String, &mut Slot)| {
            let ended = slot.process.as_mut()?.ended()?;
            Some(format!("{name} ended by itself: {ended}; its log is {name}.*.log"))
        })
    }

    /// Tells the tasks to finish and waits until they have.
    ///
    /// # Errors
    /// One does not end, or fails.
    pub(crate) fn finish(&mut self, order: Order) -> Result<(), String> {
        self.tasks.iter_mut().for_each(|task| task.order(order));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_has_a_host_and_a_line_in_the_map() {
        assert_eq!((0..TASKS).map(host_of).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2, 0]);
        let map = endpoint_map();
        assert_eq!(map.lines().count(), 7);
        assert!(map.ends_with(":7001\n") && map.starts_with("task0:2222="), "{map}");
    }
}
