//! Tries the verbs that Sealane uses on the first RDMA device of this host: two shards' devices in one process, one
//! connected to the other. A line for each thing that holds; the status is 0 only if all do.
//!
//! With the argument `events` it waits instead for what the device tells of itself, until the port was down and up again.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use sealane_transport::verbs::VerbsSettings;
use sealane_transport::verbs::device::{
    Access, AsyncEvent, Completion, Device, Endpoint, Grant, MemoryKind, Piece, Post, QueuePair, RECEIVED, Region,
    Remote, Status, Window, Work,
};
use sealane_transport::verbs::ibverbs::{IbDevice, devices};

const PAGE: usize = 4096;
/// Receive buffers of 512 bytes in page 0; then a page that is sent from, one that peers write to and read from, and one
/// that reads go to.
const PAGES: usize = 4;
const SOURCE: usize = PAGE;
const SHARED: usize = 2 * PAGE;
const SINK: usize = 3 * PAGE;
const BUFFER: u32 = 512;
const COMPLETION_DEPTH: u32 = 256;
const SEND_DEPTH: u32 = 16;
/// After this a completion is given up.
const PATIENCE: Duration = Duration::from_secs(20);

type Outcome<T = ()> = Result<T, String>;

/// One shard: its device and its memory.
struct Shard {
    device: IbDevice,
    region: Region,
    completions: Vec<Completion>,
    /// Outlives the device, whose fields are dropped first.
    memory: Box<[u8]>,
}

impl Shard {
    fn open() -> Outcome<Self> {
        let mut device = IbDevice::open(&VerbsSettings::default(), COMPLETION_DEPTH, SEND_DEPTH).map_err(said)?;
        let mut memory = vec![0; PAGES * PAGE].into_boxed_slice();
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        // SAFETY: the memory is dropped after the device.
        let region = unsafe { device.register(MemoryKind::Host, address, memory.len(), Access::Windows) };
        let region = region.map_err(said)?;
        let mut shard = Self { device, region, completions: Vec::new(), memory };
        for at in 0..PAGE / BUFFER as usize {
            shard.give(at as u64)?;
        }
        Ok(shard)
    }

    fn address(&self, at: usize) -> u64 {
        self.memory.as_ptr().addr() as u64 + at as u64
    }

    fn piece(&self, at: usize, bytes: u32) -> Piece {
        Piece { address: self.address(at), bytes, lkey: self.region.lkey }
    }

    /// Bytes that the device may have written.
    fn bytes(&self, at: usize, count: usize) -> Vec<u8> {
        assert!(at + count <= self.memory.len());
        // SAFETY: within the memory; a volatile read, for the device writes behind the compiler's back.
        (0..count).map(|next| unsafe { self.memory.as_ptr().add(at + next).read_volatile() }).collect()
    }

    fn fill(&mut self, at: usize, count: usize, seed: u8) -> Vec<u8> {
        let bytes: Vec<u8> = (0..count).map(|place| (place as u8).wrapping_mul(31).wrapping_add(seed)).collect();
        self.memory[at..at + count].copy_from_slice(&bytes);
        bytes
    }

    fn give(&mut self, buffer: u64) -> Outcome {
        let piece = self.piece(buffer as usize * BUFFER as usize, BUFFER);
        // SAFETY: the memory outlives the device, and is read after completions only.
        unsafe { self.device.post_receives(&[(RECEIVED | buffer, piece)]) }.map_err(said)
    }

    fn post(&mut self, pair: QueuePair, works: &[Work]) -> Outcome {
        let last = works.len() - 1;
        let posts: Vec<Post> =
            (0..).zip(works).map(|(at, work)| Post { id: at, signaled: at as usize == last, work: *work }).collect();
        // SAFETY: the memory outlives the device; where it is written to it is read after completions only.
        unsafe { self.device.post(pair.id, &posts) }.map_err(|(taken, error)| format!("{taken} posted, then {error}"))
    }

    /// The next completion.
    fn next(&mut self) -> Outcome<Completion> {
        let until = Instant::now() + PATIENCE;
        while self.completions.is_empty() {
            self.device.poll(&mut self.completions, 8).map_err(said)?;
            if Instant::now() > until {
                return Err("no completion came".into());
            }
            std::thread::yield_now();
        }
        Ok(self.completions.remove(0))
    }

    /// The next completion, which is of a request of our own and has this status.
    fn ends(&mut self, status: Status) -> Outcome {
        let completion = self.next()?;
        holds(completion.id & RECEIVED == 0 && completion.status == status, completion)
    }

    /// The bytes of the next completion, which is of a receive buffer; the buffer is given back.
    fn receives(&mut self, word: Option<u32>, count: usize) -> Outcome<Vec<u8>> {
        let got = self.next()?;
        let received = got.id & RECEIVED != 0 && got.status.is_success();
        holds(received && got.word == word && got.bytes as usize == count, got)?;
        let buffer = got.id & !RECEIVED;
        let bytes = self.bytes(buffer as usize * BUFFER as usize, count.min(BUFFER as usize));
        self.give(buffer)?;
        Ok(bytes)
    }

    /// Opens part of the shared page to the peer of a queue pair.
    fn bind(&mut self, pair: QueuePair, window: Window, at: usize, bytes: u64, grant: Grant) -> Outcome<Window> {
        let rkey = window.next_key();
        let (region, address) = (self.region.id, self.address(at));
        self.post(pair, &[Work::Bind { window, rkey, region, address, bytes, grant }])?;
        self.ends(Status::SUCCESS)?;
        Ok(Window { rkey, ..window })
    }
}

fn said(error: impl std::error::Error) -> String {
    error.to_string()
}

fn holds(condition: bool, what: impl Debug) -> Outcome {
    if condition { Ok(()) } else { Err(format!("{what:?}")) }
}

/// Two shards with a queue pair each, connected.
struct Pairing {
    a: QueuePair,
    b: QueuePair,
}

fn pair(a: &mut Shard, b: &mut Shard) -> Outcome<Pairing> {
    let ends = Pairing { a: a.device.create().map_err(said)?, b: b.device.create().map_err(said)? };
    let endpoint = |shard: &Shard, pair: QueuePair, first_packet| {
        let own = shard.device.attributes();
        Endpoint { number: pair.number, first_packet, gid: own.gid, lid: own.lid, mtu: own.mtu, reads: own.reads }
    };
    let (of_a, of_b) = (endpoint(a, ends.a, 0x00ff_fffe), endpoint(b, ends.b, 77));
    a.device.connect(ends.a.id, of_a.first_packet, &of_b).map_err(said)?;
    b.device.connect(ends.b.id, of_b.first_packet, &of_a).map_err(said)?;
    Ok(ends)
}

fn unpair(a: &mut Shard, b: &mut Shard, ends: &Pairing) {
    a.device.destroy(ends.a.id);
    b.device.destroy(ends.b.id);
    settle(a, b);
}

/// Drops completions that nobody waits for, and gives their buffers back.
fn settle(a: &mut Shard, b: &mut Shard) {
    for shard in [a, b] {
        while shard.device.poll(&mut shard.completions, 8).is_ok_and(|count| count > 0) {}
        let flushed: Vec<u64> = shard.completions.drain(..).map(|completion| completion.id).collect();
        for id in flushed.into_iter().filter(|id| id & RECEIVED != 0) {
            shard.give(id & !RECEIVED).expect("room for a buffer that came back");
        }
    }
}

fn a_send(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    let bytes = a.fill(SOURCE, 300, 1);
    let piece = a.piece(SOURCE, 300);
    a.post(ends.a, &[Work::Send(piece)])?;
    a.ends(Status::SUCCESS)?;
    holds(b.receives(None, 300)? == bytes, "other bytes")?;
    unpair(a, b, &ends);
    Ok(())
}

fn an_inline_send(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    let bytes = vec![7; ends.a.inline_bytes as usize];
    let work = Work::SendInline { address: bytes.as_ptr().expose_provenance() as u64, bytes: ends.a.inline_bytes };
    a.post(ends.a, &[work, work])?;
    drop(bytes.clone());
    a.ends(Status::SUCCESS)?;
    for _ in 0..2 {
        holds(b.receives(None, bytes.len())? == bytes, "other bytes")?;
    }
    unpair(a, b, &ends);
    Ok(())
}

/// Writes through a window that is bound to just the bytes that are written.
fn a_write_through_a_window(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    b.memory[SHARED..SHARED + PAGE].fill(0xee);
    let window = b.device.allocate_window().map_err(said)?;
    let open = b.bind(ends.b, window, SHARED + 8, 1000, Grant::Write)?;
    let bytes = a.fill(SOURCE, 1000, 2);
    let (from, to) = (a.piece(SOURCE, 1000), Remote { address: b.address(SHARED + 8), rkey: open.rkey });
    a.post(ends.a, &[Work::Write { from, to, word: Some(0x0102_0304) }])?;
    a.ends(Status::SUCCESS)?;
    b.receives(Some(0x0102_0304), 1000)?;
    let shared = b.bytes(SHARED, PAGE);
    holds(shared[8..1008] == bytes, "other bytes")?;
    holds(shared[..8].iter().chain(&shared[1008..]).all(|byte| *byte == 0xee), "bytes beside were written")?;
    b.post(ends.b, &[Work::Invalidate { rkey: open.rkey }])?;
    b.ends(Status::SUCCESS)?;
    // The same window again, with its next key.
    let again = b.bind(ends.b, open, SHARED, 16, Grant::Write)?;
    holds(again.rkey != open.rkey, again)?;
    let (from, to) = (a.piece(SOURCE, 16), Remote { address: b.address(SHARED), rkey: again.rkey });
    a.post(ends.a, &[Work::Write { from, to, word: None }])?;
    a.ends(Status::SUCCESS)?;
    holds(b.bytes(SHARED, 16) == bytes[..16], "other bytes")?;
    // Bound to the end: the queue pair ends under it.
    unpair(a, b, &ends);
    b.device.free_window(window.id);
    Ok(())
}

/// A request of the peer that the window does not allow.
fn refused(a: &mut Shard, b: &mut Shard, grant: Grant, ask: impl Fn(&Shard, &Shard, Window) -> Work) -> Outcome {
    let ends = pair(a, b)?;
    b.memory[SHARED..SHARED + PAGE].fill(0xee);
    let window = b.device.allocate_window().map_err(said)?;
    let open = b.bind(ends.b, window, SHARED + 64, 1000, grant)?;
    let work = ask(a, b, open);
    a.post(ends.a, &[work])?;
    a.ends(Status::REMOTE_ACCESS)?;
    holds(b.bytes(SHARED, PAGE).iter().all(|byte| *byte == 0xee), "bytes were written")?;
    let piece = a.piece(SOURCE, 1);
    a.post(ends.a, &[Work::Send(piece)])?;
    a.ends(Status::FLUSHED)?;
    // The other side's queue pair is dead as well, told or not.
    let piece = b.piece(SOURCE, 1);
    b.post(ends.b, &[Work::Send(piece)])?;
    let status = loop {
        let completion = b.next()?;
        println!("        at the refusing side: {completion:?}");
        if completion.id & RECEIVED == 0 {
            break completion.status;
        }
    };
    holds(!status.is_success(), status)?;
    b.device.free_window(window.id);
    unpair(a, b, &ends);
    Ok(())
}

fn a_write_outside(a: &mut Shard, b: &mut Shard) -> Outcome {
    refused(a, b, Grant::Write, |a, b, open| {
        let to = Remote { address: b.address(SHARED + 65), rkey: open.rkey };
        Work::Write { from: a.piece(SOURCE, 1000), to, word: Some(1) }
    })
}

fn a_write_outside_of_the_region(a: &mut Shard, b: &mut Shard) -> Outcome {
    refused(a, b, Grant::Write, |a, b, open| {
        let to = Remote { address: b.address(PAGES * PAGE - 10), rkey: open.rkey };
        Work::Write { from: a.piece(SOURCE, 11), to, word: Some(1) }
    })
}

fn a_write_through_a_reading_window(a: &mut Shard, b: &mut Shard) -> Outcome {
    refused(a, b, Grant::Read, |a, b, open| {
        let to = Remote { address: b.address(SHARED + 64), rkey: open.rkey };
        Work::Write { from: a.piece(SOURCE, 10), to, word: None }
    })
}

fn a_write_by_the_region_s_key(a: &mut Shard, b: &mut Shard) -> Outcome {
    refused(a, b, Grant::Write, |a, b, _| {
        let to = Remote { address: b.address(SHARED + 64), rkey: b.region.rkey };
        Work::Write { from: a.piece(SOURCE, 10), to, word: None }
    })
}

fn a_read_through_a_window(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    let bytes = b.fill(SHARED, 2000, 3);
    let window = b.device.allocate_window().map_err(said)?;
    let open = b.bind(ends.b, window, SHARED, 2000, Grant::Read)?;
    let (into, from) = (a.piece(SINK, 2000), Remote { address: b.address(SHARED), rkey: open.rkey });
    a.post(ends.a, &[Work::Read { into, from }])?;
    a.ends(Status::SUCCESS)?;
    holds(a.bytes(SINK, 2000) == bytes, "other bytes")?;
    b.device.free_window(window.id);
    unpair(a, b, &ends);
    Ok(())
}

fn an_invalidated_window(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    let window = b.device.allocate_window().map_err(said)?;
    let open = b.bind(ends.b, window, SHARED, 100, Grant::Write)?;
    b.post(ends.b, &[Work::Invalidate { rkey: open.rkey }])?;
    b.ends(Status::SUCCESS)?;
    let (from, to) = (a.piece(SOURCE, 100), Remote { address: b.address(SHARED), rkey: open.rkey });
    a.post(ends.a, &[Work::Write { from, to, word: None }])?;
    a.ends(Status::REMOTE_ACCESS)?;
    unpair(a, b, &ends);
    // It ended with the queue pair.
    let ends = pair(a, b)?;
    let gone = b.bind(ends.b, open, SHARED, 100, Grant::Write);
    b.device.free_window(window.id);
    unpair(a, b, &ends);
    holds(gone.is_err(), "a bind of a window that has ended")
}

/// The second time is refused before the device hears of it.
fn a_window_closed_twice(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    let window = b.device.allocate_window().map_err(said)?;
    let open = b.bind(ends.b, window, SHARED, 100, Grant::Write)?;
    b.post(ends.b, &[Work::Invalidate { rkey: open.rkey }])?;
    b.ends(Status::SUCCESS)?;
    let again = b.post(ends.b, &[Work::Invalidate { rkey: open.rkey }]);
    b.device.free_window(window.id);
    unpair(a, b, &ends);
    holds(again.is_err(), "closed twice")
}

/// A window is of one queue pair: the key is worth nothing to another peer.
fn a_window_of_another_queue_pair(a: &mut Shard, b: &mut Shard) -> Outcome {
    let (first, second) = (pair(a, b)?, pair(a, b)?);
    let window = b.device.allocate_window().map_err(said)?;
    let open = b.bind(first.b, window, SHARED, 100, Grant::Write)?;
    let (from, to) = (a.piece(SOURCE, 100), Remote { address: b.address(SHARED), rkey: open.rkey });
    a.post(second.a, &[Work::Write { from, to, word: None }])?;
    a.ends(Status::REMOTE_ACCESS)?;
    b.device.free_window(window.id);
    unpair(a, b, &second);
    unpair(a, b, &first);
    Ok(())
}

fn readable(descriptor: BorrowedFd<'_>, patience: u16) -> Outcome<bool> {
    let mut descriptors = [PollFd::new(descriptor, PollFlags::POLLIN)];
    Ok(poll(&mut descriptors, PollTimeout::from(patience)).map_err(said)? > 0)
}

fn a_completion_event(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    for round in 0..3 {
        b.device.arm().map_err(said)?;
        holds(!readable(b.device.completion_descriptor(), 0)?, "readable before")?;
        let bytes = a.fill(SOURCE, 40, round);
        let piece = a.piece(SOURCE, 40);
        a.post(ends.a, &[Work::Send(piece)])?;
        holds(readable(b.device.completion_descriptor(), 10_000)?, "never readable")?;
        b.device.disarm();
        holds(!readable(b.device.completion_descriptor(), 0)?, "readable after")?;
        holds(b.receives(None, 40)? == bytes, "other bytes")?;
        a.ends(Status::SUCCESS)?;
    }
    unpair(a, b, &ends);
    Ok(())
}

fn a_full_send_queue(a: &mut Shard, b: &mut Shard) -> Outcome {
    let ends = pair(a, b)?;
    let piece = a.piece(SOURCE, 1);
    // The device may have more room than was asked for.
    let posts = vec![Post { id: 1, signaled: false, work: Work::Send(piece) }; 64 * SEND_DEPTH as usize];
    // SAFETY: the memory outlives the device.
    let (taken, error) = unsafe { a.device.post(ends.a.id, &posts) }.err().ok_or("all were taken")?;
    holds(taken >= SEND_DEPTH as usize && taken < posts.len(), (taken, error))?;
    unpair(a, b, &ends);
    Ok(())
}

fn an_address_that_is_not_mapped(a: &mut Shard, _: &mut Shard) -> Outcome {
    // SAFETY: the address is not mapped, so the registration is refused.
    let refused = unsafe { a.device.register(MemoryKind::Host, 4096, 4096, Access::Peers) };
    holds(refused.is_err(), refused)
}

fn many_queue_pairs(a: &mut Shard, b: &mut Shard) -> Outcome {
    let many: Vec<Pairing> = (0..128).map(|_| pair(a, b)).collect::<Result<_, _>>()?;
    for ends in &many {
        let piece = a.piece(SOURCE, 8);
        a.post(ends.a, &[Work::Send(piece)])?;
        a.ends(Status::SUCCESS)?;
        b.receives(None, 8)?;
    }
    for ends in &many {
        unpair(a, b, ends);
    }
    Ok(())
}

type Trial = (&'static str, fn(&mut Shard, &mut Shard) -> Outcome);

const TRIALS: [Trial; 15] = [
    ("a send", a_send),
    ("two inline sends", an_inline_send),
    ("a write with a word through a window, which is closed and opened again", a_write_through_a_window),
    ("a write outside of the window is refused", a_write_outside),
    ("a write outside of the window's region is refused", a_write_outside_of_the_region),
    ("a write through a window for reading is refused", a_write_through_a_reading_window),
    ("a write by the region's own key is refused", a_write_by_the_region_s_key),
    ("a read through a window", a_read_through_a_window),
    ("an invalidated window is refused", an_invalidated_window),
    ("a window is closed once", a_window_closed_twice),
    ("a window of another queue pair is refused", a_window_of_another_queue_pair),
    ("completion events", a_completion_event),
    ("a full send queue says how many it took", a_full_send_queue),
    ("memory that is not mapped is refused", an_address_that_is_not_mapped),
    ("128 queue pairs on one device", many_queue_pairs),
];

/// What Soft-RoCE's driver does not do: it compares an access with the region, and not with the window.
const UNCHECKED: [(&str, bool); 1] = [("a write outside of the window is refused", true)];

fn try_all() -> Outcome<bool> {
    for device in devices().map_err(said)? {
        println!("device {} {}", device.name, device.problem.as_deref().unwrap_or(""));
        for port in &device.ports {
            println!("  port {}: {}, MTU {}", port.number, port.state, port.mtu);
            for gid in &port.gids {
                println!("    {gid}");
            }
        }
    }
    let (mut a, mut b) = (Shard::open()?, Shard::open()?);
    println!("{:#?}", a.device.attributes());
    let ends = pair(&mut a, &mut b)?;
    println!("inline bytes: {}", ends.a.inline_bytes);
    unpair(&mut a, &mut b, &ends);
    let on_soft_roce = a.device.attributes().device.starts_with("rxe");
    let mut all = true;
    for (what, trial) in TRIALS {
        match trial(&mut a, &mut b) {
            Ok(()) => println!("ok      {what}"),
            Err(reason) if UNCHECKED.contains(&(what, on_soft_roce)) => {
                println!("known   {what}: not by Soft-RoCE ({reason})")
            }
            Err(reason) => {
                println!("FAILED  {what}: {reason}");
                all = false;
            }
        }
        settle(&mut a, &mut b);
        for (name, shard) in [("a", &mut a), ("b", &mut b)] {
            while let Some(event) = shard.device.next_event() {
                println!("        event at {name}: {event:?}");
            }
        }
    }
    // Ends with a connected queue pair and a bound window.
    let ends = pair(&mut a, &mut b)?;
    let window = b.device.allocate_window().map_err(said)?;
    b.bind(ends.b, window, SHARED, 100, Grant::Write)?;
    drop((a, b));
    println!("ok      a device that ends with all that it has");
    Ok(all)
}

fn watch() -> Outcome<bool> {
    let mut device = IbDevice::open(&VerbsSettings::default(), 16, 16).map_err(said)?;
    println!("watching {}", device.attributes().device);
    let mut was_down = false;
    loop {
        if !readable(device.event_descriptor(), 60_000)? {
            return Err("no event came".into());
        }
        while let Some(event) = device.next_event() {
            println!("event: {event:?}");
            was_down |= event == AsyncEvent::PortDown;
            if event == AsyncEvent::DeviceFailed || (event == AsyncEvent::PortUp && was_down) {
                return Ok(true);
            }
        }
    }
}

fn main() -> ExitCode {
    let outcome = match std::env::args().nth(1).as_deref() {
        Some("events") => watch(),
        _ => try_all(),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            println!("FAILED  {reason}");
            ExitCode::FAILURE
        }
    }
}
