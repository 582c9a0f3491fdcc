//! The link's record of its queue pair's send queue: posted requests, in order, until they are known to be complete.
//!
//! Bounded by the queue pair's depth, and with all other links of the shard by the completion queue.
#![allow(unsafe_code)]

use std::collections::VecDeque;

use crate::verbs::device::{Post, QueuePair, VerbsError, Work};
use crate::verbs::limits::SIGNAL_EVERY;
use crate::verbs::port::State;

/// What to do when a work request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Then {
    Nothing,
    /// A message was sent: its buffer is free.
    FreeBuffer(u32),
    /// A piece of a payload was written, possibly the last one.
    Written {
        transfer: u16,
        bytes: u32,
        is_last: bool,
    },
    /// A piece of a payload was read.
    Read {
        transfer: u16,
        bytes: u32,
    },
    /// The peer can no longer write to the place of a payload that has arrived.
    ClosedIn,
    /// The peer can no longer read a payload that was sent.
    ClosedOut(u16),
    /// The peer can no longer write to a place that was revoked.
    ClosedPlace(u64),
}

pub(super) struct Queue {
    depth: usize,
    posts: Vec<Post>,
    /// Requests posted or about to be, oldest first.
    outstanding: VecDeque<Then>,
    /// The number of the oldest of these.
    first: u64,
    unsignaled: u32,
    /// Buffers of inline messages that are about to be posted.
    inline_buffers: Vec<u32>,
}

impl Queue {
    pub(super) fn new(depth: u32) -> Self {
        Self {
            depth: depth as usize,
            posts: Vec::with_capacity(depth as usize),
            outstanding: VecDeque::with_capacity(depth as usize),
            first: 0,
            unsignaled: 0,
            inline_buffers: Vec::new(),
        }
    }

    /// Number of work requests that are not known to be done.
    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding.len() as u32
    }

    /// True if there is room for `works` more, here and among those of the other links.
    #[inline]
    pub(super) fn has_room(&self, state: &State, works: usize) -> bool {
        self.outstanding.len() + works <= self.depth && state.has_room_for(works as u32)
    }

    #[inline]
    pub(super) fn push(&mut self, state: &mut State, work: Work, then: Then) {
        self.unsignaled += 1;
        let is_awaited = !matches!(then, Then::Nothing | Then::FreeBuffer(_));
        // Requests that nobody waits for must not fill the queue or the share of all links: their room comes back by itself.
        let is_half_full = self.outstanding.len() * 2 >= self.depth;
        let signaled = is_awaited || self.unsignaled >= SIGNAL_EVERY || is_half_full || state.is_short();
        if signaled {
            self.unsignaled = 0;
        }
        let id = self.first + self.outstanding.len() as u64;
        self.posts.push(Post { id, signaled, work });
        self.outstanding.push_back(then);
        state.posted(1);
    }

    /// Appends a message whose bytes the device copies when it is posted.
    #[inline]
    pub(super) fn push_inline(&mut self, state: &mut State, work: Work, buffer: u32) {
        self.inline_buffers.push(buffer);
        self.push(state, work, Then::Nothing);
    }

    /// Posts the appended requests.
    ///
    /// # Errors
    /// The device refuses; the link ends.
    ///
    /// # Safety
    /// As for [`Device::post`](crate::verbs::device::Device::post).
    #[inline]
    pub(super) unsafe fn flush(&mut self, state: &mut State, queue_pair: &QueuePair) -> Result<(), VerbsError> {
        if self.posts.is_empty() {
            return Ok(());
        }
        // SAFETY: as the caller promises.
        let posted = unsafe { state.device.post(queue_pair.id, &self.posts) };
        self.posts.clear();
        self.inline_buffers.drain(..).for_each(|buffer| state.free_send_buffer(buffer));
        posted.map_err(|(_, error)| error)
    }

    /// Work request `id` and all before it are done: what to do next goes into `done`, oldest first.
    pub(super) fn retire(&mut self, state: &mut State, id: u64, done: &mut Vec<Then>) {
        while self.first <= id
            && let Some(then) = self.outstanding.pop_front()
        {
            self.first += 1;
            state.retired(1);
            match then {
                Then::Nothing => {}
                Then::FreeBuffer(buffer) => state.free_send_buffer(buffer),
                then => done.push(then),
            }
        }
    }

    /// The queue pair is gone: message buffers are free again.
    pub(super) fn clear(&mut self, state: &mut State) {
        for then in self.outstanding.drain(..) {
            if let Then::FreeBuffer(buffer) = then {
                state.free_send_buffer(buffer);
            }
        }
        self.inline_buffers.drain(..).for_each(|buffer| state.free_send_buffer(buffer));
        self.posts.clear();
    }
}
