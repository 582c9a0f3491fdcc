//! Where blocks are allocated and freed, and when the memory is released; the owner thread allocates, any thread frees.
//!
//! Allocating and freeing touch no reference count. The owner counts its blocks without atomics; when it leaves, it closes the
//! return stack and adds the number of allocated blocks to a counter that the remaining frees count down. The thread that brings
//! that counter to zero frees the memory.
#![allow(unsafe_code)]

use std::{
    cell::{Cell, UnsafeCell},
    ptr::NonNull,
    sync::atomic::{AtomicIsize, AtomicU64, Ordering},
};

use super::{
    buffer::Buffer,
    extents::{BLOCK_MIN, Block, Extents},
    region::Region,
};
use crate::return_stack::{Handle, ReturnStack};

/// The largest slab: a block's name on the return stack has 32 bits for the offset in units of the smallest block,
/// of which the topmost is kept free for the stack's own marks.
pub(super) const BYTES_MAX: usize = BLOCK_MIN << 31;

/// The slab's shared part. It lives in its own box until the last block is returned and the owner is gone.
pub(super) struct Home {
    region: Region,
    returns: ReturnStack,
    /// Allocated blocks after the owner left; below zero while the owner is leaving.
    orphans: AtomicIsize,
    /// The token of the thread that may access `local`.
    owner: u64,
    local: UnsafeCell<Local>,
}

/// What only the owner's thread accesses.
struct Local {
    extents: Extents,
    closed: bool,
}

/// A number that no other thread of this process has or will have, unlike an address in thread-local storage.
fn thread_token() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local!(static TOKEN: Cell<u64> = const { Cell::new(0) });
    TOKEN.with(|token| {
        if token.get() == 0 {
            token.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        token.get()
    })
}

fn handle(block: Block) -> Handle {
    u64::from(block.extent) << 32 | (block.offset / BLOCK_MIN) as u64
}

fn block(handle: Handle) -> Block {
    Block { offset: (handle & u64::from(u32::MAX)) as usize * BLOCK_MIN, extent: (handle >> 32) as u32 }
}

impl Home {
    fn address(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.region.bytes());
        // SAFETY: the offset is inside the mapping, as just checked.
        unsafe { self.region.base().add(offset) }
    }

    /// Writes the link of a block that is being returned.
    fn write_link(&self, at: Block, link: u64) {
        // SAFETY: the block has at least 64 bytes, is 64-byte aligned, and belongs to the thread that returns it.
        unsafe { self.address(at.offset).cast::<u64>().write(link) };
    }

    /// Reads the link of a block taken off the return stack.
    fn read_link(&self, handle: Handle) -> u64 {
        // SAFETY: as in `write_link`; the stack's RETURN pair made the write visible, and the block is the owner's.
        unsafe { self.address(block(handle).offset).cast::<u64>().read() }
    }

    /// Frees the blocks that other threads returned.
    fn drain(&self, local: &mut Local) {
        self.returns.take(|handle| self.read_link(handle), |handle| local.extents.free(block(handle)));
    }
}

/// Gives a block back, from whichever thread dropped its buffer.
///
/// # Safety
/// `home` gave out `at` and has not got it back; nobody uses the block any more.
pub(super) unsafe fn give_back(home: NonNull<Home>, at: Block) {
    {
        // SAFETY: a home lives at least until its last block is returned, which is this one at the earliest.
        let home = unsafe { home.as_ref() };
        if home.owner == thread_token() {
            // SAFETY: `local` is touched on the owner's thread alone, which this is, and never across a call that
            // could come back here.
            let local = unsafe { &mut *home.local.get() };
            if !local.closed {
                local.extents.free(at);
                return;
            }
        } else if home.returns.push(handle(at), |link| home.write_link(at, link)).is_ok() {
            return;
        }
        // The owner has left. ORPHAN: Release publishes this thread's uses of the memory, Acquire takes over everyone else's for
        // the thread that frees it.
        if home.orphans.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
    }
    // SAFETY: the counter reached zero, which happens once: the owner has left and every block is back.
    drop(unsafe { Box::from_raw(home.as_ptr()) });
}

/// The owner's handle; `!Send` because of its pointer, since the free bitmaps behind it belong to one thread.
#[derive(Debug)]
pub(super) struct Owner(NonNull<Home>);

impl Owner {
    pub(super) fn new(region: Region) -> Self {
        let home = Home {
            returns: ReturnStack::new(),
            orphans: AtomicIsize::new(0),
            owner: thread_token(),
            local: UnsafeCell::new(Local { extents: Extents::new(region.bytes()), closed: false }),
            region,
        };
        Self(NonNull::from(Box::leak(Box::new(home))))
    }

    fn home(&self) -> &Home {
        // SAFETY: the home lives at least until its owner has left, which is when this handle is dropped.
        unsafe { self.0.as_ref() }
    }

    /// Runs `f` on the owner's part, after freeing the blocks that other threads returned.
    fn with_local<R>(&self, f: impl FnOnce(&mut Local) -> R) -> R {
        let home = self.home();
        // SAFETY: this handle cannot leave the owner's thread, and neither `drain` nor the closures passed here
        // come back to this slab.
        let local = unsafe { &mut *home.local.get() };
        if !home.returns.is_empty() {
            home.drain(local);
        }
        f(local)
    }

    pub(super) fn allocate(&self, len: usize) -> Option<Buffer> {
        let block = self.with_local(|local| local.extents.allocate(len))?;
        // SAFETY: the block was just taken for `len` bytes and goes to this one buffer.
        Some(unsafe { Buffer::from_block(self.home().address(block.offset), len, block, self.0) })
    }

    pub(super) fn in_use_bytes(&self) -> usize {
        self.with_local(|local| local.extents.in_use_bytes())
    }

    pub(super) fn capacity_bytes(&self) -> usize {
        self.home().region.bytes()
    }

    pub(super) fn region(&self) -> (*const u8, usize) {
        (self.home().region.base().as_ptr(), self.capacity_bytes())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let last = {
            let home = self.home();
            // SAFETY: as in `with_local`.
            let local = unsafe { &mut *home.local.get() };
            home.returns.close(|handle| home.read_link(handle), |handle| local.extents.free(block(handle)));
            local.closed = true;
            let out = local.extents.blocks_out() as isize;
            // ORPHAN: see `give_back`. Frees between the close and here have made the counter negative.
            home.orphans.fetch_add(out, Ordering::AcqRel) + out == 0
        };
        if last {
            // SAFETY: the owner leaves and every block is back, so nobody else has a pointer to the home.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}
