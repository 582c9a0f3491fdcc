//! The thread that registers and deregisters clients' memory: both take time proportional to size, which would stall a
//! shard.
//!
//! One per open device, from first use until the device is closed. Bounded by the number of shared memories.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::{io, ptr, thread};

use super::memory::refused;
use super::owned::{Domain, MemoryRegion};
use super::sys;
use crate::verbs::device::{DmaBuf, VerbsError};
use nix::sched::{sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// A domain's pointer, to be sent to the thread.
struct DomainPointer(*mut sys::ibv_pd);

// SAFETY: the library's calls may be made by any thread, and the domain outlives the thread (see `Registrar::start`).
unsafe impl Send for DomainPointer {}

/// A region that moves from one thread to the other, and is never on both.
pub(super) struct Moved(pub(super) MemoryRegion);

// SAFETY: a region is a pointer of the library's, whose calls may be made by any thread; only its owner uses it.
unsafe impl Send for Moved {}

enum Job {
    Register { ticket: u64, address: u64, bytes: usize, access: u32 },
    RegisterDirect { ticket: u64, memory: Arc<DmaBuf>, access: u32 },
    Deregister { id: u32, region: Moved },
}

/// The result of a job.
pub(super) enum Done {
    Registered { ticket: u64, region: Result<Moved, VerbsError> },
    Deregistered { id: u32 },
}

pub(super) struct Registrar {
    jobs: Option<Sender<Job>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
    /// Nothing more is registered.
    closing: Arc<AtomicBool>,
}

impl Registrar {
    /// # Errors
    /// No thread can be created.
    ///
    /// # Safety
    /// It must be dropped before the domain.
    pub(super) unsafe fn start(domain: &Domain) -> io::Result<Self> {
        let (jobs, incoming) = channel();
        let (outgoing, done) = channel();
        let domain = DomainPointer(domain.as_ptr());
        let closing = Arc::new(AtomicBool::new(false));
        let is_closing = closing.clone();
        let thread = thread::Builder::new().name("sealane-verbs".into()).spawn(move || {
            leave_the_shards_cpu();
            work(&domain, &incoming, &outgoing, &is_closing);
        })?;
        Ok(Self { jobs: Some(jobs), done, thread: Some(thread), closing })
    }

    /// # Safety
    /// The bytes must stay mapped until the job is done and the region deregistered.
    pub(super) unsafe fn register(&self, ticket: u64, address: u64, bytes: usize, access: u32) {
        self.give(Job::Register { ticket, address, bytes, access });
    }

    pub(super) fn register_direct(&self, ticket: u64, memory: Arc<DmaBuf>, access: u32) {
        self.give(Job::RegisterDirect { ticket, memory, access });
    }

    pub(super) fn deregister(&self, id: u32, region: MemoryRegion) {
        self.give(Job::Deregister { id, region: Moved(region) });
    }

    fn give(&self, job: Job) {
        // The thread ends only when the sender is dropped.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    pub(super) fn next(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        self.jobs = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A new thread may run where its parent may, which is on the CPU that a shard is pinned to. This one moves to where the
/// process may run: the process's first thread is not a shard.
fn leave_the_shards_cpu() {
    let moved = sched_getaffinity(Pid::this()).and_then(|may| sched_setaffinity(Pid::from_raw(0), &may));
    if let Err(error) = moved {
        tracing::debug!(%error, "memory is registered on a shard's own CPU");
    }
}

fn work(domain: &DomainPointer, jobs: &Receiver<Job>, done: &Sender<Done>, closing: &AtomicBool) {
    for job in jobs {
        let outcome = match job {
            // It takes seconds, and would be undone at once.
            Job::Register { .. } | Job::RegisterDirect { .. } if closing.load(Ordering::Relaxed) => continue,
            Job::Register { ticket, address, bytes, access } => {
                let address = ptr::with_exposed_provenance_mut(address as usize);
                // SAFETY: the domain outlives this thread; the job's owner keeps the memory valid.
                let region = unsafe { MemoryRegion::register_in(domain.0, address, bytes, access) };
                let region = region.map_err(|error| refused("ibv_reg_mr", bytes, &error));
                Done::Registered { ticket, region: region.map(Moved) }
            }
            Job::RegisterDirect { ticket, memory, access } => {
                let (descriptor, bytes) = (memory.as_fd().as_raw_fd(), memory.bytes() as usize);
                let range = (memory.offset(), bytes, memory.address());
                // SAFETY: the domain outlives this thread.
                let region = unsafe { MemoryRegion::register_direct_in(domain.0, range, descriptor, access) };
                let region = region.map_err(|error| refused("ibv_reg_dmabuf_mr", bytes, &error));
                Done::Registered { ticket, region: region.map(Moved) }
            }
            Job::Deregister { id, region } => {
                drop(region);
                Done::Deregistered { id }
            }
        };
        if done.send(outcome).is_err() {
            return;
        }
    }
}
