//! Two network namespaces and the cable between them: a device in each, and threads that pass its packets to the other one. It delays and
//! loses packets on any kernel, where `tc netem` needs a module.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, setns};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// The addresses of the two hosts.
pub const HOSTS: [&str; 2] = ["10.77.0.1", "10.77.0.2"];
const DEVICE: &str = "cable0";
/// Packets under way in one direction; more are lost, as in a full queue.
const PACKETS_MAX: usize = 10_000;
/// How long a thread sleeps before it checks whether the cable still exists.
const CHECK: u16 = 50;

#[derive(Clone, Copy, Debug)]
pub struct Quality {
    /// Time that a packet takes in one direction.
    pub delay: Duration,
    /// Lost packets of a thousand.
    pub lost_per_mille: u32,
    pub mtu: usize,
}

/// Dropping it removes both namespaces.
pub struct Cable {
    hosts: [Child; 2],
    is_cut: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Cable {
    pub fn new(quality: Quality) -> Cable {
        let hosts = HOSTS.map(|_| {
            let mut host = Command::new("unshare");
            host.args(["--net", "sh", "-c", "ip link set lo up && echo up && exec cat"]);
            let mut host = host.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            host.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
            host
        });
        let devices: Vec<File> = hosts
            .iter()
            .zip([[0, 1], [1, 0]])
            .map(|(host, ends)| device(host, ends.map(|end| HOSTS[end]), quality))
            .collect();
        let is_cut = Arc::new(AtomicBool::new(false));
        let pass = |from: usize, to: usize| {
            let [from, to] = [from, to].map(|end| devices[end].try_clone().unwrap());
            let (is_cut, random) = (is_cut.clone(), SmallRng::seed_from_u64(7));
            thread::spawn(move || pass(from, to, quality, random, &is_cut))
        };
        Cable { threads: vec![pass(0, 1), pass(1, 0)], hosts, is_cut }
    }

    /// A command that runs on one of the hosts.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.hosts[host].id())).arg(program);
        command
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().unwrap());
        for host in &mut self.hosts {
            host.stdin = None;
            host.wait().unwrap();
        }
    }
}

/// Makes a host's end of the cable.
fn device(host: &Child, [here, there]: [&str; 2], quality: Quality) -> File {
    let namespace = File::open(format!("/proc/{}/ns/net", host.id())).unwrap();
    let (here, there) = (here.to_owned(), there.to_owned());
    // A thread of its own, since only the calling thread enters the namespace.
    let made = thread::spawn(move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET).unwrap();
        let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
        attach(&device);
        for arguments in [
            format!("address add {here} peer {there} dev {DEVICE}"),
            format!("link set {DEVICE} mtu {} up", quality.mtu),
        ] {
            assert!(Command::new("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
        }
        device
    });
    let device = made.join().unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&device, FcntlArg::F_GETFL).unwrap());
    fcntl(&device, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    device
}

/// Makes a network device of an open `/dev/net/tun`: whole IP packets are read and written.
fn attach(device: &File) {
    // SAFETY: an `ifreq` is numbers, for which zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(DEVICE.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads an `ifreq`, which outlives the call.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw const request) };
    Errno::result(made).unwrap();
}

/// Passes packets on until the cable is cut.
fn pass(mut from: File, mut to: File, quality: Quality, mut random: SmallRng, is_cut: &AtomicBool) {
    let mut packet = vec![0; quality.mtu];
    let mut under_way: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    while !is_cut.load(Ordering::Relaxed) {
        while let Some((_, packet)) = under_way.pop_front_if(|(due, _)| *due <= Instant::now()) {
            // A full device loses packets.
            let _ = to.write(&packet);
        }
        loop {
            match from.read(&mut packet) {
                Ok(bytes)
                    if random.random_range(0..1000) >= quality.lost_per_mille && under_way.len() < PACKETS_MAX =>
                {
                    under_way.push_back((Instant::now() + quality.delay, packet[..bytes].to_vec()));
                }
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("the cable broke: {error}"),
            }
            if under_way.front().is_some_and(|(due, _)| *due <= Instant::now()) {
                break;
            }
        }
        let wait = match under_way.front() {
            // Shorter than a wait can be: the loop turns until then.
            Some((due, _)) if due.saturating_duration_since(Instant::now()) < Duration::from_millis(1) => {
                PollTimeout::ZERO
            }
            Some(_) => PollTimeout::from(1_u8),
            None => PollTimeout::from(CHECK),
        };
        poll(&mut [PollFd::new(from.as_fd(), PollFlags::POLLIN)], wait).unwrap();
    }
}
