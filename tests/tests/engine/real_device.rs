//! What can only be tested on the machine's own RDMA device: its port goes down, or a process that uses it is killed. The RDMA lab runs
//! these tests, on a machine whose network may be switched off.

use std::io::Read;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sealane_fusion::{Code, Engine, EngineSettings};
use sealane_transport::verbs::{PortCounters, Transfer, Verbs, VerbsSettings};

use crate::fixture::{
    self, LONG, assert_empty, bytes, engines, listener, map, port, settings, task, tensor, total, until,
};
use crate::verbs::counters_verbs;

/// The network device below the RDMA device, and the file with the state of the RDMA port.
const NETWORK: &str = "eth0";
const PORT_STATE: &str = "/sys/class/infiniband/rxe0/ports/1/state";
/// Tensors in flight when the port or the process goes, and the bytes of each; an engine's slab has room for all of them.
const UNDER_WAY: usize = 20;
const LARGE: usize = 512 << 10;

fn switch_network(state: &str) {
    let switched = Command::new("ip").args(["link", "set", NETWORK, state]).status().expect("ip can be run");
    assert!(switched.success(), "ip link set {NETWORK} {state}: {switched}");
}

fn until_port_is_active() {
    let deadline = Instant::now() + LONG;
    while !std::fs::read_to_string(PORT_STATE).expect("the lab's device").contains("ACTIVE") {
        assert!(Instant::now() < deadline, "the port does not come up");
        std::thread::yield_now();
    }
}

/// Sends tensors from one engine to another, calls `meanwhile` on the way, and checks that all arrive.
fn exchange([from, to]: [(&Engine, usize); 2], step: i64, meanwhile: impl FnOnce()) {
    let producer = from.0.task(&task(from.1)).expect("its task");
    let consumer = to.0.task(&task(to.1)).expect("its task");
    let seed = |at: usize| (step as u64) << 8 | at as u64;
    let keys: Vec<String> = (0..UNDER_WAY).map(|at| format!("k{at}")).collect();
    let keys = || keys.iter().enumerate();
    let sent: Vec<_> = keys().map(|(at, key)| producer.send(&task(to.1), step, key, tensor(LARGE, seed(at)))).collect();
    let asked: Vec<_> = keys().map(|(_, key)| consumer.recv(&task(from.1), step, key)).collect();
    let mut meanwhile = Some(meanwhile);
    for (at, receiving) in asked.into_iter().enumerate() {
        assert!(receiving.wait().expect("it arrives").bytes() == bytes(LARGE, seed(at)), "tensor {at} of step {step}");
        // One has arrived, and others are on the way.
        if let Some(meanwhile) = meanwhile.take() {
            meanwhile();
        }
    }
    sent.into_iter().for_each(|sending| sending.wait().expect("it is taken"));
}

#[test]
#[ignore = "needs the machine of cargo xtask rdma-lab"]
fn a_port_that_goes_down_under_traffic_is_left_for_tcp_until_it_is_up() {
    for transfer in [Transfer::Write, Transfer::Read] {
        let engines = engines(2, |_, settings| {
            settings.links = vec![Arc::new(Verbs::new(VerbsSettings { transfer, ..VerbsSettings::default() }))];
        });
        let with = |peer: usize| [(&engines[0], 0), (&engines[peer], peer)];
        exchange(with(1), 1, || {});
        assert_eq!(counters_verbs(&engines[0]), 1);
        exchange(with(1), 2, || switch_network("down"));
        until(&engines[0], "a link", |counters| counters.links == 1);
        exchange(with(1), 3, || {});
        assert_eq!((counters_verbs(&engines[0]), total(&engines[0]).links), (0, 1), "by TCP");
        switch_network("up");
        until_port_is_active();
        exchange(with(1), 4, || {});
        until(&engines[0], "the link is verbs again", |counters| counters.kinds[0].links == 1);
        exchange(with(1), 5, || {});
        assert_eq!((counters_verbs(&engines[0]), total(&engines[0]).links), (1, 1), "by verbs");
        engines.iter().for_each(assert_empty);
    }
}

/// Passes the ports of both engines to the process that is killed.
const PORTS_VARIABLE: &str = "SEALANE_TEST_PORTS";

/// The key that task 0 publishes.
const PUBLISHED: &str = "weights";
const VERSION: i64 = 7;

fn over_verbs(mut settings: EngineSettings, verbs: VerbsSettings) -> EngineSettings {
    settings.links = vec![Arc::new(Verbs { is_required: true, ..Verbs::new(verbs) })];
    settings
}

/// Runs as the process of the next test. It publishes a tensor and stays until its standard input ends.
#[test]
#[ignore = "it is the process of another test"]
fn the_process_that_is_killed() {
    let ports = std::env::var(PORTS_VARIABLE).expect("the ports are given");
    let ports: Vec<u16> = ports.split(' ').map(|port| port.parse().expect("a port")).collect();
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, ports[0])).expect("its predecessor is gone");
    let engine =
        Engine::start(over_verbs(settings(map(&ports), 0, own), VerbsSettings::default())).expect("an engine starts");
    let task = engine.task(&task(0)).expect("its task");
    task.publish(PUBLISHED, VERSION, tensor(LARGE, 1)).wait().expect("published");
    let tensors = (0..SMALL_KEYS).map(|at| (small(at), tensor(SMALL, at as u64)));
    task.publish_many(VERSION, tensors).wait().expect("published");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("standard input");
}

/// Size of a tensor that it also publishes: small enough to travel in messages, which take many packets each.
const SMALL: usize = 7 << 10;
const SMALL_KEYS: usize = 64;

fn small(at: usize) -> String {
    format!("small{at}")
}

/// Killed when dropped.
struct Process(Child);

impl Process {
    fn start(ports: &[u16]) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "real_device::the_process_that_is_killed", "--ignored"]);
        command.env(PORTS_VARIABLE, ports.iter().map(u16::to_string).collect::<Vec<_>>().join(" "));
        Process(command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts"))
    }

    fn kill(mut self) {
        self.0.kill().expect("it runs");
        self.0.wait().expect("it ends");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "needs the machine of cargo xtask rdma-lab"]
fn a_process_killed_while_its_tensors_are_pulled_is_unavailable_until_its_successor_serves() {
    for transfer in [Transfer::Write, Transfer::Read] {
        let (gone, own) = (listener(), listener());
        let ports = [port(&gone), port(&own)];
        drop(gone);
        let mut settings =
            over_verbs(settings(map(&ports), 1, own), VerbsSettings { transfer, ..VerbsSettings::default() });
        settings.connect_timeout = Duration::from_secs(20);
        let worker = Engine::start(settings).expect("an engine starts");
        let consumer = worker.task(&task(1)).expect("its task");
        let pull = || fixture::pull(&consumer, &task(0), PUBLISHED, VERSION);
        let verify = |pulled: &sealane_fusion::Pulled| {
            assert!(pulled.tensor.bytes() == bytes(LARGE, 1), "the tensor differs");
        };
        for has_successor in [true, true, false] {
            let process = Process::start(&ports);
            verify(&pull().wait().expect("it is published"));
            assert_eq!(counters_verbs(&worker), 1);
            let mut under_way: Vec<_> = (0..UNDER_WAY).map(|_| pull()).collect();
            verify(&under_way.remove(0).wait().expect("it runs"));
            process.kill();
            let successor = has_successor.then(|| Process::start(&ports));
            for pulling in under_way {
                match pulling.wait() {
                    Ok(pulled) => verify(&pulled),
                    Err(error) => assert_eq!(error.code(), Code::Unavailable, "{error}"),
                }
            }
            if let Some(successor) = successor {
                verify(&pull().wait().expect("its successor serves"));
                successor.kill();
            }
        }
        assert_empty(&worker);
    }
}

/// How many processes are killed while their messages arrive, one after the other: so many that no receive buffer would be left if one in
/// six lost a buffer.
const KILLED: usize = 200;
const RECEIVE_BUFFERS: u32 = 32;

#[test]
#[ignore = "needs the machine of cargo xtask rdma-lab"]
fn receive_buffers_come_back_from_processes_killed_in_mid_stream() {
    let (gone, own) = (listener(), listener());
    let ports = [port(&gone), port(&own)];
    drop(gone);
    let verbs = VerbsSettings { queue_depth: RECEIVE_BUFFERS, ..VerbsSettings::default() };
    let mut settings = over_verbs(settings(map(&ports), 1, own), verbs);
    settings.connect_timeout = Duration::from_secs(20);
    let worker = Engine::start(settings).expect("an engine starts");
    let consumer = worker.task(&task(1)).expect("its task");
    let pull_all = || -> Vec<_> {
        (0..SMALL_KEYS).map(|at| (at, fixture::pull(&consumer, &task(0), &small(at), VERSION))).collect()
    };
    for killed in 0..=KILLED {
        let process = Process::start(&ports);
        let mut under_way = pull_all();
        let (at, first) = under_way.remove(0);
        let pulled = first.wait().unwrap_or_else(|error| panic!("after {killed} were killed: {error}"));
        assert!(pulled.tensor.bytes() == bytes(SMALL, at as u64), "the tensor differs");
        assert_eq!(counters_verbs(&worker), 1);
        if killed < KILLED {
            process.kill();
        }
        for (at, pulling) in under_way {
            match pulling.wait() {
                Ok(pulled) => assert!(pulled.tensor.bytes() == bytes(SMALL, at as u64), "tensor {at} differs"),
                Err(error) => assert!(killed < KILLED && error.code() == Code::Unavailable, "{killed}: {error}"),
            }
        }
    }
    let verbs =
        worker.counters().expect("it runs").into_iter().map(|shard| PortCounters::of_figures(&shard.kinds[0].figures));
    let (promised, undrained) =
        verbs.fold((0, 0), |sum, verbs| (sum.0 + verbs.receives_promised, sum.1 + verbs.undrained));
    println!("{KILLED} killed; {promised} of {RECEIVE_BUFFERS} buffers promised, {undrained} queue pairs without word");
    assert!(promised <= u64::from(RECEIVE_BUFFERS));
    assert_empty(&worker);
}
