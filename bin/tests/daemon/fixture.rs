//! Daemons for the tests: real processes with their own ports, directories and service manager.

use std::fs;
use std::net::TcpListener;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use nix::unistd::Pid;
use sealane_transport::shm::attach::{Attach, AttachError, Attached, attach};
use tempfile::TempDir;

/// Attempts with a fresh port: another program may take a port between its choice and its use.
const ATTEMPTS: usize = 10;

/// A daemon that takes longer than this is stuck: nothing here takes seconds.
pub const STUCK: Duration = Duration::from_secs(60);

/// Time between two checks whether a silent daemon has ended.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub const PS: &str = "ps0:2222";
pub const WORKER: &str = "worker0:2222";

/// A client's arena in these tests.
pub const ARENA_BYTES: u64 = 1 << 16;

/// More connections than the daemon serves at once.
pub const IDLE_CONNECTIONS: usize = 100;

/// Where a test's daemons run: a directory with an endpoint map of two tasks at one transport address.
pub struct Place {
    pub directory: TempDir,
    pub address: String,
}

impl Place {
    pub fn new() -> Place {
        let place = Place { directory: tempfile::tempdir().unwrap(), address: free_address() };
        // In some tests other users must reach the socket.
        fs::set_permissions(place.directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        place.replace_map(&place.map());
        place
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.path("sealane.sock")
    }

    /// The text of the first endpoint map.
    pub fn map(&self) -> String {
        format!("{PS}={0}\n{WORKER}={0}\n", self.address)
    }

    /// Replaces the endpoint map as an editor does.
    pub fn replace_map(&self, text: &str) {
        fs::write(self.path("new"), text).unwrap();
        fs::rename(self.path("new"), self.path(".endpoint_map")).unwrap();
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sealane"));
        command.current_dir(&self.directory).env_clear().env("XDG_RUNTIME_DIR", self.directory.path());
        command.args(arguments).stdin(Stdio::null());
        command
    }

    pub fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The error message of a command that must fail with that exit code.
    pub fn fail(&self, code: i32, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        stderr.lines().last().unwrap().strip_prefix("error: ").unwrap().to_owned()
    }

    pub fn attach(&self, task: &str) -> Result<Attached, AttachError> {
        attach(&self.socket(), &Attach::new(task, ARENA_BYTES), false, Instant::now() + STUCK)
    }

    /// Like [`Place::attach`], for an attachment that must be refused.
    pub fn refused(&self, wish: &Attach) -> sealane_transport::Error {
        match attach(&self.socket(), wish, false, Instant::now() + STUCK) {
            Err(AttachError::Refused(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

/// A connection that has sent nothing yet.
pub fn connection(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
    connect(socket.as_raw_fd(), &UnixAddr::new(path).unwrap()).unwrap();
    socket
}

/// An address that is free now.
pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// A daemon that serves. Killed when dropped.
pub struct Daemon {
    process: Child,
    manager: UnixDatagram,
    log: PathBuf,
}

/// A daemon's output and exit status.
pub struct Ended {
    pub code: Option<i32>,
    pub stderr: String,
}

impl Daemon {
    /// Starts a daemon in its own place, with one shard that sleeps when idle.
    pub fn start(arguments: &[&str]) -> (Place, Daemon) {
        Daemon::start_in(Place::new, |place| Daemon::start_at(place, arguments))
    }

    /// Like [`Daemon::start`], in a place from `make`, which is made again for each attempt.
    pub fn start_in<P, D>(make: impl Fn() -> P, start: impl Fn(&P) -> Result<D, Ended>) -> (P, D) {
        for _ in 0..ATTEMPTS {
            let place = make();
            match start(&place) {
                Ok(daemon) => return (place, daemon),
                Err(ended) => assert!(ended.stderr.contains("cannot listen on"), "{}", ended.stderr),
            }
        }
        panic!("other programs took the ports of {ATTEMPTS} attempts");
    }

    /// Starts a daemon at a place; its output if it ends before it serves.
    pub fn start_at(place: &Place, arguments: &[&str]) -> Result<Daemon, Ended> {
        Daemon::spawn_at(place, "first", arguments).serving()
    }

    /// Starts a daemon beside others, with its own service manager and log; it may not serve yet.
    pub fn spawn_at(place: &Place, name: &str, arguments: &[&str]) -> Daemon {
        let log = fs::File::create(place.path(&format!("{name}.log"))).unwrap();
        Daemon::spawn_with_log(place, name, arguments, log.into())
    }

    /// Like [`Daemon::spawn_at`], with another file or pipe as standard error.
    pub fn spawn_with_log(place: &Place, name: &str, arguments: &[&str], stderr: OwnedFd) -> Daemon {
        let (manager, log) = (place.path(&format!("{name}.manager")), place.path(&format!("{name}.log")));
        let _ = fs::remove_file(&manager);
        let mut command = place.command(&["daemon", "--set", "runtime.shards=1", "--set", "runtime.idle_spin_us=0"]);
        // If a test sets this flag itself, its value is used instead.
        if !arguments.contains(&"--metrics") {
            command.args(["--metrics", "off"]);
        }
        command.args(["--set", "daemon.area_bytes=1MiB"]).args(["--set", "runtime.slab_send_bytes=1MiB"]);
        command.args(arguments).env("NOTIFY_SOCKET", &manager);
        let manager = UnixDatagram::bind(manager).unwrap();
        manager.set_read_timeout(Some(LOOK_EVERY)).unwrap();
        let process = command.stdout(Stdio::null()).stderr(stderr).spawn().unwrap();
        Daemon { process, manager, log }
    }

    /// Waits until it serves; its output if it ends first.
    pub fn serving(mut self) -> Result<Daemon, Ended> {
        match self.hear("READY=1") {
            Some(_) => Ok(self),
            None => Err(self.ended()),
        }
    }

    /// Waits for a message with `text` to the service manager; `None` if the daemon ends first.
    fn hear(&mut self, text: &str) -> Option<String> {
        let stuck = Instant::now() + STUCK;
        let mut buffer = [0; 4096];
        while Instant::now() < stuck {
            // Checked first: messages sent before the process ended can still be read afterwards.
            let over = self.process.try_wait().unwrap().is_some();
            match self.manager.recv(&mut buffer) {
                Ok(len) => {
                    let told = String::from_utf8(buffer[..len].to_vec()).unwrap();
                    if told.contains(text) {
                        return Some(told);
                    }
                }
                Err(_) if over => return None,
                Err(_) => {}
            }
        }
        panic!("the daemon does not say {text:?}; its log: {}", self.log());
    }

    /// Waits until the service manager is told something with `text` in it.
    pub fn wait_for(&mut self, text: &str) -> String {
        self.hear(text).unwrap_or_else(|| panic!("it ended without {text:?}; its log: {}", self.log()))
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id() as i32)
    }

    pub fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Waits until the daemon has ended.
    pub fn ended(mut self) -> Ended {
        let stuck = Instant::now() + STUCK;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return Ended { code: status.code(), stderr: self.log() };
            }
            assert!(Instant::now() < stuck, "the daemon does not end; its log: {}", self.log());
            // Whatever it reports meanwhile: this returns at once, or after a pause.
            let _ = self.manager.recv(&mut [0; 1]);
        }
    }

    /// Stops it as a service manager does.
    pub fn stop(self) -> Ended {
        self.signal(Signal::SIGTERM);
        self.ended()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
