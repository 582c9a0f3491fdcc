//! Where the demo's engines are, and so the way of a tensor: in the tasks, or in daemons. Those are `sealane daemon` of this very
//! program, each with a transport address that the demo has bound for it and a socket in the demo's directory.

use std::ffi::OsString;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::protocol::{Job, Part};
use super::task::{REQUEST_TIMEOUT, SLAB_BYTES};
use crate::Failure;
use crate::settings::{Require, Settings, Source};

/// One CPU of so many is for each daemon's shards: with two daemons, half of them are left to the tasks.
const CPUS_PER_SHARD: usize = 4;

/// How long a daemon of a demo that has failed waits for calls in progress, all of which have lost their tasks.
const DRAIN_TIMEOUT_MS: u64 = 500;

/// Where the engines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// In every task's process.
    Embedded,
    /// In two daemons: one for all ps, one for all workers.
    TwoDaemons,
    /// In one daemon for all tasks.
    OneDaemon,
}

impl Setup {
    /// `daemons` or `embedded`.
    pub(super) fn mode(self) -> &'static str {
        match self {
            Setup::Embedded => "embedded",
            Setup::TwoDaemons | Setup::OneDaemon => "daemons",
        }
    }

    /// What carries a tensor from the one part's side to the other's; `network` is what joins two engines.
    pub(super) fn link(self, network: &'static str) -> &'static str {
        match self {
            Setup::Embedded | Setup::TwoDaemons => network,
            Setup::OneDaemon => "shm",
        }
    }

    /// The way of every tensor, process by process.
    pub(super) fn path(self, network: &str) -> String {
        match self {
            Setup::Embedded => format!("task --{network}--> task"),
            Setup::TwoDaemons => format!("task --shm--> daemon --{network}--> daemon --shm--> task"),
            Setup::OneDaemon => "task --shm--> daemon --shm--> task".to_owned(),
        }
    }
}

/// What will join two engines, as far as the settings say.
pub(super) fn expected_network(require: Require, verbs_built_in: bool) -> &'static str {
    match require {
        Require::Verbs => "verbs",
        Require::Auto if verbs_built_in => "verbs or tcp",
        Require::Auto | Require::Tcp => "tcp",
    }
}

/// A daemon that is to be started.
pub(super) struct Daemon<'a> {
    pub(super) name: &'static str,
    /// Whose settings it reads.
    pub(super) part: Part,
    /// The tasks that it serves.
    pub(super) jobs: &'a [Job],
    /// Where its clients attach.
    pub(super) socket: PathBuf,
    pub(super) address: SocketAddr,
    listener: TcpListener,
}

impl Daemon<'_> {
    /// The daemons of a demo, with their ports; together they serve all jobs, in order.
    ///
    /// # Errors
    /// No port can be had.
    pub(super) fn all<'a>(setup: Setup, jobs: &'a [Job], directory: &Path) -> Result<Vec<Daemon<'a>>, Failure> {
        let (ps, workers) = jobs.split_at(jobs.partition_point(|job| job.part == Part::Ps));
        let all = match setup {
            Setup::Embedded => Vec::new(),
            Setup::TwoDaemons => vec![("ps-daemon", Part::Ps, ps), ("worker-daemon", Part::Worker, workers)],
            Setup::OneDaemon => vec![("daemon", Part::Ps, jobs)],
        };
        let refused = |error| Failure::work(format!("no port is available on 127.0.0.1 ({error})"));
        let each = |(name, part, jobs)| {
            let listener = TcpListener::bind("127.0.0.1:0").map_err(refused)?;
            let address = listener.local_addr().map_err(refused)?;
            Ok(Daemon { name, part, jobs, socket: directory.join(format!("{name}.sock")), address, listener })
        };
        all.into_iter().map(each).collect()
    }

    /// The names of its tasks.
    pub(super) fn tasks(&self) -> impl Iterator<Item = String> {
        self.jobs.iter().map(Job::task)
    }

    /// How to start it. Signals of a terminal are not for it: the demo ends it when its tasks have ended.
    pub(super) fn command(
        self,
        program: &Path,
        endpoint_map: &Path,
        settings: &[OsString],
        trace: Option<&Path>,
    ) -> Command {
        let mut command = Command::new(program);
        command.arg("daemon").arg("--endpoint-map").arg(endpoint_map).arg("--socket").arg(&self.socket);
        command.args(["--metrics", "off"]).arg("--role").arg(self.part.role().to_string()).args(settings);
        if let Some(trace) = trace {
            command.arg("--trace").arg(trace);
        }
        command.args(self.tasks().flat_map(|task| ["--task".to_owned(), task]));
        command.arg("--listener-on-stdin").stdin(Stdio::from(OwnedFd::from(self.listener)));
        command.arg("--end-with").arg(std::process::id().to_string()).process_group(0);
        command
    }
}

/// True if a process that waits may look for a while before it sleeps: there is a CPU for each.
pub(super) fn may_spin(setup: Setup, tasks: usize, cpus: usize) -> bool {
    let daemons = match setup {
        Setup::Embedded => 0,
        Setup::TwoDaemons => 2,
        Setup::OneDaemon => 1,
    };
    tasks + daemons <= cpus
}

/// The settings that suit a demo's daemon, where nothing else gives them. `pairs` of tasks share `cpus`.
pub(super) fn settings_of_demo(
    settings: &Settings,
    pairs: usize,
    cpus: usize,
    spin: bool,
    arena_bytes_max: u64,
) -> Vec<String> {
    let Settings { runtime, transport, fusion, daemon, .. } = settings;
    let shards = (cpus / CPUS_PER_SHARD).clamp(1, pairs);
    let idle_spin_us = if spin { runtime.idle_spin.value.as_micros() as u64 } else { 0 };
    let (slab_bytes, timeout_ms) = (SLAB_BYTES as u64, REQUEST_TIMEOUT.as_millis() as u64);
    let wishes = [
        ("runtime.shards", shards as u64, &runtime.shards.source),
        ("runtime.idle_spin_us", idle_spin_us, &runtime.idle_spin.source),
        // Tensors lie in the arenas of the tasks.
        ("runtime.slab_send_bytes", slab_bytes, &runtime.slab_send_bytes.source),
        ("runtime.slab_receive_bytes", slab_bytes, &runtime.slab_receive_bytes.source),
        ("daemon.area_bytes", slab_bytes, &daemon.area_bytes.source),
        ("daemon.arena_bytes_max", daemon.arena_bytes_max.value.max(arena_bytes_max), &daemon.arena_bytes_max.source),
        // A long turn says here only that the machine has other work.
        ("runtime.stall_report_ms", 0, &runtime.stall_report.source),
        ("daemon.drain_timeout_ms", DRAIN_TIMEOUT_MS, &daemon.drain_timeout.source),
        ("transport.connect_timeout_ms", timeout_ms, &transport.connect_timeout.source),
        ("fusion.request_timeout_ms", timeout_ms, &fusion.request_timeout.source),
    ];
    let ours = wishes.into_iter().filter(|(.., source)| **source == Source::Default);
    ours.flat_map(|(name, value, _)| ["--set".to_owned(), format!("{name}={value}")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(given: &[(&str, &str)]) -> Settings {
        Settings::of(given.iter().copied()).unwrap()
    }

    #[test]
    fn processes_spin_where_each_has_a_cpu() {
        for (setup, cpus) in [(Setup::Embedded, 3), (Setup::OneDaemon, 4), (Setup::TwoDaemons, 5)] {
            assert!(may_spin(setup, 3, cpus) && !may_spin(setup, 3, cpus - 1), "{setup:?}");
        }
    }

    #[test]
    fn a_demo_sets_what_nothing_else_gives() {
        let ours = settings_of_demo(&settings(&[]), 2, 16, true, 64 << 30);
        for expected in ["runtime.shards=2", "runtime.idle_spin_us=200", "daemon.arena_bytes_max=68719476736"] {
            assert!(ours.contains(&expected.to_owned()), "{ours:?}");
        }
        let ours = settings_of_demo(&settings(&[("runtime.shards", "7")]), 2, 2, false, 0);
        assert!(ours.contains(&"runtime.idle_spin_us=0".to_owned()), "{ours:?}");
        assert!(!ours.iter().any(|set| set.starts_with("runtime.shards")), "{ours:?}");
        // What the demo sets is in range.
        let pairs: Vec<_> = ours.iter().filter_map(|set| set.split_once('=')).collect();
        assert_eq!(settings(&pairs).daemon.drain_timeout.value.as_millis(), u128::from(DRAIN_TIMEOUT_MS));
    }

    #[test]
    fn daemons_serve_all_tasks_between_them() {
        let directory = tempfile::tempdir().unwrap();
        let job = |(part, index)| Job {
            part,
            index,
            workers: 2,
            ps: 1,
            workload: String::new(),
            pin: false,
            flip_bit: false,
        };
        let jobs = [(Part::Ps, 0), (Part::Worker, 0), (Part::Worker, 1)].map(job);
        let tasks = |setup| {
            let all = Daemon::all(setup, &jobs, directory.path()).unwrap();
            all.iter().map(|daemon| daemon.tasks().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(tasks(Setup::TwoDaemons), ["ps0:2222", "worker0:2222 worker1:2222"]);
        assert_eq!(tasks(Setup::OneDaemon), ["ps0:2222 worker0:2222 worker1:2222"]);
        assert!(tasks(Setup::Embedded).is_empty());
    }

    #[test]
    fn only_a_build_with_verbs_leaves_the_network_open() {
        assert_eq!(expected_network(Require::Auto, true), "verbs or tcp");
        assert_eq!(expected_network(Require::Auto, false), "tcp");
        assert_eq!(expected_network(Require::Tcp, true), "tcp");
        assert_eq!(expected_network(Require::Verbs, true), "verbs");
    }

    #[test]
    fn the_network_joins_engines_and_nothing_else() {
        assert_eq!(Setup::Embedded.path("verbs"), "task --verbs--> task");
        assert_eq!(Setup::TwoDaemons.path("tcp"), "task --shm--> daemon --tcp--> daemon --shm--> task");
        assert_eq!(Setup::OneDaemon.path("tcp"), "task --shm--> daemon --shm--> task");
        assert_eq!([Setup::Embedded, Setup::OneDaemon].map(|setup| setup.link("verbs")), ["verbs", "shm"]);
    }
}
