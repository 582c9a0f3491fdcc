//! A device's completion queue and its events, each with the descriptor that signals them.
//!
//! Entries are bounded by the completion queue's depth; events by what is injected.

use std::collections::VecDeque;
use std::sync::Arc;

use nix::sys::eventfd::{EfdFlags, EventFd};

use crate::verbs::device::{AsyncEvent, Completion, RECEIVED};

/// A descriptor that is readable while there is something to read.
///
/// # Panics
/// If the process may open no more descriptors.
pub(super) fn bell(flags: EfdFlags) -> Arc<EventFd> {
    let flags = flags | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    Arc::new(EventFd::from_value_and_flags(0, flags).expect("a descriptor for a fake device"))
}

pub(super) struct Entry {
    pub(super) completion: Completion,
    /// Places of the send queue that become free once this is polled: its own, and those of unsignaled requests before it.
    pub(super) frees: u32,
}

impl Entry {
    pub(super) fn is_receive(&self) -> bool {
        self.completion.id & RECEIVED != 0
    }
}

pub(super) struct CompletionQueue {
    pub(super) entries: VecDeque<Entry>,
    depth: usize,
    is_armed: bool,
    bell: Arc<EventFd>,
}

impl CompletionQueue {
    pub(super) fn new(depth: u32, bell: Arc<EventFd>) -> Self {
        Self { entries: VecDeque::new(), depth: depth as usize, is_armed: false, bell }
    }

    /// False if there is no room: the entry is lost.
    #[must_use]
    pub(super) fn push(&mut self, completion: Completion, frees: u32) -> bool {
        if self.entries.len() >= self.depth {
            return false;
        }
        self.entries.push_back(Entry { completion, frees });
        if std::mem::take(&mut self.is_armed) {
            // Cannot fail: the count is far from its limit, since arming resets it.
            let _ = self.bell.write(1);
        }
        true
    }

    pub(super) fn arm(&mut self) {
        self.is_armed = true;
    }

    pub(super) fn is_armed(&self) -> bool {
        self.is_armed
    }
}

pub(super) struct Events {
    waiting: VecDeque<AsyncEvent>,
    /// Counts down: readable as often as there are events.
    bell: Arc<EventFd>,
}

impl Events {
    pub(super) fn new(bell: Arc<EventFd>) -> Self {
        Self { waiting: VecDeque::new(), bell }
    }

    pub(super) fn push(&mut self, event: AsyncEvent) {
        self.waiting.push_back(event);
        // Cannot fail: the count is the number of waiting events.
        let _ = self.bell.write(1);
    }

    pub(super) fn pop(&mut self) -> Option<AsyncEvent> {
        let event = self.waiting.pop_front()?;
        // Cannot fail: there was an event.
        let _ = self.bell.read();
        Some(event)
    }
}
