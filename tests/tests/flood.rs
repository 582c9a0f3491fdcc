//! Peers that flood, send garbage, or never read: what they cost is bounded, and the others go on. The tests run one after the other, since
//! they measure this process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sealane_fusion::{AcceptOptions, Code, Engine, EngineSettings, Keys};
use sealane_transport::wire::{Abort, Frame, FrameWriter, Hello, PushOpen, Request, parse};
use sealane_transport::{Handle, PullOptions};

use sealane_tests::fixture::{
    LONG, assert_empty, bytes, carry, hello, listener, map, port, settings, task, tensor, welcomed,
};

/// Most memory that a hostile peer may make this process grow by, in bytes: far less than it sends, and far more than noise.
const GROWTH_MAX: usize = 64 << 20;
/// Bytes that a hostile peer sends.
const FLOOD_BYTES: usize = 256 << 20;

/// A ps and a worker that exchange tensors, and a third task that the test plays.
struct Scene {
    ps: Engine,
    worker: Engine,
    _alone: MutexGuard<'static, ()>,
}

static ALONE: Mutex<()> = Mutex::new(());

impl Scene {
    fn new(tweak: impl Fn(&mut EngineSettings)) -> Scene {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let listeners = [listener(), listener()];
        let mut ports: Vec<u16> = listeners.iter().map(port).collect();
        // No port listens for the third task: the test calls, and is not called.
        ports.push(1);
        let mut start = listeners.into_iter().enumerate().map(|(index, listener)| {
            let mut settings = settings(map(&ports), index, listener);
            tweak(&mut settings);
            Engine::start(settings).expect("an engine starts")
        });
        Scene { ps: start.next().expect("two"), worker: start.next().expect("two"), _alone: alone }
    }

    /// Checks that a tensor still gets from the ps to the worker.
    fn goes_on(&self, step: i64) {
        carry((&self.ps, 0), (&self.worker, 1), step, 1000);
    }

    /// A connection to the ps, welcomed as task 2.
    fn intruder(&self) -> TcpStream {
        self.intruder_of(0, 1)
    }

    /// As `intruder`, welcomed as shard `shard` of the `shards` that it claims to have.
    fn intruder_of(&self, shard: u16, shards: u16) -> TcpStream {
        welcomed(&self.ps, Hello { shard, shards, ..hello("127.0.0.1:1", vec![task(2)]) })
    }
}

/// Resident memory of this process; nothing else runs in it meanwhile.
fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

/// Writes until the engine hangs up, takes no more, or has been sent `FLOOD_BYTES`.
fn flood(stream: &mut TcpStream, bytes: &[u8]) -> usize {
    stream.set_nonblocking(true).unwrap();
    let (mut sent, mut refused) = (0, 0);
    while sent < FLOOD_BYTES && refused < 10_000 {
        match stream.write(bytes) {
            Ok(count) => (sent, refused) = (sent + count, 0),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                refused += 1;
                std::thread::yield_now();
            }
            Err(_) => break,
        }
    }
    sent
}

/// Writes all of `bytes` and a ping, and reads until the engine answers the ping: then it has received everything.
fn say_all(stream: &mut TcpStream, bytes: &mut Vec<u8>) {
    FrameWriter(bytes).ping(1);
    let mut ear = stream.try_clone().unwrap();
    let listening = std::thread::spawn(move || {
        let (mut heard, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            match parse(&heard).unwrap() {
                Some((Frame::Pong { .. }, _)) => return,
                Some((_, length)) => drop(heard.drain(..length)),
                None => {
                    let count = ear.read(&mut chunk).unwrap();
                    assert!(count > 0, "it disconnected");
                    heard.extend(&chunk[..count]);
                }
            }
        }
    });
    stream.write_all(bytes).unwrap();
    listening.join().unwrap();
}

/// Requests for a tensor of that key, one for each of many steps.
fn requests(count: u32, key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for index in 0..count {
        let request = Request {
            id: Handle::from_bits(u64::from(index) << 32 | u64::from(index)),
            consumer: 0,
            producer: 0,
            step: i64::from(index),
            timeout_ms: 60_000,
            if_gone: Default::default(),
            key,
        };
        FrameWriter(&mut bytes).request(&request);
    }
    bytes
}

#[test]
fn a_peer_that_reads_nothing_holds_up_itself_alone() {
    let scene = Scene::new(|settings| settings.session.in_flight_bytes_max = 4 << 20);
    scene.goes_on(1);
    let mut intruder = scene.intruder();
    let ps = scene.ps.task(&task(0)).unwrap();
    let sending: Vec<_> = (0..64).map(|step| ps.send(&task(2), step, "big", tensor(1 << 20, 1))).collect();
    intruder.write_all(&requests(64, "big")).unwrap();
    for step in 2..20 {
        scene.goes_on(step);
    }
    drop(intruder);
    // Nobody took the tensors: they stay for the next recv until the engine stops.
    scene.ps.stop().unwrap();
    for sending in sending {
        let code = sending.wait().unwrap_err().code();
        assert!(matches!(code, Code::Unavailable | Code::Aborted), "{code:?}");
    }
}

/// Plans with long keys and streams into queues with long names, no name twice: an eighth of `FLOOD_BYTES`.
fn name_names(link: u16, bytes: &mut Vec<u8>) {
    bytes.clear();
    for number in 0.. {
        if bytes.len() >= FLOOD_BYTES / 8 {
            return;
        }
        let keys: Vec<String> = (0..100).map(|key| format!("{link} {number} {key} {}", "k".repeat(4000))).collect();
        let (id, count, mut first) = (Handle::from_bits(1 << 32 | number), keys.len() as u32, 0);
        while first < count {
            let rest = keys[first as usize..].iter().map(String::as_str);
            first += FrameWriter(bytes).key_set(id, (0, 0), (count, first), rest);
        }
        for (at, queue) in keys.iter().enumerate() {
            let stream = Handle::from_bits(1 << 32 | number << 16 | at as u64);
            FrameWriter(bytes).push_open(&PushOpen { stream, first: 0, from: 0, to: 0, queue });
        }
    }
}

#[test]
fn a_peer_that_floods_with_names_on_many_links_has_the_bytes_of_one_peer_and_the_others_go_on() {
    let scene = Scene::new(|settings| settings.session.peer_name_bytes_max = 8 << 20);
    scene.goes_on(1);
    let mut names = Vec::with_capacity(FLOOD_BYTES / 4);
    name_names(9, &mut names);
    let before = resident_bytes();
    let mut links: Vec<_> = (0..8).map(|shard| scene.intruder_of(shard, 8)).collect();
    for (link, number) in links.iter_mut().zip(0..) {
        name_names(number, &mut names);
        say_all(link, &mut names);
    }
    scene.goes_on(2);
    assert!(resident_bytes() < before + GROWTH_MAX, "{} -> {}", before, resident_bytes());
    let (ps, worker) = (scene.ps.task(&task(0)).unwrap(), scene.worker.task(&task(1)).unwrap());
    ps.publish("w", 1, tensor(1000, 7)).wait().unwrap();
    let mut plan = worker.plan(&task(0), Keys::new(["w"]).unwrap());
    plan.pull(1, PullOptions::default()).unwrap();
    assert_eq!(plan.pull_buffer().get(0).expect("pulled").bytes(), bytes(1000, 7));
    let acceptor = ps.acceptor("gradients", AcceptOptions::default());
    worker.push(&task(0), "gradients", tensor(10, 3)).wait().unwrap();
    assert_eq!(acceptor.wait_many(1, Some(LONG)).unwrap()[0].tensor.bytes(), bytes(10, 3));
    drop(links);
    scene.goes_on(3);
}

#[test]
fn rubbish_of_every_kind_costs_its_sender_the_link_and_nobody_else() {
    let scene = Scene::new(|_| {});
    scene.goes_on(1);
    let before = resident_bytes();
    for seed in 0..32_u32 {
        let mut intruder = scene.intruder();
        let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
        let rubbish: Vec<u8> = (0..100_000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                state as u8
            })
            .collect();
        flood(&mut intruder, &rubbish);
        // The engine hangs up: the end comes, whatever it said before.
        intruder.set_nonblocking(false).unwrap();
        let _ = intruder.read_to_end(&mut Vec::new());
        scene.goes_on(i64::from(seed) + 2);
    }
    assert!(resident_bytes() < before + GROWTH_MAX, "{} -> {}", before, resident_bytes());
    assert_empty(&scene.worker);
    assert_empty(&scene.ps);
}

#[test]
fn a_peer_that_ends_step_after_step_makes_nobody_wait() {
    let scene = Scene::new(|_| {});
    let ps = scene.ps.task(&task(0)).unwrap();
    // Recvs that wait at the ps for another task.
    let waiting: Vec<_> = (0..2000).map(|step| ps.recv(&task(1), 1_000_000 + step, "late")).collect();
    let mut intruder = scene.intruder();
    let mut aborts = Vec::new();
    for step in 0..50_000 {
        FrameWriter(&mut aborts).abort(&Abort { step, task: 0, reason: "so there" });
    }
    flood(&mut intruder, &aborts);
    scene.goes_on(1);
    let worker = scene.worker.task(&task(1)).unwrap();
    let late = worker.send(&task(0), 1_000_000, "late", tensor(10, 3));
    let mut waiting = waiting.into_iter();
    assert_eq!(waiting.next().unwrap().wait().unwrap().bytes(), bytes(10, 3));
    late.wait().unwrap();
    drop((waiting, intruder));
}
