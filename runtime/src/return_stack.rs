//! A lock-free stack on which other threads hand blocks back to the slab that owns them; bounded by the slab.
//!
//! Each block's link is stored in the block itself, so a push needs no memory. Only the owner takes, and it takes
//! everything at once, so the stack cannot suffer from a head that is popped and pushed again (ABA). When the
//! owner goes, it closes the stack; from then on a push is refused and the block is accounted for elsewhere.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Names a block; the two largest values are reserved.
pub(crate) type Handle = u64;

const EMPTY: Handle = u64::MAX;
const CLOSED: Handle = u64::MAX - 1;

/// The stack was closed; the block was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

#[derive(Debug)]
pub(crate) struct ReturnStack(AtomicU64);

impl ReturnStack {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(EMPTY))
    }

    /// Any thread: pushes `block`; `link` writes a word into the block.
    pub(crate) fn push(&self, block: Handle, mut link: impl FnMut(u64)) -> Result<(), Closed> {
        debug_assert!(block < CLOSED);
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            if head == CLOSED {
                return Err(Closed);
            }
            link(head);
            // RETURN: Release here, Acquire in `take` and `close`, so that the link and all earlier uses of the
            // block are visible to the owner.
            match self.0.compare_exchange_weak(head, block, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(seen) => head = seen,
            }
        }
    }

    /// Owner: whether there is nothing to take. Costs one relaxed load.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == EMPTY
    }

    /// Owner: takes every block. `link` reads the word that `push` wrote into a block.
    pub(crate) fn take(&self, link: impl FnMut(Handle) -> u64, block: impl FnMut(Handle)) {
        // RETURN: see `push`.
        Self::walk(self.0.swap(EMPTY, Ordering::Acquire), link, block);
    }

    /// Owner: like `take`, and then refuses every later push.
    pub(crate) fn close(&self, link: impl FnMut(Handle) -> u64, block: impl FnMut(Handle)) {
        // RETURN: see `push`.
        Self::walk(self.0.swap(CLOSED, Ordering::Acquire), link, block);
    }

    fn walk(mut head: Handle, mut link: impl FnMut(Handle) -> u64, mut block: impl FnMut(Handle)) {
        while head < CLOSED {
            // The link must be read before the block may be reused.
            let next = link(head);
            block(head);
            head = next;
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use loom::{cell::UnsafeCell, sync::Arc, thread};

    use super::{Closed, ReturnStack};

    const BLOCKS: usize = 3;

    struct Model {
        stack: ReturnStack,
        // Plain memory, so that loom reports a race if the stack does not order accesses to a link.
        links: [UnsafeCell<u64>; BLOCKS],
    }

    #[allow(unsafe_code)]
    impl Model {
        fn push(&self, block: u64) -> Result<(), Closed> {
            self.stack.push(block, |next| {
                self.links[block as usize].with_mut(|link| {
                    // SAFETY: a block has one pusher, and loom fails the model if anything else touches its link.
                    unsafe { *link = next }
                });
            })
        }

        fn link(&self, block: u64) -> u64 {
            self.links[block as usize].with(|link| {
                // SAFETY: as in `push`.
                unsafe { *link }
            })
        }
    }

    fn model() -> Arc<Model> {
        Arc::new(Model { stack: ReturnStack::new(), links: Default::default() })
    }

    #[test]
    fn loom_every_block_comes_back_once() {
        loom::model(|| {
            let model = model();
            let threads = [0, 1].map(|block| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.push(block).unwrap())
            });
            let mut came = [0; BLOCKS];
            model.stack.take(|block| model.link(block), |block| came[block as usize] += 1);
            for thread in threads {
                thread.join().unwrap();
            }
            model.stack.take(|block| model.link(block), |block| came[block as usize] += 1);
            assert_eq!(came, [1, 1, 0]);
            assert!(model.stack.is_empty());
        });
    }

    #[test]
    fn loom_a_closed_stack_refuses_what_its_owner_did_not_see() {
        loom::model(|| {
            let model = model();
            let threads = [0, 1].map(|block| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.push(block).is_err())
            });
            let mut came = 0;
            model.stack.close(|block| model.link(block), |_| came += 1);
            let refused = threads.map(|thread| usize::from(thread.join().unwrap()));
            assert_eq!(came + refused[0] + refused[1], 2);
        });
    }
}
