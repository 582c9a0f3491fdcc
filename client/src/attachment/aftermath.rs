//! Work deferred until the lock is released: wakers run executors' code, and dropped memory may run its owner's code, which may
//! call back here or take another lock. Bounded by the calls that end under one lock.

use std::task::Waker;

use sealane_transport::{Tensor, Unreceived, shm::ReadOnlyMemory};

use super::{link::Link, memory::Memory};

/// Wakers to wake and things to drop.
#[derive(Default)]
pub(super) struct Aftermath {
    pub(super) wakers: Vec<Waker>,
    pub(super) spent: Vec<Memory>,
    pub(super) unwanted: Vec<Tensor>,
    pub(super) failures: Vec<Unreceived>,
    pub(super) link: Option<Box<Link>>,
    pub(super) arenas: Vec<ReadOnlyMemory>,
}

impl Aftermath {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.wakers.is_empty()
            && self.spent.is_empty()
            && self.unwanted.is_empty()
            && self.failures.is_empty()
            && self.link.is_none()
            && self.arenas.is_empty()
    }

    /// Does all of it, and leaves this empty for reuse.
    pub(super) fn carry_out(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        self.spent.clear();
        self.unwanted.clear();
        self.failures.clear();
        self.link = None;
        self.arenas.clear();
    }
}
