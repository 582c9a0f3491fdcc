//! One open fake device: the device interface on top of the fabric's state. Used by its shard; its peers' threads reach it
//! only through the fabric's lock.

#![allow(unsafe_code, reason = "the contract of the seam is unsafe to fulfil; memory is touched in memory.rs alone")]

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::fabric::Fabric;
use super::fault::Verb;
use super::memory::{Memory, copy_inline};
use super::queues::bell;
use super::settings::FakeSettings;
use crate::verbs::device::{
    Access, AsyncEvent, Attributes, Completion, Device, DmaBuf, Endpoint, MemoryKind, Piece, Post, QueuePair, Region,
    RegistrationEvent, VerbsError, Window, Work,
};

/// A device of a [`Fabric`]. Dropping it ends everything that it had; peers find its queue pairs gone.
#[derive(Debug)]
pub struct FakeDevice {
    fabric: Fabric,
    context: u32,
    attributes: Attributes,
    completions: Arc<EventFd>,
    events: Arc<EventFd>,
    register_time_per_mib: Duration,
    /// Registrations and deregistrations in progress, and when each is done.
    begun: VecDeque<(Instant, Begun)>,
}

#[derive(Debug)]
enum Begun {
    Register { ticket: u64, memory: Memory, access: Access },
    Deregister(u32),
}

impl FakeDevice {
    pub(super) fn open(fabric: &Fabric, settings: FakeSettings) -> Self {
        let (completions, events) = (bell(EfdFlags::empty()), bell(EfdFlags::EFD_SEMAPHORE));
        let bells = (Arc::clone(&completions), Arc::clone(&events));
        let (context, gid) = fabric.lock().open(settings.clone(), bells);
        let register_time_per_mib = settings.register_time_per_mib;
        let attributes = Attributes {
            chosen: format!("{} is a fake device", settings.name),
            device: settings.name,
            port: 1,
            gid_index: 1,
            gid,
            lid: 0,
            mtu: settings.mtu,
            reads: settings.reads,
            has_windows: settings.has_windows,
            work_bytes_max: settings.work_bytes_max,
            send_depth: settings.send_depth,
            receive_depth: settings.receive_depth,
            completion_depth: settings.completion_depth,
            direct: if settings.registers_direct {
                Ok(())
            } else {
                Err("this fake device registers no dma-buf".into())
            },
        };
        Self {
            fabric: fabric.clone(),
            context,
            attributes,
            completions,
            events,
            register_time_per_mib,
            begun: VecDeque::new(),
        }
    }

    fn time_of(&self, bytes: u64) -> Duration {
        self.register_time_per_mib.mul_f64(bytes as f64 / f64::from(1 << 20))
    }

    /// Sets when what is begun now will be done: one after the other.
    fn begin(&mut self, bytes: u64, begun: Begun) {
        let free = self.begun.back().map_or_else(Instant::now, |(done, _)| *done);
        self.begun.push_back((free.max(Instant::now()) + self.time_of(bytes), begun));
    }

    /// The fabric that it belongs to.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }
}

// SAFETY: memory is copied only where `delivery.rs` carries out a posted request, under the fabric's lock, and only within
// regions that are registered at that moment; a completion is told after that, and `destroy` and `drop` take the lock to
// remove requests that were not carried out. Inline bytes are read within `post`.
unsafe impl Device for FakeDevice {
    fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    fn refresh(&mut self) -> Result<(), VerbsError> {
        let network = self.fabric.lock();
        let adapter = &network.adapters[network.contexts[&self.context].adapter];
        if adapter.gid == [0; 16] {
            return Err(VerbsError::new("fake refresh", "the port has no GID"));
        }
        (self.attributes.gid, self.attributes.lid) = (adapter.gid, adapter.lid);
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
        std::thread::sleep(self.time_of(bytes as u64));
        let mut network = self.fabric.lock();
        network.admit(self.context, Verb::Register)?;
        network.note_call(self.context, bytes as u64);
        // SAFETY: the caller keeps the bytes mapped until the region is deregistered, which drops this; what is copied
        // later is as the callers of `post` and `post_receives` promise.
        let memory = unsafe { Memory::new(address, bytes as u64) };
        let memory = memory.ok_or_else(|| Verb::Register.error("invalid argument: no bytes, or too many"))?;
        network.register(self.context, memory, access)
    }

    fn deregister(&mut self, region: u32) {
        let bytes = self.fabric.lock().deregister(self.context, region);
        self.fabric.lock().note_call(self.context, bytes);
        std::thread::sleep(self.time_of(bytes));
    }

    unsafe fn begin_register(
        &mut self,
        ticket: u64,
        address: u64,
        bytes: usize,
        access: Access,
    ) -> Result<(), VerbsError> {
        // SAFETY: the caller keeps the bytes mapped until the region is deregistered, which drops this.
        let memory = unsafe { Memory::new(address, bytes as u64) };
        let memory = memory.ok_or_else(|| Verb::Register.error("invalid argument: no bytes, or too many"))?;
        self.begin(bytes as u64, Begun::Register { ticket, memory, access });
        Ok(())
    }

    fn begin_register_direct(&mut self, ticket: u64, memory: Arc<DmaBuf>, access: Access) -> Result<(), VerbsError> {
        self.attributes.direct.clone().map_err(|reason| Verb::Register.error(reason))?;
        let (bytes, memory) = (memory.bytes(), Memory::of_device(memory.as_ref())?);
        self.begin(bytes, Begun::Register { ticket, memory, access });
        Ok(())
    }

    fn begin_deregister(&mut self, region: u32) {
        // Any use from now on is detected.
        let bytes = self.fabric.lock().deregister(self.context, region);
        self.begin(bytes, Begun::Deregister(region));
    }

    fn next_registered(&mut self) -> Option<RegistrationEvent> {
        let (_, begun) = self.begun.pop_front_if(|(done, _)| *done <= Instant::now())?;
        Some(match begun {
            Begun::Register { ticket, memory, access } => {
                let mut network = self.fabric.lock();
                let admitted = network.admit(self.context, Verb::Register);
                let region = admitted.and_then(|()| network.register(self.context, memory, access));
                RegistrationEvent::Registered { ticket, region }
            }
            Begun::Deregister(region) => RegistrationEvent::Deregistered(region),
        })
    }

    fn allocate_window(&mut self) -> Result<Window, VerbsError> {
        self.fabric.lock().allocate_window(self.context)
    }

    fn free_window(&mut self, window: u32) {
        self.fabric.lock().free_window(self.context, window);
    }

    fn create(&mut self) -> Result<QueuePair, VerbsError> {
        self.fabric.lock().create(self.context)
    }

    fn connect(&mut self, queue_pair: u64, first_packet: u32, peer: &Endpoint) -> Result<(), VerbsError> {
        self.fabric.lock().connect(self.context, queue_pair, first_packet, *peer)
    }

    fn stop(&mut self, queue_pair: u64) -> bool {
        self.fabric.lock().stop(self.context, queue_pair)
    }

    fn destroy(&mut self, queue_pair: u64) {
        self.fabric.lock().destroy(self.context, queue_pair);
    }

    unsafe fn post(&mut self, queue_pair: u64, posts: &[Post]) -> Result<(), (usize, VerbsError)> {
        let mut network = self.fabric.lock();
        let mut outcome = Ok(());
        for (taken, post) in posts.iter().enumerate() {
            let number = match network.may_post(self.context, queue_pair, post) {
                Ok(number) => number,
                Err(error) => {
                    outcome = Err((taken, error));
                    break;
                }
            };
            let inline = match post.work {
                // SAFETY: the caller promises that local memory which a request names is mapped, and not written to.
                Work::SendInline { address, bytes } => unsafe { copy_inline(address, bytes) },
                _ => Box::default(),
            };
            network.enqueue(number, post, inline);
        }
        network.progress();
        outcome
    }

    unsafe fn post_receives(&mut self, buffers: &[(u64, Piece)]) -> Result<(), VerbsError> {
        self.fabric.lock().post_receives(self.context, buffers)
    }

    fn poll(&mut self, into: &mut Vec<Completion>, most: usize) -> Result<usize, VerbsError> {
        self.fabric.lock().poll(self.context, into, most)
    }

    fn arm(&mut self) -> Result<(), VerbsError> {
        self.fabric.lock().arm(self.context)
    }

    fn disarm(&mut self) {
        // It is not an error if there is nothing to read.
        let _ = self.completions.read();
    }

    fn completion_descriptor(&self) -> BorrowedFd<'_> {
        self.completions.as_fd()
    }

    fn event_descriptor(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    fn next_event(&mut self) -> Option<AsyncEvent> {
        self.fabric.lock().context(self.context).events.pop()
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        self.fabric.lock().close(self.context);
    }
}
