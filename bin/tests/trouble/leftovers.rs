//! Clients and daemons leave nothing behind, however they end.

use std::fs;
use std::path::Path;

use nix::unistd::Pid;

use crate::fixture::{PS, Place, WORKER};
use crate::hosts::Hosts;
use crate::processes::Process;
use crate::raw::Raw;
use crate::tensors::{LARGE, STEP, in_arena, verify};
use crate::traces::{eventually, files, mappings, shared_descriptors, sleeps};

/// Files that the test itself puts into a daemon's directory.
const OWN_FILES: [&str; 3] = [".endpoint_map", "first.log", "first.manager"];

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A daemon has files only in its own directory, and none of its memory has a name.
fn uses_no_files_elsewhere(pid: Pid, place: &Place) {
    // The program itself may lie anywhere.
    for file in files(pid).into_iter().filter(|file| file.as_path() != Path::new(env!("CARGO_BIN_EXE_sealane"))) {
        let is_elsewhere = file.starts_with("/dev/shm") || file.starts_with(std::env::temp_dir());
        assert!(!is_elsewhere || file.starts_with(place.directory.path()), "{}", file.display());
    }
}

fn no_memory_has_a_name() {
    let Ok(entries) = fs::read_dir("/dev/shm") else { return };
    for entry in entries {
        let name = entry.unwrap().file_name();
        assert!(!name.to_string_lossy().contains("sealane"), "{name:?}");
    }
}

/// Clients that detach and clients that are killed, both after receiving and while sending.
fn clients_come_and_go(hosts: &mut Hosts) {
    let (producer, consumer) = (hosts.attach(PS), hosts.attach(WORKER));
    let sending = producer.send(WORKER, STEP, "key", in_arena(&producer, 1, LARGE));
    let tensor = consumer.recv(PS, STEP, "key").wait().unwrap();
    verify(&tensor, 1, LARGE);
    sending.wait().unwrap();
    drop(producer.send(WORKER, STEP, "never", in_arena(&producer, 1, LARGE)));
    drop((producer, consumer));
    verify(&tensor, 1, LARGE);
    drop(tensor);
    hosts.until_clients(PS, 0);
    let mut killed = [(PS, "send", WORKER), (WORKER, "recv", PS)]
        .map(|(task, role, peer)| Process::start(&format!("{role} {task} {peer}"), &hosts.socket(task)));
    killed[1].hear("got 2");
    killed.iter_mut().for_each(Process::kill);
    hosts.until_clients(PS, 0);
    // A client that sends nothing and leaves without a message.
    drop(Raw::attach(hosts.place(PS), PS).unwrap());
    hosts.until_clients(PS, 0);
}

#[test]
fn nothing_is_left_of_clients_and_of_a_daemon_that_drains() {
    let mut hosts = Hosts::start(&[&[PS, WORKER]]);
    let pid = hosts.daemon(PS).pid();
    // It may still be reporting that it is ready.
    eventually("the daemon sleeps", || sleeps(pid));
    let before = shared_descriptors(pid);
    for _ in 0..3 {
        clients_come_and_go(&mut hosts);
        eventually("descriptors are closed", || shared_descriptors(pid) == before);
        assert_eq!(mappings(pid), 0);
        uses_no_files_elsewhere(pid, hosts.place(PS));
    }
    for place in hosts.drain() {
        assert_eq!(names(place.directory.path()), OWN_FILES);
        let gone = place.fail(1, &["drain"]);
        assert!(gone.starts_with("no daemon can be reached at "), "{gone}");
    }
    no_memory_has_a_name();
}

#[test]
fn nothing_is_left_of_a_daemon_that_was_killed_once_the_next_one_ends() {
    let mut hosts = Hosts::start(&[&[PS, WORKER]]);
    let (producer, consumer) = (hosts.attach(PS), hosts.attach(WORKER));
    let lost = producer.send(WORKER, STEP, "key", in_arena(&producer, 1, LARGE));
    hosts.kill(PS);
    lost.wait().unwrap_err();
    assert_eq!(
        names(hosts.place(PS).directory.path()),
        [&OWN_FILES[..], &["sealane.sock", "sealane.sock.lock"]].concat()
    );
    drop((producer, consumer));
    hosts.restart(PS);
    clients_come_and_go(&mut hosts);
    uses_no_files_elsewhere(hosts.daemon(PS).pid(), hosts.place(PS));
    for place in hosts.drain() {
        assert_eq!(names(place.directory.path()), OWN_FILES);
    }
    no_memory_has_a_name();
}
