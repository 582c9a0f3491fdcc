//! The real device: the system's libibverbs, loaded when the program starts if it is installed.
//!
//! An [`IbDevice`] is used by the thread that opened it. Its resources are bounded by its shard's requests; its queues have
//! the sizes that it was opened with. This is one of the places where Sealane calls foreign code: every pointer from the
//! library has one owner (`owned.rs`), and is used in `connect.rs` and `work.rs`.

#![allow(unsafe_code, reason = "calls the system's library")]

mod choose;
mod connect;
mod events;
mod memory;
mod open;
mod owned;
mod registrar;
mod slots;
mod sys;
mod windows;
mod work;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use hashbrown::HashMap;

pub use choose::{DeviceSummary, GidKind, GidSummary, PortState, PortSummary};
pub use open::devices;

use self::connect::Queues;
use self::owned::{
    Channel, CompletionQueue, Connection, Context, Domain, MemoryRegion, MemoryWindow, SharedReceiveQueue, failure,
};
use self::registrar::{Done, Moved, Registrar};
use self::slots::Slots;
use self::windows::Windows;
use self::work::{ReceiveList, SendList};
use super::VerbsSettings;
use super::device::{
    Access, AsyncEvent, Attributes, Completion, Device, DmaBuf, Endpoint, MemoryKind, Piece, Post, QueuePair, Region,
    RegistrationEvent, Remote, STOPPED, VerbsError, Window, Work,
};

/// An open RDMA device with one shard's queues. Not `Send`: it belongs to its shard.
pub struct IbDevice {
    // Dropped in this order. Windows go first, since neither a queue pair nor a region may end while a window is bound to it;
    // then everything goes before what it was created from.
    windows: Windows,
    connections: HashMap<u64, Pair>,
    receives: SharedReceiveQueue,
    completions: CompletionQueue,
    channel: Channel,
    registrar: Option<Registrar>,
    regions: Slots<MemoryRegion>,
    domain: Domain,
    context: Context,

    attributes: Attributes,
    /// Why this device and port were chosen.
    why: choose::Why,
    settings: VerbsSettings,
    next_connection: u64,
    send_list: SendList,
    receive_list: ReceiveList,
    polled: Box<[sys::ibv_wc]>,
    /// Completions taken out of the queue when a queue pair ended: some devices drop those that are still in it.
    held: VecDeque<Completion>,
    /// The device's failure was reported.
    failed: bool,
}

struct Pair {
    connection: Connection,
    inline_bytes: u32,
    /// Its peer may have sent to it.
    is_connected: bool,
}

impl IbDevice {
    /// The thread that registers memory, started on first use.
    fn registrar(&mut self) -> Result<&Registrar, VerbsError> {
        let registrar = match self.registrar.take() {
            Some(registrar) => registrar,
            // SAFETY: the fields' order drops it before the domain.
            None => unsafe { Registrar::start(&self.domain) }
                .map_err(|error| VerbsError::system("thread for registrations", &error))?,
        };
        Ok(self.registrar.insert(registrar))
    }

    /// Takes at most `most` entries out of the completion queue, with one call of the library.
    fn take(&mut self, most: usize) -> Result<&[sys::ibv_wc], VerbsError> {
        let most = most.min(self.polled.len());
        let room = i32::try_from(most).expect("a batch is small");
        // SAFETY: the queue lives, and there is room for as many entries as are asked for.
        let count = unsafe { sys::ibv_poll_cq(self.completions.as_ptr(), room, self.polled.as_mut_ptr()) };
        let count = usize::try_from(count).map_err(|_| VerbsError::system("ibv_poll_cq", &failure(count)))?;
        Ok(&self.polled[..count.min(most)])
    }

    /// Moves everything in the completion queue to `held`.
    fn hold_completions(&mut self) {
        let mut left = self.attributes.completion_depth as usize;
        while left > 0 {
            let Ok(taken) = self.take(left) else { return };
            if taken.is_empty() {
                return;
            }
            left -= taken.len();
            let taken = taken.len();
            self.held.extend(self.polled[..taken].iter().map(work::completion));
        }
    }
}

// SAFETY: memory is touched by the library and the device alone, as requests say; a queue pair is stopped and destroyed
// before `destroy` returns, and all of them with the device.
unsafe impl Device for IbDevice {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn refresh(&mut self) -> Result<(), VerbsError> {
        let ports = self.context.ports()?;
        let Attributes { device, port, gid, .. } = &self.attributes;
        let missing = || VerbsError::new("ibv_query_port", format!("port {port} is gone"));
        let found = ports.iter().find(|found| found.number == *port).ok_or_else(missing)?;
        let (gid, mtu, chosen) = choose::choose_again((device, found, &self.why), *gid, &self.settings)?;
        self.attributes.lid = if found.ethernet { 0 } else { found.lid };
        (self.attributes.gid_index, self.attributes.gid) = (gid.index, gid.gid);
        (self.attributes.mtu, self.attributes.chosen) = (mtu, chosen);
        Ok(())
    }

    unsafe fn register(
        &mut self,
        kind: MemoryKind,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<Region, VerbsError> {
        if let MemoryKind::Device(name) = kind {
            return Err(VerbsError::new("registration", format!("memory of a {name} device is not supported")));
        }
        let access = memory::access_flags(access, self.attributes.has_windows);
        // SAFETY: the caller keeps the bytes mapped; the fields' order drops regions before the domain.
        let region = unsafe { MemoryRegion::register(&self.domain, address, bytes, access) }
            .map_err(|error| memory::refused("ibv_reg_mr", bytes, &error))?;
        let (lkey, rkey) = region.keys();
        Ok(Region { id: self.regions.insert(region), lkey, rkey })
    }

    fn deregister(&mut self, region: u32) {
        self.regions.remove(region);
    }

    unsafe fn begin_register(
        &mut self,
        ticket: u64,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(), VerbsError> {
        let access = memory::access_flags(access, self.attributes.has_windows);
        // SAFETY: the caller keeps the bytes mapped.
        unsafe { self.registrar()?.register(ticket, address, bytes, access) };
        Ok(())
    }

    fn begin_register_direct(&mut self, ticket: u64, memory: Arc<DmaBuf>, access: Access) -> Result<(), VerbsError> {
        let can = self.attributes.direct.clone();
        can.map_err(|reason| VerbsError::new("registration of a device's memory", reason))?;
        let access = memory::access_flags(access, self.attributes.has_windows);
        self.registrar()?.register_direct(ticket, memory, access);
        Ok(())
    }

    fn begin_deregister(&mut self, region: u32) {
        let Some(memory) = self.regions.remove(region) else { return };
        if let Some(registrar) = &self.registrar {
            registrar.deregister(region, memory);
        }
    }

    fn next_registered(&mut self) -> Option<RegistrationEvent> {
        Some(match self.registrar.as_ref()?.next()? {
            Done::Registered { ticket, region } => {
                let region = region.map(|Moved(region)| {
                    let (lkey, rkey) = region.keys();
                    Region { id: self.regions.insert(region), lkey, rkey }
                });
                RegistrationEvent::Registered { ticket, region }
            }
            Done::Deregistered { id } => RegistrationEvent::Deregistered(id),
        })
    }

    fn allocate_window(&mut self) -> Result<Window, VerbsError> {
        // SAFETY: windows are the first of the fields, and `destroy` ends those that are bound through its queue pair.
        let window = unsafe { MemoryWindow::allocate(&self.domain)? };
        Ok(self.windows.insert(window))
    }

    fn free_window(&mut self, window: u32) {
        self.windows.remove(window);
    }

    fn create(&mut self) -> Result<QueuePair, VerbsError> {
        let queues = Queues { domain: &self.domain, completions: &self.completions, receives: &self.receives };
        // One more than is reported, for the request that `stop` posts.
        // SAFETY: the fields' order drops queue pairs before the queues.
        let (connection, inline_bytes) = unsafe { connect::create(&queues, self.attributes.send_depth + 1)? };
        let id = self.next_connection;
        self.next_connection += 1;
        let number = connection.number();
        self.connections.insert(id, Pair { connection, inline_bytes, is_connected: false });
        Ok(QueuePair { id, number, inline_bytes })
    }

    fn connect(&mut self, queue_pair: u64, first_packet: u32, peer: &Endpoint) -> Result<(), VerbsError> {
        let missing = || VerbsError::new("connect", "there is no such queue pair");
        let pair = self.connections.get_mut(&queue_pair).ok_or_else(missing)?;
        pair.is_connected = true;
        connect::connect(&pair.connection, &self.attributes, &self.settings, first_packet, peer)
    }

    fn stop(&mut self, queue_pair: u64) -> bool {
        let Some(pair) = self.connections.get(&queue_pair).filter(|pair| pair.is_connected) else { return false };
        if let Err(error) = connect::stop(&pair.connection) {
            tracing::debug!(%error, "a queue pair could not be stopped before its end");
            return false;
        }
        // Flushed like all before it, and so the last one (the kernel's `ib_drain_qp` does the same).
        let nothing = Work::Write {
            from: Piece { address: 0, bytes: 0, lkey: 0 },
            to: Remote { address: 0, rkey: 0 },
            word: None,
        };
        self.send_list.clear();
        let last = Post { id: STOPPED, signaled: true, work: nothing };
        let pushed = self.send_list.push(&last, 0, &self.regions, &self.windows);
        // SAFETY: the request names no memory.
        let posted = unsafe { self.send_list.post(&pair.connection) };
        self.windows.end(queue_pair);
        pushed.is_ok() && posted.is_ok()
    }

    fn destroy(&mut self, queue_pair: u64) {
        let Some(pair) = self.connections.remove(&queue_pair) else { return };
        if let Err(error) = connect::stop(&pair.connection) {
            // It is destroyed all the same: this only means that fewer completions are kept.
            tracing::debug!(%error, "a queue pair could not be stopped before its end");
        }
        self.hold_completions();
        self.windows.end(queue_pair);
        drop(pair);
    }

    unsafe fn post(&mut self, queue_pair: u64, posts: &[Post]) -> Result<(), (usize, VerbsError)> {
        let Some(pair) = self.connections.get(&queue_pair) else {
            return Err((0, VerbsError::new("ibv_post_send", "there is no such queue pair")));
        };
        self.send_list.clear();
        let mut refused = Ok(());
        for (at, post) in posts.iter().enumerate() {
            let pushed = self.windows.note(queue_pair, post);
            let pushed =
                pushed.and_then(|()| self.send_list.push(post, pair.inline_bytes, &self.regions, &self.windows));
            if let Err(error) = pushed {
                refused = Err((at, error));
                break;
            }
        }
        // SAFETY: the caller answers for the memory.
        unsafe { self.send_list.post(&pair.connection)? };
        refused
    }

    unsafe fn post_receives(&mut self, buffers: &[(u64, Piece)]) -> Result<(), VerbsError> {
        // SAFETY: the caller answers for the memory.
        unsafe { self.receive_list.post(&self.receives, buffers) }
    }

    fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize, VerbsError> {
        let mut moved = 0;
        // Usually it is empty: an idle shard polls a million times a second.
        if !self.held.is_empty() {
            moved = self.held.len().min(most);
            into.extend(self.held.drain(..moved));
        }
        while moved < most {
            let asked = (most - moved).min(self.polled.len());
            let taken = self.take(asked)?;
            let count = taken.len();
            for taken in taken {
                into.push(work::completion(taken));
            }
            moved += count;
            if count < asked {
                break;
            }
        }
        Ok(moved)
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        // SAFETY: the queue lives.
        let code = unsafe { sys::ibv_req_notify_cq(self.completions.as_ptr(), 0) };
        if code == 0 { Ok(()) } else { Err(VerbsError::system("ibv_req_notify_cq", &failure(code))) }
    }

    fn disarm(&mut self) {
        self.channel.drain();
    }

    fn completion_descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.context.event_descriptor()
    }

    fn next_event(&mut self) -> Option<AsyncEvent> {
        events::next(&self.context, self.attributes.port, &mut self.failed)
    }
}
