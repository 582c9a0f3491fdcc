//! Hosts for the tests: one daemon for all tasks, or several daemons joined by TCP, as on several machines.

use std::path::PathBuf;
use std::process::Stdio;

use sealane::{Attach, Task};

use crate::fixture::{Daemon, Ended, PS, Place, STUCK, WORKER};
use crate::traces::{eventually, mappings};

/// A client's arena: a few of the largest tensors.
pub const ARENA_BYTES: u64 = 32 << 20;

/// Shared memory objects per client of a daemon with one shard: an arena and a segment.
pub const MAPPINGS_PER_CLIENT: usize = 2;

/// The groups of two tasks of one daemon, and of two daemons that are joined by TCP.
pub const NEAR_AND_FAR: [&[&[&str]]; 2] = [&[&[PS, WORKER]], &[&[PS], &[WORKER]]];

/// Daemons, and the tasks that each serves.
pub struct Hosts {
    places: Vec<Place>,
    groups: Vec<Vec<String>>,
    /// Each daemon's own settings, besides those that all have.
    settings: Vec<Vec<String>>,
    daemons: Vec<Option<Daemon>>,
    /// Daemons that have taken over so far.
    turns: usize,
}

impl Hosts {
    /// Starts a daemon for each group of tasks.
    pub fn start(groups: &[&[&str]]) -> Hosts {
        Hosts::start_with(groups, &vec![&[][..]; groups.len()])
    }

    /// Starts a daemon for each group of tasks, with settings of its own.
    pub fn start_with(groups: &[&[&str]], settings: &[&[&str]]) -> Hosts {
        let owned = |lists: &[&[&str]]| -> Vec<Vec<String>> {
            lists.iter().map(|list| list.iter().map(|text| (*text).to_owned()).collect()).collect()
        };
        let make = || {
            let places: Vec<Place> = groups.iter().map(|_| Place::new()).collect();
            let line = |place: &Place, task: &&str| format!("{task}={}\n", place.address);
            let tasks =
                |(place, tasks): (&Place, &&[&str])| tasks.iter().map(|task| line(place, task)).collect::<String>();
            let map: String = places.iter().zip(groups).map(tasks).collect();
            places.iter().for_each(|place| place.replace_map(&map));
            places
        };
        let start = |places: &Vec<Place>| -> Result<Vec<_>, Ended> {
            let each = places.iter().zip(groups).zip(settings);
            each.map(|((place, tasks), settings)| start_at(place, tasks, settings).map(Some)).collect()
        };
        let (places, daemons) = Daemon::start_in(make, start);
        Hosts { places, groups: owned(groups), settings: owned(settings), daemons, turns: 0 }
    }

    fn host(&self, task: &str) -> usize {
        self.groups.iter().position(|tasks| tasks.iter().any(|known| known == task)).unwrap()
    }

    pub fn place(&self, task: &str) -> &Place {
        &self.places[self.host(task)]
    }

    /// The socket at which a task attaches.
    pub fn socket(&self, task: &str) -> PathBuf {
        self.place(task).socket()
    }

    /// The daemon that serves a task.
    pub fn daemon(&mut self, task: &str) -> &mut Daemon {
        let host = self.host(task);
        self.daemons[host].as_mut().expect("it runs")
    }

    pub fn attach(&self, task: &str) -> Task {
        Attach::new(task).socket(self.socket(task)).arena_bytes(ARENA_BYTES).timeout(STUCK).attach().unwrap()
    }

    /// Kills the daemon that serves a task.
    pub fn kill(&mut self, task: &str) {
        let host = self.host(task);
        drop(self.daemons[host].take());
    }

    /// Ends a task's daemon with `sealane drain`.
    pub fn drain_one(&mut self, task: &str) {
        let host = self.host(task);
        drain(&self.places[host], self.daemons[host].take().expect("it runs"));
    }

    /// Replaces a task's daemon by another one that takes over from it.
    pub fn hand_over(&mut self, task: &str) {
        let host = self.host(task);
        self.turns += 1;
        let (place, name) = (&self.places[host], format!("next{}", self.turns));
        let mut settings = self.settings_of(host);
        settings.push("--take-over");
        let next = spawn_at(place, &name, &self.tasks(host), &settings);
        let ended = self.daemons[host].take().expect("it runs").ended();
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        assert!(ended.stderr.contains("another daemon has taken over"), "{}", ended.stderr);
        self.daemons[host] = Some(next.serving().unwrap_or_else(|ended| panic!("{}", ended.stderr)));
    }

    fn tasks(&self, host: usize) -> Vec<&str> {
        self.groups[host].iter().map(String::as_str).collect()
    }

    fn settings_of(&self, host: usize) -> Vec<&str> {
        self.settings[host].iter().map(String::as_str).collect()
    }

    /// Starts the daemon of a task again, at the same socket and address.
    pub fn restart(&mut self, task: &str) {
        let host = self.host(task);
        let daemon = start_at(&self.places[host], &self.tasks(host), &self.settings_of(host));
        let daemon = daemon.unwrap_or_else(|ended| panic!("{}", ended.stderr));
        self.daemons[host] = Some(daemon);
    }

    /// Waits until the daemon of a task shares memory with exactly `clients` clients.
    pub fn until_clients(&mut self, task: &str, clients: usize) {
        let pid = self.daemon(task).pid();
        eventually("the memory of former clients is freed", || mappings(pid) == clients * MAPPINGS_PER_CLIENT);
    }

    /// Drains every daemon. Nothing is in flight, so each must end at once and cleanly.
    pub fn drain(self) -> Vec<Place> {
        for (place, daemon) in self.places.iter().zip(self.daemons) {
            drain(place, daemon.expect("it runs"));
        }
        self.places
    }
}

/// Drains one daemon: everything in flight must end within the daemon's time.
fn drain(place: &Place, daemon: Daemon) {
    let drained = place.command(&["drain"]).stderr(Stdio::piped()).spawn().unwrap();
    let Ended { code, stderr } = daemon.ended();
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("the daemon is drained"), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    let drained = drained.wait_with_output().unwrap();
    assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stderr));
}

fn start_at(place: &Place, tasks: &[&str], settings: &[&str]) -> Result<Daemon, Ended> {
    spawn_at(place, "first", tasks, settings).serving()
}

fn spawn_at(place: &Place, name: &str, tasks: &[&str], more: &[&str]) -> Daemon {
    // The daemons of a test would all claim the first CPU, since each uses its own directory.
    let mut arguments = vec!["--set", "runtime.pin=false", "--set", "daemon.area_bytes=17MiB"];
    tasks.iter().for_each(|task| arguments.extend(["--task", task]));
    arguments.extend(more);
    Daemon::spawn_at(place, name, &arguments)
}
