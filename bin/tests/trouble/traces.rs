//! What the kernel reports about a process: mappings, descriptors, memory and CPU time.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Pid;

use crate::fixture::STUCK;

/// The kernel's name for the memory that daemons share with clients.
const SHARED_MEMORY: &str = "/memfd:sealane";

/// Polls until something holds that no event announces.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let stuck = Instant::now() + STUCK;
    while !is_so() {
        assert!(Instant::now() < stuck, "it never is so that {what}");
        thread::yield_now();
    }
}

fn read(pid: Pid, file: &str) -> String {
    fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap()
}

/// The number of shared memory mappings of a process.
pub fn mappings(pid: Pid) -> usize {
    read(pid, "maps").lines().filter(|line| line.contains(SHARED_MEMORY)).count()
}

/// The paths of files that a process has mapped or open, without those that have no path, like sockets.
pub fn files(pid: Pid) -> Vec<PathBuf> {
    let maps = read(pid, "maps");
    let mapped =
        maps.lines().filter_map(|line| line.split_once('/')).map(|(_, path)| PathBuf::from(format!("/{path}")));
    mapped.chain(opened(pid).filter(|path| path.is_absolute())).collect()
}

/// The descriptors of a process that a daemon needs for its clients: connections, bells, memory, processes.
pub fn shared_descriptors(pid: Pid) -> usize {
    let is_shared = |path: &PathBuf| {
        let name = path.to_string_lossy();
        ["socket:", "anon_inode:[eventfd]", "anon_inode:[pidfd]", SHARED_MEMORY]
            .iter()
            .any(|kind| name.starts_with(kind))
    };
    opened(pid).filter(is_shared).count()
}

/// What the descriptors of a process refer to. One may be closed meanwhile.
fn opened(pid: Pid) -> impl Iterator<Item = PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    descriptors.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
}

/// A process's private memory in bytes, without what it shares with clients.
pub fn own_memory(pid: Pid) -> u64 {
    let status = read(pid, "status");
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// True if no thread of a process is running or runnable.
pub fn sleeps(pid: Pid) -> bool {
    let mut tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.all(|task| {
        let stat = fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
        // The state follows the name, which is in brackets.
        stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('S'))
    })
}

/// The CPU time used by all threads of a process.
pub fn time_used(pid: Pid) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let used = tasks.map(|task| {
        let figures = fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        figures.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(used.sum())
}
