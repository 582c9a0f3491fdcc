//! Client processes: this test binary, started again in a role.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fixture::STUCK;
use crate::roles;

/// Environment variables that give a process its role, and the socket to attach at.
const ROLE_VARIABLE: &str = "SEALANE_TEST_ROLE";
const SOCKET_VARIABLE: &str = "SEALANE_TEST_SOCKET";

/// The entry point of the processes that other tests start.
#[test]
#[ignore = "it is a process of other tests"]
fn the_processes_of_other_tests() {
    let [role, socket] = [ROLE_VARIABLE, SOCKET_VARIABLE].map(|name| std::env::var_os(name).expect("it is given"));
    let words: Vec<&str> = role.to_str().unwrap().split(' ').collect();
    roles::play(&words, Path::new(&socket));
}

/// A process in a role. Killed when dropped.
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    heard: Vec<String>,
}

impl Process {
    pub fn start(role: &str, socket: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "processes::the_processes_of_other_tests", "--ignored", "--nocapture"]);
        command.env(ROLE_VARIABLE, role).env(SOCKET_VARIABLE, socket);
        // The test harness captures standard output.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), child.stderr.take().unwrap());
        let (say, lines) = channel();
        let role = role.to_owned();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // Shown if the test fails.
                eprintln!("{role}: {line}");
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        Process { child, input, lines, heard: Vec::new() }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    /// Waits for an output line that begins with `begin`; the rest of that line.
    pub fn hear(&mut self, begin: &str) -> String {
        loop {
            match self.lines.recv_timeout(STUCK) {
                Ok(line) => {
                    self.heard.push(line);
                    let line = self.heard.last().expect("just heard");
                    if let Some(rest) = line.strip_prefix(begin) {
                        return rest.trim().to_owned();
                    }
                }
                Err(RecvTimeoutError::Timeout) => panic!("it does not say {begin:?}, but {:#?}", self.heard),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended without {begin:?}: {:#?}", self.heard),
            }
        }
    }

    /// The output lines so far that begin with `begin`, without that beginning.
    pub fn heard(&self, begin: &str) -> Vec<&str> {
        self.heard.iter().filter_map(|line| line.strip_prefix(begin)).map(str::trim).collect()
    }

    /// Closes its standard input, which ends most roles.
    pub fn release(&mut self) {
        self.input = None;
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Kills it as the kernel does when it runs short of memory.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
