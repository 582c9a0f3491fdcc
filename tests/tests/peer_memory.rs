//! What an engine keeps for a peer that asks for nothing: measured for peers that have only greeted, for peers that were sent many answers,
//! and for attached clients.
//!
//! The counting allocator is the whole process's, so these are the only tests in their binary, one after the other.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use sealane_fusion::{ClientEnds, EndpointMap, Engine, EngineSettings};
use sealane_runtime::Pin;
use sealane_tests::counting::{Counting, held_bytes};
use sealane_tests::fixture::{hello, listener, map, port, settings, task, tensor, until, welcomed};
use sealane_transport::Handle;
use sealane_transport::shm::{ClientBell, DaemonEnd, Doorbell, SharedMemory};
use sealane_transport::wire::{Frame, FrameWriter, Pull, PullFrame, parse};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static ALONE: Mutex<()> = Mutex::new(());

const PEERS: usize = 128;
/// Keys of each peer's plan, and bytes of each of its tensors: in total more than a turn sends.
const KEYS: usize = 400;
const TENSOR_BYTES: usize = 1000;

/// Most heap bytes per peer.
const IDLE_BYTES_MAX: usize = 8 << 10;
/// Most heap bytes per peer that was sent answers; includes the numbers of its plan's keys.
const ANSWERED_BYTES_MAX: usize = 20 << 10;

const CLIENTS: usize = 32;
/// The default of `daemon.area_bytes`.
const AREA_BYTES: u64 = 64 << 20;
/// Most bytes of the daemon's heap per attached client, on each shard.
const CLIENT_BYTES_MAX: usize = 8 << 10;

/// A connection to the ps, welcomed as a task of its own.
fn greet(ps: &Engine, peer: usize) -> TcpStream {
    welcomed(ps, hello(&format!("127.0.0.1:{peer}"), vec![task(peer)]))
}

fn key(number: usize) -> String {
    format!("variable{number}")
}

/// Names a plan and pulls it; reads until everything has come.
fn pull_all(stream: &mut TcpStream, heard: &mut Vec<u8>) {
    let (set, id) = (Handle::from_bits(1 << 32), Handle::from_bits(2 << 32));
    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let (mut words, mut named) = (Vec::new(), 0);
    while named < KEYS {
        let rest = keys[named..].iter().map(String::as_str);
        named += FrameWriter(&mut words).key_set(set, (0, 0), (KEYS as u32, named as u32), rest) as usize;
    }
    FrameWriter(&mut words).pull(&Pull { id, set, min_version: 0, timeout_ms: 60_000, fail_if_gone: false });
    stream.write_all(&words).unwrap();
    heard.clear();
    let (mut chunk, mut came) = ([0; 4096], 0);
    while came < KEYS {
        let count = stream.read(&mut chunk).unwrap();
        assert!(count > 0, "it disconnected");
        heard.extend(&chunk[..count]);
        while let Some((frame, length)) = parse(heard).unwrap() {
            if let Frame::Pull(PullFrame::Parts(parts)) = frame {
                came += parts.count as usize;
            }
            heard.drain(..length);
        }
    }
}

#[test]
fn an_idle_peer_takes_little_memory_also_after_it_was_busy() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = listener();
    // Nothing listens where the peers are: they call, and are not called.
    let ports: Vec<u16> = std::iter::once(port(&listener)).chain(1..=PEERS as u16).collect();
    let ps = Engine::start(settings(map(&ports), 0, listener)).expect("an engine starts");
    let publishing: Vec<_> = {
        let ps = ps.task(&task(0)).unwrap();
        (0..KEYS).map(|number| ps.publish(&key(number), 1, tensor(TENSOR_BYTES, 1))).collect()
    };
    publishing.into_iter().for_each(|published| published.wait().unwrap());
    let mut peers = Vec::with_capacity(PEERS);
    let mut heard = Vec::with_capacity(1 << 20);

    let before = held_bytes();
    peers.extend((1..=PEERS).map(|peer| greet(&ps, peer)));
    until(&ps, "a peer has no link", |counters| counters.links == PEERS as u64);
    let each = (held_bytes() - before) / PEERS;
    assert!(each <= IDLE_BYTES_MAX, "{each} bytes for each peer that has greeted");

    peers.iter_mut().for_each(|peer| pull_all(peer, &mut heard));
    let each = (held_bytes() - before) / PEERS;
    assert!(each <= ANSWERED_BYTES_MAX, "{each} bytes for each peer that has pulled and asks for nothing more");
}

/// What the daemon holds of a client.
fn ends(task: String) -> ClientEnds {
    let (arena, _) = SharedMemory::create("test", 1 << 16).unwrap();
    let (segment, _) = DaemonEnd::create(AREA_BYTES).unwrap();
    let (socket, _) = UnixStream::pair().unwrap();
    let shards = vec![(segment, Doorbell::create().unwrap())];
    ClientEnds { task, pid: 7, uid: 1, arena, shared: None, shards, bell: ClientBell::new(Arc::new(socket.into())) }
}

#[test]
fn an_idle_client_takes_little_memory_whatever_its_area() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let listener = listener();
    let tasks: Vec<String> = (0..CLIENTS).map(task).collect();
    let text: String = tasks.iter().map(|task| format!("{task}=127.0.0.1:{}\n", port(&listener))).collect();
    let names: Vec<&str> = tasks.iter().map(String::as_str).collect();
    let mut settings = EngineSettings::new(EndpointMap::parse(&text, "test").unwrap(), &names).unwrap();
    (settings.runtime.pin, settings.runtime.shards) = (Pin::Off, 1);
    (settings.slab_send_bytes, settings.slab_receive_bytes) = (1 << 20, 1 << 20);
    settings.listeners = vec![listener];
    let engine = Engine::start(settings).expect("an engine starts");

    let before = held_bytes();
    for task in tasks {
        engine.admit(ends(task)).unwrap();
    }
    let each = (held_bytes() - before) / CLIENTS;
    assert!(each <= CLIENT_BYTES_MAX, "{each} bytes for each attached client");
}
