//! Memory that tensors leave from and arrive in without a copy.
//!
//! Which buffer a block is, is kept here and not beside the block: the daemon can write to an arena.
#![allow(unsafe_code)]

use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    collections::HashMap,
    ffi::c_void,
    ptr::{NonNull, null_mut},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicPtr, Ordering},
    },
};

use sealane::Buffer;
use sealane_runtime::Lender;

use crate::{
    error::{sealane_code, sealane_error},
    guard::{Outcome, entry, unpanicked},
    task::{place, sealane_task, task},
};

/// What a block is aligned to.
const ALIGNMENT: usize = 64;

/// Buffers of the blocks that are out, by address.
type Blocks = Mutex<HashMap<usize, Buffer>>;

/// Those of this process; null before the first.
static BLOCKS: AtomicPtr<Blocks> = AtomicPtr::new(null_mut());

fn blocks() -> MutexGuard<'static, HashMap<usize, Buffer>> {
    let mut blocks = BLOCKS.load(Ordering::Acquire);
    if blocks.is_null() {
        let new = Box::into_raw(Box::default());
        blocks = match BLOCKS.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(first) => {
                // SAFETY: it was just made, and nobody else has it.
                drop(unsafe { Box::from_raw(new) });
                first
            }
        };
    }
    // SAFETY: what is there was made above, and is never freed.
    unsafe { &*blocks }.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child the blocks are the parent's, and their lock may be held for ever.
pub(crate) fn forget_in_child() {
    BLOCKS.store(null_mut(), Ordering::Release);
}

/// Memory that a task sends from, aligned to [`ALIGNMENT`]. It holds zeros, or what it held before.
///
/// # Errors
/// ResourceExhausted if there is none, InvalidArgument if there cannot be so much.
pub(crate) fn allocate(task: &sealane_task, bytes: usize) -> Outcome<Buffer> {
    if !task.is_embedded() {
        return Ok(task.task.alloc(bytes)?);
    }
    let layout = Layout::from_size_align(bytes.max(1), ALIGNMENT)
        .map_err(|_| sealane_error::invalid(format!("{bytes} bytes are more than there can be")))?;
    // SAFETY: it has bytes.
    let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(|| {
        sealane_error::new(sealane_code::ResourceExhausted, format!("the system has no {bytes} bytes of memory"))
    })?;
    // SAFETY: the memory was just allocated for this buffer, and is freed when that drops its lender.
    Ok(unsafe { Buffer::lent(start, bytes, 0, Arc::new(Heap { start, layout })) })
}

/// Memory of the heap, until it is dropped.
struct Heap {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it gives the memory to nobody.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Lender for Heap {
    fn give_back(&self, _token: u64) {
        // The buffer drops its reference to this right after, which is what frees the memory.
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: it was allocated so, and its buffer is gone.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Memory that tensors leave from and arrive in without a copy, aligned to 64 bytes: of the arena that is shared with the
/// daemon, or of the heap where the engine is in this process. What it holds is not defined.
///
/// It stays usable after its task was detached, until sealane_free. After the daemon was restarted it is memory like any
/// other, and is copied. Fails with SEALANE_CODE_RESOURCE_EXHAUSTED if there is no room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_alloc(
    task: *mut sealane_task,
    bytes: usize,
    memory: *mut *mut c_void,
) -> *mut sealane_error {
    entry(|| {
        let place = place(memory, "memory")?;
        // SAFETY: as the header asks of C code.
        let task = unsafe { self::task(task) }?;
        let mut buffer = allocate(task, bytes.max(1))?;
        let start = buffer.as_mut_ptr();
        blocks().insert(start.addr(), buffer);
        // SAFETY: there is a place.
        unsafe { place.write(start.cast()) };
        Ok(())
    })
}

/// Frees memory of sealane_alloc, of whichever task; does nothing with NULL or any other memory, as a parent's is in the child of a fork. As a sealane_release, with the
/// memory as its context, it frees what was lent as soon as that is no longer used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_free(memory: *mut c_void) {
    let unpanicked = unpanicked(|| {
        let block = blocks().remove(&memory.addr());
        drop(block);
        Ok(())
    });
    // There is nobody to tell.
    drop(unpanicked);
}

/// Where the arena is that a task shares with its daemon: memory within it is sent from, and received in, where it is. No bytes for a
/// task whose engine is in this process. Another daemon has another arena: ask again when calls have ended with SEALANE_CODE_UNAVAILABLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_arena_range(
    task: *mut sealane_task,
    start: *mut *const c_void,
    bytes: *mut usize,
) -> *mut sealane_error {
    entry(|| {
        let (start, bytes) = (place(start, "start")?, place(bytes, "bytes")?);
        // SAFETY: as the header asks of C code.
        let range = unsafe { self::task(task) }?.task.arena_range()?;
        // SAFETY: there are places.
        unsafe {
            start.write(range.as_ref().map_or(std::ptr::null(), |range| range.start.cast()));
            bytes.write(range.map_or(0, |range| range.end.addr() - range.start.addr()));
        }
        Ok(())
    })
}

/// True if all of this memory lies in the arena that a task shares with its daemon. False for a NULL task, and for memory outside its arena.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sealane_in_arena(task: *mut sealane_task, memory: *const c_void, bytes: usize) -> bool {
    let inside = unpanicked(|| {
        // SAFETY: as the header asks of C code.
        let Some(range) = unsafe { self::task(task) }?.task.arena_range()? else { return Ok(false) };
        let end = memory.addr().checked_add(bytes);
        Ok(memory.addr() >= range.start.addr() && end.is_some_and(|end| end <= range.end.addr()))
    });
    inside.unwrap_or(false)
}
