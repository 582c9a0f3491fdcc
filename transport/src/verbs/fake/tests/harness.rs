//! A small safe host around a fake device: its memory lives as long as the device, so that every request may be posted.

#![allow(unsafe_code, reason = "calls the seam, whose contract the host keeps by owning the memory")]

use std::cell::Cell;
use std::os::fd::BorrowedFd;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::verbs::device::{
    Access, Completion, Device, Endpoint, Grant, MemoryKind, Piece, Post, QueuePair, RECEIVED, Region, Remote, Status,
    VerbsError, Window, Work,
};
use crate::verbs::fake::{Fabric, FakeDevice, FakeSettings};

/// Bytes of a host's memory.
pub(super) const MEMORY: usize = 4096;

/// First packet numbers of the two ends.
pub(super) const FIRST_PACKETS: (u32, u32) = (0x12_3456, 0x65_4321);

pub(super) struct Host {
    /// Before the memory: dropped first.
    pub(super) device: FakeDevice,
    pub(super) region: Region,
    /// Cells: the device writes to them through a pointer.
    memory: Vec<Cell<u8>>,
}

impl Host {
    pub(super) fn new(fabric: &Fabric, settings: FakeSettings) -> Self {
        let access = if settings.has_windows { Access::Windows } else { Access::Peers };
        let memory = vec![Cell::new(0); MEMORY];
        let mut device = fabric.open(settings);
        // SAFETY: the host keeps the memory for as long as the device.
        let region = unsafe { device.register(MemoryKind::Host, memory.as_ptr() as u64, MEMORY, access) };
        Self { device, region: region.expect("a region"), memory }
    }

    /// Registers the front of the memory once more.
    pub(super) fn register(&mut self, bytes: usize) -> Result<Region, VerbsError> {
        self.register_as(bytes, Access::Windows)
    }

    pub(super) fn register_as(&mut self, bytes: usize, access: Access) -> Result<Region, VerbsError> {
        assert!(bytes <= MEMORY || bytes == usize::MAX, "more than there is");
        // SAFETY: the host keeps the memory for as long as the device; what passes the address space is refused.
        unsafe { self.device.register(MemoryKind::Host, self.address(0), bytes, access) }
    }

    pub(super) fn address(&self, offset: usize) -> u64 {
        self.memory.as_ptr() as u64 + offset as u64
    }

    pub(super) fn piece(&self, offset: usize, bytes: u32) -> Piece {
        Piece { address: self.address(offset), bytes, lkey: self.region.lkey }
    }

    /// The bytes at `offset` as a peer addresses them, under this key.
    pub(super) fn remote(&self, offset: usize, rkey: u32) -> Remote {
        Remote { address: self.address(offset), rkey }
    }

    pub(super) fn fill(&self, offset: usize, bytes: &[u8]) {
        for (cell, &byte) in self.memory[offset..offset + bytes.len()].iter().zip(bytes) {
            cell.set(byte);
        }
    }

    pub(super) fn bytes(&self, offset: usize, count: usize) -> Vec<u8> {
        self.memory[offset..offset + count].iter().map(Cell::get).collect()
    }

    pub(super) fn post(&mut self, queue_pair: QueuePair, posts: &[Post]) -> Result<(), (usize, VerbsError)> {
        // SAFETY: regions are of the host's memory alone, which it keeps; it touches no byte during a call, and tests look
        // at bytes only after the completion. Inline bytes are named by `inline`, within the memory.
        unsafe { self.device.post(queue_pair.id, posts) }
    }

    /// Posts one request with a completion.
    pub(super) fn ask(&mut self, queue_pair: QueuePair, id: u64, work: Work) {
        self.post(queue_pair, &[Post { id, signaled: true, work }]).expect("a request that is taken");
    }

    pub(super) fn send(&mut self, queue_pair: QueuePair, id: u64, bytes: &[u8]) {
        self.fill(0, bytes);
        self.ask(queue_pair, id, Work::Send(self.piece(0, bytes.len() as u32)));
    }

    pub(super) fn inline(&self, offset: usize, bytes: u32) -> Work {
        assert!(offset + bytes as usize <= MEMORY, "outside of the memory");
        Work::SendInline { address: self.address(offset), bytes }
    }

    pub(super) fn receives(&mut self, buffers: &[(u64, Piece)]) -> Result<(), VerbsError> {
        // SAFETY: as in `post`.
        unsafe { self.device.post_receives(buffers) }
    }

    pub(super) fn receive(&mut self, id: u64, offset: usize, bytes: u32) {
        self.receives(&[(RECEIVED | id, self.piece(offset, bytes))]).expect("a buffer that is taken");
    }

    pub(super) fn poll(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        let count = self.device.poll(&mut completions, usize::MAX).expect("a device that works");
        assert_eq!(count, completions.len());
        completions
    }

    /// Ids, without the bit for receives, and statuses of all waiting completions.
    pub(super) fn outcomes(&mut self) -> Vec<(u64, Status)> {
        self.poll().into_iter().map(|completion| (completion.id & !RECEIVED, completion.status)).collect()
    }

    pub(super) fn create(&mut self) -> QueuePair {
        self.device.create().expect("a queue pair")
    }

    /// What the peer needs to connect.
    pub(super) fn endpoint(&self, queue_pair: QueuePair, first_packet: u32) -> Endpoint {
        let of = self.device.attributes();
        let (number, gid, lid, mtu, reads) = (queue_pair.number, of.gid, of.lid, of.mtu, of.reads);
        Endpoint { number, first_packet, gid, lid, mtu, reads }
    }

    pub(super) fn window(&mut self) -> Window {
        self.device.allocate_window().expect("a window")
    }

    /// A window, and the request that binds it to its next key, which the window already has.
    pub(super) fn bind(&mut self, offset: usize, bytes: u64, grant: Grant) -> (Window, Work) {
        let window = self.window();
        let (region, address, rkey) = (self.region.id, self.address(offset), window.next_key());
        (Window { rkey, ..window }, Work::Bind { window, rkey, region, address, bytes, grant })
    }

    /// Opens bytes of memory to the peer of the queue pair.
    pub(super) fn open(&mut self, queue_pair: QueuePair, offset: usize, bytes: u64, grant: Grant) -> Window {
        let (window, work) = self.bind(offset, bytes, grant);
        self.ask(queue_pair, 0, work);
        assert_eq!(self.outcomes(), [(0, Status::SUCCESS)]);
        window
    }
}

/// Two hosts with a connection between them.
pub(super) struct Pair {
    pub(super) fabric: Fabric,
    pub(super) near: Host,
    pub(super) far: Host,
    pub(super) here: QueuePair,
    pub(super) there: QueuePair,
}

impl Pair {
    pub(super) fn new() -> Self {
        Self::with(FakeSettings::default())
    }

    /// Both devices have these settings, and the names `near` and `far`.
    pub(super) fn with(settings: FakeSettings) -> Self {
        Self::on(&Fabric::new(1), settings)
    }

    pub(super) fn on(fabric: &Fabric, settings: FakeSettings) -> Self {
        let mut near = Host::new(fabric, FakeSettings { name: "near".into(), ..settings.clone() });
        let mut far = Host::new(fabric, FakeSettings { name: "far".into(), ..settings });
        let (here, there) = join(&mut near, &mut far);
        Self { fabric: fabric.clone(), near, far, here, there }
    }

    /// Makes another connection between the two.
    pub(super) fn join(&mut self) -> (QueuePair, QueuePair) {
        join(&mut self.near, &mut self.far)
    }

    /// The near side sends `bytes`; returns the status.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Status {
        let here = self.here;
        self.near.send(here, 7, bytes);
        self.status()
    }

    /// The near side posts `work`; returns the status.
    pub(super) fn ask(&mut self, work: Work) -> Status {
        let here = self.here;
        self.near.ask(here, 7, work);
        self.status()
    }

    fn status(&mut self) -> Status {
        match self.near.outcomes()[..] {
            [(7, status)] => status,
            ref others => panic!("not one completion: {others:?}"),
        }
    }

    /// Checks that nobody overran anything or broke the contract.
    pub(super) fn check(&self) {
        assert_eq!(self.fabric.receiver_not_ready(), 0);
        assert_eq!(self.fabric.completion_overruns(), 0);
        assert_eq!(self.fabric.violations(), [""; 0]);
    }
}

fn join(near: &mut Host, far: &mut Host) -> (QueuePair, QueuePair) {
    let (here, there) = (near.create(), far.create());
    let (to_far, to_near) = (far.endpoint(there, FIRST_PACKETS.1), near.endpoint(here, FIRST_PACKETS.0));
    near.device.connect(here.id, FIRST_PACKETS.0, &to_far).expect("a connection");
    far.device.connect(there.id, FIRST_PACKETS.1, &to_near).expect("a connection");
    (here, there)
}

pub(super) fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::new(descriptor, PollFlags::POLLIN)];
    poll(&mut watched, PollTimeout::ZERO).expect("a descriptor that can be polled") == 1
}
