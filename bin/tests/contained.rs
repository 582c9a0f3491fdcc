//! Daemons where a container, a service manager or an installer sets limits and names. Some of it only root can set up: for anybody else
//! these tests are listed as ignored, with the reason.

#[path = "daemon/fixture.rs"]
#[expect(dead_code, reason = "the tests of daemons use the rest")]
mod fixture;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use libtest_mimic::{Arguments, Trial};
use nix::libc;
use nix::unistd::geteuid;
use sealane_transport::Code;
use sealane_transport::shm::attach::{Attach, AttachError, attach};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter};

use fixture::{PS, Place, STUCK, WORKER};

const MIB: u64 = 1 << 20;

fn main() -> ExitCode {
    let root = if geteuid().is_root() { None } else { Some("needs root") };
    let groups = root.or_else(|| Group::new("probe", MIB).map_or(Some("needs a memory controller"), |_group| None));
    let trial = |name, test: fn(), needs: Option<&str>| {
        let run = move || {
            test();
            Ok(())
        };
        Trial::test(name, run).with_kind(needs.unwrap_or_default()).with_ignored_flag(needs.is_some())
    };
    let trials = vec![
        trial("loopback_name_is_listened_on_for_other_hosts", loopback_name_is_listened_on_for_other_hosts, root),
        trial("memory_limit_is_seen_before_the_kernel_kills", memory_limit_is_seen_before_the_kernel_kills, groups),
        trial("file_size_limit_refuses_only_large_arenas", file_size_limit_refuses_only_large_arenas, None),
        trial("forbidden_shared_memory_refuses_the_start", forbidden_shared_memory_refuses_the_start, None),
        trial("foreign_address_needs_a_listen_address", foreign_address_needs_a_listen_address, None),
        trial("default_shards_count_served_tasks", default_shards_count_served_tasks, None),
        trial("empty_variables_are_unset", empty_variables_are_unset, None),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A command run by `sh` after the words of `setup`.
fn after(place: &Place, setup: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command.current_dir(&place.directory).env_clear().env("XDG_RUNTIME_DIR", place.directory.path());
    command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").args(["-c", &format!("{setup}; exec \"$@\""), "sh"]);
    command.arg(env!("CARGO_BIN_EXE_sealane")).args(arguments).stdin(Stdio::null());
    command
}

/// Exit code, standard output and standard error of a command that ends.
fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// A daemon started by a command; killed when dropped.
struct Running(Child);

impl Running {
    /// Starts a daemon and waits until it serves; its log if it ends first.
    fn start(command: &mut Command) -> Result<(Running, String), String> {
        let mut running = Running(command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap());
        let mut log = String::new();
        let mut stderr = BufReader::new(running.0.stderr.take().unwrap());
        while stderr.read_line(&mut log).unwrap() > 0 {
            if log.lines().last().is_some_and(|line| line.starts_with("sealane daemon: serves")) {
                // The pipe stays open, so that the daemon can go on writing.
                std::thread::spawn(move || stderr.read_to_string(&mut String::new()));
                return Ok((running, log));
            }
        }
        let status = running.0.wait().unwrap();
        Err(format!("{status}: {log}"))
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The arguments of a small daemon, or of `check` for it.
fn small<'a>(command: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut arguments =
        vec![command, "--metrics", "off", "--set", "runtime.pin=false", "--set", "daemon.area_bytes=1MiB"];
    arguments.extend(["--set", "runtime.slab_send_bytes=1MiB", "--set", "runtime.slab_receive_bytes=1MiB"]);
    arguments.extend(more);
    arguments
}

fn attach_with(place: &Place, task: &str, arena_bytes: u64) -> Result<(), AttachError> {
    attach(&place.socket(), &Attach::new(task, arena_bytes), false, Instant::now() + STUCK).map(drop)
}

/// Debian's installer writes `127.0.1.1 HOSTNAME` into `/etc/hosts`.
fn loopback_name_is_listened_on_for_other_hosts() {
    let place = Place::new();
    place.replace_map("ps0:2222=host0.example:7000\nworker0:2222=host1.example:7000\n");
    fs::write(place.path("hosts"), "127.0.0.1 localhost\n127.0.1.1 host0.example\n198.51.100.1 host1.example\n")
        .unwrap();
    assert!(place.run(&["keys", "secret", "secret"]).status.success());
    let inside = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        let setup = "ip link set lo up && mount --bind hosts /etc/hosts || exit 99";
        command.args(["--net", "--mount", "--uts"]);
        let shell = after(&place, setup, arguments);
        command.arg("sh").args(shell.get_args()).current_dir(&place.directory).stdin(Stdio::null());
        command.env_clear().env("XDG_RUNTIME_DIR", place.directory.path()).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    };
    let secret = ["--set", "security.secret_file=secret"];

    let (code, says, _) = run(&mut inside(&small("check", &secret)));
    let words = says.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, Some(0), "{says}");
    assert!(
        words.contains("better reach host0.example:7000 is 127.0.1.1 on this host, where no other host can"),
        "{says}"
    );
    assert!(
        words.contains("give host0.example this host's network address in /etc/hosts, or set transport.listen"),
        "{says}"
    );

    // It must not be open to other hosts because it looked like a loopback address.
    let (code, says, _) = run(&mut inside(&small("check", &[])));
    assert_eq!(code, Some(1), "{says}");
    assert!(says.contains("fails   who may talk"), "{says}");
    let refused = Running::start(&mut inside(&small("daemon", &[]))).err().expect("it does not start");
    assert!(refused.contains("can be reached from other hosts, and no authentication is configured"), "{refused}");

    let (daemon, log) = Running::start(&mut inside(&small("daemon", &secret))).unwrap();
    assert!(log.contains("WARN host0.example:7000 is 127.0.1.1 on this host"), "{log}");
    assert_eq!(listening(daemon.0.id(), 7000), ["00000000000000000000000000000000"]);
    drop(daemon);

    let listen = [&secret[..], &["--set", "transport.listen=127.0.0.1"]].concat();
    let (daemon, log) = Running::start(&mut inside(&small("daemon", &listen))).unwrap();
    assert!(!log.contains("WARN"), "{log}");
    assert_eq!(listening(daemon.0.id(), 7000), ["0100007F"]);
    drop(daemon);

    // Where all tasks are on this host, loopback is where they belong, and needs no authentication.
    place.replace_map("ps0:2222=host0.example:7000\nworker0:2222=host0.example:7001\n");
    let (daemon, log) = Running::start(&mut inside(&small("daemon", &[]))).unwrap();
    assert!(!log.contains("WARN"), "{log}");
    assert_eq!(listening(daemon.0.id(), 7000), ["0101007F"]);
}

/// The addresses at which a process's network namespace listens on a port, in the kernel's form.
fn listening(pid: u32, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let mut addresses = Vec::new();
    for file in ["tcp", "tcp6"] {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{file}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (address, found) = words[1].split_once(':').unwrap();
            if words[3] == LISTEN && found == format!("{port:04X}") {
                addresses.push(address.to_owned());
            }
        }
    }
    addresses
}

/// A control group with a memory limit, removed when dropped.
struct Group {
    parent: PathBuf,
    child: PathBuf,
}

impl Group {
    /// A group with that limit, and one in it for processes; `None` if the system has no memory controller for it.
    fn new(name: &str, limit_bytes: u64) -> Option<Group> {
        let first = Path::new("/sys/fs/cgroup/memory");
        let (root, limit) = match first.is_dir() {
            true => (first, "memory.limit_in_bytes"),
            false => (Path::new("/sys/fs/cgroup"), "memory.max"),
        };
        let parent = root.join(format!("sealane-test-{}-{name}", std::process::id()));
        let child = parent.join("container");
        let group = Group { parent, child };
        fs::create_dir(&group.parent).ok()?;
        fs::write(group.parent.join(limit), limit_bytes.to_string()).ok()?;
        fs::create_dir(&group.child).ok()?;
        Some(group)
    }

    /// The words of a shell that enter the group.
    fn enter(&self) -> String {
        format!("echo $$ > {}/cgroup.procs", self.child.display())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for group in [&self.child, &self.parent] {
            let _ = fs::remove_dir(group);
        }
    }
}

fn memory_limit_is_seen_before_the_kernel_kills() {
    let (place, group) = (Place::new(), Group::new("limit", 96 * MIB).unwrap());
    let slabs = ["--set", "runtime.shards=2", "--set", "runtime.slab_receive_bytes=64MiB"];

    let (code, says, _) = run(&mut after(&place, &group.enter(), &small("check", &slabs)));
    let words = says.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(code, Some(1), "{says}");
    assert!(words.contains("fails memory slabs take 130 MiB of "), "{says}");
    assert!(words.contains("under the limit of 96 MiB"), "{says}");
    let refused = Running::start(&mut after(&place, &group.enter(), &small("daemon", &slabs))).err().unwrap();
    assert!(refused.contains("exit status: 1"), "{refused}");
    assert!(
        refused.contains("the slabs need 133120 KiB, but the memory limit of this control group leaves "),
        "{refused}"
    );

    // Memory that a client uses counts against the client's own limit.
    let fits = ["--set", "runtime.shards=1", "--set", "runtime.slab_receive_bytes=48MiB"];
    let (_, says, _) = run(&mut after(&place, &group.enter(), &small("check", &fits)));
    assert!(says.contains("better  memory"), "{says}");
    let (mut daemon, _) = Running::start(&mut after(&place, &group.enter(), &small("daemon", &fits))).unwrap();
    for task in [PS, WORKER] {
        attach_with(&place, task, 512 * MIB).unwrap();
    }
    assert!(daemon.is_alive());
}

fn file_size_limit_refuses_only_large_arenas() {
    let place = Place::new();
    // In blocks of 512 or 1024 bytes, as the shell has it.
    let limit = "ulimit -f 65536";
    let (mut daemon, _) = Running::start(&mut after(&place, limit, &small("daemon", &[]))).unwrap();
    let Err(AttachError::Refused(error)) = attach_with(&place, PS, 512 * MIB) else { panic!("it exceeds the limit") };
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.to_string().contains("RLIMIT_FSIZE"), "{error}");
    attach_with(&place, PS, MIB).unwrap();
    assert!(daemon.is_alive());
}

fn forbidden_shared_memory_refuses_the_start() {
    let place = Place::new();
    // The filter applies to the thread, and to all processes that the thread starts.
    let without_memfd = |act: &(dyn Fn() -> (Option<i32>, String) + Sync)| {
        let run = || {
            forbid(libc::SYS_memfd_create);
            act()
        };
        std::thread::scope(|scope| scope.spawn(run).join().unwrap())
    };
    let (_, refused) = without_memfd(&|| {
        (None, Running::start(&mut place.command(&small("daemon", &[]))).err().expect("no client could attach"))
    });
    assert!(refused.contains("no memory can be shared with clients ("), "{refused}");
    assert!(refused.contains("allow memfd_create, ftruncate, fcntl and mmap, as in a seccomp profile"), "{refused}");
    let (code, says) = without_memfd(&|| {
        let (code, says, _) = run(&mut place.command(&small("check", &[])));
        (code, says)
    });
    assert_eq!(code, Some(1), "{says}");
    assert!(says.contains("fails   daemon           no memory can be shared with clients"), "{says}");
}

/// Forbids a system call to this thread and to all that it starts, as a container's seccomp profile does.
fn forbid(call: libc::c_long) {
    let rules = [(call, Vec::new())].into_iter().collect();
    let errno = SeccompAction::Errno(libc::EPERM as u32);
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, errno, arch).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}

/// Behind NAT, no interface has the transport address.
fn foreign_address_needs_a_listen_address() {
    let place = Place::new();
    let port = place.address.rsplit_once(':').unwrap().1.to_owned();
    // 198.51.100.0/24 belongs to nobody (RFC 5737).
    place.replace_map(&format!("{PS}=198.51.100.7:{port}\n{WORKER}=198.51.100.8:{port}\n"));
    let refused = Running::start(&mut place.command(&small("daemon", &["--task", PS]))).err().unwrap();
    assert!(refused.contains(&format!("cannot listen on 198.51.100.7:{port}: bind: ")), "{refused}");
    assert!(refused.contains("no interface of this host has that address"), "{refused}");
    assert!(refused.contains("set transport.listen to an address of this host"), "{refused}");
    let listen = ["--task", PS, "--set", "transport.listen=127.0.0.1"];
    let (daemon, log) = Running::start(&mut place.command(&small("daemon", &listen))).unwrap();
    assert!(log.contains(&format!("serves {PS} at 198.51.100.7:{port}")), "{log}");
    attach_with(&place, PS, MIB).unwrap();
    // Now the port is in use.
    let second = [&listen[..], &["--socket", "second"]].concat();
    let refused = Running::start(&mut place.command(&small("daemon", &second))).err().unwrap();
    assert!(refused.contains(&format!("cannot listen on 198.51.100.7:{port} (127.0.0.1:{port}): bind: ")), "{refused}");
    assert!(refused.contains("is another Sealane or another program using the port?"), "{refused}");
    drop(daemon);
    // An address that other hosts can reach demands authentication, like any other.
    let open = ["--task", PS, "--set", "transport.listen=0.0.0.0"];
    let refused = Running::start(&mut place.command(&small("daemon", &open))).err().unwrap();
    assert!(refused.contains("can be reached from other hosts, and no authentication is configured"), "{refused}");
}

fn default_shards_count_served_tasks() {
    let place = Place::new();
    let others: String = (1..41).map(|index| format!("worker{index}:2222=198.51.100.{index}:7000\n")).collect();
    place.replace_map(&format!("{PS}={}\n{others}", place.address));
    let (_, json, stderr) = run(&mut place.command(&["check", "--json", "--metrics", "off"]));
    let report: serde_json::Value = serde_json::from_str(&json).unwrap_or_else(|error| panic!("{error}: {stderr}"));
    assert_eq!(report["shards"], 1, "{json}");
}

fn empty_variables_are_unset() {
    let place = Place::new();
    let mut check = place.command(&small("check", &[]));
    let (code, says, stderr) = run(check.env("NETWORK_PS_CORE_NUMBER", "").env("RDMA_MTU", ""));
    assert_eq!(code, Some(0), "{says}{stderr}");
    let words = says.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("ok variables NETWORK_PS_CORE_NUMBER, RDMA_MTU are empty and count as unset"), "{says}");
}
