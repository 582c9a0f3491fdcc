//! The message buffers of a port: send buffers, and those of the shared receive queue.
//!
//! Their number is fixed when the port is opened; each belongs either to a link or to the device.
#![allow(unsafe_code)]

use sealane_runtime::Buffer;

use super::State;
use crate::verbs::device::{Piece, RECEIVED, VerbsError};
use crate::verbs::limits::{MESSAGE_BYTES, SEND_BUFFERS};

impl State {
    /// A free send buffer for a message.
    #[inline]
    pub(in crate::verbs) fn take_send_buffer(&mut self) -> Option<u32> {
        self.free_send_buffers.pop()
    }

    #[inline]
    pub(in crate::verbs) fn free_send_buffer(&mut self, buffer: u32) {
        self.free_send_buffers.push(buffer);
        self.wake_waiting();
    }

    /// Takes out the memory of a send buffer, to be put back.
    #[inline]
    pub(in crate::verbs) fn lift_send_buffer(&mut self, buffer: u32) -> Buffer {
        std::mem::take(&mut self.send_buffers[buffer as usize])
    }

    #[inline]
    pub(in crate::verbs) fn put_down_send_buffer(&mut self, buffer: u32, memory: Buffer) {
        self.send_buffers[buffer as usize] = memory;
    }

    /// Takes out the memory of a receive buffer in which a message has come, to be put back.
    #[inline]
    pub(in crate::verbs) fn lift_receive_buffer(&mut self, buffer: u32) -> Buffer {
        std::mem::take(&mut self.receive_buffers[buffer as usize])
    }

    #[inline]
    pub(in crate::verbs) fn put_down_receive_buffer(&mut self, buffer: u32, memory: Buffer) {
        self.receive_buffers[buffer as usize] = memory;
    }

    /// True if few message buffers or entries of the completion queue are left, so that completions should come sooner.
    #[inline]
    pub(in crate::verbs) fn is_short(&self) -> bool {
        self.free_send_buffers.len() < SEND_BUFFERS / 4 || self.works * 2 >= self.works_max
    }

    #[inline]
    pub(in crate::verbs) fn send_buffer(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.send_buffers[buffer as usize]
    }

    /// The first `bytes` of a message buffer, for the device.
    #[inline]
    pub(in crate::verbs) fn message_piece(&self, buffer: u32, bytes: usize) -> Piece {
        let address = self.send_buffers[buffer as usize].as_ptr() as u64;
        Piece { address, bytes: bytes as u32, lkey: self.messages_lkey }
    }

    /// Notes that a receive buffer must be posted again, by [`post_refills`](Self::post_refills).
    #[inline]
    pub(in crate::verbs) fn refill(&mut self, buffer: u32) {
        let memory = &mut self.receive_buffers[buffer as usize];
        let piece =
            Piece { address: memory.as_mut_ptr() as u64, bytes: MESSAGE_BYTES as u32, lkey: self.messages_lkey };
        self.refill.push((RECEIVED | u64::from(buffer), piece));
    }

    /// Returns to the shared receive queue what was taken from it. If that fails, the port is out of use: there are fewer
    /// buffers than promised.
    #[inline]
    pub(in crate::verbs) fn post_refills(&mut self) -> Result<(), VerbsError> {
        if self.refill.is_empty() {
            return Ok(());
        }
        // SAFETY: the buffers outlive the device, and are looked at only between their completion and now.
        let posted = unsafe { self.device.post_receives(&self.refill) };
        self.refill.clear();
        posted.inspect_err(|error| self.give_up(&error.to_string()))
    }
}
