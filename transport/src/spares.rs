//! Buffers between uses: a user takes one when it has bytes to hold, and returns it once it is empty, so that an idle
//! session holds none and a busy one allocates none.
//!
//! Each thread has its own, at most [`SPARE_BUFFERS_MAX`], each as large as its users made it. A user of large buffers
//! keeps a few of its own ([`Spares::new`]).

use std::cell::RefCell;

use crate::limits::SPARE_BUFFERS_MAX;

/// Returned buffers of one use.
pub(crate) struct Spares {
    buffers: RefCell<Vec<Vec<u8>>>,
    most: usize,
}

thread_local! {
    static SPARES: Spares = const { Spares::new(SPARE_BUFFERS_MAX) };
}

impl Spares {
    /// Keeps at most `most` buffers.
    pub(crate) const fn new(most: usize) -> Self {
        Self { buffers: RefCell::new(Vec::new()), most }
    }

    /// The buffer returned last, or a new one.
    #[inline]
    pub(crate) fn take(&self) -> Vec<u8> {
        self.buffers.borrow_mut().pop().unwrap_or_default()
    }

    /// Keeps a buffer for the next user, unless there are enough, and leaves one without memory.
    #[inline]
    pub(crate) fn give_back(&self, buffer: &mut Vec<u8>) {
        let buffer = std::mem::take(buffer);
        let mut spares = self.buffers.borrow_mut();
        if buffer.capacity() > 0 && spares.len() < self.most {
            spares.push(buffer);
        }
    }
}

/// An empty buffer, with capacity if another was returned on this thread.
#[inline]
pub(crate) fn take() -> Vec<u8> {
    SPARES.with(Spares::take)
}

/// Empties a buffer for the next user to [take](take), and leaves one without memory.
#[inline]
pub(crate) fn give_back(buffer: &mut Vec<u8>) {
    buffer.clear();
    SPARES.with(|spares| spares.give_back(buffer));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_given_back_is_the_next_one_and_is_empty() {
        let mut buffer = take();
        buffer.extend_from_slice(&[7; 1000]);
        let address = buffer.as_ptr();
        give_back(&mut buffer);
        assert_eq!(buffer.capacity(), 0);
        let next = take();
        assert!(next.is_empty() && next.as_ptr() == address);
    }

    #[test]
    fn no_more_are_kept_than_may_be() {
        give_back(&mut Vec::new());
        (0..2 * SPARE_BUFFERS_MAX).for_each(|_| give_back(&mut Vec::with_capacity(8)));
        let kept = std::iter::repeat_with(take).take_while(|buffer| buffer.capacity() > 0);
        assert_eq!(kept.count(), SPARE_BUFFERS_MAX);
    }
}
