//! Hosts made of network namespaces: each with an address on a common bridge, one `sealane daemon`, and the tasks that it serves,
//! each a process. The main thread starts, harms and ends them; none of them outlives the chore.

mod network;
mod process;
mod settings;

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(crate) use network::{Cut, Network};
pub(crate) use process::Slot;
pub(crate) use settings::{CONNECT_TIMEOUT, HEARTBEAT, Manner, PEER_TIMEOUT, Shown};

use crate::build::Build;
use crate::chaos::Victim;
use crate::traffic::{self, Order, Role};

/// The program under test. Unoptimised, which builds in a fraction of the time and checks its own assertions: this looks for
/// failures, not for speed.
const SEALANE: Build = Build { package: "sealane-cli", kind: "bin", target: "sealane", is_packed: false };

/// The port of daemons; engines embedded in a task use the next one.
const PORT: u16 = 7000;

/// How long processes that were told to finish may take: the longest deadline of their calls, and some more.
const FINISH_WITHIN: Duration = Duration::from_secs(30);

/// Three hosts, so that there is one to observe faults between two others.
pub(crate) const HOSTS: usize = 3;

/// Tasks of each host's daemon: two, so that some share a daemon.
const ATTACHED_PER_HOST: usize = 2;

/// Pairs of tasks that share a daemon, each of which may have a direct lane.
pub(crate) const PAIRS_PER_DAEMON: u64 = (ATTACHED_PER_HOST * (ATTACHED_PER_HOST - 1) / 2) as u64;

/// Number of tasks over all hosts: those of the daemons, and a last one with its engine in its own process, next to the first
/// daemon.
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

/// The file in which a process of a task records its calls, in the directory of its run.
pub(crate) fn ledger(folder: &Path, task: usize, life: u32) -> PathBuf {
    folder.join(format!("task{task}.{life}.ledger"))
}

/// Where the daemon of a host is reached.
pub(crate) fn socket(folder: &Path, host: usize) -> PathBuf {
    folder.join(format!("host{host}.sock"))
}

pub(crate) fn map(folder: &Path) -> PathBuf {
    folder.join("endpoint_map")
}

/// Dropping this ends everything.
pub(crate) struct Hosts {
    manner: Manner,
    pub(crate) folder: PathBuf,
    program: PathBuf,
    pub(crate) daemons: Vec<Slot>,
    pub(crate) tasks: Vec<Slot>,
    // Last: a namespace is free once nobody is in it.
    pub(crate) network: Network,
}

impl Hosts {
    /// Builds the program, creates the network, and starts all daemons and tasks. `folder` holds sockets, logs and ledgers.
    ///
    /// # Errors
    /// The program does not build, or this does not run as root on a kernel with network namespaces.
    pub(crate) fn start(manner: Manner, folder: &Path) -> Result<Hosts, String> {
        let program = SEALANE.build(&[])?;
        fs::write(map(folder), endpoint_map()).map_err(|error| format!("{}: {error}", folder.display()))?;
        settings::make_keys(&program, folder)?;
        let network = Network::new(HOSTS)?;
        let [daemons, tasks] = [HOSTS, TASKS].map(|count| (0..count).map(|_| Slot::default()).collect());
        let mut hosts = Hosts { manner, program, folder: folder.to_path_buf(), daemons, tasks, network };
        let all = (0..HOSTS).map(Victim::Daemon).chain((0..TASKS).map(Victim::Task));
        all.into_iter().try_for_each(|one| hosts.start_process(one))?;
        Ok(hosts)
    }

    /// The process of a target, if it has any.
    pub(crate) fn slot(&mut self, victim: Victim) -> Option<&mut Slot> {
        match victim {
            Victim::Daemon(host) => self.daemons.get_mut(host),
            Victim::Task(task) => self.tasks.get_mut(task),
            Victim::Cable(_) => None,
        }
    }

    /// Starts a process of a daemon or task. An existing one is killed.
    pub(crate) fn start_process(&mut self, whose: Victim) -> Result<(), String> {
        let folder = self.folder.clone();
        let (host, program, arguments) = match whose {
            Victim::Daemon(host) => (host, self.program.clone(), self.daemon_arguments(host)),
            Victim::Task(task) => {
                let role = Role { task, life: self.tasks[task].lives, manner: self.manner, folder: folder.clone() };
                let own = std::env::current_exe().map_err(|error| format!("this program has no path: {error}"))?;
                (host_of(task), own, role.arguments().into())
            }
            Victim::Cable(_) => return Ok(()),
        };
        let Some(slot) = self.slot(whose) else { return Ok(()) };
        let log = folder.join(format!("{whose}.{}.log", slot.lives));
        slot.start(&["ip", "netns", "exec", &network::namespace(host)], &program, &arguments, &log)
    }

    fn daemon_arguments(&self, host: usize) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = ["daemon", "--metrics", "off"].map(OsString::from).into();
        let mut flag = |name: &str, value: OsString| arguments.extend([name.into(), value]);
        flag("--endpoint-map", map(&self.folder).into());
        flag("--socket", socket(&self.folder, host).into());
        for task in (0..TASKS).filter(|&task| host_of(task) == host && !is_embedded(task)) {
            flag("--task", traffic::name(task).into());
        }
        for (name, value) in self.manner.settings(&self.folder, (network::address(host), PORT).into()) {
            flag("--set", format!("{name}={value}").into());
        }
        arguments
    }

    /// A process that ended without being told to.
    pub(crate) fn fallen(&mut self) -> Option<String> {
        let mut all = (0..HOSTS).map(Victim::Daemon).chain((0..TASKS).map(Victim::Task));
        all.find_map(|one| {
            let ended = self.slot(one)?.ended()?;
            Some(format!("{one} ended by itself: {ended}; its log is {one}.*.log"))
        })
    }

    /// Tells the tasks to finish and waits until they have.
    pub(crate) fn finish(&mut self, order: Order) -> Result<(), String> {
        self.tasks.iter_mut().for_each(|task| task.order(order));
        let until = Instant::now() + FINISH_WITHIN;
        for (number, task) in self.tasks.iter_mut().enumerate().filter(|(_, task)| task.id().is_some()) {
            let Some(status) = task.wait_until(until) else {
                return Err(format!("task{number} was told to finish and did not within {FINISH_WITHIN:?}"));
            };
            if !status.success() {
                return Err(format!("task{number} ended with {status}; its log is task{number}.*.log"));
            }
        }
        Ok(())
    }
}
